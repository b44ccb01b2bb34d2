"""Imports conversations from records.

Imported data is history: it gets its ids, numbers and times from its record, and none of the side effects of
its creation (events, notices, flushes) are repeated. An open session is detached, because its process is not
here. A large conversation is imported in parts; each leaves it complete up to a seq, so that a reader never
sees a gap, and a part that never arrives is only missing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Raw, Struct

from ..domain.conversations import check_metadata
from ..domain.events import EventType
from ..domain.ids import check_name, check_text, is_ours, unstorable
from ..domain.messages import MessageStatus
from ..domain.new_messages import ROLES
from ..domain.records import (
    AliasRecord,
    AttachmentRecord,
    ConversationRecord,
    ExclusionRecord,
    Hanging,
    Imported,
    MemoryRecord,
    MessageRecord,
    Part,
    ReadVersion,
    SessionRecord,
    TurnRecord,
    bytes_in,
)
from ..domain.request_keys import RequestKey
from ..domain.sessions import Edge
from ..domain.turns import TurnStatus
from ..domain.views import View
from ..errors import BadInput, Conflict
from .resolve import conversation_of
from .rows import to_json, to_stamp
from .sessions import next_due
from .transaction import Q, Transaction

MAX_ID = 80
MAX_SOURCE = 540
"""A platform's message id, and a position."""
ENDED = frozenset(TurnStatus) - {TurnStatus.QUEUED, TurnStatus.RUNNING}


def imported(tx: Transaction, owner: str, origin: str, names: Sequence[str]) -> Mapping[str, Imported]:
    """Import state of these names of the source, for those imported before."""
    found = {}
    for name in names:
        row = tx.one(Q.import_mark, owner=owner, origin=origin, name=name)
        if row is not None:
            conversation, session, last_row, whole, last_seq, current_seq, tip, holder = row
            version = None if tip is None else ReadVersion(current_seq, tip)
            found[name] = Imported(
                name, conversation, session, last_row, bool(whole), last_seq, version, holder is not None
            )
    return found


def messages_from(tx: Transaction, conversation_id: str, origins: Collection[str]) -> Mapping[str, int]:
    """By source position: the seqs of messages imported from there that are still valid."""
    rows = tx.all(Q.messages_by_origin, conversation=conversation_id)
    return {origin: seq for origin, seq in rows if origin in origins}


def set_key(
    tx: Transaction, owner: str, conversation_id: str, key: str, *, instead_of: str | None = None
) -> None:
    """Set the key of a conversation that has none. Conflict, having changed nothing, if it has another,
    or if the key belongs to another one; unless that is `instead_of`, which loses it."""
    check_name("a key", key)
    known = conversation_of(tx, owner, conversation_id)
    holding = tx.one(Q.place_by_key, owner=owner, key=key)
    if holding is not None and holding[1] not in (conversation_id, instead_of):
        raise Conflict(f"the key {key!r} already leads to {holding[1]}")
    if known.key not in (None, key):
        raise Conflict(f"{conversation_id} has the key {known.key!r} already")
    if holding is not None and holding[1] != conversation_id:
        tx.run(Q.release_key, id=holding[1], owner=owner, key=key)
    tx.run(Q.give_key, id=conversation_id, owner=owner, key=key)


def import_part(tx: Transaction, part: Part) -> None:
    """Import a conversation, or what is new in it, with its ids, numbers, times and marks.

    Not published as current activity: nothing is reset, flushed or run. Conflict, having written nothing,
    if its id, key or an alias belongs to another conversation, or if the conversation is not at the
    version where the part continues.
    """
    conversation = part.conversation
    sessions = [each for each in part.records if isinstance(each, SessionRecord)]
    messages = [each for each in part.records if isinstance(each, MessageRecord)]
    turns = [each for each in part.records if isinstance(each, TurnRecord)]
    aliases = (*conversation.aliases, *part.aliases) if part.expected is None else part.aliases
    _check(part, sessions, messages)
    _require_names(tx, conversation, aliases, begins=part.expected is None)
    for turn in turns:
        response = turn.response.id if turn.response else None
        if tx.one(Q.taken_turn, id=turn.id, response=response) is not None:
            raise Conflict(f"turn {turn.id} of {conversation.id} is there already, in another conversation")
    files = _missing_files(tx, part)
    last_seq = messages[-1].seq if messages else part.expected.last_seq if part.expected else 0
    adds = sum(len(bytes_in(message.body) or b"") for message in messages)
    adds += sum(len(file.body) for file in files)
    if part.expected is None:
        _begin(tx, part, sessions[-1].id, last_seq, adds)
    else:
        tip = sessions[-1].id if sessions else part.expected.tip_id
        _grow(tx, part, part.expected, tip, last_seq, adds)
    for alias in aliases:
        tx.run(
            Q.import_alias,
            owner=conversation.owner,
            alias=alias.name,
            conversation=conversation.id,
            session=alias.session_id,
            created_at=to_stamp(alias.created_at),
        )
    for session in sessions:
        _insert_session(tx, conversation, session)
    for turn in turns:
        _insert_turn(tx, conversation, turn)
    tx.run_many(Q.import_message, (_message_values(conversation.id, message) for message in messages))
    for session_id, last in {message.session_id: message.seq for message in messages}.items():
        tx.run(Q.extend_session, id=session_id, last_seq=last)
    for file in files:
        tx.run(
            Q.import_attachment,
            id=file.id,
            conversation=conversation.id,
            turn=file.turn_id,
            source=file.source,
            name=file.name,
            mime=file.mime,
            size=len(file.body),
            body=file.body,
            created_at=to_stamp(file.created_at),
        )
    _insert_others(tx, part)
    _mark(tx, part, last_seq)
    if part.records:
        tx.event(
            EventType.CONVERSATION_IMPORTED,
            conversation.owner,
            conversation.id,
            origin=part.origin,
            sessions=len(sessions),
            messages=len(messages),
        )


def _missing_files(tx: Transaction, part: Part) -> list[AttachmentRecord]:
    """The files of a part that are not stored yet: an interrupted import repeats some. Raises Conflict."""
    missing = []
    for each in part.records:
        if isinstance(each, AttachmentRecord):
            found = tx.all(Q.taken_attachment, id=each.id, turn=each.turn_id, source=each.source)
            if {row[0] for row in found} - {part.conversation.id}:
                raise Conflict(f"the file {each.id} is there already, in another conversation")
            if not found:
                missing.append(each)
    return missing


def _insert_others(tx: Transaction, part: Part) -> None:
    conversation = part.conversation
    for at, to in conversation.rewinds:
        tx.run(Q.import_rewind, conversation=conversation.id, at=at, to=to, now=tx.now)
    for each in part.records:
        if isinstance(each, ExclusionRecord):
            tx.run(
                Q.import_exclusion,
                conversation=conversation.id,
                seq=each.seq,
                reason=each.reason,
                created_at=to_stamp(each.created_at),
            )
        elif isinstance(each, MemoryRecord):
            tx.run(
                Q.import_memory,
                id=each.id,
                owner=conversation.owner,
                conversation=conversation.id,
                session=each.session_id,
                origin=each.origin,
                text=each.text,
                created_at=to_stamp(each.created_at),
                edited_at=_stamp(each.edited_at),
            )


def _mark(tx: Transaction, part: Part, last_seq: int) -> None:
    for mark in part.marks:
        tx.run(
            Q.mark_import,
            owner=part.conversation.owner,
            origin=part.origin,
            name=mark.name,
            conversation=part.conversation.id,
            session=mark.session_id,
            last_row=mark.last_row,
            whole=mark.whole,
            last_seq=last_seq,
            now=tx.now,
        )


def _begin(tx: Transaction, part: Part, tip: str, last_seq: int, adds: int) -> None:
    given = part.conversation
    whole = last_seq == given.last_seq
    tx.run(
        Q.import_conversation,
        id=given.id,
        owner=given.owner,
        key=given.key,
        title=given.title,
        source=given.source,
        tip=tip,
        last_seq=last_seq,
        bytes=adds,
        forked_from=given.forked_from,
        anonymous=given.anonymous,
        history=given.history if whole else None,
        metadata=to_json(given.metadata) if given.metadata else None,
        created_at=to_stamp(given.created_at),
    )


def _grow(tx: Transaction, part: Part, seen: ReadVersion, tip: str, last_seq: int, adds: int) -> None:
    given = part.conversation
    grown = tx.one(
        Q.grow_conversation,
        id=given.id,
        owner=given.owner,
        tip=tip,
        last_seq=last_seq,
        bytes=adds,
        history=given.history if last_seq == given.last_seq else None,
        seen_seq=seen.last_seq,
        seen_tip=seen.tip_id,
    )
    if grown is None:
        raise Conflict(f"{given.id} has newer messages; nothing was added to it")


def _require_names(
    tx: Transaction, given: ConversationRecord, aliases: Sequence[AliasRecord], *, begins: bool
) -> None:
    """Raise unless its id, key and aliases are free, or already its own."""
    known = tx.one(Q.conversation_by_id, id=given.id, owner=None)
    if given.key is not None:
        row = tx.one(Q.place_by_key, owner=given.owner, key=given.key)
        if row is not None and row[1] != given.id:
            raise Conflict(
                f"the key {given.key!r} already leads to {row[1]}",
            )
    for alias in aliases:
        row = tx.one(Q.conversation_by_alias, owner=given.owner, id=alias.name)
        if row is not None and row[0] != given.id:
            raise Conflict(f"the name {alias.name!r} already leads to {row[0]}")
    if known is not None and (begins or known[1] != given.owner):
        raise Conflict(f"{given.id} is there already")


def _check(part: Part, sessions: Sequence[SessionRecord], messages: Sequence[MessageRecord]) -> None:
    """Whatever a file contains, what is written must keep the store's invariants."""
    given = part.conversation
    check_text("an origin", part.origin, MAX_ID)
    for mark in part.marks:
        check_name("a name in an import", mark.name)
    check_conversation(given)
    for alias in part.aliases:
        _check_alias(alias)
    for each in part.records:
        check_record(given.id, each)
    seen = part.expected.last_seq if part.expected else 0
    for number, message in enumerate(messages, seen + 1):
        if message.seq != number:
            raise BadInput(f"{given.id}: message {number} is missing, {message.seq} comes instead")
    if part.expected is None and not sessions:
        raise BadInput(f"{given.id} has no session")
    if any(session.ended_at is None for session in sessions[:-1]):
        raise BadInput(f"{given.id} has an open session before its newest")


def check_conversation(given: ConversationRecord) -> None:
    """Raises BadInput if this record cannot be stored, whatever belongs to it."""
    check_name("an owner", given.owner)
    check_name("a source", given.source)
    if given.key is not None:
        check_name("a key", given.key)
    if given.title is not None:
        check_text("a title", given.title)
    check_text("an id of a conversation", given.id, MAX_ID)
    check_metadata(given.metadata or {})
    if not given.id.startswith("conv_"):
        raise BadInput(f"{given.id!r} is not a conversation id")
    for alias in given.aliases:
        _check_alias(alias)


def _check_alias(alias: AliasRecord) -> None:
    check_name("an alias", alias.name)
    if is_ours(alias.name):
        raise BadInput(f"{alias.name!r} has the form of our own ids and cannot be an alias")


def check_record(conversation_id: str, record: Hanging) -> None:
    """The same for a record of a conversation. Every indexed value must fit into its index, whatever the
    file's origin."""
    if isinstance(record, SessionRecord | TurnRecord | MemoryRecord | AttachmentRecord):
        check_text("an id", record.id, MAX_ID)
    match record:
        case SessionRecord():
            check_name("a source", record.source)
            _check_session(record)
        case MessageRecord():
            if record.role not in ROLES or record.status not in set(MessageStatus):
                raise BadInput(
                    f"{conversation_id}: message {record.seq} is {record.role!r}, {record.status!r}"
                )
            _check_body(conversation_id, record)
        case AttachmentRecord():
            check_text("an id of a turn", record.turn_id, MAX_ID)
            check_text("the source of a file", record.source, MAX_SOURCE)
            for text in (record.name, record.mime):
                if fault := unstorable(text):
                    raise BadInput(f"the name or type of {record.id} {fault}")
        case TurnRecord():
            if record.status not in ENDED:
                raise BadInput(f"{record.id} is {record.status!r}")
            if record.response is not None:
                check_text("an id of a response", record.response.id, MAX_ID)
            if record.request is not None:
                RequestKey(record.request.route, record.request.key, record.request.body_hash)


def _check_session(session: SessionRecord) -> None:
    if not session.id.startswith("sess_"):
        raise BadInput(f"{session.id!r} is not a session id")
    if (session.ended_at is None) != (session.end_reason is None):
        raise BadInput(f"{session.id} has an end without a reason, or a reason without an end")
    if session.edge is not None and session.edge not in set(Edge):
        raise BadInput(f"{session.id}: {session.edge!r} is not an edge")
    try:
        View.decode(bytes(session.view).decode())
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise BadInput(f"{session.id} has a view that cannot be read: {error}") from error


class _Spoken(Struct):
    role: str


_spoken = msgspec.json.Decoder(_Spoken).decode
_object = msgspec.json.Decoder(dict[str, Any]).decode


def _check_body(conversation_id: str, message: MessageRecord) -> None:
    try:
        if (body := bytes_in(message.body)) is not None and _spoken(body).role != message.role:
            raise BadInput(f"{conversation_id}: message {message.seq} says it is another's")
        if (extra := bytes_in(message.extra)) is not None:
            _object(extra)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadInput(f"{conversation_id}: message {message.seq} is not valid: {error}") from error


def _insert_session(tx: Transaction, given: ConversationRecord, session: SessionRecord) -> None:
    since = session.fresh_since or session.opened_at
    due = next_due(tx, session.source, since, session.last_activity_at) if session.ended_at is None else None
    tx.run(
        Q.import_session,
        id=session.id,
        conversation=given.id,
        owner=given.owner,
        ordinal=session.ordinal,
        edge=session.edge,
        parent=session.parent_id,
        source=session.source,
        opened_at=to_stamp(session.opened_at),
        last_activity_at=to_stamp(session.last_activity_at),
        next_due_at=due,
        dated_by=tx.policies.stamp if session.ended_at is None else None,
        ended_at=_stamp(session.ended_at),
        end_reason=session.end_reason,
        model=session.model,
        input_tokens=session.input_tokens,
        output_tokens=session.output_tokens,
        first_seq=session.first_seq,
        last_seq=None if session.ended_at is None else session.first_seq - 1,
        view=bytes(session.view).decode(),
        fresh_by=session.fresh_by,
        fresh_since=_stamp(session.fresh_since),
        flushed_seq=session.flushed_seq,
    )


def _insert_turn(tx: Transaction, given: ConversationRecord, turn: TurnRecord) -> None:
    tx.run(
        Q.import_turn,
        id=turn.id,
        conversation=given.id,
        session=turn.session_id,
        owner=given.owner,
        status=turn.status,
        node=turn.node_id,
        attempt=turn.attempt,
        first_seq=turn.first_seq,
        started_at=to_stamp(turn.started_at),
        ended_at=to_stamp(turn.ended_at),
        model=turn.model,
        error=turn.error,
        usage=_text(turn.usage),
        response_id=turn.response_id,
        answer=turn.answer,
        joined=turn.joined,
    )
    if (asked := turn.request) is not None:
        tx.run(
            Q.import_request,
            turn=turn.id,
            owner=given.owner,
            route=asked.route,
            key=asked.key,
            body_hash=asked.body_hash,
            created_at=to_stamp(asked.created_at),
        )
    if (named := turn.response) is not None:
        tx.run(
            Q.import_response,
            id=named.id,
            owner=given.owner,
            turn=turn.id,
            previous=named.previous_id,
            background=named.background,
            brought=named.brought,
            request=named.request,
            created_at=to_stamp(named.created_at),
        )


def _message_values(conversation_id: str, message: MessageRecord) -> dict[str, Any]:
    return {
        "conversation": conversation_id,
        "seq": message.seq,
        "session": message.session_id,
        "turn": message.turn_id,
        "role": message.role,
        "status": message.status,
        "calls": to_json(message.calls) if message.calls else None,
        "answers": message.answers,
        "created_at": to_stamp(message.created_at),
        "deleted_at": _stamp(message.deleted_at),
        "origin": message.origin,
        "gaps": to_json(message.gaps) if message.gaps else None,
        "body": bytes_in(message.body) or b"",
        "inner": message.inner,
        "own_calls": to_json(message.own_calls) if message.own_calls else None,
        "extra": _text(message.extra),
    }


def _text(raw: Raw) -> str | None:
    data = bytes_in(raw)
    return None if data is None else data.decode()


def _stamp(time: datetime | None) -> int | None:
    return None if time is None else to_stamp(time)
