"""The SQLite engine: `Store`'s verbs, carried out by one writing thread and a few reading ones.

Several processes may share the file. Opening it passes the gates (the linked SQLite, the filesystem, whose
file it is, its schema) and changes nothing if one of them is closed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import apsw

from ...domain.contexts import Context
from ...domain.conversations import Address, Conversation
from ...domain.drafts import Draft
from ...domain.events import Event
from ...domain.keys import ApiKey
from ...domain.leases import Lease
from ...domain.messages import Message, NewMessage
from ...domain.nodes import Identity, Liveness, Node, proof_of_death
from ...domain.notices import Notice
from ...domain.processes import Process, ProcessState, Sighting
from ...domain.resets import ResetPolicies, Verdict
from ...domain.sessions import Session
from ...domain.turns import Response, Settlement, Turn, TurnBegun, TurnOutcome, TurnRequest, TurnStatus
from ...domain.why import Judged
from ...errors import StoreClosed, StoreFailed, StoreUnusable
from ...platforms import identity, start_of
from ..base import (
    Claimed,
    Figures,
    Finding,
    Found,
    Held,
    Leftovers,
    Page,
    Place,
    Pruned,
    Retention,
    SessionFilter,
    Statistics,
)
from . import (
    checks,
    conversation_reads,
    conversation_writes,
    key_writes,
    node_writes,
    notice_writes,
    openings,
    overviews,
    places,
    process_writes,
    reads,
    resetting,
    session_writes,
    turn_writes,
)
from .anchor import Anchor, handles_of
from .connections import PATIENCE_SECONDS, check_library, connect
from .contexts import ContextCache, read_context
from .copies import back_up
from .faults import cannot_open
from .files import Inodes, log_size, prepare_directory
from .locks import NodeLocks
from .migrations import migrate, newest
from .readers import Readers
from .rows import to_stamp
from .search import SearchIndex
from .transaction import NO_RESETS, Q, Transaction
from .watch import ChangeWatch
from .writer import Writer

T = TypeVar("T")

log = logging.getLogger(__name__)

SEARCH_INVARIANT = "the search index is sound"

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


class SQLiteStore:
    """One open store. Made by `open_store`; see `store.base.Store` for what each verb promises."""

    def __init__(
        self,
        database: Path,
        *,
        clock: Clock = utc_now,
        patience: float = PATIENCE_SECONDS,
        policies: ResetPolicies = NO_RESETS,
    ) -> None:
        """Blocking: open the file, bring its schema up to date, start the threads."""
        check_library(apsw.sqlite_lib_version())
        self._database = Path(os.path.abspath(database))
        self._clock = clock
        self._policies = policies
        self._patience = patience
        prepare_directory(self._database.parent)
        handles = handles_of(self._database)
        connection = connect(self._database, patience=patience)
        try:
            migrate(connection, self._database, to_stamp(clock()))
            self._inodes = Inodes(self._database)
            self._anchor = Anchor(self._database, handles)
        except apsw.Error as error:
            reason = connection.system_errno
            connection.close()
            raise cannot_open(error, str(self._database), reason) from error
        except StoreFailed as error:
            connection.close()
            raise StoreUnusable(f"cannot open {self._database}: {error}") from error
        except BaseException:
            connection.close()
            raise
        self._locks = NodeLocks(self._database)
        self._cache = ContextCache()
        self._watch = ChangeWatch(self._connect_reader)
        self._search: SearchIndex | None = None
        self._search_guard = threading.Lock()
        self._writer = Writer(connection, self._database, newest(), self._inodes, self._committed)
        self._readers = Readers(self._connect_reader, self.location, self._writer.fail)
        self._forked = False
        self._closed = False
        _open_stores.add(self)

    def _connect_reader(self) -> apsw.Connection:
        return connect(self._database, patience=self._patience, read_only=True)

    @property
    def location(self) -> str:
        return str(self._database)

    @property
    def failure(self) -> Exception | None:
        """Why this store has stopped for good, if it has."""
        return self._writer.failure

    def now(self) -> datetime:
        return self._clock()

    async def close(self) -> None:
        if self._closed or self._forked:
            return
        self._closed = True
        # Blocking, but short: what was accepted is finished. Not in an executor, because there is none any
        # more when a program's exit closes what it forgot to close.
        if self._search is not None:
            self._search.stop()
        self._watch.close()
        self._readers.close()
        self._anchor.release()
        self._writer.stop()
        self._locks.close()

    # --- reading and writing -----------------------------------------------------------------------

    async def _write(self, work: Callable[[Transaction], T]) -> T:
        self._check_open()
        told: list[str] = []

        def run(connection: apsw.Connection) -> T:
            told.clear()  # it may be run again, if the group it was in failed
            return work(Transaction(connection, to_stamp(self._clock()), self._policies, told))

        done = await self._writer.submit(run)
        for line in told:
            log.info("%s", line)
        return done

    async def _read(self, work: Callable[[Transaction], T]) -> T:
        self._check_open()
        if self._writer.failure is not None:  # what cannot be trusted is not shown either
            raise self._writer.failure
        return await self._readers.run(
            lambda connection: work(Transaction(connection, to_stamp(self._clock()), self._policies))
        )

    def _check_open(self) -> None:
        if self._forked:
            raise StoreClosed(
                "this store was opened before the process forked; open it again in the child "
                "(SQLite's handles and locks do not survive a fork)"
            )
        if self._closed:
            raise StoreClosed("the store is closed")

    def _committed(self) -> None:
        self._watch.notice()
        if self._search is not None:
            self._search.notice()

    def _index(self) -> SearchIndex:
        with self._search_guard:
            if self._search is None:
                self._search = SearchIndex(self._database, self._forgotten)
            return self._search

    def _forgotten(self, ids: Sequence[int]) -> None:
        """The indexer has done what these rows of `unindexed` asked for; drop them."""
        self._writer.submit_later(
            lambda connection: connection.executemany(Q.forgotten, ({"id": id_} for id_ in ids))
        )

    def start_indexing(self) -> None:
        """Keep the search index right behind what is written, from now on."""
        self._index().notice()

    # --- finding -----------------------------------------------------------------------------------

    async def resolve(self, owner: str | None, address: Address) -> Place:
        return await self._read(lambda tx: places.place(tx, owner, address))

    async def session(self, owner: str | None, session_id: str) -> Session:
        return await self._read(lambda tx: places.session_of(tx, owner, session_id))

    async def sessions(
        self, wanted: SessionFilter, *, after: str | None = None, limit: int = 20
    ) -> Page[Session]:
        return await self._read(lambda tx: reads.sessions(tx, wanted, after, limit))

    async def conversation(self, owner: str | None, address: Address) -> Conversation:
        return await self._read(lambda tx: conversation_reads.conversation(tx, owner, address))

    async def conversations(
        self, owner: str | None, *, after: str | None = None, limit: int = 20
    ) -> Page[Conversation]:
        return await self._read(lambda tx: conversation_reads.conversations(tx, owner, after, limit))

    async def line(self, owner: str | None, conversation_id: str) -> list[Session]:
        return await self._read(lambda tx: reads.line(tx, owner, conversation_id))

    async def forks(self, owner: str | None, conversation_id: str) -> list[Session]:
        return await self._read(lambda tx: reads.forks(tx, owner, conversation_id))

    async def messages(
        self,
        owner: str | None,
        conversation_id: str,
        *,
        first: int = 1,
        last: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        excluded: bool = True,
    ) -> Page[Message]:
        return await self._read(
            lambda tx: reads.messages(tx, owner, conversation_id, first, last, limit, newest_first, excluded)
        )

    async def visible(
        self, owner: str | None, conversation_id: str, *, limit: int | None = None
    ) -> list[Message]:
        return await self._read(lambda tx: reads.visible(tx, owner, conversation_id, limit))

    async def conversations_with_history(self, owner: str, history: bytes) -> list[Conversation]:
        return await self._read(lambda tx: reads.conversations_with_history(tx, owner, history))

    async def context(self, owner: str | None, session_id: str) -> Context:
        return await self._read(lambda tx: read_context(tx, self._cache, owner, session_id))

    async def turn(self, owner: str | None, turn_id: str) -> Turn:
        return await self._read(lambda tx: reads.turn(tx, owner, turn_id))

    async def turns(
        self,
        owner: str | None,
        conversation_id: str,
        *,
        session_id: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[Turn]:
        return await self._read(lambda tx: reads.turns(tx, owner, conversation_id, session_id, after, limit))

    async def turn_messages(self, turn_id: str) -> list[Message]:
        return await self._read(lambda tx: reads.turn_messages(tx, turn_id))

    async def turn_answer(self, turn_id: str) -> bytes | None:
        return await self._read(lambda tx: reads.turn_answer(tx, turn_id))

    async def response(self, owner: str | None, response_id: str) -> Response:
        return await self._read(lambda tx: reads.response(tx, owner, response_id))

    async def delete_response(self, owner: str, response_id: str) -> None:
        await self._write(lambda tx: turn_writes.delete_response(tx, owner, response_id))

    async def last_number(self, turn_id: str) -> int:
        return await self._read(lambda tx: reads.last_number(tx, turn_id))

    async def drafts(self, turn_id: str, *, after_event: int = -1) -> list[Draft]:
        return await self._read(lambda tx: reads.drafts(tx, turn_id, after_event))

    async def events(
        self,
        *,
        owner: str | None,
        after: int = 0,
        upto: int | None = None,
        limit: int = 1000,
        conversation_id: str | None = None,
    ) -> list[Event]:
        return await self._read(lambda tx: reads.events(tx, owner, after, upto, limit, conversation_id))

    async def event_bounds(self) -> tuple[int, int]:
        return await self._read(overviews.event_bounds)

    async def search(
        self, owner: str | None, words: str, *, conversation_id: str | None = None, limit: int = 20
    ) -> list[Found]:
        index = self._index()
        return await self._read(lambda tx: reads.search(tx, index, owner, words, conversation_id, limit))

    async def statistics(self, owner: str | None) -> Statistics:
        return await self._read(lambda tx: reads.statistics(tx, owner))

    async def alive(self, owner: str | None, *, limit: int = 200) -> list[Session]:
        return await self._read(lambda tx: overviews.alive(tx, owner, limit))

    async def ended_since(self, owner: str | None, since: datetime, *, limit: int = 200) -> list[Session]:
        return await self._read(lambda tx: overviews.ended_since(tx, owner, to_stamp(since), limit))

    async def figures(self) -> Figures:
        self._check_open()
        unindexed = await asyncio.to_thread(overviews.unindexed, self._index())
        return await self._read(lambda tx: overviews.figures(tx, log_size(self._database), unindexed))

    # --- conversations and sessions ----------------------------------------------------------------

    async def open_session(
        self, owner: str, address: Address, node_id: str, *, source: str = "", attached: bool = False
    ) -> Session:
        return await self._write(
            lambda tx: openings.open_session(tx, owner, address, node_id, source, attached)
        )

    async def end_session(self, owner: str | None, session_id: str, reason: str) -> bool:
        return await self._write(lambda tx: session_writes.end_session(tx, owner, session_id, reason))

    async def resume_session(
        self, owner: str, session_id: str, node_id: str, *, attached: bool = False
    ) -> Session:
        return await self._write(
            lambda tx: session_writes.resume_session(tx, owner, session_id, node_id, attached)
        )

    async def fork(
        self,
        owner: str,
        session_id: str,
        node_id: str,
        *,
        up_to: int | None = None,
        key: str | None = None,
        attached: bool = False,
    ) -> Session:
        return await self._write(
            lambda tx: session_writes.fork(tx, owner, session_id, node_id, up_to, key, attached)
        )

    async def create_conversation(
        self,
        owner: str,
        node_id: str,
        *,
        messages: Sequence[NewMessage] = (),
        metadata: Mapping[str, str] | None = None,
        source: str = "",
    ) -> Conversation:
        return await self._write(
            lambda tx: conversation_writes.create(tx, owner, node_id, messages, metadata or {}, source)
        )

    async def add_messages(
        self, owner: str, conversation_id: str, node_id: str, messages: Sequence[NewMessage]
    ) -> int:
        return await self._write(
            lambda tx: conversation_writes.add_messages(tx, owner, conversation_id, node_id, messages)
        )

    async def set_metadata(
        self, owner: str | None, conversation_id: str, metadata: Mapping[str, str]
    ) -> None:
        await self._write(lambda tx: conversation_writes.set_metadata(tx, owner, conversation_id, metadata))

    async def set_title(self, owner: str | None, conversation_id: str, title: str) -> None:
        await self._write(lambda tx: session_writes.set_title(tx, owner, conversation_id, title))

    async def add_alias(self, owner: str, alias: str, conversation_id: str) -> None:
        await self._write(lambda tx: session_writes.add_alias(tx, owner, alias, conversation_id))

    async def exclude(self, owner: str | None, conversation_id: str, seqs: Sequence[int], reason: str) -> int:
        return await self._write(lambda tx: session_writes.exclude(tx, owner, conversation_id, seqs, reason))

    async def delete_message(self, owner: str | None, conversation_id: str, seq: int) -> None:
        await self._write(lambda tx: session_writes.delete_message(tx, owner, conversation_id, seq))
        self._cache.clear()
        self.start_indexing()

    async def reduce_message(
        self,
        owner: str | None,
        conversation_id: str,
        seq: int,
        rest: NewMessage,
        gaps: Sequence[int] = (),
    ) -> None:
        await self._write(
            lambda tx: conversation_writes.reduce_message(tx, owner, conversation_id, seq, rest, gaps)
        )
        self._cache.clear()
        self.start_indexing()

    async def delete_conversation(self, owner: str | None, conversation_id: str) -> int:
        number = await self._write(lambda tx: session_writes.delete_conversation(tx, owner, conversation_id))
        self._cache.clear()
        self.start_indexing()
        return number

    async def note_reading(self, owner: str, key_id: str, session: Session | None = None) -> None:
        await self._write(lambda tx: key_writes.note_reading(tx, owner, key_id, session))

    # --- notices -----------------------------------------------------------------------------------

    async def add_notice(self, owner: str, conversation_id: str, kind: str, text: str) -> Notice:
        return await self._write(lambda tx: notice_writes.add(tx, owner, conversation_id, kind, text))

    async def notices(
        self, owner: str | None, *, undelivered: bool = False, after: str | None = None, limit: int = 20
    ) -> Page[Notice]:
        return await self._read(lambda tx: notice_writes.notices(tx, owner, undelivered, after, limit))

    async def undelivered(self, conversation_id: str) -> list[Notice]:
        return await self._read(lambda tx: notice_writes.undelivered(tx, conversation_id))

    async def deliver_notice(self, owner: str | None, notice_id: str) -> Notice:
        return await self._write(lambda tx: notice_writes.deliver(tx, owner, notice_id))

    async def notices_to_send(self) -> bool:
        return await self._read(notice_writes.to_send)

    async def claim_notices(self, limit: int, span: timedelta, kept: timedelta) -> Claimed:
        return await self._write(lambda tx: notice_writes.claim(tx, limit, span, kept))

    async def notice_sent(self, notice_id: str) -> None:
        await self._write(lambda tx: notice_writes.sent(tx, notice_id))

    async def notice_unsent(self, notice_id: str, pause: timedelta, *, tried: bool = True) -> None:
        await self._write(lambda tx: notice_writes.unsent(tx, notice_id, pause, tried))

    # --- turns -------------------------------------------------------------------------------------

    async def begin_turn(self, request: TurnRequest) -> TurnOutcome:
        outcome = await self._write(lambda tx: turn_writes.begin(tx, request))
        if isinstance(outcome, TurnBegun) and not outcome.taken_up:
            return replace(outcome, context=self._cache.begun(outcome, request.messages))
        return outcome

    async def append(self, lease: Lease, messages: Sequence[NewMessage]) -> int:
        return await self._write(lambda tx: turn_writes.append(tx, lease, messages))

    async def append_draft(self, lease: Lease, draft: Draft) -> None:
        await self._write(lambda tx: turn_writes.append_draft(tx, lease, draft))

    async def commit_reply(
        self,
        lease: Lease,
        messages: Sequence[NewMessage] = (),
        *,
        usage: Mapping[str, int] | None = None,
        answer: bytes | None = None,
        history: bytes | None = None,
        draft: Draft | None = None,
    ) -> int:
        last_seq = await self._write(
            lambda tx: turn_writes.commit_reply(tx, lease, messages, usage, answer, history, draft)
        )
        self._cache.replied(lease.session_id, messages, last_seq)
        return last_seq

    async def settle_turn(self, lease: Lease, settlement: Settlement) -> None:
        await self._write(lambda tx: turn_writes.settle_turn(tx, lease, settlement))

    async def cancel_turn(self, owner: str | None, turn_id: str, status: TurnStatus, why: str) -> bool:
        return await self._write(lambda tx: turn_writes.cancel_turn(tx, owner, turn_id, status, why))

    # --- resets ------------------------------------------------------------------------------------

    async def due_sessions(self, limit: int = 100) -> list[str]:
        return await self._read(lambda tx: resetting.due_sessions(tx, limit))

    async def reset_session(self, session_id: str) -> Verdict | None:
        return await self._write(lambda tx: resetting.reset_session(tx, session_id))

    async def judge_session(self, owner: str | None, session_id: str) -> Judged:
        return await self._read(lambda tx: resetting.judged(tx, places.session_of(tx, owner, session_id)))

    async def history(self, owner: str | None, session_id: str, *, limit: int = 50) -> list[Event]:
        return await self._read(lambda tx: reads.history(tx, owner, session_id, limit))

    async def date_sessions(self, limit: int = 1000) -> int:
        return await self._write(lambda tx: resetting.date_some(tx, limit))

    # --- nodes -------------------------------------------------------------------------------------

    async def join(self, node: Node) -> None:
        self._check_open()
        try:
            self._locks.hold(node.id)
        except OSError as error:
            raise StoreUnusable(
                f"cannot make the node's lock file beside {self.location}: {error}"
            ) from error
        try:
            await self._write(lambda tx: node_writes.join(tx, node))
        except BaseException:
            self._locks.let_go(node.id)
            raise

    async def beat(self, node_id: str) -> Held:
        return await self._write(lambda tx: node_writes.beat(tx, node_id))

    async def held(self, node_id: str) -> Held:
        return await self._read(lambda tx: node_writes.held(tx, node_id))

    async def leave(self, node_id: str, reason: str) -> None:
        await self._write(lambda tx: node_writes.leave(tx, node_id, reason))
        self._locks.let_go(node_id)

    async def nodes(self, *, gone: bool = False) -> list[Node]:
        return await self._read(lambda tx: reads.nodes(tx, gone))

    async def probe(self, nodes: Sequence[Node]) -> Mapping[str, tuple[Liveness, str]]:
        self._check_open()
        here = identity()
        return {node.id: self._judge(node, here) for node in nodes}

    def _judge(self, node: Node, here: Identity) -> tuple[Liveness, str]:
        lock_free = self._locks.is_free(node.id)
        start = start_of(node.identity.pid) if lock_free is None else None
        why = proof_of_death(node.identity, lock_free=lock_free, here=here, start_of_their_pid=start)
        if why is not None:
            return Liveness.DEAD, why
        if lock_free is False:
            return Liveness.ALIVE, "it holds its lock"
        return Liveness.UNKNOWN, "its lock cannot be tested"

    async def reap(self, node_id: str, seen_beat: int, why: str) -> bool:
        reaped = await self._write(lambda tx: node_writes.reap(tx, node_id, seen_beat, why))
        if reaped:
            self._locks.remove(node_id)
        return reaped

    async def leftovers(self, also: Sequence[str] = ()) -> Leftovers:
        return await self._read(lambda tx: node_writes.leftovers(tx, also))

    async def settle_conversation(self, conversation_id: str) -> bool:
        return await self._write(lambda tx: node_writes.settle_conversation(tx, conversation_id))

    async def reap_session(self, session_id: str) -> bool:
        return await self._write(lambda tx: node_writes.reap_session(tx, session_id))

    async def settle_node(self, node_id: str) -> bool:
        return await self._write(lambda tx: node_writes.settle_node(tx, node_id))

    async def prune(self, keep: Retention, limit: int = 1000) -> Pruned:
        return await self._write(lambda tx: node_writes.prune(tx, keep, limit))

    # --- processes ---------------------------------------------------------------------------------

    async def add_process(self, process: Process) -> Process:
        return await self._write(lambda tx: process_writes.add(tx, process))

    async def process_started(
        self,
        process_id: str,
        identity: Identity,
        *,
        shim_pid: int | None = None,
        shim_start: str | None = None,
    ) -> bool:
        return await self._write(
            lambda tx: process_writes.started(tx, process_id, identity, shim_pid, shim_start)
        )

    async def sample_processes(self, sightings: Sequence[Sighting]) -> None:
        await self._write(lambda tx: process_writes.sample(tx, sightings))

    async def process_finished(self, process_id: str, exit_code: int) -> bool:
        return await self._write(lambda tx: process_writes.finished(tx, process_id, exit_code))

    async def end_process(
        self,
        process_id: str,
        state: ProcessState,
        *,
        exit_code: int | None = None,
        at: datetime | None = None,
        why: str | None = None,
    ) -> bool:
        return await self._write(lambda tx: process_writes.end(tx, process_id, state, exit_code, at, why))

    async def request_stop(self, owner: str | None, process_id: str, reason: str) -> Process:
        return await self._write(lambda tx: process_writes.request_stop(tx, owner, process_id, reason))

    async def request_stops(self, owner: str | None, conversation_id: str, reason: str) -> list[Process]:
        def ask(tx: Transaction) -> list[Process]:
            places.conversation_of(tx, owner, conversation_id)
            return process_writes.request_stops(tx, conversation_id, reason)

        return await self._write(ask)

    async def pin_process(self, owner: str | None, process_id: str, until: datetime | None) -> Process:
        return await self._write(lambda tx: process_writes.pin(tx, owner, process_id, until))

    async def claim_process(self, process_id: str, node_id: str, seen_supervisor: str | None) -> bool:
        return await self._write(lambda tx: process_writes.claim(tx, process_id, node_id, seen_supervisor))

    async def process(self, owner: str | None, process_id: str) -> Process:
        return await self._read(lambda tx: process_writes.process(tx, owner, process_id))

    async def processes(
        self,
        owner: str | None,
        *,
        session_id: str | None = None,
        conversation_id: str | None = None,
        running: bool | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[Process]:
        return await self._read(
            lambda tx: process_writes.processes(tx, owner, session_id, conversation_id, running, after, limit)
        )

    async def unended_processes(self, machine: Identity) -> list[Process]:
        return await self._read(lambda tx: process_writes.unended(tx, machine))

    async def unknown_processes(self, ids: Sequence[str]) -> list[str]:
        return await self._read(lambda tx: process_writes.unknown(tx, ids))

    async def prune_processes(self, before: datetime, limit: int = 1000) -> list[str]:
        return await self._write(lambda tx: process_writes.prune(tx, before, limit))

    # --- API keys ----------------------------------------------------------------------------------

    async def add_key(self, key: ApiKey, secret_hash: bytes) -> None:
        await self._write(lambda tx: key_writes.add(tx, key, secret_hash))

    async def key(self, key_id: str) -> tuple[ApiKey, bytes] | None:
        return await self._read(lambda tx: reads.key(tx, key_id))

    async def keys(self, owner: str | None) -> list[ApiKey]:
        return await self._read(lambda tx: reads.keys(tx, owner))

    async def revoke_key(self, key_id: str, owner: str | None) -> bool:
        return await self._write(lambda tx: key_writes.revoke(tx, key_id, owner))

    # --- waiting and care --------------------------------------------------------------------------

    def version(self) -> int:
        self._check_open()
        return self._watch.version()

    async def changed(self, since: int, timeout: float) -> bool:
        self._check_open()
        return await self._watch.changed(since, timeout)

    async def backup(self, target: Path) -> None:
        self._check_open()
        await asyncio.to_thread(back_up, self._database, target)

    def invariants(self) -> Sequence[str]:
        return [checks.INTEGRITY, *checks.INVARIANTS.values(), SEARCH_INVARIANT]

    async def check(self) -> list[Finding]:
        findings = await self._read(checks.check)
        trouble = await asyncio.to_thread(self._index().check)
        if trouble is not None:
            findings.append(Finding(SEARCH_INVARIANT, 1, [trouble], repairable=True))
        return findings

    async def repair(self) -> list[str]:
        self._check_open()
        number = await asyncio.to_thread(self._index().rebuild)
        return [f"made the search index anew, over {number} messages"]


_open_stores: weakref.WeakSet[SQLiteStore] = weakref.WeakSet()
_kept_in_child: list[SQLiteStore] = []


def _after_fork_in_child() -> None:
    """A forked child has none of the threads and must not use, close or collect the connections."""
    for store in list(_open_stores):
        store._forked = True
        store._locks.close_in_child()
        _kept_in_child.append(store)


os.register_at_fork(after_in_child=_after_fork_in_child)


async def open_store(
    database: Path,
    *,
    clock: Clock = utc_now,
    patience: float = PATIENCE_SECONDS,
    policies: ResetPolicies = NO_RESETS,
) -> SQLiteStore:
    """Open (or make) the store in this file. Raises StoreUnusable, having changed nothing, if it cannot."""
    return await asyncio.to_thread(SQLiteStore, database, clock=clock, patience=patience, policies=policies)
