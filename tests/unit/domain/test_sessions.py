"""Sessions: how one ends, what opens behind it, what a reader is told."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.domain.nodes import Liveness
from holdfast.domain.sessions import (
    Edge,
    EndReason,
    Opening,
    Session,
    SessionState,
    check_end,
    continued_by,
    opening_after,
    opening_from,
    state_of,
)
from holdfast.domain.views import Range, Summary, View
from holdfast.errors import BadInput, IllegalTransition

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)

OPEN = Session(
    id="sess_1",
    conversation_id="conv_1",
    owner="ada",
    key=None,
    title=None,
    source="api",
    attached=False,
    node_id=None,
    edge=None,
    parent_id=None,
    tip_id="sess_1",
    ordinal=1,
    opened_at=NOON,
    last_activity_at=NOON,
    next_due_at=None,
    ended_at=None,
    end_reason=None,
    model=None,
    view=View.fresh(0),
    first_seq=1,
    last_seq=4,
    running_turn=None,
    running_node=None,
)


def ended(reason: str, **more: Any) -> Session:
    return replace(OPEN, ended_at=NOON, end_reason=reason, **more)


GO_ON = Opening(Edge.RESUME, "sess_1", OPEN.view)
FRESH = Opening(Edge.RESET, "sess_1", View.fresh(4))


@pytest.mark.parametrize(
    ("reason", "due", "opening"),
    [
        ("closed", False, GO_ON),
        ("closed", True, FRESH),
        ("completed", False, GO_ON),
        ("completed", True, FRESH),
        ("reaped", False, GO_ON),
        ("reaped", True, FRESH),
        ("compaction", False, GO_ON),
        ("hermes:branched", False, GO_ON),
        ("hermes:branched", True, FRESH),
        ("idle", False, FRESH),
        ("idle", True, FRESH),
        ("daily", False, FRESH),
        ("daily", True, FRESH),
        ("new", False, FRESH),
        ("new", True, FRESH),
    ],
)
def test_which_session_the_next_message_goes_to(reason: str, due: bool, opening: Opening) -> None:
    assert opening_after(ended(reason), 4, due=due) == opening


def test_every_end_reason_says_what_opens_behind_it() -> None:
    for reason in EndReason:
        assert opening_after(ended(reason), 4) in (GO_ON, FRESH)


def test_an_open_tip_takes_the_next_message_itself() -> None:
    assert opening_after(OPEN, 4) is None


def test_a_fresh_session_sees_nothing_of_what_was_said_before() -> None:
    opening = opening_after(ended("new"), 9)
    assert opening is not None
    assert opening.view == View((Range(10),))


@pytest.mark.parametrize(
    ("view", "last_of_session", "last_of_conversation", "expected"),
    [
        (View.fresh(0), 4, 4, View((Range(1, 4), Range(5)))),
        (View.fresh(0), 4, 9, View((Range(1, 4), Range(10)))),
        (View.fresh(2), 4, 9, View((Range(3, 4), Range(10)))),
        (View.fresh(4), 4, 9, View((Range(10),))),
        (View((Summary("s", 1, 2), Range(3))), 4, 9, View((Summary("s", 1, 2), Range(3, 4), Range(10)))),
    ],
)
def test_resuming_takes_what_that_very_session_saw_when_it_ended(
    view: View, last_of_session: int, last_of_conversation: int, expected: View
) -> None:
    session = ended("new", view=view, last_seq=last_of_session)
    assert opening_from(session, last_of_conversation) == Opening(Edge.RESUME, "sess_1", expected)


RUNNING = {"running_turn": "turn_1", "running_node": "node_1"}
ATTACHED = {"attached": True, "node_id": "node_1"}


@pytest.mark.parametrize(
    ("changes", "liveness", "state"),
    [
        ({}, Liveness.ALIVE, SessionState.IDLE),
        ({}, Liveness.UNKNOWN, SessionState.IDLE),
        ({}, Liveness.DEAD, SessionState.IDLE),  # a detached session at rest hangs on nobody
        (RUNNING, Liveness.ALIVE, SessionState.ACTIVE),
        (RUNNING, Liveness.UNKNOWN, SessionState.ACTIVE),
        (RUNNING, Liveness.DEAD, SessionState.ORPHANED),
        (ATTACHED, Liveness.ALIVE, SessionState.IDLE),
        (ATTACHED, Liveness.UNKNOWN, SessionState.IDLE),
        (ATTACHED, Liveness.DEAD, SessionState.ORPHANED),
        ({**RUNNING, **ATTACHED}, Liveness.ALIVE, SessionState.ACTIVE),
        ({**RUNNING, **ATTACHED}, Liveness.DEAD, SessionState.ORPHANED),
        ({"ended_at": NOON, "end_reason": "closed"}, Liveness.ALIVE, SessionState.ENDED),
        ({"ended_at": NOON, "end_reason": "closed"}, Liveness.DEAD, SessionState.ENDED),
    ],
)
def test_what_a_reader_is_told(changes: dict[str, Any], liveness: Liveness, state: SessionState) -> None:
    assert state_of(replace(OPEN, **changes), liveness) is state


@pytest.mark.parametrize(
    ("changes", "node"),
    [
        ({}, None),
        ({"node_id": "node_2"}, None),
        (ATTACHED, "node_1"),
        (RUNNING, "node_1"),
        ({"attached": True, "node_id": "node_2", **RUNNING}, "node_1"),
    ],
)
def test_a_session_hangs_on_its_turns_node_else_on_the_one_it_is_attached_to(
    changes: dict[str, Any], node: str | None
) -> None:
    assert replace(OPEN, **changes).answering_node == node


@pytest.mark.parametrize("reason", [*EndReason, "hermes:compression", "hermes:"])
def test_an_open_session_may_end_with_any_known_reason(reason: str) -> None:
    check_end(OPEN, reason)


@pytest.mark.parametrize("reason", ["", "because", "Closed", "hermes", " closed"])
def test_an_unknown_reason_is_refused_with_the_list_of_known_ones(reason: str) -> None:
    with pytest.raises(BadInput) as refusal:
        check_end(OPEN, reason)
    assert all(known in str(refusal.value) for known in EndReason)


@pytest.mark.parametrize("reason", ["closed", "because"])
def test_an_ended_session_does_not_end_again(reason: str) -> None:
    with pytest.raises(IllegalTransition, match=r"already ended \(idle\)"):
        check_end(ended("idle"), reason)


@pytest.mark.parametrize(("first", "last", "count"), [(1, 4, 4), (5, 4, 0), (5, 5, 1), (1, 0, 0)])
def test_a_session_counts_its_own_messages(first: int, last: int, count: int) -> None:
    assert replace(OPEN, first_seq=first, last_seq=last).message_count == count


def line(*edges: tuple[str, Edge | None, str | None]) -> list[Session]:
    return [replace(OPEN, id=name, edge=edge, parent_id=parent) for name, edge, parent in edges]


@pytest.mark.parametrize(
    ("named", "newest"),
    [
        ("a", "c"),  # compacted, resumed: the same context
        ("b", "c"),
        ("d", "f"),  # begun afresh behind c, and resumed once more on purpose
        ("e", "e"),
        ("f", "f"),
    ],
)
def test_whoever_names_a_session_goes_on_where_its_context_does(named: str, newest: str) -> None:
    sessions = line(
        ("a", None, None),
        ("b", Edge.COMPACTION, "a"),
        ("c", Edge.RESUME, "b"),
        ("d", Edge.RESET, "c"),
        ("e", Edge.RESET, "d"),
        ("f", Edge.RESUME, "d"),
    )
    assert continued_by(sessions, named).id == newest
