"""Drafts: what a reply had said, checkpoint by checkpoint."""

from typing import Any

import msgspec
import pytest

from holdfast.domain.drafts import RESERVED_EVENTS, Draft, drafted_text, first_event_of, interrupted_reply
from holdfast.domain.messages import MessageStatus
from holdfast.domain.new_messages import MAX_BODY_BYTES
from holdfast.errors import BadInput


def drafts(*checkpoints: dict[str, str] | None) -> list[Draft]:
    """Checkpoints in order; None: the reply begins anew with the next one."""
    made: list[Draft] = []
    restarts = False
    for adds in checkpoints:
        if adds is None:
            restarts = True
            continue
        made.append(Draft(len(made), len(made), b"", adds, restarts))
        restarts = False
    return made


@pytest.mark.parametrize(
    ("checkpoints", "text"),
    [
        ([], {}),
        ([{}], {}),
        ([{"content": "Hel"}, {"content": "lo"}], {"content": "Hello"}),
        ([{"reasoning": "hm"}, {"content": "Hi"}, {"reasoning": "m"}], {"reasoning": "hmm", "content": "Hi"}),
        ([{"content": "first try"}, None, {"content": "second"}], {"content": "second"}),
        ([{"content": "first try"}, None, {}], {}),
        (
            [{"content": "a"}, None, {"content": "b"}, None, {"content": "c"}, {"content": "d"}],
            {"content": "cd"},
        ),
    ],
)
def test_what_was_said_is_the_sum_of_the_checkpoints_since_the_last_restart(
    checkpoints: list[dict[str, str] | None], text: dict[str, str]
) -> None:
    assert drafted_text(drafts(*checkpoints)) == text


@pytest.mark.parametrize(
    ("checkpoints", "body"),
    [
        ([{"content": "Hel"}, {"content": "lo"}], {"role": "assistant", "content": "Hello"}),
        ([{"reasoning": "hm"}], {"role": "assistant", "content": "", "reasoning": "hm"}),
        ([{"content": "x", "reasoning": ""}], {"role": "assistant", "content": "x"}),
    ],
)
def test_a_crash_keeps_what_was_said_as_an_interrupted_reply(
    checkpoints: list[dict[str, str] | None], body: dict[str, Any]
) -> None:
    reply = interrupted_reply(drafts(*checkpoints))
    assert reply is not None
    assert (reply.role, reply.status) == ("assistant", MessageStatus.INTERRUPTED)
    assert msgspec.json.decode(reply.body) == body


@pytest.mark.parametrize(
    "checkpoints", [[], [{}], [{"content": ""}], [{"content": "x"}, None, {"content": ""}]]
)
def test_a_crash_before_a_word_was_said_leaves_no_reply(checkpoints: list[dict[str, str] | None]) -> None:
    assert interrupted_reply(drafts(*checkpoints)) is None


@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 9), (5, 5), (10_001, 10_500)])
def test_events_are_numbered_upwards_and_a_block_behind_them_is_reserved(first: int, last: int) -> None:
    assert Draft(first, last).reserved_to == last + RESERVED_EVENTS


@pytest.mark.parametrize(("first", "last"), [(-1, 0), (-5, -2), (3, 2)])
def test_events_numbered_otherwise_are_refused(first: int, last: int) -> None:
    with pytest.raises(BadInput, match="numbered upwards"):
        Draft(first, last)


@pytest.mark.parametrize(
    "adds",
    [
        {"content": "a\x00b"},
        {"content": "\ud800"},
        {"reasoning": "\x00"},
        {"tool_calls": "not a list"},
        {"content": "x" * MAX_BODY_BYTES},
    ],
    ids=["NUL", "surrogate", "NUL in reasoning", "tool_calls", "too long"],
)
def test_a_checkpoint_that_was_taken_can_always_be_kept(adds: dict[str, str]) -> None:
    """A turn that cannot be settled would hold its conversation for ever."""
    try:
        draft = Draft(0, 0, b"", adds)
    except BadInput:
        return
    reply = interrupted_reply([draft])
    assert reply is not None
    assert reply.role == "assistant"


@pytest.mark.parametrize("checkpointed", [(True, True), (True, False), (False, True), (False, False)])
def test_no_attempt_uses_a_number_that_an_earlier_one_may_have_told(checkpointed: tuple[bool, ...]) -> None:
    """Each tells some events, kept or not, and whoever listened is told its end, behind what is reserved."""
    reserved_to, told = -1, 12
    for attempt, is_kept in enumerate(checkpointed, 2):
        ends = reserved_to + 1
        first = first_event_of(attempt, reserved_to)
        assert first > max(told, ends)
        told = first + 12
        if is_kept:
            reserved_to = Draft(first, told).reserved_to
