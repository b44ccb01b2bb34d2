"""Turns of a node that answers: what is told to whom, what is kept, how they end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.turns import Delivery, TurnBegun, TurnRepeated, TurnRequest, TurnStatus
from holdfast.domain.usage import tokens
from holdfast.errors import (
    ConversationBusy,
    HoldfastError,
    ModelError,
    NotFound,
    RequestMismatch,
    StoreError,
    StoreFull,
    TurnStopped,
    TurnSuperseded,
)
from holdfast.models.base import Chunk, ModelRequest
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.agents.doctor import Doctor
from holdfast.runtime.agents.reaper import Reaper
from holdfast.runtime.shutdown import finished, through
from holdfast.runtime.turns.live import Answered, Outcome, RunningTurn, TurnSpec, Unanswered
from holdfast.store.sqlite.engine import SQLiteStore, open_store
from holdfast.store.store import Store

from .asking import (
    OWNER,
    Gated,
    Server,
    Told,
    assert_history_is_right,
    drafted,
    ended,
    heard,
    key,
    serving,
    stored,
    until_drafted,
    until_told,
    user,
)


@pytest.fixture
def gated() -> Gated:
    return Gated()


@pytest.fixture
async def server(store: SQLiteStore, gated: Gated) -> AsyncIterator[Server]:
    """A node whose model speaks when it is told to, and whose drafts are written often."""
    async with serving(store, gated.model, checkpoint_seconds=0.05) as opened:
        yield opened


def context_of(model: ScriptedModel, request: int = -1) -> list[Any]:
    """What the model got to read."""
    decoded: list[dict[str, Any]] = msgspec.json.decode(model.requests[request].messages)
    return [message["content"] for message in decoded]


async def status_of(store: Store, running: RunningTurn) -> TurnStatus:
    return (await store.turn(None, running.turn.id)).status


# --- answered ---------------------------------------------------------------------------------------------


async def test_the_answer_is_told_stored_and_counted(store: SQLiteStore) -> None:
    async with serving(store, ScriptedModel()) as server:
        running = await server.run(user("hello there"), key="k")
        assert await heard(running) == ["begun", "You", " said:", " hello", " there", "answered"]
    outcome = running.outcome
    assert isinstance(outcome, Answered)
    assert outcome.reply.message["content"] == "You said: hello there"
    done = await store.turn(OWNER, running.turn.id)
    assert done.status is TurnStatus.COMPLETED
    assert {**(done.usage or {}), "first_token_ms": 0} == {
        "input_tokens": 2,
        "output_tokens": 4,
        "first_token_ms": 0,
    }
    assert await stored(store, done.conversation_id) == [
        ("user", "hello there", "completed"),
        ("assistant", "You said: hello there", "completed"),
    ]
    assert msgspec.json.decode(await store.turn_answer(done.id) or b"") == outcome.answer
    await assert_history_is_right(store, done.conversation_id, known=True)


async def test_instructions_and_options_go_to_the_model_and_are_not_stored(store: SQLiteStore) -> None:
    model = ScriptedModel()
    async with serving(store, model) as server:
        order = server.order({"role": "system", "content": "be brief"}, user("hello"), key="k")
        running = await server.runner.begin(replace(order, options={"seed": 7}, model="m"), 1)
        assert isinstance(running, RunningTurn)
        await ended(running)
    assert context_of(model) == ["be brief", "hello"]
    assert (model.requests[0].options, model.requests[0].model) == ({"seed": 7}, "m")
    assert len(await stored(store, running.turn.conversation_id)) == 2


async def test_the_end_is_told_after_it_is_on_disk(
    store: SQLiteStore, server: Server, gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, commit = asyncio.Event(), store.commit_reply

    async def commit_reply(*arguments: Any, **more: Any) -> int:
        await disk.wait()
        return await commit(*arguments, **more)

    monkeypatch.setattr(store, "commit_reply", commit_reply)
    running = await server.run(user("hello"))
    gated.finish("word")
    await until_told(running, 2)
    await asyncio.sleep(0.05)
    assert (running.events, running.outcome) == ([b"begun", b"word"], None)
    disk.set()
    assert (await heard(running))[-1] == "answered"


async def test_every_listener_hears_everything_also_one_that_comes_late(server: Server, gated: Gated) -> None:
    running = await server.run(user("tell me"))
    early = [asyncio.create_task(heard(running)) for _ in range(3)]
    gated.say("The", " tide")
    await until_told(running, 3)
    late = asyncio.create_task(heard(running))
    leaves = asyncio.create_task(heard(running))
    await asyncio.sleep(0)
    leaves.cancel()
    gated.finish(" turns")
    for told in await asyncio.gather(*early, late):
        assert told == ["begun", "The", " tide", " turns", "answered"]
    assert await heard(running) == ["begun", "The", " tide", " turns", "answered"], "after the end too"


async def test_a_listener_whose_patience_ends_wakes_nobody_else(server: Server, gated: Gated) -> None:
    running = await server.run(user("tell me"))
    await until_told(running, 1)
    patient = asyncio.create_task(running.wait_for_events(1))
    assert not await running.wait_for_events(1, 0.01)
    assert await running.ended(0.01) is None
    assert not patient.done()
    gated.finish("word")
    assert await patient
    assert isinstance(await ended(running), Answered)


async def test_the_next_turn_goes_on_where_the_last_ended(store: SQLiteStore) -> None:
    model = ScriptedModel(["one", "two", "three"])
    async with serving(store, model) as server:
        for text in ("a", "b", "c"):
            running = await server.run(user(text), key="k")
            await ended(running)
            await assert_history_is_right(store, running.turn.conversation_id, known=True)
    assert context_of(model) == ["a", "one", "b", "two", "c"]


# --- the same request again ---------------------------------------------------------------------------------


async def test_the_same_request_twice_at_the_same_moment_is_one_turn_that_both_hear(
    store: SQLiteStore, server: Server, gated: Gated
) -> None:
    both = await asyncio.gather(*(server.run(user("hello"), request_key=key("k1")) for _ in range(2)))
    listening = [asyncio.create_task(heard(running)) for running in both]
    gated.finish("word")
    for task in listening:
        assert await task == ["begun", "word", "answered"]
    assert both[0] is both[1]
    assert gated.model.calls == 1
    assert len(await stored(store, both[0].turn.conversation_id)) == 2


async def test_many_of_the_same_request_while_others_wait_are_one_turn(
    store: SQLiteStore, server: Server, gated: Gated
) -> None:
    first = await server.run(user("hello"), key="k")
    asking = [
        asyncio.create_task(server.run(user("again"), key="k", request_key=key("k1"))) for _ in range(5)
    ]
    await asyncio.sleep(0.05)
    gated.finish("one")
    await ended(first)
    gated.finish("two")
    joined = await asyncio.gather(*asking)
    assert len({running.turn.id for running in joined}) == 1
    await ended(joined[0])
    assert gated.model.calls == 2
    assert [text for _, text, _ in await stored(store, first.turn.conversation_id)] == [
        "hello",
        "one",
        "again",
        "two",
    ]


async def queued(store: SQLiteStore, server: Server, gated: Gated) -> Callable[[Server], TurnSpec]:
    """A queued turn whose conversation is free; returns what begins it on a server."""
    first = await server.run(user("first"), key="k")
    order = server.order(user("second"), key="k")
    waiting = await store.enqueue_turn(order.request, most=1)
    assert waiting is not None
    gated.finish("one")
    await ended(first)
    gated.asked.clear()

    def begins(on: Server) -> TurnSpec:
        address = Address(id=waiting.turn.conversation_id, create=False)
        return replace(
            order,
            request=TurnRequest(
                waiting.turn.id, OWNER, on.keeper.node_id, address, messages=(), starts_queued=True
            ),
        )

    return begins


async def test_a_queued_turn_that_runs_on_another_node_is_not_waited_for(
    store: SQLiteStore, server: Server, gated: Gated
) -> None:
    begins = await queued(store, server, gated)
    async with serving(store, gated.model) as other:
        running = await server.runner.begin(begins(server), 0)
        async with asyncio.timeout(60):
            with pytest.raises(ConversationBusy):
                await other.runner.begin(begins(other), 0)
    gated.finish("two")
    assert isinstance(running, RunningTurn) and isinstance(await ended(running), Answered)


async def test_a_queued_turn_begun_twice_at_the_same_moment_is_one_turn_that_goes_on(
    store: SQLiteStore, server: Server, gated: Gated
) -> None:
    begins = await queued(store, server, gated)
    one, two = await asyncio.gather(*(server.runner.begin(begins(server), 0) for _ in range(2)))
    assert one is two and isinstance(one, RunningTurn)
    assert await server.runner.begin(begins(server), 0) is one
    for _ in range(3):
        await server.keeper.beat_once()
    gated.finish("two")
    assert isinstance(await ended(one), Answered)


async def test_a_request_with_the_id_of_a_turn_that_runs_on_another_node_follows_it(
    store: SQLiteStore, server: Server, gated: Gated
) -> None:
    """A connector keeps the id of a message's turn. After a takeover it begins the turn under the same id."""
    order = replace(server.order(user("hello"), key="k", request_key=key("one")), follows=True)
    running = await server.runner.begin(order, 1)
    async with serving(store, gated.model) as other:
        again = replace(order, request=replace(order.request, node_id=other.keeper.node_id))
        async with asyncio.timeout(60):
            outcome = await other.runner.begin(again, 1)
    assert isinstance(outcome, TurnRepeated) and outcome.turn.status is TurnStatus.RUNNING
    gated.finish("hi")
    assert isinstance(running, RunningTurn) and isinstance(await ended(running), Answered)


async def test_a_turn_that_is_taken_up_here_while_its_own_request_comes_again_goes_on(
    store: SQLiteStore, server: Server, gated: Gated
) -> None:
    order = replace(server.order(user("hello"), key="k", request_key=key("one")), follows=True)
    first = await server.runner.begin(order, 1)
    assert isinstance(first, RunningTurn)
    await server.runner.stop(None, first.turn.id, TurnStatus.INTERRUPTED, "a test")
    retry = replace(order, request=replace(order.request, turn_id=new_id("turn"), resumes_turn=first.turn.id))
    running, _ = await asyncio.gather(server.runner.begin(retry, 1), server.runner.begin(order, 1))
    assert isinstance(running, RunningTurn) and running.turn.id == first.turn.id
    assert server.keeper.is_running(first.turn.id)
    gated.finish("hi")
    assert isinstance(await ended(running), Answered)


async def test_a_request_repeated_after_its_answer_is_that_answer(store: SQLiteStore) -> None:
    model = ScriptedModel(["one"])
    async with serving(store, model) as server:
        running = await server.run(user("hello"), request_key=key("k1"))
        await ended(running)
        again = await server.ask(user("hello"), request_key=key("k1"))
        assert isinstance(again, TurnRepeated)
        assert (again.turn.id, again.turn.status) == (running.turn.id, TurnStatus.COMPLETED)
        with pytest.raises(RequestMismatch):
            await server.ask(user("other"), request_key=key("k1", b"another body"))
    assert model.calls == 1


async def test_a_failed_turn_is_taken_up_again_by_its_key(store: SQLiteStore) -> None:
    model = ScriptedModel([("The tide", ModelError("the line is dead")), "The tide turns"])
    async with serving(store, model) as server:
        failed = await server.run(user("tell me"), key="k", request_key=key("k1"))
        outcome = await ended(failed)
        assert isinstance(outcome, Unanswered) and outcome.spoke
        again = await server.run(user("tell me"), key="k", request_key=key("k1"))
        assert (again.turn.id, again.turn.attempt) == (failed.turn.id, 2)
        assert (await heard(again))[-1] == "answered"
    assert context_of(model) == ["tell me"], "said once, and without the partial reply"
    assert await stored(store, again.turn.conversation_id) == [
        ("user", "tell me", "completed"),
        ("assistant", "The tide", "interrupted"),
        ("assistant", "The tide turns", "completed"),
    ]
    await assert_history_is_right(store, again.turn.conversation_id)


async def test_two_retries_at_the_same_moment_take_one_turn_up_once(
    store: SQLiteStore, server: Server, gated: Gated
) -> None:
    running = await server.run(user("tell me"), key="k", request_key=key("k1"))
    gated.fail(ModelError("no"))
    await ended(running)
    both = await asyncio.gather(
        *(server.run(user("tell me"), key="k", request_key=key("k1")) for _ in range(3))
    )
    gated.finish("yes")
    for again in both:
        assert again is both[0]
        assert (await heard(again))[-1] == "answered"
    assert gated.model.calls == 2


async def test_an_unfinished_turn_that_was_followed_by_another_is_superseded(store: SQLiteStore) -> None:
    model = ScriptedModel([ModelError("no"), "yes"])
    async with serving(store, model) as server:
        failed = await server.run(user("one"), key="k", request_key=key("k1"))
        await ended(failed)
        await server.answered(user("two"), key="k")
        with pytest.raises(TurnSuperseded):
            await server.ask(user("one"), key="k", request_key=key("k1"))


async def test_a_request_without_a_key_is_its_turn_until_its_answer_was_received(store: SQLiteStore) -> None:
    implied = key("body", implied=True)
    model = ScriptedModel(["one", "two"])
    async with serving(store, model) as server:
        first = await server.run(user("hello"), key="k", request_key=implied)
        await ended(first)
        for _ in range(2):
            again = await server.ask(user("hello"), key="k", request_key=implied)
            assert isinstance(again, TurnRepeated) and again.turn.id == first.turn.id
        server.runner.receipts.note(first.turn.id, Delivery.WHOLE)
        second = await server.run(user("hello"), key="k", request_key=implied)
        assert second.turn.id != first.turn.id, "known here before it is on disk"
        await ended(second)
    assert model.calls == 2


class Connected:
    """A client of a turn."""

    def __init__(self) -> None:
        self.connected = True

    def is_open(self) -> bool:
        return self.connected


async def test_a_request_without_a_key_joins_a_turn_that_has_no_listener(
    server: Server, gated: Gated
) -> None:
    client, implied = Connected(), key("body", implied=True)
    first = await server.run(user("hello"), key="k", request_key=implied)
    first.attend(client)
    asking = asyncio.create_task(server.run(user("hello"), key="k", request_key=implied))
    await asyncio.sleep(0.05)
    assert not asking.done(), "its answer is awaited by its client"
    client.connected = False
    assert await asking is first
    gated.finish("word")
    await ended(first)


async def test_an_answer_that_is_being_sent_is_waited_for(store: SQLiteStore) -> None:
    implied = key("body", implied=True)
    model = ScriptedModel(["one", "two"])
    async with serving(store, model) as server:
        first = await server.run(user("hello"), key="k", request_key=implied)
        first.attend(Connected())
        await ended(first)
        assert (await store.turn(None, first.turn.id)).delivery is Delivery.SENDING
        asking = asyncio.create_task(server.run(user("hello"), key="k", request_key=implied))
        await asyncio.sleep(0.05)
        assert not asking.done()
        server.runner.receipts.note(first.turn.id, Delivery.WHOLE)
        second = await asking
        assert second.turn.id != first.turn.id
        await ended(second)


async def test_marks_that_cannot_be_written_are_kept_and_written_later(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(store, ScriptedModel(["one"])) as server:
        first = await server.run(user("hello"), key="k")
        await ended(first)
        receipts, write = server.runner.receipts, store.note_deliveries

        async def fails(_: object) -> None:
            raise StoreError("the disk is full")

        monkeypatch.setattr(store, "note_deliveries", fails)
        receipts.note(first.turn.id, Delivery.WHOLE)
        with pytest.raises(StoreError):
            await receipts.write()
        assert receipts.of(first.turn.id) is Delivery.WHOLE
        monkeypatch.setattr(store, "note_deliveries", write)
        receipts.note(first.turn.id, Delivery.PART)
        await receipts.write()
        assert receipts.of(first.turn.id) is None
        assert (await store.turn(None, first.turn.id)).delivery is Delivery.WHOLE


async def test_a_joiner_that_goes_away_harms_nobody(server: Server, gated: Gated) -> None:
    """Nobody but the caller of `begin` depends on how patient others are."""
    asking = [asyncio.create_task(server.ask(user("hello"), request_key=key("k1"))) for _ in range(6)]
    for turns in range(12):
        await asyncio.sleep(0)
        if turns % 2:
            asking[1 + turns // 2 % 5].cancel()
    gated.finish("word")
    running = await asking[0]
    assert isinstance(running, RunningTurn)
    assert (await heard(running))[-1] == "answered"
    await asyncio.gather(*asking, return_exceptions=True)


# --- busy ---------------------------------------------------------------------------------------------------


async def test_a_second_request_waits_and_then_says_that_it_is_busy(
    store: SQLiteStore, server: Server, gated: Gated
) -> None:
    first = await server.run(user("one"), key="k")
    with pytest.raises(ConversationBusy) as busy:
        await server.ask(user("two"), key="k", wait=0.05)
    assert busy.value.turn_id == first.turn.id
    waiting = asyncio.create_task(server.run(user("three"), key="k"))
    gated.finish("first")
    await ended(first)
    gated.finish("second")
    await ended(await waiting)
    assert [text for _, text, _ in await stored(store, first.turn.conversation_id)] == [
        "one",
        "first",
        "three",
        "second",
    ]


@pytest.mark.parametrize("wait", [5, 0])
async def test_a_newer_request_may_cut_the_running_turn_short(
    store: SQLiteStore, server: Server, gated: Gated, wait: float
) -> None:
    first = await server.run(user("one"), key="k")
    gated.say("The tide")
    await until_told(first, 2)
    second = await server.run(user("no, stop"), key="k", interrupt=True, wait=wait)
    outcome = await ended(first)
    assert isinstance(outcome, Unanswered) and outcome.status is TurnStatus.INTERRUPTED
    gated.finish("yes?")
    assert (await heard(second))[-1] == "answered"
    assert await stored(store, first.turn.conversation_id) == [
        ("user", "one", "completed"),
        ("assistant", "The tide", "interrupted"),
        ("user", "no, stop", "completed"),
        ("assistant", "yes?", "completed"),
    ]


async def test_requests_that_cut_each_other_short_the_moment_they_begin_all_end(
    store: SQLiteStore, gated: Gated
) -> None:
    """A turn may be stopped before its task has taken a single step."""
    async with serving(store, ScriptedModel()) as server, asyncio.timeout(60):
        running = await asyncio.gather(
            *(server.run(user(f"number {n}"), key="k", interrupt=True) for n in range(8))
        )
        outcomes = [await ended(turn) for turn in running]
    turns = await store.turns(OWNER, running[0].turn.conversation_id)
    assert len(turns) == 8 and all(turn.status is not TurnStatus.RUNNING for turn in turns)
    for turn, outcome in zip(running, outcomes, strict=True):
        completed = await status_of(store, turn) is TurnStatus.COMPLETED
        assert completed == isinstance(outcome, Answered)
    said = [text for role, text, _ in await stored(store, running[0].turn.conversation_id) if role == "user"]
    assert sorted(said) == sorted(f"number {n}" for n in range(8))


# --- stopped ------------------------------------------------------------------------------------------------


async def test_a_stopped_turn_keeps_every_word_that_was_told(store: SQLiteStore) -> None:
    gated = Gated()
    async with serving(store, gated.model, checkpoint_seconds=60) as server:
        running = await server.run(user("tell me"), key="k")
        gated.say("The", " tide", " is")  # told, but not on disk for a minute
        await until_told(running, 4)
        assert await drafted(store, running.turn.id) == ""
        assert await server.runner.stop(OWNER, running.turn.id, TurnStatus.CANCELLED, "a person said stop")
        assert (await heard(running))[-1] == "cancelled"
        assert await status_of(store, running) is TurnStatus.CANCELLED
        assert (await stored(store, running.turn.conversation_id))[-1] == (
            "assistant",
            "The tide is",
            "interrupted",
        )
        assert not await server.runner.stop(OWNER, running.turn.id, TurnStatus.CANCELLED, "again")
    assert not server.keeper.is_running(running.turn.id)


async def test_a_turn_stopped_before_its_first_step_ends_all_the_same(
    store: SQLiteStore, server: Server
) -> None:
    running = await server.run(user("tell me"), key="k")
    async with asyncio.timeout(60):
        assert await server.runner.stop(None, running.turn.id, TurnStatus.CANCELLED, "at once")
    assert isinstance(await ended(running), Unanswered)
    assert await status_of(store, running) is TurnStatus.CANCELLED
    assert server.runner.running == {}


async def test_another_owners_turn_is_not_found_and_goes_on(server: Server, gated: Gated) -> None:
    running = await server.run(user("tell me"), key="k")
    with pytest.raises(NotFound):
        await server.runner.stop("bob", running.turn.id, TurnStatus.CANCELLED, "not mine")
    gated.finish("word")
    assert isinstance(await ended(running), Answered)


async def test_a_turn_that_is_being_committed_cannot_be_stopped_any_more(
    store: SQLiteStore, server: Server, gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, at_it, commit = asyncio.Event(), asyncio.Event(), store.commit_reply

    async def commit_reply(*arguments: Any, **more: Any) -> int:
        at_it.set()
        await disk.wait()
        return await commit(*arguments, **more)

    monkeypatch.setattr(store, "commit_reply", commit_reply)
    running = await server.run(user("tell me"))
    gated.finish("word")
    await at_it.wait()
    stopping = asyncio.create_task(server.runner.stop(None, running.turn.id, TurnStatus.CANCELLED, "late"))
    await asyncio.sleep(0.02)
    assert running.task is not None
    running.task.cancel()
    await asyncio.sleep(0.02)
    disk.set()
    assert not await stopping
    assert isinstance(await ended(running), Answered)
    assert await status_of(store, running) is TurnStatus.COMPLETED


@pytest.mark.parametrize("ended_by", ["cancelled", "deleted"])
async def test_a_turn_ended_by_someone_else_stops_while_the_model_is_silent(
    store: SQLiteStore, server: Server, gated: Gated, tmp_path: Path, ended_by: str
) -> None:
    other = await open_store(tmp_path / "store.db")
    running = await server.run(user("tell me"), key="k")
    gated.say("The tide")
    await until_drafted(store, running.turn.id, "The tide")
    if ended_by == "cancelled":
        assert await other.cancel_turn(OWNER, running.turn.id, TurnStatus.CANCELLED, "a person said stop")
    else:
        await other.delete_conversation(OWNER, running.turn.conversation_id)
    outcome = await ended(running, 5)
    assert isinstance(outcome, Unanswered) and outcome.status is TurnStatus.CANCELLED
    if ended_by == "cancelled":
        assert isinstance(outcome.error, TurnStopped)
        assert (await stored(store, running.turn.conversation_id))[-1] == (
            "assistant",
            "The tide",
            "interrupted",
        )
    else:
        assert isinstance(outcome.error, NotFound)
    await other.close()


async def test_a_turn_of_another_node_is_stopped_through_the_store(
    store: SQLiteStore, server: Server, gated: Gated, tmp_path: Path
) -> None:
    other = await open_store(tmp_path / "store.db")
    async with serving(other, ScriptedModel()) as second:
        running = await server.run(user("tell me"), key="k")
        assert await second.runner.stop(OWNER, running.turn.id, TurnStatus.CANCELLED, "a person said stop")
        outcome = await ended(running, 5)
        assert isinstance(outcome, Unanswered) and outcome.status is TurnStatus.CANCELLED
        cut = await server.run(user("go on"), key="k")
        assert await second.answered(user("no, me"), key="k", interrupt=True) == "You said: no, me"
        assert isinstance(await ended(cut, 5), Unanswered)
    await other.close()


async def test_draining_gives_turns_their_time_and_then_interrupts_them(
    store: SQLiteStore, server: Server, gated: Gated
) -> None:
    quick = await server.run(user("one"), key="quick")
    draining = asyncio.create_task(server.runner.drain(10))
    gated.finish("word")
    await asyncio.wait_for(draining, 60)
    assert isinstance(quick.outcome, Answered)
    slow = await server.run(user("two"), key="slow")
    gated.say("The tide")
    await until_told(slow, 2)
    await asyncio.wait_for(server.runner.drain(0.05), 60)
    outcome = slow.outcome
    assert isinstance(outcome, Unanswered) and isinstance(outcome.error, TurnStopped)
    assert outcome.error.retry, "the same request, sent again, takes it up"
    assert await status_of(store, slow) is TurnStatus.INTERRUPTED
    assert (await stored(store, slow.turn.conversation_id))[-1][1] == "The tide"


async def test_a_turn_that_begins_while_others_are_drained_is_interrupted_too(
    store: SQLiteStore, server: Server, gated: Gated
) -> None:
    await server.run(user("one"), key="first")
    draining = asyncio.create_task(server.runner.drain(0.2))
    await asyncio.sleep(0.05)
    second = await server.run(user("two"), key="second")
    await asyncio.wait_for(draining, 60)
    assert isinstance(second.outcome, Unanswered)
    assert server.runner.running == {}


async def test_a_reaped_node_interrupts_what_it_ran_and_goes_on_as_another(
    store: SQLiteStore, server: Server, gated: Gated
) -> None:
    running = await server.run(user("tell me"), key="k")
    gated.say("The tide")
    await until_drafted(store, running.turn.id, "The tide")
    first = server.keeper.node_id
    (node,) = await store.nodes()
    assert await store.reap(first, node.beat, "it was taken for dead")
    for conversation in (await store.leftovers()).conversations:
        await store.settle_conversation(conversation)
    again = asyncio.create_task(server.run(user("are you there?"), key="k"))
    outcome = await ended(running, 5)
    assert isinstance(outcome, Unanswered) and outcome.status is TurnStatus.INTERRUPTED
    following = await again
    gated.finish("yes")
    assert isinstance(await ended(following), Answered)
    assert following.turn.node_id == server.keeper.node_id != first
    assert await status_of(store, running) is TurnStatus.INTERRUPTED
    assert (await stored(store, running.turn.conversation_id))[1] == ("assistant", "The tide", "interrupted")


async def test_a_node_reaped_but_not_settled_yet_ends_its_turns_itself(
    store: SQLiteStore, server: Server, gated: Gated
) -> None:
    running = await server.run(user("tell me"), key="k")
    (node,) = await store.nodes()
    assert await store.reap(node.id, node.beat, "it was taken for dead")
    await server.keeper.beat_once()
    outcome = await ended(running, 5)
    assert isinstance(outcome, Unanswered)
    assert await status_of(store, running) is TurnStatus.INTERRUPTED


# --- the caller goes away -----------------------------------------------------------------------------------


@pytest.mark.parametrize("taken_up", [False, True], ids=["new", "taken up"])
@pytest.mark.parametrize("steps", range(6))
async def test_a_turn_whose_caller_went_away_while_it_began_does_not_stay_open(
    store: SQLiteStore, server: Server, gated: Gated, steps: int, taken_up: bool
) -> None:
    if taken_up:
        failed = await server.run(user("hello"), key="k", request_key=key("k1"))
        gated.fail(ModelError("no"))
        await ended(failed)
    asking = asyncio.create_task(server.ask(user("hello"), key="k", request_key=key("k1")))
    for _ in range(steps):
        await asyncio.sleep(0.0002)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    gated.finish("word")
    async with asyncio.timeout(5):  # well before the second beat, which would find a stray lease
        following = await server.run(user("are you there?"), key="k")
    gated.finish("word")
    assert isinstance(await ended(following), Answered)
    for turn in await store.turns(OWNER, following.turn.conversation_id):
        assert turn.status is not TurnStatus.RUNNING
    assert not any(
        server.keeper.is_running(turn.id) for turn in await store.turns(OWNER, following.turn.conversation_id)
    )


async def test_a_request_that_joins_a_turn_whose_caller_went_away_takes_it_up(
    store: SQLiteStore, server: Server, gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, committed, told = store.begin_turn, asyncio.Event(), asyncio.Event()

    async def begin_turn(request: Any) -> Any:
        outcome = await begin(request)
        if isinstance(outcome, TurnBegun) and not told.is_set():
            committed.set()
            await told.wait()
        return outcome

    monkeypatch.setattr(store, "begin_turn", begin_turn)
    first = asyncio.create_task(server.ask(user("hello"), request_key=key("k1")))
    await committed.wait()
    joining = asyncio.create_task(server.run(user("hello"), request_key=key("k1")))
    leaving = asyncio.create_task(server.run(user("hello"), request_key=key("k1")))
    await asyncio.sleep(0.05)
    leaving.cancel()
    await asyncio.sleep(0.05)
    first.cancel()
    told.set()
    gated.finish("word")
    async with asyncio.timeout(60):
        running = await joining
    assert isinstance(await ended(running), Answered)
    assert running.turn.attempt == 2
    assert [text for _, text, _ in await stored(store, running.turn.conversation_id)] == ["hello", "word"]


async def test_outcomes_that_begin_nothing_leave_no_turn_behind(
    store: SQLiteStore, server: Server, gated: Gated
) -> None:
    first = await server.run(user("hello"), key="k", request_key=key("k1"))
    joined = server.order(user("hello"), key="k", request_key=key("k1"))
    assert await server.runner.begin(joined, 1) is first
    assert not server.keeper.is_running(joined.request.turn_id)
    busy = server.order(user("other"), key="k")
    with pytest.raises(ConversationBusy):
        await server.runner.begin(busy, 0)
    assert not server.keeper.is_running(busy.request.turn_id)
    gated.finish("word")
    await ended(first)
    repeated = server.order(user("hello"), key="k", request_key=key("k1"))
    assert isinstance(await server.runner.begin(repeated, 1), TurnRepeated)
    assert not server.keeper.is_running(repeated.request.turn_id)
    assert not server.keeper.is_running(first.turn.id)


# --- the model fails ----------------------------------------------------------------------------------------


async def test_a_model_that_refuses_fails_the_turn_and_the_message_stays(store: SQLiteStore) -> None:
    model = ScriptedModel([ModelError("no such voice", 400)])
    async with serving(store, model) as server:
        running = await server.run(user("tell me"), key="k")
        assert await heard(running) == ["begun", "failed"]
    outcome = running.outcome
    assert isinstance(outcome, Unanswered) and not outcome.spoke
    assert isinstance(outcome.error, ModelError) and outcome.error.status == 400
    turn = await store.turn(OWNER, running.turn.id)
    assert (turn.status, turn.error) == (TurnStatus.FAILED, "no such voice")
    assert await stored(store, turn.conversation_id) == [("user", "tell me", "completed")]
    await assert_history_is_right(store, turn.conversation_id)


async def test_a_model_that_breaks_off_fails_the_turn_and_its_words_stay(store: SQLiteStore) -> None:
    async with serving(store, ScriptedModel([("The tide", ModelError("the line is dead"))])) as server:
        running = await server.run(user("tell me"), key="k")
        assert await heard(running) == ["begun", "The", " tide", "failed"]
    assert (await stored(store, running.turn.conversation_id))[-1] == (
        "assistant",
        "The tide",
        "interrupted",
    )


class Unfinished(ScriptedModel):
    """Its stream ends without saying that the answer did."""

    async def stream(self, request: ModelRequest) -> Any:
        async for chunk in super().stream(request):
            if chunk.adds:
                yield chunk


async def test_an_answer_without_an_end_is_not_taken_for_a_whole_one(store: SQLiteStore) -> None:
    async with serving(store, Unfinished()) as server:
        running = await server.run(user("tell me"), key="k")
        outcome = await ended(running)
    assert isinstance(outcome, Unanswered) and "was cut off" in str(outcome.error)
    assert (await stored(store, running.turn.conversation_id))[-1] == (
        "assistant",
        "You said: tell me",
        "interrupted",
    )


class Reporting(ScriptedModel):
    """Reports its usage in a shape of its own."""

    def __init__(self, usage: Any) -> None:
        super().__init__()
        self._reported = usage

    async def stream(self, request: ModelRequest) -> Any:
        async for chunk in super().stream(request):
            value = {**chunk.value, **({"usage": self._reported} if chunk.finishes else {})}
            yield Chunk(msgspec.json.encode(value), value)


@pytest.mark.parametrize("usage", [[1, 2], "many", 7, {"prompt_tokens": "3"}, {"prompt_tokens": None}])
async def test_a_model_that_reports_its_usage_strangely_is_answered_all_the_same(
    store: SQLiteStore, usage: Any
) -> None:
    async with serving(store, Reporting(usage)) as server:
        assert await server.answered(user("hello")) == "You said: hello"


class Broken(Told):
    """A surface with a mistake in it."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where

    def begin(self, begun: TurnBegun) -> Sequence[bytes]:
        return self._at("begin") or super().begin(begun)

    def add(self, chunk: Chunk) -> Sequence[bytes]:
        return self._at("add") or super().add(chunk)

    def end(self, outcome: Outcome) -> Sequence[bytes]:
        return self._at("end") or super().end(outcome)

    def _at(self, where: str) -> Sequence[bytes]:
        if where == self._where:
            raise RuntimeError(f"a mistake in {where}")
        return ()


@pytest.mark.parametrize("where", ["begin", "add", "end"])
async def test_a_mistake_in_telling_a_turn_leaves_nobody_waiting(store: SQLiteStore, where: str) -> None:
    async with serving(store, ScriptedModel(["one", "two"])) as server:
        running = await server.run(user("tell me"), key="k", renderer=Broken(where))
        outcome = await ended(running, 5)
        status = await status_of(store, running)
        assert isinstance(outcome, Answered) == (status is TurnStatus.COMPLETED)
        assert status is not TurnStatus.RUNNING
        assert server.runner.running == {}
        assert not server.keeper.is_running(running.turn.id)
        await server.answered(user("and now?"), key="k")


# --- the store fails ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["context", "commit_reply", "append_draft", "settle_turn"])
@pytest.mark.parametrize(
    "error", [StoreFull("the disk is full"), HoldfastError("something else")], ids=["full", "other"]
)
async def test_a_store_that_fails_is_told_and_leaves_nobody_waiting(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, verb: str, error: HoldfastError
) -> None:
    works = getattr(store, verb)

    async def fails(*arguments: Any, **more: Any) -> None:
        raise error

    model = ScriptedModel([("The tide", ModelError("the line is dead")), "and now"])
    if verb in ("context", "commit_reply"):
        model = ScriptedModel(lambda messages, purpose: "and now")
    async with serving(store, model, checkpoint_seconds=0.01) as server:
        if verb == "context":  # it is asked for only when it is not at hand
            await server.answered(user("now"), key="k")
            store._cache.clear()
        monkeypatch.setattr(store, verb, fails)
        running = await server.run(user("tell me"), key="k")
        outcome = await ended(running, 5)
        assert isinstance(outcome, Unanswered)
        monkeypatch.setattr(store, verb, works)
        assert server.runner.running == {}
        for _ in range(2):  # what could not be settled then is found by the beat
            await server.keeper.beat_once()
        assert await status_of(store, running) in (TurnStatus.FAILED, TurnStatus.INTERRUPTED)
        assert "now" in await server.answered(user("and now?"), key="k")


async def test_what_was_told_before_the_disk_was_full_is_saved_when_there_is_room_again(
    store: SQLiteStore, server: Server, gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = store.append_draft
    full = True

    async def append_draft(*arguments: Any) -> None:
        if full:
            raise StoreFull("the disk is full")
        await append(*arguments)

    monkeypatch.setattr(store, "append_draft", append_draft)
    running = await server.run(user("tell me"), key="k")
    gated.say("The tide")
    await until_told(running, 2)
    await asyncio.sleep(0.1)
    full = False
    gated.say(" turns")
    outcome = await ended(running, 5)
    assert isinstance(outcome, Unanswered), "nobody is told more than the disk can hold"
    assert (await stored(store, running.turn.conversation_id))[-1][1] == "The tide"


# --- cancelled anywhere -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
async def test_a_turn_cancelled_at_any_moment_is_told_as_what_the_store_says(
    store: SQLiteStore, seed: int
) -> None:
    chance = random.Random(seed)
    model = ScriptedModel(lambda messages, purpose: "one two three four", delay=0.0005)
    async with serving(store, model, checkpoint_seconds=chance.choice([0.0005, 0.002, 1])) as server:
        reaper = Reaper(store, lambda: server.keeper.node_id)
        for number in range(4):
            running = await server.run(user(f"number {number}"), key="k")
            assert running.task is not None
            for _ in range(chance.randrange(1, 4)):
                await _at_random(chance)
                if chance.random() < 0.5:
                    await asyncio.sleep(0)  # its first step; nobody but the runner has its task sooner
                    running.task.cancel()
                else:
                    stop = server.runner.stop(None, running.turn.id, TurnStatus.CANCELLED, "chance")
                    asyncio.ensure_future(stop).add_done_callback(_retrieved)
            outcome = await ended(running, 5)
            status = await status_of(store, running)
            if isinstance(outcome, Answered):
                assert status is TurnStatus.COMPLETED
                assert running.events[-1] == b"answered"
            else:
                assert status is outcome.status is not TurnStatus.COMPLETED
            told = b"".join(running.events[1:-1]).decode()
            last = (await stored(store, running.turn.conversation_id))[-1]
            assert last[1] == (told or f"number {number}"), "what was told is kept, whatever came"
            await assert_history_is_right(store, running.turn.conversation_id)
        assert server.runner.running == {}
        assert all(diagnosis.ok for diagnosis in await Doctor(store, reaper).examine())
        held = await store.held(server.keeper.node_id)
        assert held.leases == {}


async def _at_random(chance: random.Random) -> None:
    if chance.random() < 0.5:
        for _ in range(chance.randrange(12)):
            await asyncio.sleep(0)
    else:
        await asyncio.sleep(chance.random() * 0.006)


def _retrieved(task: asyncio.Future[bool]) -> None:
    if not task.cancelled() and isinstance(task.exception(), NotFound):
        raise AssertionError("the turn was not found")


# --- small parts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reported", "kept"),
    [
        (None, {}),
        ({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}, {"input_tokens": 3,
        "output_tokens": 4}), ({"prompt_tokens": 3, "completion_tokens": None}, {"input_tokens": 3}),
        ([3, 4], {}),
    ],
)  # fmt: skip
def test_usage_is_stored_under_our_names(reported: Any, kept: dict[str, int]) -> None:
    assert tokens(reported) == kept


async def _slowly(done: list[str], error: Exception | None = None) -> str:
    await asyncio.sleep(0.05)
    done.append("done")
    if error is not None:
        raise error
    return "result"


async def test_what_must_be_finished_is_finished_before_the_cancellation_counts() -> None:
    done = list[str]()
    task = asyncio.create_task(finished(_slowly(done)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["done"]
    assert await finished(_slowly(done)) == "result"


async def test_what_goes_through_cannot_be_cancelled_however_often_it_is_tried() -> None:
    done = list[str]()
    task = asyncio.create_task(through(_slowly(done)))
    for _ in range(10):
        await asyncio.sleep(0.003)
        task.cancel()
    assert await task == "result"
    failing = asyncio.create_task(through(_slowly(done, ModelError("no"))))
    await asyncio.sleep(0.01)
    failing.cancel()
    with pytest.raises(ModelError):
        await failing
