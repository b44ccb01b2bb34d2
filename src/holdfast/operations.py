"""Every operation that a surface needs, each once. `Holdfast` inherits them.

A surface parses its input, calls one operation, and renders the result. It knows neither the store nor the
runtime. An operation that is exactly one store method is one line of the table in
`store_operations.py`. Where `owner` may be None, the caller is an operator and means all owners.

The library promises only what `docs/reference/library.md` names; the rest of these operations is for the
surfaces of this package and may change.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from .domain.api_keys import UNLIMITED, ApiKey, RateLimits, Scope, Token, new_key
from .domain.connectors import LinkCode, Pairing, new_pairing_code
from .domain.conversations import Address, Conversation
from .domain.figures import NO_COST, Cost, cost_of
from .domain.flushes import Flush
from .domain.headings import NO_HEADING, NO_SUMS, Heading
from .domain.ids import is_ours, is_short
from .domain.maintenance import Diagnosis, Progress, Pruned, Reset, Swept, no_progress
from .domain.memories import Memory
from .domain.messages import NewMessage
from .domain.nodes import Liveness
from .domain.pages import (
    MOST_SORTED,
    LineageTree,
    NodeReport,
    Page,
    Resolved,
    SessionFilter,
    SessionRow,
    SessionRows,
    SessionSort,
    is_named,
    name_of,
    why_gone,
)
from .domain.processes import LogPart, Process, is_active, pinned_until
from .domain.queue import Cancelled
from .domain.request_keys import RequestKey
from .domain.rewinds import Rewound
from .domain.sessions import EndReason, Session, SessionState, continued_by
from .domain.turns import Turn, TurnRepeated, TurnRequest, TurnStatus
from .errors import AmbiguousId, BadInput, NotCompacted, NotFound
from .local_server import ensure_local_key
from .models.known_windows import is_known
from .runtime.agents.authenticator import Authenticator
from .runtime.agents.doctor import Doctor
from .runtime.agents.heartbeat import Heartbeat
from .runtime.agents.queue_runner import QueueRunner
from .runtime.agents.reaper import Reaper
from .runtime.agents.resetter import Resetter
from .runtime.agents.sweeper import Pruner, Sweeper
from .runtime.processes.launcher import Command
from .runtime.processes.supervisor import Supervisor
from .runtime.turns.gate import TurnGate
from .runtime.turns.history_matcher import HistoryMatcher
from .runtime.turns.runner import TurnRunner
from .settings import check_notifies, home
from .store_operations import StoreOperations

if TYPE_CHECKING:
    from .importers.hermes.importer import HermesTaken
    from .importers.hermes.snapshot import HomeSnapshot
    from .importers.transcripts import Transcript
    from .importers.writing import StepProgress, Taken
    from .transfer.files import Carried

SCAN = 200
MOST_LIVING = 10_000
DEEPEST_FORK = 50
MOST_AT_ONCE = 1000
TURNS_AT_ONCE = 1000
MOST_CANDIDATES = 5
SKIPPED = "a person skipped it"
CANCELLED = "a person cancelled it"
STOPPED = "a person stopped it"
PAIRED = "You are paired. Write to me; /help lists the commands."


async def _unchecked() -> None:
    return None


class Operations(StoreOperations):
    """The operations on an open store. `app.py` builds the parts that they use."""

    heartbeat: Heartbeat
    gate: TurnGate
    reaper: Reaper
    resetter: Resetter
    first_sweep: Sweeper
    pruner: Pruner
    supervisor: Supervisor
    doctor: Doctor
    matcher: HistoryMatcher
    authenticator: Authenticator
    _runner: TurnRunner | None = None
    queue_runner: QueueRunner | None = None
    """Begins queued turns; only servers have one."""

    @property
    def node_id(self) -> str:
        """The id of this node; a new one if it was taken for dead meanwhile."""
        return self.heartbeat.node_id

    @property
    def runner(self) -> TurnRunner:
        """Begins, publishes and stops the turns of this node. Raises BadInput if no model answers here."""
        if self._runner is None:
            raise BadInput("this program has no model to answer with")
        return self._runner

    # --- finding sessions -------------------------------------------------------------------------------

    async def full_id(self, owner: str | None, name: str) -> str:
        """The id of this owner's object that begins with `name`, if it is a shortened id of ours and there
        is one; else `name`. Raises AmbiguousId if there are several."""
        if not is_short(name):
            return name
        found = await self.store.ids_like(owner, name, limit=MOST_CANDIDATES + 1)
        if len(found) > 1 and name not in found:
            raise AmbiguousId(name, found[:MOST_CANDIDATES], len(found) > MOST_CANDIDATES)
        return found[0] if found else name

    async def resolve_name(self, owner: str | None, name: str) -> Resolved:
        """Resolve a name that a person typed: one of our ids, which may be shortened, else a session key,
        else an alias."""
        if is_ours(name):
            name = await self.full_id(owner, name)
            return await self.store.resolve(owner, Address(id=name, create=False))
        try:
            return await self.store.resolve(owner, Address(key=name, create=False))
        except NotFound:
            pass
        try:
            return await self.store.resolve(owner, Address(id=name, create=False))
        except NotFound:
            raise NotFound("session, key or alias", name) from None

    async def session_named(self, owner: str | None, name: str) -> Session:
        """The session that a name means: for a session id that session, else the conversation's newest."""
        found = await self.resolve_name(owner, name)
        if found.addressed is None or found.addressed == found.tip.id:
            return found.tip
        return await self.store.session(owner, found.addressed)

    async def current_session(self, owner: str | None, name: str) -> Session:
        """The same, for an action on it: a session that was compacted is replaced by the newest."""
        session = await self.session_named(owner, name)
        if session.end_reason == EndReason.COMPACTION:
            return (await self.resolve_name(owner, session.id)).tip
        return session

    async def sessions_with_states(
        self,
        wanted: SessionFilter,
        state: SessionState | None = None,
        *,
        after: str | None = None,
        limit: int = 20,
    ) -> tuple[Page[Session], Mapping[str, SessionState]]:
        """A page of sessions with the state of each. Active, idle and orphaned depend on which nodes are
        alive, which a query cannot know: active and orphaned sessions are searched among those with a node,
        and for idle ones pages are read until enough are found."""
        if state is None or state is SessionState.ENDED:
            if state is SessionState.ENDED:
                wanted = replace(wanted, ended=True)
            page = await self.store.sessions(wanted, after=after, limit=limit)
            return page, await self.states_of(page.items)
        if state is not SessionState.IDLE:
            return await self._page_of_the_living(wanted, state, after, limit)
        wanted = replace(wanted, ended=False)
        found: list[Session] = []
        states: dict[str, SessionState] = {}
        while True:
            page = await self.store.sessions(wanted, after=after, limit=SCAN)
            states.update(await self.states_of(page.items))
            found += [session for session in page.items if states[session.id] is state]
            if len(found) > limit or not page.has_more:
                return Page(found[:limit], len(found) > limit), states
            after = page.items[-1].id

    async def _page_of_the_living(
        self, wanted: SessionFilter, state: SessionState, after: str | None, limit: int
    ) -> tuple[Page[Session], Mapping[str, SessionState]]:
        cursor = await self.store.session(wanted.owner, after) if after is not None else None
        living = await self.store.alive(wanted.owner, limit=MOST_LIVING)
        states = await self.states_of(living)
        found = [
            session
            for session in living
            if states[session.id] is state
            and (
                cursor is None
                or (session.last_activity_at, session.id) < (cursor.last_activity_at, cursor.id)
            )
            and wanted.includes(session)
            and (wanted.title is None or wanted.title.lower() in _heading(session).lower())
        ]
        return Page(found[:limit], len(found) > limit), states

    async def session_rows(
        self,
        wanted: SessionFilter,
        state: SessionState | None = None,
        *,
        sort: SessionSort | None = None,
        reader: str | None = None,
        skip: int = 0,
        limit: int = 50,
    ) -> SessionRows:
        """A page of the sessions that are wanted, sorted and counted among the MOST_SORTED most recently
        active. The first words of conversations are searched as their titles are, among these, if they belong
        to `reader`, who may see their text; titles and keys are searched in all."""
        page, states = await self.sessions_with_states(replace(wanted, title=None), state, limit=MOST_SORTED)
        found, seen = {each.id: each for each in page.items}, dict(states)
        if wanted.title and page.has_more:
            titled, more = await self.sessions_with_states(wanted, state, limit=MOST_SORTED)
            found |= {each.id: each for each in titled.items}
            seen |= more
        sessions = list(found.values())
        if wanted.title or sort is SessionSort.NAME:
            headings = await self._readable_headings(sessions, reader)
            words = (wanted.title or "").lower()
            sessions = [each for each in sessions if is_named(each, headings, words)]
            if sort is SessionSort.NAME:
                sessions.sort(key=lambda each: (name_of(each, headings).lower() or each.id, each.id))
        if sort is not None and sort is not SessionSort.NAME:
            sums = await self.store.sums_of_conversations([each.conversation_id for each in sessions])
            size = sort.size
            sessions.sort(key=lambda each: -size(sums[each.conversation_id]))
        shown = sessions[skip : skip + limit]
        headings = await self._readable_headings(shown, reader)
        sums = await self.store.sums_of_conversations([each.conversation_id for each in shown])
        rows = [
            SessionRow(
                each,
                seen[each.id],
                headings.get(each.conversation_id, NO_HEADING),
                sums.get(each.conversation_id, NO_SUMS),
            )
            for each in shown
        ]
        return SessionRows(rows, len(sessions), page.has_more)

    async def _readable_headings(
        self, sessions: Sequence[Session], reader: str | None
    ) -> Mapping[str, Heading]:
        return await self.headings_of(each for each in sessions if each.owner == reader)

    async def headings_of(self, sessions: Iterable[Session]) -> Mapping[str, Heading]:
        """First words and previews of the conversations of these sessions, by conversation id. They are text
        of messages: only for a reader who may see it."""
        return await self.store.headings([session.conversation_id for session in sessions])

    async def lineage(self, owner: str | None, conversation_id: str, deep: int = 0) -> LineageTree:
        """The sessions of a conversation and everything forked from it."""
        sessions = await self.store.line(owner, conversation_id)
        forks = await self.store.forks(owner, conversation_id) if deep < DEEPEST_FORK else []
        return LineageTree(
            tuple(sessions),
            tuple([await self.lineage(owner, fork.conversation_id, deep + 1) for fork in forks]),
        )

    async def cost(self, owner: str | None, conversation_id: str, session_id: str | None = None) -> Cost:
        """What the turns of a conversation, or of one of its sessions, cost by `[model.prices]`."""
        prices = self.settings.model.price_table
        if not prices:
            return NO_COST
        turns: list[Turn] = []
        while True:
            page = await self.store.turns(
                owner,
                conversation_id,
                session_id=session_id,
                after=turns[-1].id if turns else None,
                limit=TURNS_AT_ONCE,
            )
            turns += page
            if len(page) < TURNS_AT_ONCE:
                return await asyncio.to_thread(cost_of, turns, prices)

    async def leaked_sessions(self, owner: str | None) -> list[Session]:
        """Open sessions whose node is dead; after a successful sweep there are none."""
        store = self.store
        nodes = await store.nodes()
        proofs = await store.probe(nodes)
        left = await store.leftovers(also=[node.id for node in nodes if proofs[node.id][0] is Liveness.DEAD])
        leaked: dict[str, Session] = {}
        for session_id in left.sessions:
            try:
                leaked[session_id] = await store.session(owner, session_id)
            except NotFound:
                continue  # another owner's, or deleted meanwhile
        for conversation_id in left.conversations:
            try:
                tip = (await store.resolve(owner, Address(id=conversation_id))).tip
            except NotFound:
                continue
            leaked[tip.id] = tip
        return [session for session in leaked.values() if not session.ended]

    # --- acting on conversations and sessions -----------------------------------------------------------

    async def create_conversation(
        self,
        owner: str,
        *,
        messages: Sequence[NewMessage],
        metadata: Mapping[str, str],
        source: str,
        request_key: RequestKey | None = None,
    ) -> Conversation:
        """A new conversation with these messages, or the one that a request with this key created. No model
        is called."""
        return await self.heartbeat.as_living(
            lambda: self.store.create_conversation(
                owner,
                self.node_id,
                messages=messages,
                metadata=metadata,
                source=source,
                request_key=request_key,
            )
        )

    async def add_messages(
        self,
        owner: str,
        conversation_id: str,
        messages: Sequence[NewMessage],
        wait_seconds: float,
        *,
        check: Callable[[], Awaitable[None]] = _unchecked,
    ) -> int:
        """Append messages when no turn runs; returns the last one's number. No model is called. `check` runs
        before every attempt, and raises if the caller may no longer act."""

        async def add() -> int:
            await check()
            return await self.heartbeat.as_living(
                lambda: self.store.add_messages(owner, conversation_id, self.node_id, messages)
            )

        return await self.gate.when_free(add, wait_seconds)

    async def end_session(
        self,
        owner: str | None,
        session_id: str,
        reason: str = EndReason.CLOSED,
        *,
        wait_seconds: float = 0.0,
        check: Callable[[], Awaitable[None]] = _unchecked,
    ) -> bool:
        """End a session; False: it had ended already. Waits for a running turn, then raises ConversationBusy.
        `check` runs before every attempt, and raises if the caller may no longer act."""

        async def end() -> bool:
            await check()
            return await self.store.end_session(owner, session_id, reason)

        return await self.gate.when_free(end, wait_seconds)

    async def cancel_running(self, owner: str | None, name: str) -> Cancelled:
        """Cancel this turn; or the one that runs in the conversation of this name, and withdraw its queue.
        Output so far is kept."""
        name = await self.full_id(owner, name)
        found = await self.resolve_name(owner, name)
        turn_id, withdrawn = name if name.startswith("turn_") else None, 0
        if turn_id is None:
            withdrawn = await self.store.withdraw_queue(owner, found.conversation.id, CANCELLED)
            # Looked up only now: a queued turn may have begun before the queue was withdrawn.
            place = await self.store.resolve(owner, Address(id=found.conversation.id))
            turn_id = place.tip.running_turn
        if turn_id is None:
            return Cancelled(None, False, withdrawn)
        stopped = await self.stop_turn(owner, turn_id, TurnStatus.CANCELLED, CANCELLED)
        return Cancelled(await self.store.turn(owner, turn_id), stopped, withdrawn)

    async def stop_turn(self, owner: str | None, turn_id: str, status: TurnStatus, why: str) -> bool:
        """End a running turn, on any node, and keep its output; its subscribers here are notified. A queued
        one is withdrawn. False: it was neither."""
        if self._runner is None:
            stopped = await self.store.cancel_turn(owner, turn_id, status, why)
        else:
            stopped = await self._runner.stop(owner, turn_id, status, why)
        return stopped or await self.store.withdraw_queued(owner, turn_id, why)

    async def queue_turn(self, request: TurnRequest, *, most: int, steers: bool) -> TurnRepeated | None:
        """Store a request as a queued turn, which a server begins when its conversation is free. None: it
        need not be queued any more. Raises QueueFull."""
        queued = await self.heartbeat.as_living(
            lambda: self.store.enqueue_turn(replace(request, node_id=self.node_id), most=most, steers=steers)
        )
        if queued is None:
            return None
        if self.queue_runner is not None:
            self.queue_runner.wake()
        return TurnRepeated(queued.turn, await self.store.session(None, queued.turn.session_id))

    async def resume_session(
        self,
        owner: str,
        session_id: str,
        *,
        attached: bool = False,
        wait_seconds: float = 0.0,
        check: Callable[[], Awaitable[None]] = _unchecked,
    ) -> Session:
        """The session that continues this one: itself if it is open, else a new one that sees what it saw."""

        async def resume() -> Session:
            await check()
            return await self.heartbeat.as_living(
                lambda: self.store.resume_session(owner, session_id, self.node_id, attached=attached)
            )

        return await self.gate.when_free(resume, wait_seconds)

    async def resume_newest(self, owner: str, name: str, wait_seconds: float) -> str:
        """Attach the newest continuation of what this name showed, if it has ended or the conversation was
        reset since; returns the conversation's id. Key, alias or conversation: nothing is resumed."""
        found = await self.resolve_name(owner, name)
        if found.addressed is not None:
            newest = continued_by(await self.store.line(owner, found.conversation.id), found.addressed)
            if newest.ended:
                await self.resume_session(owner, newest.id, attached=True, wait_seconds=wait_seconds)
        return found.conversation.id

    async def fork_session(
        self,
        owner: str,
        session_id: str,
        *,
        up_to: int | None = None,
        key: str | None = None,
        attached: bool = False,
    ) -> Session:
        """A session of a new conversation that begins with a copy of this context, up to message `up_to`."""
        return await self.heartbeat.as_living(
            lambda: self.store.fork(owner, session_id, self.node_id, up_to=up_to, key=key, attached=attached)
        )

    async def rewind(
        self,
        owner: str | None,
        name: str,
        to: str | int,
        *,
        check: Callable[[], Awaitable[None]] = _unchecked,
    ) -> Rewound:
        """Continue a conversation from one of its messages, or from the end of a turn. What followed leaves
        the context and stays readable; rewinding to a later message brings it back. Raises ConversationBusy
        while a turn runs.
        """
        found = await self.resolve_name(owner, name)

        async def rewind() -> Rewound:
            await check()
            return await self.store.rewind(owner, found.conversation.id, to)

        return await self.gate.when_free(rewind, 0.0)

    async def compact(self, owner: str | None, name: str) -> Session:
        """Replace older messages by a summary, now; returns the session that continues. Raises NotCompacted
        if there is nothing to gain."""
        tip = (await self.resolve_name(owner, name)).tip
        compactor = self._runner.compactor if self._runner is not None else None
        if compactor is None:
            raise NotCompacted("this server has no model to compact with")
        return await compactor.by_hand(tip, self.settings.server.busy_wait_seconds)

    async def known_window(self, model: str | None) -> int | None:
        """Tokens of a model's context window, if settings or the model state it; None if it is unknown."""
        compactor = self._runner.compactor if self._runner is not None else None
        window = await compactor.windows.of(model) if compactor is not None else None
        return window.tokens if window is not None and is_known(window) else None

    async def delete_conversation(
        self, owner: str | None, conversation_id: str, running_turn: str | None = None, why: str = CANCELLED
    ) -> None:
        """Delete a whole conversation. `running_turn` is cancelled first: its subscribers learn why."""
        if running_turn is not None:
            await self.stop_turn(owner, running_turn, TurnStatus.CANCELLED, why)
        await self.store.delete_conversation(owner, conversation_id)

    # --- memories and flushes ---------------------------------------------------------------------------

    async def add_memory(
        self, owner: str | None, text: str, *, name: str | None = None, key: str | None = None
    ) -> Memory:
        """Add a person's memory to the conversation of this session key, or else of this id, key or alias.
        Raises NotFound, BadInput and QuotaExceeded."""
        if key is not None:
            place = await self.store.resolve(owner, Address(key=key, create=False))
        else:
            place = await self.resolve_name(owner, name or "")
        conversation = place.conversation
        return await self.store.remember(conversation.owner, conversation.id, text)

    async def skip_flush(self, owner: str | None, session_id: str) -> Flush:
        """Do not flush this session. Raises as `Store.skip_flush` does."""
        return await self.store.skip_flush(owner, session_id, SKIPPED)

    async def retry_flushes(self, owner: str | None) -> int:
        """Retry every flush that was given up; returns how many."""
        retried = 0
        while some := await self.store.retry_flushes(owner, limit=MOST_AT_ONCE):
            retried += some
        return retried

    async def skip_flushes(self, owner: str | None, before: datetime) -> int:
        """Do not flush sessions without activity since then; returns how many."""
        skipped = 0
        while some := await self.store.skip_flushes(owner, before, SKIPPED, limit=MOST_AT_ONCE):
            skipped += some
        return skipped

    # --- background processes ---------------------------------------------------------------------------

    async def start_process(
        self, owner: str, session_id: str, command: Command, cwd: str | None = None, *, stdin: bool = False
    ) -> Process:
        """Start a background command that belongs to this session."""
        return await self.heartbeat.as_living(
            lambda: self.supervisor.start(owner, session_id, command, cwd, stdin=stdin)
        )

    async def watch_process(self, owner: str, session_id: str, pid: int, *, may_stop: bool) -> Process:
        """Supervise a process of this machine that was started elsewhere."""
        return await self.heartbeat.as_living(
            lambda: self.supervisor.watch(owner, session_id, pid, may_stop=may_stop)
        )

    async def stop_process(self, owner: str | None, process_id: str) -> Process:
        """Stop a process and its descendants; returns it as it is after that."""
        return await self.supervisor.stop(owner, process_id, STOPPED)

    async def pin_process(self, owner: str | None, process_id: str, hours: float) -> Process:
        """Let a process defer resets for this many hours; 0: no longer."""
        until = pinned_until(hours, self.store.now(), by_agent=False)
        return await self.store.pin_process(owner, process_id, until)

    async def processes_seen(self, found: Iterable[Process]) -> list[Process]:
        """The processes as they are now, even if their rows are not updated yet."""
        return await asyncio.gather(*(self.supervisor.seen(each) for each in found))

    def is_active(self, process: Process, now: datetime) -> bool:
        """Whether the process showed activity recently, so that it may defer a reset."""
        return is_active(process, now, self.supervisor.limits)

    async def process_log(
        self, owner: str | None, process_id: str, *, after: int = 0, tail: int | None = None
    ) -> LogPart:
        """A process's output from byte `after` on, or only its last `tail` lines."""
        return await self.supervisor.log(owner, process_id, after=after, tail=tail)

    # --- connectors -------------------------------------------------------------------------------------

    async def approve_pairing(self, code: str, owner: str | None = None, key: str | None = None) -> Pairing:
        """Let the person with this code write; `owner` and `key` bind them to an existing conversation.
        The person is notified. Raises NotFound."""
        return await self.store.approve_pairing(code, owner, key, PAIRED)

    async def new_link(self, owner: str | None, conversation_id: str) -> LinkCode:
        """A code by which a place of the same owner joins this conversation, once, within an hour."""
        return await self.store.new_link(owner, conversation_id, new_pairing_code())

    # --- API keys ---------------------------------------------------------------------------------------

    async def create_key(
        self,
        owner: str,
        scope: Scope,
        tools: Iterable[str],
        *,
        keeps: bool = True,
        name: str = "",
        expires_days: float | None = None,
        limits: RateLimits = UNLIMITED,
        webhook: str = "",
    ) -> tuple[ApiKey, Token]:
        """A new API key and its token, which is not stored and cannot be shown again. `keeps`: False stores
        nothing of its requests. `webhook`: the connector that is notified when a background response ends;
        its address and secret are the operator's settings. Raises BadInput."""
        if webhook:
            check_notifies(self.settings.connectors, webhook)
        key, token = new_key(
            owner,
            scope,
            tools,
            self.store.now(),
            keeps=keeps,
            name=name,
            expires_days=expires_days,
            limits=limits,
            webhook=webhook,
        )
        await self.store.add_key(key, token.hash)
        return key, token

    async def ensure_local_key(self) -> str:
        """The token of this home's local key, which is valid for this store; created if there is none."""
        token, _ = await ensure_local_key(self.store, home())
        return token

    # --- maintenance ------------------------------------------------------------------------------------

    async def sweep(self) -> Swept:
        """Reap dead nodes and reset due sessions: one bounded pass."""
        return await self.first_sweep.sweep_once()

    async def reset_all(self, done: Reset) -> Reset:
        """`done`, completed by every reset that is still due."""
        if done.more:
            rest = await self.resetter.reset_all()
            done.reset |= rest.reset
            done.deferred += rest.deferred
            done.troubles += rest.troubles
        return done

    async def prune_all(self) -> Pruned:
        """Delete everything past its retention, in several passes."""
        total = Pruned()
        while True:
            done = await self.pruner.prune_once()
            total = Pruned(
                total.drafts + done.drafts,
                total.events + done.events,
                total.requests + done.requests,
                conversations=total.conversations + done.conversations,
                spared=done.spared,
            )
            if not done.more:
                return total

    async def judged_nodes(self, *, gone: bool = False) -> list[NodeReport]:
        """Nodes, living ones first, each with its liveness, the proof and its running turns; `gone`: also
        those that have left or were reaped."""
        everyone = await self.store.nodes(gone=gone)
        present = [node for node in everyone if not node.gone]
        proofs = await self.store.probe(present)
        turns = await self.store.turns_by_node()
        judged = [NodeReport(node, *proofs[node.id], turns.get(node.id, 0)) for node in present]
        return judged + [NodeReport(node, Liveness.DEAD, why_gone(node)) for node in everyone if node.gone]

    async def examine(
        self, *, repair: bool = False, progress: Progress = no_progress
    ) -> tuple[list[Diagnosis], list[str]]:
        """Every invariant with its violations, and what was repaired before, in sentences."""
        repaired = await self.doctor.repair() if repair else []
        return await self.doctor.examine(progress), repaired

    # --- conversations in and out -----------------------------------------------------------------------

    def exported(self, owner: str | None, conversation_id: str | None = None) -> AsyncIterator[bytes]:
        """The lines of an export of this conversation, or of all, without line ends."""
        from .transfer.files import all_conversations
        from .transfer.files import exported as lines_of

        async def only(chosen: str) -> AsyncIterator[str]:
            yield chosen

        wanted = all_conversations(self.store, owner) if conversation_id is None else only(conversation_id)
        return lines_of(self.store, owner, wanted)

    async def import_file(self, path: Path, owner: str | None, progress: Progress) -> Carried:
        """Import a file of an export. `owner`: the new owner of everything; None: each keeps its own."""
        from .transfer.files import FileImporter

        return await FileImporter(self.store, path, owner, progress).run()

    async def import_hermes(self, owner: str, seen: HomeSnapshot, progress: StepProgress) -> HermesTaken:
        """Import a snapshot of a Hermes home for one owner."""
        from .importers.hermes.importer import Importer

        return await Importer(self.store, owner, seen, progress).run()

    async def import_transcripts(
        self, owner: str, origin: str, transcripts: Iterable[Transcript], files: int, progress: StepProgress
    ) -> Taken:
        """Import transcripts of a program, `files` of them, for one owner."""
        from .importers.transcripts import TranscriptImporter

        return await TranscriptImporter(self.store, owner, origin, files, progress).run(transcripts)


def _heading(session: Session) -> str:
    return f"{session.title or ''} {session.key or ''}"
