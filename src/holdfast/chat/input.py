"""Reads lines from a terminal, with editing, history and completion, or from a pipe.

On a terminal it uses the standard library's readline. The history is in `$HOLDFAST_HOME/chat_history`,
readable by this user only, bounded, and written after each line, so `kill -9` loses none of it. Everything
here runs in the main thread.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import BadInput
from .commands import completions

LONGEST_HISTORY = 1000


def lines_of(home: Path) -> Pipe | Keyboard:
    """The input of this process: a pipe or a terminal."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        return Keyboard(home / "chat_history")
    return Pipe()


class Pipe:
    """Stdin as a pipe: each line is one input line."""

    interactive = False

    def read(self, prompt: str, text: str, names: Sequence[str]) -> str | None:
        line = sys.stdin.buffer.readline()
        try:
            return line.decode().rstrip("\r\n") if line else None
        except UnicodeDecodeError as error:
            raise BadInput(f"stdin is not UTF-8 text: {error.reason} at byte {error.start}") from None

    def typed(self) -> str:
        return ""


class Keyboard:
    """A terminal. If Python was built without readline, it reads without editing."""

    interactive = True

    def __init__(self, history: Path) -> None:
        self._history = history
        self._names: Sequence[str] = ()
        self._found: list[str] = []
        self._readline = _readline()
        if self._readline is not None:
            self._prepare(self._readline)

    def read(self, prompt: str, text: str, names: Sequence[str]) -> str | None:
        readline, self._names = self._readline, names
        if readline is not None and text:
            readline.set_startup_hook(lambda: readline.insert_text(text))
        try:
            line = input(prompt)
        except EOFError:
            return None
        except UnicodeDecodeError:
            return ""  # keys that produce no character
        finally:
            if readline is not None:
                readline.set_startup_hook(None)
        self._remember(line)
        return line

    def typed(self) -> str:
        return self._readline.get_line_buffer() if self._readline is not None else ""

    # --- readline --------------------------------------------------------------------------------------

    def _prepare(self, readline: Any) -> None:
        readline.set_auto_history(False)
        readline.set_history_length(LONGEST_HISTORY)
        readline.set_completer(self._complete)
        readline.set_completer_delims(" ")
        edits_by_libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if edits_by_libedit else "tab: complete")
        if not edits_by_libedit:  # bracketed paste: pasted text is one message, however many lines it has
            readline.parse_and_bind("set enable-bracketed-paste on")
        with suppress(OSError):  # missing or unreadable history is no reason to stop
            readline.read_history_file(self._history)

    def _remember(self, line: str) -> None:
        readline = self._readline
        if readline is None or not line.strip():
            return
        if line == readline.get_history_item(readline.get_current_history_length()):
            return
        readline.add_history(line)
        with suppress(OSError):  # on a full disk the history is lost, not the chat
            os.close(os.open(self._history, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
            readline.append_history_file(1, self._history)

    def _complete(self, word: str, number: int) -> str | None:
        assert self._readline is not None
        if number == 0:
            typed = self._readline.get_line_buffer()[: self._readline.get_endidx()]
            self._found = completions(typed, self._names)
        return self._found[number] if number < len(self._found) else None


def _readline() -> Any:
    try:
        import readline
    except ImportError:
        return None
    return readline
