"""The state machine of a turn, drawn as a table."""

import pytest

from holdfast.domain.turns import TRANSITIONS, TurnStatus, check_step
from holdfast.errors import IllegalTransition

#             to:  running completed interrupted failed cancelled
TABLE = {
    "running":     "   -       yes      yes       yes     yes",
    "completed":   "   -        -        -         -       - ",
    "interrupted": "  yes       -        -         -       - ",
    "failed":      "  yes       -        -         -       - ",
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
