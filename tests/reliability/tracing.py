"""A writing process under strace, which makes one of its system calls fail or kills it there.

Only calls on the store's own files count, and each thread is counted separately: the Nth call of the thread
that opens the store, the Nth of the one that writes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from .forkserver import ROOT, environment
from .records import Record, read_record
from .scribe import Task


@dataclass(frozen=True)
class Fault:
    """What happens to the Nth of these calls: `error=EIO`, `error=ENOSPC` or `signal=KILL`."""

    call: str
    effect: str

    def __str__(self) -> str:
        return f"{self.call} {self.effect.partition('=')[2]}"


@dataclass(frozen=True)
class Run:
    records: list[Record]
    struck: list[str]
    """The calls that were made to fail, as strace shows them; empty if there was no Nth call."""
    status: int
    said: str
    """What the process wrote to its standard error."""


def require_strace() -> None:
    """Fail in plain words where this suite cannot run; it is never skipped."""
    if shutil.which("strace") is None:
        pytest.fail("this suite needs strace, which is not installed (Debian, Ubuntu: apt install strace)")
    command = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "inject=fsync:error=EIO:when=1", "true"]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.fail(
            "strace may not trace processes here; this suite needs ptrace "
            f"(docker: --cap-add=SYS_PTRACE): {tried.stderr.strip()}"
        )


def run_traced(task: Task, options: list[str], log: Path) -> tuple[list[Record], int, str]:
    """Run a writing process under strace with these options; its calls are listed in `log`."""
    paths = [task.database + ending for ending in ("", "-wal", "-shm", "-journal")]
    where = [word for path in (*paths, str(Path(task.database).parent)) for word in ("-P", path)]
    reading, writing = os.pipe()
    program = [sys.executable, "-m", "tests.reliability.scribe"]
    process = subprocess.Popen(
        [
            *("strace", "-f", "-y", "-qq", "--seccomp-bpf", "-o", str(log), *where, *options),
            *(*program, msgspec.json.encode(task).decode(), str(writing)),
        ],
        cwd=ROOT,
        env=environment(),
        pass_fds=[writing],
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        records = [read_record(line) for line in pipe]
    _, said = process.communicate()
    return records, process.returncode, said


def run_with_fault(task: Task, fault: Fault, number: int, log: Path) -> Run:
    """Run until the fault strikes the `number`th call, and on."""
    options = ["-e", f"trace={fault.call}", "-e", f"inject={fault.call}:{fault.effect}:when={number}"]
    records, status, said = run_traced(task, options, log)
    struck = [line for line in log.read_text().splitlines() if "INJECTED" in line or "+++ killed" in line]
    return Run(records, struck, status, said)


def count_calls(task: Task, calls: list[str], log: Path) -> Counter[str]:
    """How often the busiest thread makes each of these calls when nothing goes wrong."""
    run_traced(task, ["-e", f"trace={','.join(calls)}"], log)
    by_thread: Counter[tuple[str, str]] = Counter()
    for line in log.read_text().splitlines():
        thread, _, rest = line.partition(" ")
        call = rest.strip().partition("(")[0]
        if call in calls:
            by_thread[thread, call] += 1
    most: Counter[str] = Counter()
    for (_, call), times in by_thread.items():
        most[call] = max(most[call], times)
    return most
