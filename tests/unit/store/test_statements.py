"""Statements are asked for by name: every engine must have each of them, and none that nobody asks for."""

import re
from pathlib import Path

import pytest

import holdfast.store.base
from holdfast.store.maintenance import INVARIANTS
from holdfast.store.queries import load

ENGINES = ("holdfast.store.sqlite", "holdfast.store.postgres")
SOURCE = Path(holdfast.store.base.__file__).parent


def asked_for(engine: str) -> set[str]:
    """By what all engines share, and by this one itself."""
    found = set(INVARIANTS)
    own = SOURCE / engine.rpartition(".")[2]
    for file in [*SOURCE.glob("*.py"), *own.rglob("*.py")]:
        found |= set(re.findall(r"\bQ\.(\w+)", file.read_text("utf-8")))
        found |= set(re.findall(r"STATEMENTS\[\"(\w+)\"\]", file.read_text("utf-8")))
    return found - {"__dict__"}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_has_every_statement_that_is_asked_for(engine: str) -> None:
    assert asked_for(engine) - load(engine).keys() == set()


@pytest.mark.parametrize("engine", ENGINES)
def test_no_engine_has_a_statement_that_nobody_asks_for(engine: str) -> None:
    assert load(engine).keys() - asked_for(engine) == set()
