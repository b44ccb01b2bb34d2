"""The tutorial, typed as it is printed: its programs are saved, its commands run, its outputs compared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .shell import blocks, commands, environment, free_port, shell
from .storyteller import storyteller

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"
PLACE = "holdfast-tutorial"  # in the reader's home, where the programs are saved


def agrees(expected: str, actual: str) -> bool:
    """Is this the output that was printed? `…` stands for anything; space at a line's end does not count."""
    wanted, given = ("\n".join(map(str.rstrip, text.strip().splitlines())) for text in (expected, actual))
    pattern = ".*?".join(re.escape(part.strip(" ")) for part in wanted.split("…"))
    return re.fullmatch(pattern, given, re.DOTALL) is not None


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        ("a\nb", "a  \nb\n", True),
        ("SESSION … AGE\n…", "SESSION   X  AGE\n1\n2", True),
        ("#4 … interrupted", "#4 x", False),
        ("a", "a\nb", False),
    ],
)
def test_outputs_are_compared(expected: str, actual: str, same: bool) -> None:
    assert agrees(expected, actual) is same


@pytest.mark.timeout(300)
def test_the_tutorial_runs_as_printed(tmp_path: Path) -> None:
    """From the first `make run` to the last command, in one terminal that has nothing of this environment on
    its path: only what the tutorial activates. With a storyteller in place of the small model, so that its
    replies last, and on a port of its own."""
    if subprocess.run(["make", "-q", ".venv/run.stamp"], cwd=ROOT, check=False).returncode:
        pytest.skip("the environment would have to be made anew first: make run")
    ran: list[str] = []
    address = f"127.0.0.1:{free_port()}"
    with (
        storyteller(endless="the sea") as model_url,
        shell(ROOT, reader(tmp_path, model_url, address)) as terminal,
    ):
        for language, text in blocks(TUTORIAL, "python", "console"):
            if language == "python":
                name = text.splitlines()[0].removeprefix("# ")
                (tmp_path / PLACE / name).write_text(text, "utf-8")
                continue
            for command, expected in commands(text.replace("127.0.0.1:8377", address)):
                if command == "make run":
                    said = terminal.run_until("holdfast answers at", command)
                else:
                    said = terminal.run(command)
                assert agrees(expected, said), f"{command}\n{said}"
                ran.append(command)
        assert terminal.run("command -v holdfast python pip").split() == [
            str(ROOT / ".venv/bin" / name) for name in ("holdfast", "python", "pip")
        ]
    assert len(ran) > 20
    assert {"make run", "pip install openai"} <= set(ran)


def reader(home: Path, model_url: str, address: str) -> dict[str, str]:
    """The environment of a reader, whose home this is. pip can fetch nothing, because this environment has
    what the tutorial installs, and refuses to install into a Python outside of an activated environment."""
    own = environment(
        home,
        HOME=str(home),
        HOLDFAST_MODEL__BASE_URL=model_url,
        HOLDFAST_SERVER__PORT=address.partition(":")[2],
        PIP_NO_INDEX="1",
        PIP_REQUIRE_VIRTUALENV="1",
    )
    del own["HOLDFAST_HOME"]
    ours = str(Path(sys.executable).parent)
    own["PATH"] = os.pathsep.join(each for each in own["PATH"].split(os.pathsep) if each != ours)
    return own
