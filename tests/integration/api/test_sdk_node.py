"""The official Node SDK, in a Node process of its own. Skipped, saying why, where it cannot be had."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ModelError
from holdfast.models.scripted import Line, ScriptedModel
from tests.integration.api.chatting import calls, conversations, said
from tests.integration.api.conftest import StartServer

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent.parent / "node"
INSTALL_SECONDS = 90


@pytest.fixture(scope="session")
def node_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, with the SDK installed beside it."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("the Node SDK is not tried: there is no node and npm here")
    place = tmp_path_factory.mktemp("node")
    for name in ("package.json", "chat.mjs"):
        shutil.copy(PROGRAM / name, place)
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock"]
    try:
        done = subprocess.run(
            command, cwd=place, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"the Node SDK is not tried: npm did not fetch it within {INSTALL_SECONDS} s")
    if done.returncode != 0:
        pytest.skip(f"the Node SDK is not tried: npm cannot fetch it ({done.stderr.strip()[-200:]})")
    return place / "chat.mjs"


def answer(messages: list[dict[str, Any]], purpose: object) -> Line:
    last = messages[-1]
    if last["role"] == "tool":
        return f"The tool said {last['content']}."
    if last["content"] == "use the tool":
        return calls("call_1")
    if last["content"] == "break off":
        return "Half an answer", ModelError("out of memory", 500)
    if last["content"] == "refuse":
        return ModelError("too much", 429)
    return f"You said: {last['content']}"


async def test_the_node_sdk_chats_streams_calls_tools_and_understands_errors(
    start_server: StartServer, node_program: Path
) -> None:
    server = await start_server(ScriptedModel(answer))
    environment = {
        **os.environ,
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "OPENAI_API_KEY": server.admin_key,
        "NO_PROXY": "127.0.0.1",
    }
    process = await asyncio.create_subprocess_exec(
        "node", str(node_program), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    seen = json.loads(out)
    assert seen["text"] == "You said: hello from Node"
    assert seen["header"] == seen["ids"]["session_id"]
    assert seen["streamed"] == "You said: and again"
    assert seen["last"]["finish_reason"] == "stop"
    assert seen["last"]["conversation_id"] == seen["ids"]["conversation_id"]
    assert len(await said(server, seen["ids"]["conversation_id"])) == 4
    assert seen["call"] == "weather"
    assert seen["told"] == "The tool said rain."
    assert seen["same"] is True
    assert seen["conflict"] == {"status": 409, "code": "idempotency_key_reused"}
    assert seen["half"] == "Half an answer"
    assert seen["broken"] == "upstream_error"
    assert seen["refused"] == 429
    assert await conversations(server) == 5
