"""A database is copied without a trace, at rest and in use; what is no Hermes database is told in words."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from holdfast.errors import BadInput
from holdfast.importers.hermes.database_copy import private_copy
from tests.hermes.homes import print_of

SCHEMA = """
CREATE TABLE sessions (id TEXT PRIMARY KEY, source TEXT NOT NULL, started_at REAL NOT NULL);
CREATE TABLE messages (id INTEGER PRIMARY KEY, session_id TEXT, role TEXT, content TEXT, timestamp REAL);
INSERT INTO sessions VALUES ('s', 'cli', 1);
"""
WRITING = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
connection.execute(f"PRAGMA journal_mode = {sys.argv[2]}").fetchall()
connection.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
connection.execute(sys.argv[3])
for number in range(50):
    connection.execute("INSERT INTO messages VALUES (?, 's', 'user', ?, 1)", (number, "x" * 2000))
print("written", flush=True)
sys.stdin.read()
connection.close()
"""


@contextmanager
def writer(database: Path, mode: str = "WAL") -> Iterator[subprocess.Popen[str]]:
    """Another process that has the database open; closed in good order unless it is killed before."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITING, str(database), mode, SCHEMA],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    try:
        yield process
    finally:
        process.communicate()


def count(database: Path) -> int:
    with private_copy(database) as copy:
        number = copy.execute("SELECT count(*) FROM messages").get
    assert isinstance(number, int)
    return number


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_a_database_at_rest_is_copied_without_a_trace(tmp_path: Path, mode: str) -> None:
    with writer(tmp_path / "state.db", mode):
        pass
    before = print_of(tmp_path)
    assert list(before) == ["state.db"]
    assert count(tmp_path / "state.db") == 50
    assert print_of(tmp_path) == before


@pytest.mark.parametrize("left", ["state.db-shm", ""])
def test_what_a_killed_hermes_left_in_its_log_comes_along_without_a_trace(tmp_path: Path, left: str) -> None:
    with writer(tmp_path / "state.db") as process:
        process.send_signal(signal.SIGKILL)
    if not left:
        (tmp_path / "state.db-shm").unlink()  # a home that was copied without it
    before = print_of(tmp_path)
    assert "state.db-wal" in before
    assert count(tmp_path / "state.db") == 50
    assert print_of(tmp_path) == before


def test_a_link_to_a_database_is_copied_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "state.db").symlink_to(tmp_path / "real" / "state.db")
    with writer(tmp_path / "state.db") as process:
        process.kill()
        process.wait()
    assert (tmp_path / "real" / "state.db-wal").exists()
    assert count(tmp_path / "state.db") == 50


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_a_database_in_use_is_copied_and_its_writer_goes_on(tmp_path: Path, mode: str) -> None:
    with writer(tmp_path / "state.db", mode):
        before = {name: print_ for name, print_ in print_of(tmp_path).items() if not name.endswith("-shm")}
        assert count(tmp_path / "state.db") == 50
        after = {name: print_ for name, print_ in print_of(tmp_path).items() if not name.endswith("-shm")}
        assert after == before
    assert count(tmp_path / "state.db") == 50


def test_somebody_who_comes_while_it_is_copied_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "state.db"
    with writer(database, "DELETE"):
        pass
    original, times = shutil.copyfile, 0

    def disturbed(source: Path, target: Path) -> None:
        nonlocal times
        times += 1
        original(source, target)
        connection = apsw.Connection(str(database))
        connection.execute("INSERT INTO messages VALUES (1000, 's', 'user', 'late', 1)")
        connection.close()

    monkeypatch.setattr(shutil, "copyfile", disturbed)
    assert count(database) == 51  # it was copied again, under locks
    assert times == 1


def test_nothing_is_left_of_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    with writer(tmp_path / "state.db"):
        pass
    with private_copy(tmp_path / "state.db") as copy:
        assert list(scratch.iterdir()) == []  # nor would there be, were we killed now
        assert copy.execute("SELECT active, compacted, tool_calls FROM messages LIMIT 1").get == (1, 0, None)
    assert list(scratch.iterdir()) == []


def test_without_room_it_says_how_much_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with writer(tmp_path / "state.db"):
        pass
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=1000))
    with pytest.raises(BadInput, match=r"needs \d+ MB, .* TMPDIR"):
        count(tmp_path / "state.db")


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("CREATE TABLE sessions (id, source, started_at)", "it has no table messages"),
        ("CREATE TABLE messages (id)", "it has no table sessions"),
        ("CREATE TABLE sessions (id); CREATE TABLE messages (id)", "its sessions lack source, started_at"),
        ("CREATE TABLE moz_places (id)", "is not a Hermes database"),
    ],
)
def test_another_programs_database_is_told_from_hermes(tmp_path: Path, sql: str, words: str) -> None:
    connection = apsw.Connection(str(tmp_path / "state.db"))
    connection.execute(sql)
    connection.close()
    with pytest.raises(BadInput, match=words):
        count(tmp_path / "state.db")


@pytest.mark.parametrize(
    ("kept", "words"),
    [(0.97, "was cut off"), (0.5, "was cut off"), (0.01, "was cut off"), (None, "is not a SQLite")],
)
def test_a_damaged_database_is_refused_in_words(tmp_path: Path, kept: float | None, words: str) -> None:
    database = tmp_path / "state.db"
    with writer(database):
        pass
    whole = database.read_bytes()
    database.write_bytes(whole[: int(len(whole) * kept)] if kept else b"text" * 1000)
    with pytest.raises(BadInput, match=f"{words}.*Nothing was imported"):
        count(database)


def test_pages_that_make_no_sense_are_damage(tmp_path: Path) -> None:
    database = tmp_path / "state.db"
    with writer(database):
        pass
    whole = database.read_bytes()
    database.write_bytes(whole[:-4096] + b"\x0d" + os.urandom(4095))
    with pytest.raises(BadInput, match=r"is damaged.*Nothing was imported"):
        count(database)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody without rights")
def test_a_database_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    with writer(tmp_path / "state.db"):
        pass
    (tmp_path / "state.db").chmod(0o600)
    tmp_path.chmod(0o755)
    for above in tmp_path.parents[:2]:
        above.chmod(0o755)
    reading = (
        "import os, sys; from pathlib import Path; os.setuid(65534)\n"
        "from holdfast.importers.hermes.database_copy import private_copy\n"
        "from holdfast.errors import BadInput\n"
        "try:\n with private_copy(Path(sys.argv[1])): pass\n"
        "except BadInput as error: print(error)"
    )
    preloaded = "import holdfast.importers.hermes.database_copy, tempfile\n" + reading
    done = subprocess.run(
        [sys.executable, "-c", preloaded, str(tmp_path / "state.db")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "cannot be read (Permission denied)" in done.stdout, done.stderr
