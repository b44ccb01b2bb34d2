"""The script of docs/how-to/use-any-openai-client.md, killed while it prints; and then its server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .command import Home, drafts, until
from .serving import serving
from .shell import blocks
from .talker import Talker

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "use-any-openai-client.md"


def test_the_script_survives_being_killed_and_so_does_its_server(
    talking: Home, talker: Talker, tmp_path: Path
) -> None:
    (script,) = [text for _, text in blocks(PAGE, "python") if "story-1" in text]
    assert len(script.splitlines()) == 5
    (tmp_path / "story.py").write_text(script, "utf-8")
    with serving(talking) as server:
        first = _start(tmp_path, talking, server.client_environment)
        talker.say("The tide ", "rises ")
        _hear(first, "The tide rises ")
        first.kill()  # the script dies, its turn goes on
        first.communicate()
        second = _start(tmp_path, talking, server.client_environment)
        _hear(second, "The tide rises ")
        talker.say("and ")
        _hear(second, "and ")
        until(lambda: drafts(talking), "what was said is on disk")
        server.kill()  # and now the server
        second.communicate(timeout=60)
        until(lambda: not talker.answering, "the dead server's request is given up")
        server.start()
        question, half = talking.json("sessions", "messages", "cli:ada")["data"]
        assert half["status"] == "interrupted"
        assert half["content"].startswith("The tide ")
        third = _start(tmp_path, talking, server.client_environment)
        talker.answer("The tide rises and falls.")
        out, _ = third.communicate(timeout=60)
        assert out == b"The tide rises and falls."
        (turn,) = talking.json("sessions", "turns", "cli:ada")["data"]
        assert turn["status"] == "completed"
        context = talking.json("sessions", "messages", "cli:ada", "--scope", "context")["data"]
        assert [each["content"] for each in context] == [question["content"], "The tide rises and falls."]


def _start(place: Path, home: Home, client: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "story.py"],
        cwd=place,
        env={**home.environment, **client},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a server that is killed under it gives it a traceback, rightly
    )


def _hear(read: subprocess.Popen[bytes], words: str) -> None:
    assert read.stdout is not None
    heard = b""
    while words.encode() not in heard:
        piece = os.read(read.stdout.fileno(), 4096)
        assert piece, f"{words!r} never came: {heard!r}"
        heard += piece
