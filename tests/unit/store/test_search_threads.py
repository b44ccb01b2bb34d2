"""Threads that only search: few at once, one for each owner, each with an end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast.errors import SearchTimeout, StoreClosed
from holdfast.store import search_terms, search_threads
from holdfast.store.search_terms import Deadline
from holdfast.store.search_threads import SearchThreads


async def test_an_owner_has_one_search_at_a_time_and_keeps_no_other_waiting() -> None:
    threads = SearchThreads()
    go_on, begun = threading.Event(), threading.Event()
    running = most = 0
    guard = threading.Lock()

    def stand_still(deadline: Deadline) -> str:
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
        begun.set()
        assert go_on.wait(60)
        with guard:
            running -= 1
        return "greedy"

    greedy = [asyncio.create_task(threads.run("greedy", stand_still)) for _ in range(5)]
    try:
        assert await asyncio.to_thread(begun.wait, 30)
        assert await threads.run("other", lambda deadline: "other") == "other"
        assert most == 1
    finally:
        go_on.set()
        done = await asyncio.gather(*greedy, return_exceptions=True)
        threads.stop()
        threads.join()
    assert most == 1
    assert "greedy" in done


async def test_one_whose_turn_does_not_come_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = SearchThreads()
    monkeypatch.setattr(search_terms, "SEARCH_SECONDS", 0.0)
    with pytest.raises(SearchTimeout, match="did not start within 0 seconds"):
        await threads.run("ada", lambda deadline: "never")
    monkeypatch.undo()
    monkeypatch.setattr(search_threads, "MOST_WAITING", 0)
    with pytest.raises(SearchTimeout, match="too many searches"):
        await threads.run("ada", lambda deadline: "never")
    threads.stop()
    threads.join()


async def test_an_error_is_its_callers_and_the_thread_goes_on() -> None:
    threads = SearchThreads(threads=1)

    def fail(deadline: Deadline) -> None:
        raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        await threads.run("ada", fail)
    assert await threads.run("ada", lambda deadline: 1) == 1
    threads.stop()
    threads.join()
    with pytest.raises(StoreClosed):
        await threads.run("ada", lambda deadline: 1)
