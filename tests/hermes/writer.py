"""Writes a Hermes home with Hermes' own `SessionDB`, whatever version it is imported from.

Run by the interpreter of a throw-away environment that holds hermes-agent, never by ours:
`python writer.py RECIPE HOME`. It prints what it wrote as one JSON document.
"""

import json
import os
import select
import sys
import time
import types
from pathlib import Path

os.environ["HERMES_HOME"] = sys.argv[2]

import hermes_state  # type: ignore[import-not-found]

BEGAN = 1_767_000_000.0  # the end of 2025
KEY = "agent:main:telegram:dm:42"
SUMMARY = (
    "[CONTEXT COMPACTION — REFERENCE ONLY] Earlier turns were compacted into the summary below.\n"
    "## Goal\nThe user is called Ada and asked about kelp."
    "\n\n--- END OF CONTEXT SUMMARY — respond to the message below, not the summary above ---"
)


class Clock:
    """Hermes' time: it moves a second whenever it is looked at."""

    def __init__(self) -> None:
        self.now = BEGAN

    def time(self) -> float:
        self.now += 1
        return self.now


def opened(home: Path) -> tuple["hermes_state.SessionDB", Clock]:
    home.mkdir(parents=True, exist_ok=True)
    clock = Clock()
    hermes_state.time = types.SimpleNamespace(time=clock.time, sleep=time.sleep, monotonic=time.monotonic)
    database = hermes_state.SessionDB(db_path=home / "state.db")
    database._conn.execute("PRAGMA synchronous=OFF")
    return database, clock


def say(database: "hermes_state.SessionDB", session: str, *texts: str) -> None:
    for number, text in enumerate(texts):
        database.append_message(session, "assistant" if number % 2 else "user", text)


def whole(home: Path) -> dict[str, object]:
    """Everything that hangs together in some way, and most that a message can carry."""
    database, clock = opened(home)
    database.create_session("first", "telegram", model="gpt-x", user_id="42")
    say(database, "first", "my name is Ada", "hello Ada", "tell me of kelp")
    call: dict[str, object] = {"id": "call_1", "call_id": "call_1", "type": "function"}
    call["function"] = {"name": "look", "arguments": '{"at": "kelp"}'}
    database.append_message(
        "first", "assistant", None, tool_calls=[call], reasoning="I should look", finish_reason="tool_calls"
    )
    database.append_message("first", "tool", "it is brown", tool_call_id="call_1", tool_name="look")
    database.append_message(
        "first",
        "assistant",
        "It is brown.",
        reasoning="now I know",
        reasoning_content="now I really know",
        reasoning_details=[{"type": "reasoning.text", "text": "brown"}],
    )
    parts: list[dict[str, object]] = [{"type": "text", "text": "what is this?"}]
    parts.append({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}})
    numbered = {"platform_message_id": "tg-77"} if "platform_message_id" in columns(database) else {}
    database.append_message("first", "user", parts, **numbered)
    database.update_token_counts("first", input_tokens=1200, output_tokens=340)
    database.set_session_title("first", "Kelp")
    database.end_session("first", "compression")
    database.create_session("second", "telegram", model="gpt-x", parent_session_id="first")
    say(database, "second", SUMMARY)
    say(database, "second", "and how long does it grow?", "Up to 60 metres.")
    database.end_session("second", "compression")
    database.create_session("third", "telegram", model="gpt-x", parent_session_id="second")
    say(database, "third", "where?", "In cold seas.")
    # While the third is still open: a subagent. Unmarked in 0.14, marked in 0.19.
    marked = {"model_config": {"_delegate_from": "third"}} if versions_apart(database) else {}
    database.create_session("delegate", "telegram", parent_session_id="third", **marked)
    say(database, "delegate", "find cold seas", "the North Sea")
    # A branch, after its parent ended as such.
    database.create_session("trunk", "cli")
    say(database, "trunk", "one", "two")
    database.end_session("trunk", "branched")
    database.create_session("branch", "cli", parent_session_id="trunk")
    say(database, "branch", "one", "two", "three")
    database.end_session("branch", "cli_close")
    # Begun after its parent had ended otherwise: only its own.
    database.create_session("later", "cli", parent_session_id="branch")
    say(database, "later", "something else")
    database.create_session("empty", "cron")
    database.end_session("empty", "cron_complete")
    if versions_apart(database):
        database.create_session("inplace", "cli")
        say(database, "inplace", "a", "b", "c", "d")
        database.archive_and_compact(
            "inplace", [{"role": "user", "content": SUMMARY}, {"role": "assistant", "content": "d"}]
        )
        say(database, "inplace", "e")
        database.rewind_to_message("inplace", database.append_message("inplace", "user", "never mind"))
    route(database, home, "first", clock)
    (home / "memories").mkdir(exist_ok=True)
    (home / "memories" / "MEMORY.md").write_text("Ada likes kelp\n§\nAda lives by the sea")
    database.close()
    return {"schema": hermes_state.SCHEMA_VERSION, "last": clock.now}


def columns(database: "hermes_state.SessionDB") -> set[str]:
    return {row[1] for row in database._conn.execute("PRAGMA table_info(messages)")}


def versions_apart(database: "hermes_state.SessionDB") -> bool:
    """Is this a version that marks delegates and compacts in place?"""
    return hasattr(database, "archive_and_compact")


def route(database: "hermes_state.SessionDB", home: Path, session: str, clock: Clock) -> None:
    """The gateway's note of where a chat goes, in the file and, where there is one, the table."""
    entry = {"session_key": KEY, "session_id": session}
    entry |= {"created_at": "2025-12-29T10:00:00", "updated_at": "2025-12-29T11:00:00"}
    (home / "sessions").mkdir(exist_ok=True)
    stale = {**entry, "session_id": "trunk"} if hasattr(database, "save_gateway_routing_entry") else entry
    listed = {"_README": "notes", KEY: stale, "broken": 3}
    (home / "sessions" / "sessions.json").write_text(json.dumps(listed))
    if hasattr(database, "save_gateway_routing_entry"):
        database.save_gateway_routing_entry(KEY, json.dumps(entry), scope=str(home / "sessions"))


def more(home: Path) -> dict[str, object]:
    """What happens in the home of `whole` afterwards: a leaked session goes on, then is compacted."""
    database, clock = opened(home)
    clock.now += 1_000_000
    say(database, "third", "are there any here?", "No.")
    database.end_session("third", "compression")
    database.create_session("fourth", "telegram", parent_session_id="third")
    say(database, "fourth", "a pity", "Indeed.")
    say(database, "later", "still there?", "Yes.")
    database.create_session("fifth", "cli")
    say(database, "fifth", "hello")
    if versions_apart(database):
        last = database._conn.execute(
            "SELECT max(id) FROM messages WHERE session_id = 'inplace' AND active = 1"
        ).fetchone()[0]
        database.rewind_to_message("inplace", last)
        database.rewind_to_message("branch", database.append_message("branch", "user", "no, wait"))
    database.close()
    return {}


REPORTED = {
    "cron_complete": 1275,
    None: 887,
    "recovered": 640,
    "cli_close": 229,
    "session_reset": 17,
    "compression": 1,
}


def reported(home: Path) -> dict[str, object]:
    """The home of the second field report: three thousand sessions, 29 % of them never ended."""
    database, _ = opened(home)
    number = 0
    for reason, count in REPORTED.items():
        for _ in range(count):
            number += 1
            session = f"s{number:05}"
            database.create_session(session, "cron" if reason == "cron_complete" else "telegram")
            say(database, session, f"question {number}", f"answer {number}")
            if reason is not None:
                database.end_session(session, reason)
    database.close()
    return {"sessions": number}


def large(home: Path) -> dict[str, object]:
    """A few conversations too large for one part, among small ones."""
    database, _ = opened(home)
    for number in range(30):
        session = f"large{number}"
        database.create_session(session, "cli")
        count = 4000 if number % 10 == 0 else 5
        database.replace_messages(
            session,
            [
                {"role": "assistant" if n % 2 else "user", "content": f"{session} says {n} " + "x" * 200}
                for n in range(count)
            ],
        )
    database.close()
    return {}


def living(home: Path) -> dict[str, object]:
    """Hermes at work: writes for as long as its standard input stays open, and tells what it has written."""
    database, _ = opened(home)
    database.create_session("live", "telegram")
    number = 0
    while not select.select([sys.stdin], [], [], 0.002)[0]:
        number += 1
        database.append_message("live", "user", f"message {number}")
        print(number, flush=True)
    database.close()
    return {"written": number}


if __name__ == "__main__":
    recipes = {each.__name__: each for each in (whole, more, reported, large, living)}
    print(json.dumps(recipes[sys.argv[1]](Path(sys.argv[2]))))
