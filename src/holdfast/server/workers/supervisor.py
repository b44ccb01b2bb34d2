"""The first process of `holdfast serve --workers N`: forks the workers and replaces those that end.

It holds the listening socket and serves no request, so it has neither event loop nor threads: a fork from it
is safe, takes milliseconds, and shares its memory. The first worker starts alone, because it creates the
store and the local key; the others follow when it serves.

A worker that ends is replaced at once; one that ends again within STEADY_SECONDS waits, twice as long each
time. Its turns are ended by the other workers as those of any dead node. A worker that cannot start while no
other serves ends the server with its exit code, after its own message. SIGTERM and SIGINT drain all workers,
a second one interrupts their turns. If this process dies, the workers drain and end.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from .board import Board, RowColumn
from .worker import BACKLOG, DRAIN, HURRY, Worker

log = logging.getLogger(__name__)

STEADY_SECONDS = 10.0
"""A worker that has lived this long is replaced at once when it ends."""
FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 30.0
SPARE_SECONDS = 15.0
"""How much longer than its drain a worker may take to end before it is killed."""


@dataclass
class _Slot:
    """One place for a worker, and its current process."""

    index: int
    pid: int = 0
    """0: none."""
    commands: int = -1
    ready: int = -1
    serves: bool = False
    began: float = 0.0
    short_lives: int = 0
    """How many processes in a row ended within STEADY_SECONDS."""
    start_at: float | None = None
    """When the next process is to be started; None: not now."""


class WorkerSupervisor:
    """Runs `run` in `workers` processes until a signal arrives."""

    def __init__(
        self,
        workers: int,
        listening: socket.socket,
        run: Callable[[Worker], int],
        *,
        leave_seconds: float,
        stale_seconds: float,
        on_serving: Callable[[], None] = lambda: None,
    ) -> None:
        """`run` is a worker's whole life; returns its exit code. `leave_seconds`: how long a drain may take.
        `stale_seconds`: a worker whose event loop has not run for this long is killed; by then the other
        workers have declared its node dead. `on_serving` is called when the first worker serves."""
        self._listening = listening
        self._run = run
        self._leave_seconds = leave_seconds
        self._stale_seconds = stale_seconds
        self._on_serving = on_serving
        self._board = Board(workers)
        self._slots = [_Slot(index) for index in range(workers)]
        self._selector = selectors.DefaultSelector()
        self._directory = Path()
        self._signals = 0
        """SIGTERM and SIGINT that have arrived."""
        self._commanded = 0
        """How many of them the workers have been sent."""
        self._kill_at: float | None = None
        self._has_served = False
        self._exit_code: int | None = None

    def run(self) -> int:
        """Serve until stopped; returns the exit code."""
        self._directory = Path(tempfile.mkdtemp(prefix="holdfast-"))
        self._listening.listen(BACKLOG)  # once: a worker that called listen() again would reset the backlog
        gc.collect()
        gc.freeze()  # else collections of the workers would copy shared memory
        try:
            with self._handled_signals() as woken:
                self._selector.register(woken, selectors.EVENT_READ)
                self._slots[0].start_at = time.monotonic()
                while self._exit_code is None:
                    self._step(woken)
                return self._exit_code
        finally:
            self._end_all()
            self._listening.close()
            shutil.rmtree(self._directory, ignore_errors=True)

    # --- the loop ----------------------------------------------------------------------------------

    def _step(self, woken: socket.socket) -> None:
        self._start_due()
        for event, _ in self._selector.select(self._patience()):
            if event.fileobj is woken:
                with contextlib.suppress(BlockingIOError):
                    while woken.recv(256):
                        pass
            else:
                self._note_ready(event.data)
        self._reap()
        self._kill_stale()
        if self._commanded < self._signals:
            self._stop_workers()
        if self._commanded and not any(slot.pid for slot in self._slots):
            self._exit_code = self._exit_code or 0
        elif self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at = None
            for slot in self._slots:
                if slot.pid:
                    log.error("worker %d did not end in time and is killed", slot.index)
                    os.kill(slot.pid, signal.SIGKILL)

    def _patience(self) -> float:
        due = [slot.start_at for slot in self._slots if slot.start_at is not None]
        if self._kill_at is not None:
            due.append(self._kill_at)
        return max(0.0, min([1.0, *(at - time.monotonic() for at in due)]))

    def _start_due(self) -> None:
        for slot in self._slots:
            if not slot.pid and slot.start_at is not None and slot.start_at <= time.monotonic():
                slot.start_at = None
                if not self._commanded and not self._signals:
                    self._fork(slot)

    def _note_ready(self, slot: _Slot) -> None:
        if not os.read(slot.ready, 1):  # it has ended: `_reap` will find it
            self._selector.unregister(slot.ready)
            return
        slot.serves = True
        if not self._has_served:
            self._has_served = True
            self._on_serving()
            for other in self._slots:
                if not other.pid and other.start_at is None:
                    other.start_at = time.monotonic()

    def _reap(self) -> None:
        """Note every worker that has ended, and decide when it is replaced."""
        for slot in self._slots:
            if not slot.pid:
                continue
            pid, status, usage = os.wait4(slot.pid, os.WNOHANG)
            if pid:
                self._board.add_ended_cpu(usage.ru_utime + usage.ru_stime)
                self._ended(slot, os.waitstatus_to_exitcode(status))

    def _ended(self, slot: _Slot, code: int) -> None:
        pid, served, lived = slot.pid, slot.serves, time.monotonic() - slot.began
        self._board.clear(slot.index)
        self._release(slot)
        if self._commanded:
            if code and not self._exit_code and served:
                log.warning("worker %d (process %d) %s while stopping", slot.index, pid, _how(code))
            return
        others_serve = any(other.serves for other in self._slots)
        if not served and not others_serve and (code > 0 or not self._has_served):
            if code <= 0:
                log.error("the first worker %s before it served", _how(code))
            self._exit_code = code if code > 0 else 1
            return
        slot.short_lives = slot.short_lives + 1 if lived < STEADY_SECONDS else 0
        pause = restart_pause(slot.short_lives)
        slot.start_at = time.monotonic() + pause
        log.log(
            logging.INFO if code == 0 else logging.WARNING,
            "worker %d (process %d) %s; it is replaced%s",
            slot.index,
            pid,
            _how(code),
            f" in {pause:g} s" if pause else "",
        )

    def _release(self, slot: _Slot) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(slot.ready)
        os.close(slot.commands)
        os.close(slot.ready)
        slot.pid, slot.serves = 0, False

    def _kill_stale(self) -> None:
        """Kill workers whose event loop has not run for `stale_seconds`: each holds connections that another
        worker could serve."""
        oldest = time.monotonic_ns() - int(self._stale_seconds * 1e9)
        for slot in self._slots:
            if slot.serves and 0 < self._board.row(slot.index).get(RowColumn.BEAT) < oldest:
                log.error("worker %d has not reacted for %g s: killed", slot.index, self._stale_seconds)
                self._board.row(slot.index).set(RowColumn.BEAT, 0)  # once is enough
                os.kill(slot.pid, signal.SIGKILL)

    # --- stopping ----------------------------------------------------------------------------------

    def _stop_workers(self) -> None:
        """Forward the signals that have arrived to every worker. One that does not serve yet ends at once."""
        self._commanded = self._signals
        hurry = self._signals > 1
        self._kill_at = time.monotonic() + (0.0 if hurry else self._leave_seconds) + SPARE_SECONDS
        for slot in self._slots:
            slot.start_at = None
            if slot.pid and not slot.serves:
                os.kill(slot.pid, signal.SIGTERM)
            elif slot.pid:
                with contextlib.suppress(BrokenPipeError):
                    os.write(slot.commands, HURRY if hurry else DRAIN)

    def _end_all(self) -> None:
        """Kill what is left, after a failure to start or an error here."""
        for slot in self._slots:
            if slot.pid:
                os.kill(slot.pid, signal.SIGKILL)
                os.waitpid(slot.pid, 0)
                self._release(slot)

    @contextlib.contextmanager
    def _handled_signals(self) -> Iterator[socket.socket]:
        """Count SIGTERM and SIGINT, and wake the loop for these and for SIGCHLD."""
        woken, wakes = socket.socketpair()
        woken.setblocking(False)
        wakes.setblocking(False)

        def count(number: int, frame: FrameType | None) -> None:
            self._signals += 1

        before = {
            number: signal.signal(number, handler)
            for number, handler in (
                (signal.SIGTERM, count),
                (signal.SIGINT, count),
                (signal.SIGCHLD, lambda number, frame: None),
            )
        }
        earlier = signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        try:
            yield woken
        finally:
            signal.set_wakeup_fd(earlier)
            for number, handler in before.items():
                signal.signal(number, handler)
            woken.close()
            wakes.close()

    # --- forking -----------------------------------------------------------------------------------

    def _fork(self, slot: _Slot) -> None:
        commands, slot.commands = os.pipe()
        slot.ready, ready = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(commands)
            os.close(ready)
            os.close(slot.commands)
            os.close(slot.ready)
            slot.start_at = time.monotonic() + LONGEST_PAUSE_SECONDS
            log.error("worker %d cannot be started: %s", slot.index, error.strerror)
            return
        if pid == 0:
            self._be_worker(slot, commands, ready)
        os.close(commands)
        os.close(ready)
        slot.pid, slot.began = pid, time.monotonic()
        self._selector.register(slot.ready, selectors.EVENT_READ, slot)

    def _be_worker(self, slot: _Slot, commands: int, ready: int) -> NoReturn:
        """Run the worker in the forked child, and end it."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            self._selector.close()
            for other in self._slots:  # else a pipe would not end with the supervisor
                if other.pid or other is slot:
                    os.close(other.commands)
                    os.close(other.ready)
            row = self._board.row(slot.index)
            row.set(RowColumn.PID, os.getpid())
            first = slot.index == 0 and not self._has_served
            code = self._run(Worker(row, self._listening, commands, ready, self._directory, first))
        except KeyboardInterrupt:
            code = 130
        except BaseException:
            log.exception("worker %d failed with an unexpected error", slot.index)
        finally:
            logging.shutdown()
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)


def restart_pause(short_lives: int) -> float:
    """Seconds until an ended worker is replaced, by how many in a row lived only shortly."""
    if not short_lives:
        return 0.0
    return min(FIRST_PAUSE_SECONDS * 2.0 ** min(short_lives - 1, 16), LONGEST_PAUSE_SECONDS)


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
