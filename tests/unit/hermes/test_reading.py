"""Rows of Hermes as messages of ours: what is kept, what is put aside, what is mended."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from holdfast.importers.hermes.reading import content_of, number_of, summary_in, to_message


def row(**fields: Any) -> dict[str, Any]:
    given = {"id": 7, "session_id": "s", "role": "user", "content": "hello", "tool_call_id": None}
    return {**given, "tool_calls": None, "timestamp": 1_767_000_000.5, "active": 1, "compacted": 0, **fields}


def body(**fields: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(to_message(row(**fields)).message.body)
    return decoded


def extra(**fields: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(bytes(to_message(row(**fields)).extra))
    return decoded


PICTURE = {"type": "image_url", "image_url": {"url": "x"}}


@pytest.mark.parametrize(
    ("stored", "content"),
    [
        ("hello", "hello"),
        (None, None),
        ("", ""),
        (
            "\x00json:" + json.dumps([{"type": "text", "text": "a"}, PICTURE]),
            [{"type": "text", "text": "a"}, PICTURE],
        ),
        ("\x00json:" + json.dumps(["a"]), [{"type": "text", "text": "a"}]),
        ("\x00json:" + json.dumps(PICTURE), [PICTURE]),
        ("\x00json:[half", "[half"),
        ("\x00json:7", "7"),
        (b"bytes \xff", "bytes \ufffd"),
        (42, "42"),
    ],
)
def test_content_is_what_was_said(stored: object, content: object) -> None:
    assert content_of(stored) == content


def test_a_message_carries_what_is_not_for_the_model_beside_it() -> None:
    given = {
        "reasoning": "because",
        "reasoning_details": '[{"text": "x"}]',
        "platform_message_id": "tg-1",
        "observed": 1,
        "token_count": 12,
        "of_a_later_version": "kept",
        "finish_reason": None,
    }
    assert body(**given) == {"role": "user", "content": "hello"}
    assert extra(**given) == {
        "hermes": {"session": "s", "row": 7},
        "reasoning": "because",
        "reasoning_details": [{"text": "x"}],
        "platform_message_id": "tg-1",
        "observed": True,
        "token_count": 12,
        "of_a_later_version": "kept",
    }


def test_tool_calls_are_sent_as_models_know_them_and_kept_as_they_were() -> None:
    given = [
        {"id": "a", "call_id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
        {"id": "a", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        "nonsense",
        {"function": {"name": "h", "arguments": "{}"}},
    ]
    sent = body(role="assistant", content=None, tool_calls=json.dumps(given))["tool_calls"]
    assert [call["id"] for call in sent] == ["a", "hermes_row_7_1", "hermes_row_7_3"]
    assert sent[0] == {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    assert (
        extra(role="assistant", content=None, tool_calls=json.dumps(given))["hermes"]["tool_calls"] == given
    )
    plain = [{"id": "a", "type": "function", "function": {"name": "g", "arguments": "{}"}}]
    assert "tool_calls" not in extra(role="assistant", tool_calls=json.dumps(plain))["hermes"]
    assert "tool_calls" not in body(role="assistant", tool_calls="[half")


def test_a_result_without_a_call_gets_a_name_that_no_call_has() -> None:
    assert body(role="tool", tool_call_id="a")["tool_call_id"] == "a"
    assert body(role="tool")["tool_call_id"] == "hermes_row_7"


def test_a_role_that_no_model_knows_is_kept_and_put_aside() -> None:
    message = to_message(row(role="session_meta"))
    assert (message.message.role, message.aside) == ("system", "hermes:session_meta")
    assert extra(role="session_meta")["role"] == "session_meta"
    assert to_message(row()).aside is None


@pytest.mark.parametrize("text", ["nul \x00 inside", "half \ud83d of a surrogate"])
def test_what_cannot_be_stored_is_mended_not_dropped(text: str) -> None:
    message = to_message(row(content=text, reasoning=text))
    assert message.mended
    assert msgspec.json.decode(message.message.body)["content"].count("\ufffd") + msgspec.json.decode(
        message.message.body
    )["content"].count("?")
    assert msgspec.json.decode(bytes(message.extra))["reasoning"].startswith(text[:4])


def test_what_is_too_large_says_so_in_its_place() -> None:
    message = to_message(row(content="x" * (33 << 20)))
    assert message.mended
    assert b"could not be imported from Hermes" in message.message.body


NEWER = "[CONTEXT COMPACTION — REFERENCE ONLY] Earlier turns were compacted into the summary below.\n"
END = "\n\n--- END OF CONTEXT SUMMARY — respond to the message below, not the summary above ---"


@pytest.mark.parametrize(
    ("stored", "summary"),
    [
        (f"{NEWER}## Goal\nkelp{END}", "## Goal\nkelp"),
        (f"{NEWER}kelp", "kelp"),
        ("[CONTEXT SUMMARY]: kelp", "kelp"),
        (f"{NEWER}kelp{END}\n\nand what of the tide?", None),
        ("tell me of [CONTEXT COMPACTION", None),
        (NEWER, None),
        (None, None),
    ],
)
def test_a_summary_is_one_only_if_it_is_nothing_else(stored: object, summary: str | None) -> None:
    assert summary_in(stored) == summary


@pytest.mark.parametrize(
    ("stored", "number"), [(7, 7), (7.9, 7), (-1, 0), (None, 0), ("7", 0), (2**70, 2**63 - 1)]
)
def test_numbers_fit(stored: object, number: int) -> None:
    assert number_of(stored) == number
