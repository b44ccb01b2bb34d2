"""The programs of pages about the server, run as printed, each page as one program of the official SDK."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.models.base import Purpose
from holdfast.models.scripted import ScriptedModel, echo

from .api.conftest import running_server

DOCS = Path(__file__).parents[2] / "docs"
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CLOCK = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}


def answer(messages: list[dict[str, Any]], purpose: Purpose) -> Any:
    """Says back what was said; asked for the time, it calls for a clock."""
    last = messages[-1]
    if last["role"] == "user" and last["content"] == "What time is it?":
        return {"tool_calls": [CLOCK]}
    return f"It is {last['content']}." if last["role"] == "tool" else echo(messages, purpose)


@contextmanager
def server_elsewhere(home: Path) -> Iterator[dict[str, str]]:
    """A server in a thread of its own, so that a program may block; what `holdfast env` would say of it."""
    variables: dict[str, str] = {}
    ready, enough = threading.Event(), threading.Event()

    async def serve() -> None:
        async with running_server(home, ScriptedModel(answer)) as server:
            variables.update(OPENAI_BASE_URL=f"{server.url}/v1", OPENAI_API_KEY=server.admin_key)
            ready.set()
            await asyncio.to_thread(enough.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(20)
        yield variables
    finally:
        enough.set()
        thread.join(20)


@pytest.mark.parametrize("page", ["how-to/use-any-openai-client.md"])
def test_the_programs_of_a_page_run_as_printed(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = FENCE.findall((DOCS / page).read_text("utf-8"))
    assert pieces
    with server_elsewhere(tmp_path) as variables:
        for name in [name for name in os.environ if name.startswith("OPENAI_")]:
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        names: dict[str, Any] = {}
        for number, piece in enumerate(pieces, 1):
            exec(compile(piece, f"{page} {number}", "exec"), names)
