"""A session's view: which of the conversation's messages are its context, and in what order.

A view is a list of parts, each a range of message numbers or a summary that replaces a range. The last
range is open-ended, so it includes new messages automatically. Messages are never copied or moved for a view:
compaction, reset and resume only write a new list of parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec

from .value import Value


class Range(Value, frozen=True):
    """Messages `first` to `last`, both included; `last` None: everything from `first` on."""

    first: int
    last: int | None = None


class Summary(Value, frozen=True):
    """A text that replaces messages `first` to `last`."""

    text: str
    first: int
    last: int


Part = Range | Summary


class View(Value, frozen=True):
    parts: tuple[Part, ...]

    @classmethod
    def fresh(cls, last_seq: int) -> View:
        """An empty context: only new messages."""
        return cls((Range(last_seq + 1),))

    @classmethod
    def of(cls, seqs: Sequence[int], last_seq: int) -> View:
        """These messages, in rising order, and everything after `last_seq`."""
        parts: list[Range] = []
        for seq in seqs:
            if parts and parts[-1].last == seq - 1:
                parts[-1] = Range(parts[-1].first, seq)
            else:
                parts.append(Range(seq, seq))
        return cls((*parts, Range(last_seq + 1)))

    def encode(self) -> str:
        return msgspec.json.encode(
            [
                {"first": part.first, "last": part.last}
                if isinstance(part, Range)
                else {"summary": part.text, "first": part.first, "last": part.last}
                for part in self.parts
            ]
        ).decode()

    @classmethod
    def decode(cls, data: str) -> View:
        return _decode_short(data) if len(data) <= _SHORT else _decode(data)

    def closed_at(self, last_seq: int) -> View:
        """The same view without anything after `last_seq`. A summary that reaches further is replaced by the
        messages it covers, because it would include later messages. One of another conversation, which has no
        numbers here, goes with the messages that follow it; it stays if only new messages do."""
        parts: list[Part] = []
        for part in self.parts:
            is_whole = part.last is not None and part.last <= last_seq
            if part.first <= last_seq:
                parts.append(part if is_whole else Range(part.first, last_seq))
            elif part.last is not None:
                while parts and isinstance(parts[-1], Summary) and parts[-1].last == 0:
                    parts.pop()
            if not is_whole:
                break
        return View(tuple(parts))

    def tells_of(self, seq: int, last_seq: int) -> bool:
        """True: this message is in the context, itself or by a summary, given the newest number."""
        return any(part.first <= seq <= (last_seq if part.last is None else part.last) for part in self.parts)

    def opened_at(self, seq: int) -> View:
        """The same view, open from this message on instead of a later one."""
        return View((*self.parts[:-1], Range(seq)))

    def tells_beyond(self, last_seq: int) -> bool:
        """True: a summary tells of something after this message."""
        return self._summaries() != self.closed_at(last_seq)._summaries()

    def _summaries(self) -> list[Part]:
        return [part for part in self.parts if isinstance(part, Summary)]

    def continued_at(self, last_seq: int) -> View:
        """A closed view reopened for a session whose first message is `last_seq + 1`."""
        return View((*self.parts, Range(last_seq + 1)))


_SHORT = 100


def _decode(data: str) -> View:
    return View(
        tuple(
            Summary(part["summary"], part["first"], part["last"])
            if "summary" in part
            else Range(part["first"], part["last"])
            for part in msgspec.json.decode(data)
        )
    )


# Cached: views without a summary are short and few, and read often. Those with one would fill memory.
_decode_short = lru_cache(1024)(_decode)


class Copy(Value, frozen=True):
    """What a fork copies: these ranges of the source, renumbered from 1, shown through `view`."""

    ranges: tuple[tuple[int, int], ...]
    view: View


def plan_copy(view: View, last_seq: int, count: Callable[[int, int], int]) -> Copy:
    """How to copy `view`, up to message `last_seq`, into a new conversation.

    `count(first, last)` returns how many messages of a range will be copied (excluded and deleted ones are
    not).
    """
    ranges: list[tuple[int, int]] = []
    parts: list[Part] = []
    copied = 0
    for part in view.closed_at(last_seq).parts:
        if isinstance(part, Summary):
            parts.append(Summary(part.text, 0, 0))
            continue
        assert part.last is not None
        number = count(part.first, part.last)
        if number:
            ranges.append((part.first, part.last))
            parts.append(Range(copied + 1, copied + number))
            copied += number
    return Copy(tuple(ranges), View((*parts, Range(copied + 1))))


def spans(parts: Sequence[Part], last_seq: int) -> list[tuple[int, int]]:
    """The closed ranges of message numbers that `parts` shows, given the newest number."""
    return [
        (part.first, last_seq if part.last is None else part.last)
        for part in parts
        if isinstance(part, Range) and part.first <= (last_seq if part.last is None else part.last)
    ]
