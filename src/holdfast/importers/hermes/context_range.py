"""Computes which of a session's rows are in its context, without reading their content.

Rows are read once, in order, and only the result is kept: the view of the imported session. Rows hidden by a
compaction stay readable and are in no range. A message that is only a summary becomes a summary part: it
replaces the earlier messages that it was made from.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import apsw

from ...domain.views import Part, Range, Summary
from .database_copy import STATEMENTS
from .home import time_of
from .reading import SUMMARY_BEGINNINGS, summary_in


@dataclass(frozen=True, slots=True)
class ContextRange:
    """A session's rows after a given row, as counts and parts of a view."""

    count: int
    """Number of messages."""
    undone: int
    parts: tuple[Part, ...]
    first_said_at: datetime | None
    kept_before: int
    """How many of its earlier rows still exist."""
    shown_before: int
    """How many of those are still in its context."""


def survey(
    home: apsw.Connection, session_id: str, after: int, first_seq: int, covers: tuple[int, int] | None = None
) -> ContextRange:
    """Compute the range of the rows after `after`.

    `first_seq`: the seq of its first message. `covers`: the messages that a summary among its first ones
    replaces; without it the summary stays a message.
    """
    parts: list[Part] = []
    begins: int | None = None
    seq, undone = first_seq, 0
    first_said_at = None
    hidden = 0
    asked = {"session": session_id, "after": after}

    def close(last: int) -> None:
        nonlocal begins
        if begins is not None and begins <= last:
            parts.append(Range(begins, last))
        begins = None

    for row, is_undone, is_hidden, timestamp, beginning in home.execute(STATEMENTS["flags"], asked):
        if is_undone:
            undone += 1
            continue
        first_said_at = first_said_at or time_of(timestamp, UTC)
        covered = covers if hidden == 0 else (covers[0] if covers else first_seq, first_seq + hidden - 1)
        text = None
        if is_hidden:
            hidden += 1
        elif covered and isinstance(beginning, str) and beginning.startswith(SUMMARY_BEGINNINGS):
            ((content,),) = home.execute(STATEMENTS["content"], {"id": row})
            text = summary_in(content)
        if is_hidden or (text and covered):
            close(seq - 1)
            if text and covered:
                parts.append(Summary(text, *covered))
        elif begins is None:
            begins = seq
        seq += 1
    parts.append(Range(begins if begins is not None else seq))
    ((kept, shown),) = home.execute(STATEMENTS["kept_before"], {"session": session_id, "row": after})
    return ContextRange(seq - first_seq, undone, tuple(parts), first_said_at, kept, shown)


def undone_before(home: apsw.Connection, session_id: str, row: int) -> list[int]:
    """Ids of rows up to this one that were undone."""
    asked = {"session": session_id, "row": row}
    return [int(id_) for (id_,) in home.execute(STATEMENTS["undone_before"], asked)]
