"""`every`: the one way to run something periodically in the background.

    self._loop = periodic.every(5.0, self.sweep_once, "sweep")
    self._loop.start()
    ...
    await self._loop.stop()

The loop calls `once` and pauses, until it is stopped or the store is closed. An exception of `once` never
ends it: an outage (an error of ours, of the operating system) is logged when it begins and when it is over,
anything else with its traceback; both are retried with back-off. If the loop itself crashes, that is logged
and it is restarted with back-off. `once` still has to handle its items one by one: a pass that raises at its
first item never reaches the others.

`LOOPS` names every loop of the program; `tests/unit/runtime/test_loops.py` has a test for each.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ..errors import HoldfastError, StoreClosed, StoreFailed, StoreUnreachable, StoreUnusable, StoreUpgraded

log = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 5.0

LOOPS = {
    "sweep": "Sweeper",
    "watch the heartbeats of other nodes": "Sweeper",
    "send notices": "Notifier",
    "flush sessions": "Flusher",
    "look after processes": "Supervisor",
    "write this node's heartbeat": "Heartbeat",
    "look after running turns": "TurnRunner",
    "check the model": "ModelWatch",
    "retry waiting turns": "Recoverer",
    "begin queued turns": "QueueRunner",
    "run a connector": "ConnectorWorker",
    "answer messages from platforms": "ConnectorWorker",
    "send messages to platforms": "ConnectorWorker",
    "name conversations": "Titler",
}
"""What each loop does, as its log lines say it, and the class that runs it."""

STORE_WIDE = (StoreClosed, StoreFailed, StoreUpgraded, StoreUnusable, StoreUnreachable)
"""Errors that every other item of a pass would meet too: they end the pass, and the loop handles them."""

Once = Callable[[], Awaitable[object]]
Pause = Callable[[object], float | None]


class Periodic:
    """One background loop. Made by `every`."""

    def __init__(
        self, seconds: float, once: Once, what: str, pause: Pause, first: float, steady: bool
    ) -> None:
        if what not in LOOPS:
            raise ValueError(f"no loop is registered as {what!r}; add it to periodic.LOOPS and test it")
        self.what = what
        self._seconds = seconds
        self._once = once
        self._pause = pause
        self._first = first
        self._steady = steady
        self._failures = 0
        self._outage = ""
        """The current outage, if any; logged once, and again when it is over."""
        self._wake: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._thread_loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False

    # --- lifecycle ---------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """True from `start` to `stop`, unless the store was closed in between."""
        task = self._task
        return (task is not None and not task.done()) or (
            self._thread is not None and self._thread.is_alive()
        )

    def start(self) -> None:
        """Run as a task of the running event loop."""
        self._stopped = False
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"holdfast: {self.what}")

    def start_thread(self, name: str) -> None:
        """Run in an event loop of its own, in a daemon thread, so that code that blocks the program's loop
        does not delay it."""
        self._stopped = False
        self._thread = threading.Thread(target=self._run_in_thread, name=name, daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """End the loop. A pass in progress is cancelled; one in a thread may still run to its end."""
        self._stopped = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        loop = self._thread_loop
        if loop is not None:
            with suppress(RuntimeError):  # it has ended already
                loop.call_soon_threadsafe(self.wake)

    def wake(self) -> None:
        """End the current pause: there is something to do."""
        if self._wake is not None:
            self._wake.set()

    def _run_in_thread(self) -> None:
        async def run() -> None:
            self._thread_loop = asyncio.get_running_loop()
            try:
                await self._run()
            finally:
                self._thread_loop = None

        asyncio.run(run())

    # --- the loop ----------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Restart the loop if it crashes."""
        crashes = 0
        while not self._stopped:
            try:
                await self._loop()
                return
            except asyncio.CancelledError:
                if _is_cancelled():
                    raise
                log.error("the loop to %s was cancelled from outside; it starts again", self.what)
            except Exception:
                log.exception("the loop to %s crashed; it starts again", self.what)
            crashes += 1
            await asyncio.sleep(_backoff(crashes))

    async def _loop(self) -> None:
        self._wake = asyncio.Event()
        await self._rest(self._first)
        while not self._stopped:
            self._wake.clear()
            try:
                done = await self._once()
            except StoreClosed:
                return
            except asyncio.CancelledError:
                if _is_cancelled():
                    raise
                pause = self._failed(asyncio.CancelledError("something it waited for was cancelled"))
            except Exception as error:
                pause = self._failed(error)
            else:
                self._succeeded()
                asked = self._pause(done)
                pause = self._seconds if asked is None else asked
            await self._rest(pause)

    async def _rest(self, seconds: float) -> None:
        assert self._wake is not None
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    def _failed(self, error: BaseException) -> float:
        self._failures += 1
        outage = f"{type(error).__name__}: {error}"
        if isinstance(error, HoldfastError | OSError):
            if not self._outage:
                log.error("cannot %s: %s", self.what, error)
            self._outage = self._outage or outage
        elif outage != self._outage:
            log.error("cannot %s; it will be tried again", self.what, exc_info=error)
            self._outage = outage
        if self._steady:
            return self._seconds
        return max(self._seconds, _backoff(self._failures))

    def _succeeded(self) -> None:
        if self._outage:
            log.info("can %s again", self.what)
        self._failures, self._outage = 0, ""


def every(
    seconds: float,
    once: Once,
    what: str,
    *,
    pause: Pause = lambda _: None,
    first: float = 0.0,
    steady: bool = False,
) -> Periodic:
    """Return a loop that calls `once` every `seconds`; `start` starts it.

    `what` completes the log line "cannot …" and is listed in `LOOPS`. `pause` gets the result of `once` and
    returns the pause before the next call, if not `seconds`. `first`: the pause before the first call.
    `steady`: no back-off, because the pace itself matters.
    """
    return Periodic(seconds, once, what, pause, first, steady)


def _backoff(failures: int) -> float:
    doubled: float = FIRST_BACKOFF_SECONDS * 2 ** min(failures - 1, 16)
    return min(doubled, LONGEST_BACKOFF_SECONDS)


def _is_cancelled() -> bool:
    """True: this task itself is being cancelled, not something it waited for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
