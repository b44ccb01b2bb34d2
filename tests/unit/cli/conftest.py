"""The command line in this very process, on a real store. `tests/acceptance` runs the installed one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


class Home:
    """A HOLDFAST_HOME, and the command in it. The model repeats what was said."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = path / "holdfast.db"
        self.environment: dict[str, str | None] = {
            **{name: None for name in os.environ if name.startswith("HOLDFAST_")},
            "HOLDFAST_HOME": str(path),
            "HOLDFAST_MODEL__KIND": "scripted",
            "COLUMNS": "120",
        }

    def run(self, *arguments: str, said: str = "", **env: str) -> Done:
        from holdfast.cli.groups import app

        result = CliRunner().invoke(
            app, list(arguments), input=said, env={**self.environment, **env}, prog_name="holdfast"
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Done(result.exit_code, result.stdout, result.stderr)

    def ok(self, *arguments: str, said: str = "") -> str:
        """What it prints, when all goes well."""
        done = self.run(*arguments, said=said)
        assert done.returncode == 0, done
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """The one document on stdout."""
        return json.loads(self.ok(*arguments, "--json"))

    def sessions(self, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.json("sessions", *arguments)["data"]
        return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    here = Path.cwd()
    os.chdir(tmp_path)
    yield Home(tmp_path / "home")
    os.chdir(here)


@pytest.fixture(scope="session", autouse=True)
def one_command_tree() -> Iterator[None]:
    """To build all commands takes five times as long as to show the help of one: here it is done once."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("typer.testing._get_command", cache(typer.main.get_command))
        yield
