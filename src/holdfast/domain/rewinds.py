"""Rewinding a conversation: which messages led to a message, given all rewinds so far; and which replies a
retry replaces.

A rewind is remembered as two numbers: the message after `at` follows `to`. So a conversation that was rewound
and continued is a tree, and each of its messages has exactly one path to the beginning. Nothing is deleted:
rewinding to a message that was left, earlier or later, restores its path.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .messages import Message
from .sessions import Session
from .value import Value

REWOUND = "rewound"
"""Why a message is excluded."""


class Rewind(Value, frozen=True):
    """The message that is stored after number `at` follows message `to`; 0: it is the first."""

    at: int
    to: int


class Rewound(Value, frozen=True):
    """A conversation after a rewind."""

    session: Session
    """The session that continues it."""
    to: int
    """The number of the newest message in the context now; 0: there is none."""
    left: int
    """How many messages left the context."""
    restored: int
    """How many messages came back to it."""


def path_to(seq: int, rewinds: Iterable[Rewind]) -> list[tuple[int, int]]:
    """First and last numbers of the messages that led to message `seq`, itself included, oldest first."""
    spans: list[tuple[int, int]] = []
    last = seq
    for rewind in sorted(rewinds, key=lambda each: each.at, reverse=True):
        if rewind.at < last:
            spans.append((rewind.at + 1, last))
            last = rewind.to
    if last > 0:
        spans.append((1, last))
    return spans[::-1]


def gaps_in(spans: Sequence[tuple[int, int]], last_seq: int) -> list[tuple[int, int]]:
    """The spans of 1 to `last_seq` that are in none of these, which are in order."""
    gaps: list[tuple[int, int]] = []
    expected = 1
    for first, last in spans:
        if first > expected:
            gaps.append((expected, first - 1))
        expected = last + 1
    if expected <= last_seq:
        gaps.append((expected, last_seq))
    return gaps


RETRY_LOOKS_AT = 200
"""Newest messages among which the one to answer again is looked for."""


def replies_to_person(visible: Sequence[Message]) -> tuple[int, ...] | None:
    """Seqs of the replies to the last message of a person, which answering it again replaces; None: the
    newest of these messages, oldest first, are not replies to a person's."""
    replies: list[int] = []
    for message in reversed(visible):
        if message.role == "user":
            return tuple(reversed(replies))
        if message.role != "assistant":
            return None
        replies.append(message.seq)
    return None
