"""A node that answers, as the server's requests see it: where a request belongs, then its turn, then the
model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from holdfast.domain.conversations import Address
from holdfast.domain.drafts import drafted_text
from holdfast.domain.fingerprints import EMPTY, extended, fingerprint_of_body
from holdfast.domain.history import history_of
from holdfast.domain.ids import new_id
from holdfast.domain.nodes import NodeKind
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.turns import TurnBegun, TurnOutdated, TurnRepeated, TurnRequest
from holdfast.domain.visible_messages import as_shown
from holdfast.models.base import Chunk, Model
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.agents.heartbeat import Heartbeat
from holdfast.runtime.agents.reaper import Reaper
from holdfast.runtime.contexts.preamble import TurnPreamble
from holdfast.runtime.tools.toolbox import Toolbox
from holdfast.runtime.turns.gate import TurnGate
from holdfast.runtime.turns.history_matcher import HistoryMatcher
from holdfast.runtime.turns.live import Answered, Outcome, RunningTurn, TurnSpec
from holdfast.runtime.turns.runner import TurnRunner
from holdfast.store.store import Store

OWNER = "ada"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said_by_model(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def key(name: str, body: bytes = b"body", *, implied: bool = False, retries: int = 0) -> RequestKey:
    return RequestKey("/v1/chat/completions", name, body, implied=implied, retries=retries)


class Told:
    """How these tests put a turn into events: a word at its beginning, the model's words, a word at its
    end."""

    apart = False

    def __init__(self, numbered: bool = False) -> None:
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
        return (b"answered" if isinstance(outcome, Answered) else outcome.status.value.encode(),)


class Gated:
    """A model whose words come when the test says so, to whichever request listens."""

    def __init__(self) -> None:
        self._words: asyncio.Queue[str | BaseException | None] = asyncio.Queue()
        self.asked = asyncio.Event()
        self.model = ScriptedModel(lambda messages, purpose: self._said())

    def say(self, *words: str) -> None:
        for word in words:
            self._words.put_nowait(word)

    def finish(self, *words: str) -> None:
        self.say(*words)
        self._words.put_nowait(None)

    def fail(self, error: BaseException) -> None:
        self._words.put_nowait(error)

    async def _said(self) -> AsyncIterator[str]:
        self.asked.set()
        while (word := await self._words.get()) is not None:
            if isinstance(word, BaseException):
                raise word
            yield word


@dataclass
class Server:
    """One node with everything that answers requests."""

    store: Store
    keeper: Heartbeat
    leases: TurnGate
    runner: TurnRunner
    continuity: HistoryMatcher

    def order(
        self,
        *messages: dict[str, Any],
        id: str | None = None,
        key: str | None = None,
        request_key: RequestKey | None = None,
        owner: str = OWNER,
        renderer: Told | None = None,
        tools: frozenset[str] = frozenset(),
        options: Mapping[str, Any] | None = None,
    ) -> TurnSpec:
        history = history_of(list(messages))
        return TurnSpec(
            TurnRequest(
                new_id("turn"),
                owner,
                self.keeper.node_id,
                Address(id=id, key=key),
                history.messages,
                source="api",
                request_key=request_key,
            ),
            renderer or Told(),
            tuple(message.body for message in history.instructions),
            options or {},
            tools=tools,
        )

    async def ask(
        self, *messages: dict[str, Any], wait: float = 5, interrupt: bool = False, **more: Any
    ) -> RunningTurn | TurnRepeated:
        """Place the request and begin its turn, again and again while the conversation moves."""
        order = self.order(*messages, **more)
        history = history_of(list(messages))
        for _ in range(100):
            placed = await self.continuity.match(order.request.owner, order.request.address, history)
            attempt = replace(
                order,
                request=placed.applied_to(order.request),
                fingerprints=placed.fingerprints,
                history=placed.history,
            )
            outcome = await self.runner.begin(attempt, wait, interrupt=interrupt)
            if not isinstance(outcome, TurnOutdated):
                return outcome
        raise AssertionError("the conversation never stood still")

    async def run(self, *messages: dict[str, Any], **more: Any) -> RunningTurn:
        """A turn that has begun here, or was joined."""
        running = await self.ask(*messages, **more)
        assert isinstance(running, RunningTurn)
        return running

    async def answered(self, *messages: dict[str, Any], **more: Any) -> str:
        """Ask, and wait for the whole answer."""
        running = await self.run(*messages, **more)
        outcome = await ended(running)
        assert isinstance(outcome, Answered), outcome
        return str(outcome.reply.message["content"])


@asynccontextmanager
async def serving(
    store: Store,
    model: Model,
    checkpoint_seconds: float = 0.5,
    toolbox: Toolbox | None = None,
    news: TurnPreamble | None = None,
) -> AsyncIterator[Server]:
    keeper = Heartbeat(store, NodeKind.SERVER, 15)
    await keeper.join()
    leases = TurnGate(store, keeper, Reaper(store, lambda: keeper.node_id))
    runner = TurnRunner(store, keeper, leases, model, checkpoint_seconds, toolbox=toolbox, preamble=news)
    try:
        yield Server(store, keeper, leases, runner, HistoryMatcher(store))
    finally:
        async with asyncio.timeout(60):
            await runner.close()


async def ended(running: RunningTurn, seconds: float = 10) -> Outcome:
    outcome = await running.ended(seconds)
    assert outcome is not None, "the turn has not ended"
    return outcome


async def heard(running: RunningTurn) -> list[str]:
    """Listen to the end, like a client's stream does."""
    told: list[bytes] = []
    async with asyncio.timeout(60):
        while running.outcome is None or len(told) < len(running.events):
            await running.wait_for_events(len(told))
            told += running.events[len(told) :]
    return [event.decode() for event in told]


async def until_told(running: RunningTurn, count: int) -> None:
    async with asyncio.timeout(60):
        while len(running.events) < count:
            await running.wait_for_events(len(running.events))


async def drafted(store: Store, turn_id: str) -> str:
    return drafted_text(await store.drafts(turn_id)).get("content", "")


async def until_drafted(store: Store, turn_id: str, text: str) -> None:
    async with asyncio.timeout(60):
        while await drafted(store, turn_id) != text:
            await store.changed(store.version(), 0.05)


async def stored(store: Store, conversation_id: str) -> list[tuple[str, Any, str]]:
    """Everything that was said in a conversation."""
    page = await store.messages(None, conversation_id)
    return [(m.role, m.content().get("content"), m.status.value) for m in page.items]


async def assert_history_is_right(store: Store, conversation_id: str, *, known: bool = False) -> None:
    """What the store keeps of a conversation's history is the chain of what it shows, or nothing."""
    conversation = (await store.resolve(None, Address(id=conversation_id))).conversation
    shown = [fingerprint_of_body(each.body) for each in as_shown(await store.visible(None, conversation_id))]
    if known or conversation.history is not None:
        assert conversation.history == extended(EMPTY, shown)
