"""A client's own compaction: recognises a history whose beginning its program has replaced by a summary.

Codex, Claude Code and pi put the summary into a user message that begins with fixed words; opencode asks a
fixed question and gives the summary as its answer. Such a history does not count as edited: it must not fork.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from .contexts import SUMMARY_HEADING
from .history import History
from .visible_messages import VisibleMessage

SUMMARY_MARKS = (
    "Another language model started to solve this problem and produced a summary",
    "This session is being continued from a previous conversation",
    "The conversation history before this point was compacted into the following summary",
    SUMMARY_HEADING,
)
"""How a user message begins by which a program replaces its own past: Codex, Claude Code, pi, and our own
compaction items."""
OPENCODE_QUESTION = "What did we do so far?"
"""The first message of a history that opencode has shortened; the answer after it is the summary."""
_MARKS = tuple(mark.encode() for mark in (*SUMMARY_MARKS, OPENCODE_QUESTION))


def summary_at(history: History) -> int | None:
    """The index of the newest message by which a client has replaced its own past with a summary."""
    for at in range(len(history.messages) - 1, -1, -1):
        message = history.messages[at]
        if message.role == "user" and any(map(message.body.__contains__, _MARKS)):
            content = msgspec.json.decode(message.body).get("content")
            parts = [{"text": content}] if isinstance(content, str) else content or ()
            for part in parts:
                text = part.get("text") if isinstance(part, Mapping) else None
                if isinstance(text, str) and text.lstrip().startswith(SUMMARY_MARKS):
                    return at
                if text == OPENCODE_QUESTION and at == 0 and history.answered:
                    return at
    return None


def summarises_again(history: History, at: int, shown: Sequence[VisibleMessage]) -> bool:
    """True: the summary at `at` is a new one, although a message like it is stored. So it is with opencode,
    whose question is always the same, if the answer after it was never stored."""
    after = history.fingerprints[at + 1 : at + 2]
    is_question = OPENCODE_QUESTION.encode() in history.messages[at].body
    return is_question and bool(after) and all(each.print != after[0] for each in shown)


def kept_messages(history: History, at: int, shown: Sequence[VisibleMessage]) -> list[int]:
    """The seqs of stored messages that the client still sends, in order, before its summary at index `at`."""
    found: list[int] = []
    left = iter(shown)
    for fingerprint in history.fingerprints[:at]:
        seq = next((each.seq for each in left if each.print == fingerprint), None)
        if seq is None:
            break
        found.append(seq)
    return found
