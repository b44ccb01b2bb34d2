"""Compares what clients received from killed servers, and what the model was sent, with what is stored.

`Reckoning.so_far` checks what is new since the last call, while clients keep sending: all that was
acknowledged before the call must be there. `Reckoning.at_the_end` reads everything, when no client sends any
more. What is wrong is reported in sentences, as in the store's crash suite:

    lost        acknowledged, and not found or not word for word
    doubled     one message stored twice, in two turns or two conversations; two replies; a call too many
    untruthful  a turn stored as running that is not, or whose end does not match its messages;
                a model that was sent anything but the earlier messages, in order, once
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import zip_longest

from holdfast.domain.contexts import INTERRUPTED
from holdfast.domain.messages import Message, MessageStatus
from holdfast.domain.nodes import Liveness
from holdfast.domain.turns import TurnStatus
from holdfast.errors import NotFound
from holdfast.store.store import Store
from holdfast.store.values import SessionFilter
from tests import quiet_time

from .exchanges import Exchange, Ledger, Owed
from .upstream import Call, call_of

SETTLED_SECONDS = 2.0
"""In time that other work has left to this machine, and never longer than LONGEST_SECONDS."""
LONGEST_SECONDS = 60.0
SLACK_SECONDS = 0.75
"""How late a checkpoint may be, beside the time for which this machine has other things to do."""


class Verdict:
    def __init__(self, wrong: Sequence[str] = ()) -> None:
        self.lost: list[str] = []
        self.doubled: list[str] = list(wrong)
        self.untruthful: list[str] = []

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.untruthful)

    def __str__(self) -> str:
        parts = [f"{name}: {found[:5]}" for name, found in vars(self).items() if found]
        return "; ".join(parts) or "nothing lost, doubled or untruthful"


class Reckoning:
    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.slowest_settling = 0.0
        self.oldest_lost_word: dict[float, float] = {}
        """By `checkpoint_seconds`: how long before a kill the oldest word was heard that is not stored."""
        self._accepted = self._answered = self._owed = self._called = 0

    # --- while it goes on ----------------------------------------------------------------------------

    async def so_far(self, store: Store, calls: Sequence[Call]) -> Verdict:
        verdict = Verdict(self.ledger.wrong)
        accepted, answered, owed = len(self.ledger.accepted), len(self.ledger.answered), len(self.ledger.owed)
        for exchange in self.ledger.accepted[self._accepted : accepted]:
            await self._stored_once(store, exchange, verdict)
        for exchange in self.ledger.answered[self._answered : answered]:
            await self._answered_once(store, exchange, verdict)
        for owed_words in self.ledger.owed[self._owed : owed]:
            await self._kept(store, owed_words, verdict)
        for call in calls[self._called :]:
            _looks_right(call, calls, verdict)
        self._accepted, self._answered, self._owed, self._called = accepted, answered, owed, len(calls)
        return verdict

    async def _stored_once(self, store: Store, exchange: Exchange, verdict: Verdict) -> None:
        try:
            turn = await store.turn(None, exchange.turn)
        except NotFound:
            verdict.lost.append(f"{exchange} was accepted as {exchange.turn}, which is not there")
            return
        said = [message for message in await store.turn_messages(turn.id) if message.role == "user"]
        if [text_of(message) for message in said] != [exchange.text]:
            verdict.lost.append(f"{exchange} was accepted; {turn.id} holds {[text_of(m) for m in said]}")

    async def _answered_once(self, store: Store, exchange: Exchange, verdict: Verdict) -> None:
        turn = await store.turn(None, exchange.turn)
        replies = whole_replies(await store.turn_messages(turn.id))
        if turn.status is not TurnStatus.COMPLETED or exchange.answer not in replies:
            verdict.lost.append(
                f"the answer to {exchange} was {exchange.answer!r:.60}; {turn.id} is {turn.status.value} "
                f"and holds {replies!r:.60}"
            )

    async def _kept(self, store: Store, owed: Owed, verdict: Verdict) -> None:
        """Words that were heard long enough before the kill are in some reply of their turn."""
        call = call_of(owed.text)
        assert call is not None, f"nobody says {owed.text!r:.60}"
        kept = ""
        for message in await store.turn_messages(owed.turn):
            text = text_of(message)
            if message.role == "assistant" and call_of(text) == call:
                kept = max(kept, text, key=len)
        if not (kept.startswith(owed.text) or owed.text.startswith(kept)):
            verdict.lost.append(f"{owed.turn}: heard {owed.text!r:.80}, kept is {kept!r:.80}")
        age, limit = owed.age_of(len(kept)), owed.checkpoint_seconds
        self.oldest_lost_word[limit] = max(age, self.oldest_lost_word.get(limit, 0.0))
        if age > limit + SLACK_SECONDS:
            verdict.lost.append(
                f"{owed.turn}: a word heard {age:.2f} s before the kill is gone ({limit} s); "
                f"heard {len(owed.text)}, kept {len(kept)}"
            )

    async def settled(self, store: Store, cut: Sequence[str]) -> Verdict:
        """Wait until nothing hangs on a dead node and no turn that was cut short is said to run on one."""
        verdict = Verdict()
        since, until = quiet_time.now(), time.monotonic() + LONGEST_SECONDS
        while True:
            nodes = await store.nodes()
            proofs = await store.probe(nodes)
            dead = [node.id for node in nodes if proofs[node.id][0] is Liveness.DEAD]
            left = await store.leftovers(also=dead)
            living = {node.id for node in nodes} - set(dead)
            waiting = [*left.conversations, *left.sessions]
            for turn_id in cut:
                turn = await store.turn(None, turn_id)
                if turn.status is TurnStatus.RUNNING and turn.node_id not in living:
                    waiting.append(turn_id)
            took = quiet_time.now() - since
            if not waiting:
                self.slowest_settling = max(self.slowest_settling, took)
                return verdict
            if took > SETTLED_SECONDS or time.monotonic() > until:
                verdict.untruthful.append(f"{took:.1f} s after the restart these wait: {waiting[:5]}")
                return verdict
            await store.changed(store.version(), 0.05)

    # --- at the end ----------------------------------------------------------------------------------

    async def at_the_end(self, store: Store, calls: Sequence[Call]) -> Verdict:
        """Read everything. Nobody speaks any more, and every message was answered or overtaken."""
        self._accepted = self._answered = self._owed = self._called = 0
        verdict = await self.so_far(store, calls)
        by_tag: dict[str, list[Call]] = defaultdict(list)
        for call in calls:
            by_tag[call.tag].append(call)
        where: dict[str, str] = {}
        chats: dict[str, set[int]] = defaultdict(set)
        for conversation_id in await conversations(store):
            messages = (await store.messages(None, conversation_id)).items
            self._numbered(conversation_id, messages, verdict)
            for turn in in_turns(messages, conversation_id, verdict):
                await self._one_turn(store, turn, where, by_tag, verdict)
            await self._given(store, messages, by_tag, verdict)
            for message in messages:
                exchange = self.ledger.exchanges.get(tag_of(message)) if message.role == "user" else None
                if exchange is not None:
                    chats[conversation_id].add(exchange.chat.number)
        self._one_conversation_each(chats, verdict)
        for exchange in self.ledger.exchanges.values():
            if exchange.settled and exchange.tag not in where:
                verdict.lost.append(f"{exchange} is nowhere")
            if not exchange.settled:
                verdict.untruthful.append(f"{exchange} was never answered, after {exchange.tries} tries")
        return verdict

    def _numbered(self, conversation_id: str, messages: Sequence[Message], verdict: Verdict) -> None:
        numbers = [message.seq for message in messages]
        if numbers != list(range(1, len(numbers) + 1)):
            verdict.lost.append(f"{conversation_id} has gaps: {numbers}")

    async def _one_turn(
        self,
        store: Store,
        messages: Sequence[Message],
        where: dict[str, str],
        by_tag: dict[str, list[Call]],
        verdict: Verdict,
    ) -> None:
        """A turn is one message, at most one whole reply, at most one call of the model for each attempt."""
        turn = await store.turn(None, messages[0].turn_id or "")
        tags = [tag_of(message) for message in messages if message.role == "user"]
        if len(tags) != 1:
            verdict.doubled.append(f"{turn.id} holds the messages {tags}")
            return
        (tag,) = tags
        exchange = self.ledger.exchanges[tag]
        if tag in where:
            verdict.doubled.append(f"{exchange} is in {where[tag]} and in {turn.id}")
        where[tag] = turn.id
        if text_of(messages[0]) != exchange.text:
            verdict.lost.append(f"{exchange} is not the first of {turn.id}, or not word for word")
        if exchange.turn not in ("", turn.id):
            verdict.doubled.append(f"{exchange} was accepted as {exchange.turn} and is in {turn.id}")
        replies = whole_replies(messages)
        expected = [] if exchange.answer is None else [exchange.answer]
        if replies != expected:
            verdict.doubled.append(
                f"{exchange} has the replies {replies!r:.100}; its client heard {expected!r:.60}"
            )
        ended = TurnStatus.COMPLETED if exchange.answer is not None else TurnStatus.INTERRUPTED
        if turn.status is not ended and (turn.status is not TurnStatus.FAILED or replies):
            verdict.untruthful.append(
                f"{turn.id} of {exchange} is {turn.status.value} instead of {ended.value}"
            )
        if len(by_tag[tag]) > turn.attempt:
            verdict.doubled.append(
                f"{exchange}: {len(by_tag[tag])} calls of the model in {turn.attempt} attempts"
            )
        for message in messages:
            call = call_of(text_of(message)) if message.role == "assistant" else None
            if call is None:
                continue
            number, whole = call
            if number not in [known.number for known in by_tag[tag]]:
                verdict.untruthful.append(f"{exchange} is answered by call {number}, which was not asked it")
            if message.status is MessageStatus.COMPLETED and text_of(message) != whole:
                verdict.untruthful.append(f"{exchange}: {text_of(message)!r:.60} is called whole")

    async def _given(
        self, store: Store, messages: Sequence[Message], by_tag: dict[str, list[Call]], verdict: Verdict
    ) -> None:
        """What the model was given: all that was said before, each thing once; of this turn, the message."""
        said: list[tuple[str, str]] = []
        for turn in in_turns(messages, "", Verdict()):
            said.append(("user", text_of(turn[0])))
            for call in by_tag[tag_of(turn[0])]:
                if call.messages != said:
                    pairs = enumerate(zip_longest(call.messages, said))
                    differs = next((at, got, wanted) for at, (got, wanted) in pairs if got != wanted)
                    verdict.untruthful.append(
                        f"call {call.number} ({call.tag}) got {len(call.messages)}, not {len(said)} messages "
                        f"and they differ at (number, given, said) {differs!r:.300}"
                    )
            # Of a turn that nobody answered, what its last attempt left is said too, marked as cut short. It
            # was written in the moment the turn ended.
            ended_at = (await store.turn(None, turn[0].turn_id or "")).ended_at
            cut = [m for m in turn if m.status is MessageStatus.INTERRUPTED and m.created_at == ended_at]
            if replies := whole_replies(turn):
                said.append(("assistant", replies[0]))
            elif cut:
                said.append(("assistant", f"{text_of(cut[-1])}\n\n{INTERRUPTED}"))

    def _one_conversation_each(self, chats: dict[str, set[int]], verdict: Verdict) -> None:
        found: Counter[int] = Counter()
        for conversation_id, numbers in chats.items():
            if len(numbers) > 1:
                verdict.doubled.append(f"{conversation_id} mixes the chats {sorted(numbers)}")
            found.update(numbers)
        kinds = {exchange.chat.number: exchange.chat.kind for exchange in self.ledger.exchanges.values()}
        for number, count in found.items():
            if count > 1:
                verdict.doubled.append(f"chat {number} ({kinds[number]}) is in {count} conversations")


def _looks_right(call: Call, calls: Sequence[Call], verdict: Verdict) -> None:
    """What can be seen before the end: the model is given a message once, and nothing of its own answer."""
    if sum(text.partition(" ")[0] == call.tag for _, text in call.messages) != 1:
        verdict.doubled.append(f"call {call.number} got {call.tag} more than once")
    for role, text in call.messages:
        before = call_of(text) if role == "assistant" else None
        if before is not None and calls[before[0]].tag == call.tag:
            verdict.untruthful.append(f"call {call.number} for {call.tag} got what call {before[0]} had said")


async def conversations(store: Store) -> list[str]:
    """Every conversation there is."""
    found: dict[str, None] = {}
    after = None
    while True:
        page = await store.sessions(SessionFilter(None), after=after, limit=500)
        found.update(dict.fromkeys(session.conversation_id for session in page.items))
        if not page.has_more:
            return list(found)
        after = page.items[-1].id


def in_turns(messages: Sequence[Message], conversation_id: str, verdict: Verdict) -> list[list[Message]]:
    """A conversation's messages, turn by turn; turns do not interleave."""
    turns: dict[str | None, list[Message]] = {}
    last: str | None = None
    for message in messages:
        if message.turn_id in turns and message.turn_id != last:
            verdict.untruthful.append(f"{conversation_id}: {message.turn_id} goes on behind another turn")
        turns.setdefault(message.turn_id, []).append(message)
        last = message.turn_id
    return list(turns.values())


def whole_replies(messages: Sequence[Message]) -> list[str]:
    return [
        text_of(message)
        for message in messages
        if message.role == "assistant" and message.status is MessageStatus.COMPLETED
    ]


def text_of(message: Message) -> str:
    return str(message.content()["content"])


def tag_of(message: Message) -> str:
    return text_of(message).partition(" ")[0]
