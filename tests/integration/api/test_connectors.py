"""Connectors over HTTP: signed webhooks in and out, pairings, deliveries, links and the live stream."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import msgspec
import openai
import pytest
from aiohttp import web

from holdfast.connectors.webhook import Signer
from holdfast.errors import ModelError
from holdfast.models.scripted import ScriptedModel
from holdfast.server.admin import live
from holdfast.server.sse import Listener
from tests.integration.api.conftest import Running, StartServer
from tests.integration.connectors.platform import until

SECRET = "whsec_" + base64.b64encode(b"a secret of twenty-four b").decode()
SIGNER = Signer(SECRET)


class Bridge:
    """What a bridge receives: every request with its headers; `faults` are statuses of the next answers."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.faults: list[int] = []
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        if self.faults:
            return web.Response(status=self.faults.pop(0), headers={"Retry-After": "1"})
        self.got.append(({name.lower(): value for name, value in request.headers.items()}, body))
        return web.json_response({"id": f"platform-{len(self.got)}"})

    def said(self) -> list[str]:
        return [msgspec.json.decode(body)["data"]["text"] for _, body in self.got]


@pytest.fixture
async def bridge() -> AsyncIterator[Bridge]:
    made = Bridge()
    application = web.Application()
    application.router.add_post("/hook", made.take)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    yield made
    await runner.cleanup()


@pytest.fixture
async def hooked(start_server: StartServer, bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> Running:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    hook = {"kind": "webhook", "token_env": "HOOK_SECRET", "url": bridge.url, "allow": ["ada"]}
    server = await start_server(connectors={"hook": hook})
    server.services.holdfast.connectors.start()
    return server


def body_of(text: str = "hello", **data: str) -> bytes:
    said = {"place": "room-1", "person": "ada", "text": text, **data}
    return msgspec.json.encode({"type": "message", "data": said})


async def post(
    server: Running,
    body: bytes,
    id_: str = "m1",
    headers: Mapping[str, str] | None = None,
    name: str = "hook",
) -> httpx.Response:
    signed = SIGNER.headers(id_, int(time.time()), body) if headers is None else headers
    anonymous = await server.with_token(None)
    return await anonymous.post(f"/connectors/webhook/{name}", content=body, headers=signed)


async def test_a_signed_message_is_answered_by_a_signed_message(hooked: Running, bridge: Bridge) -> None:
    answer = await post(hooked, body_of())
    assert (answer.status_code, answer.json()) == (200, {"status": "accepted"})
    await until(lambda: bridge.got)
    headers, body = bridge.got[0]
    sent = msgspec.json.decode(body)["data"]
    assert (sent["place"], sent["text"], sent["reply_to"]) == ("room-1", "You said: hello", "m1")
    event = openai.OpenAI(api_key="x").webhooks.unwrap(body, headers, secret=SECRET)
    assert event.model_dump()["data"]["text"] == "You said: hello"
    with pytest.raises(openai.InvalidWebhookSignatureError):
        openai.OpenAI(api_key="x").webhooks.unwrap(body + b" ", headers, secret=SECRET)
    page = (await hooked.client.get("/api/sessions?owner=hook/ada")).json()
    assert [(each["key"], each["source"]) for each in page["data"]] == [("webhook:room-1", "webhook")]


async def test_messages_without_a_verified_sender_are_small_few_and_quick(
    hooked: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who posts is known only when the body was read: bodies must not fill the memory."""
    monkeypatch.setattr("holdfast.server.gate.PUSHES", 2)
    monkeypatch.setattr("holdfast.server.admin.connectors.FORM_SECONDS", 60)
    long = await post(hooked, body_of("x" * 2**20))
    assert (long.status_code, long.json()["error"]["message"]) == (413, "the body is larger than 1 MiB")
    assert (await post(hooked, body_of("\x01" * 100_000))).status_code == 200, "the longest that is kept"
    stranger, gate = await hooked.with_token(None), asyncio.Event()
    read: list[bytes] = []

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(3):
            read.append(b"x" * 2**20)
            yield read[-1]

    unknown = await stranger.post("/connectors/webhook/unknown", content=body_of("x" * 2**20))
    assert unknown.status_code == 404
    assert (await stranger.post("/connectors/webhook/hook", content=endless())).status_code == 413

    async def never() -> AsyncIterator[bytes]:
        yield b"{"
        await gate.wait()

    slow = [asyncio.create_task(stranger.post("/connectors/webhook/hook", content=never())) for _ in range(2)]
    await until(lambda: hooked.services.gate._pushes == 2)
    assert (await post(hooked, body_of(), "m2")).status_code == 503
    gate.set()
    assert {answer.status_code for answer in await asyncio.gather(*slow)} == {401}
    assert (await post(hooked, body_of(), "m2")).status_code == 200

    gate.clear()
    monkeypatch.setattr("holdfast.server.admin.connectors.FORM_SECONDS", 0.5)
    late = asyncio.create_task(stranger.post("/connectors/webhook/hook", content=never()))
    await until(lambda: hooked.services.gate._pushes == 1)
    await until(lambda: hooked.services.gate._pushes == 0)
    gate.set()
    await asyncio.gather(late, return_exceptions=True)


async def test_the_same_message_again_is_answered_once(hooked: Running, bridge: Bridge) -> None:
    for expected in ("accepted", "unchanged", "unchanged"):
        assert (await post(hooked, body_of())).json() == {"status": expected}
    assert (await post(hooked, body_of("next"), "m2")).json() == {"status": "accepted"}
    await until(lambda: len(bridge.got) == 2)
    assert bridge.said() == ["You said: hello", "You said: next"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"webhook-id": "m1", "webhook-timestamp": "now", "webhook-signature": "v1,x"},
        SIGNER.headers("m1", int(time.time()), b"another body"),
        SIGNER.headers("m2", 1_700_000_000, body_of()),
        Signer("whsec_" + base64.b64encode(b"another secret of the same").decode()).headers(
            "m1", int(time.time()), body_of()
        ),
        {**SIGNER.headers("m1", int(time.time()), body_of()), "webhook-id": "m3"},
    ],
    ids=["none", "no time", "another body", "too old", "another secret", "another id"],
)
async def test_a_wrong_signature_stores_and_answers_nothing(
    hooked: Running, bridge: Bridge, headers: dict[str, str]
) -> None:
    refused = await post(hooked, body_of(), headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "bad_signature")
    assert await hooked.store.waiting_places("hook") == []
    assert (await hooked.client.get("/api/sessions?owner=*")).json()["data"] == []


@pytest.mark.parametrize("name", ["other", "..%2fhook", "hook%00", "%2e%2e", "hook/extra"])
async def test_another_name_is_not_found_and_stores_nothing(hooked: Running, name: str) -> None:
    assert (await post(hooked, body_of(), name=name)).status_code == 404
    assert await hooked.store.places_of(None) == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"data": {}}',
        b'{"type": "poll", "data": {"place": "x"}}',
        b'{"data": {"place": " "}}',
    ],
)
async def test_a_body_that_is_no_message_is_a_400(hooked: Running, body: bytes) -> None:
    assert (await post(hooked, body)).status_code == 400
    assert await hooked.store.places_of(None) == []


async def test_a_stranger_is_paired_by_an_admin_and_what_they_wrote_is_not_kept(
    hooked: Running, bridge: Bridge
) -> None:
    assert (await post(hooked, body_of("secret plans", person="bob"))).json() == {"status": "unchanged"}
    await until(lambda: bridge.got)
    code = bridge.said()[0].split("approve ")[1].strip()
    (waiting,) = (await hooked.client.get("/api/pairings?state=pending")).json()["data"]
    assert (waiting["person"], waiting["owner"]) == ("bob", None) and "code" not in waiting
    chat = await hooked.client_of("ada")
    assert (await chat.post("/api/pairings", json={"code": code})).status_code == 403
    approved = (await hooked.client.post("/api/pairings", json={"code": code, "owner": "ada"})).json()
    assert (approved["state"], approved["owner"]) == ("approved", "ada")
    assert (await hooked.client.post("/api/pairings", json={"code": code})).status_code == 404
    await post(hooked, body_of("hello", person="bob"), "m2")
    await until(lambda: "You said: hello" in bridge.said())
    revoked = await hooked.client.post(f"/api/pairings/{approved['id']}/revoke")
    assert revoked.json()["state"] == "revoked"
    assert (await post(hooked, body_of("again", person="bob"), "m3")).json() == {"status": "unchanged"}


async def test_a_refused_delivery_is_a_dead_letter_until_it_is_retried(
    hooked: Running, bridge: Bridge
) -> None:
    bridge.faults = [503, 410]
    await post(hooked, body_of())

    async def dead() -> Any:
        return (await hooked.client.get("/api/deliveries?state=dead&owner=*")).json()["data"]

    await until(dead)
    (letter,) = await dead()
    assert (letter["attempts"], letter["text"], letter["place"]) == (2, "You said: hello", "room-1")
    health = (await hooked.client.get("/healthz")).json()
    assert health["connectors"] == {"hook": "up"}
    (state,) = (await hooked.client.get("/api/connectors")).json()["data"]
    assert (state["dead"], state["state"]) == (1, "up")
    stranger = await hooked.client_of("bob")
    assert (await stranger.post(f"/api/deliveries/{letter['id']}/retry")).status_code == 404
    retried = await hooked.client.post(f"/api/deliveries/{letter['id']}/retry?owner=hook/ada")
    assert retried.json()["state"] == "pending"
    await until(lambda: bridge.got)
    assert bridge.got[0][0]["webhook-id"] == f"{letter['id']}-0"

    async def sent() -> Any:
        return (await hooked.client.get("/api/deliveries?state=sent&owner=hook/ada")).json()["data"]

    await until(sent)
    assert (await sent())[0]["platform_ids"] == ["platform-1"]
    assert (
        await hooked.client.post(f"/api/deliveries/{letter['id']}/retry?owner=hook/ada")
    ).status_code == 409


async def test_a_code_of_a_session_links_a_place_of_the_same_owner(hooked: Running, bridge: Bridge) -> None:
    ada = await hooked.client_of("hook/ada")
    said = await hooked.say("from the terminal", client=ada, x_holdfast_session_key="cli:ada")
    link = (await ada.post(f"/api/sessions/{said['holdfast']['session_id']}/link")).json()
    assert link["conversation_id"] == said["holdfast"]["conversation_id"]
    other = await hooked.client_of("bob")
    assert (await other.post(f"/api/sessions/{link['session_id']}/link")).status_code == 404
    await post(hooked, body_of(f"/link {link['code']}"))
    await until(lambda: bridge.got)
    await post(hooked, body_of("from the phone"), "m2")
    await until(lambda: len(bridge.got) == 2)
    messages = (await ada.get(f"/api/sessions/{link['session_id']}/messages?scope=conversation")).json()[
        "data"
    ]
    assert [each["content"] for each in messages if each["role"] == "user"] == [
        "from the terminal",
        "from the phone",
    ]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "on another node"])
async def test_a_conversation_is_followed_live_from_a_number_on(
    start_server: StartServer, elsewhere: bool
) -> None:
    release = asyncio.Event()

    async def slowly() -> AsyncIterator[str]:
        yield "The tide "
        await release.wait()
        yield "is high."

    server = await start_server(ScriptedModel(["first", slowly()]))
    viewer = await start_server() if elsewhere else server
    said = await server.say("hello", x_holdfast_session_key="k")
    path = f"/api/sessions/{said['holdfast']['session_id']}/live"
    assert (await server.client.get(f"{path}?after=x")).status_code == 400
    asking = asyncio.create_task(server.say("tide?", x_holdfast_session_key="k"))
    seen: list[dict[str, Any]] = []
    ids: list[str] = []
    async with asyncio.timeout(60), viewer.client.stream("GET", f"{path}?after=1") as stream:
        async for line in stream.aiter_lines():
            if line.startswith("id: "):
                ids.append(line[4:])
            if line.startswith("data: "):
                seen.append(msgspec.json.decode(line[6:]))
                if seen[-1]["type"] == "turn" and (seen[-1]["text"] or "").startswith("The tide"):
                    release.set()
                if seen[-1]["type"] == "turn" and seen[-1]["text"] is None:
                    break
    await asking
    assert ids == ["2", "3", "4"]
    assert [each["message"]["content"] for each in seen if each["type"] == "message"] == [
        *("first", "tide?", "The tide is high."),
    ]
    assert seen[-1]["turn"]["status"] == "completed"
    assert (await (await server.client_of("bob")).get(path)).status_code == 404


async def test_a_conversation_is_read_as_its_viewer_reads_it(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it is, a viewer that is slow holds a page of it in memory."""
    monkeypatch.setattr(live, "MOST_BYTES", 2_500)
    said: list[dict[str, Any]] = [{"role": "user", "content": f"{at} {'kelp ' * 200}"} for at in range(10)]
    made = (await server.client.post("/v1/conversations", json={"items": said})).json()
    steps: list[str] = []
    read, say = server.store.messages, Listener.say

    async def noted_read(*given: Any, **more: Any) -> Any:
        steps.append("read")
        return await read(*given, **more)

    async def noted_say(listener: Listener, data: bytes) -> None:
        if b'"type":"message"' in data:
            steps.append("say")
        await say(listener, data)

    monkeypatch.setattr(server.store, "messages", noted_read)
    monkeypatch.setattr(Listener, "say", noted_say)
    seen = 0
    path = f"/api/sessions/{made['id']}/live"
    async with asyncio.timeout(60), server.client.stream("GET", path) as stream:
        async for line in stream.aiter_lines():
            seen += line.startswith("data: ")
            if seen == 10:
                break
    assert steps[:15] == ["read", "say", "say"] * 5


# --- events of background responses ------------------------------------------------------------------------


async def _key(server: Running, **asked: str) -> str:
    answer = await server.client.post("/api/keys", json=asked)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["key"])


async def test_the_end_of_a_background_response_is_sent_if_its_key_asked_for_it(
    start_server: StartServer, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    hook = {"kind": "webhook", "token_env": "HOOK_SECRET", "url": bridge.url}
    refused = ModelError("the model refuses", status=400)
    server = await start_server(ScriptedModel(["tide", "low", "high", refused]), connectors={"hook": hook})
    server.services.holdfast.connectors.start()
    key = await _key(server, owner="ada", webhook="hook")
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as sdk:
        plain = sdk.with_options(api_key=await _key(server, owner="ada"))
        await plain.responses.create(input="without a webhook", model="m", background=True)
        await sdk.responses.create(input="in the foreground", model="m")
        done = await sdk.responses.create(input="tide?", model="m", background=True)
        await until(lambda: len(bridge.got) == 1)
        failed = await sdk.responses.create(input="again", model="m", background=True)
        await until(lambda: len(bridge.got) == 2)
        events = [sdk.webhooks.unwrap(body, headers, secret=SECRET) for headers, body in bridge.got]
        assert [(each.type, each.model_dump()["data"]["id"]) for each in events] == [
            ("response.completed", done.id),
            ("response.failed", failed.id),
        ]
        with pytest.raises(openai.InvalidWebhookSignatureError):
            sdk.webhooks.unwrap(bridge.got[0][1] + b" ", bridge.got[0][0], secret=SECRET)
        assert (await sdk.responses.retrieve(done.id)).output_text == "high"

    async def all_sent() -> bool:
        kept = (await server.client.get("/api/deliveries?owner=ada")).json()["data"]
        return [(each["kind"], each["connector"], each["state"]) for each in kept] == [
            ("event", "hook", "sent")
        ] * 2

    await until(all_sent)  # an event is heard before it is recorded as sent


async def test_a_message_cannot_be_written_to_the_place_of_events(hooked: Running, bridge: Bridge) -> None:
    """The events of an owner have a place of their own; a bridge that names it gets another."""
    key = await _key(hooked, owner="bo", webhook="hook")
    client = await hooked.with_token(key)
    await client.post("/v1/responses", json={"input": "hi", "background": True})
    await until(lambda: bridge.got)
    for place in ("bo", "hook/events"):
        await post(hooked, body_of(place=place), id_=f"m-{place}")
    await until(lambda: len(bridge.got) == 3)
    owners = {each.owner for each in await hooked.services.holdfast.store.places_of(None)}
    assert owners == {"bo", "hook/ada"}
    page = (await client.get("/api/sessions")).json()["data"]
    assert [each["key"] for each in page] == [None]


@pytest.mark.parametrize("name", ["nowhere", "../hook", "http://169.254.169.254/"])
async def test_a_key_can_notify_only_a_webhook_of_the_settings(hooked: Running, name: str) -> None:
    answer = await hooked.client.post("/api/keys", json={"webhook": name})
    assert answer.status_code == 400
    assert "[connectors." in answer.json()["error"]["message"]
    chat = await hooked.with_token(await _key(hooked))
    assert (await chat.post("/api/keys", json={"webhook": "hook"})).status_code == 403
