"""Export records: a conversation with everything in it, as moved from one store to another.

Each record is one line of an export, in this order: the conversation, then each of its sessions followed by
that session's turns and messages, then everything else of the conversation. Ids, numbers and times are kept.
A body is the JSON it was stored as. Data of a process rather than the conversation (leases, drafts, events,
notices, background processes, pending flushes) is not exported.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
from msgspec import Raw, Struct

from .value import Value

FORMAT = 1
NOTHING = Raw(b"null")


def bytes_in(raw: Raw) -> bytes | None:
    """The JSON of a record's raw field; None if it is empty."""
    data = bytes(raw)
    return None if data == b"null" else data


class RecordsBegin(Struct, frozen=True, tag="holdfast", tag_field="record"):
    """The first line of an export: identifies the file."""

    format: int = FORMAT


class RecordsEnd(Struct, frozen=True, tag="end", tag_field="record"):
    """The last line: a file without it is truncated."""

    conversations: int
    messages: int


class AliasRecord(Struct, frozen=True):
    name: str
    created_at: datetime
    session_id: str | None = None


class ConversationRecord(Struct, frozen=True, tag="conversation", tag_field="record"):
    id: str
    owner: str
    key: str | None
    title: str | None
    source: str
    created_at: datetime
    last_seq: int
    forked_from: str | None = None
    anonymous: bool = False
    history: bytes | None = None
    metadata: Mapping[str, str] | None = None
    aliases: tuple[AliasRecord, ...] = ()
    rewinds: tuple[tuple[int, int], ...] = ()
    """For each rewind: the message stored after the first number follows the second."""


class SessionRecord(Struct, frozen=True, tag="session", tag_field="record"):
    id: str
    ordinal: int
    edge: str | None
    parent_id: str | None
    source: str
    opened_at: datetime
    last_activity_at: datetime
    ended_at: datetime | None
    end_reason: str | None
    model: str | None
    input_tokens: int
    output_tokens: int
    first_seq: int
    view: Raw
    fresh_by: str | None = None
    fresh_since: datetime | None = None
    flushed_seq: int = 0


class RequestRecord(Struct, frozen=True):
    """The request that began a turn, by which a retry is recognised."""

    route: str
    key: str
    body_hash: bytes
    created_at: datetime


class ResponseRecord(Struct, frozen=True):
    """The turn's id in the Responses API."""

    id: str
    previous_id: str | None
    background: bool
    brought: int
    request: str
    created_at: datetime


class TurnRecord(Struct, frozen=True, tag="turn", tag_field="record"):
    id: str
    session_id: str
    status: str
    node_id: str
    attempt: int
    first_seq: int
    started_at: datetime
    ended_at: datetime
    model: str | None = None
    error: str | None = None
    usage: Raw = NOTHING
    response_id: str | None = None
    answer: bytes | None = None
    request: RequestRecord | None = None
    response: ResponseRecord | None = None
    joined: str | None = None


class MessageRecord(Struct, frozen=True, tag="message", tag_field="record"):
    seq: int
    session_id: str
    turn_id: str | None
    role: str
    status: str
    created_at: datetime
    body: Raw
    """Empty if its text was deleted."""
    calls: tuple[str, ...] = ()
    answers: str | None = None
    deleted_at: datetime | None = None
    origin: str | None = None
    gaps: tuple[int, ...] = ()
    inner: bool = False
    own_calls: tuple[str, ...] = ()
    extra: Raw = NOTHING


class ExclusionRecord(Struct, frozen=True, tag="exclusion", tag_field="record"):
    seq: int
    reason: str
    created_at: datetime


class AttachmentRecord(Struct, frozen=True, tag="attachment", tag_field="record"):
    """A file that came with a message of this turn."""

    id: str
    turn_id: str
    source: str
    name: str
    mime: str
    created_at: datetime
    body: bytes = b""
    """Base64 in JSON."""


class MemoryRecord(Struct, frozen=True, tag="memory", tag_field="record"):
    id: str
    session_id: str | None
    origin: str
    text: str
    created_at: datetime
    edited_at: datetime | None = None


Hanging = SessionRecord | TurnRecord | MessageRecord | AttachmentRecord | ExclusionRecord | MemoryRecord
Record = ConversationRecord | Hanging
Line = RecordsBegin | Record | RecordsEnd

encode_line = msgspec.json.Encoder().encode
_decode_line = msgspec.json.Decoder(Line).decode


def decode_line(data: bytes) -> Line:
    """A line of an export. Raises msgspec.MsgspecError if it is not valid, or has a time that no reader could
    read back."""
    line: Line = _decode_line(data)
    _check_times(line)
    return line


def _check_times(record: Struct) -> None:
    for value in msgspec.structs.astuple(record):
        if isinstance(value, datetime):
            if not is_time(value):
                raise msgspec.ValidationError(
                    f"{value} is not a time with a zone in the years 1 to 9999 of UTC"
                )
        elif isinstance(value, Struct):
            _check_times(value)
        elif isinstance(value, tuple):
            for each in value:
                if isinstance(each, Struct):
                    _check_times(each)


def is_time(value: datetime) -> bool:
    """True: it has a zone, and is a time in UTC too: a store keeps it in UTC."""
    try:
        return value.astimezone(UTC) is not None and value.tzinfo is not None
    except (OverflowError, ValueError):
        return False


class ImportMark(Value, frozen=True):
    """Progress of an import: the item's name at its source, its session here, and the source's number of its
    last imported message."""

    name: str
    session_id: str
    last_row: int
    whole: bool = True
    """True: complete. False: the rest belongs to the same session."""


class ReadVersion(Value, frozen=True):
    """Version of a conversation when it was read: its last seq and its newest session."""

    last_seq: int
    tip_id: str


class Part(Value, frozen=True):
    """A conversation to import, or what is new in an imported one; whole or, if large, a piece of it. Records
    are in export order, without the conversation's own record."""

    origin: str
    conversation: ConversationRecord
    records: tuple[Hanging, ...]
    marks: tuple[ImportMark, ...] = ()
    expected: ReadVersion | None = None
    """None: it is new here. Else an optimistic lock: it must be at this version, and the records are
    appended."""
    aliases: tuple[AliasRecord, ...] = ()
    """Aliases imported with this part."""


class Imported(Value, frozen=True):
    """State of an item that was imported before."""

    name: str
    conversation_id: str
    session_id: str
    last_row: int
    whole: bool
    last_seq: int
    """The conversation's last seq right after the import."""
    version: ReadVersion | None
    """The conversation's version now; None: it was deleted here."""
    held: bool = False
    """True: a turn is running in it."""

    @property
    def gone_on(self) -> bool:
        """True: it has new messages here since the import."""
        return self.version is not None and self.version.last_seq != self.last_seq
