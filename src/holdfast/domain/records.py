"""Records: a conversation with everything in it, as it is carried from one store to another.

Each record is one line of an export, in this order: the conversation, then each of its sessions followed by
that session's turns and messages, then what else hangs on the conversation. Ids, numbers and times are kept.
A body is the JSON it was stored as. What belongs to a process and not to the conversation (leases, drafts,
events, notices, background processes, flushes that wait) is not carried.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import msgspec
from msgspec import Raw, Struct

FORMAT = 1
NOTHING = Raw(b"null")


def bytes_in(raw: Raw) -> bytes | None:
    """The JSON that a record carries; None if it carries none."""
    data = bytes(raw)
    return None if data == b"null" else data


class RecordsBegin(Struct, frozen=True, tag="holdfast", tag_field="record"):
    """The first line of an export: what this file is."""

    format: int = FORMAT


class RecordsEnd(Struct, frozen=True, tag="end", tag_field="record"):
    """The last line: a file without it was cut off."""

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
    """The request that a turn was asked by: a repetition is recognised by it."""

    route: str
    key: str
    body_hash: bytes
    created_at: datetime


class ResponseRecord(Struct, frozen=True):
    """The turn's name in the Responses API."""

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


class MessageRecord(Struct, frozen=True, tag="message", tag_field="record"):
    seq: int
    session_id: str
    turn_id: str | None
    role: str
    status: str
    created_at: datetime
    body: Raw
    """Nothing, if its text was deleted."""
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


class MemoryRecord(Struct, frozen=True, tag="memory", tag_field="record"):
    id: str
    session_id: str | None
    origin: str
    text: str
    created_at: datetime
    edited_at: datetime | None = None


Hanging = SessionRecord | TurnRecord | MessageRecord | ExclusionRecord | MemoryRecord
Record = ConversationRecord | Hanging
Line = RecordsBegin | Record | RecordsEnd

encode_line = msgspec.json.Encoder().encode
decode_line = msgspec.json.Decoder(Line).decode


@dataclass(frozen=True, slots=True)
class ImportMark:
    """How far something has been taken over: its name elsewhere, the session it is here, and the number
    there of its last message that has come."""

    name: str
    session_id: str
    last_row: int
    whole: bool = True
    """Is that all there is? Otherwise the rest belongs to the same session."""


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a conversation stood when it was looked at: its last number and its newest session."""

    last_seq: int
    tip_id: str


@dataclass(frozen=True, slots=True)
class Part:
    """A conversation to be taken over, or what is new of one that was; whole or, if it is large, a piece of
    it. Records come in the order of an export, without the conversation's own."""

    origin: str
    conversation: ConversationRecord
    records: tuple[Hanging, ...]
    marks: tuple[ImportMark, ...] = ()
    behind: Stand | None = None
    """None: it is new here. Else it must stand exactly so, and what comes goes behind that."""
    aliases: tuple[AliasRecord, ...] = ()
    """Names that come with this part."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What is known of something that was taken over before."""

    name: str
    conversation_id: str
    session_id: str
    last_row: int
    whole: bool
    last_seq: int
    """The conversation's last number right after it had come."""
    stand: Stand | None
    """Where the conversation stands now; None: it was deleted here."""
    held: bool = False
    """Is a turn running in it?"""

    @property
    def gone_on(self) -> bool:
        """Has somebody spoken here since?"""
        return self.stand is not None and self.stand.last_seq != self.last_seq
