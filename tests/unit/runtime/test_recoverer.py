"""Waiting turns are taken up: by one node, as often as allowed, and from the third attempt on alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from holdfast.domain.api_keys import Scope, new_key
from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.new_messages import new_message
from holdfast.domain.recovery import (
    KEY_REVOKED,
    Cause,
    Origin,
    RecoveryRules,
    RequestToStore,
    StoredRequest,
    encoded_request,
)
from holdfast.domain.turns import Turn, TurnBegun, TurnFailure, TurnOutcome, TurnRequest, TurnStatus
from holdfast.errors import ModelError, StoreFull
from holdfast.models.base import Model
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.agents.authenticator import Authenticator
from holdfast.runtime.agents.recoverer import AGAIN_SECONDS, Check, Recoverer, StoredTurns
from holdfast.runtime.turns.live import Answered, RunningTurn, TurnSpec
from holdfast.store.sqlite.engine import SQLiteStore
from tests.unit.runtime.asking import OWNER, Gated, Server, Told, serving, user
from tests.unit.runtime.conftest import Clock, Joined

RULES = RecoveryRules()
TURN_MESSAGE = new_message(user("hello"))


def request_with(key_id: str = "", origin: Origin = Origin.BACKGROUND) -> RequestToStore:
    return RequestToStore(encoded_request("chat", b"{}", key_id=key_id), origin, recover=True)


async def orphan(store: SQLiteStore, joined: Joined, name: str, stored: RequestToStore | None = None) -> str:
    """The id of a waiting turn whose node has died once."""
    dead = await joined()
    begun = await store.begin_turn(
        TurnRequest(
            new_id("turn"),
            OWNER,
            dead.id,
            Address(key=name),
            (TURN_MESSAGE,),
            source="api",
            stored=stored or request_with(),
        )
    )
    assert isinstance(begun, TurnBegun)
    await die(store, dead.id, begun.turn.conversation_id)
    return begun.turn.id


async def die(store: SQLiteStore, node_id: str, conversation_id: str) -> None:
    beat = next(node.beat for node in await store.nodes() if node.id == node_id)
    assert await store.reap(node_id, beat, "its test said so")
    assert await store.settle_conversation(conversation_id)


async def die_again(store: SQLiteStore, joined: Joined, turn_id: str, clock: Clock, times: int) -> None:
    """The turn is taken up by nodes that die."""
    for _ in range(times):
        clock.advance(minutes=1)
        dead, turn = await joined(), await store.turn(None, turn_id)
        begun = await store.begin_turn(
            TurnRequest(
                new_id("turn"),
                OWNER,
                dead.id,
                Address(id=turn.conversation_id, create=False),
                (),
                resumes_turn=turn_id,
                by_recovery=True,
            )
        )
        assert isinstance(begun, TurnBegun)
        await die(store, dead.id, turn.conversation_id)
    clock.advance(minutes=1)


@asynccontextmanager
async def recovering(
    store: SQLiteStore,
    model: Model,
    rules: RecoveryRules = RULES,
    most: int = 100,
    monotonic: Callable[[], float] = time.monotonic,
) -> AsyncIterator[tuple[Server, Recoverer]]:
    async with serving(store, model) as server:

        async def rebuild(turn: Turn, stored: StoredRequest, tools: frozenset[str], check: Check) -> TurnSpec:
            request = TurnRequest(
                new_id("turn"),
                turn.owner,
                server.keeper.node_id,
                Address(id=turn.conversation_id, create=False),
                (),
                resumes_turn=turn.id,
            )
            return TurnSpec(
                request, Told(), stored.first_messages(), stored.fields(), tools=tools, check=check
            )

        stored_turns = StoredTurns(store, Authenticator(store), rebuild)
        recoverer = Recoverer(
            store, server.runner, stored_turns, rules, most, spread_seconds=0.0, monotonic=monotonic
        )
        try:
            yield server, recoverer
        finally:
            await recoverer.stop()


async def test_a_waiting_turn_is_answered(store: SQLiteStore, joined: Joined) -> None:
    turn_id = await orphan(store, joined, "a")
    async with recovering(store, ScriptedModel(["hi"])) as (_, recoverer):
        assert await recoverer.recover_once() == 1
        await recoverer.idle()
        turn = await store.turn(None, turn_id)
        assert (turn.status, turn.attempt) == (TurnStatus.COMPLETED, 2)
        assert await recoverer.recover_once() == 0
        counts = recoverer.take_counts()
        assert (counts.taken_up, counts.given_up, len(counts.seconds)) == ({"death": 1}, 0, 1)


async def test_no_more_than_allowed_are_taken_up_at_once(store: SQLiteStore, joined: Joined) -> None:
    turns = [await orphan(store, joined, f"k{n}") for n in range(3)]
    gated = Gated()
    async with recovering(store, gated.model, most=2) as (_, recoverer):
        assert await recoverer.recover_once() == 2
        await gated.asked.wait()
        assert await recoverer.recover_once() == 0
        for _ in turns:
            gated.finish("hi")
        await recoverer.idle()
        assert await recoverer.recover_once() == 1
        gated.finish("hi")
        await recoverer.idle()
    assert {(await store.turn(None, each)).status for each in turns} == {TurnStatus.COMPLETED}


async def test_from_its_third_attempt_on_a_turn_is_alone(
    store: SQLiteStore, joined: Joined, clock: Clock
) -> None:
    poison = await orphan(store, joined, "poison")
    await die_again(store, joined, poison, clock, 1)
    others = [await orphan(store, joined, f"k{n}") for n in range(2)]
    gated = Gated()
    async with recovering(store, gated.model) as (server, recoverer):
        assert await recoverer.recover_once() == 1
        await gated.asked.wait()
        assert set(server.runner.running) == {poison}
        assert await recoverer.recover_once() == 0  # the others wait until it has ended
        gated.finish("hi")
        await recoverer.idle()
        assert await recoverer.recover_once() == 2
        gated.finish("hi")
        gated.finish("hi")
        await recoverer.idle()
    assert {(await store.turn(None, each)).status for each in (poison, *others)} == {TurnStatus.COMPLETED}


async def test_the_fifth_death_without_progress_ends_it_with_the_reason(
    store: SQLiteStore, joined: Joined, clock: Clock
) -> None:
    poison, bystander = await orphan(store, joined, "poison"), await orphan(store, joined, "bystander")
    await die_again(store, joined, poison, clock, 4)
    model = ScriptedModel(["hi"])
    async with recovering(store, model) as (_, recoverer):
        assert await recoverer.recover_once() == 1
        await recoverer.idle()
        assert recoverer.take_counts().given_up == 1
    turn = await store.turn(None, poison)
    assert turn.status is TurnStatus.FAILED
    assert turn.error is not None and turn.error.startswith("Given up after 5 attempts: a server died")
    assert (await store.turn(None, bystander)).status is TurnStatus.COMPLETED
    assert model.calls == 1


@pytest.mark.parametrize(
    ("rules", "hours", "said"),
    [
        (replace(RULES, recover="never"), 0, "Not retried: [turns] recover = never."),
        (RULES, 24, "Given up: the turn is older than 24 hours."),
        (replace(RULES, max_attempts=1), 0, "Given up after 1 attempts"),
        (replace(RULES, max_deaths=1), 0, "Given up after 1 attempts in all"),
    ],
)
async def test_what_the_rules_do_not_allow_is_given_up(
    store: SQLiteStore, joined: Joined, clock: Clock, rules: RecoveryRules, hours: int, said: str
) -> None:
    turn_id = await orphan(store, joined, "a")
    clock.advance(minutes=60 * hours)
    model = ScriptedModel([])
    async with recovering(store, model, rules) as (_, recoverer):
        assert await recoverer.recover_once() == 0
    turn = await store.turn(None, turn_id)
    assert (turn.status, model.calls) == (TurnStatus.FAILED, 0)
    assert turn.error is not None and turn.error.startswith(said)


async def test_a_turn_whose_key_was_revoked_is_given_up(store: SQLiteStore, joined: Joined) -> None:
    key, token = new_key(OWNER, Scope.CHAT, (), store.now())
    await store.add_key(key, token.hash)
    turn_id = await orphan(store, joined, "a", request_with(key.id))
    await store.revoke_key(key.id, OWNER)
    async with recovering(store, ScriptedModel([])) as (_, recoverer):
        await recoverer.recover_once()
        await recoverer.idle()
    turn = await store.turn(None, turn_id)
    assert (turn.status, turn.error) == (TurnStatus.FAILED, KEY_REVOKED)


async def test_a_turn_that_cannot_be_retried_is_tried_with_pauses_and_holds_up_no_other(
    store: SQLiteStore, joined: Joined, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The troubled one is due first, and would run alone."""
    troubled = await orphan(store, joined, "troubled")
    await die_again(store, joined, troubled, clock, 1)
    other = await orphan(store, joined, "other")
    begin, attempts, seconds = store.begin_turn, list[str](), 0.0

    async def begin_turn(request: TurnRequest) -> TurnOutcome:
        attempts.append(str(request.resumes_turn))
        if request.resumes_turn == troubled and seconds < AGAIN_SECONDS:
            raise StoreFull("the disk is full")
        return await begin(request)

    monkeypatch.setattr(store, "begin_turn", begin_turn)
    async with recovering(store, ScriptedModel(["hi", "hi"]), monotonic=lambda: seconds) as (_, recoverer):
        for _ in range(3):
            await recoverer.recover_once()
            await recoverer.idle()
        assert attempts == [troubled, other]
        seconds = AGAIN_SECONDS
        assert await recoverer.recover_once() == 1
        await recoverer.idle()
    assert {(await store.turn(None, each)).status for each in (troubled, other)} == {TurnStatus.COMPLETED}


async def test_a_turn_that_cannot_be_given_up_is_tried_with_pauses(
    store: SQLiteStore, joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    await orphan(store, joined, "a", request_with("key_gone"))
    attempts = 0

    async def give_up(turn_id: str, why: str) -> bool:
        nonlocal attempts
        attempts += 1
        raise StoreFull("the disk is full")

    monkeypatch.setattr(store, "give_up_turn", give_up)
    async with recovering(store, ScriptedModel([]), monotonic=lambda: 0.0) as (_, recoverer):
        for _ in range(3):
            await recoverer.recover_once()
            await recoverer.idle()
    assert attempts == 1


async def test_a_draining_node_takes_up_nothing(store: SQLiteStore, joined: Joined) -> None:
    turn_id = await orphan(store, joined, "a")
    async with recovering(store, ScriptedModel([])) as (server, recoverer):
        await server.runner.drain(0)
        assert await recoverer.recover_once() == 0
    assert (await store.turn(None, turn_id)).waits


async def test_a_drained_turn_waits_and_does_not_lose_an_attempt(store: SQLiteStore, joined: Joined) -> None:
    turn_id = await orphan(store, joined, "a")
    gated = Gated()
    async with recovering(store, gated.model) as (server, recoverer):
        await recoverer.recover_once()
        await gated.asked.wait()
        await server.runner.drain(0)
    recovery = (await store.turn(None, turn_id)).recovery
    assert (recovery.cause, recovery.tries, recovery.stops) == (Cause.STOP, 1, 1)
    async with recovering(store, ScriptedModel(["hi"])) as (_, recoverer):
        await recoverer.recover_once()
        await recoverer.idle()
    assert (await store.turn(None, turn_id)).status is TurnStatus.COMPLETED


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 529, None])
async def test_a_background_turn_waits_for_a_model_that_cannot_answer_now(
    store: SQLiteStore, joined: Joined, clock: Clock, status: int | None
) -> None:
    turn_id = await orphan(store, joined, "a")
    model = ScriptedModel([ModelError("overloaded", status, retry_after=17), "hi"])
    async with recovering(store, model) as (_, recoverer):
        await recoverer.recover_once()
        await recoverer.idle()
        turn = await store.turn(None, turn_id)
        assert (turn.shown_status, turn.recovery.cause) == (TurnStatus.RUNNING, Cause.MODEL)
        assert turn.recovery.due_at == clock.time + timedelta(seconds=17)
        assert "The model refused: overloaded; it is called again at" in (turn.reason(5) or "")
        assert await recoverer.recover_once() == 0
        clock.advance(minutes=1)
        assert await recoverer.recover_once() == 1
        await recoverer.idle()
    assert (await store.turn(None, turn_id)).status is TurnStatus.COMPLETED


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_a_refusal_that_does_not_pass_fails_at_once(
    store: SQLiteStore, joined: Joined, status: int
) -> None:
    turn_id = await orphan(store, joined, "a")
    async with recovering(store, ScriptedModel([ModelError("no", status)])) as (_, recoverer):
        await recoverer.recover_once()
        await recoverer.idle()
    turn = await store.turn(None, turn_id)
    assert (turn.shown_status, turn.error) == (TurnStatus.FAILED, "no")


async def test_an_answer_that_breaks_off_is_asked_for_again(
    store: SQLiteStore, joined: Joined, clock: Clock
) -> None:
    turn_id = await orphan(store, joined, "a")
    async with recovering(store, ScriptedModel([("Hel", ModelError("cut off")), "Hello"])) as (_, recoverer):
        for _ in range(2):
            await recoverer.recover_once()
            await recoverer.idle()
            clock.advance(minutes=2)
    turn = await store.turn(None, turn_id)
    assert turn.status is TurnStatus.COMPLETED
    messages = await store.turn_messages(turn_id)
    assert [each.content()["content"] for each in messages][-1] == "Hello"


async def test_a_model_that_refuses_for_too_long_ends_the_turn(
    store: SQLiteStore, joined: Joined, clock: Clock
) -> None:
    turn_id = await orphan(store, joined, "a")
    async with recovering(store, ScriptedModel(lambda *_: ModelError("busy", 503))) as (_, recoverer):
        for _ in range(8):
            await recoverer.recover_once()
            await recoverer.idle()
            clock.advance(minutes=60)
    turn = await store.turn(None, turn_id)
    assert turn.shown_status is TurnStatus.FAILED
    assert turn.error is not None and turn.error.startswith("Given up: the model has refused for 6 hours")


async def test_a_foreground_turn_gets_the_error_as_before(store: SQLiteStore, joined: Joined) -> None:
    turn_id = await orphan(store, joined, "a", request_with(origin=Origin.FOREGROUND))
    async with recovering(store, ScriptedModel([ModelError("busy", 503)])) as (_, recoverer):
        await recoverer.recover_once()
        await recoverer.idle()
    assert (await store.turn(None, turn_id)).shown_status is TurnStatus.FAILED


async def test_a_foreground_turn_that_is_answered_late_leaves_a_notice(
    store: SQLiteStore, joined: Joined
) -> None:
    await orphan(store, joined, "a", request_with(origin=Origin.FOREGROUND))
    async with recovering(store, ScriptedModel(["hi"])) as (_, recoverer):
        await recoverer.recover_once()
        await recoverer.idle()
    (notice,) = (await store.notices(None)).items
    assert "was answered after a restart" in notice.text


async def test_a_newer_request_is_answered_after_the_waiting_turn(store: SQLiteStore, joined: Joined) -> None:
    await orphan(store, joined, "a")
    answers = iter(["first", "second"])
    async with recovering(store, ScriptedModel(lambda *_: next(answers))) as (server, recoverer):
        newer = asyncio.create_task(server.answered(user("and?"), key="a"))
        while not server.runner._beginning:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0)
        await recoverer.recover_once()
        await recoverer.idle()
        assert await newer == "second"


async def test_an_interrupting_request_takes_the_place_of_a_waiting_turn(
    store: SQLiteStore, joined: Joined
) -> None:
    turn_id = await orphan(store, joined, "a")
    async with recovering(store, ScriptedModel(["mine"])) as (server, recoverer):
        assert await server.answered(user("and?"), key="a", interrupt=True) == "mine"
        assert await recoverer.recover_once() == 0
    assert (await store.turn(None, turn_id)).shown_status is TurnStatus.INTERRUPTED


async def test_a_cancel_during_the_recovered_run_ends_it(store: SQLiteStore, joined: Joined) -> None:
    turn_id = await orphan(store, joined, "a")
    gated = Gated()
    async with recovering(store, gated.model) as (server, recoverer):
        await recoverer.recover_once()
        await gated.asked.wait()
        assert await server.runner.stop(OWNER, turn_id, TurnStatus.CANCELLED, "a person cancelled it")
        await recoverer.idle()
        assert await recoverer.recover_once() == 0
    assert (await store.turn(None, turn_id)).shown_status is TurnStatus.CANCELLED


@pytest.mark.parametrize("ends_by", ["a refusal of the model", "a stop of the server"])
async def test_a_cancel_of_a_turn_that_is_about_to_wait_withdraws_it(
    store: SQLiteStore, ends_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated, settle, settling, go_on = Gated(), store.settle_turn, asyncio.Event(), asyncio.Event()

    async def slow_settle(*arguments: Any) -> None:
        settling.set()
        await go_on.wait()
        await settle(*arguments)

    monkeypatch.setattr(store, "settle_turn", slow_settle)
    async with serving(store, gated.model) as server:
        order = server.order(user("hello"), key="k")
        running = await server.runner.begin(
            replace(order, request=replace(order.request, stored=request_with())), 1
        )
        assert isinstance(running, RunningTurn)
        await gated.asked.wait()
        if ends_by == "a refusal of the model":
            gated.fail(ModelError("busy", 503))
        else:
            draining = asyncio.create_task(server.runner.drain(0))
        await settling.wait()
        cancelling = asyncio.create_task(
            server.runner.stop(OWNER, running.turn.id, TurnStatus.CANCELLED, "enough")
        )
        await asyncio.sleep(0)
        go_on.set()
        assert await cancelling
        if ends_by == "a stop of the server":
            await draining
    turn = await store.turn(None, running.turn.id)
    assert (turn.status, turn.waits) == (TurnStatus.CANCELLED, False)


async def test_a_hung_node_that_comes_back_has_lost_its_turn(
    store: SQLiteStore, joined: Joined, clock: Clock
) -> None:
    """It was taken for dead while it ran a covered turn: another node answers it, once."""
    gated = Gated()
    async with recovering(store, gated.model) as (hung, _):
        spec = hung.order(user("hello"), key="a")
        spec = replace(spec, request=replace(spec.request, stored=request_with()))
        running = await hung.runner.begin(spec, 5)
        await gated.asked.wait()
        conversation_id = running.turn.conversation_id  # type: ignore[union-attr]
        await die(store, hung.keeper.node_id, conversation_id)
        async with recovering(store, ScriptedModel(["from another"])) as (_, recoverer):
            await recoverer.recover_once()
            await recoverer.idle()
        gated.finish("too late")
        outcome: Any = await running.ended(10)  # type: ignore[union-attr]
        assert not isinstance(outcome, Answered)
    messages = (await store.messages(None, conversation_id)).items
    assert [each.content()["content"] for each in messages if each.role == "assistant"] == ["from another"]


async def test_a_settled_failure_of_a_turn_without_patience_is_final(
    store: SQLiteStore, joined: Joined
) -> None:
    """A plain failure is no reason to wait."""
    node = await joined()
    begun = await store.begin_turn(
        TurnRequest(new_id("turn"), OWNER, node.id, Address(), (TURN_MESSAGE,), stored=request_with())
    )
    assert isinstance(begun, TurnBegun)
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.FAILED, error="no"))
    assert not (await store.turn(None, begun.turn.id)).waits
