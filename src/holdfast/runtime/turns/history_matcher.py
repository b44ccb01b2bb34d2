"""Finds where a request belongs: which conversation, which messages are new, whether it forks or regenerates.

The decision is made before the turn begins, so it carries an optimistic lock (`ConversationVersion`): if the
conversation has changed when the lease is acquired, the turn does not begin and the match is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from ...domain.client_compaction import kept_messages, summarises_again, summary_at
from ...domain.compaction import ClientCompaction
from ...domain.conversations import Address, Conversation
from ...domain.fingerprints import EMPTY, extended, is_current
from ...domain.history import (
    AnswersAgain,
    Branches,
    Continues,
    History,
    HistoryMatch,
    check_results,
    from_index,
    place,
)
from ...domain.messages import Message, NewMessage
from ...domain.turns import ConversationVersion, ForkPoint, Turn, TurnRequest
from ...domain.value import Value
from ...domain.views import View
from ...domain.visible_messages import VisibleMessage, as_shown, awaited_calls, visible_of
from ...errors import NotFound
from ...store.store import Store
from ...store.values import Resolved

LOOK_BACK = 64
"""How many messages beyond the request's own count are read to place a trimmed history."""
NEW = ConversationVersion("", 0, 0)


class Placement(Value, frozen=True):
    """A request's new messages and where they belong."""

    address: Address
    messages: tuple[NewMessage, ...]
    fingerprints: tuple[bytes, ...]
    history: bytes | None = None
    """The history fingerprint before them; None: read it from the store when the turn has begun."""
    seen: ConversationVersion | None = None
    branch: ForkPoint | None = None
    regenerates: tuple[int, ...] = ()
    anonymous: bool = False
    matches: tuple[str, ...] = ()
    """For a request that names no conversation: the conversations with exactly this history."""
    compacts: ClientCompaction | None = None
    """To be done once the turn has begun: the client has replaced its past by a summary, its first new
    message."""

    def applied_to(self, request: TurnRequest) -> TurnRequest:
        return replace(
            request,
            address=self.address,
            messages=self.messages,
            seen=self.seen,
            branch=self.branch,
            regenerates=self.regenerates,
            answer_existing=not self.messages,
            anonymous=self.anonymous,
            matches=self.matches,
        )


class HistoryMatcher:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def match(self, owner: str, address: Address, history: History) -> Placement:
        """Where this history belongs. Raises NotFound for one of our ids that does not exist."""
        if address.id is None and address.key is None:
            return await self._by_history(owner, address, history)
        first = history.messages[0]
        if not history.brings_history and first.answers is None and summary_at(history) is None:
            return Placement(address, history.messages, history.fingerprints)
        try:
            found = await self._store.resolve(owner, address)
        except NotFound:
            if not address.may_create:
                raise
            _check_new(history)
            return Placement(address, history.messages, history.fingerprints, EMPTY, NEW)
        return await self._in(owner, found, history)

    async def appended(self, owner: str, address: Address, history: History) -> Placement:
        """Append all messages to the conversation. Tool results must answer calls that are awaited."""
        if any(message.answers for message in history.messages):
            found = await self._store.resolve(owner, address)
            context = await self._store.context(owner, found.tip.id)
            visible = await self._store.visible(owner, found.conversation.id)
            check_results(history.messages, await _as_shown(visible), context.awaited)
            return Placement(address, history.messages, history.fingerprints, seen=_seen(found.conversation))
        return Placement(address, history.messages, history.fingerprints)

    async def after_turn(self, owner: str, turn: Turn, history: History) -> Placement:
        """Place the messages after this turn: continue if it is the newest, else fork from it."""
        conversation_id = turn.conversation_id
        found = await self._store.resolve(owner, Address(id=conversation_id))
        if turn.id == await self._store.newest_turn(owner, conversation_id):
            placed = await self.appended(owner, Address(id=conversation_id), history)
            return replace(placed, seen=_seen(found.conversation))
        said = await self._store.turn_messages(turn.id)
        branch = (
            ForkPoint(said[-1].session_id, said[-1].seq)
            if said
            else ForkPoint(turn.session_id, turn.first_seq - 1)
        )
        if any(message.answers for message in history.messages):
            visible = await self._store.visible(owner, conversation_id)
            shown = as_shown([message for message in visible if message.seq <= branch.seq])
            check_results(history.messages, visible_of(shown), awaited_calls(shown))
        return Placement(
            Address(id=conversation_id),
            history.messages,
            history.fingerprints,
            seen=_seen(found.conversation),
            branch=branch,
        )

    async def _by_history(self, owner: str, address: Address, history: History) -> Placement:
        """Without an id or session key, only the whole history of exactly one conversation identifies it."""
        known = history.answered
        matches: tuple[str, ...] = ()
        if known:
            chain = extended(EMPTY, history.fingerprints[:known])
            candidates = await self._store.conversations_with_history(
                owner, chain
            ) or await self._store.conversations_with_history(owner, history.past_before())
            matches = tuple(each.id for each in candidates)
            if len(candidates) == 1:
                (only,) = candidates
                rest, fingerprints = history.messages[known:], history.fingerprints[known:]
                return Placement(Address(id=only.id), rest, fingerprints, chain, _seen(only), matches=matches)
        _check_new(history)
        return Placement(
            address, history.messages, history.fingerprints, EMPTY, anonymous=True, matches=matches
        )

    async def _in(self, owner: str, found: Resolved, history: History) -> Placement:
        conversation, known = found.conversation, history.answered
        stays = Address(id=found.addressed or conversation.id)
        seen = _seen(conversation)
        chain = extended(EMPTY, history.fingerprints[:known]) if known else None
        if chain is not None and _is_past(history, chain, conversation.history):
            return Placement(stays, history.messages[known:], history.fingerprints[known:], chain, seen)
        brings_results = any(message.answers for message in history.messages[known:])
        awaited = (await self._store.context(owner, found.tip.id)).awaited if brings_results else ()
        at = summary_at(history)
        if at is not None:
            summarised = await self._summarised(owner, found, history, at, awaited)
            if summarised is not None:
                return summarised
        visible = await self._store.visible(owner, conversation.id, limit=len(history.messages) + LOOK_BACK)
        placement = await _place(history, visible, awaited)
        if isinstance(placement, Branches) and visible and visible[0].seq > 1:
            visible = await self._store.visible(owner, conversation.id)
            placement = await _place(history, visible, awaited)
        if isinstance(placement, Continues):
            new = placement.new_from
            return Placement(stays, history.messages[new:], history.fingerprints[new:], None, seen)
        if isinstance(placement, AnswersAgain):
            return Placement(stays, (), (), None, seen, regenerates=placement.regenerates)
        new = placement.new_from
        rest, fingerprints = history.messages[new:], history.fingerprints[new:]
        if placement.session_id is None:
            return Placement(Address(), rest, fingerprints, EMPTY)
        if chain is not None:  # same id sent again after an edit: continue in the fork that the edit made
            origin = conversation.id
            forks = await self._store.conversations_with_history(
                owner, chain, forked_from=origin
            ) or await self._store.conversations_with_history(
                owner, history.past_before(), forked_from=origin
            )
            if len(forks) == 1:
                (fork,) = forks
                rest, fingerprints = history.messages[known:], history.fingerprints[known:]
                return Placement(Address(id=fork.id), rest, fingerprints, chain, _seen(fork))
        branch = ForkPoint(placement.session_id, placement.seq)
        return Placement(stays, rest, fingerprints, None, seen, branch)

    async def _summarised(
        self, owner: str, found: Resolved, history: History, at: int, awaited: Sequence[str]
    ) -> Placement | None:
        """Place a history that the client has shortened: message `at` is its summary of what is missing.
        None: it is to be placed like any other."""
        conversation, tip = found.conversation, found.tip
        stays, seen = Address(id=found.addressed or conversation.id), _seen(conversation)
        visible = await self._store.visible(owner, conversation.id)
        shown = await _as_shown(visible)
        since = tip.view.parts[-1].first
        stored = [
            index
            for index, each in enumerate(shown)
            if each.seq >= since and each.print == history.fingerprints[at]
        ]
        if stored:  # the compaction was taken over before: only what follows its summary can be new
            from_there = [each for each in visible if each.seq >= shown[stored[-1]].seq]
            placement = await _place(from_index(history, at), from_there, awaited)
            if isinstance(placement, AnswersAgain):
                return Placement(stays, (), (), None, seen, regenerates=placement.regenerates)
            if isinstance(placement, Continues):
                new = at + placement.new_from
                chain = extended(EMPTY, history.fingerprints[:new])
                return Placement(stays, history.messages[new:], history.fingerprints[new:], chain, seen)
            if not summarises_again(history, at, shown):
                return None
        if not any(each.role == "assistant" for each in shown) or not history.fingerprints[at]:
            return None
        kept = kept_messages(history, at, shown)
        new = len(kept)
        check_results(history.messages[new:], shown, awaited)
        return Placement(
            stays,
            history.messages[new:],
            history.fingerprints[new:],
            extended(EMPTY, history.fingerprints[:new]),
            seen,
            compacts=ClientCompaction(tip.id, View.of(kept, conversation.last_seq), len(shown) - len(kept)),
        )


async def _place(history: History, visible: Sequence[Message], awaited: Sequence[str]) -> HistoryMatch:
    """Where the history belongs among these messages. A client may hold the steps of a reply as one message
    or separately, so both forms are tried."""
    placement = place(history, await _as_shown(visible), awaited)
    if isinstance(placement, Branches) and any(message.own_calls for message in visible):
        by_steps = place(history, await _as_shown(visible, apart=True), awaited)
        return placement if isinstance(by_steps, Branches) else by_steps
    return placement


async def _as_shown(messages: Sequence[Message], *, apart: bool = False) -> Sequence[VisibleMessage]:
    def shown() -> list[VisibleMessage]:
        return visible_of(as_shown(messages, apart=apart))

    return await asyncio.to_thread(shown) if len(messages) > LOOK_BACK * 4 else shown()


def _check_new(history: History) -> None:
    """Raise BadMessage if a new result answers no call of the request, with which a conversation begins."""
    calls = tuple(call for message in history.messages for call in message.calls)
    check_results(history.messages[history.answered :], (), calls)


def _is_past(history: History, chain: bytes, stored: bytes | None) -> bool:
    """True if the request's past, with fingerprint `chain`, is the whole stored history. A fingerprint stored
    by an older version is compared in its own format."""
    if stored is None:
        return False
    return chain == stored if is_current(stored) else history.past_before() == stored


def _seen(conversation: Conversation) -> ConversationVersion:
    return ConversationVersion(conversation.id, conversation.last_seq, conversation.revision)
