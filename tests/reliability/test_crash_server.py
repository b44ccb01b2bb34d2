"""Crash, server: `holdfast serve` is killed with `kill -9` at random moments under clients that retry.

What it had acknowledged is there once, every turn ends in a truthful state, and the model is given what was
said, once. `attacking.py` says who takes part, `exchanges.py` what counts as acknowledged.
"""

from __future__ import annotations

import time

import pytest

from .attacking import attacked
from .conftest import Tell
from .mutants import NAME
from .sizes import Size, short_and_soak


@short_and_soak(Size("short", 12, 12.0), Size("soak", 300))
async def test_what_a_server_acknowledged_before_a_kill_is_there_once_after_it(
    size: Size, seed: int, figures: Tell
) -> None:
    async with attacked(seed) as attack:
        began = time.monotonic()
        for _ in size.rounds():
            verdict = await attack.kill_and_look()
            assert verdict.clean, f"after kill {attack.kills}: {verdict}"
        took = time.monotonic() - began
        verdict = await attack.finish()
        assert verdict.clean, f"at the end, after {attack.kills} kills: {verdict}"
    assert len(attack.ledger.answered) > attack.kills, "hardly anything was said between the kills"
    assert attack.cut and attack.ledger.counts["retried"], "no reply was cut short"
    figures(f"crash, server: {attack.figures(took)}")


@pytest.mark.parametrize(
    ("mutant", "kind", "words"),
    [
        ("requests-in-memory", "doubled", "is turn"),
        ("finish-before-commit", "lost", "the answer to"),
        ("no-checkpoints", "lost", "before the kill is gone"),
    ],
)
async def test_a_server_that_forgets_or_promises_too_much_is_noticed(
    seed: int, monkeypatch: pytest.MonkeyPatch, mutant: str, kind: str, words: str
) -> None:
    monkeypatch.setenv(NAME, mutant)
    async with attacked(seed) as attack:
        for _ in range(60):
            verdict = await attack.kill_and_look()
            if any(words in sentence for sentence in getattr(verdict, kind)):
                return
    pytest.fail(f"{attack.kills} kills, and {mutant} was not noticed")


async def test_a_partial_reply_that_is_given_to_the_model_again_is_noticed(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAME, "partial-reply-stays")
    async with attacked(seed) as attack:
        for _ in range(8):
            await attack.kill_and_look()
        verdict = await attack.finish()
    assert any("they differ at" in sentence for sentence in verdict.untruthful), str(verdict)
