"""What people and programs may call things."""

import pytest

from holdfast.domain.ids import (
    MAX_NAME,
    MAX_NAME_BYTES,
    check_name,
    check_text,
    cut_name,
    printable,
    source_of_key,
    storable,
    unstorable,
)
from holdfast.errors import BadInput


@pytest.mark.parametrize(
    "value",
    [
        "a",
        "telegram:dm:42",
        "x" * MAX_NAME,
        " spaces around ",
        "日本語",
        "é" * MAX_NAME,
        "\U0001f600" * (MAX_NAME_BYTES // 4),
        "\U0001f600",
        "new\nline",
        "'; DROP TABLE messages; --",
        "%_\\",
    ],
)
def test_a_usable_name_is_returned_as_it_came(value: str) -> None:
    assert check_name("a key", value) == value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("\t\n", "empty"),
        ("x" * (MAX_NAME + 1), "characters long"),
        ("日" * 342, "1026 bytes long in UTF-8; at most 1024"),
        ("a\x00b", "NUL byte at position 1"),
        ("ab\ud800", "lone surrogate (U+D800) at position 2"),
        ("\udfff", "lone surrogate (U+DFFF) at position 0"),
    ],
)
def test_an_unusable_name_is_refused_with_what_it_is_and_why(value: str, why: str) -> None:
    with pytest.raises(BadInput) as refusal:
        check_name("a key", value)
    assert str(refusal.value).startswith("a key ")
    assert why in str(refusal.value)


@pytest.mark.parametrize("value", [None, 5, b"bytes", ["a"]])
def test_a_name_that_is_no_text_is_refused_with_its_type(value: object) -> None:
    with pytest.raises(BadInput, match=f"must be text, not {type(value).__name__}"):
        check_name("an owner", value)  # type: ignore[arg-type]


def test_a_text_is_counted_in_characters_up_to_a_limit_of_its_own() -> None:
    assert check_text("a title", "日" * MAX_NAME) == "日" * MAX_NAME
    assert check_text("a title", "éé", limit=2) == "éé"
    with pytest.raises(BadInput, match="3 characters long; at most 2"):
        check_text("a title", "ééé", limit=2)


@pytest.mark.parametrize("text", ["", "kelp", "x" * 600, "日" * 400, "\U0001f600" * 300, "a" + "日" * 342])
def test_what_is_cut_to_a_name_is_one(text: str) -> None:
    cut = cut_name(text)
    assert text.startswith(cut) and (not cut or check_name("a name", cut))
    assert cut == text or len(cut) == MAX_NAME or len(cut.encode()) > MAX_NAME_BYTES - 4


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", None),
        ("plain", None),
        ("\U0001f600", None),
        ("\\u0000 in letters", None),
        ("a\x00", "holds a NUL byte at position 1"),
        ("\ud83d", "holds a lone surrogate (U+D83D) at position 0"),
    ],
)
def test_what_no_database_can_keep_is_named(text: str, fault: str | None) -> None:
    assert unstorable(text) == fault
    assert unstorable(storable(text)) is None
    assert (storable(text) == text) is (fault is None)


def test_only_what_cannot_be_kept_is_replaced() -> None:
    assert storable("a\x00b\ud800c \U0001f600") == "a\ufffdb?c \U0001f600"


@pytest.mark.parametrize(
    ("key", "source"),
    [
        (None, "api"),
        ("", "api"),
        ("plain", "api"),
        ("telegram:dm:42", "telegram"),
        ("cli:ada", "cli"),
        ("agent:main:telegram:dm:42", "telegram"),
        ("agent:main", "agent"),
        ("agent:main:", "api"),
        (":dm:42", "api"),
    ],
)
def test_a_source_is_read_off_the_key(key: str | None, source: str) -> None:
    assert source_of_key(key) == source


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("telegram:dm:42", "telegram:dm:42"),
        ("Ünïcode 東京", "Ünïcode 東京"),
        ("a\x1b[2Jb\nc\x85\u202e", r"a\x1b[2Jb\nc\x85\u202e"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_is_not_printable_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
