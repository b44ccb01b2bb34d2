"""The transactions of notices: add, deliver, send; and their pages.

Functions that change something a person should know call `add` in the same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from ..domain.ids import new_id
from ..domain.notices import Notice, NoticeDelivery, check_notice
from ..errors import NotFound
from .deliveries import add_notice
from .resolve import conversation_of
from .rows import MICROSECOND, Row, to_time, to_time_or_none
from .transaction import Q, Transaction
from .values import Claimed, Page

MOST_GIVEN_UP = 1000
NEWER_THAN_ALL = 2**62


def to_notice(row: Row) -> Notice:
    (id_, owner, conversation, key, kind, text, created_at, delivered_at, process, sent_at, told_at) = row
    return Notice(
        id_,
        owner,
        conversation,
        key,
        kind,
        text,
        to_time(created_at),
        to_time_or_none(delivered_at),
        process,
        to_time_or_none(sent_at),
        to_time_or_none(told_at),
    )


def add(tx: Transaction, owner: str, conversation_id: str, kind: str, text: str) -> Notice:
    """Add a notice for the person of this conversation; undelivered until it is marked delivered."""
    return add_about(tx, owner, conversation_id, kind, text, None)


def add_about(
    tx: Transaction, owner: str, conversation_id: str, kind: str, text: str, process_id: str | None
) -> Notice:
    """The same, about a process."""
    check_notice(kind, text)
    conversation = conversation_of(tx, owner, conversation_id)
    notice = Notice(
        new_id("note"),
        owner,
        conversation.id,
        conversation.key,
        kind,
        text,
        to_time(tx.now),
        process_id=process_id,
    )
    tx.run(
        Q.insert_notice,
        id=notice.id,
        owner=owner,
        conversation=conversation.id,
        kind=kind,
        text=text,
        process=process_id,
        now=tx.now,
    )
    add_notice(tx, conversation.id, notice.id, text)
    return notice


def deliver(tx: Transaction, owner: str | None, notice_id: str) -> Notice:
    """Mark a notice delivered. Delivering twice keeps the first time. Raises NotFound."""
    tx.run(Q.deliver_notice, id=notice_id, owner=owner, now=tx.now)
    return _one(tx, owner, notice_id)


def deliver_all(tx: Transaction, owner: str | None) -> int:
    """Mark every undelivered notice of the owner, or of everyone, delivered; returns how many."""
    if owner is None:
        return tx.run(Q.deliver_all_notices, now=tx.now)
    return tx.run(Q.deliver_notices_of_owner, owner=owner, now=tx.now)


def deliveries_of(tx: Transaction, notice_ids: Sequence[str]) -> dict[str, list[NoticeDelivery]]:
    """Where connectors have sent these notices, or will; by notice id. Those that were sent to no place
    are left out."""
    found = {}
    for notice_id in notice_ids:
        rows = tx.all(Q.deliveries_of_notice, notice=notice_id)
        if rows:
            found[notice_id] = [
                NoticeDelivery(connector, key, state, to_time_or_none(sent_at), error)
                for connector, key, state, sent_at, error in rows
            ]
    return found


def newest(
    tx: Transaction,
    owner: str | None,
    *,
    delivered: bool | None = None,
    after: str | None = None,
    limit: int = 20,
) -> Page[Notice]:
    """A page of notices, newest first, after the notice `after`; `delivered`: only those that are, or are
    not."""
    values = {
        "delivered": delivered,
        "after": NEWER_THAN_ALL if after is None else _number(tx, owner, after),
        "limit": limit + 1,
    }
    if owner is None:
        rows = tx.all(Q.newest_notices_of_all, **values)
    else:
        rows = tx.all(Q.newest_notices_of_owner, owner=owner, **values)
    return Page([to_notice(row) for row in rows[:limit]], len(rows) > limit)


def page(
    tx: Transaction,
    owner: str | None,
    *,
    undelivered: bool = False,
    after: str | None = None,
    limit: int = 20,
) -> Page[Notice]:
    """A page of notices, oldest first, after the notice `after`; if `undelivered`, only those."""
    number = 0 if after is None else _number(tx, owner, after)
    if owner is None:
        rows = tx.all(Q.notices_of_all, undelivered=undelivered, after=number, limit=limit + 1)
    elif undelivered:
        rows = tx.all(Q.undelivered_of_owner, owner=owner, after=number, limit=limit + 1)
    else:
        rows = tx.all(Q.notices_of_owner, owner=owner, after=number, limit=limit + 1)
    return Page([to_notice(row) for row in rows[:limit]], len(rows) > limit)


def undelivered(tx: Transaction, conversation_id: str) -> list[Notice]:
    """Undelivered notices of this conversation, oldest first."""
    return [to_notice(row) for row in tx.all(Q.undelivered_of_conversation, conversation=conversation_id)]


def give(tx: Transaction, conversation_id: str, turn_id: str) -> tuple[Notice, ...]:
    """Notices that the reply of this turn, which begins now, should carry. Its commit marks these as carried,
    not those added meanwhile."""
    given = [to_notice(row) for row in tx.all(Q.untold_of_conversation, conversation=conversation_id)]
    for notice in given:
        tx.run(Q.give_notice, id=notice.id, turn=turn_id)
    return tuple(given)


def tell(tx: Transaction, conversation_id: str, turn_id: str) -> None:
    """Mark the notices of this turn as carried by its reply."""
    tx.run(Q.tell_notices, conversation=conversation_id, turn=turn_id, now=tx.now)


def to_send(tx: Transaction) -> bool:
    """True: a notice is waiting for the webhook. Cheap: usually none is."""
    return tx.one(Q.notices_to_send, now=tx.now) is not None


def claim(tx: Transaction, limit: int, span: timedelta, kept: timedelta) -> Claimed:
    """Claim notices to send, the longest waiting first; for `span` no other node gets them. Notices older
    than `kept` are given up."""
    tried = tx.all(Q.give_up_notices, now=tx.now, before=tx.now - kept // MICROSECOND, limit=MOST_GIVEN_UP)
    rows = tx.all(Q.claim_notices, now=tx.now, until=tx.now + span // MICROSECOND, limit=limit)
    notices = []
    for number, attempt in sorted(tuple(row) for row in rows):
        row = tx.one(Q.notice_by_number, no=number)
        assert row is not None
        notices.append((to_notice(row), attempt))
    return Claimed(notices, sum(was_tried for (was_tried,) in tried))


def sent(tx: Transaction, notice_id: str) -> None:
    """Mark a notice accepted by the webhook; it is never sent again."""
    tx.run(Q.notice_sent, id=notice_id, now=tx.now)


def unsent(tx: Transaction, notice_id: str, pause: timedelta, *, tried: bool = True) -> None:
    """Requeue a notice that the webhook did not accept, for at least this pause. `tried=False`: it was not
    sent, so this does not count as a try."""
    tx.run(Q.notice_unsent, id=notice_id, again_at=tx.now + pause // MICROSECOND, untried=not tried)


def _number(tx: Transaction, owner: str | None, notice_id: str) -> int:
    """The place of a notice in the order of pages. Raises NotFound."""
    _one(tx, owner, notice_id)
    row = tx.one(Q.notice_number, id=notice_id)
    assert row is not None
    return int(row[0])


def _one(tx: Transaction, owner: str | None, notice_id: str) -> Notice:
    row = tx.one(Q.notice_by_id, id=notice_id, owner=owner)
    if row is None:
        raise NotFound("notice", notice_id)
    return to_notice(row)
