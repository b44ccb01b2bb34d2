"""Processes: what a session has started in the background, and what may be decided about them.

    (add) ► starting ──► running ──► exited    (it ended by itself; of a watched one nobody knows the code)
               │            ├──────► stopped   (it ended after it was asked to)
               │            └──────► lost      (it is gone, and nobody saw how it ended)
               └──► exited | stopped | lost    (it ended, or came to nothing, before it was seen running)

A process is told from any other, past or present, by machine, boot, pid namespace, pid and the kernel's own
start time. A pid alone is never believed, and nothing is signalled that is not the same.

A process is *active* while a recent sample says that it did something: it used the CPU, read or wrote, said
something, or has somebody connected, over its whole tree. Only that, or a pin, may hold a due reset up, and
both only until a stated time. Age alone decides nothing.

A process runs as long as anything it started runs. Its exit code is known as soon as the command itself has
ended, which may be earlier.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from ..errors import BadInput, IllegalTransition
from .ids import check_text
from .nodes import Identity
from .resets import Blocker, Reason

LONGEST_COMMAND = 100_000
LONGEST_PIN_OF_AN_AGENT = timedelta(hours=24)
SHOWN_OF_A_COMMAND = 60
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=.*", re.DOTALL)
_PROGRAM = re.compile(r"[\w.+-]{1,40}", re.ASCII)

BUSY_SHARE = 0.02
"""The part of one CPU that a tree must use to count as busy: an idle server wakes up now and then."""
BUSY_SECONDS = 0.03
"""And at least this much, however close two samples are: the kernel counts in hundredths."""
BUSY_BYTES = 4096
"""What a tree must read or write between two samples to count as busy."""


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


@dataclass(frozen=True, slots=True)
class Process:
    id: str
    owner: str
    conversation_id: str
    session_id: str
    identity: Identity
    """Of the command itself. While it is `starting`, only the machine's part is known: the pid is 0."""
    command: str
    cwd: str
    state: ProcessState
    started_at: datetime
    supervisor: str | None
    """The node that looks after it; one that is gone is replaced by the next on that machine."""
    shim_pid: int | None = None
    shim_start: str | None = None
    """The shim that owns its log and learns its exit code; None: watched, started by somebody else."""
    exit_code: int | None = None
    """Of the command itself; negative: ended by that signal. Known before the end if others stayed behind."""
    last_active_at: datetime | None = None
    activity: str | None = None
    """What it was seen doing then, in a few words: `it used the CPU`."""
    listening: bool = False
    """Does it wait for connections?"""
    sampled_at: datetime | None = None
    ended_at: datetime | None = None
    stop_requested_at: datetime | None = None
    stop_reason: str | None = None
    pinned_until: datetime | None = None
    watched: bool = False
    may_stop: bool = True
    """May holdfast signal it? Not what somebody only asked to be watched."""

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
        """Has the command itself ended? What it left behind may still run."""
        return self.ended or self.exit_code is not None

    @property
    def stopping(self) -> bool:
        return self.stop_requested_at is not None and not self.ended


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """What the settings say about processes."""

    max_block: timedelta = timedelta(minutes=120)
    active_window: timedelta = timedelta(seconds=60)
    stop_on_reset: bool = True
    grace: timedelta = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Sample:
    """What a process and everything it started has done up to a moment, all counts since it began."""

    at: float
    """Seconds of the sampler's own monotonic clock."""
    cpu_seconds: float = 0.0
    io_bytes: int = 0
    output_bytes: int = 0
    listening: bool = False
    connected: int = 0
    """How many are connected to it right now."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a sample has shown, to be noted: what it was seen doing since the sample before, if anything."""

    process_id: str
    activity: str | None
    listening: bool


def check_process_step(process_id: str, old: ProcessState, new: ProcessState) -> None:
    """The one place that says how a process may change."""
    if new not in PROCESS_TRANSITIONS[old]:
        raise IllegalTransition(f"process {process_id} is {old.value}; it cannot become {new.value}")


def check_command(command: str) -> str:
    return check_text("a command", command, LONGEST_COMMAND)


# --- who is who ----------------------------------------------------------------------------------------


def is_same(process: Process, found: Identity | None) -> bool:
    """Is what has been found under its pid the process itself? A host may be renamed; the rest may not."""
    return found is not None and _print(process.identity) == _print(found)


def _print(identity: Identity) -> tuple[str, str, int, str]:
    return identity.boot_id, identity.pid_ns, identity.pid, identity.pid_start


def end_of(process: Process, exit_code: int | None, seen: bool) -> ProcessState:
    """The state it ends in. `seen`: is it known how it ended, or was it only watched?"""
    if process.stop_requested_at is not None:
        return ProcessState.STOPPED
    return ProcessState.EXITED if seen or exit_code is not None or process.watched else ProcessState.LOST


def told_of(process: Process, state: ProcessState, exit_code: int | None) -> str:
    """How a process ended, in a sentence for whoever started it."""
    who = f'"{label_of(process)}" ({process.id})'
    if state is ProcessState.LOST:
        return f"{who} is gone, and nobody saw how it ended."
    if exit_code is None:
        return f"{who} has ended."
    if exit_code < 0:
        return f"{who} was ended by signal {-exit_code}."
    return f"{who} has ended with exit code {exit_code}."


# --- what it does --------------------------------------------------------------------------------------


def activity_between(before: Sample | None, after: Sample) -> str | None:
    """What it did between two samples, in a few words; None: nothing worth holding anything up for."""
    if after.connected:
        return "somebody is connected"
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
    """Did it do something within the window, as far as anybody has seen?"""
    return (
        not process.ended
        and process.last_active_at is not None
        and now - process.last_active_at <= limits.active_window
    )


def is_pinned(process: Process, now: datetime) -> bool:
    return not process.ended and process.pinned_until is not None and now < process.pinned_until


# --- what it holds up ----------------------------------------------------------------------------------


def utc_clock(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def hold_of(
    process: Process,
    due_at: datetime | None,
    now: datetime,
    limits: ProcessLimits,
    clock: Callable[[datetime], str] = utc_clock,
) -> Blocker:
    """Does this process hold a reset up that is due at `due_at` (None: never), until when, and why (not)?

    `clock` says a time as whoever reads this would.
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
        said = f"{who} ({_idleness(process, now, limits)}) does not hold it"
        return _told(process, "process_idle", f"{said}; {_fate(process, limits)}", False)
    assert process.last_active_at is not None
    doing = f"{process.activity or 'it did something'} {_ago(now - process.last_active_at)}"
    if due_at is None:
        return _told(process, "process_active", f"{named} is at work: {doing}", False)
    limit = due_at + limits.max_block
    if now < limit:
        said = f"{named} may hold it until {clock(limit)}: {doing}"
        return _told(process, "process_active", said, True, limit)
    said = f"{named} is at work ({doing}), but has held it for {span(limits.max_block)}, the longest it may"
    return _told(process, "process_past_limit", f"{said}; {_fate(process, limits)}", False)


def _told(process: Process, code: str, message: str, holds: bool, until: datetime | None = None) -> Blocker:
    logged = message.replace(f'"{label_of(process)}"', log_name(process))
    return Blocker(Reason(code, message, process.id, until, logged), holds)


def _idleness(process: Process, now: datetime, limits: ProcessLimits) -> str:
    age = span(now - process.started_at)
    seen = process.sampled_at
    if seen is None or now - seen > max(limits.active_window, timedelta(minutes=5)):
        return f"{age}, {'not looked at yet' if seen is None else f'last looked at {_ago(now - seen)}'}"
    if process.listening:
        return f"{age}, nobody connected"
    idle_since = process.last_active_at or process.started_at
    return f"{age}, idle for {span(now - idle_since)}"


def _fate(process: Process, limits: ProcessLimits) -> str:
    return "it will be stopped" if limits.stop_on_reset and process.may_stop else "it will be left running"


def shown(command: str) -> str:
    """A command on one line, not too long."""
    line = " ".join(command.split())
    return line if len(line) <= SHOWN_OF_A_COMMAND else f"{line[: SHOWN_OF_A_COMMAND - 1]}…"


def program_of(command: str) -> str:
    """The name of the program that a command line runs, without directory, arguments or variables."""
    for word in command.split():
        if not _ASSIGNMENT.fullmatch(word):
            name = word.strip("'\"").rpartition("/")[2]
            return name if _PROGRAM.fullmatch(name) else "a command"
    return "a command"


def label_of(process: Process) -> str:
    """A process in sentences that everybody of its owner reads: what the owner's sessions started by its
    command, what was started elsewhere only by its program. Its arguments may hold another's secrets."""
    return program_of(process.command) if process.watched else shown(process.command)


def log_name(process: Process) -> str:
    """A process in log lines: never a command line, which may hold secrets."""
    return f"process {process.id} ({program_of(process.command)})"


def span(time: timedelta) -> str:
    """How long, in the one unit that matters: `3 days`."""
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
    """Until when a process pinned for so long is pinned; None: for 0 hours, no longer.

    BadInput if that is too long: an agent may pin for a day at most, a person for as long as they like.
    """
    if not 0 <= hours < 24 * 365 * 1000:
        raise BadInput(f"a process is pinned for a number of hours, 0 or more, not {hours}")
    length = timedelta(hours=hours)
    if by_agent and length > LONGEST_PIN_OF_AN_AGENT:
        raise BadInput("an agent may pin a process for at most 24 hours; a person may for longer")
    return now + length if hours else None
