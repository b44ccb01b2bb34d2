"""Runs the grid: python -m tests.agents.run [NAME…]. Prints it; with all clients also writes its docs page.

`make agents` calls it. Each client is checked in a process of its own, JOBS at a time (a variable; 2 by
default). Exit code 1 if a check failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tests.isolation  # noqa: F401 - first: nothing may have read the user's settings before
from tests.agents.grid import Result, bench, run_checks
from tests.agents.page import write_page
from tests.agents.programs import GRID, TREE, Client

ONE = "--one"


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == [ONE]:
        (client,) = [each for each in GRID if each.name == arguments[1]]
        with tempfile.TemporaryDirectory(prefix="holdfast-agents-") as place, bench(Path(place)) as found:
            print(json.dumps(run_checks(client, found).columns))
        return 0
    chosen = [each for each in GRID if not arguments or each.name in arguments or each.package in arguments]
    with ThreadPoolExecutor(int(os.environ.get("JOBS", "2"))) as pool:
        results = list(pool.map(_checked, chosen))
    if not arguments:
        write_page(results, TREE / "docs" / "reference" / "agents.md")
    return 1 if any(each.failed for each in results) else 0


def _checked(client: Client) -> Result:
    """Check a client in a process of its own, and print what was found."""
    began = time.monotonic()
    command = [sys.executable, "-m", "tests.agents.run", ONE, client.name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=TREE)
    result = Result(client, json.loads(done.stdout))
    cells = ", ".join(
        f"{name}: {'NO' if name in result.failed else each}" for name, each in result.columns.items()
    )
    why = "".join(f"\n  {name}: {each}" for name, each in result.failed.items())
    print(f"{client.name} {client.version} ({time.monotonic() - began:.0f} s): {cells}{why}", flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
