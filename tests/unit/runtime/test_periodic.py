"""A loop that nothing ends but `stop` and the closing of its store."""

from __future__ import annotations

import asyncio
import logging

import pytest

from holdfast.errors import StoreBusy, StoreClosed
from holdfast.runtime import periodic
from holdfast.runtime.periodic import Periodic, every

WHAT = "sweep"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic, "FIRST_BACKOFF_SECONDS", 0.001)
    monkeypatch.setattr(periodic, "LONGEST_BACKOFF_SECONDS", 0.001)


class Passes:
    """Counts passes; each raises what it is given, in order, then nothing."""

    def __init__(self, *raised: BaseException | None) -> None:
        self.raised = list(raised)
        self.count = 0
        self.done = asyncio.Condition()

    async def once(self) -> int:
        async with self.done:
            self.count += 1
            self.done.notify_all()
        if self.raised and (error := self.raised.pop(0)) is not None:
            raise error
        return self.count

    async def reach(self, count: int) -> None:
        async with asyncio.timeout(60), self.done:
            await self.done.wait_for(lambda: self.count >= count)


async def running(passes: Passes, count: int) -> Periodic:
    loop = every(0.001, passes.once, WHAT)
    loop.start()
    await passes.reach(count)
    return loop


@pytest.mark.parametrize(
    "error", [ZeroDivisionError(), StoreBusy("locked"), OSError("no"), asyncio.CancelledError()]
)
async def test_no_exception_of_a_pass_ends_the_loop(error: BaseException) -> None:
    passes = Passes(error, None, error)
    loop = await running(passes, 6)
    assert loop.running
    await loop.stop()
    assert not loop.running


async def test_an_outage_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    loop = await running(Passes(*[StoreBusy("locked")] * 5), 8)
    await loop.stop()
    assert [record.message for record in caplog.records if record.name == periodic.__name__] == [
        "cannot sweep: locked",
        "can sweep again",
    ]


async def test_a_mistake_is_logged_with_its_traceback_once_while_it_lasts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = await running(Passes(*[ZeroDivisionError("by zero")] * 5), 8)
    await loop.stop()
    (record,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert record.exc_info is not None


async def test_the_closing_of_the_store_ends_it() -> None:
    passes = Passes(None, StoreClosed("closed"))
    loop = await running(passes, 2)
    async with asyncio.timeout(60):
        while loop.running:  # noqa: ASYNC110 - it only has to end
            await asyncio.sleep(0.001)
    assert passes.count == 2


async def test_a_crash_of_the_loop_itself_is_logged_and_it_starts_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    passes, crashes = Passes(), [ZeroDivisionError("in the loop itself")]

    def pause(_: object) -> float | None:
        if crashes:
            raise crashes.pop()
        return None

    loop = every(0.001, passes.once, WHAT, pause=pause)
    loop.start()
    await passes.reach(4)
    await loop.stop()
    assert "the loop to sweep crashed; it starts again" in caplog.text


async def test_stop_ends_a_pass_that_is_under_way() -> None:
    begun = asyncio.Event()

    async def hangs() -> None:
        begun.set()
        await asyncio.Event().wait()

    loop = every(0.001, hangs, WHAT)
    loop.start()
    await asyncio.wait_for(begun.wait(), 60)
    await asyncio.wait_for(loop.stop(), 60)
    assert not loop.running


async def test_a_woken_loop_does_not_wait_for_its_time() -> None:
    passes = Passes()
    loop = every(3600, passes.once, WHAT)
    loop.start()
    await passes.reach(1)
    for number in range(2, 5):
        loop.wake()
        await passes.reach(number)
    await loop.stop()


async def test_in_a_thread_it_goes_on_while_the_event_loop_is_blocked() -> None:
    import threading

    passed = threading.Semaphore(0)
    raised = [ZeroDivisionError()]

    async def once() -> None:
        passed.release()
        if raised:
            raise raised.pop()

    loop = every(0.001, once, WHAT)
    loop.start_thread("holdfast-test")
    for _ in range(5):
        assert passed.acquire(timeout=60)  # blocks the event loop
    await loop.stop()
    thread = loop._thread
    assert thread is not None
    await asyncio.to_thread(thread.join, 60)
    assert not loop.running


def test_a_loop_that_is_not_registered_is_refused() -> None:
    with pytest.raises(ValueError, match="add it to periodic"):
        every(1, Passes().once, "do something new")
