"""Programs that run holdfast in the simulated machine: servers, and scripts that use the library.

Each corresponds to an operating-system process: its own event loop, its own open store, and all of `Holdfast`
with every agent it starts. Killing one discards all of that at any point; the kernel releases its lock.
Stopping one keeps everything as it is, until it is continued.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from holdfast.app import Holdfast
from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.new_messages import new_messages
from holdfast.domain.nodes import NodeKind
from holdfast.domain.queue import QUEUES, WhenBusy
from holdfast.domain.recovery import Origin, RequestToStore, StoredRequest
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.turns import (
    TurnBegun,
    TurnOutdated,
    TurnRepeated,
    TurnRequest,
    TurnStatus,
)
from holdfast.errors import ConversationBusy, HoldfastError, StoreError
from holdfast.models.base import Chunk
from holdfast.runtime.tools.toolbox import Toolbox, ToolCall, function
from holdfast.runtime.turns.live import Answered, Outcome, RunningTurn, TurnSpec
from holdfast.server.http import Services
from holdfast.server.server import services_of
from holdfast.store.sqlite.engine import SQLiteStore

from .checks import Violation
from .clock import VirtualLoop

if TYPE_CHECKING:
    from .world import World

OWNER = "ada"
TOOL = "effect"
STORED = msgspec.json.encode(StoredRequest("chat", msgspec.Raw(b"{}"), tools=(TOOL,)))
"""What a server keeps of every request, to ask the model again."""


class State(StrEnum):
    DOWN = "down"
    STARTING = "starting"
    UP = "up"


@dataclass(frozen=True)
class Ask:
    """A client's request."""

    tag: str
    address: Address
    text: str
    key: str
    wait_seconds: float
    when_busy: WhenBusy = WhenBusy.WAIT
    origin: Origin = Origin.FOREGROUND
    covered: bool = False
    """Is it taken up by itself when its server dies?"""


@dataclass(frozen=True)
class Begun:
    """The message is on disk: it has been acknowledged."""

    conversation_id: str
    session_id: str
    turn_id: str


@dataclass(frozen=True)
class Queued:
    """The message is on disk, and waits for its turn: it has been accepted."""

    turn_id: str


@dataclass(frozen=True)
class Answer:
    """The whole answer, and where it stands."""

    conversation_id: str
    session_id: str
    turn_id: str
    text: str


@dataclass(frozen=True)
class Failed:
    """No answer; `error` is the name of ours, or what became of the connection."""

    error: str


Heard = Begun | Queued | Answer | Failed


class Told:
    """How a turn is put into events: as text, and numbered for some, so that both kinds of drafts are met."""

    apart = False

    def __init__(self, numbered: bool) -> None:
        self.numbered = numbered

    def begin(self, begun: TurnBegun) -> Sequence[bytes]:
        return (b"begun",)

    def add(self, chunk: Chunk) -> Sequence[bytes]:
        text = chunk.adds.get("content")
        return (text.encode(),) if text else ()

    def next_message(self, seq: int, *, spoke: bool) -> Sequence[bytes]:
        return ()

    def moved(self, begun: TurnBegun) -> None:
        return None

    def end(self, outcome: Outcome) -> Sequence[bytes]:
        return (b"end",)


class CountedTool:
    """A tool with an effect that must not happen twice. It takes its time."""

    name = TOOL
    idempotent = False
    schema = function(TOOL, "has an effect", ())

    def __init__(self, world: World) -> None:
        self._world = world

    async def run(self, call: ToolCall) -> str:
        world = self._world
        if call.key in world.ledger.effects:
            world.trouble = world.trouble or Violation(f"the tool call {call.key} was run twice")
        world.ledger.effects.add(call.key)
        await asyncio.sleep(world.chance.choice((0.01, 0.3, 2.0)))
        return f"effect {len(world.ledger.effects)}"


class Program:
    """One operating-system process at a time; restarted, it is another one under the same name."""

    kind = NodeKind.SERVER

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.pid = 0
        self.started = 0.0
        self.loop: VirtualLoop | None = None
        self.state = State.DOWN
        self.stopped = False
        self.leaving = False
        self.continued = 0
        """How often this one was continued after a stop."""
        self.holdfast: Holdfast | None = None
        self.services: Services | None = None
        self._opened: SQLiteStore | None = None
        self._pending: dict[int, Callable[[Heard], None]] = {}
        self._numbers = itertools.count()
        self._main: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"{self.name}[{self.pid}]"

    @property
    def runs(self) -> bool:
        """Does it take steps?"""
        return self.loop is not None and not self.stopped

    @property
    def watches(self) -> bool:
        """Is it a server that looks after the others right now?"""
        return self.kind is NodeKind.SERVER and self.state is State.UP and not self.stopped

    @property
    def beats(self) -> bool:
        """Did its last beat reach the store?"""
        return self.holdfast is not None and self.holdfast.heartbeat.beating

    # --- life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        assert self.loop is None
        machine = self.world.machine
        self.pid = machine.new_pid()
        self.started = self.world.clock.monotonic
        machine.programs[self.pid] = self
        self.loop = VirtualLoop(self.world.clock, machine.latency)
        self.loop.set_exception_handler(self.world.on_loop_error)
        self.state, self.stopped, self.leaving, self.continued = State.STARTING, False, False, 0
        self._main = self.loop.create_task(self._live())
        self.world.note(f"{self} starts")

    def step(self) -> None:
        assert self.loop is not None
        self.world.machine.current = self
        try:
            self.loop.step()
        finally:
            self.world.machine.current = None
        store = self._store()
        if self._main is not None and self._main.done():
            self._bury()
        elif store is not None and store.failure is not None:
            self.kill("its store has failed")  # a server says so and ends

    def kill(self, why: str = "kill -9") -> None:
        """All that is in memory is gone; the kernel lets go of the lock."""
        if self.loop is not None:
            self.world.note(f"{self} killed: {why}")
            self._bury()

    def stop(self) -> None:
        self.stopped = True
        self.world.note(f"{self} stopped")

    def go_on(self) -> None:
        self.stopped = False
        self.continued += 1
        self.world.note(f"{self} continued")

    def leave(self) -> None:
        """SIGTERM: leave in good order."""
        if self.state is State.UP and not self.leaving and self.loop is not None:
            self.leaving = True
            self.world.note(f"{self} is told to leave")
            self.loop.call_soon(self._leave_now.set)

    def _bury(self) -> None:
        assert self.loop is not None
        store = self._store()
        if store is not None and not store._closed:
            _drop(store)
        self._opened = None
        del self.world.machine.programs[self.pid]
        self.world.graveyard.append((self.loop, asyncio.all_tasks(self.loop), store))
        self.world.died(self)
        self.loop, self.holdfast, self.services, self._main = None, None, None, None
        self._leave_now = asyncio.Event()  # the old one knows its loop, and by that every task
        self.state = State.DOWN
        pending, self._pending = self._pending, {}
        for tell in pending.values():
            tell(Failed("connection lost"))

    def _store(self) -> SQLiteStore | None:
        """What it has opened; still that while it is leaving."""
        found = self.holdfast._store if self.holdfast is not None else None
        if isinstance(found, SQLiteStore):
            self._opened = found
        return self._opened

    async def _live(self) -> None:
        self._leave_now = asyncio.Event()
        self.holdfast = Holdfast(
            self.world.settings, kind=self.kind, owner=OWNER, catch_signals=False, model=self.world.model
        )
        try:
            await self.holdfast.start()
        except StoreError as error:
            self.world.note(f"{self} cannot start: {type(error).__name__}")
            return
        await self._work(self.holdfast)

    async def _work(self, holdfast: Holdfast) -> None:
        if self.world.plan.tools:
            holdfast.toolbox = Toolbox([CountedTool(self.world)])
        self.services = services_of(holdfast, self.world.model)
        assert holdfast.recoverer is not None and holdfast.queue_runner is not None
        holdfast.recoverer.start()
        holdfast.queue_runner.start()
        self.state = State.UP
        await self._leave_now.wait()
        self.services.draining.set()
        await self.services.runner.drain(holdfast.settings.server.drain_seconds)
        await self.services.runner.close()
        await holdfast.stop()

    # --- requests -------------------------------------------------------------------------------------

    def ask(self, ask: Ask, tell: Callable[[Heard], None]) -> None:
        """A request over the wire. `tell` is called with what comes back, the last time with an end."""
        if self.loop is None or self.services is None or self.leaving:
            tell(Failed("connection refused"))
            return
        number = next(self._numbers)
        self._pending[number] = tell

        async def serve() -> None:
            assert self.services is not None
            try:
                heard = await self._serve(self.services, ask, number)
            except HoldfastError as error:
                heard = Failed(type(error).__name__)
            told = self._pending.pop(number, None)
            if told is not None:
                told(heard)

        self.loop.create_task(serve())

    async def _serve(self, services: Services, ask: Ask, number: int) -> Heard:
        request = TurnRequest(
            new_id("turn"),
            OWNER,
            services.holdfast.node_id,
            ask.address,
            new_messages(ask.text),
            request_key=RequestKey("simulated", ask.key, ask.text.encode()),
            overtakes=ask.when_busy is WhenBusy.INTERRUPT,
            stored=RequestToStore(STORED, ask.origin, ask.covered),
        )
        tools = frozenset({TOOL})
        order = TurnSpec(request, Told(numbered=hash_of(ask.tag) % 2 == 0), tools=tools)
        outcome = await self._begin_or_queue(services, order, ask)
        if isinstance(outcome, RunningTurn):
            place = (outcome.session.conversation_id, outcome.session.id, outcome.turn.id)
            if tell := self._pending.get(number):
                tell(Begun(*place))
            ended = await outcome.ended()
            if isinstance(ended, Answered):
                return Answer(*place, str(ended.reply.message["content"]))
            assert ended is not None
            return Failed(type(ended.error).__name__)
        assert isinstance(outcome, TurnRepeated)
        if outcome.turn.status is TurnStatus.QUEUED:
            if tell := self._pending.get(number):
                tell(Queued(outcome.turn.id))
            return Failed("queued")
        if outcome.turn.status is not TurnStatus.COMPLETED:
            return Failed(outcome.turn.status.value)
        said = await services.holdfast.store.turn_messages(outcome.turn.id)
        text = next(
            (
                str(each.content()["content"])
                for each in reversed(said)
                if each.role == "assistant" and each.status.value == "completed"
            ),
            "",
        )
        return Answer(outcome.session.conversation_id, outcome.session.id, outcome.turn.id, text)

    async def _begin_or_queue(
        self, services: Services, order: TurnSpec, ask: Ask
    ) -> RunningTurn | TurnRepeated | TurnOutdated:
        """As a surface does it."""
        queues, cuts = ask.when_busy in QUEUES, ask.when_busy is WhenBusy.INTERRUPT
        while True:
            try:
                wait = 0.0 if queues else ask.wait_seconds
                return await services.runner.begin(order, wait, interrupt=cuts)
            except ConversationBusy:
                if not queues:
                    raise
            steers = ask.when_busy is WhenBusy.STEER
            stored = RequestToStore(STORED, Origin.QUEUED, recover=True)
            request = replace(order.request, stored=stored)
            queued = await services.holdfast.queue_turn(request, most=16, steers=steers)
            if queued is not None:
                return queued

    def act(self, what: str, name: str) -> None:
        """A person does something to a conversation, otherwise than by speaking; nobody waits for it."""
        if self.loop is not None and self.services is not None:
            self.world.note(f"{self}: somebody wants to {what}")
            self.loop.create_task(self._act(self.services, what, name))

    async def _act(self, services: Services, what: str, name: str) -> None:
        store, node_id = services.holdfast.store, services.holdfast.node_id
        try:
            place = await store.resolve(OWNER, Address(id=name))
            if what == "begin anew":
                await store.end_session(OWNER, place.tip.id, "new")
            elif what == "cancel" and place.tip.running_turn is not None:
                why = "a person said stop"
                await services.holdfast.stop_turn(OWNER, place.tip.running_turn, TurnStatus.CANCELLED, why)
            elif what == "withdraw":
                await store.withdraw_queue(OWNER, place.conversation.id, "a person said stop")
            elif what == "resume" and place.addressed is not None:
                self.world.watcher.resumed.add(place.addressed)
                await store.resume_session(OWNER, place.addressed, node_id)
        except HoldfastError as error:
            self.world.note(f"{self} could not {what}: {type(error).__name__}")


def hash_of(text: str) -> int:
    """The same in every run, other than `hash`."""
    return sum(text.encode())


def _drop(store: SQLiteStore) -> None:
    """What the kernel does with a dead process's handles: nothing is finished, nothing is tidied up."""
    store._closed = True
    store._anchor.release()
    store._watch.close()
    for connection in (store._writer._connection, *store._readers._opened):
        connection.close()
    store._locks.close()


class Script(Program):
    """A program of a user, with sessions that live and die with it."""

    kind = NodeKind.LIBRARY

    async def _work(self, holdfast: Holdfast) -> None:
        self.state = State.UP
        talking = asyncio.get_running_loop().create_task(self._talk(holdfast))
        await self._leave_now.wait()
        talking.cancel()
        await asyncio.gather(talking, return_exceptions=True)
        await holdfast.stop()

    async def _talk(self, holdfast: Holdfast) -> None:
        world, chance = self.world, self.world.chance
        while not world.calm:
            await asyncio.sleep(chance.expovariate(1 / world.plan.think_seconds))
            try:
                await self._one_turn(holdfast, f"script:{self.name}")
            except HoldfastError as error:
                world.note(f"{self} could not speak: {type(error).__name__}")

    async def _one_turn(self, holdfast: Holdfast, key: str) -> None:
        world, chance = self.world, self.world.chance
        session = await holdfast.session(key)
        tag = world.ledger.ask()
        words = world.reply_words()
        world.ledger.told_id(session.id, session.conversation_id)
        async with session.turn(f"{tag} from a script", request_id=tag) as turn:
            world.ledger.acknowledged(tag, turn.conversation_id)
            text = world.new_reply()
            said = ""
            for word in [text, *words]:
                await asyncio.sleep(chance.choice((0.05, 0.4, 2.0)))
                said = f"{said} {word}".strip()
                await turn.draft(said)
            await turn.append(said)
            appended: dict[str, Any] = {"conversation": turn.conversation_id, "text": said}
        world.ledger.answered(tag, appended["conversation"], appended["text"])
        if chance.random() < 0.1:
            await session.end()
