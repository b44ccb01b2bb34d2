"""What counts as a message, and what of it is lifted out."""

from typing import Any

import msgspec
import pytest

from holdfast.domain.messages import MessageStatus
from holdfast.domain.new_messages import (
    MAX_BODY_BYTES,
    ROLES,
    is_part,
    new_message,
    new_messages,
    tool_result,
    user_message,
)
from holdfast.errors import BadMessage


def call(call_id: str, **more: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "look", "arguments": "{}"}, **more}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "hello"},
        {"role": "user", "content": ""},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}],
        },
        {"role": "user", "content": ["a bare part"]},
        {"role": "system", "content": "be kind"},
        {"role": "developer", "content": "be brief"},
        {"role": "function", "name": "old", "content": "42"},
        {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b")]},
        {"role": "assistant", "content": "x", "tool_calls": None},
        {"role": "assistant", "content": "x", "reasoning_content": "because", "refusal": None},
        {"role": "assistant"},
        {"role": "tool", "tool_call_id": "a", "content": "42"},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "42"}]},
        {"role": "user", "content": "x", "unknown": {"deep": [1, 2.5, True, None, {"a": "ü"}]}},
        {"role": "user", "content": "x", "big": 10**30, "small": -(10**30)},
        {"role": "user", "content": "the letters \\u0000 and \\ud800, spelled out"},
        {"role": "user", "content": "\U0001f600 \u202e \ufeff \x01 \x7f"},
    ],
)
def test_a_message_keeps_every_field_as_it_came(message: dict[str, Any]) -> None:
    stored = new_message(message)
    assert msgspec.json.decode(stored.body) == message
    assert stored.role == message["role"]
    assert stored.status is MessageStatus.COMPLETED
    assert new_message(stored.body) == stored


@pytest.mark.parametrize(
    ("message", "calls", "answers"),
    [
        ({"role": "user", "content": "x"}, (), None),
        ({"role": "assistant", "tool_calls": [call("b"), call("a")]}, ("b", "a"), None),
        ({"role": "assistant", "tool_calls": []}, (), None),
        ({"role": "tool", "tool_call_id": "a", "content": "x"}, (), "a"),
        (
            {"role": "user", "content": "x", "tool_calls": [call("not of a user")], "tool_call_id": 5},
            (),
            None,
        ),
    ],
)
def test_calls_and_answers_are_lifted_out_of_the_roles_that_have_them(
    message: dict[str, Any], calls: tuple[str, ...], answers: str | None
) -> None:
    stored = new_message(message)
    assert (stored.calls, stored.answers) == (calls, answers)


def nested(depth: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "user", "content": "x"}
    inner = message
    for _ in range(depth):
        inner["deeper"] = {}
        inner = inner["deeper"]
    return message


def endless() -> dict[str, Any]:
    message: dict[str, Any] = {"role": "user"}
    message["itself"] = message
    return message


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "not NoneType"),
        ("just text", "not str"),
        (5, "not int"),
        ([{"role": "user", "content": "x"}], "not list"),
        ({}, "role"),
        ({"content": "x"}, "role"),
        ({"role": "robot", "content": "x"}, "'robot'"),
        ({"role": None, "content": "x"}, "None"),
        ({"role": 5, "content": "x"}, "5"),
        ({"role": ["user"], "content": "x"}, "role"),
        ({"role": {"name": "user"}, "content": "x"}, "role"),
        ({"role": "USER", "content": "x"}, "'USER'"),
        ({"role": "user", "content": 5}, "not int"),
        ({"role": "user", "content": {"type": "text"}}, "not dict"),
        ({"role": "user", "content": [5]}, "part"),
        ({"role": "user", "content": [None]}, "part"),
        ({"role": "tool", "content": "x"}, "tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": ""}, "tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": 7}, "tool_call_id"),
        ({"role": "assistant", "tool_calls": "x"}, "tool_calls must be a list"),
        ({"role": "assistant", "tool_calls": {"id": "a"}}, "tool_calls must be a list"),
        ({"role": "assistant", "tool_calls": [call("a"), "x"]}, "tool_calls[1]"),
        ({"role": "assistant", "tool_calls": [{"type": "function"}]}, "tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [call("")]}, "tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [call("a"), call("a")]}, "share an id"),
        ({"role": "assistant", "tool_calls": [{"id": "a", "function": "x"}]}, "tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{"id": "a", "custom": ["x"]}]}, "tool_calls[0].custom"),
        ({"role": "user", "content": "x", "tool_calls": 5}, "tool_calls must be a list"),
        ({"role": "tool", "content": "x", "tool_call_id": "a", "tool_calls": ["x"]}, "tool_calls[0]"),
        ({"role": "user", "content": "a\x00b"}, "NUL byte at position 1"),
        ({"role": "user", "content": "\ud800"}, "lone surrogate (U+D800)"),
        ({"role": "user", "content": "x", "deep": [{"er": "\x00"}]}, "'deep'[0].'er' holds a NUL"),
        ({"role": "user", "content": "x", "a\x00": 1}, "a name in message holds a NUL"),
        ({"role": "user", "content": "x", "\udfff": 1}, "a name in message holds a lone surrogate"),
        ({"role": "assistant", "tool_calls": [call("a\x00")]}, "NUL"),
        ({"role": "user", "content": "x", "thing": object()}, "cannot be stored"),
        ({"role": "user", "content": "x", None: 1}, "cannot be stored"),
        (nested(5_000), "nested too deeply"),
        (endless(), "nested too deeply"),
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"null", "not NoneType"),
        (b"[]", "not list"),
        (b'"text"', "not str"),
        (b'{"role": "user", "content": "\xff"}', "not valid JSON"),
        (b'{"role": "user", "content": "a\\u0000b"}', "NUL byte at position 1"),
        (b'{"role": "user", "content": "\\ud800 alone"}', "surrogate"),
        (b'{"role": "user", "content": "\\udfff alone"}', "surrogate"),
        (b'{"role": "user", "deep": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", "nested too deeply"),
        (b'{"role": "user", "content": "x", "n": 1e400}', "not valid JSON"),
    ],
    ids=range(50),
)
def test_what_is_no_message_is_refused_saying_why(value: Any, why: str) -> None:
    with pytest.raises(BadMessage) as refusal:
        new_message(value)
    assert why in str(refusal.value)


def test_a_message_at_the_limit_is_taken_and_one_byte_more_is_refused() -> None:
    around = len(user_message("").body)
    assert len(user_message("x" * (MAX_BODY_BYTES - around)).body) == MAX_BODY_BYTES
    with pytest.raises(BadMessage, match=str(MAX_BODY_BYTES + 1)):
        user_message("x" * (MAX_BODY_BYTES - around + 1))


def test_the_limit_counts_bytes_not_characters() -> None:
    with pytest.raises(BadMessage, match="bytes long"):
        user_message("日" * (MAX_BODY_BYTES // 3 + 1))


def test_a_text_is_something_the_user_said() -> None:
    assert new_messages("hello") == (user_message("hello"),)
    assert new_messages("hello")[0].role == "user"


def test_one_object_or_several_are_taken_in_order() -> None:
    first, second = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    assert new_messages(first) == (new_message(first),)
    assert new_messages([first, second]) == (new_message(first), new_message(second))
    assert new_messages(iter([first, second])) == (new_message(first), new_message(second))
    assert new_messages([]) == ()


@pytest.mark.parametrize("value", [None, 5, [5], ["text"], b"{}", [None]])
def test_what_holds_no_messages_is_refused(value: Any) -> None:
    with pytest.raises(BadMessage):
        new_messages(value)


def test_a_tool_result_answers_its_call() -> None:
    result = tool_result("call_1", "42")
    assert (result.role, result.answers) == ("tool", "call_1")
    assert msgspec.json.decode(result.body) == {"role": "tool", "tool_call_id": "call_1", "content": "42"}


def test_the_roles_are_those_of_the_api() -> None:
    assert {"system", "developer", "user", "assistant", "tool", "function"} == ROLES


@pytest.mark.parametrize(
    ("rest", "whole", "part"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": None}, {"a": "said"}, True),
        ({"a": None}, {}, False),
        ({"a": "sai"}, {"a": "said"}, False),
        ({"a": [1, 3]}, {"a": [1, 2, 3]}, True),
        ({"a": [3, 1]}, {"a": [1, 2, 3]}, False),
        ({"a": [1, 1]}, {"a": [1, 2]}, False),
        ({"a": []}, {"a": [1]}, True),
        ({"a": {"b": None}}, {"a": {"b": 1, "c": 2}}, True),
        ({"a": {}}, {"a": [1]}, False),
        ({}, {"a": 1}, True),
    ],
)
def test_a_part_says_nothing_new_and_nothing_in_another_order(rest: Any, whole: Any, part: bool) -> None:
    assert is_part(rest, whole) is part
