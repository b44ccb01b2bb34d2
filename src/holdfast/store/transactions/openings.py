"""Which session does the next message go to? The open tip, or one that is opened now behind it.

The one place that asks the reset policy before it decides: an open tip that is due is reset first, one that
ended with its process is continued only if its policy would not have reset it meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...domain.conversations import Address, Conversation
from ...domain.messages import NewMessage
from ...domain.sessions import EndReason, Session, opening_after
from ...errors import NotFound, ToolCallClosed
from .places import conversation_of, find, session_of
from .resetting import announce, brings_results, overdue, reset_before
from .session_writes import continue_conversation, open_conversation, require_node, settle_left_behind
from .transaction import Transaction

RESETS = frozenset({EndReason.IDLE, EndReason.DAILY})
ENDS_CALLS = frozenset({*RESETS, EndReason.NEW})


def session_for(
    tx: Transaction,
    conversation: Conversation,
    tip: Session,
    messages: Sequence[NewMessage],
    node_id: str | None,
    source: str,
    shows_from: int | None = None,
) -> Session:
    """The session for these messages. A new one is attached to `node_id`, if that is given; a fresh one shows
    what is said from now on, or from message `shows_from` on. Results of calls that are awaited belong to the
    session that called; ToolCallClosed if that one was ended on purpose."""
    if reset_before(tx, tip, messages):
        tip = session_of(tx, None, tip.id)
    if tip.end_reason in ENDS_CALLS and messages and messages[0].answers and shows_from is None:
        raise ToolCallClosed(messages[0].answers)  # a fresh session knows nothing of the call
    late = None if brings_results(tx, tip, messages) else overdue(tx, tip)
    last_seq = conversation.last_seq if shows_from is None else shows_from - 1
    opening = opening_after(tip, last_seq, due=late is not None)
    if opening is None:
        return tip
    fresh_by = tip.end_reason if tip.end_reason in RESETS else None
    if late is not None:
        announce(tx, tip, late)
        fresh_by = late.end_reason
    return continue_conversation(tx, conversation, opening, node_id, source or tip.source, fresh_by=fresh_by)


def open_session(
    tx: Transaction, owner: str, address: Address, node_id: str, source: str, attached: bool
) -> Session:
    require_node(tx, node_id)
    attached_to = node_id if attached else None
    found = find(tx, owner, address)
    if found is None:
        if (address.id or address.key) and not address.may_create:
            raise NotFound("conversation", str(address))
        return open_conversation(tx, owner, address, attached_to, source)
    settle_left_behind(tx, found.conversation.id)
    conversation, tip = conversation_of(tx, owner, found.conversation.id), session_of(tx, owner, found.tip.id)
    return session_for(tx, conversation, tip, (), attached_to, source)
