"""Connectors: places on messaging platforms, messages that come in and go out, and who may write.

A platform's message is an *inbox message* under the platform's own id. What goes out is an *outgoing
message*, a row of the outbox (`deliveries`). A *place* is a chat, room, topic or thread; it leads to one
conversation. An unknown person is a *stranger* and must be *paired* first. Pure decisions; the store and the
workers apply them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from .attachments import FileRef
from .ids import check_name, new_code, storable
from .value import Value

LONGEST_TEXT = 100_000
"""Characters of one incoming message that are kept; platforms allow far fewer."""
MAX_ATTEMPTS = 12
"""A delivery that failed this often is a dead letter: with the pauses below, after about two hours."""
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=1), timedelta(minutes=30)
CODE_LIVES = timedelta(hours=1)
MOST_PENDING = 100
"""Strangers of one connector that may have a valid code at once; further ones get none."""
LATE_EDIT = timedelta(minutes=10)
"""An edit of an unknown message counts as that message if it was written within this time."""
GATHERS_AT_MOST = 10
"""A burst is closed after this many times `gather_seconds`, even if it continues."""


class PlaceKind(StrEnum):
    DIRECT = "direct"
    """One person; the place's owner is that person."""
    GROUP = "group"
    """A room, group or channel: one owner for all who write there."""


class IncomingKind(StrEnum):
    MESSAGE = "message"
    EDIT = "edit"
    DELETE = "delete"


class Incoming(Value, frozen=True):
    """A platform's update, normalised by its connector."""

    platform_id: str
    """The message's id, unique for the connector and the same in every repetition of the update. An edit
    and a deletion have the id of the message that they change."""
    address: str
    """The place, as the connector's `send` takes it."""
    key: str
    """The place's session key, such as `telegram:dm:42`."""
    person: str
    """The sender's id on the platform."""
    text: str
    room: str = ""
    """The group's or room's id on the platform; empty: a direct chat."""
    name: str = ""
    """The sender's name, for people; never used to decide anything."""
    ordinal: int = 0
    """The platform's order of messages within the place; 0: as received."""
    sent_at: datetime | None = None
    kind: IncomingKind = IncomingKind.MESSAGE
    files: tuple[FileRef, ...] = ()

    @property
    def place_kind(self) -> PlaceKind:
        return PlaceKind.GROUP if self.room else PlaceKind.DIRECT

    @property
    def stored_text(self) -> str:
        return storable(self.text)[:LONGEST_TEXT]


class Place(Value, frozen=True):
    id: str
    connector: str
    address: str
    kind: PlaceKind
    owner: str
    key: str
    conversation_id: str | None
    linked: bool
    hears_all: bool


class InboxState(StrEnum):
    NEW = "new"
    TAKEN = "taken"
    DONE = "done"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"


class InboxMessage(Value, frozen=True):
    no: int
    platform_id: str
    sender: str
    sender_name: str | None
    text: str
    state: InboxState
    turn_id: str | None
    attempts: int
    received_at: datetime
    files: tuple[FileRef, ...] = ()


class Batch(Value, frozen=True):
    """Inbox messages of one place that are answered together: by one turn, or as one command."""

    place: Place
    messages: tuple[InboxMessage, ...]
    turn_id: str
    """The turn's id, the same at each attempt."""

    @property
    def command(self) -> PlaceCommand | None:
        return command_in(self.messages[0].text)

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(message.no for message in self.messages)


class Gathering(Value, frozen=True):
    """Nothing to do yet: the burst may continue until then."""

    until: datetime


class Received(Value, frozen=True):
    """What one call of `receive` has stored."""

    stored: int
    """Messages that were new."""
    strangers: tuple[Incoming, ...] = ()
    """Messages of unknown people; nothing of them is stored."""
    refused: tuple[tuple[str, str], ...] = ()
    """Messages that cannot be stored, by their id, each with the reason."""


class ConnectorClaim(Value, frozen=True):
    """The right to run a connector. Every write in its name has the token; an older one is refused."""

    name: str
    token: int
    cursor: str | None


class ConnectorHealth(StrEnum):
    UP = "up"
    DOWN = "down"
    STOPPED = "stopped"


class ConnectorState(Value, frozen=True):
    name: str
    kind: str
    node_id: str | None
    health: ConnectorHealth
    problem: str | None
    since: datetime
    pending: int
    dead: int


class OutgoingKind(StrEnum):
    REPLY = "reply"
    """The answer to a message of this place."""
    SAID = "said"
    """A message of another place of the conversation."""
    NOTICE = "notice"
    ANSWER = "answer"
    """The answer to a command, or a sentence about a message that could not be answered."""
    EVENT = "event"
    """A JSON document for a program: a background response has ended."""


class OutgoingState(StrEnum):
    GROWING = "growing"
    PENDING = "pending"
    SENT = "sent"
    DEAD = "dead"


class SentPart(Value, frozen=True):
    """A part of an outgoing message that the platform has accepted."""

    platform_id: str
    """Empty: it is being sent, and the platform may have accepted it already."""
    digest: str
    """The hash of its text, so that an unchanged part is not edited again."""


class Outgoing(Value, frozen=True):
    """A row of the outbox."""

    no: int
    id: str
    connector: str
    address: str
    owner: str
    conversation_id: str | None
    key: str
    kind: OutgoingKind
    turn_id: str | None
    notice_id: str | None
    text: str
    """Empty once it was sent: the conversation has it."""
    reply_to: str | None
    """The platform's id of the message that this answers."""
    parts: tuple[SentPart, ...]
    state: OutgoingState
    attempts: int
    error: str | None
    created_at: datetime
    due_at: datetime
    sent_at: datetime | None

    @property
    def public_state(self) -> str:
        """pending, sent or dead."""
        return "pending" if self.state is OutgoingState.GROWING else self.state.value


class PairingState(StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    REVOKED = "revoked"


class Pairing(Value, frozen=True):
    id: str
    connector: str
    person: str
    name: str | None
    address: str
    key: str
    owner: str | None
    """None until it is approved."""
    state: PairingState
    created_at: datetime
    expires_at: datetime | None
    decided_at: datetime | None


class LinkCode(Value, frozen=True):
    code: str
    conversation_id: str
    expires_at: datetime


# --- who may write ------------------------------------------------------------------------------------------

EVERYONE = "*"


def is_allowed(incoming: Incoming, allow: Collection[str], pairing: PairingState | None = None) -> bool:
    """True: the sender is paired, or the allow-list has the sender, or the room it writes in, by its id on
    the platform; or `*`. If the pairing was revoked, only the sender's own id on the list counts."""
    if pairing is PairingState.APPROVED or incoming.person in allow:
        return True
    if pairing is PairingState.REVOKED:
        return False
    return EVERYONE in allow or (incoming.room != "" and incoming.room in allow)


def owner_of(connector: str, incoming: Incoming) -> str:
    """The owner of a place that no pairing has bound: the person, or the room, under the connector's name.
    Raises BadInput if that is too long: cut, it could be another's."""
    return check_name("an owner", f"{connector}/{incoming.room or incoming.person}")


def new_pairing_code() -> str:
    """A code for a stranger or a link, such as `K7QW-3MHX`."""
    return new_code()


def code_hash(code: str) -> bytes:
    """What is stored of a code. Case, spaces and dashes do not matter."""
    return hashlib.sha256(re.sub(r"[\s-]", "", code).upper().encode()).digest()


# --- commands -----------------------------------------------------------------------------------------------

COMMANDS = {
    "new": "start a new session; earlier messages stay readable",
    "stop": "stop the reply that is being written",
    "retry": "answer the last message again",
    "why": "will this session be reset, when and by which rule",
    "ps": "background processes of this conversation",
    "compact": "replace older messages by a summary",
    "title": "name the conversation: /title NAME",
    "link": "join another place to this conversation: /link gives a code, /link CODE [all] uses it",
    "unlink": "leave the joined conversation",
    "help": "this list",
}
AT_ONCE = frozenset({"stop", "help", "why", "ps"})
"""Commands that do not wait for the messages before them."""
_COMMAND = re.compile(r"/([A-Za-z]+)(?:@\w+)?(?:\s+(.*))?", re.DOTALL)


class PlaceCommand(Value, frozen=True):
    name: str
    argument: str = ""


def command_in(text: str) -> PlaceCommand | None:
    """The command that a message is; None: an ordinary message, also if it begins with another slash word."""
    found = _COMMAND.fullmatch(text.strip())
    if found is None or found[1].lower() not in COMMANDS:
        return None
    return PlaceCommand(found[1].lower(), (found[2] or "").strip())


def gathered(messages: Sequence[InboxMessage], gather: timedelta, now: datetime) -> int | datetime:
    """How many of a place's new messages are answered together now, or until when to wait for more.

    A command is always alone. Without `gather`, so is every message. If one was received after now, the clock
    was set back: more are not waited for.
    """
    if command_in(messages[0].text) or not gather:
        return 1
    count = next((at for at, each in enumerate(messages) if command_in(each.text)), len(messages))
    if count < len(messages):
        return count
    first, last = messages[0].received_at, messages[count - 1].received_at
    until = min(last + gather, first + GATHERS_AT_MOST * gather)
    return count if now >= until or max(first, last) > now else until


# --- sending ------------------------------------------------------------------------------------------------


def pause_after(attempts: int, retry_after: timedelta | None = None) -> timedelta:
    """How long after a failed attempt the next one is made: doubled each time, and never before the
    platform's own Retry-After."""
    pause: timedelta = min(FIRST_PAUSE * 2 ** min(max(attempts - 1, 0), 20), LONGEST_PAUSE)
    return max(pause, retry_after or timedelta(0))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})([^\n`]*)$")


def utf16_units(text: str) -> int:
    """The length of a text as platforms count it that use UTF-16."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2


def split(text: str, limit: int, size: Callable[[str], int] = len) -> list[str]:
    """The text in parts of at most `limit`, measured by `size`, cut between paragraphs, else lines, else
    words.

    A code block is kept whole if it fits in a part of its own; a longer one is cut between lines, and closed
    and reopened at each cut. The first parts of a text that only grows stay the same as far as possible.
    """
    text = text.strip("\n")
    if size(text) <= limit:
        return [text] if text.strip() else []
    parts: list[str] = []
    current = ""
    for block in _blocks(text):
        joined = f"{current}\n\n{block}" if current else block
        if size(joined) <= limit:
            current = joined
            continue
        if current:
            parts.append(current)
        *full, current = [block] if size(block) <= limit else _cut(block, limit, size)
        parts += full
    return [part for part in (*parts, current) if part.strip()]


def _blocks(text: str) -> list[str]:
    """Paragraphs and whole code blocks, in order."""
    blocks: list[list[str]] = [[]]
    fence = ""
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if fence:
            blocks[-1].append(line)
            if mark and mark[1][0] == fence[0] and len(mark[1]) >= len(fence) and not mark[2].strip():
                fence = ""
                blocks.append([])
        elif mark:
            fence = mark[1]
            blocks.append([line])
        elif line.strip():
            blocks[-1].append(line)
        else:
            blocks.append([])
    return ["\n".join(lines) for lines in blocks if lines]


def _cut(block: str, limit: int, size: Callable[[str], int]) -> list[str]:
    """A block that is too long, in parts."""
    opening, _, rest = block.partition("\n")
    mark = _FENCE.match(opening)
    around = 0 if mark is None else size(opening) + len(mark[1]) + 2
    if mark is None or around >= limit // 2:
        return _cut_plain(block, limit, size)
    lines = rest.split("\n")
    if lines and _FENCE.match(lines[-1]):
        lines.pop()
    pieces = _cut_plain("\n".join(lines), limit - around, size)
    return [f"{opening}\n{piece}\n{mark[1]}" for piece in pieces]


def _cut_plain(text: str, limit: int, size: Callable[[str], int]) -> list[str]:
    parts = []
    while size(text) > limit:
        most = limit
        while (over := size(text[:most]) - limit) > 0:
            most -= (over + 1) // 2
        found = (text.rfind(mark, most // 2, most + 1) for mark in ("\n", " "))
        at = next((each for each in found if each > 0), most)
        parts.append(text[:at])
        text = text[at + 1 :] if text[at] in "\n " else text[at:]
    return [*parts, text]


class PlatformLimits(Value, frozen=True):
    """What a platform allows."""

    characters: int
    """The longest message."""
    utf16: bool = False
    """True: characters are counted as UTF-16 units."""
    can_edit: bool = False
    edit_seconds: float = 1.0
    """The least time between two edits of one message."""
    can_type: bool = False
    deduplicates: bool = False
    """True: sending again under the same key does not make a second message, so delivery is exactly once."""

    def pieces(self, text: str) -> list[str]:
        """The text in messages that the platform accepts: see `split`."""
        return split(text, self.characters, utf16_units if self.utf16 else len)
