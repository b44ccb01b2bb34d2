"""`examples/merge_activity.py` in front of four gateways, each with a store of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.integration.api.conftest import Running, running_server

EXAMPLE = Path(__file__).parents[3] / "examples" / "merge_activity.py"
NAMES = ("north", "south", "east", "west")


async def run(gateways: dict[str, str], keys: dict[str, str]) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLE),
        "--once",
        *(f"{name}={url}" for name, url in gateways.items()),
        env={**os.environ, **{f"HOLDFAST_KEY_{name.upper()}": key for name, key in keys.items()}},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_what_is_alive_on_four_gateways_is_one_list(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        servers: dict[str, Running] = {}
        for name in NAMES:
            (tmp_path / name).mkdir()
            servers[name] = await stack.enter_async_context(running_server(tmp_path / name))
            await servers[name].say("hello", x_holdfast_session_key=f"telegram:dm:{name}")
        keys = {name: server.admin_key for name, server in servers.items()}
        urls = {name: server.url for name, server in servers.items()}
        code, out, err = await run(urls, keys)
        assert (code, err) == (0, "")
        whole: dict[str, Any] = json.loads(out)
        assert [(row["gateway"], row["key"]) for row in whole["data"]] == [
            (name, f"telegram:dm:{name}") for name in reversed(NAMES)
        ]
        assert [each["trouble"] for each in whole["gateways"]] == [None] * 4
        # One that is away and one that does not know the key are in trouble; the others are told.
        code, out, _ = await run({**urls, "east": "http://127.0.0.1:9"}, {**keys, "west": "hf_wrong"})
        whole = json.loads(out)
        assert code == 0
        assert [row["gateway"] for row in whole["data"]] == ["south", "north"]
        assert [each["name"] for each in whole["gateways"] if each["trouble"]] == ["east", "west"]


async def test_it_says_how_it_is_used() -> None:
    code, _, err = await run({}, {})
    assert code == 1 and "NAME=URL" in err
