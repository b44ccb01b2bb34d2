"""What the operating system says of processes and files, also where it hides something."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import os_support
from holdfast.domain.nodes import proof_of_death
from holdfast.os_support import (
    HIDDEN,
    exists,
    identity,
    is_directory,
    is_file,
    own_umask,
    private_umask,
    start_of,
)
from holdfast.runtime.tools.terminal import run_command

linux = pytest.mark.skipif(sys.platform != "linux", reason="macOS has no /proc")


@linux
def test_a_process_that_proc_hides_is_not_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os_support, "PROC", tmp_path)  # what `hidepid=2` shows of others: nothing
    assert start_of(os.getpid()) == HIDDEN
    here = identity()
    assert (
        proof_of_death(here, lock_free=None, here=here, start_of_their_pid=HIDDEN, is_hidden=True) is None
    ), "it exists: that it cannot be seen proves nothing"


@linux
def test_a_process_that_may_not_be_read_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Path) -> str:
        raise PermissionError  # `hidepid=1`

    monkeypatch.setattr(Path, "read_text", refused)
    assert start_of(os.getpid()) == HIDDEN


@linux
def test_a_process_that_is_gone_is_gone_hidden_or_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert start_of(ended.pid) is None
    monkeypatch.setattr(os_support, "PROC", tmp_path)
    assert start_of(ended.pid) is None
    assert start_of(0) is None
    assert start_of(2**40) is None


def test_the_own_umask_is_known_while_a_private_file_is_made() -> None:
    before = os.umask(0o022)
    try:
        assert own_umask() == 0o022
        with private_umask():
            assert own_umask() == 0o022
        assert own_umask() == 0o022
    finally:
        os.umask(before)


async def test_a_command_started_while_a_private_file_is_made_has_the_programs_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with private_umask():
            done = await run_command("umask", str(tmp_path), dict(os.environ), 30, 1000)
    finally:
        os.umask(before)
    assert "0022" in done.output


BUFFERS = """
import ctypes, re, sys
from holdfast.os_support import return_freed_buffers
if sys.argv[1] == "yes":
    assert return_freed_buffers()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def used() -> int:
    with open("/proc/self/status") as status:
        return int(re.search(r"VmRSS:\\s+(\\d+)", status.read())[1]) // 1024
before, size = used(), 8 * 1024 * 1024
for _ in range(2):
    large, small = [], []
    for _ in range(20):
        large.append(libc.malloc(size))
        ctypes.memset(large[-1], 1, size)
        small.append(libc.malloc(4096))
    for each in large:
        libc.free(each)
print(used() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_large_buffers_are_given_back_to_the_system_when_they_are_freed() -> None:
    kept = {}
    for given_back in ("yes", "no"):
        done = subprocess.run(
            [sys.executable, "-c", BUFFERS, given_back], capture_output=True, text=True, check=True
        )
        kept[given_back] = int(done.stdout)
    assert kept["yes"] < 30 < 100 < kept["no"], "without it the C library keeps them"


@linux
def test_a_process_that_ends_while_processes_are_listed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file was opened; what is read of it then is empty."""
    monkeypatch.setattr(os_support, "open", lambda *_: io.BytesIO(b""), raising=False)
    assert os_support.running_processes() == {}


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_what_may_not_be_seen_is_not_missing(tmp_path: Path) -> None:
    """Since Python 3.14 `Path.exists` says no: what another directory hides was "not there"."""
    (tmp_path / "closed").mkdir()
    hidden = tmp_path / "closed/store.db"
    hidden.touch()
    (tmp_path / "closed").chmod(0)
    try:
        for question in (exists, is_file, is_directory):
            with pytest.raises(PermissionError):
                question(hidden)
    finally:
        (tmp_path / "closed").chmod(0o700)
    assert exists(hidden) and is_file(hidden) and not is_directory(hidden)
    for missing in (tmp_path / "no", hidden / "below a file", tmp_path / "NUL\0"):
        assert not exists(missing) and not is_file(missing) and not is_directory(missing)


def test_nothing_asks_a_path_whether_it_is_there() -> None:
    found = []
    for file in sorted(Path(os_support.__file__).parent.rglob("*.py")):
        awaited = set()
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Await):
                awaited.add(node.value)
            if (
                isinstance(node, ast.Call)
                and node not in awaited
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("exists", "is_file", "is_dir")
                and not node.args
            ):
                found.append(f"{file.name}:{node.lineno}")
    assert found == [], "Python 3.14 answers no if it may not look: use os_support"
