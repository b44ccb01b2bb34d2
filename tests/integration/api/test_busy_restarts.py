"""Queued turns across `kill -9` of the server that accepted them, on either engine."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from tests.acceptance.command import Home
from tests.acceptance.talker import Talker
from tests.integration.api.chatting import until
from tests.integration.api.test_responses_restarts import Serving, home, talker

__all__ = ["home", "talker"]

KEY = "cli:ada"
CHAT = "/v1/chat/completions"


async def chat(server: Serving, text: str, busy: str | None = None) -> Any:
    headers = {"x-holdfast-session-key": KEY, **({"x-holdfast-when-busy": busy} if busy else {})}
    body = {"messages": [{"role": "user", "content": text}]}
    return await server.client.post(CHAT, json=body, headers=headers)


async def is_completed(server: Serving, turn_id: str) -> bool:
    found = await server.client.get(f"/api/turns/{turn_id}")
    return bool(found.json()["status"] == "completed")


@pytest.mark.parametrize("busy", ["queue", "steer"])
async def test_what_was_queued_before_a_kill_is_answered_after_it_in_order(
    home: Home, talker: Talker, busy: str
) -> None:
    home.environment["HOLDFAST_TURNS__RECOVER"] = "never"
    first = Serving(home)
    running = asyncio.create_task(chat(first, "one"))
    assert await asyncio.to_thread(talker.asked.wait, 30)
    accepted = [(await chat(first, text, busy)).json() for text in ("two", "three")]
    assert [each["position"] for each in accepted] == [1, 2]
    first.kill()
    await asyncio.gather(running, return_exceptions=True)
    await first.close()

    second = Serving(home)
    try:
        talker.answer("to two")
        talker.answer("to three")
        for each in accepted:
            await until(partial(is_completed, second, each["id"]), "the queued turn is answered")
        asked = [message["content"] for message in talker.heard if message["role"] == "user"]
        assert asked == ["one", "two", "three"]
        path = f"/api/sessions/{KEY}/messages?scope=conversation"
        said = [each["content"] for each in (await second.client.get(path)).json()["data"]]
        assert said == ["one", "two", "to two", "three", "to three"]
        assert len(talker.requests) == 3
    finally:
        await second.close()


async def test_a_queued_turn_that_was_running_when_its_server_was_killed_is_finished_by_the_next(
    home: Home, talker: Talker
) -> None:
    home.environment["HOLDFAST_TURNS__RECOVER"] = "background"
    first = Serving(home)
    running = asyncio.create_task(chat(first, "one"))
    assert await asyncio.to_thread(talker.asked.wait, 30)
    two, three = [(await chat(first, text, "queue")).json()["id"] for text in ("two", "three")]
    talker.answer("to one")
    assert (await running).status_code == 200
    await until(lambda: len(talker.requests) == 2, "the queued turn runs")
    first.kill()
    await first.close()

    second = Serving(home)
    try:
        talker.answer("to two")
        talker.answer("to three")
        for turn_id in (two, three):
            await until(partial(is_completed, second, turn_id), "the queued turn is answered")
        path = f"/api/sessions/{KEY}/messages?scope=context"
        said = [each["content"] for each in (await second.client.get(path)).json()["data"]]
        assert said == ["one", "to one", "two", "to two", "three", "to three"]
    finally:
        await second.close()
