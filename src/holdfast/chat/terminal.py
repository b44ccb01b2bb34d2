"""Where the person sits: the main thread, which reads lines and hears signals for a chat in another thread.

Only there does readline hear Ctrl-C, and only there can reading be broken off. The chat itself runs in an
event loop beside it, so that beats, sweeps and news go on while the person thinks.

Whatever breaks reading off does so by an exception out of a signal handler. News does it only while the
terminal is in the state that readline reads in, so a line that has been entered is never lost by it.
"""

from __future__ import annotations

import asyncio
import queue
import signal
import socket
import sys
import termios
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

from ..errors import BadInput

ENDING = (signal.SIGTERM, signal.SIGHUP)
WAKING = signal.SIGURG
"""Sent to ourselves when there is news; nobody minds it where it is not expected."""
KNOCK, KNOCKS = signal.SIGIO, (0.05, 0.3)
"""Sent to ourselves only to be received: whoever waits looks up, and finds what came before."""


@dataclass(frozen=True, slots=True)
class TypedLine:
    """What was entered."""

    text: str


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """Nothing more will come."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """Ctrl-C at the prompt; what had been typed."""

    text: str


@dataclass(frozen=True, slots=True)
class Woken:
    """There is news to be shown; what had been typed so far."""

    text: str


Reading = TypedLine | EndOfInput | Cleared | Woken


class Lines(Protocol):
    """Where lines come from. Used in the main thread only."""

    interactive: bool

    def read(self, prompt: str, text: str, names: Sequence[str]) -> str | None:
        """The next line, `text` being typed already; None at the end."""
        ...

    def typed(self) -> str:
        """What has been typed so far."""
        ...


class _BrokenOff(BaseException):
    """Out of a signal handler, through whatever reads."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading


@dataclass(frozen=True, slots=True)
class _Request:
    prompt: str
    text: str
    names: Sequence[str]
    answer: asyncio.Future[Reading]


class ChatTerminal:
    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._reading = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[int] | None = None
        self._outcome: int | BaseException = 0
        self._impatient = 0
        self._continued = False
        """Stopped and continued since reading began."""
        self._news = False
        """Is there something that reading has not been broken off for?"""
        self._cleared = False
        """Did Ctrl-C come when nothing was read and no reply was under way?"""
        self.number: int | None = None
        """The signal that ends the chat, if one came."""
        self.on_interrupt: Callable[[], object] | None = None
        """What Ctrl-C does while a reply is under way; called in the loop."""

    @property
    def interactive(self) -> bool:
        return self._lines.interactive

    # --- in the loop ---------------------------------------------------------------------------------

    async def line(self, prompt: str, text: str = "", names: Sequence[str] = ()) -> Reading:
        """The person's next line, or what came instead."""
        answer: asyncio.Future[Reading] = asyncio.get_running_loop().create_future()
        self._impatient = 0
        self._requests.put(_Request(prompt, text, names, answer))
        if self._news:
            self._knock()
        return await answer

    def wake(self) -> None:
        """There is news: `line` returns `Woken`, now or as soon as it is waited for and can be broken off."""
        self._news = True
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, WAKING)

    def _knock(self) -> None:
        """Readline sleeps through a signal that comes right before it begins to wait: once it does, it is
        made to look up."""
        main, loop = threading.main_thread().ident, asyncio.get_running_loop()
        assert main is not None
        for seconds in KNOCKS:
            loop.call_later(seconds, signal.pthread_kill, main, KNOCK)

    def _nudge(self) -> None:
        """A signal came to this process. SIGCONT may have come to any of its threads, so the one that waits
        for a key has to be told: the shell has changed the terminal, and readline has to begin anew."""
        came = self._came_to.recv(4096)
        if signal.SIGCONT in came and self.interactive:
            self._continued = True
            self.wake()
        if any(number in came for number in (signal.SIGINT, WAKING, *ENDING)):
            self._knock()

    def stop(self) -> None:
        """End the chat, as a signal would: nobody listens any more."""
        assert self._task is not None
        self._task.cancel()

    # --- in the main thread --------------------------------------------------------------------------

    def serve(self, work: Callable[[], Coroutine[Any, Any, int]]) -> int:
        """Run the chat in a thread of its own, and read for it, to its end; its exit code."""
        self._came_to, came = socket.socketpair()
        self._came_to.setblocking(False)
        came.setblocking(False)
        signal.set_wakeup_fd(came.fileno(), warn_on_full_buffer=False)
        before = {number: signal.signal(number, self._came) for number in self._heard()}
        thread = threading.Thread(target=self._run, args=(work,), name="holdfast-chat")
        thread.start()
        try:
            while (request := self._requests.get()) is not None:
                reading = self._read(request)
                assert self._loop is not None
                with suppress(RuntimeError):  # the chat has ended meanwhile, and its loop with it
                    self._loop.call_soon_threadsafe(_settle, request.answer, reading)
        except BaseException:
            with suppress(RuntimeError):
                if self._loop is not None:
                    self._loop.call_soon_threadsafe(self.stop)
            raise
        finally:
            thread.join()
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(-1)
            came.close()
            self._came_to.close()
        if isinstance(self._outcome, asyncio.CancelledError):
            return 128 + (self.number or signal.SIGPIPE)
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    def _heard(self) -> list[signal.Signals]:
        """Those that were ignored when we started (`nohup`) stay ignored."""
        wanted = (signal.SIGINT, *ENDING)
        heard = [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]
        return [*heard, WAKING, KNOCK, signal.SIGCONT]

    def _run(self, work: Callable[[], Coroutine[Any, Any, int]]) -> None:
        async def whole() -> int:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            self._loop.add_reader(self._came_to, self._nudge)
            if self.number is not None:
                self.stop()
            return await work()

        try:
            with asyncio.Runner() as runner:
                self._outcome = runner.run(whole())
        except BaseException as error:  # raised again in the main thread
            self._outcome = error
        finally:
            self._requests.put(None)

    def _read(self, request: _Request) -> Reading | BadInput:
        if self.number is not None:
            return EndOfInput()
        if self._cleared:
            self._cleared = False
            return Cleared(request.text)
        self._continued = False
        try:
            self._reading = True
            text = self._lines.read(request.prompt, request.text, request.names)
            self._reading = False
            return EndOfInput() if text is None else TypedLine(text)
        except _BrokenOff as broken:
            return broken.reading
        except SystemError as error:  # two signals at once: readline runs the second handler behind the first
            if isinstance(error.__cause__, _BrokenOff):
                return error.__cause__.reading
            raise
        except BadInput as error:
            self._reading = False
            return error

    def _came(self, number: int, _frame: FrameType | None) -> None:
        # A handler of Python's own, in the main thread: between two bytecodes, or while readline waits for a
        # key.
        if number == signal.SIGCONT:
            return  # `_nudge` sees to it
        if number in (WAKING, KNOCK):
            if self._news and (self._awaits_key() or (self._continued and self._reading)):
                self._news = False
                self._break_off(Woken(self._lines.typed()))
        elif number == signal.SIGINT and self.interactive:
            if self._reading:
                self._break_off(Cleared(self._lines.typed()))
            self._cleared = self.on_interrupt is None  # between two readings: meant for the prompt
            self._impatient += 1
            if self._impatient > 2:  # interrupting the reply does not come to an end
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                signal.raise_signal(signal.SIGINT)
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._interrupt)
        else:
            self.number = number
            for each in (signal.SIGINT, *ENDING):  # the second one kills at once
                signal.signal(each, signal.SIG_DFL)
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self.stop)
            if self._reading:
                self._break_off(EndOfInput())

    def _break_off(self, reading: Reading) -> None:
        self._reading = False  # once: a second signal finds nothing to break off
        raise _BrokenOff(reading)

    def _interrupt(self) -> None:
        if self.on_interrupt is not None:
            self.on_interrupt()

    def _awaits_key(self) -> bool:
        """Does readline wait for a key? Once a line has been entered, the terminal gathers lines again."""
        if not self._reading or not self.interactive:
            return False
        return not termios.tcgetattr(sys.stdin.fileno())[3] & termios.ICANON


def _settle(answer: asyncio.Future[Reading], reading: Reading | BadInput) -> None:
    if answer.done():
        return
    if isinstance(reading, BadInput):
        answer.set_exception(reading)
    else:
        answer.set_result(reading)
