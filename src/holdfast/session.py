"""The library's objects: a session, and a turn within it.

    async with session.turn("my name is Ada", request_id="m1") as turn:   # committed here
        messages = await turn.context()
        await turn.draft("Hello A")                                       # what a crash would keep
        await turn.append({"role": "assistant", "content": "Hello Ada"})

Leaving the block completes the turn. An exception marks it failed, a cancellation or an exit interrupted; in
both cases its messages are kept. The turn of a killed process is reaped. A writer that lost its lease gets
`LeaseLost` and has written nothing. What a session offers outside of turns is in `session_actions.py` and
`session_messages.py`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from .domain.compaction import Compacted
from .domain.context_size import Size
from .domain.contexts import Context
from .domain.conversations import Address
from .domain.drafts import Draft
from .domain.ids import check_name, new_id
from .domain.messages import MessageStatus, NewMessage
from .domain.new_messages import new_messages
from .domain.request_keys import RequestKey
from .domain.sessions import EndReason, Session
from .domain.turns import (
    Lease,
    Turn,
    TurnBegun,
    TurnFailure,
    TurnOutdated,
    TurnRequest,
    TurnStatus,
)
from .domain.usage import added_usage, usable_usage
from .errors import BadInput, HoldfastError, LeaseLost, StoreError
from .runtime.agents.heartbeat import Heartbeat
from .runtime.contexts.compactor import Compactor
from .runtime.contexts.context_fitter import ContextFitter
from .runtime.processes.supervisor import Supervisor
from .runtime.shutdown import finished
from .runtime.turns.gate import TurnGate, own_turns
from .session_actions import SessionActions
from .session_messages import Content
from .store.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeServices:
    """The services that sessions and turns use; `Holdfast` makes one."""

    store: Store
    heartbeat: Heartbeat
    gate: TurnGate
    supervisor: Supervisor
    owner: str
    busy_wait_seconds: float
    compactor: Compactor | None = None
    """None: no model was given, and nothing is compacted."""


class LiveSession(SessionActions):
    """A session of this program. Its `id` follows the conversation: after a turn it is the newest
    session's."""

    def __init__(self, services: NodeServices, session: Session, attached: bool) -> None:
        self._services = services
        self._session = session
        self._attached = attached
        self._ending: dict[str, str] = {}
        """Turns after which the session is to end, with the reason."""

    def __repr__(self) -> str:
        return f"<LiveSession {self.id} of {self.conversation_id}>"

    @property
    def id(self) -> str:
        """The session's id; after a turn, that of the newest session of its conversation."""
        return self._session.id

    @property
    def conversation_id(self) -> str:
        """The id of its conversation, which never changes."""
        return self._session.conversation_id

    @property
    def key(self) -> str | None:
        """The session key; None if it has none."""
        return self._session.key

    def turn(
        self,
        content: Content,
        *,
        request_id: str | None = None,
        model: str | None = None,
        wait_seconds: float | None = None,
    ) -> LiveTurn:
        """A turn that begins with `content`: the user's text, or OpenAI messages.

        `request_id` makes it idempotent: the same id with the same content is the same turn, also after a
        crash. `wait_seconds` bounds the wait for another turn of this conversation (default: the setting).
        """
        messages = new_messages(content)
        if not messages:
            raise BadInput("a turn needs at least one message")
        if request_id is not None:
            check_name("a request_id", request_id)
        wait = self._services.busy_wait_seconds if wait_seconds is None else wait_seconds
        return LiveTurn(self, messages, request_id, model, wait)

    async def context(self) -> list[dict[str, Any]]:
        """The messages that the model would get now."""
        session = await self._going_on()
        return (await self._services.store.context(self._services.owner, session.id)).messages()

    async def refresh(self) -> Session:
        """Read this session from the store again."""
        self._session = await self._services.store.session(self._services.owner, self.id)
        return self._session

    async def end(self, reason: str = EndReason.CLOSED) -> None:
        """End the session; within one of its turns, as soon as that turn has ended. Idempotent."""
        services = self._services
        if own := services.gate.own_turn(self.conversation_id):
            self._ending[own] = reason
            return

        async def end() -> bool:
            session = await self._going_on()
            return await services.store.end_session(services.owner, session.id, reason)

        await services.gate.when_free(end, services.busy_wait_seconds)

    async def fork(self, *, key: str | None = None, up_to: int | None = None) -> LiveSession:
        """A new conversation that begins with a copy of this context; this one is unchanged."""
        services, attached = self._services, self._attached

        async def fork() -> LiveSession:
            node_id = services.heartbeat.node_id
            forked = await services.store.fork(
                services.owner, (await self._going_on()).id, node_id, up_to=up_to, key=key, attached=attached
            )
            return LiveSession(services, forked, attached)

        return await services.heartbeat.as_living(fork)

    async def _going_on(self) -> Session:
        """This session, or the one that continues it after a compaction."""
        session = await self.refresh()
        if session.end_reason == EndReason.COMPACTION:
            place = await self._services.store.resolve(self._services.owner, Address(id=session.id))
            self._session = place.tip
        return self._session


class LiveTurn:
    """A turn of this program, between `async with` and the end of its block."""

    def __init__(
        self,
        session: LiveSession,
        messages: tuple[NewMessage, ...],
        request_id: str | None,
        model: str | None,
        wait_seconds: float,
    ) -> None:
        self._session = session
        self._services = session._services
        self._messages = messages
        self._request_id = request_id
        self._model = model
        self._wait_seconds = wait_seconds
        self._turn: Turn | None = None
        self._lease: Lease | None = None
        self._drafted: str | None = ""
        """The text in the store; None: unknown, because the last write was cancelled or failed."""
        self._next_event = 0
        self._fitter: ContextFitter | None = None
        self._usage: dict[str, int] = {}
        self._last_usage: dict[str, int] = {}
        """Of the last model call alone: its prompt tokens show the context size."""

    def __repr__(self) -> str:
        if self._turn is None:
            return f"<LiveTurn of {self._session.conversation_id}, not begun>"
        return f"<LiveTurn {self._turn.id} of {self._turn.conversation_id}>"

    @property
    def usage(self) -> dict[str, int]:
        """Tokens used by the model calls of this turn, summed; stored when the block ends."""
        return self._usage

    @usage.setter
    def usage(self, reported: object) -> None:
        """The usage of one model call: a mapping, or the SDK's own object (`turn.usage = response.usage`).
        Each assignment is one call's and is added to earlier ones. A value that is not a token count is
        dropped with a log line: figures never make a turn fail."""
        figures, dropped = usable_usage(reported)
        if dropped:
            log.warning("turn usage has figures that are not token counts, dropped: %s", ", ".join(dropped))
        if reported is not self._usage:
            self._usage = added_usage(self._usage, figures)
            self._last_usage = figures

    @property
    def id(self) -> str:
        """The turn's id."""
        return self._begun.id

    @property
    def conversation_id(self) -> str:
        """The id of its conversation."""
        return self._begun.conversation_id

    @property
    def _begun(self) -> Turn:
        if self._turn is None:
            raise BadInput("the turn has not begun: use it inside `async with session.turn(…) as turn`")
        return self._turn

    @property
    def repeated(self) -> bool:
        """True if this request was answered before. Then nothing that the block appends is stored again."""
        return self._begun.status is not TurnStatus.RUNNING

    @property
    def taken_up(self) -> bool:
        """True if this is a retry that resumes an interrupted or failed turn."""
        return self._begun.attempt > 1

    async def reply(self) -> dict[str, Any] | None:
        """The last assistant message of this turn; an unfinished earlier attempt does not count."""
        messages = await self._services.store.turn_messages(self.id)
        said = [
            message
            for message in messages
            if message.role == "assistant" and (self.repeated or message.status is MessageStatus.COMPLETED)
        ]
        return said[-1].content() if said else None

    async def context(self) -> list[dict[str, Any]]:
        """The messages to send to the model, as OpenAI message dicts. If there is a model, a context that
        would not fit is compacted first."""
        return (await self._fitting_context()).messages()

    async def context_json(self) -> bytes:
        """The same as one JSON array, never decoded: the fastest way to send it on."""
        return (await self._fitting_context()).json()

    async def _fitting_context(self) -> Context:
        context = await self._context()
        fitter = self._fitter
        if fitter is None or self._lease is None:
            return context
        if await fitter.ensure_fits(context, Size(), {}):
            context = await self._context()
            fitter.set_prompt(context, Size())
        return context

    async def _context(self) -> Context:
        return await self._services.store.context(self._services.owner, self._session.id)

    async def draft(self, text: str) -> None:
        """Save the reply so far: what a crash would keep. Call it with the whole text as it grows."""
        if not isinstance(text, str):
            raise BadInput(f"a draft is the text of the reply so far, not {type(text).__name__}")
        if self.repeated:
            return
        known, number = self._drafted, self._next_event
        restarts = known is None or not text.startswith(known)
        adds = text if known is None or restarts else text[len(known) :]
        if not adds and not restarts:
            return
        lease, draft = self._held(), Draft(number, number, adds={"content": adds}, restarts=restarts)
        self._drafted, self._next_event = None, number + 1
        await self._services.store.append_draft(lease, draft)
        self._drafted = text

    async def append(self, content: Content) -> int:
        """Store the next message (a reply, tool calls, a tool's result); returns its seq."""
        messages = new_messages(
            {"role": "assistant", "content": content} if isinstance(content, str) else content
        )
        if self.repeated:
            return self._begun.first_seq
        number = await self._services.store.append(self._held(), messages)
        self._drafted = ""
        return number

    def _held(self) -> Lease:
        turn = self._begun
        if self._lease is None:
            raise BadInput(f"turn {turn.id} has ended")
        if not self._services.heartbeat.is_running(turn.id):
            raise LeaseLost(self._lease.conversation_id, self._lease.token)
        return self._lease

    # --- the block ---------------------------------------------------------------------------------

    async def __aenter__(self) -> LiveTurn:
        services, session = self._services, self._session
        if self._turn is not None:
            raise BadInput("a turn is used once; begin another with session.turn(…)")
        request = TurnRequest(
            turn_id=new_id("turn"),
            owner=services.owner,
            node_id=services.heartbeat.node_id,
            address=Address(id=session.conversation_id),
            messages=self._messages,
            attached=session._attached,
            request_key=self._request_key(),
            model=self._model,
        )
        outcome = await services.gate.begin(request, self._wait_seconds)
        assert not isinstance(outcome, TurnOutdated)  # it carries no version that could be outdated
        self._turn = outcome.turn
        if isinstance(outcome, TurnBegun):
            self._lease = outcome.lease
            self._next_event = outcome.next_event
            session._session = outcome.session
            if services.compactor is not None:
                self._fitter = ContextFitter(services.compactor, _TurnHolder(self), self._model)
            own_turns.set((*own_turns.get(), (outcome.lease.conversation_id, outcome.turn.id)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        lease, self._lease = self._lease, None
        try:
            if lease is not None:
                await finished(self._settle(lease, error))  # ends the turn even if cancelled meanwhile
                if error is None and self._fitter is not None:
                    await self._compact_if_full(self._fitter)
        finally:
            self._services.heartbeat.ran(self._begun.id)
            own_turns.set(tuple(own for own in own_turns.get() if own[1] != self._begun.id))
            reason = self._session._ending.pop(self._begun.id, None)
        if reason is not None:
            await self._session.end(reason)

    async def _compact_if_full(self, fitter: ContextFitter) -> None:
        """The turn is complete: a failure here is not its program's."""
        try:
            fitter.set_prompt(await self._context(), Size())
            await fitter.compact_if_over_threshold(0)
        except HoldfastError as trouble:
            log.warning("the context was not compacted after turn %s: %s", self.id, trouble)

    async def _abandon(self, error: BaseException) -> None:
        """Entering failed with this error: end the turn if it has begun, and wait until it has ended."""
        await self._services.gate.settle_abandoned()
        if self._lease is not None:
            await self.__aexit__(type(error), error, None)

    async def _settle(self, lease: Lease, error: BaseException | None) -> None:
        store = self._services.store
        if error is None:
            await store.commit_reply(lease, usage=self._counted() or None)
            return
        stopped = isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit | GeneratorExit)
        settlement = TurnFailure(
            TurnStatus.INTERRUPTED if stopped else TurnStatus.FAILED,
            error="the program was stopped" if stopped else f"{type(error).__name__}: {error}",
            code=type(error).__name__,
            usage=self.usage,
        )
        try:
            await store.settle_turn(lease, settlement)
        except (LeaseLost, StoreError) as trouble:
            # The program must see the block's own error. This one only says that the turn was already ended
            # elsewhere, or that the reaper will end it.
            if isinstance(error, Exception):
                error.add_note(f"holdfast: turn {lease.turn_id} could not be marked: {trouble}")

    def _counted(self) -> dict[str, int]:
        """The usage that the program reported and, if it asked for the context, the context size."""
        fitter = self._fitter
        if fitter is None:
            return self.usage
        last = self._last_usage or self.usage  # usage filled in place is that of the only call
        fitter.record_usage({"prompt_tokens": last.get("input_tokens", last.get("prompt_tokens"))})
        return {**self.usage, **fitter.measured.fields()} if fitter.measured else self.usage

    def _request_key(self) -> RequestKey | None:
        if self._request_id is None:
            return None
        digest = hashlib.blake2b(digest_size=32)
        for message in self._messages:
            digest.update(len(message.body).to_bytes(8) + message.body)
        return RequestKey(f"library/{self._session.conversation_id}", self._request_id, digest.digest())


class _TurnHolder:
    """A turn of this program, as the ContextFitter sees it."""

    def __init__(self, turn: LiveTurn) -> None:
        self._turn = turn

    @property
    def lease(self) -> Lease:
        return self._turn._held()

    @property
    def session(self) -> Session:
        return self._turn._session._session

    def compacts(self) -> None:
        return None

    def moved(self, done: Compacted) -> None:
        turn = self._turn
        turn._lease, turn._session._session = done.lease, done.session
        turn._turn = replace(turn._begun, session_id=done.session.id)
