"""Rights and keys: a key does only what it may, our own keys are not sent upstream. Faults are detected."""

from __future__ import annotations

import subprocess
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.api_keys import Scope, new_key
from holdfast.domain.conversations import Address
from holdfast.models.base import ModelRequest, Purpose
from holdfast.models.scripted import ScriptedModel
from holdfast.models.upstream import Upstream
from tests.integration.api.chatting import PATH, user
from tests.integration.api.conftest import running_server
from tests.reliability.mutants import break_safety
from tests.unit.models.asking import answer
from tests.unit.models.mock_upstream import running, says


async def no_right_is_gained(directory: Path) -> None:
    """A key without `terminal` neither watches a process nor writes into a shell."""
    made = directory / "made"
    shells: list[str] = []

    def script(messages: list[dict[str, Any]], purpose: Purpose) -> str | dict[str, Any]:
        if messages[-1]["role"] != "user":
            return "done"
        arguments = f'{{"action": "write", "id": "{shells[0]}", "text": "touch {made}\\\\nexit\\\\n"}}'
        call = {"id": "call_1", "type": "function", "function": {"name": "process", "arguments": arguments}}
        return {"content": None, "tool_calls": [call]}

    settings = {"agent": {"tools": ["terminal", "process"]}}
    async with running_server(directory, ScriptedModel(script), settings) as server:
        key, token = new_key("ada", Scope.CHAT, ["process"], server.store.now())
        await server.store.add_key(key, token.hash)
        client = await server.with_token(str(token))
        holdfast = server.services.holdfast
        session = await server.store.open_session("ada", Address(key="cli:ada"), holdfast.node_id)
        shell = await holdfast.supervisor.start("ada", session.id, ["sh"], stdin=True)
        shells.append(shell.id)
        try:
            with subprocess.Popen(["sleep", "100"]) as bystander:
                path = f"/api/sessions/{session.id}/processes"
                watched = await client.post(path, json={"pid": bystander.pid})
                bystander.kill()
            headers = {"x-holdfast-session-key": "cli:ada"}
            said = await client.post(PATH, json={"messages": [user("go")]}, headers=headers)
            assert said.status_code == 200, said.text
            await holdfast.supervisor.wait("ada", shell.id, 1)
        finally:
            await holdfast.supervisor.stop("ada", shell.id, "the test is over")
        assert watched.status_code == 403, watched.text
        assert not made.exists()


async def no_key_of_ours_leaves(directory: Path) -> None:
    _, token = new_key("ada", Scope.ADMIN, (), datetime.now(UTC))
    async with running() as upstream:
        upstream.answers = [says()]
        model = Upstream(upstream.url, str(token), "m")
        await answer(model, ModelRequest(b"[]"))
        await model.close()
        (seen,) = upstream.chats
        assert str(token) not in str(seen)


CHECKS = {"rights-checked-at-door": no_right_is_gained, "own-key-upstream": no_key_of_ours_leaves}
Check = Callable[[Path], Awaitable[None]]


@pytest.mark.parametrize("check", CHECKS.values(), ids=lambda check: check.__name__)
async def test_it_holds(check: Check, tmp_path: Path) -> None:
    await check(tmp_path)


@pytest.mark.parametrize("mutant", CHECKS)
async def test_a_mistake_put_in_on_purpose_is_seen(
    mutant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_safety(mutant, monkeypatch.setattr)
    with pytest.raises(AssertionError):
        await CHECKS[mutant](tmp_path)
