"""Steps shared by the tests of the SQLite engine's files: a closed store, its bytes, another process."""

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import holdfast
from holdfast.store.sqlite.engine import SQLiteStore, open_store
from tests.contract.steps import (
    contents,
    new_node,
    say,
)

Opening = Callable[..., Awaitable[SQLiteStore]]


async def a_closed_store(database: Path, turns: int = 1) -> list[object]:
    """A store with something in it, closed; returns its contents."""
    store = await open_store(database)
    node = await new_node(store)
    for number in range(turns):
        session = (await say(store, node, f"kelp {number}", key="cli:ada")).session
    told = await contents(store, session.conversation_id)
    await store.leave(node.id, "closed")
    await store.close()
    return told


def snapshot(directory: Path) -> dict[str, bytes | None]:
    """Every file below a directory and what it holds. Only for databases that nobody has open."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


def script(text: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a Python script in a process of its own, with what the tests can import."""
    source = Path(holdfast.__file__).parents[1]
    path = os.pathsep.join([str(source), str(Path(__file__).parents[2])])
    return subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def answer(finished: subprocess.CompletedProcess[str]) -> object:
    """What a script said on its last line, as JSON."""
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])
