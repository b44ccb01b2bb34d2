"""Records what was acknowledged, and compares it with what is stored.

A ledger holds the records of any number of processes and restarts. `Comparison` reads the store as a client
would and reports, in sentences, what is wrong:

    lost        acknowledged, and not found (or not with that body, under that number, in that state)
    doubled     one message under two numbers, one request in two turns, one call answered twice
    gaps        numbers of a conversation that are not 1, 2, 3, …
    untruthful  after reaping: a turn still running, completed without a reply, a draft or a call left open
    findings    what `store.check()` reports

It continues where it stopped, so a comparison after each of many kills stays cheap. A new one reads
everything.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from holdfast.domain.contexts import OUTCOME_UNKNOWN
from holdfast.domain.conversations import Address
from holdfast.domain.messages import Message, MessageStatus
from holdfast.domain.turns import TurnStatus
from holdfast.errors import NotFound
from holdfast.store.store import Store

from .records import (
    ACKNOWLEDGEMENTS,
    OWNER,
    Asked,
    Begun,
    Drafted,
    Known,
    Record,
    Refused,
    Replied,
    Said,
    asked_tag,
    message_of,
)


@dataclass(frozen=True)
class Expected:
    """An acknowledged message: it stands under this number."""

    conversation: str
    number: int
    tag: str


class Ledger:
    def __init__(self) -> None:
        self.expected: list[Expected] = []
        self.drafts: list[Drafted] = []
        self.chats: set[str] = set()
        self.turns: dict[str, str] = {}
        """The turn each request stands for."""
        self.replied: set[str] = set()
        """Turns whose reply was acknowledged."""
        self.open: dict[str, Asked] = {}
        """Requests that were made and whose reply nobody has seen."""
        self.refused: list[Refused] = []
        self.doubled: list[str] = []
        self.acknowledged = 0
        self.taken_up = 0

    def note(self, record: Record) -> None:
        self.acknowledged += isinstance(record, ACKNOWLEDGEMENTS)
        match record:
            case Asked(request, chat):
                self.chats.add(chat)
                self.open[request] = record
            case Begun(request, turn, conversation, first, taken_up):
                self._stands_for(request, turn)
                self.taken_up += taken_up
                self.expected.append(Expected(conversation, first, asked_tag(request)))
            case Said(_, conversation, last, tags):
                first = last - len(tags) + 1
                self.expected += [Expected(conversation, first + at, tag) for at, tag in enumerate(tags)]
            case Drafted():
                self.drafts.append(record)
            case Replied(request, turn, conversation, last, tag):
                self.expected.append(Expected(conversation, last, tag))
                self.replied.add(turn)
                self.open.pop(request, None)
            case Known(request, turn, _):
                if turn:
                    self._stands_for(request, turn)
                self.open.pop(request, None)
            case Refused():
                self.refused.append(record)
            case _:
                pass

    def _stands_for(self, request: str, turn: str) -> None:
        known = self.turns.setdefault(request, turn)
        if known != turn:
            self.doubled.append(f"request {request} stands for the turns {known} and {turn}")


@dataclass
class Verdict:
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    untruthful: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.gaps or self.untruthful or self.findings)

    def __str__(self) -> str:
        parts = [f"{name}: {found[:5]}" for name, found in vars(self).items() if found]
        return "; ".join(parts) or "nothing lost, doubled or untruthful"


class Comparison:
    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.messages = 0
        self.found: dict[tuple[str, int], str] = {}
        self._where: dict[str, tuple[str, int]] = {}
        self._read_upto: Counter[str] = Counter()
        self._answers: Counter[str] = Counter()
        self._interrupted: dict[str, str] = {}
        self._compared = 0
        self._settled_turns: set[str] = set()
        self._drafts_compared = 0

    async def run(self, store: Store, *, settled: bool = True) -> Verdict:
        """Read what is new and compare. `settled`: nobody is writing and the dead were reaped."""
        verdict = Verdict(doubled=list(self.ledger.doubled))
        for chat in sorted(self.ledger.chats):
            try:
                place = await store.resolve(OWNER, Address(key=chat, create=False))
            except NotFound:
                continue  # if anything in it was acknowledged, that is missed below
            await self._read(store, place.conversation.id, place.conversation.last_seq, verdict)
        self._compare_messages(verdict)
        await self._compare_turns(store, settled, verdict)
        await self._compare_drafts(store, settled, verdict)
        if settled:
            verdict.untruthful += [f"{call} is open" for call, n in self._answers.items() if n < 1]
        verdict.findings += [f"{f.invariant}: {f.count} {list(f.examples)}" for f in await store.check()]
        return verdict

    async def _read(self, store: Store, conversation: str, last: int, verdict: Verdict) -> None:
        page = await store.messages(OWNER, conversation, first=self._read_upto[conversation] + 1)
        for message in page.items:
            self._read_upto[conversation] += 1
            if message.seq != self._read_upto[conversation]:
                verdict.gaps.append(
                    f"{conversation}: {message.seq} follows {self._read_upto[conversation] - 1}"
                )
                self._read_upto[conversation] = message.seq
            self._take(message, verdict)
        if self._read_upto[conversation] < last:
            verdict.gaps.append(f"{conversation}: ends at {self._read_upto[conversation]} instead of {last}")

    def _take(self, message: Message, verdict: Verdict) -> None:
        """Note a message that was found, and see that it is whole and there for the first time."""
        self.messages += 1
        here = (message.conversation_id, message.seq)
        content = message.content()
        text = str(content["content"])
        for call in content.get("tool_calls", ()):
            self._answers.setdefault(call["id"], 0)
        if message.role == "tool":
            call_id = content["tool_call_id"]
            self._answers[call_id] += 1
            if self._answers[call_id] > 1:
                verdict.doubled.append(f"{call_id} is answered twice, again at {here}")
        if message.status is MessageStatus.INTERRUPTED:
            self._interrupted[message.turn_id or ""] = self._interrupted.get(message.turn_id or "", "") + text
            return
        if message.role == "tool" and text == OUTCOME_UNKNOWN:
            return
        tag = text.partition(" ")[0]
        if message.body != message_of(tag).body:
            verdict.lost.append(f"{here} holds another body than {tag} had")
        if self._where.setdefault(tag, here) != here:
            verdict.doubled.append(f"{tag} is at {self._where[tag]} and at {here}")
        self.found[here] = tag

    def _compare_messages(self, verdict: Verdict) -> None:
        for wanted in self.ledger.expected[self._compared :]:
            found = self.found.get((wanted.conversation, wanted.number))
            if found != wanted.tag:
                elsewhere = self._where.get(wanted.tag, "nowhere")
                verdict.lost.append(
                    f"{wanted.tag} was acknowledged as {wanted.conversation} {wanted.number}, "
                    f"where {found} is; it is {elsewhere}"
                )
        self._compared = len(self.ledger.expected)

    async def _compare_turns(self, store: Store, settled: bool, verdict: Verdict) -> None:
        for request, turn_id in self.ledger.turns.items():
            if turn_id in self._settled_turns:
                continue
            try:
                turn = await store.turn(OWNER, turn_id)
            except NotFound:
                verdict.lost.append(f"{turn_id} of request {request} was acknowledged")
                continue
            ended = turn.status in (TurnStatus.COMPLETED, TurnStatus.INTERRUPTED)
            if turn_id in self.ledger.replied and turn.status is not TurnStatus.COMPLETED:
                verdict.lost.append(f"{turn_id} is {turn.status.value}; its reply was acknowledged")
            elif settled and not ended:
                verdict.untruthful.append(f"{turn_id} is {turn.status.value} and nobody works on it")
            if turn.status is TurnStatus.COMPLETED:
                self._settled_turns.add(turn_id)
                replies = [
                    m for m in await store.turn_messages(turn_id) if m.body.startswith(b'{"role":"assi')
                ]
                if not replies or replies[-1].status is not MessageStatus.COMPLETED:
                    verdict.untruthful.append(f"{turn_id} is completed and has no reply")

    async def _compare_drafts(self, store: Store, settled: bool, verdict: Verdict) -> None:
        """An acknowledged draft is on record, and its reply was given or kept as an interrupted one."""
        for draft in self.ledger.drafts[self._drafts_compared :]:
            kept = {row.first_event: row for row in await store.drafts(draft.turn)}.get(draft.event)
            if kept is None or (kept.events, kept.adds) != (draft.text.encode(), {"content": draft.text}):
                verdict.lost.append(f"draft {draft.event} of {draft.turn}: {kept}")
            kept_text = draft.reply in self._where or draft.text in self._interrupted.get(draft.turn, "")
            if settled and not kept_text:
                verdict.untruthful.append(f"draft {draft.event} of {draft.turn} is not in its reply")
        if settled:
            self._drafts_compared = len(self.ledger.drafts)
