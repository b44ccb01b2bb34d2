"""Errors as OpenAI clients know them: the model's own, ours, before the first word and in the middle."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Any

import openai
import pytest

from holdfast.domain.turns import TurnStatus
from holdfast.models.upstream import Upstream
from holdfast.server.limits import LARGE_BODY
from tests.integration.api.chatting import (
    PATH,
    ask,
    by_key,
    context,
    conversations,
    post,
    said,
    sdk,
    stored,
    text_of,
    turns,
    until,
    user,
)
from tests.integration.api.conftest import Running, StartServer
from tests.integration.api.operating import DOCUMENT
from tests.unit.models.mock_upstream import (
    MockUpstream,
    Reaction,
    cuts,
    delta,
    event,
    hangs,
    refuses,
    running,
    says,
)

KEY = "sk-upstream-0123456789"
IDS = ("x-holdfast-session-id", "x-hermes-session-id", "x-holdfast-conversation-id", "x-holdfast-turn-id")


@pytest.fixture
async def upstream() -> AsyncIterator[MockUpstream]:
    async with running() as mock:
        yield mock


@pytest.fixture
def patience() -> float:
    """Seconds until a silent model is given up. A test of one that is silent sets it."""
    return 60


@pytest.fixture
async def server(
    start_server: StartServer, upstream: MockUpstream, patience: float
) -> AsyncIterator[Running]:
    model = Upstream(upstream.url, KEY, "tiny", timeout_seconds=patience, backoff=(0, 0))
    yield await start_server(model)
    await model.close()


def refusal(status: int, **headers: str) -> Any:
    error = {"message": "the model says no", "type": "its_type", "param": "its_param", "code": "its_code"}
    return refuses(status, {"error": error}, headers)


async def test_refusals_that_concern_the_request_are_passed_on(
    server: Running, upstream: MockUpstream
) -> None:
    kinds = {
        400: openai.BadRequestError,
        404: openai.NotFoundError,
        413: openai.APIStatusError,
        422: openai.UnprocessableEntityError,
        429: openai.RateLimitError,
    }
    client = sdk(server)
    for status, kind in kinds.items():
        for stream in (False, True):
            upstream.answers = [refusal(status, **{"retry-after": "17"})]
            with pytest.raises(kind) as refused:
                await client.chat.completions.create(model="m", messages=[user("hi")], stream=stream)
            error = refused.value
            assert error.status_code == status
            assert (error.code, error.param, error.type) == ("its_code", "its_param", "its_type")
            assert "the model says no" in error.message
            assert error.response.headers["retry-after"] == "17"
            assert set(error.response.json()["error"]) == {"message", "type", "param", "code"}


async def test_an_error_names_the_conversation_that_keeps_the_message(
    server: Running, upstream: MockUpstream
) -> None:
    for stream in (False, True):
        upstream.answers = [refusal(400), says()]
        response = await post(server, [user("remember me")], stream=stream)
        assert response.status_code == 400
        ours = response.json()["holdfast"]
        assert response.headers["x-holdfast-session-id"] == ours["session_id"]
        assert all(response.headers[name] for name in IDS)
        conversation = ours["conversation_id"]
        (turn,) = await turns(server, conversation)
        assert turn.status is TurnStatus.FAILED
        assert await said(server, conversation) == ["user: remember me"]
        await ask(server, "still there?", {"x-holdfast-session-id": ours["session_id"]})
        assert [m["content"] for m in upstream.chats[-1].json["messages"]] == ["remember me", "still there?"]


async def test_a_refused_key_of_ours_is_a_502_that_shows_no_key(
    server: Running, upstream: MockUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    for status in (401, 403):
        for stream in (False, True):
            message = f"Incorrect API key provided: {KEY}. Bearer {KEY} is wrong."
            upstream.answers = [refuses(status, {"error": {"message": message, "code": "invalid_api_key"}})]
            response = await post(server, [user("hi")], stream=stream)
            assert response.status_code == 502
            error = response.json()["error"]
            assert error["code"] == "upstream_auth"
            assert response.headers["x-should-retry"] == "false"
            (turn,) = await turns(server, response.json()["holdfast"]["conversation_id"])
            for place in (response.text, str(response.headers), turn.error or "", caplog.text):
                assert KEY not in place
    assert KEY not in str(await server.store.events(owner=None))


async def test_nothing_that_a_client_reads_names_where_the_model_is(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as upstream:
        model = Upstream(upstream.url, KEY, "tiny", timeout_seconds=60, backoff=(0, 0))
        flushing = {"min_messages": 2, "max_attempts": 1}
        server = await start_server(model, memory=flushing, turns={"retry_model": False})
        client = await server.client_of("ada")
        upstream.answers = [says() for _ in range(8)]
        for _ in range(8):
            await server.say("kelp " * 200, client=client, x_holdfast_session_key="a")
    here = by_key("a")
    address = upstream.root.removeprefix("http://")

    answers = [
        await client.post(PATH, json={"messages": [user("hi")]}, headers=here),
        await client.post(PATH, json={"messages": [user("hi")], "stream": True}, headers=here),
        await client.post("/v1/responses", json={"input": "hi"}),
        await client.post("/v1/responses", json={"input": "hi", "store": False, "stream": True}),
        await client.post("/v1/messages", json={"messages": [user("hi")], "max_tokens": 9, "model": "tiny"}),
        await client.post("/v1/responses/compact", json={"model": "tiny", "input": "kelp " * 200}),
        await client.post("/api/sessions/a/compact"),
    ]
    assert {each.status_code for each in answers} == {502}
    background = (await client.post("/v1/responses", json={"input": "hi", "background": True})).json()
    session = (await client.post("/api/sessions/a/end", json={"reason": "new"})).json()["id"]
    flusher = server.services.holdfast.flusher
    assert flusher is not None

    async def all_failed() -> bool:
        await flusher.flush_once()
        flush = (await client.get(f"/api/sessions/{session}")).json()["flush"]
        response = (await client.get(f"/v1/responses/{background['id']}")).json()
        return (flush["state"], response["status"]) == ("dead", "failed")

    await until(all_failed, "the flush and the background response have failed")

    lists = [path for path, methods in DOCUMENT["paths"].items() if "get" in methods and "{" not in path]
    lists.remove("/api/events")  # a stream; the store's own list is read below
    sessions = (await client.get("/api/sessions")).json()["data"]
    reads = [*lists, f"/v1/responses/{background['id']}"]
    reads += [f"/api/sessions/{each['id']}{part}" for each in sessions for part in ("", "/turns", "/why")]
    answers += [await client.get(path, params={"q": "kelp"} if "search" in path else None) for path in reads]
    for answer in answers:
        assert address not in answer.text, answer.url
    assert address not in str(await server.store.events(owner=None))
    assert caplog.text.count(address) > 5  # the operator reads it in the log
    await model.close()


async def test_failures_of_the_model_are_502(server: Running, upstream: MockUpstream) -> None:
    for status in (500, 501, 505, 529):
        upstream.answers = [refusal(status)]
        response = await post(server, [user("hi")])
        assert response.status_code == 502, status
        assert response.json()["error"]["code"] == "upstream_error"
    for status in (502, 503):  # tried again here, while no answer has begun
        upstream.answers = [refusal(status)] * 3
        assert (await post(server, [user("hi")])).status_code == 502
    upstream.answers = [cuts(), cuts(), cuts()]
    assert (await post(server, [user("hi")])).status_code == 502
    upstream.answers = [refuses(200, b"<html>not a model</html>")]
    assert (await post(server, [user("hi")])).status_code == 502


@pytest.mark.parametrize("patience", [0.3])
async def test_a_silent_model_is_a_504(server: Running, upstream: MockUpstream) -> None:
    for stream in (False, True):
        upstream.answers = [hangs()]
        response = await post(server, [user("hi")], stream=stream)
        assert response.status_code == 504
        assert response.json()["error"]["code"] == "upstream_timeout"
        (turn,) = await turns(server, response.json()["holdfast"]["conversation_id"])
        assert turn.status is TurnStatus.FAILED
    upstream.answers = [hangs()]
    with pytest.raises(openai.InternalServerError) as silent:
        await sdk(server).chat.completions.create(model="m", messages=[user("hi")], store=False)
    assert silent.value.status_code == 504
    assert await conversations(server) == 2, "nothing of the last one"


async def test_the_sdk_retries_a_502_and_the_turn_is_taken_up(
    server: Running, upstream: MockUpstream
) -> None:
    upstream.answers = [refusal(500), says()]
    answer = await sdk(server, max_retries=2).chat.completions.create(model="m", messages=[user("hi")])
    assert answer.choices[0].message.content == "Hello Ada"
    assert await conversations(server) == 1
    assert answer.model_extra is not None
    conversation = answer.model_extra["holdfast"]["conversation_id"]
    assert await said(server, conversation) == ["user: hi", "assistant: Hello Ada"]
    (turn,) = await turns(server, conversation)
    assert (turn.status, turn.attempt) == (TurnStatus.COMPLETED, 2)


WORDS = [event(delta(role="assistant", content="Half ")), event(delta(content="an answer"))]
OUT_OF_MEMORY = {"error": {"message": "out of memory", "code": "oom", "type": "server_error"}}


@pytest.mark.parametrize(
    ("reaction", "patience"),
    [
        (cuts(WORDS), 60),
        (hangs(WORDS), 3),
        (says([*WORDS, event(OUT_OF_MEMORY)]), 60),
        (says([*WORDS, event(b"{not json")]), 60),
        (says(WORDS), 60),
    ],
    ids=["cut", "silent", "error", "not json", "no end"],
)
async def test_an_error_in_the_middle_of_a_stream_is_an_error_chunk_with_the_ids(
    server: Running, upstream: MockUpstream, reaction: Reaction
) -> None:
    upstream.answers = [reaction]
    body = {"messages": [user("hi")], "stream": True}
    async with server.client.stream("POST", PATH, json=body) as response:
        assert response.status_code == 200
        lines = [line async for line in response.aiter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    last = json.loads(lines[-2].removeprefix("data: "))
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert not any('"finish_reason":"stop"' in line for line in lines)
    conversation = last["holdfast"]["conversation_id"]
    assert response.headers["x-holdfast-conversation-id"] == conversation
    assert response.headers["x-holdfast-turn-id"] == last["holdfast"]["turn_id"]
    (turn,) = await turns(server, conversation)
    assert turn.status is TurnStatus.FAILED
    assert await said(server, conversation) == ["user: hi", "assistant: Half an answer…"]


async def test_the_sdk_raises_on_an_error_chunk_and_has_the_ids_from_the_headers(
    server: Running, upstream: MockUpstream
) -> None:
    upstream.answers = [cuts([event(delta(role="assistant", content="Half"))]), says()]
    client = sdk(server)
    stream = await client.chat.completions.create(model="m", messages=[user("hi")], stream=True)
    heard = ""
    with pytest.raises(openai.APIError) as broken:
        async for chunk in stream:
            heard += chunk.choices[0].delta.content or ""
    assert heard == "Half"
    assert broken.value.code == "upstream_error"
    session = stream.response.headers["x-holdfast-session-id"]
    answer = await client.chat.completions.create(
        model="m", messages=[user("go on")], extra_headers={"x-holdfast-session-id": session}
    )
    assert answer.choices[0].message.content == "Hello Ada"
    sent = upstream.chats[-1].json["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert sent[1]["content"].startswith("Half")
    assert "interrupted" in sent[1]["content"]


async def test_a_plain_answer_that_breaks_off_is_an_error_not_half_an_answer(
    server: Running, upstream: MockUpstream
) -> None:
    upstream.answers = [cuts([event(delta(role="assistant", content="Half"))])]
    response = await post(server, [user("hi")])
    assert response.status_code == 502
    conversation = response.json()["holdfast"]["conversation_id"]
    assert await said(server, conversation) == ["user: hi", "assistant: Half…"]


async def test_an_interrupted_reply_that_is_not_retried_stays_in_the_context_marked(
    server: Running, upstream: MockUpstream
) -> None:
    upstream.answers = [cuts([event(delta(role="assistant", content="Half"))]), says()]
    await post(server, [user("hi")], by_key("k"))
    # The client shows what it got, keeps it in its history, and goes on.
    history = [user("hi"), {"role": "assistant", "content": "Half"}, user("go on")]
    answer = await ask(server, history, by_key("k"))
    conversation = answer["holdfast"]["conversation_id"]
    assert await conversations(server) == 1
    assert await said(server, conversation) == [
        "user: hi",
        "assistant: Half…",
        "user: go on",
        "assistant: Hello Ada",
    ]
    assert "interrupted" in (await context(server, conversation))[1]["content"]


async def test_a_client_that_drops_the_broken_reply_and_asks_again_goes_on_in_place(
    server: Running, upstream: MockUpstream
) -> None:
    upstream.answers = [says(), cuts([event(delta(role="assistant", content="Half"))]), says()]
    first = await ask(server, "hi", by_key("k"))
    history = [user("hi"), {"role": "assistant", "content": text_of(first)}, user("and?")]
    await post(server, history, by_key("k"))
    answer = await ask(server, history, by_key("k"))
    assert await conversations(server) == 1
    kept = await said(server, answer["holdfast"]["conversation_id"])
    assert kept.count("user: and?") == 1
    assert [m["content"] for m in await context(server, answer["holdfast"]["conversation_id"])] == [
        "hi",
        "Hello Ada",
        "and?",
        "Hello Ada",
    ]


async def test_store_false_has_the_same_errors_and_keeps_nothing(
    server: Running, upstream: MockUpstream
) -> None:
    client = sdk(server)
    for stream in (False, True):
        upstream.answers = [refusal(429)]
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(model="m", messages=[user("hi")], store=False, stream=stream)
    upstream.answers = [cuts([event(delta(content="Half"))])]
    broken = await client.chat.completions.create(model="m", messages=[user("hi")], store=False, stream=True)
    with pytest.raises(openai.APIError):
        [chunk async for chunk in broken]
    assert await conversations(server) == 0


async def test_requests_that_cannot_be_meant_are_400_and_nothing_is_stored(
    server: Running, upstream: MockUpstream
) -> None:
    bodies: list[Any] = [
        {},
        {"messages": []},
        {"messages": "hi"},
        {"messages": [{}]},
        {"messages": [{"role": "wizard", "content": "hi"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "system", "content": "only instructions"}]},
        {"messages": [{"role": "tool", "content": "no id"}]},
        {"messages": [{**user("hi"), "tool_calls": 5}]},
        {
            "messages": [
                user("a"),
                {"role": "assistant", "tool_calls": [{"id": "c", "function": "f"}]},
                user("b"),
            ]
        },
        {"messages": [user("hi\ud800")]},
        {"messages": [user("hi")], "stream": "yes"},
        {"messages": [user("hi")], "store": 1},
        {"messages": [user("hi")], "model": 7},
        {"messages": [user("hi")], "n": 0},
        {"messages": [user("hi")], "n": True},
        {"messages": [user("hi")], "stream_options": []},
        [],
        "hello",
        None,
    ]
    for body in bodies:
        response = await server.client.post(PATH, content=json.dumps(body))
        assert response.status_code == 400, body
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert response.json()["error"]["type"] == "invalid_request_error"
        assert response.headers["x-request-id"]
    for content in (b"", b"{", b'{"messages": [', b"\xff\xfe", b"[" * 100_000):
        response = await server.client.post(PATH, content=content)
        assert response.status_code == 400, content[:20]
    assert await conversations(server) == 0
    assert upstream.chats == []


async def test_what_a_model_says_that_no_database_can_keep_is_replaced(
    server: Running, upstream: MockUpstream
) -> None:
    """Nobody is there to say it differently, and a turn must not fail for it."""
    upstream.answers = [
        says(
            [event(delta(role="assistant", content="nul \x00 here")), event(delta("stop")), event(b"[DONE]")]
        ),
        says(),
    ]
    answer = await ask(server, "hi", by_key("k"))
    (_, kept) = await stored(server, answer["holdfast"]["conversation_id"])
    assert kept.content()["content"] == "nul \ufffd here"
    assert text_of(await ask(server, "more", by_key("k"))) == "Hello Ada"


async def test_a_large_body_for_which_the_system_has_no_thread_is_refused_until_it_has(
    server: Running, upstream: MockUpstream, no_threads: AbstractContextManager[None]
) -> None:
    upstream.answers = [says()]
    large = [user("x" * 2 * LARGE_BODY)]
    codes = []
    with no_threads:
        while "no_threads" not in codes:
            refused = await post(server, large)
            assert refused.status_code == 503
            assert refused.headers["x-should-retry"] == "true"
            codes.append(refused.json()["error"]["code"])
    # The store may want its next reader just then, and says so first.
    assert set(codes) <= {"no_threads", "store_unavailable"}
    assert await conversations(server) == 0
    await ask(server, large)
