"""What clients have of replies that took several steps: joined or apart, and when one was cut short."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from holdfast.domain.messages import Message, MessageStatus
from holdfast.domain.rewinds import replies_to_person
from holdfast.domain.visible_messages import as_shown, joined, reply_in

NOW = datetime(2026, 11, 1, tzinfo=UTC)


def said(seq: int, role: str, content: Any, *, own: tuple[str, ...] = (), **more: Any) -> Message:
    calls = [{"id": id_} for id_ in (*more.pop("theirs", ()), *own)]
    body = {"role": role, "content": content, **({"tool_calls": calls} if calls else {})}
    status = MessageStatus.INTERRUPTED if more.pop("cut", False) else MessageStatus.COMPLETED
    return Message(
        "conv", seq, "sess", "turn", role, status, NOW, msgspec.json.encode(body), own_calls=own, **more
    )


def told(messages: list[Message]) -> list[tuple[int, Any, str]]:
    return [(each.seq, each.content().get("content"), each.status.value) for each in messages]


USER = said(1, "user", "go")
LOOK, SEEK = said(2, "assistant", "I look.", own=("a",)), said(4, "assistant", "I seek.", own=("b",))
FINE = said(6, "assistant", "Fine.")


@pytest.mark.parametrize(
    ("messages", "apart", "expected"),
    [
        ([USER, FINE], False, [(1, "go", "completed"), (6, "Fine.", "completed")]),
        ([USER, LOOK, FINE], False, [(1, "go", "completed"), (6, "I look.\n\nFine.", "completed")]),
        (
            [USER, LOOK, SEEK, FINE],
            True,
            [
                (1, "go", "completed"),
                (2, "I look.", "completed"),
                (4, "I seek.", "completed"),
                (6, "Fine.", "completed"),
            ],
        ),
        ([USER, LOOK, SEEK], False, [(1, "go", "completed"), (4, "I look.\n\nI seek.", "interrupted")]),
        ([LOOK, said(6, "assistant", "Fi", cut=True)], False, [(6, "I look.\n\nFi", "interrupted")]),
        ([LOOK, said(7, "user", "on")], False, [(2, "I look.", "interrupted"), (7, "on", "completed")]),
        ([said(2, "assistant", None, own=("a",)), FINE], False, [(6, "Fine.", "completed")]),
        ([said(2, "assistant", None, own=("a",)), FINE], True, [(6, "Fine.", "completed")]),
    ],
)
def test_steps_are_one_message_or_several(messages: list[Message], apart: bool, expected: Any) -> None:
    assert told(as_shown(messages, apart=apart)) == expected


def test_a_mixed_batch_is_shown_with_the_clients_calls_and_ends_a_reply() -> None:
    mixed = said(4, "assistant", "Both.", own=("b",), theirs=("c",))
    (shown, last) = as_shown([LOOK, mixed, FINE])
    assert shown.content() == {
        "role": "assistant",
        "content": "I look.\n\nBoth.",
        "tool_calls": [{"id": "c"}],
    }
    assert last == FINE


def test_the_answer_of_a_turn_is_what_its_steps_led_to() -> None:
    hidden = said(3, "tool", "result", inner=True)
    assert reply_in([USER, LOOK, hidden, FINE]) == {"role": "assistant", "content": "I look.\n\nFine."}
    assert reply_in([USER, LOOK, hidden]) is None


def test_text_in_parts_is_joined_as_text() -> None:
    parts = [{"type": "text", "text": "I "}, {"type": "text", "text": "look."}]
    whole = joined(
        [{"role": "assistant", "content": parts}, {"role": "assistant", "content": "Fine.", "x": 1}]
    )
    assert whole == {"role": "assistant", "content": "I look.\n\nFine.", "x": 1}


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ("", None),
        ("user", ()),
        ("user assistant", (2,)),
        ("user assistant user assistant assistant", (4, 5)),
        ("assistant", None),
        ("user assistant tool assistant", None),
        ("user system", None),
    ],
)
def test_a_retry_replaces_the_replies_to_the_last_message_of_a_person(
    roles: str, expected: tuple[int, ...] | None
) -> None:
    visible = [said(seq, role, "x") for seq, role in enumerate(roles.split(), 1)]
    assert replies_to_person(visible) == expected
