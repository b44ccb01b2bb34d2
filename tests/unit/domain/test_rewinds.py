"""Which messages led to a message, given all rewinds."""

import pytest

from holdfast.domain.rewinds import Rewind, gaps_in, path_to

A, B = Rewind(10, 5), Rewind(14, 8)


@pytest.mark.parametrize(
    ("seq", "rewinds", "path"),
    [
        (0, [], []),
        (3, [], [(1, 3)]),
        (10, [A], [(1, 10)]),
        (12, [A], [(1, 5), (11, 12)]),
        (16, [A, B], [(1, 8), (15, 16)]),
        (14, [B, A], [(1, 5), (11, 14)]),
        (16, [A, Rewind(14, 12)], [(1, 5), (11, 12), (15, 16)]),
        (11, [Rewind(10, 0)], [(11, 11)]),
        (10, [Rewind(10, 0)], [(1, 10)]),
    ],
)
def test_the_path_to_a_message(seq: int, rewinds: list[Rewind], path: list[tuple[int, int]]) -> None:
    assert path_to(seq, rewinds) == path


@pytest.mark.parametrize(
    ("spans", "last", "gaps"),
    [
        ([], 0, []),
        ([], 3, [(1, 3)]),
        ([(1, 3)], 3, []),
        ([(1, 5), (11, 12)], 14, [(6, 10), (13, 14)]),
        ([(11, 12)], 12, [(1, 10)]),
    ],
)
def test_what_is_outside_of_a_path(
    spans: list[tuple[int, int]], last: int, gaps: list[tuple[int, int]]
) -> None:
    assert gaps_in(spans, last) == gaps
