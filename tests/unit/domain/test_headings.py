"""Words at the beginning of stored messages, and titles in a model's answer."""

from __future__ import annotations

import json

import pytest

from holdfast.domain.headings import heading_of, shortened, title_in, words_in
from holdfast.domain.ids import is_short, new_id, short


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "user", "content": "hello"}, "hello"),
        ({"content": 'a "quoted"\nword \\ é 🦀', "role": "user"}, 'a "quoted"\nword \\ é 🦀'),
        ({"role": "user", "content": [{"type": "text", "text": "part"}]}, "part"),
        ({"role": "assistant", "content": None}, ""),
        ({"role": "assistant", "content": "", "reasoning_content": "thinks"}, ""),
        ({"role": "user", "content": []}, ""),
    ],
)
def test_the_words_of_a_message(message: object, words: str) -> None:
    assert words_in(json.dumps(message, ensure_ascii=False).encode()) == words
    assert words_in(json.dumps(message).encode()) == words


@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_message_may_be_cut_anywhere(ascii_only: bool) -> None:
    text = 'é🦀\n"\\ end'
    body = json.dumps({"role": "user", "content": text}, ensure_ascii=ascii_only).encode()
    for length in range(len(body) + 1):
        assert text.startswith(words_in(body[:length])) or text.strip() == words_in(body[:length])


def test_words_are_cut_at_a_word_and_told_on_one_line() -> None:
    assert shortened("one\ntwo  three", 60) == "one two three"
    assert shortened("one two three four", 12) == "one two…"
    assert shortened("x" * 100, 10) == "x" * 9 + "…"
    assert shortened(" \n ", 10) is None
    assert heading_of((None, None), None).first_words is None


REMINDER = "<system-reminder>\nBe kind.\n</system-reminder>\n"


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (["hello", "world"], "hello"),
        (["<environment_context>\n<cwd>/x</cwd>\n</environment_context>", "fix the tests"], "fix the tests"),
        ([[{"type": "text", "text": REMINDER}, {"type": "text", "text": "fix it"}]], "fix it"),
        ([f"{REMINDER}{REMINDER}fix it"], "fix it"),
        (
            ["# AGENTS.md instructions for /x\n\n<INSTRUCTIONS>\nBe kind.\n</INSTRUCTIONS>", "fix it"],
            "fix it",
        ),
        (["<div>is not a note</div>"], "<div>is not a note</div>"),
        ([f"{REMINDER[:20]}", "fix it"], "fix it"),
        ([REMINDER], None),
    ],
)
def test_the_notes_of_an_agent_program_are_no_heading(contents: list[object], words: str | None) -> None:
    bodies = [json.dumps({"role": "user", "content": each}).encode() for each in contents]
    assert heading_of(bodies, None).first_words == words


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ("Holidays in Brittany", "Holidays in Brittany"),
        ('"Holidays in Brittany."\n\nI hope this helps!', "Holidays in Brittany"),
        ("\n# Title: **Seaweed**", "Seaweed"),
        ("  \n", None),
    ],
)
def test_the_title_in_an_answer(answer: str, title: str | None) -> None:
    assert title_in(answer) == title


def test_short_ids() -> None:
    id_ = new_id("sess")
    assert short(id_) == id_[:13]
    assert is_short(short(id_))
    for other in (id_, "sess_", "sess_12", "sess_xyz1", "node_1234", "1234abcd", "cli:ada", ""):
        assert not is_short(other)
    for same in (new_id("node"), "cli:ada", "sess_1", "a_" + "0" * 32, short(id_)):
        assert short(same) == same
