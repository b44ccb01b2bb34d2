"""The supervisor on real processes: how they begin, what they do, how they end, and who is never touched."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.nodes import Identity, Node
from holdfast.domain.processes import Process, ProcessLimits, ProcessState, is_active
from holdfast.errors import BadInput, Conflict
from holdfast.os_support import environment_of, identity, running_processes, send_signal, start_of
from holdfast.runtime.agents.doctor import VERIFIED_PROCESSES, Doctor
from holdfast.runtime.agents.reaper import Reaper
from holdfast.runtime.processes import shim
from holdfast.runtime.processes.files import ProcessFiles
from holdfast.runtime.processes.launcher import SHIM
from holdfast.runtime.processes.probe import members
from holdfast.runtime.processes.supervisor import Supervisor
from holdfast.store.sqlite.engine import SQLiteStore
from tests.unit.runtime.conftest import Clock, Joined, kill

OWNER = "default"
LIMITS = ProcessLimits(grace=timedelta(seconds=1), active_window=timedelta(seconds=60))


@pytest.fixture
async def node(joined: Joined) -> Node:
    return await joined()


@pytest.fixture
async def session(store: SQLiteStore, node: Node) -> str:
    return (await store.open_session(OWNER, Address(key="cli:ada"), node.id)).id


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "store.db.processes"


@pytest.fixture
async def supervisor(store: SQLiteStore, node: Node, directory: Path) -> AsyncIterator[Supervisor]:
    yield Supervisor(store, lambda: node.id, directory, LIMITS)
    await end_all(store)


async def end_all(store: SQLiteStore) -> None:
    """Leave nothing behind, whatever the test has shown."""
    for process in (await store.processes(None, limit=1000)).items:
        for one in members(process, running_processes(), thorough=True):
            send_signal(one.pid, one.start, signal.SIGKILL)


async def until(true: Callable[[], Awaitable[bool] | bool], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while True:
            found = true()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.02)


async def ended(supervisor: Supervisor, process: Process) -> Process:
    """The process, once its supervisor has noted its end."""
    known = [process]

    async def over() -> bool:
        await supervisor.supervise_once()
        known[0] = await supervisor._store.process(None, process.id)
        return known[0].ended

    await until(over)
    return known[0]


async def gone(supervisor: Supervisor, process: Process) -> None:
    """Returns when nothing of it is left, its shim neither, though nobody has noted that."""

    async def nothing_left() -> bool:
        return (await supervisor.seen(process)).ended

    await until(nothing_left)


async def says(supervisor: Supervisor, process: Process, text: str) -> None:
    async def said() -> bool:
        return text in (await supervisor.log(OWNER, process.id)).text

    await until(said)


def alive(pid: int) -> bool:
    return start_of(pid) is not None


# --- beginning and ending ------------------------------------------------------------------------------


async def test_a_command_runs_says_something_and_ends(supervisor: Supervisor, session: str) -> None:
    process = await supervisor.start(OWNER, session, "echo hello; echo trouble >&2; exit 3")
    assert process.state is ProcessState.RUNNING
    assert (process.session_id, process.cwd) == (session, os.getcwd())
    over = await ended(supervisor, process)
    assert (over.state, over.exit_code) == (ProcessState.EXITED, 3)
    assert (await supervisor.log(OWNER, process.id)).text == "hello\ntrouble\n"


async def test_it_is_who_its_row_says(supervisor: Supervisor, session: str, directory: Path) -> None:
    process = await supervisor.start(OWNER, session, ["sleep", "100"])
    assert process.pid is not None
    assert start_of(process.pid) == process.identity.pid_start
    assert (process.identity.boot_id, process.identity.pid_ns) == (identity().boot_id, identity().pid_ns)
    assert process.shim_pid is not None
    assert start_of(process.shim_pid) == process.shim_start
    one = running_processes()[process.pid]
    assert (one.group, one.session, one.parent) == (process.pid, process.pid, process.shim_pid)
    assert running_processes()[process.shim_pid].session == process.shim_pid, (
        "apart from holdfast's own session"
    )
    assert (directory / process.id).stat().st_mode & 0o777 == 0o700
    assert f"HOLDFAST_PROCESS={process.id}".encode() in environment_of(process.pid).split(b"\0")


async def test_a_command_finds_the_signals_as_in_a_shell(supervisor: Supervisor, session: str) -> None:
    process = await supervisor.start(OWNER, session, "kill -PIPE $$; echo survived")
    assert (await ended(supervisor, process)).exit_code == -signal.SIGPIPE


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["no-such-command", "x"], 127, "cannot start it: no-such-command: No such file or directory"),
        ("no-such-command x", 127, "not found"),
        (["/etc/passwd"], 126, "cannot start it: /etc/passwd: Permission denied"),
    ],
)
async def test_a_command_that_cannot_be_run_says_so(
    supervisor: Supervisor, session: str, command: str | list[str], code: int, said: str
) -> None:
    process = await supervisor.start(OWNER, session, command)
    over = await ended(supervisor, process)
    assert (over.state, over.exit_code) == (ProcessState.EXITED, code)
    assert said in (await supervisor.log(OWNER, process.id)).text


async def test_a_directory_that_is_not_there_starts_nothing(
    supervisor: Supervisor, session: str, store: SQLiteStore, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="there is no directory"):
        await supervisor.start(OWNER, session, "true", tmp_path / "gone")
    assert (await store.processes(None)).items == []


async def test_a_directory_that_vanishes_meanwhile_is_an_end_that_says_so(
    supervisor: Supervisor, session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.path.isdir", lambda path: True)
    process = await supervisor.start(OWNER, session, "echo here", tmp_path / "gone")
    over = await ended(supervisor, process)
    assert (over.state, over.exit_code) == (ProcessState.EXITED, 127)
    assert (await supervisor.log(OWNER, process.id)).text.endswith("gone: No such file or directory\n")


@pytest.mark.parametrize("command", ["", "  ", [], [1], ["a\0b"], "a\0b"])
async def test_what_is_no_command_is_refused(
    supervisor: Supervisor, session: str, store: SQLiteStore, command: str
) -> None:
    with pytest.raises(BadInput):
        await supervisor.start(OWNER, session, command)
    assert (await store.processes(None)).items == []


async def test_a_command_without_input_reads_its_end(supervisor: Supervisor, session: str) -> None:
    process = await supervisor.start(OWNER, session, "cat; echo nothing to read")
    assert (await ended(supervisor, process)).exit_code == 0
    assert (await supervisor.log(OWNER, process.id)).text == "nothing to read\n"
    with pytest.raises(Conflict, match="has ended"):
        await supervisor.write(OWNER, process.id, "too late")


async def test_a_command_that_needs_input_is_given_some(supervisor: Supervisor, session: str) -> None:
    process = await supervisor.start(OWNER, session, 'read name; echo "hello $name"; read more', stdin=True)
    await supervisor.write(OWNER, process.id, "Ada\n")
    await says(supervisor, process, "hello Ada")
    await supervisor.write(OWNER, process.id, "bye\n")
    assert (await ended(supervisor, process)).exit_code == 0
    deaf = await supervisor.start(OWNER, session, "sleep 100")
    with pytest.raises(Conflict, match="takes no input"):
        await supervisor.write(OWNER, deaf.id, "hello\n")


async def test_input_that_nobody_reads_is_refused_not_waited_for(
    supervisor: Supervisor, session: str
) -> None:
    process = await supervisor.start(OWNER, session, "sleep 100", stdin=True)
    await supervisor.write(OWNER, process.id, "x" * 65536)
    with pytest.raises(Conflict, match="has not read"):
        await supervisor.write(OWNER, process.id, "more")
    with pytest.raises(BadInput, match="64 KiB"):
        await supervisor.write(OWNER, process.id, "x" * 65537)


async def test_a_command_that_closes_its_output_is_still_seen_to_end(
    supervisor: Supervisor, session: str
) -> None:
    process = await supervisor.start(OWNER, session, "echo bye; exec >&- 2>&-; sleep 0.3; exit 5")
    await says(supervisor, process, "bye")
    assert (await ended(supervisor, process)).exit_code == 5


async def test_a_command_that_fills_its_log_keeps_its_head_and_its_newest(
    store: SQLiteStore, node: Node, directory: Path, session: str
) -> None:
    supervisor = Supervisor(store, lambda: node.id, directory, LIMITS, log_bytes=120_000)
    process = await supervisor.start(OWNER, session, "seq 1 400000; echo the end")
    assert (await ended(supervisor, process)).exit_code == 0
    part = await supervisor.log(OWNER, process.id)
    total = sum(len(f"{n}\n") for n in range(1, 400_001)) + len("the end\n")
    assert part.next == total
    assert part.text.startswith("1\n2\n3\n")
    assert part.text.endswith("399999\n400000\nthe end\n")
    assert f"[… {part.dropped:,} bytes were not kept …]" in part.text
    kept = sum(file.stat().st_size for file in (directory / process.id).glob("log.*"))
    assert 60_000 < kept <= 120_000
    assert kept + part.dropped == total
    assert (await supervisor.log(OWNER, process.id, tail=2)).text == "400000\nthe end\n"
    assert (await supervisor.log(OWNER, process.id, after=total - 8)).text == "the end\n"
    assert (await supervisor.log(OWNER, process.id, after=total)).text == ""


def test_a_full_disk_costs_only_the_output_that_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written, log, is_full = os.write, shim.Log(12), False

    def write(file: int, said: bytes) -> int:
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(file, said)

    monkeypatch.setattr(os, "write", write)
    log.write(b"abcdefghijk")  # three of the head, four and four
    is_full = True
    for _ in range(5):
        log.write(b"xx")
    kept = {path.name[-2:]: path.read_text() for path in tmp_path.iterdir()}
    assert kept == {"00": "abc", "03": "defg", "07": "hijk"}
    is_full = False
    log.write(b"yz")
    kept = {path.name[-2:]: path.read_text() for path in tmp_path.iterdir()}
    assert kept == {"00": "abc", "07": "hijk", "21": "yz"}


def test_a_signal_for_a_command_that_has_just_ended_does_not_end_its_shim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shim, "keep_orphans", lambda: False)
    ended = subprocess.Popen(["true"])
    ended.wait()
    one = shim.Shim([b"shell", b"/", b"", b"100", b"true"])
    one._child = ended.pid
    one._pass_on(signal.SIGTERM, None)


async def test_what_is_no_text_is_shown_all_the_same(supervisor: Supervisor, session: str) -> None:
    process = await supervisor.start(OWNER, session, r"printf 'a\377b\n'")
    await ended(supervisor, process)
    assert (await supervisor.log(OWNER, process.id)).text == "a\ufffdb\n"


async def test_waiting_ends_with_the_command_or_with_patience(supervisor: Supervisor, session: str) -> None:
    process = await supervisor.start(OWNER, session, "sleep 0.2; exit 9")
    over = await supervisor.wait(OWNER, process.id, 20)
    assert (over.finished, over.exit_code) == (True, 9)
    slow = await supervisor.start(OWNER, session, "sleep 100")
    assert not (await supervisor.wait(OWNER, slow.id, 0.1)).finished


# --- what it leaves behind -----------------------------------------------------------------------------


async def test_it_runs_while_anything_it_started_runs(
    supervisor: Supervisor, session: str, store: SQLiteStore
) -> None:
    process = await supervisor.start(OWNER, session, "sleep 100 & echo $!; exit 4")
    assert (await supervisor.wait(OWNER, process.id, 20)).exit_code == 4
    await supervisor.supervise_once()
    left = await store.process(OWNER, process.id)
    assert (left.state, left.exit_code, left.ended) == (ProcessState.RUNNING, 4, False)
    child = int((await supervisor.log(OWNER, process.id)).text)
    assert alive(child)
    over = await supervisor.stop(OWNER, process.id, "the test is over")
    assert (over.state, over.exit_code, alive(child)) == (ProcessState.STOPPED, 4, False)


FORKS_AWAY = """
import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
print(os.getpid(), flush=True)
null = os.open(os.devnull, os.O_RDWR)
for number in range(3): os.dup2(null, number)
time.sleep(100)
"""


async def test_what_forks_away_into_a_session_of_its_own_is_stopped_too(
    supervisor: Supervisor, session: str
) -> None:
    process = await supervisor.start(OWNER, session, [sys.executable, "-c", FORKS_AWAY])
    await says(supervisor, process, "\n")
    away = int((await supervisor.log(OWNER, process.id)).text)
    assert running_processes()[away].session not in (process.pid, process.shim_pid)
    assert (await supervisor.stop(OWNER, process.id, "the test is over")).state is ProcessState.STOPPED
    assert not alive(away)


async def test_what_ignores_sigterm_is_killed_after_the_grace(supervisor: Supervisor, session: str) -> None:
    process = await supervisor.start(OWNER, session, "trap '' TERM; echo ready; while :; do sleep 0.1; done")
    await says(supervisor, process, "ready")
    began = time.monotonic()
    over = await supervisor.stop(OWNER, process.id, "the test is over")
    assert (over.state, over.exit_code) == (ProcessState.STOPPED, -signal.SIGKILL)
    assert time.monotonic() - began >= LIMITS.grace.total_seconds()


async def test_a_stop_that_cannot_be_carried_out_is_logged_once(
    supervisor: Supervisor,
    session: str,
    store: SQLiteStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Such as of a command that sudo started, or that is hung in the kernel."""
    monkeypatch.setattr(supervisor, "limits", replace(LIMITS, grace=timedelta(0)))
    caplog.set_level(logging.INFO)
    mine = await supervisor.start(OWNER, session, "sleep 600")
    others = await supervisor.start(OWNER, session, "sleep 600")

    def send(pid: int, start: str, number: int) -> bool:
        if pid == others.identity.pid:
            raise PermissionError
        return True  # and it does not end

    monkeypatch.setattr("holdfast.runtime.processes.supervisor.send_signal", send)
    for process in (mine, others):
        await store.request_stop(OWNER, process.id, "enough")
    for _ in range(4):
        await supervisor.supervise_once()
    told = [record.getMessage() for record in caplog.records]
    assert len([line for line in told if "belongs to another user" in line]) == 1
    assert [line.partition(" ")[0] for line in told if "to 1 of" in line] == ["SIGTERM", "SIGKILL"]


async def test_what_ends_politely_is_not_killed(supervisor: Supervisor, session: str) -> None:
    process = await supervisor.start(
        OWNER, session, "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    )
    await says(supervisor, process, "ready")
    over = await supervisor.stop(OWNER, process.id, "the test is over")
    assert (over.state, over.exit_code, over.stop_reason) == (ProcessState.STOPPED, 0, "the test is over")
    assert (await supervisor.log(OWNER, process.id)).text.endswith("bye\n")


async def test_a_process_whose_shim_was_killed_is_still_known_and_stopped(
    supervisor: Supervisor, session: str, store: SQLiteStore
) -> None:
    process = await supervisor.start(OWNER, session, "(setsid sleep 100) & sleep 100")
    assert process.shim_pid is not None
    os.kill(process.shim_pid, signal.SIGKILL)
    await until(lambda: not alive(process.shim_pid or 0))
    await supervisor.supervise_once()
    assert (await store.process(OWNER, process.id)).state is ProcessState.RUNNING
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)  # only what forked away is left, without parents that we know
    await until(lambda: not alive(process.pid or 0))
    assert (await supervisor.seen(process)).state is ProcessState.RUNNING
    over = await supervisor.stop(OWNER, process.id, "the test is over")
    assert (over.state, over.exit_code) == (ProcessState.STOPPED, None)
    assert members(process, running_processes(), thorough=True) == []


async def test_an_end_that_nobody_saw_is_a_loss(supervisor: Supervisor, session: str) -> None:
    process = await supervisor.start(OWNER, session, ["sleep", "100"])
    assert process.pid is not None
    assert process.shim_pid is not None
    os.kill(process.shim_pid, signal.SIGKILL)
    os.kill(process.pid, signal.SIGKILL)
    over = await ended(supervisor, process)
    assert (over.state, over.exit_code) == (ProcessState.LOST, None)


# --- nobody else is touched ----------------------------------------------------------------------------


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "100"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def starting(session: str, machine: Identity, node: Node) -> Process:
    """A process that is about to be started."""
    return Process(
        id=new_id("proc"),
        owner=OWNER,
        conversation_id="",
        session_id=session,
        identity=machine,
        command="sleep 100",
        cwd="/",
        state=ProcessState.STARTING,
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        supervisor=node.id,
    )


async def row_of(
    store: SQLiteStore, node: Node, session: str, *, pid: int, start: str, watched: bool = False
) -> Process:
    """A row of a process that began at another time under this pid."""
    here = replace(identity(), pid=0, pid_start="")
    new = starting(session, here, node)
    await store.add_process(replace(new, watched=watched))
    who = replace(here, pid=pid, pid_start=start)
    await store.process_started(new.id, who, shim_pid=None if watched else pid, shim_start=start)
    return await store.process(OWNER, new.id)


@pytest.mark.parametrize("watched", [False, True])
async def test_a_pid_that_was_used_again_is_lost_and_never_signalled(
    supervisor: Supervisor,
    session: str,
    store: SQLiteStore,
    node: Node,
    stranger: subprocess.Popen[bytes],
    watched: bool,
) -> None:
    row = await row_of(store, node, session, pid=stranger.pid, start="1", watched=watched)
    assert members(row, running_processes(), thorough=True) == []
    assert supervisor._signal(row, signal.SIGKILL) == 0
    over = await supervisor.stop(OWNER, row.id, "the test is over")
    assert over.ended
    again = await row_of(store, node, session, pid=stranger.pid, start="2", watched=watched)
    lost = await ended(supervisor, again)
    assert (lost.state, lost.exit_code) == (ProcessState.EXITED if watched else ProcessState.LOST, None)
    assert stranger.poll() is None
    events = [event.data["why"] for event in await store.events(owner=None) if event.type == "process.lost"]
    assert events == ([] if watched else [f"process {stranger.pid} is another one now"])


async def test_a_process_of_an_earlier_boot_is_lost_and_its_record_still_counts(
    supervisor: Supervisor, session: str, store: SQLiteStore, node: Node, directory: Path
) -> None:
    for recorded in (False, True):
        earlier = replace(identity(), boot_id="an earlier boot", pid=0, pid_start="")
        row = starting(session, earlier, node)
        await store.add_process(row)
        await store.process_started(row.id, replace(earlier, pid=os.getpid(), pid_start="1"))
        if recorded:
            (directory / row.id).mkdir(parents=True)
            (directory / row.id / "exit").write_text(f"3 {time.time()}\n")
        over = await ended(supervisor, row)
        expected = (ProcessState.EXITED, 3) if recorded else (ProcessState.LOST, None)
        assert (over.state, over.exit_code) == expected


# --- after a crash -------------------------------------------------------------------------------------


async def test_the_next_supervisor_takes_over_what_runs_and_learns_what_ended(
    supervisor: Supervisor, session: str, store: SQLiteStore, node: Node, joined: Joined, directory: Path
) -> None:
    running = await supervisor.start(OWNER, session, "sleep 100")
    brief = await supervisor.start(OWNER, session, "exit 6")
    await gone(supervisor, brief)
    kill(store, node)
    heir = await joined()
    following = Supervisor(store, lambda: heir.id, directory, LIMITS)
    done = await following.supervise_once()
    assert (sorted(done.adopted), done.ended) == (sorted([running.id, brief.id]), [brief.id])
    over = await store.process(OWNER, brief.id)
    assert (over.state, over.exit_code) == (ProcessState.EXITED, 6)
    assert (await store.process(OWNER, running.id)).supervisor == heir.id
    assert not (await following.supervise_once()).anything


async def test_what_a_living_node_looks_after_is_left_to_it(
    supervisor: Supervisor, session: str, store: SQLiteStore, joined: Joined, directory: Path, node: Node
) -> None:
    process = await supervisor.start(OWNER, session, "sleep 100")
    other = await joined()
    watcher = Supervisor(store, lambda: other.id, directory, LIMITS)
    assert await watcher.adopt_once() == []
    await store.request_stop(OWNER, process.id, "the test is over")
    assert not (await watcher.supervise_once()).anything
    assert process.pid is not None
    assert alive(process.pid)
    await supervisor.supervise_once()
    assert (await ended(supervisor, process)).state is ProcessState.STOPPED


async def test_a_stop_that_was_asked_for_before_the_crash_is_carried_out_after_it(
    supervisor: Supervisor, session: str, store: SQLiteStore, node: Node, joined: Joined, directory: Path
) -> None:
    process = await supervisor.start(OWNER, session, "sleep 100")
    await store.request_stop(OWNER, process.id, "reset")
    kill(store, node)
    heir = await joined()
    following = Supervisor(store, lambda: heir.id, directory, LIMITS)
    over = await ended(following, process)
    assert (over.state, over.exit_code) == (ProcessState.STOPPED, -signal.SIGTERM)


async def test_a_start_that_was_not_noted_is_found_again(
    supervisor: Supervisor, session: str, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def killed(*_: object, **__: object) -> bool:
        return False

    with monkeypatch.context() as patched:
        patched.setattr(store, "process_started", killed)
        process = await supervisor.start(OWNER, session, "sleep 100")
    assert process.state is ProcessState.STARTING
    seen = await supervisor.seen(process)
    assert (seen.state, seen.pid is not None) == (ProcessState.RUNNING, True)
    await supervisor.supervise_once()
    noted = await store.process(OWNER, process.id)
    assert (noted.state, noted.identity) == (ProcessState.RUNNING, seen.identity)


async def test_a_start_that_nobody_finishes_is_given_up_and_cannot_happen_later(
    supervisor: Supervisor, session: str, store: SQLiteStore, node: Node, clock: Clock, directory: Path
) -> None:
    here = replace(identity(), pid=0, pid_start="")
    row = starting(session, here, node)
    await store.add_process(row)
    clock.advance(seconds=29)
    await supervisor.supervise_once()
    assert (await store.process(OWNER, row.id)).state is ProcessState.STARTING
    clock.advance(seconds=2)
    await supervisor.supervise_once()
    assert (await store.process(OWNER, row.id)).state is ProcessState.LOST
    late = directory / row.id
    spec = [b"shell", os.fsencode(directory), b"", b"1000", b"touch ran", b"end"]
    subprocess.run([sys.executable, "-I", "-S", SHIM, late], input=b"\0".join(spec), check=True, timeout=60)
    await asyncio.sleep(0.2)
    assert not (directory / "ran").exists()


async def test_a_spec_that_was_cut_short_starts_nothing(tmp_path: Path) -> None:
    for cut in (b"", b"shell\0", b"shell\0/\0\x001000\0touch ran", b"shell\0/\0\x001000\0touch ran\0en"):
        ran = subprocess.run([sys.executable, "-I", "-S", SHIM, tmp_path], input=cut, check=False, timeout=60)
        assert ran.returncode == 125
    assert list(tmp_path.iterdir()) == []


def test_the_shim_imports_nothing_of_holdfast() -> None:
    listing = subprocess.run(
        [sys.executable, "-I", "-S", "-X", "importtime", SHIM], input=b"", capture_output=True, check=False
    ).stderr.decode()
    imported = {line.rpartition("|")[2].strip() for line in listing.splitlines()}
    assert "select" in imported
    assert not [name for name in imported if name.startswith(("holdfast", "asyncio", "subprocess", "typing"))]


# --- activity ------------------------------------------------------------------------------------------


async def activity(supervisor: Supervisor, process: Process, seconds: float = 0.6) -> str | None:
    """What it is seen doing between two samples."""
    await supervisor.sample_once()
    await asyncio.sleep(seconds)
    return {seen.process_id: seen.activity for seen in await supervisor.sample_once()}.get(process.id)


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_an_idle_server_is_not_active_until_somebody_connects(
    supervisor: Supervisor, session: str, store: SQLiteStore, clock: Clock, tmp_path: Path
) -> None:
    port = free_port()
    process = await supervisor.start(
        OWNER, session, [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"], tmp_path
    )

    async def connected() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        await writer.wait_closed()
        return True

    await until(connected)
    await asyncio.sleep(0.3)
    assert await activity(supervisor, process, 1.5) is None
    clock.advance(minutes=10)
    idle = await store.process(OWNER, process.id)
    assert (idle.listening, is_active(idle, clock(), LIMITS)) == (True, False)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await activity(supervisor, process) == "client connected"
    assert is_active(await store.process(OWNER, process.id), clock(), LIMITS)
    writer.close()
    await writer.wait_closed()
    await asyncio.sleep(0.3)
    assert await activity(supervisor, process) is None


TALKS_TO_ITSELF = """
import socket, time
listening = socket.create_server(("127.0.0.1", 0))
mine = socket.create_connection(listening.getsockname())
accepted, _ = listening.accept()
print("ready", flush=True)
time.sleep(100)
"""


async def test_a_process_that_is_connected_to_itself_is_not_active(
    supervisor: Supervisor, session: str
) -> None:
    process = await supervisor.start(OWNER, session, [sys.executable, "-c", TALKS_TO_ITSELF])
    await says(supervisor, process, "ready")
    assert await activity(supervisor, process) is None


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("(while :; do :; done) & wait", "it used the CPU"),
        ("while :; do echo working; sleep 0.1; done", "it wrote output"),
        ("while :; do cat /etc/services /etc/passwd >/dev/null; sleep 0.05; done", "it"),
        ("sleep 100", None),
    ],
)
async def test_a_worker_is_active_over_its_whole_tree(
    supervisor: Supervisor, session: str, command: str, words: str | None
) -> None:
    process = await supervisor.start(OWNER, session, command)
    await asyncio.sleep(0.3)
    seen = await activity(supervisor, process)
    assert seen is None if words is None else (seen or "").startswith(words)


async def test_idleness_is_not_written_again_and_again(
    supervisor: Supervisor, session: str, store: SQLiteStore
) -> None:
    await supervisor.start(OWNER, session, "sleep 100")
    await asyncio.sleep(0.2)
    assert len(await supervisor.sample_once()) == 1
    assert await supervisor.sample_once() == []
    version = store.version()
    await supervisor.supervise_once()
    await supervisor.supervise_once()
    assert store.version() == version


# --- watching ------------------------------------------------------------------------------------------


async def test_a_process_that_was_started_elsewhere_is_watched(
    supervisor: Supervisor, session: str, store: SQLiteStore, stranger: subprocess.Popen[bytes]
) -> None:
    process = await supervisor.watch(OWNER, session, stranger.pid)
    assert (process.pid, process.command, process.watched) == (stranger.pid, "sleep 100", True)
    assert process.cwd == os.getcwd()
    assert await supervisor.watch(OWNER, session, stranger.pid) == process, "twice is once"
    await supervisor.supervise_once()
    assert (await store.process(OWNER, process.id)).state is ProcessState.RUNNING
    with pytest.raises(Conflict, match="started elsewhere"):
        await supervisor.log(OWNER, process.id)
    stranger.kill()
    stranger.wait()
    over = await ended(supervisor, process)
    assert (over.state, over.exit_code) == (ProcessState.EXITED, None)


async def test_a_watched_process_is_stopped_with_its_children_but_not_with_its_session(
    supervisor: Supervisor, session: str
) -> None:
    script = "sleep 100 & sleep 100 & echo $! $$; wait"
    with subprocess.Popen(["sh", "-c", f"sh -c '{script}'; sleep 100"], stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        child, watched = map(int, shell.stdout.readline().split())
        try:
            process = await supervisor.watch(OWNER, session, watched)
            over = await supervisor.stop(OWNER, process.id, "the test is over")
            assert over.state is ProcessState.STOPPED
            assert not alive(child)
            assert shell.poll() is None, "its parent is somebody else"
        finally:
            for one in running_processes().values():
                if shell.pid in (one.pid, one.parent):
                    send_signal(one.pid, one.start, signal.SIGKILL)


async def test_what_may_only_be_watched_is_never_signalled(
    supervisor: Supervisor, session: str, store: SQLiteStore, stranger: subprocess.Popen[bytes]
) -> None:
    process = await supervisor.watch(OWNER, session, stranger.pid, may_stop=False)
    with pytest.raises(Conflict, match="only watched"):
        await supervisor.stop(OWNER, process.id, "a person asked")
    assert await store.request_stops(OWNER, process.conversation_id, "reset") == []
    await supervisor.supervise_once()
    assert stranger.poll() is None


@pytest.mark.parametrize(
    "pid",
    [0, -1, 2**31, 2**22 + 1, os.getpid(), os.getppid()],
    ids=["nobody", "negative", "too large", "unused", "this one", "its parent"],
)
async def test_what_cannot_be_watched_is_refused(
    supervisor: Supervisor, session: str, store: SQLiteStore, pid: int
) -> None:
    with pytest.raises(BadInput):
        await supervisor.watch(OWNER, session, pid)
    assert (await store.processes(None)).items == []


# --- forgetting ----------------------------------------------------------------------------------------


async def test_a_deleted_conversation_takes_its_processes_with_it(
    supervisor: Supervisor, session: str, store: SQLiteStore, directory: Path
) -> None:
    process = await supervisor.start(OWNER, session, "sleep 100")
    over = await supervisor.start(OWNER, session, "true")
    await ended(supervisor, over)
    await store.delete_conversation(OWNER, process.conversation_id)
    assert await supervisor.forget_once() == 1, "what still runs keeps its records"

    async def gone() -> bool:
        await supervisor.supervise_once()
        return await store.unknown_processes([process.id]) == [process.id]

    await until(gone)
    assert process.pid is not None
    assert not alive(process.pid)
    await until(lambda: ProcessFiles(directory, process.id).shim_lives() is False)
    assert await supervisor.forget_once() == 1
    assert list(directory.iterdir()) == []


async def test_processes_that_ended_long_ago_are_forgotten_with_their_logs(
    supervisor: Supervisor, session: str, store: SQLiteStore, clock: Clock, directory: Path
) -> None:
    process = await supervisor.start(OWNER, session, "true")
    await ended(supervisor, process)
    assert await supervisor.forget_once() == 0
    clock.advance(days=60)
    assert await supervisor.forget_once() == 1
    assert (await store.processes(None)).items == []
    assert list(directory.iterdir()) == []


async def test_a_log_that_was_deleted_by_hand_is_empty_and_harms_nobody(
    supervisor: Supervisor, session: str, directory: Path
) -> None:
    process = await supervisor.start(OWNER, session, "echo hello; sleep 0.2; exit 1")
    await says(supervisor, process, "hello")
    shutil.rmtree(directory / process.id)
    assert (await supervisor.log(OWNER, process.id)).text == ""
    assert (await ended(supervisor, process)).state is ProcessState.LOST


# --- the doctor ----------------------------------------------------------------------------------------


async def test_the_doctor_misses_what_a_living_node_should_have_noted(
    supervisor: Supervisor,
    session: str,
    store: SQLiteStore,
    node: Node,
    stranger: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.runtime.agents.doctor.SECOND_LOOK_SECONDS", 0.05)
    doctor = Doctor(store, Reaper(store, lambda: node.id), supervisor)
    running = await supervisor.start(OWNER, session, "sleep 100")
    assert all(each.ok for each in await doctor.examine())
    usurped = await row_of(store, node, session, pid=stranger.pid, start="1")
    broken = {each.invariant: each.finding for each in await doctor.examine() if each.finding}
    assert set(broken) == {VERIFIED_PROCESSES}
    assert (broken[VERIFIED_PROCESSES].examples, broken[VERIFIED_PROCESSES].repairable) == (
        [usurped.id],
        True,
    )
    assert f"recorded that process {usurped.id} has ended (lost)" in await doctor.repair()
    assert all(each.ok for each in await doctor.examine())
    assert (await store.process(OWNER, running.id)).state is ProcessState.RUNNING
    assert stranger.poll() is None


async def test_the_doctor_does_not_miss_what_waits_to_be_taken_over(
    supervisor: Supervisor, session: str, store: SQLiteStore, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runtime.agents.doctor.SECOND_LOOK_SECONDS", 0.05)
    process = await supervisor.start(OWNER, session, "exit 6")
    await gone(supervisor, process)
    kill(store, node)
    findings = await Doctor(store, Reaper(store, lambda: None), supervisor).examine()
    assert VERIFIED_PROCESSES not in [each.invariant for each in findings if each.finding]


# --- the loop ------------------------------------------------------------------------------------------


async def test_the_loop_notices_ends_and_stops_by_itself(
    supervisor: Supervisor, session: str, store: SQLiteStore
) -> None:
    supervisor.start_loop()
    try:
        brief = await supervisor.start(OWNER, session, "exit 2")
        long = await supervisor.start(OWNER, session, "sleep 100")
        await store.request_stop(OWNER, long.id, "reset")

        async def both() -> bool:
            return all([(await store.process(OWNER, each.id)).ended for each in (brief, long)])

        await until(both)
    finally:
        await supervisor.stop_loop()
    assert (await store.process(OWNER, brief.id)).exit_code == 2
    assert (await store.process(OWNER, long.id)).state is ProcessState.STOPPED
