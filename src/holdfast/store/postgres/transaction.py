"""A transaction on a PostgreSQL connection: takes row locks, batches statements, numbers events.

SQLite allows one writer at a time; here many write at once, on several nodes. What the shared functions read
and then decide upon must therefore not change until they have written. So in a writing transaction the
statements of `LOCKS` first lock what they are about to read (nearly always a conversation's row), in a
separate statement, so that the read sees what the last holder of the lock committed. Locks end with the
transaction. Reading transactions take none: they read one snapshot.

A node's row is locked the other way round: taking a lease or attaching a session to a node holds its row
shared, heartbeats pass, and reaping waits. So no lease can appear on a node after its orphans were released.

Statements without a needed result wait for the next one that has a result, and are sent with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...domain.events import EventType
from ...domain.flushes import FlushRules
from ...domain.messages import NewMessage
from ...domain.quotas import UNLIMITED, Quotas
from ...domain.resets import ResetPolicies
from ..maintenance import INVARIANTS
from ..rows import Row, to_json
from ..transaction import NO_RESETS, Q, Transaction
from .pipeline import Asked, Pipeline, StatementResult, asked
from .statements import statement as named

# By statement: the lock taken before it, and which of its parameters the lock uses. A lock is taken once per
# transaction.
LOCKS: Mapping[str, tuple[tuple[str, Mapping[str, str]], ...]] = {
    **{
        name: ((Q.lock_conversation, {"id": "id"}),)
        for name in (
            Q.place_by_conversation,
            Q.conversation_by_id,
            Q.holder_is_gone,
            Q.still_held_by,
            Q.is_old_conversation,
            Q.free_stray_lease,
            Q.add_messages,
        )
    },
    **{
        name: ((Q.lock_conversation, {"id": "conversation"}),)
        for name in (Q.insert_draft, Q.holds_lease, Q.undelivered_of_conversation)
    },
    **{
        name: ((Q.lock_by_session, {"id": "id"}),)
        for name in (Q.place_by_session, Q.session_by_id, Q.still_attached_to, Q.is_attached_to_the_gone)
    },
    Q.place_by_turn: ((Q.lock_by_turn, {"id": "id"}),),
    Q.turn_by_id: ((Q.lock_by_turn, {"id": "id"}),),
    Q.place_by_response: ((Q.lock_by_response, {"id": "id"}),),
    Q.place_by_key: ((Q.lock_by_key, {"owner": "owner", "key": "key"}),),
    Q.places_by_key_anywhere: ((Q.lock_by_key_anywhere, {"key": "key"}),),
    Q.place_by_alias: ((Q.lock_by_alias, {"owner": "owner", "id": "id"}),),
    Q.conversation_by_alias: ((Q.lock_by_alias, {"owner": "owner", "id": "id"}),),
    Q.places_by_alias_anywhere: ((Q.lock_by_alias_anywhere, {"id": "id"}),),
    Q.turn_by_request: ((Q.lock_by_request, {"owner": "owner", "route": "route", "key": "key"}),),
    Q.process_by_id: ((Q.lock_by_process, {"id": "id"}), (Q.lock_process, {"id": "id"})),
    Q.node_is_present: ((Q.share_node, {"id": "id"}),),
    Q.take_lease: ((Q.share_node, {"id": "node"}),),
    Q.claim_process: ((Q.share_node, {"id": "node"}),),
    **{name: ((Q.lock_node, {"id": "id"}),) for name in (Q.reap_node, Q.leave_node, Q.settle_node)},
    Q.claim_compaction: ((Q.share_node, {"id": "node"}),),
    Q.flush_by_session: ((Q.lock_flush, {"session": "session"}),),
    Q.is_claimed: ((Q.lock_flush, {"session": "session"}),),
    Q.import_mark: ((Q.lock_import, {"owner": "owner", "origin": "origin", "name": "name"}),),
    Q.unindex_message: ((Q.lock_unindexed, {"no": "no"}),),
    Q.unindex_conversation: ((Q.lock_unindexed_of, {"conversation": "conversation"}),),
}

# These find a conversation by a name that can move to another one, or appear, between the lock and the read.
# Value: the column with its id. The row found must be the row locked, else both steps are repeated.
CONVERSATION_IN: Mapping[str, int] = {
    Q.place_by_key: 1,
    Q.places_by_key_anywhere: 1,
    Q.place_by_alias: 1,
    Q.places_by_alias_anywhere: 1,
    Q.conversation_by_alias: 0,
    Q.turn_by_request: 1,
}

# A process outlives its conversation: then there is nothing to lock, and no concurrent decision about it.
MAY_LOCK_NOTHING = frozenset({Q.lock_by_process})

MOST_LOOKS = 5

# The row count of these is not needed: they wait for the next statement that has a result.
UNASKED = frozenset(
    {
        Q.insert_conversation,
        Q.insert_alias,
        Q.insert_session,
        Q.insert_turn,
        Q.insert_request,
        Q.replace_request,
        Q.renew_request,
        Q.insert_response,
        Q.insert_notice,
        Q.give_notice,
        Q.touch_session,
        Q.touch_revision,
        Q.date_session,
        Q.defer_session,
        Q.detach_session,
        Q.set_tip,
        Q.settle_turn,
        Q.take_up_turn,
        Q.tell_notices,
        Q.exclude_steps,
        Q.sample_process,
        Q.free_bytes,
    }
)

# Normally not for these either: their guard was read, and locked, in this transaction. If one changes no row
# after all, the transaction is rolled back and retried, checking each row count.
EXPECTED = frozenset({Q.take_lease})

# Full-table statements: they get a longer timeout.
WHOLE = frozenset(
    {
        *INVARIANTS,
        Q.messages_unknown_to_search,
        Q.empty_index,
        Q.index_anew,
        Q.unindexed_total,
        Q.session_totals,
        Q.session_end_reasons,
        Q.session_sources,
        Q.message_total,
        Q.conversation_total,
        Q.usage,
    }
)

WHOLE_SECONDS = 600

LARGEST_BATCH = 200

MANY = 6
_MESSAGE_COLUMNS = (
    "conversation", "seq", "session", "turn", "role", "status", "calls", "answers", "body", "inner",
    "own_calls",
)  # fmt: skip
_MESSAGE_ARRAYS = (
    "conversations", "seqs", "sessions", "turns", "roles", "statuses", "calls", "answers", "bodies", "inners",
    "own_calls",
)  # fmt: skip
_INSERT_MESSAGE = named(Q.insert_message)
_INSERT_MESSAGES = named(Q.insert_messages)
_PLAN_FREELY = asked(named(Q.plan_freely), {})
_TAKE_TIME = asked(named(Q.take_time), {"seconds": f"{WHOLE_SECONDS}s"})
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
        "conversations",
        "events",
        "expected",
        "forgotten",
        "locked",
        "notices",
        "rows",
        "strict",
        "waiting",
        "wire",
    )

    def __init__(self, wire: Pipeline, *, strict: bool = False) -> None:
        self.wire = wire
        self.strict = strict
        self.expected: list[int] = []
        """Which of the waiting statements must change a row."""
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
        """Send the waiting statements, then these; returns the results of these."""
        batch, self.waiting = [*self.waiting, *more], []
        expected, self.expected = self.expected, []
        answers = self.wire.exchange(batch)
        if any(not answers[place].count for place in expected):
            raise Unmet
        return answers[len(batch) - len(more) :]

    def ending(self) -> list[Asked]:
        """Statements to send right before the COMMIT: last of all notices and events, under their lock."""
        if self.expected:
            self.carry_out()
        left, self.waiting = self.waiting, []
        if self.events or self.notices or self.forgotten:
            left.append(asked(_EVENT_LOCK, {}))
        # Under the lock: writers that added events of a conversation before its deletion have committed by
        # now.
        left += [asked(_FORGET_EVENTS, {"conversation": each}) for each in self.forgotten]
        self.forgotten = []
        for notice_id in self.notices:  # one by one: an UPDATE of several numbers them in any order
            left.append(asked(_PLACE_NOTICE, {"id": notice_id}))
        self.notices = []
        if self.events:
            columns = list(zip(*self.events, strict=True))
            names = ("ats", "types", "owners", "conversations", "sessions", "turns", "texts")
            left.append(asked(_INSERT_EVENTS, dict(zip(names, columns, strict=True))))
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
                values = dict(zip(_MESSAGE_COLUMNS, row, strict=True))
                self.waiting.append(asked(_INSERT_MESSAGE, {**values, "now": now}))
            return
        columns = dict(zip(_MESSAGE_ARRAYS, zip(*rows, strict=True), strict=True))
        self.waiting.append(asked(_INSERT_MESSAGES, {**columns, "now": now}))


def message_row(
    message: NewMessage, conversation: str, seq: int, session: str, turn: str | None
) -> tuple[Any, ...]:
    """A message as parameters of `insert_messages`."""
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
        changes = self._changes
        if statement in UNASKED or (statement in EXPECTED and not changes.strict):
            for key, lock in self._locks(statement, values):
                changes.waiting.append(lock)
                changes.locked.add(key)
            if statement in EXPECTED:
                changes.expected.append(len(changes.waiting))
            if statement == Q.insert_notice:
                changes.notices.append(values["id"])
            changes.waiting.append(asked(named(statement), values))
            changes.rows += 1
            return 1
        if statement == Q.forget_events:
            changes.forget_events(values["conversation"])
            return 1
        return self._ask(statement, values).count

    def _ask(self, name: str, values: Mapping[str, Any]) -> StatementResult:
        wanted = asked(named(name), values)
        changes = self._changes
        if name in WHOLE:
            changes.waiting += [_PLAN_FREELY, _TAKE_TIME]
        elif name == Q.indexed_messages:  # its index serves only this query
            changes.waiting.append(_PLAN_FREELY)
        if not self._writes or name not in LOCKS:
            with changes.wire.answering_within(WHOLE_SECONDS if name in WHOLE else None):
                (answer,) = changes.carry_out(wanted)
        else:
            answer = self._ask_locked(name, wanted, values)
        if wanted[0].changes and answer.count:
            changes.rows += 1
        return answer

    def _ask_locked(self, name: str, wanted: Asked, values: Mapping[str, Any]) -> StatementResult:
        """Lock, then read; repeated while the read finds what the lock did not. Each statement sees what is
        committed when it begins, so a row may appear, or a name move, between the two."""
        changes, column = self._changes, CONVERSATION_IN.get(name)
        for _ in range(MOST_LOOKS):
            locks = self._locks(name, values)
            *taken, answer = changes.carry_out(*(lock for _, lock in locks), wanted)
            # A row that does not exist yet was not locked.
            found = [key for (key, _), lock in zip(locks, taken, strict=True) if lock.count]
            changes.locked.update(found)
            if wanted[0].changes or not answer.count:
                return answer
            if column is not None:
                changes.conversations.update(row[0] for lock in taken for row in lock.rows())
                if all(row[column] in changes.conversations for row in answer.rows()):
                    return answer
                changes.locked.difference_update(self._keys(name, values))
            elif all(key in changes.locked or key[0] in MAY_LOCK_NOTHING for key, _ in locks):
                return answer
        raise Unmet

    def _locks(self, name: str, values: Mapping[str, Any]) -> list[tuple[tuple[Any, ...], Asked]]:
        """Locks that this statement needs and that are not held yet."""
        needed = []
        for lock, sources in LOCKS.get(name, ()):
            said = {parameter: values[source] for parameter, source in sources.items()}
            key = (lock, *said.values())
            if key not in self._changes.locked:
                needed.append((key, asked(named(lock), said)))
        return needed

    def _keys(self, name: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """The locks of a statement, as keys of `Changes.locked`."""
        return [(lock, *(values[source] for source in given.values())) for lock, given in LOCKS[name]]

    def run_many(self, statement: str, rows: Iterable[Mapping[str, Any]]) -> None:
        wanted = named(statement)
        for values in rows:
            if len(self._changes.waiting) >= LARGEST_BATCH:
                self._changes.carry_out()
            self._changes.waiting.append(asked(wanted, values))
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
