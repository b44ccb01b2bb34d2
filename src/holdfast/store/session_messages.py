"""Messages of a session outside of turns, as frameworks use them: read what is in the context, append
idempotently, remove, replace, clear.

A removed message leaves every context and stays readable, like a reply that was regenerated. Writing needs
the conversation to be free; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from ..domain.conversations import Address, Conversation
from ..domain.events import EventType
from ..domain.messages import Message, NewMessage
from ..domain.session_messages import ContextBody, InContext, Named
from ..domain.sessions import Session, opening_after
from ..domain.views import Summary, View
from ..errors import BadInput, Conflict, NotFound
from .conversations import add_beside, add_messages, add_to_ready, freed
from .resolve import conversation_of, find, lookup, session_of
from .rows import ResolvedRow, Row, to_message
from .transaction import Q, Transaction

ALL = 2**62
P = TypeVar("P")


def in_context(
    tx: Transaction, owner: str, address: Address, *, limit: int | None = None
) -> InContext | None:
    """What the next message of this conversation would see: all of it, or its newest `limit` parts. None if
    the address is unknown."""
    found = find(tx, owner, address)
    return None if found is None else _read(tx, found.conversation, found.tip, limit)


def bodies_in_context(
    tx: Transaction, owner: str, address: Address, *, limit: int | None = None
) -> list[ContextBody | Summary] | None:
    """The same as bodies and extra data alone, for a reader of whole threads that needs nothing else."""
    found = find(tx, owner, address)
    if found is None:
        return None
    return _parts(tx, found.conversation, found.tip, limit, _BODIES, ContextBody._make)


def _read(tx: Transaction, conversation: Conversation, tip: Session, limit: int | None = None) -> InContext:
    parts = _parts(tx, conversation, tip, limit, _MESSAGES, to_message)
    return InContext(tuple(parts), conversation.last_seq)


_MESSAGES = (Q.context_forward, Q.context_backward)
_BODIES = (Q.context_bodies_forward, Q.context_bodies_backward)


def _parts(
    tx: Transaction,
    conversation: Conversation,
    tip: Session,
    limit: int | None,
    statements: tuple[str, str],
    to_part: Callable[[Row], P],
) -> list[P | Summary]:
    """The context, or its newest `limit` parts: summaries, and messages read by the statement that returns
    them oldest first, or newest first if there is a limit."""
    opening = opening_after(tip, conversation.last_seq)
    view = tip.view if opening is None else opening.view
    left = ALL if limit is None else max(limit, 0)
    forward, backward = statements
    spans: list[list[P | Summary]] = []
    for part in reversed(view.parts):
        if not left:
            break
        if isinstance(part, Summary):
            spans.append([part])
            left -= 1
            continue
        last = conversation.last_seq if part.last is None else part.last
        rows = tx.all(
            forward if limit is None else backward,
            conversation=conversation.id,
            first=part.first,
            last=last,
            limit=left,
        )
        spans.append([*map(to_part, rows if limit is None else reversed(rows))])
        left -= len(rows)
    return spans[0] if len(spans) == 1 else [part for span in reversed(spans) for part in span]


def append(tx: Transaction, owner: str, conversation_id: str, node_id: str, messages: Sequence[Named]) -> int:
    """Append those whose name is not known yet, in order; returns how many. ConversationBusy writes
    nothing."""
    reached = reach(tx, owner, conversation_id)  # names are read, then written
    new = unknown(tx, conversation_id, messages)
    if not new:
        return 0
    append_new(tx, reached, owner, node_id, new)
    return len(new)


def reach(tx: Transaction, owner: str, conversation_id: str) -> ResolvedRow:
    """The conversation, locked. Raises NotFound."""
    reached = lookup(tx, owner, Address(id=conversation_id))
    if reached is None:
        raise NotFound("conversation", conversation_id)
    return reached


def append_new(
    tx: Transaction, reached: ResolvedRow, owner: str, node_id: str, new: Sequence[Named], *, beside: int = 0
) -> None:
    """Append these, whose names are not known, to a conversation that this transaction has locked. `beside`:
    bytes of what is stored with them, which count for quotas too."""
    conversation_id = reached.conversation_id
    bodies = [each.message for each in new]
    if reached.is_ready_for(node_id, tx.now, tx.policies):
        last_seq = add_to_ready(tx, reached, owner, node_id, bodies, beside=beside)
    else:
        last_seq = add_beside(tx, owner, conversation_id, node_id, bodies, beside)
    _name(tx, conversation_id, new, last_seq)


def unknown(tx: Transaction, conversation_id: str, messages: Sequence[Named]) -> list[Named]:
    """Those whose name the conversation does not know, each name once."""
    new: list[Named] = []
    seen: set[str] = set()
    for each in messages:
        if each.name is not None:
            if each.name in seen or _is_known(tx, conversation_id, each.name):
                continue
            seen.add(each.name)
        new.append(each)
    return new


def _is_known(tx: Transaction, conversation_id: str, name: str) -> bool:
    return tx.one(Q.named_message, conversation=conversation_id, name=name) is not None


def _name(tx: Transaction, conversation_id: str, stored: Sequence[Named], last_seq: int) -> None:
    first = last_seq - len(stored) + 1
    rows = [
        {"conversation": conversation_id, "name": each.name, "seq": first + place}
        for place, each in enumerate(stored)
        if each.name is not None
    ]
    if rows:
        tx.run_many(Q.name_message, rows)


def remove_last(tx: Transaction, owner: str, conversation_id: str, count: int) -> list[Message]:
    """Remove the newest `count` messages from the context; returns them, oldest first. Summaries stay.
    ConversationBusy changes nothing."""
    if count < 0:
        raise BadInput(f"cannot remove {count} messages")
    known = freed(tx, owner, conversation_id)
    tip = session_of(tx, None, known.tip_id)
    newest = _read(tx, known, tip, count).messages
    _exclude(tx, known, [message.seq for message in newest], "removed")
    return newest


def replace(
    tx: Transaction,
    owner: str,
    conversation_id: str,
    node_id: str,
    *,
    since: int,
    messages: Sequence[NewMessage],
    last_seq: int | None = None,
    also: Collection[int] = (),
) -> int:
    """Remove the messages of the context from `since` on, and those in `also`, and append these, in one
    transaction; returns the last seq. `since` 1 or less: summaries too. Conflict, having changed nothing, if
    `last_seq` is given and not the conversation's; ConversationBusy and QuotaExceeded change nothing either.
    """
    known = freed(tx, owner, conversation_id)
    if last_seq is not None and last_seq != known.last_seq:
        raise Conflict(
            f"{conversation_id} has messages up to {known.last_seq}, not {last_seq}; read it again and retry"
        )
    shown = _read(tx, known, session_of(tx, None, known.tip_id)).messages
    number = known.last_seq
    if messages:
        number = add_messages(tx, owner, conversation_id, node_id, messages)
    known = conversation_of(tx, owner, conversation_id)
    tip = session_of(tx, None, known.tip_id)
    _exclude(
        tx,
        known,
        [message.seq for message in shown if message.seq >= since or message.seq in also],
        "replaced",
    )
    if since <= 1 and not tip.ended:  # a view that begins here is read without passing the removed messages
        tx.run(Q.set_view, id=tip.id, view=View.fresh(number - len(messages)).encode())
        tx.run(Q.touch_revision, id=known.id)
    return max(number, known.last_seq)


def _exclude(tx: Transaction, conversation: Conversation, seqs: Sequence[int], reason: str) -> None:
    """Exclude these messages, given in order, from every context."""
    for first, last in _runs(seqs):
        tx.run(
            Q.exclude_range,
            conversation=conversation.id,
            first=first,
            last=last,
            reason=reason,
            now=tx.now,
        )
        tx.event(
            EventType.MESSAGES_REMOVED,
            conversation.owner,
            conversation.id,
            conversation.tip_id,
            first=first,
            last=last,
            reason=reason,
        )
    if seqs:
        tx.run(Q.touch_revision, id=conversation.id)


def _runs(seqs: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive numbers."""
    runs: list[tuple[int, int]] = []
    for seq in seqs:
        if runs and runs[-1][1] == seq - 1:
            runs[-1] = runs[-1][0], seq
        else:
            runs.append((seq, seq))
    return runs
