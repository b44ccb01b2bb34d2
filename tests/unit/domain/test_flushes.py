"""When a session is flushed, what is read for it, and what an attempt comes to: tables."""

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.domain.flushes import (
    LONGEST_PAUSE,
    WAIT,
    FlushRules,
    backlog_line,
    memory_in,
    pause_after,
    scheduled_at,
    unread,
)
from holdfast.domain.memories import HEADING, Memory, MemoryOrigin, recalled_text
from holdfast.domain.views import Part, Range, Summary, View

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("reason", "wait"),
    [
        ("idle", timedelta()),
        ("daily", timedelta()),
        ("new", timedelta()),
        ("completed", timedelta()),
        ("closed", WAIT),
        ("reaped", WAIT),
        ("compaction", None),
        ("hermes:idle", None),
    ],
)
def test_the_reason_of_its_end_says_when_a_session_is_flushed(reason: str, wait: timedelta | None) -> None:
    assert scheduled_at(FlushRules(), reason, NOW) == (None if wait is None else NOW + wait)
    assert scheduled_at(None, reason, NOW) is None


EARLIER = Summary("earlier", 3, 40)


@pytest.mark.parametrize(
    ("parts", "after", "read"),
    [
        ((Range(1),), 0, (Range(1, 50),)),
        ((Range(1),), 20, (Range(21, 50),)),
        ((Range(1),), 50, ()),
        ((Range(51),), 0, ()),
        ((Range(1, 2), EARLIER, Range(41)), 0, (Range(1, 2), EARLIER, Range(41, 50))),
        ((Range(1, 2), EARLIER, Range(41)), 20, (EARLIER, Range(41, 50))),
        ((Range(1, 2), EARLIER, Range(41)), 40, (Range(41, 50),)),
        ((Range(1, 4), Range(9)), 3, (Range(4, 4), Range(9, 50))),
        (
            (Summary("copied", 0, 0), Range(1, 5), Range(6)),
            0,
            (Summary("copied", 0, 0), Range(1, 5), Range(6, 50)),
        ),
        ((Summary("copied", 0, 0), Range(1, 5), Range(6)), 5, (Range(6, 50),)),
    ],
)
def test_a_flush_reads_what_no_earlier_one_has_read(
    parts: tuple[Part, ...], after: int, read: tuple[Part, ...]
) -> None:
    assert unread(View(parts), after, 50) == read


def test_pauses_are_doubled_and_end_with_giving_up() -> None:
    found = [pause_after(attempts, 5, timedelta(seconds=5)) for attempts in range(1, 7)]
    assert found == [timedelta(seconds=seconds) for seconds in (5, 10, 20, 40)] + [None, None]
    assert pause_after(99, 1000, timedelta(seconds=5)) == LONGEST_PAUSE


@pytest.mark.parametrize(
    "answer", ["NONE", " none\n", "None.", '"NONE"', "**NONE**", "<think>hm</think>\nNONE"]
)
def test_none_is_nothing_to_remember(answer: str) -> None:
    assert memory_in(answer) is None


@pytest.mark.parametrize("answer", ["", " \n\t", "<think>hm", "<think>hm</think> "])
def test_an_empty_answer_is_no_answer(answer: str) -> None:
    assert memory_in(answer) == ""


@pytest.mark.parametrize(
    "answer", ["NONE of them likes kelp", "None was decided, but Ada likes kelp.", "kelp"]
)
def test_anything_else_is_a_memory(answer: str) -> None:
    assert memory_in(f"{answer}\n") == answer


def test_a_backlog_is_told_with_how_long_it_takes() -> None:
    assert backlog_line(1204, 30) == (
        "1,204 sessions become due; about 41 min at 30 a minute; `holdfast memories skip --before DATE`"
    )
    assert "about 56 h at 30 a minute" in backlog_line(100_000, 30)


def memory(text: str) -> Memory:
    return Memory("mem_1", "ada", "conv_1", None, None, text, MemoryOrigin.FLUSH, NOW)


def test_memories_are_told_whole_newest_last_while_there_is_room() -> None:
    newest_first = [memory("c" * 50), memory("b" * 50), memory("a" * 50)]
    whole = recalled_text(newest_first, 1000)
    assert whole == "\n".join((HEADING, *(f"- (2026-03-01) {letter * 50}" for letter in "abc")))
    for room in range(len(whole)):
        text = recalled_text(newest_first, room)
        assert text is None or (len(text) <= room and text.endswith("c" * 50))
    assert recalled_text(newest_first, len(whole) - 1) == "\n".join(
        (HEADING, *(f"- (2026-03-01) {letter * 50}" for letter in "bc"))
    )
    assert recalled_text([], 1000) is None
