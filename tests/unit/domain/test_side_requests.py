"""How much of a side request is kept."""

from __future__ import annotations

from holdfast.domain.side_requests import LONGEST_TEXT, side_text


def test_a_short_one_is_kept_whole() -> None:
    asked = [{"role": "system", "content": "Write a title."}, {"role": "user", "content": "kelp"}]
    text = side_text(asked, "Kelp")
    assert (text.messages, text.reply, text.truncated) == (asked, "Kelp", False)


def test_of_a_long_one_the_end_is_kept() -> None:
    asked = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "x" * LONGEST_TEXT},
        {"role": "user", "content": "Summarise."},
    ]
    text = side_text(asked, "Done")
    assert text.truncated
    assert [each["role"] for each in text.messages] == ["assistant", "user"]
    assert text.messages[-1]["content"] == "Summarise."
    assert sum(len(each["content"]) for each in text.messages) == LONGEST_TEXT


def test_of_a_long_reply_the_beginning_is_kept() -> None:
    text = side_text([{"role": "user", "content": "kelp"}], "a" + "b" * LONGEST_TEXT)
    assert (len(text.reply), text.reply[:2], text.truncated) == (LONGEST_TEXT, "ab", True)


def test_only_the_text_of_content_parts_is_kept() -> None:
    parts = [{"type": "text", "text": "kelp"}, {"type": "image_url", "image_url": {"url": "data:x"}}]
    assert side_text([{"role": "user", "content": parts}], "").messages[0]["content"] == "kelp"
