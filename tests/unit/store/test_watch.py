"""What waiting for commits costs: one wake-up and one timer for all waiters, and a pace for each group."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.store import watch
from holdfast.store.watch import LONGEST_PAUSE_SECONDS, PACE, UNPACED, ChangeWatch, pause_of


class Version(ChangeWatch):
    """A store that is only a number; commits of others have to be polled for."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def version(self) -> int:
        return self.number

    def commit(self) -> None:
        self.number += 1
        self.notice()

    def _poll_seconds(self) -> float:
        return 3600.0


def counted(monkeypatch: pytest.MonkeyPatch, *names: str) -> Counter[str]:
    """How often these methods of the running loop are called from now on."""
    loop, calls = asyncio.get_running_loop(), Counter[str]()

    def count(name: str, method: Callable[..., Any]) -> None:
        def called(*args: Any, **more: Any) -> Any:
            calls[name] += any(getattr(each, "__self__", None).__class__ is Version for each in args)
            return method(*args, **more)

        monkeypatch.setattr(loop, name, called)

    for name in names:
        count(name, getattr(loop, name))
    return calls


async def test_a_commit_wakes_a_loop_once_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Version()
    waiting = [asyncio.create_task(store.changed(0, 3600)) for _ in range(200)]
    await asyncio.sleep(0)
    calls = counted(monkeypatch, "call_soon_threadsafe")
    store.commit()
    assert await asyncio.gather(*waiting) == [True] * 200
    assert calls == {"call_soon_threadsafe": 1}
    assert not store._waiters, "nothing is left of them"


async def test_one_timer_polls_for_all_waiters(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Version()
    calls = counted(monkeypatch, "call_later")
    waiting = [asyncio.create_task(store.changed(0, 3600)) for _ in range(200)]
    await asyncio.sleep(0)
    assert calls == {"call_later": 1}
    store.commit()
    await asyncio.gather(*waiting)


async def test_a_commit_of_another_process_is_polled_for_until_it_is_seen() -> None:
    class Soon(Version):
        def _poll_seconds(self) -> float:
            return 0.001

    store = Soon()
    waiting = [asyncio.create_task(store.changed(0, 3600)) for _ in range(3)]
    await asyncio.sleep(0.01)
    assert not any(each.done() for each in waiting)
    store.number += 1  # nothing is noticed
    async with asyncio.timeout(60):
        assert await asyncio.gather(*waiting) == [True] * 3


@pytest.mark.parametrize(
    ("waiting", "seconds"),
    [
        (1, 0.0),
        (UNPACED, 0.0),
        (UNPACED + 1, 1 / PACE),
        (UNPACED + PACE, 1.0),
        (10**6, LONGEST_PAUSE_SECONDS),
    ],
)
def test_the_pause_grows_with_the_group(waiting: int, seconds: float) -> None:
    assert pause_of(waiting) == pytest.approx(seconds)


async def test_only_a_large_group_is_paced(monkeypatch: pytest.MonkeyPatch) -> None:
    store, paused = Version(), []

    class Paces:
        """asyncio, whose `sleep` only records."""

        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        async def sleep(self, seconds: float) -> None:
            paused.append(seconds)

    monkeypatch.setattr(watch, "asyncio", Paces())
    groups = ["mallory"] * (UNPACED + 100) + ["ada"] * UNPACED + [""] * 50
    waiting = [asyncio.create_task(store.changed(0, 3600, group)) for group in groups]
    await asyncio.sleep(0)
    store.commit()
    assert await asyncio.gather(*waiting) == [True] * len(groups)
    assert len(paused) == 100, "all but the last of that group, which no longer are so many"
    assert max(paused) == pytest.approx(1.0)
    assert not store._groups, "nothing is left of them"
