"""Every example of the README, pasted by a newcomer with two terminals."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .shell import Shell, blocks, commands, environment, free_port, shell

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
    assert any("the model is called" in each for each in said), "the program of the library"
    assert ran.count("make run") == 2, "it was killed and started again"
    assert any(command.startswith("kill -9") for command in ran)
    assert ran[0] in ELSEWHERE, "the demo is the first thing a newcomer runs"

    everything = json.loads(talking.run("./holdfast sessions messages cli:ada --scope conversation --json"))
    assert [message["content"] for message in everything["data"]] == [
        line
        for asked in ("My name is Ada.", "Are you still there?")
        for line in (asked, f"You said: {asked}")
    ], "nothing was lost, and nothing is there twice"
    assert any("No problems found." in each for each in said)

    (again,) = [command for command in ran if "Idempotency-Key" in command]
    first, second = (json.loads(talking.run(again)) for _ in range(2))
    assert first == second, "the same answer, as often as you like"
    assert first["choices"][0]["message"]["content"] == "You said: My name is Ada."
    assert len(json.loads(talking.run("./holdfast sessions turns cli:ada --json"))["data"]) == 2


def test_the_program_of_the_library_calls_its_model_once_for_one_request(tmp_path: Path) -> None:
    """Run again, also after a kill when its answer was stored: one call, and the stored answer each time."""
    (text,) = [text for _, text in blocks(ROOT / "README.md", "python") if "holdfast.open" in text]
    stored = "            turn.append(answer)\n"
    assert text.count(stored) == 1
    killed = text.replace(
        stored, f"{stored}            __import__('os').kill(__import__('os').getpid(), 9)\n"
    )
    for number, programs in enumerate([(text, text, text), (killed, text, text)]):
        place = tmp_path / str(number)
        place.mkdir()
        own = environment(
            place / "home", PYTHONUNBUFFERED="1"
        )  # what it prints before it is killed counts too
        with shell(place, own) as terminal:
            printed = [terminal.run(f"{program(place, each)} || [ $? = 137 ]").strip() for each in programs]
            assert terminal.run(program(place, COUNTING)).strip() == "2", "one question, one answer"
        answer = "{'role': 'assistant', 'content': 'Hello Ada'}"
        assert "\n".join(printed).count("the model is called") == 1
        assert printed[1:] == [answer, answer]


COUNTING = """
import holdfast
with holdfast.open_sync("sqlite:///agent.db") as hf:
    print(len(hf.session("cli:ada").messages("conversation")))
"""
