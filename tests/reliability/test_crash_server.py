"""Crash, server: `holdfast serve` is killed with `kill -9` at random moments under clients that retry.

What it had acknowledged is there once, every turn ends in a truthful state, and the model is sent each
message once. `attacking.py` runs clients and kills, `exchanges.py` defines what counts as acknowledged.
"""

from __future__ import annotations

import sys
import time
from itertools import chain, takewhile
from pathlib import Path

import pytest

from tests import quiet_time

from . import reckoning
from .attacking import attacked
from .conftest import Tell
from .exchanges import Moment
from .mutants import ALL, NAME
from .sizes import Size, short_and_soak

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets two sockets share a port so")


@short_and_soak(Size("short", 8, 12.0), Size("soak", 300))
async def test_what_a_server_acknowledged_before_a_kill_is_there_once_after_it(
    size: Size, seed: int, tmp_path: Path, figures: Tell
) -> None:
    async with attacked(seed, tmp_path if size.name == "soak" else None) as attack:
        began = time.monotonic()
        more = range(5 * size.least)  # on a busy machine a few kills may all come between two replies
        for _ in chain(size.rounds(), takewhile(lambda _: not attack.cut, more)):
            verdict = await attack.kill_and_look()
            assert verdict.clean, f"after kill {attack.kills}: {verdict}"
        took = time.monotonic() - began
        verdict = await attack.finish()
        assert verdict.clean, f"at the end, after {attack.kills} kills: {verdict}"
    assert len(attack.ledger.answered) > attack.kills / 2, "hardly anything was said between the kills"
    assert attack.cut and attack.ledger.counts["retried"], "no reply was cut short"
    figures(f"crash, server: {attack.figures(took)}")


@pytest.mark.parametrize(
    ("mutant", "moment", "kind", "words"),
    [
        ("requests-in-memory", "accepted", "doubled", "is turn"),
        ("finish-before-commit", "answered", "lost", "the answer to"),
        ("no-checkpoints", None, "lost", "before the kill is gone"),
        ("partial-reply-stays", None, "untruthful", "had said"),
    ],
    ids=lambda value: value if value in ALL else None,
)
async def test_a_server_that_forgets_or_promises_too_much_is_noticed(
    seed: int, monkeypatch: pytest.MonkeyPatch, mutant: str, moment: Moment | None, kind: str, words: str
) -> None:
    monkeypatch.setenv(NAME, mutant)
    monkeypatch.setattr(reckoning, "SLACK_SECONDS", 0.2)
    monkeypatch.setattr(quiet_time, "now", time.monotonic)  # a busy machine hides nothing here
    async with attacked(seed, moments=[moment]) as attack:
        for _ in range(60):
            verdict = await attack.kill_and_look()
            if any(words in sentence for sentence in getattr(verdict, kind)):
                return
    pytest.fail(f"{attack.kills} kills, and {mutant} was not noticed")
