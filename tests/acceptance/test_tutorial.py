"""The tutorial, typed as it is printed: its programs are saved, its commands run, its outputs compared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .shell import blocks, commands, environment, free_port, shell
from .storyteller import storyteller

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"


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
    """With a storyteller in place of the small model, so that its replies last, and on a port of its own."""
    ran: list[str] = []
    with storyteller() as model_url:
        own = environment(
            tmp_path / "elsewhere",
            HOLDFAST_MODEL__BASE_URL=model_url,
            HOLDFAST_SERVER__PORT=str(free_port()),
        )
        with shell(tmp_path, own) as terminal:
            for language, text in blocks(TUTORIAL, "python", "console"):
                if language == "python":
                    name = text.splitlines()[0].removeprefix("# ")
                    (tmp_path / name).write_text(text, "utf-8")
                    continue
                for command, expected in commands(text):
                    said = terminal.run(command)
                    assert agrees(expected, said), f"{command}\n{said}"
                    ran.append(command)
    assert len(ran) > 20
