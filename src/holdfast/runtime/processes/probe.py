"""Probes processes without changing them: whether they run, how they ended, what they use.

Everything here only reads: the shim's records and the kernel's process lists. A pid is trusted only if its
start time matches. So readers get correct states even when no node supervises the process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from ...domain.nodes import Identity
from ...domain.processes import Process, ProcessState, Sample, end_of, is_same
from ...os_support import (
    HIDDEN,
    Running,
    bytes_moved_by,
    connections_to,
    environment_of,
    identity,
    running_processes,
    start_of,
)
from .files import ProcessFiles, ShimExit, ShimIdentity

MARK = "HOLDFAST_PROCESS"
"""Environment variable that identifies the children of a command, even when its shim was killed."""

Table = Mapping[int, Running]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of one probe."""

    alive: bool
    begun: ShimIdentity | None = None
    ending: ShimExit | None = None
    why: str | None = None
    """Why it counts as gone."""


def probe(process: Process, root: Path) -> ProbeResult:
    """Whether anything of the process still runs. Only reads: no writes, no signals."""
    files = ProcessFiles(root, process.id)
    begun, ending = files.begun(), files.ending()
    here = identity()
    if process.identity.boot_id != here.boot_id:
        return ProbeResult(False, begun, ending, "the machine was restarted")
    if process.identity.pid_ns != here.pid_ns:  # another container: only the shim's lock can be checked
        gone = not process.watched and files.shim_lives() is False
        return ProbeResult(not gone, begun, ending, "its container is gone" if gone else None)
    if process.state is ProcessState.STARTING and begun is None and not process.watched:
        return ProbeResult(True, begun, ending)
    known = identified(process, begun)
    if known.shim_pid is not None and known.shim_start and start_of(known.shim_pid) == known.shim_start:
        return ProbeResult(True, begun, ending)
    start = start_of(known.identity.pid)
    if start == HIDDEN:  # hidden from us, of another user: no proof that it is gone
        return ProbeResult(True, begun, ending)
    if is_same(known, None if start is None else replace(known.identity, pid_start=start)):
        return ProbeResult(True, begun, ending)
    if ending is None and not process.watched and any(marked(process, running_processes())):
        return ProbeResult(True, begun, ending)  # its shim was killed, but something it started still runs
    why = f"no process {known.identity.pid} is running"
    if start is not None:
        why = f"process {known.identity.pid} is another one now"
    return ProbeResult(False, begun, ending, why)


def identified(process: Process, begun: ShimIdentity | None) -> Process:
    """The process with the identity recorded by its shim, if its row does not have it yet."""
    if begun is None or process.identity.pid:
        return process
    return replace(
        process,
        identity=replace(process.identity, pid=begun.pid, pid_start=begun.pid_start),
        shim_pid=begun.shim_pid,
        shim_start=begun.shim_start,
    )


def as_seen(process: Process, root: Path, now: datetime) -> Process:
    """The process as it is right now, even if its row is not updated yet."""
    if process.ended or not is_here(process, identity()):
        return process
    found = probe(process, root)
    seen = identified(process, found.begun)
    if seen.state is ProcessState.STARTING and found.begun is not None:
        seen = replace(seen, state=ProcessState.RUNNING)
    code = found.ending.exit_code if found.ending else process.exit_code
    if found.alive:
        return replace(seen, exit_code=code)
    state = end_of(process, code, found.ending is not None)
    at = found.ending.at if found.ending else now
    return replace(seen, state=state, exit_code=code, ended_at=max(at, process.started_at))


def is_here(process: Process, here: Identity) -> bool:
    """True if it runs on this machine."""
    return process.identity.is_on(here)


# --- its tree ------------------------------------------------------------------------------------------


def members(process: Process, table: Table, *, thorough: bool = False) -> list[Running]:
    """The command and all its descendants, without the shim, as listed in the table.

    `thorough`: also processes that carry its mark, for a stop: they may have lost their parents.
    """
    found = _tree(process, table)
    if thorough and not process.watched:
        for one in marked(process, table):
            found.setdefault(one.pid, one)
    found.pop(os.getpid(), None)
    if process.shim_pid is not None:
        found.pop(process.shim_pid, None)
    return [one for one in found.values() if not one.zombie]


def _tree(process: Process, table: Table) -> dict[int, Running]:
    """Verified roots (its shim, the command), their descendants, and the command's own session."""
    roots = [(process.shim_pid, process.shim_start), (process.identity.pid, process.identity.pid_start)]
    found = {
        pid: table[pid]
        for pid, start in roots
        if pid is not None and pid in table and table[pid].start == start
    }
    if process.identity.pid in found and not process.watched:
        leader = process.identity.pid
        for one in table.values():
            if leader in (one.group, one.session):
                found[one.pid] = one
    add_descendants(found, table)
    return found


def add_descendants(found: dict[int, Running], table: Mapping[int, Running]) -> None:
    """Add to `found` all processes of the table that one of its processes started, at any depth."""
    children: dict[int, list[Running]] = {}
    for one in table.values():
        children.setdefault(one.parent, []).append(one)
    waiting = list(found)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child.pid not in found:
                found[child.pid] = child
                waiting.append(child.pid)


def marked(process: Process, table: Table) -> Iterator[Running]:
    """Processes whose environment carries this process's mark; Linux only."""
    mark = f"{MARK}={process.id}".encode()
    for one in table.values():
        if not one.zombie and one.pid != process.shim_pid and mark in environment_of(one.pid).split(b"\0"):
            yield one


def started_for_another(pid: int, owner: str, processes: Iterable[Process]) -> bool:
    """True if this pid was started by another owner's session, or by a command of a turn that runs now.

    `processes`: those of this machine that have not ended. What they started is recognised by descent, by the
    command's session, and by the mark in the environment of the process or of an ancestor. A mark that this
    program itself was started with is ignored.
    """
    table = running_processes()
    started = [process for process in processes if not process.watched]
    for process in started:
        if process.owner != owner and (
            pid == process.shim_pid or any(one.pid == pid for one in members(process, table))
        ):
            return True
    known = {f"{MARK}={process.id}".encode() for process in started if process.owner == owner}
    known.add(f"{MARK}={os.environ.get(MARK, '')}".encode())
    return not _marks_of(pid, table) <= known


def _marks_of(pid: int, table: Table) -> set[bytes]:
    """The marks of a process, of its session and group leaders, and of all its ancestors."""
    found: set[bytes] = set()
    waiting, looked_at = [pid], {0, 1, os.getpid()}
    while waiting:
        one = table.get(waiting.pop())
        if one is None or one.pid in looked_at:
            continue
        looked_at.add(one.pid)
        waiting += [one.parent, one.session, one.group]
        prefix = f"{MARK}=".encode()
        found.update(each for each in environment_of(one.pid).split(b"\0") if each.startswith(prefix))
    return found


def sample(process: Process, table: Table, root: Path) -> Sample:
    """Resource use of the process and all its descendants so far."""
    tree = _tree(process, table)
    pids = [one.pid for one in tree.values() if not one.zombie]
    listening, connected = connections_to(pids)
    return Sample(
        at=time.monotonic(),
        cpu_seconds=sum(one.cpu_seconds for one in tree.values()),
        io_bytes=sum(bytes_moved_by(pid) for pid in pids),
        output_bytes=ProcessFiles(root, process.id).said() if not process.watched else 0,
        listening=listening,
        connected=connected,
    )
