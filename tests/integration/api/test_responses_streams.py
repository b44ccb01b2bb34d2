"""Streams of responses: heard from any event on, by anybody, as it runs and afterwards; in the background."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from holdfast.domain.turns import TurnStatus
from holdfast.errors import ModelError, StoreUnreachable
from holdfast.models.scripted import ScriptedModel
from holdfast.store.values import Retention
from tests.integration.api.chatting import Words, calls, said, sdk, turns, until
from tests.integration.api.conftest import Running, StartServer
from tests.integration.api.responding import (
    ENDINGS,
    FIELDS,
    PATH,
    Event,
    events_of,
    finished,
    get,
    numbers,
    respond,
    resumed,
    same_response,
    spoken,
    streamed,
    text_of,
)

SOON = {"checkpoint_seconds": 0.02}
"""So that a test does not wait for a checkpoint."""


async def heard_until(events: AsyncIterator[Event], word: str) -> list[Event]:
    """The events up to the one that says this."""
    heard = []
    async for event in events:
        heard.append(event)
        if event.get("delta") == word:
            return heard
    raise AssertionError(f"{word!r} was never said")


async def checkpointed(server: Running, response_id: str, text: str) -> None:
    """Wait until a checkpoint holds this."""

    async def is_so() -> bool:
        return spoken(await get(server, response_id)).endswith(text)

    await until(is_so, f"{text!r} is on disk")


# --- what is told ---------------------------------------------------------------------------


async def test_the_sdk_s_own_accumulation_is_the_response(start_server: StartServer) -> None:
    both = {"reasoning_content": "hm, Paris", "content": "Let me look."}
    server = await start_server(ScriptedModel(["one two three", {**both, **calls("call_1", "call_2")}]))
    for _ in range(2):
        async with sdk(server).responses.stream(model="m", input="go") as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        assert [event.sequence_number for event in events] == list(range(len(events)))
        stored = await get(server, final.id)
        shown: list[Any] = [item.to_dict(exclude_unset=True) for item in final.output]
        for item in shown:  # what the SDK adds
            item.pop("parsed_arguments", None)
            for part in item.get("content") or ():
                part.pop("parsed", None)
        assert shown == stored["output"]
        assert final.model_extra is not None
        assert final.model_extra["holdfast"] == stored["holdfast"]


async def test_only_the_last_event_says_where_it_is_kept(server: Running) -> None:
    async with server.client.stream("POST", PATH, json={"input": "hi", "stream": True}) as answer:
        events = [event async for event in events_of(answer)]
    assert [event["type"] for event in events if "holdfast" in event.get("response", {})] == [
        "response.completed"
    ]
    ours = events[-1]["response"]["holdfast"]
    assert set(ours) == FIELDS
    assert answer.headers["x-holdfast-session-id"] == ours["session_id"]
    assert answer.headers["x-hermes-session-id"] == ours["session_id"]
    assert answer.headers["x-holdfast-conversation-id"] == ours["conversation_id"]
    assert answer.headers["x-holdfast-turn-id"] == ours["turn_id"]


async def test_the_question_is_on_disk_before_the_first_event(start_server: StartServer) -> None:
    words = Words()
    words.say("one")
    server = await start_server(ScriptedModel([words]))
    async with server.client.stream("POST", PATH, json={"input": "hi", "stream": True}) as answer:
        assert await said(server, answer.headers["x-holdfast-conversation-id"]) == ["user: hi"]
        words.finish()


# --- heard again ---------------------------------------------------------------------------


async def test_a_finished_stream_is_heard_from_any_event_on(start_server: StartServer) -> None:
    server = await start_server(
        ScriptedModel(
            [{"reasoning_content": "hm", "content": "one two three", **calls("call_1")}], delay=0.03
        ),
        server=SOON,
    )
    events = await streamed(server, {"input": "count"})
    response_id = events[0]["response"]["id"]
    turn_id = events[-1]["response"]["holdfast"]["turn_id"]
    assert len(await server.store.drafts(turn_id)) > 2, "several checkpoints hold it"
    assert await resumed(server, response_id) == events
    for number in numbers(events):
        assert await resumed(server, response_id, number) == events[number + 1 :]
        assert (
            await resumed(server, response_id, headers={"last-event-id": str(number)}) == events[number + 1 :]
        )
    (beyond,) = await resumed(server, response_id, 5000)
    assert beyond["type"] == "response.completed"
    assert beyond["sequence_number"] > 5000
    assert beyond["response"] == events[-1]["response"]


async def test_starting_after_says_more_than_last_event_id(server: Running) -> None:
    events = await streamed(server, {"input": "count"})
    response_id = events[0]["response"]["id"]
    assert await resumed(server, response_id, 3, {"last-event-id": "5"}) == events[4:]


async def test_the_sdk_goes_on_where_it_broke_off(start_server: StartServer) -> None:
    words = Words()
    words.say("one", " two")
    server = await start_server(ScriptedModel([words]))
    client = sdk(server)
    stream = await client.responses.create(model="m", input="count", stream=True, background=True)
    seen: list[Any] = []
    async for event in stream:
        seen.append(event)
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    words.finish(" three")
    last = seen[-1].sequence_number
    rest = await client.responses.retrieve(seen[0].response.id, stream=True, starting_after=last)
    seen += [event async for event in rest]
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert (
        "".join(event.delta for event in seen if event.type == "response.output_text.delta")
        == "one two three"
    )
    assert seen[-1].response.output_text == "one two three"


async def test_two_listen_from_different_places_while_it_runs(start_server: StartServer) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words]))
    response = await respond(server, "count", background=True)
    await words.asked.wait()
    words.say("one", " two")
    everything = asyncio.create_task(resumed(server, response["id"]))
    later = asyncio.create_task(resumed(server, response["id"], 4))
    ahead = asyncio.create_task(resumed(server, response["id"], 5000))
    await asyncio.sleep(0.1)
    words.finish(" three")
    events = await everything
    assert numbers(events) == list(range(len(events)))
    assert text_of(events) == "one two three"
    assert await later == events[5:]
    assert [event["type"] for event in await ahead] == ["response.completed"]
    assert await resumed(server, response["id"]) == events


async def test_another_server_follows_what_the_first_one_runs(start_server: StartServer) -> None:
    words = Words()
    first = await start_server(ScriptedModel([words]), server=SOON)
    second = await start_server(ScriptedModel([]))
    response = await respond(first, "count", background=True)
    await words.asked.wait()
    words.say("one")
    async with (
        second.client.stream("GET", f"{PATH}/{response['id']}?stream=true") as answer,
        second.client.stream("GET", f"{PATH}/{response['id']}?stream=true&starting_after=2") as later,
    ):
        events = events_of(answer)
        heard = await heard_until(events, "one")
        await checkpointed(second, response["id"], "one")
        words.say(" two")
        heard += await heard_until(events, " two")
        words.finish(" three")
        heard += [event async for event in events]
        rest = [event async for event in events_of(later)]
    assert text_of(heard) == "one two three"
    assert numbers(heard) == list(range(len(heard)))
    assert heard[-1]["type"] == "response.completed"
    assert rest == heard[3:]
    assert await resumed(first, response["id"]) == heard


async def test_a_retry_at_another_server_follows_what_the_first_one_runs(start_server: StartServer) -> None:
    words = Words()
    words.say("one")
    first = await start_server(ScriptedModel([words]), server=SOON)
    second = await start_server(ScriptedModel([]))
    headers = {"idempotency-key": "k1"}
    begun = await respond(first, "count", headers, background=True)
    again = await respond(second, "count", headers, background=True)
    assert (again["id"], again["status"]) == (begun["id"], "in_progress")
    words.finish(" two")
    assert spoken(await finished(second, begun["id"])) == "one two"


async def test_a_stream_that_is_asked_for_again_at_another_server_is_followed_there(
    start_server: StartServer,
) -> None:
    words = Words()
    words.say("one")
    first = await start_server(ScriptedModel([words]), server=SOON)
    second = await start_server(ScriptedModel([]))
    body = {"input": "count", "stream": True}
    headers = {"idempotency-key": "k1"}
    running = asyncio.create_task(streamed(first, body, headers))
    await words.asked.wait()
    async with second.client.stream("POST", PATH, json=body, headers=headers) as answer:
        events = events_of(answer)
        heard = await heard_until(events, "one")
        words.finish(" two")
        heard += [event async for event in events]
    assert heard == await running
    assert text_of(heard) == "one two"


async def test_another_server_cancels_what_the_first_one_runs(start_server: StartServer) -> None:
    words = Words()
    first = await start_server(ScriptedModel([words]), server=SOON)
    second = await start_server(ScriptedModel([]))
    response = await respond(first, "count", background=True)
    listening = asyncio.create_task(resumed(first, response["id"]))
    await words.asked.wait()
    words.say("one two")
    await checkpointed(first, response["id"], "two")
    cancelled = (await second.client.post(f"{PATH}/{response['id']}/cancel")).json()
    assert (cancelled["status"], spoken(cancelled)) == ("cancelled", "one two")
    events = await listening
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["status"] == "cancelled"
    assert await get(first, response["id"]) == cancelled


@pytest.mark.parametrize("keep", [0, 1])
async def test_when_its_drafts_are_gone_a_stream_is_told_from_the_response(
    start_server: StartServer, keep: int
) -> None:
    server = await start_server(ScriptedModel(["one two three four"], delay=0.03), server=SOON)
    events = await streamed(server, {"input": "count"})
    whole = events[-1]["response"]
    kept = len(await server.store.drafts(whole["holdfast"]["turn_id"]))
    assert kept > 2
    age, long = timedelta(microseconds=-1), timedelta(days=30)
    pruned = await server.store.prune(Retention(age, long, long), limit=kept - keep)
    assert pruned.drafts == kept - keep
    told = await resumed(server, whole["id"])
    assert numbers(told) == list(range(len(told)))
    assert text_of(told) == "one two three four"
    assert [event["type"] for event in told][:2] == ["response.created", "response.in_progress"]
    assert (told[-1]["type"], told[-1]["response"]) == ("response.completed", whole)
    if keep:  # the last checkpoint holds the end, which is enough for whoever had come so far
        assert await resumed(server, whole["id"], events[-2]["sequence_number"]) == events[-1:]
        return
    for number in numbers(told):
        assert await resumed(server, whole["id"], number) == told[number + 1 :]
    (end,) = await resumed(server, whole["id"], 700)
    assert (end["sequence_number"], end["response"]) == (701, whole)
    async with sdk(server).responses.stream(response_id=whole["id"]) as stream:
        assert (await stream.get_final_response()).output_text == "one two three four"


async def test_a_stream_whose_reply_was_deleted_does_not_tell_it_again(server: Running) -> None:
    events = await streamed(server, {"input": "my secret"})
    whole = events[-1]["response"]
    deleted = await server.client.delete(
        f"/v1/conversations/{whole['conversation']['id']}/items/{whole['output'][0]['id']}"
    )
    assert deleted.status_code == 200
    told = await resumed(server, whole["id"])
    assert "my secret" not in str(told)
    assert (told[-1]["type"], told[-1]["response"]["output"]) == ("response.completed", [])


@pytest.mark.parametrize("ending", ["failed", "cancelled", "interrupted"])
async def test_a_response_that_was_cut_short_ends_truthfully_for_whoever_comes_later(
    start_server: StartServer, ending: str
) -> None:
    words = Words()
    words.say("one", " two")
    server = await start_server(ScriptedModel([words]))
    body = {"input": "count", "stream": True, "model": "m"}
    async with server.client.stream("POST", PATH, json=body) as answer:
        stream = events_of(answer)
        live = await heard_until(stream, " two")
        response_id = live[0]["response"]["id"]
        if ending == "failed":
            words.break_off(ModelError("the line went dead"))
        else:
            turn_id = answer.headers["x-holdfast-turn-id"]
            await server.services.runner.stop(None, turn_id, TurnStatus(ending), "a test said so")
        live += [event async for event in stream]
    name = "response.failed" if ending == "failed" else "response.incomplete"
    assert live[-1]["type"] == name
    later = await resumed(server, response_id)
    assert text_of(later) == text_of(live) == "one two"
    assert (later[-1]["type"], later[-1]["response"]) == (name, live[-1]["response"])
    assert spoken(later[-1]["response"]) == "one two"
    last = live[-1]["sequence_number"]
    for after in (0, last - 1, 5000, 50_000):
        rest = await resumed(server, response_id, after)
        assert rest[-1]["type"] == name
        assert rest[-1]["sequence_number"] > after
    same_response(await get(server, response_id), later[-1]["response"])


async def test_a_stored_stream_that_cannot_be_read_ends_with_an_error(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    response = await respond(server)

    async def away(*_: object, **__: object) -> None:
        raise StoreUnreachable("no connection to 10.0.0.7")

    monkeypatch.setattr(server.store, "drafts", away)
    told = await server.client.get(f"/v1/responses/{response['id']}?stream=true")
    assert (told.status_code, "event: error" in told.text) == (200, True)
    assert '"code":"store_unavailable"' in told.text and "10.0.0.7" not in told.text


async def test_a_response_that_is_deleted_while_it_is_followed_ends_its_stream(
    start_server: StartServer,
) -> None:
    words = Words()
    first = await start_server(ScriptedModel([words]), server=SOON)
    second = await start_server(ScriptedModel([]))
    response = await respond(first, "count", background=True)
    await words.asked.wait()
    words.say("one")
    async with second.client.stream("GET", f"{PATH}/{response['id']}?stream=true") as answer:
        events = events_of(answer)
        await heard_until(events, "one")
        await first.client.delete(f"{PATH}/{response['id']}")
        last = [event async for event in events][-1]
    assert last["type"] == "error" or last["response"]["status"] == "cancelled"


# --- in the background ---------------------------------------------------------------------------


async def test_in_the_background_the_answer_comes_at_once_and_is_seen_to_grow(
    start_server: StartServer,
) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words]), server=SOON)
    client = sdk(server)
    begun = await client.responses.create(model="m", input="count", background=True)
    assert (begun.status, begun.background, begun.output) == ("in_progress", True, [])
    await words.asked.wait()
    words.say("one")
    await checkpointed(server, begun.id, "one")
    growing = await get(server, begun.id)
    assert (growing["status"], growing["output"][0]["status"]) == ("in_progress", "in_progress")
    words.finish(" two")
    whole = await finished(server, begun.id)
    assert spoken(whole) == "one two"
    assert whole["output"][0]["id"] == growing["output"][0]["id"]
    assert (await client.responses.retrieve(begun.id)).output_text == "one two"
    events = await resumed(server, begun.id)
    assert text_of(events) == "one two"


@pytest.mark.parametrize("settings", [{}, {"on_disconnect": "interrupt"}])
async def test_what_runs_in_the_background_outlives_its_client(
    start_server: StartServer, settings: dict[str, Any]
) -> None:
    words = Words()
    words.say("one")
    server = await start_server(ScriptedModel([words]), server=settings)
    body = {"input": "count", "background": True, "stream": True}
    async with server.client.stream("POST", PATH, json=body) as answer:
        heard = await heard_until(events_of(answer), "one")
    words.finish(" two")
    whole = await finished(server, heard[0]["response"]["id"])
    assert spoken(whole) == "one two"


async def test_a_client_that_leaves_interrupts_its_stream_only_if_it_said_so(
    start_server: StartServer,
) -> None:
    finishes, leaves = Words(), Words()
    finishes.say("one")
    leaves.say("one")
    server = await start_server(ScriptedModel([finishes, leaves]))
    for words, headers in ((finishes, {}), (leaves, {"x-holdfast-on-disconnect": "interrupt"})):
        body = {"input": "count", "stream": True}
        async with server.client.stream("POST", PATH, json=body, headers=headers) as answer:
            heard = await heard_until(events_of(answer), "one")
        response_id = heard[0]["response"]["id"]
        if words is finishes:
            words.finish(" two")
            assert spoken(await finished(server, response_id)) == "one two"
        else:
            cut = await finished(server, response_id, "incomplete")
            assert cut["incomplete_details"] == {"reason": "interrupted"}
            assert spoken(cut) == "one"


async def test_a_silent_model_keeps_a_background_stream_s_client_waiting_for_nothing(
    start_server: StartServer,
) -> None:
    """Its headers and first events do not wait for the model."""
    words = Words()
    server = await start_server(ScriptedModel([words]))
    body = {"input": "count", "background": True, "stream": True}
    async with asyncio.timeout(60), server.client.stream("POST", PATH, json=body) as answer:
        events = events_of(answer)
        assert (await anext(events))["type"] == "response.created"
        words.finish("one")
        assert [event async for event in events][-1]["type"] == "response.completed"


async def test_a_revoked_key_s_streams_end(start_server: StartServer, monkeypatch: Any) -> None:
    monkeypatch.setattr("holdfast.server.openai.stored_responses.LOOK_SECONDS", 0.05)
    words = Words()
    first = await start_server(ScriptedModel([words]), server=SOON)
    second = await start_server(ScriptedModel([]))
    ada = await second.client_of("ada")
    response = await respond(first, "count", client=await first.client_of("ada"), background=True)
    await words.asked.wait()
    words.say("one")
    lines = []
    async with asyncio.timeout(60), ada.stream("GET", f"{PATH}/{response['id']}?stream=true") as answer:
        async for line in answer.aiter_lines():
            lines.append(line)
            if '"delta":"one"' in line:
                for key in await second.store.keys("ada"):
                    await second.store.revoke_key(key.id, "ada")
    assert "invalid_api_key" in [line for line in lines if line][-1]
    assert first.services.runner.running, "the turn goes on: only its listener is gone"
    words.finish()


async def test_while_it_runs_the_drafts_hold_no_more_than_was_told(start_server: StartServer) -> None:
    """What is shown of a running response was told to its listeners; nothing of it is shown twice."""
    server = await start_server(ScriptedModel(["a b c d e f g h"], delay=0.02), server=SOON)
    listening = asyncio.create_task(streamed(server, {"input": "spell", "model": "m"}))
    seen: set[str] = set()
    while not listening.done():
        await asyncio.sleep(0.02)
        for running in list(server.services.runner.running.values()):
            assert running.turn.response_id is not None
            seen.add(spoken(await get(server, running.turn.response_id)))
    events = await listening
    assert events[-1]["type"] in ENDINGS
    assert all("a b c d e f g h".startswith(text) for text in seen)
    assert len(seen) > 2
    (turn,) = await turns(server, events[-1]["response"]["conversation"]["id"])
    assert turn.status is TurnStatus.COMPLETED
