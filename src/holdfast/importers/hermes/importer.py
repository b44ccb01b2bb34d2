"""Imports a Hermes home into a store: conversations in parts, then session keys and memories."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Raw

from ...domain.conversations import Address
from ...domain.ids import cut_name, new_id
from ...domain.memories import MemoryOrigin
from ...domain.records import (
    ConversationRecord,
    ExclusionRecord,
    Hanging,
    Imported,
    ImportMark,
    MemoryRecord,
    Part,
    ReadVersion,
    SessionRecord,
)
from ...domain.sessions import IMPORTED_PREFIX, Edge
from ...domain.views import View
from ...errors import BadInput, Conflict, NotFound
from ...store.store import Store
from ..writing import PartWriter, StepProgress, Taken, Writing, no_step_progress, origin_of
from .context_range import ContextRange, survey, undone_before
from .home import memories_of
from .lineage import HermesLineage, SessionLine
from .reading import HermesSession, messages_of
from .snapshot import HomeSnapshot

ORIGIN = "hermes"


LONGEST = 15_000


async def remember(store: Store, owner: str, conversation_id: str, file: str, entries: Sequence[str]) -> int:
    """Store the entries of a file as memories of this conversation; returns how many memories.

    Raises Conflict if a turn is running in the conversation, NotFound if it was deleted.
    """
    pieces = pieces_of(entries)
    name, print_ = f"memories/{file} for {conversation_id}", zlib.crc32("\n".join(pieces).encode())
    known = (await store.imported(owner, ORIGIN, [name])).get(name)
    if known is not None and known.last_row == print_:
        return 0
    record, _ = await store.record(owner, conversation_id)
    tip = (await store.resolve(owner, Address(id=conversation_id))).tip
    made_by, now = MemoryOrigin.PERSON.value, store.now()
    memories = tuple(MemoryRecord(new_id("mem"), None, made_by, piece, now) for piece in pieces)
    version = ReadVersion(record.last_seq, tip.id)
    await store.import_part(Part(ORIGIN, record, memories, (ImportMark(name, tip.id, print_),), version))
    return len(memories)


def pieces_of(entries: Sequence[str]) -> list[str]:
    """Entries joined into as few texts as the size limit allows."""
    pieces: list[str] = []
    for entry in entries:
        for start in range(0, len(entry), LONGEST):
            piece = entry[start : start + LONGEST]
            if pieces and len(pieces[-1]) + len(piece) < LONGEST:
                pieces[-1] = f"{pieces[-1]}\n{piece}"
            else:
                pieces.append(piece)
    return pieces


UNCLOSED = f"{IMPORTED_PREFIX}unclosed"
UNDONE = f"{IMPORTED_PREFIX}undone"
SHOWN = 5


@dataclass
class HermesTaken(Taken):
    """Counts of what an import of a home wrote, and what it skipped."""

    unclosed: int = 0
    undone: int = 0
    keys: int = 0
    memories: int = 0

    @property
    def anything(self) -> bool:
        return bool(self.conversations or self.grown or self.keys or self.memories)


class Importer:
    """Imports one snapshot of a home into a store, for one owner."""

    def __init__(
        self,
        store: Store,
        owner: str,
        seen: HomeSnapshot,
        progress: StepProgress = no_step_progress,
    ) -> None:
        self._store = store
        self._owner = owner
        self._home = seen.home
        self._copy = seen.copy
        self._lineage = seen.lineage
        self._routes = seen.routes
        self._progress = progress
        self._ours: dict[str, str] = {}
        """Session ids in the store, by Hermes session id."""
        self._conversations: dict[str, str] = {}
        self._done = 0
        self._whole = sum(session.said for line in seen.lineage.lines for session in line.sessions)
        self.taken = HermesTaken(problems=[*seen.routes.skipped, *_oddities(seen.lineage)])
        self._parts = PartWriter(store, owner, self.taken)

    async def run(self) -> HermesTaken:
        memories = memories_of(self._home)
        for line in self._lineage.lines:
            await self._take(line)
        await self._parts.flush()
        await self._give_keys()
        await self._remember(memories)
        return self.taken

    # --- conversations -----------------------------------------------------------------------------

    async def _take(self, line: SessionLine) -> None:
        names = [session.id for session in line.sessions]
        known = await self._store.imported(self._owner, ORIGIN, names)
        for name, before in known.items():
            self._ours[name] = before.session_id
            self._conversations[name] = before.conversation_id
        self._progress("importing", self._done, self._whole)
        self._done += sum(session.said for session in line.sessions)
        if not known:
            writing = Writing(ORIGIN, self._new(line), None, 1)
            await self._write_all(writing, line, line.sessions, {})
            return
        latest = max(
            (known[name] for name in reversed(names) if name in known), key=lambda each: each.last_seq
        )
        if latest.version is None:
            self.taken.deleted += names
            return
        taken_back = await self._taken_back(line.sessions, known, latest.conversation_id)
        fresh = [each for each in line.sessions if self._is_new(each, known.get(each.id))]
        if not fresh and not taken_back:
            self.taken.unchanged += 1
            return
        early = [each.id for each in fresh if each.id in known and each.id != latest.name]
        if early or latest.held or latest.gone_on or latest.version.tip_id != latest.session_id:
            self.taken.gone_on += early or [each.id for each in fresh] or names[-1:]
            return
        record, _ = await self._store.record(self._owner, latest.conversation_id)
        tip = await self._store.session(self._owner, latest.session_id)
        writing = Writing(ORIGIN, record, latest.version, tip.ordinal + 1)
        writing.records += taken_back
        writing.before, writing.view, writing.began_at = tip.id, tip.view, tip.first_seq
        await self._write_all(writing, line, fresh, known)

    def _is_new(self, session: HermesSession, known: Imported | None) -> bool:
        return known is None or not known.whole or session.last_row > known.last_row

    def _new(self, line: SessionLine) -> ConversationRecord:
        first = line.sessions[0]
        titles = [session.title for session in reversed(line.sessions) if session.title]
        parent = self._ours.get(line.parent) if line.parent else None
        return ConversationRecord(
            id=new_id("conv"),
            owner=self._owner,
            key=None,
            title=titles[0] if titles else None,
            source=first.source,
            created_at=first.started_at,
            last_seq=-1,  # not known yet, and not read: there is no history to match
            forked_from=parent,
        )

    async def _write_all(
        self,
        writing: Writing,
        line: SessionLine,
        sessions: Sequence[HermesSession],
        known: Mapping[str, Imported],
    ) -> None:
        """Write sessions of a line after the existing ones, in as many parts as needed."""
        try:
            for session in sessions:
                before = known.get(session.id)
                seen = before.last_row if before else 0
                if before is not None and not before.whole:
                    here = before.session_id
                else:
                    found = survey(self._copy, session.id, seen, writing.next_seq, writing.covers)
                    self.taken.undone += found.undone
                    if before is not None and not found.count:  # added and undone since the last import
                        writing.marks.append(ImportMark(session.id, before.session_id, session.last_row))
                        continue
                    here = await self._open(writing, session, before, found, line)
                await self._write_messages(writing, session, here, seen)
            await self._parts.enqueue(writing)
        except (Conflict, BadInput) as error:
            self.taken.problems.append(f"{line.tip.id}: {error}")

    async def _open(
        self,
        writing: Writing,
        session: HermesSession,
        before: Imported | None,
        found: ContextRange,
        line: SessionLine,
    ) -> str:
        """Add a session after the others of its conversation; returns its id."""
        edge, parent = self._edge(writing, before, found, line)
        view = View(found.parts)
        if before is not None and found.shown_before and writing.view is not None:
            view = writing.view  # its earlier context still applies
        opened_at = (found.first_said_at or session.active_at) if before else session.started_at
        ended_at = session.ended_at or max(session.active_at, opened_at)
        reason = UNCLOSED if session.never_ended else f"{IMPORTED_PREFIX}{session.end_reason or 'ended'}"
        here = new_id("sess")
        record = SessionRecord(
            id=here,
            ordinal=writing.ordinal,
            edge=edge,
            parent_id=parent,
            source=session.source,
            opened_at=opened_at,
            last_activity_at=session.active_at,
            ended_at=ended_at,
            end_reason=cut_name(reason),
            model=session.model,
            input_tokens=0 if before else session.input_tokens,
            output_tokens=0 if before else session.output_tokens,
            first_seq=writing.next_seq,
            view=Raw(view.encode().encode()),
            fresh_since=writing.conversation.created_at,
        )
        writing.records.append(record)
        writing.ordinal += 1
        writing.before, writing.view, writing.began_at = here, view, writing.next_seq
        self._ours[session.id] = here
        self._conversations[session.id] = writing.conversation.id
        if before is None:
            await self._parts.name(writing, session.id, session.started_at, here)
        self.taken.unclosed += session.never_ended
        if edge:
            self.taken.edges[edge] += 1
        return here

    def _edge(
        self, writing: Writing, before: Imported | None, found: ContextRange, line: SessionLine
    ) -> tuple[str | None, str | None]:
        if before is not None:
            compacted = found.kept_before and not found.shown_before
            return (Edge.COMPACTION if compacted else Edge.RESUME).value, writing.before
        if writing.before is not None:
            return Edge.COMPACTION.value, writing.before
        parent = self._ours.get(line.parent) if line.parent else None
        return (line.edge.value, parent) if line.edge and parent else (None, None)

    async def _write_messages(self, writing: Writing, session: HermesSession, here: str, seen: int) -> None:
        said_at, row = session.started_at, seen
        for message in messages_of(self._copy, session.id, seen):
            said_at, row = message.said_at or said_at, message.row
            writing.add(message, session.id, here, said_at)
            self.taken.mended += message.mended
            if writing.is_large:
                writing.marks.append(ImportMark(session.id, here, row, whole=False))
                await self._parts.split(writing)
        writing.marks.append(ImportMark(session.id, here, max(row, session.last_row)))

    async def _taken_back(
        self, sessions: Sequence[HermesSession], known: Mapping[str, Imported], conversation_id: str
    ) -> list[Hanging]:
        """Exclude imported messages that were undone in Hermes since: they leave the context."""
        rows = {
            origin_of(ORIGIN, session.id, row): session.active_at
            for session in sessions
            if session.undone and (before := known.get(session.id)) is not None
            for row in undone_before(self._copy, session.id, before.last_row)
        }
        if not rows:
            return []
        found = await self._store.messages_from(conversation_id, rows.keys())
        return [ExclusionRecord(seq, UNDONE, rows[origin]) for origin, seq in sorted(found.items())]

    # --- keys and memories -------------------------------------------------------------------------

    async def _give_keys(self) -> None:
        """Make each chat's key lead to the conversation of its session."""
        for key, route in self._routes.by_key.items():
            conversation_id = self._conversations.get(route.session_id)
            if conversation_id is None:
                if route.session_id not in self.taken.gone_on:
                    self.taken.problems.append(
                        f"the key {key} leads to session {route.session_id}, which is not in the database"
                    )
                continue
            try:
                await self._give_key(key, conversation_id)
            except (Conflict, BadInput, NotFound) as error:
                self.taken.problems.append(f"the key {key} was not imported: {error}")

    async def _give_key(self, key: str, conversation_id: str) -> None:
        try:
            holding = await self._store.resolve(self._owner, Address(key=key, create=False))
        except NotFound:
            holding = None
        if holding is not None and holding.conversation.id == conversation_id:
            return
        instead_of = None
        if holding is not None and not await self._spoken_here(holding.conversation.id):
            instead_of = holding.conversation.id  # Hermes has since routed the key elsewhere
        await self._store.set_key(self._owner, conversation_id, key, instead_of=instead_of)
        self.taken.keys += 1

    async def _spoken_here(self, conversation_id: str) -> bool:
        line = await self._store.line(self._owner, conversation_id)
        return not (line[-1].end_reason or "").startswith(IMPORTED_PREFIX)

    async def _remember(self, memories: Mapping[str, Sequence[str]]) -> None:
        """Store the home's memories with each conversation that has a key; if none, the last active."""
        wanted = {self._conversations.get(route.session_id) for route in self._routes.by_key.values()}
        if not wanted and self._lineage.lines:
            newest = max(self._lineage.lines, key=lambda line: line.tip.active_at)
            wanted = {self._conversations.get(newest.tip.id)}
        for conversation_id in sorted(each for each in wanted if each):
            for file, entries in memories.items():
                try:
                    self.taken.memories += await remember(
                        self._store, self._owner, conversation_id, file, entries
                    )
                except (Conflict, NotFound) as error:
                    self.taken.problems.append(f"{file}: no memory of {conversation_id} was stored: {error}")


def _oddities(lineage: HermesLineage) -> Iterator[str]:
    """Describe unusual relations between sessions, and how each was resolved."""
    for ids, what in (
        (lineage.cycles, "among its own ancestors; a conversation begins with it"),
        (lineage.dangling, "without its parent, which is not there; a conversation of its own"),
        (lineage.several, "continued by several sessions; one is the continuation, the others are forks"),
    ):
        if ids:
            named = ", ".join([*ids[:SHOWN], *(["…"] if len(ids) > SHOWN else [])])
            yield f"{len(ids):,} {'session' if len(ids) == 1 else 'sessions, each'} {what}: {named}"
