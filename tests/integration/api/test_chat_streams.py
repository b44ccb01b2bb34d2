"""Streams, and turns that others wait for: busy conversations, clients that leave, silence, late headers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest

from holdfast.domain.turns import TurnStatus
from holdfast.errors import ModelError
from holdfast.models.scripted import ScriptedModel
from holdfast.server import sse, streams
from tests.integration.api.chatting import (
    PATH,
    Words,
    ask,
    by_key,
    conversation_of,
    conversations,
    ended,
    heard,
    post,
    said,
    sdk,
    text_of,
    turns,
    until,
    user,
)
from tests.integration.api.conftest import Running, StartServer


@asynccontextmanager
async def streaming(
    server: Running, text: str = "hi", headers: dict[str, str] | None = None
) -> AsyncIterator[httpx.Response]:
    """A stream that is left when the block is, whether it is over or not."""
    async with httpx.AsyncClient(
        base_url=server.url, headers={"authorization": f"Bearer {server.admin_key}"}, timeout=60
    ) as client:
        body = {"messages": [user(text)], "stream": True}
        async with client.stream("POST", PATH, json=body, headers=headers) as response:
            yield response


async def quietly(server: Running) -> None:
    """Until nothing runs."""
    await until(lambda: not server.services.runner.running, "every turn has ended")


# --- busy ------------------------------------------------------------------------------------------------


async def test_a_second_request_waits_for_the_first_and_sees_its_answer(start_server: StartServer) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words, "second answer"]))
    first = asyncio.create_task(ask(server, "first", by_key("k")))
    await words.asked.wait()
    second = asyncio.create_task(ask(server, "second", by_key("k")))
    await asyncio.sleep(0.1)
    assert not second.done()
    words.finish("first answer")
    assert text_of(await first) == "first answer"
    assert text_of(await second) == "second answer"
    assert [m["content"] for m in heard(server)] == ["first", "first answer", "second"]


async def test_a_request_with_a_history_decides_again_when_its_turn_comes(start_server: StartServer) -> None:
    """What it was compared with has changed while it waited."""
    words = Words()
    server = await start_server(ScriptedModel(["hello", words, "again"]))
    opening = await ask(server, "hi", by_key("k"))
    history = [user("hi"), {"role": "assistant", "content": "hello"}, user("how are you?")]
    first = asyncio.create_task(ask(server, history, by_key("k")))
    await words.asked.wait()
    second = asyncio.create_task(ask(server, history, by_key("k")))
    await asyncio.sleep(0.1)
    words.finish("fine")
    await first
    answer = await second
    assert text_of(answer) == "again"
    assert conversation_of(answer) == conversation_of(opening)
    assert (await said(server, conversation_of(opening))).count("user: how are you?") == 1


async def test_a_conversation_that_stays_busy_is_a_409_that_the_sdk_retries(
    start_server: StartServer,
) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words, "second"]), server={"busy_wait_seconds": 0.1})
    first = asyncio.create_task(ask(server, "first", by_key("k")))
    await words.asked.wait()
    response = await post(server, [user("second")], by_key("k"))
    assert response.status_code == 409
    assert response.json()["error"]["code"] == "conversation_locked"
    assert response.headers["x-should-retry"] == "true"
    client = sdk(server, max_retries=5)
    asking = asyncio.create_task(
        client.chat.completions.create(model="m", messages=[user("second")], extra_headers=by_key("k"))
    )
    await asyncio.sleep(0.2)
    words.finish("done")
    conversation = conversation_of(await first)
    answer = await asking
    assert answer.choices[0].message.content == "second"
    assert await said(server, conversation) == [
        "user: first",
        "assistant: done",
        "user: second",
        "assistant: second",
    ]


async def test_waiting_requests_come_to_their_turn_one_by_one(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel(delay=0.001))
    answers = await asyncio.gather(*(ask(server, f"message {n}", by_key("k")) for n in range(10)))
    lines = await said(server, conversation_of(answers[0]))
    assert len(lines) == 20
    for question, answer in zip(lines[::2], lines[1::2], strict=True):
        assert answer == f"assistant: You said: {question.removeprefix('user: ')}"


async def test_interrupt_cuts_the_running_turn_short_and_keeps_what_it_said(
    start_server: StartServer,
) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words, "corrected"]))
    async with streaming(server, "tell me everything", by_key("k")) as response:
        words.say("Once ", "upon ")
        lines = response.aiter_lines()
        while "upon" not in await anext(lines):
            pass
        answer = await ask(server, "stop, shorter", {**by_key("k"), "x-holdfast-when-busy": "interrupt"})
        rest = [line async for line in lines if line.startswith("data: ")]
    assert text_of(answer) == "corrected"
    last = json.loads(rest[-2].removeprefix("data: "))
    assert last["error"]["code"] == "turn_interrupted"
    assert last["holdfast"]["conversation_id"] == conversation_of(answer)
    assert await said(server, conversation_of(answer)) == [
        "user: tell me everything",
        "assistant: Once upon …",
        "user: stop, shorter",
        "assistant: corrected",
    ]
    assert "interrupted" in heard(server)[1]["content"]
    statuses = [turn.status for turn in await turns(server, conversation_of(answer))]
    assert statuses == [TurnStatus.INTERRUPTED, TurnStatus.COMPLETED]


async def test_a_plain_request_that_is_cut_short_is_told_so_and_the_sdk_does_not_retry_it(
    start_server: StartServer,
) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words, "corrected"]))
    client = sdk(server, max_retries=3)
    first = asyncio.create_task(
        client.chat.completions.create(model="m", messages=[user("one")], extra_headers=by_key("k"))
    )
    await words.asked.wait()
    await ask(server, "two", {**by_key("k"), "x-holdfast-when-busy": "interrupt"})
    with pytest.raises(openai.ConflictError) as cut:
        await first
    assert cut.value.code == "turn_interrupted"
    assert cut.value.request.headers["x-stainless-retry-count"] == "0"
    assert server.model.calls == 2


async def test_a_server_that_is_about_to_stop_begins_nothing_and_says_when_to_come_again(
    server: Running,
) -> None:
    server.services.draining.set()
    response = await post(server, [user("hi")], by_key("k"))
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "draining"
    assert response.headers["x-should-retry"] == "true"
    assert await conversations(server) == 0
    assert server.model.calls == 0


# --- leaving ---------------------------------------------------------------------------------------------


async def test_a_client_that_leaves_does_not_end_its_turn(start_server: StartServer) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words]))
    async with streaming(server) as response:
        words.say("half ")
        await anext(response.aiter_lines())
    conversation = response.headers["x-holdfast-conversation-id"]
    await asyncio.sleep(0.05)
    words.finish("and whole")
    await ended(server, conversation, TurnStatus.COMPLETED)
    assert await said(server, conversation) == ["user: hi", "assistant: half and whole"]


async def leave(server: Running, asked: asyncio.Event, **request: Any) -> None:
    """Send a request, and close its connection once the model was asked."""
    asking = asyncio.create_task(server.client.post(PATH, timeout=60, **request))
    await asyncio.wait_for(asked.wait(), 60)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_a_plain_request_whose_client_leaves_is_answered_all_the_same(
    start_server: StartServer,
) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words]))
    await leave(server, words.asked, json={"messages": [user("hi")]}, headers=by_key("k"))
    words.finish("the answer")
    await quietly(server)
    answer = await ask(server, [user("hi")], {**by_key("k"), "x-stainless-retry-count": "1"})
    assert text_of(answer) == "the answer"
    assert server.model.calls == 1


async def test_a_client_may_ask_that_its_leaving_ends_the_turn(start_server: StartServer) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words]))
    async with streaming(server, headers={"x-holdfast-on-disconnect": "interrupt"}) as response:
        words.say("half ")
        lines = response.aiter_lines()
        while "half" not in await anext(lines):
            pass
    conversation = response.headers["x-holdfast-conversation-id"]
    await ended(server, conversation, TurnStatus.INTERRUPTED)
    assert await said(server, conversation) == ["user: hi", "assistant: half …"]
    assert not server.services.runner.running


async def test_a_client_that_leaves_does_not_end_the_turn_of_its_own_retry(start_server: StartServer) -> None:
    """The server may see the old connection break after the retry has come."""
    words = Words()
    server = await start_server(ScriptedModel([words]))
    headers = {"x-holdfast-on-disconnect": "interrupt", "idempotency-key": "m1"}
    async with streaming(server, headers=headers) as retry:
        async with streaming(server, headers=headers):
            words.say("half ")
            (running,) = server.services.runner.running.values()
            await until(lambda: len(running.clients) == 2, "both listen")
        await until(lambda: sum(each.is_open() for each in running.clients) == 1, "one has left")
        words.finish("an answer")
        assert "an answer" in (await retry.aread()).decode()
    await ended(server, retry.headers["x-holdfast-conversation-id"], TurnStatus.COMPLETED)
    assert server.model.calls == 1


async def test_leaving_before_the_first_word_ends_the_turn_too(start_server: StartServer) -> None:
    for stream in (True, False):
        words = Words()
        server = await start_server(ScriptedModel([words]))
        await leave(
            server,
            words.asked,
            json={"messages": [user("hi")], "stream": stream},
            headers={"x-holdfast-on-disconnect": "interrupt"},
        )
        await quietly(server)


async def test_the_setting_says_what_becomes_of_a_turn_whose_client_leaves(
    start_server: StartServer,
) -> None:
    first, second = Words(), Words()
    server = await start_server(ScriptedModel([first, second]), server={"on_disconnect": "interrupt"})
    async with streaming(server) as response:
        first.say("half ")
        await anext(response.aiter_lines())
    await ended(server, response.headers["x-holdfast-conversation-id"], TurnStatus.INTERRUPTED)
    async with streaming(server, headers={"x-holdfast-on-disconnect": "finish"}) as response:
        second.say("half ")
        await anext(response.aiter_lines())
    second.finish("whole")
    await ended(server, response.headers["x-holdfast-conversation-id"], TurnStatus.COMPLETED)


async def test_what_is_not_kept_stops_when_its_client_leaves(start_server: StartServer) -> None:
    asked, stopped = asyncio.Event(), asyncio.Event()

    async def for_ever() -> AsyncIterator[str]:
        asked.set()
        try:
            yield "half "
            await asyncio.sleep(60)
        finally:
            stopped.set()

    for stream in (True, False):
        asked.clear()
        stopped.clear()
        server = await start_server(ScriptedModel([lambda messages, purpose: for_ever()]))
        body = {"messages": [user("hi")], "stream": stream, "store": False}
        await leave(server, asked, json=body)
        await asyncio.wait_for(stopped.wait(), 60)


# --- silence ---------------------------------------------------------------------------------------------


async def test_comments_keep_a_silent_stream_alive(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(sse, "KEEPALIVE_SECONDS", 0.04)
    words = Words()
    server = await start_server(ScriptedModel([words]))
    async with streaming(server) as response:
        words.say("half ")
        lines = response.aiter_lines()
        comments = 0
        while comments < 3:
            comments += (await anext(lines)).startswith(":")
        words.finish("whole")
        rest = [line async for line in lines if line]
    assert rest[-1] == "data: [DONE]"


async def test_the_sdk_does_not_mind_comments(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(sse, "KEEPALIVE_SECONDS", 0.02)
    for store in (True, False):
        words = Words()
        server = await start_server(ScriptedModel([words]))
        words.say("half ")
        stream = await sdk(server).chat.completions.create(
            model="m", messages=[user("hi")], stream=True, store=store
        )
        asyncio.get_running_loop().call_later(0.3, words.finish, "and whole")
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert text == "half and whole"


async def test_headers_go_out_though_the_model_has_not_said_a_word(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 9 <= streams.HEADERS_SECONDS < 10
    monkeypatch.setattr(streams, "HEADERS_SECONDS", 0.1)
    monkeypatch.setattr(sse, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(sse, "KEEPALIVE_SECONDS", 0.02)
    gate = asyncio.Event()

    async def slow(messages: object, purpose: object) -> str:
        await gate.wait()
        raise ModelError("overloaded", 429)

    server = await start_server(ScriptedModel(slow))
    async with streaming(server) as response:
        assert not gate.is_set()
        assert response.status_code == 200
        conversation = response.headers["x-holdfast-conversation-id"]
        assert await said(server, conversation) == ["user: hi"], "on disk before the status line"
        lines = response.aiter_lines()
        assert (await anext(lines)).startswith(":")
        gate.set()
        rest = [line async for line in lines if line.startswith("data: ")]
    error = json.loads(rest[0].removeprefix("data: "))
    assert error["error"]["code"] == "rate_limit_exceeded"
    assert error["holdfast"]["conversation_id"] == conversation
    assert rest[1:] == ["data: [DONE]"]


async def test_the_headers_of_what_is_not_kept_go_out_in_time_too(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "HEADERS_SECONDS", 0.1)
    monkeypatch.setattr(sse, "LOOK_SECONDS", 0.02)
    gate = asyncio.Event()

    async def slow(messages: object, purpose: object) -> str:
        await gate.wait()
        raise ModelError("overloaded", 429)

    server = await start_server(ScriptedModel(slow))
    body = {"messages": [user("hi")], "stream": True, "store": False}
    async with server.client.stream("POST", PATH, json=body) as response:
        assert response.status_code == 200
        gate.set()
        text = (await response.aread()).decode()
    assert '"code":"rate_limit_exceeded"' in text
    assert await conversations(server) == 0


async def test_words_arrive_as_they_are_said(start_server: StartServer) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words]))
    words.say("one ")
    stream = await sdk(server).chat.completions.create(model="m", messages=[user("hi")], stream=True)
    chunks = aiter(stream)
    for word in ("one ", "two ", "three "):
        while (await anext(chunks)).choices[0].delta.content != word:
            pass
        words.say({"one ": "two ", "two ": "three "}.get(word, "end"))
    words.finish()
    assert [c.choices[0].finish_reason async for c in chunks][-1] == "stop"


async def test_the_last_chunk_comes_after_the_answer_is_on_disk(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel(["the answer"]))
    async with streaming(server) as response:
        async for line in response.aiter_lines():
            if '"finish_reason":"stop"' in line:
                conversation = response.headers["x-holdfast-conversation-id"]
                assert await said(server, conversation) == ["user: hi", "assistant: the answer"]
                break
        else:
            raise AssertionError("no chunk with a finish_reason")
