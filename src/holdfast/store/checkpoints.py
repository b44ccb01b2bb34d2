"""Checkpoints of graphs: the state after each step, and what tasks wrote after it, by conversation.

A graph's thread is a conversation, found by its key. Writes lock it, so two processes on one thread are
serialised. The messages that a step adds are stored in the same transaction as its checkpoint.

Large values are stored in parts, which checkpoints of one conversation share. A part is deleted with the last
checkpoint that refers to it, by whatever deletes checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..domain.checkpoints import Checkpoint, CheckpointWrite, NewCheckpoint, parts_of
from ..domain.conversations import Address
from ..domain.messages import size_of
from ..domain.session_messages import Named
from ..errors import NotFound
from .conversations import touch_ready
from .forks import fork
from .resets import touch
from .resolve import conversation_of, find, lookup
from .rows import ResolvedRow, Row, to_json
from .session_messages import append, append_new, unknown
from .sessions import check_quotas, open_conversation, require_node
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
) -> bool:
    """Store a checkpoint, replacing one of the same id, and the messages that are not stored yet. Opens the
    conversation if the thread is new. False, having written nothing, if what it builds on is gone.
    QuotaExceeded, ConversationBusy and NodeReaped write nothing."""
    size = checkpoint.size
    reached = lookup(tx, owner, Address(key=key))
    if reached is None:
        if checkpoint.continues or checkpoint.base is not None:
            return False
        require_node(tx, node_id)
        adds = size + size_of(each.message for each in messages)
        tip = open_conversation(tx, owner, Address(key=key), None, source, adds=adds)
        conversation_id = tip.conversation_id
        if messages:
            append(tx, owner, conversation_id, node_id, messages)
        tx.run(Q.grow, id=conversation_id, bytes=size)
    else:
        conversation_id = reached.conversation_id
        new, grows = messages, size
        if _clashes(tx, conversation_id, checkpoint, messages):
            if _is_base_gone(tx, conversation_id, checkpoint):
                return False
            new = unknown(tx, conversation_id, messages)
            grows -= _size_of_replaced(tx, conversation_id, checkpoint)
        if new:
            append_new(tx, reached, owner, node_id, new, beside=grows)
        else:
            check_quotas(tx, owner, grows, conversation_id, reached.held)
            require_node(tx, node_id)
            _touch(tx, reached, node_id)
            tx.run(Q.grow, id=conversation_id, bytes=grows)
    for part in checkpoint.parts:
        tx.run(Q.insert_checkpoint_part, conversation=conversation_id, id=part.id, body=part.body)
    tx.run(
        Q.put_checkpoint,
        conversation=conversation_id,
        ns=checkpoint.ns,
        id=checkpoint.id,
        parent=checkpoint.parent,
        run=checkpoint.run,
        kind=checkpoint.kind,
        metadata=checkpoint.metadata,
        body=checkpoint.body,
        segments=checkpoint.segments,
        now=tx.now,
    )
    return True


def _clashes(
    tx: Transaction, conversation_id: str, checkpoint: NewCheckpoint, messages: Sequence[Named]
) -> bool:
    """False: the checkpoint and its messages are new, and what it shares parts with is stored. One statement,
    because that is so for nearly every step."""
    if len(messages) > 1:
        return True
    base, base_segments = checkpoint.base or (None, None)
    found = tx.one(
        Q.checkpoint_clashes,
        conversation=conversation_id,
        ns=checkpoint.ns,
        id=checkpoint.id,
        base=base,
        base_segments=base_segments,
        name=messages[0].name if messages else None,
    )
    return found is not None


def _is_base_gone(tx: Transaction, conversation_id: str, checkpoint: NewCheckpoint) -> bool:
    """True if the checkpoint whose parts this one shares is not stored in this conversation any more."""
    if checkpoint.base is None:
        return False
    base, segments = checkpoint.base
    row = tx.one(Q.checkpoint_segments_of, conversation=conversation_id, ns=checkpoint.ns, id=base)
    return row is None or row[0] != segments


def _size_of_replaced(tx: Transaction, conversation_id: str, checkpoint: NewCheckpoint) -> int:
    """The bytes of the checkpoint that this one replaces; 0: it is new."""
    row = tx.one(Q.checkpoint_size, conversation=conversation_id, ns=checkpoint.ns, id=checkpoint.id)
    return 0 if row is None else int(row[0])


def put_writes(
    tx: Transaction,
    owner: str,
    key: str,
    source: str,
    ns: str,
    checkpoint_id: str,
    writes: Sequence[CheckpointWrite],
) -> None:
    """Store what a task wrote after this checkpoint, which may not be stored yet. Idempotent. QuotaExceeded
    writes nothing."""
    reached = lookup(tx, owner, Address(key=key))
    if reached is None:
        adds = _growth(writes, {})
        opened = open_conversation(tx, owner, Address(key=key), None, source, adds=adds)
        conversation_id = opened.conversation_id
    else:
        conversation_id = reached.conversation_id
        adds = _growth(writes, _sizes_of_written(tx, conversation_id, ns, checkpoint_id, writes))
        if adds > 0:
            check_quotas(tx, owner, adds, conversation_id, reached.held)
        _touch(tx, reached, "")
    if adds:
        tx.run(Q.grow, id=conversation_id, bytes=adds)
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


_WritePlace = tuple[str, int]
"""Task and ordinal of a write."""


def _sizes_of_written(
    tx: Transaction, conversation_id: str, ns: str, checkpoint_id: str, writes: Sequence[CheckpointWrite]
) -> dict[_WritePlace, int]:
    """The bytes of what the tasks of these writes have written before, after this checkpoint."""
    found: dict[_WritePlace, int] = {}
    for task in sorted({write.task for write in writes}):
        where = {"conversation": conversation_id, "ns": ns, "checkpoint": checkpoint_id, "task": task}
        for ordinal, size in tx.all(Q.checkpoint_write_sizes, **where):
            found[task, ordinal] = size
    return found


def _growth(writes: Sequence[CheckpointWrite], stored: Mapping[_WritePlace, int]) -> int:
    """How many bytes more are stored with these writes, beside those that are stored already."""
    sizes = dict(stored)
    for write in sorted(writes, key=lambda each: each.replaces):  # in the order in which they are stored
        if write.replaces or (write.task, write.ordinal) not in sizes:
            sizes[write.task, write.ordinal] = len(write.body)
    return sum(sizes.values()) - sum(stored.values())


def get(
    tx: Transaction, owner: str, key: str, ns: str, checkpoint_id: str | None
) -> tuple[Checkpoint, list[CheckpointWrite]] | None:
    """A checkpoint, or the newest of its namespace, with the writes after it; None if there is none."""
    found = lookup(tx, owner, Address(key=key))
    if found is None:
        return None
    conversation_id = found.conversation_id
    if checkpoint_id is None:
        row = tx.one(Q.newest_checkpoint, conversation=conversation_id, ns=ns)
    else:
        row = tx.one(Q.checkpoint_by_id, conversation=conversation_id, ns=ns, id=checkpoint_id)
    if row is None:
        return None
    (checkpoint,) = _with_parts(tx, [to_checkpoint(row)])
    return checkpoint, _writes(tx, checkpoint)


def _with_parts(tx: Transaction, found: Sequence[Checkpoint]) -> list[Checkpoint]:
    """These checkpoints with the parts that they refer to, each part read once."""
    texts: dict[str, list[str | None]] = {}
    for each in found:
        texts.setdefault(each.conversation_id, []).append(each.segments)
    parts: dict[str, dict[str, bytes]] = {}
    for conversation_id, segments in texts.items():
        if needed := parts_of(segments):
            rows: list[Any] = tx.all(
                Q.checkpoint_parts, conversation=conversation_id, ids=to_json(sorted(needed))
            )
            parts[conversation_id] = dict(rows)
    return [
        each if each.segments is None else replace(each, parts=parts[each.conversation_id]) for each in found
    ]


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
    found_here = _with_parts(tx, [to_checkpoint(row) for row in rows])
    return [(checkpoint, _writes(tx, checkpoint)) for checkpoint in found_here]


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
    held = _size(tx, target_id)
    tx.run(Q.copy_checkpoint_parts, target=target_id, conversation=source_id)
    tx.run(Q.copy_checkpoints, target=target_id, conversation=source_id)
    tx.run(Q.copy_checkpoint_writes, target=target_id, conversation=source_id)
    tx.run(Q.copy_message_names, target=target_id, conversation=source_id)
    tx.run(Q.free_bytes, id=target_id, bytes=held - _size(tx, target_id))


def _size(tx: Transaction, conversation_id: str) -> int:
    """The bytes of a conversation's checkpoints, their parts and writes."""
    bodies = tx.all(Q.checkpoint_sizes, conversation=conversation_id)
    parts = tx.all(Q.checkpoint_part_sizes, conversation=conversation_id)
    (written,) = tx.one(Q.checkpoint_writes_size, conversation=conversation_id) or (0,)
    total: int = written + sum(size for *_, size in (*bodies, *parts))
    return total


def delete(tx: Transaction, owner: str, key: str, doomed: Sequence[tuple[str, str]]) -> int:
    """Delete these checkpoints of a thread, each by namespace and id, with their writes; returns how many
    were there. Messages stay."""
    found = find(tx, owner, Address(key=key))
    return 0 if found is None else _delete(tx, owner, found.conversation.id, doomed)


def delete_runs(tx: Transaction, owner: str, runs: Sequence[str]) -> int:
    """Delete the checkpoints that these runs wrote, with their writes; returns how many."""
    locked: set[str] = set()
    while True:
        doomed: dict[str, list[tuple[str, str]]] = {}
        for run in runs:
            for conversation_id, ns, checkpoint_id, _ in tx.all(Q.checkpoints_of_run, run=run, owner=owner):
                doomed.setdefault(conversation_id, []).append((ns, checkpoint_id))
        if doomed.keys() <= locked:
            return sum(_delete(tx, owner, each, doomed[each]) for each in sorted(doomed))
        # Read again once they are locked: another node may have copied them. In one order everywhere, to
        # avoid deadlocks between nodes.
        for each in sorted(doomed.keys() - locked):
            tx.one(Q.conversation_by_id, id=each, owner=owner)
            locked.add(each)


def _delete(tx: Transaction, owner: str, conversation_id: str, doomed: Sequence[tuple[str, str]]) -> int:
    conversation_of(tx, owner, conversation_id)
    freed = deleted = 0
    for ns, checkpoint_id in doomed:
        where = {"conversation": conversation_id, "ns": ns, "id": checkpoint_id}
        row = tx.one(Q.checkpoint_size, **where)
        (written,) = tx.one(Q.size_of_writes_after, **where) or (0,)
        freed += written
        tx.run(Q.delete_checkpoint_writes, **where)
        if row is not None:
            tx.run(Q.delete_checkpoint, **where)
            freed += row[0]
            deleted += 1
    if deleted or freed:
        freed += _delete_unused_parts(tx, conversation_id)
        tx.run(Q.free_bytes, id=conversation_id, bytes=freed)
        tx.erased = True
    return deleted


def _delete_unused_parts(tx: Transaction, conversation_id: str) -> int:
    """Delete the parts that no checkpoint refers to; returns their bytes."""
    used = parts_of(text for (text,) in tx.all(Q.checkpoint_segments, conversation=conversation_id))
    freed = 0
    for part_id, size in tx.all(Q.checkpoint_part_sizes, conversation=conversation_id):
        if part_id not in used:
            tx.run(Q.delete_checkpoint_part, conversation=conversation_id, id=part_id)
            freed += size
    return freed
