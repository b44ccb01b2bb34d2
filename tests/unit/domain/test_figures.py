"""Totals, percentiles, causes and steps of ended turns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.domain.figures import EndedTurn, cost_of, over_time, problems, totals, totals_by
from holdfast.domain.turns import Turn, TurnStatus

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DONE, FAILED = TurnStatus.COMPLETED, TurnStatus.FAILED


def turn(
    ms: float = 1000,
    status: TurnStatus = DONE,
    *,
    owner: str = "ada",
    model: str | None = "large",
    problem: str | None = None,
    given: int = 10,
    said: int = 5,
    first: int | None = None,
    ended_at: datetime = NOW,
) -> EndedTurn:
    started_at = ended_at - timedelta(milliseconds=ms)
    return EndedTurn(owner, status, started_at, ended_at, model, problem, given, said, first)


def test_percentiles_are_of_answered_turns_and_a_value_that_occurred() -> None:
    turns = [turn(ms, first=ms // 10) for ms in range(100, 2100, 100)]
    found = totals([*turns, turn(90_000, FAILED, first=9)])
    assert (found.turns, found.answered) == (21, 20)
    assert found.total == pytest.approx((1000, 1900))
    assert found.first_token == pytest.approx((100, 190))
    assert totals([turn(700)]).total == (700, 700)
    assert (totals([]).total, totals([turn(1, FAILED)]).first_token) == (None, None)


def test_a_conversation_costs_what_its_priced_turns_do() -> None:
    def stored(model: str | None, **usage: int) -> Turn:
        return Turn("turn_1", "conv_1", "sess_1", "ada", DONE, "node_1", 1, 1, NOW, model=model, usage=usage)

    turns = [
        stored("large", input_tokens=10, output_tokens=5),
        stored("large", prompt_tokens=10, completion_tokens=5, total_tokens=15),
        stored("large"),
        stored("small", input_tokens=100),
        stored(None, output_tokens=3),
    ]
    found = cost_of(turns, {"large": (2.0, 10.0)})
    assert found.amount == pytest.approx(2 * (10 * 2 + 5 * 10) / 1e6)
    assert found.unpriced_tokens == 103
    assert cost_of(turns, {}).amount is None


def test_tokens_and_cost_add_up_by_model_and_what_has_no_price_is_told() -> None:
    turns = [turn(), turn(model="small", given=100, said=0), turn(model=None), turn(status=FAILED)]
    prices = {"large": (2.0, 10.0)}
    found = totals(turns, prices)
    assert (found.input_tokens, found.output_tokens, found.tokens) == (130, 15, 145)
    assert found.cost == pytest.approx(2 * (10 * 2 + 5 * 10) / 1e6)
    assert found.unpriced_tokens == 115
    assert totals(turns).cost is None
    by_model = totals_by(turns, lambda each: each.model or "?", prices)
    assert [(name, each.turns) for name, each in by_model] == [("small", 1), ("large", 2), ("?", 1)]
    assert dict(by_model)["small"].cost is None


def test_turns_that_failed_alike_are_counted_together() -> None:
    turns = [
        turn(),
        turn(status=FAILED, problem="turn turn_0123456789abcdef was refused"),
        turn(status=FAILED, problem="turn turn_fedcba9876543210 was refused"),
        turn(status=TurnStatus.INTERRUPTED, problem="the server was stopped"),
    ]
    assert problems(turns) == [
        (FAILED, "turn turn_… was refused", 2),
        (TurnStatus.INTERRUPTED, "the server was stopped", 1),
    ]


def test_turns_are_counted_in_the_step_they_ended_in() -> None:
    minute = timedelta(minutes=1)
    turns = [
        turn(ended_at=NOW - timedelta(seconds=1)),
        turn(ended_at=NOW),
        turn(ended_at=NOW + timedelta(seconds=59)),
        turn(status=FAILED, ended_at=NOW + minute),
        turn(ended_at=NOW + 2 * minute),
    ]
    assert over_time(turns, NOW, minute, 2) == [{DONE: 2}, {FAILED: 1}]
