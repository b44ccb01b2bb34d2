"""The waterfall: what the time of a turn went to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from holdfast.dashboard.charts import waterfall_of
from holdfast.domain.messages import Message, MessageStatus
from holdfast.domain.turns import Turn, TurnStatus

BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)
CALLS = [{"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": "{}"}}]


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def message(seq: int, seconds: float, **said: Any) -> Message:
    body = msgspec.json.encode(said)
    return Message(
        "conv_a", seq, "sess_a", "turn_a", said["role"], MessageStatus.COMPLETED, at(seconds), body
    )


def test_a_tool_s_time_has_its_name_and_the_rest_is_the_model_s() -> None:
    turn = Turn(
        "turn_a",
        "conv_a",
        "sess_a",
        "ada",
        TurnStatus.COMPLETED,
        "node_a",
        1,
        1,
        BEGAN,
        at(10),
        usage={"first_token_ms": 1000},
    )
    said = [
        message(1, 0, role="user", content="look"),
        message(2, 3, role="assistant", content=None, tool_calls=CALLS),
        message(3, 7, role="tool", tool_call_id="c1", content="done"),
        message(4, 10, role="assistant", content="It is done."),
    ]
    (bar,) = waterfall_of([turn], said, at(20), width=100)
    assert [(span.kind, span.x, span.width, span.title) for span in bar.spans] == [
        ("wait", 0.0, 10.0, "until the first token: 1.0 s"),
        ("model", 10.0, 20.0, "model: 2.0 s"),
        ("tool", 30.0, 40.0, "terminal: 4.0 s"),
        ("model", 70.0, 30.0, "model: 3.0 s"),
    ]
