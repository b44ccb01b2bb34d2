"""The named statements of an engine, read once, when it is first used.

`sql/<noun>.sql` holds the statements that both engines share, an engine's `overrides.sql` what differs there.
A file consists of blocks, each with comments and one text:

    -- name: X        a statement. One without a text in `sql/` must be overridden by every engine. One in
                      `overrides.sql` exists for that engine only.
    -- fragment: X    a text that statements and other fragments include as `{X}`.
    -- override: X    in `overrides.sql`: replaces the shared statement or fragment X.

Above its text a statement says what is true of it; an override repeats only what differs:

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
    -- plan: free     PostgreSQL may plan it with sequential scans and hash joins.

A file begins with the types of parameters that are not text: `-- bigint: a, b`, `-- boolean:`, `-- bytea:`. A
parameter has the same type in every statement, unless a cast follows it.

Shared statements are written for PostgreSQL, with SQLite's planner hints. `DIALECTS` adapts them to the
engine when they are read; nothing else differs. Overrides are not adapted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

_BLOCK = re.compile(r"^-- (name|fragment|override): (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n?", re.MULTILINE)
_FRAGMENT = re.compile(r"\{(\w+)\}")

# By engine: patterns, each with what it is replaced by; then the same for plain texts.
DIALECTS: Mapping[str, tuple[Sequence[tuple[str, str]], Sequence[tuple[str, str]]]] = {
    "sqlite": (
        (
            (r"::[a-z]+(?:\[\])?", ""),
            # One writer at a time: there is nothing to lock.
            (r"FOR (?:NO KEY )?UPDATE(?: OF \w+)?(?: SKIP LOCKED)?", ""),
        ),
        (
            # Constants, because a partial index is used only for its own expression.
            (" = TRUE", " = 1"),
            (" = FALSE", " = 0"),
            # No limit: NULL there, -1 here.
            ("nullif(:limit, -1)", ":limit"),
            (" strpos(", " instr("),
            (" greatest(", " max("),
        ),
    ),
    "postgres": (
        (
            (r" INDEXED BY \w+", ""),
            # A unary plus keeps SQLite from using an index for a column.
            (r" \+(?=[a-z])", " "),
        ),
        (("x''", "''::bytea"),),
    ),
}


_NOTE = re.compile(r"^-- (locks|conversation in|rows|scans|time|plan): (.+)$", re.MULTILINE)
_TYPE = re.compile(r"^-- (bigint|boolean|bytea): (.+)$", re.MULTILINE)
_LOCK = re.compile(r"(\w+)\(([\w=, ]+)\)(?: |$)")
_SCHEMA = re.compile(r"^-- schema: (\d+)$", re.MULTILINE)

VALUES = {
    "rows": ("any", "one"),
    "scans": ("whole tables", "a small table", "small indexes", "one end"),
    "time": ("usual",),
    "plan": ("free",),
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


class Block(NamedTuple):
    kind: str
    name: str
    body: str
    """Comments and text, as written."""

    @property
    def text(self) -> str:
        return _COMMENT.sub("", self.body).strip()


def blocks(text: str) -> list[Block]:
    """The blocks of a file, in order. What precedes the first belongs to the file."""
    pieces = _BLOCK.split(text)[1:]
    return list(map(Block, pieces[::3], pieces[1::3], pieces[2::3]))


def notes_of(block: Block) -> dict[str, Any]:
    """The notes of a block, as arguments of `Notes`. Raises ValueError for a value that means nothing."""
    found: dict[str, Any] = {}
    for key, value in _NOTE.findall(block.body):
        if key == "locks":
            found[key] = tuple(Lock(name, _pairs(given)) for name, given in _LOCK.findall(value))
            is_known = _LOCK.sub("", value) == ""
        elif key == "conversation in":
            is_known = value.startswith("column ") and value[7:].isdigit()
            found["conversation"] = int(value[7:]) if is_known else None
        else:
            found[key] = value
            is_known = value in VALUES[key]
        if not is_known:
            raise ValueError(f"{block.name}: `{key}: {value}` means nothing")
    return found


def _pairs(given: str) -> tuple[tuple[str, str], ...]:
    pairs = [each.strip().partition("=") for each in given.split(",")]
    return tuple((name, value or name) for name, _, value in pairs)


def parse(text: str) -> dict[str, str]:
    """The statements of one file that is complete by itself, fragments filled in."""
    return _filled(_texts(blocks(text)))


@cache
def load(package: str) -> dict[str, str]:
    """The statements of the engine in this package, by name."""
    return combine(*source(package), package)


def combine(shared: str, own: str, engine: str) -> dict[str, str]:
    """The statements of shared files and of an engine's overrides. Raises ValueError for a name that is
    defined twice, an override of nothing, and a statement that has no text for this engine."""
    texts = _texts(blocks(shared))
    for block in blocks(own):
        kind = texts.get(block.name, ("", ""))[0]
        if block.kind == "override":
            if not kind:
                raise ValueError(f"{engine} overrides {block.name}, which is not in sql/")
            texts[block.name] = (kind, block.text)
        elif kind:
            raise ValueError(f"{engine} defines {block.name}, which is defined already; `-- override:` it")
        else:
            texts[block.name] = (block.kind, block.text)
    missing = [name for name, (_, text) in texts.items() if not text]
    if missing:
        raise ValueError(f"{engine} has no text for {', '.join(missing)}")
    return _filled(texts)


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
    for type_, names in _TYPE.findall("\n".join(source(package))):
        for name in names.split(", "):
            if found.setdefault(name, type_) != type_:
                raise ValueError(f"the parameter {name} is both {found[name]} and {type_}")
    return found


@cache
def source(package: str) -> tuple[str, str]:
    """The shared files, adapted to this engine, and its overrides."""
    folder = files(__package__).joinpath("sql")
    shared = "\n".join(
        file.read_text("utf-8")
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".sql")
    )
    patterns, plain = DIALECTS[package.rpartition(".")[2]]
    for pattern, replacement in patterns:
        shared = re.sub(pattern, replacement, shared)
    for words, replacement in plain:
        shared = shared.replace(words, replacement)
    return shared, files(package).joinpath("overrides.sql").read_text("utf-8")


@cache
def schema(package: str) -> tuple[int, str]:
    """The number and text of the engine's `schema.sql`, from which a new store is created."""
    text = files(package).joinpath("schema.sql").read_text("utf-8")
    number = _SCHEMA.search(text)
    assert number is not None
    return int(number[1]), text


@cache
def migrations(package: str) -> list[tuple[int, str]]:
    """Numbers and texts of the engine's migrations, in order."""
    found = [
        (int(file.name[:4]), file.read_text("utf-8"))
        for file in files(package).joinpath("migrations").iterdir()
        if file.name.endswith(".sql")
    ]
    return sorted(found)


def _texts(found: list[Block]) -> dict[str, tuple[str, str]]:
    """Kind and text by name."""
    texts: dict[str, tuple[str, str]] = {}
    for block in found:
        if block.kind == "override":
            raise ValueError(f"{block.name} overrides nothing here: only overrides.sql does")
        if block.name in texts:
            raise ValueError(f"{block.name} is defined twice")
        texts[block.name] = (block.kind, block.text)
    return texts


def _filled(texts: dict[str, tuple[str, str]]) -> dict[str, str]:
    """The statements among these, with the fragments that they include."""

    def include(match: re.Match[str]) -> str:
        kind, text = texts.get(match[1], ("", ""))
        # Other names in braces are for the caller, such as a table's.
        return _FRAGMENT.sub(include, text) if kind == "fragment" else match[0]

    return {
        name: _FRAGMENT.sub(include, text) if "{" in text else text
        for name, (kind, text) in texts.items()
        if kind == "name"
    }
