"""Deliberate breakages, to prove that the suites see them. Named by an environment variable, here only.

HOLDFAST_TEST_MUTANT=acknowledge-before-commit   a writing process tells first and writes afterwards
HOLDFAST_TEST_MUTANT=synchronous-normal          commits do not wait for the disk
HOLDFAST_TEST_MUTANT=no-inode-check              nobody looks whether the files are still the same
"""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from holdfast.store.sqlite import connections, engine, files

NAME = "HOLDFAST_TEST_MUTANT"
ALL = ("acknowledge-before-commit", "synchronous-normal", "no-inode-check")


def mutant() -> str:
    """The breakage this process is to have, or nothing."""
    name = os.environ.get(NAME, "")
    assert name in ("", *ALL), f"{NAME}={name}: unknown, choose one of {', '.join(ALL)}"
    return name


def break_on_purpose() -> None:
    """Put the breakage into this process, if it lies in the store and not in the one who tells."""
    if mutant() == "synchronous-normal":
        careful = connections.connect

        def careless(database: Path, *, patience: float = 30.0, read_only: bool = False) -> apsw.Connection:
            connection = careful(database, patience=patience, read_only=read_only)
            connection.execute("PRAGMA synchronous = NORMAL")
            return connection

        engine.connect = careless  # type: ignore[attr-defined]
    elif mutant() == "no-inode-check":
        files.Inodes.verify = lambda self: None  # type: ignore[method-assign]
