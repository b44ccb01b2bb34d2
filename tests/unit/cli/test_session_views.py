"""Looking at sessions: what is shown is true, complete, and only one's own."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli.context import program
from holdfast.domain.ids import short
from holdfast.domain.side_requests import side_text
from holdfast.store.store import Store
from tests.unit.cli.conftest import Home

SESSION = {
    *("id", "conversation_id", "key", "source", "title", "state", "attached", "edge", "parent_id", "tip_id"),
    *("node", "host", "opened_at", "last_activity_at", "last_heartbeat_at", "next_due_at", "ended_at"),
    *("end_reason", "message_count", "usage", "model", "flush", "preview"),
}
MESSAGE = {
    *("id", "seq", "session_id", "turn_id", "role", "content", "tool_calls", "tool_call_id", "created_at"),
    "status",
}
TURN = {
    *("id", "session_id", "conversation_id", "status", "error", "started_at", "ended_at", "node", "usage"),
    *("response_id", "attempt", "doing", "why"),
}
LIST = {"object", "data", "first_id", "last_id", "has_more"}
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with a past: a conversation of three sessions and a fork, a bot's, and another owner's."""
    home = Home(tmp_path_factory.mktemp("told") / "home")
    asyncio.run(tell(home.store))
    return home


async def tell(database: Path) -> None:
    url = f"sqlite:///{database}"
    async with holdfast.open(url) as hf:
        session = await hf.session(key="cli:ada")
        async with session.turn("my name is Ada") as turn:
            turn.usage = {"input_tokens": 5, "output_tokens": 2}
            call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            await turn.append({"role": "assistant", "content": None, "tool_calls": [call], "mood": "calm"})
            await turn.append({"role": "tool", "tool_call_id": "call_1", "content": "a lighthouse"})
            await turn.append({"role": "assistant", "content": "Hello \x1b[31mAda"})
        await session.end("new")
        async with session.turn("what is my name?") as turn:
            await turn.append({"role": "assistant", "content": "I do not know"})
        fork = await session.fork(key="cli:ada:fork")
        await fork.end()
    async with holdfast.open(url) as hf:
        session = await hf.session(key="cli:ada")
        async with session.turn("are you there?") as turn:
            await turn.append({"role": "assistant", "content": "Yes"})
        bot = await hf.session(key="telegram:dm:42", attached=False)
        async with bot.turn([{"role": "user", "content": [{"type": "text", "text": "a photo"}]}]) as turn:
            await turn.append({"role": "assistant", "content": "Nice"})
    async with holdfast.open(url, owner="bob") as hf:
        session = await hf.session(key="cli:bob")
        async with session.turn("the secret of bob") as turn:
            await turn.append({"role": "assistant", "content": "safe with me"})


def line_of(home: Home, key: str = "cli:ada") -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = home.json("sessions", "lineage", key)["data"]
    return data


# --- the objects of the contract ----------------------------------------------------------------------------


def test_a_session_has_every_field(told: Home) -> None:
    listed = told.json("sessions")
    assert set(listed) == LIST
    for session in (*listed["data"], told.json("sessions", "show", "cli:ada")):
        assert set(session) == SESSION
        assert set(session["usage"]) == {"input_tokens", "output_tokens"}
        assert session["flush"] == {"state": "none", "attempts": 0, "error": None}
        assert all(RFC_3339.fullmatch(session[at]) for at in ("opened_at", "last_activity_at"))
    assert listed["first_id"] == listed["data"][0]["id"]
    assert listed["last_id"] == listed["data"][-1]["id"]


def test_a_message_has_every_field_and_what_else_it_carried(told: Home) -> None:
    listed = told.json("sessions", "messages", "cli:ada", "--scope", "conversation")
    assert set(listed) == LIST
    messages = listed["data"]
    assert all(set(message) >= MESSAGE for message in messages)
    assert [message["seq"] for message in messages] == list(range(1, 9))
    calling, answering = messages[1], messages[2]
    assert calling["tool_calls"][0]["id"] == "call_1"
    assert calling["mood"] == "calm"
    assert answering["tool_call_id"] == "call_1"
    assert messages[3]["content"] == "Hello \x1b[31mAda"


def test_a_turn_has_every_field(told: Home) -> None:
    turns = told.json("sessions", "turns", "cli:ada")["data"]
    assert len(turns) == 3
    assert all(set(turn) == TURN for turn in turns)
    assert turns[-1]["usage"] == {"input_tokens": 5, "output_tokens": 2}
    assert turns[0]["usage"] is None


def test_times_are_in_utc_and_are_true(told: Home) -> None:
    session = told.json("sessions", "show", "cli:ada")
    opened = datetime.fromisoformat(session["opened_at"])
    ended = datetime.fromisoformat(session["ended_at"])
    assert opened.utcoffset() is not None
    assert opened <= ended


# --- finding ------------------------------------------------------------------------------------------------


def test_a_session_id_shows_that_very_session_a_key_the_newest(told: Home) -> None:
    first, *_, newest = line_of(told)
    assert told.json("sessions", "show", first["id"])["id"] == first["id"]
    assert told.json("sessions", "show", first["conversation_id"])["id"] == newest["id"]
    assert told.json("sessions", "show", "cli:ada")["id"] == newest["id"]
    assert first["tip_id"] == newest["id"]


def test_messages_come_by_session_by_conversation_or_as_the_model_would_get_them(told: Home) -> None:
    _, second, third = line_of(told)

    def contents(*arguments: str) -> list[str]:
        return [message["content"] for message in told.json("sessions", "messages", *arguments)["data"]]

    assert contents(second["id"]) == ["what is my name?", "I do not know"]
    assert contents(third["id"], "--scope", "session") == ["are you there?", "Yes"]
    assert len(contents(second["id"], "--scope", "conversation")) == 8
    context = contents(third["id"], "--scope", "context")
    assert context == ["what is my name?", "I do not know", "are you there?", "Yes"]


def test_a_page_says_whether_there_is_more(told: Home) -> None:
    assert told.json("sessions", "turns", "cli:ada", "--limit", "2")["has_more"]
    assert not told.json("sessions", "turns", "cli:ada", "--limit", "3")["has_more"]
    first, *rest = told.json("sessions", "turns", "cli:ada")["data"]
    assert told.json("sessions", "turns", "cli:ada", "--after", first["id"])["data"] == rest
    assert told.json("sessions", "search", "name", "--limit", "1")["has_more"]
    assert "see more with --limit" in told.run("sessions", "search", "name", "--limit", "1").stderr


def test_turns_of_a_session_id_are_that_sessions(told: Home) -> None:
    first, *_ = line_of(told)
    (turn,) = told.json("sessions", "turns", first["id"])["data"]
    assert turn["session_id"] == first["id"]


def test_the_list_is_filtered_and_paged(told: Home) -> None:
    assert {session["key"] for session in told.sessions("--source", "telegram")} == {"telegram:dm:42"}
    assert {session["key"] for session in told.sessions("--key", "cli:ada")} == {"cli:ada"}
    assert {session["key"] for session in told.sessions("-q", "FORK")} == {"cli:ada:fork"}
    assert [session["key"] for session in told.sessions("--state", "idle")] == ["telegram:dm:42"]
    assert {session["state"] for session in told.sessions("--state", "ended")} == {"ended"}
    assert told.sessions("--state", "active") == []
    assert told.sessions("--state", "orphaned") == []
    everything = [session["id"] for session in told.sessions()]
    page = told.json("sessions", "list", "--limit", "2")
    rest = told.json("sessions", "list", "--after", page["last_id"])
    assert page["has_more"]
    assert not rest["has_more"]
    assert [session["id"] for session in (*page["data"], *rest["data"])] == everything


def test_lineage_draws_the_line_its_edges_and_its_forks(told: Home) -> None:
    first, second, third = line_of(told)
    drawn = told.ok("sessions", "lineage", "cli:ada").splitlines()
    assert drawn[0].endswith("cli:ada")
    assert re.fullmatch(rf"├─ {first['id']}  #1–4  new .*", drawn[1])
    assert re.fullmatch(rf"├─ {second['id']}  #5–6  reset ▸ closed .*", drawn[2])
    assert re.fullmatch(r"│  └─ conv_\w+  cli:ada:fork", drawn[3])
    assert re.fullmatch(r"│     └─ sess_\w+  #1–2  closed .*", drawn[4])
    assert re.fullmatch(rf"└─ {third['id']}  #7–8  resume ▸ closed .*", drawn[5])
    tree = told.json("sessions", "lineage", "cli:ada")
    assert tree["forks"][0]["forked_from"] == second["id"]
    assert told.ok("sessions", "lineage", "cli:ada:fork").startswith(f"forked from {second['id']}")


def test_stats_count_everything_once(told: Home) -> None:
    stats = told.json("sessions", "stats")
    assert stats["total"] == 5
    assert stats["open"] == 1
    assert stats["leaked"] == 0
    assert stats["end_reasons"] == {"closed": 3, "new": 1}
    assert stats["sources"] == {"cli": 4, "telegram": 1}
    shown = told.ok("sessions", "stats")
    assert re.search(r"leaked +0 +0.0 %", shown)
    assert re.search(r"closed +3 +75.0 %", shown)


def test_search_finds_messages_and_says_where_they_stand(told: Home) -> None:
    (hit,) = told.json("sessions", "search", "lighthouse")["data"]
    assert set(hit) >= MESSAGE | {"conversation_id", "key", "title", "snippet"}
    assert (hit["key"], hit["seq"]) == ("cli:ada", 3)
    assert "lighthouse" in told.ok("sessions", "search", "light")
    assert told.json("sessions", "search", "no", "such", "words")["data"] == []


# --- owners -------------------------------------------------------------------------------------------------


def test_another_owners_data_is_not_there(told: Home) -> None:
    assert "cli:bob" not in told.ok("sessions", "--limit", "100")
    assert told.json("sessions", "search", "secret")["data"] == []
    never, others = told.run("sessions", "show", "cli:eve"), told.run("sessions", "show", "cli:bob")
    assert never.returncode == others.returncode == 1
    assert others.stderr == never.stderr.replace("eve", "bob")


def test_an_owner_is_named_before_or_behind_the_command(told: Home) -> None:
    assert told.json("sessions", "show", "cli:bob", "--owner", "bob")["key"] == "cli:bob"
    assert [session["key"] for session in told.sessions("--owner", "bob")] == ["cli:bob"]
    assert json.loads(told.ok("--owner", "bob", "sessions", "--json"))["data"][0]["key"] == "cli:bob"


def test_an_operator_sees_every_owner_and_whose_it_is(told: Home) -> None:
    sessions = told.sessions("--owner", "*")
    assert {session["owner"] for session in sessions} == {"default", "bob"}
    assert told.json("sessions", "stats", "--owner", "*")["total"] == 6
    assert told.json("sessions", "show", "cli:bob", "--owner", "*")["owner"] == "bob"


# --- for people ---------------------------------------------------------------------------------------------


def test_piped_columns_are_plain_and_cut_nothing_off(told: Home) -> None:
    listed = told.run("sessions", "list", "--each", COLUMNS="40", FORCE_COLOR="1").stdout
    ids = [session["id"] for session in told.sessions()]
    assert [line.split()[0] for line in listed.splitlines()[1:]] == ids
    assert "\x1b" not in listed


def test_a_conversation_is_one_row_with_its_first_words(told: Home) -> None:
    newest = {session["tip_id"] for session in told.sessions()}
    rows = told.ok("sessions").splitlines()
    assert {line.split()[0] for line in rows[1:]} == newest
    assert "SESSIONS" in rows[0]
    (bot,) = [line for line in rows if "telegram:dm:42" in line]
    assert "a photo" in bot
    assert len(told.ok("sessions", "--key", "cli:ada").splitlines()) - 1 == len(line_of(told))


def test_a_session_has_a_title_and_a_preview(told: Home) -> None:
    (bot,) = told.json("sessions", "--key", "telegram:dm:42")["data"]
    assert (bot["title"], bot["preview"]) == ("a photo", "Nice")
    assert "a photo" in told.ok("sessions", "show", "telegram:dm:42")
    for session in told.json("sessions", "--owner", "*")["data"]:
        assert session["preview"] is None, "a list of all owners has no text of messages"


def test_a_title_is_set_and_printed(told: Home) -> None:
    assert told.ok("sessions", "title", "telegram:dm:42") == "a photo\n"
    assert told.ok("sessions", "title", "telegram:dm:42", "The", "beach") == "The beach\n"
    shown = told.json("sessions", "title", "telegram:dm:42")
    assert (shown["title"], shown["preview"]) == ("The beach", "Nice")
    assert "The beach" in told.ok("sessions")


def test_every_command_takes_a_shortened_id(told: Home) -> None:
    session = told.json("sessions", "show", "telegram:dm:42")
    beginning = short(session["id"])
    assert told.json("sessions", "show", beginning)["id"] == session["id"]
    assert told.json("sessions", "show", short(session["conversation_id"]))["id"] == session["id"]
    (turn,) = told.json("sessions", "turns", beginning)["data"]
    assert told.json("sessions", "show", turn["id"][:30])["id"] == session["id"]
    for command in (("why",), ("sessions", "messages"), ("sessions", "lineage"), ("sessions", "end")):
        assert told.run(*command, beginning).returncode == 0, command
    others = told.run("sessions", "show", beginning, "--owner", "bob")
    never = told.run("sessions", "show", "sess_00000000", "--owner", "bob")
    assert (others.returncode, never.returncode) == (1, 1)
    assert others.stderr == never.stderr.replace("sess_00000000", beginning)


def test_a_shortened_id_of_several_is_refused_with_the_candidates(
    told: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [session["id"] for session in told.sessions()]
    monkeypatch.setattr(Store, "ids_like", lambda *_, **__: _given(ids[:2]))
    refused = told.run("sessions", "show", "sess_0000")
    assert refused.returncode == 1
    assert all(id_ in refused.stderr for id_ in ids[:2])


async def _given(ids: list[str]) -> list[str]:
    return ids


def test_every_view_reads_well(told: Home) -> None:
    shown = told.ok("sessions", "show", "cli:ada")
    assert "holdfast run --key cli:ada" in shown and "Continue with: " in shown
    assert "ended" in shown
    messages = told.ok("sessions", "messages", "telegram:dm:42")
    assert re.match(r"#1 user  [\d:]+\na photo\n\n#2 assistant  [\d:]+\nNice\n", messages)
    assert "→ look({})" in told.ok("sessions", "messages", "cli:ada", "--scope", "conversation")
    assert re.search(r"turn_\w+ +completed", told.ok("sessions", "turns", "cli:ada"))
    assert "are you there?" in told.ok("sessions", "messages", "cli:ada", "--scope", "context")


# --- nothing there ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["sessions"], ["sessions", "search", "x"], ["nodes"]])
def test_reading_makes_no_store_and_says_that_there_is_nothing_yet(home: Home, command: list[str]) -> None:
    done = home.run(*command)
    assert (done.returncode, done.stdout) == (0, "")
    assert str(home.store) in done.stderr
    assert home.json(*command) == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }
    assert not home.path.exists()


def test_counting_and_checking_nothing_is_fine(home: Home) -> None:
    assert home.json("sessions", "stats")["total"] == 0
    assert home.json("doctor")["ok"] is True
    assert home.ok("sweep") == "Nothing was due.\n"
    assert not home.path.exists()


@pytest.mark.parametrize("verb", ["show", "messages", "turns", "lineage", "end", "cancel", "resume", "fork"])
def test_what_needs_a_session_fails_without_a_store_and_makes_none(home: Home, verb: str) -> None:
    done = home.run("sessions", verb, "cli:ada")
    assert done.returncode == 1
    assert "there is no store yet" in done.stderr
    assert not home.path.exists()


def test_a_key_of_another_form_than_ours_may_be_anything(told: Home) -> None:
    for name in ("conv_0", "sess_0", "turn_0", "no such key", "é", "*"):
        done = told.run("sessions", "show", name)
        assert done.returncode == 1
        assert "`holdfast sessions` lists them" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_session_shows_how_many_side_requests_it_has(home: Home) -> None:
    async def ask() -> None:
        async with holdfast.open(f"sqlite:///{home.store}") as hf:
            session = await hf.session(key="cli:ada")
            async with session.turn("hello") as turn:
                await turn.append({"role": "assistant", "content": "Hi"})
            kept = side_text([{"role": "user", "content": "title?"}], "A greeting")
            for _ in range(2):
                await hf.store.note_side_request(hf.owner, session.conversation_id, "title", {}, kept)

    asyncio.run(ask())
    assert re.search(r"side requests +2\n", home.ok("sessions", "show", "cli:ada"))
    assert "A greeting" not in home.ok("sessions", "messages", "cli:ada")


def test_commands_to_copy_begin_as_they_run_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.chdir(tmp_path)
    assert program() == "holdfast"
    (tmp_path / "holdfast").touch(0o755)
    assert program() == "./holdfast"
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert program() == "holdfast"
