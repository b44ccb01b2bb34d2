"""Sends the first statements of a group's turns together, before the functions that ask for them run.

A function of a turn asks, waits and asks again; in a group of n such functions that would be a round trip for
each question of each. But what the begin and the commit of a turn, and a write outside of turns, ask first
follows from their arguments alone: the `foreseen_…` functions find it by running them against `_Probe`, which
sends nothing. The writer sends all of it in one batch, then runs the functions, which find their answers in
`Changes.foreseen`.

Why this is safe: the functions themselves do not change. An answer is used only for exactly the statement
that the function asks next; otherwise it is dropped and the statement is sent as usual. Locks are taken
before what they protect is read, as without foresight. Answers that another function of the same group could
have changed are dropped (`keep_independent`). A changing statement that was sent but not asked for rolls the
group back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ...domain.conversations import Address
from ...domain.items import ItemPlace
from ...domain.session_messages import Named
from ...domain.turns import Lease, TurnRequest
from ...errors import HoldfastError
from ..items import get
from ..resolve import lookup
from ..transaction import Q
from ..turns import begin, commit_reply
from .pipeline import Asked
from .statements import statement
from .transaction import Batch, Changes, Foreseen, PostgresTransaction

_REQUEST = statement(Q.turn_by_request)
_RELEASE = statement(Q.release_lease)
_PLACE = statement(Q.place_by_key)
_ITEM = statement(Q.item)

Begins = Callable[[Changes, int], PostgresTransaction]
"""Makes a transaction."""


class _Asks(Exception):
    """Raised with the first statements that a function asks for."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch


class _Probe(Changes):
    """Changes that send nothing."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(None)  # type: ignore[arg-type]

    def carry_out(self, *more: Asked) -> NoReturn:
        raise _Asks(more)


def _first(ask: Callable[..., Any], *arguments: Any, **named: Any) -> list[Batch]:
    """The first statements that this function asks for; empty: none, or it refuses."""
    try:
        ask(*arguments, **named)
    except _Asks as asks:
        return [asks.batch]
    except HoldfastError:  # it refuses: it will do so again when it is run
        return []
    return []


def foreseen_begin(begins: Begins, now: int, request: TurnRequest) -> list[Batch]:
    """What the begin of a turn asks before it writes: its request key, then its conversation."""
    if request.resumes_turn is not None or request.branch is not None or request.parent is not None:
        return []
    probe = begins(_Probe(), now)
    known = _first(begin, probe, request)
    place = _first(lookup, probe, request.owner, request.address)
    return [*(batch for batch in known if batch[-1][0] is _REQUEST), *place]


def foreseen_commit(begins: Begins, now: int, lease: Lease, *arguments: Any, **named: Any) -> list[Batch]:
    """What the commit of a reply asks first: the statement that releases its lease. Nothing, if a draft
    precedes it."""
    found = _first(commit_reply, begins(_Probe(), now), lease, *arguments, **named)
    return [batch for batch in found if batch[-1][0] is _RELEASE]


def foreseen_by_id(
    begins: Begins, now: int, owner: str, conversation_id: str, *_: Any, **__: Any
) -> list[Batch]:
    """What a write outside of turns asks first: the conversation with this id."""
    return _first(lookup, begins(_Probe(), now), owner, Address(id=conversation_id))


def foreseen_with_items(
    begins: Begins,
    now: int,
    owner: str,
    conversation_id: str,
    node_id: str,
    messages: Sequence[Named],
    places: Sequence[ItemPlace],
    *_: Any,
) -> list[Batch]:
    """The same, then the items that are changed with it. They are read after the conversation is locked."""
    reads = [batch for place in places for batch in _first(get, begins(_Probe(), now), owner, *place)]
    return [*foreseen_by_id(begins, now, owner, conversation_id), *reads]


def foreseen_by_key(begins: Begins, now: int, owner: str, key: str, *_: Any) -> list[Batch]:
    """The same, with this key."""
    return _first(lookup, begins(_Probe(), now), owner, Address(key=key))


def keep_independent(groups: Sequence[Foreseen]) -> list[bool]:
    """Which of these can use their answers: request not seen before, conversation found, and neither of them,
    nor an item, that of another in the group. The others ask again, after those."""
    column = _PLACE.conversation
    assert column is not None
    kept: list[bool] = []
    requests: set[tuple[Any, ...]] = set()
    conversations: set[str] = set()
    items: set[tuple[Any, ...]] = set()
    for foreseen in groups:
        usable, conversation, request = bool(foreseen), None, None
        own: set[tuple[Any, ...]] = set()
        for batch, answers in foreseen:
            asked, values = batch[-1]
            rows = answers[-1].rows()
            if asked is _REQUEST:
                request = (values["owner"], values["route"], values["key"])
                usable = usable and not rows and request not in requests
            elif asked is _ITEM:
                own.add(tuple(values[name] for name in asked.names))
            elif len(rows) == 1:
                conversation = rows[0][column]
                usable = usable and conversation not in conversations
            else:
                usable = False
        usable = usable and items.isdisjoint(own)
        if usable:
            items |= own
            if request is not None:
                requests.add(request)
            if conversation is not None:
                conversations.add(conversation)
        kept.append(usable)
    return kept
