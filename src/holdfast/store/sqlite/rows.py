"""From rows to values and back. Column order is that of the fragments in `queries/`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from ...domain.conversations import Conversation
from ...domain.drafts import Draft
from ...domain.events import Event
from ...domain.messages import Message, MessageStatus
from ...domain.nodes import Identity, Node, NodeKind
from ...domain.sessions import Edge, Session
from ...domain.turns import Turn, TurnStatus
from ...domain.views import View

Row = Sequence[Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_time(stamp: int) -> datetime:
    return _EPOCH + timedelta(microseconds=stamp)


def to_time_or_none(stamp: int | None) -> datetime | None:
    return None if stamp is None else to_time(stamp)


def to_stamp(time: datetime) -> int:
    return (time - _EPOCH) // _MICROSECOND


def to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def to_conversation(row: Row) -> Conversation:
    (id_, owner, key, title, source, tip, last_seq, token, holder, turn, created_at, forked_from) = row
    return Conversation(
        id_, owner, key, title, source, tip, last_seq, token, holder, turn, to_time(created_at), forked_from
    )


def to_session(row: Row) -> Session:
    (
        id_, conversation, owner, key, title, source, attached, node, edge, parent, tip, ordinal,
        opened_at, last_activity_at, next_due_at, ended_at, end_reason, model, view, first_seq,
        last_seq, turn, holder, host, heartbeat_at, input_tokens, output_tokens,
    ) = row  # fmt: skip
    return Session(
        id=id_,
        conversation_id=conversation,
        owner=owner,
        key=key,
        title=title,
        source=source,
        attached=bool(attached),
        node_id=node,
        edge=Edge(edge) if edge else None,
        parent_id=parent,
        tip_id=tip,
        ordinal=ordinal,
        opened_at=to_time(opened_at),
        last_activity_at=to_time(last_activity_at),
        next_due_at=to_time_or_none(next_due_at),
        ended_at=to_time_or_none(ended_at),
        end_reason=end_reason,
        model=model,
        view=View.decode(view),
        first_seq=first_seq,
        last_seq=last_seq,
        running_turn=turn,
        running_node=holder,
        host=host,
        last_heartbeat_at=to_time_or_none(heartbeat_at),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
    )


def to_turn(row: Row) -> Turn:
    (
        id_, conversation, session, owner, status, node, attempt, first_seq, started_at, ended_at,
        error, model, usage, response_id,
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
        ended_at=to_time_or_none(ended_at),
        error=error,
        model=model,
        usage=msgspec.json.decode(usage) if usage else None,
        response_id=response_id,
    )


def to_message(row: Row) -> Message:
    (conversation, seq, session, turn, role, status, created_at, origin, body) = row
    return Message(
        conversation, seq, session, turn, role, MessageStatus(status), to_time(created_at), body, origin
    )


def to_draft(row: Row) -> Draft:
    (first_event, last_event, events, adds, restarts) = row
    return Draft(first_event, last_event, events, msgspec.json.decode(adds), bool(restarts))


def to_node(row: Row) -> Node:
    (id_, kind, host, boot_id, pid_ns, pid, pid_start, beat, started_at, heartbeat_at, left_at, reaped_at) = (
        row
    )
    return Node(
        id_,
        NodeKind(kind),
        Identity(host, boot_id, pid_ns, pid, pid_start),
        beat,
        to_time(started_at),
        to_time(heartbeat_at),
        to_time_or_none(left_at),
        to_time_or_none(reaped_at),
    )


def to_event(row: Row) -> Event:
    (id_, at, type_, owner, conversation, session, turn, data) = row
    return Event(id_, to_time(at), type_, owner, conversation, session, turn, msgspec.json.decode(data))
