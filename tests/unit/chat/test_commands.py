"""What a line of the chat means."""

from __future__ import annotations

import pytest

from holdfast.chat.commands import MEANINGS, ChatCommand, ChatMessage, Slash, Unclear, completions, meaning_of


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("", None),
        ("  \t ", None),
        ("hello", ChatMessage("hello")),
        (" hello ", ChatMessage(" hello ")),
        ("what is /etc?", ChatMessage("what is /etc?")),
        ("//etc/passwd, what is it?", ChatMessage("/etc/passwd, what is it?")),
        (" /etc/passwd", ChatMessage(" /etc/passwd")),
        ("/new", ChatCommand(Slash.NEW)),
        ("/NEW  ", ChatCommand(Slash.NEW)),
        ("/resume", ChatCommand(Slash.RESUME)),
        ("/resume   cli:ada ", ChatCommand(Slash.RESUME, "cli:ada")),
        ("/title Of tides and seaweed", ChatCommand(Slash.TITLE, "Of tides and seaweed")),
        ("/new please", Unclear("/new takes no argument")),
    ],
)
def test_a_line_is_something_to_say_or_a_command(line: str, meaning: object) -> None:
    assert meaning_of(line) == meaning


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("/nw", "/new"),
        ("/res", "/resume"),
        ("/exit", "/quit"),
        ("/", "/help"),
        ("/wy x", "/why"),
    ],
)
def test_an_unknown_command_answers_with_the_nearest(line: str, meant: str) -> None:
    unclear = meaning_of(line)
    assert isinstance(unclear, Unclear)
    assert meant in unclear.sentence
    assert "//" in unclear.sentence, "how to say it, if it was meant to be said"


def test_every_command_says_what_it_does() -> None:
    assert set(MEANINGS) == set(Slash)
    assert {"new", "resume", "retry", "fork", "rewind", "compact", "why", "ps", "title", "quit"} <= set(Slash)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("/re", ["/resume ", "/retry", "/rewind ", "/remember "]),
        ("/n", ["/new"]),
        ("/resume cli:a", ["cli:ada"]),
        ("/resume ", ["cli:ada", "sess_1"]),
        ("/title cli:a", []),
        ("hello", []),
        ("", []),
    ],
)
def test_a_command_and_what_it_resumes_are_completed(line: str, found: list[str]) -> None:
    assert [text for text, _ in completions(line, {"cli:ada": "Of tides", "sess_1": ""})] == found
