"""A conversation that has grown beyond what is given to a model, over HTTP."""

from __future__ import annotations

import pytest

from holdfast.domain.turns import TurnStatus
from holdfast.models.scripted import ScriptedModel
from holdfast.store import context
from tests.integration.api.chatting import by_key, post, turns, user
from tests.integration.api.conftest import StartServer

LONG = "word " * 200


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streaming"])
async def test_a_context_beyond_the_limit_is_a_413_for_its_caller_alone_until_it_is_compacted(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    server = await start_server(ScriptedModel(window=100_000), compaction={"keep_first": 1, "keep_last": 2})
    for number in range(8):
        answer = await post(server, [user(f"{number} {LONG}")], by_key("large"))
        assert answer.status_code == 200
    ours = answer.json()["holdfast"]
    monkeypatch.setattr(context, "CONTEXT_BYTES", 8_000)
    server.store._cache.clear()

    refused = await post(server, [user("and now?")], by_key("large"), stream=stream)
    assert refused.status_code == 413
    error = refused.json()["error"]
    assert (error["type"], error["code"], error["param"]) == (
        "invalid_request_error",
        "context_too_large",
        None,
    )
    assert "bytes long; at most 8,000 are given" in error["message"]
    assert refused.headers["x-should-retry"] == "false"
    assert (await turns(server, ours["conversation_id"]))[-1].status is TurnStatus.FAILED

    # Nothing else is touched: others speak, and its messages can be read.
    assert (await post(server, [user("hello")], by_key("small"))).status_code == 200
    client = server.client
    page = await client.get(f"/api/sessions/{ours['session_id']}/messages", params={"limit": 3})
    assert page.status_code == 200 and len(page.json()["data"]) == 3
    shown = await client.get(f"/api/sessions/{ours['session_id']}/messages", params={"scope": "context"})
    assert shown.status_code == 413

    compacted = await client.post(f"/api/sessions/{ours['session_id']}/compact")
    assert compacted.status_code == 200, compacted.text
    assert (await post(server, [user("and now?")], by_key("large"))).status_code == 200
