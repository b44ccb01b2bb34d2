"""The transactions of nodes: join, heartbeat, leave; reap, and release orphans.

Reaping is state-based: a node is marked, and everything that still refers to a node that is gone is an
orphan. So a reaper that is killed half-way is simply followed by the next. Each orphan is released in its own
transaction: one failure does not affect the others. Nothing here touches last_activity_at.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..domain.events import EventType
from ..domain.nodes import Node
from ..domain.recovery import Cause
from ..domain.sessions import EndReason
from ..domain.turns import TurnStatus
from ..errors import NodeReaped
from .resolve import conversation_of, session_of
from .rows import to_node
from .sessions import write_end
from .transaction import Q, Transaction
from .turn_ends import end_without_answer
from .values import Held, Orphans


def join(tx: Transaction, node: Node) -> None:
    """Insert the row of a node that holds its lock, with its event."""
    who = node.identity
    tx.run(
        Q.insert_node,
        id=node.id,
        kind=node.kind.value,
        host=who.host,
        boot_id=who.boot_id,
        pid_ns=who.pid_ns,
        pid=who.pid,
        pid_start=who.pid_start,
        machine=who.machine or None,
        stale_ms=None if node.stale_seconds is None else round(node.stale_seconds * 1000),
        version=node.version or None,
        now=tx.now,
    )
    if who.machine:
        tx.run(Q.name_machine, machine=who.machine, boot_id=who.boot_id)
    tx.event(EventType.NODE_JOINED, node=node.id, kind=node.kind.value, host=who.host, pid=who.pid)


def beat(tx: Transaction, node_id: str) -> Held:
    """Write this node's heartbeat, in one write; returns what it holds. NodeReaped if it was reaped."""
    if tx.one(Q.beat, id=node_id, now=tx.now) is None:
        raise NodeReaped(node_id)
    return held(tx, node_id)


def held(tx: Transaction, node_id: str) -> Held:
    """What this node holds; read-only."""
    return Held({row[0]: row[1] for row in tx.all(Q.held_by, node=node_id)})


def leave(tx: Transaction, node_id: str, reason: str) -> None:
    """Interrupt the turns of this node, end its attached sessions with `reason`, release its leases."""
    _let_go(tx, node_id, reason)
    if tx.one(Q.leave_node, id=node_id, now=tx.now) is not None:
        tx.event(EventType.NODE_LEFT, node=node_id)
        # What the node began meanwhile is committed now, and nothing can begin on it any more.
        _let_go(tx, node_id, reason)
        settle_node(tx, node_id)


def _let_go(tx: Transaction, node_id: str, reason: str) -> None:
    # Both lists are read without locks. Each row is read again once its conversation is locked: by then
    # another node may have resumed the turn, detached the session, or deleted both.
    for conversation_id, _ in tx.all(Q.held_by, node=node_id):
        held = tx.one(Q.still_held_by, id=conversation_id, node=node_id)
        if held is None:
            continue
        if held[0] is None or not end_without_answer(
            tx, held[0], TurnStatus.INTERRUPTED, why="its node left", cause=Cause.STOP
        ):
            tx.run(Q.free_stray_lease, id=conversation_id)
    for (session_id,) in tx.all(Q.attached_to, node=node_id):
        if tx.one(Q.still_attached_to, id=session_id, node=node_id) is not None:
            write_end(tx, session_of(tx, None, session_id), reason)


def reap(tx: Transaction, node_id: str, seen_beat: int, why: str) -> bool:
    """Mark a node as dead, with the evidence. False if its heartbeat has changed since, or it is gone
    already."""
    if tx.one(Q.reap_node, id=node_id, beat=seen_beat, why=why, now=tx.now) is None:
        return False
    tx.event(EventType.NODE_REAPED, node=node_id, why=why)
    return True


def leftovers(tx: Transaction, also: Sequence[str] = ()) -> Orphans:
    """Orphans: leases and attached sessions of nodes that are gone, and of the nodes in `also`. Cost
    depends on the orphans, not on what is stored."""
    nodes = [*(row[0] for row in tx.all(Q.unsettled_nodes)), *also]
    return Orphans(
        nodes,
        [row[0] for node in nodes for row in tx.all(Q.held_by, node=node)],
        [row[0] for node in nodes for row in tx.all(Q.attached_to, node=node)],
    )


def settle_node(tx: Transaction, node_id: str) -> bool:
    """Record that nothing refers to this node any more, so that no sweep checks it again. False if
    something still does."""
    return tx.run(Q.settle_node, id=node_id, now=tx.now) > 0


def settle_conversation(tx: Transaction, conversation_id: str) -> bool:
    """Release a conversation orphaned by a node that is gone: its turn is interrupted, its lease released
    under a higher token. False if there was nothing to do. Never touches last_activity_at."""
    held = tx.one(Q.holder_is_gone, id=conversation_id)
    if held is None:
        return False
    if held[0] is None or not end_without_answer(
        tx, held[0], TurnStatus.INTERRUPTED, why="its node is gone", cause=Cause.DEATH
    ):
        tx.run(Q.free_stray_lease, id=conversation_id)
    return True


def reap_session(tx: Transaction, session_id: str) -> bool:
    """End an attached session of a node that is gone as `reaped`, unless a turn holds it. False if there was
    nothing to do."""
    if tx.one(Q.is_attached_to_the_gone, id=session_id) is None:
        return False
    write_end(tx, session_of(tx, None, session_id), EndReason.REAPED)
    return True


def release_orphaned(tx: Transaction, conversation_id: str) -> bool:
    """Release what a node that is gone left in this conversation, without waiting for a sweep."""
    freed = settle_conversation(tx, conversation_id)
    ended = reap_session(tx, conversation_of(tx, None, conversation_id).tip_id)
    return freed or ended


def running_turns(tx: Transaction) -> dict[str, int]:
    """How many turns run on each node that runs any, by node id."""
    return {row[0]: row[1] for row in tx.all(Q.turns_by_node)}


def present(tx: Transaction, *, gone: bool = False) -> list[Node]:
    """Nodes that have neither left nor been reaped; with `gone`, those too."""
    return [to_node(row) for row in tx.all(Q.all_nodes if gone else Q.present_nodes)]
