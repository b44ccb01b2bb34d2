"""Decisions about messages of platforms: splitting, commands, bursts, pauses, who may write."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.connectors import (
    InboxMessage,
    InboxState,
    Incoming,
    PairingState,
    PlaceCommand,
    code_hash,
    command_in,
    gathered,
    is_allowed,
    owner_of,
    pause_after,
    split,
    utf16_units,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(seconds: float, text: str = "x") -> InboxMessage:
    when = NOON + timedelta(seconds=seconds)
    return InboxMessage(1, "1", "42", None, text, InboxState.NEW, None, 0, when)


@pytest.mark.parametrize(
    ("text", "limit", "parts"),
    [
        ("", 10, []),
        ("short", 10, ["short"]),
        ("one\n\ntwo", 10, ["one\n\ntwo"]),
        ("one one\n\ntwo two", 10, ["one one", "two two"]),
        ("one two three", 10, ["one two", "three"]),
        ("x" * 25, 10, ["x" * 10, "x" * 10, "x" * 5]),
        ("before\n```\na\nb\n```", 12, ["before", "```\na\nb\n```"]),
        ("```\naaaa\nbbbb\ncccc\n```", 18, ["```\naaaa\nbbbb\n```", "```\ncccc\n```"]),
    ],
)
def test_a_text_is_cut_where_a_reader_would(text: str, limit: int, parts: list[str]) -> None:
    assert split(text, limit) == parts


@given(st.text(st.sampled_from("ab \n`🌊"), max_size=200), st.integers(12, 40), st.booleans())
def test_no_part_is_too_long_or_empty_and_no_letter_is_lost(text: str, limit: int, wide: bool) -> None:
    size = utf16_units if wide else len
    parts = split(text, limit, size)
    assert all(part.strip() and size(part) <= limit for part in parts)
    for letter in "ab🌊":
        assert "".join(parts).count(letter) == text.count(letter)


def test_the_first_parts_of_a_growing_text_stay() -> None:
    text = "\n\n".join(f"paragraph {number}" for number in range(40))
    whole = split(text, 100)
    for length in range(37, len(text), 37):
        grown = split(text[:length], 100)
        assert grown[:-1] == whole[: len(grown) - 1]


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/new", PlaceCommand("new")),
        (" /Title  The tides ", PlaceCommand("title", "The tides")),
        ("/new@holdfast_bot", PlaceCommand("new")),
        ("/link ABCD-EFGH all", PlaceCommand("link", "ABCD-EFGH all")),
        ("/etc/passwd", None),
        ("/newspaper", None),
        ("see /new", None),
    ],
)
def test_a_command_is_one_of_ours_alone(text: str, command: PlaceCommand | None) -> None:
    assert command_in(text) == command


@pytest.mark.parametrize(
    ("messages", "now", "expected"),
    [
        ([at(0)], 1, NOON + timedelta(seconds=2)),
        ([at(0)], 2, 1),
        ([at(0), at(1)], 2, NOON + timedelta(seconds=3)),
        ([at(0), at(1)], 3, 2),
        ([at(0), at(90)], 1, 2),
        ([at(0), at(1), at(1, "/new")], 1, 2),
        ([at(0, "/new"), at(0)], 0, 1),
        ([at(float(second)) for second in range(21)], 20, 21),
    ],
)
def test_a_burst_ends_when_it_is_quiet_at_a_command_or_after_ten_spans(
    messages: list[InboxMessage], now: float, expected: int | datetime
) -> None:
    assert gathered(messages, timedelta(seconds=2), NOON + timedelta(seconds=now)) == expected


def test_pauses_double_up_to_half_an_hour_and_never_undercut_the_platform() -> None:
    pauses = [pause_after(attempt).total_seconds() for attempt in (1, 2, 3, 12, 50)]
    assert pauses == [1, 2, 4, 1800, 1800]
    assert pause_after(1, timedelta(seconds=30)).total_seconds() == 30


@pytest.mark.parametrize(
    ("person", "room", "allow", "expected"),
    [
        ("42", "", (), False),
        ("42", "", ("42",), True),
        ("42", "", ("4",), False),
        ("7", "-100", ("-100",), True),
        ("42", "-100", ("42",), True),
        ("7", "", ("-100",), False),
        ("7", "", ("*",), True),
        ("", "", ("",), True),
    ],
)
def test_nobody_may_write_who_is_not_on_the_list(
    person: str, room: str, allow: tuple[str, ...], expected: bool
) -> None:
    assert is_allowed(Incoming("1", "a", "k", person, "x", room), allow) == expected


@pytest.mark.parametrize(
    ("pairing", "allow", "expected"),
    [
        (PairingState.PENDING, (), False),
        (PairingState.PENDING, ("*",), True),
        (PairingState.APPROVED, (), True),
        (PairingState.REVOKED, ("*",), False),
        (PairingState.REVOKED, ("-100",), False),
        (PairingState.REVOKED, ("42",), True),
    ],
)
def test_a_pairing_lets_in_and_its_revocation_counts_more_than_everyone(
    pairing: PairingState, allow: tuple[str, ...], expected: bool
) -> None:
    assert is_allowed(Incoming("1", "a", "k", "42", "x", "-100"), allow, pairing) == expected


def test_a_person_and_a_room_are_owners_below_the_connector() -> None:
    assert owner_of("phone", Incoming("1", "dm:42", "k", "42", "x")) == "phone/42"
    assert owner_of("phone", Incoming("1", "g", "k", "42", "x", room="-100")) == "phone/-100"


def test_a_code_is_the_same_however_it_is_typed() -> None:
    assert code_hash("k7qw 3mhx") == code_hash("K7QW-3MHX") != code_hash("K7QW-3MHY")
