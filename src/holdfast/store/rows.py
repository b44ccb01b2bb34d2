"""Converts rows to values and back. Column order is that of the fragments in `sql/`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from ..domain.conversations import Conversation
from ..domain.drafts import Draft
from ..domain.events import Event
from ..domain.messages import Message, MessageStatus
from ..domain.nodes import Identity, Node, NodeKind
from ..domain.pages import Resolved
from ..domain.recovery import Cause, Origin, Recovery
from ..domain.resets import ResetPolicies
from ..domain.sessions import Edge, Session
from ..domain.turns import ConversationVersion, Delivery, Turn, TurnStatus
from ..domain.value import Value
from ..domain.views import View

Row = Sequence[Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def to_time(stamp: int) -> datetime:
    return _EPOCH + timedelta(0, 0, stamp)


def to_time_or_none(stamp: int | None) -> datetime | None:
    return None if stamp is None else to_time(stamp)


def to_stamp(time: datetime) -> int:
    return (time - _EPOCH) // MICROSECOND


def to_stamp_or_none(time: datetime | None) -> int | None:
    return None if time is None else to_stamp(time)


def to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def to_conversation(row: Row) -> Conversation:
    (
        id_, owner, key, title, source, tip, last_seq, token, holder, turn, created_at, forked_from,
        revision, history,
    ) = row  # fmt: skip
    return Conversation(
        id_, owner, key, title, source, tip, last_seq, token, holder, turn, to_time(created_at), forked_from,
        revision, history,
    )  # fmt: skip


def to_conversation_with_metadata(row: Row) -> Conversation:
    *columns, metadata = row
    return replace(to_conversation(columns), metadata=msgspec.json.decode(metadata) if metadata else {})


def to_session(row: Row) -> Session:
    (
        id_, conversation, owner, key, title, source, attached, node, edge, parent, tip, ordinal,
        opened_at, last_activity_at, next_due_at, ended_at, end_reason, model, view, first_seq,
        last_seq, turn, holder, host, heartbeat_at, input_tokens, output_tokens, fresh_by, fresh_since,
    ) = row  # fmt: skip
    return Session(
        id_,
        conversation,
        owner,
        key,
        title,
        source,
        bool(attached),
        node,
        Edge(edge) if edge else None,
        parent,
        tip,
        ordinal,
        to_time(opened_at),
        to_time(last_activity_at),
        to_time_or_none(next_due_at),
        to_time_or_none(ended_at),
        end_reason,
        model,
        View.decode(view),
        first_seq,
        last_seq,
        turn,
        holder,
        host,
        to_time_or_none(heartbeat_at),
        input_tokens,
        output_tokens,
        fresh_by,
        to_time_or_none(fresh_since),
    )


# Indexes into a session's row, for columns read or changed before a value is built.
_ID, _NODE, _LAST_ACTIVITY_AT, _NEXT_DUE_AT, _ENDED_AT = 0, 7, 13, 14, 15
_MODEL, _LAST_SEQ, _TURN, _HOLDER = 17, 20, 21, 22
_SESSION_COLUMNS = 29
_CONVERSATION, _KNOWN_LAST_SEQ, _TOKEN = 1, _SESSION_COLUMNS + 1, _SESSION_COLUMNS + 2  # of a place's row
_REVISION, _HISTORY, _DATED_BY = _SESSION_COLUMNS + 5, _SESSION_COLUMNS + 6, _SESSION_COLUMNS + 7
_BYTES, _QUEUED, _MAY_HAVE_NOTICES = _SESSION_COLUMNS + 8, _SESSION_COLUMNS + 9, _SESSION_COLUMNS + 10
_MAY_HAVE_MEMORIES = _SESSION_COLUMNS + 11


def to_session_spoken_in(
    row: Row, stamp: int, turn_id: str | None, node_id: str | None, count: int, model: str | None
) -> Session:
    """The tip of this row after a turn with `count` messages has begun in it, or without a turn id after so
    many were appended."""
    columns = list(row[:_SESSION_COLUMNS])
    columns[_LAST_ACTIVITY_AT] = stamp
    columns[_LAST_SEQ] += count
    columns[_TURN] = turn_id
    columns[_HOLDER] = node_id
    columns[_MODEL] = model or columns[_MODEL]
    return to_session(columns)


class ResolvedRow(Value, frozen=True):
    """What a name resolves to, as raw rows: turns begin too often to build values that are not used."""

    row: Row
    addressed: str | None
    """The exact session that the name referred to, if it did."""

    def is_ready_for(self, node_id: str, now: int, policies: ResetPolicies) -> bool:
        """True: the conversation is free, its tip open and not due, so a turn of this node can begin at once.

        False if the tip is attached to another node: that one may be gone. Its due time is valid only if
        these policies have scheduled it.
        """
        row, due_at = self.row, self.row[_NEXT_DUE_AT]
        return (
            row[_HOLDER] is None
            and row[_TURN] is None  # none waits to be retried
            and not row[_QUEUED]
            and row[_ENDED_AT] is None
            and row[_NODE] in (None, node_id)
            and (policies.never or (row[_DATED_BY] == policies.stamp and (due_at is None or due_at > now)))
        )

    @property
    def conversation_id(self) -> str:
        return str(self.row[_CONVERSATION])

    @property
    def tip_id(self) -> str:
        return str(self.row[_ID])

    @property
    def token(self) -> int:
        return int(self.row[_TOKEN])

    @property
    def held(self) -> int:
        """Bytes of the conversation's messages."""
        return int(self.row[_BYTES])

    @property
    def queued(self) -> int:
        """How many turns are queued in the conversation."""
        return int(self.row[_QUEUED])

    @property
    def may_have_notices(self) -> bool:
        """False: it has no notice that the next reply should carry."""
        return bool(self.row[_MAY_HAVE_NOTICES])

    @property
    def may_have_memories(self) -> bool:
        """False: it has no memory."""
        return bool(self.row[_MAY_HAVE_MEMORIES])

    @property
    def seen(self) -> ConversationVersion:
        row = self.row
        return ConversationVersion(row[_CONVERSATION], row[_KNOWN_LAST_SEQ], row[_REVISION])

    @property
    def history(self) -> bytes | None:
        history: bytes | None = self.row[_HISTORY]
        return history

    def place(self) -> Resolved:
        tip = to_session(self.row[:_SESSION_COLUMNS])
        (source, last_seq, token, created_at, forked_from, revision, history, *_) = self.row[
            _SESSION_COLUMNS:
        ]
        conversation = Conversation(
            tip.conversation_id,
            tip.owner,
            tip.key,
            tip.title,
            source,
            tip.id,
            last_seq,
            token,
            tip.running_node,
            tip.running_turn,
            to_time(created_at),
            forked_from,
            revision,
            history,
        )
        return Resolved(conversation, tip, self.addressed)


def to_turn(row: Row) -> Turn:
    (
        id_, conversation, session, owner, status, node, attempt, first_seq, started_at, ended_at,
        error, model, usage, response_id, delivery, why, origin, recover, tries, all_tries, stops, refusals,
        refused_since, step_seq, due_at, cause, joined,
    ) = row  # fmt: skip
    return Turn(
        id=id_,
        conversation_id=conversation,
        session_id=session,
        owner=owner,
        status=TurnStatus(status),
        node_id=node,
        attempt=attempt,
        first_seq=first_seq,
        started_at=to_time(started_at),
        ended_at=None if status == "queued" else to_time_or_none(ended_at),
        error=error,
        model=model,
        usage=msgspec.json.decode(usage) if usage else None,
        response_id=response_id,
        delivery=Delivery(delivery),
        why=why,
        recovery=Recovery(
            origin and Origin(origin),
            bool(recover),
            tries,
            all_tries,
            stops,
            refusals,
            to_time_or_none(refused_since),
            step_seq,
            to_time_or_none(due_at),
            cause and Cause(cause),
        ),
        joined=joined,
    )


def to_message(row: Row) -> Message:
    (
        conversation, seq, session, turn, role, status, created_at, origin, body, gaps, inner, own_calls,
        extra,
    ) = row  # fmt: skip
    return Message(
        conversation,
        seq,
        session,
        turn,
        role,
        MessageStatus(status),
        to_time(created_at),
        body,
        origin,
        tuple(msgspec.json.decode(gaps)) if gaps else (),
        bool(inner),
        tuple(msgspec.json.decode(own_calls)) if own_calls else (),
        extra,
    )


def to_draft(row: Row) -> Draft:
    (first_event, last_event, events, adds, restarts, after_seq) = row
    return Draft(first_event, last_event, events, msgspec.json.decode(adds), bool(restarts), after_seq)


def to_node(row: Row) -> Node:
    (
        id_, kind, host, boot_id, pid_ns, pid, pid_start, machine, beat, started_at, heartbeat_at, left_at,
        reaped_at, stale_ms, version, reaped_why,
    ) = row  # fmt: skip
    return Node(
        id_,
        NodeKind(kind),
        Identity(host, boot_id, pid_ns, pid, pid_start, machine or ""),
        beat,
        to_time(started_at),
        to_time(heartbeat_at),
        to_time_or_none(left_at),
        to_time_or_none(reaped_at),
        None if stale_ms is None else stale_ms / 1000,
        version or "",
        reaped_why or "",
    )


def to_event(row: Row) -> Event:
    (id_, at, type_, owner, conversation, session, turn, data) = row
    return Event(id_, to_time(at), type_, owner, conversation, session, turn, msgspec.json.decode(data))
