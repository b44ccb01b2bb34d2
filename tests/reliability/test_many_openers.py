"""Several processes share one file, from its creation on."""

from __future__ import annotations

import os
import signal
import traceback
from pathlib import Path

import holdfast
import holdfast.sync
from holdfast.store.sqlite.engine import open_store

from .conftest import Tell
from .sizes import Size, short_and_soak

OPENERS = 12


def _open_and_talk(path: Path, number: int) -> None:
    """In a forked child: open, talk once; every third leaves in good order, the others are killed."""
    hf = holdfast.open_sync(f"sqlite:///{path}", sweep=False)
    with hf.session(f"cli:{number}").turn("hello") as turn:
        turn.append("hi")
    if number % 3:
        os.kill(os.getpid(), signal.SIGKILL)
    hf.close()


@short_and_soak(Size("short", 4, 8.0), Size("soak", 100))
async def test_twelve_processes_may_make_and_open_a_new_store_at_once(
    tmp_path: Path, size: Size, figures: Tell
) -> None:
    rounds = 0
    for attempt in size.rounds():
        rounds += 1
        path = tmp_path / f"store-{attempt}.db"
        children = []
        for number in range(OPENERS):
            child = os.fork()
            if child == 0:
                try:
                    _open_and_talk(path, number)
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
            children.append(child)
        statuses = [os.waitpid(child, 0)[1] for child in children]
        assert not [s for s in statuses if os.WIFEXITED(s) and os.WEXITSTATUS(s)], "each could open and write"
        store = await open_store(path)
        totals = await store.statistics(None)
        assert (totals.sessions, totals.messages) == (OPENERS, 2 * OPENERS)
        assert await store.check() == []
        await store.close()
    figures(f"many openers: {rounds} new stores, {OPENERS} processes each at once, 0 refused, 0 lost")
