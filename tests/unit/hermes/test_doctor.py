"""What the doctor counts, on small databases that have it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.importers.hermes.doctor import Examination, examine
from holdfast.importers.hermes.snapshot import read_home

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(str(tmp_path / "state.db"))
    connection.execute(
        "CREATE TABLE sessions (id TEXT PRIMARY KEY, source TEXT, started_at REAL, ended_at REAL,"
        " end_reason TEXT, message_count INTEGER, parent_session_id TEXT);"
        "CREATE TABLE messages (id INTEGER PRIMARY KEY, session_id TEXT, role TEXT, content TEXT,"
        " timestamp REAL, tool_call_id TEXT, tool_calls TEXT, platform_message_id TEXT, active INTEGER,"
        " compacted INTEGER)"
    )
    yield connection
    connection.close()


def add(database: apsw.Connection, role: str, content: str | None = None, **fields: Any) -> None:
    row = {"session_id": "s", "role": role, "content": content, "active": 1, **fields}
    names = ", ".join(row)
    values = ", ".join(f":{name}" for name in row)
    database.execute(f"INSERT INTO messages ({names}, timestamp) VALUES ({values}, 1)", row)


def begin(database: apsw.Connection, id_: str = "s", count: int | None = None) -> None:
    database.execute(
        "INSERT INTO sessions (id, source, started_at, message_count) VALUES (?, 'cli', 1, ?)", (id_, count)
    )


def look(database: apsw.Connection, home: Path) -> Examination:
    database.close()
    with read_home(home, UTC) as seen:
        return examine(seen, NOW)


def calling(*ids: str, name: str = "id") -> str:
    return json.dumps([{name: id_, "type": "function", "function": {"name": "f"}} for id_ in ids])


def test_calls_without_a_result_are_counted(database: apsw.Connection, tmp_path: Path) -> None:
    begin(database)
    begin(database, "t")
    add(database, "assistant", tool_calls=calling("a", "b", "c"))
    add(database, "tool", "1", tool_call_id="a")
    add(database, "tool", "2", tool_call_id="b", session_id="t")  # an answer elsewhere is none
    add(database, "assistant", tool_calls=calling("d", name="call_id"))
    add(database, "tool", "3", tool_call_id="d")
    add(database, "assistant", tool_calls=calling("e"), active=0)  # undone
    add(database, "assistant", tool_calls="[half")
    add(database, "assistant", tool_calls='["x", 7]')
    assert look(database, tmp_path).orphan_calls == 2


def test_rows_that_stand_there_twice_are_counted_once_each(database: apsw.Connection, tmp_path: Path) -> None:
    begin(database)
    for content in ("one", "one", "one"):
        add(database, "user", content)  # two too many
    add(database, "assistant", "one")  # somebody else says the same
    add(database, "user", "ok")
    add(database, "assistant", "fine")
    add(database, "user", "ok")  # said again, later
    add(database, "assistant", tool_calls=calling("a"))
    add(database, "tool", "1", tool_call_id="a")
    add(database, "tool", "another", tool_call_id="a")  # answered twice
    add(database, "user", "hm", platform_message_id="7")
    add(database, "assistant", "hm?")
    add(database, "user", "hm!", platform_message_id="7")  # delivered twice
    add(database, "user", "gone", active=0)
    add(database, "user", "gone", active=0)
    assert look(database, tmp_path).repeated_rows == 4


def test_counts_that_are_wrong_and_messages_of_nobody_are_counted(
    database: apsw.Connection, tmp_path: Path
) -> None:
    begin(database, "right", 1)
    begin(database, "wrong", 3)
    begin(database, "unknown")
    for id_ in ("right", "wrong", "unknown", "nobody"):
        add(database, "user", "hello", session_id=id_)
    add(database, "user", "hello?", session_id="nobody", active=None)
    found = look(database, tmp_path)
    assert (found.wrong_counts, found.strays, found.unmarked) == (1, 2, 1)
    assert (found.sessions, found.messages, found.never_ended) == (3, 3, 3)


def test_an_empty_home_is_no_trouble(database: apsw.Connection, tmp_path: Path) -> None:
    found = look(database, tmp_path)
    assert (found.sessions, found.messages, found.conversations, found.end_reasons) == (0, 0, 0, {})
