"""A client that behaves like Open WebUI: whole histories and no ids; a tree of messages; one key for all.

It holds the page docs/how-to/open-webui.md to its word, as far as that can be done without Open WebUI.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from holdfast.models.scripted import ScriptedModel

from .conftest import Running, StartServer


class Chat:
    """A chat in the browser: what it shows is what it sends."""

    def __init__(self, client: httpx.AsyncClient, **headers: str) -> None:
        self._client = client
        self._headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.shown: list[dict[str, Any]] = []

    async def _answered(self) -> str:
        """Send everything; show the answer; say which conversation it is."""
        response = await self._client.post(
            "/v1/chat/completions", json={"messages": self.shown}, headers=self._headers
        )
        assert response.status_code == 200, response.text
        answer = response.json()
        self.shown.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        conversation: str = answer["holdfast"]["conversation_id"]
        return conversation

    async def say(self, text: str) -> str:
        self.shown.append({"role": "user", "content": text})
        return await self._answered()

    async def regenerate(self) -> str:
        self.shown.pop()
        return await self._answered()

    async def edit(self, number: int, text: str) -> str:
        """Say something else in place of the message with this number, and see only that branch."""
        self.shown = [*self.shown[:number], {"role": "user", "content": text}]
        return await self._answered()


async def person(server: Running, name: str) -> httpx.AsyncClient:
    return await server.client_of("webui", "bridge", **{"x-holdfast-owner": f"user-{name}"})


@pytest.fixture
async def server(start_server: StartServer) -> Running:
    """One whose model never says the same twice."""
    return await start_server(ScriptedModel([f"answer {number}" for number in range(20)]))


async def test_a_chat_is_one_conversation_and_people_are_apart(start_server: StartServer) -> None:
    server = await start_server()  # its model gives both the same answers
    people = [await person(server, name) for name in ("ada", "grace")]
    chats = [Chat(client) for client in people]
    first = [await chat.say("hello") for chat in chats]
    second = [await chat.say("and again") for chat in chats]
    assert first == second
    assert len(set(first)) == 2
    for client in people:
        assert len((await client.get("/api/sessions")).json()["data"]) == 1


async def test_the_list_of_models_may_be_asked_for_in_nobodys_name(server: Running) -> None:
    nobody = await person(server, "")
    assert (await nobody.get("/v1/models")).status_code == 200


async def test_without_a_name_what_is_regenerated_or_edited_goes_on_in_a_new_conversation(
    server: Running,
) -> None:
    chat = Chat(await person(server, "ada"))
    first = await chat.say("hello")
    other = await chat.regenerate()
    assert other != first
    assert await chat.say("and again") == other
    third = await chat.regenerate()
    assert third not in (first, other)
    assert await chat.say("go on") == third
    fourth = await chat.edit(2, "something else")
    assert fourth not in (first, other, third)
    assert await chat.say("go on") == fourth


async def test_with_a_key_an_answer_is_regenerated_in_place_and_a_title_stays_out_of_it(
    server: Running,
) -> None:
    client = await person(server, "ada")
    chat = Chat(client, x_holdfast_session_key="openwebui:c1:")
    first = await chat.say("hello")
    title = Chat(client, x_holdfast_session_key="openwebui:c1:title_generation")
    assert await title.say("Give this chat a title: hello") != first
    assert await chat.regenerate() == first
    assert await chat.say("and again") == first
    assert await chat.regenerate() == first


async def test_with_a_key_an_edited_message_makes_one_fork_and_the_chat_goes_on_in_it(
    server: Running,
) -> None:
    chat = Chat(await person(server, "ada"), x_holdfast_session_key="openwebui:c1:")
    first = await chat.say("hello")
    await chat.say("and again")
    fork = await chat.edit(2, "something else")
    assert fork != first
    assert [await chat.say("go on"), await chat.say("go on")] == [fork, fork]


@pytest.mark.parametrize("named", [True, False])
async def test_behind_a_stopped_reply_a_named_chat_goes_on_and_another_begins_anew(
    start_server: StartServer, named: bool
) -> None:
    """With `on_disconnect = "interrupt"`: what was said is kept, and the browser has kept a part of it."""
    said, never = asyncio.Event(), asyncio.Event()

    async def halting() -> AsyncIterator[str]:
        yield "The"
        yield " tide"
        said.set()
        await never.wait()

    server = await start_server(
        ScriptedModel([halting(), "Yes."]), server={"on_disconnect": "interrupt", "checkpoint_seconds": 0.05}
    )
    client = await person(server, "ada")
    name = {"x-holdfast-session-key": "openwebui:c1:"} if named else {}
    asked = {"role": "user", "content": "tell me"}
    body = {"messages": [asked], "stream": True}
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=name) as response:
        first = response.headers["x-holdfast-conversation-id"]
        await said.wait()
        (running,) = server.services.runner.running.values()
    await running.ended()
    kept = (await client.get(f"/api/sessions/{first}/messages?scope=conversation")).json()["data"]
    assert [(each["content"], each["status"]) for each in kept][1:] == [("The tide", "interrupted")]
    chat = Chat(client, **name)
    chat.shown = [asked, {"role": "assistant", "content": "The"}]
    assert (await chat.say("go on") == first) is named
