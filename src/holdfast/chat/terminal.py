"""Reads lines and handles signals in the main thread, for a chat that runs in another thread.

Readline handles Ctrl-C only in the main thread, and only there can a read be interrupted. The chat runs in an
event loop in another thread, so heartbeats, sweeps and updates continue while the prompt waits.

A read is interrupted by an exception raised from a signal handler. An update interrupts it only while the
terminal is in the mode that readline reads in, so a line that was already entered is never lost.
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
"""Sent to this process when there is an update; its default action is to be ignored."""
KNOCK, KNOCKS = signal.SIGIO, (0.05, 0.3)
"""Sent to the main thread only to interrupt a blocking wait, so that it handles signals that came before."""


@dataclass(frozen=True, slots=True)
class TypedLine:
    """A line that was entered."""

    text: str


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """End of input."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """Ctrl-C at the prompt, with the text typed so far."""

    text: str


@dataclass(frozen=True, slots=True)
class Woken:
    """There are updates to show; with the text typed so far."""

    text: str


Reading = TypedLine | EndOfInput | Cleared | Woken


class Lines(Protocol):
    """Source of lines. Used in the main thread only."""

    interactive: bool

    def read(self, prompt: str, text: str, names: Sequence[str]) -> str | None:
        """The next line, with `text` already typed in; None at end of input."""
        ...

    def typed(self) -> str:
        """The text typed so far."""
        ...


class _BrokenOff(BaseException):
    """Raised by a signal handler to interrupt a read."""

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
        """True: the process was stopped and continued since the read began."""
        self._news = False
        """True: there are updates for which no read has been interrupted yet."""
        self._cleared = False
        """True: Ctrl-C came while no read and no reply was active."""
        self.number: int | None = None
        """The signal that ends the chat, if one came."""
        self.on_interrupt: Callable[[], object] | None = None
        """Called in the loop on Ctrl-C while a reply is running."""

    @property
    def interactive(self) -> bool:
        return self._lines.interactive

    # --- in the loop ---------------------------------------------------------------------------------

    async def line(self, prompt: str, text: str = "", names: Sequence[str] = ()) -> Reading:
        """The next line, or the event that interrupted the read."""
        answer: asyncio.Future[Reading] = asyncio.get_running_loop().create_future()
        self._impatient = 0
        self._requests.put(_Request(prompt, text, names, answer))
        if self._news:
            self._knock()
        return await answer

    def wake(self) -> None:
        """Make `line` return `Woken`, now or as soon as a read is active and can be interrupted."""
        self._news = True
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, WAKING)

    def _knock(self) -> None:
        """Signal the main thread again later: readline misses a signal that comes right before it waits."""
        main, loop = threading.main_thread().ident, asyncio.get_running_loop()
        assert main is not None
        for seconds in KNOCKS:
            loop.call_later(seconds, signal.pthread_kill, main, KNOCK)

    def _nudge(self) -> None:
        """Handle the wakeup file descriptor.

        SIGCONT may be delivered to any thread, so the one that waits for a key is woken here: the shell has
        changed the terminal mode, and readline has to start again.
        """
        came = self._came_to.recv(4096)
        if signal.SIGCONT in came and self.interactive:
            self._continued = True
            self.wake()
        if any(number in came for number in (signal.SIGINT, WAKING, *ENDING)):
            self._knock()

    def stop(self) -> None:
        """Cancel the chat, as a signal does. Also called when the output has no reader any more."""
        assert self._task is not None
        self._task.cancel()

    # --- in the main thread --------------------------------------------------------------------------

    def serve(self, work: Callable[[], Coroutine[Any, Any, int]]) -> int:
        """Run the chat in its own thread and read lines for it until it ends. Returns the exit code."""
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
                with suppress(RuntimeError):  # the chat and its loop have ended meanwhile
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
        """The signals to handle. Those ignored at startup (`nohup`) stay ignored."""
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
        except BaseException as error:  # re-raised in the main thread
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
        except SystemError as error:  # two signals at once: readline runs the second handler after the first
            if isinstance(error.__cause__, _BrokenOff):
                return error.__cause__.reading
            raise
        except BadInput as error:
            self._reading = False
            return error

    def _came(self, number: int, _frame: FrameType | None) -> None:
        # Python signal handler, in the main thread: runs between two bytecodes, or while readline waits for a
        # key.
        if number == signal.SIGCONT:
            return  # handled by `_nudge`
        if number in (WAKING, KNOCK):
            if self._news and (self._awaits_key() or (self._continued and self._reading)):
                self._news = False
                self._break_off(Woken(self._lines.typed()))
        elif number == signal.SIGINT and self.interactive:
            if self._reading:
                self._break_off(Cleared(self._lines.typed()))
            self._cleared = self.on_interrupt is None  # between two reads: applies to the next prompt
            self._impatient += 1
            if self._impatient > 2:  # interrupting the reply does not finish
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                signal.raise_signal(signal.SIGINT)
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._interrupt)
        else:
            self.number = number
            for each in (signal.SIGINT, *ENDING):  # a second signal kills at once
                signal.signal(each, signal.SIG_DFL)
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self.stop)
            if self._reading:
                self._break_off(EndOfInput())

    def _break_off(self, reading: Reading) -> None:
        self._reading = False  # only once: a second signal has no read to interrupt
        raise _BrokenOff(reading)

    def _interrupt(self) -> None:
        if self.on_interrupt is not None:
            self.on_interrupt()

    def _awaits_key(self) -> bool:
        """True while readline waits for a key. After Enter the terminal is in canonical mode again."""
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
