"""Checkpoints of graphs: the state after each step, and what tasks wrote after it, by conversation.

A graph's thread is a conversation, found by its key. Writes lock it, so two processes on one thread are
serialised. The messages that a step adds are stored in the same transaction as its checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..domain.checkpoints import Checkpoint, CheckpointWrite, NewCheckpoint
from ..domain.conversations import Address
from ..domain.messages import size_of
from ..domain.session_messages import Named
from ..errors import NotFound
from .conversations import touch_ready
from .resets import touch
from .resolve import ResolvedRow, conversation_of, find, lookup
from .rows import Row
from .session_messages import append, append_new, unknown
from .sessions import check_quotas, fork, open_conversation, require_node
from .transaction import Q, Transaction

AFTER_ALL = "\U0010ffff"


def to_checkpoint(row: Row) -> Checkpoint:
    return Checkpoint(*row)


def _touch(tx: Transaction, reached: ResolvedRow, node_id: str) -> None:
    """A step of a graph counts as activity of its session."""
    if reached.is_ready_for(node_id, tx.now, tx.policies):
        touch_ready(tx, reached)
        return
    tip = reached.place().tip
    if not tip.ended:
        tx.run(Q.touch_session, id=tip.id, now=tx.now, model=None, input_tokens=0, output_tokens=0)
        touch(tx, tip.id)


def put(
    tx: Transaction,
    owner: str,
    key: str,
    source: str,
    node_id: str,
    checkpoint: NewCheckpoint,
    messages: Sequence[Named] = (),
) -> None:
    """Store a checkpoint, replacing one of the same id, and the messages that are not stored yet. Opens the
    conversation if the thread is new. QuotaExceeded, ConversationBusy and NodeReaped write nothing."""
    adds = len(checkpoint.body) + size_of(each.message for each in messages)
    reached = lookup(tx, owner, Address(key=key))
    if reached is None:
        require_node(tx, node_id)
        tip = open_conversation(tx, owner, Address(key=key), None, source, adds=adds)
        conversation_id = tip.conversation_id
        if messages:
            append(tx, owner, conversation_id, node_id, messages)
    else:
        conversation_id = reached.seen.conversation_id
        check_quotas(tx, owner, adds, conversation_id, reached.held)
        if new := unknown(tx, conversation_id, messages):
            append_new(tx, reached, owner, node_id, new)
        else:
            require_node(tx, node_id)
            _touch(tx, reached, node_id)
    values = {
        "conversation": conversation_id,
        "ns": checkpoint.ns,
        "id": checkpoint.id,
        "parent": checkpoint.parent,
        "run": checkpoint.run,
        "kind": checkpoint.kind,
        "metadata": checkpoint.metadata,
        "body": checkpoint.body,
    }
    where = {name: values[name] for name in ("conversation", "ns", "id")}
    tx.run(Q.weigh_checkpoint, **where, bytes=len(checkpoint.body))
    tx.run(Q.put_checkpoint, **values, now=tx.now)


def put_writes(
    tx: Transaction,
    owner: str,
    key: str,
    source: str,
    ns: str,
    checkpoint_id: str,
    writes: Sequence[CheckpointWrite],
) -> None:
    """Store what a task wrote after this checkpoint, which may not be stored yet. Idempotent."""
    reached = lookup(tx, owner, Address(key=key))
    if reached is None:
        conversation_id = open_conversation(tx, owner, Address(key=key), None, source).conversation_id
    else:
        conversation_id = reached.seen.conversation_id
        _touch(tx, reached, "")
    for replaces, statement in ((False, Q.insert_checkpoint_write), (True, Q.replace_checkpoint_write)):
        rows = [
            {
                "conversation": conversation_id,
                "ns": ns,
                "checkpoint": checkpoint_id,
                "task": write.task,
                "ordinal": write.ordinal,
                "channel": write.channel,
                "path": write.path,
                "kind": write.kind,
                "body": write.body,
            }
            for write in writes
            if write.replaces is replaces
        ]
        if rows:
            tx.run_many(statement, rows)


def get(
    tx: Transaction, owner: str, key: str, ns: str, checkpoint_id: str | None
) -> tuple[Checkpoint, list[CheckpointWrite]] | None:
    """A checkpoint, or the newest of its namespace, with the writes after it; None if there is none."""
    found = lookup(tx, owner, Address(key=key))
    if found is None:
        return None
    conversation_id = found.seen.conversation_id
    if checkpoint_id is None:
        row = tx.one(Q.newest_checkpoint, conversation=conversation_id, ns=ns)
    else:
        row = tx.one(Q.checkpoint_by_id, conversation=conversation_id, ns=ns, id=checkpoint_id)
    if row is None:
        return None
    checkpoint = to_checkpoint(row)
    return checkpoint, _writes(tx, checkpoint)


def _writes(tx: Transaction, checkpoint: Checkpoint) -> list[CheckpointWrite]:
    rows = tx.all(
        Q.writes_of_checkpoint,
        conversation=checkpoint.conversation_id,
        ns=checkpoint.ns,
        checkpoint=checkpoint.id,
    )
    return [CheckpointWrite(*row) for row in rows]


def page(
    tx: Transaction,
    owner: str,
    key: str | None,
    ns: str | None,
    *,
    after: Checkpoint | None = None,
    older_than: str | None = None,
    limit: int = 100,
) -> list[tuple[Checkpoint, list[CheckpointWrite]]]:
    """The next checkpoints after `after`, the newest first, older than an id: of a thread (or all of the
    owner) and a namespace (or all)."""
    if key is not None:
        found = find(tx, owner, Address(key=key))
        if found is None:
            return []
        conversation_id = found.conversation.id
    start = older_than or AFTER_ALL
    if after is not None:
        start = after.id
    if key is None:
        place = {
            "conversation": after.conversation_id if after else AFTER_ALL,
            "ns": after.ns if after else AFTER_ALL,
        }
        rows = tx.all(Q.checkpoints_of_owner, owner=owner, older_than=start, limit=limit, **place)
    elif ns is None:
        behind = after.ns if after else AFTER_ALL
        rows = tx.all(
            Q.checkpoints_of_conversation,
            conversation=conversation_id,
            older_than=start,
            ns=behind,
            limit=limit,
        )
    else:
        rows = tx.all(Q.checkpoints_of_ns, conversation=conversation_id, ns=ns, older_than=start, limit=limit)
    return [(checkpoint, _writes(tx, checkpoint)) for checkpoint in map(to_checkpoint, rows)]


def copy(tx: Transaction, owner: str, key: str, target: str, node_id: str) -> None:
    """Copy a thread with its messages, checkpoints and writes to a new key. If that key exists, only
    checkpoints that it lacks are added. NotFound if the thread is unknown."""
    found = find(tx, owner, Address(key=key))
    if found is None:
        raise NotFound("conversation", key)
    there = find(tx, owner, Address(key=target))
    if there is None:
        target_id = fork(tx, owner, found.tip.id, node_id, key=target).conversation_id
    else:
        target_id = there.conversation.id
    source_id = found.conversation.id
    held = sum(size for _, _, size in tx.all(Q.checkpoint_sizes, conversation=target_id))
    tx.run(Q.copy_checkpoints, target=target_id, conversation=source_id)
    tx.run(Q.copy_checkpoint_writes, target=target_id, conversation=source_id)
    tx.run(Q.copy_message_names, target=target_id, conversation=source_id)
    copied = sum(size for _, _, size in tx.all(Q.checkpoint_sizes, conversation=target_id)) - held
    tx.run(Q.free_bytes, id=target_id, bytes=-copied)


def delete(tx: Transaction, owner: str, key: str, doomed: Sequence[tuple[str, str]]) -> int:
    """Delete these checkpoints of a thread, each by namespace and id, with their writes; returns how many
    were there. Messages stay."""
    found = find(tx, owner, Address(key=key))
    return 0 if found is None else _delete(tx, owner, found.conversation.id, doomed)


def delete_runs(tx: Transaction, owner: str, runs: Sequence[str]) -> int:
    """Delete the checkpoints that these runs wrote, with their writes; returns how many."""
    doomed: dict[str, list[tuple[str, str]]] = {}
    for run in runs:
        for conversation_id, ns, checkpoint_id, _ in tx.all(Q.checkpoints_of_run, run=run, owner=owner):
            doomed.setdefault(conversation_id, []).append((ns, checkpoint_id))
    # In one order everywhere, to avoid deadlocks between nodes.
    return sum(_delete(tx, owner, each, doomed[each]) for each in sorted(doomed))


def _delete(tx: Transaction, owner: str, conversation_id: str, doomed: Sequence[tuple[str, str]]) -> int:
    conversation_of(tx, owner, conversation_id)
    freed = deleted = 0
    for ns, checkpoint_id in doomed:
        where = {"conversation": conversation_id, "ns": ns, "id": checkpoint_id}
        row = tx.one(Q.checkpoint_size, **where)
        tx.run(Q.delete_checkpoint_writes, **where)
        if row is not None:
            tx.run(Q.delete_checkpoint, **where)
            freed += row[0]
            deleted += 1
    if deleted:
        tx.run(Q.free_bytes, id=conversation_id, bytes=freed)
        tx.erased = True
    return deleted
