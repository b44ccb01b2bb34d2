"""The named statements of an engine, read once, when it is first used.

`sql/<noun>.sql` holds the statements that both engines share, an engine's `overrides.sql` what differs there.
A file consists of blocks, each with comments and one text:

    -- name: X        a statement. One without a text in `sql/` must be overridden by every engine. One in
                      `overrides.sql` exists for that engine only.
    -- fragment: X    a text that statements and other fragments include as `{X}`.
    -- override: X    in `overrides.sql`: replaces the shared statement or fragment X.

Shared statements are written for PostgreSQL, with SQLite's planner hints. `DIALECTS` adapts them to the
engine when they are read; nothing else differs. Overrides are not adapted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

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
