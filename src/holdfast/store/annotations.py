"""What the statements in the `.sql` files say of themselves, in comments with a keyword.

Right below its name a statement says what is true of it; an override repeats only what differs:

    -- locks: L(p=q)  what a writing PostgreSQL transaction locks first: statement L, its parameter p with
                      the value of q; `L(p)` if both have one name. Several are separated by spaces.
    -- conversation in: column N
                      it finds conversations by a name that can move to another one, or appear, between the
                      lock and the read. Column N has their id: the row found must be the row locked.
    -- rows: any      it may change no row, and how many it changes is not needed.
    -- rows: one      it must change a row: its guard was read, and locked, in the same transaction.
                      Without either, the caller gets the count.
    -- scans: X       what it reads without searching an index: `whole tables`, `a small table`,
                      `small indexes` or `one end` of a table.
    -- time: usual    though it scans whole tables, it gets no longer time limit.
    -- usually: empty it seldom finds a row. In a group of turns the function assumes that it found none;
                      if it does find one, the group is rolled back and run again.
    -- many: a, b     PostgreSQL may execute it once for several turns; if it changes rows, only if their
                      parameters a or b differ: then these are different rows. See `postgres/many.py`.
    -- plan: free     PostgreSQL may plan it with sequential scans and hash joins.

A file begins with the types of parameters that are not text: `-- bigint: a, b`, `-- boolean:`, `-- bytea:`. A
parameter has the same type in every statement, unless a cast follows it.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

from .queries import Block, blocks, source

_NOTE = re.compile(r"\n-- (locks|conversation in|rows|scans|time|plan|usually|many): ([^\n]+)")
_TYPE = re.compile(r"\n-- (bigint|boolean|bytea): ([^\n]+)")
_LOCK = re.compile(r"\b(\w+)\(([\w=, ]+)\)(?: |$)")

VALUES = {
    "rows": ("any", "one"),
    "scans": ("whole tables", "a small table", "small indexes", "one end"),
    "time": ("usual",),
    "plan": ("free",),
    "usually": ("empty",),
}


class Lock(NamedTuple):
    """A statement that locks rows, and its parameters, each with the one whose value it gets."""

    name: str
    parameters: tuple[tuple[str, str], ...]


class Notes(NamedTuple):
    """What a statement says of itself."""

    locks: tuple[Lock, ...] = ()
    conversation: int | None = None
    rows: str = ""
    scans: str = ""
    time: str = ""
    plan: str = ""
    usually: str = ""
    many: tuple[str, ...] = ()


def notes_of(block: Block) -> dict[str, Any]:
    """The notes of a block, as arguments of `Notes`. Raises ValueError for a value that means nothing."""
    found: dict[str, Any] = {}
    end = 0
    while note := _NOTE.match(block.body, end):
        key, value = note.groups()
        end = note.end()
        if key == "locks":
            found[key] = tuple(Lock(name, _pairs(given)) for name, given in _LOCK.findall(value))
            is_known = _LOCK.sub("", value) == ""
        elif key == "conversation in":
            is_known = value.startswith("column ") and value[7:].isdigit()
            found["conversation"] = int(value[7:]) if is_known else None
        elif key == "many":
            found[key] = tuple(value.split(", "))
            is_known = all(f":{name}" in block.body for name in found[key])
        else:
            found[key] = value
            is_known = value in VALUES[key]
        if not is_known:
            raise ValueError(f"{block.name}: `{key}: {value}` means nothing")
    return found


def _pairs(given: str) -> tuple[tuple[str, str], ...]:
    pairs = [each.strip().partition("=") for each in given.split(",")]
    return tuple((name, value or name) for name, _, value in pairs)


@cache
def notes(package: str) -> dict[str, Notes]:
    """What the statements of this engine say of themselves, by name; those that say nothing are left out."""
    found: dict[str, dict[str, Any]] = {}
    for text in source(package):
        for block in blocks(text):
            if said := notes_of(block):
                found[block.name] = {**found.get(block.name, {}), **said}
    return {name: Notes(**said) for name, said in found.items()}


@cache
def types(package: str) -> dict[str, str]:
    """The types of parameters that are not text, by name. Raises ValueError for one of two types."""
    found: dict[str, str] = {}
    for type_, names in _TYPE.findall("\n" + "\n".join(source(package))):
        for name in names.split(", "):
            if found.setdefault(name, type_) != type_:
                raise ValueError(f"the parameter {name} is both {found[name]} and {type_}")
    return found
