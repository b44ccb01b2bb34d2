"""The named statements of an engine, read once, when it is first used.

`sql/<noun>.sql` holds the statements that both engines share, an engine's `overrides.sql` what differs there.
A file consists of blocks, each with comments and one text:

    -- name: X        a statement. One without a text in `sql/` must be overridden by every engine. One in
                      `overrides.sql` exists for that engine only.
    -- fragment: X    a text that statements and other fragments include as `{X}`.
    -- override: X    in `overrides.sql`: replaces the shared statement or fragment X.

What else the comments say of a statement is in `annotations.py`.

Shared statements are written for PostgreSQL, with SQLite's planner hints. `DIALECTS` adapts them to the
engine when they are read; nothing else differs. Overrides are not adapted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

# These begin with fixed characters, for which `re` searches fast: they are run at every start.
_BLOCK = re.compile(r"\n-- (name|fragment|override): (\w+)(?=\n)")
_COMMENT = re.compile(r"\n--[^\n]*")
_FRAGMENT = re.compile(r"\{(\w+)\}")
_HERE = Path(__file__).parent

# By engine: patterns, each with what it is replaced by; then the same for plain texts.
DIALECTS: Mapping[str, tuple[Sequence[tuple[re.Pattern[str], str]], Sequence[tuple[str, str]]]] = {
    "sqlite": (
        (
            (re.compile(r"::[a-z]+(?:\[\])?"), ""),
            # One writer at a time: there is nothing to lock.
            (re.compile(r"FOR (?:NO KEY )?UPDATE(?: OF \w+)?(?: SKIP LOCKED)?"), ""),
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
            (re.compile(r" INDEXED BY \w+"), ""),
            # A unary plus keeps SQLite from using an index for a column.
            (re.compile(r" \+(?=[a-z])"), " "),
        ),
        (("x''", "''::bytea"),),
    ),
}


class Block:
    __slots__ = ("body", "kind", "name")

    def __init__(self, kind: str, name: str, body: str) -> None:
        self.kind = kind
        self.name = name
        self.body = body
        """Comments and text, as written, each line after its line break."""

    @property
    def text(self) -> str:
        return _COMMENT.sub("", self.body).strip()


@cache
def blocks(text: str) -> tuple[Block, ...]:
    """The blocks of a file, in order. What precedes the first belongs to the file."""
    pieces = _BLOCK.split("\n" + text)[1:]
    return tuple(map(Block, pieces[::3], pieces[1::3], pieces[2::3]))


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
def source(package: str) -> tuple[str, str]:
    """The shared files, adapted to this engine, and its overrides."""
    shared = "\n".join(file.read_text("utf-8") for file in sorted(_HERE.glob("sql/*.sql")))
    patterns, plain = DIALECTS[_folder(package).name]
    for pattern, replacement in patterns:
        shared = pattern.sub(replacement, shared)
    for words, replacement in plain:
        shared = shared.replace(words, replacement)
    return shared, (_folder(package) / "overrides.sql").read_text("utf-8")


@cache
def schema(package: str) -> tuple[int, str]:
    """The number and text of the engine's `schema.sql`, from which a new store is created."""
    text = (_folder(package) / "schema.sql").read_text("utf-8")
    number = re.match(r"-- schema: (\d+)\n", text)
    assert number is not None
    return int(number[1]), text


@cache
def migrations(package: str) -> list[tuple[int, str]]:
    """Numbers and texts of the engine's migrations, in order."""
    found = sorted(_folder(package).glob("migrations/*.sql"))
    return [(int(file.name[:4]), file.read_text("utf-8")) for file in found]


def _folder(package: str) -> Path:
    """Where an engine's files are."""
    return _HERE / package.rpartition(".")[2]


def _texts(found: Iterable[Block]) -> dict[str, tuple[str, str]]:
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
