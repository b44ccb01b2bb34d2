"""A conversation too long for one value, and one deleted without a trace; faults in both are detected."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .mutants import NAME

ROOT = Path(__file__).parents[2]
ENOUGH = 60.0
"""Deleted text is gone within two seconds or so; a busy machine may take longer."""


def faults(directory: Path, seconds: float, mutant: str = "") -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.reliability.one_store", str(directory), str(seconds)],
        cwd=ROOT,
        env={**os.environ, NAME: mutant},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_long_conversation_harms_nobody_and_a_deleted_one_leaves_no_trace(tmp_path: Path) -> None:
    assert faults(tmp_path, ENOUGH) == []


@pytest.mark.parametrize(
    ("mutant", "fault"),
    [
        ("read-error-fails-store", "one statement stopped the store"),
        ("no-span-reads", "the long context cannot be read"),
        ("fts-keeps-deleted", "deleted text is still in store.db.search"),
        ("log-keeps-deleted", "deleted text is still in store.db-wal"),
    ],
)
def test_a_store_broken_on_purpose_is_caught(tmp_path: Path, mutant: str, fault: str) -> None:
    assert any(fault in found for found in faults(tmp_path, 4.0, mutant))
