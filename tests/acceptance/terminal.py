"""A real terminal that tests sit at: a pty with a program in its foreground, keys typed, a screen read.

What is read is what a terminal would get, escape sequences taken out, so that a test can look for words.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyte

PATIENCE = 90.0
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")

ROWS, COLUMNS = 40, 120
NO_REPLIES = {"PROMPT_TOOLKIT_NO_CPR": "1"}
"""This terminal does not tell where its cursor is."""

CTRL_C, CTRL_D, CTRL_Z, TAB, UP = "\x03", "\x04", "\x1a", "\t", "\x1b[A"


class Terminal:
    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], place: Path) -> None:
        self._keys, inside = os.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))

        def take_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        unset = {"COLUMNS", "NO_COLOR", "INPUTRC"}
        self.process = subprocess.Popen(
            list(arguments),
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env={
                **{n: v for n, v in environment.items() if n not in unset},
                "TERM": "xterm-256color",
                **NO_REPLIES,
            },
            cwd=place,
            preexec_fn=take_terminal,  # noqa: PLW1509 - nothing else runs in this child
        )
        os.close(inside)
        self.raw = ""
        self._columns = COLUMNS
        self._read = 0

    @property
    def screen(self) -> str:
        """Everything that was shown so far."""
        return ESCAPES.sub("", self.raw)

    @property
    def displayed(self) -> str:
        """What is on the screen now, and above it, as a person sees it."""
        seen = pyte.HistoryScreen(self._columns, ROWS, history=10_000)
        pyte.Stream(seen).feed(self.raw)
        above = ("".join(line[at].data for at in range(seen.columns)) for line in seen.history.top)
        return "\n".join(line.rstrip() for line in (*above, *seen.display)).rstrip()

    def resize(self, columns: int) -> None:
        self._columns = columns
        fcntl.ioctl(self._keys, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))

    def type(self, text: str) -> None:
        """A line, and Enter."""
        self.press(text + "\r")

    def press(self, keys: str) -> None:
        os.write(self._keys, keys.encode())

    def expect(self, text: str, seconds: float = PATIENCE) -> str:
        """Wait until this is shown, behind what was expected before; returns what was shown until then."""
        deadline = time.monotonic() + seconds
        while text not in self.screen[self._read :]:
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._keys], [], [], left)
            assert ready, f"{text!r} never came; the screen: {self.screen[self._read :]!r}"
            try:
                piece = os.read(self._keys, 65536)
            except OSError:  # everybody has left this terminal
                piece = b""
            assert piece, f"{text!r} never came before the end; the screen: {self.screen[self._read :]!r}"
            self.raw += piece.decode("utf-8", "replace")
        at = self.screen.index(text, self._read) + len(text)
        shown, self._read = self.screen[self._read : at], at
        return shown

    def end(self) -> int:
        """Wait for the program to end by itself; its exit code. `screen` then has all that it printed."""
        deadline = time.monotonic() + PATIENCE
        ended = False
        while not ended:
            ended = self.process.poll() is not None  # asked first: what is read below includes its last words
            assert time.monotonic() < deadline, f"it does not end; the screen: {self.screen[-2000:]!r}"
            while select.select([self._keys], [], [], 0 if ended else 0.05)[0]:
                try:
                    piece = os.read(self._keys, 65536)
                except OSError:  # every process has left this terminal
                    piece = b""
                if not piece:
                    return self.process.wait(PATIENCE)
                self.raw += piece.decode("utf-8", "replace")
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._keys)


@contextmanager
def terminal(arguments: Sequence[str], environment: Mapping[str, str], place: Path) -> Iterator[Terminal]:
    opened = Terminal(arguments, environment, place)
    try:
        yield opened
    finally:
        opened.close()
