"""Imports transcripts: files of JSON lines, one for each session of a program.

Each transcript becomes a conversation under its old id. Files are only read, and may be imported again: what
was added to a transcript since is appended, unless its conversation was continued or deleted here. A message
that begins with a summary of the earlier ones opens a further session of the same conversation, with the edge
`compaction`. Lines that cannot be read are counted and skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from ..domain.ids import new_id
from ..domain.messages import NewMessage, text_of
from ..domain.new_messages import said_by_model
from ..domain.records import ConversationRecord, Imported, ImportMark, SessionRecord, is_time
from ..domain.sessions import Edge, EndReason
from ..domain.views import View
from ..errors import BadInput, BadMessage, Conflict
from ..os_support import expanded, is_directory, is_file
from ..store.store import Store
from .writing import PartWriter, SourceMessage, StepProgress, Taken, Writing, no_step_progress

LONGEST_LINE = 64 << 20
LONGEST_TITLE = 200


@dataclass(frozen=True, slots=True)
class TranscriptMessage:
    """A chat message of a transcript. `row` is the number of its last line."""

    row: int
    value: dict[str, Any]
    said_at: datetime
    compacts: bool = False
    """True: it holds a summary, and the context starts over with it."""
    first_row: int = 0
    """The number of its first line, if it has several."""

    @property
    def began(self) -> int:
        return self.first_row or self.row


@dataclass(slots=True)
class Transcript:
    id: str
    """Its session's id in the program."""
    path: Path
    messages: list[TranscriptMessage] = field(default_factory=list)
    title: str | None = None
    model: str | None = None
    parent: str | None = None
    """The id of the session that this one works for, as a sub-agent."""
    last_row: int = 0
    unread: int = 0
    """Lines that could not be read."""
    problem: str = ""
    """Why the file could not be read; empty: it could."""
    left_out: int = 0
    """Messages of abandoned branches."""
    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def started_at(self) -> datetime:
        return self.messages[0].said_at

    @property
    def active_at(self) -> datetime:
        return self.messages[-1].said_at


@dataclass(slots=True)
class Overview:
    """What a dry run reports."""

    origin: str
    files: int = 0
    empty: int = 0
    conversations: int = 0
    subagents: int = 0
    messages: int = 0
    compactions: int = 0
    unread_lines: int = 0
    unread_files: int = 0
    left_out: int = 0
    first_at: datetime | None = None
    last_at: datetime | None = None
    models: Counter[str] = field(default_factory=Counter)


def overview(origin: str, transcripts: Iterable[Transcript]) -> Overview:
    """What these transcripts hold. Reads them, and changes nothing."""
    found = Overview(origin)
    for each in transcripts:
        found.files += 1
        found.unread_files += bool(each.problem)
        found.unread_lines += each.unread
        found.left_out += each.left_out
        if not each.messages:
            found.empty += 1
            continue
        found.conversations += 1
        found.subagents += each.parent is not None
        found.messages += len(each.messages)
        found.compactions += sum(message.compacts for message in each.messages)
        found.models[each.model or "unknown"] += 1
        found.first_at = min(found.first_at or each.started_at, each.started_at)
        found.last_at = max(found.last_at or each.active_at, each.active_at)
    return found


class TranscriptImporter:
    """Imports transcripts into a store, for one owner. Parents must come before their sub-agents."""

    def __init__(
        self, store: Store, owner: str, origin: str, files: int, progress: StepProgress = no_step_progress
    ) -> None:
        self._store = store
        self._owner = owner
        self._origin = origin
        self._files = files
        self._progress = progress
        self._ours: dict[str, str] = {}
        """Session ids in the store, by the program's session id."""
        self.taken = Taken()
        self._parts = PartWriter(store, owner, self.taken)

    async def run(self, transcripts: Iterable[Transcript]) -> Taken:
        for done, transcript in enumerate(transcripts):
            self._progress("importing", done, self._files)
            if transcript.problem:
                self.taken.problems.append(f"{transcript.path} could not be read: {transcript.problem}")
            if transcript.unread:
                self.taken.problems.append(
                    f"{transcript.path}: {transcript.unread:,} lines could not be read and were left out"
                )
            if transcript.messages:
                await self._take(transcript)
        await self._parts.flush()
        self._progress("importing", self._files, self._files)
        return self.taken

    async def _take(self, transcript: Transcript) -> None:
        known = (await self._store.imported(self._owner, self._origin, [transcript.id])).get(transcript.id)
        if known is not None:
            self._ours[transcript.id] = known.session_id
        try:
            if known is None:
                writing = Writing(self._origin, self._new(transcript), None, 1)
                await self._write(writing, transcript, transcript.messages, None)
            else:
                await self._grow(transcript, known)
        except (Conflict, BadInput) as error:
            self.taken.problems.append(f"{transcript.id}: {error}")

    async def _grow(self, transcript: Transcript, known: Imported) -> None:
        if known.version is None:
            self.taken.deleted.append(transcript.id)
            return
        fresh = [message for message in transcript.messages if message.began > known.last_row]
        if any(message.began <= known.last_row < message.row for message in transcript.messages):
            self.taken.problems.append(
                f"{transcript.id}: a message was half written at the first import; its end is left out"
            )
        if not fresh:
            self.taken.unchanged += 1
            return
        if known.held or known.gone_on or known.version.tip_id != known.session_id:
            self.taken.gone_on.append(transcript.id)
            return
        record, _ = await self._store.record(self._owner, known.conversation_id)
        tip = await self._store.session(self._owner, known.session_id)
        writing = Writing(self._origin, record, known.version, tip.ordinal + 1)
        writing.before, writing.view, writing.began_at = tip.id, tip.view, tip.first_seq
        await self._write(writing, transcript, fresh, known)

    def _new(self, transcript: Transcript) -> ConversationRecord:
        parent = self._ours.get(transcript.parent) if transcript.parent else None
        return ConversationRecord(
            id=new_id("conv"),
            owner=self._owner,
            key=None,
            title=transcript.title[:LONGEST_TITLE] if transcript.title else None,
            source=self._origin,
            created_at=transcript.started_at,
            last_seq=-1,
            forked_from=parent,
        )

    async def _write(
        self,
        writing: Writing,
        transcript: Transcript,
        messages: Sequence[TranscriptMessage],
        known: Imported | None,
    ) -> None:
        here = ""
        for message in messages:
            if not here or message.compacts:
                here = await self._open(writing, transcript, message, known)
            said, mended = _storable(message.value)
            source = SourceMessage(message.row, said, message.said_at)
            writing.add(source, transcript.id, here, message.said_at)
            self.taken.mended += mended
            if writing.is_large:
                writing.marks.append(ImportMark(transcript.id, here, message.row, whole=False))
                await self._parts.split(writing)
        last = max(messages[-1].row, transcript.last_row)
        writing.marks.append(ImportMark(transcript.id, here, last))
        await self._parts.enqueue(writing)

    async def _open(
        self,
        writing: Writing,
        transcript: Transcript,
        first: TranscriptMessage,
        known: Imported | None,
    ) -> str:
        """Add a session to the conversation; returns its id."""
        parent = writing.before
        view = View.fresh(writing.next_seq - 1)
        edge = None
        if parent is not None:
            edge = Edge.COMPACTION if first.compacts else Edge.RESUME
            if edge is Edge.RESUME and writing.view is not None:
                view = writing.view
        elif writing.conversation.forked_from is not None:
            edge, parent = Edge.SUBAGENT, writing.conversation.forked_from
        counts = writing.before is None
        here = new_id("sess")
        writing.records.append(
            SessionRecord(
                id=here,
                ordinal=writing.ordinal,
                edge=edge.value if edge else None,
                parent_id=parent,
                source=self._origin,
                opened_at=first.said_at,
                last_activity_at=max(transcript.active_at, first.said_at),
                ended_at=max(transcript.active_at, first.said_at),
                end_reason=EndReason.CLOSED.value,
                model=transcript.model,
                input_tokens=transcript.input_tokens if counts else 0,
                output_tokens=transcript.output_tokens if counts else 0,
                first_seq=writing.next_seq,
                view=Raw(view.encode().encode()),
                fresh_since=writing.conversation.created_at,
            )
        )
        writing.ordinal += 1
        writing.before, writing.view, writing.began_at = here, view, writing.next_seq
        if edge:
            self.taken.edges[edge.value] += 1
        if known is None and transcript.id not in self._ours:
            await self._parts.name(writing, transcript.id, transcript.started_at, here)
        self._ours[transcript.id] = here
        return here


def _storable(value: dict[str, Any]) -> tuple[NewMessage, bool]:
    """The message, and whether text had to be replaced to store it."""
    try:
        return said_by_model(value), False
    except BadMessage:
        return said_by_model({"role": value["role"], "content": text_of(value.get("content"))}), True


def lines_of(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """The objects of a file of JSON lines with their numbers, from 1; None for a line that is none, or is
    longer than LONGEST_LINE. A last line without its end is left out: it is being written."""
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), 1):
            is_long = False
            while line and not line.endswith(b"\n"):
                is_long, line = True, file.readline(LONGEST_LINE)
            if not line:
                return
            if is_long:
                yield number, None
                continue
            if not line.strip():
                continue
            try:
                value = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                value = None
            yield number, value if isinstance(value, dict) else None


def read_all(paths: Iterable[Path], read: Callable[[Path], Transcript]) -> Iterator[Transcript]:
    """The transcripts of these files. One that cannot be read is empty, with the reason, and stops no
    other."""
    for path in paths:
        try:
            yield read(path)
        except OSError as error:
            yield Transcript(path.stem, path, problem=error.strerror or str(error))


def files_in(path: Path, pattern: str) -> list[Path]:
    """The files of this name below a directory, oldest name first; or the file itself. Raises BadInput if
    there is none."""
    path = expanded(path)
    if is_file(path):
        return [path]
    found = sorted(each for each in path.rglob(pattern) if is_file(each)) if is_directory(path) else []
    if not found:
        raise BadInput(f"there are no transcripts ({pattern}) at {path}")
    return found


def time_in(value: object) -> datetime | None:
    """A time with its zone, as these programs write it; None if it is none."""
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return found if found is not None and is_time(found) else None
