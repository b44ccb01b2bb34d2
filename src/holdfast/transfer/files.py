"""Exports conversations to a JSON Lines file, and imports them into a store.

Lossless: exporting, importing into an empty store and exporting again gives the same file. Ids are kept, so a
repeated import changes nothing, and an interrupted one continues. A file is validated completely before any
of it is written. One that is damaged, truncated or in conflict with the store is refused as a whole. Memory
is bounded: a conversation's messages are never all loaded at once, and neither are its files.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import SpooledTemporaryFile

import msgspec

from ..domain.conversations import Address
from ..domain.maintenance import Progress, no_progress
from ..domain.records import (
    FORMAT,
    AttachmentRecord,
    ConversationRecord,
    ExclusionRecord,
    Hanging,
    Imported,
    ImportMark,
    Line,
    MemoryRecord,
    MessageRecord,
    Part,
    ReadVersion,
    RecordsBegin,
    RecordsEnd,
    SessionRecord,
    TurnRecord,
    bytes_in,
    decode_line,
    encode_line,
)
from ..errors import BadInput, Conflict, NotFound
from ..store.imports import check_conversation, check_record
from ..store.store import Store

ORIGIN = "holdfast"
PART_MESSAGES = 1000
PART_BYTES = 4 << 20
PAGE = 500
SPOOLED_BYTES = 16 << 20
"""Of a conversation, in memory; a larger one is spooled to a temporary file that only this user can read."""


# --- export --------------------------------------------------------------------------------------------


async def all_conversations(store: Store, owner: str | None) -> AsyncIterator[str]:
    """The ids of an owner's conversations, or of all owners', oldest first."""
    after = 0
    while page := await store.conversation_ids(owner, after=after, limit=PAGE):
        for _, conversation_id in page:
            yield conversation_id
        after = page[-1][0]


async def exported(
    store: Store, owner: str | None, conversations: AsyncIterator[str]
) -> AsyncIterator[bytes]:
    """The lines of an export of these conversations, without line ends."""
    number = messages = 0
    yield encode_line(RecordsBegin())
    async for conversation_id in conversations:
        # Nothing of a conversation is written before all of it was read: a part of one that was deleted
        # meanwhile would make the file invalid.
        with SpooledTemporaryFile(SPOOLED_BYTES) as whole:
            try:
                conversation, hanging = await store.record(owner, conversation_id)
                async for record in _in_order(store, conversation, hanging):
                    whole.write(_one_line(encode_line(record)) + b"\n")
            except NotFound:
                continue  # deleted meanwhile
            whole.seek(0)
            for line in whole:
                yield line[:-1]
        number += 1
        messages += conversation.last_seq
    yield encode_line(RecordsEnd(number, messages))


async def _in_order(
    store: Store, conversation: ConversationRecord, hanging: Sequence[Hanging]
) -> AsyncIterator[Line]:
    """The records of a conversation in file order. Raises NotFound if it is deleted meanwhile."""
    yield conversation
    sessions = [each for each in hanging if isinstance(each, SessionRecord)]
    turns: dict[str, list[TurnRecord]] = {session.id: [] for session in sessions}
    for each in hanging:
        if isinstance(each, TurnRecord):
            turns[each.session_id].append(each)
    ends = [*(session.first_seq - 1 for session in sessions[1:]), conversation.last_seq]
    for session, last in zip(sessions, ends, strict=True):
        yield session
        for turn in turns[session.id]:
            yield turn
        first = session.first_seq
        while page := await store.message_records(conversation.id, first=first, last=last, limit=PAGE):
            for message in page:
                yield message
            first = page[-1].seq + 1
        if first <= last:
            raise NotFound("conversation", conversation.id)
    for other in hanging:
        if isinstance(other, AttachmentRecord):
            try:
                _, body = await store.attachment(None, other.id)
            except NotFound:
                continue  # deleted meanwhile
            yield msgspec.structs.replace(other, body=body)
        elif isinstance(other, ExclusionRecord | MemoryRecord):
            yield other


def _one_line(line: bytes) -> bytes:
    """Replace line breaks with spaces. In JSON they occur only between tokens, never inside a string."""
    return line.replace(b"\n", b" ").replace(b"\r", b" ") if b"\n" in line or b"\r" in line else line


# --- import --------------------------------------------------------------------------------------------


@dataclass
class Carried:
    """Counts of what an import did."""

    conversations: int = 0
    there: int = 0
    """Conversations that were already in the store."""
    sessions: int = 0
    messages: int = 0


def lines_of(path: Path) -> Iterator[Line]:
    """The lines of a file, each validated by itself. Raises BadInput that names the first invalid one."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield decode_line(line)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                    raise BadInput(
                        f"{path} is not a holdfast export, or is damaged: line {number} cannot be read "
                        f"({error}). Nothing was imported"
                    ) from error
    except FileNotFoundError:
        raise BadInput(f"there is no file {path}") from None
    except IsADirectoryError:
        raise BadInput(
            f"{path} is a directory; `holdfast import hermes {path}` reads a Hermes home"
        ) from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}). Nothing was imported") from error


class FileImporter:
    """Imports one file into a store. `owner`: the new owner of everything; None: keep each record's owner."""

    def __init__(
        self,
        store: Store,
        path: Path,
        owner: str | None = None,
        progress: Progress = no_progress,
    ) -> None:
        self._store = store
        self._path = path
        self._owner = owner
        self._progress = progress
        self._there: dict[str, Imported | None] = {}
        """Conversations already in the store: complete (None), or how far an earlier import got."""
        self._whole = 0
        self.carried = Carried()

    async def run(self) -> Carried:
        await self._look_through()
        done = 0
        for conversation, records in self._conversations():
            known = self._there.get(conversation.id)
            if conversation.id in self._there and known is None:
                self.carried.there += 1
                for record in records:
                    done += isinstance(record, MessageRecord)
            else:
                done += await self._take(conversation, records, known)
                self.carried.conversations += 1
            self._progress(done, self._whole)
        return self.carried

    def _conversations(self) -> Iterator[tuple[ConversationRecord, Iterator[Hanging]]]:
        """Each conversation with its records. Both must be read in file order."""
        lines = lines_of(self._path)
        waiting: list[ConversationRecord] = []

        def records() -> Iterator[Hanging]:
            for line in lines:
                if isinstance(line, ConversationRecord):
                    waiting.append(line)
                    return
                if not isinstance(line, RecordsBegin | RecordsEnd):
                    yield line

        for _ in records():
            pass
        while waiting:
            conversation = waiting.pop()
            if self._owner is not None:
                conversation = msgspec.structs.replace(conversation, owner=self._owner)
            yield conversation, records()

    # --- validation --------------------------------------------------------------------------------

    async def _look_through(self) -> None:
        """Read the whole file once: its records must be consistent, and its names free."""
        check = _Check(self._path)
        names: dict[tuple[str, str, str], str] = {}
        for number, line in enumerate(lines_of(self._path), 1):
            check.line(number, line)
            if isinstance(line, ConversationRecord):
                check.newest = msgspec.structs.replace(line, owner=self._owner or line.owner)
                self._require_distinct(check.newest, names)
            if check.finished is not None:
                await self._compare(*check.finished)
                check.finished = None
        check.end()
        self._whole = check.messages

    def _require_distinct(self, given: ConversationRecord, names: dict[tuple[str, str, str], str]) -> None:
        """Raises Conflict if another conversation of the file has one of its names: conversations of several
        owners may, if all of them get one owner."""
        own = [("key", given.key)] if given.key else []
        own += [("name", alias.name) for alias in given.aliases]
        for what, name in own:
            other = names.setdefault((given.owner, what, name), given.id)
            if other != given.id:
                raise Conflict(
                    f"the {what} {name!r} would lead to {other} and to {given.id}, which are both in "
                    f"{self._path}. Nothing was imported; import each owner's conversations under another "
                    "owner"
                )

    async def _compare(self, given: ConversationRecord, last: MessageRecord | None) -> None:
        """Record if the conversation is there, in part or complete. Raises Conflict if its name is taken."""
        try:
            here, _ = await self._store.record(None, given.id)
        except NotFound:
            await self._require_free(given)
            return
        known = (await self._store.imported(given.owner, ORIGIN, [given.id])).get(given.id)
        if known is not None and not known.whole and not known.gone_on:
            self._there[given.id] = known
            return
        same = here.owner == given.owner and here.created_at == given.created_at
        same = same and (known is None or known.whole)  # else files of it may be missing
        if same and last is not None and here.last_seq >= last.seq:
            (found,) = await self._store.message_records(given.id, first=last.seq, last=last.seq)
            same = (found.created_at, found.role) == (last.created_at, last.role)
        if not same or here.last_seq < given.last_seq:
            raise Conflict(
                f"{given.id} is there already and is not the one of {self._path}: it has {here.last_seq} "
                f"messages here and {given.last_seq} there. Nothing was imported; delete it first "
                f"(holdfast sessions delete {given.id}), or import into another store"
            )
        self._there[given.id] = None

    async def _require_free(self, given: ConversationRecord) -> None:
        names = [Address(key=given.key, create=False)] if given.key else []
        names += [Address(id=alias.name, create=False) for alias in given.aliases]
        for address in names:
            try:
                place = await self._store.resolve(given.owner, address)
            except NotFound:
                continue
            what = "key" if address.key else "name"
            raise Conflict(
                f"the {what} {str(address)!r} of {given.id} already leads to {place.conversation.id} here. "
                "Nothing was imported; delete that conversation first, or import into another store"
            )

    # --- writing -----------------------------------------------------------------------------------

    async def _take(
        self, conversation: ConversationRecord, records: Iterable[Hanging], known: Imported | None
    ) -> int:
        """Write a conversation, in as many parts as needed; returns its number of messages."""
        version = known.version if known else None
        there = set()
        if known is not None:
            there = {each.id for each in await self._store.line(conversation.owner, conversation.id)}
        part: list[Hanging] = []
        count = size = messages = 0
        tip, last = (version.tip_id, version.last_seq) if version else ("", 0)
        for record in records:
            if isinstance(record, MessageRecord):
                messages += 1
                if version is not None and record.seq <= version.last_seq:
                    continue
                count += 1
                last = record.seq
                size += len(bytes(record.body)) + len(bytes(record.extra))
            elif isinstance(record, AttachmentRecord):
                size += len(record.body)
            elif isinstance(record, SessionRecord):
                tip = record.id
            skipped = record.id if isinstance(record, SessionRecord) else None
            skipped = record.session_id if isinstance(record, TurnRecord) else skipped
            if skipped in there:
                continue
            part.append(record)
            self.carried.sessions += isinstance(record, SessionRecord)
            self.carried.messages += isinstance(record, MessageRecord)
            ends_part = isinstance(record, MessageRecord | AttachmentRecord)
            if ends_part and (count >= PART_MESSAGES or size >= PART_BYTES):
                mark = ImportMark(conversation.id, tip, last, whole=False)
                await self._store.import_part(Part(ORIGIN, conversation, tuple(part), (mark,), version))
                version = ReadVersion(last, tip)
                part, count, size = [], 0, 0
        mark = ImportMark(conversation.id, tip, conversation.last_seq)
        await self._store.import_part(Part(ORIGIN, conversation, tuple(part), (mark,), version))
        return messages


class _Check:
    """Checks that the lines of a file are consistent, one after the other."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.newest: ConversationRecord | None = None
        self.finished: tuple[ConversationRecord, MessageRecord | None] | None = None
        """The conversation whose last line was just read, and its last message."""
        self._last: MessageRecord | None = None
        self._sessions: set[str] = set()
        self._conversations = 0
        self.messages = 0
        self._end: RecordsEnd | None = None
        self._number = 0

    def line(self, number: int, line: Line) -> None:
        self._number = number
        if number == 1 and not isinstance(line, RecordsBegin):
            raise self._wrong("it is not a holdfast export: its first line has no export header")
        if self._end is not None:
            raise self._wrong("it has data after its end")
        self._check_storable(line)
        match line:
            case RecordsBegin():
                if number > 1 or line.format != FORMAT:
                    raise self._wrong(f"it has format {line.format}; this holdfast reads format {FORMAT}")
            case ConversationRecord():
                self._finish()
                self._last, self._sessions = None, set()
                self._conversations += 1
            case SessionRecord():
                self._sessions.add(line.id)
            case TurnRecord():
                if line.session_id not in self._sessions:
                    raise self._wrong(f"{line.id} belongs to no session before it")
            case MessageRecord():
                if line.session_id not in self._sessions:
                    raise self._wrong(f"message {line.seq} belongs to no session before it")
                if line.seq != (self._last.seq if self._last else 0) + 1:
                    raise self._wrong(f"message {line.seq} is out of order")
                if line.deleted_at is None and bytes_in(line.body) is None:
                    raise self._wrong(f"message {line.seq} has no body, and was not deleted")
                self._last = line
                self.messages += 1
            case RecordsEnd():
                self._finish()
                self._end = line
            case _:
                pass
        if self._conversations == 0 and not isinstance(line, RecordsBegin | RecordsEnd):
            raise self._wrong("it belongs to no conversation")

    def _check_storable(self, line: Line) -> None:
        """Raises BadInput for a record that an import would refuse."""
        try:
            if isinstance(line, ConversationRecord):
                check_conversation(line)
            elif self.newest is not None and not isinstance(line, RecordsBegin | RecordsEnd):
                check_record(self.newest.id, line)
        except BadInput as error:
            raise self._wrong(str(error)) from error

    def _finish(self) -> None:
        if self.newest is None:
            return
        found = self._last.seq if self._last else 0
        if found != self.newest.last_seq or not self._sessions:
            raise self._wrong(f"{self.newest.id} has {found} of its {self.newest.last_seq} messages")
        self.finished, self.newest = (self.newest, self._last), None

    def end(self) -> None:
        if self._end is None:
            raise BadInput(f"{self._path} was cut off: its end is missing. Nothing was imported")
        if (self._end.conversations, self._end.messages) != (self._conversations, self.messages):
            raise self._wrong("its last line has a wrong line count")

    def _wrong(self, what: str) -> BadInput:
        return BadInput(f"line {self._number} of {self._path}: {what}. Nothing was imported")
