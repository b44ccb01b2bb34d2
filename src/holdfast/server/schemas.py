"""JSON schemas of the public objects, for `/openapi.json`. `server/objects.py` makes the objects."""

from __future__ import annotations

from typing import Any

from ..domain.flushes import FlushState
from ..domain.memories import MemoryOrigin
from ..domain.messages import MessageStatus
from ..domain.nodes import Liveness, NodeKind
from ..domain.processes import ProcessState
from ..domain.resets import Decision
from ..domain.sessions import Edge, SessionState
from ..domain.turns import TurnStatus

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
MAYBE_NUMBER: Schema = {"type": ["integer", "null"]}
MAYBE_TEXT: Schema = {"type": ["string", "null"]}
TIME: Schema = {"type": "string", "format": "date-time"}
MAYBE_TIME: Schema = {"type": ["string", "null"], "format": "date-time"}
NUMBER: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def list_of(name: str) -> Schema:
    """A list in OpenAI's shape."""
    return _object(
        object={"const": "list"},
        data={"type": "array", "items": ref(name)},
        first_id=_MAYBE_ID,
        last_id=_MAYBE_ID,
        has_more=FLAG,
    )


def one_of(*values: str, null: bool = False) -> Schema:
    kinds: Schema = {"type": ["string", "null"] if null else "string"}
    return {**kinds, "enum": [*values, *([None] if null else [])]}


def _object(required: bool = True, /, **properties: Schema) -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    return {**schema, "required": list(properties)} if required else schema


_MAYBE_ID: Schema = {"type": ["string", "integer", "null"]}
_USAGE = _object(input_tokens=NUMBER, output_tokens=NUMBER)
_PLACE: Schema = {
    "session_id": TEXT,
    "conversation_id": TEXT,
    "key": MAYBE_TEXT,
    "source": TEXT,
    "title": MAYBE_TEXT,
    "model": MAYBE_TEXT,
    "state": one_of(*SessionState),
    "doing": MAYBE_TEXT,
    "since": TIME,
    "last_activity_at": TIME,
    "last_heartbeat_at": MAYBE_TIME,
    "node": MAYBE_TEXT,
    "host": MAYBE_TEXT,
    "processes": {"type": "array", "items": {"$ref": "#/components/schemas/RunningProcess"}},
}

SCHEMAS: dict[str, Schema] = {
    "Error": _object(
        error=_object(message=TEXT, type=TEXT, param=MAYBE_TEXT, code=MAYBE_TEXT),
    ),
    "Session": _object(
        id=TEXT,
        conversation_id=TEXT,
        key=MAYBE_TEXT,
        source=TEXT,
        title=MAYBE_TEXT,
        state=one_of(*SessionState),
        attached=FLAG,
        edge=one_of(*Edge, null=True),
        parent_id=MAYBE_TEXT,
        tip_id=TEXT,
        node=MAYBE_TEXT,
        host=MAYBE_TEXT,
        opened_at=TIME,
        last_activity_at=TIME,
        last_heartbeat_at=MAYBE_TIME,
        next_due_at=MAYBE_TIME,
        ended_at=MAYBE_TIME,
        end_reason=MAYBE_TEXT,
        message_count=NUMBER,
        usage=_USAGE,
        model=MAYBE_TEXT,
        flush=_object(
            state=one_of("none", "pending", "running", "done", "dead"), attempts=NUMBER, error=MAYBE_TEXT
        ),
    ),
    "DeletedSession": _object(
        id=TEXT, object={"const": "session.deleted"}, conversation_id=TEXT, deleted={"const": True}
    ),
    "Message": _object(
        id=TEXT,
        seq=NUMBER,
        session_id=TEXT,
        turn_id=MAYBE_TEXT,
        role=TEXT,
        content={},
        tool_calls={},
        tool_call_id={},
        created_at=TIME,
        status=one_of(*MessageStatus),
    ),
    "ContextMessage": {
        "type": "object",
        "description": "A message as the model would get it.",
        "properties": {"role": TEXT},
        "required": ["role"],
    },
    "Found": {
        "allOf": [
            ref("Message"),
            _object(conversation_id=TEXT, key=MAYBE_TEXT, title=MAYBE_TEXT, snippet=TEXT),
        ]
    },
    "Turn": _object(
        id=TEXT,
        session_id=TEXT,
        conversation_id=TEXT,
        status=one_of(*TurnStatus),
        error=MAYBE_TEXT,
        started_at=TIME,
        ended_at=MAYBE_TIME,
        node=TEXT,
        usage={"anyOf": [_USAGE, {"type": "null"}]},
        response_id=MAYBE_TEXT,
    ),
    "ViewPart": _object(
        kind=one_of("messages", "summary"), first=NUMBER, last=MAYBE_NUMBER, characters=MAYBE_NUMBER
    ),
    "Lineage": _object(
        object={"const": "lineage"},
        conversation_id=TEXT,
        key=MAYBE_TEXT,
        title=MAYBE_TEXT,
        forked_from=MAYBE_TEXT,
        data={
            "type": "array",
            "items": {
                "allOf": [
                    ref("Session"),
                    _object(
                        first_seq=NUMBER, last_seq=NUMBER, view={"type": "array", "items": ref("ViewPart")}
                    ),
                ]
            },
        },
        forks={"type": "array", "items": ref("Lineage")},
    ),
    "Event": _object(
        id=NUMBER,
        at=TIME,
        type=TEXT,
        conversation_id=MAYBE_TEXT,
        session_id=MAYBE_TEXT,
        turn_id=MAYBE_TEXT,
        data={"type": "object"},
    ),
    "Notice": _object(
        id=TEXT,
        conversation_id=TEXT,
        key=MAYBE_TEXT,
        kind=TEXT,
        text=TEXT,
        created_at=TIME,
        delivered_at=MAYBE_TIME,
    ),
    "Memory": _object(
        id=TEXT,
        session_id=MAYBE_TEXT,
        conversation_id=TEXT,
        key=MAYBE_TEXT,
        text=TEXT,
        origin=one_of(*MemoryOrigin),
        created_at=TIME,
        edited_at=MAYBE_TIME,
    ),
    "DeletedMemory": _object(id=TEXT, object={"const": "memory.deleted"}, deleted={"const": True}),
    "Flush": _object(
        id=TEXT,
        session_id=TEXT,
        conversation_id=TEXT,
        key=MAYBE_TEXT,
        reason=TEXT,
        state=one_of(*FlushState),
        attempts=NUMBER,
        error=MAYBE_TEXT,
        next_attempt_at=MAYBE_TIME,
        created_at=TIME,
        settled_at=MAYBE_TIME,
    ),
    "Process": _object(
        id=TEXT,
        session_id=TEXT,
        conversation_id=TEXT,
        host=TEXT,
        pid={"type": ["integer", "null"]},
        command=TEXT,
        cwd=TEXT,
        state=one_of(*ProcessState),
        exit_code={"type": ["integer", "null"]},
        active=FLAG,
        activity=MAYBE_TEXT,
        started_at=TIME,
        last_active_at=MAYBE_TIME,
        ended_at=MAYBE_TIME,
        stop_requested_at=MAYBE_TIME,
        stop_reason=MAYBE_TEXT,
        pinned_until=MAYBE_TIME,
        watched=FLAG,
    ),
    "RunningProcess": _object(
        id=TEXT, pid={"type": ["integer", "null"]}, command=TEXT, state=one_of(*ProcessState), active=FLAG
    ),
    "ProcessLog": _object(object={"const": "process.log"}, id=TEXT, text=TEXT, next=NUMBER, dropped=NUMBER),
    "Why": _object(
        session_id=TEXT,
        decision=one_of(*Decision),
        next_due_at=MAYBE_TIME,
        sentence=TEXT,
        policy={
            "type": "object",
            "additionalProperties": _object(value={"type": ["string", "number"]}, origin=TEXT),
        },
        reasons={
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"code": TEXT, "message": TEXT, "process_id": TEXT, "until": TIME},
                "required": ["code", "message"],
            },
        },
        history={"type": "array", "items": ref("Event")},
    ),
    "Node": _object(
        id=TEXT,
        kind=one_of(*NodeKind),
        host=TEXT,
        pid=NUMBER,
        state=one_of(*Liveness),
        why=TEXT,
        started_at=MAYBE_TIME,
        last_heartbeat_at=MAYBE_TIME,
        left_at=MAYBE_TIME,
        reaped_at=MAYBE_TIME,
    ),
    "Living": _object(**_PLACE),
    "Gone": _object(**_PLACE, ended_at=TIME, end_reason=TEXT),
    "Activity": _object(
        as_of=TIME,
        node=TEXT,
        host=TEXT,
        running_turns=NUMBER,
        data={"type": "array", "items": ref("Living")},
        ended={"type": "array", "items": ref("Gone")},
    ),
    "Health": _object(status=TEXT, running_turns=NUMBER, idle_seconds={"type": "number"}),
}
