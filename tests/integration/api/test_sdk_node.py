"""The official Node SDK, in a Node process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ModelError
from holdfast.models.scripted import Line, ScriptedModel
from tests.agents.programs import programs_path, with_node
from tests.integration.api.chatting import calls, conversations, said
from tests.integration.api.conftest import StartServer

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent.parent / "node" / "chat.mjs"


@pytest.fixture(scope="session")
def node_program() -> list[str]:
    """The command that runs the program, with the SDK of `scripts/agents` beside it."""
    programs_path()  # fails, saying how to install them, if there are none
    return with_node(PROGRAM)


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
    start_server: StartServer, node_program: list[str]
) -> None:
    server = await start_server(ScriptedModel(answer))
    environment = {
        **os.environ,
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "OPENAI_API_KEY": server.admin_key,
        "NO_PROXY": "127.0.0.1",
    }
    process = await asyncio.create_subprocess_exec(
        *node_program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
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
