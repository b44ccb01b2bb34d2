"""Exports conversations as records, in one snapshot.

A running turn is exported as interrupted, because its copy will not continue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec
from msgspec import Raw

from ..domain.records import (
    NOTHING,
    AliasRecord,
    AttachmentRecord,
    ConversationRecord,
    ExclusionRecord,
    Hanging,
    MemoryRecord,
    MessageRecord,
    RequestRecord,
    ResponseRecord,
    SessionRecord,
    TurnRecord,
)
from ..domain.turns import TurnStatus
from ..errors import NotFound
from .rows import Row, to_time, to_time_or_none
from .transaction import Q, Transaction


def conversation_ids(
    tx: Transaction, owner: str | None, *, after: int = 0, limit: int = 100
) -> list[tuple[int, str]]:
    """Conversations in the order in which they began, after the number `after`: numbers and ids."""
    return [(no, id_) for no, id_ in tx.all(Q.conversations_forward, owner=owner, above=after, limit=limit)]


def record(
    tx: Transaction, owner: str | None, conversation_id: str
) -> tuple[ConversationRecord, Sequence[Hanging]]:
    """A conversation with everything but its messages and the bytes of its files, in one snapshot. A running
    turn is exported as interrupted, because its copy will not continue."""
    row = tx.one(Q.conversation_record, id=conversation_id, owner=owner)
    if row is None:
        raise NotFound("conversation", conversation_id)
    id_, of, key, title, source, created_at, last_seq, forked_from, anonymous, history, metadata = row
    aliases = [
        AliasRecord(name, to_time(at), session)
        for name, at, session in tx.all(Q.alias_records, conversation=conversation_id)
    ]
    conversation = ConversationRecord(
        id_,
        of,
        key,
        title,
        source,
        to_time(created_at),
        last_seq,
        forked_from,
        bool(anonymous),
        history,
        msgspec.json.decode(metadata) if metadata else None,
        tuple(aliases),
        tuple((at, to) for at, to in tx.all(Q.rewinds_of, conversation=conversation_id)),
    )
    return conversation, list(_hanging_on(tx, conversation_id))


def _hanging_on(tx: Transaction, conversation_id: str) -> Iterator[Hanging]:
    for row in tx.all(Q.session_records, conversation=conversation_id):
        yield _session_record(row)
    for row in tx.all(Q.turn_records, conversation=conversation_id):
        yield _turn_record(row, to_time(tx.now))
    for id_, turn, source, name, mime, at in tx.all(Q.attachment_records, conversation=conversation_id):
        yield AttachmentRecord(id_, turn, source, name, mime, to_time(at))
    for seq, reason, at in tx.all(Q.exclusion_records, conversation=conversation_id):
        yield ExclusionRecord(seq, reason, to_time(at))
    for id_, session, origin, text, made_at, edited_at in tx.all(
        Q.memory_records, conversation=conversation_id
    ):
        yield MemoryRecord(id_, session, origin, text, to_time(made_at), to_time_or_none(edited_at))


def _session_record(row: Row) -> SessionRecord:
    (
        id_, ordinal, edge, parent, source, opened_at, last_activity_at, ended_at, end_reason, model,
        input_tokens, output_tokens, first_seq, view, fresh_by, fresh_since, flushed_seq,
    ) = row  # fmt: skip
    return SessionRecord(
        id_, ordinal, edge, parent, source, to_time(opened_at), to_time(last_activity_at),
        to_time_or_none(ended_at), end_reason, model, input_tokens, output_tokens, first_seq,
        Raw(view.encode()), fresh_by, to_time_or_none(fresh_since), flushed_seq,
    )  # fmt: skip


def _turn_record(row: Row, now: datetime) -> TurnRecord:
    (
        id_, session, status, node, attempt, first_seq, started_at, ended_at, model, error, usage,
        response_id, answer, route, key, body_hash, asked_at, response, previous, background, brought,
        request, made_at, joined,
    ) = row  # fmt: skip
    asked = None if route is None else RequestRecord(route, key, body_hash, to_time(asked_at))
    named = (
        None
        if response is None
        else ResponseRecord(response, previous, bool(background), brought, request, to_time(made_at))
    )
    runs = status == TurnStatus.RUNNING
    return TurnRecord(
        id_,
        session,
        TurnStatus.INTERRUPTED.value if runs else status,
        node,
        attempt,
        first_seq,
        to_time(started_at),
        now if runs else to_time(ended_at),
        model,
        error,
        Raw(usage.encode()) if usage else NOTHING,
        response_id,
        answer,
        asked,
        named,
        joined,
    )


def message_records(
    tx: Transaction, conversation_id: str, *, first: int, last: int, limit: int = 500
) -> list[MessageRecord]:
    """Its messages from seq `first` to `last`, with all their fields; deleted ones without text."""
    rows = tx.all(Q.message_records, conversation=conversation_id, first=first, last=last, limit=limit)
    return [_message_record(row) for row in rows]


def _message_record(row: Row) -> MessageRecord:
    (
        seq, session, turn, role, status, created_at, body, calls, answers, deleted_at, origin, gaps, inner,
        own_calls, extra,
    ) = row  # fmt: skip
    return MessageRecord(
        seq,
        session,
        turn,
        role,
        status,
        to_time(created_at),
        Raw(body) if body else NOTHING,
        tuple(msgspec.json.decode(calls)) if calls else (),
        answers,
        to_time_or_none(deleted_at),
        origin,
        tuple(msgspec.json.decode(gaps)) if gaps else (),
        bool(inner),
        tuple(msgspec.json.decode(own_calls)) if own_calls else (),
        Raw(extra.encode()) if extra else NOTHING,
    )
