"""Hermes homes for tests, written by the real thing: hermes-agent from PyPI in an environment of its own.

The environments are those of `bench/environments.py`: made on first use, outside the tree, kept. What a home
looks like to the byte is compared before and after.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WRITER = Path(__file__).with_name("writer.py")
ENVIRONMENTS = Path(__file__).parents[2] / "bench" / "environments.py"
VERSIONS = ("0.14.0", "0.19.0")
KEY = "agent:main:telegram:dm:42"
"""The key of the one chat in the home of the recipe `whole`."""
PATIENCE = 60


def python_of(version: str) -> str:
    """The Python that can import this release of Hermes; made once, whoever comes first."""
    spec = importlib.util.spec_from_file_location("environments", ENVIRONMENTS)
    assert spec is not None
    assert spec.loader is not None
    environments: Any = importlib.util.module_from_spec(spec)
    sys.modules.setdefault("environments", environments)
    spec.loader.exec_module(environments)
    directory = Path(os.environ["HOLDFAST_TEST_CACHE"]) / "holdfast-bench"
    environments.cache_directory = lambda: directory
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"hermes-agent-{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        package = environments.Package("hermes-agent", version, alone=True)
        return str(environments.interpreter(package))


def write(version: str, recipe: str, home: Path) -> dict[str, Any]:
    """Let Hermes write a home, or go on in one; what it says it wrote."""
    command = [python_of(version), str(WRITER), recipe, str(home)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=_environment()
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def start(version: str, recipe: str, home: Path) -> subprocess.Popen[str]:
    """The same, beside us: it goes on until its standard input is closed."""
    return subprocess.Popen(
        [python_of(version), str(WRITER), recipe, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=_environment(),
    )


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("HERMES_", "PYTHON"))}


@contextmanager
def in_memory() -> Iterator[Path]:
    """A directory in memory, where the system offers that: homes are written by thousands of commits."""
    memory = Path("/dev/shm")
    where = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="holdfast-hermes-", dir=where) as directory:
        yield Path(directory)


def print_of(home: Path) -> dict[str, tuple[str, int]]:
    """Every file of a home: what it holds, and when it was last written."""
    return {
        str(file.relative_to(home)): (hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_mtime_ns)
        for file in sorted(home.rglob("*"))
        if file.is_file()
    }
