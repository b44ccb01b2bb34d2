"""Every example of the README, pasted by a newcomer with two terminals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .command import Home, drafts, until
from .serving import serving
from .shell import Shell, blocks, commands, environment, free_port, shell
from .talker import Talker

ROOT = Path(__file__).parents[2]
ELSEWHERE = {"./holdfast demo"}  # test_demo.py runs it, at a terminal
READY = "holdfast answers at"


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[tuple[Shell, Shell]]:
    """One for the server, one to talk. The model is a script, to be quick; everything else is as printed."""
    if subprocess.run(["make", "-q", ".venv/run.stamp"], cwd=ROOT, check=False).returncode:
        pytest.skip("the environment would have to be made anew first: make run")
    own = environment(
        tmp_path / "home", HOLDFAST_MODEL__KIND="scripted", HOLDFAST_SERVER__PORT=str(free_port())
    )
    with shell(ROOT, own) as first, shell(ROOT, own) as second:
        yield first, second


def program(place: Path, text: str) -> str:
    """How to run a program of the README: where it makes its files, nobody minds."""
    (place / "program.py").write_text(text, "utf-8")
    return f"(cd {place} && {sys.executable} program.py)"


@pytest.mark.timeout(300)
def test_every_example_of_the_readme_works_when_it_is_pasted(
    terminals: tuple[Shell, Shell], tmp_path: Path
) -> None:
    serving, talking = terminals
    said: list[str] = []
    ran: list[str] = []
    for language, text in blocks(ROOT / "README.md", "console", "python"):
        if language == "python":
            said.append(talking.run(program(tmp_path, text)))
            continue
        for command, expected in commands(text):
            assert not expected, f"the README shows no outputs: {expected}"
            command = command.partition("  #")[0].strip()
            ran.append(command)
            if command == "make run":
                serving.printed = ""
                serving.type(command)
                serving.wait_for(READY)
            elif command.startswith("./holdfast chat"):
                said.append(talking.run(f"echo 'Are you still there?' | {command}"))
            elif command not in ELSEWHERE:
                said.append(talking.run(command))
    assert ran.count("make run") == 2, "it was killed and started again"
    assert any(command.startswith("kill -9") for command in ran)
    assert ran[0] in ELSEWHERE, "the demo is the first thing a newcomer runs"

    everything = json.loads(talking.run("./holdfast sessions messages cli:ada --scope conversation --json"))
    assert [message["content"] for message in everything["data"]] == [
        line
        for asked in ("My name is Ada.", "Are you still there?", "Tell me a story of the sea.")
        for line in (asked, f"You said: {asked}")
    ], "nothing was lost, and nothing is there twice"
    assert any("No problems found." in each for each in said)

    (again,) = [command for command in ran if "Idempotency-Key" in command]
    first, second = (json.loads(talking.run(again)) for _ in range(2))
    assert first == second, "the same answer, as often as you like"
    assert first["choices"][0]["message"]["content"] == "You said: My name is Ada."
    assert len(json.loads(talking.run("./holdfast sessions turns cli:ada --json"))["data"]) == 3


def test_the_five_lines_survive_being_killed_and_so_does_their_server(
    talking: Home, talker: Talker, tmp_path: Path
) -> None:
    (script,) = [text for _, text in blocks(ROOT / "README.md", "python") if "OpenAI()" in text]
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


def test_the_program_of_the_library_runs_twice_and_is_one_turn(tmp_path: Path) -> None:
    texts = [text for _, text in blocks(ROOT / "README.md", "python") if "holdfast.open" in text]
    assert len(texts) == 1
    counting = (
        "import holdfast\n"
        'with holdfast.open_sync("sqlite:///agent.db") as hf:\n'
        '    print(len(hf.session("cli:ada").messages("conversation")))\n'
    )
    with shell(tmp_path, environment(tmp_path / "home")) as terminal:
        for _ in range(2):
            terminal.run(program(tmp_path, texts[0]))
        assert terminal.run(program(tmp_path, counting)).strip() == "2"
