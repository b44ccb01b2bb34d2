"""Turns that finish themselves: `holdfast serve` killed or stopped, and the answer comes all the same.

Real processes, over HTTP, on both engines; background responses through the official SDK.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.acceptance.command import CAN_FORK, Home
from tests.acceptance.talker import Talker
from tests.integration.api.responding import PATH, Event, checked, events_of, numbers, spoken, text_of
from tests.integration.api.test_responses_restarts import TOKEN, Serving, cut_off, heard_until

ENOUGH = 60.0


@pytest.fixture
def talker() -> Iterator[Talker]:
    with Talker().running() as talker:
        yield talker


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def home(request: pytest.FixtureRequest, server_home: Path, talker: Talker) -> Home:
    shared = {}
    if request.param == "postgres":
        shared["HOLDFAST_STORE__URL"] = request.getfixturevalue("new_database")(empty=True)
    return Home(
        server_home / "home",
        {
            "HOLDFAST_MODEL__KIND": "openai",
            "HOLDFAST_MODEL__BASE_URL": talker.url,
            "HOLDFAST_MODEL__CONTEXT_WINDOW": "8192",
            "HOLDFAST_API_KEY": TOKEN,
            "HOLDFAST_SERVER__CHECKPOINT_SECONDS": "0.05",
            "TESTS_RETRY_AT_ONCE": "1",
            **shared,
        },
        forked=CAN_FORK,
    )


def sdk(server: Serving) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.client.base_url}/v1".replace("//v1", "/v1"), api_key=TOKEN)


async def asked(talker: Talker, times: int) -> None:
    """Returns when the model has been asked so often, and the dead server's request is no longer answered."""
    deadline = time.monotonic() + ENOUGH
    while len(talker.requests) < times or len(talker.answering) > 1:
        assert time.monotonic() < deadline, f"the model was asked {len(talker.requests)} times, not {times}"
        await asyncio.sleep(0.02)


async def polled(server: Serving, response_id: str, *status: str) -> dict[str, Any]:
    deadline = time.monotonic() + ENOUGH
    while True:
        response = await server.get(response_id)
        if response["status"] in status:
            return response
        assert response["status"] in ("queued", "in_progress"), response
        assert time.monotonic() < deadline, f"it is still {response['status']}"
        await asyncio.sleep(0.05)


async def test_a_background_response_is_answered_across_four_kills_and_polled_by_the_sdk(
    home: Home, talker: Talker
) -> None:
    server = Serving(home)
    client = sdk(server)
    response = await client.responses.create(
        input="count", background=True, instructions="slowly", temperature=0.5
    )
    for number in range(1, 5):
        await asked(talker, number)
        server.kill()
        await server.close()
        server = Serving(home)
    try:
        await asked(talker, 5)
        found = await sdk(server).responses.retrieve(response.id)
        assert found.status in ("queued", "in_progress")
        talker.answer("one", " two")
        whole = await polled(server, response.id, "completed")
        assert spoken(whole) == "one two"
        assert whole["holdfast"]["attempt"] == 5
        first, *others = talker.requests
        assert all(other == first for other in others)  # the same request, whoever asks
        turn = (await server.client.get(f"/api/turns/{whole['holdfast']['turn_id']}")).json()
        assert (turn["status"], turn["attempt"], turn["why"]) == ("completed", 5, None)
    finally:
        await server.close()


async def test_a_background_response_is_answered_across_four_kills_and_streamed_by_the_sdk(
    home: Home, talker: Talker
) -> None:
    server = Serving(home)
    types: list[str] = []
    seen: list[int] = []
    response_id, text = "", ""
    for number in range(1, 6):
        if number < 5:
            talker.say(f"{number}: one", " two")
        else:
            talker.answer("one", " two")
        client = sdk(server)
        stream: Any = await (
            client.responses.retrieve(response_id, stream=True, starting_after=seen[-1])
            if response_id
            else client.responses.create(input="count", background=True, stream=True)
        )
        with pytest.raises(openai.APIConnectionError) if number < 5 else nullcontext():
            async for event in stream:
                types.append(event.type)
                seen.append(event.sequence_number)
                if event.type == "response.created":
                    response_id = event.response.id
                elif event.type == "response.in_progress":
                    text = ""  # a new attempt
                elif event.type == "response.output_text.delta":
                    text += event.delta
                    if number < 5 and text == f"{number}: one two":
                        server.kill()
        if number < 5:
            await server.close()
            server = Serving(home)
    try:
        assert types[-1] == "response.completed"
        assert (text, types.count("response.created"), types.count("response.in_progress")) == (
            "one two",
            1,
            5,
        )
        assert seen == sorted(set(seen))
        assert len(talker.requests) == 5
        assert (await sdk(server).responses.retrieve(response_id)).output_text == "one two"
    finally:
        await server.close()


async def test_the_fifth_death_without_progress_ends_it_as_failed_with_the_reason(
    home: Home, talker: Talker
) -> None:
    server = Serving(home)
    begun = (await server.client.post(PATH, json={"input": "die", "background": True})).json()
    for number in range(1, 6):
        await asked(talker, number)
        server.kill()
        await server.close()
        server = Serving(home)
    try:
        failed = await polled(server, begun["id"], "failed")
        assert failed["error"]["code"] == "server_error"
        assert failed["error"]["message"].startswith("Given up after 5 attempts: a server died")
        assert checked(failed).error is not None
        assert len(talker.requests) == 5
        health = (await server.client.get("/healthz")).json()
        assert health["waiting_turns"] == 0
        talker.answer("alive")  # a person may try once more
        turn_id = failed["holdfast"]["turn_id"]
        retried = (await server.client.post(f"/api/turns/{turn_id}/retry")).json()
        assert retried["status"] == "completed"
    finally:
        await server.close()


async def test_a_stream_is_followed_over_kills_to_its_end(home: Home, talker: Talker) -> None:
    """Created once; every further attempt begins with `response.in_progress`; numbers only rise."""
    server = Serving(home)
    told: list[Event] = []
    talker.say("one", " two")
    with cut_off():
        body = {"input": "count", "background": True}
        async with server.streamed(body, "k1") as events:
            told += await heard_until(events, " two")
            server.kill()
            told += [event async for event in events]
    await server.close()
    response_id = told[0]["response"]["id"]
    for _ in range(2):
        server = Serving(home)
        talker.say("three")
        with cut_off():
            query = {"stream": "true", "starting_after": str(told[-1]["sequence_number"])}
            async with server.client.stream("GET", f"{PATH}/{response_id}", params=query) as answer:
                events = events_of(answer)
                told += await heard_until(events, "three")
                server.kill()
                told += [event async for event in events]
        await server.close()
    server = Serving(home)
    try:
        talker.answer("one two three")
        told += await server.resumed(response_id, told[-1]["sequence_number"])
        types = [event["type"] for event in told]
        assert types.count("response.created") == 1
        assert types.count("response.in_progress") == 4
        assert types[-1] == "response.completed"
        assert numbers(told) == sorted(set(numbers(told)))
        newest = told[len(types) - types[::-1].index("response.in_progress") - 1 :]
        assert text_of(newest) == "one two three" == spoken(told[-1]["response"])
        again = await server.resumed(response_id)  # from the beginning: the newest attempt alone
        assert [event["type"] for event in again][:2] == ["response.created", "response.in_progress"]
        assert again[1:] == newest
    finally:
        await server.close()


async def test_a_stream_on_another_server_goes_on_over_the_death(home: Home, talker: Talker) -> None:
    talker.say("one", " two")
    first, second = Serving(home), Serving(home)
    try:
        begun = (await first.client.post(PATH, json={"input": "count", "background": True})).json()
        async with second.client.stream("GET", f"{PATH}/{begun['id']}?stream=true") as answer:
            events = events_of(answer)
            heard = await heard_until(events, " two")
            first.kill()
            await asked(talker, 2)
            talker.answer("one two three")
            heard += [event async for event in events]
        assert heard[-1]["type"] == "response.completed"
        assert spoken(heard[-1]["response"]) == "one two three"
        assert [event["type"] for event in heard].count("response.created") == 1
    finally:
        await first.close()
        await second.close()


async def test_a_deploy_leaves_the_turn_to_the_next_server_and_counts_nothing(
    home: Home, talker: Talker
) -> None:
    home.environment["HOLDFAST_SERVER__DRAIN_SECONDS"] = "0.1"
    server = Serving(home)
    begun = (await server.client.post(PATH, json={"input": "count", "background": True})).json()
    for number in range(1, 8):  # more often than a turn may die
        await asked(talker, number)
        server.stop()
        server._running.end()
        await server.close()
        server = Serving(home)
    try:
        await asked(talker, 8)
        talker.answer("done")
        assert spoken(await polled(server, begun["id"], "completed")) == "done"
    finally:
        await server.close()


async def test_a_stream_that_is_drained_has_no_end_and_goes_on_at_the_next_server(
    home: Home, talker: Talker
) -> None:
    home.environment["HOLDFAST_SERVER__DRAIN_SECONDS"] = "0.1"
    talker.say("one", " two")
    first = Serving(home)
    async with first.streamed({"input": "count", "background": True}, "k1") as events:
        live = await heard_until(events, " two")
        first.stop()
        live += [event async for event in events]
    assert live[-1]["type"] == "response.output_text.delta"
    first._running.end()
    await first.close()
    second = Serving(home)
    try:
        talker.answer("one two three")
        rest = await second.resumed(live[0]["response"]["id"], live[-1]["sequence_number"])
        assert rest[0]["type"] == "response.in_progress"
        assert rest[-1]["type"] == "response.completed"
        assert text_of(rest) == "one two three"
    finally:
        await second.close()


async def test_a_chat_asked_for_again_with_its_key_joins_the_recovered_turn(
    home: Home, talker: Talker
) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}]}
    headers = {"idempotency-key": "m1", "x-holdfast-recover": "yes"}
    first = Serving(home)
    asking = asyncio.create_task(first.client.post("/v1/chat/completions", json=body, headers=headers))
    await asked(talker, 1)
    first.kill()
    with pytest.raises(httpx.HTTPError):
        await asking
    await first.close()
    second = Serving(home)
    try:
        await asked(talker, 2)  # by itself
        again = asyncio.create_task(second.client.post("/v1/chat/completions", json=body, headers=headers))
        await asyncio.sleep(0.2)
        talker.answer("hi")
        answer = await again
        assert answer.json()["choices"][0]["message"]["content"] == "hi"
        assert answer.headers["x-holdfast-turn-attempt"] == "2"
        assert answer.json()["holdfast"]["attempt"] == 2
        assert len(talker.requests) == 2
    finally:
        await second.close()


async def test_a_foreground_turn_is_not_taken_up_by_default(home: Home, talker: Talker) -> None:
    first = Serving(home)
    talker.say("one")
    with cut_off():
        async with first.streamed({"input": "count"}, "k1") as events:
            live = await heard_until(events, "one")
            first.kill()
            [event async for event in events]
    await first.close()
    second = Serving(home)
    try:
        found = await second.get(live[0]["response"]["id"])
        assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "interrupted"})
        health = (await second.client.get("/healthz")).json()
        assert (health["running_turns"], health["waiting_turns"]) == (0, 0)
    finally:
        await second.close()


async def test_cancel_takes_precedence_over_recovery(home: Home, talker: Talker) -> None:
    first = Serving(home)
    begun = (await first.client.post(PATH, json={"input": "count", "background": True})).json()
    await asked(talker, 1)
    first._running.send(signal.SIGKILL)
    await first.close()
    second = Serving(home)
    try:
        await asked(talker, 2)
        cancelled = (await second.client.post(f"{PATH}/{begun['id']}/cancel")).json()
        assert cancelled["status"] == "cancelled"
    finally:
        await second.close()
    third = Serving(home)
    try:
        await asyncio.sleep(1.5)
        assert (await third.get(begun["id"]))["status"] == "cancelled"
        assert len(talker.requests) == 2
    finally:
        await third.close()
