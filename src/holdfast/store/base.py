"""What a store promises. Every engine keeps these promises; `tests/contract` holds it to them.

Methods are verbs. A method that writes has committed when it returns, and has written nothing when it
raises. Everything is scoped by `owner`; another owner's id is `NotFound`, like one that never existed.
Where `owner` may be None, the caller is an operator and means all owners.

Rights to write in a conversation come from a lease. `begin_turn` takes one, and every later write of
that turn names it; a lease that has passed on raises `LeaseLost` and leaves no trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from ..domain.contexts import Context
from ..domain.conversations import Address, Conversation
from ..domain.drafts import Draft
from ..domain.events import Event
from ..domain.keys import ApiKey
from ..domain.leases import Lease
from ..domain.messages import Message, NewMessage
from ..domain.nodes import Identity, Liveness, Node
from ..domain.notices import Notice
from ..domain.processes import Process, ProcessState, Sighting
from ..domain.resets import Verdict
from ..domain.sessions import Session
from ..domain.turns import Response, Settlement, Turn, TurnOutcome, TurnRequest, TurnStatus
from ..domain.why import Judged


@dataclass(frozen=True, slots=True)
class Place:
    """Where a name leads: the conversation, its newest session, and the session that was named."""

    conversation: Conversation
    tip: Session
    addressed: str | None
    """The id of the session that was named, if one was; other than the tip's when it has gone on."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: Sequence[T]
    has_more: bool


@dataclass(frozen=True, slots=True)
class SessionFilter:
    owner: str | None
    ended: bool | None = None
    source: str | None = None
    key: str | None = None
    title: str | None = None
    """A part of the title or key."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a node holds according to the store: leases, by conversation, with their turns."""

    leases: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Claimed:
    """Notices that are to be sent now, each with how often that has been tried, this time included."""

    notices: Sequence[tuple[Notice, int]]
    given_up: int
    """How many are too old now, though they have been tried."""


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What nodes that are gone have left behind."""

    nodes: Sequence[str]
    conversations: Sequence[str]
    sessions: Sequence[str]


@dataclass(frozen=True, slots=True)
class Retention:
    """How long what is only kept for a while is kept. Nodes that are gone go with their events."""

    drafts: timedelta
    events: timedelta
    requests: timedelta


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many of each were dropped."""

    drafts: int = 0
    events: int = 0
    requests: int = 0
    nodes: int = 0

    @property
    def anything(self) -> bool:
        return bool(self.drafts or self.events or self.requests or self.nodes)


@dataclass(frozen=True, slots=True)
class Found:
    """A search hit."""

    message: Message
    snippet: str
    key: str | None
    title: str | None


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken invariant: which, how often, and where (a few examples)."""

    invariant: str
    count: int
    examples: Sequence[str] = ()
    repairable: bool = False


@dataclass(frozen=True, slots=True)
class Statistics:
    sessions: int
    open: int
    messages: int
    conversations: int
    end_reasons: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a store can say about itself at any time, because it costs next to nothing."""

    open_sessions: int
    running_turns: int
    messages: int
    """Ever written, also those deleted since."""
    events: int
    undelivered_notices: int
    log_bytes: int
    """Written, but not yet moved to its final place."""
    unindexed: int | None
    """Messages that the search index does not hold yet; None: it cannot tell."""


class Store(Protocol):
    """The durable state of holdfast. See the module's first paragraphs."""

    @property
    def location(self) -> str:
        """Where it is, for people; without any password."""
        ...

    async def close(self) -> None:
        """Finish what was accepted, then let go of everything. Idempotent."""
        ...

    # --- finding -----------------------------------------------------------------------------------

    async def resolve(self, owner: str | None, address: Address) -> Place:
        """Where a session id (newest or stale), conversation id, alias or key leads. Opens nothing."""
        ...

    async def session(self, owner: str | None, session_id: str) -> Session:
        """That very session, stale or not."""
        ...

    async def sessions(
        self, wanted: SessionFilter, *, after: str | None = None, limit: int = 20
    ) -> Page[Session]:
        """A page of sessions, the most recently active first, behind the session `after`."""
        ...

    async def conversation(self, owner: str | None, address: Address) -> Conversation:
        """The conversation that a name leads to, with its metadata. Opens nothing."""
        ...

    async def conversations(
        self, owner: str | None, *, after: str | None = None, limit: int = 20
    ) -> Page[Conversation]:
        """A page of conversations with their metadata, the newest first, behind the conversation `after`."""
        ...

    async def line(self, owner: str | None, conversation_id: str) -> list[Session]:
        """All sessions of a conversation, oldest first."""
        ...

    async def forks(self, owner: str | None, conversation_id: str) -> list[Session]:
        """The first sessions of conversations that were forked from this one."""
        ...

    async def messages(
        self,
        owner: str | None,
        conversation_id: str,
        *,
        first: int = 1,
        last: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        excluded: bool = True,
    ) -> Page[Message]:
        """Messages numbered first..last as they were said, deleted ones left out; without `excluded`, those
        too that have left the context."""
        ...

    async def visible(
        self, owner: str | None, conversation_id: str, *, limit: int | None = None
    ) -> list[Message]:
        """What a client has been shown: neither excluded nor deleted, oldest first; only the newest
        `limit`."""
        ...

    async def conversations_with_history(self, owner: str, history: bytes) -> list[Conversation]:
        """Free conversations begun without a name whose whole visible history has this chain; two at most."""
        ...

    async def context(self, owner: str | None, session_id: str) -> Context:
        """What the model would get in this session, as joined JSON bytes and as messages."""
        ...

    async def turn(self, owner: str | None, turn_id: str) -> Turn: ...

    async def turns(
        self,
        owner: str | None,
        conversation_id: str,
        *,
        session_id: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[Turn]:
        """The newest turns of a conversation (or of one of its sessions), newest first, behind the turn
        `after`."""
        ...

    async def turn_messages(self, turn_id: str) -> list[Message]:
        """What was said in a turn, in order; messages that left the context included."""
        ...

    async def turn_answer(self, turn_id: str) -> bytes | None:
        """What `commit_reply` kept of the model's answer besides its messages."""
        ...

    async def response(self, owner: str | None, response_id: str) -> Response: ...

    async def delete_response(self, owner: str, response_id: str) -> None:
        """Forget that a turn was a response; the turn and what was said stay."""
        ...

    async def last_number(self, turn_id: str) -> int:
        """The highest event number that any checkpoint of this turn used or reserved; -1: there is none."""
        ...

    async def drafts(self, turn_id: str, *, after_event: int = -1) -> list[Draft]:
        """A turn's checkpoints that hold events numbered above `after_event`."""
        ...

    async def events(
        self,
        *,
        owner: str | None,
        after: int = 0,
        upto: int | None = None,
        limit: int = 1000,
        conversation_id: str | None = None,
    ) -> list[Event]:
        """What happened after that cursor, up to event `upto`, oldest first."""
        ...

    async def event_bounds(self) -> tuple[int, int]:
        """The numbers of the oldest event that is kept and of the newest. No event up to the newest will
        appear later: whoever has read up to it, of one owner or of all, may go on behind it."""
        ...

    async def search(
        self, owner: str | None, words: str, *, conversation_id: str | None = None, limit: int = 20
    ) -> list[Found]:
        """Messages of this owner that hold all these words. No committed message is ever missing."""
        ...

    async def statistics(self, owner: str | None) -> Statistics: ...

    async def alive(self, owner: str | None, *, limit: int = 200) -> list[Session]:
        """Open sessions, the most recently active first: all with a running turn or an attached process, and
        others as far as they are among the newest. Cheap, however many are stored."""
        ...

    async def ended_since(self, owner: str | None, since: datetime, *, limit: int = 200) -> list[Session]:
        """Sessions that have ended since then, the latest first."""
        ...

    async def figures(self) -> Figures:
        """How much there is of everything, for an operator; cheap enough to be asked every few seconds."""
        ...

    # --- conversations and sessions ----------------------------------------------------------------

    async def open_session(
        self, owner: str, address: Address, node_id: str, *, source: str = "", attached: bool = False
    ) -> Session:
        """The session the next message would go to: the open tip, or one opened now behind it.

        A new key opens a conversation. A tip left behind by a node that is gone counts as ended.
        """
        ...

    async def end_session(self, owner: str | None, session_id: str, reason: str) -> bool:
        """End an open session; False if it had ended already. ConversationBusy while a turn holds it."""
        ...

    async def resume_session(
        self, owner: str, session_id: str, node_id: str, *, attached: bool = False
    ) -> Session:
        """Go on from that very session: an open tip ends as `new`, a session with its view opens."""
        ...

    async def fork(
        self,
        owner: str,
        session_id: str,
        node_id: str,
        *,
        up_to: int | None = None,
        key: str | None = None,
        attached: bool = False,
    ) -> Session:
        """Open a new conversation that begins with a copy of that session's context (up to a number)."""
        ...

    async def create_conversation(
        self,
        owner: str,
        node_id: str,
        *,
        messages: Sequence[NewMessage] = (),
        metadata: Mapping[str, str] | None = None,
        source: str = "",
    ) -> Conversation:
        """A new conversation without a key, its first session detached, that begins with these messages."""
        ...

    async def add_messages(
        self, owner: str, conversation_id: str, node_id: str, messages: Sequence[NewMessage]
    ) -> int:
        """Append what a client says outside of any turn, to the session that the next message would go to;
        returns the last number. It counts as activity. ConversationBusy, having written nothing, while a turn
        holds the conversation."""
        ...

    async def set_metadata(
        self, owner: str | None, conversation_id: str, metadata: Mapping[str, str]
    ) -> None:
        """Note this about a conversation, instead of whatever was noted before."""
        ...

    async def set_title(self, owner: str | None, conversation_id: str, title: str) -> None: ...

    async def add_alias(self, owner: str, alias: str, conversation_id: str) -> None:
        """Let another name lead to this conversation. A name that leads elsewhere is a Conflict."""
        ...

    async def exclude(self, owner: str | None, conversation_id: str, seqs: Sequence[int], reason: str) -> int:
        """Take messages out of every context; they stay readable. Returns how many were not out yet."""
        ...

    async def delete_message(self, owner: str | None, conversation_id: str, seq: int) -> None:
        """Empty a message: its number stays, its text is gone from lists, contexts and search."""
        ...

    async def reduce_message(
        self,
        owner: str | None,
        conversation_id: str,
        seq: int,
        rest: NewMessage,
        gaps: Sequence[int] = (),
    ) -> None:
        """Delete a part of a message: `rest` is what is left of it, `gaps` are the places of all its calls
        that are gone. What was taken away is gone from lists, contexts and search.

        Conflict, having changed nothing, if `rest` is not less than what the message says now.
        """
        ...

    async def delete_conversation(self, owner: str | None, conversation_id: str) -> int:
        """Cancel what runs and remove the conversation completely. Returns its number of messages."""
        ...

    async def note_reading(self, owner: str, key_id: str, session: Session | None = None) -> None:
        """Leave an event with this owner: an admin's key has read their messages, of this session or by a
        search."""
        ...

    # --- notices -----------------------------------------------------------------------------------

    async def add_notice(self, owner: str, conversation_id: str, kind: str, text: str) -> Notice:
        """Something the person of this conversation should be told; undelivered until somebody has."""
        ...

    async def notices(
        self, owner: str | None, *, undelivered: bool = False, after: str | None = None, limit: int = 20
    ) -> Page[Notice]:
        """A page of notices, oldest first, behind the notice `after`; only those nobody was told of."""
        ...

    async def undelivered(self, conversation_id: str) -> list[Notice]:
        """What the person of this conversation has not been told yet, oldest first."""
        ...

    async def deliver_notice(self, owner: str | None, notice_id: str) -> Notice:
        """The person has been told. A notice that was delivered before keeps its time."""
        ...

    async def notices_to_send(self) -> bool:
        """Does a notice wait to be sent to a webhook? Cheap: most of the time none does."""
        ...

    async def claim_notices(self, limit: int, span: timedelta, kept: timedelta) -> Claimed:
        """Take notices that wait to be sent, the longest waiting first; for `span` nobody else gets them.
        What is older than `kept` is given up."""
        ...

    async def notice_sent(self, notice_id: str) -> None:
        """It was accepted, and is never sent again."""
        ...

    async def notice_unsent(self, notice_id: str, pause: timedelta, *, tried: bool = True) -> None:
        """It was not accepted, or not even `tried`: it waits again, for at least this long."""
        ...

    # --- turns -------------------------------------------------------------------------------------

    async def begin_turn(self, request: TurnRequest) -> TurnOutcome:
        """Resolve, take the lease, open a session if one is needed, commit the messages: one transaction.

        Idempotent by owner, route, key and body hash. Another turn holding the conversation, or the
        same request seen before, and a conversation that is no longer as the caller has seen it, are
        outcomes; RequestMismatch, TurnSuperseded, NotFound and NodeReaped are raised. Nothing is written
        unless the turn has begun.
        """
        ...

    async def append(self, lease: Lease, messages: Sequence[NewMessage]) -> int:
        """Append what the turn said, as it happens; returns the last number. LeaseLost writes nothing."""
        ...

    async def append_draft(self, lease: Lease, draft: Draft) -> None:
        """Keep a checkpoint of the running reply. LeaseLost writes nothing."""
        ...

    async def commit_reply(
        self,
        lease: Lease,
        messages: Sequence[NewMessage] = (),
        *,
        usage: Mapping[str, int] | None = None,
        answer: bytes | None = None,
        history: bytes | None = None,
        draft: Draft | None = None,
    ) -> int:
        """Append the reply, complete the turn and release the lease: one transaction.

        `draft` holds the last of the events that tell of it.

        `answer` is kept for a repeated request; `history` is the chain of all that a client has now been
        shown, None if that is not known. Returns the conversation's last number. LeaseLost writes nothing.
        """
        ...

    async def settle_turn(self, lease: Lease, settlement: Settlement) -> None:
        """End a turn without an answer (interrupted, failed, cancelled) and release the lease.

        Its draft becomes an interrupted reply; its open tool calls are closed as "interrupted, outcome
        unknown"; the user's message stays. LeaseLost writes nothing.
        """
        ...

    async def cancel_turn(self, owner: str | None, turn_id: str, status: TurnStatus, why: str) -> bool:
        """End somebody's running turn from outside, as `settle_turn` would; its writer is fenced off.

        False if it was not running any more.
        """
        ...

    # --- resets ------------------------------------------------------------------------------------

    async def due_sessions(self, limit: int = 100) -> list[str]:
        """Open sessions whose reset is due, the longest due first; only those that our own policies have
        dated. Costs what is due, not what is stored."""
        ...

    async def reset_session(self, session_id: str) -> Verdict | None:
        """Reset this session if it is due: its end, event and notice in one transaction. Put off, visibly, if
        something holds it. Returns the verdict; None if there is no such session any more."""
        ...

    async def judge_session(self, owner: str | None, session_id: str) -> Judged:
        """Would this session be reset now? With every reason, either way. Changes nothing."""
        ...

    async def history(self, owner: str | None, session_id: str, *, limit: int = 50) -> list[Event]:
        """What happened to a session and to what it started, oldest first; only the newest `limit`."""
        ...

    async def date_sessions(self, limit: int = 1000) -> int:
        """Reckon anew when sessions are due that other policies have dated; returns how many. None: all
        are."""
        ...

    # --- nodes -------------------------------------------------------------------------------------

    async def join(self, node: Node) -> None:
        """Register an incarnation and hold its lock for as long as this process lives."""
        ...

    async def beat(self, node_id: str) -> Held:
        """Say that this node lives, in one write; returns what it holds. NodeReaped if it was reaped."""
        ...

    async def held(self, node_id: str) -> Held:
        """What this node holds; only looks."""
        ...

    async def leave(self, node_id: str, reason: str) -> None:
        """End in good order: running turns are interrupted, attached sessions end with `reason`, leases
        are released, the lock is let go."""
        ...

    async def nodes(self, *, gone: bool = False) -> list[Node]:
        """Nodes that have neither left nor been reaped; with `gone`, those too."""
        ...

    async def probe(self, nodes: Sequence[Node]) -> Mapping[str, tuple[Liveness, str]]:
        """Is each of these alive, as far as can be proven from here, and why? Writes nothing."""
        ...

    async def reap(self, node_id: str, seen_beat: int, why: str) -> bool:
        """Mark a node as dead, unless its beat has moved since. Its leftovers are then to be settled."""
        ...

    async def leftovers(self, also: Sequence[str] = ()) -> Leftovers:
        """Leases and attached sessions of nodes that are gone, and of the nodes in `also`. Costs what there
        is, not what is stored."""
        ...

    async def settle_conversation(self, conversation_id: str) -> bool:
        """Bring a conversation left by a node that is gone to rest: its turn is interrupted, its lease
        released under a higher token. False if there was nothing to do. Never touches last_activity_at."""
        ...

    async def reap_session(self, session_id: str) -> bool:
        """End an attached session of a node that is gone as `reaped`. False if there was nothing to do."""
        ...

    async def settle_node(self, node_id: str) -> bool:
        """Note that nothing names this node any more, so that no sweep looks for it again. False if
        something still does."""
        ...

    async def prune(self, keep: Retention, limit: int = 1000) -> Pruned:
        """Drop what has been kept long enough, at most `limit` of each kind, the oldest first."""
        ...

    # --- processes ---------------------------------------------------------------------------------

    async def add_process(self, process: Process) -> Process:
        """Note that a process is about to be started in this open session, before anything is started."""
        ...

    async def process_started(
        self,
        process_id: str,
        identity: Identity,
        *,
        shim_pid: int | None = None,
        shim_start: str | None = None,
    ) -> bool:
        """It runs, and this is who it is. False if it was not starting any more."""
        ...

    async def sample_processes(self, sightings: Sequence[Sighting]) -> None:
        """Note what these were seen doing, all at once. Never touches a session's last_activity_at."""
        ...

    async def process_finished(self, process_id: str, exit_code: int) -> bool:
        """The command itself has ended with this code, but something it started still runs."""
        ...

    async def end_process(
        self,
        process_id: str,
        state: ProcessState,
        *,
        exit_code: int | None = None,
        at: datetime | None = None,
        why: str | None = None,
    ) -> bool:
        """It has ended: exited, stopped or lost (`why`), at that time or now. False if it had already."""
        ...

    async def request_stop(self, owner: str | None, process_id: str, reason: str) -> Process:
        """Ask for a process to be stopped; the node that looks after it does, now or after a crash. Asking
        again changes nothing. Conflict if it is only watched."""
        ...

    async def request_stops(self, owner: str | None, conversation_id: str, reason: str) -> list[Process]:
        """Ask for everything that this conversation has started to be stopped; returns what runs of it."""
        ...

    async def pin_process(self, owner: str | None, process_id: str, until: datetime | None) -> Process:
        """Let a process hold resets up until then (None: no longer). Conflict if it has ended."""
        ...

    async def claim_process(self, process_id: str, node_id: str, seen_supervisor: str | None) -> bool:
        """Look after a process from now on. False if somebody else than `seen_supervisor` does, if it has
        ended, or if this node is gone."""
        ...

    async def process(self, owner: str | None, process_id: str) -> Process: ...

    async def processes(
        self,
        owner: str | None,
        *,
        session_id: str | None = None,
        conversation_id: str | None = None,
        running: bool | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[Process]:
        """A page of processes, the newest first, behind the process `after`: of a session, of a conversation
        or of the owner; only those that have (not) ended."""
        ...

    async def unended_processes(self, machine: Identity) -> list[Process]:
        """What has not ended, as far as is known, on the machine that this identity is of, oldest first."""
        ...

    async def unknown_processes(self, ids: Sequence[str]) -> list[str]:
        """Which of these ids name no process: what is kept of them is rubbish."""
        ...

    async def prune_processes(self, before: datetime, limit: int = 1000) -> list[str]:
        """Drop processes that ended before then, the oldest first; returns their ids."""
        ...

    # --- API keys ----------------------------------------------------------------------------------

    async def add_key(self, key: ApiKey, secret_hash: bytes) -> None:
        """Let this key open what is its owner's. Conflict, having changed nothing, if its id is known."""
        ...

    async def key(self, key_id: str) -> tuple[ApiKey, bytes] | None:
        """The key of this id, revoked or not, and the hash of its secret; None if there is none."""
        ...

    async def keys(self, owner: str | None) -> list[ApiKey]:
        """All keys of an owner, revoked ones too, in the order they were made."""
        ...

    async def revoke_key(self, key_id: str, owner: str | None) -> bool:
        """From now on this key opens nothing, and never will again. False if it was revoked already;
        NotFound if this owner has no such key."""
        ...

    # --- waiting -----------------------------------------------------------------------------------

    def version(self) -> int:
        """A number that differs after something was committed, here or by another process."""
        ...

    async def changed(self, since: int, timeout: float) -> bool:
        """Wait until the version is no longer `since` (taken before looking), or until time is up."""
        ...

    def start_indexing(self) -> None:
        """Keep whatever searching needs right behind what is written, from now on."""
        ...

    # --- care --------------------------------------------------------------------------------------

    async def backup(self, target: Path) -> None:
        """A consistent copy while everything goes on. Raises, leaving nothing, if the target exists."""
        ...

    def invariants(self) -> Sequence[str]:
        """What `check` looks at, in sentences."""
        ...

    async def check(self) -> list[Finding]:
        """Every invariant that the store alone can tell, and its integrity. Empty: all is well."""
        ...

    async def repair(self) -> list[str]:
        """Mend what can be mended safely (derived data); returns what was done, in sentences."""
        ...

    def now(self) -> datetime:
        """The store's time, in UTC: the clock by which everything in it is dated."""
        ...
