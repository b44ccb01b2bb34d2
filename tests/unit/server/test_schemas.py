"""Bodies of our own routes as Structs, and what is sent as a dictionary held against its Struct."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.domain.messages import Message, MessageStatus
from holdfast.models.scripted import ScriptedModel
from holdfast.server import objects, schemas
from holdfast.server.admin.processes import PinBody, ProcessBody
from holdfast.server.admin.session_actions import EndBody, ForkBody
from holdfast.server.openai.completions import whole
from holdfast.server.openai.items import items_from, listed
from holdfast.server.openai.parameters import BadParameter, RequestBody, _expected, body_from
from holdfast.server.openai.schemas import ChatCompletionObject, ItemListObject, ModelObject
from holdfast.server.server import ROUTES
from tests.unit.server.test_objects import NOON


def own_bodies() -> list[type[RequestBody]]:
    return [
        route.body for route in ROUTES if isinstance(route.body, type) and issubclass(route.body, RequestBody)
    ]


@pytest.mark.parametrize("body", sorted(set(own_bodies()), key=str))
def test_every_field_of_a_body_says_what_it_must_be(body: type[RequestBody]) -> None:
    assert set(_expected(body)) == set(body.__struct_fields__)


@pytest.mark.parametrize(
    ("fields", "body", "param", "sentence"),
    [
        ({"x": 1}, ForkBody, "x", "x is not a field of this request; there are up_to, key"),
        ({"x": 1}, RequestBody, "x", "x is not a field of this request; this takes none"),
        ({"up_to": "a"}, ForkBody, "up_to", "up_to must be the number of a message, not 'a'"),
        ({"up_to": 4.0}, ForkBody, "up_to", "up_to must be the number of a message, not 4.0"),
        ({"up_to": True}, ForkBody, "up_to", "up_to must be the number of a message, not true or false"),
        ({"key": {}}, ForkBody, "key", "key must be text, not an object"),
        ({"reason": "idle"}, EndBody, "reason", "reason must be one of closed, completed, new, not 'idle'"),
        ({}, PinBody, "hours", "hours must be a number of hours, not null"),
        ({"hours": None}, PinBody, "hours", "hours must be a number of hours, not null"),
        ({"hours": 10**5000}, PinBody, "hours", "hours must be a number of hours, not a number"),
        ({"pid": "1"}, ProcessBody, "pid", "pid must be the number of a process, not '1'"),
        (
            {"command": []},
            ProcessBody,
            "command",
            "command must be text for the shell, or a list of texts, not an empty list",
        ),
        (
            {"command": ["a", 1]},
            ProcessBody,
            "command",
            "command must be text for the shell, or a list of texts, not a list",
        ),
    ],
)
def test_a_wrong_field_is_named_with_what_it_must_be(
    fields: dict[str, Any], body: type[RequestBody], param: str, sentence: str
) -> None:
    with pytest.raises(BadParameter) as refused:
        body_from(fields, body)
    assert (refused.value.param, str(refused.value)) == (param, sentence)


def test_null_means_not_given() -> None:
    assert body_from({"up_to": None, "key": None}, ForkBody) == ForkBody()
    assert body_from({"reason": None}, EndBody).reason == "closed"


def test_a_message_has_the_fields_of_its_struct_and_its_own() -> None:
    body = b'{"role":"user","content":"hi","name":"ada"}'
    message = Message("conv_1", 3, "sess_1", None, "user", MessageStatus.COMPLETED, NOON, body)
    shown = objects.message(message)
    assert shown.keys() - {"name"} == set(schemas.MessageObject.__struct_fields__) - {"inner"}
    msgspec.convert(shown, schemas.MessageObject)


def test_items_and_completions_match_their_structs() -> None:
    reply = {"role": "assistant", "content": "hi", "tool_calls": [{"id": "c", "function": {"name": "f"}}]}
    page = listed(items_from(reply, "msg_1_2"))
    assert list(page) == list(ItemListObject.__struct_fields__)
    msgspec.convert(page, ItemListObject)
    answer = {"id": "x", "choices": [{"index": 0, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}
    ours = schemas.HoldfastObject(
        session_id="s", conversation_id="c", turn_id="t", compacted=False, reset=None, notices=[]
    )
    completion = msgspec.to_builtins(whole(answer, reply, ours))
    assert msgspec.convert(completion, ChatCompletionObject).holdfast == ours


async def test_models_match_their_struct() -> None:
    for each in await ScriptedModel().models():
        msgspec.convert(each, ModelObject)
