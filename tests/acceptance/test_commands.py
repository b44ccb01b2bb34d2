"""The commands in real processes, once each in what matters: shapes, owners, unknown names, settings."""

from __future__ import annotations

from .command import Home

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
    *("id", "session_id", "conversation_id", "status", "attempt", "doing", "why", "error"),
    *("started_at", "ended_at", "node", "usage", "response_id"),
}
LIST = {"object", "data", "first_id", "last_id", "has_more"}


def test_json_is_one_document_with_every_field_of_the_contract(home: Home) -> None:
    home.ok("run", "--key", "cli:ada", "hello")
    for arguments, fields in (
        (["sessions"], SESSION),
        (["sessions", "messages", "cli:ada"], MESSAGE),
        (["sessions", "turns", "cli:ada"], TURN),
    ):
        listed = home.json(*arguments)
        assert set(listed) == LIST
        assert listed["data"]
        assert [set(each) for each in listed["data"]] == [fields] * len(listed["data"])
    assert set(home.json("sessions", "show", "cli:ada")) == SESSION


def test_the_readme_of_a_newcomer(home: Home) -> None:
    """The first quarter of an hour: run, list, fork, count, check, back up."""
    home.ok("run", "--key", "cli:ada", "my name is Ada")
    assert "cli:ada" in home.ok("sessions")
    home.ok("sessions", "fork", "cli:ada", "--key", "cli:ada:experiment")
    home.ok("run", "--key", "cli:ada:experiment", "and now?")
    assert "cli:ada:experiment" in home.ok("sessions", "lineage", "cli:ada")
    assert home.json("sessions", "stats")["total"] == 2
    assert home.ok("doctor").endswith("No problems found.\n")
    home.ok("backup", "copy.db")
    assert home.json("sessions", "--store", "sqlite:///copy.db")["data"] == home.json("sessions")["data"]


def test_unknown_names_and_other_owners_look_the_same(home: Home) -> None:
    home.ok("run", "--owner", "bob", "--key", "cli:bob", "hello")
    never, others = home.run("sessions", "show", "cli:eve"), home.run("sessions", "show", "cli:bob")
    assert never.returncode == others.returncode == 1
    assert others.stderr == never.stderr.replace("eve", "bob")
    assert "Traceback" not in never.stderr
    assert home.json("sessions", "show", "cli:bob", "--owner", "bob")["key"] == "cli:bob"


def test_an_unknown_setting_names_the_nearest_one(home: Home) -> None:
    done = home.run("sessions", env={"HOLDFAST_LEASE__STALE_SECOND": "5"})
    assert (done.returncode, done.stdout) == (1, "")
    assert "did you mean lease.stale_seconds?" in done.stderr
    assert "Traceback" not in done.stderr


def test_reading_before_there_is_anything_makes_nothing(home: Home) -> None:
    assert home.json("sessions")["data"] == []
    assert home.run("sessions", "show", "k").returncode == 1
    assert not home.path.exists()
