"""Asking a server: what is sent, what comes back, and when an answer is whole."""

import asyncio
import warnings
from typing import Any

import msgspec
import pytest

from holdfast.errors import ModelError
from holdfast.models.base import ModelRequest, Purpose
from holdfast.models.connection import Connection
from holdfast.models.reply import fold
from holdfast.models.upstream import Upstream, _as_ollama_says
from tests.unit.models.asking import ASKED, KEY, answer, refusal
from tests.unit.models.mock_upstream import (
    MockUpstream,
    cuts,
    delta,
    event,
    hangs,
    hello,
    plain,
    refuses,
    says,
)


async def test_an_answer_streams(server: MockUpstream, upstream: Upstream) -> None:
    server.answers = [says(pause=0.01)]
    chunks = await answer(upstream)
    assert [event(chunk.raw) for chunk in chunks] == hello()[:-1]
    reply = fold(chunks)
    assert reply.message == {"role": "assistant", "content": "Hello Ada"}
    assert (reply.finish_reason, reply.model) == ("stop", "tiny")
    assert reply.usage == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


async def test_chunks_arrive_while_the_answer_is_under_way(server: MockUpstream, upstream: Upstream) -> None:
    server.answers = [hangs(hello()[:2])]
    stream = upstream.stream(ASKED)
    assert (await anext(stream)).adds == {}
    assert (await anext(stream)).adds == {"content": "Hello "}
    await stream.aclose()


async def test_odd_boundaries_and_line_ends_are_no_problem(server: MockUpstream, upstream: Upstream) -> None:
    body = b": hi\r\n\r\n" + b"".join(hello()).replace(b"\n", b"\r\n")
    server.answers = [says([body[at : at + 7] for at in range(0, len(body), 7)])]
    assert fold(await answer(upstream)).message["content"] == "Hello Ada"


async def test_the_request_is_passed_on_whole(server: MockUpstream, upstream: Upstream) -> None:
    server.answers = [says()]
    odd = b'[ {"role":"user","content":"\\u00e4","x_unknown":1.0e1} ]'
    options = {"temperature": 0.5, "x_option": {"deep": [1]}, "messages": "not these"}
    request = ModelRequest(odd, "tiny", Purpose.FLUSH, options, idempotency_key="flush-s1")
    await answer(upstream, request)
    (seen,) = server.seen
    assert odd in seen.body
    assert seen.json == {
        "model": "tiny",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "x_option": {"deep": [1]},
        "messages": msgspec.json.decode(odd),
    }
    assert (seen.method, seen.path) == ("POST", "/v1/chat/completions")
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert seen.headers["x-holdfast-purpose"] == "flush"
    assert seen.headers["idempotency-key"] == "flush-s1"
    assert seen.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({"stream": False}, {"stream": False}),
        ({"stream": False, "stream_options": {"include_usage": True}}, {"stream": False}),
        ({"stream_options": None}, {"stream": True}),
        (
            {"stream_options": {"include_usage": False, "x": 1}},
            {"stream": True, "stream_options": {"include_usage": True, "x": 1}},
        ),
        ({"stream_options": "nonsense"}, {"stream": True, "stream_options": "nonsense"}),
    ],
)
async def test_the_options_have_the_last_word_except_that_usage_is_counted(
    server: MockUpstream, upstream: Upstream, options: dict[str, Any], sent: dict[str, Any]
) -> None:
    server.answers = [says()]
    await answer(upstream, ModelRequest(b"[]", "tiny", options=options))
    assert server.chats[0].json == {"model": "tiny", "messages": [], **sent}


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({}, False),
        ({"stream_options": None}, False),
        ({"stream_options": "nonsense"}, False),
        ({"stream_options": {"include_usage": False}}, False),
        ({"stream_options": {"include_usage": True}}, True),
    ],
)
async def test_who_did_not_ask_for_usage_can_be_spared_it(
    server: MockUpstream, upstream: Upstream, options: dict[str, Any], asked: bool
) -> None:
    server.answers = [says()]
    request = ModelRequest(b"[]", "tiny", options=options)
    chunks = await answer(upstream, request)
    assert request.wants_usage is asked
    assert [chunk.only_usage for chunk in chunks] == [False, False, False, False, True]


async def test_nothing_is_said_about_a_key_or_a_retry_that_is_not_there(server: MockUpstream) -> None:
    server.answers = [says()]
    model = Upstream(server.url, "")
    await answer(model)
    await model.close()
    assert not {"authorization", "idempotency-key", "cookie"} & server.chats[0].headers.keys()
    assert server.chats[0].headers["x-holdfast-purpose"] == "turn"


async def test_a_large_history_is_sent_without_a_warning(server: MockUpstream, upstream: Upstream) -> None:
    server.answers = [says()]
    messages = msgspec.json.encode([{"role": "user", "content": "x" * 3 * 2**20}])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await answer(upstream, ModelRequest(messages, "tiny"))
    assert messages in server.chats[0].body


async def test_a_whole_completion_is_one_chunk(server: MockUpstream, upstream: Upstream) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
    server.answers = [plain({"object": "chat.completion", "model": "tiny", "choices": [choice]})]
    (chunk,) = await answer(upstream)
    assert chunk.adds == {"content": "Hi"}


async def test_connections_are_used_again(server: MockUpstream, upstream: Upstream) -> None:
    ports = set()
    inner = says()

    async def react(request: Any) -> Any:
        ports.add(request.transport.get_extra_info("peername"))
        return await inner(request)

    server.answers = [react] * 5
    for _ in range(5):
        await answer(upstream)
    assert len(ports) == 1


async def test_without_a_name_the_first_model_answers(server: MockUpstream) -> None:
    server.pages["/v1/models"] = {"data": [{"id": "alpha"}, {"id": "beta"}]}
    server.answers = [says(), says(), refuses(404), says()]
    model = Upstream(server.url)
    assert model.description == f"the first model at {server.root.removeprefix('http://')}"
    request = ModelRequest(b"[]")
    await answer(model, request)
    await answer(model, request)
    assert [seen.path for seen in server.seen] == ["/v1/models"] + ["/v1/chat/completions"] * 2
    assert server.chats[1].json["model"] == "alpha"
    assert model.description.startswith("alpha at 127.0.0.1:")
    server.pages["/v1/models"] = {"data": [{"id": "gamma"}]}
    assert (await refusal(model, request)).status == 404
    await answer(model, request)
    assert server.chats[3].json["model"] == "gamma"
    await model.close()


async def test_the_configured_name_yields_to_the_request(server: MockUpstream) -> None:
    server.answers = [says(), says()]
    model = Upstream(server.url, model="mine")
    await answer(model, ModelRequest(b"[]"))
    await answer(model, ModelRequest(b"[]", model="theirs"))
    await model.close()
    assert [seen.json["model"] for seen in server.chats] == ["mine", "theirs"]
    assert model.description.startswith("mine at ")


@pytest.mark.parametrize("page", [{"data": []}, {"data": None}])
async def test_a_server_without_models_says_so(
    server: MockUpstream, upstream: Upstream, page: dict[str, Any]
) -> None:
    server.pages["/v1/models"] = page
    assert await upstream.models() == []
    assert "offers no model" in str(await refusal(upstream, ModelRequest(b"[]")))


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"data": 3}'])
async def test_a_list_that_is_none_is_an_error(server: MockUpstream, upstream: Upstream, body: bytes) -> None:
    server.pages["/v1/models"] = refuses(200, body)
    with pytest.raises(ModelError, match="is not a list of models"):
        await upstream.models()


async def test_the_window_is_asked_once_a_minute(server: MockUpstream) -> None:
    now = 0.0
    model = Upstream(server.url, KEY, "tiny", clock=lambda: now)
    server.pages["/v1/models"] = {"data": [{"id": "tiny"}]}
    assert await model.window() is None
    server.pages["/api/ps"] = {"models": [{"name": "tiny:latest", "context_length": 4096}]}
    assert await model.window() is None
    now = 61.0
    assert await model.window() == 4096
    assert await model.window("other") is None
    await model.close()
    assert {seen.headers.get("authorization") for seen in server.seen} == {f"Bearer {KEY}"}


async def test_a_window_that_cannot_be_asked_is_unknown(server: MockUpstream) -> None:
    model = Upstream(server.url, KEY, "tiny")
    assert await model.window() is None  # 404
    server.pages["/v1/models"] = {"data": [{"id": "tiny", "max_model_len": 1024}]}
    assert await model.window() == 1024  # a failure is not remembered
    await model.close()


@pytest.mark.parametrize("react", [cuts(hello()[:3]), says(hello()[:3])])
async def test_a_cut_answer_is_named_in_words_that_agent_programs_retry(
    server: MockUpstream, upstream: Upstream, react: Any
) -> None:
    """pi retries an error chunk only for certain words in its message."""
    server.answers = [react]
    with pytest.raises(ModelError, match=r"connection lost|ended without"):
        await answer(upstream, ModelRequest(b"[]", "tiny"))


@pytest.mark.parametrize(
    "react", [cuts(hello()[:3]), says(hello()[:3]), says([*hello()[:3], event(b"[DONE]")])]
)
async def test_half_an_answer_is_not_a_whole_one(
    server: MockUpstream, upstream: Upstream, react: Any
) -> None:
    server.answers = [react]
    chunks = []
    with pytest.raises(ModelError, match="the model's stream ended early"):
        async for chunk in upstream.stream(ASKED):
            chunks.append(chunk)
    assert fold(chunks).message["content"] == "Hello Ada"
    assert fold(chunks).finish_reason is None


@pytest.mark.parametrize("react", [cuts(hello()[:4]), says(hello()[:4])])
async def test_an_answer_is_whole_without_its_usage(
    server: MockUpstream, upstream: Upstream, react: Any
) -> None:
    server.answers = [react]
    assert fold(await answer(upstream)).finish_reason == "stop"


async def test_a_server_that_never_hangs_up_is_left(
    server: MockUpstream, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.models.upstream.TAIL_SECONDS", 0.05)
    monkeypatch.setattr("holdfast.models.upstream.EOF_SECONDS", 0.05)
    server.answers = [hangs(hello()[:4]), hangs(hello())]
    async with asyncio.timeout(60):
        assert fold(await answer(upstream)).usage is None
        assert fold(await answer(upstream)).usage is not None


async def test_leaving_the_answer_closes_its_connection(server: MockUpstream, upstream: Upstream) -> None:
    async def listen() -> None:
        async for _ in upstream.stream(ASKED):
            pass

    server.answers = [hangs(hello()[:2])]
    task = asyncio.create_task(listen())
    await server.asked.wait()
    await asyncio.sleep(0.02)
    task.cancel()
    async with asyncio.timeout(60):
        await server.left.wait()
    assert task.cancelled() or task.cancelling()

    server.left.clear()
    server.answers = [hangs(hello()[:2])]
    stream = upstream.stream(ASKED)
    await anext(stream)
    await stream.aclose()
    async with asyncio.timeout(60):
        await server.left.wait()


async def test_as_many_answers_at_once_as_are_asked_for(server: MockUpstream, upstream: Upstream) -> None:
    arrived = 0
    all_here = asyncio.Event()

    async def react(request: Any) -> Any:
        nonlocal arrived
        arrived += 1
        if arrived == 120:  # more than aiohttp's own limit of 100 connections
            all_here.set()
        await all_here.wait()
        return await says()(request)

    server.answers = [react] * 120
    async with asyncio.timeout(60):
        answers = await asyncio.gather(*(answer(upstream) for _ in range(120)))
    assert {fold(chunks).message["content"] for chunks in answers} == {"Hello Ada"}


async def test_a_choice_of_several_is_whole_when_all_are(server: MockUpstream, upstream: Upstream) -> None:
    both = [event({**delta(), "choices": [{"index": at, "delta": {"content": "x"}}]}) for at in (0, 1)]
    ends = [
        event({**delta(), "choices": [{"index": at, "delta": {}, "finish_reason": "stop"}]}) for at in (0, 1)
    ]
    request = ModelRequest(b"[]", "tiny", options={"n": 2})
    server.answers = [says([*both, *ends]), says([*both, ends[0]])]
    assert len(await answer(upstream, request)) == 4
    assert "ended early" in str(await refusal(upstream, request))


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({"max_completion_tokens": 5, "seed": 1}, {"max_tokens": 5, "seed": 1}),
        ({"max_completion_tokens": 5, "max_tokens": 6}, {"max_completion_tokens": 5, "max_tokens": 6}),
        ({"seed": 1}, {"seed": 1}),
    ],
)
def test_ollama_is_told_a_limit_on_tokens_by_the_name_it_knows(
    options: dict[str, Any], sent: dict[str, Any]
) -> None:
    assert _as_ollama_says(options) == sent
    assert Connection("http://127.0.0.1:11434/v1").is_ollama
    assert not Connection("http://127.0.0.1:8000/v1").is_ollama
