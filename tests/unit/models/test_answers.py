from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ModelError
from holdfast.models.base import Chunk
from holdfast.models.chunks import AnswerReader
from holdfast.models.reply import fold
from tests.unit.models.mock_upstream import delta, event, hello

WHOLE = {
    "id": "chatcmpl-9",
    "object": "chat.completion",
    "model": "tiny",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello Ada", "mood": "kind"},
            "finish_reason": "stop",
        }
    ],
    "usage": {"total_tokens": 5},
    "provider": "somewhere",
}


def read(*pieces: bytes, choices: int = 1) -> list[Chunk]:
    reader = AnswerReader(choices)
    chunks = [chunk for piece in pieces for chunk in reader.feed(piece)]
    return chunks if reader.done else [*chunks, *reader.end()]


def test_chunks_keep_the_bytes_they_came_as() -> None:
    odd = b'{"choices": [ {"delta":{"content":"\\u00e4", "x_odd": [1e2]}, "finish_reason":"stop"} ], "x":1}'
    (chunk,) = read(event(odd), event(b"[DONE]"))
    assert chunk.raw == odd
    assert chunk.value["x"] == 1
    assert chunk.adds == {"content": "ä"}


def test_a_whole_completion_becomes_one_chunk() -> None:
    (chunk,) = read(b"\n " + msgspec.json.encode(WHOLE))
    assert chunk.value["object"] == "chat.completion.chunk"
    assert chunk.value["provider"] == "somewhere"
    assert msgspec.json.decode(chunk.raw) == chunk.value
    reply = fold([chunk])
    assert reply.message == {"role": "assistant", "content": "Hello Ada", "mood": "kind"}
    assert (reply.finish_reason, reply.usage, reply.model) == ("stop", {"total_tokens": 5}, "tiny")


def test_tool_calls_of_a_whole_completion_stay_apart() -> None:
    calls = [
        {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in ("a", "b")
    ]
    choice = {"index": 0, "message": {"content": None, "tool_calls": calls}, "finish_reason": "tool_calls"}
    assert fold(read(msgspec.json.encode({"choices": [choice]}))).message["tool_calls"] == calls


@pytest.mark.parametrize(
    ("pieces", "message", "status"),
    [
        ([event(delta(content="Hel"))], "the model's stream ended early: the connection ended", None),
        ([event(delta(content="Hel")), event(b"[DONE]")], "ended early: .DONE. came before", None),
        ([], "the model's stream ended early", None),
        ([b" \n "], "the model's stream ended early", None),
        ([b": ping\n\n"], "the model's stream ended early", None),
        ([event({"error": {"message": "out of memory", "code": 503}})], "error: out of memory", 503),
        ([event({"error": "plain words"})], "error: plain words", None),
        ([event({"error": {"code": "overloaded"}})], "error: overloaded", None),
        ([b'event: error\ndata: {"message": "boom"}\n\n'], "error: boom", None),
        ([b'{"error": {"message": "not here", "code": 404}}'], "error: not here", 404),
        ([b"<!doctype html><title>Open WebUI</title>"], "web page; does .model. base_url end in /v1", None),
        ([b'{"choices": []}'], "no choices", None),
        ([b'{"choices": [{"message": {"content": "x"}}]}'], "ended early", None),
        ([b'{"cut'], "not JSON", None),
        ([event(b"hello")], "not JSON", None),
        ([event(b"[1]")], "not a chat completion", None),
        ([event(b'"\xff"')], "not JSON", None),
        ([event(b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}")], "not JSON", None),
        ([event({"choices": "x"})], r"not a chat completion .*\$.choices", None),
        ([event({"choices": [1]})], r"not a chat completion .*\$.choices\[0\]", None),
        ([event({"choices": [{"index": []}]})], "not a chat completion", None),
        ([event({"choices": [{"delta": "x"}]})], "not a chat completion", None),
        ([event({"choices": [{"delta": {"tool_calls": {"id": "x"}}}]})], "not a chat completion", None),
        ([event({"choices": [{"delta": {"tool_calls": [{"function": 1}]}}]})], "not a chat completion", None),
        ([event({"choices": [{"delta": {"content": 1}}]})], "not a chat completion", None),
        ([event({"choices": [], "usage": 3})], "not a chat completion", None),
        ([event({"choices": [], "model": {}})], "not a chat completion", None),
        ([b'{"choices": [{"message": "x", "finish_reason": "stop"}]}'], "not a chat completion", None),
    ],
)
def test_what_is_no_whole_answer_is_an_error(pieces: list[bytes], message: str, status: int | None) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        read(*pieces)
    assert caught.value.status == status


def test_an_error_inside_the_stream_says_all_it_has_to_say() -> None:
    error = {"message": "slow down", "type": "requests", "param": None, "code": "rate_limit_exceeded"}
    with pytest.raises(ModelError) as caught:
        read(event({"error": error, "status": 429}))
    found = caught.value
    assert (found.status, found.said, found.retry_after) == (429, "slow down", None)
    assert (found.type, found.param, found.code) == ("requests", None, "rate_limit_exceeded")


def test_what_an_error_inside_the_stream_says_is_made_fit_to_be_shown() -> None:
    reader = AnswerReader(shown=lambda text: text.replace("secret", "…"))
    with pytest.raises(ModelError) as caught:
        list(reader.feed(event({"error": {"message": "a secret", "code": "secret"}})))
    assert (caught.value.said, caught.value.code) == ("a …", "…")


@pytest.mark.parametrize(
    ("value", "only_usage"),
    [
        ({"choices": [], "usage": {"total_tokens": 1}}, True),
        ({"usage": {"total_tokens": 1}}, True),
        ({"choices": [{"index": 0, "delta": {}}], "usage": {"total_tokens": 1}}, False),
        ({"choices": [], "usage": None}, False),
        ({"choices": [], "prompt_filter_results": []}, False),
    ],
)
def test_a_chunk_that_is_only_usage_is_told_apart(value: dict[str, Any], only_usage: bool) -> None:
    assert Chunk(b"", value).only_usage is only_usage


def test_chunks_before_an_error_are_not_lost() -> None:
    reader = AnswerReader()
    chunks = reader.feed(event(delta(content="Hel")) + event({"error": {"message": "boom"}}))
    assert next(chunks).adds == {"content": "Hel"}
    with pytest.raises(ModelError, match="boom"):
        next(chunks)


def test_nothing_is_read_after_done() -> None:
    assert len(read(event(delta("stop")) + event(b"[DONE]") + event(b"rubbish"))) == 1


def test_every_choice_must_finish() -> None:
    first: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    second: dict[str, Any] = {"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]}
    assert len(read(event(first), event(second), choices=2)) == 2
    with pytest.raises(ModelError, match="ended early"):
        read(event(first), choices=2)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([b"".join(hello()), msgspec.json.encode(WHOLE)]), st.data())
def test_splitting_the_bytes_anywhere_gives_the_same_chunks(body: bytes, data: st.DataObject) -> None:
    body = body.replace(b"\n\n", data.draw(st.sampled_from([b"\n\n", b"\r\n\r\n", b"\n: ping\n\n"])))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)))))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert read(*pieces) == read(body)
