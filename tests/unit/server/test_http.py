"""Bodies of requests: what is wrong with one is named, with its place."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import BadInput
from holdfast.server.anthropic import request as anthropic_request
from holdfast.server.bodies import parsed
from holdfast.server.openai import responses_request

HALF = "is half of a surrogate pair; send both halves, or the character itself in UTF-8"


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (rb'{"a": "x\ud800"}', rf"the escape \ud800 at byte 8 {HALF}"),
        (rb'{"a": "x\uDC00y"}', rf"the escape \uDC00 at byte 8 {HALF}"),
        (rb'{"a": "\ud83d\ude00\ud83d\u0041"}', rf"the escape \ud83d at byte 19 {HALF}"),
        (rb'{"\ude00": 1}', rf"the escape \ude00 at byte 2 {HALF}"),
        (rb'{"a": "\\\ud800"}', rf"the escape \ud800 at byte 9 {HALF}"),
        (b'{"a": "\xff"}', "byte 7 (0xff) is not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "byte 7 (0xed) is not UTF-8"),
    ],
)
def test_text_that_no_store_can_hold_is_refused_with_its_place(body: bytes, fault: str) -> None:
    with pytest.raises(BadInput) as refused:
        parsed(body)
    assert str(refused.value) == f"the body is not valid JSON: {fault}"


@pytest.mark.parametrize("body", [b'{"a": ', rb'{"a": "\u12', rb'{"a": "\\ud800" x}', b"nothing"])
def test_another_fault_is_not_taken_for_a_surrogate(body: bytes) -> None:
    with pytest.raises(BadInput) as refused:
        parsed(body)
    assert "surrogate" not in str(refused.value)


def test_whole_pairs_and_escaped_backslashes_are_text() -> None:
    assert parsed(rb'{"a": "\ud83d\ude00", "b": "\\ud800"}') == {"a": "\U0001f600", "b": r"\ud800"}


@pytest.mark.parametrize("piece", [rb"\\", rb"\ud83d\ude00", b"x", rb"\u0041"])
def test_the_place_is_found_in_time_that_grows_with_the_body(piece: bytes) -> None:
    before = time.process_time()
    with pytest.raises(BadInput, match=r"\\ud800 at byte"):
        parsed(b'{"a": "' + piece * (4_000_000 // len(piece)) + rb'\ud800"}')
    assert time.process_time() - before < 3


def _calls(count: int) -> list[dict[str, Any]]:
    return [
        {"type": "function_call", "call_id": f"c{at}", "name": "f", "arguments": "{}"} for at in range(count)
    ]


def _thoughts(count: int) -> list[dict[str, Any]]:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "z" * 4_000}]}
    return [item for call in _calls(count) for item in (thought, call)]


def _results(count: int) -> list[dict[str, Any]]:
    blocks = [{"type": "tool_result", "tool_use_id": f"toolu_{at}"} for at in range(count)]
    return [{"role": "user", "content": blocks}]


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        (responses_request.parse, {"input": _calls(20_000)}),
        (responses_request.parse, {"input": _thoughts(5_000)}),
        (anthropic_request.parse, {"model": "m", "max_tokens": 1, "messages": _results(30_000)}),
    ],
    ids=["calls of one reply", "reasoning of one reply", "results of one message"],
)
def test_a_large_request_is_parsed_in_time_that_grows_with_it(
    parse: Callable[[dict[str, Any]], Any], body: dict[str, Any]
) -> None:
    before = time.process_time()
    parse(body)
    assert time.process_time() - before < 5
