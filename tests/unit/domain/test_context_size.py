"""How large a context is: by what the model reported, by an estimate of the rest."""

import base64

import msgspec
import pytest

from holdfast.domain.context_size import (
    TOKENS_PER_BYTE,
    Budget,
    Growth,
    Size,
    TokenEstimator,
    TokenReport,
    measured_in,
    reserve_of,
    weigh,
)


def body(*parts: object) -> bytes:
    return msgspec.json.encode({"role": "user", "content": list(parts)})


PICTURE = "data:image/png;base64," + base64.b64encode(bytes(60_000)).decode()


def test_text_weighs_its_bytes() -> None:
    assert weigh(b'{"role":"user","content":"hello"}') == Size(33)


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
    assert TokenEstimator().total(Size(10_000, 1000)) == round(10_000 * TOKENS_PER_BYTE) + 1000


def test_a_report_is_the_base_and_teaches_how_many_tokens_a_byte_has() -> None:
    measured = TokenReport(tokens=2500, bytes=10_000, extra=2000)
    assert measured.ratio == 0.25
    scale = TokenEstimator(measured, same_context=True)
    assert scale.total(Size(8000)) == 2500  # the same context again, and as many instructions
    assert scale.total(Size(12_000)) == 3500
    assert scale.total(Size(12_000), extra=0) == 3000
    assert scale.total(Size(8000, 1000)) == 3500


def test_of_another_context_only_the_ratio_is_taken() -> None:
    measured = TokenReport(tokens=9000, bytes=10_000, parts=5000)
    assert TokenEstimator(measured).total(Size(1000)) == 400
    assert (
        TokenEstimator(measured, same_context=True).total(Size(1000)) == 400
    )  # something was cut: count anew


def test_a_small_sample_teaches_nothing() -> None:
    assert TokenReport(tokens=90, bytes=100).ratio == TOKENS_PER_BYTE


def test_a_report_of_next_to_nothing_is_none() -> None:
    assert TokenReport(tokens=2500, bytes=10_000).is_plausible
    assert not TokenReport(tokens=60, bytes=10_000).is_plausible
    assert TokenReport(tokens=6, bytes=100).is_plausible


def test_what_was_measured_is_kept_with_the_turns_usage() -> None:
    measured = TokenReport(2500, 10_000, 2000, 1000)
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


def series(*reports: tuple[int, int]) -> Growth:
    """Reports of so many tokens about so many bytes."""
    first, *rest = (TokenReport(tokens, size) for tokens, size in reports)
    growth = Growth(first)
    for each in rest:
        growth = growth.followed_by(each)
    return growth


RISING = ((1000, 4000), (2000, 8000), (3000, 12_000))


@pytest.mark.parametrize(
    ("reports", "cut"),
    [
        ([*RISING, (4096, 16_384), (4096, 20_000), (4096, 24_000), (4096, 28_000)], True),
        ([*RISING, (4096, 16_384), (3900, 20_000), (4100, 24_000), (3800, 28_000)], True),
        ([*RISING, (4096, 16_384), (4096, 20_000), (4096, 24_000)], False),  # not often enough
        ([*RISING, (4096, 16_384), (4096, 16_500), (4096, 16_600), (4096, 16_700)], False),  # hardly grown
        ([*RISING, (4096, 16_384), (5000, 20_000), (6000, 24_000), (7000, 28_000)], False),  # it follows
        ([*RISING, (300, 16_384), (310, 20_000), (305, 24_000), (290, 28_000)], False),  # what was not cached
        ([(4096, size) for size in range(4000, 90_000, 4000)], False),  # constant from the beginning
        ([(5000 - size // 20, size) for size in range(4000, 90_000, 4000)], False),  # falling
        ([(1000, 4000), (2000, 8000), *((2000, size) for size in range(12_000, 90_000, 4000))], False),
    ],
)
def test_an_upstream_cuts_if_its_reports_rose_and_then_stopped(
    reports: list[tuple[int, int]], cut: bool
) -> None:
    assert series(*reports).is_cut is cut


def test_images_that_a_report_leaves_out_are_no_sign_of_a_cut() -> None:
    growth = series(*RISING)
    for number in range(1, 6):
        growth = growth.followed_by(TokenReport(3000 + number, 12_000 + 100 * number, parts=1000 * number))
    assert not growth.is_cut


@pytest.mark.parametrize(
    ("measured", "plausible"),
    [
        (TokenReport(2500, 10_000), True),
        (TokenReport(300, 10_000), False),
        (TokenReport(20_000, 10_000), False),
        (TokenReport(900, 100), True),
        (TokenReport(100_000, 100), False),
        (TokenReport(3500, 1000, parts=1000), True),
        (TokenReport(500, 10_000, parts=1000), False),
    ],
)
def test_a_report_counts_only_if_it_can_be_the_whole_of_what_was_given(
    measured: TokenReport, plausible: bool
) -> None:
    assert measured.is_plausible is plausible
