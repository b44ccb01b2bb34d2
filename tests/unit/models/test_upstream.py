import asyncio
import contextlib
import gc
import socket
import time
import warnings
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from holdfast.errors import BadSetting, ModelError
from holdfast.models.base import Chunk, Model, ModelRequest, Purpose
from holdfast.models.reply import fold
from holdfast.models.upstream import Upstream
from tests.unit.models.mock_upstream import (
    MockUpstream,
    cuts,
    delta,
    event,
    hangs,
    hello,
    plain,
    refuses,
    running,
    says,
)

KEY = "sk-test-4242abcdefghijklmnop"
ASKED = ModelRequest(b'[{"role":"user","content":"hi"}]', model="tiny")


@pytest.fixture
async def upstream(server: MockUpstream) -> AsyncIterator[Upstream]:
    model = Upstream(server.url, KEY, timeout_seconds=5, backoff=(0, 0))
    yield model
    await model.close()


async def answer(model: Model, request: ModelRequest = ASKED) -> list[Chunk]:
    return [chunk async for chunk in model.stream(request)]


async def refusal(model: Model, request: ModelRequest = ASKED) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await answer(model, request)
    assert KEY not in str(caught.value)
    return caught.value


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
            {"stream": True, "stream_options": {"include_usage": False, "x": 1}},
        ),
    ],
)
async def test_the_options_have_the_last_word(
    server: MockUpstream, upstream: Upstream, options: dict[str, Any], sent: dict[str, Any]
) -> None:
    server.answers = [says()]
    await answer(upstream, ModelRequest(b"[]", "tiny", options=options))
    assert server.chats[0].json == {"model": "tiny", "messages": [], **sent}


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


# --- who answers


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


# --- what goes wrong


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, {"error": {"message": "too many tokens"}}, "the model answered 400: too many tokens"),
        (404, b"", "the model answered 404 (does [model] base_url end in /v1?)"),
        (404, {"error": {"message": "no model x"}}, "the model answered 404: no model x"),
        (422, {"detail": "bad"}, "the model answered 422: bad"),
        (429, {"error": {"message": "slow down"}}, "the model answered 429: slow down"),
        (500, b"<html>oops</html>", "the model answered 500"),
        (504, b"gateway", "the model answered 504: gateway"),
    ],
)
async def test_a_refusal_carries_status_and_reason(
    server: MockUpstream, upstream: Upstream, status: int, body: Any, message: str
) -> None:
    server.answers = [refuses(status, body), says()]
    caught = await refusal(upstream)
    assert (caught.status, str(caught)) == (status, message)
    assert len(server.chats) == 1


async def test_a_key_that_the_server_repeats_is_not_shown(server: MockUpstream, upstream: Upstream) -> None:
    for echoed in (KEY, "sk-test-************mnop"):
        server.answers = [refuses(401, {"error": {"message": f"Incorrect API key provided: {echoed}"}})]
        caught = await refusal(upstream)
        assert caught.status == 401
        assert str(caught) == (
            "the model answered 401: Incorrect API key provided: [key] "
            "(check the key in the variable that [model] api_key_env names)"
        )
    server.answers = [says([event({"error": {"message": f"bad key {KEY}"}})])]
    assert str(await refusal(upstream)) == "the model reported an error: bad key [key]"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(server: MockUpstream, upstream: Upstream, status: int) -> None:
    async with running() as elsewhere:
        elsewhere.answers = [says()]
        location = f"{elsewhere.url}/chat/completions?token={KEY}"
        server.answers = [refuses(status, headers={"Location": location})]
        caught = await refusal(upstream)
        assert elsewhere.seen == []
    assert caught.status == status
    assert f"a redirect from {server.url} to {elsewhere.url}/chat/completions;" in str(caught)


async def test_the_environment_cannot_send_the_key_elsewhere(
    server: MockUpstream, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.root)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        server.answers = [says()]
        await answer(upstream)
        assert proxy.seen == []


async def test_cookies_are_not_kept(server: MockUpstream) -> None:
    server.answers = [refuses(400, b"no", {"Set-Cookie": "a=b"}), says()]
    model = Upstream(server.url.replace("127.0.0.1", "localhost"), KEY)
    await refusal(model)
    await answer(model)
    await model.close()
    assert "cookie" not in server.chats[1].headers


async def test_nobody_there(server: MockUpstream) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    model = Upstream(f"http://ada:secret@127.0.0.1:{port}/v1?api-version=secret", backoff=(0, 0))
    caught = await refusal(model)
    await model.close()
    assert caught.status is None
    assert str(caught).startswith(f"cannot connect to the model at http://127.0.0.1:{port}/v1: ")
    assert str(caught).endswith("is the server running, and is [model] base_url right?")
    assert "secret" not in str(caught) + model.description


async def test_a_connection_that_takes_too_long_is_given_up() -> None:
    # Its backlog is full: the kernel lets further connections wait.
    with socket.socket() as full, contextlib.ExitStack() as waiting:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(8):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        model = Upstream(f"http://127.0.0.1:{full.getsockname()[1]}/v1", connect_timeout=0.1)
        caught = await refusal(model)
        await model.close()
    assert caught.status == 504
    assert "cannot connect" in str(caught)
    assert "no connection within 0.1 s" in str(caught)


@pytest.mark.parametrize("before", [0, 2])
async def test_a_silence_is_cut_short(server: MockUpstream, before: int) -> None:
    model = Upstream(server.url, KEY, timeout_seconds=0.1)
    server.answers = [hangs(hello()[:before])]
    caught = await refusal(model)
    await model.close()
    assert caught.status == 504
    assert "sent nothing for 0.1 s" in str(caught)
    assert len(server.chats) == 1


async def test_an_answer_may_take_longer_than_the_longest_silence(server: MockUpstream) -> None:
    model = Upstream(server.url, KEY, timeout_seconds=0.2)
    server.answers = [says(pause=0.08)]
    started = time.monotonic()
    assert fold(await answer(model)).finish_reason == "stop"
    assert time.monotonic() - started > 0.3
    await model.close()


@pytest.mark.parametrize(
    "first",
    [
        cuts(),
        refuses(502),
        refuses(503),
        refuses(503, headers={"Retry-After": "0"}),
        refuses(429, headers={"Retry-After": "0.01"}),
    ],
)
async def test_before_the_answer_begins_it_is_tried_again(
    server: MockUpstream, upstream: Upstream, first: Any
) -> None:
    server.answers = [first, first, says()]
    request = ModelRequest(b"[]", "tiny", idempotency_key="k")
    assert fold(await answer(upstream, request)).message["content"] == "Hello Ada"
    assert [seen.headers["idempotency-key"] for seen in server.chats] == ["k"] * 3
    server.answers = [first, first, first, says()]
    await refusal(upstream)
    assert len(server.answers) == 1


@pytest.mark.parametrize(
    "first",
    [
        refuses(429),
        refuses(429, headers={"Retry-After": "60"}),
        refuses(503, headers={"Retry-After": "60"}),
        refuses(503, headers={"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}),
        refuses(400, headers={"Retry-After": "0"}),
        refuses(500),
        says([]),
        cuts(hello()[:2]),
        says(hello()[:2]),
        says([*hello()[:2], event({"error": {"message": "overloaded", "code": 503}})]),
    ],
)
async def test_what_is_not_tried_again(server: MockUpstream, upstream: Upstream, first: Any) -> None:
    server.answers = [first, says()]
    await refusal(upstream)
    assert len(server.chats) == 1


async def test_a_wait_that_the_server_asks_for_is_kept(server: MockUpstream, upstream: Upstream) -> None:
    server.answers = [refuses(429, headers={"Retry-After": "0.2"}), says()]
    started = time.monotonic()
    await answer(upstream)
    assert time.monotonic() - started >= 0.2


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
    async with asyncio.timeout(2):
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
    async with asyncio.timeout(2):
        await server.left.wait()
    assert task.cancelled() or task.cancelling()

    server.left.clear()
    server.answers = [hangs(hello()[:2])]
    stream = upstream.stream(ASKED)
    await anext(stream)
    await stream.aclose()
    async with asyncio.timeout(2):
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
    async with asyncio.timeout(10):
        answers = await asyncio.gather(*(answer(upstream) for _ in range(120)))
    assert {fold(chunks).message["content"] for chunks in answers} == {"Hello Ada"}


async def test_a_closed_model_says_so_and_leaves_nothing_open(server: MockUpstream) -> None:
    model = Upstream(server.url, backoff=(0, 0))
    server.answers = [says()]
    await answer(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        await model.close()
        await model.close()
        assert "closed" in str(await refusal(model))
        del model
        gc.collect()


@pytest.mark.parametrize("url", ["", "localhost:11434", "ftp://x/v1", "http://", "/v1", "http://[bad/v1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(BadSetting, match="base_url must be an http or https address"):
        Upstream(url)


def test_a_key_that_cannot_be_sent_is_refused_without_showing_it() -> None:
    with pytest.raises(BadSetting, match="a character that cannot be sent") as caught:
        Upstream("http://127.0.0.1/v1", "sk-se\ncret")
    assert "cret" not in str(caught.value)


async def test_a_login_and_a_query_in_the_address_are_used(server: MockUpstream) -> None:
    address = server.url.replace("http://", "http://ada:pw@") + "/?api-version=1"
    server.answers = [says(), says()]
    for key in ("", KEY):
        model = Upstream(address, key)
        await answer(model)
        await model.close()
    assert {seen.path for seen in server.chats} == {"/v1/chat/completions?api-version=1"}
    assert [seen.headers["authorization"] for seen in server.chats] == ["Basic YWRhOnB3", f"Bearer {KEY}"]


async def test_a_choice_of_several_is_whole_when_all_are(server: MockUpstream, upstream: Upstream) -> None:
    both = [event({**delta(), "choices": [{"index": at, "delta": {"content": "x"}}]}) for at in (0, 1)]
    ends = [
        event({**delta(), "choices": [{"index": at, "delta": {}, "finish_reason": "stop"}]}) for at in (0, 1)
    ]
    request = ModelRequest(b"[]", "tiny", options={"n": 2})
    server.answers = [says([*both, *ends]), says([*both, ends[0]])]
    assert len(await answer(upstream, request)) == 4
    assert "ended early" in str(await refusal(upstream, request))
