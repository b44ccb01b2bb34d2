"""What can go wrong on the way to a server, and what must never leave for another host."""

import asyncio
import contextlib
import gc
import socket
import sys
import time
import warnings
from email.utils import formatdate
from typing import Any

import pytest
from aiohttp import web

from holdfast.errors import BadSetting, ModelError
from holdfast.models.anthropic import AnthropicUpstream
from holdfast.models.base import ModelRequest
from holdfast.models.reply import fold
from holdfast.models.upstream import Upstream
from tests.unit.models.asking import KEY, answer, refusal
from tests.unit.models.mock_upstream import (
    MockUpstream,
    Reaction,
    cuts,
    event,
    hangs,
    hello,
    refuses,
    running,
    says,
)


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


async def test_what_the_server_says_about_a_refusal_can_be_passed_on(
    server: MockUpstream, upstream: Upstream
) -> None:
    error = {"message": f"too long for {KEY}", "type": "t", "param": "messages", "code": "c"}
    server.answers = [refuses(400, {"error": error}, {"Retry-After": "7"})]
    caught = await refusal(upstream)
    assert (caught.status, caught.said, caught.retry_after) == (400, "too long for [key]", 7)
    assert (caught.type, caught.param, caught.code) == ("t", "messages", "c")
    server.answers = [refuses(500, b"<html>")]
    caught = await refusal(upstream)
    assert (caught.status, caught.said, caught.retry_after) == (500, None, None)
    assert (caught.type, caught.param, caught.code) == (None, None, None)


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        ({"Retry-After": "60"}, 60, 60),
        ({"Retry-After": "-5"}, 0, 0),
        ({"Retry-After": "60", "Retry-After-Ms": "7500"}, 7.5, 7.5),
        ({"Retry-After": "60", "Retry-After-Ms": "soon"}, 60, 60),
        ({"Retry-After": formatdate(time.time() + 100_000, usegmt=True)}, 90_000, 100_001),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0, 0),
    ],
)
async def test_how_long_to_wait_is_told(
    server: MockUpstream, upstream: Upstream, headers: dict[str, str], least: float, most: float
) -> None:
    server.answers = [refuses(400, b"", headers)]
    caught = await refusal(upstream)
    assert caught.retry_after is not None
    assert least <= caught.retry_after <= most


@pytest.mark.parametrize("text", ["soon", "nan", "inf", ""])
async def test_a_wait_that_is_none_is_not_told(server: MockUpstream, upstream: Upstream, text: str) -> None:
    server.answers = [refuses(429, b"", {"Retry-After": text})]
    assert (await refusal(upstream)).retry_after is None


async def test_no_question_is_asked_of_another_host(server: MockUpstream, upstream: Upstream) -> None:
    async with running() as elsewhere:
        away = refuses(307, headers={"Location": f"{elsewhere.url}/models"})
        server.pages = {"/v1/models": away}
        assert await upstream.window("tiny") is None
        server.pages = {"/v1/models": {"data": [{"id": "tiny"}]}, "/api/ps": away, "/props": away}
        assert await upstream.window("tiny") is None
        assert elsewhere.seen == []
    assert {"/api/ps", "/props"} < {seen.path for seen in server.seen}


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
    assert str(caught) == (
        f"cannot connect to the model at http://127.0.0.1:{port}/v1: Connection refused; "
        "is the server running, and is [model] base_url right?"
    )
    assert "secret" not in str(caught) + model.description


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's way with a full backlog")
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
    model = Upstream(server.url, KEY, timeout_seconds=0.4)
    server.answers = [says(pause=0.1)]
    started = time.monotonic()
    assert fold(await answer(model)).finish_reason == "stop"
    assert time.monotonic() - started > 0.4
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


# --- keepalives ------------------------------------------------------------------------------------------


def keeps_alive(before: list[bytes], ping: bytes, kind: str = "text/event-stream") -> Reaction:
    """Stream these bytes, then nothing but this, until the client goes away."""

    async def react(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": kind})
        await response.prepare(request)
        for piece in before:
            await response.write(piece)
        while True:
            await response.write(ping)
            await asyncio.sleep(0.02)

    return react


@pytest.mark.parametrize(
    ("before", "ping", "kind"),
    [
        ([], b": PROCESSING\n\n", "text/event-stream"),
        (hello()[:2], b": PROCESSING\n\n", "text/event-stream"),
        (hello()[:2], b"\n", "text/event-stream"),
        (hello()[:2], b"id: 7\nretry: 10\n\n", "text/event-stream"),
        ([], b"\n", "application/json"),
        ([b'{"choices": '], b" ", "application/json"),
    ],
)
async def test_keepalives_are_no_answer(
    server: MockUpstream, before: list[bytes], ping: bytes, kind: str
) -> None:
    model = Upstream(server.url, KEY, timeout_seconds=0.3)
    server.answers = [keeps_alive(before, ping, kind)]
    async with asyncio.timeout(60):
        caught = await refusal(model)
    await model.close()
    assert caught.status == 504
    assert "sent only keepalives for 0.3 s" in str(caught)


async def test_keepalives_after_a_whole_answer_do_not_hold_it_back(server: MockUpstream) -> None:
    model = Upstream(server.url, KEY, timeout_seconds=600)
    server.answers = [keeps_alive(hello()[:4], b": PROCESSING\n\n")]
    async with asyncio.timeout(60):
        chunks = await answer(model)
    await model.close()
    assert fold(chunks).message["content"] == "Hello Ada"


async def test_keepalives_between_events_do_not_shorten_the_time_of_the_next(server: MockUpstream) -> None:
    model = Upstream(server.url, KEY, timeout_seconds=30)
    pieces = [piece for each in hello() for piece in (b": PROCESSING\n\n", each)]
    server.answers = [says(pieces, 0.01)]
    assert fold(await answer(model)).message["content"] == "Hello Ada"
    await model.close()


PING = b'event: ping\ndata: {"type": "ping"}\n\n'
MESSAGE = [
    event({"type": "message_start", "message": {"model": "claude-x"}}),
    event({"type": "content_block_start", "content_block": {"type": "text", "text": ""}}),
    event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Hello Ada"}}),
    event({"type": "content_block_stop"}),
    event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}),
]


@pytest.mark.parametrize("ping", [PING, b": keep-alive\n\n"], ids=["ping", "comment"])
@pytest.mark.parametrize("before", [0, 3])
async def test_pings_of_anthropics_api_are_no_answer(server: MockUpstream, ping: bytes, before: int) -> None:
    model = AnthropicUpstream(server.url, KEY, timeout_seconds=0.3)
    server.pages["/v1/messages"] = keeps_alive(MESSAGE[:before], ping)
    async with asyncio.timeout(60):
        caught = await refusal(model)
    await model.close()
    assert caught.status == 504
    assert "sent only keepalives for 0.3 s" in str(caught)


async def test_pings_of_anthropics_api_after_a_whole_answer_do_not_hold_it_back(server: MockUpstream) -> None:
    model = AnthropicUpstream(server.url, KEY, timeout_seconds=600)
    server.pages["/v1/messages"] = keeps_alive(MESSAGE, PING)
    async with asyncio.timeout(60):
        chunks = await answer(model)
    await model.close()
    assert fold(chunks).message["content"] == "Hello Ada"


async def test_a_list_of_models_that_never_ends_is_given_up(server: MockUpstream) -> None:
    model = Upstream(server.url, KEY, timeout_seconds=0.3)
    server.pages["/v1/models"] = keeps_alive([b'{"data": ['], b" ", "application/json")
    async with asyncio.timeout(60):
        with pytest.raises(ModelError) as caught:
            await model.models()
    await model.close()
    assert caught.value.status == 504


async def test_a_list_of_models_that_is_too_long_is_not_read_whole(server: MockUpstream) -> None:
    model = Upstream(server.url, KEY, timeout_seconds=60)
    server.pages["/v1/models"] = keeps_alive([b'{"data": ['], b" " * 2**20, "application/json")
    async with asyncio.timeout(60):
        with pytest.raises(ModelError, match="does not answer in HTTP as expected"):
            await model.models()
    await model.close()


async def test_a_refused_key_is_named_by_its_variable(server: MockUpstream) -> None:
    for key, said in ((KEY, "check the key in MY_KEY"), ("", "no key was sent: set MY_KEY")):
        model = Upstream(server.url, key, key_variable="MY_KEY")
        server.answers = [refuses(401, {"error": {"message": "no"}})]
        assert said in str(await refusal(model))
        await model.close()


async def test_a_wait_that_is_too_long_is_shown(server: MockUpstream, upstream: Upstream) -> None:
    server.answers = [refuses(429, {"error": {"message": "slow down"}}, {"Retry-After": "30"})]
    caught = await refusal(upstream)
    assert (str(caught), caught.retry_after) == (
        "the model answered 429: slow down (it asks to wait 30 s)", 30
    )  # fmt: skip


async def test_a_longer_wait_is_kept_where_it_is_allowed(
    server: MockUpstream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    model = Upstream(server.url, longest_wait=60)
    server.answers = [refuses(429, headers={"Retry-After": "30"}), says()]
    monkeypatch.setattr("holdfast.models.connection.asyncio.sleep", sleep)
    await answer(model)
    monkeypatch.undo()
    assert 30 in waited
    assert "asks to wait 30 s; waiting" in caplog.text
    await model.close()


async def test_an_address_without_v1_is_understood(server: MockUpstream) -> None:
    async def chat(request: web.Request) -> web.StreamResponse:
        return await says()(request)

    server.pages["/v1/models"] = {"data": [{"id": "tiny"}]}
    server.pages["/chat/completions"] = refuses(404)
    server.pages["/v1/chat/completions"] = chat
    for root in (server.root, f"{server.root}/"):
        model = Upstream(root)
        assert fold(await answer(model)).message["content"] == "Hello Ada"
        await answer(model)
        assert await model.models() == [{"id": "tiny"}]
        await model.close()
    paths = [seen.path for seen in server.chats]
    assert paths == ["/chat/completions", "/v1/chat/completions", "/v1/chat/completions"] * 2, "asked once"


async def test_an_api_that_is_not_below_v1_is_used_as_given(server: MockUpstream) -> None:
    server.pages["/api/models"] = {"data": [{"id": "tiny"}]}
    server.pages["/api/chat/completions"] = refuses(404, {"error": {"message": "no model tiny"}})
    model = Upstream(f"{server.root}/api")
    assert str(await refusal(model)) == "the model answered 404: no model tiny"
    assert await model.models() == [{"id": "tiny"}]
    await model.close()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("localhost:11434/v1", "http://localhost:11434/v1"),
        ("192.0.2.7:8000/v1", "http://192.0.2.7:8000/v1"),
        ("api.openai.com/v1", "https://api.openai.com/v1"),
        ("gpu-box:8000", "http://gpu-box:8000"),
        ("ftp://x", "http://127.0.0.1:11434/v1"),
    ],
)
async def test_an_address_without_a_scheme_is_refused_with_the_whole_one(given: str, meant: str) -> None:
    with pytest.raises(BadSetting) as caught:
        Upstream(given)
    assert str(caught.value).endswith(f"such as {meant}")
