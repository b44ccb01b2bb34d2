"""A throw-away environment for each peer: its pinned release from PyPI in a venv outside the tree.

Created on first use, reused afterwards; `rm -r` of the cache directory is always safe. A venv is valid only
once its last step, a `ready` file, was written, so an interrupted one is created again.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


class CannotInstall(Exception):
    """Why a peer's environment could not be made, in one line for its row."""


@dataclass(frozen=True)
class Package:
    """What a peer needs from PyPI. `alone`: without its dependencies, because what we call needs none.
    `and_also`: what it leaves to its users to choose."""

    name: str
    version: str
    alone: bool = False
    and_also: tuple[str, ...] = ()


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "holdfast-bench"


def interpreter(package: Package) -> Path:
    """The Python that can import this package. Raises CannotInstall."""
    python = f"py{sys.version_info.major}.{sys.version_info.minor}"
    home = cache_directory() / f"{package.name}-{package.version}-{python}"
    if not (home / "ready").exists():
        print(f"setting up {package.name} {package.version} in {home} …", file=sys.stderr, flush=True)
        shutil.rmtree(home, ignore_errors=True)
        _step([sys.executable, "-m", "venv", str(home)])
        install = [str(home / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        wanted = [f"{package.name}=={package.version}", *package.and_also]
        # Of a package that is used alone few modules are imported: they are compiled then, and run on newer
        # Pythons than the package as a whole allows.
        alone = ["--no-deps", "--no-compile", "--ignore-requires-python"]
        _step([*install, *(alone if package.alone else []), *wanted])
        (home / "ready").touch()
    return home / "bin" / "python"


def _step(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr + done.stdout).splitlines()
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        reason = errors[-1] if errors else f"{Path(command[0]).name} exited with {done.returncode}"
        # The address of a mirror is nobody's business.
        raise CannotInstall(re.sub(r"\w+://\S+", "(an index)", reason)[:160])
