"""What is new in a request: a table of what clients do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.client_compaction import summary_at
from holdfast.domain.fingerprints import EMPTY, extended, fingerprint_of, is_current
from holdfast.domain.history import (
    AnswersAgain,
    Branches,
    Continues,
    History,
    HistoryMatch,
    history_of,
    place,
)
from holdfast.domain.visible_messages import VisibleMessage
from holdfast.errors import BadMessage, ToolCallClosed

Said = Mapping[str, Any]


def user(text: Any) -> Said:
    return {"role": "user", "content": text}


def said(text: Any, **more: Any) -> Said:
    return {"role": "assistant", "content": text, **more}


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
calls = said(None, tool_calls=[CALL])
result = {"role": "tool", "tool_call_id": "c1", "content": "42"}
cut = said("half an ans", interrupted=True)
failed = {"role": "user", "content": "x", "unanswered": True}


def stored(*messages: Said) -> list[VisibleMessage]:
    return [
        VisibleMessage(
            seq,
            "sess_1",
            message["role"],
            fingerprint_of(message),
            tuple(call["id"] for call in message.get("tool_calls") or ()),
            bool(message.get("interrupted")),
            bool(message.get("unanswered")),
            message["content"] if message.get("interrupted") else "",
        )
        for seq, message in enumerate(messages, 1)
    ]


def asked(*messages: Said) -> History:
    return history_of(list(messages))


case = pytest.param
a, A, b, B, c = user("a"), said("A"), user("b"), said("B"), user("c")


@pytest.mark.parametrize(
    ("request_", "conversation", "placed"),
    [
        case([a], [], Continues(0), id="the first message"),
        case([b], [a, A], Continues(0), id="only the new message"),
        case([a], [a, A], Continues(0), id="only the new message, in the same words as before"),
        case([a, A, b], [a, A], Continues(2), id="the whole history and a new message"),
        case([A, b], [a, A], Continues(1), id="a history trimmed at its beginning"),
        case([A, b, B, c], [a, A, b, B], Continues(3), id="a longer trimmed history"),
        case([a, A, b], [a, A, b], Continues(3), id="a failed turn sent again is not stored again"),
        case([a, A, b, c], [a, A, b], Continues(3), id="a failed message kept, another added"),
        case([a, A, c], [a, A, b], Continues(2), id="a failed message dropped by the client stays"),
        case([a, b], [a], Continues(1), id="two messages, the first of which failed"),
        case([b, c], [a, A, b], Continues(1), id="the same without any history"),
        case([b, c], [a, b], Continues(1), id="the same behind somebody else's that failed"),
        case([a, A, b, c], [a, A, c, b], Continues(3), id="the same with the whole history"),
        case([a, A, b, a], [a, A, b, c], Continues(3), id="the same before somebody else's that failed"),
        case([a, A, b], [a, A, b, c], Continues(2), id="unless it is to be answered now"),
        case([b], [a, A, b], Continues(0), id="one message is new, even if the same has failed before"),
        case([a, A, b], [a, A, b, B], AnswersAgain((4,)), id="regenerate"),
        case([A, b], [a, A, b, B], AnswersAgain((4,)), id="regenerate with a trimmed history"),
        case([a, A, b], [a, A, b, cut], AnswersAgain((4,)), id="regenerate an interrupted reply"),
        case([a, A, b, c], [a, A, b, cut], Continues(3), id="an interrupted reply the client dropped"),
        case([b, said("half"), c], [a, A, b, cut], Continues(2), id="a part of an interrupted reply"),
        case([b, said("half an answer"), c], [a, A, b, cut], Continues(2), id="more of it than is stored"),
        case([b, said("half an ans *stopped*"), c], [a, A, b, cut], Continues(2), id="with a note"),
        case([A, b], [a, A, b, B, c, cut], Branches(None, 0, 0), id="another reply is no part of it"),
        case([a, A, b, said("half"), c], [a, A, b, cut], Continues(4), id="and one that it kept in part"),
        case([A, b, c], [a, A, b, cut], Continues(2), id="dropped, by a client that trims"),
        case([said("half"), c], [a, A, b, cut], Continues(1), id="kept in part, by a client that trims"),
        case([A, b], [a, A, b, cut], AnswersAgain((4,)), id="asked again by a client that trims"),
        case([a, A, a], [a, A, a, A], AnswersAgain((4,)), id="regenerate, though the same was said twice"),
        case([a, A, a], [b, B, a, A], Continues(2), id="said once more, by a client that trims"),
        case([a, A, c], [a, A, b, B], Branches("sess_1", 2, 2), id="an edited message forks"),
        case([c], [a, A, b, B], Continues(0), id="one message never forks"),
        case([a, said("other"), b], [a, A], Branches("sess_1", 1, 1), id="an edited answer forks"),
        case([c, B, a], [a, A], Branches(None, 0, 0), id="nothing in common"),
        case([a, A, b], [a, A, b, B, c, said("C")], Branches("sess_1", 3, 3), id="an older message again"),
        case([a, A, b], [failed, a, A], Continues(2), id="a message that failed, forgotten"),
        case([a, A, b, B, c], [a, A, failed, cut, b, B], Continues(4), id="and the part of its reply too"),
        case([a, A, user("x"), b, B, c], [a, A, failed, cut, b, B], Continues(5), id="or only that part"),
        case([a, A, b], [a, failed, A, b, B], AnswersAgain((5,)), id="regenerate, with one forgotten before"),
        case([a, A, b], [a, A, failed, b, cut], AnswersAgain((5,)), id="or one that was cut short"),
        case([a, A, b], [a, A, b, B, failed], Branches("sess_1", 3, 3), id="or behind it"),
        case([a, calls, result], [a, calls], Continues(2), id="the result of an awaited call"),
        case([a, calls, result], [a, calls, result, B], AnswersAgain((4,)), id="regenerate after a tool"),
        case([a, calls, b], [a, calls], Continues(2), id="no result, something else instead"),
        case([result], [a, calls, result], Continues(1), id="a result whose turn failed, brought again"),
        case([result, b], [a, calls, result], Continues(1), id="the same, and something new"),
        case([a, calls, result], [a, calls, result, B, b, B], Branches("sess_1", 3, 3), id="an older result"),
    ],
)  # fmt: skip
def test_where_a_request_belongs(
    request_: list[Said], conversation: list[Said], placed: HistoryMatch
) -> None:
    assert place(asked(*request_), stored(*conversation), awaited=["c1"]) == placed


def test_a_result_alone_is_for_an_awaited_call() -> None:
    assert place(asked(result), stored(a, calls), awaited=["c1"]) == Continues(0)


@pytest.mark.parametrize("request_", [[result], [a, calls, result]])
def test_a_result_for_a_call_the_conversation_left_behind_is_refused(request_: list[Said]) -> None:
    with pytest.raises(ToolCallClosed) as refused:
        place(asked(*request_), stored(a, calls, b, B))
    assert refused.value.call_id == "c1"


def test_a_result_for_a_call_nobody_made_is_a_mistake() -> None:
    with pytest.raises(BadMessage, match="answers no call"):
        place(asked(result), stored(a, A))


def test_leading_instructions_are_not_history() -> None:
    history = asked({"role": "system", "content": "be brief"}, {"role": "developer", "content": "x"}, a, A, b)
    assert [m.role for m in history.instructions] == ["system", "developer"]
    assert place(history, stored(a, A)) == Continues(2)


@pytest.mark.parametrize(
    "same",
    [
        said("A", refusal=None, tool_calls=None, audio=None, annotations=[]),
        said([{"type": "text", "text": "A"}]),
        said(" A\n"),
        said("A", reasoning_content="hm"),
    ],
)
def test_what_clients_add_drop_and_reshape_does_not_make_a_message_another(same: Said) -> None:
    assert fingerprint_of(same) == fingerprint_of(A)


@pytest.mark.parametrize(
    "other",
    [
        user("A"),
        said("B"),
        said("A", tool_calls=[CALL]),
        said([{"type": "text", "text": "A"}, {"type": "image_url", "image_url": {"url": "x"}}]),
    ],
)
def test_what_is_said_makes_a_message_another(other: Said) -> None:
    assert fingerprint_of(other) != fingerprint_of(A)


def test_a_chain_tells_histories_apart() -> None:
    def chain(*messages: Said) -> bytes:
        return extended(EMPTY, map(fingerprint_of, messages))

    assert chain(a, A) == extended(chain(a), [fingerprint_of(A)])
    assert len({chain(), chain(a), chain(a, A), chain(A, a), chain(a, A, b)}) == 5


@pytest.mark.parametrize("rubbish", [[], None, {}, "x", [1], [{"role": "system", "content": "only"}], [[]]])
def test_rubbish_is_refused_with_a_sentence(rubbish: Any) -> None:
    with pytest.raises(BadMessage, match="message"):
        history_of(rubbish)


# --- by meaning --------------------------------------------------------------------------------------------


def calling(arguments: Any, id: str = "c1") -> Said:
    call = {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}
    return said(None, tool_calls=[call])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (calling('{"a":1,"b":[2,{"c":3}]}'), calling('{ "b": [2, {"c": 3}],\n "a": 1 }')),
        (calling(""), calling("{}")),
        (calling("not JSON"), calling("not JSON")),
        (user([{"type": "text", "text": "x"}]), user("x")),
        (said([{"type": "text", "text": "x"}]), said(" x\n")),
        (said(None, tool_calls=[CALL]), said("", tool_calls=[CALL])),
        ({**result, "content": [{"type": "text", "text": "42"}]}, result),
    ],
)
def test_messages_that_mean_the_same_are_the_same(one: Said, other: Said) -> None:
    assert fingerprint_of(one) == fingerprint_of(other) != b""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (calling('{"a":1}'), calling('{"a":2}')),
        (calling('{"a":1}'), calling('{"a":1')),
        (calling('{"a":"1 2"}'), calling('{"a":"12"}')),
        (calling("[1,2]"), calling("[2,1]")),
        (calling("{}"), calling("{}", id="c2")),
        (user(""), user("x")),
    ],
)
def test_messages_that_mean_something_else_are_others(one: Said, other: Said) -> None:
    assert fingerprint_of(one) != fingerprint_of(other)


@pytest.mark.parametrize("nothing", [None, "", " \n", [], [{"type": "text", "text": ""}]])
def test_an_assistant_message_that_says_nothing_is_skipped(nothing: Any) -> None:
    blank = said(nothing)
    assert fingerprint_of(blank) == b""
    assert asked(a, blank, A, b).fingerprints[:3:2] == asked(a, A, b).fingerprints[:2]
    assert extended(EMPTY, asked(a, blank, A).fingerprints) == extended(EMPTY, asked(a, A).fingerprints)
    assert asked(a, blank, b).answered == 0
    assert place(asked(a, blank, A, b), stored(a, A)) == Continues(3)
    assert place(asked(a, A, b), stored(a, blank, A)) == Continues(2)
    assert place(asked(a, A, blank, b), stored(a, blank, A)) == Continues(3)
    assert place(asked(c, blank, A, b), stored(a, A)) == Branches(None, 0, 0)
    assert place(asked(a, blank, A, c, B, b), stored(a, A, b, B)) == Branches("sess_1", 2, 3)


def test_an_answer_that_says_nothing_is_replaced_when_it_is_asked_for_again() -> None:
    assert place(asked(a, A, b), stored(a, A, b, said(""))) == AnswersAgain((4,))
    assert place(asked(a, A, b), stored(a, A, b, said(""), B)) == AnswersAgain((5,))


def test_arguments_nested_too_deeply_are_compared_as_text() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    assert (
        fingerprint_of(calling(deep)) == fingerprint_of(calling(deep)) != fingerprint_of(calling(deep + " "))
    )


def test_a_chain_says_by_which_version_it_was_made() -> None:
    history = asked(a, A, b)
    assert is_current(extended(EMPTY, history.fingerprints))
    assert not is_current(history.past_before())
    # What the first versions stored for this very past.
    assert history.past_before().hex() == "5ed400c3ce4ef5b5ac818148c0387639"


@pytest.mark.parametrize(
    ("values", "at"),
    [
        ([user("hi")], None),
        ([user("Another language model started to solve this problem and produced a summary of")], 0),
        ([user("I read: Another language model started to solve this problem and produced a summary")], None),
        (
            [
                user("a"),
                user("This session is being continued from a previous conversation that ran out"),
                user("b"),
            ],
            1,
        ),
        (
            [
                user(
                    [
                        {"type": "text", "text": "<system-reminder>"},
                        {"type": "text", "text": "  [Summary of the earlier part of this conversation]\nx"},
                    ]
                )
            ],
            0,
        ),
        ([{"role": "assistant", "content": "[Summary of the earlier part of this conversation]"}], None),
    ],
)
def test_a_summary_is_recognised_by_how_a_user_message_begins(values: list[Said], at: int | None) -> None:
    assert summary_at(history_of(values)) == at


class CountedBytes(bytes):
    """A fingerprint that counts how often it is compared."""

    times = 0

    def __eq__(self, other: object) -> bool:
        CountedBytes.times += 1
        return bytes(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = bytes.__hash__


def test_many_equal_messages_are_placed_in_linear_time() -> None:
    """A client may send thousands: each number of them could be a repetition of those that are stored."""
    many, CountedBytes.times = 1000, 0
    request = asked(*[user("a")] * many)
    request = replace(request, fingerprints=tuple(map(CountedBytes, request.fingerprints)))
    before = stored(*[user("a")] * (many - 1), user("c"))
    assert place(request, before) == Continues(many - 1)
    assert CountedBytes.times <= 30 * many


@given(st.lists(st.sampled_from("ab"), max_size=6), st.lists(st.sampled_from("ab"), max_size=8))
def test_messages_that_are_stored_unanswered_are_not_new(sent: list[str], before: list[str]) -> None:
    """Those at the end of the stored ones with which the request begins, as many as possible."""
    texts = [*sent, "c", "c"]  # at least two, and never all stored
    repeated = max(
        count
        for count in range(len(sent) + 1)
        if count <= len(before) and before[len(before) - count :] == sent[:count]
    )
    placed = place(asked(*map(user, texts)), stored(*map(user, before)))
    assert isinstance(placed, Continues)
    assert placed.new_from == repeated or (repeated == 0 and placed.new_from <= len(before))
