"""Who may chat, and as whom: keys that are missing, wrong or revoked; people behind a bridge."""

from __future__ import annotations

import asyncio

import openai
import pytest

from holdfast.domain.api_keys import parse_token
from holdfast.domain.conversations import Address
from holdfast.domain.turns import TurnStatus
from holdfast.errors import StoreUnreachable
from holdfast.models.scripted import ScriptedModel
from holdfast.server import sse
from tests.integration.api.chatting import (
    PATH,
    Words,
    by_id,
    by_key,
    conversation_of,
    conversations,
    ended,
    heard,
    post,
    sdk,
    session_of,
    user,
)
from tests.integration.api.conftest import Running, StartServer


async def revoke(server: Running, token: str) -> None:
    parsed = parse_token(token)
    assert parsed is not None
    await server.store.revoke_key(parsed.key_id, None)


async def test_without_a_good_key_nothing_is_answered_and_nothing_stored(server: Running) -> None:
    good = await server.key("ada")
    revoked = await server.key("ada")
    await revoke(server, revoked)
    wrong = [None, "sk-something", good[:-1] + ("A" if good[-1] != "A" else "B"), revoked, "ключ"]
    texts = set()
    for token in wrong:
        client = await server.with_token(None)
        headers = {} if token is None else {b"authorization": f"Bearer {token}".encode()}
        response = await client.post(PATH, json={"messages": [user("hi")]}, headers=headers)
        assert response.status_code == 401, token
        assert response.json()["error"]["code"] == "invalid_api_key"
        texts.add(response.text)
    assert len(texts) == 1, "trying keys teaches nothing"
    with pytest.raises(openai.AuthenticationError):
        await sdk(server, "sk-wrong").chat.completions.create(model="m", messages=[user("hi")])
    assert await conversations(server) == 0
    assert server.model.calls == 0


async def test_the_open_stream_of_a_revoked_key_ends_within_seconds(start_server: StartServer) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words]))
    token = await server.key("ada")
    words.say("secret ")
    stream = await sdk(server, token).chat.completions.create(model="m", messages=[user("hi")], stream=True)
    chunks = aiter(stream)
    while (await anext(chunks)).choices[0].delta.content != "secret ":
        pass
    await revoke(server, token)
    with pytest.raises(openai.APIError) as told:
        async with asyncio.timeout(60):
            await anext(chunks)
    assert told.value.code == "invalid_api_key"
    # The turn is the server's: it goes on, for whoever may read it.
    words.finish("end")
    await ended(server, stream.response.headers["x-holdfast-conversation-id"], TurnStatus.COMPLETED)


async def test_a_talkative_stream_of_a_revoked_key_ends_too(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "LOOK_SECONDS", 0.1)
    server = await start_server(ScriptedModel([" ".join(["word"] * 2000)], delay=0.005))
    token = await server.key("ada")
    stream = await sdk(server, token).chat.completions.create(model="m", messages=[user("hi")], stream=True)
    await anext(aiter(stream))
    await revoke(server, token)
    heard = 0
    with pytest.raises(openai.APIError):
        async for _ in stream:
            heard += 1
    assert heard < 1999, "it was cut before its last word"


@pytest.mark.parametrize("store", [True, False])
async def test_a_stream_whose_key_cannot_be_read_ends_with_an_error(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, store: bool
) -> None:
    """The database is away for a moment: the client is sent why its stream ends."""
    monkeypatch.setattr(sse, "LOOK_SECONDS", 0.1)
    words = Words()
    server = await start_server(ScriptedModel([words]))
    stream = await sdk(server).chat.completions.create(
        model="m", messages=[user("hi")], stream=True, store=store
    )
    words.say("half ")
    await anext(aiter(stream))

    async def away(key: object) -> bool:
        raise StoreUnreachable("no connection to 10.0.0.7")

    monkeypatch.setattr(server.services.holdfast.authenticator, "is_valid", away)
    with pytest.raises(openai.APIError) as told:
        async for _ in stream:
            pass
    assert (told.value.code, "10.0.0.7" in str(told.value)) == ("store_unavailable", False)
    words.finish("end")


async def test_a_key_revoked_before_the_first_word_gets_no_word(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "LOOK_SECONDS", 0.1)
    asked, gate = asyncio.Event(), asyncio.Event()

    async def slow(messages: object, purpose: object) -> str:
        asked.set()
        await gate.wait()
        return "secret"

    server = await start_server(ScriptedModel(slow))
    for store in (True, False):
        asked.clear()
        token = await server.key("ada")
        asking = asyncio.create_task(
            sdk(server, token).chat.completions.create(
                model="m", messages=[user("hi")], stream=True, store=store
            )
        )
        await asked.wait()
        await revoke(server, token)
        with pytest.raises(openai.AuthenticationError):
            await asyncio.wait_for(asking, 60)
    gate.set()


async def test_a_bridge_keeps_the_people_it_names_apart(server: Running) -> None:
    bridge = await server.client_of("team", "bridge")

    def acting(name: str, **headers: str) -> dict[str, str]:
        return {"x-holdfast-owner": name, **headers}

    ada = (await post(server, [user("I am Ada")], acting("ada", **by_key("telegram:1")), bridge)).json()
    bob = (await post(server, [user("I am Bob")], acting("bob", **by_key("telegram:1")), bridge)).json()
    assert conversation_of(ada) != conversation_of(bob)
    assert [m["content"] for m in heard(server)] == ["I am Bob"]
    for name in (session_of(ada), conversation_of(ada)):
        assert (await post(server, [user("hi")], acting("bob", **by_id(name)), bridge)).status_code == 404
        assert (await post(server, [user("hi")], by_id(name), bridge)).status_code == 404
        assert (await post(server, [user("hi")], acting("ada", **by_id(name)), bridge)).status_code == 200
    assert (
        await server.store.resolve("team/ada", Address(id=conversation_of(ada)))
    ).conversation.owner == "team/ada"


async def test_two_people_behind_a_bridge_with_the_same_words_and_no_ids_have_two_conversations(
    start_server: StartServer,
) -> None:
    server = await start_server(ScriptedModel(lambda messages, purpose: "Hello!"))
    bridge = await server.client_of("team", "bridge")
    found = {}
    for name in ("ada", "bob"):
        headers = {"x-holdfast-owner": name}
        first = (await post(server, [user("hi")], headers, bridge)).json()
        history = [user("hi"), {"role": "assistant", "content": "Hello!"}, user("remember me?")]
        second = (await post(server, history, headers, bridge)).json()
        assert conversation_of(second) == conversation_of(first), "the same answer, but each their own"
        found[name] = conversation_of(first)
    assert found["ada"] != found["bob"]


async def test_only_a_bridge_may_name_an_owner(server: Running) -> None:
    for client in (await server.client_of("ada"), server.client):
        response = await post(server, [user("hi")], {"x-holdfast-owner": "bob"}, client)
        assert response.status_code == 403
    bridge = await server.client_of("team", "bridge")
    for name in ("a/b", "..", "*"):
        assert (await post(server, [user("hi")], {"x-holdfast-owner": name}, bridge)).status_code == 400, name
    assert await conversations(server) == 0
