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
NOT_AGAIN = {"make test"}  # that is what runs this
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
            elif command not in NOT_AGAIN:
                said.append(talking.run(command))
    assert ran.count("make run") == 2, "it was killed and started again"
    assert any(command.startswith("kill -9") for command in ran)

    everything = json.loads(talking.run("./holdfast sessions messages cli:ada --scope conversation --json"))
    assert [message["content"] for message in everything["data"]] == [
        line
        for asked in ("My name is Ada.", "What is my name?", "Are you still there?")
        for line in (asked, f"You said: {asked}")
    ], "nothing was lost, and nothing is there twice"
    assert any("All is well." in each for each in said)
    assert any(each.startswith("You said: What is my name?\nconv_") for each in said), "the SDK's program"

    (again,) = [command for command in ran if "Idempotency-Key" in command]
    assert json.loads(talking.run(again)) == json.loads(talking.run(again)), (
        "the same answer, as often as you like"
    )
    assert len(json.loads(talking.run("./holdfast sessions turns cli:ada --json"))["data"]) == 3


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
