"""Queued turns are begun by a server, and one owner's do not keep those of others from it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from holdfast.domain.recovery import Origin, RequestToStore, StoredRequest, encoded_request
from holdfast.domain.turns import Turn, TurnStatus
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.agents.authenticator import Authenticator
from holdfast.runtime.agents.queue_runner import QueueRunner
from holdfast.runtime.agents.recoverer import Check, StoredTurns
from holdfast.runtime.turns.live import RunningTurn, TurnSpec
from holdfast.store.sqlite.engine import SQLiteStore
from tests.unit.runtime.asking import OWNER, Gated, Server, ended, serving, user

STORED = RequestToStore(encoded_request("chat", b"{}"), Origin.QUEUED)


async def queued(store: SQLiteStore, key: str, owner: str) -> str:
    """The id of a queued turn whose conversation is free."""
    async with serving(store, ScriptedModel(["hi"])) as server:
        running = await server.runner.begin(server.order(user("one"), key=key, owner=owner), 1)
        request = replace(server.order(user("two"), key=key, owner=owner).request, stored=STORED)
        waiting = await store.enqueue_turn(request, most=1)
        assert isinstance(running, RunningTurn) and waiting is not None
        await ended(running)
    return waiting.turn.id


def queue_runner(store: SQLiteStore, server: Server, most: int, most_each: int = 0) -> QueueRunner:
    async def rebuild(turn: Turn, stored: StoredRequest, tools: frozenset[str], check: Check) -> TurnSpec:
        return server.order(user("-"), owner=turn.owner)

    stored_turns = StoredTurns(store, Authenticator(store), rebuild)
    return QueueRunner(store, server.runner, stored_turns, most=most, most_each=most_each)


async def status(store: SQLiteStore, turn_id: str) -> TurnStatus:
    return (await store.turn(None, turn_id)).status


async def test_one_owner_may_not_use_all_slots(store: SQLiteStore) -> None:
    first, second = await queued(store, "a", OWNER), await queued(store, "b", OWNER)
    other = await queued(store, "c", "eve")
    gated = Gated()
    async with serving(store, gated.model) as server:
        queue = queue_runner(store, server, most=3, most_each=1)
        async with asyncio.timeout(60):
            while len(server.runner.running) < 2:
                await queue.run_once()
        await queue.run_once()
        assert [await status(store, each) for each in (first, second, other)] == [
            "running",
            "queued",
            "running",
        ]
        for _ in range(3):
            gated.finish("hi")
        async with asyncio.timeout(60):
            while await store.count_queued():
                await queue.run_once()
            for running in list(server.runner.running.values()):
                await ended(running)
        await queue.stop()
    assert {await status(store, each) for each in (first, second, other)} == {TurnStatus.COMPLETED}


async def test_an_owner_with_many_does_not_hold_up_another(store: SQLiteStore) -> None:
    many = [await queued(store, f"a{number}", OWNER) for number in range(3)]
    other = await queued(store, "c", "eve")
    gated = Gated()
    async with serving(store, gated.model) as server:
        queue = queue_runner(store, server, most=2)
        async with asyncio.timeout(60):
            while len(server.runner.running) < 2:
                await queue.run_once()
        assert [await status(store, each) for each in (*many, other)] == [
            "running",
            "queued",
            "queued",
            "running",
        ]
        await queue.stop()


async def test_an_owner_who_has_waited_comes_before_one_whose_turn_has_just_ended(store: SQLiteStore) -> None:
    """All slots are used, and what their owners have queued besides is older."""
    first = [await queued(store, f"{each}1", each) for each in ("ada", "bob")]
    older = [await queued(store, f"{each}2", each) for each in ("ada", "bob")]
    async with serving(store, Gated().model) as server:
        queue = queue_runner(store, server, most=2)
        async with asyncio.timeout(60):
            while len(server.runner.running) < 2:
                await queue.run_once()
        assert set(server.runner.running) == set(first)
        other = await queued(store, "c", "eve")
        await server.runner.stop(None, first[0], TurnStatus.CANCELLED, "enough")
        async with asyncio.timeout(60):
            while len(server.runner.running) < 2:
                await queue.run_once()
        assert [await status(store, each) for each in (*older, other)] == ["queued", "queued", "running"]
        await queue.stop()
