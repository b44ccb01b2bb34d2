"""Quotas, searches and message objects over HTTP: what a client is told when it asks for too much, and that
nothing it sends passes for ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.domain.new_messages import MOST_NESTED, said_by_model
from holdfast.domain.quotas import MEBIBYTE
from holdfast.errors import QuotaExceeded
from holdfast.store import search_terms
from tests.integration.api.conftest import Running, StartServer
from tests.integration.api.operating import asked, got, refused

TINY = 100 / MEBIBYTE
"""A hundred bytes, as a setting."""
KEY = {"x-holdfast-session-key": "cli:ada"}


# --- quotas ----------------------------------------------------------------------------------------------


async def test_a_full_conversation_is_a_413_that_says_what_to_do(start_server: StartServer) -> None:
    server = await start_server(limits={"conversation_mb": TINY})
    said = (await server.say("hello " * 8, x_holdfast_session_key="cli:ada"))["holdfast"]
    body = {"messages": [{"role": "user", "content": "and more"}]}
    for stream in (False, True):
        answer = await server.client.post(
            "/v1/chat/completions", json={**body, "stream": stream}, headers=KEY
        )
        assert answer.status_code == 413
        assert answer.headers["x-should-retry"] == "false"
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("quota_exceeded", "conversation_mb")
        assert "of at most 100 bytes" in error["message"]
        assert "raise [limits] conversation_mb" in error["message"]
    answer = await server.client.post(
        "/v1/responses", json={"input": "more", "conversation": said["conversation_id"]}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "quota_exceeded")
    items = {"items": [{"type": "message", "role": "user", "content": "more"}]}
    path = f"/v1/conversations/{said['conversation_id']}/items"
    answer = await server.client.post(path, json=items)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "quota_exceeded")
    listed = await got(server, f"/api/sessions/{said['session_id']}/messages")
    assert len(listed["data"]) == 2  # the reply was kept although it passed the limit
    await asked(server, "DELETE", f"/api/sessions/{said['session_id']}")
    await server.say("hello", x_holdfast_session_key="cli:ada")


async def test_an_owner_has_so_many_conversations_and_others_have_theirs(start_server: StartServer) -> None:
    server = await start_server(limits={"owner_conversations": 1})
    await server.say("hello", x_holdfast_session_key="cli:ada")
    answer = await server.client.post("/v1/conversations", json={})
    assert (answer.status_code, answer.json()["error"]["param"]) == (413, "owner_conversations")
    await server.say("hello again", x_holdfast_session_key="cli:ada")
    await server.say("hello", client=await server.client_of("bob"))


async def test_the_library_raises_its_own_error(tmp_path: Path) -> None:
    limits = {"limits": {"conversation_mb": TINY}}
    async with holdfast.open(f"sqlite:///{tmp_path / 'quota.db'}", settings=limits) as hf:
        session = await hf.session(key="k")
        async with session.turn("hello") as turn:
            await turn.append({"role": "assistant", "content": "x" * 500})
        with pytest.raises(QuotaExceeded) as refusal:
            async with session.turn("more"):
                raise AssertionError("it has begun")
        assert refusal.value.setting == "conversation_mb"
        assert refusal.value.used > refusal.value.limit == 100


# --- search ----------------------------------------------------------------------------------------------


async def test_a_search_that_is_too_long_or_has_too_many_words_is_a_400(server: Running) -> None:
    await server.say("kelp")
    too_long = await refused(server, "GET", f"/api/search?q={'kelp+' * 2_000}", 400, "invalid_value")
    assert "at most 1,000 characters" in str(too_long)
    many = "+".join(f"w{number}" for number in range(60))
    assert "at most 50 different words" in str(
        await refused(server, "GET", f"/api/search?q={many}", 400, "invalid_value")
    )


async def test_a_search_that_takes_too_long_is_a_400(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.say("kelp")
    monkeypatch.setattr(search_terms, "SEARCH_SECONDS", 0.0)
    await refused(server, "GET", "/api/search?q=kelp", 400, "search_timeout")


# --- message objects -------------------------------------------------------------------------------------

FORGED = {
    "inner": True,
    "owner": "mallory",
    "conversation_id": "conv_forged",
    "id": "msg_forged",
    "seq": 99,
    "session_id": "sess_forged",
    "turn_id": "turn_forged",
    "created_at": "1970-01-01T00:00:00Z",
    "status": "interrupted",
    "key": "forged",
    "title": "forged",
    "snippet": "forged",
    "object": "forged",
}


async def test_no_field_of_a_message_object_can_be_forged(server: Running) -> None:
    message = {"role": "user", "content": "kelp", "name": "ada", "odd": {"kept": True}, **FORGED}
    answer = await server.client.post("/v1/chat/completions", json={"messages": [message]}, headers=KEY)
    where = answer.json()["holdfast"]
    for scope in ("session", "conversation"):
        path = f"/api/sessions/{where['session_id']}/messages?scope={scope}"
        (shown, _) = (await got(server, path))["data"]
        assert (shown["name"], shown["odd"]) == ("ada", {"kept": True})
        assert (shown["seq"], shown["session_id"], shown["status"]) == (1, where["session_id"], "completed")
        assert "forged" not in str(shown)
        assert "mallory" not in str(shown)
        assert not {"inner", "owner", "conversation_id", "key", "title", "snippet", "object"} & shown.keys()
    hits = (await got(server, "/api/search?q=kelp"))["data"]
    (hit,) = [each for each in hits if each["role"] == "user"]
    assert (hit["conversation_id"], hit["key"]) == (where["conversation_id"], "cli:ada")
    assert hit["snippet"] == "kelp"
    assert "owner" not in hit


def nested(depth: int) -> Any:
    value: Any = "deep"
    for _ in range(depth):
        value = [value]
    return value


async def test_a_message_that_is_nested_too_deeply_is_a_400(server: Running) -> None:
    for depth in (MOST_NESTED + 10, 500):
        body = {"messages": [{"role": "user", "content": "hello", "odd": nested(depth)}]}
        answer = await server.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
        assert "nested too deeply" in answer.json()["error"]["message"]
    raw = (
        b'{"messages": [{"role": "user", "content": "hello", "odd": ' + b"[" * 50_000 + b"]" * 50_000 + b"}]}"
    )
    answer = await server.client.post(
        "/v1/chat/completions", content=raw, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400
    body = {"messages": [{"role": "user", "content": "hello", "odd": nested(MOST_NESTED - 10)}]}
    assert (await server.client.post("/v1/chat/completions", json=body)).status_code == 200


def test_what_a_model_nests_too_deeply_is_cut() -> None:
    body = said_by_model({"role": "assistant", "content": "hello", "odd": nested(500)}).body
    assert body.count(b"[") < MOST_NESTED + 5
    assert b"nested too deeply" in body
