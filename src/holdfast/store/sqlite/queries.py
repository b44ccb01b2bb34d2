"""The named queries of this engine, read from `queries/*.sql` once, when the engine is first used.

A file holds `-- name: X` blocks, each one statement, and `-- fragment: X` blocks, which other
statements of the same file include as `{X}`.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_BLOCK = re.compile(r"^-- (name|fragment): (\w+)\n", re.MULTILINE)


class Queries:
    """Statements by name, as attributes: `Q.take_lease`."""

    def __init__(self, statements: dict[str, str]) -> None:
        self._statements = statements
        self.__dict__.update(statements)

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"no query is named {name!r}")

    def names(self) -> list[str]:
        return sorted(self._statements)


def parse(text: str) -> dict[str, str]:
    """The statements of one file, fragments filled in."""
    pieces = _BLOCK.split(text)[1:]
    fragments: dict[str, str] = {}
    statements: dict[str, str] = {}
    for kind, name, body in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        lines = [line for line in body.splitlines() if not line.startswith("--")]
        for fragment, content in fragments.items():
            lines = [line.replace("{" + fragment + "}", content) for line in lines]
        into = fragments if kind == "fragment" else statements
        if name in into:
            raise ValueError(f"two queries are named {name}")
        into[name] = "\n".join(lines).strip()
    return statements


@cache
def load() -> Queries:
    statements: dict[str, str] = {}
    for file in sorted(files(__package__).joinpath("queries").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".sql"):
            for name, statement in parse(file.read_text("utf-8")).items():
                if name in statements:
                    raise ValueError(f"two queries are named {name}")
                statements[name] = statement
    return Queries(statements)
