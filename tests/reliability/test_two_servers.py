"""Two `holdfast serve` processes share one store, and either may be killed while the other continues.

Clients use both, in random order: a message accepted by one server is retried at the other, a session id from
one works at the other, and several clients write to one conversation at once. What either acknowledged is
there once, turns of a conversation never interleave, and the surviving server reaps the dead one's turns.
"""

from __future__ import annotations

import sys
import time

import pytest

from .attacking import attacked
from .conftest import Tell
from .sizes import Size, short_and_soak

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets two sockets share a port so")


@short_and_soak(Size("short", 5, 8.0), Size("soak", 100))
async def test_a_killed_server_harms_nobody_who_goes_on_at_the_other(
    size: Size, seed: int, figures: Tell
) -> None:
    async with attacked(seed, count=2, shared=4) as attack:
        began = time.monotonic()
        for _ in size.rounds():
            verdict = await attack.kill_and_look()
            assert verdict.clean, f"after kill {attack.kills}: {verdict}"
        took = time.monotonic() - began
        verdict = await attack.finish()
        assert verdict.clean, f"at the end, after {attack.kills} kills: {verdict}"
    assert len(attack.ledger.answered) > attack.kills / 2, "hardly anything was said between the kills"
    figures(f"two servers, one store: {attack.figures(took)}")
