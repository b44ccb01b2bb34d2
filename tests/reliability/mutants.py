"""Deliberate breakages, to prove that the suites see them. Named by an environment variable, here only.

HOLDFAST_TEST_MUTANT=acknowledge-before-commit   a writing process tells first and writes afterwards
HOLDFAST_TEST_MUTANT=synchronous-normal          commits do not wait for the disk
HOLDFAST_TEST_MUTANT=no-inode-check              nobody looks whether the files are still the same
HOLDFAST_TEST_MUTANT=requests-in-memory          which turn a request stands for is forgotten with the process
HOLDFAST_TEST_MUTANT=finish-before-commit        a stream is told that it has ended before the reply is stored
HOLDFAST_TEST_MUTANT=no-checkpoints              a growing reply is stored when it is whole, not before
HOLDFAST_TEST_MUTANT=partial-reply-stays         a reply that was cut short is shown to whoever answers again
HOLDFAST_TEST_MUTANT=no-tip-resolution           an id leads to the very session it named, not to the newest
HOLDFAST_TEST_MUTANT=no-compare-and-swap         a compaction is carried out whatever came between
HOLDFAST_TEST_MUTANT=flushed-set-in-memory       which sessions were flushed is forgotten with the process
HOLDFAST_TEST_MUTANT=dead-at-once                a node whose connection was cut is taken for dead at once
HOLDFAST_TEST_MUTANT=no-header-limit             a request's head may have any size
HOLDFAST_TEST_MUTANT=no-stream-limit             one key may have any number of streams
HOLDFAST_TEST_MUTANT=trailers-are-headers        fields behind a body count like those before it
"""

from __future__ import annotations

import os
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
    "no-header-limit",
    "no-stream-limit",
    "trailers-are-headers",
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

        def careless(database: Path, *, patience: float = 30.0, read_only: bool = False) -> apsw.Connection:
            connection = careful(database, patience=patience, read_only=read_only)
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
    elif mutant() == "no-header-limit":
        from holdfast.surfaces.api import connections as http_connections

        vars(http_connections).update(HEADERS=2**40, HEAD_BYTES=2**40)
    elif mutant() == "no-stream-limit":
        from holdfast.surfaces.api.call import Call

        Call.hold_stream = lambda self: None  # type: ignore[method-assign]
    elif mutant() == "trailers-are-headers":
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

        from holdfast.surfaces.api.connections import HttpConnection

        HttpConnection.on_header = HttpToolsProtocol.on_header  # type: ignore[method-assign]
    elif mutant() == "no-compare-and-swap":
        _swap_whatever_came_between()
    elif mutant() == "requests-in-memory":
        _forget_requests()
    elif mutant() == "flushed-set-in-memory":
        _forget_flushes()
    elif mutant() == "finish-before-commit":
        _finish_early()
    elif mutant() == "no-checkpoints":
        from holdfast.runtime.checkpoints import Checkpoints

        Checkpoints._start = lambda self: None  # type: ignore[method-assign]
        Checkpoints.behind = False  # type: ignore[assignment,method-assign]
    elif mutant() == "partial-reply-stays":
        from holdfast.store.sqlite.transaction import STATEMENTS

        STATEMENTS["interrupted_replies_of_turn"] = (
            "SELECT 1 WHERE :conversation + :first_seq + :turn IS NULL"
        )


def _forget_flushes() -> None:
    from holdfast.domain.flushes import Flush
    from holdfast.store.sqlite.transaction import STATEMENTS
    from holdfast.store.transactions import flush_writes
    from holdfast.store.transactions.transaction import Transaction

    flushed: set[str] = set()
    claim, finish, due = flush_writes.claim, flush_writes.finish, STATEMENTS["due_flushes"]
    STATEMENTS["finish_flush"] = (
        "UPDATE flushes SET state = 'pending', node = NULL, next_attempt_at = :now "
        "WHERE session = :session AND state = 'running' AND token = :token"
    )
    STATEMENTS["insert_memory"] = STATEMENTS["insert_memory"].replace("INSERT", "INSERT OR IGNORE")

    def claim_what_is_not_in_the_set(tx: Transaction, *given: Any) -> list[Flush]:
        names = ", ".join(f"'{session_id}'" for session_id in flushed)
        STATEMENTS["due_flushes"] = due.replace("WHERE", f"WHERE session NOT IN ({names}) AND")
        return claim(tx, *given)

    def note_it_in_the_set(tx: Transaction, claimed: Flush, text: str | None) -> bool:
        flushed.add(claimed.session_id)
        return finish(tx, claimed, text)

    flush_writes.claim = claim_what_is_not_in_the_set  # type: ignore[assignment]
    flush_writes.finish = note_it_in_the_set


def _swap_whatever_came_between() -> None:
    from dataclasses import replace

    from holdfast.domain.claims import Claim
    from holdfast.domain.conversations import Address
    from holdfast.store.transactions import compacting
    from holdfast.store.transactions.places import place
    from holdfast.store.transactions.transaction import Transaction

    careful = compacting.compact

    def careless(tx: Transaction, claim: Claim, view: Any, revision: int, facts: Any, lease: Any) -> Any:
        now = place(tx, None, Address(id=claim.conversation_id))
        claim = replace(claim, session_id=now.tip.id)
        return careful(tx, claim, view, now.conversation.revision, facts, lease)

    compacting.compact = careless


def _forget_requests() -> None:
    from holdfast.domain.turns import Turn, TurnRequest
    from holdfast.store.transactions import turn_writes
    from holdfast.store.transactions.transaction import Q, Transaction

    lookup = turn_writes._known_request
    known: set[str] = set()

    def known_here(tx: Transaction, request: TurnRequest) -> Turn | None:
        key = request.request_key
        if key is None or key.key in known:
            return lookup(tx, request)
        known.add(key.key)
        tx.run(Q.forget_request, owner=request.owner, route=key.route, key=key.key)
        return None

    turn_writes._known_request = known_here


def _finish_early() -> None:
    import msgspec

    from holdfast.models.base import Chunk
    from holdfast.runtime.running_turn import Outcome
    from holdfast.surfaces.api import chat
    from holdfast.surfaces.api.naming import about_begun

    class Hasty(chat.ChatTelling):
        def add(self, chunk: Chunk) -> list[bytes]:
            if not chunk.finishes:
                return list(super().add(chunk))
            assert self._begun is not None
            last = {**chunk.value, "holdfast": about_begun(self._begun)}
            return [b"data: %b\n\n" % msgspec.json.encode(last)]

        def end(self, outcome: Outcome) -> list[bytes]:
            return list(super().end(outcome))[-1:]

    chat.ChatTelling = Hasty  # type: ignore[misc]
