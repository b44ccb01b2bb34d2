"""Events: what happened, in order. They hold ids and numbers, never message text.

Read by the dashboard, `why`, metrics and webhooks. Types are only added; fields never change their meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class EventType(StrEnum):
    CONVERSATION_OPENED = "conversation.opened"
    CONVERSATION_FORKED = "conversation.forked"
    CONVERSATION_REWOUND = "conversation.rewound"
    CONVERSATION_DELETED = "conversation.deleted"
    CONVERSATION_IMPORTED = "conversation.imported"
    MESSAGES_ADDED = "messages.added"
    MESSAGES_REMOVED = "messages.removed"
    MESSAGE_EXCLUDED = "message.excluded"
    MESSAGE_REDUCED = "message.reduced"
    MESSAGE_DELETED = "message.deleted"
    MESSAGES_READ_BY_ADMIN = "messages.read_by_admin"
    SESSION_OPENED = "session.opened"
    SESSION_DETACHED = "session.detached"
    SESSION_ENDED = "session.ended"
    SESSION_RESET = "session.reset"
    RESET_DEFERRED = "session.reset_deferred"
    COMPACTION_STARTED = "compaction.started"
    COMPACTION_COMPLETED = "compaction.completed"
    COMPACTION_FAILED = "compaction.failed"
    COMPACTION_PUT_OFF = "compaction.put_off"
    WINDOW_SUSPECTED = "window.suspected"
    TURN_QUEUED = "turn.queued"
    TURN_EDITED = "turn.edited"
    TURN_JOINED = "turn.joined"
    TURN_STARTED = "turn.started"
    TURN_TAKEN_UP = "turn.taken_up"
    TURN_WAITING = "turn.waiting"
    TURN_GIVEN_UP = "turn.given_up"
    TURN_COMPLETED = "turn.completed"
    TURN_INTERRUPTED = "turn.interrupted"
    TURN_FAILED = "turn.failed"
    TURN_CANCELLED = "turn.cancelled"
    REQUEST_SIDE = "request.side"
    NODE_JOINED = "node.joined"
    NODE_LEFT = "node.left"
    NODE_REAPED = "node.reaped"
    PROCESS_STARTED = "process.started"
    PROCESS_ADOPTED = "process.adopted"
    PROCESS_STOPPING = "process.stopping"
    PROCESS_PINNED = "process.pinned"
    PROCESS_ENDED = "process.ended"
    PROCESS_LOST = "process.lost"
    FLUSH_DONE = "flush.done"
    FLUSH_FAILED = "flush.failed"
    FLUSH_DEAD = "flush.dead"
    FLUSH_RETRIED = "flush.retried"
    FLUSH_SKIPPED = "flush.skipped"
    MEMORY_ADDED = "memory.added"
    MEMORY_EDITED = "memory.edited"
    MEMORY_FORGOTTEN = "memory.forgotten"
    DELIVERY_DEAD = "delivery.dead"
    DELIVERY_RETRIED = "delivery.retried"
    PAIRING_APPROVED = "pairing.approved"
    PAIRING_REVOKED = "pairing.revoked"
    PLACE_LINKED = "place.linked"
    PLACE_UNLINKED = "place.unlinked"
    KEY_CREATED = "key.created"
    KEY_REVOKED = "key.revoked"


EVENT_MEANINGS: Mapping[EventType, str] = {
    EventType.CONVERSATION_OPENED: "a conversation began; data: key, source",
    EventType.CONVERSATION_FORKED: "a conversation began as a copy of a context; data: source, messages",
    EventType.CONVERSATION_REWOUND: (
        "a conversation was rewound to one of its messages, and the others left the context; data: to, left, "
        "restored"
    ),
    EventType.CONVERSATION_DELETED: "a conversation and everything in it was deleted; data: messages",
    EventType.CONVERSATION_IMPORTED: "a conversation or part was imported; data: origin, sessions, messages",
    EventType.MESSAGES_ADDED: "a client added messages outside of any turn; data: first, last",
    EventType.MESSAGES_REMOVED: "messages left every context but stay readable; data: first, last, reason",
    EventType.MESSAGE_EXCLUDED: "a message left the context but stays readable; data: seq, reason",
    EventType.MESSAGE_REDUCED: "a part of a message was deleted, the rest stays; data: seq",
    EventType.MESSAGE_DELETED: "a message's text was deleted, its number kept; data: seq",
    EventType.MESSAGES_READ_BY_ADMIN: "an admin read another owner's messages; data: key_id",
    EventType.SESSION_OPENED: "a session began; data: edge, parent, attached, source, reset",
    EventType.SESSION_DETACHED: "another node used an attached session, which now outlives its process",
    EventType.SESSION_ENDED: "a session ended; data: reason",
    EventType.SESSION_RESET: "a session was ended by its policy; data: reason, due_at, reasons, messages",
    EventType.RESET_DEFERRED: "a due reset was deferred, or its blockers changed; data: due_at, holding",
    EventType.COMPACTION_STARTED: "a context is being compacted; data: why, tokens, window",
    EventType.COMPACTION_COMPLETED: (
        "a conversation was compacted: a summary replaces its older messages; data: parent, why, "
        "tokens_before, tokens_after, messages, model_free"
    ),
    EventType.COMPACTION_FAILED: "a context was not compacted; data: why, reason, failures, retry_at",
    EventType.COMPACTION_PUT_OFF: "a compaction was postponed; data: why, reason, failures, retry_at",
    EventType.WINDOW_SUSPECTED: (
        "a model's token reports no longer rise with its input: it may truncate it; data: model, "
        "reported, given, reports, window"
    ),
    EventType.REQUEST_SIDE: (
        "a program's side request was answered; it is not a turn; data: name, kind, model, input_tokens, "
        "output_tokens"
    ),
    EventType.TURN_QUEUED: "a message waits until its conversation is free; data: position, behind",
    EventType.TURN_EDITED: "the messages of a queued turn were replaced",
    EventType.TURN_JOINED: "the messages of a queued turn joined another turn; data: joined",
    EventType.TURN_STARTED: "a message was accepted and is on disk; data: seq, node",
    EventType.TURN_TAKEN_UP: ("an unfinished turn was resumed; data: attempt, node, by, attempts"),
    EventType.TURN_WAITING: ("a turn has no answer yet and will be retried; data: why, due_at"),
    EventType.TURN_GIVEN_UP: "a waiting turn will not be retried; data: attempts, why",
    EventType.TURN_COMPLETED: "the answer is on disk; data: seq",
    EventType.TURN_INTERRUPTED: "a turn was interrupted; its partial reply is kept; data: seq, why",
    EventType.TURN_FAILED: "a turn failed; the user's message stays; data: code",
    EventType.TURN_CANCELLED: "a person cancelled a turn; its partial reply is kept; data: seq, why",
    EventType.NODE_JOINED: "a holdfast process began; data: node, kind, host, pid",
    EventType.NODE_LEFT: "a holdfast process stopped cleanly; data: node",
    EventType.NODE_REAPED: "a holdfast process was found dead or hung; data: node, why",
    EventType.PROCESS_STARTED: "a background process runs; data: process, pid, host, watched",
    EventType.PROCESS_ADOPTED: "another holdfast process supervises it now; data: process, node",
    EventType.PROCESS_STOPPING: "a background process is to be stopped; data: process, reason",
    EventType.PROCESS_PINNED: "a background process was pinned, or no longer is; data: process, until",
    EventType.PROCESS_ENDED: "a background process ended; data: process, state, exit_code",
    EventType.PROCESS_LOST: "a background process is gone, its exit code unknown; data: process, why",
    EventType.FLUSH_DONE: "an ended session was flushed; data: attempts, memory",
    EventType.FLUSH_FAILED: "a flush has failed and will be retried; data: attempts, again_at",
    EventType.FLUSH_DEAD: "a flush became a dead letter, until a person retries it; data: attempts",
    EventType.FLUSH_RETRIED: "a person retried a flush",
    EventType.FLUSH_SKIPPED: "a person chose not to flush a session",
    EventType.MEMORY_ADDED: "a memory was stored; data: memory, origin",
    EventType.MEMORY_EDITED: "a memory was changed; data: memory",
    EventType.MEMORY_FORGOTTEN: "a memory was deleted; data: memory",
    EventType.DELIVERY_DEAD: "a delivery became a dead letter; data: delivery, connector, attempts",
    EventType.DELIVERY_RETRIED: "a person retried a dead letter; data: delivery, connector",
    EventType.PAIRING_APPROVED: "a person may write through a connector; data: pairing, connector",
    EventType.PAIRING_REVOKED: "a person may no longer write; data: pairing, connector",
    EventType.PLACE_LINKED: "a place of a platform joined this conversation; data: place, connector",
    EventType.PLACE_UNLINKED: "a place of a platform left this conversation; data: place, connector",
    EventType.KEY_CREATED: "an API key was added to the store; data: key_id, scope",
    EventType.KEY_REVOKED: "an API key was revoked; data: key_id",
}


@dataclass(frozen=True, slots=True)
class Event:
    id: int
    at: datetime
    type: str
    owner: str | None
    conversation_id: str | None
    session_id: str | None
    turn_id: str | None
    data: Mapping[str, Any] = field(default_factory=dict)
