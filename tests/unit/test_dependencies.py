"""What the log says of a dependency that holdfast was not tested with, and the bounds that decide it."""

from __future__ import annotations

import logging
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from holdfast import dependencies
from holdfast.cli.serve import warn_of_versions
from holdfast.domain.version_ranges import is_within, requirement_of
from holdfast.settings import load

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
# Of which holdfast uses more than they document: subclasses of protocols, values of workers, making of
# commands, rows of a pipeline, a type of the SDK's compaction.
PRIVATE = {"uvicorn", "prometheus-client", "typer", "psycopg", "openai-agents"}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Versions by name, in place of those that are installed."""
    others: dict[str, str] = {}
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: others.get(name) or version(name))
    return others


def test_what_this_environment_has_is_within_the_bounds() -> None:
    assert dependencies.untested(["postgres", "otel", "openai_agents", "matrix"]) is None


def test_a_server_names_what_it_was_not_tested_with_in_one_line(
    installed: dict[str, str], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    installed |= {"uvicorn": "9.1.0", "psycopg": "9.0", "openai-agents": "9.0"}
    settings = load(environment={"HOLDFAST_HOME": str(tmp_path)})
    warn_of_versions(settings)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "uvicorn 9.1.0 (tested: " in line and "\n" not in line
    assert "psycopg" not in line and "openai-agents" not in line, "not used here"
    given = {"store": {"url": "postgresql://ada@127.0.0.1/x"}}
    caplog.clear()
    warn_of_versions(load(environment={"HOLDFAST_HOME": str(tmp_path)}, given=given))
    assert "psycopg 9.0" in caplog.text


def test_a_holdfast_without_metadata_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", lacks)
    assert dependencies.untested() is None


def test_every_bound_can_be_compared_and_has_a_lowest_version() -> None:
    lines = [*PROJECT["dependencies"]]
    for extra, more in PROJECT["optional-dependencies"].items():
        lines += more if extra != "dev" else []
    for each in map(requirement_of, lines):
        assert ">=" in each.bounds, f"{each.name} has no lowest version"
        is_within("1.0", each.bounds)


def test_what_is_used_beyond_its_documentation_has_an_upper_bound() -> None:
    lines = [
        *PROJECT["dependencies"],
        *(each for more in PROJECT["optional-dependencies"].values() for each in more),
    ]
    found = {each.name: each.bounds for each in map(requirement_of, lines) if each.name in PRIVATE}
    assert found.keys() == PRIVATE
    assert [name for name, bounds in found.items() if "<" not in bounds] == []
