"""Streams of responses across the death of their server: `holdfast serve` killed and started again, or
another one that shares its store, in a file or in PostgreSQL."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.command import CAN_FORK, Home
from tests.acceptance.talker import Talker
from tests.integration.api.responding import (
    PATH,
    Event,
    checked,
    events_of,
    numbers,
    spoken,
    text_of,
)

TOKEN = "a-key-of-the-tests"
CHECKPOINT_SECONDS = 0.05


@pytest.fixture
def talker() -> Iterator[Talker]:
    with Talker().running() as talker:
        yield talker


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def home(request: pytest.FixtureRequest, server_home: Path, talker: Talker) -> Home:
    """What servers share, on either engine."""
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
            "HOLDFAST_SERVER__CHECKPOINT_SECONDS": str(CHECKPOINT_SECONDS),
            "HOLDFAST_TURNS__RECOVER": "never",  # what recovery does: test_recovery_restarts.py
            **shared,
        },
        forked=CAN_FORK,
    )


class Serving:
    """A `holdfast serve` process, at this port or at any free one."""

    def __init__(self, home: Home, port: int = 0) -> None:
        self._running = home.start("serve", "--port", str(port))
        self._running.wait_for("/v1\n")
        url = self._running.printed.decode().split("holdfast answers at ")[1].split("/v1")[0]
        self.client = httpx.AsyncClient(
            base_url=url, headers={"authorization": f"Bearer {TOKEN}"}, timeout=60, trust_env=False
        )

    def kill(self) -> None:
        self._running.send(signal.SIGKILL)
        self._running.end()

    def stop(self) -> None:
        self._running.send(signal.SIGTERM)

    async def close(self) -> None:
        await self.client.aclose()
        if self._running.process.poll() is None:
            self.kill()
        elif not self._running.process.stdout.closed:  # type: ignore[union-attr]
            self._running.end()

    async def get(self, response_id: str) -> dict[str, Any]:
        response: dict[str, Any] = (await self.client.get(f"{PATH}/{response_id}")).raise_for_status().json()
        checked(response)
        return response

    async def resumed(self, response_id: str, after: int | None = None) -> list[Event]:
        query = {"stream": "true"} if after is None else {"stream": "true", "starting_after": str(after)}
        async with self.client.stream("GET", f"{PATH}/{response_id}", params=query) as answer:
            return [event async for event in events_of(answer)]

    @asynccontextmanager
    async def streamed(self, body: dict[str, Any], key: str) -> AsyncIterator[AsyncIterator[Event]]:
        async with self.client.stream(
            "POST", PATH, json={**body, "stream": True}, headers={"idempotency-key": key}
        ) as answer:
            yield events_of(answer)


async def all_of(stream: AbstractAsyncContextManager[AsyncIterator[Event]]) -> list[Event]:
    async with stream as events:
        return [event async for event in events]


async def retried(server: Serving, body: dict[str, Any], key: str) -> list[Event]:
    """Asked for until it is not cut short. PostgreSQL may notice a moment after the kill that a server is
    gone: who asks in that moment joins its turn, hears that it was interrupted, and asks once more."""
    while True:
        events = await all_of(server.streamed(body, key))
        if events[-1]["type"] != "response.incomplete":
            return events


@contextmanager
def cut_off() -> Iterator[None]:
    with pytest.raises(httpx.RemoteProtocolError):
        yield


async def heard_until(events: AsyncIterator[Event], word: str) -> list[Event]:
    heard = []
    async for event in events:
        heard.append(event)
        if event.get("delta") == word:
            return heard
    raise AssertionError(f"{word!r} was never said")


async def test_after_a_crash_a_stream_goes_on_to_its_last_checkpoint_and_ends_as_incomplete(
    home: Home, talker: Talker
) -> None:
    talker.say("one", " two", " three")
    first = Serving(home)
    live: list[Event] = []
    body = {"input": "count"}
    with cut_off():
        async with first.streamed(body, "k1") as events:
            live += await heard_until(events, " three")
            await asyncio.sleep(CHECKPOINT_SECONDS * 6)
            first.kill()
            live += [event async for event in events]
    await first.close()
    response_id = live[0]["response"]["id"]
    last = live[-1]["sequence_number"]

    second = Serving(home)
    try:
        whole = await second.get(response_id)
        assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "interrupted"})
        assert spoken(whole) == "one two three"
        assert whole["output"][-1]["status"] == "incomplete"
        told = await second.resumed(response_id)
        assert told[:-1] == live
        assert (told[-1]["type"], told[-1]["response"]) == ("response.incomplete", whole)
        assert told[-1]["response"]["holdfast"]["conversation_id"] == whole["conversation"]["id"]
        for number in numbers(live):
            assert await second.resumed(response_id, number) == told[number + 1 :]
        # Of what was told after the last checkpoint nothing is known, but every number leads to the end.
        for after in (last + 1, last + 100, told[-1]["sequence_number"] + 7):
            (end,) = await second.resumed(response_id, after)
            assert end["sequence_number"] > after
            assert end["response"] == whole
        assert await second.resumed(response_id, told[-1]["sequence_number"]) == []

        # Its client comes back with the same key: it is answered after all, under the same id.
        talker.answer("one", " two", " three", " four")
        async with second.streamed(body, "k1") as events:
            again = [event async for event in events]
        assert again[-1]["type"] == "response.completed"
        assert again[-1]["response"]["id"] == response_id
        assert text_of(again) == "one two three four"
        assert again[0]["sequence_number"] > told[-1]["sequence_number"]
        assert numbers(again) == list(range(again[0]["sequence_number"], again[-1]["sequence_number"] + 1))
        assert [message["content"] for message in talker.heard] == ["count"]
        assert await second.resumed(response_id) == again
        for after in (0, last, told[-1]["sequence_number"]):  # it was told that the response was created
            assert await second.resumed(response_id, after) == again[1:]
        assert (await second.get(response_id)) == again[-1]["response"]
    finally:
        await second.close()


async def test_what_was_told_after_the_last_checkpoint_is_never_numbered_again(
    home: Home, talker: Talker
) -> None:
    """A crash before the first checkpoint: nothing is kept, but whoever heard something can still go on."""
    home.environment["HOLDFAST_SERVER__CHECKPOINT_SECONDS"] = "60"
    talker.say("one", " two")
    first = Serving(home)
    live: list[Event] = []
    with cut_off():
        async with first.streamed({"input": "count"}, "k1") as events:
            live += await heard_until(events, " two")
            first.kill()
            live += [event async for event in events]
    await first.close()
    response_id, last = live[0]["response"]["id"], live[-1]["sequence_number"]
    second = Serving(home)
    try:
        whole = await second.get(response_id)
        assert (whole["status"], whole["output"]) == ("incomplete", [])
        (end,) = await second.resumed(response_id, last)
        assert (end["type"], end["response"]) == ("response.incomplete", whole)
        talker.say("one", " two")
        async with second.streamed({"input": "count"}, "k1") as events:
            again = await heard_until(events, " two")
            assert again[0]["sequence_number"] > end["sequence_number"]
            going_on = asyncio.create_task(second.resumed(response_id, last))
            talker.answer(" three")
            again += [event async for event in events]
        assert text_of(again) == "one two three"
        assert await going_on == again[1:]
    finally:
        await second.close()


async def test_a_server_that_is_told_to_stop_ends_its_streams_truthfully(home: Home, talker: Talker) -> None:
    home.environment["HOLDFAST_SERVER__DRAIN_SECONDS"] = "0.1"
    talker.say("one", " two")
    first = Serving(home)
    async with first.streamed({"input": "count"}, "k1") as events:
        live = await heard_until(events, " two")
        first.stop()
        live += [event async for event in events]
    assert live[-1]["type"] == "response.incomplete"
    assert live[-1]["response"]["incomplete_details"] == {"reason": "interrupted"}
    assert spoken(live[-1]["response"]) == "one two"
    first._running.end()
    await first.close()
    second = Serving(home)
    try:
        told = await second.resumed(live[0]["response"]["id"])
        assert text_of(told) == "one two"
        assert told[-1]["response"] == {**live[-1]["response"], "model": told[-1]["response"]["model"]}
        talker.answer("one two three")
        async with second.streamed({"input": "count"}, "k1") as events:
            again = [event async for event in events]
        assert again[-1]["response"]["id"] == live[0]["response"]["id"]
        assert text_of(again) == "one two three"
    finally:
        await second.close()


async def test_another_server_takes_over_when_the_one_that_ran_it_is_killed(
    home: Home, talker: Talker
) -> None:
    talker.say("one", " two")
    first, second = Serving(home), Serving(home)
    try:
        begun = (await first.client.post(PATH, json={"input": "count", "background": True})).json()
        async with second.client.stream("GET", f"{PATH}/{begun['id']}?stream=true") as answer:
            events = events_of(answer)
            heard = await heard_until(events, " two")
            first.kill()
            heard += [event async for event in events]
        assert heard[-1]["type"] == "response.failed"  # in the background, and not to be taken up
        assert heard[-1]["response"]["error"] == {"code": "server_error", "message": "its node is gone"}
        assert spoken(heard[-1]["response"]) == "one two"
        talker.answer("three")
        body = {"input": "go on", "previous_response_id": begun["id"]}
        on = (await second.client.post(PATH, json=body)).raise_for_status().json()
        assert on["conversation"] == begun["conversation"]
        assert spoken(on) == "three"
    finally:
        await first.close()
        await second.close()


async def test_a_retry_that_comes_right_after_the_kill_is_answered_by_another_server(
    home: Home, talker: Talker
) -> None:
    talker.say("one", " two")
    first, second = Serving(home), Serving(home)
    try:
        with cut_off():
            async with first.streamed({"input": "count"}, "k1") as events:
                live = await heard_until(events, " two")
                first.kill()
                [event async for event in events]
        talker.asked.clear()
        retrying = asyncio.create_task(retried(second, {"input": "count"}, "k1"))
        await asyncio.to_thread(talker.asked.wait, 10)
        await asyncio.sleep(0.2)  # the model, too, has noticed that the first server is gone
        talker.answer("one", " two", " three")
        again = await retrying
        assert text_of(again) == "one two three"
        assert again[-1]["response"]["id"] == live[0]["response"]["id"]
        assert again[0]["sequence_number"] > live[-1]["sequence_number"]
    finally:
        await first.close()
        await second.close()
