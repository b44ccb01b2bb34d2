"""Runs the programs of a documentation page as printed."""

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parents[3] / "docs" / "how-to"


async def run_page(name: str, **given: Any) -> dict[str, Any]:
    """Run the Python programs of this page one after the other, with these names; returns all names."""
    names: dict[str, Any] = dict(given)
    programs = re.findall(
        r"^```python\n(.*?)^```", (PAGES / name).read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert programs
    for program in programs:
        code = compile(program, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        running = eval(code, names)
        if inspect.iscoroutine(running):
            async with asyncio.timeout(60):
                await running
    return names
