"""Writes imported conversations: what every importer shares.

An importer reads another program's sessions and adds their messages to a `Writing`; a `PartWriter` stores its
parts, small ones together, large conversations in pieces, and counts them. An import can be repeated: marks
in the store say how far each source session was read. Old ids become aliases, unless they are taken.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from msgspec import Raw

from ..domain.conversations import Address
from ..domain.ids import cut_name, is_ours
from ..domain.messages import NewMessage
from ..domain.records import (
    NOTHING,
    AliasRecord,
    ConversationRecord,
    ExclusionRecord,
    Hanging,
    ImportMark,
    MessageRecord,
    Part,
    ReadVersion,
    SessionRecord,
)
from ..domain.views import View
from ..errors import BadInput, Conflict, NotFound
from ..store.store import Store

PART_MESSAGES = 1000
PART_BYTES = 4 << 20
PARTS_TOGETHER = 64

StepProgress = Callable[[str, int, int], None]
"""Called with the step, how much of it is done, and the total."""


def no_step_progress(what: str, done: int, whole: int) -> None:
    """Report no progress."""


@dataclass(frozen=True, slots=True)
class SourceMessage:
    """A message of another program. `row` is its number there, by which a repeated import continues."""

    row: int
    message: NewMessage
    said_at: datetime | None
    extra: Raw = field(default_factory=lambda: NOTHING)
    aside: str | None = None
    """If it is not part of a context, the reason."""
    mended: bool = False


@dataclass
class Taken:
    """Counts of what an import wrote, and what it skipped."""

    conversations: int = 0
    grown: int = 0
    unchanged: int = 0
    sessions: int = 0
    messages: int = 0
    mended: int = 0
    names: int = 0
    edges: Counter[str] = field(default_factory=Counter)
    gone_on: list[str] = field(default_factory=list)
    """Sessions with new messages whose conversations were continued here; not imported."""
    deleted: list[str] = field(default_factory=list)
    """Sessions whose conversations were deleted here; they stay deleted."""
    problems: list[str] = field(default_factory=list)

    @property
    def anything(self) -> bool:
        return bool(self.conversations or self.grown)


class Writing:
    """Records of one conversation that are collected and not yet written. `ordinal`: that of its next
    session."""

    def __init__(
        self, origin: str, conversation: ConversationRecord, version: ReadVersion | None, ordinal: int
    ) -> None:
        self.origin = origin
        self.conversation = conversation
        self.version = version
        self.ordinal = ordinal
        self.next_seq = version.last_seq + 1 if version else 1
        self.before: str | None = None
        """The session that the next one continues."""
        self.view: View | None = None
        self.began_at = self.next_seq
        """The seq of that session's first message."""
        self.records: list[Hanging] = []
        self.aliases: list[AliasRecord] = []
        self.marks: list[ImportMark] = []
        self.count = self.size = 0

    @property
    def covers(self) -> tuple[int, int] | None:
        """The messages of that session, if it has any."""
        return (self.began_at, self.next_seq - 1) if self.began_at < self.next_seq else None

    def add(self, said: SourceMessage, session_id: str, here: str, said_at: datetime) -> None:
        """Add a message of the source's session `session_id` to our session `here`."""
        message = said.message
        self.records.append(
            MessageRecord(
                seq=self.next_seq,
                session_id=here,
                turn_id=None,
                role=message.role,
                status=message.status.value,
                created_at=said_at,
                body=Raw(message.body),
                calls=message.calls,
                answers=message.answers,
                origin=origin_of(self.origin, session_id, said.row),
                extra=said.extra,
            )
        )
        if said.aside is not None:
            self.records.append(ExclusionRecord(self.next_seq, said.aside, said_at))
        self.next_seq += 1
        self.count += 1
        self.size += len(message.body) + len(bytes(said.extra))

    def part(self) -> Part:
        return Part(
            self.origin,
            self.conversation,
            tuple(self.records),
            tuple(self.marks),
            self.version,
            tuple(self.aliases),
        )

    @property
    def is_large(self) -> bool:
        """True: write what is collected before adding more."""
        return self.count >= PART_MESSAGES or self.size >= PART_BYTES

    def written(self, part: Part) -> None:
        """Reset after this part was written; the next part continues after it."""
        sessions = [each.id for each in part.records if isinstance(each, SessionRecord)]
        tip = sessions[-1] if sessions else self.version.tip_id if self.version else ""
        self.version = ReadVersion(self.next_seq - 1, tip)
        self.records, self.aliases, self.marks = [], [], []
        self.count = self.size = 0


def origin_of(origin: str, session_id: str, row: int) -> str:
    """The origin of a message: the program, its session and its row there."""
    return f"{origin}:{session_id}:{row}"


class PartWriter:
    """Stores the parts of an import for one owner, and counts them in `taken`."""

    def __init__(self, store: Store, owner: str, taken: Taken) -> None:
        self._store = store
        self._owner = owner
        self._taken = taken
        self._begun: set[str] = set()
        """Conversations of which something was written."""
        self._waiting: list[Part] = []
        self._size = 0

    async def enqueue(self, writing: Writing) -> None:
        """Queue the collected records; small parts are written together."""
        part = writing.part()
        self._waiting.append(part)
        self._size += writing.size
        writing.written(part)
        if len(self._waiting) >= PARTS_TOGETHER or self._size >= PART_BYTES:
            await self.flush()

    async def split(self, writing: Writing) -> None:
        """Write what is collected of a large conversation, before more of it is added. Raises Conflict or
        BadInput if it is refused."""
        await self.flush()
        await self.enqueue(writing)
        await self.flush(strict=True)

    async def flush(self, *, strict: bool = False) -> None:
        """Write the queued parts. A refused one is a problem to report; with `strict` it is raised."""
        waiting, self._waiting, self._size = self._waiting, [], 0
        outcomes = await asyncio.gather(
            *(self._store.import_part(part) for part in waiting), return_exceptions=True
        )
        for part, done in zip(waiting, outcomes, strict=True):
            if isinstance(done, Conflict | BadInput) and not strict:
                self._taken.problems.append(str(done))
            elif isinstance(done, BaseException):
                raise done
            else:
                self._count(part)

    def _count(self, part: Part) -> None:
        """Count a part that was written."""
        taken, conversation_id = self._taken, part.conversation.id
        if part.expected is None:
            taken.conversations += 1
            self._begun.add(conversation_id)
        elif part.records and conversation_id not in self._begun:
            taken.grown += 1
            self._begun.add(conversation_id)
        taken.sessions += sum(isinstance(each, SessionRecord) for each in part.records)
        taken.messages += sum(isinstance(each, MessageRecord) for each in part.records)

    async def name(self, writing: Writing, name: str, since: datetime, here: str) -> None:
        """Make a source session's id an alias of our session `here`, unless that id is taken."""
        if is_ours(name) or not name.strip() or cut_name(name) != name:
            self._taken.problems.append(f"{name!r:.80} cannot be an alias here and was skipped")
            return
        try:
            place = await self._store.resolve(self._owner, Address(id=name, create=False))
        except NotFound:
            writing.aliases.append(AliasRecord(name, since, here))
            self._taken.names += 1
            return
        self._taken.problems.append(
            f"the id {name} already leads to {place.conversation.id}, which was created since; "
            f"the imported conversation is {writing.conversation.id}"
        )
