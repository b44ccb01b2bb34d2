"""What operators need of the whole store: totals, invariants, and deletion by age.

The invariants are those that the database alone can check, each one query. Those that depend on liveness (an
open session without a live owner, a running turn without a live holder) are checked by the doctor, from these
queries and `probe`.

Deletion is bounded, the oldest first. Conversations are deleted by their last activity, never by when they
began, and completely. One that is still in use (a turn, a program, a process, a flush) is kept, and counted.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from .resolve import conversation_of
from .rows import MICROSECOND
from .sessions import delete_conversation
from .transaction import Q, Transaction
from .values import Figures, Finding, OwnerUsage, Pruned, Retention, Statistics, check_limit

# --- totals ----------------------------------------------------------------------------------------------


def usage(tx: Transaction, owner: str | None, *, limit: int = 20) -> list[OwnerUsage]:
    """Stored bytes and counts per owner, those with the most bytes first; or only this one."""
    check_limit(limit)
    rows = tx.all(Q.usage, limit=limit) if owner is None else tx.all(Q.usage_of_owner, owner=owner)
    return [OwnerUsage(*row) for row in rows]


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


def figures(tx: Transaction, log_bytes: int, unindexed: int | None) -> Figures:
    """Totals of the store, with the two that each engine counts its own way."""
    row = tx.one(Q.figures)
    assert row is not None
    open_sessions, running_turns, messages, events, undelivered = row
    return Figures(open_sessions, running_turns, messages, events, undelivered, log_bytes, unindexed)


# --- invariants ------------------------------------------------------------------------------------------

INVARIANTS = {
    "at_most_one_open_session": "at most one open session per conversation",
    "gap_free_numbers": "message numbers are gap-free, from 1 to the conversation's last",
    "messages_within_sessions": "no message of a session lies before its first number or after its last",
    "sizes_are_true": "every conversation's size is the sum of its messages' and checkpoints' bytes",
    "tips_are_newest": "every session id resolves to its conversation's tip, the newest of its line",
    "turns_hold_leases": "every running turn holds its conversation's lease, and every lease has its turn",
    "settled_nodes_left_nothing": "no open session and no lease hangs on a node that is settled or unknown",
    "owners_agree": "a session and its turns have the owner of their conversation",
    "ended_sessions_say_why": "every ended session has a reason and an end",
    "turns_in_known_states": "every turn is in a state the machine knows, ended unless running",
    "requests_have_turns": "every request key stands for a turn",
    "processes_in_known_states": "every process is in a state the machine knows, ended unless it may run",
    "running_processes_are_identified": "every running process row says who it is",
    "one_memory_per_flush": "at most one memory per flushed session",
    "flushes_are_settled": "every flush is done, scheduled or dead-lettered",
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
    return [f"counted the bytes of {len(wrong)} conversations anew"] if wrong else []


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
        "events": drop(Q.prune_events, keep.events),
        "requests": drop(Q.prune_requests, keep.requests),
        "nodes": drop(Q.prune_nodes, keep.events),
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
    delete."""
    most = min(limit, CONVERSATIONS_AT_ONCE)
    dropped = 0
    for (conversation_id,) in tx.all(Q.old_conversations, before=before, limit=most):
        # Selected before it was locked: a turn, a process or a flush may have begun since.
        if tx.one(Q.is_old_conversation, id=conversation_id, before=before) is not None:
            delete_conversation(tx, None, conversation_id)
            dropped += 1
    (spared,) = tx.one(Q.old_conversations_spared, before=before) or (0,)
    return dropped, spared, dropped >= most
