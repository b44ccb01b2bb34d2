"""`holdfast memories` on a store that a program with a model of its own has filled."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import holdfast
from tests.unit.cli.conftest import Home

FAST = {"memory": {"min_messages": 2, "max_attempts": 1}, "lease": {"sweep_seconds": 0.02}}


def remember(home: Home, *answers: str, owner: str = "default") -> list[str]:
    """Sessions that have ended and were flushed with these answers; returns their ids."""
    left = list(answers)

    async def model(messages: list[dict[str, Any]], purpose: str) -> str:
        assert purpose == "flush"
        return left.pop(0)

    async def talk() -> list[str]:
        sessions = []
        async with holdfast.open(f"sqlite:///{home.store}", owner=owner, settings=FAST, model=model) as hf:
            for number in range(len(answers)):
                session = await hf.session(key=f"cli:{number}", attached=False)
                async with session.turn("hello") as turn:
                    await turn.append("hi")
                await session.end("new")
                sessions.append(session.id)
                async with asyncio.timeout(60):
                    while (await hf.store.flush(None, session.id)).shown not in ("done", "dead"):  # noqa: ASYNC110 - nobody tells
                        await asyncio.sleep(0.01)
        return sessions

    return asyncio.run(talk())


def waiting(home: Home, number: int = 1) -> list[str]:
    """Sessions that have ended and wait to be flushed."""
    made = []
    for each in range(number):
        home.ok("run", "--key", f"wait:{each}", "hello")
        home.ok("run", "--key", f"wait:{each}", "and more")
        made.append(home.sessions("--key", f"wait:{each}")[0]["id"])
    return made


def test_memories_are_listed_searched_edited_and_forgotten(home: Home) -> None:
    first, second = remember(home, "Ada likes kelp.", "Ada likes tides.")
    listed = home.json("memories")
    assert [each["text"] for each in listed["data"]] == ["Ada likes tides.", "Ada likes kelp."]
    assert [each["session_id"] for each in listed["data"]] == [second, first]
    assert home.json("memories", "list", "--key", "cli:0")["data"] == listed["data"][1:]
    page = home.json("memories", "--limit", "1")
    assert (page["has_more"], home.json("memories", "--after", page["last_id"])["data"]) == (
        True,
        listed["data"][1:],
    )
    shown = home.ok("memories")
    assert "cli:0" in shown and "Ada likes kelp." in shown
    assert home.json("memories", "search", "KELP")["data"] == listed["data"][1:]
    kelp = listed["data"][1]["id"]
    assert home.ok("memories", "edit", kelp, "Ada hates kelp.") == f"{kelp} is changed.\n"
    assert "Ada hates kelp." in home.ok("memories", "search", "hates")
    assert home.ok("memories", "forget", kelp) == f"{kelp} is forgotten.\n"
    assert len(home.json("memories")["data"]) == 1
    gone = home.run("memories", "forget", kelp)
    assert gone.returncode == 1
    assert "no memory" in gone.stderr and "`holdfast memories` lists" in gone.stderr
    assert "nothing was found" in home.run("memories", "search", "kelp").stderr
    (session,) = home.sessions("--key", "cli:0")
    assert session["flush"] == {"state": "done", "attempts": 1, "error": None}
    assert "done, 1 attempt" in home.ok("sessions", "show", first)


def test_all_are_there_or_none_is_forgotten(home: Home) -> None:
    remember(home, "Ada likes kelp.")
    (memory,) = home.json("memories")["data"]
    assert home.run("memories", "forget", memory["id"], "mem_never").returncode == 1
    assert home.json("memories")["data"] == [memory]


def test_what_another_owner_remembers_is_not_there(home: Home) -> None:
    remember(home, "Bob likes kelp.", owner="bob")
    assert home.json("memories")["data"] == []
    (memory,) = home.json("--owner", "*", "memories")["data"]
    assert (memory["text"], memory["owner"]) == ("Bob likes kelp.", "bob")
    assert home.run("memories", "forget", memory["id"]).returncode == 1
    home.ok("--owner", "bob", "memories", "forget", memory["id"])


def test_what_failed_is_listed_and_tried_again(home: Home) -> None:
    (session_id,) = remember(home, "")
    (dead,) = home.json("memories", "--failed")["data"]
    assert (dead["id"], dead["state"], dead["attempts"]) == (session_id, "dead", 1)
    assert dead["error"] == "the model's answer was empty"
    assert "the model's answer was empty" in home.ok("memories", "--failed")
    failed = "1 session of all owners could not be flushed: `holdfast memories --failed`"
    assert failed in home.run("memories").stderr
    doctor = home.json("doctor")
    assert (doctor["ok"], doctor["flushes"]) == (True, {"pending": 0, "running": 0, "dead": 1, "coming": 0})
    assert "1 session could not be flushed: `holdfast memories --failed`" in home.ok("doctor")
    assert home.ok("memories", "retry") == "1 session will be flushed by the server.\n"
    assert home.ok("memories", "retry") == "No flush was given up.\n"
    assert home.json("doctor")["flushes"]["pending"] == 1
    assert "1 session to be flushed, which takes about 1 min" in home.ok("doctor")
    assert home.json("memories", "retry", session_id) == {"object": "flushes.retried", "count": 1}
    assert home.run("memories", "retry", "sess_never").returncode == 1


def test_what_a_command_ends_waits_for_a_server_and_can_be_skipped(home: Home) -> None:
    one, two = waiting(home, 2)
    assert [each["flush"]["state"] for each in home.sessions("--limit", "1")] == ["pending"]
    assert home.ok("memories", "skip", one) == "1 session will not be flushed.\n"
    tomorrow = f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%d}"
    assert home.json("memories", "skip", "--before", tomorrow) == {"object": "flushes.skipped", "count": 1}
    assert home.ok("memories", "skip", "--before", "2020-01-01T08:00") == "There was none to skip.\n"
    assert home.json("doctor")["flushes"]["pending"] == 0
    assert home.ok("memories", "retry", two) == "1 session will be flushed by the server.\n"


def test_all_sessions_have_a_flush_or_none_is_retried_or_skipped(home: Home) -> None:
    (session_id,) = remember(home, "")
    for verb in ("retry", "skip"):
        done = home.run("memories", verb, session_id, "sess_never")
        assert (done.returncode, done.stdout) == (1, "")
        assert home.json("doctor")["flushes"] == {"pending": 0, "running": 0, "dead": 1, "coming": 0}


def test_wrong_usage_says_what_to_do(home: Home) -> None:
    for arguments in (("skip",), ("skip", "--before", "yesterday")):
        done = home.run("memories", *arguments)
        assert done.returncode == 2
        assert "date" in done.stderr


def test_without_a_store_there_is_nothing(home: Home) -> None:
    assert json.loads(home.ok("memories", "--json"))["data"] == []
    assert "there is no store yet" in home.run("memories").stderr
    assert not home.store.exists()


def test_with_the_local_model_nothing_is_scheduled(home: Home) -> None:
    remember(home, "x")
    (session,) = home.sessions()
    home.environment["HOLDFAST_MODEL__KIND"] = "local"
    resumed = home.json("sessions", "resume", session["id"])
    home.ok("sessions", "end", resumed["id"], "--reason", "new")
    assert home.json("sessions", "show", resumed["id"])["flush"]["state"] == "none"


def test_a_person_adds_a_memory_by_key_or_by_a_shortened_id(home: Home) -> None:
    home.ok("run", "--key", "cli:ada", "hello")
    (session,) = home.sessions()
    assert "is added to cli:ada" in home.ok("memories", "add", "cli:ada", "Ada likes kelp.")
    more = home.json("memories", "add", session["id"][:13], "Ada lives\nin Bergen.")
    assert (more["origin"], more["key"]) == ("person", "cli:ada")
    assert [each["text"] for each in home.json("memories")["data"]] == [more["text"], "Ada likes kelp."]
    for arguments in (("never", "x"), ("cli:ada", " ")):
        assert home.run("memories", "add", *arguments).returncode == 1
    assert home.run("--owner", "bob", "memories", "add", "cli:ada", "x").returncode == 1
    assert len(home.json("memories")["data"]) == 2
