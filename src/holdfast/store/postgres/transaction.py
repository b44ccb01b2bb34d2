"""A transaction on a PostgreSQL connection: takes row locks, batches statements, numbers events.

SQLite allows one writer at a time; here many write at once, on several nodes. What the shared functions read
and then decide upon must therefore not change until they have written. So in a writing transaction the
statements annotated `locks` first lock what they are about to read (nearly always a conversation's row), in a
separate statement, so that the read sees what the last holder of the lock committed. Locks end with the
transaction. Reading transactions take none: they read one snapshot.

A node's row is locked the other way round: taking a lease or attaching a session to a node holds its row
shared, heartbeats pass, and reaping waits. So no lease can appear on a node after its orphans were released.

Statements without a needed result wait for the next one that has a result, and are sent with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...domain.events import EventType
from ...domain.flushes import FlushRules
from ...domain.messages import NewMessage
from ...domain.quotas import UNLIMITED, Quotas
from ...domain.resets import ResetPolicies
from ..rows import Row, to_json
from ..transaction import NO_RESETS, Q, Transaction
from .many import is_as_assumed, merge
from .pipeline import NOTHING, Asked, Pipeline, StatementResult
from .statements import Statement, check, check_all
from .statements import statement as named

Batch = tuple[Asked, ...]
"""Statements sent together: locks, then what is asked."""
Foreseen = deque[tuple[Batch, list[StatementResult]]]
"""Batches that were sent before the function that asks for them ran, and their answers."""

MOST_LOOKS = 5

WHOLE_SECONDS = 600
"""The time limit of statements that scan whole tables."""

LARGEST_BATCH = 200

MANY = 6
_MESSAGE_COLUMNS = (
    "conversation", "seq", "session", "turn", "role", "status", "calls", "answers", "body", "inner",
    "own_calls", "extra", "now",
)  # fmt: skip
_MESSAGE_ARRAYS = (
    "conversations", "seqs", "sessions", "turns", "roles", "statuses", "calls", "answers", "bodies", "inners",
    "own_calls", "extras",
)  # fmt: skip
_INSERT_MESSAGE = named(Q.insert_message)
_INSERT_MESSAGES = named(Q.insert_messages)
_PLAN_FREELY: Asked = (named(Q.plan_freely), {})
_TAKE_TIME: Asked = (named(Q.take_time), {"seconds": f"{WHOLE_SECONDS}s"})
_INSERT_EVENTS = named(Q.insert_events)
_EVENT_LOCK = named(Q.event_lock)
_PLACE_NOTICE = named(Q.place_notice)
_FORGET_EVENTS = named(Q.forget_events)


class Unmet(Exception):
    """A concurrent transaction interfered: a statement that had to change a row changed none, or a name moved
    each time it was locked. Nothing was kept; a retry may succeed."""


class Changes:
    """State of one SQL transaction, over all jobs that share it."""

    __slots__ = (
        "assumes",
        "conversations",
        "events",
        "foreseen",
        "forgotten",
        "held",
        "locked",
        "notices",
        "own",
        "rows",
        "strict",
        "waiting",
        "wire",
    )

    def __init__(self, wire: Pipeline, *, strict: bool = False) -> None:
        self.wire = wire
        self.strict = strict
        self.assumes = False
        """True: statements that usually find nothing are assumed to, and are sent with the next ones."""
        self.foreseen: Foreseen = deque()
        """Answers for the function that runs now."""
        self.held: list[list[Asked]] = []
        """Kept back, to be merged: each item is what one function queued."""
        self.own: list[Asked] | None = None
        """What the function that runs now has queued, if that is to be merged with what others queue."""
        self.waiting: list[Asked] = []
        self.events: list[tuple[Any, ...]] = []
        self.forgotten: list[str] = []
        """Conversations whose events are deleted."""
        self.notices: list[str] = []
        """Notices written, to be numbered together with the events."""
        self.locked: set[tuple[Any, ...]] = set()
        self.conversations: set[str] = set()
        """Which of them are locked, for those found by a name."""
        self.rows = 0
        """Number of changes so far."""

    def carry_out(self, *more: Asked) -> list[StatementResult]:
        """Send the waiting statements, then these; returns the results of these. Raises Unmet if a waiting
        one had another result than assumed."""
        if self.foreseen and more:
            foreseen, found = self.foreseen[0]
            if foreseen == more:
                self.foreseen.popleft()
                return found
            self.drop_foreseen()
        if self.own is not None:
            own, self.own = self.own, []
            self.queue_held()
            self.waiting += own
        waiting, self.waiting = self.waiting, []
        answers = self.wire.exchange([*waiting, *more])
        for queued, answer in zip(waiting, answers, strict=False):
            if not is_as_assumed(queued, answer.count):
                raise Unmet
        return answers[len(waiting) :]

    def queue(self, statement: Statement, values: Mapping[str, Any]) -> None:
        """Send this with the next statement whose result is needed."""
        (self.waiting if self.own is None else self.own).append((statement, values))

    def begin_holding(self) -> None:
        """Keep back what the functions that run from now on queue, each for itself."""
        self.own = []

    def hold(self) -> None:
        """Keep back what the function that has just run queued, to be merged with what others queue."""
        assert self.own is not None
        self.held.append(self.own)
        self.own = []

    def end_holding(self) -> None:
        """Queue what was kept back, merged."""
        self.own = None
        self.queue_held()

    def queue_held(self) -> None:
        held, self.held = self.held, []
        self.waiting += merge(held)

    def drop_foreseen(self) -> None:
        """Forget answers that the function that runs now did not ask for. Raises Unmet if one of their
        statements has changed rows."""
        if any(asked.changes for batch, _ in self.foreseen for asked, _ in batch):
            raise Unmet
        self.foreseen.clear()

    def verify(self) -> None:
        """Send what is waiting if something was assumed of it. Raises Unmet if that was wrong: then even a
        function that has refused, and changed nothing, may have decided by it."""
        if any(queued.must_change or queued.usually_empty for queued, _ in self.waiting):
            self.carry_out()

    def ending(self) -> list[Asked]:
        """Statements to send right before the COMMIT: last of all notices and events, under their lock."""
        left, self.waiting = self.waiting, []
        if self.events or self.notices or self.forgotten:
            left.append((_EVENT_LOCK, {}))
        # Under the lock: writers that added events of a conversation before its deletion have committed by
        # now.
        left += [(_FORGET_EVENTS, {"conversation": each}) for each in self.forgotten]
        self.forgotten = []
        for notice_id in self.notices:  # one by one: an UPDATE of several numbers them in any order
            left.append((_PLACE_NOTICE, {"id": notice_id}))
        self.notices = []
        if self.events:
            columns = list(zip(*self.events, strict=True))
            names = ("ats", "types", "owners", "conversations", "sessions", "turns", "texts")
            left.append((_INSERT_EVENTS, dict(zip(names, columns, strict=True))))
            self.events = []
        return left

    def forget_events(self, conversation: str) -> None:
        """Delete a conversation's events: unsent ones now, the rest at the end."""
        self.rows += 1
        self.forgotten.append(conversation)
        self.events = [event for event in self.events if event[3] != conversation]

    def store_messages(self, rows: Sequence[tuple[Any, ...]], now: int) -> None:
        """Insert messages; `rows` are results of `message_row`."""
        self.rows += 1
        if len(rows) < MANY:
            for row in rows:
                self.queue(_INSERT_MESSAGE, dict(zip(_MESSAGE_COLUMNS, (*row, now), strict=True)))
            return
        columns = dict(zip(_MESSAGE_ARRAYS, zip(*rows, strict=True), strict=True))
        self.queue(_INSERT_MESSAGES, {**columns, "now": now})


def message_row(
    message: NewMessage, conversation: str, seq: int, session: str, turn: str | None
) -> tuple[Any, ...]:
    """A message as parameters of `insert_messages`. Raises BadInput if it cannot be stored."""
    if message.answers is not None or message.extra is not None:
        check((message.answers, message.extra))
    return (
        conversation,
        seq,
        session,
        turn,
        message.role,
        message.status.value,
        to_json(message.calls) if message.calls else None,
        message.answers,
        message.body,
        message.inner,
        to_json(message.own_calls) if message.own_calls else None,
        message.extra,
    )


class PostgresTransaction(Transaction):
    __slots__ = ("_changes", "_writes")

    def __init__(
        self,
        changes: Changes,
        now: int,
        policies: ResetPolicies = NO_RESETS,
        told: list[str] | None = None,
        flushing: FlushRules | None = None,
        quotas: Quotas = UNLIMITED,
        *,
        writes: bool = False,
    ) -> None:
        super().__init__(now, policies, told, flushing, quotas)
        self._changes = changes
        self._writes = writes

    def one(self, statement: str, **values: Any) -> Row | None:
        rows = self._ask(statement, values).rows()
        return rows[0] if rows else None

    def all(self, statement: str, **values: Any) -> list[Row]:
        rows: list[Any] = self._ask(statement, values).rows()
        return rows

    def run(self, statement: str, **values: Any) -> int:
        changes, wanted = self._changes, named(statement)
        if not wanted.needs_count or (wanted.must_change and not changes.strict):
            check_all(values)
            for key, lock in self._locks(wanted, values):
                changes.waiting.append(lock)  # before what is kept back
                changes.locked.add(key)
            if statement == Q.insert_notice:
                changes.notices.append(values["id"])
            # If it must change a row, its guard was read, and locked, here. If it changes none after all, the
            # transaction is rolled back and retried, checking each row count.
            changes.queue(wanted, values)
            changes.rows += 1
            return 1
        if statement == Q.forget_events:
            changes.forget_events(values["conversation"])
            return 1
        return self._ask(statement, values).count

    def _ask(self, name: str, values: Mapping[str, Any]) -> StatementResult:
        check_all(values)
        known = named(name)
        wanted = (known, values)
        changes = self._changes
        if known.usually_empty and changes.assumes:
            changes.queue(*wanted)
            return NOTHING
        if known.is_planned_freely:
            changes.queue(*_PLAN_FREELY)
        if known.is_long:
            changes.queue(*_TAKE_TIME)
        if not self._writes or not known.locks:
            if known.is_long:
                with changes.wire.answering_within(WHOLE_SECONDS):
                    (answer,) = changes.carry_out(wanted)
            else:
                (answer,) = changes.carry_out(wanted)
        else:
            answer = self._ask_locked(known, wanted, values)
        if known.changes and answer.count:
            changes.rows += 1
        return answer

    def _ask_locked(self, known: Statement, wanted: Asked, values: Mapping[str, Any]) -> StatementResult:
        """Lock, then read; repeated while the read finds what the lock did not. Each statement sees what is
        committed when it begins, so a row may appear, or a name move, between the two."""
        changes, column = self._changes, known.conversation
        for _ in range(MOST_LOOKS):
            locks = self._locks(known, values)
            *taken, answer = changes.carry_out(*(lock for _, lock in locks), wanted)
            # A row that does not exist yet was not locked.
            found = [key for (key, _), lock in zip(locks, taken, strict=True) if lock.count]
            changes.locked.update(found)
            if known.changes or not answer.count:
                return answer
            if column is not None:
                changes.conversations.update(row[0] for lock in taken for row in lock.rows())
                if all(row[column] in changes.conversations for row in answer.rows()):
                    return answer
                changes.locked.difference_update(self._keys(known, values))
            elif all(key in changes.locked or not lock.needs_count for key, (lock, _) in locks):
                return answer
        raise Unmet

    def _locks(self, known: Statement, values: Mapping[str, Any]) -> list[tuple[tuple[Any, ...], Asked]]:
        """Locks that this statement needs and that are not held yet."""
        needed: list[tuple[tuple[Any, ...], Asked]] = []
        for lock, sources in known.locks:
            said = {parameter: values[source] for parameter, source in sources}
            key = (lock, *said.values())
            if key not in self._changes.locked:
                needed.append((key, (named(lock), said)))
        return needed

    def _keys(self, known: Statement, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """The locks of a statement, as keys of `Changes.locked`."""
        return [(lock, *(values[source] for _, source in given)) for lock, given in known.locks]

    def run_many(self, statement: str, rows: Iterable[Mapping[str, Any]]) -> None:
        wanted = named(statement)
        for values in rows:
            if len(self._changes.waiting) >= LARGEST_BATCH:
                self._changes.carry_out()
            check_all(values)
            self._changes.queue(wanted, values)
            self._changes.rows += 1

    def joined_bodies(self, conversation: str, first: int, last: int, most: int) -> bytes | None:
        row = self.one(Q.bodies, conversation=conversation, first=first, last=last, most=most)
        assert row is not None
        size, joined = row
        return None if size > most else joined or b""

    def event(
        self,
        type_: EventType,
        owner: str | None = None,
        conversation: str | None = None,
        session: str | None = None,
        turn: str | None = None,
        **data: Any,
    ) -> None:
        self._changes.events.append(
            (self.now, type_.value, owner, conversation, session, turn, to_json(data))
        )
        self._changes.rows += 1

    def insert_messages(
        self, messages: Sequence[NewMessage], conversation: str, last_seq: int, session: str, turn: str | None
    ) -> None:
        if not messages:
            return
        first = last_seq - len(messages) + 1
        self._changes.store_messages(
            [
                message_row(message, conversation, first + place, session, turn)
                for place, message in enumerate(messages)
            ],
            self.now,
        )
