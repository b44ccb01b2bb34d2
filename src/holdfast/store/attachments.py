"""The transactions of files that came with messages.

They count as bytes of their conversation, and are deleted with it.
"""

from __future__ import annotations

from ..domain.attachments import Attachment, FileRef
from ..domain.connectors import Batch, ConnectorClaim
from ..domain.ids import new_id
from ..errors import NotFound
from .connectors import require_claim
from .resolve import conversation_of
from .rows import Row, to_time
from .sessions import check_quotas
from .transaction import Q, Transaction
from .values import Page, check_limit


def to_attachment(row: Row) -> Attachment:
    no, id_, conversation, turn, name, mime, size, created_at = row
    return Attachment(no, id_, conversation, turn, name, mime, size, to_time(created_at))


def add(
    tx: Transaction, claimed: ConnectorClaim, batch: Batch, source: str, file: FileRef, body: bytes
) -> None:
    """Store a file of a message that is being answered, once for each `source`. ConnectorLost and
    QuotaExceeded write nothing."""
    require_claim(tx, claimed)
    conversation = conversation_of(tx, None, batch.place.conversation_id or "")
    (held,) = tx.one(Q.conversation_bytes, id=conversation.id) or (0,)
    check_quotas(tx, conversation.owner, len(body), conversation.id, held)
    added = tx.run(
        Q.insert_attachment,
        id=new_id("att"),
        conversation=conversation.id,
        turn=batch.turn_id,
        source=source,
        name=file.name,
        mime=file.mime,
        size=len(body),
        body=body,
        now=tx.now,
    )
    if added:
        tx.run(Q.free_bytes, id=conversation.id, bytes=-len(body))


def stored_of(tx: Transaction, turn_id: str) -> dict[str, Attachment]:
    """The files that are stored for a turn's messages, by their source."""
    return {source: to_attachment(row) for source, *row in tx.all(Q.attachments_of_turn, turn=turn_id)}


def page(
    tx: Transaction, owner: str | None, conversation_id: str, *, after: str | None = None, limit: int = 20
) -> Page[Attachment]:
    """A page of a conversation's files, oldest first, after the file `after`. Raises NotFound."""
    check_limit(limit)
    conversation_of(tx, owner, conversation_id)
    number = _found(tx, owner, after)[0].no if after else 0
    rows = tx.all(Q.attachments_of_conversation, conversation=conversation_id, after=number, limit=limit + 1)
    return Page([to_attachment(row) for row in rows[:limit]], len(rows) > limit)


def content(tx: Transaction, owner: str | None, attachment_id: str) -> tuple[Attachment, bytes]:
    """A file with its bytes. Raises NotFound."""
    return _found(tx, owner, attachment_id)


def _found(tx: Transaction, owner: str | None, attachment_id: str) -> tuple[Attachment, bytes]:
    row = tx.one(Q.attachment_by_id, id=attachment_id, owner=owner)
    if row is None:
        raise NotFound("attachment", attachment_id)
    body, *columns = row
    return to_attachment(columns), bytes(body)
