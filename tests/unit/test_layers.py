"""The import directions of the design, checked on the source text.

`MAY_IMPORT` is the rule; everything below it only reads imports and compares. Every import counts for the
directions, also one inside a function or under TYPE_CHECKING: a layer that needs another's types depends
on it. For cycles only what runs at import counts.
"""

import ast
import graphlib
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

# Each part of holdfast (a module or package directly below it), and the parts it may import besides itself.
BASE = {"domain", "errors", "os_support"}
BELOW_APP = {*BASE, "store", "models", "settings", "runtime", "session", "wiring"}
# A surface calls the operations of `Holdfast`: it imports neither `store` nor `runtime`.
SURFACE = {*BASE, "holdfast", "app", "session", "models", "settings", "local_server", "trust"}

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "trust": BASE,
    "os_support": {"domain", "errors"},
    "dependencies": {"domain"},
    "domain": {"errors"},
    "store": BASE,
    "models": BASE,
    "settings": {*BASE, "trust"},
    "runtime": {*BASE, "store", "models", "settings", "trust"},
    "session": {"runtime", "store", "domain", "errors", "session_actions", "session_messages"},
    "session_actions": {"runtime", "session_messages", "domain", "errors"},
    "session_messages": {"session", "domain", "errors"},
    "wiring": {*BASE, "runtime", "store", "models", "settings"},
    "local_server": {*BASE, "store", "trust"},  # the home's address and key files; the key is also a row
    "store_operations": {"runtime", "store", "settings", "errors"},
    "operations": {*BELOW_APP, "store_operations", "local_server", "transfer", "importers"},
    "library": {"operations", "session", "store", "domain"},
    "app": {*BELOW_APP, "library", "operations", "connectors", "holdfast"},  # of the package only its version
    "sync": {*BASE, "app", "session", "session_messages", "runtime", "settings"},
    # Rows in bulk, and between two engines: they work on a store itself, given by an operation.
    "transfer": {*BASE, "runtime", "store", "settings"},
    "importers": {*BASE, "store", "settings"},
    # The contract and the workers of messaging platforms; only app builds them.
    "connectors": {*BELOW_APP, "operations"},
    "adapters": {*BASE, "dependencies", "app", "sync", "session", "runtime", "store"},
    "holdfast": {"app", "sync", "session", "settings", "domain", "errors"},  # the package's own __init__
    "server": {*SURFACE, "dashboard"},
    "dashboard": {*SURFACE, "server", "cli"},
    "chat": {*SURFACE, "cli"},
    "demo": {*SURFACE, "cli", "dashboard"},
    "cli": {*SURFACE, "dependencies", "server", "dashboard", "chat", "demo", "importers", "transfer"},
    "__main__": {"cli"},
}

# What a domain of pure decisions cannot reach for: the machine, the clock, chance.
NOT_IN_DOMAIN = {
    *("os", "time", "asyncio", "threading", "socket", "subprocess", "sqlite3", "apsw"),
    *("random", "secrets"),
}
EXCEPT = {("holdfast.domain.ids", "secrets"), ("holdfast.domain.ids", "os")}
CLOCK_CALLS = {"now", "utcnow", "today"}

MOST_SPINE_LINES, MOST_SPINE_FILES = 7_000, 28
"""What can be read in an afternoon. If it grows past them, one of its files holds a second idea: give that
one a file of its own."""

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"


@dataclass(frozen=True)
class Import:
    """One imported module, by its absolute name, and whether importing the importer imports it."""

    target: str
    line: int
    at_import: bool


@dataclass(frozen=True)
class Module:
    name: str
    tree: ast.Module
    imports: tuple[Import, ...]

    @property
    def part(self) -> str:
        return part_of(self.name)


def part_of(module: str) -> str:
    """`holdfast.store.sqlite.engine` is of the part `store`; the package itself is `holdfast`."""
    return module.split(".")[1] if "." in module else module


@cache
def read_modules(package: Path) -> list[Module]:
    """Every module of the package, with the modules it imports."""
    paths: dict[str, Path] = {}
    for path in sorted(package.rglob("*.py")):
        parts = [package.name, *path.relative_to(package).with_suffix("").parts]
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    modules = []
    for name, path in paths.items():
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        here = name if path.stem == "__init__" else name.rpartition(".")[0]
        modules.append(Module(name, tree, tuple(imports_of(tree, here, set(paths)))))
    return modules


def imports_of(tree: ast.Module, here: str, known: set[str]) -> Iterator[Import]:
    for node, at_import in walk(tree, True):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, at_import)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = here.split(".")[: len(here.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                yield Import(submodule if submodule in known else base, node.lineno, at_import)


def walk(node: ast.AST, at_import: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below, and whether it runs when the module is imported."""
    for child in ast.iter_child_nodes(node):
        runs = at_import and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            runs = False
        yield child, runs
        if not isinstance(child, ast.expr):  # no import is inside an expression
            yield from walk(child, runs)


def wrong_directions(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        if module.part not in MAY_IMPORT:
            yield f"{module.name}: {module.part} is not in MAY_IMPORT; say there what it may import"
            continue
        for imported in module.imports:
            if imported.target.split(".")[0] != "holdfast":
                continue
            part = part_of(imported.target)
            if part != module.part and part not in MAY_IMPORT[module.part]:
                yield f"{module.name}:{imported.line}: {module.part} may not import {imported.target}"


def impurities(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        if module.part != "domain":
            continue
        for imported in module.imports:
            root = imported.target.split(".")[0]
            if root in NOT_IN_DOMAIN and (module.name, root) not in EXCEPT:
                yield f"{module.name}:{imported.line}: domain may not import {root}"
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and reads_the_clock(node.func, module.tree):
                yield f"{module.name}:{node.lineno}: domain is given the time, it does not read the clock"


def reads_the_clock(called: ast.expr, tree: ast.Module) -> bool:
    """Is this `datetime.now`, `dt.datetime.utcnow`, `date.today` … by whatever name it was imported?"""
    if not (isinstance(called, ast.Attribute) and called.attr in CLOCK_CALLS):
        return False
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        for alias in getattr(node, "names", [])
        if (isinstance(node, ast.ImportFrom) and node.module == "datetime")
        or (isinstance(node, ast.Import) and alias.name == "datetime")
    }
    return ast.unparse(called.value).split(".")[0] in names


def cycles(modules: list[Module]) -> Iterator[str]:
    names = {module.name for module in modules}
    graph = {
        module.name: {i.target for i in module.imports if i.at_import and i.target in names} - {module.name}
        for module in modules
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        yield "import cycle: " + " ← ".join(error.args[1])


def faults(package: Path) -> list[str]:
    modules = read_modules(package)
    return [*wrong_directions(modules), *impurities(modules), *cycles(modules)]


def test_every_import_follows_the_layers() -> None:
    assert read_modules(SOURCE), f"no modules below {SOURCE}"
    assert faults(SOURCE) == []


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"domain/a.py": "import holdfast.store.base"}, "domain may not import holdfast.store.base"),
        ({"domain/a.py": "from holdfast import os_support"}, "domain may not import holdfast.os_support"),
        ({"domain/a.py": "from ..store import base"}, "domain may not import holdfast.store.base"),
        ({"domain/__init__.py": "from ..store import base"}, "domain may not import holdfast.store.base"),
        ({"domain/a.py": "def f():\n  import holdfast.store"}, "domain may not import holdfast.store"),
        ({"store/a.py": "from holdfast.settings import S"}, "store may not import holdfast.settings"),
        ({"store/a.py": "from holdfast.models import m"}, "store may not import holdfast.models"),
        ({"store/a.py": "from holdfast import __version__"}, "store may not import holdfast"),
        ({"models/a.py": "from holdfast.store import base"}, "models may not import holdfast.store.base"),
        ({"runtime/a.py": "from holdfast.app import Holdfast"}, "runtime may not import holdfast.app"),
        ({"app.py": "if TYPE_CHECKING:\n  import holdfast.server"}, "app may not import holdfast.server"),
        ({"helpers.py": ""}, "helpers is not in MAY_IMPORT"),
        ({"domain/a.py": "import os.path"}, "domain may not import os"),
        ({"domain/a.py": "from time import monotonic"}, "domain may not import time"),
        ({"domain/a.py": "import secrets"}, "domain may not import secrets"),
        ({"domain/a.py": "from datetime import datetime\ndatetime.now()"}, "does not read the clock"),
        ({"domain/a.py": "import datetime as d\nd.datetime.utcnow()"}, "does not read the clock"),
        ({"domain/a.py": "from datetime import date as D\nD.today()"}, "does not read the clock"),
        (
            {"domain/a.py": "from .b import x", "domain/b.py": "try:\n  from .a import y\nfinally: pass"},
            "import cycle: holdfast.domain.",
        ),
        (
            {"domain/__init__.py": "from .a import A", "domain/a.py": "from holdfast.domain import B"},
            "import cycle: holdfast.domain",
        ),
    ],
)
def test_a_breach_is_found(tmp_path: Path, files: dict[str, str], fault: str) -> None:
    found = faults(fake_package(tmp_path, files))
    assert len(found) == 1, found
    assert fault in found[0]


def test_what_is_allowed_is_not_reported(tmp_path: Path) -> None:
    files = {
        "domain/ids.py": "import secrets",
        "domain/a.py": "import datetime\nfrom . import ids\nimport holdfast.errors\nclock.now()",
        "domain/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  from .c import C",
        "domain/c.py": "from .b import B\ndef f():\n  from .d import D",
        "domain/d.py": "from .c import C",
        "runtime/a.py": "import asyncio, time\nimport holdfast.settings\nfrom holdfast.store.base import T",
        "cli.py": "from holdfast import __version__, app",
        "__main__.py": "from holdfast.cli import main",
    }
    assert faults(fake_package(tmp_path, files)) == []


def fake_package(root: Path, files: dict[str, str]) -> Path:
    package = root / "holdfast"
    skeleton = ["__init__.py", "errors.py", "os_support.py", "app.py", "store/base.py"]
    for name, text in [*((name, "") for name in skeleton), *files.items()]:
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return package


def test_a_class_name_has_one_meaning() -> None:
    assert measure().classes_with_two_meanings() == {}


def test_surfaces_call_operations_and_app_builds() -> None:
    measured = measure()
    assert measured.calls_of_the_store_from_surfaces() == 0
    assert measured.builders_of_the_turn_runner() == ["app.py"]


def test_the_spine_is_read_in_an_afternoon() -> None:
    """What a newcomer reads to understand the whole."""
    measured = measure()
    files = measured.spine()
    assert len(files) <= MOST_SPINE_FILES
    assert sum(map(measured.lines, files)) <= MOST_SPINE_LINES


def test_the_page_about_layers_links_the_whole_spine() -> None:
    page = (SOURCE.parents[1] / "docs" / "explanation" / "layers.md").read_text("utf-8")
    table = page.partition("## The spine")[2].partition("\n## ")[0].partition("|---|")[2]
    linked = re.findall(r"\(\.\./\.\./src/holdfast/([^)]+)\)", table)
    assert sorted(linked) == sorted(str(path.relative_to(SOURCE)) for path in measure().spine())


def measure() -> Any:
    found = importlib.util.spec_from_file_location("measure", SOURCE.parents[1] / "scripts" / "measure.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
