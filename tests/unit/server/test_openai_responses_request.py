"""Requests to the Responses API: what goes to the chat model, what stays, what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.server.openai.parameters import BadParameter, metadata_of
from holdfast.server.openai.responses_request import OURS, custom_tools_of, parse

ADD = {
    "type": "function",
    "name": "add",
    "description": "sums",
    "parameters": {"type": "object"},
    "strict": True,
}
CHAT_ADD = {
    "type": "function",
    "function": {"name": "add", "description": "sums", "parameters": {"type": "object"}, "strict": True},
}
SUB = {"type": "function", "name": "sub"}
CHAT_SUB = {"type": "function", "function": {"name": "sub"}}
SHELL = {"type": "custom", "name": "sh", "description": "runs"}


def options_of(**fields: Any) -> Any:
    return parse({"input": "hi", **fields}).options


def test_the_least_request() -> None:
    request = parse({"input": "hi"})
    assert request.messages == ({"role": "user", "content": "hi"},)
    assert request.options == {}
    assert (request.model, request.instructions, request.previous_response_id) == (None, None, None)
    assert (request.stream, request.store, request.background) == (False, True, False)


def test_nulls_are_as_good_as_nothing() -> None:
    assert parse({"input": "hi", **dict.fromkeys(OURS - {"input"})}) == parse({"input": "hi"})


def test_what_is_for_holdfast() -> None:
    request = parse(
        {
            "input": [{"role": "user", "content": "hi"}],
            "model": "m",
            "instructions": "be kind",
            "stream": True,
            "background": True,
            "conversation": {"id": "conv_1"},
            "metadata": {"a": "b"},
            "include": ["reasoning.encrypted_content"],
            "stream_options": {"include_obfuscation": False},
            "truncation": "auto",
            "max_tool_calls": 3,
        }
    )
    assert request.options == {}
    assert request.model == "m"
    assert request.instructions == "be kind"
    assert request.stream and request.background and request.store
    assert request.conversation_id == "conv_1"
    assert request.metadata == {"a": "b"}
    assert request.include == ("reasoning.encrypted_content",)


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"max_output_tokens": 9}, {"max_completion_tokens": 9}),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"temperature": 0, "top_p": 0.5}, {"temperature": 0, "top_p": 0.5}),
        ({"top_logprobs": 2}, {"top_logprobs": 2, "logprobs": True}),
        ({"top_logprobs": 0}, {}),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True}),
        ({"user": "u", "safety_identifier": "s"}, {"user": "u", "safety_identifier": "s"}),
        (
            {"service_tier": "flex", "prompt_cache_key": "k"},
            {"service_tier": "flex", "prompt_cache_key": "k"},
        ),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, {"verbosity": "low"}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"a": 1}, "strict": True}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"a": 1}, "strict": True},
                }
            },
        ),
        ({"tools": []}, {}),
        ({"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}, {}),
        ({"tools": [ADD], "parallel_tool_calls": False}, {"tools": [CHAT_ADD], "parallel_tool_calls": False}),
        ({"tools": [SUB], "tool_choice": "required"}, {"tools": [CHAT_SUB], "tool_choice": "required"}),
        (
            {"tools": [SUB], "tool_choice": {"type": "function", "name": "sub"}},
            {"tools": [CHAT_SUB], "tool_choice": {"type": "function", "function": {"name": "sub"}}},
        ),
        (
            {
                "tools": [ADD, SUB],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [{"type": "function", "name": "sub"}],
                },
            },
            {"tools": [CHAT_SUB], "tool_choice": "required"},
        ),
        (
            {"tools": [{**SUB, "defer_loading": True, "cache_control": {"type": "x"}, "strict": None}]},
            {"tools": [{**CHAT_SUB, "cache_control": {"type": "x"}}]},
        ),
        ({"seed": 7, "chat_template_kwargs": {"a": [1]}}, {"seed": 7, "chat_template_kwargs": {"a": [1]}}),
        ({"truncation": "disabled", "context_management": []}, {}),
    ],
)
def test_what_is_for_the_model(fields: dict[str, Any], options: dict[str, Any]) -> None:
    assert options_of(**fields) == options


def test_a_custom_tool_is_a_function_with_one_text() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: WORD"}
    request = parse({"input": "hi", "tools": [{**SHELL, "format": grammar}, SUB]})
    function = request.options["tools"][0]["function"]
    assert function["parameters"]["required"] == ["input"]
    assert function["description"] == "runs\n\nThe input must match this lark grammar:\nstart: WORD"
    assert request.custom_tools == custom_tools_of(request.echo) == frozenset({"sh"})


def test_the_input_may_be_left_out_where_a_conversation_goes_on() -> None:
    assert parse({"previous_response_id": "resp_1"}).messages == ()
    assert parse({"conversation": "conv_1", "input": []}).messages == ()


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": None}, "input", "must not be empty"),
        ({"input": []}, "input", "must not be empty"),
        ({"input": 7}, "input", "text or a list"),
        ({"input": [{"type": "no_such_call"}]}, "input[0].type", "no_such_call"),
        ({"model": 7}, "model", "text"),
        ({"instructions": ["x"]}, "instructions", "text, not a list"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"store": 1}, "store", "true or false"),
        ({"background": "x"}, "background", "true or false"),
        ({"background": True, "store": False}, "background", "needs store"),
        ({"previous_response_id": 7}, "previous_response_id", "text"),
        ({"previous_response_id": "r", "conversation": "c"}, "previous_response_id", "conversation"),
        ({"conversation": 7}, "conversation", "an id"),
        ({"conversation": ""}, "conversation", "empty"),
        ({"conversation": {}}, "conversation.id", "text"),
        ({"metadata": []}, "metadata", "an object"),
        ({"metadata": {"a": 1}}, "metadata.a", "text"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a", "512"),
        ({"metadata": {"a" * 65: "x"}}, "metadata", "64"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "metadata", "16"),
        ({"include": "x"}, "include", "a list"),
        ({"include": [1]}, "include[0]", "text"),
        ({"tools": {}}, "tools", "a list"),
        ({"tools": [1]}, "tools[0]", "an object"),
        ({"tools": [{}]}, "tools[0].type", "text"),
        ({"tools": [SUB, {"type": 7}]}, "tools[1].type", "text"),
        ({"tools": [{"type": "mcp"}], "tool_choice": {"type": "mcp"}}, "tool_choice.type", "only OpenAI"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "text"),
        ({"tools": [{**SUB, "parameters": "x"}]}, "tools[0].parameters", "an object"),
        ({"tools": [{**SUB, "strict": 1}]}, "tools[0].strict", "true or false"),
        ({"tools": [{**SUB, "description": 1}]}, "tools[0].description", "text"),
        ({"tools": [SUB, SUB]}, "tools[1].name", "another tool"),
        ({"tools": [{**SHELL, "format": 1}]}, "tools[0].format", "an object"),
        ({"tool_choice": "all"}, "tool_choice", "none, auto, required"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tool_choice": 7}, "tool_choice", "an object"),
        ({"tools": [SUB], "tool_choice": {"type": "function", "name": "add"}}, "tool_choice.name", "no tool"),
        ({"tools": [SUB], "tool_choice": {"type": "file_search"}}, "tool_choice.type", "file_search"),
        ({"tools": [SUB], "tool_choice": {"type": "allowed_tools", "mode": "x"}}, "tool_choice.mode", "auto"),
        (
            {
                "tools": [SUB],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "x"}]},
            },
            "tool_choice.tools[0].name",
            "no tool",
        ),
        (
            {"tools": [SUB], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
            "tool_choice.tools",
            "at least one",
        ),
        ({"parallel_tool_calls": "x"}, "parallel_tool_calls", "true or false"),
        ({"text": 7}, "text", "an object"),
        ({"text": {"verbosity": 7}}, "text.verbosity", "text"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "xml"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema", "an object"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name", "text"),
        ({"max_output_tokens": 0}, "max_output_tokens", "1 or more"),
        ({"max_output_tokens": 1.5}, "max_output_tokens", "whole"),
        ({"max_output_tokens": True}, "max_output_tokens", "number"),
        ({"max_tool_calls": -1}, "max_tool_calls", "0 or more"),
        ({"reasoning": "high"}, "reasoning", "an object"),
        ({"reasoning": {"effort": 1}}, "reasoning.effort", "text"),
        ({"temperature": "hot"}, "temperature", "a number"),
        ({"top_p": True}, "top_p", "a number"),
        ({"top_logprobs": -1}, "top_logprobs", "0 or more"),
        ({"user": 7}, "user", "text"),
        ({"safety_identifier": 7}, "safety_identifier", "text"),
        ({"service_tier": 7}, "service_tier", "text"),
        ({"prompt_cache_key": 7}, "prompt_cache_key", "text"),
        ({"truncation": "middle"}, "truncation", "auto, disabled"),
        ({"stream_options": 7}, "stream_options", "an object"),
        ({"context_management": 7}, "context_management", "a list"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "template"),
        ({"messages": []}, "messages", "input"),
        ({"n": 2}, "n", "one answer"),
    ],
)
def test_a_refusal_names_the_field(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(BadParameter) as refused:
        parse({"input": "hi", **fields})
    assert refused.value.param == param
    assert words in str(refused.value)


def test_a_request_that_is_no_object_is_refused() -> None:
    with pytest.raises(BadParameter, match="must be an object, not a list"):
        parse([])  # type: ignore[arg-type]


def test_metadata_is_taken_at_its_limits() -> None:
    most = {f"{n:064}": "x" * 512 for n in range(16)}
    assert metadata_of(most) == most
    assert metadata_of(None) == {}


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
nearly: st.SearchStrategy[Any] = json_values | st.dictionaries(
    st.sampled_from(
        ["type", "name", "id", "format", "mode", "tools", "effort", "schema", "verbosity", "syntax"]
    ),
    st.sampled_from(["function", "custom", "allowed_tools", "json_schema", "auto", "x"]) | json_values,
)


@given(
    st.dictionaries(
        st.sampled_from(sorted(OURS)) | st.text(max_size=5), nearly | st.lists(nearly, max_size=2)
    )
)
def test_rubbish_is_refused_in_one_way_only(body: dict[str, Any]) -> None:
    try:
        request = parse({"input": "hi", **body})
    except BadInput:
        return
    msgspec.json.decode(msgspec.json.encode(request.echo))
