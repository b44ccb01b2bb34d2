"""No file or directory of holdfast is created with a mode that the umask decides: read from the source text,
so that a new place is found before anybody runs it.

`tests/acceptance/test_private_files.py` looks at the files themselves.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.os_support import open_private, private_directory

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"
EXCEPT = {
    ("cli/programs.py", "own.mkdir(parents=True, exist_ok=True)"),  # another program's, made as it makes it
    (
        "importers/hermes/database_copy.py",
        "shutil.copyfile(file, copy)",
    ),  # into a file that is private already
}


def careless(source: str) -> Iterator[str]:
    """The calls that create something and leave its mode to the umask."""
    tree = ast.parse(source)
    private = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.With) and "private_umask()" in ast.unparse(node.items[0])
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node not in private and leaves_mode(node):
            yield ast.unparse(node)


def leaves_mode(call: ast.Call) -> bool:
    name = ast.unparse(call.func).rpartition(".")[2]
    keywords = {each.arg: ast.unparse(each.value) for each in call.keywords}
    words = [ast.unparse(each) for each in call.args]
    if name in ("write_text", "write_bytes", "makedirs"):
        return True
    if ast.unparse(call.func).startswith("shutil.copy"):
        return name != "copyfileobj"
    if name == "mkdir":
        return keywords.get("parents") == "True" or 0o700 not in map(literal, [*keywords.values(), *words])
    if ast.unparse(call.func) == "os.open":
        return "O_CREAT" in words[1] and (len(words) < 3 or literal(words[2]) != 0o600)
    if name == "open" and words[:1] != ["handle"]:
        modes = [literal(each) for each in (*words[:2], keywords.get("mode", "''"))]
        return any(isinstance(each, str) and each[:1] in "wxa" and each for each in modes) and (
            keywords.get("opener") != "open_private"
        )
    return False


def literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except ValueError:
        return None


def test_every_file_is_created_for_its_owner_alone() -> None:
    found = {
        (str(path.relative_to(SOURCE)), call)
        for path in SOURCE.rglob("*.py")
        for call in careless(path.read_text("utf-8"))
    }
    assert found - EXCEPT == set()
    assert found >= EXCEPT, "an exception that is not needed any more"


@pytest.mark.parametrize(
    "call",
    [
        "path.write_text('x')",
        "path.open('w')",
        "open(path, 'ab')",
        "open(path, mode='x')",
        "os.open(path, os.O_WRONLY | os.O_CREAT)",
        "os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)",
        "path.mkdir()",
        "path.mkdir(mode=0o700, parents=True)",
        "shutil.copyfile(one, other)",
    ],
)
def test_a_careless_call_is_found(call: str) -> None:
    assert list(careless(call)) == [ast.unparse(ast.parse(call))]


@pytest.mark.parametrize("mask", [0o000, 0o002, 0o022, 0o077])
def test_a_private_file_and_directory_are_so_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        private_directory(tmp_path / "a" / "b")
        os.close(open_private(tmp_path / "a" / "file", os.O_WRONLY))
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "a").rglob("*")}
    assert modes == {"b": 0o700, "file": 0o600}
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    (tmp_path / "a").chmod(0o755)
    private_directory(tmp_path / "a")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o755, "one that exists stays as it is"
