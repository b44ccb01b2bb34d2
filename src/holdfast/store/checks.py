"""The invariants that the database alone can check, each one query.

Those that depend on liveness (an open session without a live owner, a running turn without a live holder) are
checked by the doctor, from these queries and `probe`.
"""

from __future__ import annotations

from .base import Finding
from .resolve import conversation_of
from .transaction import Q, Transaction

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


def check(tx: Transaction) -> list[Finding]:
    findings = []
    for name, sentence in INVARIANTS.items():
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
