"""Deliberate faults, to prove that the suites detect them. Selected by an environment variable, only here.

HOLDFAST_TEST_MUTANT=acknowledge-before-commit   a writing process acknowledges first and writes afterwards
HOLDFAST_TEST_MUTANT=synchronous-normal          commits do not wait for the disk
HOLDFAST_TEST_MUTANT=no-inode-check              no check whether the files are still the same
HOLDFAST_TEST_MUTANT=requests-in-memory          the turn of a request is forgotten with the process
HOLDFAST_TEST_MUTANT=finish-before-commit        a stream is finished before the reply is stored
HOLDFAST_TEST_MUTANT=no-checkpoints              a reply is stored only when it is complete
HOLDFAST_TEST_MUTANT=partial-reply-stays         a retry of the turn gets the interrupted reply in its context
HOLDFAST_TEST_MUTANT=no-tip-resolution           an id resolves to the session it named, not to the newest
HOLDFAST_TEST_MUTANT=no-compare-and-swap         a compaction is committed whatever was written meanwhile
HOLDFAST_TEST_MUTANT=flushed-set-in-memory       which sessions were flushed is forgotten with the process
HOLDFAST_TEST_MUTANT=dead-at-once                a node whose connection was cut is considered dead at once
HOLDFAST_TEST_MUTANT=read-error-fails-store      an error of one reading statement stops the store
HOLDFAST_TEST_MUTANT=no-span-reads               a context is read as one value, however long it is
HOLDFAST_TEST_MUTANT=fts-keeps-deleted           the search index hides deleted text and keeps it
HOLDFAST_TEST_MUTANT=log-keeps-deleted           the write-ahead log keeps deleted text
HOLDFAST_TEST_MUTANT=node-skips-store-flushes    a node that cannot flush skips pending flushes of the store
HOLDFAST_TEST_MUTANT=library-writes-no-flush     sessions are flushed by the rules of the node that ends them
HOLDFAST_TEST_MUTANT=loop-ends-on-one-item       a background loop ends at the first error, unlogged
HOLDFAST_TEST_MUTANT=rights-checked-at-door      a right is checked by the tool's name, not where it is used
HOLDFAST_TEST_MUTANT=own-key-upstream            whatever key the environment holds is sent to the model
HOLDFAST_TEST_MUTANT=same-body-is-same-person    a retry with the same body is the same turn
HOLDFAST_TEST_MUTANT=usage-is-trusted            a model's usage reports decide how large its window is
HOLDFAST_TEST_MUTANT=no-header-limit             a request's head may have any size
HOLDFAST_TEST_MUTANT=no-stream-limit             one key may have any number of streams
HOLDFAST_TEST_MUTANT=trailers-are-headers        fields after a body count like those before it
HOLDFAST_TEST_MUTANT=no-frame-limit              a WebSocket may send any number of frames
HOLDFAST_TEST_MUTANT=attempts-not-counted        a turn is taken up without its attempt being stored
HOLDFAST_TEST_MUTANT=open-calls-run-again        a call without a result is run by the server that takes over
HOLDFAST_TEST_MUTANT=stops-are-deaths            an orderly stop uses up an attempt
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from holdfast.store.sqlite import connections, engine, files
from tests.reliability import kill_points

NAME = "HOLDFAST_TEST_MUTANT"
ALL = (
    "acknowledge-before-commit",
    "synchronous-normal",
    "no-inode-check",
    "requests-in-memory",
    "finish-before-commit",
    "no-checkpoints",
    "partial-reply-stays",
    "no-tip-resolution",
    "no-compare-and-swap",
    "flushed-set-in-memory",
    "dead-at-once",
    "read-error-fails-store",
    "no-span-reads",
    "fts-keeps-deleted",
    "log-keeps-deleted",
    "node-skips-store-flushes",
    "library-writes-no-flush",
    "loop-ends-on-one-item",
    "rights-checked-at-door",
    "own-key-upstream",
    "same-body-is-same-person",
    "usage-is-trusted",
    "no-header-limit",
    "no-stream-limit",
    "trailers-are-headers",
    "no-frame-limit",
    "attempts-not-counted",
    "open-calls-run-again",
    "stops-are-deaths",
)


def mutant() -> str:
    """The breakage this process is to have, or nothing."""
    name = os.environ.get(NAME, "")
    assert name in ("", *ALL), f"{NAME}={name}: unknown, choose one of {', '.join(ALL)}"
    return name


def break_on_purpose() -> None:
    """Put the breakage into this process, if it lies in the store and not in the one who tells."""
    kill_points.install()
    if mutant() == "synchronous-normal":
        careful = connections.connect

        def careless(database: Path, *, patience: float = 30.0, reader: bool = False) -> apsw.Connection:
            connection = careful(database, patience=patience, reader=reader)
            connection.execute("PRAGMA synchronous = NORMAL")
            return connection

        engine.connect = careless  # type: ignore[attr-defined]
    elif mutant() == "no-inode-check":
        files.Inodes.verify = lambda self: None  # type: ignore[method-assign]
    elif mutant() == "no-tip-resolution":
        from holdfast.store.sqlite.transaction import STATEMENTS

        statement = STATEMENTS["place_by_session"]
        STATEMENTS["place_by_session"] = statement.replace("s.id = c.tip", "s.id = :id")
    elif mutant() == "dead-at-once":
        from holdfast.store.postgres import locks

        locks.PROOF_SECONDS = 0.0
        locks.claim = lambda tx, node_id: True
    elif mutant() in ("read-error-fails-store", "no-span-reads"):
        _read_carelessly()
    elif mutant() == "fts-keeps-deleted":
        from holdfast.store.sqlite.search import SearchIndex

        SearchIndex.merge_once = lambda self: False  # type: ignore[method-assign]
    elif mutant() == "log-keeps-deleted":
        from holdfast.store.sqlite.writer import SQLiteWriter

        SQLiteWriter.erase = lambda self: None  # type: ignore[method-assign]
    elif mutant() in SAFETY:
        break_safety(mutant(), setattr)
    elif mutant() == "no-header-limit":
        from holdfast.server import connections as http_connections

        vars(http_connections).update(HEADERS=2**40, HEAD_BYTES=2**40)
    elif mutant() == "no-stream-limit":
        from holdfast.server.http import RequestContext

        RequestContext.hold_stream = lambda self: None  # type: ignore[method-assign]
    elif mutant() == "trailers-are-headers":
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

        from holdfast.server.connections import HttpConnection

        HttpConnection.on_header = HttpToolsProtocol.on_header  # type: ignore[method-assign]
    elif mutant() == "no-frame-limit":
        from holdfast.server import socket_connection

        socket_connection.SOCKET_FRAMES = 10**9  # type: ignore[attr-defined]
    elif mutant() in ("attempts-not-counted", "open-calls-run-again", "stops-are-deaths"):
        _recover_carelessly()
    elif mutant() == "no-compare-and-swap":
        _swap_whatever_came_between()
    elif mutant() == "same-body-is-same-person":
        same_body_is_same_person()
    elif mutant() == "usage-is-trusted":
        usage_is_trusted()
    elif mutant() == "requests-in-memory":
        _forget_requests()
    elif mutant() == "flushed-set-in-memory":
        _forget_flushes()
    elif mutant() == "node-skips-store-flushes":
        _skip_what_waits()
    elif mutant() == "library-writes-no-flush":
        from holdfast.store import policies

        policies.flush_rules = lambda tx: tx.flushing
    elif mutant() == "loop-ends-on-one-item":
        end_on_one_item()
    elif mutant() == "finish-before-commit":
        _finish_early()
    elif mutant() == "no-checkpoints":
        from holdfast.runtime.turns.draft_writer import DraftWriter

        DraftWriter._start = lambda self: None  # type: ignore[method-assign]
        DraftWriter.is_behind = False  # type: ignore[assignment,method-assign]
    elif mutant() == "partial-reply-stays":
        from holdfast.store.sqlite.transaction import STATEMENTS

        STATEMENTS["interrupted_replies_of_turn"] = (
            "SELECT 1 WHERE :conversation + :first_seq + :turn IS NULL"
        )


def _read_carelessly() -> None:
    from holdfast.errors import StoreFailed
    from holdfast.store.sqlite import readers
    from holdfast.store.sqlite.transaction import SQLiteTransaction
    from holdfast.store.transaction import Q

    def whole(self: SQLiteTransaction, conversation: str, first: int, last: int, most: int) -> bytes | None:
        row = self.one(Q.bodies, conversation=conversation, first=first, last=last)
        return (row[0] if row else None) or b""

    if mutant() == "no-span-reads":
        SQLiteTransaction.joined_bodies = whole  # type: ignore[method-assign]
    else:
        readers.translate = lambda error, *given: StoreFailed(str(error))  # type: ignore[attr-defined]


def _recover_carelessly() -> None:
    from holdfast.domain.recovery import Cause
    from holdfast.runtime.tools.toolbox import Toolbox, ToolCall
    from holdfast.runtime.turns import runner
    from holdfast.store.sqlite.transaction import STATEMENTS

    async def run_again(self: Toolbox, call: ToolCall) -> str | None:
        return await self.run(call)

    if mutant() == "open-calls-run-again":
        Toolbox.outcome = run_again  # type: ignore[method-assign]
    elif mutant() == "stops-are-deaths":
        runner._SERVER_STOPPED.cause = Cause.DEATH
    else:
        counted = STATEMENTS["take_up_turn"]
        for column in ("attempt", "tries", "all_tries"):
            counted = counted.replace(f" {column} = {column} + 1", f" {column} = {column}")
        STATEMENTS["take_up_turn"] = counted


def _skip_what_waits() -> None:
    from holdfast.app import Holdfast
    from holdfast.domain.flushes import FlushState
    from holdfast.store.store import Store

    careful = Holdfast._record_policy

    async def careless(self: Holdfast, store: Store) -> None:
        await careful(self, store)
        if self.flusher is None:
            for flush in (await store.flushes(None, state=FlushState.PENDING)).items:
                await store.skip_flush(None, flush.session_id, "this node does not flush")

    Holdfast._record_policy = careless  # type: ignore[method-assign]


def end_on_one_item() -> None:
    from holdfast.runtime.periodic import Periodic

    def end(self: Periodic, error: BaseException) -> float:
        raise error

    Periodic._failed = end  # type: ignore[method-assign]
    Periodic._run = Periodic._loop  # type: ignore[method-assign]


SAFETY = ("rights-checked-at-door", "own-key-upstream")


def break_safety(name: str, put: Callable[[Any, str, Any], None]) -> None:
    """Those that can be put in, by `put`, and taken out again within one process."""
    if name == "rights-checked-at-door":
        from holdfast.runtime.tools import process
        from holdfast.server.admin import processes

        put(process, "check_right", lambda *given: None)
        put(processes, "check_right", lambda *given: None)
    elif name == "own-key-upstream":
        from holdfast.models import connection

        put(connection, "sendable", lambda key, where: key)


def same_body_is_same_person(put: Callable[[Any, str, Any], None] = setattr) -> None:
    from holdfast.domain.request_keys import RequestKey
    from holdfast.domain.turns import Turn
    from holdfast.store import request_keys

    def is_sent_again(key: RequestKey, fingerprint: bytes, turn: Turn) -> bool:
        return key.is_same_body(fingerprint) and key.retries > 0

    put(request_keys, "is_sent_again", is_sent_again)


def usage_is_trusted(put: Callable[[Any, str, Any], None] = setattr) -> None:
    from holdfast.domain import context_size
    from holdfast.models import known_windows as windows

    def suspect(self: windows.Windows, name: str | None, tokens: int, owner: str) -> bool:
        self.learn(name, tokens, owner)
        return True

    put(context_size, "RISES_NEEDED", 0)
    put(context_size, "FLAT_NEEDED", 1)
    put(context_size.TokenReport, "is_plausible", True)
    put(windows, "CONFIGURED", frozenset())
    put(windows.Windows, "suspect", suspect)


def _forget_flushes() -> None:
    from holdfast.domain.flushes import Flush
    from holdfast.store import flushes
    from holdfast.store.engine import writes
    from holdfast.store.sqlite.transaction import STATEMENTS
    from holdfast.store.store import Store
    from holdfast.store.transaction import Transaction

    flushed: set[str] = set()
    claim, finish, due = flushes.claim, flushes.finish, STATEMENTS["due_flushes"]
    STATEMENTS["finish_flush"] = (
        "UPDATE flushes SET state = 'pending', node = NULL, next_attempt_at = :now "
        "WHERE session = :session AND state = 'running' AND token = :token"
    )
    STATEMENTS["insert_memory"] = STATEMENTS["insert_memory"].replace("INSERT", "INSERT OR IGNORE")

    def claim_what_is_not_in_the_set(
        tx: Transaction, node_id: str, *, together: int, per_minute: int
    ) -> list[Flush]:
        names = ", ".join(f"'{session_id}'" for session_id in flushed)
        STATEMENTS["due_flushes"] = due.replace("WHERE", f"WHERE session NOT IN ({names}) AND")
        return claim(tx, node_id, together=together, per_minute=per_minute)

    def note_it_in_the_set(tx: Transaction, claimed: Flush, text: str | None) -> bool:
        flushed.add(claimed.session_id)
        return finish(tx, claimed, text)

    Store.claim_flushes = writes(claim_what_is_not_in_the_set)
    Store.finish_flush = writes(note_it_in_the_set)


def _swap_whatever_came_between() -> None:
    from dataclasses import replace

    from holdfast.domain.compaction import Claim
    from holdfast.domain.conversations import Address
    from holdfast.store import compaction
    from holdfast.store.engine import writes
    from holdfast.store.resolve import place
    from holdfast.store.store import Store
    from holdfast.store.transaction import Transaction

    careful = compaction.compact

    def careless(
        tx: Transaction, claim: Claim, view: Any, revision: int, facts: Any, *, lease: Any = None
    ) -> Any:
        now = place(tx, None, Address(id=claim.conversation_id))
        claim = replace(claim, session_id=now.tip.id)
        return careful(tx, claim, view, now.conversation.revision, facts, lease=lease)

    Store.compact = writes(careless)


def _forget_requests() -> None:
    from holdfast.domain.request_keys import RequestKey
    from holdfast.domain.turns import Turn, TurnRequest
    from holdfast.store import turns
    from holdfast.store.request_keys import known_request as lookup
    from holdfast.store.sqlite.transaction import STATEMENTS
    from holdfast.store.transaction import Transaction

    STATEMENTS["forget_request"] = (
        "DELETE FROM requests WHERE owner = :owner AND route = :route AND key = :key"
    )
    known: set[str] = set()

    def known_here(tx: Transaction, request: TurnRequest) -> Turn | RequestKey | None:
        key = request.request_key
        if key is None or key.key in known:
            return lookup(tx, request)
        known.add(key.key)
        tx.run("forget_request", owner=request.owner, route=key.route, key=key.key)
        return None

    vars(turns)["known_request"] = known_here


def _finish_early() -> None:
    import msgspec

    from holdfast.models.base import Chunk
    from holdfast.runtime.turns.live import Outcome
    from holdfast.server.conversation_ref import about_begun
    from holdfast.server.openai import chat
    from holdfast.server.openai.completions import ChatRenderer

    class Hasty(ChatRenderer):
        def add(self, chunk: Chunk) -> list[bytes]:
            if not chunk.finishes:
                return list(super().add(chunk))
            assert self._begun is not None
            last = {**chunk.value, "holdfast": about_begun(self._begun)}
            return [b"data: %b\n\n" % msgspec.json.encode(last)]

        def end(self, outcome: Outcome) -> list[bytes]:
            return list(super().end(outcome))[-1:]

    vars(chat)["ChatRenderer"] = Hasty
