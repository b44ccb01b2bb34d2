"""Rewinds a conversation to one of its messages, backwards or forwards, in one transaction.

The messages that did not lead there leave the context and stay readable; those that did are in it, also if an
earlier rewind had removed them. Refused while a turn holds the conversation.
"""

from __future__ import annotations

from ..domain.conversations import Address, Conversation
from ..domain.events import EventType
from ..domain.fingerprints import EMPTY, extended, fingerprint_of_body
from ..domain.ids import parse_message_id
from ..domain.rewinds import REWOUND, Rewind, Rewound, gaps_in, path_to
from ..domain.sessions import FRESH_AFTER, Edge, EndReason, Opening, Session
from ..domain.views import View
from ..domain.visible_messages import as_shown
from ..errors import BadInput, NotFound
from .forks import view_at
from .messages import visible
from .resolve import conversation_of, place, session_of
from .sessions import continue_conversation, require_free, write_end
from .transaction import Q, Transaction


def rewind(tx: Transaction, owner: str | None, name: str, to: str | int) -> Rewound:
    """Rewind the conversation of this id to a message (by id or number; 0: before the first) or to the end of
    a turn.

    ConversationBusy while a turn holds it, NotFound and BadInput change nothing.
    """
    conversation = place(tx, owner, Address(id=name)).conversation
    require_free(conversation)
    seq = _seq_of(tx, conversation, to)
    rewinds = [Rewind(*row) for row in tx.all(Q.rewinds_of, conversation=conversation.id)]
    path = path_to(seq, rewinds)
    where = {"conversation": conversation.id}
    tip = session_of(tx, None, conversation.tip_id)
    opening = _opening(tx, conversation, tip, seq)
    restored = sum(tx.run(Q.restore_rewound, **where, first=first, last=last) for first, last in path)
    left = sum(
        tx.run(Q.exclude_rewound, **where, first=first, last=last, now=tx.now)
        for first, last in gaps_in(path, conversation.last_seq)
    )
    if seq == conversation.last_seq:
        tx.run(Q.drop_rewind, **where, at=seq)
    else:
        tx.run(Q.put_rewind, **where, at=conversation.last_seq, to=seq, now=tx.now)
    tx.run(Q.touch_revision, id=conversation.id)
    if opening is not None:
        attached_to = tip.node_id if tip.attached and not tip.ended else None
        if not tip.ended:
            write_end(tx, tip, EndReason.NEW)
        tip = continue_conversation(tx, conversation, opening, attached_to, tip.source, on_purpose=True)
    tx.run(Q.set_history, id=conversation.id, history=_history(tx, conversation.id))
    tx.event(
        EventType.CONVERSATION_REWOUND,
        conversation.owner,
        conversation.id,
        tip.id,
        to=seq,
        left=left,
        restored=restored,
    )
    return Rewound(session_of(tx, None, tip.id), seq, left, restored)


def newest_turn(tx: Transaction, owner: str | None, conversation_id: str) -> str | None:
    """The id of a conversation's newest turn, without those that it was rewound before; None: it has none."""
    conversation_of(tx, owner, conversation_id)
    row = tx.one(Q.newest_turn, conversation=conversation_id)
    return row[0] if row is not None else None


def _seq_of(tx: Transaction, conversation: Conversation, to: str | int) -> int:
    """The number of the last message to keep: that of a message, or of the last one of a turn, with the
    results of its own calls."""
    where = {"conversation": conversation.id}
    if isinstance(to, int):
        seq, named = to, f"{conversation.id} number {to}"
    elif to.startswith("turn_"):
        row = tx.one(Q.last_of_turn, **where, turn=to)
        if row is None or row[0] is None:
            raise NotFound("turn with messages in this conversation", to)
        seq, named = row[0], to
    else:
        found = parse_message_id(to)
        if found is None and to.startswith("msg_"):
            raise NotFound("message", to)
        if found is None:
            raise BadInput(f"rewind to the id of a message or of a turn, not to {to!r:.80}")
        seq, named = found[1] if found[0] == conversation.id else -1, to
    if not 0 <= seq <= conversation.last_seq:
        raise NotFound("message", named)
    if seq == 0:
        return 0
    excluded = tx.one(Q.why_excluded, **where, seq=seq)
    if excluded is not None and excluded[0] != REWOUND:
        raise BadInput(
            f"message {seq} is in no context ({excluded[0]}); rewind to the message before it, or to the one "
            "that replaced it"
        )
    (last,) = tx.one(Q.last_own_result, **where, seq=seq, last=conversation.last_seq) or (seq,)
    return int(last)


def _opening(tx: Transaction, conversation: Conversation, tip: Session, seq: int) -> Opening | None:
    """The session to open, if the tip's context is not the one that led to this message: it was compacted or
    reset meanwhile. None: the tip takes the next message."""
    if seq == 0:
        source, view = tip, View(())
    else:
        row = tx.one(Q.session_of_message, conversation=conversation.id, seq=seq)
        source = session_of(tx, None, row[0]) if row is not None else tip
        view = view_at(tx, source, seq).closed_at(seq)
    fresh = tip.ended and tip.end_reason in FRESH_AFTER
    if not fresh and not tip.view.tells_beyond(seq) and tip.view.closed_at(seq) == view:
        return None
    return Opening(Edge.RESUME, source.id, view.continued_at(conversation.last_seq))


def _history(tx: Transaction, conversation_id: str) -> bytes:
    """The fingerprint of everything that clients see now."""
    shown = as_shown(visible(tx, None, conversation_id))
    return extended(EMPTY, [fingerprint_of_body(message.body) for message in shown])
