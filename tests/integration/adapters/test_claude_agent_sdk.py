"""`HoldfastSessionStore` of the Claude Agent SDK, and the SDK's own conformance suite."""

import ast
import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk.testing import run_session_store_conformance

import holdfast
from holdfast.adapters.claude_agent_sdk import HoldfastSessionStore
from holdfast.app import Holdfast
from holdfast.store.values import SessionFilter
from tests.integration.adapters.pages import PAGES

KEY: Any = {"project_key": "/home/ada/sea.project", "session_id": "s1"}


def entry(uuid: str, text: str, role: str = "user") -> Any:
    return {"type": role, "uuid": uuid, "message": {"role": role, "content": text}, "sessionId": "s1"}


async def test_the_conformance_suite_passes_whole(
    hf: Holdfast, new_owner: Callable[[], str], url: str
) -> None:
    nodes = []

    async def make() -> HoldfastSessionStore:
        nodes.append(holdfast.open(url, owner=new_owner()))
        await nodes[-1].start()
        return HoldfastSessionStore(nodes[-1])

    try:
        await run_session_store_conformance(make)
    finally:
        for node in nodes:
            await node.stop()


@pytest.fixture
def new_owner() -> Callable[[], str]:
    """Every store of the suite is another owner's, so it is empty."""
    made: list[str] = []

    def make() -> str:
        made.append(f"owner-{len(made)}")
        return made[-1]

    return make


async def test_a_transcript_is_a_conversation(hf: Holdfast) -> None:
    store = HoldfastSessionStore(hf)
    call = {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "sea"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "waves"}]}
    entries = [
        entry("1", "look at the sea"),
        {**entry("2", ""), "message": {"role": "assistant", "content": [call]}},
        {**entry("3", ""), "message": {"role": "user", "content": [result]}},
        entry("4", "waves", "assistant"),
        {"type": "summary", "summary": "the sea"},
    ]
    await store.append(KEY, entries)
    await store.append(KEY, entries[:4])
    assert await store.load(KEY) == entries
    (listed,) = (await hf.store.sessions(SessionFilter(hf.owner))).items
    assert listed.source == "claude-agent-sdk"
    live = await hf.session(id=listed.id, attached=False)
    roles = [message["role"] for message in await live.context()]
    assert roles == ["user", "assistant", "tool", "assistant", "system"]
    assert len(await hf.store.search(hf.owner, "waves")) == 2


async def test_a_project_may_have_a_name_that_looks_like_an_id(hf: Holdfast) -> None:
    store = HoldfastSessionStore(hf)
    key: Any = {**KEY, "project_key": "conv_project"}
    await store.append(key, [entry("1", "hello")])
    assert await store.load(key) == [entry("1", "hello")]


async def test_summaries_follow_two_processes(hf: Holdfast, url: str) -> None:
    async with holdfast.open(url) as another:
        stores = [HoldfastSessionStore(hf), HoldfastSessionStore(another)]
        await asyncio.gather(*(stores[i % 2].append(KEY, [entry(str(i), f"text {i}")]) for i in range(20)))
        loaded = await stores[0].load(KEY)
        assert loaded is not None and len(loaded) == 20
        (summary,) = await stores[1].list_session_summaries(KEY["project_key"])
        assert summary["session_id"] == "s1"


async def test_a_url_is_enough(tmp_path: Path) -> None:
    store = HoldfastSessionStore(f"sqlite:///{tmp_path / 'store.db'}")
    await store.append(KEY, [entry("1", "hello")])
    assert len(await store.list_sessions(KEY["project_key"])) == 1


async def test_the_page_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    project = tmp_path / ".claude" / "projects" / "sea"
    project.mkdir(parents=True)
    (project / "s1.jsonl").write_text("".join(json.dumps(entry(str(i), "hi")) + "\n" for i in range(3)))
    store = HoldfastSessionStore(f"sqlite:///{tmp_path / 'store.db'}")
    page = PAGES / "claude-agent-sdk.md"
    moving = page.read_text("utf-8").split("```python\n")[-1].split("```")[0]
    running: Any = eval(
        compile(moving, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), {"store": store}
    )
    await running
    loaded = await store.load({"project_key": "sea", "session_id": "s1"})
    assert loaded is not None and len(loaded) == 3
