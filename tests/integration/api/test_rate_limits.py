"""Limits, expiry and last use of API keys, and `/api/keys`. Days rather than minutes: a test may meet the end
of a minute."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import anthropic
import httpx
import openai
import pytest

from holdfast.domain.api_keys import RateLimits, Scope, new_key
from holdfast.models.scripted import ScriptedModel
from tests.integration.api import anthropic_chat
from tests.integration.api.chatting import PATH, Words, sdk, until, user
from tests.integration.api.conftest import Running, StartServer
from tests.integration.api.test_doors import check_error

HELLO = {"messages": [user("hello")]}
ASKING: list[tuple[str, dict[str, Any]]] = [
    (PATH, HELLO),
    (PATH, {**HELLO, "stream": True}),
    (PATH, {**HELLO, "store": False}),
    (PATH, {**HELLO, "store": False, "stream": True}),
    ("/v1/responses", {"input": "hello"}),
    ("/v1/responses", {"input": "hello", "store": False}),
    ("/v1/responses", {"input": "hello", "store": False, "stream": True}),
    ("/v1/messages", {**HELLO, "model": "m", "max_tokens": 10}),
    ("/v1/responses/compact", {"model": "m", "input": "hello"}),
]


async def limited(server: Running, **limits: int) -> tuple[str, str]:
    """The id and the token of a new key with these limits."""
    key, token = new_key("ada", Scope.CHAT, (), server.store.now(), limits=RateLimits(**limits))
    await server.store.add_key(key, token.hash)
    return key.id, str(token)


@pytest.mark.parametrize(("path", "body"), ASKING)
async def test_a_request_over_the_limit_is_refused_before_the_model_is_asked(
    server: Running, path: str, body: dict[str, Any]
) -> None:
    _, token = await limited(server, requests_per_day=2)
    client = await server.with_token(token)
    for _ in range(2):
        assert (await client.post(path, json=body)).status_code == 200
    calls = server.model.calls
    refused = await client.post(path, json=body)
    assert refused.status_code == 429
    assert 0 < int(refused.headers["retry-after"]) <= 86400
    error = refused.json()["error"]
    assert "2 requests per day" in error["message"]
    if path == "/v1/messages":
        assert (refused.json()["type"], error["type"]) == ("error", "rate_limit_error")
    else:
        assert (error["type"], error["param"], error["code"]) == ("requests", None, "rate_limit_exceeded")
    assert server.model.calls == calls
    assert (await client.get("/api/sessions")).status_code == 200, "reading is not limited"
    await server.say("others are not concerned")


@pytest.mark.parametrize(("path", "body"), ASKING)
async def test_tokens_are_counted_before_an_answer_has_ended(
    server: Running, path: str, body: dict[str, Any]
) -> None:
    _, token = await limited(server, tokens_per_day=1)
    client = await server.with_token(token)
    assert (await client.post(path, json=body)).status_code == 200
    refused = await client.post(path, json=body)
    assert refused.status_code == 429
    assert "1 tokens per day" in refused.json()["error"]["message"]


SHORTENED: dict[str, Any] = {
    "input": [user("hello " * 50), {"role": "assistant", "content": "hi"}, user("and now?")],
    "store": False,
    "context_management": [{"type": "compaction", "compact_threshold": 1}],
}


async def test_a_summary_before_an_answer_is_part_of_one_request(server: Running) -> None:
    key_id, token = await limited(server, requests_per_day=2)
    client = await server.with_token(token)
    for _ in range(2):
        assert (await client.post("/v1/responses", json=SHORTENED)).status_code == 200
    assert server.model.calls == 4
    assert (await client.post("/v1/responses", json=SHORTENED)).status_code == 429
    assert server.model.calls == 4, "no summary is made for a request that is refused"
    assert server.services.limits.turns.running(key_id) == 0


async def test_compacting_a_conversation_by_hand_is_a_request(server: Running) -> None:
    _, token = await limited(server, requests_per_day=2)
    client = await server.with_token(token)
    said = await client.post(PATH, json=HELLO, headers={"x-holdfast-session-key": "k"})
    assert said.status_code == 200
    statuses = [(await client.post("/api/sessions/k/compact")).status_code for _ in range(2)]
    assert (statuses[0] != 429, statuses[1]) == (True, 429)


async def test_tokens_of_queued_turns_are_counted(start_server: StartServer) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words, "two " * 40, "three"]))
    _, token = await limited(server, tokens_per_day=30)
    client = await server.with_token(
        token, **{"x-holdfast-session-key": "k", "x-holdfast-when-busy": "queue"}
    )
    first = asyncio.create_task(client.post(PATH, json=HELLO))
    await words.asked.wait()
    queued = await client.post(PATH, json={"messages": [user("and then?")]})
    assert queued.status_code == 202, queued.text
    words.finish("one")
    assert (await first).status_code == 200

    async def is_answered() -> bool:
        turn = (await client.get(f"/api/turns/{queued.json()['id']}")).json()
        return bool(turn["status"] == "completed" and turn["usage"]["output_tokens"] >= 40)

    await until(is_answered, "the queued turn is answered")
    assert (await client.post(PATH, json=HELLO)).status_code == 429


async def test_the_limit_is_one_for_all_servers_of_a_store(start_server: StartServer) -> None:
    first, second = await start_server(), await start_server()
    _, token = await limited(first, requests_per_day=3)
    statuses = []
    for server in (first, second, first, second, first):
        client = await server.with_token(token)
        statuses.append((await client.post(PATH, json=HELLO)).status_code)
    assert statuses == [200, 200, 200, 429, 429]


async def test_the_official_clients_raise_their_own_error(server: Running) -> None:
    _, token = await limited(server, requests_per_day=1)
    asking = sdk(server, token)
    await asking.chat.completions.create(model="m", messages=[user("hi")])
    with pytest.raises(openai.RateLimitError, match="1 requests per day"):
        await asking.chat.completions.create(model="m", messages=[user("hi")])
    with pytest.raises(anthropic.RateLimitError):
        await anthropic_chat.create(anthropic_chat.sdk(server, token), [user("hi")])


async def test_a_key_without_limits_counts_nothing(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> None:
        raise AssertionError("a plain turn must not gain a statement")

    monkeypatch.setattr(server.store, "count_request", never)
    monkeypatch.setattr(server.store, "spend_tokens", never)
    await server.say()
    assert (await server.client.post(PATH, json={**HELLO, "store": False})).status_code == 200


async def test_an_expired_key_is_a_401_that_says_so(server: Running) -> None:
    key, token = new_key("ada", Scope.CHAT, (), server.store.now() - timedelta(days=2), expires_days=1)
    await server.store.add_key(key, token.hash)
    client = await server.with_token(str(token))
    for path in ("/api/sessions", "/v1/models"):
        error = check_error(await client.get(path), 401, "api_key_expired")
        assert "expired at" in error["message"]
    wrong = await server.with_token(str(token)[:-1] + ("A" if str(token)[-1] != "A" else "B"))
    check_error(await wrong.get("/api/sessions"), 401, "invalid_api_key")


async def test_the_last_use_is_noted_once_a_minute(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await server.client_of("ada")
    uses = server.services.holdfast.authenticator.uses
    written: list[Any] = []
    note = server.store.note_key_uses

    async def noted(used_at: Any) -> None:
        written.append(dict(used_at))
        await note(used_at)

    monkeypatch.setattr(server.store, "note_key_uses", noted)
    for _ in range(3):
        await client.get("/api/sessions")
        await uses.write_once()
    (key,) = await server.store.keys("ada")
    assert [list(each) for each in written if key.id in each] == [[key.id]]
    assert key.last_used_at is not None


# --- /api/keys -----------------------------------------------------------------------------------------


def fields(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_an_admin_lists_creates_and_revokes_keys(server: Running) -> None:
    asked = {"owner": "bob", "name": "phone", "expires_days": 30, "tokens_per_day": 1000, "store": "never"}
    made = fields(await server.client.post("/api/keys", json=asked))
    secret = made.pop("key")
    assert (made["owner"], made["name"], made["scope"], made["store"]) == ("bob", "phone", "chat", "never")
    assert (made["tokens_per_day"], made["requests_per_day"]) == (1000, None)
    listed = fields(await server.client.get("/api/keys", params={"owner": "bob"}))["data"]
    assert listed == [made]
    assert len(fields(await server.client.get("/api/keys", params={"owner": "*"}))["data"]) == 2
    assert [key["owner"] for key in fields(await server.client.get("/api/keys"))["data"]] == ["default"]
    bob = await server.with_token(secret)
    assert (await bob.get("/api/sessions")).status_code == 200
    path = f"/api/keys/{made['id']}/revoke"
    check_error(await server.client.post(path), 404, "not_found")
    revoked = fields(await server.client.post(path, params={"owner": "bob"}))
    assert revoked["revoked_at"] is not None
    again = fields(await server.client.post(path, params={"owner": "*"}))
    assert again["revoked_at"] == revoked["revoked_at"]


async def test_only_an_admin_may_and_only_with_tools_of_its_own(server: Running) -> None:
    for scope in ("chat", "bridge"):
        client = await server.client_of("ada", scope)
        for method, path in (("GET", "/api/keys"), ("POST", "/api/keys"), ("POST", "/api/keys/x/revoke")):
            check_error(await client.request(method, path), 403, "insufficient_scope")
    refused = await server.client.post("/api/keys", json={"tools": ["terminal"]})
    check_error(refused, 403, "insufficient_scope")
    assert [key.owner for key in await server.store.keys(None)] == ["default", "ada", "ada"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"scope": "root"}, "scope"),
        ({"tokens_per_day": -1}, "tokens_per_day"),
        ({"requests_per_minute": "many"}, "requests_per_minute"),
        ({"expires_days": "soon"}, "expires_days"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_a_wrong_field_is_named(server: Running, body: dict[str, Any], param: str) -> None:
    error = check_error(await server.client.post("/api/keys", json=body), 400, "invalid_value")
    assert error["param"] == param
    for impossible in ({"expires_days": 0}, {"name": "a\nb"}, {"owner": "*"}):
        check_error(await server.client.post("/api/keys", json=impossible), 400, "invalid_value")
    assert len(await server.store.keys(None)) == 1
