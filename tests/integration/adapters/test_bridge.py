"""`Bridge`: one node per process and URL, from any thread and event loop. Frameworks are imported late."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.adapters.bridge import Bridge, close_shared
from holdfast.errors import BadInput


def test_importing_holdfast_imports_no_adapter_and_no_framework() -> None:
    program = (
        "import sys, holdfast\n"
        "names = 'agents langgraph langchain_core claude_agent_sdk google.adk holdfast.adapters'.split()\n"
        "print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_url_is_opened_once_for_each_owner_and_again_after_closing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    first, second, other = Bridge(url), Bridge(url), Bridge(url, owner="bob")
    assert first.hf is second.hf and first.hf is not other.hf and other.hf.owner == "bob"
    close_shared()
    again = Bridge(url)
    assert again.hf is not first.hf
    assert again.call(lambda: again.hf.session(key="k")).key == "k"


async def test_work_runs_in_the_loop_of_the_node_from_anywhere(tmp_path: Path) -> None:
    async with holdfast.open(tmp_path / "store.db") as hf:
        bridge, here = Bridge(hf), asyncio.get_running_loop()

        async def where() -> bool:
            return asyncio.get_running_loop() is here

        async def elsewhere() -> bool:
            return await bridge.run(where)

        assert await bridge.run(where)
        assert await asyncio.to_thread(bridge.call, where)
        assert await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
        with pytest.raises(BadInput, match="block the event loop"):
            bridge.call(where)


async def test_a_cancelled_write_is_completed(tmp_path: Path) -> None:
    async with holdfast.open(tmp_path / "store.db") as hf:
        bridge, began, may_end = Bridge(hf), asyncio.Event(), asyncio.Event()
        ended = []

        async def write() -> None:
            began.set()
            await may_end.wait()
            ended.append(True)

        task = asyncio.create_task(bridge.run(write))
        await began.wait()
        task.cancel()
        await asyncio.sleep(0)
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == [True]


def test_a_node_of_no_running_loop_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="inside the event loop"):
        Bridge(holdfast.open(tmp_path / "store.db"))
