"""Background processes of sessions: their states, their identity, and how they defer resets.

    (add) ► starting ──► running ──► exited    (ended by itself; a watched process has no known exit code)
               │            ├──────► stopped   (ended after a stop request)
               │            └──────► lost      (gone; how it ended is unknown)
               └──► exited | stopped | lost    (ended, or failed to start, before it was seen running)

A process is identified by machine, boot, pid namespace, pid and the kernel's start time, which together are
unique over time. A pid alone is never trusted, and only a process with the same identity is signalled.

A process is *active* while a recent sample of its whole tree shows CPU use, reads or writes, output, or an
open connection. Only activity or a pin may defer a due reset, and both only until a stated time. Age alone
decides nothing.

A process counts as running while anything it started runs. Its exit code is known as soon as the command
itself has ended, which may be earlier.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from ..errors import BadInput, IllegalTransition
from .ids import check_text
from .nodes import Identity
from .resets import Blocker, Reason
from .value import Value

LONGEST_COMMAND = 100_000
LONGEST_PIN_OF_AN_AGENT = timedelta(hours=24)
SHOWN_OF_A_COMMAND = 60
_ASSIGNMENT = re.compile(r"\A[A-Za-z_]\w*\+?=.*", re.DOTALL)
_PROGRAM = re.compile(r"[\w.+-]{1,40}", re.ASCII)

BUSY_SHARE = 0.02
"""Share of one CPU that a tree must use to count as busy: an idle server wakes up now and then."""
BUSY_SECONDS = 0.03
"""Minimum CPU time to count as busy, however close two samples are: the kernel counts in hundredths."""
BUSY_BYTES = 4096
"""Bytes that a tree must read or write between two samples to count as busy."""


class ProcessState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"
    STOPPED = "stopped"
    LOST = "lost"


_ENDS = frozenset({ProcessState.EXITED, ProcessState.STOPPED, ProcessState.LOST})

PROCESS_TRANSITIONS: Mapping[ProcessState, frozenset[ProcessState]] = {
    ProcessState.STARTING: frozenset({ProcessState.RUNNING, *_ENDS}),
    ProcessState.RUNNING: _ENDS,
    ProcessState.EXITED: frozenset(),
    ProcessState.STOPPED: frozenset(),
    ProcessState.LOST: frozenset(),
}


class Process(Value, frozen=True):
    id: str
    owner: str
    conversation_id: str
    session_id: str
    identity: Identity
    """Identity of the command itself. In state `starting` only the machine's part is known: the pid is 0."""
    command: str
    cwd: str
    state: ProcessState
    started_at: datetime
    supervisor: str | None
    """The node that supervises it; if that node is gone, the next node on the same machine takes over."""
    shim_pid: int | None = None
    shim_start: str | None = None
    """The shim that owns its log and reads its exit code; None: watched, not started by holdfast."""
    exit_code: int | None = None
    """Exit code of the command itself; negative: killed by that signal. Set before the end if children
    remain."""
    last_active_at: datetime | None = None
    activity: str | None = None
    """Short text of its last seen activity: `it used the CPU`."""
    listening: bool = False
    """True: it has a listening socket."""
    sampled_at: datetime | None = None
    ended_at: datetime | None = None
    stop_requested_at: datetime | None = None
    stop_reason: str | None = None
    pinned_until: datetime | None = None
    watched: bool = False
    may_stop: bool = True
    """True: holdfast may signal it. False for processes that are only watched on request."""

    @property
    def host(self) -> str:
        return self.identity.host

    @property
    def pid(self) -> int | None:
        return self.identity.pid or None

    @property
    def ended(self) -> bool:
        return self.ended_at is not None

    @property
    def finished(self) -> bool:
        """True: the command itself has ended. Its children may still run."""
        return self.ended or self.exit_code is not None

    @property
    def stopping(self) -> bool:
        return self.stop_requested_at is not None and not self.ended


class ProcessLimits(Value, frozen=True):
    """The settings about processes."""

    max_block: timedelta = timedelta(minutes=120)
    active_window: timedelta = timedelta(seconds=60)
    stop_on_reset: bool = True
    grace: timedelta = timedelta(seconds=10)


class Sample(Value, frozen=True):
    """Counters of a process and everything it started, since its start, at one moment."""

    at: float
    """Seconds on the sampler's monotonic clock."""
    cpu_seconds: float = 0.0
    io_bytes: int = 0
    output_bytes: int = 0
    listening: bool = False
    connected: int = 0
    """Number of connections to it right now."""


class Sighting(Value, frozen=True):
    """Result of a sample, to be stored: activity since the previous sample, if any."""

    process_id: str
    activity: str | None
    listening: bool


def check_process_step(process_id: str, old: ProcessState, new: ProcessState) -> None:
    """Raise IllegalTransition unless PROCESS_TRANSITIONS allows this change. The only check of process
    states."""
    if new not in PROCESS_TRANSITIONS[old]:
        raise IllegalTransition(f"process {process_id} is {old.value}; it cannot become {new.value}")


def check_command(command: str) -> str:
    return check_text("a command", command, LONGEST_COMMAND)


# --- identity ------------------------------------------------------------------------------------------


def is_same(process: Process, found: Identity | None) -> bool:
    """True if the process found under its pid is the same one. The host name may change; the rest may not."""
    return found is not None and _print(process.identity) == _print(found)


def _print(identity: Identity) -> tuple[str, str, int, str]:
    return identity.boot_id, identity.pid_ns, identity.pid, identity.pid_start


def end_of(process: Process, exit_code: int | None, seen: bool) -> ProcessState:
    """The state it ends in. `seen`: how it ended is known; False: it was only watched."""
    if process.stop_requested_at is not None:
        return ProcessState.STOPPED
    return ProcessState.EXITED if seen or exit_code is not None or process.watched else ProcessState.LOST


def told_of(process: Process, state: ProcessState, exit_code: int | None) -> str:
    """One sentence about how a process ended, for the session that started it."""
    who = f'"{label_of(process)}" ({process.id})'
    if state is ProcessState.LOST:
        return f"{who} is gone; its exit code is unknown."
    if exit_code is None:
        return f"{who} has ended."
    if exit_code < 0:
        return f"{who} was ended by signal {-exit_code}."
    return f"{who} has ended with exit code {exit_code}."


# --- activity ------------------------------------------------------------------------------------------


def activity_between(before: Sample | None, after: Sample) -> str | None:
    """Short text of what it did between two samples; None: no activity that may defer a reset."""
    if after.connected:
        return "client connected"
    if before is None:
        return None
    if after.output_bytes > before.output_bytes:
        return "it wrote output"
    if after.cpu_seconds - before.cpu_seconds >= max(BUSY_SECONDS, BUSY_SHARE * (after.at - before.at)):
        return "it used the CPU"
    if after.io_bytes - before.io_bytes >= BUSY_BYTES:
        return "it read or wrote files"
    return None


def is_active(process: Process, now: datetime, limits: ProcessLimits) -> bool:
    """True if its last seen activity is within the window."""
    return (
        not process.ended
        and process.last_active_at is not None
        and now - process.last_active_at <= limits.active_window
    )


def is_pinned(process: Process, now: datetime) -> bool:
    return not process.ended and process.pinned_until is not None and now < process.pinned_until


# --- deferring a reset ---------------------------------------------------------------------------------


def utc_clock(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def hold_of(
    process: Process,
    due_at: datetime | None,
    now: datetime,
    limits: ProcessLimits,
    clock: Callable[[datetime], str] = utc_clock,
) -> Blocker:
    """Whether this process defers a reset due at `due_at` (None: never), until when, and why (not).

    `clock` formats a time for the reader.
    """
    who = f'"{label_of(process)}"'
    named = f"{who} (pid {process.pid})" if process.pid is not None else who
    if process.ended:
        return _told(process, "process_ended", f"{named} has ended", False)
    if process.stopping:
        return _told(process, "process_stopping", f"{named} is being stopped", False)
    if is_pinned(process, now):
        until = process.pinned_until
        assert until is not None
        return _told(process, "process_pinned", f"{named} is pinned until {clock(until)}", True, until)
    if not is_active(process, now, limits):
        said = f"{who} ({_idleness(process, now, limits)}) does not delay it"
        return _told(process, "process_idle", f"{said}; {_fate(process, limits)}", False)
    assert process.last_active_at is not None
    doing = f"{process.activity or 'it did something'} {_ago(now - process.last_active_at)}"
    if due_at is None:
        return _told(process, "process_active", f"{named} is at work: {doing}", False)
    limit = due_at + limits.max_block
    if now < limit:
        said = f"{named} may delay it until {clock(limit)}: {doing}"
        return _told(process, "process_active", said, True, limit)
    said = (
        f"{named} is at work ({doing}), but has delayed it for {span(limits.max_block)}, the longest allowed"
    )
    return _told(process, "process_past_limit", f"{said}; {_fate(process, limits)}", False)


def _told(process: Process, code: str, message: str, holds: bool, until: datetime | None = None) -> Blocker:
    logged = message.replace(f'"{label_of(process)}"', log_name(process))
    return Blocker(Reason(code, message, process.id, until, logged), holds)


def _idleness(process: Process, now: datetime, limits: ProcessLimits) -> str:
    age = span(now - process.started_at)
    seen = process.sampled_at
    if seen is None or now - seen > max(limits.active_window, timedelta(minutes=5)):
        return f"{age}, {'not checked yet' if seen is None else f'last checked {_ago(now - seen)}'}"
    if process.listening:
        return f"{age}, no connections"
    idle_since = process.last_active_at or process.started_at
    return f"{age}, idle for {span(now - idle_since)}"


def _fate(process: Process, limits: ProcessLimits) -> str:
    return "it will be stopped" if limits.stop_on_reset and process.may_stop else "it will be left running"


def shown(command: str) -> str:
    """A command on one line, truncated."""
    line = " ".join(command.split())
    return line if len(line) <= SHOWN_OF_A_COMMAND else f"{line[: SHOWN_OF_A_COMMAND - 1]}…"


def program_of(command: str) -> str:
    """Name of the program that a command line runs, without directory, arguments or variables."""
    for word in command.split():
        if not _ASSIGNMENT.fullmatch(word):
            name = word.strip("'\"").rpartition("/")[2]
            return name if _PROGRAM.fullmatch(name) else "a command"
    return "a command"


def label_of(process: Process) -> str:
    """Label of a process in texts that its whole owner can read: the command if the owner's sessions started
    it, else only the program, because the arguments may hold another user's secrets."""
    return program_of(process.command) if process.watched else shown(process.command)


def log_name(process: Process) -> str:
    """Label of a process in log lines: never a command line, which may hold secrets."""
    return f"process {process.id} ({program_of(process.command)})"


def span(time: timedelta) -> str:
    """A duration in its largest unit: `3 days`."""
    seconds = max(0, int(time.total_seconds()))
    for size, name in ((86_400, "day"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            number = seconds // size
            return f"{number} {name}{'s' if name == 'day' and number != 1 else ''}"
    return f"{seconds} s"


def _ago(time: timedelta) -> str:
    return "just now" if time < timedelta(seconds=1) else f"{span(time)} ago"


# --- pins ----------------------------------------------------------------------------------------------


def pinned_until(hours: float, now: datetime, *, by_agent: bool) -> datetime | None:
    """End of a pin of this length from now; None for 0 hours: unpinned.

    BadInput if it is too long: an agent may pin for at most 24 hours, a person for any time.
    """
    if not 0 <= hours < 24 * 365 * 1000:
        raise BadInput(f"a process is pinned for a number of hours, 0 or more, not {hours}")
    length = timedelta(hours=hours)
    if by_agent and length > LONGEST_PIN_OF_AN_AGENT:
        raise BadInput("an agent may pin a process for at most 24 hours; a person may for longer")
    return now + length if hours else None


class LogPart(Value, frozen=True):
    """A part of a process's output."""

    text: str
    next: int
    """The offset to continue reading from."""
    dropped: int = 0
    """How many bytes between the head and the tail were dropped."""
