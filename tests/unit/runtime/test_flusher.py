"""Flushing on a real store, with a model that answers, fails, hangs or says nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.domain.flushes import FlushRules, FlushState
from holdfast.domain.nodes import Node
from holdfast.errors import ModelError, StoreFull, StoreUncertain, StoreUnreachable
from holdfast.models.base import Purpose
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.agents import flusher as flushing
from holdfast.runtime.agents import memory_writers
from holdfast.runtime.agents.flusher import Flusher, Pace
from holdfast.runtime.agents.memory_writers import FlushTarget, ModelTarget, WebhookTarget
from holdfast.settings import ModelSettings
from holdfast.store.sqlite.engine import SQLiteStore, open_store
from tests.contract.steps import OWNER, say
from tests.unit.runtime.conftest import Clock, Joined
from tests.unit.runtime.test_notifier import Hook, listening

PACE = Pace(together=2, per_minute=100, max_attempts=3, retry=timedelta(seconds=5))


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[SQLiteStore]:
    opened = await open_store(tmp_path / "store.db", clock=clock, flushing=FlushRules(2))
    yield opened
    assert await opened.check() == []
    await opened.close()


@pytest.fixture
async def node(joined: Joined) -> Node:
    return await joined()


Finished = Callable[..., Awaitable[str]]


@pytest.fixture
def finished(store: SQLiteStore, node: Node) -> Finished:
    """A session that is to be flushed; returns its id."""

    async def finish(key: str = "a", said: str = "I like kelp", answer: str = "Good.") -> str:
        session = (await say(store, node, said, answer, key=key)).session
        await store.end_session(None, session.id, "new")
        return session.id

    return finish


def flusher(
    store: SQLiteStore, node: Node, model: ScriptedModel | FlushTarget, pace: Pace = PACE, **more: Any
) -> Flusher:
    target = ModelTarget(model, ModelSettings(), **more) if isinstance(model, ScriptedModel) else model
    return Flusher(store, lambda: node.id, target, pace, 0.01)


async def state(store: SQLiteStore, session_id: str) -> tuple[str, int, str | None]:
    flush = await store.flush(None, session_id)
    return flush.state.value, flush.attempts, flush.error


async def memories(store: SQLiteStore) -> list[str]:
    return [memory.text for memory in (await store.memories(None)).items]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 - the store is asked, nobody tells
            await asyncio.sleep(0.01)


async def test_a_session_becomes_a_memory_by_one_call(
    store: SQLiteStore, node: Node, finished: Finished
) -> None:
    session_id = await finished()
    model = ScriptedModel(["  Likes kelp.\n"])
    done = await flusher(store, node, model).flush_once()
    assert (done.done, done.failed) == ([session_id], {})
    assert await memories(store) == ["Likes kelp."]
    (request,) = model.requests
    assert (request.purpose, request.idempotency_key) == (Purpose.FLUSH, f"flush-{session_id}")
    system, user = msgspec.json.decode(request.messages)
    assert "NONE" in system["content"]
    assert "I like kelp" in user["content"] and "Good." in user["content"]
    assert (await flusher(store, node, model).flush_once()).done == []
    assert model.calls == 1


async def test_the_settings_choose_model_and_prompt(
    store: SQLiteStore, node: Node, finished: Finished
) -> None:
    await finished()
    model = ScriptedModel(["x"])
    await flusher(store, node, model, name="small", prompt="Note it.").flush_once()
    (request,) = model.requests
    assert request.model == "small"
    assert msgspec.json.decode(request.messages)[0]["content"] == "Note it."


async def test_a_large_session_is_read_outside_the_event_loop(
    store: SQLiteStore, node: Node, finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, fitting = list[threading.Thread](), memory_writers.fitting

    def watched(*arguments: Any) -> str:
        threads.append(threading.current_thread())
        return fitting(*arguments)

    monkeypatch.setattr(memory_writers, "fitting", watched)
    await finished(said="kelp " * 300_000)
    assert len((await flusher(store, node, ScriptedModel(["Likes kelp."])).flush_once()).done) == 1
    assert threads and threading.main_thread() not in threads


async def test_what_is_longer_than_the_window_is_shortened(
    store: SQLiteStore, node: Node, finished: Finished
) -> None:
    await finished(said="kelp " * 10_000, answer="the end")
    model = ScriptedModel(["x"], window=2000)
    await flusher(store, node, model).flush_once()
    (request,) = model.requests
    text = msgspec.json.decode(request.messages)[1]["content"]
    assert len(request.messages) < 2000 / 0.3
    assert "characters left out" in text and "the end" in text


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("x" * 30_000, "30,000 characters"),
        (ModelError("the model is away"), "the model is away"),
        (("half a mem", ModelError("its connection broke")), "connection broke"),
        (
            {"tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            "empty",
        ),
    ],
)
async def test_what_comes_to_nothing_is_tried_again_then_a_dead_letter_then_retried_by_hand(
    store: SQLiteStore, node: Node, finished: Finished, clock: Clock, answer: Any, problem: str
) -> None:
    session_id = await finished()
    model = ScriptedModel([answer, answer, answer, "Likes kelp."])
    agent = flusher(store, node, model)
    for attempt, wait in ((1, 5), (2, 10)):
        done = await agent.flush_once()
        assert problem in done.failed[session_id]
        assert (await state(store, session_id))[:2] == ("pending", attempt)
        clock.advance(seconds=wait - 1)
        assert (await agent.flush_once()).failed == {}
        clock.advance(seconds=1)
    assert (await agent.flush_once()).dead == [session_id]
    assert (await state(store, session_id))[:2] == ("dead", 3)
    clock.advance(days=1)
    assert (await agent.flush_once()).done == []
    assert await memories(store) == []
    await store.retry_flush(None, session_id)
    assert (await agent.flush_once()).done == [session_id]
    assert await memories(store) == ["Likes kelp."]
    assert model.calls == 4
    assert agent.counts == {"failed": 2, "dead": 1, "done": 1}


async def test_a_model_that_hangs_is_a_failed_attempt(
    store: SQLiteStore, node: Node, finished: Finished
) -> None:
    session_id = await finished()

    async def hang(messages: object, purpose: object) -> str:
        await asyncio.sleep(3600)
        return "never"

    done = await flusher(store, node, ScriptedModel(hang), timeout_seconds=0.05).flush_once()
    assert "did not answer within 0.05 s" in done.failed[session_id]


async def test_none_is_done_without_a_memory(store: SQLiteStore, node: Node, finished: Finished) -> None:
    session_id = await finished()
    assert (await flusher(store, node, ScriptedModel(["NONE"])).flush_once()).done == [session_id]
    assert (await state(store, session_id))[0] == "done"
    assert await memories(store) == []


async def test_no_more_run_at_once_than_allowed_and_one_that_is_slow_holds_up_no_other(
    store: SQLiteStore, node: Node, finished: Finished
) -> None:
    sessions = [await finished(f"k{number}", said=f"number {number}") for number in range(8)]
    slow, running, most = asyncio.Event(), 0, 0

    async def answer(messages: list[dict[str, Any]], purpose: object) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if "number 0" in messages[1]["content"]:
            await slow.wait()
        await asyncio.sleep(0.005)
        running -= 1
        return "kept"

    model = ScriptedModel(answer)
    agent = flusher(store, node, model)
    agent.start()

    async def all_but_one() -> bool:
        return len(await memories(store)) == 7

    await until(all_but_one)
    assert (await state(store, sessions[0]))[0] == "running"
    slow.set()
    await agent.stop(10)
    assert len(await memories(store)) == 8
    assert (most, model.calls) == (2, 8)


async def test_two_nodes_flush_each_session_once(
    store: SQLiteStore, node: Node, joined: Joined, finished: Finished, tmp_path: Path, clock: Clock
) -> None:
    for number in range(20):
        await finished(f"k{number}")
    second_store = await open_store(tmp_path / "store.db", clock=clock)
    second_node = await joined()
    models = [ScriptedModel(lambda *_: "kept", delay=0.002) for _ in range(2)]
    pace = Pace(together=6, per_minute=1000)
    agents = [
        flusher(store, node, models[0], pace),
        flusher(second_store, second_node, models[1], pace),
    ]
    for agent in agents:
        agent.start()

    async def all_kept() -> bool:
        return len(await memories(store)) == 20

    await until(all_kept)
    for agent in agents:
        await agent.stop()
    await second_store.close()
    assert sum(model.calls for model in models) == 20
    keys = [request.idempotency_key for model in models for request in model.requests]
    assert len(set(keys)) == 20


async def test_stopping_waits_a_moment_and_then_gives_the_claim_back(
    store: SQLiteStore, node: Node, finished: Finished
) -> None:
    session_id = await finished()
    asked = asyncio.Event()

    async def hang(messages: object, purpose: object) -> str:
        asked.set()
        await asyncio.sleep(3600)
        return "never"

    agent = flusher(store, node, ScriptedModel(hang))
    agent.start()
    await asyncio.wait_for(asked.wait(), 60)
    await agent.stop(0.01)
    flush = await store.flush(None, session_id)
    assert (flush.state, flush.attempts, flush.interruptions) == (FlushState.PENDING, 0, 1)
    assert (await flusher(store, node, ScriptedModel(["kept"])).flush_once()).done == [session_id]


async def test_an_answer_that_the_disk_has_no_room_for_is_kept_until_it_has(
    store: SQLiteStore, node: Node, finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = await finished()
    monkeypatch.setattr(flushing, "FIRST_PAUSE_SECONDS", 0.001)
    tries = 0
    finish = store.finish_flush

    async def full(*given: Any) -> bool:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise StoreFull("no space left")
        return await finish(*given)

    monkeypatch.setattr(store, "finish_flush", full)
    model = ScriptedModel(["kept"])
    assert (await flusher(store, node, model).flush_once()).done == [session_id]
    assert (tries, model.calls) == (4, 1)


async def test_a_store_that_cannot_be_read_is_no_failure_of_the_model(
    store: SQLiteStore, node: Node, finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = await finished()

    async def unreachable(*_: Any) -> Any:
        raise StoreUnreachable("the line is down")

    agent = flusher(store, node, ScriptedModel(["kept"]))
    with monkeypatch.context() as down:
        down.setattr(store, "flush_input", unreachable)
        done = await agent.flush_once()
    assert (done.done, done.failed) == ([], {})
    assert await state(store, session_id) == ("pending", 0, None)
    assert (await agent.flush_once()).done == [session_id]


async def test_a_claim_that_nobody_was_told_of_is_given_back(
    store: SQLiteStore, node: Node, finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = await finished()
    claim = store.claim_flushes

    async def uncertain(*given: Any, **more: Any) -> Any:
        await claim(*given, **more)
        raise StoreUncertain("the line broke in the middle of a commit")

    agent = flusher(store, node, ScriptedModel(["kept"]))
    with monkeypatch.context() as broken:
        broken.setattr(store, "claim_flushes", uncertain)
        with pytest.raises(StoreUncertain):
            await agent.flush_once()
    assert (await state(store, session_id))[0] == "running"
    assert (await agent.flush_once()).done == [session_id]


async def test_what_came_of_a_claim_that_passed_on_is_dropped(
    store: SQLiteStore, node: Node, joined: Joined, finished: Finished
) -> None:
    session_id = await finished()
    late = await joined()

    async def while_it_thinks(messages: object, purpose: object) -> str:
        await store.reap(late.id, 0, "it hung")
        assert (await flusher(store, node, ScriptedModel(["in time"])).flush_once()).done == [session_id]
        return "too late"

    done = await flusher(store, late, ScriptedModel(while_it_thinks)).flush_once()
    assert (done.done, done.failed) == ([], {})
    assert await memories(store) == ["in time"]


async def test_a_conversation_that_is_deleted_meanwhile_leaves_nothing(
    store: SQLiteStore, node: Node, finished: Finished
) -> None:
    session_id = await finished()
    session = await store.session(None, session_id)

    async def deleted(messages: object, purpose: object) -> str:
        await store.delete_conversation(None, session.conversation_id)
        return "too late"

    assert (await flusher(store, node, ScriptedModel(deleted)).flush_once()).done == []
    assert await memories(store) == []


async def test_what_was_deleted_meanwhile_is_not_read_and_without_anything_nobody_is_asked(
    store: SQLiteStore, node: Node, finished: Finished
) -> None:
    half, whole = await finished("a"), await finished("b")
    for session_id, numbers in ((half, (1,)), (whole, (1, 2))):
        conversation_id = (await store.session(None, session_id)).conversation_id
        for number in numbers:
            await store.delete_message(None, conversation_id, number)
    model = ScriptedModel(["kept"])
    assert sorted((await flusher(store, node, model).flush_once()).done) == sorted((half, whole))
    (request,) = model.requests
    assert b"Good." in request.messages and b"kelp" not in request.messages
    assert await memories(store) == ["kept"]


async def test_a_mistake_of_ours_is_a_failed_attempt(
    store: SQLiteStore, node: Node, finished: Finished, caplog: pytest.LogCaptureFixture
) -> None:
    session_id = await finished()

    class Broken:
        async def write(self, *_: object) -> str | None:
            raise ZeroDivisionError

        async def close(self) -> None: ...

    with caplog.at_level(logging.ERROR):
        done = await flusher(store, node, Broken()).flush_once()
    assert "ZeroDivisionError" in done.failed[session_id]
    assert "an unexpected error" in caplog.text


async def test_a_backlog_is_told_if_it_takes_more_than_a_minute(
    store: SQLiteStore, node: Node, finished: Finished
) -> None:
    for number in range(3):
        await finished(f"k{number}")
    assert await flusher(store, node, ScriptedModel([]), Pace(per_minute=3)).backlog() is None
    told = await flusher(store, node, ScriptedModel([]), Pace(per_minute=2)).backlog()
    assert told is not None
    assert told.startswith("3 sessions become due; about 2 min at 2 a minute")


async def test_a_webhook_gets_the_session_instead_of_the_model(
    store: SQLiteStore, node: Node, finished: Finished, clock: Clock
) -> None:
    session_id = await finished("telegram:dm:42")
    hook = Hook(status=503)
    async with listening(hook):
        agent = flusher(store, node, WebhookTarget(hook.url))
        assert "answered 503" in (await agent.flush_once()).failed[session_id]
        hook.status = 204
        clock.advance(seconds=5)
        assert (await agent.flush_once()).done == [session_id]
        await agent.stop()
    (first_key, first), (second_key, second) = hook.got
    assert first_key == second_key == f"flush-{session_id}"
    assert first == second
    assert (second["key"], second["reason"], second["owner"]) == ("telegram:dm:42", "new", OWNER)
    assert [message["content"] for message in second["messages"]] == ["I like kelp", "Good."]
    assert await memories(store) == []
    assert (await state(store, session_id))[0] == "done"


async def test_a_webhook_that_is_away_is_a_failed_attempt_and_its_address_is_not_told(
    store: SQLiteStore, node: Node, finished: Finished, unused_tcp_port: int
) -> None:
    session_id = await finished()
    agent = flusher(store, node, WebhookTarget(f"http://127.0.0.1:{unused_tcp_port}/?token=secret"))
    problem = (await agent.flush_once()).failed[session_id]
    await agent.stop()
    assert "cannot be reached" in problem
    assert "secret" not in problem


async def test_a_webhook_that_redirects_is_not_followed(
    store: SQLiteStore, node: Node, finished: Finished
) -> None:
    session_id = await finished()

    hook = Hook(status=302, headers={"location": "/other"})
    async with listening(hook):
        agent = flusher(store, node, WebhookTarget(hook.url))
        assert "answered 302" in (await agent.flush_once()).failed[session_id]
        await agent.stop()
    assert len(hook.got) == 1
