"""Several answers as one stream: what is told at once, what waits, and what may come only once."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.models.base import Chunk
from holdfast.models.chunks import calling, chunk_of, continuing, led_by, parted, summed, with_usage


def chunk(delta: dict[str, Any] | None, reason: str | None = None, **more: Any) -> Chunk:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": reason}]
    return chunk_of({"id": "1", "created": 1, "model": "m", "choices": choices, **more})


def delta_of(value: Chunk | None) -> Any:
    return None if value is None else value.value["choices"][0]["delta"]


@pytest.mark.parametrize(
    ("came", "now", "later"),
    [
        (chunk({"content": "hi"}), {"content": "hi"}, None),
        (chunk({"role": "assistant", "tool_calls": [{}]}), {"role": "assistant"}, None),
        (chunk({"tool_calls": [{}]}), None, None),
        (chunk({}, "stop"), None, {}),
        (chunk({"content": "all", "tool_calls": [{}]}, "tool_calls", usage={"a": 1}), {"content": "all"}, {}),
    ],
)
def test_words_are_told_at_once_and_the_end_waits(came: Chunk, now: Any, later: Any) -> None:
    told, held = parted(came)
    assert (delta_of(told), delta_of(held)) == (now, later)
    if told is not None:
        assert not told.finishes
        assert held is None or "usage" not in told.value
    if held is not None:
        assert held.finishes


def test_what_has_no_choice_is_told_at_once_unless_it_is_usage() -> None:
    other, usage = chunk(None, prompt_filter_results=[]), chunk(None, usage={"total_tokens": 1})
    assert parted(other) == (other, None)
    assert parted(usage) == (None, usage)


def test_a_later_answer_goes_on_under_the_id_of_the_first_and_without_its_role() -> None:
    later = Chunk(chunk({"role": "assistant", "content": "on"}).raw, text="on")
    first = chunk_of({"id": "0", "created": 0})
    told = continuing(later, first)
    assert (told.value["id"], told.value["created"], told.text) == ("0", 0, "on")
    assert delta_of(Chunk(told.raw)) == {"content": "on"}
    assert continuing(chunk(None, usage={}), first).value["choices"] == []


def test_calls_are_told_whole_and_numbered() -> None:
    made = calling(chunk({}, "tool_calls", usage={"a": 1}), [{"id": "x"}, {"id": "y"}])
    assert delta_of(made) == {"tool_calls": [{"index": 0, "id": "x"}, {"index": 1, "id": "y"}]}
    assert not made.finishes
    assert "usage" not in made.value


def test_words_may_be_led_by_others() -> None:
    assert delta_of(led_by("\n\n", chunk({"content": "on", "x": 1}))) == {"content": "\n\non", "x": 1}


def test_usage_is_replaced_only_where_there_is_some() -> None:
    told, silent = chunk(None, usage={"a": 1}), chunk({}, "stop")
    assert with_usage(told, {"a": 3}).value["usage"] == {"a": 3}
    assert with_usage(silent, {"a": 3}) is silent
    assert with_usage(told, None) is told


@pytest.mark.parametrize(
    ("usages", "total"),
    [
        ([None, None], None),
        ([{"a": 1}, None, {"a": 2, "b": 5}], {"a": 3, "b": 5}),
        ([{"d": {"x": 1}}, {"d": {"x": 2, "y": 1}}], {"d": {"x": 3, "y": 1}}),
        ([{"d": None}, {"d": {"x": 2}}], {"d": {"x": 2}}),
        ([{"tier": "a", "ok": True}, {"tier": "b"}], {"tier": "b", "ok": True}),
    ],
)
def test_usage_is_added_up(usages: list[Any], total: Any) -> None:
    assert summed(usages) == total
