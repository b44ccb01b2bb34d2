"""How a request names its conversation, and how the answer names it back: headers, JSON, last chunk."""

from __future__ import annotations

import asyncio
import json

from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.sessions import EndReason
from holdfast.models.scripted import ScriptedModel
from tests.integration.api.chatting import (
    PATH,
    ask,
    assistant,
    by_id,
    by_key,
    conversation_of,
    conversations,
    heard,
    post,
    said,
    sdk,
    session_of,
    text_of,
    turns,
    user,
)
from tests.integration.api.conftest import Running, StartServer


async def source_of(server: Running, conversation_id: str) -> str:
    return (await server.store.resolve(None, Address(id=conversation_id))).tip.source


# --- in --------------------------------------------------------------------------------------------------


async def test_the_newest_session_id_continues(server: Running) -> None:
    first = await ask(server, "my name is Ada")
    second = await ask(server, "who am I?", by_id(session_of(first)))
    assert conversation_of(second) == conversation_of(first)
    assert session_of(second) == session_of(first)
    assert [message["content"] for message in heard(server)] == [
        "my name is Ada",
        "You said: my name is Ada",
        "who am I?",
    ]


async def test_a_stale_session_id_continues_in_the_newest_and_says_so(server: Running) -> None:
    first = await ask(server, "one")
    assert first["holdfast"]["compacted"] is False
    await server.store.end_session(None, session_of(first), EndReason.CLOSED)
    second = await ask(server, "two", by_id(session_of(first)))
    assert session_of(second) != session_of(first)
    assert conversation_of(second) == conversation_of(first)
    assert second["holdfast"]["compacted"] is True
    assert [message["content"] for message in heard(server)] == ["one", "You said: one", "two"]
    third = await ask(server, "three", by_id(session_of(first)))
    assert session_of(third) == session_of(second)
    fourth = await ask(server, "four", by_id(session_of(third)))
    assert fourth["holdfast"]["compacted"] is False


async def test_a_conversation_id_continues(server: Running) -> None:
    first = await ask(server, "one")
    second = await ask(server, "two", by_id(conversation_of(first)))
    assert session_of(second) == session_of(first)
    assert second["holdfast"]["compacted"] is False
    assert len(await said(server, conversation_of(first))) == 4


async def test_an_unknown_id_that_is_not_of_our_form_opens_a_conversation_and_stays_its_alias(
    server: Running,
) -> None:
    body = {"messages": [user("one")]}
    for name in (
        "my-own-chat",
        "5f0c2b6e-4d6d-4c0b-9f7e-1f0f4a5a2f11",
        "Grüße an alle",
        "session_1",
        "a/b?c",
    ):
        headers = {b"x-holdfast-session-id": name.encode()}
        first = (await server.client.post(PATH, json=body, headers=headers)).json()
        assert session_of(first).startswith("sess_")
        second = (await server.client.post(PATH, json=body, headers=headers)).json()
        assert conversation_of(second) == conversation_of(first)
        found = await server.store.resolve("default", Address(id=name))
        assert found.conversation.id == conversation_of(first)
    assert await conversations(server) == 5


async def test_an_alias_belongs_to_its_owner(server: Running) -> None:
    ada, bob = await server.client_of("ada"), await server.client_of("bob")
    hers = (await post(server, [user("I am Ada")], by_id("chat-1"), ada)).json()
    his = (await post(server, [user("I am Bob")], by_id("chat-1"), bob)).json()
    assert conversation_of(hers) != conversation_of(his)
    assert [message["content"] for message in heard(server)] == ["I am Bob"]


async def test_an_unknown_id_of_our_form_is_a_404_and_opens_nothing(server: Running) -> None:
    for prefix in ("sess", "conv", "resp"):
        response = await post(server, [user("hi")], by_id(new_id(prefix)))
        assert response.status_code == 404
        assert response.json()["error"]["type"] == "invalid_request_error"
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert await conversations(server) == 0
    assert server.model.calls == 0


async def test_an_id_of_another_owner_is_answered_like_one_that_never_existed(server: Running) -> None:
    ada, bob = await server.client_of("ada"), await server.client_of("bob")
    hers = (await post(server, [user("secret")], client=ada)).json()
    for name in (session_of(hers), conversation_of(hers)):
        prefix = name.partition("_")[0]
        stranger, nobody = new_id(prefix), name
        one = await post(server, [user("hi")], by_id(nobody), bob)
        other = await post(server, [user("hi")], by_id(stranger), bob)
        assert one.status_code == other.status_code == 404
        assert one.text.replace(nobody, "?") == other.text.replace(stranger, "?")
    assert await said(server, conversation_of(hers)) == ["user: secret", "assistant: You said: secret"]


async def test_a_key_is_created_when_it_is_new_and_found_when_it_is_not(server: Running) -> None:
    first = await ask(server, "one", by_key("telegram:dm:42"))
    second = await ask(server, "two", by_key("telegram:dm:42"))
    other = await ask(server, "three", by_key("telegram:dm:43"))
    assert conversation_of(second) == conversation_of(first) != conversation_of(other)


async def test_a_key_belongs_to_its_owner(server: Running) -> None:
    ada, bob = await server.client_of("ada"), await server.client_of("bob")
    hers = (await post(server, [user("I am Ada")], by_key("cli:me"), ada)).json()
    his = (await post(server, [user("I am Bob")], by_key("cli:me"), bob)).json()
    assert conversation_of(hers) != conversation_of(his)


async def test_the_headers_of_hermes_name_too(server: Running) -> None:
    first = await ask(server, "one", {"x-hermes-session-key": "agent:main:telegram:dm:1"})
    second = await ask(server, "two", by_key("agent:main:telegram:dm:1"))
    third = await ask(server, "three", {"X-Hermes-Session-Id": session_of(second)})
    assert conversation_of(first) == conversation_of(second) == conversation_of(third)


async def test_an_id_and_a_key_together_where_the_id_is_known_follow_the_id(server: Running) -> None:
    by_name = await ask(server, "one")
    keyed = await ask(server, "two", by_key("cli:ada"))
    both = await ask(server, "three", {**by_id(session_of(by_name)), **by_key("cli:ada")})
    assert conversation_of(both) == conversation_of(by_name) != conversation_of(keyed)


async def test_a_new_id_beside_a_key_becomes_another_name_of_the_keys_conversation(server: Running) -> None:
    keyed = await ask(server, "one", by_key("cli:ada"))
    both = await ask(server, "two", {**by_id("hermes-20260101"), **by_key("cli:ada")})
    named = await ask(server, "three", by_id("hermes-20260101"))
    assert conversation_of(keyed) == conversation_of(both) == conversation_of(named)
    fresh = await ask(server, "four", {**by_id("hermes-2"), **by_key("cli:new")})
    assert conversation_of(await ask(server, "five", by_id("hermes-2"))) == conversation_of(fresh)
    assert conversation_of(await ask(server, "six", by_key("cli:new"))) == conversation_of(fresh)


async def test_a_new_id_beside_many_keys_at_once_becomes_the_name_of_one_and_all_are_answered(
    server: Running,
) -> None:
    keys = [f"cli:{number}" for number in range(8)]
    answers = await asyncio.gather(
        *(post(server, [user("hi")], {**by_id("hermes-3"), **by_key(key)}) for key in keys)
    )
    assert [answer.status_code for answer in answers] == [200] * len(keys)
    named = conversation_of(await ask(server, "more", by_id("hermes-3")))
    assert named in {conversation_of(answer.json()) for answer in answers}


async def test_an_unknown_id_of_our_form_beside_a_key_is_a_404(server: Running) -> None:
    response = await post(server, [user("hi")], {**by_id(new_id("sess")), **by_key("cli:ada")})
    assert response.status_code == 404
    assert await conversations(server) == 0


async def test_the_source_is_named_or_read_off_the_key(server: Running) -> None:
    for headers, source in (
        ({}, "api"),
        (by_key("telegram:dm:42"), "telegram"),
        (by_key("agent:main:telegram:dm:42"), "telegram"),
        (by_key("just-a-name"), "api"),
        (by_id("just-an-alias"), "api"),
        ({"x-holdfast-source": "slack"}, "slack"),
        ({"x-holdfast-source": "slack", **by_key("telegram:dm:43")}, "slack"),
    ):
        assert await source_of(server, conversation_of(await ask(server, "hi", headers))) == source, headers


async def test_a_name_said_twice_is_refused(server: Running) -> None:
    response = await server.client.post(
        PATH,
        json={"messages": [user("hi")]},
        headers=[("x-holdfast-session-key", "a"), ("x-holdfast-session-key", "b")],
    )
    assert response.status_code == 400
    assert await conversations(server) == 0


async def test_headers_that_cannot_be_meant_are_refused_and_nothing_is_stored(server: Running) -> None:
    for headers in (
        {"x-holdfast-when-busy": "explode"},
        {"x-holdfast-on-disconnect": "explode"},
        by_key("k" * 600),
        {"x-holdfast-source": "s" * 600},
        {"idempotency-key": "i" * 600},
    ):
        response = await post(server, [user("hi")], headers)
        assert response.status_code == 400, headers
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert await conversations(server) == 0
    assert server.model.calls == 0


async def test_many_first_messages_of_a_new_key_at_once_open_one_conversation(server: Running) -> None:
    answers = await asyncio.gather(*(ask(server, f"message {n}", by_key("cli:new")) for n in range(8)))
    assert len({conversation_of(answer) for answer in answers}) == 1
    assert len(await said(server, conversation_of(answers[0]))) == 16


# --- out -------------------------------------------------------------------------------------------------


async def test_every_answer_names_session_conversation_and_turn_in_headers_and_json(server: Running) -> None:
    response = await post(server, [user("hi")])
    ours = response.json()["holdfast"]
    assert set(ours) == {
        "session_id",
        "conversation_id",
        "turn_id",
        "compacted",
        "reset",
        "notices",
        "attempt",
    }
    assert response.headers["x-holdfast-session-id"] == ours["session_id"]
    assert response.headers["x-hermes-session-id"] == ours["session_id"]
    assert response.headers["x-holdfast-conversation-id"] == ours["conversation_id"]
    assert response.headers["x-holdfast-turn-id"] == ours["turn_id"]
    assert response.headers["x-request-id"]
    assert "x-holdfast-reset" not in response.headers
    (turn,) = await turns(server, ours["conversation_id"])
    assert (turn.id, turn.session_id) == (ours["turn_id"], ours["session_id"])


async def test_a_stream_names_them_in_headers_and_on_the_chunk_with_finish_reason_only(
    server: Running,
) -> None:
    async with server.client.stream(
        "POST", PATH, json={"messages": [user("hi there")], "stream": True}
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in response.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    naming = [chunk for chunk in chunks if "holdfast" in chunk]
    assert [chunk["choices"][0]["finish_reason"] for chunk in naming] == ["stop"]
    ours = naming[0]["holdfast"]
    assert response.headers["x-holdfast-session-id"] == ours["session_id"]
    assert response.headers["x-hermes-session-id"] == ours["session_id"]
    assert response.headers["x-holdfast-conversation-id"] == ours["conversation_id"]
    assert response.headers["x-holdfast-turn-id"] == ours["turn_id"]
    assert set(ours) == {
        "session_id",
        "conversation_id",
        "turn_id",
        "compacted",
        "reset",
        "notices",
        "attempt",
    }


async def test_a_stream_has_no_named_events(server: Running) -> None:
    """They break the official SDK's chat stream."""
    async with server.client.stream(
        "POST", PATH, json={"messages": [user("hi")], "stream": True}
    ) as response:
        lines = [line async for line in response.aiter_lines() if line]
    assert all(line.startswith(("data: ", ":")) for line in lines)


async def test_the_sdk_reads_the_ids_of_a_plain_answer_and_of_a_stream(server: Running) -> None:
    client = sdk(server)
    whole = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    assert whole.model_extra is not None
    session = whole.model_extra["holdfast"]["session_id"]
    raw = await client.chat.completions.with_raw_response.create(
        model="m",
        messages=[{"role": "user", "content": "again"}],
        extra_headers={"X-Holdfast-Session-Id": session},
    )
    assert raw.headers["x-holdfast-session-id"] == session
    stream = await client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "more"}],
        stream=True,
        extra_headers={"X-Holdfast-Session-Id": session},
    )
    last = [chunk async for chunk in stream if chunk.choices and chunk.choices[0].finish_reason][-1]
    assert last.model_extra is not None
    assert last.model_extra["holdfast"]["session_id"] == session
    assert stream.response.headers["x-holdfast-session-id"] == session


async def test_ids_are_random_even_for_equal_openers(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel(lambda messages, purpose: "the same answer"))
    first, second = await ask(server, "hello"), await ask(server, "hello")
    assert text_of(first) == text_of(second)
    assert session_of(first) != session_of(second)
    assert conversation_of(first) != conversation_of(second)


async def test_a_conversation_deleted_meanwhile_is_not_found_by_any_of_its_names(server: Running) -> None:
    answer = await ask(server, "hi", by_key("cli:ada"))
    await server.store.delete_conversation(None, conversation_of(answer))
    for name in (session_of(answer), conversation_of(answer)):
        assert (await post(server, [user("hi")], by_id(name))).status_code == 404
    again = await ask(server, [user("hi"), assistant(text_of(answer)), user("more")], by_key("cli:ada"))
    assert conversation_of(again) != conversation_of(answer)
