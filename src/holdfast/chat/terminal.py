"""The chat's input: a terminal edited with prompt_toolkit, or a pipe whose lines are messages.

Everything runs in the event loop of the main thread. While a prompt is shown, prompt_toolkit reads the keys
and output is printed above it. While a reply runs, the terminal is in its normal mode and Ctrl-C is a signal.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import BadInput

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completion

ENDING = (signal.SIGTERM, signal.SIGHUP)
MOST_INTERRUPTS = 3
"""This many Ctrl-C during one reply kill the chat: the interrupt hangs."""
LONGEST_HISTORY = 1000
PROMPT, CONTINUED = "> ", "… "
ENTER_HINT = "Enter sends, Alt-Enter or \\ at the end of a line begins a new one"


class Cleared(Exception):
    """Ctrl-C at the prompt. `text`: what was typed."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


Choices = Callable[[str], Iterable[tuple[str, str]]]
"""The completions of the text before the cursor: each replaces its last word; with a description."""


class ChatInput(Protocol):
    interactive: bool

    async def line(self, text: str = "") -> str | None:
        """The next message or command, with `text` already typed in; None at the end of the input.

        Raises Cleared after Ctrl-C, and BadInput for bytes that are not text.
        """
        ...

    async def print_above(self, show: Callable[[], Awaitable[None]]) -> bool:
        """Print above the prompt, which keeps its text. False: no prompt is shown, nothing was called."""
        ...

    def clear(self) -> bool:
        """Clear the prompt, as Ctrl-C does. False: no prompt is shown."""
        ...


def input_of(home: Path) -> ChatInput:
    """The input of this process: a terminal or a pipe."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        return Keyboard(home / "chat_history")
    return Pipe()


class Pipe:
    """Stdin as a pipe: each line is one message or command.

    A thread reads it by `os.read`, which holds no lock of Python's: the process can end while it waits.
    """

    interactive = False

    def __init__(self) -> None:
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._reader: threading.Thread | None = None

    async def line(self, text: str = "") -> str | None:
        if self._reader is None:
            loop = asyncio.get_running_loop()
            self._reader = threading.Thread(target=self._read, args=(loop,), daemon=True)
            self._reader.start()
        line = await self._lines.get()
        if line is None:
            return None
        try:
            return line.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise BadInput(f"stdin is not UTF-8 text: {error.reason} at byte {error.start}") from None

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        rest = b""
        with suppress(RuntimeError):  # the loop was closed: the chat has ended
            while piece := _piece(sys.stdin.fileno()):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    loop.call_soon_threadsafe(self._lines.put_nowait, line)
            if rest:
                loop.call_soon_threadsafe(self._lines.put_nowait, rest)
            loop.call_soon_threadsafe(self._lines.put_nowait, None)

    async def print_above(self, show: Callable[[], Awaitable[None]]) -> bool:
        return False

    def clear(self) -> bool:
        return False


def _piece(handle: int) -> bytes:
    try:
        return os.read(handle, 65536)
    except OSError:  # a terminal that was closed
        return b""


class Keyboard:
    """A terminal: editing over several lines, history, a menu of completions.

    A paste is one message, however many lines it has.
    """

    interactive = True

    def __init__(self, history: Path) -> None:
        self._history = history
        self._session: PromptSession[str] | None = None
        self.choices: Choices = lambda _typed: ()

    async def line(self, text: str = "") -> str | None:
        session = self._prepared()
        try:
            return await session.prompt_async(default=text, handle_sigint=False)
        except EOFError:
            return None
        except KeyboardInterrupt:
            raise Cleared(session.default_buffer.text) from None

    async def print_above(self, show: Callable[[], Awaitable[None]]) -> bool:
        from prompt_toolkit.application import in_terminal
        from prompt_toolkit.application.current import set_app

        if self._session is None or not self._session.app.is_running:
            return False
        with set_app(self._session.app):
            async with in_terminal():
                await show()
        return True

    def clear(self) -> bool:
        if self._session is None or not self._session.app.is_running:
            return False
        self._session.app.exit(exception=KeyboardInterrupt())
        return True

    def _offered(self, typed: str) -> Iterable[tuple[str, str]]:
        return self.choices(typed)

    def _prepared(self) -> PromptSession[str]:
        if self._session is None:
            self._session = _prompt_session(self._history, self._offered)
        return self._session


def _prompt_session(history: Path, choices: Choices) -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer, Completion
    from prompt_toolkit.document import Document
    from prompt_toolkit.formatted_text import FormattedText
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.styles import Style

    class Choose(Completer):
        def get_completions(self, document: Document, complete_event: Any) -> Iterable[Completion]:
            typed = document.text_before_cursor
            if "\n" in typed:
                return
            word = typed.rpartition(" ")[2]
            for text, meaning in choices(typed):
                yield Completion(text, start_position=-len(word), display_meta=meaning)

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.current_line_before_cursor.endswith("\\"):
            buffer.delete_before_cursor(1)
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("tab")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None and len(buffer.complete_state.completions) > 1:
            buffer.complete_next()
            return
        typed = buffer.document.text_before_cursor
        found = [text for text, _ in choices(typed)] if "\n" not in typed else []
        # At once: prompt_toolkit's own completion would be cancelled by a key typed right after it.
        buffer.insert_text(_common(found)[len(typed.rpartition(" ")[2]) :])
        if len(found) > 1:
            buffer.start_completion()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return PromptSession(
        FormattedText([("class:prompt", PROMPT)]),
        multiline=True,
        prompt_continuation=CONTINUED,
        history=_history_file(history),
        completer=Choose(),
        complete_while_typing=True,
        key_bindings=keys,
        enable_suspend=True,
        reserve_space_for_menu=6,
        style=Style.from_dict({"prompt": "ansicyan bold"}),
        erase_when_done=False,
    )


def _common(texts: Sequence[str]) -> str:
    """The longest text that all of these begin with."""
    if not texts:
        return ""
    first, last = min(texts), max(texts)
    same = next(
        (at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first)
    )
    return first[:same]


def _history_file(path: Path) -> Any:
    from prompt_toolkit.history import History

    class HistoryFile(History):
        """One entry a line, newest last; a newline in an entry is written as a backslash and an n.

        Readable by this user only, and written after each entry, so `kill -9` loses none.
        """

        def load_history_strings(self) -> Iterable[str]:
            with suppress(OSError):  # missing or unreadable history is no reason to stop
                kept = path.read_text("utf-8", "replace").splitlines()[-LONGEST_HISTORY:]
                return [_unescaped(line) for line in reversed(kept)]
            return []

        def append_string(self, string: str) -> None:
            known = self.get_strings()
            if string.strip() and (not known or known[-1] != string):
                super().append_string(string)

        def store_string(self, string: str) -> None:
            with suppress(OSError):  # on a full disk the history is lost, not the chat
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(_escaped(string) + "\n")

    return HistoryFile()


def _escaped(entry: str) -> str:
    return entry.replace("\\", "\\\\").replace("\n", "\\n")


def _unescaped(line: str) -> str:
    return line.replace("\\\\", "\0").replace("\\n", "\n").replace("\0", "\\")


class ChatTerminal:
    """The input, and the signals that end the chat or interrupt a reply. Used in the chat's task."""

    def __init__(self, lines: ChatInput) -> None:
        self.lines = lines
        self.on_interrupt: Callable[[], object] | None = None
        """Called on Ctrl-C while a reply is running."""
        self.number: int | None = None
        """The signal that ends the chat, if one came."""
        self._interrupts = 0
        self._cleared = False
        """True: Ctrl-C came while neither a prompt nor a reply was active."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def interactive(self) -> bool:
        return self.lines.interactive

    async def line(self, text: str = "") -> str | None:
        self._interrupts = 0
        if self._cleared:
            self._cleared = False
            raise Cleared(text)
        return await self.lines.line(text)

    def stop(self) -> None:
        """Cancel the chat, as a signal does. Also called when the output has no reader any more."""
        assert self._task is not None
        self._task.cancel()

    def __enter__(self) -> ChatTerminal:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        for number in (signal.SIGINT, *ENDING):
            if signal.getsignal(number) is not signal.SIG_IGN:  # ignored at startup (`nohup`): stays so
                self._before[number] = signal.signal(number, self._came)
        return self

    def __exit__(self, *_: object) -> None:
        if self.number is None:
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def _came(self, number: int, _frame: FrameType | None) -> None:
        # A Python signal handler, not the loop's: it runs even while a write to a full pipe blocks.
        assert self._loop is not None
        if number == signal.SIGINT and self.interactive:
            self._interrupts += 1
            if self._interrupts >= MOST_INTERRUPTS:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                signal.raise_signal(signal.SIGINT)
            self._loop.call_soon_threadsafe(self._interrupt)
            return
        self.number = number
        for each in self._before:  # a second signal kills at once
            signal.signal(each, signal.SIG_DFL)
        self._loop.call_soon_threadsafe(self.stop)

    def _interrupt(self) -> None:
        if self.on_interrupt is not None:
            self.on_interrupt()
        elif not self.lines.clear():
            self._cleared = True

    @property
    def exit_code(self) -> int:
        """The exit code of a chat that was cancelled."""
        return 128 + (self.number or signal.SIGPIPE)
