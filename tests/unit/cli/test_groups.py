"""Wrong usage exits 2 and says how it is right; every command explains itself with an example."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from holdfast.cli.commands import COMMANDS as COMMANDS_BY_GROUP
from holdfast.cli.groups import app
from tests.unit.cli.conftest import Home


def commands(group: Any, *path: str) -> Iterator[list[str]]:
    for name, below in group.commands.items():
        yield [*path, name]
        if hasattr(below, "commands"):
            yield from commands(below, *path, name)


ROOT: Any = typer.main.get_command(app)
COMMANDS = list(commands(ROOT))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_help_of_every_command_has_an_example(home: Home, command: list[str]) -> None:
    said = home.ok(*command, "--help")
    examples = re.sub(r"(it lists|no subcommand|shows the settings): ", "  ", said)
    assert f"  holdfast {' '.join(command)}" in examples
    assert said == home.ok(*command, "-h")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_takes_the_shared_options(home: Home, command: list[str]) -> None:
    if command in (["sessions"], ["keys"], ["memories"], ["notices"], ["import"], ["config"]):
        return  # it takes those of the command it stands for
    said = home.ok(*command, "--help")
    assert all(option in said for option in ("--owner NAME", "--config FILE", "--store URL"))


def test_the_help_of_a_group_says_what_each_command_says() -> None:
    for group, lines in COMMANDS_BY_GROUP.items():
        found = ROOT if group == "holdfast" else ROOT.commands[group]
        assert {name: line for name, (_, line) in lines.items()} == {
            name: command.get_short_help_str(1000) for name, command in found.commands.items()
        }


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["sessions", "no-such-command"],
        ["sessions", "sess_123"],
        ["sessions", "--state", "sleeping"],
        ["sessions", "--limit", "0"],
        ["sessions", "--limit", "many"],
        ["sessions", "show"],
        ["sessions", "messages", "k", "--scope", "all"],
        ["sessions", "end", "k", "--reason", "reaped"],
        ["sessions", "search"],
        ["sessions", "--no-such-option"],
        ["backup"],
        ["keys", "no-such-command"],
        ["keys", "create", "--scope", "root"],
        ["keys", "create", "--tools", "search,shell"],
        ["keys", "create", "--owner", "*"],
        ["keys", "create", "--owner", ""],
        ["keys", "create", "--owner", "team/../other"],
        ["keys", "revoke"],
        ["run"],
        ["run", "  "],
        ["run", "--owner", "*", "hello"],
        ["run", "--key", "k", "--resume", "sess_1", "hello"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2_and_shows_how_it_is_used(home: Home, arguments: list[str]) -> None:
    done = home.run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: holdfast" in done.stderr
    assert "Traceback" not in done.stderr
    assert not home.path.exists()


def test_an_id_without_a_verb_is_answered_with_the_verb(home: Home) -> None:
    assert "holdfast sessions show sess_123" in home.run("sessions", "sess_123").stderr
