import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ModelError
from holdfast.models.sse import MAX_EVENT, MAX_STREAM, EventReader, SseEvent


def read(*pieces: bytes) -> list[SseEvent]:
    reader = EventReader()
    return [event for piece in pieces for event in reader.feed(piece)] + reader.finish()


@pytest.mark.parametrize(
    ("body", "data"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: one\ndata: two\n\n", [b"one\ntwo"]),
        (b": a comment\n\ndata: a\n\n:\n\n", [b"a"]),
        (b"id: 7\nretry: 100\ndata: a\n\n", [b"a"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"\n\n\ndata: a\n\n\n\n", [b"a"]),
        (b"data: a\n\ndata: no empty line follows\n", [b"a", b"no empty line follows"]),
        (b"data: a\n\ndata: no end", [b"a", b"no end"]),
        ("data: ä \u2028 \x85 ü\n\n".encode(), ["ä \u2028 \x85 ü".encode()]),
        (b"data: \x0b\x0c\x1c\n\n", [b"\x0b\x0c\x1c"]),
        (b"data\n\n", []),
        (b"dataset: a\n\n", []),
        (b"event: error\n\n", []),
        (b"", []),
    ],
)
def test_events_are_found(body: bytes, data: list[bytes]) -> None:
    assert [event.data for event in read(body)] == data


def test_a_name_belongs_to_its_own_event_only() -> None:
    assert read(b"event: error\ndata: a\n\ndata: b\n\n") == [SseEvent(b"error", b"a"), SseEvent(b"", b"b")]


def test_an_event_is_given_out_as_soon_as_it_is_whole() -> None:
    reader = EventReader()
    assert reader.feed(b"data: a\n") == []
    assert reader.feed(b"\n") == [SseEvent(b"", b"a")]
    assert reader.feed(b"data: b\r") == []
    assert reader.feed(b"\n\r") == [SseEvent(b"", b"b")]
    assert reader.feed(b"\ndata: c\r\r") == [SseEvent(b"", b"c")]


LINES = st.sampled_from(
    [
        *(b"data: a", b"data: {}", b"data:", b"data:  ", "data: äöü".encode(), b"data: " + b"x" * 40),
        *(b"", b"", b"", b": ping", b"event: error", b"id: 1", b"nonsense", b"\xef\xbb\xbf"),
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"]))), st.data())
def test_splitting_the_bytes_anywhere_gives_the_same_events(
    lines: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    body = b"".join(line + end for line, end in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)))))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert read(*pieces) == read(body)
    assert read(*(bytes([byte]) for byte in body)) == read(body)


def test_an_answer_without_an_end_cannot_fill_the_memory() -> None:
    reader, piece = EventReader(), b"data: " + b"x" * 2**20 + b"\n\n"
    with pytest.raises(ModelError, match="more than 256 MiB and did not end its answer"):
        for _ in range(MAX_STREAM // 2**20 + 1):
            assert len(reader.feed(piece)) == 1


def test_a_line_without_an_end_cannot_fill_the_memory() -> None:
    reader = EventReader()
    reader.feed(b"data: ")
    with pytest.raises(ModelError, match="16 MiB without ending an event"):
        for _ in range(MAX_EVENT // 2**20 + 1):
            reader.feed(b"x" * 2**20)


def test_keepalives_for_ever_are_no_long_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.models.sse.MAX_EVENT", 100)
    reader = EventReader()
    for _ in range(100):
        assert reader.feed(b": ping\n") == []
