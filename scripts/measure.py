#!/usr/bin/env python3
"""Measures the layout of src/holdfast: size, small files, class names with two meanings, and the spine.

Prints a table. `tests/unit/test_layers.py` uses the same functions.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "holdfast"

SPINE = (
    "app.py",
    "session.py",
    *(f"domain/{name}.py" for name in ("turns", "sessions", "messages", "history", "resets", "nodes")),
    *(f"store/{name}.py" for name in ("store", "resolve", "sessions", "turns", "context")),
    *(f"store/sql/{name}.sql" for name in ("sessions", "turns", "messages")),
    "store/sqlite/engine.py",
    "store/sqlite/writer.py",
    "runtime/turns/*.py",
    *(f"server/{name}.py" for name in ("http", "start_turn", "streams")),
    "server/openai/chat.py",
)
"""What a newcomer reads to understand the whole."""


def lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def spine() -> list[Path]:
    """The files of the spine. A pattern that matches nothing is an error."""
    found: list[Path] = []
    for pattern in SPINE:
        matches = sorted(path for path in SOURCE.glob(pattern) if path.name != "__init__.py")
        if not matches:
            raise SystemExit(f"the spine names {pattern}, which does not exist")
        found += matches
    return found


def classes_with_two_meanings() -> dict[str, list[str]]:
    """Class names that two or more modules define, private ones included."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                found[node.name.lstrip("_")].append(str(path.relative_to(SOURCE)))
    return {name: places for name, places in found.items() if len(places) > 1}


def calls_of_the_store_from_surfaces() -> int:
    """Calls `….store.method(…)` in surfaces."""
    count = 0
    for part in ("server", "dashboard", "cli", "chat", "demo"):
        for path in sorted((SOURCE / part).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    owner = node.func.value
                    name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
                    count += name in ("store", "_store")
    return count


def builders_of_the_turn_runner() -> list[str]:
    """The modules that construct `TurnRunner`."""
    found = set()
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "TurnRunner":
                found.add(str(path.relative_to(SOURCE)))
    return sorted(found)


def rows() -> Iterator[tuple[str, object]]:
    python = sorted(SOURCE.rglob("*.py"))
    yield "Python lines", sum(map(lines, python))
    yield "SQL lines", sum(map(lines, SOURCE.rglob("*.sql")))
    yield ".py files", len(python)
    yield (
        ".py files under 60 lines, packages' __init__ aside",
        sum(lines(path) < 60 for path in python if path.name not in ("__init__.py", "__main__.py")),
    )
    yield ".py files over 700 lines", sum(lines(path) > 700 for path in python)
    yield "class names with two or more meanings", len(classes_with_two_meanings())
    yield "calls of the store from surfaces", calls_of_the_store_from_surfaces()
    yield "modules that construct TurnRunner", len(builders_of_the_turn_runner())
    found = spine()
    yield "the spine", f"{sum(map(lines, found))} lines in {len(found)} files"


if __name__ == "__main__":
    for name, value in rows():
        print(f"{name:58} {value}")
