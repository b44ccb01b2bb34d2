"""The named statements of an engine, read from its `queries/*.sql` once, when it is first used.

A file holds `-- name: X` blocks, each one statement, and `-- fragment: X` blocks, which other
statements of the same file include as `{X}`.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_BLOCK = re.compile(r"^-- (name|fragment): (\w+)\n", re.MULTILINE)


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
def load(package: str) -> dict[str, str]:
    """The statements of the engine in this package, by name."""
    statements: dict[str, str] = {}
    for file in sorted(files(package).joinpath("queries").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".sql"):
            for name, statement in parse(file.read_text("utf-8")).items():
                if name in statements:
                    raise ValueError(f"two queries are named {name}")
                statements[name] = statement
    return statements
