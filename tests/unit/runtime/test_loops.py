"""Every background loop is given one poisoned item: the others are still handled, and the loop lives.

`CASES` has a test for each name of `periodic.LOOPS`; a loop that is added without one fails
`test_every_loop_has_a_case`. A task or thread that is started outside of `periodic` has to be named in
`ELSEWHERE`, with what keeps it alive.
"""

from __future__ import annotations

import ast
import asyncio
import gc
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.domain.conversations import Address
from holdfast.domain.flushes import FlushRules
from holdfast.domain.nodes import BeatWatch, Node, NodeKind
from holdfast.domain.processes import ProcessLimits
from holdfast.domain.recovery import Origin, RequestToStore
from holdfast.domain.resets import ResetMode, ResetPolicies, ResetPolicy
from holdfast.domain.turns import Turn, TurnStatus
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime import periodic
from holdfast.runtime.agents import model_watch, queue_runner, titler
from holdfast.runtime.agents import recoverer as recoverer_module
from holdfast.runtime.agents.flusher import Flusher, Pace
from holdfast.runtime.agents.heartbeat import Heartbeat
from holdfast.runtime.agents.memory_writers import ModelTarget
from holdfast.runtime.agents.model_watch import ModelWatch
from holdfast.runtime.agents.notifier import Notifier
from holdfast.runtime.agents.reaper import Reaper
from holdfast.runtime.agents.recoverer import StoredTurns
from holdfast.runtime.agents.resetter import Resetter
from holdfast.runtime.agents.sweeper import Pruner, Sweeper
from holdfast.runtime.processes.supervisor import Supervisor
from holdfast.runtime.turns.live import TurnSpec, Unanswered
from holdfast.settings import ModelSettings
from holdfast.store.sqlite.engine import SQLiteStore, open_store
from holdfast.store.values import Retention
from tests.contract.steps import OWNER, say
from tests.integration.connectors.platform import Platform
from tests.integration.connectors.platform import serving as connected
from tests.integration.connectors.platform import until as eventually
from tests.reliability import mutants
from tests.unit.runtime.asking import Gated, Server, ended, serving, user
from tests.unit.runtime.conftest import Clock, Joined, begin
from tests.unit.runtime.test_notifier import Hook, listening, make
from tests.unit.runtime.test_recoverer import orphan, recovering
from tests.unit.runtime.test_supervisor import end_all

IDLE = ResetPolicies(ResetPolicy(ResetMode.IDLE, timedelta(minutes=5)))
PATIENCE = 60.0
KEEP = Retention(timedelta(hours=24), timedelta(days=30), timedelta(days=30))


class Poison(Exception):
    """Nothing that anybody expects."""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic, "FIRST_BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(periodic, "LONGEST_BACKOFF_SECONDS", 0.01)


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[SQLiteStore]:
    opened = await open_store(tmp_path / "store.db", clock=clock, policies=IDLE, flushing=FlushRules(2))
    yield opened
    await opened.close()


def poison(
    monkeypatch: pytest.MonkeyPatch, store: Any, method: str, bad: Callable[..., bool] | None = None
) -> None:
    """Have this method raise: for calls that `bad` picks, always; without it, at its first call."""
    real, calls = getattr(store, method), Counter[str]()

    async def poisoned(*given: Any, **named: Any) -> Any:
        calls[method] += 1
        if bad(*given, **named) if bad is not None else calls[method] == 1:
            raise Poison(f"{method} is poisoned")
        return await real(*given, **named)

    monkeypatch.setattr(store, method, poisoned)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110 - the store is asked, nobody tells
            await asyncio.sleep(0.01)


class Given:
    """What every case works on."""

    def __init__(
        self, store: SQLiteStore, joined: Joined, clock: Clock, tmp_path: Path, patch: pytest.MonkeyPatch
    ) -> None:
        self.store, self.joined, self.clock, self.tmp_path, self.patch = store, joined, clock, tmp_path, patch


async def sweeps(given: Given) -> None:
    """A lease that cannot be settled, a session that cannot be reset, and a failing first read."""
    store = given.store
    own, dead = await given.joined(), await given.joined()
    left = [await begin(store, dead, f"left:{number}", attached=False) for number in range(3)]
    idle = [(await say(store, own, "hello", "hi", key=f"idle:{number}")).session.id for number in range(3)]
    store._locks.let_go(dead.id)
    store._locks.path_of(dead.id).touch()
    given.clock.advance(minutes=6)
    bad_conversation = left[1].lease.conversation_id
    poison(given.patch, store, "settle_conversation", lambda id_: id_ == bad_conversation)
    poison(given.patch, store, "reset_session", lambda id_: id_ == idle[1])
    for method in ("nodes", "due_sessions", "prune"):
        poison(given.patch, store, method)
    sweeper = Sweeper(Reaper(store, lambda: own.id), 0.01, Pruner(store, KEEP), Resetter(store))
    sweeper.start()

    async def others_are_done() -> bool:
        settled = [(await store.turn(None, left[n].turn.id)).status.value for n in (0, 2)]
        reset = [(await store.session(None, idle[n])).ended for n in (0, 2)]
        return settled == ["interrupted"] * 2 and all(reset)

    await until(others_are_done)
    assert sweeper.running
    await sweeper.stop()


async def ticks(given: Given) -> None:
    """A look at the own beats that fails once."""
    own = await given.joined()
    looks = [0]

    def beating() -> bool:
        looks[0] += 1
        if looks[0] == 1:
            raise Poison("beating is poisoned")
        return True

    sweeper = Sweeper(Reaper(given.store, lambda: own.id, BeatWatch(90, 10), beating), 0.01)
    sweeper._ticks.start()

    async def ticked_again() -> bool:
        return looks[0] > 3

    await until(ticked_again)
    assert sweeper._ticks.running
    await sweeper.stop()


async def notices(given: Given) -> None:
    """A notice whose success cannot be stored."""
    store, hook = given.store, Hook()
    made = await make(store, 6)
    poison(given.patch, store, "notice_sent", lambda id_: id_ == made[1].id)
    poison(given.patch, store, "notices_to_send")
    async with listening(hook):
        notifier = Notifier(store, hook.url, 0.01, first_pause=timedelta(seconds=0.01))
        notifier.start()

        async def others_are_sent() -> bool:
            return {each.id for each in made} <= set(hook.counts)

        await until(others_are_sent)
        assert notifier.running
        await notifier.stop()


async def flushes(given: Given) -> None:
    """A session that cannot be read, one whose failure cannot be stored, and a claim that fails once."""
    store, node = given.store, await given.joined()
    sessions = []
    for number in range(4):
        session = (await say(store, node, "I like kelp", "Good.", key=f"k{number}")).session
        await store.end_session(None, session.id, "new")
        sessions.append(session.id)
    poison(given.patch, store, "flush_input", lambda id_: id_ in sessions[:2])
    poison(given.patch, store, "fail_flush", lambda flush, *_: flush.session_id == sessions[1])
    poison(given.patch, store, "claim_flushes")
    target = ModelTarget(ScriptedModel(["Likes kelp."] * 20), ModelSettings())
    flusher = Flusher(store, lambda: node.id, target, Pace(2, 1000, 3, timedelta(seconds=1)), 0.01)
    flusher.start()

    async def others_are_done() -> bool:
        return [(await store.flush(None, each)).shown for each in sessions[2:]] == ["done"] * 2

    await until(others_are_done)
    assert flusher.running
    await flusher.stop()


async def processes(given: Given) -> None:
    """A stray file among a process's logs, a process that cannot be claimed, and a failing first read."""
    store, own, gone = given.store, await given.joined(), await given.joined(alive=False)
    session = (await store.open_session(OWNER, Address(key="cli:ada"), own.id, attached=False)).id
    directory = given.tmp_path / "store.db.processes"
    limits = ProcessLimits(grace=timedelta(seconds=1), active_window=timedelta(seconds=1))
    supervisor = Supervisor(store, lambda: own.id, directory, limits)
    before = Supervisor(store, lambda: gone.id, directory, limits)
    try:
        orphans = [await before.start(OWNER, session, "sleep 300") for _ in range(2)]
        bad, good = [await supervisor.start(OWNER, session, "sleep 300") for _ in range(2)]
        (directory / bad.id / "log.old").write_text("an editor's backup")
        (directory / bad.id / "log.²").write_text("a digit to str.isdigit, none to int")
        (directory / bad.id / "exit").write_text("neither a code\nnor a time\n")
        poison(given.patch, store, "claim_process", lambda id_, *_: id_ == orphans[0].id)
        poison(given.patch, store, "unended_processes")
        supervisor.start_loop()

        async def adopted_and_sampled() -> bool:
            seen = [await store.process(None, each.id) for each in (orphans[1], good)]
            return seen[0].supervisor == own.id and seen[1].sampled_at is not None

        await until(adopted_and_sampled)
        stopped = await supervisor.stop(None, good.id, "a person said so")
        assert stopped.ended and supervisor.running
    finally:
        await supervisor.stop_loop()
        await end_all(store)


async def heartbeats(given: Given) -> None:
    """A beat that fails once, and a stray lease that cannot be let go, of a server and of a program."""
    store = given.store
    for kind in (NodeKind.SERVER, NodeKind.LIBRARY):
        keeper = Heartbeat(store, kind, 0.01)
        await keeper.join()
        me = next(node for node in await store.nodes() if node.id == keeper.node_id)
        strays = [await begin(store, me, f"{kind}:{number}") for number in range(3)]
        with pytest.MonkeyPatch.context() as patch:
            poison(patch, store, "beat")
            bad = strays[1].turn.id
            poison(patch, store, "cancel_turn", lambda _, turn, *__, bad=bad, **___: turn == bad)
            keeper.start()

            async def others_are_free(strays: Any = strays, keeper: Heartbeat = keeper) -> bool:
                states = [(await store.turn(None, strays[n].turn.id)).status for n in (0, 2)]
                return states == [TurnStatus.INTERRUPTED] * 2 and keeper.beating

            await until(others_are_free)
            assert keeper.running
        await keeper.leave("closed")


async def turns(given: Given) -> None:
    """A look at what this node holds that fails once."""
    gated = Gated()
    async with serving(given.store, gated.model) as server:
        poison(given.patch, given.store, "held")
        running = await server.run(user("tell me"), key="k")
        await given.store.cancel_turn(None, running.turn.id, TurnStatus.CANCELLED, "a person said stop")
        outcome = await ended(running, PATIENCE)
        assert isinstance(outcome, Unanswered) and outcome.status is TurnStatus.CANCELLED
        assert server.runner._watching.running


async def models(given: Given) -> None:
    """A check that fails once, by a mistake in the model."""
    model = ScriptedModel()
    given.patch.setattr(model_watch, "UP_SECONDS", 0.01)
    watch = ModelWatch(model)
    poison(given.patch, model, "models")
    watch.start()

    async def was_checked() -> bool:
        return watch._health is not None

    await until(was_checked)
    assert watch._loop.running
    await watch.stop()


async def recoveries(given: Given) -> None:
    """A turn that cannot be taken up, one that cannot be given up, and a failing first read."""
    store, turns = given.store, []
    for name in ("bad", "late", "good"):
        turns.append(await store.turn(None, await orphan(store, given.joined, name)))
        given.clock.advance(seconds=1)
    bad, late, good = turns
    given.patch.setattr(recoverer_module, "LOOK_SECONDS", 0.01)
    poison(given.patch, store, "stored_request", lambda _, turn: turn == bad.id)
    poison(given.patch, store, "give_up_turn", lambda turn, why: turn == late.id)
    poison(given.patch, store, "due_turns")
    given.patch.setattr(
        recoverer_module,
        "reason_to_give_up",
        lambda known, rules, started_at, *_: "too late" if started_at == late.started_at else None,
    )
    async with recovering(store, ScriptedModel(["hi"] * 20)) as (_, recoverer):
        recoverer.start()

        async def the_other_is_answered() -> bool:
            return (await store.turn(None, good.id)).status is TurnStatus.COMPLETED

        await until(the_other_is_answered)
        assert recoverer._loop.running


async def queues(given: Given) -> None:
    """A queued turn that cannot begin, beside one that can."""
    store = given.store
    given.patch.setattr(queue_runner, "LOOK_SECONDS", 0.01)
    async with serving(store, ScriptedModel()) as server:
        running = [await begin(store, await store_node(server), f"q:{number}") for number in range(2)]
        queued = []
        for number, each in enumerate(running):
            wanted = replace(
                server.order(user("two"), key=f"q:{number}", owner="default").request,
                stored=RequestToStore(b"{}", Origin.QUEUED, recover=True),
            )
            found = await store.enqueue_turn(wanted, most=1)
            assert found is not None
            queued.append(found.turn.id)
            await store.commit_reply(each.lease)

        class Stored(StoredTurns):
            def __init__(self) -> None:
                pass

            async def spec(self, turn: Turn) -> TurnSpec:
                if turn.id == queued[0]:
                    raise RuntimeError("poison")
                return server.order(user("-"))

        poison(given.patch, store, "count_queued")
        queue = queue_runner.QueueRunner(store, server.runner, Stored(), most=9)
        queue.start()

        async def the_other_is_answered() -> bool:
            return (await store.turn(None, queued[1])).status is TurnStatus.COMPLETED

        await until(the_other_is_answered)
        assert queue._loop.running
        await queue.stop()


async def store_node(server: Server) -> Node:
    return next(node for node in await server.store.nodes() if node.id == server.keeper.node_id)


async def titles(given: Given) -> None:
    """A conversation that cannot be read; the model names the others."""
    store, node = given.store, await given.joined()
    given.patch.setattr(titler, "LOOK_SECONDS", 0.01)
    given.patch.setattr(titler, "QUIET_SECONDS", 0.0)
    naming = titler.Titler(store, ScriptedModel(["A title"] * 20), titler.TitleRules(1, 1000))
    said = [await say(store, node, "hello", "hi", key=f"t{number}") for number in range(3)]
    bad = said[0].session.conversation_id
    poison(given.patch, store, "messages", lambda _, id_, **__: id_ == bad)
    for each in said:
        naming.answered(each.session, 2)

    async def others_are_named() -> bool:
        sessions = [await store.session(None, each.session.id) for each in said[1:]]
        return [each.title for each in sessions] == ["A title"] * 2

    await until(others_are_named)
    assert naming.running
    await naming.stop()


Case = Callable[[Given], Awaitable[None]]


async def connectors(given: Given, method: str) -> None:
    """A store method that a connector's loop calls fails once; the message is answered all the same."""
    whole = getattr(SQLiteStore, method)
    left = [True]

    def once(*arguments: Any, **options: Any) -> Any:
        if left:
            left.clear()
            raise Poison("unexpected")
        return whole(*arguments, **options)

    given.patch.setattr(SQLiteStore, method, once)
    platform = Platform()
    platform.write("hello")
    async with connected(given.tmp_path, platform):
        await eventually(platform.said, PATIENCE)
    assert not left


async def claims(given: Given) -> None:
    await connectors(given, "claim_connector")


async def answers(given: Given) -> None:
    await connectors(given, "urgent_commands")


async def sends(given: Given) -> None:
    await connectors(given, "next_delivery")


CASES: dict[str, Case] = {
    "sweep": sweeps,
    "watch the heartbeats of other nodes": ticks,
    "send notices": notices,
    "flush sessions": flushes,
    "look after processes": processes,
    "write this node's heartbeat": heartbeats,
    "look after running turns": turns,
    "check the model": models,
    "retry waiting turns": recoveries,
    "begin queued turns": queues,
    "run a connector": claims,
    "answer messages from platforms": answers,
    "send messages to platforms": sends,
    "name conversations": titles,
}


@pytest.mark.parametrize("what", CASES)
async def test_one_poisoned_item_stops_neither_the_others_nor_the_loop(
    what: str,
    store: SQLiteStore,
    joined: Joined,
    clock: Clock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await CASES[what](Given(store, joined, clock, tmp_path, monkeypatch))


@pytest.mark.parametrize("what", CASES)
async def test_a_loop_that_ends_on_one_item_is_seen(
    what: str,
    store: SQLiteStore,
    joined: Joined,
    clock: Clock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_failed", "_run"):  # to be put back
        monkeypatch.setattr(periodic.Periodic, name, getattr(periodic.Periodic, name))
    mutants.end_on_one_item()
    monkeypatch.setattr(sys.modules[__name__], "PATIENCE", 1.0)
    with pytest.raises((TimeoutError, AssertionError)):
        await CASES[what](Given(store, joined, clock, tmp_path, monkeypatch))


def test_every_loop_has_a_case() -> None:
    assert set(CASES) == set(periodic.LOOPS)


# --- what runs outside of periodic -------------------------------------------------------------------------

ELSEWHERE = {
    "runtime/periodic.py": 2,  # the loops themselves
    "models/known_windows.py": 1,  # one question each
    "runtime/contexts/compactor.py": 1,  # one compaction each
    "runtime/turns/gate.py": 2,  # one turn that begins, or was abandoned, each
    "runtime/shutdown.py": 1,  # awaited to its end
    "runtime/turns/runner.py": 1,  # one turn each
    "runtime/agents/queue_runner.py": 1,  # one turn each
    "runtime/agents/flusher.py": 1,  # one flush each
    "runtime/agents/recoverer.py": 1,  # one turn each
    "runtime/turns/draft_writer.py": 1,  # one draft each
    "runtime/agents/key_uses.py": 1,  # one batch of last uses
    "connectors/matrix.py": 2,  # one room each, joined in some attempts
    "connectors/worker.py": 3,  # one receiver, started again by claim_once; one place each; one command each
    "runtime/agents/receipts.py": 1,  # one batch of receipts each
    "os_support.py": 1,  # what LazyThread starts
    "sync.py": 2,  # the event loop of a program, and one call each
    "server/sse.py": 1,  # ends with its connection
    "server/openai/response_socket.py": 3,  # end with their connection
    "server/workers/worker.py": 1,  # one accepted connection each
    "server/server.py": 4,  # end with the server
    "store/search_threads.py": 1,  # tests/unit/store/test_search_threads.py
    "store/postgres/deadlines.py": 1,  # tests/contract/test_postgres_engine.py
    "store/postgres/listen_connection.py": 1,  # tests/contract/test_postgres_listen_connection.py
    "store/postgres/search.py": 1,  # below
    "store/postgres/writer.py": 1,  # tests/contract/test_postgres_engine.py
    "store/sqlite/search.py": 1,  # below
    "store/sqlite/writer.py": 1,  # tests/unit/store
}
"""Tasks and threads that are not loops of `periodic`: how many a file starts."""


def test_every_task_and_thread_is_a_loop_of_periodic_or_known() -> None:
    gc.collect()  # tasks that failed above log when they are collected: that must not happen within ast.parse
    root, found = Path(holdfast.__file__).parent, Counter[str]()
    for path in root.rglob("*.py"):
        name = path.relative_to(root).as_posix()
        if name.startswith(("cli/", "chat/", "demo/")):
            continue  # commands: they end with what their user does
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and re.search(
                r"(\bcreate_task|threading\.Thread|\bLazyThread)$", ast.unparse(node.func)
            ):
                found[name] += 1
    assert dict(found) == ELSEWHERE, "make it a loop of periodic, or say here what keeps it alive"


async def test_the_search_index_goes_on_after_a_failure_that_nobody_expects(
    store: SQLiteStore, joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.store.sqlite.search import SearchIndex

    real, calls = SearchIndex.follow_once, [0]

    def poisoned(index: SearchIndex) -> bool:
        calls[0] += 1
        if calls[0] == 1:
            raise Poison("follow_once is poisoned")
        return real(index)

    monkeypatch.setattr(SearchIndex, "follow_once", poisoned)
    node: Node = await joined()
    store.start_indexing()
    await say(store, node, "I like kelp", "Good.", key="a")

    async def tried() -> bool:
        return calls[0] >= 1

    await until(tried)
    await say(store, node, "I like tea", "Good.", key="a")

    async def indexed() -> bool:
        assert store._search is not None
        return calls[0] > 1 and store._search.lag() == 0

    await until(indexed)
