"""Acting on a session by hand: end, cancel, resume, fork, delete."""

from __future__ import annotations

import json

import pytest

from tests.unit.cli.conftest import Home


@pytest.fixture
def spoken(home: Home) -> Home:
    """A home in which something was said under the key k."""
    home.ok("run", "--key", "k", "hello")
    return home


def test_end_ends_an_open_session_once(spoken: Home) -> None:
    spoken.ok("sessions", "resume", "k")
    assert "has ended: new" in spoken.ok("sessions", "end", "k", "--reason", "new")
    assert "had already ended: new" in spoken.ok("sessions", "end", "k", "--reason", "closed")
    assert spoken.json("sessions", "show", "k")["end_reason"] == "new"


def test_after_new_the_next_message_begins_afresh(spoken: Home) -> None:
    spoken.ok("sessions", "resume", "k")
    spoken.ok("sessions", "end", "k", "--reason", "new")
    spoken.ok("run", "--key", "k", "again")
    context = spoken.json("sessions", "messages", "k", "--scope", "context")["data"]
    assert [message["content"] for message in context] == ["again", "You said: again"]


def test_resume_opens_a_detached_session_that_sees_what_that_one_saw(spoken: Home) -> None:
    first = spoken.json("sessions", "show", "k")
    resumed = spoken.json("sessions", "resume", first["id"])
    assert (resumed["edge"], resumed["parent_id"]) == ("resume", first["id"])
    assert (resumed["state"], resumed["attached"]) == ("idle", False)
    assert "is open already" in spoken.ok("sessions", "resume", resumed["id"])
    spoken.ok("sessions", "resume", first["id"])
    assert spoken.json("sessions", "show", resumed["id"])["end_reason"] == "new"
    assert spoken.json("nodes")["data"] == []


def test_fork_copies_into_a_conversation_of_its_own(spoken: Home) -> None:
    source = spoken.json("sessions", "show", "k")
    fork = spoken.json("sessions", "fork", "k", "--key", "k2")
    assert (fork["edge"], fork["parent_id"]) == ("fork", source["id"])
    assert fork["conversation_id"] != source["conversation_id"]
    assert spoken.json("sessions", "fork", source["id"], "--up-to", "1")["message_count"] == 1
    done = spoken.run("sessions", "fork", "k", "--key", "k2")
    assert done.returncode == 1
    assert "already leads to a conversation" in done.stderr
    assert spoken.run("sessions", "fork", "k", "--up-to", "99").returncode == 1


def test_rewind_continues_from_a_message_and_goes_forward_again(spoken: Home) -> None:
    (turn,) = spoken.json("sessions", "turns", "k")["data"]
    assert "0 messages left the context" in spoken.ok("sessions", "rewind", "k", turn["id"])
    assert "1 message left the context" in spoken.ok("sessions", "rewind", "k", "1")
    assert len(spoken.json("sessions", "messages", "k", "--scope", "context")["data"]) == 1
    assert spoken.json("sessions", "rewind", "k", "--to", "2")["key"] == "k"
    assert len(spoken.json("sessions", "messages", "k", "--scope", "context")["data"]) == 2
    assert spoken.run("sessions", "rewind", "k").returncode == 2
    assert spoken.run("sessions", "rewind", "k", "1", "--to", "2").returncode == 2
    assert spoken.run("sessions", "rewind", "k", "99").returncode == 1
    assert spoken.run("sessions", "rewind", "k", "nonsense").returncode == 1


def test_cancel_with_nothing_running_changes_nothing(spoken: Home) -> None:
    assert "No turn is running" in spoken.ok("sessions", "cancel", "k")
    nothing = json.loads(spoken.ok("sessions", "cancel", "k", "--json"))
    assert (nothing["cancelled"], nothing["withdrawn"]) == (False, 0)
    (turn,) = spoken.json("sessions", "turns", "k")["data"]
    assert "was no longer running: completed" in spoken.ok("sessions", "cancel", turn["id"])


def test_delete_refuses_without_a_terminal_or_a_yes(spoken: Home) -> None:
    done = spoken.run("sessions", "delete", "k", said="y\n")
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert len(spoken.sessions()) == 1


def test_delete_removes_the_whole_conversation(spoken: Home) -> None:
    spoken.ok("run", "--key", "k", "more")
    assert "2 sessions, 4 messages" in spoken.ok("sessions", "delete", "k", "--yes")
    assert spoken.sessions() == []
    assert spoken.run("sessions", "show", "k").returncode == 1
    assert spoken.json("sessions", "search", "hello")["data"] == []


def test_compact_summarises_by_hand(spoken: Home) -> None:
    for number in range(12):
        spoken.ok("run", "--key", "k", f"message {number}")
    before = spoken.json("sessions", "show", "k")["id"]
    compacted = spoken.json("sessions", "compact", before[:30])
    assert compacted["edge"] == "compaction"
    assert spoken.json("sessions", "show", "k")["id"] == compacted["id"]
    context = spoken.json("sessions", "messages", "k", "--scope", "context")["data"]
    assert any("They spoke" in str(message["content"]) for message in context)
    again = spoken.run("sessions", "compact", "k")
    assert (again.returncode, again.stdout) == (1, "")
    assert spoken.run("sessions", "compact", "unknown").returncode == 1


def test_another_owners_session_cannot_be_touched(spoken: Home) -> None:
    for command in (["end"], ["cancel"], ["resume"], ["fork"], ["delete", "--yes"]):
        done = spoken.run("sessions", *command, "k", "--owner", "bob")
        assert done.returncode == 1, command
        assert "no session, key or alias 'k'" in done.stderr
    assert len(spoken.sessions()) == 1


def test_an_operator_acts_in_the_owners_name(spoken: Home) -> None:
    spoken.ok("run", "--owner", "bob", "--key", "b", "hello")
    done = spoken.ok("sessions", "fork", "b", "--owner", "*", "--key", "b2")
    assert "--key b2 --owner bob" in done
    assert {session["key"] for session in spoken.sessions("--owner", "bob")} == {"b", "b2"}
    assert "had already ended" in spoken.ok("sessions", "end", "b", "--owner", "*")
