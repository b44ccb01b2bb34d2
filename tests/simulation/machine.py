"""The one simulated machine: its clock, its disk, its list of processes, and what holdfast sees of them.

Inside `installed()` holdfast runs unchanged, except:

- every clock it reads is the world's; every id and random number it makes follows from the seed;
- the writer of a store has no thread: a group is committed by a step of its program's event loop, by the same
  code, a little after the request, and its callers are answered a little after that. A program may die, or be
  stopped, at either point;
- processes, pids and signals are those of this machine; the shim of a background process is a record on disk;
- the search index, which no other part reads, is not updated.

All of it holds for the thread that runs the simulation. Threads that earlier tests of the same process have
left keep the real clock and the real operating system.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

from holdfast import os_support
from holdfast.domain import ids
from holdfast.domain.nodes import Identity
from holdfast.os_support import Running
from holdfast.runtime import shutdown
from holdfast.runtime.agents import heartbeat
from holdfast.runtime.processes import launcher
from holdfast.store.sqlite import engine
from holdfast.store.sqlite.writer import SQLiteJob, SQLiteWriter, Work

from .clock import Clock

if TYPE_CHECKING:
    from .nodes import Program

GRAINS = 100.0
"""In how many parts the kernel divides a second when it says when a process began."""


@dataclass
class Running_:
    """A background process. `busy`: it uses a CPU; otherwise it only waits, like a forgotten server."""

    pid: int
    shim_pid: int
    started: float
    directory: Path
    busy: bool
    stubborn: bool
    ends_at: float | None

    @property
    def start(self) -> str:
        return f"{self.started * GRAINS:.0f}"


class Disk:
    """What writing may run into."""

    def __init__(self) -> None:
        self.full = False
        self.busy_chance = 0.0
        self.broken: set[int] = set()
        """Pids of programs whose next write fails with an I/O error."""

    def fault(self, pid: int, chance: random.Random) -> apsw.Error | None:
        if pid in self.broken:
            self.broken.discard(pid)
            return apsw.IOError("simulated: the disk does not answer")
        if self.full:
            return apsw.FullError("simulated: the disk is full")
        if self.busy_chance and chance.random() < self.busy_chance:
            return apsw.BusyError("simulated: somebody else holds the lock")
        return None


class Machine:
    def __init__(self, clock: Clock, chance: random.Random) -> None:
        self.clock = clock
        self.disk = Disk()
        self.chance = chance
        self.boots = 1
        self.current: Program | None = None
        """Whose step it is."""
        self.committed: Callable[[Program | None], None] = lambda program: None
        """Called after every commit, before anybody is told of it."""
        self.changed: set[str] = set()
        """The tables with rows that a transaction has changed, since they were last checked."""
        self.programs: dict[int, Program] = {}
        self.background: dict[int, Running_] = {}
        self._pids = 100

    def latency(self) -> float:
        """How long the disk or a thread takes: mostly a moment, now and then a long one."""
        return self.chance.choice((0.0002, 0.0005, 0.001, 0.002)) if self.chance.random() < 0.97 else 0.3

    def new_pid(self) -> int:
        """Pids are used again, as everywhere: there are only so many."""
        while True:
            self._pids = 101 + (self._pids - 100) % 400
            if self._pids not in self.programs and self._pids not in self.background:
                return self._pids

    # --- what holdfast asks of the operating system --------------------------------------------------

    def identity(self) -> Identity:
        pid = self.current.pid if self.current is not None else 1
        return Identity("machine", f"boot-{self.boots}", "pid:[1]", pid, self.start_of(pid) or "0", "machine")

    def start_of(self, pid: int) -> str | None:
        if pid in self.programs:
            return f"{self.programs[pid].started * GRAINS:.0f}"
        self.reap_background()
        for each in self.background.values():
            if pid in (each.pid, each.shim_pid):
                return each.start
        return None

    def running_processes(self) -> dict[int, Running]:
        self.reap_background()
        found = {}
        for each in self.background.values():
            cpu = self.clock.monotonic - each.started if each.busy else 0.0
            found[each.shim_pid] = Running(each.shim_pid, 1, each.shim_pid, each.shim_pid, each.start, 0.0)
            found[each.pid] = Running(each.pid, each.shim_pid, each.pid, each.pid, each.start, cpu)
        return found

    def send_signal(self, pid: int, start: str, number: int) -> bool:
        target = self.background.get(pid)
        if target is None or target.start != start:
            return False
        if number == signal.SIGKILL or not target.stubborn:
            self._end(target, -number)
        return True

    def run_shim(self, command: list[str], **_: Any) -> None:
        """What the shim leaves on disk; the command says what kind of process it is."""
        directory = Path(command[-1])
        words = _["input"].split(b"\0")[4].decode().split()
        lasts = float(words[1])
        shim_pid = self.new_pid()
        made = Running_(
            0, shim_pid, self.clock.monotonic, directory, "busy" in words, "stubborn" in words,
            self.clock.monotonic + lasts if lasts else None,
        )  # fmt: skip
        self.background[shim_pid] = made  # so that its pid is taken
        made.pid = self.new_pid()
        del self.background[shim_pid]
        self.background[made.pid] = made
        record = f"{made.shim_pid} {made.start}\n{made.pid} {made.start}\nend\n"
        (directory / "identity").write_text(record)

    def reap_background(self) -> None:
        for each in list(self.background.values()):
            if each.ends_at is not None and each.ends_at <= self.clock.monotonic:
                self._end(each, 0)

    def _end(self, process: Running_, code: int) -> None:
        (process.directory / "exit").write_text(f"{code} {self.clock.wall().timestamp():.6f}\n")
        del self.background[process.pid]

    def restart(self) -> None:
        """Everything that ran is gone, and the machine has another boot id."""
        self.boots += 1
        self.background.clear()

    # --- in place of the real one ---------------------------------------------------------------------

    @contextmanager
    def installed(self) -> Iterator[None]:
        chance = random.Random(self.chance.getrandbits(64))
        replaced: dict[Any, Any] = {
            time.monotonic: lambda: self.clock.monotonic,
            engine.utc_now: self.clock.wall,
            ids._random_id: lambda: f"{chance.getrandbits(128):032x}",
            os_support.identity: self.identity,
            os_support.start_of: self.start_of,
            os_support.running_processes: self.running_processes,
            os_support.send_signal: self.send_signal,
            os_support.connections_to: lambda pids: (False, 0),
            os_support.bytes_moved_by: lambda pid: 0,
            os_support.environment_of: lambda pid: b"",
        }
        undo: list[tuple[Any, str, Any]] = []

        def put(where: Any, name: str, value: Any) -> None:
            undo.append((where, name, getattr(where, name)))
            setattr(where, name, value)

        machine = self

        class HereWriter(SteppedWriter):
            _machine = machine

        try:
            put(time_for := _Time(), "clock", self.clock)
            for where, name, value in _sites(
                {old: _here(new, old) for old, new in replaced.items()},
                _InThread(time_for, time),
                _InThread(chance, random),
            ):
                put(where, name, value)
            put(engine, "SQLiteWriter", HereWriter)
            put(engine.SQLiteStore, "start_indexing", lambda store: None)
            put(heartbeat.Heartbeat, "start", _beat_without_thread)
            put(shutdown.SuspendSignal, "catch", lambda signals: None)  # it would outlive a killed program
            put(
                launcher,
                "subprocess",
                types.SimpleNamespace(run=self.run_shim, DEVNULL=-3, SubprocessError=OSError),
            )
            yield
        finally:
            for where, name, value in reversed(undo):
                setattr(where, name, value)


class _Time:
    """In place of the module `time`."""

    clock: Clock = Clock()

    def monotonic(self) -> float:
        return self.clock.monotonic

    def time(self) -> float:
        return self.clock.wall().timestamp()

    def sleep(self, seconds: float) -> None:
        raise AssertionError("somebody blocks: in one thread nothing would ever end that")

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def _here(simulated: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    """The simulated one in this thread, the real one in any other."""
    own, this_thread = threading.get_ident(), threading.get_ident

    def called(*given: Any, **named: Any) -> Any:
        return (simulated if this_thread() == own else real)(*given, **named)

    return called


class _InThread:
    """In place of a module: the simulated one in this thread, the real one in any other."""

    def __init__(self, simulated: Any, real: Any) -> None:
        self._own = threading.get_ident()
        self._both = (simulated, real)

    def __getattr__(self, name: str) -> Any:
        simulated, real = self._both
        return getattr(simulated if threading.get_ident() == self._own else real, name)


def _sites(replaced: dict[Any, Any], fake_time: Any, chance: Any) -> Iterator[tuple[Any, str, Any]]:
    """Every place in holdfast that names one of these: names of modules, and defaults of functions."""
    by_id = {id(old): new for old, new in replaced.items()}
    for module in [each for name, each in sys.modules.items() if name.split(".")[0] == "holdfast"]:
        for name, value in list(vars(module).items()):
            if value is time:
                yield module, name, fake_time
            elif value is random:
                yield module, name, chance
            elif id(value) in by_id:
                yield module, name, by_id[id(value)]
            functions = [value]
            if isinstance(value, type) and value.__module__ == module.__name__:
                functions = list(vars(value).values())
            for each in functions:
                if isinstance(each, types.FunctionType) and each.__module__ == module.__name__:
                    defaults = each.__defaults__ or ()
                    if any(id(one) in by_id for one in defaults):
                        yield each, "__defaults__", tuple(by_id.get(id(one), one) for one in defaults)
                    named = each.__kwdefaults__ or {}
                    if any(id(one) in by_id for one in named.values()):
                        changed = {key: by_id.get(id(one), one) for key, one in named.items()}
                        yield each, "__kwdefaults__", changed


def _beat_without_thread(keeper: heartbeat.Heartbeat) -> None:
    """Programs beat from a thread, which a blocked event loop does not stop. Here no loop blocks."""
    keeper._loop.start()


class SteppedWriter(SQLiteWriter):
    """The writer without its thread: a group is committed by a step of its program's own loop."""

    _machine: Machine

    def __init__(self, *given: Any) -> None:
        self._due = False
        self._program = self._machine.current
        assert self._program is not None
        super().__init__(*given)
        self._connection.preupdate_hook(lambda row: self._machine.changed.add(row.table_name))

    def _run(self) -> None:
        return  # the thread that is started for it has nothing to do

    def _serves(self) -> bool:
        return True  # by the event loop's timers

    def _accept(self, job: SQLiteJob) -> None:
        super()._accept(job)
        if not self._due:
            self._due = True
            self._later(self._commit_next)

    def _later(self, act: Callable[..., None], *given: Any) -> None:
        assert self._program is not None and self._program.loop is not None
        self._program.loop.call_later(self._machine.latency(), act, *given)

    def _commit_next(self) -> None:
        group = self._take_group()
        if group:
            self._commit(group)
            self._later(self._tell, group)
            self._checkpoint()
        self._due = bool(self._queue)
        if self._due:
            self._later(self._commit_next)

    def _commit(self, group: list[SQLiteJob]) -> None:
        assert self._program is not None
        fault = self._machine.disk.fault(self._program.pid, self._machine.chance)
        if fault is not None:
            for job in group:
                job.work = _failing(job.work, fault)
        super()._commit(group)
        self._machine.committed(self._program)

    def stop(self) -> None:
        self._stopping = True
        while self._queue:
            group = self._take_group()
            self._commit(group)
            self._tell(group)
        self._connection.close()


def _failing(work: Work[Any], fault: apsw.Error) -> Work[Any]:
    """It is done, and then it is not: whoever was about to be told is told otherwise."""

    def fail(connection: apsw.Connection) -> Any:
        work(connection)
        raise fault

    return fail
