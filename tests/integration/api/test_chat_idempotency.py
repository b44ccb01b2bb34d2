"""A request that comes again is one turn: by its Idempotency-Key, or as the official SDK's own retry."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from holdfast.domain.sessions import EndReason
from holdfast.domain.turns import TurnStatus
from holdfast.errors import ModelError
from holdfast.models.scripted import ScriptedModel
from tests.integration.api.chatting import (
    PATH,
    Words,
    ask,
    by_key,
    calls,
    context,
    conversation_of,
    conversations,
    ended,
    heard,
    once,
    post,
    said,
    sdk,
    text_of,
    turns,
    until,
    user,
)
from tests.integration.api.conftest import Running, StartServer
from tests.integration.api.cutting import CuttingProxy

RETRY = {"x-stainless-retry-count": "1"}


async def stream_text(response: Any) -> str:
    """What a stream of the SDK says."""
    return "".join([c.choices[0].delta.content or "" async for c in response if c.choices])


async def test_the_same_request_again_gets_the_same_answer_and_ids(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel(["the answer"]))
    answers = [
        await post(server, [user("hi")], headers) for headers in (once("m1"), once("m1"), once("m1", **RETRY))
    ]
    assert len({answer.text for answer in answers}) == 1
    assert len({answer.headers["x-holdfast-turn-id"] for answer in answers}) == 1
    assert text_of(answers[0].json()) == "the answer"
    assert server.model.calls == 1
    assert await conversations(server) == 1
    assert await said(server, conversation_of(answers[0].json())) == ["user: hi", "assistant: the answer"]


async def test_a_streamed_request_again_is_streamed_again_with_the_same_ids(
    start_server: StartServer,
) -> None:
    server = await start_server(ScriptedModel(["the whole answer"]))
    client = sdk(server)
    seen = []
    for _ in range(2):
        stream = await client.chat.completions.create(
            model="m",
            messages=[user("hi")],
            stream=True,
            stream_options={"include_usage": True},
            extra_headers=once("m1"),
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        (last,) = [c for c in chunks if c.choices and c.choices[0].finish_reason]
        assert last.model_extra is not None
        usage = [c.usage for c in chunks if c.usage]
        seen.append((text, last.model_extra["holdfast"], chunks[0].id, usage[-1].total_tokens))
        assert stream.response.headers["x-holdfast-turn-id"] == last.model_extra["holdfast"]["turn_id"]
    assert seen[0] == seen[1]
    assert server.model.calls == 1


async def test_tool_calls_are_streamed_again_too(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel([calls("call_1", "call_2")]))
    client = sdk(server)
    finals = []
    for _ in range(2):
        async with client.chat.completions.stream(
            model="m", messages=[user("hi")], extra_headers=once("m1")
        ) as stream:
            finals.append((await stream.get_final_completion()).choices[0])
    assert finals[0].message.tool_calls == finals[1].message.tool_calls
    assert finals[1].finish_reason == "tool_calls"


async def test_another_body_under_the_same_key_is_a_conflict_that_the_sdk_does_not_retry(
    start_server: StartServer,
) -> None:
    server = await start_server(ScriptedModel(["one"]))
    client = sdk(server, max_retries=3)
    await client.chat.completions.create(model="m", messages=[user("hi")], extra_headers=once("m1"))
    with pytest.raises(openai.ConflictError) as refused:
        await client.chat.completions.create(model="m", messages=[user("bye")], extra_headers=once("m1"))
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert refused.value.request.headers["x-stainless-retry-count"] == "0"
    assert refused.value.code == "idempotency_key_reused"
    assert server.model.calls == 1
    assert await conversations(server) == 1


async def test_a_key_is_its_owners_own(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel())
    ada, bob = await server.client_of("ada"), await server.client_of("bob")
    hers = (await post(server, [user("I am Ada")], once("m1"), ada)).json()
    his = (await post(server, [user("I am Bob")], once("m1"), bob)).json()
    assert text_of(hers) == "You said: I am Ada"
    assert text_of(his) == "You said: I am Bob"


async def test_two_at_once_are_one_call_of_the_model(start_server: StartServer) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words]))
    asking = [asyncio.create_task(ask(server, "hi", once("m1"))) for _ in range(5)]
    await words.asked.wait()
    late = asyncio.create_task(ask(server, "hi", once("m1")))
    words.finish("one", " answer")
    answers = await asyncio.gather(*asking, late)
    assert {text_of(answer) for answer in answers} == {"one answer"}
    assert len({answer["holdfast"]["turn_id"] for answer in answers}) == 1
    assert server.model.calls == 1
    assert len(await said(server, conversation_of(answers[0]))) == 2


async def test_a_stream_that_is_joined_is_heard_from_its_beginning(start_server: StartServer) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words]))
    client = sdk(server)

    async def listen() -> str:
        return await stream_text(
            await client.chat.completions.create(
                model="m", messages=[user("hi")], stream=True, extra_headers=once("m1")
            )
        )

    first = asyncio.create_task(listen())
    await words.asked.wait()
    words.say("said ", "before ")
    await until(lambda: any(len(t.events) > 2 for t in server.services.runner.running.values()), "it speaks")
    second = asyncio.create_task(listen())
    await asyncio.sleep(0.05)
    words.finish("and after")
    assert await first == await second == "said before and after"
    assert server.model.calls == 1


async def test_a_failed_turn_is_taken_up_by_its_retry(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel([("Half an", ModelError("broken", 500)), "A whole answer"]))
    failed = await post(server, [user("hi")], once("m1", **by_key("k")))
    assert failed.status_code == 502
    conversation = failed.json()["holdfast"]["conversation_id"]
    assert await said(server, conversation) == ["user: hi", "assistant: Half an…"]
    answer = await ask(server, "hi", once("m1", **by_key("k")))
    assert conversation_of(answer) == conversation
    assert answer["holdfast"]["turn_id"] == failed.json()["holdfast"]["turn_id"]
    assert [m["content"] for m in heard(server)] == ["hi"], "the partial reply leaves the context"
    assert [m["content"] for m in await context(server, conversation)] == ["hi", "A whole answer"]
    assert (await said(server, conversation)).count("user: hi") == 1
    (turn,) = await turns(server, conversation)
    assert (turn.status, turn.attempt) == (TurnStatus.COMPLETED, 2)
    again = await ask(server, "hi", once("m1", **by_key("k")))
    assert again["holdfast"]["turn_id"] == turn.id
    assert server.model.calls == 2


async def test_a_retry_of_a_turn_that_is_not_the_newest_is_refused(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel([ModelError("broken", 500), "fine"]))
    await post(server, [user("one")], once("m1", **by_key("k")))
    later = await ask(server, "two", by_key("k"))
    client = sdk(server, max_retries=3)
    with pytest.raises(openai.ConflictError) as refused:
        await client.chat.completions.create(
            model="m", messages=[user("one")], extra_headers=once("m1", **by_key("k"))
        )
    assert refused.value.code == "idempotency_key_reused", "the SDK's body has a model"
    response = await post(server, [user("one")], once("m1", **by_key("k")))
    assert response.status_code == 409
    assert response.json()["error"]["code"] == "turn_superseded"
    assert response.headers["x-should-retry"] == "false"
    assert (await said(server, conversation_of(later))).count("user: one") == 1
    assert server.model.calls == 2


async def test_a_retry_of_an_answered_turn_is_answered_though_others_came_later(
    start_server: StartServer,
) -> None:
    server = await start_server(ScriptedModel(["first", "second"]))
    first = await ask(server, "one", once("m1", **by_key("k")))
    await ask(server, "two", by_key("k"))
    assert await ask(server, "one", once("m1", **by_key("k"))) == first
    assert server.model.calls == 2


async def test_an_answer_to_a_stale_id_is_the_same_when_it_comes_again(server: Running) -> None:
    first = await ask(server, "one")
    await server.store.end_session(None, first["holdfast"]["session_id"], EndReason.CLOSED)
    headers = once("m2", **{"x-holdfast-session-id": first["holdfast"]["session_id"]})
    second = await ask(server, "two", headers)
    assert second["holdfast"]["compacted"] is True
    assert await ask(server, "two", headers) == second


async def test_a_cancelled_turn_stays_cancelled(start_server: StartServer) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words]))
    asking = asyncio.create_task(post(server, [user("hi")], once("m1")))
    await words.asked.wait()
    (running,) = server.services.runner.running.values()
    await server.services.runner.stop(None, running.turn.id, TurnStatus.CANCELLED, "a person said stop")
    assert (await asking).status_code == 409
    again = await post(server, [user("hi")], once("m1"))
    assert again.status_code == 409
    assert again.json()["error"]["code"] == "turn_cancelled"
    assert server.model.calls == 1


# --- the official SDK's own retries ----------------------------------------------------------------------


async def test_the_sdks_retry_after_a_cut_connection_is_one_turn(start_server: StartServer) -> None:
    """Cut before the status line, while the turn runs: the retry joins it."""
    words = Words()
    server = await start_server(ScriptedModel([words]))
    async with CuttingProxy(server.url) as proxy:
        client = openai.AsyncOpenAI(
            base_url=f"{proxy.url}/v1", api_key=server.admin_key, max_retries=2, timeout=60
        )
        asking = asyncio.create_task(
            client.chat.completions.create(model="m", messages=[user("hi")], extra_headers=by_key("k"))
        )
        await words.asked.wait()
        proxy.cut()
        await until(lambda: proxy.connections == 2, "the SDK comes again")
        words.finish("one answer")
        answer = await asking
        await client.close()
    assert answer.choices[0].message.content == "one answer"
    assert server.model.calls == 1
    conversation = conversation_of(answer)
    assert await said(server, conversation) == ["user: hi", "assistant: one answer"]
    assert len(await turns(server, conversation)) == 1


@pytest.mark.parametrize("headers", [{}, once("m1")], ids=["without a key", "with a key"])
async def test_an_answer_that_was_lost_behind_the_server_is_given_again_only_by_its_key(
    start_server: StartServer, headers: dict[str, str]
) -> None:
    """A proxy has read it whole and thrown it away: to the server it was received. Without a key an opener is
    then a conversation of its own, since nothing shows whose it is."""
    server = await start_server(ScriptedModel(["one answer", "another"]))
    async with CuttingProxy(server.url, swallows_first=True) as proxy:
        client = openai.AsyncOpenAI(
            base_url=f"{proxy.url}/v1", api_key=server.admin_key, max_retries=2, timeout=60
        )
        answer = await client.chat.completions.create(model="m", messages=[user("hi")], extra_headers=headers)
        await client.close()
        assert proxy.connections == 2
    assert answer.choices[0].message.content == ("one answer" if headers else "another")
    assert await conversations(server) == (1 if headers else 2)


async def test_the_sdk_does_not_retry_a_stream_that_was_cut_and_its_turn_goes_on(
    start_server: StartServer,
) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words]))
    async with CuttingProxy(server.url) as proxy:
        client = openai.AsyncOpenAI(
            base_url=f"{proxy.url}/v1", api_key=server.admin_key, max_retries=2, timeout=60
        )
        words.say("said ")
        stream = await client.chat.completions.create(model="m", messages=[user("hi")], stream=True)
        proxy.cut()
        with pytest.raises(openai.APIConnectionError):
            [chunk async for chunk in stream]
        await client.close()
    conversation = stream.response.headers["x-holdfast-conversation-id"]
    words.finish("to the end")
    await ended(server, conversation, TurnStatus.COMPLETED)
    assert await said(server, conversation) == ["user: hi", "assistant: said to the end"]


async def test_a_retry_without_a_key_of_what_is_not_the_newest_turn_is_a_new_request(
    start_server: StartServer,
) -> None:
    """The first try was lost before it reached us, and somebody said the same some turns ago: its old answer
    would be the wrong one."""
    server = await start_server(ScriptedModel(["one", "two", "three"]))
    await ask(server, "go on", by_key("k"))
    await ask(server, "wait", by_key("k"))
    retried = await ask(server, "go on", {**by_key("k"), **RETRY})
    assert text_of(retried) == "three"
    assert (await said(server, conversation_of(retried))).count("user: go on") == 2


async def test_a_retry_without_a_key_is_of_the_same_conversation_and_key(
    start_server: StartServer,
) -> None:
    server = await start_server(ScriptedModel())
    one = await ask(server, "hi", by_key("k1"))
    other = await ask(server, "hi", {**by_key("k2"), **RETRY})
    assert conversation_of(one) != conversation_of(other)
    ada, bob = await server.client_of("team"), await server.client_of("team")
    hers = (await post(server, [user("hello")], client=ada)).json()
    his = (await post(server, [user("hello")], RETRY, bob)).json()
    assert conversation_of(hers) != conversation_of(his)


async def test_a_retry_in_another_persons_name_is_not_theirs(server: Running) -> None:
    """Behind one bridge key, a retry with the words of somebody else's request is no retry of that."""
    bridge = await server.client_of("team", "bridge")
    ada = {"x-holdfast-owner": "ada"}
    bob = {"x-holdfast-owner": "bob", **RETRY}
    hers = (await bridge.post(PATH, json={"messages": [user("hello")]}, headers=ada)).json()
    his = (await bridge.post(PATH, json={"messages": [user("hello")]}, headers=bob)).json()
    assert conversation_of(hers) != conversation_of(his)


async def test_the_same_key_and_words_in_another_conversation_are_refused_not_answered_with_the_first(
    server: Running,
) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}]}
    headers = {"idempotency-key": "m1", "x-holdfast-session-key": "chat:1"}
    first = await server.client.post("/v1/chat/completions", json=body, headers=headers)
    assert first.status_code == 200
    other = {**headers, "x-holdfast-session-key": "chat:2"}
    second = await server.client.post("/v1/chat/completions", json=body, headers=other)
    assert (second.status_code, second.headers["x-should-retry"]) == (409, "false")


async def test_a_retry_may_name_its_conversation_by_the_id_that_it_has_learnt(server: Running) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}]}
    key = {"idempotency-key": "m1"}
    first = await server.client.post("/v1/chat/completions", json=body, headers=key)
    for name in ("x-holdfast-session-id", "x-holdfast-conversation-id"):
        named = {**key, "x-holdfast-session-id": first.headers[name]}
        again = await server.client.post("/v1/chat/completions", json=body, headers=named)
        assert again.json()["holdfast"]["turn_id"] == first.json()["holdfast"]["turn_id"]
    unnamed = await server.client.post("/v1/chat/completions", json=body, headers=key)
    assert unnamed.json()["holdfast"]["turn_id"] == first.json()["holdfast"]["turn_id"]
