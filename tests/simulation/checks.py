"""Checks after every commit, at every moment, and at the end; and the model they compare with.

The ledger records what clients were sent. The watcher reads the database after every commit, independently of
holdfast and its agents, and tracks: lease holders, dead nodes, the content of each context, the last message
time. If the two disagree, or an invariant of the store is broken, the run ends with a violation.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from holdfast.domain.contexts import is_unknown
from holdfast.domain.conversations import Address
from holdfast.domain.events import EventType
from holdfast.domain.processes import LONGEST_PIN_OF_AN_AGENT
from holdfast.store import maintenance, resolve
from holdfast.store.queries import load
from holdfast.store.rows import to_stamp, to_time
from holdfast.store.sqlite.connections import connect
from holdfast.store.sqlite.transaction import SQLiteTransaction

if TYPE_CHECKING:
    from .nodes import Program
    from .world import World


_UNSETTLED = "SELECT id FROM nodes WHERE settled_at IS NULL AND coalesce(left_at, reaped_at) IS NOT NULL"
_RUNNING = "SELECT max(pinned_until), count(*) FROM processes WHERE conversation = ? AND ended_at IS NULL"


_BY_DEATH = ("its node is gone", "its node left")
_BY_SERVER = (*_BY_DEATH, "no task was running it", "its caller was cancelled")
"""Why a turn has ended though neither a person nor a client has seen it end: that is no activity."""


@cache
def _invariants() -> dict[str, frozenset[str]]:
    """The tables that each invariant of the doctor reads."""
    statements = load("holdfast.store.sqlite")
    return {
        name: frozenset(re.findall(r"(?:FROM|JOIN)\s+(\w+)", statements[name]))
        for name in maintenance.INVARIANTS
    }


class Violation(AssertionError):
    """A promise was broken."""


class Ledger:
    """What clients have said and what they were told: whatever is here must be on disk, once, for ever."""

    def __init__(self) -> None:
        self._asked = 0
        self.begun: dict[str, str] = {}
        """Acknowledged messages, by their tag: the conversation."""
        self.replies: dict[str, str] = {}
        """Answers that clients have, by their text: the conversation."""
        self.answers: dict[str, str] = {}
        """The answer to each message."""
        self.ids: dict[str, str] = {}
        """Every id and key that was ever told: the conversation it must lead to."""
        self.queued: dict[str, str] = {}
        """Turns that were accepted into a queue, by id: the tag of their message."""
        self.effects: set[str] = set()
        """The idempotency keys of tool calls that were run."""

    def ask(self) -> str:
        self._asked += 1
        return f"u{self._asked}"

    def acknowledged(self, tag: str, conversation_id: str) -> None:
        known = self.begun.setdefault(tag, conversation_id)
        if known != conversation_id:
            raise Violation(f"{tag} was acknowledged in two conversations")

    def answered(self, tag: str, conversation_id: str, text: str) -> None:
        self.acknowledged(tag, conversation_id)
        if self.answers.setdefault(tag, text) != text:
            raise Violation(f"{tag} was answered twice: {self.answers[tag]!r} and {text!r}")
        self.replies[text] = conversation_id

    def told_id(self, name: str, conversation_id: str) -> None:
        if self.ids.setdefault(name, conversation_id) != conversation_id:
            raise Violation(f"{name} was told for two conversations")


@dataclass
class Talk:
    """A conversation as it should be."""

    tip: str
    active_at: datetime
    """When somebody last spoke, or was answered."""
    since: datetime
    """When its context began."""
    running: str | None = None
    waiting: str | None = None
    """The turn that waits in it to be taken up."""
    reset_on: date | None = None
    latest: datetime = field(init=False)
    """The latest `active_at`: above it if the clock was set back, and then a session that was active before
    may be resumed."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "active_at":
            self.latest = max(getattr(self, "latest", self.active_at), self.active_at)


@dataclass
class Context:
    """What a session shows, as it should be."""

    said: list[str] = field(default_factory=list)
    """The tags of what was said since it last began afresh, in order."""
    summarised: bool = False


@dataclass
class Answering:
    """A turn as it should be."""

    conversation: str
    node: str
    running: bool = True
    completed: bool = False
    tags: list[str] = field(default_factory=list)
    """The tags of its messages of the user, in order."""
    unseen: list[str] = field(default_factory=list)
    """Those of them that this commit has stored."""
    covered: bool = False
    """Is it taken up by itself when its server dies?"""
    state: str = "running"
    """Otherwise `queued`, `waiting`, or how it has ended. It goes on then only if a client asks again."""
    deaths: int = 0
    """Attempts that have ended by a death since its last stored step."""
    progressed: bool = False
    """Was a tool's result stored in this attempt?"""

    @property
    def tag(self) -> str:
        return self.tags[-1] if self.tags else ""


class Watcher:
    def __init__(self, world: World, database: Path) -> None:
        self._world = world
        self._connection = connect(database, reader=True)
        self._last_event = 0
        self._last_message = 0
        self.commits = 0
        self.talks: dict[str, Talk] = {}
        self.contexts: dict[str, Context] = {}
        self.resumed: set[str] = set()
        """Sessions that somebody has gone on from on purpose."""
        self._left_at: dict[str, datetime] = {}
        """When somebody last spoke in a session, of those that are no longer the newest."""
        self.turns: dict[str, Answering] = {}
        self.gone: set[str] = set()
        self.owners: dict[str, Program] = {}
        """Whose node it is."""
        self.lives: dict[str, int] = {}
        """Which life of that program: its pid."""
        self.beats: dict[str, tuple[int, float, float]] = {}
        """Of nodes that are present: the beat, and since when it stands still, in observed and in watched
        time."""
        self.died_at: dict[str, float] = {}
        """Of nodes whose program is dead: since when, in watched time."""
        self._since: dict[tuple[str, str], float] = {}
        self._said: Counter[str] = Counter()
        self._replied: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        """What has happened, by the type of event; a run in which nothing does proves nothing."""
        self.flushed: set[str] = set()
        self.flush_calls: Counter[str] = Counter()
        self._flush_failures: Counter[str] = Counter()
        self.log = hashlib.blake2b(digest_size=16)

    def close(self) -> None:
        self._connection.close()

    def _tx(self) -> SQLiteTransaction:
        return SQLiteTransaction(self._connection, to_stamp(self._world.clock.wall()))

    def _rows(self, sql: str, *values: Any) -> list[Any]:
        return list(self._connection.execute(sql, values))

    # --- after every commit ---------------------------------------------------------------------------

    def committed(self, program: Program | None) -> None:
        """Only what this commit has changed can be wrong since. Half of all commits change nothing."""
        self.commits += 1
        changed = self._world.machine.changed
        if not changed:
            return
        self._connection.execute("BEGIN")
        try:
            self._follow(program)
            tx = self._tx()
            for name, tables in _invariants().items():
                if not tables.isdisjoint(changed) and (found := tx.all(name)):
                    raise Violation(f"the doctor finds: {maintenance.INVARIANTS[name]}: {found[:5]}")
        finally:
            self._connection.execute("COMMIT")
            changed.clear()

    def _follow(self, program: Program | None) -> None:
        gone_before = set(self.gone)
        events = self._rows(
            "SELECT id, type, conversation, session, turn, data FROM events WHERE id > ? ORDER BY id",
            self._last_event,
        )
        messages = self._rows(
            "SELECT no, conversation, seq, turn, role, status, body FROM messages WHERE no > ? ORDER BY no",
            self._last_message,
        )
        for no, conversation, seq, turn, role, status, body in messages:
            self._last_message = no
            self._message(conversation, turn, role, status, json.loads(body))
            self._note(f"{conversation} {seq} {role} {status}")
        for id_, type_, conversation, session, turn, data in events:
            self._last_event = id_
            self._event(program, gone_before, EventType(type_), conversation, session, turn, json.loads(data))
            self._note(f"{type_} {conversation} {session} {turn} {data}")
        for no, conversation, _seq, turn, role, status, _body in messages:
            if role == "assistant" and status == "completed" and turn is not None:
                self._right_to_write(program, gone_before, turn, f"message {no} of {conversation}")
        for id_, beat in self._rows("SELECT id, beat FROM nodes WHERE left_at IS NULL AND reaped_at IS NULL"):
            if id_ not in self.beats or self.beats[id_][0] != beat:
                self.beats[id_] = (beat, self._world.observed, self._world.watched)

    def _note(self, line: str) -> None:
        self.log.update(f"{self._world.clock.monotonic:.6f} {line}\n".encode())

    def _message(self, conversation: str, turn: str | None, role: str, status: str, body: Any) -> None:
        text = str(body.get("content"))
        tag = text.split(" ", 1)[0]
        if role == "user":
            self._said[tag] += 1
            if self._said[tag] > 1:
                raise Violation(f"{tag} was stored twice, in {conversation}")
            if turn is not None:
                spoken = self.turns.setdefault(turn, Answering(conversation, ""))
                spoken.tags.append(tag)
                spoken.unseen.append(tag)
        elif role == "tool" and turn is not None and not is_unknown(text):
            self.turns[turn].progressed = True
        elif role == "assistant" and status == "completed" and not body.get("tool_calls"):
            self._replied[tag] += 1
            if self._replied[tag] > 1:
                raise Violation(f"the reply {tag} was stored twice, in {conversation}")

    def _right_to_write(self, program: Program | None, gone: set[str], turn_id: str, what: str) -> None:
        """Only who runs the turn, and is not gone, says something in it."""
        node = self.turns[turn_id].node
        if node in gone:
            raise Violation(f"{what} was written for {node}, which is gone")
        if program is not self.owners.get(node) or program is None or program.pid != self.lives[node]:
            raise Violation(
                f"{what} of {turn_id} was written by {program}, but {self.owners.get(node)} runs it"
            )

    def _event(
        self,
        program: Program | None,
        gone: set[str],
        type_: EventType,
        conversation: str | None,
        session: str | None,
        turn: str | None,
        data: dict[str, Any],
    ) -> None:
        now = self._world.clock.wall()
        self.seen[type_.value] += 1
        match type_:
            case EventType.NODE_JOINED:
                assert program is not None
                self.owners[data["node"]], self.lives[data["node"]] = program, program.pid
            case EventType.NODE_REAPED:
                self._reaped(data["node"], data["why"])
            case EventType.NODE_LEFT:
                self._leave(data["node"])
        if conversation is None:
            return
        talk = self.talks.setdefault(conversation, Talk("", now, now))
        match type_:
            case EventType.SESSION_OPENED:
                assert session is not None
                self._opened(talk, session, data["edge"], data["parent"], now)
            case EventType.FLUSH_DONE:
                assert session is not None
                if session in self.flushed:
                    raise Violation(f"{session} was flushed twice")
                self.flushed.add(session)
            case EventType.FLUSH_FAILED | EventType.FLUSH_DEAD:
                self._flush_failures[session or ""] += 1
            case EventType.SESSION_RESET:
                self._reset(talk, data, now)
            case EventType.TURN_STARTED:
                assert turn is not None
                if holds := talk.running or talk.waiting:
                    raise Violation(f"{turn} began while {holds} holds {conversation}")
                if data["node"] in gone:
                    raise Violation(f"{turn} began for {data['node']}, which is gone")
                begun = self.turns.setdefault(turn, Answering(conversation, ""))
                begun.node, begun.state, begun.running = data["node"], "running", True
                begun.covered = self._is_covered(turn)
                talk.running, talk.active_at = turn, now
                self._joins(talk, begun)
            case EventType.TURN_QUEUED:
                assert turn is not None
                waits = self.turns.setdefault(turn, Answering(conversation, "", running=False))
                waits.state, waits.covered = "queued", self._is_covered(turn)
            case EventType.TURN_JOINED:
                assert turn is not None
                self._ended(turn, "joined")
                self._joins(talk, self.turns[data["joined"]])
            case EventType.TURN_TAKEN_UP:
                assert turn is not None
                again = self.turns[turn]
                self._taken_up(turn, again, data["by"] == "recovery")
                again.running, again.node, again.state = True, data["node"], "running"
                talk.running, talk.waiting = turn, None
                if data["by"] != "recovery":  # a server's attempt is no activity
                    talk.active_at = now
                said = self.contexts[talk.tip].said
                said.extend(tag for tag in again.tags if tag not in said)
            case EventType.TURN_WAITING:
                assert turn is not None
                self.seen[f"turn.waiting {data['why']}"] += 1
                self._waits(turn, data["why"])
                talk.running, talk.waiting = None, turn
            case EventType.TURN_GIVEN_UP:
                if not data["why"].startswith("Given up"):
                    raise Violation(f"{turn} was given up though its attempts were not used up: {data}")
            case EventType.TURN_COMPLETED:
                assert turn is not None
                done = self.turns[turn]
                if done.completed:
                    raise Violation(f"{turn} was completed twice")
                if not done.running or talk.running != turn:
                    raise Violation(f"{turn} was completed though it does not hold {conversation}")
                self._right_to_write(program, gone, turn, "the end")
                self._ended(turn, "completed")
                done.running, done.completed, talk.running, talk.active_at = False, True, None, now
            case EventType.TURN_INTERRUPTED | EventType.TURN_FAILED | EventType.TURN_CANCELLED:
                assert turn is not None
                before, why = self.turns[turn].state, data.get("why")
                self._ended(turn, type_.value.removeprefix("turn."))
                talk.running = None if talk.running == turn else talk.running
                talk.waiting = None if talk.waiting == turn else talk.waiting
                if why in _BY_DEATH and self.turns[turn].covered:
                    raise Violation(f"{turn} is covered, and ended with its server: {why}")
                silent = why in _BY_SERVER or why == "its session was ended"
                if before != "queued" and not silent and data.get("code") != "given_up":
                    talk.active_at = now

    # --- turns that finish themselves -----------------------------------------------------------------

    def _is_covered(self, turn: str) -> bool:
        return bool(self._rows("SELECT recover FROM turns WHERE id = ?", turn)[0][0])

    def _joins(self, talk: Talk, turn: Answering) -> None:
        """What was just stored in this turn is in the context."""
        self.contexts[talk.tip].said.extend(turn.unseen)
        turn.unseen.clear()

    def _ended(self, turn_id: str, how: str) -> None:
        """A turn ends once."""
        turn = self.turns[turn_id]
        if turn.state not in ("queued", "running", "waiting"):
            raise Violation(f"{turn_id} has ended as {how}, and was {turn.state} before")
        if turn.state == "queued" and how == "completed":
            raise Violation(f"{turn_id} is completed and never began")
        turn.state, turn.running = how, False

    def _waits(self, turn_id: str, why: str) -> None:
        turn = self.turns[turn_id]
        if turn.state != "running":
            raise Violation(f"{turn_id} waits to be taken up, and was {turn.state}")
        if turn.progressed:
            turn.deaths = 0
        turn.deaths += why == "death"
        turn.state, turn.running, turn.progressed = "waiting", False, False

    def _taken_up(self, turn_id: str, turn: Answering, by_recovery: bool) -> None:
        """A cancelled or answered turn never goes on; one that has ended only if its client asks again."""
        may = ("waiting",) if by_recovery else ("waiting", "interrupted", "failed")
        if turn.running or turn.completed or turn.state not in may:
            raise Violation(f"{turn_id} was taken up though it is {turn.state}")
        if by_recovery:
            self.seen["turn.taken_up by recovery"] += 1
            if turn.deaths >= self._world.plan.max_attempts:
                raise Violation(f"{turn_id} was taken up after {turn.deaths} deaths without a step between")

    def _opened(self, talk: Talk, session: str, edge: str | None, parent: str | None, now: datetime) -> None:
        self._left_at[talk.tip] = talk.active_at
        talk.tip = session
        if edge in ("resume", "compaction") and parent is not None:
            before = self.contexts[parent]
            self.contexts[session] = Context([*before.said], before.summarised or edge == "compaction")
            # What was said in between may be from before the clock was set back. A compaction of a session
            # that was once resumed changes neither time.
            if edge == "resume" and parent in self.resumed:
                talk.since, talk.active_at = now, self._left_at[parent]
        else:
            self.contexts[session] = Context()
            talk.since, talk.active_at = now, now

    # --- liveness -------------------------------------------------------------------------------------

    def _leave(self, node: str) -> None:
        self.gone.add(node)
        self.beats.pop(node, None)
        self.died_at.pop(node, None)

    def died(self, program: Program) -> None:
        """Its process has ended, however that was."""
        for node, owner in self.owners.items():
            if owner is program and self.lives[node] == program.pid and node not in self.gone:
                self.died_at[node] = self._world.watched

    def _reaped(self, node: str, why: str) -> None:
        """Only the dead are reaped, and who has not beaten for as long as the settings say."""
        plan, world = self._world.plan, self._world
        if node not in self.died_at:
            self.seen["node.reaped alive"] += 1
            silent = world.observed - self.beats[node][1] + 1e-3
            if silent < plan.stale_seconds:
                owner = self.owners[node]
                raise Violation(f"{owner} lives, was silent for {silent:.1f} s, and was reaped: {why}")
        self._leave(node)

    # --- resets ---------------------------------------------------------------------------------------

    def _due(self, talk: Talk) -> datetime:
        """When the policy wants it reset; reckoned apart from holdfast, for hours that no clock skips."""
        plan = self._world.plan
        idle = max(talk.since, talk.active_at) + plan.idle
        zone = ZoneInfo(plan.timezone)
        day = self.day_of(talk.since)
        boundary = datetime.combine(day + timedelta(days=1), time(plan.at_hour), zone).astimezone(UTC)
        return min(idle, max(boundary, talk.active_at + plan.quiet))

    def day_of(self, instant: datetime) -> date:
        """The day, as the policy counts days: from one reset hour to the next."""
        there = instant.astimezone(ZoneInfo(self._world.plan.timezone))
        return there.date() - timedelta(days=there.hour < self._world.plan.at_hour)

    def _reset(self, talk: Talk, data: dict[str, Any], now: datetime) -> None:
        if talk.running is not None:
            raise Violation(f"a session was reset while {talk.running} runs")
        if talk.waiting is not None and now < self._due(talk) + self._world.plan.max_block:
            raise Violation(f"a session was reset while {talk.waiting} waits to be taken up")
        if now < self._due(talk) - timedelta(milliseconds=1):
            raise Violation(f"a session was reset ({data['reason']}) before it was due at {self._due(talk)}")
        if data["reason"] == "daily":
            day = self.day_of(now)
            if talk.reset_on == day:
                raise Violation(f"two daily resets on {day}")
            talk.reset_on = day

    def clock_was_set_back(self) -> None:
        """A day may come twice."""
        for talk in self.talks.values():
            talk.reset_on = None

    # --- what may take only so long ---------------------------------------------------------------------

    def deadlines(self) -> None:
        """Nothing stays open by accident: who is dead, what it left, what is due, what is to be stopped."""
        world, plan = self._world, self._world.plan
        soon = 3 * plan.sweep_seconds + 3
        for node, since in self.died_at.items():
            if world.watched - since > soon:
                raise Violation(
                    f"{self.owners[node]} has been dead for {world.watched - since:.1f} s, unnoticed"
                )
        unsettled = (
            "SELECT id FROM nodes WHERE settled_at IS NULL AND coalesce(left_at, reaped_at) IS NOT NULL"
        )
        self._must_pass("unsettled", [row[0] for row in self._rows(unsettled)], soon)
        self._hung()
        self._overdue()
        # Who adopts a process gives it all of its grace once more, so each supervisor's time counts alone.
        stopping = (
            "SELECT id || ' of ' || coalesce(supervisor, 'nobody') FROM processes "
            "WHERE stop_requested_at IS NOT NULL AND ended_at IS NULL"
        )
        patience = plan.grace_seconds + 4 * plan.tick_seconds + plan.stale_seconds + soon
        self._must_pass("stopping", [row[0] for row in self._rows(stopping)], patience)

    def _must_pass(self, what: str, found: list[str], limit: float) -> None:
        now = self._world.watched
        for key in [key for key in self._since if key[0] == what and key[1] not in found]:
            del self._since[key]
        for id_ in found:
            since = self._since.setdefault((what, id_), now)
            if now - since > limit:
                raise Violation(f"{id_} has been {what} for {now - since:.1f} s of watched time")

    def _hung(self) -> None:
        """Who stands still is taken for hung by whoever has watched it long enough."""
        plan, world = self._world.plan, self._world
        limit = plan.stale_seconds + plan.heartbeat_seconds + 4 * plan.sweep_seconds + 3
        watched_for = max((world.watching_for(each) for each in world.servers), default=0.0)
        for node, (_, _, since) in self.beats.items():
            silent = world.watched - since
            if node not in self.gone and min(silent, watched_for) > limit:
                raise Violation(f"{self.owners[node]} hangs for {silent:.1f} s, and nobody has reaped it")

    def _overdue(self) -> None:
        plan, now = self._world.plan, self._world.clock.wall()
        waiting, far = [], []
        for id_, conversation in self._rows("SELECT id, conversation FROM sessions WHERE ended_at IS NULL"):
            talk = self.talks[conversation]
            if talk.running is not None or now < self._due(talk):
                continue
            pin, running = self._rows(_RUNNING, conversation)[0]
            if pin is not None and to_time(pin) > now:
                assert to_time(pin) <= now + LONGEST_PIN_OF_AN_AGENT * 1000
                continue
            if not running:
                waiting += [id_] if talk.waiting is None else []
            if now >= self._due(talk) + plan.max_block:
                far.append(id_)
        # One that could not be written is left alone for a minute.
        patience = 3 * plan.sweep_seconds + 180
        self._must_pass("due, with nothing in its way,", waiting, patience)
        self._must_pass("put off past its limit", far, patience + 60)

    # --- what models are sent -----------------------------------------------------------------------------

    def asked(self, tags: list[str]) -> None:
        """The model gets what was said since the conversation last began afresh, all of it, in order."""
        tags = [tag for tag in tags if re.fullmatch(r"u\d+", tag)]
        for talk in self.talks.values():
            running = self.turns.get(talk.running or "")
            if running is None or not tags or running.tag != tags[-1]:
                continue
            context = self.contexts[talk.tip]
            expected = context.said
            if context.summarised:  # the middle is gone: the rest is still in order, and the end whole
                left = iter(expected)
                last = 1 if self._world.plan.tools else 2  # calls and their results take the place of others
                if all(tag in left for tag in tags) and tags[-last:] == expected[-last:][-len(tags) :]:
                    continue
            if tags != expected:
                raise Violation(f"the model was sent {tags}, but the context is {expected}")

    def asked_to_flush(self, session: str) -> None:
        """One call normally; one more for each attempt that failed, and for each death or standstill."""
        self.flush_calls[session] += 1
        world = self._world
        if self.flush_calls[session] > 1 + self._flush_failures[session] + world.deaths + world.continues:
            raise Violation(f"the model was asked {self.flush_calls[session]} times to flush {session}")

    # --- everything -----------------------------------------------------------------------------------

    def everything(self, ledger: Ledger) -> None:
        """All that clients were told, against all that is stored."""
        self._connection.execute("BEGIN")
        try:
            if findings := maintenance.check(self._tx()):
                raise Violation(f"the doctor finds: {findings}")
            self._nothing_is_lost(ledger)
            for name, conversation in ledger.ids.items():
                address = Address(key=name) if ":" in name else Address(id=name)
                place = resolve.find(self._tx(), None, address)
                newest = self._rows(
                    "SELECT id FROM sessions WHERE conversation = ? ORDER BY ordinal DESC LIMIT 1",
                    conversation,
                )
                if place is None or place.conversation.id != conversation or place.tip.id != newest[0][0]:
                    raise Violation(f"{name} leads to {place}, not to the tip of {conversation}")
            for conversation, active in self._rows(
                "SELECT c.id, s.last_activity_at FROM conversations c JOIN sessions s ON s.id = c.tip"
            ):
                if to_time(active) > self.talks[conversation].latest:
                    raise Violation(f"{conversation} is active at {to_time(active)}, when nobody spoke")
        finally:
            self._connection.execute("COMMIT")

    def _nothing_is_lost(self, ledger: Ledger) -> None:
        stored = {row[0] for row in self._rows("SELECT id FROM turns")}
        if lost := ledger.queued.keys() - stored:
            raise Violation(f"{lost} were accepted into a queue, and are not stored")
        found: dict[str, list[str]] = {}
        for conversation, role, status, body in self._rows(
            "SELECT conversation, role, status, body FROM messages WHERE deleted_at IS NULL"
        ):
            text = str(json.loads(body).get("content"))
            if role == "user":
                found.setdefault(text.split(" ", 1)[0], []).append(conversation)
            elif role == "assistant" and status == "completed":
                found.setdefault(text, []).append(conversation)
        for said, conversation in {**ledger.begun, **ledger.replies}.items():
            if found.get(said) != [conversation]:
                raise Violation(
                    f"{said!r} of {conversation} was acknowledged, and is found in {found.get(said)}"
                )

    def unfinished(self) -> list[str]:
        """What will end by itself, but has not yet: turns, and what dead nodes have left."""
        open_ = ("queued", "running", "waiting")
        running = [f"{turn} ({each.state})" for turn, each in self.turns.items() if each.state in open_]
        return [*running, *self.died_at, *(row[0] for row in self._rows(_UNSETTLED))]

    def explained(self) -> None:
        """A turn without an answer says why."""
        silent = "SELECT id, status FROM turns WHERE status <> 'completed' AND coalesce(error, why) IS NULL"
        if found := self._rows(silent):
            raise Violation(f"these turns have ended without an answer and without a reason: {found}")

    def intact(self) -> None:
        (answer,) = self._rows("PRAGMA integrity_check")[0]
        if answer != "ok":
            raise Violation(f"the file is damaged: {answer}")
