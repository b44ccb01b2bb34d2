import time

import msgspec
import pytest

from holdfast.errors import ModelError
from holdfast.models.refusals import (
    LONGEST,
    MOST_READ,
    UpstreamRefusal,
    is_too_long,
    limit_said,
    redacted,
    refusal,
)

KEY = "sk-proj-4242abcdefghijklmnop"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "no such model", "type": "x", "code": "y"}}', "no such model"),
        (b'{"error": "model not found"}', "model not found"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"detail": [{"loc": ["body"], "msg": "field required"}]}', "field required"),
        (b'{"message": "slow down"}', "slow down"),
        (b'[{"error": {"message": "as Gemini does"}}]', "as Gemini does"),
        (b'{"error": {"code": "overloaded"}}', "overloaded"),
        (b"upstream connect error", "upstream connect error"),
        (b"<html><h1>502 Bad Gateway</h1></html>", None),
        (b"", None),
        (b"{}", None),
        (b"null", None),
        (b'{"error": {"message": ""}}', None),
    ],
)
def test_the_reason_is_found(body: bytes, said: str | None) -> None:
    assert refusal(body).said == said


def test_a_long_reason_is_cut() -> None:
    assert len(refusal(b"x" * 10_000).said or "") == LONGEST


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (
            b'{"error": {"message": "m", "type": "invalid_request_error", "param": "n", "code": "c"}}',
            UpstreamRefusal("m", None, "c", "invalid_request_error", "n"),
        ),
        (
            b'{"error": {"message": "m", "type": "t", "param": null, "code": null}}',
            UpstreamRefusal("m", None, None, "t"),
        ),
        (
            b'{"object": "error", "message": "m", "type": "BadRequestError", "code": 400}',
            UpstreamRefusal("m", 400, None, "BadRequestError"),
        ),
        (
            b'{"error": {"code": 400, "message": "m", "type": "exceed_context_size_error", "n_ctx": 1}}',
            UpstreamRefusal("m", 400, "context_length_exceeded", "exceed_context_size_error"),
        ),
        (b'[{"error": {"message": "m", "code": "c"}}]', UpstreamRefusal("m", None, "c")),
        (b'{"error": "m"}', UpstreamRefusal("m")),
        (b'{"error": {"message": "m", "type": ["t"], "param": {"x": 1}, "code": ""}}', UpstreamRefusal("m")),
        (b"[[]]", UpstreamRefusal()),
        (b"3", UpstreamRefusal()),
        (b"[" * 900 + b"]" * 900, UpstreamRefusal()),
        (b"[" * 60_000, UpstreamRefusal()),
    ],
)
def test_what_else_an_error_says_is_found(body: bytes, found: UpstreamRefusal) -> None:
    assert refusal(body) == found


def test_nothing_that_is_passed_on_has_the_key() -> None:
    body = b'{"error": {"message": "KEY", "type": "KEY", "param": "KEY", "code": "KEY"}}'
    found = refusal(body.replace(b"KEY", KEY.encode()), lambda text: redacted(text, KEY))
    assert found == UpstreamRefusal("[key]", None, "[key]", "[key]", "[key]")
    assert refusal(KEY.encode(), lambda text: redacted(text, KEY)) == UpstreamRefusal("[key]")


def test_an_error_carries_all_of_it_and_the_status_of_the_answer_wins() -> None:
    error = UpstreamRefusal("said", 500, "code", "type", "param").error("message", 429, 2.5)
    assert (str(error), error.status, error.said, error.retry_after) == ("message", 429, "said", 2.5)
    assert (error.code, error.type, error.param) == ("code", "type", "param")
    assert UpstreamRefusal(status=500).error("message").status == 500


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"Incorrect API key provided: {KEY}.", "Incorrect API key provided: [key]."),
        ("Incorrect API key provided: sk-proj-********mnop.", "Incorrect API key provided: [key]."),
        (f"header was 'Bearer {KEY}'", "header was 'Bearer [key]'"),
        (f"key={KEY!r}", "key='[key]'"),
        ("another: sk-ant-api03-abcdef", "another: [key]"),
        ("the model llama3 was not found", "the model llama3 was not found"),
        ("try sk-learn", "try sk-learn"),
    ],
)
def test_a_key_is_never_shown(text: str, shown: str) -> None:
    assert redacted(text, KEY) == shown


def test_a_key_of_another_shape_is_not_shown_either() -> None:
    assert redacted("bad key 0a1b2c3d4e5f6071", "0a1b2c3d4e5f6071") == "bad key [key]"
    assert redacted("bad key 0a1b2c...6071", "0a1b2c3d4e5f6071") == "bad key [key]"
    assert redacted("bad key ....6071", "0a1b2c3d4e5f6071") == "bad key [key]"


def test_a_key_that_is_no_secret_leaves_the_words_alone() -> None:
    assert redacted("try `ollama pull qwen3`", "ollama") == "try `ollama pull qwen3`"


@pytest.mark.parametrize(
    ("said", "limit"),
    [
        ("This model's maximum context length is 4097 tokens. However, your messages took 5,000.", 4097),
        ("the request (5000 tokens) exceeds the available context size (4096 tokens), try again", 4096),
        ("prompt is too long: 210000 tokens > 200000 maximum", 200000),
        ("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200,000", 200000),
        ("Please reduce the length of the messages or completion.", None),
        ("The input token count exceeds the maximum number of tokens allowed.", None),
        ("Your input exceeds the context window of this model.", None),
    ],
)
def test_a_context_that_is_too_long_is_recognised_in_many_words(said: str, limit: int | None) -> None:
    error = ModelError(said, 400, said=said)
    assert is_too_long(error)
    assert limit_said(error) == limit


def test_a_context_that_is_too_long_is_recognised_by_its_code() -> None:
    assert is_too_long(ModelError("no", 400, code="context_length_exceeded"))


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("Rate limit reached: too many tokens per minute", 429),
        ("max_tokens is too large: 50000; at most 4096 completion tokens are supported", 400),
        ("invalid image", 400),
        ("the context length service is down", 503),
        (None, 400),
    ],
)
def test_other_refusals_are_not_taken_for_that(said: str | None, status: int) -> None:
    assert not is_too_long(ModelError(said or "no", status, said=said))


def test_the_time_of_redacting_does_not_grow_with_what_an_upstream_says() -> None:
    key = "sk-proj-abcdefghijkl"
    began = time.thread_time()
    for hostile in ("*" * 1_000_000, ".a" * 500_000, key[:6] + "*" * 1_000_000, "*ijkl" * 200_000):
        assert len(redacted(hostile, key)) <= MOST_READ
    assert time.thread_time() - began < 5


@pytest.mark.parametrize("key", ["hunter2", "sk-proj-abcdefghijkl", "0123456789ab"])
def test_a_key_that_the_limit_cuts_in_two_is_not_shown_either(key: str) -> None:
    for length in range(2, len(key)):
        shown = redacted("." * (MOST_READ - length) + key + " and more", key)
        assert key[:length] not in shown


def test_a_key_behind_many_words_is_not_shown_where_the_reason_is_cut() -> None:
    key = "hunter2-is-our-key"
    for before in range(LONGEST - 30, LONGEST + 5):
        body = msgspec.json.encode({"error": "x" * before + " " + key})
        said = refusal(body, lambda text: redacted(text, key)).said
        assert said is not None
        assert "hunter" not in said
