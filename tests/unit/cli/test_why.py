"""`holdfast why`, and what commands say about resets."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import holdfast
from holdfast.store.sqlite.engine import SQLiteStore
from tests.unit.cli.conftest import Home

FILE = """
[reset]
timezone = "UTC"
[reset.sources.telegram]
mode = "idle"
idle_minutes = 120
"""
KEY = "telegram:dm:42"


@pytest.fixture
def ruled(home: Home) -> Home:
    """A home with policies, and a session that somebody spoke in three hours ago, and one of now."""
    home.path.mkdir(parents=True, exist_ok=True)
    (home.path / "holdfast.toml").write_text(FILE)

    async def speak(key: str, ago: timedelta) -> None:
        settings: dict[str, Any] = {"reset": {"sources": {"telegram": {"mode": "idle", "idle_minutes": 120}}}}
        settings["reset"]["timezone"] = "UTC"
        async with holdfast.open(f"sqlite:///{home.store}", settings=settings, sweep=False) as hf:
            assert isinstance(hf.store, SQLiteStore)
            hf.store._clock = lambda: datetime.now(UTC) - ago
            session = await hf.session(key, attached=False)
            async with session.turn("hello") as turn:
                await turn.append("hi")

    asyncio.run(speak(KEY, timedelta()))
    asyncio.run(speak("telegram:dm:old", timedelta(hours=3)))
    return home


def test_it_says_the_sentence_then_the_policy_the_reasons_and_the_history(ruled: Home) -> None:
    told = ruled.ok("why", KEY)
    sentence, _, rest = told.partition("\n")
    assert sentence.startswith(f"{KEY} has been idle since ")
    assert sentence.endswith("(idle 120 min, from [reset.sources.telegram]).")
    for word in ("Policy", "idle_minutes", "120", "the default", "Reasons", "History", "session.opened"):
        assert word in rest
    assert f"[reset.sources.telegram] in {ruled.path / 'holdfast.toml'}" in rest


def test_json_is_the_document_of_the_api(ruled: Home) -> None:
    why = ruled.json("why", KEY)
    assert list(why) == ["session_id", "decision", "next_due_at", "sentence", "policy", "reasons", "history"]
    assert why["decision"] == "not_due"
    assert why["policy"]["idle_minutes"]["value"] == 120
    assert ruled.json("why", why["session_id"])["sentence"] == why["sentence"]


def test_every_command_resets_what_is_due_first_and_says_so_aside(ruled: Home) -> None:
    done = ruled.run("sessions")
    assert "(1 session reset, as due)" in done.stderr
    assert "reset" not in ruled.run("sessions").stderr
    assert ruled.json("why", "telegram:dm:old")["sentence"].endswith(
        "(idle). The next message starts a new session."
    )


def test_a_sweep_tells_what_it_has_reset(ruled: Home) -> None:
    told = ruled.ok("sweep")
    assert told.startswith("Reset 1 session (idle): sess_")
    assert ruled.ok("sweep") == "Nothing was due.\n"


def test_a_sweep_tells_it_in_json(ruled: Home) -> None:
    swept = ruled.json("sweep")
    (old,) = ruled.sessions("--state", "ended")
    assert swept["reset"] == [{"id": old["id"], "reason": "idle"}]
    assert (swept["deferred"], swept["anything"], swept["troubles"]) == ([], True, [])


def test_a_command_with_other_settings_leaves_resets_to_those_who_have_them(ruled: Home) -> None:
    (ruled.path / "holdfast.toml").unlink()
    assert ruled.json("sweep")["reset"] == []
    why = ruled.json("why", "telegram:dm:old")
    assert (why["decision"], why["policy"]["mode"]["value"]) == ("not_due", "none")
    (ruled.path / "holdfast.toml").write_text(FILE)
    assert len(ruled.json("sweep")["reset"]) == 1


def test_what_is_not_there_is_named(ruled: Home) -> None:
    done = ruled.run("why", "nowhere")
    assert done.returncode == 1 and "nowhere" in done.stderr
    assert ruled.run("why").returncode == 2


def test_why_has_an_example(home: Home) -> None:
    assert "holdfast why telegram:dm:42" in home.ok("why", "--help")


def test_the_library_answers_too(tmp_path: Any) -> None:
    settings = {"reset": {"mode": "daily", "timezone": "UTC"}}
    with holdfast.open_sync(f"sqlite:///{tmp_path / 'x.db'}", settings=settings) as hf:
        session = hf.session("cli:ada")
        why = session.why()
        assert why.session_id == session.id
        assert "daily at 04:00 UTC" in why.sentence
        assert why.policy["mode"].origin == "[reset] in holdfast.open()"
