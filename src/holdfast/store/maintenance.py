"""What operators need of the whole store: totals, invariants, and deletion by age.

The invariants are those that the database alone can check, each one query. Those that depend on liveness (an
open session without a live owner, a running turn without a live holder) are checked by the doctor, from these
queries and `probe`.

Deletion is bounded, the oldest first. Conversations are deleted by their last activity, never by when they
began, and completely. One that is still in use (a turn, a program, a process, a flush) is kept, and counted.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec

from ..domain.figures import FIRST_TOKEN, EndedTurn, EndedTurns
from ..domain.turns import TurnStatus
from ..domain.usage import input_tokens, output_tokens
from .conversations import delete_conversation
from .resolve import conversation_of
from .rows import MICROSECOND, to_stamp, to_time
from .transaction import Q, Transaction
from .values import Figures, Finding, OwnerUsage, Pruned, Retention, Statistics, check_limit

MOST_COUNTED = 20_000
"""How many of the newest turns figures are made of."""

# --- totals ----------------------------------------------------------------------------------------------


def usage(tx: Transaction, owner: str | None, *, limit: int = 20) -> list[OwnerUsage]:
    """Stored bytes and counts per owner, those with the most bytes first; or only this one."""
    check_limit(limit)
    rows = tx.all(Q.usage, limit=limit) if owner is None else tx.all(Q.usage_of_owner, owner=owner)
    return [OwnerUsage(*row) for row in rows]


def store_id(tx: Transaction) -> str:
    """The random id of this store. A copy made by a backup has another. Never sent to clients."""
    row = tx.one(Q.store_id)
    assert row is not None  # written when the store is made
    return str(row[0])


def statistics(tx: Transaction, owner: str | None) -> Statistics:
    """Counts of sessions, messages and conversations, of one owner or of all."""
    total, still_open = tx.one(Q.session_totals, owner=owner) or (0, 0)
    (message_total,) = tx.one(Q.message_total, owner=owner) or (0,)
    (conversation_total,) = tx.one(Q.conversation_total, owner=owner) or (0,)
    return Statistics(
        sessions=total,
        open=still_open,
        messages=message_total,
        conversations=conversation_total,
        end_reasons=dict(tx.all(Q.session_end_reasons, owner=owner)),  # type: ignore[arg-type]
        sources=dict(tx.all(Q.session_sources, owner=owner)),  # type: ignore[arg-type]
    )


def turns_ended(tx: Transaction, owner: str | None, since: datetime) -> EndedTurns:
    """The turns that ended since then, newest first. Only the newest MOST_COUNTED turns of all owners are
    looked at: what this costs does not grow with the store."""
    rows = tx.all(Q.turns_ended, owner=owner, since=to_stamp(since), looked_at=MOST_COUNTED)
    turns = []
    for named, status, started_at, ended_at, model, problem, usage in rows:
        counted = msgspec.json.decode(usage) if usage else {}
        turns.append(
            EndedTurn(
                named,
                TurnStatus(status),
                to_time(started_at),
                to_time(ended_at),
                model,
                problem,
                input_tokens(counted),
                output_tokens(counted),
                counted.get(FIRST_TOKEN),
            )
        )
    oldest = tx.one(Q.oldest_counted, looked_at=MOST_COUNTED)
    return EndedTurns(turns, oldest is None or oldest[0] < to_stamp(since))


def figures(tx: Transaction, log_bytes: int, free_bytes: int | None, unindexed: int | None) -> Figures:
    """Totals of the store, with those that each engine counts itself."""
    row = tx.one(Q.figures)
    assert row is not None
    open_sessions, running_turns, messages, events, undelivered = row
    return Figures(
        open_sessions, running_turns, messages, events, undelivered, log_bytes, free_bytes, unindexed
    )


# --- invariants ------------------------------------------------------------------------------------------

INVARIANTS = {
    "at_most_one_open_session": "at most one open session per conversation",
    "gap_free_numbers": "message numbers are gap-free, from 1 to the conversation's last",
    "messages_within_sessions": "no message of a session lies before its first number or after its last",
    "sizes_are_true": "every conversation's size is the sum of the bytes of what is stored in it",
    "tips_are_newest": "every session id resolves to its conversation's tip, the newest of its line",
    "queued_turns_are_whole": "every queued turn has its request and its place in its conversation's queue",
    "turns_hold_leases": "every running turn holds its conversation's lease, and every lease has its turn",
    "waiting_turns_have_their_place": "every waiting turn has its request and is its conversation's newest",
    "settled_nodes_left_nothing": "no open session and no lease belongs to a node that is gone or unknown",
    "owners_agree": "a session and its turns have the owner of their conversation",
    "ended_sessions_say_why": "every ended session has a reason and an end",
    "turns_in_known_states": "every turn has a known status and an end unless it runs",
    "requests_have_turns": "every request key has a turn",
    "processes_in_known_states": "every process has a known state and an end unless it may run",
    "running_processes_are_identified": "every running process row has an identity",
    "one_memory_per_flush": "at most one memory per flushed session",
    "flushes_are_settled": "every flush is done, scheduled or dead-lettered",
    "answered_messages_are_settled": "no answered message of a platform is left open",
    "connector_rows_in_known_states": "every message from and to a platform has a known state",
    "places_are_counted": "every conversation's count of places is right",
}


def check(tx: Transaction, checked: Callable[[int], None] = lambda _: None) -> list[Finding]:
    """Violated invariants, each with a few examples. Empty: no finding. `checked` is called with how many
    were checked."""
    findings = []
    for number, (name, sentence) in enumerate(INVARIANTS.items()):
        checked(number)
        rows = tx.all(name)
        if rows:
            examples = [str(row[0]) for row in rows[:5]]
            findings.append(Finding(sentence, len(rows), examples, repairable=name == Q.sizes_are_true))
    return findings


def repair_sizes(tx: Transaction) -> list[str]:
    """Recompute wrong sizes of conversations; returns what was done, in sentences."""
    wrong = [row[0] for row in tx.all(Q.sizes_are_true)]
    for conversation_id in wrong:
        conversation_of(tx, None, conversation_id)  # locks it, so nothing is added meanwhile
        tx.run(Q.recount_bytes, id=conversation_id)
    noun = "conversation" if len(wrong) == 1 else "conversations"
    return [f"recounted the bytes of {len(wrong)} {noun}"] if wrong else []


# --- retention -------------------------------------------------------------------------------------------

CONVERSATIONS_AT_ONCE = 10
"""Small, because each may have thousands of messages, and all writers wait."""


def prune(tx: Transaction, keep: Retention, limit: int = 1000) -> Pruned:
    """Delete what is older than its retention, at most `limit` of each kind, the oldest first."""

    def before(span: timedelta) -> int:
        return tx.now - span // MICROSECOND

    def drop(statement: str, span: timedelta) -> int:
        return tx.run(statement, before=before(span), limit=limit)

    conversations, spared, more = (0, 0, False)
    if keep.conversations is not None:
        conversations, spared, more = _conversations(tx, before(keep.conversations), limit)
    rows = {
        "drafts": drop(Q.prune_drafts, keep.drafts),
        "events": drop(Q.prune_events, keep.events) + drop(Q.prune_deliveries, keep.events),
        "requests": drop(Q.prune_requests, keep.requests)
        + drop(Q.prune_conversation_requests, keep.requests)
        + drop(Q.prune_inbox, keep.requests)
        + drop(Q.prune_side_requests, keep.requests),
        "nodes": drop(Q.prune_nodes, keep.events),
        "stored_requests": tx.run(Q.prune_stored_requests, now=tx.now, limit=limit),
    }
    pruned = Pruned(
        **rows,
        conversations=conversations,
        spared=spared,
        more=more or any(dropped >= limit for dropped in rows.values()),
    )
    tx.erased = tx.erased or pruned.anything
    return pruned


def _conversations(tx: Transaction, before: int, limit: int) -> tuple[int, int, bool]:
    """How many were deleted, how many are kept because they are in use, and whether there may be more to
    delete. Those in use are counted by the last pass: the count reads everything that is past its retention,
    while all writers wait."""
    most = min(limit, CONVERSATIONS_AT_ONCE)
    dropped = 0
    for (conversation_id,) in tx.all(Q.old_conversations, before=before, limit=most):
        # Selected before it was locked: a turn, a process or a flush may have begun since.
        if tx.one(Q.is_old_conversation, id=conversation_id, before=before) is not None:
            delete_conversation(tx, None, conversation_id)
            dropped += 1
    if dropped >= most:
        return dropped, 0, True
    (spared,) = tx.one(Q.old_conversations_spared, before=before) or (0,)
    return dropped, spared, False
