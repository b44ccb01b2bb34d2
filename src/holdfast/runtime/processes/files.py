"""The files that a process's shim writes: identities, exit code, log.

    <database>.processes/<process id>/
        identity    the shim's pid and start, the command's pid and start; locked while the shim lives
        exit        the command's exit code, and when it ended
        log.<n>     its output from byte n on: the head, and the newest
        stdin       a pipe, if input was asked for

Only the shim writes there, and a node that gives up a start (`abandon`). Reading is safe at any time.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ...domain.processes import LogPart
from ...errors import BadInput, Conflict
from ...os_support import open_private, private_directory, start_of

ABANDONED = "abandoned\n"


@dataclass(frozen=True, slots=True)
class ShimIdentity:
    """Pids and start times of the shim and the command."""

    shim_pid: int
    shim_start: str
    pid: int
    pid_start: str


@dataclass(frozen=True, slots=True)
class ShimExit:
    """How the command ended; a negative code is a signal number."""

    exit_code: int
    at: datetime


class ProcessFiles:
    def __init__(self, root: Path, process_id: str) -> None:
        self.directory = root / process_id

    def make(self) -> None:
        """Create the directory, accessible to its owner only."""
        private_directory(self.directory.parent)
        self.directory.mkdir(mode=0o700)

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    # --- records -----------------------------------------------------------------------------------

    def begun(self) -> ShimIdentity | None:
        """The recorded identity; None: not started yet, or never."""
        lines = self._read("identity").splitlines()
        if len(lines) != 3 or lines[-1] != "end":
            return None
        found = []
        for line in lines[:2]:
            pid, _, start = line.partition(" ")
            found.append((int(pid), start or start_of(int(pid)) or ""))
        (shim_pid, shim_start), (pid_, pid_start) = found
        return ShimIdentity(shim_pid, shim_start, pid_, pid_start)

    def abandon(self) -> bool:
        """Give up the start: the shim will not run the command. False: it has already begun."""
        try:
            private_directory(self.directory)
            with open(self.directory / "identity", "x", opener=open_private) as file:
                file.write(ABANDONED)
        except FileExistsError:
            return self._read("identity") == ABANDONED
        return True

    def ending(self) -> ShimExit | None:
        """How the command ended; None: it has not, or no exit record was written."""
        words = self._read("exit").split()
        if len(words) != 2:
            return None
        return ShimExit(int(words[0]), datetime.fromtimestamp(float(words[1]), UTC))

    def shim_lives(self) -> bool | None:
        """True if the shim holds its lock; None: unknown. Valid from any pid namespace."""
        try:
            handle = os.open(self.directory / "identity", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def _read(self, name: str) -> str:
        try:
            return (self.directory / name).read_text()
        except (FileNotFoundError, NotADirectoryError):
            return ""

    # --- output and input ----------------------------------------------------------------------------

    def said(self) -> int:
        """How many bytes it has written so far."""
        return max((at + size for at, size, _ in self._segments()), default=0)

    def _segments(self) -> list[tuple[int, int, Path]]:
        found = []
        for path in self.directory.glob("log.*"):
            first = path.suffix[1:]
            if not (first.isascii() and first.isdigit()):
                continue  # not ours: the command or a person may put files here
            try:
                found.append((int(first), path.stat().st_size, path))
            except FileNotFoundError:
                continue  # deleted meanwhile: it was the oldest, and a newer one was begun
        return sorted(found)

    def log(self, *, after: int = 0, tail: int | None = None) -> LogPart:
        """Its output from byte `after` on, or only the last `tail` lines; `dropped` counts missing bytes."""
        pieces: list[bytes] = []
        at, dropped = max(0, after), 0
        for start, size, path in self._segments():
            if start + size <= at:
                continue
            if start > at:
                dropped += start - at
                pieces.append(f"\n[… {start - at:,} bytes were not kept …]\n".encode())
                at = start
            try:
                with path.open("rb") as file:
                    file.seek(at - start)
                    piece = file.read()
            except FileNotFoundError:
                continue
            pieces.append(piece)
            at += len(piece)
        text = b"".join(pieces).decode(errors="replace")
        if tail is not None:
            lines = text.splitlines(keepends=True)
            text = "".join(lines[-tail:]) if tail else ""
        return LogPart(text, at, dropped)

    def write(self, text: str) -> None:
        """Write this to its stdin. Conflict if it has none, or does not read earlier input."""
        said = text.encode()
        try:
            pipe = os.open(self.directory / "stdin", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENXIO):
                raise
            raise Conflict("this process takes no input: it was not started so") from None
        try:
            if len(said) > 65536:
                raise BadInput("write at most 64 KiB at a time")
            if os.write(pipe, said) < len(said):
                raise Conflict("it has not read what it was given before; only a part of this was written")
        except BlockingIOError:
            raise Conflict("it has not read its earlier input yet; nothing was written") from None
        finally:
            os.close(pipe)
