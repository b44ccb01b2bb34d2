"""Where this home's server listens: an address at which another user listens gets no key."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import local_server
from holdfast.cli.shared_server import running_server
from holdfast.local_server import is_listening, is_of_another_user, local_address, note_address
from holdfast.os_support import IS_MACOS, listening_users
from holdfast.settings import load
from tests.unit.cli.conftest import Home, home

__all__ = ["home"]

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:20B9 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 1 1 0 100 0 0 10 0
   1: 0100007F:20B9 0100007F:9999 01 00000000:00000000 00:00000000 00000000  1002        0 2 1 0 100 0 0 10 0
   2: 00000000:20BA 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1003        0 3 1 0 100 0 0 10 0
   3: 0200007F:20B9 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1004        0 4 1 0 100 0 0 10 0
"""
TABLE_6 = """\
  sl  local_address                         remote_address                        st
   0: 00000000000000000000000001000000:20B9 00000000000000000000000000000000:0000 0A 0:0 00:0 0 1005 0 1
   1: 00000000000000000000000000000000:20BB 00000000000000000000000000000000:0000 0A 0:0 00:0 0 1006 0 2
   2: 0000000000000000FFFF00000100007F:20BC 00000000000000000000000000000000:0000 0A 0:0 00:0 0 1007 0 3
"""

LISTEN = """
import os, socket, sys
os.setuid(int(sys.argv[1]))
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_who_listens_is_read_from_the_kernels_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of other addresses with the same port nothing is said."""
    tables = {"/proc/net/tcp": TABLE, "/proc/net/tcp6": TABLE_6}
    monkeypatch.setattr(Path, "read_text", lambda path: tables[str(path)])
    assert listening_users("127.0.0.1", 8377) == {1001}
    assert listening_users("::1", 8377) == {1005}
    assert [listening_users(each, 8378) for each in ("127.0.0.1", "::1")] == [{1003}, set()]
    assert [listening_users(each, 8379) for each in ("127.0.0.1", "::1")] == [{1006}, {1006}]
    assert [listening_users(each, 8380) for each in ("127.0.0.1", "::1")] == [{1007}, set()]
    tables["/proc/net/tcp"] = tables["/proc/net/tcp6"] = ""
    assert listening_users("127.0.0.1", 8377) == set()


@pytest.mark.skipif(IS_MACOS, reason="the system does not say whose a socket is")
def test_ones_own_server_is_ones_own(tmp_path: Path) -> None:
    with listening() as url:
        assert listening_users("127.0.0.1", int(url.rpartition(":")[2])) == {os.geteuid()}
        note_address(tmp_path, url)
        assert local_address(tmp_path) == url
    assert local_address(tmp_path) is None


@pytest.mark.parametrize(
    ("users", "anothers"), [({os.geteuid()}, False), ({0}, False), (set(), False), ({12_345}, True)]
)
def test_the_address_of_another_users_process_is_not_this_homes_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, users: set[int], anothers: bool
) -> None:
    """As after the server was killed, and another user has taken its port."""
    monkeypatch.setattr(local_server, "listening_users", lambda address, port: users)
    with listening() as url:
        note_address(tmp_path, url)
        assert is_of_another_user(url) == anothers
        assert is_listening(url) == (not anothers)
        assert local_address(tmp_path) == (None if anothers else url)
        port = url.rpartition(":")[2]
        named = load(environment={"HOLDFAST_HOME": str(tmp_path), "HOLDFAST_SERVER__PORT": port})
        assert running_server(named, tmp_path) == (None if anothers else url)
    assert not is_of_another_user("http://example.com:80")


def test_env_prints_no_key_for_another_users_process(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_server, "listening_users", lambda address, port: {12_345})
    done = home.run("env", HOLDFAST_SERVER__PORT="8399")
    assert (done.returncode, done.stdout) == (1, "")
    assert "another user" in done.stderr and "--port" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0 or IS_MACOS, reason="only root can become another user")
def test_a_process_of_another_user_is_seen(tmp_path: Path) -> None:
    # It becomes another user when it runs: he may not be able to read this interpreter.
    child = subprocess.Popen(
        [sys.executable, "-c", LISTEN, "12345"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        assert listening_users("127.0.0.1", port) == {12_345}
        assert not is_listening(f"http://127.0.0.1:{port}")
    finally:
        child.kill()
        child.communicate()
