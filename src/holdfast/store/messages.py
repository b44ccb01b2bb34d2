"""The transactions of messages: read, exclude, delete in whole or in part.

A message never changes otherwise, and its number is never used again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ..domain.conversations import Conversation
from ..domain.events import EventType
from ..domain.ids import check_text
from ..domain.messages import Message, NewMessage
from ..domain.new_messages import is_part
from ..errors import Conflict, NotFound
from .resolve import conversation_of
from .rows import to_json, to_message
from .transaction import Q, Transaction
from .values import LARGEST_LIST, Page, check_limit


def page(
    tx: Transaction,
    owner: str | None,
    conversation_id: str,
    *,
    first: int = 1,
    last: int | None = None,
    limit: int | None = None,
    newest_first: bool = False,
    excluded: bool = True,
    most_bytes: int | None = None,
) -> Page[Message]:
    """Messages with seqs first..last, unmodified, without deleted ones. Without `excluded`, also omits
    messages excluded from the context and inner ones, which clients never see. With `most_bytes`, the page
    ends before the message that would exceed it, but has at least two, if there are."""
    if limit is not None:
        check_limit(limit, LARGEST_LIST)
    conversation = conversation_of(tx, owner, conversation_id)
    span = {
        "conversation": conversation_id,
        "first": first,
        "last": conversation.last_seq if last is None else last,
    }
    many = -1 if limit is None else limit + 1
    if most_bytes is not None:
        sizes = tx.all(_SIZES[excluded, newest_first], **span, limit=many)
        fitting = _fitting((size for _, size in sizes), most_bytes)
        if fitting < len(sizes) and (limit is None or fitting < limit):
            rows = tx.all(_PAGES[excluded, newest_first], **span, limit=fitting)
            return Page([to_message(row) for row in rows], has_more=True)
    rows = tx.all(_PAGES[excluded, newest_first], **span, limit=many)
    kept = rows if limit is None else rows[:limit]
    return Page([to_message(row) for row in kept], len(rows) > len(kept))


# By `excluded` and `newest_first`.
_PAGES = {
    (True, False): Q.messages_forward,
    (True, True): Q.messages_backward,
    (False, False): Q.shown_forward,
    (False, True): Q.shown_backward,
}
_SIZES = {
    (True, False): Q.sizes_forward,
    (True, True): Q.sizes_backward,
    (False, False): Q.shown_sizes_forward,
    (False, True): Q.shown_sizes_backward,
}


def _fitting(sizes: Iterable[int], most: int) -> int:
    """How many of these fit in `most` together; at least two, so that a page which begins with a message of
    the page before has something new."""
    number = total = 0
    for size in sizes:
        total += size
        if number >= 2 and total > most:
            break
        number += 1
    return number


def visible(
    tx: Transaction, owner: str | None, conversation_id: str, *, limit: int | None = None
) -> list[Message]:
    """Messages visible to clients: neither excluded nor deleted nor inner, oldest first; only the newest
    `limit`."""
    conversation_of(tx, owner, conversation_id)
    rows = tx.all(Q.visible_messages, conversation=conversation_id, limit=-1 if limit is None else limit)
    return [to_message(row) for row in reversed(rows)]


def of_turn(tx: Transaction, turn_id: str) -> list[Message]:
    """The messages of a turn, in order; includes messages that left the context."""
    return [to_message(row) for row in tx.all(Q.messages_of_turn, turn=turn_id)]


def exclude(
    tx: Transaction, owner: str | None, conversation_id: str, seqs: Sequence[int], reason: str
) -> int:
    """Exclude messages from every context; they stay readable. Returns how many were not excluded
    before."""
    conversation = conversation_of(tx, owner, conversation_id)
    check_text("a reason", reason)
    for seq in seqs:
        if not 1 <= seq <= conversation.last_seq:
            raise NotFound("message", f"{conversation_id} number {seq}")
    changed = 0
    for seq in seqs:
        if tx.run(Q.insert_exclusion, conversation=conversation_id, seq=seq, reason=reason, now=tx.now):
            changed += 1
            tx.event(EventType.MESSAGE_EXCLUDED, conversation.owner, conversation_id, seq=seq, reason=reason)
    if changed:
        tx.run(Q.touch_revision, id=conversation_id)
    return changed


def delete(tx: Transaction, owner: str | None, conversation_id: str, seq: int) -> None:
    """Empty a message: its seq stays, its text is gone from lists, contexts, search and the outbox. The
    files of a turn go with the last message of a person in it."""
    conversation = conversation_of(tx, owner, conversation_id)
    size = tx.one(Q.body_size, conversation=conversation_id, seq=seq)
    row = tx.one(Q.empty_message, conversation=conversation_id, seq=seq, now=tx.now)
    if row is None or size is None:
        raise NotFound("message", f"{conversation_id} number {seq}")
    freed = size[0]
    copied = tx.one(Q.copied_files_of_message, conversation=conversation_id, seq=seq)
    own = tx.one(Q.attachments_without_message, conversation=conversation_id, seq=seq)
    for files in filter(None, (copied, own)):
        tx.run(Q.delete_attachments, conversation=conversation_id, turn=files[0])
        freed += files[1]
    tx.run(Q.free_bytes, id=conversation_id, bytes=freed)
    _forget_text(tx, conversation_id, seq, row[0])
    tx.event(EventType.MESSAGE_DELETED, conversation.owner, conversation_id, seq=seq)


def reduce(
    tx: Transaction,
    owner: str | None,
    conversation_id: str,
    seq: int,
    rest: NewMessage,
    gaps: Sequence[int] = (),
) -> None:
    """Delete a part of a message: `rest` is what remains, `gaps` are the indexes of all its deleted
    calls. The deleted part is gone from lists, contexts and search.

    Conflict, having changed nothing, if `rest` is not a part of the current message.
    """
    known = conversation_of(tx, owner, conversation_id)
    row = tx.one(Q.body, conversation=conversation_id, seq=seq)
    if row is None or not row[0]:
        raise NotFound("message", f"{conversation_id} number {seq}")
    whole, left = msgspec.json.decode(row[0]), msgspec.json.decode(rest.body)
    if left == whole or left.get("role") != whole["role"] or not is_part(left, whole):
        raise Conflict(
            f"message {seq} of {conversation_id} changed since you read it; read it again and retry"
        )
    changed = tx.one(
        Q.reduce_message,
        conversation=conversation_id,
        seq=seq,
        body=rest.body,
        calls=to_json(rest.calls) if rest.calls else None,
        gaps=to_json(sorted(gaps)) if gaps else None,
    )
    assert changed is not None
    tx.run(Q.free_bytes, id=conversation_id, bytes=len(row[0]) - len(rest.body))
    _forget_text(tx, conversation_id, seq, changed[0])
    tx.event(EventType.MESSAGE_REDUCED, known.owner, conversation_id, seq=seq)


def _forget_text(tx: Transaction, conversation_id: str, seq: int, no: int) -> None:
    """Delete what else holds a message's text, after it was deleted in whole or in part."""
    tx.erased = True
    tx.run(Q.empty_drafts, conversation=conversation_id, seq=seq)
    tx.run(Q.empty_answer, conversation=conversation_id, seq=seq)
    tx.run(Q.empty_inbox, conversation=conversation_id, seq=seq)
    tx.run(Q.forget_deliveries, conversation=conversation_id, seq=seq)
    tx.run(Q.forget_side_requests, conversation=conversation_id)  # a title's or a summary's quote messages
    tx.run(Q.unindex_message, no=no)
    tx.run(Q.touch_revision, id=conversation_id)


MOST_LOOKED_AT = 200_000
"""How many characters of a message are searched for its snippet."""


def snippet(message: Message, words: str, width: int = 160) -> str:
    """The part of a message around the first matching word."""
    content = message.content().get("content") or ""
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else part for part in content]
        content = " ".join(text for text in texts if isinstance(text, str))
    text = " ".join(content[:MOST_LOOKED_AT].split())
    lowered = text.lower()
    places = [lowered.find(word.strip('"').lower()) for word in words.split()]
    start = max(0, min((place for place in places if place >= 0), default=0) - width // 4)
    cut = text[start : start + width]
    return ("…" if start else "") + cut + ("…" if start + width < len(text) else "")


def exclude_replies(tx: Transaction, conversation: Conversation, seqs: Sequence[int]) -> None:
    """Exclude old replies of a message to be answered again."""
    for seq in seqs:
        out = {"conversation": conversation.id, "seq": seq, "reason": "answered again", "now": tx.now}
        tx.run(Q.exclude_steps, **out)
        tx.run(Q.insert_exclusion, **out)
        tx.event(
            EventType.MESSAGE_EXCLUDED, conversation.owner, conversation.id, seq=seq, reason="answered again"
        )
    tx.run(Q.touch_revision, id=conversation.id)
