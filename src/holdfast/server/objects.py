"""Makes the public JSON objects (`schemas.py`) from values. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TypeVar, overload

import msgspec
from msgspec import UNSET, Struct

from ..domain.api_keys import LIMIT_NAMES, ApiKey, Token
from ..domain.attachments import Attachment
from ..domain.connectors import ConnectorState, Outgoing, Pairing
from ..domain.events import Event
from ..domain.figures import OwnerUsage, Statistics
from ..domain.flushes import Flush
from ..domain.headings import NO_HEADING, Heading
from ..domain.memories import Memory
from ..domain.messages import Message
from ..domain.notices import Notice, NoticeDelivery
from ..domain.pages import Found, LineageTree, NodeReport
from ..domain.processes import LogPart, Process, program_of
from ..domain.queue import Cancelled, QueuedTurn
from ..domain.resets import Reason
from ..domain.sessions import Session, SessionState
from ..domain.side_requests import SideRequest
from ..domain.turns import Turn, TurnStatus
from ..domain.usage import input_tokens, output_tokens
from ..domain.views import Part, Summary
from ..domain.why import Why
from .log_buffer import LogLine
from .schemas import (
    ApiKeyObject,
    AttachmentObject,
    ConnectorObject,
    DeletedMemoryObject,
    DeliveryObject,
    EventObject,
    FlushObject,
    FlushStatusObject,
    FoundObject,
    GoneObject,
    LineageObject,
    LineageSessionObject,
    ListObject,
    LivingObject,
    LogLineObject,
    MemoryObject,
    MessageObject,
    NewApiKeyObject,
    NodeObject,
    NothingCancelledObject,
    NoticeDeliveryObject,
    NoticeObject,
    OwnerUsageObject,
    PairingObject,
    PolicyValueObject,
    ProcessLogObject,
    ProcessObject,
    QueuedTurnObject,
    ReasonObject,
    RunningProcessObject,
    SessionObject,
    SideMessageObject,
    SideRequestObject,
    StatisticsObject,
    TurnObject,
    UsageObject,
    ViewPartObject,
    WhyObject,
)

Object = dict[str, Any]
T = TypeVar("T")

NO_FLUSH = FlushStatusObject(state="none", attempts=0, error=None)


@overload
def time(value: datetime) -> str: ...
@overload
def time(value: datetime | None) -> str | None: ...


def time(value: datetime | None) -> str | None:
    """RFC 3339 in UTC, to the microsecond, ending in Z."""
    if value is None:
        return None
    return value.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def listed(data: Sequence[T], *, has_more: bool = False) -> ListObject[T]:
    """A list in OpenAI's shape; the next page begins after `last_id`."""
    return ListObject(
        object="list",
        data=list(data),
        first_id=_id_of(data[0]) if data else None,
        last_id=_id_of(data[-1]) if data else None,
        has_more=has_more,
    )


def _id_of(value: Any) -> str | int | None:
    found: str | int | None = value.get("id") if isinstance(value, dict) else getattr(value, "id", None)
    return found


def fields_of(value: Struct) -> Object:
    """The fields of an object that are set, by name."""
    return {name: each for name, each in msgspec.structs.asdict(value).items() if each is not UNSET}


def session(
    value: Session,
    state: SessionState,
    flush: Flush | None = None,
    *,
    with_owner: bool = False,
    heading: Heading = NO_HEADING,
) -> SessionObject:
    """`with_owner`: adds the field `owner`, for an operator who lists all owners. `heading`: text of its
    messages, for a reader who may see it."""
    return SessionObject(
        id=value.id,
        conversation_id=value.conversation_id,
        key=value.key,
        source=value.source,
        title=value.title or heading.first_words,
        preview=heading.preview,
        state=state,
        attached=value.attached,
        edge=value.edge,
        parent_id=value.parent_id,
        tip_id=value.tip_id,
        node=value.running_node or value.node_id,
        host=value.host,
        opened_at=time(value.opened_at),
        last_activity_at=time(value.last_activity_at),
        last_heartbeat_at=time(value.last_heartbeat_at),
        next_due_at=time(value.next_due_at),
        ended_at=time(value.ended_at),
        end_reason=value.end_reason,
        message_count=value.message_count,
        usage=UsageObject(input_tokens=value.input_tokens, output_tokens=value.output_tokens),
        model=value.model,
        flush=_flush_status(flush),
        owner=value.owner if with_owner else UNSET,
    )


def _flush_status(value: Flush | None) -> FlushStatusObject:
    if value is None:
        return NO_FLUSH
    return FlushStatusObject(state=value.shown, attempts=value.attempts, error=value.error)


def sessions(
    values: Iterable[Session],
    states: Mapping[str, SessionState],
    flushes: Mapping[str, Flush],
    *,
    has_more: bool = False,
    with_owner: bool = False,
    headings: Mapping[str, Heading] = MappingProxyType({}),
) -> ListObject[SessionObject]:
    data = [
        session(
            value,
            states[value.id],
            flushes.get(value.id),
            with_owner=with_owner,
            heading=headings.get(value.conversation_id, NO_HEADING),
        )
        for value in values
    ]
    return listed(data, has_more=has_more)


RESERVED = frozenset({*FoundObject.__struct_fields__, "object", "owner"})
"""Field names of message objects and search hits that only holdfast sets. A client's or model's own fields of
these names are stored and sent to the model, but not shown."""


def message(value: Message) -> Object:
    """The fields of `MessageObject`, and the message's other fields whose names are not RESERVED."""
    body = value.content()
    ours = MessageObject(
        id=value.id,
        seq=value.seq,
        session_id=value.session_id,
        turn_id=value.turn_id,
        role=value.role,
        content=body.get("content"),
        tool_calls=body.get("tool_calls"),
        tool_call_id=body.get("tool_call_id"),
        created_at=time(value.created_at),
        status=value.status,
        inner=True if value.inner else UNSET,
    )
    others = {**value.carried(), **body}
    return {**fields_of(ours), **{name: each for name, each in others.items() if name not in RESERVED}}


def found(value: Found) -> Object:
    """A search hit: the fields of `FoundObject`, and the message's other fields."""
    return {
        **message(value.message),
        "conversation_id": value.message.conversation_id,
        "key": value.key,
        "title": value.title,
        "snippet": value.snippet,
    }


TOKEN_NAMES = ("input_tokens", "output_tokens", "prompt_tokens", "completion_tokens")


def usage(value: Mapping[str, Any] | None) -> UsageObject | None:
    """Token counts under one pair of names, from either of OpenAI's; None: the model reported none."""
    if not value or not any(name in value for name in TOKEN_NAMES):
        return None
    return UsageObject(
        input_tokens=input_tokens(value),
        output_tokens=output_tokens(value),
    )


def nothing_cancelled(value: Session, cancelled: Cancelled) -> NothingCancelledObject:
    message, queue = "no turn is running in this session", cancelled.queue_sentence
    return NothingCancelledObject(
        id=value.id,
        object="session.not_cancelled",
        conversation_id=value.conversation_id,
        cancelled=False,
        withdrawn=cancelled.withdrawn,
        message=f"{message}; {queue}" if queue else message,
    )


def turn(value: Turn, *, doing: str | None = None, most_attempts: int | None = None) -> TurnObject:
    """`doing`: what it does, if it runs in this process; `most_attempts`: `[turns] max_attempts`."""
    if value.waits or value.status is TurnStatus.QUEUED:
        doing = "waiting"
    elif value.status is TurnStatus.RUNNING:
        doing = doing or "model"
    return TurnObject(
        id=value.id,
        session_id=value.session_id,
        conversation_id=value.conversation_id,
        status=value.shown_status,
        attempt=value.attempt,
        doing=doing,
        why=value.reason(most_attempts),
        error=None if value.waits else value.error,
        started_at=time(value.started_at),
        ended_at=None if value.waits else time(value.ended_at),
        node=value.node_id,
        usage=usage(value.usage),
        response_id=value.response_id,
    )


def queued_turn(value: QueuedTurn) -> QueuedTurnObject:
    turn = value.turn
    return QueuedTurnObject(
        id=turn.id,
        object="turn",
        status=turn.status,
        position=value.position,
        behind=value.behind,
        steers=value.steers,
        session_id=turn.session_id,
        conversation_id=turn.conversation_id,
        messages=[msgspec.json.decode(message.body) for message in value.messages],
        queued_at=time(turn.started_at),
        response_id=turn.response_id,
    )


def event(value: Event) -> EventObject:
    return EventObject(
        id=value.id,
        at=time(value.at),
        type=value.type,
        conversation_id=value.conversation_id,
        session_id=value.session_id,
        turn_id=value.turn_id,
        data=dict(value.data),
    )


def process(value: Process, active: bool, *, with_owner: bool = False, whole: bool = True) -> ProcessObject:
    """`active`: it was active recently, so it may delay a reset. `whole`: the reader may see the command line
    and directory of a watched process, which no session started; else only its program is shown."""
    hidden = value.watched and not whole
    return ProcessObject(
        id=value.id,
        session_id=value.session_id,
        conversation_id=value.conversation_id,
        host=value.host,
        pid=value.pid,
        command=program_of(value.command) if hidden else value.command,
        cwd="" if hidden else value.cwd,
        state=value.state,
        exit_code=value.exit_code,
        active=active,
        activity=value.activity,
        started_at=time(value.started_at),
        last_active_at=time(value.last_active_at),
        ended_at=time(value.ended_at),
        stop_requested_at=time(value.stop_requested_at),
        stop_reason=value.stop_reason,
        pinned_until=time(value.pinned_until),
        watched=value.watched,
        owner=value.owner if with_owner else UNSET,
    )


def running_process(value: Process, active: bool, *, whole: bool = True) -> RunningProcessObject:
    """A process in short, as part of `living`."""
    hidden = value.watched and not whole
    return RunningProcessObject(
        id=value.id,
        pid=value.pid,
        command=program_of(value.command) if hidden else value.command,
        state=value.state,
        active=active,
    )


def process_log(value: Process, part: LogPart) -> ProcessLogObject:
    return ProcessLogObject(
        object="process.log", id=value.id, text=part.text, next=part.next, dropped=part.dropped
    )


def notice(
    value: Notice, sent: Sequence[NoticeDelivery] | None = None, *, with_owner: bool = False
) -> NoticeObject:
    """`sent`: where connectors sent it; None: the object does not say where and when it was sent."""
    return NoticeObject(
        id=value.id,
        conversation_id=value.conversation_id,
        key=value.key,
        kind=value.kind,
        text=value.text,
        created_at=time(value.created_at),
        delivered_at=time(value.delivered_at),
        sent_at=UNSET if sent is None else time(value.sent_at),
        told_at=UNSET if sent is None else time(value.told_at),
        deliveries=UNSET if sent is None else [_notice_delivery(each) for each in sent],
        owner=value.owner if with_owner else UNSET,
    )


def _notice_delivery(value: NoticeDelivery) -> NoticeDeliveryObject:
    return NoticeDeliveryObject(
        connector=value.connector,
        key=value.key,
        state=value.state,
        sent_at=time(value.sent_at),
        error=value.error,
    )


def side_request(value: SideRequest, conversation_id: str) -> SideRequestObject:
    """`conversation_id`: the conversation whose list it is in."""
    tokens = None
    if value.input_tokens is not None or value.output_tokens is not None:
        tokens = UsageObject(input_tokens=value.input_tokens or 0, output_tokens=value.output_tokens or 0)
    return SideRequestObject(
        id=value.id,
        object="side_request",
        conversation_id=conversation_id,
        name=value.name,
        kind=value.kind,
        model=value.model,
        messages=[SideMessageObject(**message) for message in value.text.messages],
        reply=value.text.reply,
        truncated=value.text.truncated,
        usage=tokens,
        created_at=time(value.created_at),
    )


def delivery(value: Outgoing, *, with_owner: bool = False) -> DeliveryObject:
    return DeliveryObject(
        id=value.id,
        connector=value.connector,
        place=value.address,
        conversation_id=value.conversation_id,
        key=value.key,
        kind=value.kind.value,
        turn_id=value.turn_id,
        state=value.public_state,
        text=value.text,
        attempts=value.attempts,
        error=value.error,
        platform_ids=[part.platform_id for part in value.parts if part.platform_id],
        created_at=time(value.created_at),
        due_at=time(value.due_at),
        sent_at=time(value.sent_at),
        owner=value.owner if with_owner else UNSET,
    )


def attachment(value: Attachment) -> AttachmentObject:
    return AttachmentObject(
        id=value.id,
        conversation_id=value.conversation_id,
        turn_id=value.turn_id,
        name=value.name,
        mime=value.mime,
        size=value.size,
        created_at=time(value.created_at),
    )


def pairing(value: Pairing) -> PairingObject:
    return PairingObject(
        id=value.id,
        connector=value.connector,
        person=value.person,
        name=value.name,
        owner=value.owner,
        key=value.key,
        state=value.state.value,
        created_at=time(value.created_at),
        expires_at=time(value.expires_at),
        decided_at=time(value.decided_at),
    )


def connector(value: ConnectorState) -> ConnectorObject:
    return ConnectorObject(
        name=value.name,
        kind=value.kind,
        node=value.node_id,
        state=value.health.value,
        problem=value.problem,
        since=time(value.since),
        pending=value.pending,
        dead=value.dead,
    )


def memory(value: Memory, *, with_owner: bool = False) -> MemoryObject:
    return MemoryObject(
        id=value.id,
        session_id=value.session_id,
        conversation_id=value.conversation_id,
        key=value.key,
        text=value.text,
        origin=value.origin,
        created_at=time(value.created_at),
        edited_at=time(value.edited_at),
        owner=value.owner if with_owner else UNSET,
    )


def deleted_memory(memory_id: str) -> DeletedMemoryObject:
    return DeletedMemoryObject(id=memory_id, object="memory.deleted", deleted=True)


def flush(value: Flush, *, with_owner: bool = False) -> FlushObject:
    """A flush, under the id of its session. Unlike a session's `flush` field, `state` can be `skipped` or
    `taken` here."""
    return FlushObject(
        id=value.session_id,
        session_id=value.session_id,
        conversation_id=value.conversation_id,
        key=value.key,
        reason=value.reason,
        state=value.state,
        attempts=value.attempts,
        error=value.error,
        next_attempt_at=time(value.next_attempt_at),
        created_at=time(value.created_at),
        settled_at=time(value.settled_at),
        owner=value.owner if with_owner else UNSET,
    )


def why(value: Why) -> WhyObject:
    return WhyObject(
        session_id=value.session_id,
        decision=value.decision,
        next_due_at=time(value.next_due_at),
        sentence=value.sentence,
        policy={
            name: PolicyValueObject(value=each.value, origin=each.origin)
            for name, each in value.policy.items()
        },
        reasons=[reason(each) for each in value.reasons],
        history=[event(each) for each in value.history],
    )


def reason(value: Reason) -> ReasonObject:
    return ReasonObject(
        code=value.code,
        message=value.message,
        process_id=UNSET if value.process_id is None else value.process_id,
        until=UNSET if value.until is None else time(value.until),
    )


def living(
    value: Session,
    state: SessionState,
    doing: str | None,
    *,
    processes: Sequence[RunningProcessObject] = (),
    queued: int = 0,
    with_owner: bool = False,
    heading: Heading = NO_HEADING,
) -> LivingObject:
    """A live session: what it is doing, since when it has been active or idle, and the background processes
    of its conversation."""
    return LivingObject(
        session_id=value.id,
        conversation_id=value.conversation_id,
        key=value.key,
        source=value.source,
        title=value.title or heading.first_words,
        model=value.model,
        state=state,
        doing=doing,
        since=time(value.ended_at or value.last_activity_at),  # does not change while a turn runs
        last_activity_at=time(value.last_activity_at),
        last_heartbeat_at=time(value.last_heartbeat_at),
        node=value.running_node or value.node_id,
        host=value.host,
        processes=list(processes),
        queued=queued,
        owner=value.owner if with_owner else UNSET,
    )


def gone(value: Session, *, with_owner: bool = False, heading: Heading = NO_HEADING) -> GoneObject:
    """A session that has just ended, with the fields of `living`, `ended_at` and `end_reason`."""
    assert value.ended_at is not None and value.end_reason is not None
    alive = living(value, SessionState.ENDED, None, with_owner=with_owner, heading=heading)
    return GoneObject(
        **msgspec.structs.asdict(alive), ended_at=time(value.ended_at), end_reason=value.end_reason
    )


def node(report: NodeReport, now: datetime) -> NodeObject:
    value, uptime = report.node, report.running_for(now)
    return NodeObject(
        id=value.id,
        kind=value.kind,
        host=value.identity.host,
        pid=value.identity.pid,
        version=value.version or None,
        state=report.liveness,
        why=report.why,
        running_turns=report.running_turns,
        uptime_seconds=None if uptime is None else round(uptime.total_seconds()),
        started_at=time(value.started_at),
        last_heartbeat_at=time(value.heartbeat_at),
        left_at=time(value.left_at),
        reaped_at=time(value.reaped_at),
    )


def log_line(value: LogLine) -> LogLineObject:
    return LogLineObject(
        at=time(value.at),
        level=value.level,
        logger=value.logger,
        message=value.message,
        exception=value.exception,
    )


def api_key(value: ApiKey) -> ApiKeyObject:
    return ApiKeyObject(
        id=value.id,
        owner=value.owner,
        scope=value.scope,
        tools=sorted(value.tools),
        created_at=time(value.created_at),
        revoked_at=time(value.revoked_at),
        store="always" if value.keeps else "never",
        name=value.name or None,
        expires_at=time(value.expires_at),
        last_used_at=time(value.last_used_at),
        webhook=value.webhook or None,
        **{name: getattr(value.limits, name) or None for name in LIMIT_NAMES},
    )


def new_api_key(value: ApiKey, token: Token) -> NewApiKeyObject:
    return NewApiKeyObject(**msgspec.structs.asdict(api_key(value)), key=str(token))


def lineage(
    value: LineageTree,
    states: Mapping[str, SessionState],
    flushes: Mapping[str, Flush],
    headings: Mapping[str, Heading],
) -> LineageObject:
    """A conversation's sessions, oldest first, and the conversations forked from it, as a tree. `headings` by
    conversation id: empty for a reader who may not see text of messages."""
    first = value.sessions[0]
    heading = headings.get(first.conversation_id, NO_HEADING)
    return LineageObject(
        object="lineage",
        conversation_id=first.conversation_id,
        key=first.key,
        title=first.title or heading.first_words,
        forked_from=first.parent_id,
        data=[
            LineageSessionObject(
                **msgspec.structs.asdict(
                    session(each, states[each.id], flushes.get(each.id), heading=heading)
                ),
                first_seq=each.first_seq,
                last_seq=each.last_seq,
                view=[view_part(part) for part in each.view.parts],
            )
            for each in value.sessions
        ],
        forks=[lineage(fork, states, flushes, headings) for fork in value.forks],
    )


def view_part(value: Part) -> ViewPartObject:
    """A part of a session's view. A summary's text is in the session's context, not here."""
    if isinstance(value, Summary):
        size = len(value.text)
        return ViewPartObject(kind="summary", first=value.first, last=value.last, characters=size)
    return ViewPartObject(kind="messages", first=value.first, last=value.last, characters=None)


def owner_usage(value: OwnerUsage) -> OwnerUsageObject:
    return OwnerUsageObject(owner=value.owner, conversations=value.conversations, bytes=value.bytes)


def statistics(value: Statistics, leaked: int) -> StatisticsObject:
    return StatisticsObject(
        object="statistics",
        total=value.sessions,
        open=value.open,
        leaked=leaked,
        conversations=value.conversations,
        messages=value.messages,
        end_reasons=dict(value.end_reasons),
        sources=dict(value.sources),
    )
