"""Matches a request's message history with the stored conversation: what is new, and where it belongs.

OpenAI clients send the whole conversation each time. Some trim it, some send only what is new, some edit it
or regenerate. The stored conversation is compared with it message by message, by *fingerprint*
(`fingerprints.py`): what a message means, whatever fields a client adds or drops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import BadMessage, ToolCallClosed
from .fingerprints import chain_before, fingerprint_of, overlap
from .messages import NewMessage
from .new_messages import new_message
from .value import Value
from .visible_messages import VisibleMessage

INSTRUCTING = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True)
class History:
    """The messages of a request: its instructions and its conversation."""

    instructions: tuple[NewMessage, ...]
    """Leading system and developer messages: for this turn only, never stored."""
    messages: tuple[NewMessage, ...]
    fingerprints: tuple[bytes, ...]
    answered: int
    """How many of the messages precede the new ones: all up to the last assistant message that has
    content."""
    past: Sequence[Any] = field(default=(), compare=False, repr=False)
    """Those messages, unchanged."""

    def past_before(self) -> bytes:
        """The chain of the past as older versions computed it; stores may hold it."""
        return chain_before(self.past)

    @property
    def brings_history(self) -> bool:
        return self.answered > 0 or len(self.messages) > 1


class Continues(Value, frozen=True):
    """The stored conversation continues: messages from index `new_from` on are new. If none is new, the
    newest stored message, which is unanswered, is answered now."""

    new_from: int


class AnswersAgain(Value, frozen=True):
    """Nothing is new: the newest user message is answered again, and these replies leave the context."""

    regenerates: tuple[int, ...]


class Branches(Value, frozen=True):
    """The history differs: fork after message `seq` of `session_id` (None: nothing in common) and continue
    with the messages from index `new_from` on."""

    session_id: str | None
    seq: int
    new_from: int


HistoryMatch = Continues | AnswersAgain | Branches


def from_index(history: History, first: int) -> History:
    """The history without its first messages."""
    return replace(
        history,
        messages=history.messages[first:],
        fingerprints=history.fingerprints[first:],
        answered=max(0, history.answered - first),
        past=history.past[first:],
    )


def history_of(values: Sequence[Any]) -> History:
    """Validate the messages of a request. BadMessage names the first invalid one."""
    if not isinstance(values, list) or not values:
        raise BadMessage("messages must be a list with at least one message")
    checked = []
    for index, value in enumerate(values):
        try:
            message = new_message(value)
            if message.role == "user" and value.get("content") is None:
                raise BadMessage("a user's message must have content")
            checked.append(message)
        except BadMessage as error:
            raise BadMessage(f"messages[{index}]: {error}") from None
    leading = 0
    while leading < len(checked) and checked[leading].role in INSTRUCTING:
        leading += 1
    messages = tuple(checked[leading:])
    if not messages:
        raise BadMessage("messages hold only instructions; at least one user or tool message is needed")
    fingerprints = tuple(fingerprint_of(value) for value in values[leading:])
    answered = max(
        (at + 1 for at, each in enumerate(messages) if each.role == "assistant" and fingerprints[at]),
        default=0,
    )
    past = values[leading : leading + answered] if answered else ()
    return History(tuple(checked[:leading]), messages, fingerprints, answered, past)


def place(history: History, shown: Sequence[VisibleMessage], awaited: Sequence[str] = ()) -> HistoryMatch:
    """Where a request's messages belong in a conversation with these visible messages.

    `awaited` are the calls whose results may still arrive. Raises ToolCallClosed for a result of any other
    call that the conversation knows. Assistant messages without content are skipped on both sides.
    """
    kept = [at for at, each in enumerate(history.fingerprints) if each]
    said = [each for each in shown if each.print]
    if not kept or (len(kept) == len(history.messages) and len(said) == len(shown)):
        return _place(history, shown, awaited)
    answered = sum(at < history.answered for at in kept)
    messages, fingerprints = zip(
        *((history.messages[at], history.fingerprints[at]) for at in kept), strict=True
    )
    spoken = replace(history, messages=messages, fingerprints=fingerprints, answered=answered)
    placed = _place(spoken, said, awaited)
    blank = [each.seq for each in shown if not each.print]
    if isinstance(placed, AnswersAgain):
        first = min(placed.regenerates)
        return AnswersAgain(tuple(sorted((*placed.regenerates, *(seq for seq in blank if seq > first)))))
    new_from = kept[placed.new_from] if placed.new_from < len(kept) else len(history.messages)
    if isinstance(placed, Continues) and new_from == len(history.messages):
        last = said[-1].seq if said else 0
        later = tuple(seq for seq in blank if seq > last)
        return AnswersAgain(later) if later else Continues(new_from)
    return replace(placed, new_from=new_from)


def _place(history: History, shown: Sequence[VisibleMessage], awaited: Sequence[str]) -> HistoryMatch:
    for remembered in _remembered(shown):
        placed = _placed(history, remembered)
        if isinstance(placed, Continues):
            nothing_new = placed.new_from == len(history.messages)
            return AnswersAgain(_cut_short(shown)) if nothing_new and shown[-1].interrupted else placed
        if placed is not None and remembered[-1] is shown[-1]:
            return placed
    if not history.answered:
        check_results(history.messages, shown, awaited)
        return Continues(0)
    common = 0
    while common < min(len(history.messages), len(shown)) and _same(history, common, shown[common]):
        common += 1
    check_results(history.messages[max(common, history.answered) :], shown, awaited)
    if common == 0:
        return Branches(None, 0, 0)
    return Branches(shown[common - 1].session_id, shown[common - 1].seq, common)


def _remembered(shown: Sequence[VisibleMessage]) -> Iterator[Sequence[VisibleMessage]]:
    """What a client may have kept: everything; without interrupted replies; or also without failed turns."""
    yield shown
    whole = [each for each in shown if not each.interrupted]
    if len(whole) < len(shown):
        yield whole
    answered = [each for each in whole if not each.unanswered]
    if len(answered) < len(whole):
        yield answered


def _cut_short(shown: Sequence[VisibleMessage]) -> tuple[int, ...]:
    """Seqs of the interrupted replies at the end, if any."""
    whole = len(shown)
    while whole and shown[whole - 1].interrupted:
        whole -= 1
    return tuple(each.seq for each in shown[whole:])


def _placed(history: History, shown: Sequence[VisibleMessage]) -> Continues | AnswersAgain | None:
    cut_short = len(_cut_short(shown))
    return (
        _asked_again(history, shown, whole=not cut_short)
        or _continued(history, shown[: len(shown) - cut_short])  # the client dropped the interrupted replies
        or _continued(history, shown)
        or _asked_again(history, shown)
    )


def _continued(history: History, shown: Sequence[VisibleMessage]) -> Continues | None:
    """Match if the request's past is the end of the stored conversation, complete or trimmed at its
    beginning. Unanswered stored messages may follow it; those that the request repeats are not new."""
    answered, messages = history.answered, history.messages
    past = len(shown)
    while past and shown[past - 1].role != "assistant":
        past -= 1
    if past < answered or not _equal(history, 0, shown[past - answered : past]):
        return None
    repeated = _repeated(history, shown[past:])
    if answered:
        return Continues(answered + repeated)
    if not repeated or (len(messages) == 1 and messages[0].answers is None):
        return None  # a single message is new, even if an identical one is stored
    return Continues(repeated)


def _repeated(history: History, unanswered: Sequence[VisibleMessage]) -> int:
    """How many of the new messages are already stored, unanswered. All may be, if the conversation ends with
    them; if other messages follow, at least one must be new."""
    new = len(history.messages) - history.answered
    if count := overlap(history.fingerprints[history.answered :], [each.print for each in unanswered]):
        return count
    count = 0
    for each in unanswered:
        if count + 1 < new and _same(history, history.answered + count, each):
            count += 1
    return count


def _asked_again(
    history: History, shown: Sequence[VisibleMessage], *, whole: bool = False
) -> AnswersAgain | None:
    """Match if the request is everything before the newest replies or, unless `whole`, the end of it."""
    first = len(shown)
    while first and shown[first - 1].role == "assistant":
        first -= 1
    count = len(history.messages)
    if first == len(shown) or first < count or not history.brings_history:
        return None
    if first != count and (whole or not history.answered):
        return None  # a few messages without history are new, even if identical ones are stored
    if not _equal(history, 0, shown[first - count : first]):
        return None
    return AnswersAgain(tuple(each.seq for each in shown[first:]))


def _equal(history: History, start: int, shown: Sequence[VisibleMessage]) -> bool:
    """True if the request's messages from index `start` on equal all of `shown`."""
    if len(history.messages) - start < len(shown):
        return False
    return all(_same(history, start + at, each) for at, each in enumerate(shown))


def _same(history: History, at: int, shown: VisibleMessage) -> bool:
    return history.fingerprints[at] == shown.print or shown.may_be(history.messages[at])


def check_results(new: Sequence[NewMessage], shown: Sequence[VisibleMessage], awaited: Sequence[str]) -> None:
    """Raise unless each result is for an awaited call or is part of the request's own history."""
    open_calls = {call for message in new for call in message.calls}.union(awaited)
    called = {call for each in shown for call in each.calls}
    for message in new:
        call = message.answers
        if call is None or call in open_calls:
            continue
        if call in called:
            raise ToolCallClosed(call)
        raise BadMessage(f"tool_call_id {call!r} answers no call of this conversation")
