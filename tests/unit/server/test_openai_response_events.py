"""Chat chunks as the events of a Responses stream: folded by the official SDK they give what is stored."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from holdfast.domain.drafts import Draft, interrupted_reply
from holdfast.domain.messages import Message, MessageStatus, NewMessage
from holdfast.domain.new_messages import new_message
from holdfast.domain.turns import TurnStatus
from holdfast.models.base import Chunk
from holdfast.models.chunks import chunk_from_completion, chunk_of
from holdfast.models.reply import fold
from holdfast.server.openai.items import items_of
from holdfast.server.openai.response_events import ResponseEvents, encoded, frame, replay, terminal_event
from holdfast.server.openai.response_object import (
    ResponseHead,
    ResponseState,
    response_error,
    response_object,
    state_of,
)
from holdfast.server.schemas import HoldfastObject

CONVERSATION = "conv_0123456789abcdef0123456789abcdef"
THEN = datetime(2026, 3, 4, tzinfo=UTC)
HEAD = ResponseHead("resp_1", THEN, model="m")
DONE = state_of(TurnStatus.COMPLETED, finish_reason="stop")
OURS = HoldfastObject(
    session_id="sess_1", conversation_id="conv_1", turn_id="turn_1", compacted=False, reset=None, notices=[]
)
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

Events = list[dict[str, Any]]


def chunks_of(*deltas: Mapping[str, Any], finish_reason: str = "stop", **top: Any) -> list[Chunk]:
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish_reason})
    return [chunk_of({"id": "chatcmpl-7", "model": "gpt", "choices": [choice], **top}) for choice in choices]


def told(chunks: Iterable[Chunk], state: ResponseState = DONE, **options: Any) -> Events:
    events = ResponseEvents(HEAD, CONVERSATION, 7, **options)
    return [*events.begin(), *(event for chunk in chunks for event in events.add(chunk)), *events.end(state)]


def kept(new: NewMessage) -> Message:
    return Message(CONVERSATION, 7, "sess_1", None, new.role, new.status, THEN, new.body)


def stored_items(chunks: Iterable[Chunk], **options: Any) -> Any:
    return items_of(kept(new_message(fold(chunks).message)), **options)


def check(events: Events, first: int = 0) -> dict[str, Any]:
    """Whatever any stream must be like. The final response."""
    assert [event["sequence_number"] for event in events] == list(range(first, first + len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    response: dict[str, Any] = events[-1]["response"]
    strict = response["incomplete_details"] != {"reason": "interrupted"}
    places: dict[str, int] = {}
    texts: dict[tuple[str, int | None], str] = {}
    for event in events:
        assert next(iter(event)) == "type"
        if strict or "response" not in event:
            EVENT.validate_python(event)
        match event["type"].removeprefix("response."):
            case "output_item.added":
                assert event["item"]["id"] not in places
                assert event["item"]["status"] == "in_progress"
                assert event["output_index"] == len(places)
                places[event["item"]["id"]] = event["output_index"]
            case "output_item.done":
                assert places[event["item"]["id"]] == event["output_index"]
            case "content_part.added":
                assert (event["item_id"], event["content_index"]) not in texts
                texts[event["item_id"], event["content_index"]] = ""
        if event["type"].endswith(".delta"):
            assert places[event["item_id"]] == event["output_index"]
            name = event["item_id"], event.get("content_index")
            if "content_index" in event:
                assert name in texts, "a part that has not begun"
            texts[name] = texts.get(name, "") + event["delta"]
    for item in response["output"]:
        assert item["id"] in places
        if item["type"] in ("message", "reasoning"):
            for at, part in enumerate(item["content"]):
                assert texts[item["id"], at] == part.get("text", part.get("refusal"))
        elif item["type"] in ("function_call", "custom_tool_call"):
            assert texts.get((item["id"], None), "") == item.get("arguments", item.get("input"))
        last = [
            e for e in events if e["type"] == "response.output_item.done" and e["item"]["id"] == item["id"]
        ]
        assert last[-1]["item"] == item
    return response


def folded_by_the_sdk(events: Events) -> Response | None:
    """The official SDK's own accumulator; None if the stream did not complete."""
    state: ResponseStreamState[None] = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in events:
        state.handle_event(EVENT.validate_python(event))
    return state._completed_response


def call(index: int | None, call_id: str | None, name: str | None, arguments: Any) -> dict[str, Any]:
    piece: dict[str, Any] = {"function": {"arguments": arguments}}
    if index is not None:
        piece["index"] = index
    if call_id is not None:
        piece |= {"id": call_id, "type": "function"}
    if name is not None:
        piece["function"]["name"] = name
    return {"tool_calls": [piece]}


def types(events: Events) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


STREAMS: dict[str, list[dict[str, Any]]] = {
    "nothing": [],
    "a role and no text": [{"role": "assistant", "content": ""}],
    "text": [{"role": "assistant", "content": "", "refusal": None}, {"content": "Hel"}, {"content": "lo"}],
    "a NUL": [{"content": "a\x00b"}],
    "reasoning, then text": [{"reasoning_content": "H"}, {"reasoning_content": "m"}, {"content": "Yes"}],
    "reasoning, as others name it": [{"reasoning": "H"}, {"reasoning": "m"}, {"content": "Yes"}],
    "reasoning under two names": [{"reasoning": "H", "reasoning_content": "H"}, {"content": "Yes"}],
    "reasoning and text in one chunk": [{"reasoning_content": "Hm", "content": "Yes"}],
    "reasoning alone": [{"reasoning_content": "Hm"}],
    "reasoning again": [{"reasoning": "H"}, {"content": "Yes"}, {"reasoning": "m"}, {"content": "!"}],
    "thoughts as parts": [
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "H"}]}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "m"}]}]},
        {"content": "Yes"},
    ],
    "refusal": [{"refusal": "I "}, {"refusal": "won't"}],
    "text and refusal": [{"content": "No: "}, {"refusal": "I won't"}],
    "a call": [call(0, "c1", "add", ""), call(0, None, None, '{"a"'), call(0, None, None, ":1}")],
    "a call without arguments": [call(0, "c1", "now", "")],
    "text and calls": [
        {"content": "Let me see."},
        call(0, "c1", "add", '{"a":1}'),
        call(1, "c2", "sub", ""),
        call(1, None, None, "{}"),
    ],
    "calls side by side": [
        call(0, "c1", "add", "{"),
        call(1, "c2", "sub", "{"),
        call(0, None, None, "}"),
        call(1, None, None, "}"),
    ],
    "calls without an index": [
        call(None, "c1", "add", "{"),
        call(None, "c1", None, "}"),
        call(None, "c2", "sub", "{}"),
    ],
    "every call at index 0": [call(0, "c1", "add", "{}"), call(0, "c2", "sub", "{}")],
    "arguments as an object": [call(0, "c1", "add", {"a": 1})],
    "the name in every piece": [call(0, "c1", "add", "{"), call(0, "c1", "add", "}")],
    "no id": [call(0, None, "add", "{"), call(0, None, None, "}"), call(1, None, "sub", "{}")],
    "the name late": [call(0, "c1", None, ""), call(0, None, "add", "{}")],
    "no name at all": [call(0, "c1", None, "{}")],
    "a call, then text": [call(0, "c1", "add", "{}"), {"content": "There."}],
    "calls in one chunk": [
        {
            "tool_calls": [
                {"index": at, "id": f"c{at}", "function": {"name": "f", "arguments": "{}"}} for at in range(3)
            ]
        }
    ],
    "fields nobody knows": [{"content": "x", "mood": "grim"}, {"mood": "kind"}],
    "the old function_call": [{"function_call": {"name": "f", "arguments": "{}"}}],
    "annotations": [
        {"content": "see"},
        {
            "annotations": [
                {
                    "type": "url_citation",
                    "url_citation": {"url": "u", "title": "t", "start_index": 0, "end_index": 3},
                }
            ]
        },
    ],
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_ends_with_what_is_stored(name: str) -> None:
    chunks = chunks_of(*STREAMS[name])
    events = told(chunks)
    response = check(events)
    if name != "a NUL":
        assert response["output"] == stored_items(chunks)
    assert response["status"] == "completed"
    assert response["model"] == "gpt"
    taken = folded_by_the_sdk(events)
    assert taken is not None
    assert [item.id for item in taken.output] == [item["id"] for item in response["output"]]


def test_what_cannot_be_stored_is_told_as_it_is_stored() -> None:
    for text in ("a\x00b", "a\ud800b"):
        events = told(_unencoded(text))
        response = check(events)
        assert response["output"][0]["content"][0]["text"] in ("a\ufffdb", "a?b")
        encoded(events)


def _unencoded(text: str) -> list[Chunk]:
    return [Chunk(b"", {"choices": [{"delta": {"content": text}}]})]


def test_the_events_of_a_plain_answer_in_their_order() -> None:
    assert types(told(chunks_of({"content": "Hel"}, {"content": "lo"}))) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]


def test_an_item_is_done_before_the_next_begins() -> None:
    events = told(
        chunks_of({"reasoning": "Hm"}, {"content": "a"}, call(0, "c1", "f", "{}"), call(1, "c2", "f", "{}"))
    )
    order = [
        (event["type"][-5:], event["output_index"]) for event in events if "output_item" in event["type"]
    ]
    assert order == [(name, at) for at in range(4) for name in ("added", ".done")]


def test_an_item_that_goes_on_is_done_again() -> None:
    events = told(chunks_of({"reasoning": "H"}, {"content": "Yes"}, {"reasoning": "m"}))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in done] == ["reasoning", "message", "reasoning"]
    assert [item["content"][0]["text"] for item in done] == ["H", "Yes", "Hm"]


def test_a_whole_completion_is_a_stream_too() -> None:
    message = {
        "role": "assistant",
        "content": "Hello",
        "reasoning_content": "Hm",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    completion = {"id": "chatcmpl-1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    chunks = [chunk_from_completion(completion)]
    response = check(told(chunks))
    assert response["output"] == stored_items(chunks)
    assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call"]


def test_only_the_first_choice_is_told() -> None:
    other = chunk_of({"choices": [{"index": 1, "delta": {"content": "other"}, "finish_reason": "stop"}]})
    response = check(told([*chunks_of({"content": "one"}), other]))
    assert response["output"][0]["content"][0]["text"] == "one"


def test_custom_tools_are_told_as_such() -> None:
    chunks = chunks_of(
        call(0, "c1", "sh", '{"inp'), call(0, None, None, 'ut":"ls"}'), call(1, "c2", "add", "{}")
    )
    events = told(chunks, custom_tools={"sh"})
    response = check(events)
    assert response["output"] == stored_items(chunks, custom_tools={"sh"})
    assert [item["type"] for item in response["output"]] == ["custom_tool_call", "function_call"]
    assert response["output"][0]["input"] == "ls"
    told_of_it = [name for name in types(events) if name.startswith("custom_tool_call_input")]
    assert told_of_it == ["custom_tool_call_input.delta", "custom_tool_call_input.done"]
    assert folded_by_the_sdk(events) is not None


def test_log_probabilities_are_told_but_not_kept() -> None:
    logprob = {
        "token": "Hi",
        "logprob": -0.1,
        "bytes": None,
        "top_logprobs": [{"token": "Hi", "logprob": -0.1}],
    }
    whole = {**logprob, "bytes": [], "top_logprobs": [{"token": "Hi", "logprob": -0.1, "bytes": []}]}
    choice = {"index": 0, "delta": {"content": "Hi"}, "logprobs": {"content": [logprob]}}
    events = told([chunk_of({"choices": [choice]}), *chunks_of({"content": "!"})])
    response = check(events)
    assert response["output"][0]["content"][0]["logprobs"] == [whole]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [event["logprobs"] for event in deltas] == [[whole], []]


def test_usage_comes_from_the_last_chunk_unless_it_is_given() -> None:
    chunks = [*chunks_of({"content": "a"}), chunk_of({"choices": [], "usage": {"prompt_tokens": 3}})]
    assert check(told(chunks))["usage"]["input_tokens"] == 3
    events = ResponseEvents(HEAD, CONVERSATION, 7)
    assert events.end(DONE, usage={"prompt_tokens": 9})[-1]["response"]["usage"]["input_tokens"] == 9


# --- other ends ----------------------------------------------------------------------------------------


def drafted(chunks: Iterable[Chunk]) -> list[Draft]:
    return [Draft(at, at, adds=dict(chunk.adds)) for at, chunk in enumerate(chunks)]


@pytest.mark.parametrize(
    "name", [name for name in STREAMS if name not in ("a NUL", "thoughts as parts", "annotations")]
)
@pytest.mark.parametrize(
    ("state", "last"),
    [
        (state_of(TurnStatus.INTERRUPTED), "response.incomplete"),
        (state_of(TurnStatus.CANCELLED), "response.incomplete"),
        (state_of(TurnStatus.FAILED, error=response_error("broken", 502)), "response.failed"),
    ],
    ids=lambda value: getattr(value, "status", value),
)
def test_a_reply_that_broke_off_ends_with_what_is_kept_of_it(
    name: str, state: ResponseState, last: str
) -> None:
    chunks = chunks_of(*STREAMS[name])[:-1]
    events = told(chunks, state)
    response = check(events)
    assert events[-1]["type"] == last
    reply = interrupted_reply(drafted(chunks))
    if reply is None:
        assert response["output"] == []
    elif "fields nobody" not in name:
        assert response["output"] == items_of(kept(reply))
        assert response["output"][-1]["status"] == "incomplete"


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_reply_cut_short_by_the_model_is_whole_as_far_as_it_goes(reason: str) -> None:
    chunks = chunks_of({"content": "Hel"}, finish_reason=reason)
    events = told(chunks, state_of(TurnStatus.COMPLETED, finish_reason=reason))
    response = check(events)
    assert events[-1]["type"] == "response.incomplete"
    assert response["output"] == stored_items(chunks)


def test_the_end_tells_the_message_that_was_stored() -> None:
    events = ResponseEvents(HEAD, CONVERSATION, 7)
    begun = [*events.begin(), *events.add(chunks_of({"content": "Hello"})[0])]
    message = {
        "role": "assistant",
        "content": "Hello",
        "tool_calls": [{"id": "c1", "function": {"name": "f"}}],
    }
    ended = events.end(DONE, message=message, holdfast=OURS, completed_at=THEN)
    response = check(begun + ended)
    assert response["output"] == items_of(kept(new_message(message)))
    assert response["holdfast"] == OURS
    assert response["completed_at"] == int(THEN.timestamp())


def test_numbers_begin_where_earlier_attempts_ended() -> None:
    events = ResponseEvents(HEAD, CONVERSATION, 7, first_number=10_042)
    told_so_far = [*events.begin(), *events.add(chunks_of({"content": "a"})[0])]
    assert events.next_number == 10_042 + len(told_so_far)
    check([*told_so_far, *events.end(DONE)], 10_042)


def test_a_turn_of_several_replies_is_one_output() -> None:
    events = ResponseEvents(HEAD, CONVERSATION, 7)
    first = chunks_of({"content": "Let me see."}, call(0, "c1", "search", "{}"))
    second = chunks_of({"content": "Found."})
    stream = [
        *events.begin(),
        *(event for chunk in first for event in events.add(chunk)),
        *events.next_message(9),
        *(event for chunk in second for event in events.add(chunk)),
        *events.end(DONE),
    ]
    response = check(stream)
    ids = [item["id"].rpartition("abcdef_")[2] for item in response["output"]]
    assert ids == ["7", "7_0", "9"]
    assert folded_by_the_sdk(stream) is not None


# --- on the wire ---------------------------------------------------------------------------------------


def test_encoded_events_are_framed_with_their_type_and_number() -> None:
    events = ResponseEvents(HEAD, CONVERSATION, 7, first_number=5)
    chunk = chunks_of({"content": "a\nb"})[0]
    sent = [*events.begin(), *events.add(chunk), *events.end(DONE, holdfast=OURS)]
    wire = encoded(sent)
    plain = ResponseEvents(HEAD, CONVERSATION, 7, first_number=5)
    same = msgspec.to_builtins([*plain.begin(), *plain.add(chunk), *plain.end(DONE, holdfast=OURS)])
    assert [msgspec.json.decode(data) for _, data in wire] == same
    assert [number for number, _ in wire] == list(range(5, 5 + len(same)))
    for number, data in wire:
        kind = msgspec.json.decode(data)["type"]
        assert frame(number, data) == f"event: {kind}\nid: {number}\ndata: {data.decode()}\n\n".encode()
        assert b"\n" not in data


def test_a_text_delta_costs_less_than_15_microseconds() -> None:
    events = ResponseEvents(HEAD, CONVERSATION, 7)
    chunk = chunks_of(
        {"content": "hello"}, object="chat.completion.chunk", created=1, system_fingerprint="x"
    )[0]
    best = 1.0
    for _ in range(100):  # short enough that some are not interrupted, also on a busy machine
        before = time.thread_time()
        for _ in range(50):
            encoded(events.add(chunk))
        best = min(best, (time.thread_time() - before) / 50)
    assert best < 15e-6


# --- told afterwards -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STREAMS)
def test_a_finished_response_can_be_told_as_a_stream(name: str) -> None:
    response = told(chunks_of(*STREAMS[name]))[-1]["response"]
    events = replay(response)
    assert check(events) == response
    taken = folded_by_the_sdk(events)
    assert taken is not None
    assert taken.output_text == Response.model_validate(response).output_text


def test_the_end_of_a_reaped_turn_can_be_told_alone() -> None:
    response = response_object(HEAD, state_of(TurnStatus.INTERRUPTED))
    event = terminal_event(response, 10_007)
    assert (event["type"], event["sequence_number"]) == ("response.incomplete", 10_007)


# --- any stream ----------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=5)


@st.composite
def deltas(draw: st.DrawFn) -> list[dict[str, Any]]:
    """What a model may stream, in any order; calls by index, by id, or side by side."""
    made: list[dict[str, Any]] = []
    by_index = draw(st.booleans())
    calls = 0
    for _ in range(draw(st.integers(0, 12))):
        match draw(
            st.sampled_from(["content", "reasoning_content", "refusal", "call", "more", "more", "odd"])
        ):
            case "call":
                index = calls if by_index else None
                made.append(call(index, f"c{calls}", draw(st.sampled_from(["f", "sh"])), draw(texts)))
                calls += 1
            case "more" if calls:
                at = draw(st.integers(0, calls - 1))
                made.append(call(at if by_index else None, None if by_index else f"c{at}", None, draw(texts)))
            case "odd":
                made.append({"content": None, "mood": draw(texts), "tool_calls": None})
            case str() as name if name != "more":
                made.append({name: draw(texts)})
    return made


@given(deltas(), st.sets(st.just("sh")))
def test_any_stream_ends_with_what_is_stored(made: list[dict[str, Any]], custom: set[str]) -> None:
    chunks = chunks_of(*made)
    events = told(chunks, custom_tools=custom)
    response = events[-1]["response"]
    assert response["output"] == stored_items(chunks, custom_tools=custom)
    if not _refuses_first(made):
        check(events)
    taken = folded_by_the_sdk(events)
    assert taken is not None
    assert taken.output_text == Response.model_validate(response).output_text


def _refuses_first(made: list[dict[str, Any]]) -> bool:
    """Of text and refusal, the stored reply has the text first: the parts then change places."""
    names = [name for delta in made for name in ("content", "refusal") if delta.get(name)]
    return "content" in names and names[0] == "refusal"


@given(deltas())
def test_any_stream_may_break_off(made: list[dict[str, Any]]) -> None:
    chunks = chunks_of(*made)[:-1]
    events = told(chunks, state_of(TurnStatus.INTERRUPTED))
    reply = interrupted_reply(drafted(chunks))
    assert events[-1]["response"]["output"] == (items_of(kept(reply)) if reply else [])
    assert reply is None or reply.status is MessageStatus.INTERRUPTED
