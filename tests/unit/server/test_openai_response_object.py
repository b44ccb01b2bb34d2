"""Response and conversation objects, held against the official SDK's own types."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from openai.types.conversations import Conversation, ConversationDeletedResource
from openai.types.responses import Response

from holdfast.domain.turns import TurnStatus
from holdfast.server.openai.conversations import (
    conversation_object,
    deleted_conversation,
    parse_conversation,
    parse_items,
    parse_metadata,
)
from holdfast.server.openai.items import items_from
from holdfast.server.openai.parameters import BadParameter
from holdfast.server.openai.response_object import (
    NOTHING_ASKED,
    QUEUED,
    ResponseHead,
    ResponseState,
    deleted_response,
    response_error,
    response_object,
    response_usage,
    state_of,
)
from holdfast.server.openai.responses_request import parse
from holdfast.server.openai.schemas import ConversationHoldfastObject, ResponseObject
from holdfast.server.schemas import HoldfastObject

THEN = datetime(2026, 3, 4, 5, 6, 7, 800000, tzinfo=UTC)
SECONDS = int(THEN.timestamp())
OURS = HoldfastObject(
    session_id="sess_1", conversation_id="conv_1", turn_id="turn_1", compacted=False, reset=None, notices=[]
)
ALL_ASKED = {
    "input": "hi",
    "instructions": "be kind",
    "max_output_tokens": 9,
    "max_tool_calls": 3,
    "metadata": {"a": "b"},
    "parallel_tool_calls": False,
    "prompt_cache_key": "k",
    "reasoning": {"effort": "low", "summary": "auto"},
    "safety_identifier": "s",
    "service_tier": "flex",
    "store": True,
    "temperature": 0.5,
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"a": 1}}, "verbosity": "low"},
    "tool_choice": {"type": "function", "name": "f"},
    "tools": [{"type": "function", "name": "f", "parameters": {}}, {"type": "custom", "name": "sh"}],
    "top_logprobs": 2,
    "top_p": 0.1,
    "truncation": "auto",
    "user": "u",
}


@pytest.mark.parametrize("asked", [{"input": "hi"}, ALL_ASKED], ids=["nothing asked", "everything asked"])
@pytest.mark.parametrize(
    "state",
    [
        QUEUED,
        state_of(TurnStatus.RUNNING),
        state_of(TurnStatus.COMPLETED, finish_reason="stop"),
        state_of(TurnStatus.COMPLETED, finish_reason="length"),
        state_of(TurnStatus.COMPLETED, finish_reason="content_filter"),
        state_of(TurnStatus.CANCELLED),
        state_of(TurnStatus.FAILED),
        state_of(TurnStatus.FAILED, error=response_error("too many", 429)),
    ],
    ids=lambda state: f"{state.status} {state.reason or ''}",
)
def test_the_sdk_takes_the_response_at_every_moment(state: ResponseState, asked: dict[str, Any]) -> None:
    echo = parse(asked).echo
    head = ResponseHead("resp_1", THEN, echo, "m", "conv_1", "resp_0", background=True)
    value = response_object(
        head,
        state,
        output=items_from({"role": "assistant", "content": "hi"}, "msg_1_2") if state.is_final else (),
        usage={"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
        completed_at=THEN,
        holdfast=OURS,
    )
    taken = Response.model_validate(value)
    assert set(Response.model_fields) - {"access_programs", "image", "moderation"} <= set(value) | {
        *("prompt_cache_diagnostics", "prompt_cache_options", "tool_usage")
    }
    assert taken.status == state.status
    assert taken.created_at == SECONDS
    assert taken.completed_at == (SECONDS if state.status == "completed" else None)
    assert taken.output_text == ("hi" if state.is_final else "")
    assert value["holdfast"] == OURS
    assert value["conversation"] == {"id": "conv_1"}
    assert list(value) == [name for name in ResponseObject.__struct_fields__ if name != "warnings"]
    assert msgspec.to_builtins(msgspec.convert(value, ResponseObject, from_attributes=True)) == (
        msgspec.to_builtins(value)
    )
    assert {name: value[name] for name in echo} == dict(echo)


def test_the_reason_interrupted_gets_through_the_sdks_lenient_reading() -> None:
    value = response_object(ResponseHead("resp_1", THEN), state_of(TurnStatus.INTERRUPTED))
    taken = Response.construct(**value)
    assert taken.status == "incomplete"
    assert taken.incomplete_details is not None
    assert str(taken.incomplete_details.reason) == "interrupted"


def test_the_least_echo_is_that_of_a_request_that_asked_for_nothing() -> None:
    assert parse({"input": "hi"}).echo == NOTHING_ASKED


def test_whoever_answered_is_named() -> None:
    head = ResponseHead("resp_1", THEN, model="asked")
    assert response_object(head, QUEUED)["model"] == "asked"
    assert response_object(head, QUEUED, model="answered")["model"] == "answered"
    assert "holdfast" not in response_object(head, QUEUED)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (None, "server_error"),
        (500, "server_error"),
        (429, "rate_limit_exceeded"),
        (400, "invalid_prompt"),
        (422, "invalid_prompt"),
    ],
)
def test_an_error_has_a_code_that_the_sdk_knows(status: int | None, code: str) -> None:
    assert response_error("so", status) == {"code": code, "message": "so"}


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (None, None),
        ({}, None),
        ({"prompt_tokens": 3, "completion_tokens": 4}, (3, 0, 4, 0, 7)),
        (
            {
                "prompt_tokens": 3,
                "completion_tokens": 4,
                "total_tokens": 9,
                "prompt_tokens_details": {"cached_tokens": 2, "audio_tokens": None},
                "completion_tokens_details": {"reasoning_tokens": 1},
            },
            (3, 2, 4, 1, 9),
        ),
        (
            {"input_tokens": 3, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 1}},
            (3, 1, 4, 0, 7),
        ),
        ({"prompt_tokens": "3", "completion_tokens": True, "prompt_tokens_details": 7}, (0, 0, 0, 0, 0)),
    ],
)
def test_tokens_are_counted_by_either_name(
    usage: dict[str, Any] | None, counted: tuple[int, ...] | None
) -> None:
    value = response_usage(usage)
    if counted is None:
        assert value is None
        return
    assert value is not None
    assert counted == (
        value["input_tokens"],
        value["input_tokens_details"]["cached_tokens"],
        value["output_tokens"],
        value["output_tokens_details"]["reasoning_tokens"],
        value["total_tokens"],
    )


def test_conversations_have_the_sdks_shapes() -> None:
    ours = ConversationHoldfastObject(session_id="sess_1", key=None, title=None)
    value = msgspec.to_builtins(conversation_object("conv_1", THEN, {"a": "b"}, ours))
    assert Conversation.model_validate(value).created_at == SECONDS
    assert value["metadata"] == {"a": "b"}
    assert ConversationDeletedResource.model_validate(
        msgspec.to_builtins(deleted_conversation("conv_1"))
    ).deleted
    gone = msgspec.to_builtins(deleted_response("resp_1"))
    assert gone == {"id": "resp_1", "object": "response", "deleted": True}


def test_a_new_conversation_may_bring_items_and_metadata() -> None:
    assert parse_conversation({}).messages == ()
    made = parse_conversation({"items": [{"role": "user", "content": "hi"}], "metadata": {"a": "b"}})
    assert made.messages == ({"role": "user", "content": "hi"},)
    assert made.metadata == {"a": "b"}
    assert parse_items({"items": [{"role": "user", "content": "hi"}]}) == made.messages
    assert parse_metadata({"metadata": {"a": "b"}}) == {"a": "b"}
    assert parse_metadata({"metadata": None}) == {}


@pytest.mark.parametrize(
    ("read", "body", "param"),
    [
        (parse_conversation, {"items": "hi"}, "items"),
        (parse_conversation, {"items": [7]}, "items[0]"),
        (parse_conversation, {"metadata": 7}, "metadata"),
        (parse_conversation, [], "the request"),
        (parse_items, {}, "items"),
        (parse_items, {"items": []}, "items"),
        (parse_metadata, {}, "metadata"),
        (parse_metadata, {"metadata": [7]}, "metadata"),
    ],
)
def test_what_is_malformed_is_refused_by_its_name(read: Any, body: Any, param: str) -> None:
    with pytest.raises(BadParameter) as refused:
        read(body)
    assert refused.value.param == param
