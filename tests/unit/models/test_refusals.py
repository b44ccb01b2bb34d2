import pytest

from holdfast.models.refusals import LONGEST, reason, redacted

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
    assert reason(body) == said


def test_a_long_reason_is_cut() -> None:
    assert len(reason(b"x" * 10_000) or "") == LONGEST


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
