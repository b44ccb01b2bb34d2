"""The files of a home beside its database: who talks where, processes, memories, when it resets."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from holdfast.errors import BadInput
from holdfast.importers.hermes.doctor import _state_of as state_of
from holdfast.importers.hermes.home import (
    Home,
    background_of,
    home_at,
    memories_of,
    reset_rule_of,
    routes_in,
    time_of,
)
from holdfast.os_support import start_of

BERLIN = ZoneInfo("Europe/Berlin")


def entry(session: str, **fields: object) -> dict[str, object]:
    return {"session_id": session, "updated_at": "2026-07-01T12:00:00", **fields}


def test_the_table_counts_before_the_file_and_the_newest_entry_before_older_ones(tmp_path: Path) -> None:
    file = tmp_path / "sessions.json"
    file.write_text(json.dumps({"_README": "notes", "a": entry("file"), "b": entry("file"), "c": 7, "d": {}}))
    stored = [("a", json.dumps(entry("old"))), ("a", json.dumps(entry("new"))), ("e", "{half")]
    routes = routes_in(stored, file, BERLIN)
    assert {key: route.session_id for key, route in routes.by_key.items()} == {"a": "new", "b": "file"}
    assert len(routes.skipped) == 3
    assert routes.by_key["a"].updated_at == datetime(2026, 7, 1, 10, tzinfo=UTC)
    assert routes_in([], tmp_path / "missing.json", UTC).by_key == {}


@pytest.mark.parametrize(
    ("field", "settled"), [("expiry_finalized", True), ("memory_flushed", True), ("x", False)]
)
def test_whether_an_expiry_was_dealt_with_has_had_two_names(
    tmp_path: Path, field: str, settled: bool
) -> None:
    routes = routes_in([("a", json.dumps(entry("s", **{field: True})))], tmp_path / "none", UTC)
    assert routes.by_key["a"].settled is settled


@pytest.mark.parametrize("text", ['{"a": {"session_id"', "", "[]", "\xff"])
def test_a_file_that_cannot_be_understood_is_refused_in_words(tmp_path: Path, text: str) -> None:
    file = tmp_path / "sessions.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(BadInput, match="Nothing was imported"):
        routes_in([], file, UTC)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (1_767_000_000, datetime(2025, 12, 29, 9, 20, tzinfo=UTC)),
        ("2026-01-01T12:00:00", datetime(2026, 1, 1, 11, tzinfo=UTC)),
        ("2026-01-01T12:00:00+05:00", datetime(2026, 1, 1, 7, tzinfo=UTC)),
        (None, None),
        ("yesterday", None),
        (float("nan"), None),
        (1e300, None),
        (True, None),
    ],
)
def test_times_are_seconds_or_iso_and_without_a_zone_in_the_one_that_is_stated(
    written: object, read: datetime | None
) -> None:
    assert time_of(written, BERLIN) == read


def test_a_background_process_runs_only_if_it_is_the_one_that_was_started(tmp_path: Path) -> None:
    me = os.getpid()
    file = tmp_path / "processes.json"
    now = time.time()
    file.write_text(
        json.dumps(
            [
                {"pid": me, "host_start_time": int(start_of(me) or 0), "session_key": "k", "command": "x"},
                {"pid": me, "host_start_time": 1},
                {"pid": me, "started_at": now - 10**8},
                {"pid": 2**22 + 1, "started_at": now},
                {"pid": me, "pid_scope": "sandbox", "started_at": now},
                {"pid": me},
                "nonsense",
            ]
        )
    )
    found, problem = background_of(file, UTC)
    assert problem is None
    assert [state_of(each) for each in found] == ["runs", "reused", "reused", "gone", "unknown", "unknown"]
    file.write_text("[{")
    assert background_of(file, UTC)[1] is not None
    assert background_of(tmp_path / "none", UTC) == ([], None)


@pytest.mark.parametrize(
    ("config", "schema", "rule"),
    [
        ("", 11, ("both", 1440.0, 4)),
        ("", 22, ("none", 1440.0, 4)),
        (
            "session_reset:\n  mode: both\n  idle_minutes: 120\n\n  at_hour: 6\nmodel: x\n",
            22,
            ("both", 120.0, 6),
        ),
        ("a: b\nsession_reset: {mode: idle, idle_minutes: 90}\n", 11, ("idle", 90.0, 4)),
        ("session_reset:\n  # mode\n  mode: 'daily'  # every day\n", 11, ("daily", 1440.0, 4)),
        ("session_reset:\n  at_hour: noon\n", 11, ("both", 1440.0, 4)),
    ],
)
def test_when_hermes_resets_is_read_off_its_settings(
    tmp_path: Path, config: str, schema: int, rule: tuple[str, float, int]
) -> None:
    (tmp_path / "config.yaml").write_text(config)
    found = reset_rule_of(Home(tmp_path, tmp_path / "state.db"), schema)
    assert (found.mode, found.idle_minutes, found.at_hour) == rule


def test_memories_are_entries_between_marks(tmp_path: Path) -> None:
    home = Home(tmp_path, tmp_path / "state.db")
    assert memories_of(home) == {}
    (tmp_path / "memories").mkdir()
    (tmp_path / "memories" / "USER.md").write_text("likes kelp\n§\n\n§\nsays § often\n")
    (tmp_path / "memories" / "MEMORY.md").write_text("\n")
    assert memories_of(home) == {"USER.md": ["likes kelp", "says § often"]}


def test_a_home_is_a_directory_with_a_database_or_that_database(tmp_path: Path) -> None:
    (tmp_path / "state.db").touch()
    assert home_at(tmp_path) == home_at(tmp_path / "state.db")
    for wrong in (tmp_path / "nowhere", Path(__file__), Path(__file__).parent):
        with pytest.raises(BadInput):
            home_at(wrong)
