"""Values as public objects: every field, times in UTC, nothing of the message lost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest

from holdfast.domain.events import Event
from holdfast.domain.messages import Message, MessageStatus
from holdfast.server import objects

NOON = datetime(2026, 3, 1, 12, 0, 0, 5000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (NOON, "2026-03-01T12:00:00.005000Z"),
        (NOON.astimezone(timezone(timedelta(hours=2))), "2026-03-01T12:00:00.005000Z"),
        (NOON.replace(microsecond=0), "2026-03-01T12:00:00.000000Z"),
    ],
)
def test_times_are_rfc_3339_in_utc(value: datetime | None, expected: str | None) -> None:
    assert objects.time(value) == expected


def test_a_list_names_its_first_and_last() -> None:
    data = [{"id": "a"}, {"id": "b"}]
    listed = msgspec.to_builtins(objects.listed(data, has_more=True))
    assert listed == {"object": "list", "data": data, "first_id": "a", "last_id": "b", "has_more": True}
    assert objects.listed([]).first_id is None


def test_a_messages_own_fields_do_not_cover_ours() -> None:
    body = b'{"role":"user","content":"hi","id":"theirs","status":"odd","seq":99,"name":"ada"}'
    message = Message("conv_1", 3, "sess_1", None, "user", MessageStatus.COMPLETED, NOON, body)
    shown = objects.message(message)
    assert (shown["id"], shown["status"], shown["seq"]) == ("msg_1_3", "completed", 3)
    assert shown["name"] == "ada"
    assert shown["tool_calls"] is None


@pytest.mark.parametrize(
    ("reported", "shown"),
    [
        (None, None),
        ({}, None),
        ({"input_tokens": 1, "output_tokens": 2}, {"input_tokens": 1, "output_tokens": 2}),
        ({"prompt_tokens": 1, "completion_tokens": 2}, {"input_tokens": 1, "output_tokens": 2}),
        ({"output_tokens": 2}, {"input_tokens": 0, "output_tokens": 2}),
    ],
)
def test_usage_has_one_pair_of_names(reported: dict[str, int] | None, shown: dict[str, int] | None) -> None:
    assert msgspec.to_builtins(objects.usage(reported)) == shown


def test_an_event_has_every_field() -> None:
    event = Event(7, NOON, "session.ended", "default", "conv_1", "sess_1", None, {"reason": "closed"})
    assert msgspec.to_builtins(objects.event(event)) == {
        "id": 7,
        "at": "2026-03-01T12:00:00.005000Z",
        "type": "session.ended",
        "conversation_id": "conv_1",
        "session_id": "sess_1",
        "turn_id": None,
        "data": {"reason": "closed"},
    }
