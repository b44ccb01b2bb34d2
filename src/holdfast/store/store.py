"""The store: everything durable, as one table of methods. `tests/contract` verifies it on both engines.

Each line names the function that does the work and says whether it reads or writes; what it guarantees is the
function's docstring. To add a method: the function in the file of its noun, its SQL, one line here, and a
test in `tests/contract`.

A method that writes has committed when it returns, and has written nothing when it raises. Everything is
scoped by `owner`; another owner's id is `NotFound`, like one that never existed. Where `owner` may be None,
the caller is an operator and means all owners.

The right to write in a conversation comes from a lease. `begin_turn` takes one, and every later write of that
turn names it; with a lost lease it raises `LeaseLost` and changes nothing.

The methods at the end do more than one transaction, or differ between the engines.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from ..domain.contexts import Context
from ..domain.messages import NewMessage
from ..domain.nodes import Liveness, Node, NodeKind
from ..domain.records import Part
from ..domain.turns import Delivery, Draft, Lease, TurnBegun, TurnOutcome, TurnRequest
from . import (
    api_keys,
    checkpoints,
    compaction,
    conversations,
    events,
    exports,
    figures,
    flushes,
    imports,
    items,
    memories,
    messages,
    nodes,
    notices,
    policies,
    processes,
    resets,
    resolve,
    responses,
    retention,
    session_messages,
    sessions,
    turns,
)
from .context import read_context
from .engine import Engine, erases, reads, writes
from .search_terms import Deadline
from .values import Figures, Finding, Found, Pruned, Retention, StorePolicy


class Store(Engine):
    """The durable state of holdfast. See the module docstring.

    A method with the name of its module comes last of its group: from there on the name means the method.
    """

    # --- turns ------------------------------------------------------------------------------------------

    append = writes(turns.append)
    append_draft = writes(turns.append_draft)
    settle_turn = writes(turns.settle_turn)
    cancel_turn = writes(turns.cancel_turn)
    note_deliveries = writes(turns.note_deliveries)
    open_session = writes(turns.open_session)
    turn = reads(turns.turn_of)
    turns = reads(turns.page)
    turn_messages = reads(messages.of_turn)
    turn_answer = reads(responses.answer_of)
    drafts = reads(responses.drafts)
    last_number = reads(responses.last_number)
    response = reads(responses.response_of)
    delete_response = writes(responses.delete)

    # --- conversations ----------------------------------------------------------------------------------

    create_conversation = writes(conversations.create)
    add_messages = writes(conversations.add_messages)
    set_metadata = writes(conversations.set_metadata)
    set_title = writes(sessions.set_title)
    add_alias = writes(sessions.add_alias)
    delete_conversation = erases(sessions.delete_conversation)
    conversations_with_history = reads(conversations.with_history)
    conversation = reads(conversations.conversation)
    conversations = reads(conversations.page)

    # --- messages ---------------------------------------------------------------------------------------

    exclude = writes(messages.exclude)
    delete_message = erases(messages.delete)
    reduce_message = erases(messages.reduce)
    visible = reads(messages.visible)
    messages = reads(messages.page)

    # --- sessions ---------------------------------------------------------------------------------------

    end_session = writes(sessions.end_session)
    resume_session = writes(sessions.resume_session)
    fork = writes(sessions.fork)
    session = reads(resolve.session_of)
    resolve = reads(resolve.place)
    line = reads(sessions.line)
    forks = reads(sessions.forks)
    alive = reads(sessions.alive)
    ended_since = reads(sessions.ended_since)
    sessions = reads(sessions.page)

    # --- resets -----------------------------------------------------------------------------------------

    due_sessions = reads(resets.due_sessions)
    reset_session = writes(resets.reset_session)
    judge_session = reads(resets.judge_session)
    date_sessions = writes(resets.reschedule)
    resets_waiting = reads(resets.waiting)

    # --- compaction -------------------------------------------------------------------------------------

    report = reads(compaction.report_of)
    outline = reads(compaction.outline)
    claim_compaction = writes(compaction.claim)
    compact = writes(compaction.compact)
    give_up_compaction = writes(compaction.give_up)
    note_suspected_window = writes(compaction.note_suspected_window)

    # --- events and figures -----------------------------------------------------------------------------

    event_bounds = reads(events.bounds)
    history = reads(events.of_session)
    pulse = reads(events.pulse)
    events = reads(events.page)
    statistics = reads(figures.statistics)
    usage = reads(figures.usage)

    # --- sessions of frameworks -------------------------------------------------------------------------

    in_context = reads(session_messages.in_context)
    append_named = writes(session_messages.append)
    remove_last = writes(session_messages.remove_last)
    replace_messages = writes(session_messages.replace)
    state = reads(items.state)
    update_state = writes(items.update_state)
    put_items = writes(items.put)
    item = reads(items.get)
    refresh_items = writes(items.refresh)
    items_under = reads(items.under)
    item_namespaces = reads(items.namespaces)
    drop_expired_items = writes(items.drop_expired)
    put_checkpoint = writes(checkpoints.put)
    put_checkpoint_writes = writes(checkpoints.put_writes)
    checkpoint = reads(checkpoints.get)
    copy_checkpoints = writes(checkpoints.copy)
    delete_checkpoints = erases(checkpoints.delete)
    delete_checkpoints_of_runs = erases(checkpoints.delete_runs)
    checkpoints = reads(checkpoints.page)

    # --- nodes ------------------------------------------------------------------------------------------

    beat = writes(nodes.beat)
    held = reads(nodes.held)
    leftovers = reads(nodes.leftovers)
    settle_conversation = writes(nodes.settle_conversation)
    reap_session = writes(nodes.reap_session)
    settle_node = writes(nodes.settle_node)
    nodes = reads(nodes.page)
    policy = reads(policies.read)

    # --- processes --------------------------------------------------------------------------------------

    add_process = writes(processes.add)
    process_started = writes(processes.started)
    sample_processes = writes(processes.sample)
    process_finished = writes(processes.finished)
    end_process = writes(processes.end)
    request_stop = writes(processes.request_stop)
    request_stops = writes(processes.request_all_stops)
    pin_process = writes(processes.pin)
    claim_process = writes(processes.claim)
    prune_processes = writes(processes.prune)
    process = reads(processes.process_of)
    unended_processes = reads(processes.unended)
    unknown_processes = reads(processes.unknown)
    processes = reads(processes.page)

    # --- flushes ----------------------------------------------------------------------------------------
    #
    # Every end of a session schedules its flush in the same transaction, by the rules that the store was
    # opened with; without rules nothing is scheduled. A session that continues the context of one whose
    # flush is pending takes that flush over.

    flushes_due = reads(flushes.are_due)
    claim_flushes = writes(flushes.claim)
    flush_input = reads(flushes.read_input)
    finish_flush = writes(flushes.finish)
    fail_flush = writes(flushes.fail)
    release_flush = writes(flushes.release)
    release_flushes = writes(flushes.release_strays)
    retry_flush = writes(flushes.retry)
    retry_flushes = writes(flushes.retry_dead)
    skip_flush = writes(flushes.skip)
    skip_flushes = writes(flushes.skip_before)
    flush_figures = reads(flushes.figures)
    flush = reads(flushes.flush_of)
    flushes_of = reads(flushes.flushes_of)
    flushes = reads(flushes.page)

    # --- memories ---------------------------------------------------------------------------------------

    remember = writes(memories.remember)
    edit_memory = writes(memories.edit)
    forget_memory = writes(memories.forget)
    memory = reads(memories.memory_of)
    memories = reads(memories.page)

    # --- notices ----------------------------------------------------------------------------------------

    add_notice = writes(notices.add)
    deliver_notice = writes(notices.deliver)
    claim_notices = writes(notices.claim)
    notice_sent = writes(notices.sent)
    notice_unsent = writes(notices.unsent)
    notices_to_send = reads(notices.to_send)
    undelivered = reads(notices.undelivered)
    notices = reads(notices.page)

    # --- API keys and logins of browsers ----------------------------------------------------------------

    add_key = writes(api_keys.add)
    revoke_key = writes(api_keys.revoke)
    key = reads(api_keys.key_of)
    keys = reads(api_keys.page)
    note_reading = writes(api_keys.note_reading)
    add_login = writes(api_keys.add_login)
    login = reads(api_keys.login)
    end_login = writes(api_keys.end_login)

    # --- export and import of whole conversations -------------------------------------------------------

    conversation_ids = reads(exports.conversation_ids)
    record = reads(exports.record)
    message_records = reads(exports.message_records)
    imported = reads(imports.imported)
    messages_from = reads(imports.messages_from)
    set_key = writes(imports.set_key)

    # --- more than one transaction ----------------------------------------------------------------------

    async def begin_turn(self, request: TurnRequest) -> TurnOutcome:
        """See `turns.begin`. The outcome has the context, if everything before the turn is cached."""
        outcome = await self._write(turns.begin, request)
        if isinstance(outcome, TurnBegun) and not outcome.taken_up:
            return replace(outcome, context=self._cache.begun(outcome, request.messages))
        return outcome

    async def commit_reply(
        self,
        lease: Lease,
        messages: Sequence[NewMessage] = (),
        *,
        usage: Mapping[str, int] | None = None,
        answer: bytes | None = None,
        history: bytes | None = None,
        draft: Draft | None = None,
        delivery: Delivery | None = None,
    ) -> int:
        """See `turns.commit_reply`. Extends the cached context."""
        last_seq = await self._write(
            turns.commit_reply,
            lease,
            messages,
            usage=usage,
            answer=answer,
            history=history,
            draft=draft,
            delivery=delivery,
        )
        self._cache.replied(lease.session_id, messages, last_seq)
        return last_seq

    async def context(self, owner: str | None, session_id: str) -> Context:
        """The context that the model would get in this session, as joined JSON bytes and as messages."""
        return await self._read(read_context, self._cache, owner, session_id)

    async def record_policy(self, kind: NodeKind, policy: StorePolicy, recorded_by: str) -> StorePolicy:
        """Record a program's settings for the whole store, part by part, where it may: the last server's
        apply, else the last library's, else the last command's. Parts that are None are unchanged. Returns
        the effective policy. Writes nothing if it is already recorded."""
        if await self._read(policies.has_news, kind, policy):
            await self._write(policies.record, kind, policy, recorded_by)
        return await self.policy()

    async def prune(self, keep: Retention, limit: int = 1000) -> Pruned:
        """Delete what is older than its retention, at most `limit` of each kind, the oldest first."""
        pruned = await self._write(retention.prune, keep, limit)
        if pruned.conversations:
            self._erased()
        return pruned

    async def import_part(self, part: Part) -> None:
        """See `imports.import_part`. Starts the indexer, so that the messages are found."""
        await self._write(imports.import_part, part)
        self.start_indexing()

    async def search(
        self, owner: str | None, words: str, *, conversation_id: str | None = None, limit: int = 20
    ) -> list[Found]:
        """Messages of this owner that contain all these words. No committed message is ever missing."""
        self._check_open()
        return await self._searches.run(
            owner, lambda deadline: self._find(owner, words, conversation_id, limit, deadline)
        )

    @abstractmethod
    def _find(
        self, owner: str | None, words: str, conversation_id: str | None, limit: int, deadline: Deadline
    ) -> list[Found]:
        """Blocking, on a search thread: `search`."""

    # --- nodes and their locks --------------------------------------------------------------------------

    async def join(self, node: Node, *, replaces: str | None = None) -> None:
        """Register an incarnation and hold its lock for as long as this process lives.

        `replaces`: the incarnation of this process that was reaped. Its lock is released when the new one has
        joined; if that fails, it is kept."""
        self._check_open()
        await self._locks.hold(node.id)
        try:
            await self._write(nodes.join, node)
        except BaseException:
            self._locks.let_go(node.id)
            raise
        if replaces is not None:
            self._locks.let_go(replaces)

    async def leave(self, node_id: str, reason: str) -> None:
        """Leave cleanly: running turns are interrupted, attached sessions end with `reason`, leases and the
        lock are released."""
        await self._write(nodes.leave, node_id, reason)
        self._locks.let_go(node_id)

    async def probe(self, nodes: Sequence[Node]) -> Mapping[str, tuple[Liveness, str]]:
        """Liveness of each of these, as far as provable from here, and why. Writes nothing."""
        self._check_open()
        return await self._locks.probe(nodes)

    @abstractmethod
    async def reap(self, node_id: str, seen_beat: int, why: str) -> bool:
        """Mark a node as dead, unless its heartbeat has changed since. Its orphans must then be released."""

    # --- the whole store --------------------------------------------------------------------------------

    @property
    @abstractmethod
    def location(self) -> str:
        """Its location, for people; without any password."""

    @abstractmethod
    def now(self) -> datetime:
        """The store's time, in UTC: the clock for all its timestamps."""

    @abstractmethod
    async def close(self) -> None:
        """Finish accepted jobs, then release everything. Idempotent."""

    @abstractmethod
    async def backup(self, target: Path) -> None:
        """A consistent copy of a store in use. Raises, leaving nothing, if the target exists, and BadInput if
        the database has its own backup tools."""

    @abstractmethod
    def invariants(self) -> Sequence[str]:
        """What `check` verifies, in sentences."""

    @abstractmethod
    async def check(self) -> list[Finding]:
        """Check every invariant that the store alone can decide, and its integrity. Empty: no finding."""

    @abstractmethod
    async def repair(self) -> list[str]:
        """Repair what can be repaired safely (derived data); returns what was done, in sentences."""

    @abstractmethod
    async def figures(self) -> Figures:
        """Totals for an operator; cheap enough to be read every few seconds."""
