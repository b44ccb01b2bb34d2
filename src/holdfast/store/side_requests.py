"""The transactions of side requests: note one that was answered, count and list those of a conversation.

A program may ask for a title before its first turn, when no conversation has the session's name yet. Such a
side request is found by the names of the conversation that begins later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..domain.conversations import Address
from ..domain.events import EventType
from ..domain.ids import cut_name, new_id, storable
from ..domain.side_requests import MOST_KEPT, SideRequest, SideText
from ..errors import NotFound
from .resolve import conversation_of, find
from .rows import Row, to_time
from .transaction import Q, Transaction
from .values import Page, check_limit


def note(
    tx: Transaction,
    owner: str,
    name: str,
    kind: str,
    facts: Mapping[str, Any],
    text: SideText | None = None,
) -> None:
    """Record a program's side request as an event `request.side`, and its `text`, if given, linked to the
    conversation that has this name, if there is one yet. `facts`: `model`, `input_tokens`, `output_tokens`.

    The text is not kept if the owner's messages have reached `[limits] owner_mb`.
    """
    found = find(tx, owner, Address(id=name))
    conversation_id = found.conversation.id if found else None
    if text is not None and not _is_full(tx, owner):
        tx.run(
            Q.insert_side_request,
            id=new_id("side"),
            owner=owner,
            name=name,
            conversation=conversation_id,
            kind=kind,
            messages=msgspec.json.encode(text.messages),
            reply=text.reply,
            truncated=text.truncated,
            model=cut_name(storable(str(facts["model"]))) if facts.get("model") else None,
            input_tokens=_tokens(facts.get("input_tokens")),
            output_tokens=_tokens(facts.get("output_tokens")),
            now=tx.now,
        )
        tx.run(Q.drop_surplus_side_request, owner=owner, name=name, limit=MOST_KEPT)
    tx.event(EventType.REQUEST_SIDE, owner, conversation_id, name=name, kind=kind, **facts)


def page(
    tx: Transaction, owner: str | None, conversation_id: str, *, after: str | None = None, limit: int = 20
) -> Page[SideRequest]:
    """A page of a conversation's side requests, oldest first, after the one with the id `after`. Raises
    NotFound."""
    check_limit(limit)
    conversation_of(tx, owner, conversation_id)
    number = 0
    if after is not None:
        row = tx.one(Q.side_request_number, id=after, owner=owner)
        if row is None:
            raise NotFound("side request", after)
        number = row[0]
    rows = tx.all(
        Q.side_requests_of_conversation, conversation=conversation_id, after=number, limit=limit + 1
    )
    return Page([_to_side_request(row) for row in rows[:limit]], len(rows) > limit)


def count(tx: Transaction, owner: str | None, conversation_id: str) -> int:
    """How many side requests of a conversation are kept. Raises NotFound."""
    conversation_of(tx, owner, conversation_id)
    (number,) = tx.one(Q.count_side_requests, conversation=conversation_id) or (0,)
    return int(number)


def _is_full(tx: Transaction, owner: str) -> bool:
    if not tx.quotas.owner_bytes:
        return False
    (held,) = tx.one(Q.owner_bytes, owner=owner) or (0,)
    return bool(held >= tx.quotas.owner_bytes)


def _tokens(reported: object) -> int | None:
    """A count as a model reported it, if it is one."""
    return reported if isinstance(reported, int) and 0 <= reported < 2**63 else None


def _to_side_request(row: Row) -> SideRequest:
    (
        id_, owner, name, conversation, kind, request, reply, truncated, model, input_tokens, output_tokens,
        created_at,
    ) = row  # fmt: skip
    text = SideText(msgspec.json.decode(request, type=list[dict[str, str]]), reply, bool(truncated))
    return SideRequest(
        id_,
        owner,
        name,
        conversation,
        kind,
        text,
        model,
        input_tokens,
        output_tokens,
        to_time(created_at),
    )
