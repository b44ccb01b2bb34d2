"""The pages of API keys and of connectors: what they show, what their forms do, and for whom."""

from __future__ import annotations

import re

import pytest

from holdfast.domain.connectors import Incoming
from tests.integration.api.conftest import Running, StartServer, server_home, start_server
from tests.integration.api.test_connectors import Bridge, body_of, bridge, hooked, post
from tests.integration.connectors.platform import until
from tests.integration.connectors.telegram_api import TOKEN, telegram_stand_in
from tests.integration.dashboard.test_acts import sent
from tests.integration.dashboard.test_logins import logged_in

__all__ = ["bridge", "hooked", "server_home", "start_server"]


@pytest.fixture
async def server(start_server: StartServer) -> Running:
    return await start_server()


# --- API keys --------------------------------------------------------------------------------------------


async def test_a_key_is_created_shown_once_used_and_revoked(server: Running) -> None:
    client = await logged_in(server)
    page = await sent(
        client, "/keys", name="laptop <b>", owner="ada", expires_days="30", requests_per_minute="7"
    )
    assert page.status_code == 200
    (token,) = re.findall(r'<code id="new-key">(hf_[^<]+)</code>', page.text)
    assert "laptop &lt;b&gt;" in page.text
    again = (await client.get("/keys?owner=*")).text
    assert token not in again and "laptop &lt;b&gt;" in again and "7 requests a minute" in again
    ada = await server.with_token(token)
    assert (await ada.get("/api/sessions")).status_code == 200
    (key,) = (await server.client.get("/api/keys?owner=ada")).json()["data"]
    assert key["expires_at"] is not None and key["scope"] == "chat"
    path = f"/keys/{key['id']}/revoke"
    assert "refused within two seconds" in (await client.get(f"{path}?owner=ada")).text
    assert (await ada.get("/api/sessions")).status_code == 200, "asking changes nothing"
    assert (await sent(client, f"{path}?owner=ada")).status_code == 303

    async def refused() -> bool:
        return (await ada.get("/api/sessions")).status_code == 401

    await until(refused)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"expires_days": "soon"}, 400),
        ({"expires_days": "0"}, 400),
        ({"requests_per_day": "-1"}, 400),
        ({"tokens_per_day": "many"}, 400),
        ({"tokens_per_day": "inf"}, 400),
        ({"expires_days": "nan"}, 400),
        ({"scope": "root"}, 400),
    ],
)
async def test_a_key_that_cannot_be_is_refused_in_words(
    server: Running, fields: dict[str, str], status: int
) -> None:
    client = await logged_in(server)
    before = (await server.client.get("/api/keys?owner=*")).json()["data"]
    assert (await sent(client, "/keys", **fields)).status_code == status
    after = (await server.client.get("/api/keys?owner=*")).json()["data"]
    assert [key["id"] for key in after] == [key["id"] for key in before]


async def test_only_an_admin_sees_and_makes_keys(server: Running) -> None:
    client = await logged_in(server, await server.key("ada"))
    assert 'href="/keys"' not in (await client.get("/")).text
    assert (await client.get("/keys")).status_code == 403
    assert (await sent(client, "/keys", name="mine")).status_code == 403
    assert (await client.get("/connectors")).status_code == 200, "its own deliveries"
    assert (await sent(client, "/pairings", code="AAAA-BBBB")).status_code == 403
    assert (await client.get("/keys/key_x/revoke")).status_code == 403


# --- connectors ------------------------------------------------------------------------------------------


async def test_a_pairing_is_approved_and_revoked(server: Running) -> None:
    wrote = Incoming("1", "dm:43", "telegram:dm:43", "43", "hello", name="Bob <i>")
    assert await server.store.ask_pairing("phone", wrote, "AAAA-BBBB")
    client = await logged_in(server)
    page = (await client.get("/connectors")).text
    assert "Bob &lt;i&gt;" in page and "AAAA-BBBB" not in page
    assert (await sent(client, "/pairings", code="CCCC-DDDD")).status_code == 404
    assert (await sent(client, "/pairings", code="AAAA-BBBB", owner="bob")).status_code == 303
    (found,) = (await server.client.get("/api/pairings")).json()["data"]
    assert (found["state"], found["owner"]) == ("approved", "bob")
    assert (await sent(client, f"/pairings/{found['id']}/revoke")).status_code == 303
    (found,) = (await server.client.get("/api/pairings")).json()["data"]
    assert found["state"] == "revoked"


async def test_an_outage_is_shown_everywhere_and_ends_by_itself(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHONE_TOKEN", TOKEN)
    async with telegram_stand_in() as telegram:
        telegram.faults["getMe"] = ["5xx"] * 1000
        phone = {"kind": "telegram", "token_env": "PHONE_TOKEN", "api_url": telegram.url, "poll_seconds": 1}
        server = await start_server(connectors={"phone": phone})
        server.services.holdfast.connectors.start()
        client = await logged_in(server)

        async def shows(state: str) -> bool:
            return bool((await server.client.get("/healthz")).json()["connectors"] == {"phone": state})

        await until(lambda: shows("down"))
        (found,) = (await server.client.get("/api/connectors")).json()["data"]
        assert (found["state"], found["problem"]) == ("down", "Telegram answered 502: no description")
        for page in ("/", "/connectors"):
            text = (await client.get(page)).text
            assert "down" in text and "Telegram answered 502" in text, page
        assert (await server.client.get("/healthz")).status_code == 200, "others are answered"
        telegram.faults["getMe"].clear()
        await until(lambda: shows("up"))
        assert "Telegram answered 502" not in (await client.get("/")).text


async def test_a_dead_letter_is_shown_without_its_text_and_sent_again(
    hooked: Running, bridge: Bridge
) -> None:
    bridge.faults = [410]
    await post(hooked, body_of("my secret"))
    client = await logged_in(hooked)

    async def dead() -> list[str]:
        page = (await client.get("/connectors?state=dead")).text
        return re.findall(r'action="(/deliveries/[^"]+/retry[^"]*)"', page)

    await until(dead)
    assert "my secret" not in (await client.get("/connectors")).text, "it is another owner's"
    (retry,) = await dead()
    assert (await sent(client, retry.replace("&amp;", "&"))).status_code == 303
    await until(lambda: bridge.got)
    assert await dead() == []
