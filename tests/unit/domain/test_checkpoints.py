"""Values of checkpoints in parts: what is shared is not stored again, and the bytes come back."""

import random

import pytest

from holdfast.domain.checkpoints import (
    INLINE,
    SplitValue,
    decode_segments,
    encode_segments,
    joined,
    parts_of,
    split,
)

HEADER = b"\xdc%c%c"


def encoded(messages: list[bytes]) -> bytes:
    """A list as msgpack encodes it: a header with its length, then its elements."""
    return HEADER % divmod(len(messages), 256) + b"".join(messages)


def message(chance: random.Random, size: int = 1000) -> bytes:
    return b"\x82\xa4role\xa4user\xa7content" + chance.randbytes(size)


class Stored:
    """A value as it changes from step to step, and everything that was stored for it."""

    def __init__(self) -> None:
        self.parts: dict[str, bytes] = {}
        self.written = 0
        self.value: SplitValue | None = None

    def put(self, body: bytes, kind: str = "msgpack") -> int:
        """Store the next value; returns how many bytes that took."""
        self.value, new = split(kind, body, self.value)
        self.parts |= dict(new)
        written = sum(len(part.body) for part in new)
        self.written += written
        assert joined(self.value.segments, self.parts) == body
        assert sum(length for _, _, length in self.value.segments) == len(body)
        return written


def test_a_list_that_grows_stores_each_message_a_few_times() -> None:
    chance, stored = random.Random(1), Stored()
    messages: list[bytes] = []
    for _ in range(1000):
        messages.append(message(chance))
        stored.put(encoded(messages))
        assert stored.value is not None and len(stored.value.segments) <= 8 * 4
    assert stored.written < 5 * len(encoded(messages))


def test_a_window_that_moves_stores_what_is_new() -> None:
    chance, stored = random.Random(2), Stored()
    messages = [message(chance) for _ in range(50)]
    first = stored.put(encoded(messages))
    for _ in range(200):
        messages = [*messages[1:], message(chance)]
        stored.put(encoded(messages))
    assert stored.written - first < 200 * 3000


def test_messages_that_begin_alike_are_told_apart() -> None:
    chance, stored = random.Random(3), Stored()
    messages = [b"x" * 400 + message(chance, 200) for _ in range(50)]
    stored.put(encoded(messages))
    messages = [*messages[1:], message(chance)]
    assert stored.put(encoded(messages)) < 2000


def test_an_equal_value_stores_nothing() -> None:
    stored = Stored()
    stored.put(b"a" * 5000)
    assert stored.put(b"a" * 5000) == 0
    assert stored.value is not None and stored.value.fresh == 0


@pytest.mark.parametrize("place", [0, 1, 25, 48, 49])
def test_a_changed_message_leaves_the_longer_side_shared(place: int) -> None:
    chance, stored = random.Random(4), Stored()
    messages = [message(chance) for _ in range(50)]
    stored.put(encoded(messages))
    messages[place] = message(chance)
    assert stored.put(encoded(messages)) <= 26 * 1100


def test_another_kind_or_another_text_is_stored_whole() -> None:
    chance, stored = random.Random(5), Stored()
    stored.put(chance.randbytes(5000))
    assert stored.put(chance.randbytes(5000)) == 5000
    assert stored.value is not None
    assert stored.put(stored.value.body, kind="pickle") == 5000


def test_any_change_comes_back_as_it_was() -> None:
    chance = random.Random(6)
    for _ in range(30):
        stored, messages = Stored(), [message(chance, chance.randrange(1, 900)) for _ in range(20)]
        for _ in range(40):
            at, size = chance.randrange(len(messages) + 1), chance.choice((1, 30, 600, 3000))
            edits = [
                [*messages, message(chance, size)],
                messages[chance.randrange(4) :],
                [*messages[:at], *messages[at + 1 :]],
                [*messages[:at], message(chance, size), *messages[at:]],
                messages[: chance.randrange(len(messages) + 1)],
            ]
            messages = chance.choice(edits)
            stored.put(encoded(messages))


def test_the_new_end_is_counted_if_only_the_ends_differ() -> None:
    chance = random.Random(7)
    messages = [message(chance) for _ in range(20)]
    new = message(chance)
    before, _ = split("m", encoded(messages), None)
    assert before.fresh == len(before.body)
    appended, _ = split("m", encoded([*messages, new]), before)
    assert appended.fresh == len(new)
    inserted, _ = split("m", encoded([new, *messages]), before)
    assert inserted.fresh == len(inserted.body)


def test_segments_are_encoded_with_the_parts_they_refer_to() -> None:
    value = SplitValue("msgpack", b"", (("dc00", INLINE, 2), ("part_1", 3, 40)), 0)
    text = encode_segments({"messages": value})
    assert decode_segments(text) == {"messages": ("msgpack", value.segments)}
    assert parts_of([text, None]) == {"part_1"}
