"""Converts Hermes' rows to our values: sessions, and messages ready to be stored.

A message's body gets what may be sent to a model again: role, content, tool calls, the id of the call it
answers. All other columns (reasoning, the platform's message id, token counts, unknown columns) are kept as
`extra`: shown, never sent, because most models reject unknown fields.

What cannot be stored as it is (NUL bytes, half a surrogate, a broken list of calls) is repaired, never
dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import apsw
import msgspec
from msgspec import Raw

from ...domain.ids import cut_name, storable
from ...domain.messages import NewMessage
from ...domain.new_messages import ROLES, new_message
from ...errors import BadMessage
from ..writing import SourceMessage
from .database_copy import STATEMENTS, columns_of
from .home import time_of

CONTENT_PREFIX = "\x00json:"
SUMMARY_BEGINNINGS = ("[CONTEXT COMPACTION", "[CONTEXT SUMMARY]:")
SUMMARY_END = "--- END OF CONTEXT SUMMARY"
LARGEST_NUMBER = 2**63 - 1

_JSON_COLUMNS = frozenset({"reasoning_details", "codex_reasoning_items", "codex_message_items"})
_IN_BODY = frozenset({"id", "session_id", "role", "content", "tool_calls", "tool_call_id", "timestamp"})
_MARKS = frozenset({"active", "compacted"})
_CALL_FIELDS = frozenset({"id", "type", "function"})


@dataclass(frozen=True, slots=True)
class HermesSession:
    id: str
    source: str
    model: str | None
    title: str | None
    parent: str | None
    started_at: datetime
    ended_at: datetime | None
    end_reason: str | None
    input_tokens: int
    output_tokens: int
    key: str | None
    branched: bool
    delegated: bool
    counted: int | None
    """Number of messages according to Hermes."""
    said: int
    """Actual number of messages, without undone ones."""
    shown: int
    """How many of those are in its context."""
    undone: int
    last_row: int
    last_said_at: datetime | None

    @property
    def never_ended(self) -> bool:
        return self.ended_at is None

    @property
    def active_at(self) -> datetime:
        """Time of its last message."""
        return self.last_said_at or self.started_at


def sessions_in(home: apsw.Connection) -> Iterator[HermesSession]:
    """Every session, in the order in which they were written."""
    for row in home.execute(STATEMENTS["sessions"]):
        (
            id_, source, model, title, parent, started_at, ended_at, end_reason, counted, tokens_in,
            tokens_out, key, branched, delegated, said, shown, undone, last_row, last_said_at,
        ) = row  # fmt: skip
        ended = time_of(ended_at, UTC)
        last_said = time_of(last_said_at, UTC)
        yield HermesSession(
            id=text_of(id_) or "",
            source=name_of(source) or "hermes",
            model=name_of(model),
            title=name_of(title),
            parent=text_of(parent),
            started_at=time_of(started_at, UTC) or ended or last_said or datetime.fromtimestamp(0, UTC),
            ended_at=ended,
            end_reason=name_of(end_reason),
            input_tokens=number_of(tokens_in),
            output_tokens=number_of(tokens_out),
            key=text_of(key),
            branched=branched is not None,
            delegated=delegated is not None,
            counted=counted if isinstance(counted, int) else None,
            said=said,
            shown=shown,
            undone=undone,
            last_row=last_row,
            last_said_at=last_said,
        )


def text_of(value: object) -> str | None:
    """The value as text, whatever the column type; None if it is empty."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return storable(str(value)) if value not in (None, "") else None


def name_of(value: object) -> str | None:
    """The same, short enough to be a name."""
    text = (text_of(value) or "").strip()
    return cut_name(text) or None


def number_of(value: object) -> int:
    return max(0, min(int(value), LARGEST_NUMBER)) if isinstance(value, int | float) else 0


# --- messages ------------------------------------------------------------------------------------------


def messages_of(home: apsw.Connection, session_id: str, after: int) -> Iterator[SourceMessage]:
    """The messages of a session after this row, in row order, one at a time."""
    names = columns_of(home, "messages")
    for row in home.execute(STATEMENTS["rows"], {"session": session_id, "after": after}):
        yield to_message(dict(zip(names, row, strict=True)))


def to_message(row: Mapping[str, Any]) -> SourceMessage:
    role = text_of(row["role"]) or ""
    known = role in ROLES
    body: dict[str, Any] = {"role": role if known else "system", "content": content_of(row["content"])}
    given = _json(row["tool_calls"])
    calls = _calls(given, row["id"]) if role == "assistant" else []
    if calls:
        body["tool_calls"] = calls
    if role == "tool":
        body["tool_call_id"] = text_of(row["tool_call_id"]) or f"hermes_row_{row['id']}"
    extra = {"hermes": {"session": text_of(row["session_id"]), "row": row["id"]}, **_others(row)}
    if not known:
        extra["role"] = role
    if given and given != calls:
        extra["hermes"]["tool_calls"] = given
    message, mended = _stored(body)
    return SourceMessage(
        row=row["id"],
        message=message,
        said_at=time_of(row["timestamp"], UTC),
        extra=Raw(msgspec.json.encode(_mend(extra))),
        aside=None if known else cut_name(f"hermes:{role}"),
        mended=mended,
    )


def content_of(stored: object) -> Any:
    """A message's content: text, or the list of parts after the prefix that marks one."""
    if isinstance(stored, bytes):
        stored = stored.decode("utf-8", "replace")
    if isinstance(stored, str) and stored.startswith(CONTENT_PREFIX):
        parts = _json(stored[len(CONTENT_PREFIX) :])
        if isinstance(parts, dict):
            parts = [parts]
        if isinstance(parts, list) and all(isinstance(part, dict | str) for part in parts):
            return [part if isinstance(part, dict) else {"type": "text", "text": part} for part in parts]
        return stored[len(CONTENT_PREFIX) :]
    return stored if stored is None or isinstance(stored, str) else str(stored)


def summary_in(stored: object) -> str | None:
    """The summary, if the message was written by a compaction and holds nothing else; otherwise None."""
    text = content_of(stored)
    if not isinstance(text, str) or not text.startswith(SUMMARY_BEGINNINGS):
        return None
    beginning, _, rest = text.partition("\n")
    if beginning.startswith(SUMMARY_BEGINNINGS[1]):
        rest = text.removeprefix(SUMMARY_BEGINNINGS[1])
    said, marker, behind = rest.rpartition(SUMMARY_END)
    if marker and behind.strip("\n ").count("\n"):
        return None  # a message of the kept tail was merged into it
    return storable((said if marker else rest).strip()) or None


def _stored(body: dict[str, Any]) -> tuple[NewMessage, bool]:
    try:
        return new_message(body), False
    except BadMessage:
        pass
    try:
        return new_message(_mend(body)), True
    except BadMessage as error:
        said = f"[This message could not be imported from Hermes: {error}]"
        kept = {name: value for name, value in body.items() if name in ("role", "tool_call_id")}
        return new_message({**kept, "content": said}), True


def _mend(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable(str(name)): _mend(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_mend(part) for part in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value


def _calls(given: object, row: int) -> list[dict[str, Any]]:
    """Tool calls as sent to a model: each with its own id, a type and what it calls."""
    calls = []
    seen: set[str] = set()
    for number, call in enumerate(given if isinstance(given, list) else []):
        if not isinstance(call, dict):
            continue
        id_ = call.get("id") or call.get("call_id")
        id_ = id_ if isinstance(id_, str) and id_ not in seen else f"hermes_row_{row}_{number}"
        seen.add(id_)
        function = call.get("function")
        if isinstance(function, dict) and not isinstance(function.get("arguments", ""), str):
            function = {**function, "arguments": json.dumps(function["arguments"])}
        kept = {name: call[name] for name in call if name in _CALL_FIELDS and name != "id"}
        calls.append({"id": id_, "type": "function", **kept, **({"function": function} if function else {})})
    return calls


def _others(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row's other columns, without empty ones."""
    found = {}
    for name, value in row.items():
        if name in _IN_BODY or name in _MARKS or value is None or value == "":
            continue
        if name == "observed":
            if value:
                found[name] = True
        else:
            found[name] = _json(value) if name in _JSON_COLUMNS else value
    return found


def _json(text: object) -> Any:
    """Parse JSON; returns the text itself if it is not valid JSON."""
    if not isinstance(text, str | bytes) or not text:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text if isinstance(text, str) else text.decode("utf-8", "replace")
