"""The public JSON objects that HTTP sends and `--json` prints, one Struct each.

`/openapi.json` and docs/reference/objects.md are derived from them, under the class name without `Object`.
Every documented field is always present, null if it has no value, except those that may be `UNSET`. Times are
RFC 3339 in UTC. Fields are added, never removed. `objects.py` makes them from values.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from ..domain.api_keys import Scope
from ..domain.flushes import FlushState
from ..domain.memories import MemoryOrigin
from ..domain.messages import MessageStatus
from ..domain.nodes import Liveness, NodeKind
from ..domain.processes import ProcessState
from ..domain.resets import Decision
from ..domain.sessions import Edge, SessionState
from ..domain.turns import TurnStatus

T = TypeVar("T")


def doc(text: str) -> Meta:
    """The documentation of a field."""
    return Meta(description=text)


Count = Annotated[int, Meta(ge=0)]
Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
OwnerName = Annotated[str, doc("Its owner. Present only if the request names `owner`")]


class PublicObject(Struct, frozen=True, kw_only=True):
    """Base of every public object."""


class ErrorDetail(PublicObject, frozen=True, kw_only=True):
    """What is wrong with a request, in OpenAI's shape."""

    message: Annotated[str, doc("What is wrong and what to do, for people")]
    type: Annotated[str, doc("The class of the error, as OpenAI names it")]
    param: Annotated[str | None, doc("The field, parameter or setting that is wrong")]
    code: Annotated[str | None, doc("The error's code, for programs")]


class ErrorObject(PublicObject, frozen=True, kw_only=True):
    """The body of every error."""

    error: ErrorDetail


class ListObject(PublicObject, Generic[T], frozen=True, kw_only=True):
    """A page of a list, in OpenAI's shape."""

    object: Literal["list"]
    data: list[T]
    first_id: Annotated[str | int | None, doc("The id of the first entry")]
    last_id: Annotated[str | int | None, doc("The id of the last entry: `after` of the next page")]
    has_more: Annotated[bool, doc("True: there is a next page")]


class UsageObject(PublicObject, frozen=True, kw_only=True):
    """Token counts."""

    input_tokens: Count
    output_tokens: Count


class FlushStatusObject(PublicObject, frozen=True, kw_only=True):
    """Whether the memories of a session have been extracted."""

    state: Annotated[
        str,
        Meta(
            description="`none`: it is not flushed; `dead`: all attempts failed",
            extra_json_schema={"enum": ["none", "pending", "running", "done", "dead"]},
        ),
    ]
    attempts: Annotated[Count, doc("How many attempts were made")]
    error: Annotated[str | None, doc("Why the last attempt failed")]


class SessionObject(PublicObject, frozen=True, kw_only=True):
    """A session: one stretch of context within a conversation."""

    id: Annotated[str, doc("`sess_…`")]
    conversation_id: Annotated[str, doc("Its conversation, `conv_…`; never changes")]
    key: Annotated[str | None, doc("The session key of its conversation")]
    source: Annotated[str, doc("Where the conversation comes from: `cli`, `telegram`, …")]
    title: Annotated[
        str | None, doc("The title of the conversation: set, or made by the model, or its first words")
    ]
    preview: Annotated[
        str | None, doc("The beginning of its conversation's last message; null for another owner's")
    ]
    state: Annotated[SessionState, doc("`active` while a turn runs; `orphaned` if its node is gone")]
    attached: Annotated[bool, doc("True: it ends with the process that opened it")]
    edge: Annotated[Edge | None, doc("How it follows from `parent_id`")]
    parent_id: Annotated[str | None, doc("The session that it continues or was copied from")]
    tip_id: Annotated[str, doc("The newest session of the conversation")]
    node: Annotated[str | None, doc("The node that runs its turn, or that it is attached to")]
    host: Annotated[str | None, doc("The host of that node")]
    opened_at: Time
    last_activity_at: Annotated[Time, doc("When its last turn started or ended")]
    last_heartbeat_at: Annotated[Time | None, doc("The last heartbeat of its node")]
    next_due_at: Annotated[Time | None, doc("When it is due to be reset")]
    ended_at: Time | None
    end_reason: Annotated[str | None, doc("Why it ended: `idle`, `daily`, `new`, `closed`, …")]
    message_count: Annotated[Count, doc("How many messages it has added")]
    usage: UsageObject
    model: Annotated[str | None, doc("The model of its last turn")]
    flush: FlushStatusObject
    owner: OwnerName | UnsetType = UNSET


class DeletedSessionObject(PublicObject, frozen=True, kw_only=True):
    """Confirms that a conversation was deleted."""

    id: Annotated[str, doc("The session that the request named")]
    object: Literal["session.deleted"]
    conversation_id: Annotated[str, doc("The conversation that was deleted")]
    deleted: Literal[True]


class NothingCancelledObject(PublicObject, frozen=True, kw_only=True):
    """The session in which no turn was running. Queued turns were withdrawn."""

    id: Annotated[str, doc("The newest session of the conversation that the request named")]
    object: Literal["session.not_cancelled"]
    conversation_id: Annotated[str, doc("Its conversation")]
    cancelled: Literal[False]
    withdrawn: Annotated[Count, doc("How many queued turns were withdrawn")]
    message: Annotated[str, doc("Why, as a sentence")]


class MessageObject(PublicObject, frozen=True, kw_only=True):
    """A stored message. Other fields of a client or a model are shown too, unless their name is reserved."""

    id: Annotated[str, doc("`msg_…`, with its conversation and its number")]
    seq: Annotated[Count, doc("Its number in the conversation, from 1")]
    session_id: Annotated[str, doc("The session that added it")]
    turn_id: Annotated[str | None, doc("The turn that added it")]
    role: Annotated[str, doc("`user`, `assistant`, `tool`, …")]
    content: Annotated[Any, doc("Its text, or a list of parts")]
    tool_calls: Annotated[Any, doc("The calls of an assistant's message")]
    tool_call_id: Annotated[Any, doc("The call that a tool's message answers")]
    created_at: Time
    status: Annotated[MessageStatus, doc("`interrupted`: the part that an unfinished turn left")]
    inner: (
        Annotated[
            Literal[True],
            doc("Only on messages between the model and the server's tools"),
        ]
        | UnsetType
    ) = UNSET


class FoundObject(MessageObject, frozen=True, kw_only=True):
    """A search hit: a message, its conversation, and a snippet around the match."""

    conversation_id: Annotated[str, doc("Its conversation")]
    key: Annotated[str | None, doc("The session key of the conversation")]
    title: Annotated[str | None, doc("The title of the conversation")]
    snippet: Annotated[str, doc("The text around the match")]


class ContextMessageObject(PublicObject, frozen=True, kw_only=True):
    """A message of a context, as the model would get it."""

    role: str


class TurnObject(PublicObject, frozen=True, kw_only=True):
    """A turn: one request and its answer."""

    id: Annotated[str, doc("`turn_…`")]
    session_id: Annotated[str, doc("The session that it belongs to")]
    conversation_id: Annotated[str, doc("The conversation that it belongs to")]
    status: Annotated[TurnStatus, doc("`running` too while it waits for a retry")]
    attempt: Annotated[Count, doc("How often it was begun: 1, and one more for each retry")]
    doing: Annotated[
        str | None,
        doc("`model`, `tool:<name>`, `compacting`; `waiting` for a retry; null: it has ended"),
    ]
    why: Annotated[str | None, doc("Why it has no answer, or none yet, as a sentence")]
    error: Annotated[str | None, doc("Why it has no complete answer")]
    started_at: Time
    ended_at: Time | None
    node: Annotated[str, doc("The node that runs it, or ran it last")]
    usage: Annotated[UsageObject | None, doc("What the model reported; null: nothing")]
    response_id: Annotated[str | None, doc("Its id in the Responses API, `resp_…`")]


class QueuedObject(PublicObject, frozen=True, kw_only=True):
    """The answer to a request whose turn is queued."""

    id: Annotated[str, doc("`turn_…`")]
    object: Literal["turn"]
    status: TurnStatus
    position: Annotated[Count, doc("Its place in the queue; 1: it is the next; 0: it has begun meanwhile")]
    session_id: Annotated[str, doc("The newest session of its conversation now")]
    conversation_id: Annotated[str, doc("The conversation that it belongs to")]


class QueuedTurnObject(QueuedObject, frozen=True, kw_only=True):
    """A turn that waits until its conversation is free."""

    behind: Annotated[str | None, doc("The turn that it waits for")]
    steers: Annotated[bool, doc("True: its messages join the running turn at its next step, if there is one")]
    messages: Annotated[list[dict[str, Any]], doc("Its messages; they get numbers when it begins")]
    queued_at: Time
    response_id: Annotated[str | None, doc("Its id in the Responses API, `resp_…`")]


class ViewPartObject(PublicObject, frozen=True, kw_only=True):
    """A part of a session's context: messages, or a summary that replaces them."""

    kind: Literal["messages", "summary"]
    first: Annotated[Count, doc("The number of the first message")]
    last: Annotated[int | None, doc("The number of the last message; null: open-ended")]
    characters: Annotated[int | None, doc("The length of a summary")]


class LineageSessionObject(SessionObject, frozen=True, kw_only=True):
    """A session in a lineage: the session, its own messages and its context."""

    first_seq: Annotated[Count, doc("The number of its first message")]
    last_seq: Annotated[Count, doc("The number of its last message; below `first_seq`: it has none")]
    view: Annotated[list[ViewPartObject], doc("Its context")]


class LineageObject(PublicObject, frozen=True, kw_only=True):
    """The sessions of a conversation, and the conversations forked from it, as a tree."""

    object: Literal["lineage"]
    conversation_id: str
    key: Annotated[str | None, doc("The session key of the conversation")]
    title: Annotated[
        str | None, doc("The title of the conversation: set, or made by the model, or its first words")
    ]
    forked_from: Annotated[str | None, doc("The session that it is a fork of")]
    data: Annotated[list[LineageSessionObject], doc("Its sessions, oldest first")]
    forks: Annotated[list[LineageObject], doc("The conversations forked from it")]


class EventObject(PublicObject, frozen=True, kw_only=True):
    """An event: what happened, with ids and numbers, never text."""

    id: Annotated[Count, doc("Its number; later events have higher ones")]
    at: Time
    type: Annotated[str, doc("See the reference of events")]
    conversation_id: str | None
    session_id: str | None
    turn_id: str | None
    data: Annotated[dict[str, Any], doc("The data of this type of event")]


class NoticeDeliveryObject(PublicObject, frozen=True, kw_only=True):
    """A notice on its way to a place on a messaging platform."""

    connector: str
    key: Annotated[str, doc("The session key of the place")]
    state: Annotated[str, doc("`pending`, `sent` or `dead`: given up")]
    sent_at: Time | None
    error: Annotated[str | None, doc("Why the last attempt failed")]


class NoticeObject(PublicObject, frozen=True, kw_only=True):
    """A text for a person."""

    id: Annotated[str, doc("`note_…`")]
    conversation_id: str
    key: Annotated[str | None, doc("The session key of the conversation")]
    kind: Annotated[str, doc("What it is about, such as `reset`")]
    text: Annotated[str, doc("What to show the person")]
    created_at: Time
    delivered_at: Annotated[Time | None, doc("When a client confirmed its delivery")]
    sent_at: Annotated[
        Time | UnsetType | None, doc("When the webhook of the settings accepted it; in lists")
    ] = UNSET
    told_at: Annotated[
        Time | UnsetType | None, doc("When a reply of the conversation carried it; in lists")
    ] = UNSET
    deliveries: Annotated[
        list[NoticeDeliveryObject] | UnsetType, doc("Where connectors sent it, or will; in lists")
    ] = UNSET
    owner: OwnerName | UnsetType = UNSET


class NoticeCountObject(PublicObject, frozen=True, kw_only=True):
    """How many notices were changed."""

    object: Literal["notices.delivered"]
    count: Count


class SideMessageObject(PublicObject, frozen=True, kw_only=True):
    """The text of one message of a side request."""

    role: str
    content: str


class SideRequestObject(PublicObject, frozen=True, kw_only=True):
    """What an agent program asked under the name of its session, beside its conversation."""

    id: Annotated[str, doc("`side_…`")]
    object: Literal["side_request"]
    conversation_id: str
    name: Annotated[str, doc("The session's name, as the program sent it")]
    kind: Annotated[str, doc("Its purpose: `title`, `topic`, `summary`, `compaction`, …")]
    model: Annotated[str | None, doc("Who answered")]
    messages: Annotated[list[SideMessageObject], doc("The text of the request; images are left out")]
    reply: Annotated[str, doc("The text of the answer")]
    truncated: Annotated[bool, doc("Whether the request or the reply was too long to be kept whole")]
    usage: Annotated[UsageObject | None, doc("Tokens, if the model reported them")]
    created_at: Time


class DeliveryObject(PublicObject, frozen=True, kw_only=True):
    """A message to a messaging platform."""

    id: Annotated[str, doc("`dlv_…`")]
    connector: Annotated[str, doc("The connector's name in the settings")]
    place: Annotated[str, doc("The chat, room or thread, as the connector addresses it")]
    conversation_id: str | None
    key: Annotated[str, doc("The session key of the place")]
    kind: Annotated[
        str, doc("`reply`, `said` (elsewhere), `notice`, `answer` (to a command), `event` (JSON)")
    ]
    turn_id: Annotated[str | None, doc("The turn whose reply it is")]
    state: Annotated[str, doc("`pending`, `sent` or `dead`: given up, until it is retried")]
    text: Annotated[str, doc("What is sent; empty once it was")]
    attempts: Count
    error: Annotated[str | None, doc("Why the last attempt failed")]
    platform_ids: Annotated[list[str], doc("The platform's ids of the parts that it has accepted")]
    created_at: Time
    due_at: Annotated[Time, doc("When it is tried next")]
    sent_at: Time | None
    owner: OwnerName | UnsetType = UNSET


class AttachmentObject(PublicObject, frozen=True, kw_only=True):
    """A file that came with a message of a connector."""

    id: Annotated[str, doc("`att_…`; `GET /api/attachments/{id}` gives its bytes")]
    conversation_id: str
    turn_id: Annotated[
        str, doc("The turn of its message; of a copy in a fork, the id of the message it first came with")
    ]
    name: Annotated[str, doc("As the sender's platform says")]
    mime: Annotated[str, doc("As the sender's platform says; it may be wrong")]
    size: Annotated[Count, doc("Bytes")]
    created_at: Time


class PairingObject(PublicObject, frozen=True, kw_only=True):
    """A person who may write through a connector, or has asked to."""

    id: Annotated[str, doc("`pair_…`")]
    connector: str
    person: Annotated[str, doc("The person's id on the platform")]
    name: Annotated[str | None, doc("The person's name on the platform, chosen freely")]
    owner: Annotated[str | None, doc("The owner of the person's conversations; null until it is approved")]
    key: Annotated[str, doc("The session key of the person's chat")]
    state: Annotated[str, doc("`pending`, `approved` or `revoked`")]
    created_at: Time
    expires_at: Annotated[Time | None, doc("When the code of a pending one expires")]
    decided_at: Time | None


class ConnectorObject(PublicObject, frozen=True, kw_only=True):
    """A connector to a messaging platform."""

    name: str
    kind: str
    node: Annotated[str | None, doc("The node that runs it")]
    state: Annotated[str, doc("`up`, `down` (the platform cannot be reached) or `stopped`")]
    problem: Annotated[str | None, doc("Why it is down")]
    since: Time
    pending: Annotated[Count, doc("Messages that are still to be sent")]
    dead: Annotated[Count, doc("Messages that were given up")]


class LinkObject(PublicObject, frozen=True, kw_only=True):
    """A code that joins a place of the same owner to a conversation."""

    code: Annotated[str, doc("Works once: `/link CODE` in the other place")]
    session_id: str
    conversation_id: str
    expires_at: Time


class AcceptedObject(PublicObject, frozen=True, kw_only=True):
    """What became of a pushed message."""

    status: Annotated[str, doc("`accepted`; `unchanged`: it was stored before, or its sender may not write")]


class LiveObject(PublicObject, frozen=True, kw_only=True):
    """One event of a conversation's live stream."""

    type: Annotated[str, doc("`message` or `turn`")]
    message: MessageObject | UnsetType = UNSET
    turn: TurnObject | UnsetType = UNSET
    text: Annotated[str | UnsetType | None, doc("The turn's reply so far; null: it has ended")] = UNSET


class MemoryObject(PublicObject, frozen=True, kw_only=True):
    """A text that later sessions are given."""

    id: Annotated[str, doc("`mem_…`")]
    session_id: Annotated[str | None, doc("The session that it was extracted from")]
    conversation_id: str
    key: Annotated[str | None, doc("The session key of the conversation")]
    text: str
    origin: Annotated[MemoryOrigin, doc("What created it: a flush, the model by its tool, or a person")]
    created_at: Time
    edited_at: Time | None
    owner: OwnerName | UnsetType = UNSET


class DeletedMemoryObject(PublicObject, frozen=True, kw_only=True):
    """Confirms that a memory was deleted."""

    id: str
    object: Literal["memory.deleted"]
    deleted: Literal[True]


class FlushObject(PublicObject, frozen=True, kw_only=True):
    """The flush of an ended session: extracting what is worth remembering."""

    id: Annotated[str, doc("The id of its session")]
    session_id: str
    conversation_id: str
    key: Annotated[str | None, doc("The session key of the conversation")]
    reason: Annotated[str, doc("Why the session ended")]
    state: Annotated[FlushState, doc("`dead`: all attempts failed; `taken`: the session was resumed")]
    attempts: Annotated[Count, doc("How many attempts were made")]
    error: Annotated[str | None, doc("Why the last attempt failed, or why it was skipped")]
    next_attempt_at: Time | None
    created_at: Time
    settled_at: Annotated[Time | None, doc("When it was done, skipped or given up")]
    owner: OwnerName | UnsetType = UNSET


class FlushCountObject(PublicObject, frozen=True, kw_only=True):
    """How many flushes a request has changed."""

    object: Literal["flushes.retried", "flushes.skipped"]
    count: Count


class ProcessObject(PublicObject, frozen=True, kw_only=True):
    """A background process of a session."""

    id: Annotated[str, doc("`proc_…`")]
    session_id: str
    conversation_id: str
    host: Annotated[str, doc("The host that it runs on")]
    pid: Annotated[int | None, doc("Its process id; null before it has started")]
    command: Annotated[str, doc("Its command line; of a watched process only the program, unless permitted")]
    cwd: Annotated[str, doc("Its working directory; empty if the reader may not see it")]
    state: ProcessState
    exit_code: int | None
    active: Annotated[bool, doc("True: it was active recently, so it may defer a reset")]
    activity: Annotated[str | None, doc("The evidence of its last activity")]
    started_at: Time
    last_active_at: Time | None
    ended_at: Time | None
    stop_requested_at: Time | None
    stop_reason: Annotated[str | None, doc("Why it was asked to stop")]
    pinned_until: Annotated[Time | None, doc("Until when it defers resets, active or not")]
    watched: Annotated[bool, doc("True: it was started elsewhere, and no session is its parent")]
    owner: OwnerName | UnsetType = UNSET


class RunningProcessObject(PublicObject, frozen=True, kw_only=True):
    """A background process in short."""

    id: str
    pid: int | None
    command: str
    state: ProcessState
    active: Annotated[bool, doc("True: it was active recently, so it may defer a reset")]


class ProcessLogObject(PublicObject, frozen=True, kw_only=True):
    """A part of a process's output."""

    object: Literal["process.log"]
    id: Annotated[str, doc("The process")]
    text: str
    next: Annotated[Count, doc("The offset to continue reading from: `after` of the next request")]
    dropped: Annotated[Count, doc("How many bytes between the head and the tail were dropped")]


class PolicyValueObject(PublicObject, frozen=True, kw_only=True):
    """A value of a reset policy."""

    value: str | float
    origin: Annotated[str, doc("Where it was set: a file, a variable, or `default`")]


class ReasonObject(PublicObject, frozen=True, kw_only=True):
    """A reason for or against a reset."""

    code: Annotated[str, doc("For programs")]
    message: Annotated[str, doc("For people")]
    process_id: Annotated[str, doc("The process that defers it")] | UnsetType = UNSET
    until: Annotated[Time, doc("Until when this reason holds")] | UnsetType = UNSET


class WhyObject(PublicObject, frozen=True, kw_only=True):
    """Whether and when a session is reset, and why."""

    session_id: str
    decision: Decision
    next_due_at: Annotated[Time | None, doc("When it is due")]
    sentence: Annotated[str, doc("The decision in one sentence")]
    policy: Annotated[dict[str, PolicyValueObject], doc("The policy that applies, by name of the setting")]
    reasons: list[ReasonObject]
    history: Annotated[list[EventObject], doc("The events about its resets")]


class NodeObject(PublicObject, frozen=True, kw_only=True):
    """A holdfast process of this store."""

    id: Annotated[str, doc("`node_…`")]
    kind: NodeKind
    host: str
    pid: Count
    version: Annotated[str | None, doc("The version of holdfast that it runs; null: not recorded")]
    state: Liveness
    why: Annotated[str, doc("The evidence for its state; for one that is gone, why")]
    running_turns: Count
    uptime_seconds: Annotated[
        Count | None, doc("How long it has run; one that is gone: how long it ran, to its last sign of life")
    ]
    started_at: Time | None
    last_heartbeat_at: Time | None
    left_at: Annotated[Time | None, doc("When it stopped cleanly")]
    reaped_at: Annotated[Time | None, doc("When it was found dead and its work released")]


class LogLineObject(PublicObject, frozen=True, kw_only=True):
    """A line of a server's log."""

    at: Time
    level: Annotated[str, doc("`debug`, `info`, `warning`, `error` or `critical`")]
    logger: Annotated[str, doc("`holdfast.access`: a request")]
    message: str
    exception: Annotated[str | None, doc("The traceback, if there is one")]


class LivingObject(PublicObject, frozen=True, kw_only=True):
    """A live session, in short."""

    session_id: str
    conversation_id: str
    key: Annotated[str | None, doc("The session key of the conversation")]
    source: str
    title: Annotated[
        str | None, doc("The title of the conversation: set, or made by the model, or its first words")
    ]
    model: str | None
    state: SessionState
    doing: Annotated[
        str | None,
        doc("`model`, `compacting`, `tool:NAME`, or `waiting`: a turn is to begin; null: it is idle"),
    ]
    since: Annotated[Time, doc("Since when it has been active or idle")]
    last_activity_at: Time
    last_heartbeat_at: Time | None
    node: str | None
    host: str | None
    processes: Annotated[list[RunningProcessObject], doc("The running background processes")]
    queued: Annotated[Count, doc("How many turns are queued in its conversation")] = 0
    owner: OwnerName | UnsetType = UNSET


class GoneObject(LivingObject, frozen=True, kw_only=True):
    """A session that has just ended, in short."""

    ended_at: Time
    end_reason: str


class ActivityObject(PublicObject, frozen=True, kw_only=True):
    """The live sessions, and those that ended in the last minute."""

    as_of: Annotated[Time, doc("When this was read; not part of the ETag")]
    node: Annotated[str, doc("The node that answers")]
    host: Annotated[str, doc("The host of that node")]
    running_turns: Annotated[Count, doc("How many of the sessions have a running turn")]
    data: list[LivingObject]
    ended: list[GoneObject]


class HealthObject(PublicObject, frozen=True, kw_only=True):
    """The liveness of a server."""

    status: Annotated[str, doc("`ok` or `draining`")]
    running_turns: Annotated[Count, doc("Turns that a stop would interrupt")]
    waiting_turns: Annotated[
        int | None, doc("Turns of all nodes that wait for a retry; null: the store does not answer")
    ]
    idle_seconds: Annotated[float, doc("Seconds since a turn last started or ended; 0 while one runs")]
    workers: Annotated[Count | UnsetType, doc("Serving workers, if the settings name several")] = UNSET
    connectors: Annotated[
        dict[str, str] | UnsetType, doc("Each connector's state, if there are any: `up`, `down` or `stopped`")
    ] = UNSET


class ModelHealthObject(PublicObject, frozen=True, kw_only=True):
    """Whether the model answered when it was last checked."""

    status: str
    since: Time
    error: str | UnsetType = UNSET


class ReadyObject(PublicObject, frozen=True, kw_only=True):
    """A server that can serve, and whether its model is up."""

    status: Literal["ready"]
    model: ModelHealthObject


class ApiKeyObject(PublicObject, frozen=True, kw_only=True):
    """An API key, without its secret."""

    id: str
    owner: str
    scope: Scope
    tools: Annotated[list[str], doc("The tools of the server that it may use")]
    created_at: Time
    revoked_at: Time | None
    store: Annotated[Literal["always", "never"], doc("`never`: nothing of its requests is stored")]
    name: Annotated[str | None, doc("A name for people")]
    expires_at: Time | None
    last_used_at: Annotated[Time | None, doc("Its last request, accurate to a minute; null: never used")]
    requests_per_minute: Annotated[Count | None, doc("Null: unlimited, as below")]
    requests_per_day: Count | None
    tokens_per_minute: Count | None
    tokens_per_day: Count | None
    webhook: Annotated[str | None, doc("The connector that is notified when a background response ends")]


class NewApiKeyObject(ApiKeyObject, frozen=True, kw_only=True):
    """An API key that was just created, with its secret."""

    key: Annotated[str, doc("The key itself; it is not stored and never shown again")]


class OwnerUsageObject(PublicObject, frozen=True, kw_only=True):
    """How much an owner has stored. Only printed by commands."""

    owner: str
    conversations: Count
    bytes: Annotated[Count, doc("Bytes of messages")]


class StatisticsObject(PublicObject, frozen=True, kw_only=True):
    """Figures of a store. Only printed by commands."""

    object: Literal["statistics"]
    total: Annotated[Count, doc("Sessions")]
    open: Annotated[Count, doc("Open sessions")]
    leaked: Annotated[Count, doc("Open sessions whose node is gone")]
    conversations: Count
    messages: Count
    end_reasons: Annotated[dict[str, int], doc("Ended sessions by reason")]
    sources: Annotated[dict[str, int], doc("Sessions by source")]


class HoldfastObject(PublicObject, frozen=True, kw_only=True):
    """The field `holdfast` of an answer: the session that the turn became part of."""

    session_id: str
    conversation_id: str
    turn_id: str
    compacted: Annotated[bool, doc("True: the session that the request named is not the effective one")]
    reset: Annotated[str | None, doc("`idle` or `daily` on the first turn after such a reset")]
    notices: Annotated[list[NoticeObject], doc("Undelivered notices of this conversation")]
    attempt: Annotated[Count, doc("Which attempt of the turn this is: above 1 if it was retried")] = 1
