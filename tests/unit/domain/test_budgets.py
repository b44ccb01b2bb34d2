"""How large a context is: by what the model reported, by an estimate of the rest."""

import base64

import msgspec
import pytest

from holdfast.domain.budgets import (
    TOKENS_PER_BYTE,
    Budget,
    Measured,
    Scale,
    Weight,
    is_cut,
    measured_in,
    reserve_of,
    weigh,
)


def body(*parts: object) -> bytes:
    return msgspec.json.encode({"role": "user", "content": list(parts)})


PICTURE = "data:image/png;base64," + base64.b64encode(bytes(60_000)).decode()


def test_text_weighs_its_bytes() -> None:
    assert weigh(b'{"role":"user","content":"hello"}') == Weight(33)


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        ({"type": "image_url", "image_url": {"url": PICTURE}}, 1000),
        ({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, 1000),
        ({"type": "input_audio", "input_audio": {"data": "A" * 90_000, "format": "wav"}}, 1500),
        ({"type": "file", "file": {"file_data": "data:application/pdf;base64," + "A" * 90_000}}, 4000),
    ],
)
def test_what_is_not_text_counts_as_a_stated_number_of_tokens_not_by_its_length(
    part: dict[str, object], tokens: int
) -> None:
    found = weigh(body({"type": "text", "text": "look"}, part))
    assert found.parts == tokens
    assert found.bytes < 250


def test_words_that_look_like_a_part_are_words() -> None:
    said = '{"type":"image_url","image_url":{"url":"x"}}'
    assert weigh(msgspec.json.encode({"role": "user", "content": said})).parts == 0


def test_before_the_first_report_a_byte_counts_as_a_default() -> None:
    assert Scale().total(Weight(10_000, 1000)) == round(10_000 * TOKENS_PER_BYTE) + 1000


def test_a_report_is_the_base_and_teaches_how_many_tokens_a_byte_has() -> None:
    measured = Measured(tokens=2500, bytes=10_000, extra=2000)
    assert measured.ratio == 0.25
    scale = Scale(measured, same_context=True)
    assert scale.total(Weight(8000)) == 2500  # the same context again, and as many instructions
    assert scale.total(Weight(12_000)) == 3500
    assert scale.total(Weight(12_000), extra=0) == 3000
    assert scale.total(Weight(8000, 1000)) == 3500


def test_of_another_context_only_the_ratio_is_taken() -> None:
    measured = Measured(tokens=9000, bytes=10_000, parts=5000)
    assert Scale(measured).total(Weight(1000)) == 400
    assert Scale(measured, same_context=True).total(Weight(1000)) == 400  # something was cut: count anew


def test_a_small_sample_teaches_nothing() -> None:
    assert Measured(tokens=90, bytes=100).ratio == TOKENS_PER_BYTE


def test_a_report_of_next_to_nothing_is_none() -> None:
    assert Measured(tokens=2500, bytes=10_000).is_plausible
    assert not Measured(tokens=60, bytes=10_000).is_plausible
    assert Measured(tokens=6, bytes=100).is_plausible


def test_what_was_measured_is_kept_with_the_turns_usage() -> None:
    measured = Measured(2500, 10_000, 2000, 1000)
    assert measured_in({"input_tokens": 9, **measured.fields()}) == measured
    assert measured_in({"input_tokens": 9}) is None
    assert measured_in(None) is None


def test_a_context_fits_with_room_for_its_answer() -> None:
    assert Budget(7000, 8192, 0.75, reserve=1024).fits
    assert not Budget(7169, 8192, 0.75, reserve=1024).fits
    assert Budget(6145, 8192, 0.75).past_threshold
    assert not Budget(6144, 8192, 0.75).past_threshold


def test_the_room_for_an_answer_is_what_the_request_asks_for() -> None:
    assert reserve_of({"max_completion_tokens": 300}, 8192) == 300
    assert reserve_of({"max_tokens": 100_000}, 8192) == 4096
    assert reserve_of({}, 8192) == 1024
    assert reserve_of({}, 1_000_000) == 4096


@pytest.mark.parametrize(
    ("tokens", "bytes_", "cut"),
    [
        (4096, 30_000, True),  # grown by half, and nothing of it reported
        (3900, 30_000, True),
        (4300, 30_000, True),
        (6000, 30_000, False),
        (4096, 20_400, None),  # hardly grown
        (4096, 18_000, None),  # shrunk
        (300, 30_000, None),  # only what it had not seen before
    ],
)
def test_an_upstream_cuts_if_its_reports_stop_growing(tokens: int, bytes_: int, cut: bool | None) -> None:
    assert is_cut(Measured(4096, 20_000), Measured(tokens, bytes_)) is cut
