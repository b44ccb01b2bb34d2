"""The state machine of a turn, drawn as a table."""

import pytest

from holdfast.domain.turns import TRANSITIONS, TurnFailure, TurnStatus, check_step, check_unanswered
from holdfast.errors import BadInput, IllegalTransition

#             to:  running completed interrupted failed cancelled
TABLE = {
    "queued":      "  yes      yes       -        yes     yes",
    "running":     "   -       yes      yes       yes     yes",
    "completed":   "   -        -        -         -       - ",
    "interrupted": "  yes       -        -        yes     yes",
    "failed":      "  yes       -       yes        -      yes",
    "cancelled":   "   -        -        -         -       - ",
}  # fmt: skip
STATUSES = ["running", "completed", "interrupted", "failed", "cancelled"]
STEPS = [
    (TurnStatus(old), TurnStatus(new), cell == "yes")
    for old, row in TABLE.items()
    for new, cell in zip(STATUSES, row.split(), strict=True)
]


@pytest.mark.parametrize(("old", "new", "allowed"), STEPS)
def test_a_turn_changes_only_as_drawn(old: TurnStatus, new: TurnStatus, allowed: bool) -> None:
    if allowed:
        check_step("turn_1", old, new)
        return
    with pytest.raises(IllegalTransition) as refusal:
        check_step("turn_1", old, new)
    assert str(refusal.value) == f"turn turn_1 is {old}; it cannot become {new}"


def test_every_status_has_its_row() -> None:
    assert set(TRANSITIONS) == set(TurnStatus)


def test_from_every_unfinished_end_a_turn_can_still_complete() -> None:
    for status in (TurnStatus.INTERRUPTED, TurnStatus.FAILED):
        assert TurnStatus.RUNNING in TRANSITIONS[status]
    assert TurnStatus.COMPLETED in TRANSITIONS[TurnStatus.RUNNING]


@pytest.mark.parametrize("status", [TurnStatus.INTERRUPTED, TurnStatus.FAILED, TurnStatus.CANCELLED])
def test_a_turn_without_an_answer_ends_in_one_of_three_ways(status: TurnStatus) -> None:
    check_unanswered(status)
    assert TurnFailure(status).status is status


@pytest.mark.parametrize("status", [TurnStatus.RUNNING, TurnStatus.COMPLETED])
def test_a_turn_without_an_answer_neither_runs_on_nor_completes(status: TurnStatus) -> None:
    with pytest.raises(BadInput, match=status.value):
        check_unanswered(status)
    with pytest.raises(BadInput, match=status.value):
        TurnFailure(status)
