"""Times, numbers, names and what is shown of others' words."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.cli.config import without_secret
from holdfast.cli.format import (
    ago,
    count,
    harmless,
    next_step_after,
    one_line,
    percent,
    sentences,
    size,
    took,
    width_of,
)
from holdfast.cli.run import model_setting
from holdfast.errors import BadSetting, NotFound
from holdfast.settings import store_location

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-5, "just now"),
        (0.2, "just now"),
        (12, "12 s ago"),
        (59.9, "59 s ago"),
        (60, "1 min ago"),
        (3599, "59 min ago"),
        (3600, "1 h ago"),
        (86_400, "1 day ago"),
        (200 * 86_400, "200 days ago"),
    ],
)
def test_how_long_ago(seconds: float, said: str) -> None:
    assert ago(NOW - timedelta(seconds=seconds), NOW) == said


def test_never() -> None:
    assert ago(None, NOW) == "never"


def test_numbers_as_people_say_them() -> None:
    assert (count(0, "session"), count(1, "session"), count(1200, "session")) == (
        "0 sessions",
        "1 session",
        "1,200 sessions",
    )
    assert count(2, "process") == "2 processes"
    assert (percent(1, 3), percent(0, 0)) == ("33.3 %", "—")
    assert (size(12), size(151_552), size(5 * 1024**3)) == ("12 bytes", "148.0 KB", "5.0 GB")
    assert (took(timedelta(seconds=0.25)), took(timedelta(minutes=5))) == ("0.2 s", "5 min")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b]0;evil\x07", "\\x1b]0;evil\\x07"),
        ("over\rwritten", "over\\x0dwritten"),
        ("windows\r\nlines", "windows\nlines"),
        ("\x9b31m", "\\x9b31m"),
        ("日本語 é", "日本語 é"),
    ],
)
def test_control_characters_are_shown_not_obeyed(text: str, shown: str) -> None:
    assert harmless(text) == shown


def test_one_line_and_its_width() -> None:
    assert one_line(" a\n  b\tc ") == "a b c"
    assert (width_of("abc"), width_of("日本"), width_of("e\u0301")) == (3, 4, 1)


def test_sentences_end_as_sentences_do() -> None:
    assert sentences("it failed", "", "Try again!") == "it failed. Try again!"


@pytest.mark.parametrize(
    ("option", "setting"),
    [
        ("auto", {"kind": "auto"}),
        ("local", {"kind": "local"}),
        ("scripted", {"kind": "scripted"}),
        ("http://localhost:11434/v1", {"kind": "openai", "base_url": "http://localhost:11434/v1"}),
        ("qwen3:8b", {"name": "qwen3:8b"}),
        ("gpt-4.1", {"name": "gpt-4.1"}),
        ("meta-llama/Llama-3.1-8B", {"name": "meta-llama/Llama-3.1-8B"}),
        ("qwen2.5:72", {"name": "qwen2.5:72"}),
        ("hf.co/bartowski/Llama-3.2:latest", {"name": "hf.co/bartowski/Llama-3.2:latest"}),
    ],
)
def test_what_the_model_option_stands_for(option: str, setting: dict[str, str]) -> None:
    assert model_setting(option) == setting


@pytest.mark.parametrize(
    "option",
    [
        "localhost",
        "localhost:11434",
        "localhost:11434/v1",
        "127.0.0.1:8000/v1",
        "[::1]:8000/v1",
        "api.openai.com/v1",
        "api.example.com:8443",
        "gateway:8080/llm",
        "example.com/llm/v1/",
    ],
)
def test_an_address_without_its_scheme_is_refused(option: str) -> None:
    with pytest.raises(BadSetting, match=f"write http://{re.escape(option)}"):
        model_setting(option)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("model.base_url", "https://ada:word@example.com/v1", "https://ada:(hidden)@example.com/v1"),
        ("store.url", "postgresql://ada:word@host/db", "postgresql://ada:(hidden)@host/db"),
        ("store.url", "postgresql://ada@host/db", "postgresql://ada@host/db"),
        (
            "store.url",
            "postgresql://host/db?user=ada&password=word&sslmode=require&sslpassword=other",
            "postgresql://host/db?user=ada&password=(hidden)&sslmode=require&sslpassword=(hidden)",
        ),
        ("model.base_url", "https://h/v1?api_key=word#x", "https://h/v1?api_key=(hidden)#x"),
        ("notify.webhook", "https://h/?Token=word&a=b", "https://h/?Token=(hidden)&a=b"),
        ("notify.webhook", "https://h/?a=b", "https://h/?a=b"),
        ("store.url", "sqlite:////home/ada/a:b@c.db", "sqlite:////home/ada/a:b@c.db"),
        ("model.api_key_env", "OPENAI_API_KEY", "OPENAI_API_KEY"),
        ("model.api_key_env", "sk-abcdef", "(hidden)"),
        ("model.api_key_env", "sk_live_abcdef", "(hidden)"),
        ("model.api_key_env", "my_key", "my_key"),
        ("lease.stale_seconds", 90.0, 90.0),
    ],
)
def test_secrets_are_hidden(name: str, value: object, shown: object) -> None:
    assert without_secret(name, value, {"my_key": "x"}) == shown


@pytest.mark.parametrize(
    ("what", "command"),
    [
        ("API key", "holdfast keys list"),
        ("memory", "holdfast memories"),
        ("process", "holdfast ps"),
        ("turn", "holdfast turns"),
        ("notice", "holdfast notices"),
        ("pairing", "holdfast pair list"),
        ("pairing code", "holdfast pair list"),
        ("session", "holdfast sessions"),
    ],
)
def test_an_unknown_id_is_answered_by_the_command_that_lists_the_known_ones(what: str, command: str) -> None:
    assert f"`{command}`" in next_step_after(NotFound(what, "x"))


def test_a_stores_location_has_no_password() -> None:
    url = "postgresql://ada:one@host/db?password=two&sslpassword=three&sslmode=require"
    assert store_location(url) == "postgresql://ada@host/db?password=***&sslpassword=***&sslmode=require"
