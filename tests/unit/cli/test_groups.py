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
WITHOUT_OWNER = ("serve", "demo", "version")
"""They take --owner like every command, but it says nothing about them, so their help leaves it out."""


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_help_of_every_command_has_an_example(home: Home, command: list[str]) -> None:
    said = home.ok(*command, "--help")
    example = rf"(Examples?:\n(.*\n)*?|Example:) +holdfast {' '.join(command)}"
    assert re.search(example, said)
    assert said == home.ok(*command, "-h")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_takes_the_shared_options(home: Home, command: list[str]) -> None:
    groups = ("sessions", "turns", "keys", "memories", "notices", "pair", "import", "config")
    if command in [[group] for group in groups]:
        return  # it takes those of the command it stands for
    found = ROOT
    for name in command:
        found = found.commands[name]
    taken = {option for parameter in found.params for option in parameter.opts}
    assert taken >= {"--owner", "--config", "--store"}
    said = home.ok(*command, "--help")
    assert ("--owner NAME" in said) == (command not in ([each] for each in WITHOUT_OWNER))


@pytest.mark.parametrize("command", [[], *COMMANDS], ids=" ".join)
def test_help_fits_80_columns_and_no_line_is_cut(home: Home, command: list[str]) -> None:
    lines = home.run(*command, "--help", COLUMNS="80").stdout.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert [line for line in lines if line.endswith("...") and not line.startswith("Usage:")] == []


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
        ["serve", "--port", "65536"],
        ["serve", "--workers", "65"],
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


@pytest.mark.parametrize(
    "arguments",
    [
        ["backup", "x" * 300],
        ["restore", "x" * 300],
        ["import", "codex", "x" * 300],
        ["import", "hermes", "x" * 300],
        ["config", "trust", "x" * 300],
        ["sessions", "--config", "x" * 300],
        ["sessions", "export", "-o", "x" * 300],
        ["sessions", "rewind", "k", "9" * 5000],
        ["sessions", "rewind", "k", "9" * 20],
        ["sessions", "fork", "k", "--up-to", "9" * 20],
        ["sessions", "search", "x", "--role", "a\udcffb"],
        ["pair", "approve", "a\udcffb"],
        ["backup", "a\udcffb"],
    ],
    ids=lambda words: " ".join(words)[:30].encode("ascii", "replace").decode(),
)
def test_what_cannot_be_used_is_an_error_in_a_sentence(home: Home, arguments: list[str]) -> None:
    home.ok("run", "--key", "k", "hello")
    done = home.run(*arguments)
    assert done.returncode in (1, 2) and done.stdout == ""
    assert done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1


def test_an_id_without_a_verb_is_answered_with_the_verb(home: Home) -> None:
    assert "holdfast sessions show sess_123" in home.run("sessions", "sess_123").stderr


def test_a_subcommand_without_its_group_is_named_with_it(home: Home) -> None:
    done = home.run("export")
    assert done.returncode == 2 and "Did you mean `holdfast sessions export`?" in done.stderr
    assert "Did you mean 'backup'" in home.run("backupp").stderr
