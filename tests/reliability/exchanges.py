"""What clients sent to a server, what they received, and what the server must therefore have stored.

An `Exchange` is one message and all that happened to it, however often it was sent. What counts as
acknowledged:

    a status line of 200            the message is stored
    the chunk that ends a reply,    the reply is stored, word for word
      or a whole answer
    a word of a stream              it is stored `checkpoint_seconds` after it was received

Clients record what they receive at once. A kill of the server is announced first: the words received until
then are what the dead server must have stored (`Owed`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from tests import quiet_time

Moment = Literal["accepted", "word", "answered"]
"""What a client may notice, for those who want to kill just then."""


@dataclass(eq=False)
class Chat:
    """A conversation as its clients know it."""

    number: int
    kind: str
    shared: bool
    """Do several clients speak in it at once? Then a message may be overtaken by another one."""
    name: str
    """Its key or alias, if it has one."""
    sessions: list[str] = field(default_factory=list)
    """The session ids it was given, the newest last; any of them must do."""
    conversation: str = ""
    """The conversation id it was given: always the same."""
    response: str = ""
    """The newest response, of a chat that goes on from response to response."""
    history: list[dict[str, str]] = field(default_factory=list)
    """All that was said, of a chat that sends it along."""


@dataclass(eq=False)
class Exchange:
    tag: str
    chat: Chat
    text: str
    manner: str
    """How it is sent."""
    accepted: bool = False
    answer: str | None = None
    overtaken: bool = False
    """Another client spoke after it was cut short: it will not be answered any more."""
    turn: str = ""
    response: str = ""
    tries: int = 0

    @property
    def settled(self) -> bool:
        return self.answer is not None or self.overtaken

    def __str__(self) -> str:
        chat = f"{'shared ' * self.chat.shared}chat {self.chat.number} by {self.chat.kind}"
        return f"{self.tag} ({chat}, sent as {self.manner}, {self.tries} tries)"


@dataclass(eq=False)
class Hearing:
    """One connection that tells of a reply, word by word."""

    exchange: Exchange
    server: int
    text: str = ""
    heard: list[tuple[float, int]] = field(default_factory=list)
    """When the text had which length."""
    last_event: int = -1

    def start_over(self, kept: str) -> None:
        """A new attempt has begun. `kept`: the text of the items that stay."""
        self.text, self.heard = kept, []


@dataclass(frozen=True)
class Owed:
    """The words of one reply that were heard before a kill."""

    turn: str
    text: str
    heard: tuple[tuple[float, int], ...]
    killed_at: float
    checkpoint_seconds: float

    def age_of(self, length: int) -> float:
        """How long before the kill the first word behind the first `length` characters was heard."""
        return next((self.killed_at - at for at, upto in self.heard if upto > length), 0.0)


class Ledger:
    def __init__(self) -> None:
        self.exchanges: dict[str, Exchange] = {}
        self.accepted: list[Exchange] = []
        self.answered: list[Exchange] = []
        self.owed: list[Owed] = []
        self.wrong: list[str] = []
        """What a client could see by itself: two turns, two conversations or two answers for one message."""
        self.counts: Counter[str] = Counter()
        self.listener: Callable[[Moment], None] = lambda moment: None
        self._hearings: set[Hearing] = set()

    def says(self, exchange: Exchange) -> Exchange:
        self.exchanges[exchange.tag] = exchange
        return exchange

    def accepts(self, exchange: Exchange, turn: str, conversation: str, session: str) -> None:
        """A status line of 200 has come, with these ids in its headers."""
        chat = exchange.chat
        if exchange.turn not in ("", turn):
            self.wrong.append(f"{exchange} is turn {exchange.turn} and turn {turn}")
        if chat.conversation not in ("", conversation):
            self.wrong.append(f"{exchange} is in {chat.conversation} and {conversation}")
        exchange.turn, chat.conversation = turn, conversation
        if session not in chat.sessions:
            chat.sessions.append(session)
        if not exchange.accepted:
            exchange.accepted = True
            self.accepted.append(exchange)
        self.listener("accepted")

    def answers(self, exchange: Exchange, text: str, turn: str) -> None:
        """The whole answer has come."""
        if exchange.answer not in (None, text):
            self.wrong.append(f"{exchange} was answered {exchange.answer!r:.60} and then {text!r:.60}")
        if turn != exchange.turn:
            self.wrong.append(f"the answer to {exchange} says that it is of turn {turn}")
        if exchange.answer is None:
            exchange.answer = text
            self.answered.append(exchange)
        self.listener("answered")

    # --- words ---------------------------------------------------------------------------------------

    def listens(self, hearing: Hearing) -> None:
        self._hearings.add(hearing)

    def hears(self, hearing: Hearing, piece: str) -> None:
        hearing.text += piece
        hearing.heard.append((quiet_time.now(), len(hearing.text)))
        self.counts["words"] += 1
        self.listener("word")

    def leaves(self, hearing: Hearing) -> None:
        self._hearings.discard(hearing)

    def killed(self, server: int, checkpoint_seconds: float) -> int:
        """The server is being killed right now. Returns how many replies that cuts short."""
        now = quiet_time.now()
        cut = [hearing for hearing in self._hearings if hearing.server == server and hearing.heard]
        for hearing in cut:
            heard = tuple(hearing.heard)
            turn = hearing.exchange.turn
            self.owed.append(Owed(turn, hearing.text, heard, now, checkpoint_seconds))
        return len(cut)
