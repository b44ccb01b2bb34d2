from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.models.chunks import chunk_of
from holdfast.models.reply import Reply, ReplyFolder, fold


def reply_of(*deltas: Mapping[str, Any], finish_reason: str | None = "stop", **top: Any) -> Reply:
    choices = [{"index": 0, "delta": delta} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish_reason})
    return fold(chunk_of({"id": "chatcmpl-7", "choices": [choice], **top}) for choice in choices)


def call(index: int | None, call_id: str | None, name: str | None, arguments: Any) -> dict[str, Any]:
    piece: dict[str, Any] = {"function": {"arguments": arguments}}
    if index is not None:
        piece["index"] = index
    if call_id is not None:
        piece |= {"id": call_id, "type": "function"}
    if name is not None:
        piece["function"]["name"] = name
    return {"tool_calls": [piece]}


def whole(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("deltas", "message"),
    [
        pytest.param([], {"content": ""}, id="nothing"),
        pytest.param([{"content": "Hel"}, {"content": "lo"}], {"content": "Hello"}, id="text"),
        pytest.param([{"content": None}, {"content": ""}], {"content": ""}, id="no text"),
        pytest.param([{"role": "model", "content": "x"}, {"role": ""}], {"content": "x"}, id="another role"),
        pytest.param(
            [{"reasoning_content": "Hm"}, {"reasoning_content": "m"}, {"content": "Yes"}],
            {"content": "Yes", "reasoning_content": "Hmm"},
            id="reasoning, as DeepSeek and vLLM name it",
        ),
        pytest.param(
            [
                {"reasoning": "a", "reasoning_details": [{"n": 1}]},
                {"reasoning": "b", "reasoning_details": [{"n": 2}]},
            ],
            {"content": None, "reasoning": "ab", "reasoning_details": [{"n": 1}, {"n": 2}]},
            id="reasoning, as OpenRouter names it",
        ),
        pytest.param(
            [{"refusal": "I "}, {"refusal": "won't"}], {"content": None, "refusal": "I won't"}, id="refusal"
        ),
        pytest.param(
            [{"content": "x", "mood": "grim", "n": 1}, {"mood": "kind", "n": 2}, {"mood": None}],
            {"content": "x", "mood": "kind", "n": 2},
            id="fields nobody knows",
        ),
        pytest.param(
            [{"content": "x", "audio": {"id": "a"}}, {"audio": {"expires_at": 5}}],
            {"content": "x", "audio": {"id": "a", "expires_at": 5}},
            id="an object in pieces",
        ),
        pytest.param(
            [{"content": [{"type": "thinking"}]}, {"content": "Yes"}],
            {"content": [{"type": "thinking"}, {"type": "text", "text": "Yes"}]},
            id="content as parts",
        ),
        pytest.param(
            [{"function_call": {"name": "f", "arguments": "{"}}, {"function_call": {"arguments": "}"}}],
            {"content": None, "function_call": {"name": "f", "arguments": "{}"}},
            id="the old function_call",
        ),
    ],
)
def test_fields_fold(deltas: list[dict[str, Any]], message: dict[str, Any]) -> None:
    assert reply_of(*deltas).message == {"role": "assistant", **message}


@pytest.mark.parametrize(
    ("deltas", "calls"),
    [
        pytest.param(
            [call(0, "a", "f", ""), call(0, None, None, '{"x"'), call(0, None, None, ":1}")],
            [whole("a", "f", '{"x":1}')],
            id="arguments in pieces",
        ),
        pytest.param(
            [
                call(0, "a", "f", ""),
                call(1, "b", "g", ""),
                call(0, None, None, "{}"),
                call(1, None, None, "[]"),
            ],
            [whole("a", "f", "{}"), whole("b", "g", "[]")],
            id="two, interleaved",
        ),
        pytest.param(
            [call(0, "a", "f", "{}"), call(0, "b", "f", "{}")],
            [whole("a", "f", "{}"), whole("b", "f", "{}")],
            id="all at index 0",
        ),
        pytest.param(
            [call(None, "a", "f", "{"), call(None, None, None, "}"), call(None, "b", "g", "{}")],
            [whole("a", "f", "{}"), whole("b", "g", "{}")],
            id="no index",
        ),
        pytest.param(
            [call(0, None, "f", {"x": 1})], [whole("call_7_0", "f", '{"x":1}')], id="an object, no id"
        ),
        pytest.param(
            [call(0, "", "f", "{}"), call(1, "", "g", None)],
            [whole("call_7_0", "f", "{}"), whole("call_7_1", "g", "")],
            id="empty ids",
        ),
        pytest.param(
            [call(0, "a", "f", "{}"), call(1, "a", "g", "{}")],
            [whole("a", "f", "{}"), whole("call_7_1", "g", "{}")],
            id="one id for two",
        ),
        pytest.param(
            [call(0, "a", "f", "{"), call(0, "a", "f", "}")],
            [whole("a", "f", "{}")],
            id="all said every time",
        ),
        pytest.param(
            [{"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f"}, "extra": {"sig": "s"}}]}],
            [{**whole("a", "f", ""), "extra": {"sig": "s"}}],
            id="a field nobody knows",
        ),
    ],
)
def test_tool_calls_fold(deltas: list[dict[str, Any]], calls: list[dict[str, Any]]) -> None:
    reply = reply_of(*deltas, finish_reason="tool_calls")
    assert reply.message == {"role": "assistant", "content": None, "tool_calls": calls}
    assert reply == reply_of(*deltas, finish_reason="tool_calls")


def test_calls_without_any_id_get_one_that_stays() -> None:
    folder = ReplyFolder()
    folder.add(chunk_of({"choices": [{"delta": call(0, None, "f", "{}")}]}))
    first, again = (folder.reply().message["tool_calls"][0]["id"] for _ in range(2))
    assert first == again
    assert first.startswith("call_")


def test_usage_and_model_come_with_the_reply() -> None:
    folder = ReplyFolder()
    folder.add(chunk_of({"model": "tiny", "choices": [{"delta": {"content": "x"}}], "usage": None}))
    folder.add(chunk_of({"model": "tiny", "choices": [{"delta": {}, "finish_reason": "length"}]}))
    folder.add(chunk_of({"model": "tiny", "choices": [], "usage": {"total_tokens": 5}}))
    assert folder.reply() == Reply(
        {"role": "assistant", "content": "x"}, "length", {"total_tokens": 5}, "tiny"
    )


def test_a_stream_that_broke_off_gives_what_had_arrived() -> None:
    folder = ReplyFolder()
    assert folder.reply().message == {"role": "assistant", "content": ""}
    folder.add(chunk_of({"choices": [{"delta": {"content": "Hel"}}]}))
    assert folder.reply() == Reply({"role": "assistant", "content": "Hel"}, None, None, None)


def test_a_completion_has_all_choices_and_unknown_fields() -> None:
    folder = ReplyFolder()
    for index, text in ((0, "a"), (1, "b"), (0, "A")):
        choice = {"index": index, "delta": {"content": text}, "logprobs": {"content": [{"token": text}]}}
        folder.add(chunk_of({"id": "chatcmpl-7", "object": "chat.completion.chunk", "choices": [choice]}))
    end = [{"index": 1, "delta": {}, "finish_reason": "stop", "stop_reason": 7}]
    folder.add(chunk_of({"choices": end, "provider": "somewhere", "usage": {"total_tokens": 2}}))
    assert folder.completion() == {
        "id": "chatcmpl-7",
        "object": "chat.completion",
        "provider": "somewhere",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "aA"},
                "logprobs": {"content": [{"token": "a"}, {"token": "A"}]},
                "finish_reason": None,
            },
            {
                "index": 1,
                "message": {"role": "assistant", "content": "b"},
                "logprobs": {"content": [{"token": "b"}]},
                "finish_reason": "stop",
                "stop_reason": 7,
            },
        ],
        "usage": {"total_tokens": 2},
    }
