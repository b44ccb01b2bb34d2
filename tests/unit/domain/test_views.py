"""Views: which messages are a session's context."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.views import Copy, Part, Range, Summary, View, plan_copy, spans


def view(*parts: Part) -> View:
    return View(parts)


COPIED = view(Range(1, 2), Summary("s", 0, 0), Range(3, 4), Range(5))


def shown(parts: tuple[Part, ...], last_seq: int) -> list[int]:
    """The numbers a view shows, in order."""
    return [seq for first, last in spans(parts, last_seq) for seq in range(first, last + 1)]


@pytest.mark.parametrize(
    "kept",
    [
        View(()),
        View.fresh(0),
        View.fresh(41),
        view(Range(1, 4), Range(9)),
        view(Summary('she said "hi"\n日本 \U0001f600', 1, 8), Range(9, 12), Range(20)),
        view(Summary("", 0, 0), Range(1)),
    ],
)
def test_a_view_survives_being_written_down(kept: View) -> None:
    assert View.decode(kept.encode()) == kept


def test_a_fresh_view_shows_only_what_is_said_from_now_on() -> None:
    fresh = View.fresh(7)
    assert shown(fresh.parts, 7) == []
    assert shown(fresh.parts, 9) == [8, 9]


@pytest.mark.parametrize(
    ("whole", "last_seq", "closed"),
    [
        (view(Range(1)), 5, view(Range(1, 5))),
        (view(Range(1)), 0, view()),
        (view(Range(6)), 5, view()),
        (view(Range(1, 4), Range(9)), 12, view(Range(1, 4), Range(9, 12))),
        (view(Range(1, 4), Range(9)), 8, view(Range(1, 4))),
        (view(Range(1, 4), Range(9)), 3, view(Range(1, 3))),
        (view(Summary("s", 1, 8), Range(9)), 12, view(Summary("s", 1, 8), Range(9, 12))),
        (view(Summary("s", 1, 8), Range(9)), 8, view(Summary("s", 1, 8))),
        # The summary would tell of messages 6 to 8, which had not been said yet.
        (view(Summary("s", 1, 8), Range(9)), 5, view(Range(1, 5))),
        (view(Summary("a", 1, 4), Summary("b", 5, 8), Range(9)), 6, view(Summary("a", 1, 4), Range(5, 6))),
        (view(Summary("carried over", 0, 0), Range(1)), 0, view(Summary("carried over", 0, 0))),
        # A summary of another conversation, with messages that were copied after it.
        (COPIED, 0, view()),
        (COPIED, 1, view(Range(1, 1))),
        (COPIED, 2, view(Range(1, 2))),
        (COPIED, 3, view(Range(1, 2), Summary("s", 0, 0), Range(3, 3))),
        (COPIED, 4, view(Range(1, 2), Summary("s", 0, 0), Range(3, 4))),
        (COPIED, 6, view(Range(1, 2), Summary("s", 0, 0), Range(3, 4), Range(5, 6))),
        (view(Range(1, 2), Summary("s", 0, 0), Range(3)), 1, view(Range(1, 1))),
        (view(Range(1, 2), Summary("s", 0, 0), Range(3)), 2, view(Range(1, 2), Summary("s", 0, 0))),
    ],
)
def test_a_closed_view_shows_nothing_after_its_number(whole: View, last_seq: int, closed: View) -> None:
    assert whole.closed_at(last_seq) == closed


@pytest.mark.parametrize(
    ("closed", "last_seq", "continued"),
    [
        (view(Range(1, 4)), 4, view(Range(1, 4), Range(5))),
        (view(Range(1, 4)), 8, view(Range(1, 4), Range(9))),
        (view(), 3, view(Range(4))),
        (view(Summary("s", 1, 8)), 20, view(Summary("s", 1, 8), Range(21))),
    ],
)
def test_a_continued_view_goes_on_with_the_next_message(closed: View, last_seq: int, continued: View) -> None:
    assert closed.continued_at(last_seq) == continued


@pytest.mark.parametrize(
    ("source", "last_seq", "missing", "copy"),
    [
        (view(Range(1)), 3, set(), Copy(((1, 3),), view(Range(1, 3), Range(4)))),
        (view(Range(1)), 0, set(), Copy((), view(Range(1)))),
        (
            view(Range(1, 2), Range(7)),
            9,
            set(),
            Copy(((1, 2), (7, 9)), view(Range(1, 2), Range(3, 5), Range(6))),
        ),
        (view(Range(1)), 4, {2, 3}, Copy(((1, 4),), view(Range(1, 2), Range(3)))),
        (view(Range(1, 2), Range(7)), 8, {1, 2}, Copy(((7, 8),), view(Range(1, 2), Range(3)))),
        (view(Range(1)), 2, {1, 2}, Copy((), view(Range(1)))),
        (
            view(Summary("s", 1, 8), Range(9)),
            10,
            set(),
            Copy(((9, 10),), view(Summary("s", 0, 0), Range(1, 2), Range(3))),
        ),
        (view(Summary("s", 1, 8), Range(9)), 3, set(), Copy(((1, 3),), view(Range(1, 3), Range(4)))),
    ],
)
def test_a_fork_copies_what_the_view_shows_numbered_from_one(
    source: View, last_seq: int, missing: set[int], copy: Copy
) -> None:
    def count(first: int, last: int) -> int:
        return len(set(range(first, last + 1)) - missing)

    assert plan_copy(source, last_seq, count) == copy


@pytest.mark.parametrize(
    ("parts", "last_seq", "found"),
    [
        ((), 5, []),
        ((Range(1),), 5, [(1, 5)]),
        ((Range(1),), 0, []),
        ((Range(6),), 5, []),
        ((Range(1, 2), Range(4)), 5, [(1, 2), (4, 5)]),
        ((Summary("s", 1, 3), Range(4)), 5, [(4, 5)]),
        ((Range(3, 2),), 5, []),
    ],
)
def test_spans_are_the_ranges_that_hold_something(
    parts: tuple[Part, ...], last_seq: int, found: list[tuple[int, int]]
) -> None:
    assert spans(parts, last_seq) == found


@st.composite
def views(draw: st.DrawFn) -> View:
    """Ascending parts, the last one open-ended, as compaction, reset and resume leave them."""
    parts: list[Part] = []
    first = 1
    for _ in range(draw(st.integers(0, 4))):
        first += draw(st.integers(0, 3))
        last = first + draw(st.integers(0, 4))
        parts.append(Summary("s", first, last) if draw(st.booleans()) else Range(first, last))
        first = last + 1
    return View((*parts, Range(first + draw(st.integers(0, 3)))))


@given(views(), st.integers(0, 30))
def test_closing_never_shows_a_number_beyond_and_closing_again_changes_nothing(
    whole: View, last_seq: int
) -> None:
    closed = whole.closed_at(last_seq)
    assert all(seq <= last_seq for seq in shown(closed.parts, 100))
    assert closed.closed_at(last_seq) == closed
    assert {seq for seq in shown(whole.parts, 100) if seq <= last_seq} <= set(shown(closed.parts, 100))


@given(views(), st.integers(0, 30), st.sets(st.integers(1, 30)))
def test_a_fork_numbers_its_copies_without_gap_and_goes_on_behind_them(
    whole: View, last_seq: int, missing: set[int]
) -> None:
    def count(first: int, last: int) -> int:
        return len(set(range(first, last + 1)) - missing)

    copy = plan_copy(whole, last_seq, count)
    copied = sum(count(first, last) for first, last in copy.ranges)
    assert shown(copy.view.parts, copied) == list(range(1, copied + 1))
    assert copy.view.parts[-1] == Range(copied + 1)
    assert copied == count_shown(whole.closed_at(last_seq), missing)
    assert len([p for p in copy.view.parts if isinstance(p, Summary)]) == len(
        [p for p in whole.closed_at(last_seq).parts if isinstance(p, Summary)]
    )


def count_shown(closed: View, missing: set[int]) -> int:
    return len([seq for seq in shown(closed.parts, 100) if seq not in missing])


def test_a_view_of_some_messages_joins_neighbours_and_stays_open() -> None:
    assert View.of((), 7) == View.fresh(7)
    assert View.of((1, 2, 3, 5), 7) == View((Range(1, 3), Range(5, 5), Range(8)))
