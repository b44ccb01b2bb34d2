"""The shim: one small program per background process, between holdfast and the command.

    python -I -S shim.py DIRECTORY  < kind NUL cwd NUL stdin NUL log bytes NUL argument… NUL end

It runs in its own session and is independent of holdfast, so a crash or restart of holdfast does not affect
it. It owns the log: output goes to `log.<offset>` files, of which the first and the newest are kept, so that
endless output does not fill the disk. `identity` is written before the command begins, with the identities of
both. `exit` is written atomically after the command has ended. The shim stays until everything the command
has started has ended: on Linux, orphans are reparented to it.

`identity` is created by the first of two: holdfast, which thereby gives up the start, or the shim, and then
the command runs. It is locked while the shim lives. Nothing of holdfast is imported here: the shim must start
fast and keep running when holdfast is replaced.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import sys
import time

CANNOT_RUN, NOT_FOUND, NEVER_BEGAN = 126, 127, 125
HEAD_SHARE, SEGMENT_SHARE = (
    4,
    3,
)  # of the log's bytes: 1/4 for the head, 1/3 for each of the newest two
EXIT_BYTES = 128
PR_SET_CHILD_SUBREAPER = 36
RESTORED = (signal.SIGPIPE, signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGXFSZ)
"""Signals whose handling Python or this shim changes; reset for the command to what a shell gives it."""


class Log:
    """The output, in files named by the offset of their first byte: the head, and the newest two."""

    def __init__(self, limit: int) -> None:
        self._head = max(1, limit // HEAD_SHARE)
        self._segment = max(1, limit // SEGMENT_SHARE)
        self._names: list[str] = []
        self._name = ""
        self._file = -1
        self._room = 0
        self._offset = 0

    def write(self, said: bytes) -> None:
        """Append output if there is space. A full disk must not stop the command: what does not fit is
        dropped, and what was kept before stays."""
        while said:
            try:
                if self._file < 0:
                    self._begin()
                written = os.write(self._file, said[: self._room])
                self._keep()
            except OSError:
                self._close()
                written = len(said)
            self._offset += written
            self._room -= written
            said = said[written:]
            if self._room <= 0:
                self._close()

    def _begin(self) -> None:
        self._name = f"log.{self._offset:020d}"
        self._file = os.open(self._name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._room = self._segment if self._names else self._head

    def _keep(self) -> None:
        """Now that something is in the file, an older one may go."""
        if self._name not in self._names:
            self._names.append(self._name)
            if len(self._names) > 3:
                remove(self._names.pop(1))

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            if self._name not in self._names:  # nothing could be written
                remove(self._name)
        self._file, self._room = -1, 0


def remove(name: str) -> None:
    try:
        os.unlink(name)
    except OSError:
        return  # a person has deleted it


def start_of(pid: int) -> str:
    """The kernel's start time of a process; empty where it cannot be read here."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except OSError:
        return ""


def keep_orphans() -> bool:
    """Become the subreaper: orphans of the command are reparented to the shim. Linux only."""
    try:
        return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def run_command(kind: bytes, cwd: bytes, arguments: list[bytes], stdin: int, out: int, go: int) -> None:
    """In the child: create a session, wait for `go`, run the command. Never returns."""
    code = NEVER_BEGAN
    try:
        os.setsid()
        for number in RESTORED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for source, target in ((stdin, 0), (out, 1), (out, 2)):
            os.dup2(source, target)
        if os.read(go, 1) == b"":
            return  # the shim died, or holdfast gave up this start
        code = NOT_FOUND
        what = cwd
        os.chdir(cwd)
        os.environb[b"PWD"] = cwd
        if kind == b"shell":
            what, arguments = b"/bin/sh", [b"sh", b"-c", *arguments]
            os.execv(what, arguments)
        what = arguments[0]
        os.execvp(what, arguments)
    except OSError as error:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            code = CANNOT_RUN
        said = f"holdfast: cannot start it: {os.fsdecode(what)}: {os.strerror(error.errno or 0)}\n"
        os.write(2, said.encode(errors="replace"))
    finally:
        os._exit(code)


class Shim:
    def __init__(self, spec: list[bytes]) -> None:
        self._kind, self._cwd, self._stdin, limit, *self._arguments = spec
        self._log = Log(int(limit))
        self._reaper = keep_orphans()
        self._child = 0
        self._ended = False
        """True once the command itself has ended."""

    def start(self) -> bool:
        """Start the command, unless this start was given up."""
        self._prepare_exit()
        self._wake, poke = os.pipe()
        for end in (self._wake, poke):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(poke, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._pass_on)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        stdin = self._open_stdin()
        self._out, out = os.pipe()
        go, allow = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(allow)
            run_command(self._kind, self._cwd, self._arguments, stdin, out, go)
        for end in (stdin, out, go):
            os.close(end)
        os.set_blocking(self._out, False)
        begun = self._identify()
        if begun:
            os.write(allow, b"!")
        os.close(allow)
        return begun

    def _open_stdin(self) -> int:
        if self._stdin != b"pipe":
            return os.open(os.devnull, os.O_RDONLY)
        os.mkfifo("stdin", 0o600)
        self._keep = os.open("stdin", os.O_RDWR)  # keeps the pipe open, so a writer's close is not EOF
        return os.open("stdin", os.O_RDONLY)

    def _identify(self) -> bool:
        try:
            file = os.open("identity", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return False
        fcntl.flock(file, fcntl.LOCK_EX)
        pids = (os.getpid(), self._child)
        os.write(file, "".join(f"{pid} {start_of(pid)}\n" for pid in pids).encode() + b"end\n")
        return True

    def _pass_on(self, number: int, _: object) -> None:
        if self._child and not self._ended:
            try:
                os.killpg(self._child, number)
            except OSError:
                return  # it has ended in this moment, or belongs to another user (sudo)

    def pump(self) -> None:
        """Until everything has ended: log the output, record how the command ends."""
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        talking = True
        while True:
            if self._reap() and (self._reaper or not talking):
                while talking:
                    talking = self._listen()
                return
            ready = [file for file, _ in poll.poll()]
            if self._wake in ready:
                os.read(self._wake, 512)
            if self._out in ready and talking and not self._listen():
                poll.unregister(self._out)
                talking = False

    def _listen(self) -> bool:
        """Log available output; False: end of output (or, when all have ended, none available)."""
        try:
            said = os.read(self._out, 65536)
        except BlockingIOError:
            return False
        self._log.write(said)
        return said != b""

    def _reap(self) -> bool:
        """Reap exited children; True when none remain."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return False
                if pid == self._child:
                    self._ended = True
                    self._record_exit(os.waitstatus_to_exitcode(status))
        except ChildProcessError:
            return True

    def _prepare_exit(self) -> None:
        """Reserve the exit record's bytes in advance: the disk may be full when it is needed."""
        handle = os.open("exit.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(handle, "wb") as file:
            file.write(b" " * EXIT_BYTES)

    def _record_exit(self, code: int) -> None:
        record = f"{code} {time.time():.6f}\n".encode()
        with open("exit.tmp", "r+b", buffering=0) as file:
            file.write(record.ljust(EXIT_BYTES))
        os.rename("exit.tmp", "exit")


def main() -> None:
    *spec, last = sys.stdin.buffer.read().split(b"\0")
    if last != b"end" or len(spec) < 5:
        os._exit(NEVER_BEGAN)  # holdfast died while sending the command
    ready, tell = os.pipe()
    if os.fork():
        os.close(tell)
        os.read(ready, 1)
        os._exit(0)
    os.close(ready)
    os.setsid()
    os.chdir(sys.argv[1])
    shim = Shim(spec)
    begun = shim.start()
    os.close(tell)
    if begun:
        shim.pump()


if __name__ == "__main__":
    main()
