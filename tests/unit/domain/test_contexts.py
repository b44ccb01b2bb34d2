"""What the model gets to see: tables, and one rule that no history may break."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.contexts import (
    INTERRUPTED,
    NO_RESULT,
    Context,
    Mark,
    Rendering,
    mark_interrupted,
    render,
    summary_body,
)
from holdfast.domain.new_messages import tool_result


def calls(seq: int, *ids: str) -> Mark:
    return Mark(seq, calls=ids)


def answers(seq: int, call_id: str) -> Mark:
    return Mark(seq, answers=call_id)


def no_result(*ids: str) -> tuple[bytes, ...]:
    return tuple(tool_result(call_id, NO_RESULT).body for call_id in ids)


@pytest.mark.parametrize(
    ("marks", "newest", "hidden", "expected"),
    [
        pytest.param([], 0, (), Rendering(), id="nothing"),
        pytest.param([], 9, (), Rendering(), id="only-text"),
        pytest.param([calls(2, "a"), answers(3, "a")], 4, (), Rendering(), id="answered"),
        pytest.param(
            [calls(2, "a", "b"), answers(3, "b"), answers(4, "a")],
            5,
            (),
            Rendering(),
            id="in-any-order",
        ),
        pytest.param([calls(2, "a")], 2, (), Rendering(awaited=("a",)), id="newest-call-is-awaited"),
        pytest.param(
            [calls(2, "a", "b"), answers(3, "a")],
            3,
            (),
            Rendering(awaited=("b",)),
            id="rest-is-awaited",
        ),
        pytest.param(
            [calls(2, "a")],
            3,
            (),
            Rendering(inserted={2: no_result("a")}),
            id="something-else-was-said",
        ),
        pytest.param(
            [calls(2, "a", "b", "c"), answers(3, "b")],
            4,
            (),
            Rendering(inserted={2: no_result("a", "c")}),
            id="part-of-a-batch-was-never-answered",
        ),
        pytest.param(
            [calls(2, "a"), calls(3, "b"), answers(4, "b")],
            4,
            (),
            Rendering(inserted={2: no_result("a")}),
            id="a-new-call-closes-the-old-one",
        ),
        pytest.param([answers(1, "a")], 2, (), Rendering(left_out=frozenset({1})), id="result-without-call"),
        pytest.param(
            [calls(1, "a"), answers(2, "a"), answers(3, "a")],
            3,
            (),
            Rendering(left_out=frozenset({3})),
            id="second-result-for-a-call",
        ),
        pytest.param(
            [calls(1, "a"), answers(3, "a")],
            3,
            (),
            Rendering(left_out=frozenset({3}), inserted={1: no_result("a")}),
            id="result-came-too-late",
        ),
        pytest.param(
            [calls(1, "a"), answers(2, "x"), answers(3, "a")],
            3,
            (),
            Rendering(left_out=frozenset({2})),
            id="a-stray-result-closes-nothing",
        ),
        pytest.param(
            [calls(1, "a"), answers(2, "a"), calls(4, "a"), answers(5, "a")],
            6,
            (),
            Rendering(),
            id="an-id-used-again-by-a-later-message",
        ),
        pytest.param([calls(2, "a"), answers(4, "a")], 4, (3,), Rendering(), id="hidden-in-between"),
        pytest.param([calls(2, "a")], 3, (3,), Rendering(awaited=("a",)), id="hidden-behind-an-awaited-call"),
        pytest.param(
            [answers(3, "a")], 4, (2,), Rendering(left_out=frozenset({3})), id="the-call-itself-is-hidden"
        ),
        pytest.param(
            [Mark(2, interrupted=True)], 3, (), Rendering(interrupted=frozenset({2})), id="interrupted-reply"
        ),
        pytest.param(
            [calls(1, "a"), Mark(2, interrupted=True)],
            2,
            (),
            Rendering(interrupted=frozenset({2}), inserted={1: no_result("a")}),
            id="interrupted-reply-behind-an-open-call",
        ),
    ],
)
def test_how_marked_messages_are_shown(
    marks: Sequence[Mark], newest: int, hidden: tuple[int, ...], expected: Rendering
) -> None:
    assert render(marks, [(1, newest)] if newest else [], frozenset(hidden)) == expected


@pytest.mark.parametrize(
    ("marks", "shown", "expected"),
    [
        pytest.param([calls(4, "a")], [(1, 4)], Rendering(awaited=("a",)), id="awaited-before-a-gap"),
        pytest.param([calls(4, "a"), answers(9, "a")], [(1, 4), (9, 9)], Rendering(), id="answered-after-it"),
        pytest.param(
            [calls(4, "a", "b"), answers(9, "b")],
            [(1, 4), (9, 9)],
            Rendering(awaited=("a",)),
            id="half-answered-after-it",
        ),
        pytest.param(
            [calls(4, "a"), answers(10, "a")],
            [(1, 4), (9, 10)],
            Rendering(left_out=frozenset({10}), inserted={4: no_result("a")}),
            id="something-else-was-said-after-it",
        ),
        pytest.param(
            [calls(4, "a"), answers(9, "a")],
            [(1, 4), (6, 6), (9, 9)],
            Rendering(left_out=frozenset({9}), inserted={4: no_result("a")}),
            id="something-else-stands-in-between",
        ),
    ],
)
def test_numbers_that_are_not_in_the_context_stand_between_nothing(
    marks: Sequence[Mark], shown: list[tuple[int, int]], expected: Rendering
) -> None:
    assert render(marks, shown) == expected


@pytest.mark.parametrize(
    ("rendering", "plain"),
    [
        (Rendering(), True),
        (Rendering(awaited=("a",)), True),
        (Rendering(left_out=frozenset({1})), False),
        (Rendering(interrupted=frozenset({1})), False),
        (Rendering(inserted={1: no_result("a")}), False),
    ],
)
def test_a_plain_rendering_is_the_stored_bytes(rendering: Rendering, plain: bool) -> None:
    assert rendering.plain is plain


@dataclass(frozen=True)
class Said:
    """One message of a made-up history."""

    calls: tuple[str, ...] = ()
    answers: str | None = None
    interrupted: bool = False
    hidden: bool = False


IDS = st.sampled_from(["a", "b", "c"])
SAID = st.one_of(
    st.builds(Said, hidden=st.booleans()),
    st.builds(Said, calls=st.lists(IDS, unique=True, max_size=3).map(tuple), hidden=st.booleans()),
    st.builds(Said, answers=IDS, hidden=st.booleans()),
    st.builds(Said, interrupted=st.just(True), hidden=st.booleans()),
)


def marks_of(history: Sequence[Said]) -> tuple[list[Mark], frozenset[int]]:
    marks, hidden = [], set()
    for seq, said in enumerate(history, 1):
        if said.hidden:
            hidden.add(seq)
        elif said.calls or said.answers or said.interrupted:
            marks.append(Mark(seq, said.calls, said.answers, said.interrupted))
    return marks, frozenset(hidden)


def as_seen(history: Sequence[Said], rendering: Rendering) -> list[tuple[tuple[str, ...], str | None]]:
    """What the model sees: of each message the calls it makes and the call it answers."""
    seen: list[tuple[tuple[str, ...], str | None]] = []
    for seq, said in enumerate(history, 1):
        if said.hidden or seq in rendering.left_out:
            continue
        seen.append((said.calls, said.answers))
        for body in rendering.inserted.get(seq, ()):
            seen.append(((), msgspec.json.decode(body)["tool_call_id"]))
    return seen


@settings(max_examples=200)
@given(st.lists(SAID, max_size=14))
def test_every_call_has_exactly_one_result_right_behind_it_unless_it_is_awaited(history: list[Said]) -> None:
    marks, hidden = marks_of(history)
    rendering = render(marks, [(1, len(history))], hidden)
    open_calls: list[str] = []
    for made, answered in as_seen(history, rendering):
        if answered is not None:
            assert answered in open_calls, "a result without its call, or a second one"
            open_calls.remove(answered)
        else:
            assert not open_calls, "something else was said while a call was open"
            open_calls = list(made)
    assert tuple(open_calls) == rendering.awaited


@settings(max_examples=200)
@given(st.lists(SAID, max_size=14))
def test_a_result_that_stands_where_it_belongs_is_never_left_out(history: list[Said]) -> None:
    marks, hidden = marks_of(history)
    rendering = render(marks, [(1, len(history))], hidden)
    open_calls: list[str] = []
    for seq, said in enumerate(history, 1):
        if said.hidden:
            continue
        if said.answers is None:
            open_calls = list(said.calls)
        elif said.answers in open_calls:
            open_calls.remove(said.answers)
            assert seq not in rendering.left_out
        else:
            assert seq in rendering.left_out


@settings(max_examples=200)
@given(st.lists(SAID, max_size=14))
def test_what_is_neither_a_stray_result_nor_hidden_is_always_shown(history: list[Said]) -> None:
    marks, hidden = marks_of(history)
    rendering = render(marks, [(1, len(history))], hidden)
    assert all(history[seq - 1].answers for seq in rendering.left_out)
    assert rendering.interrupted == {
        seq for seq, said in enumerate(history, 1) if said.interrupted and not said.hidden
    }
    assert rendering.left_out.isdisjoint(hidden)


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ({"role": "assistant", "content": "I was"}, f"I was\n\n{INTERRUPTED}"),
        ({"role": "assistant", "content": ""}, INTERRUPTED),
        ({"role": "assistant", "content": None}, INTERRUPTED),
        ({"role": "assistant"}, INTERRUPTED),
        (
            {"role": "assistant", "content": [{"type": "text", "text": "I was"}]},
            [{"type": "text", "text": "I was"}, {"type": "text", "text": INTERRUPTED}],
        ),
    ],
)
def test_an_interrupted_reply_says_so_and_keeps_the_rest(message: dict[str, Any], content: object) -> None:
    message = {**message, "reasoning_content": "ü"}
    marked = msgspec.json.decode(mark_interrupted(msgspec.json.encode(message)))
    assert marked == {**message, "content": content}


def test_a_summary_is_told_as_a_summary() -> None:
    body = msgspec.json.decode(summary_body('they spoke of "kelp"'))
    assert body["role"] == "user"
    assert body["content"].startswith("[Summary")
    assert body["content"].endswith('they spoke of "kelp"')


@pytest.mark.parametrize(
    ("chunks", "messages"),
    [
        ((), []),
        ((b'{"a":1}',), [{"a": 1}]),
        ((b'{"a":1},{"b":2}', b'{"c":3}'), [{"a": 1}, {"b": 2}, {"c": 3}]),
    ],
)
def test_a_context_is_one_array_as_bytes_and_as_objects(
    chunks: tuple[bytes, ...], messages: list[dict[str, Any]]
) -> None:
    context = Context(chunks, last_seq=3)
    assert msgspec.json.decode(context.json()) == messages
    assert context.messages() == messages


class Counted(str):
    """A text that counts how often it is compared."""

    times = 0

    def __eq__(self, other: object) -> bool:
        Counted.times += 1
        return str(self) == other

    __hash__ = str.__hash__


class CountedSet(frozenset[int]):
    """A set that counts how often it is asked."""

    times = 0

    def __contains__(self, value: object) -> bool:
        CountedSet.times += 1
        return super().__contains__(value)


def test_many_calls_are_rendered_in_linear_time() -> None:
    """A client may store thousands of them, answered in any order, also after hidden messages."""
    many, Counted.times, CountedSet.times = 1000, 0, 0
    names = [Counted(f"call {number}") for number in range(many)]
    results = [answers(seq, name) for seq, name in enumerate(reversed(names), 2)]
    assert render([Mark(1, calls=tuple(names)), *results], [(1, many + 1)]) == Rendering()
    assert Counted.times <= 10 * many
    hidden = CountedSet(
        range(2, many)
    )  # message `many` is visible, so that the results are not in their place
    late = [answers(seq, "a") for seq in range(many + 1, 2 * many)]
    rendered = render([calls(1, "a"), *late], [(1, 2 * many)], hidden)
    assert (len(rendered.left_out), rendered.inserted) == (many - 1, {1: no_result("a")})
    assert CountedSet.times <= 10 * many
