"""Two owners, every route: nobody reaches what is another's, and another's id is like one that never was.

The routes are those of `/openapi.json`, so a new one is tried without being named here. Where one needs a
body, BODIES says which; that each route *can* be reached by the owner itself is tried too, or this could not
fail.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from typing import Any

import httpx
import pytest

from holdfast.domain.attachments import FileRef
from holdfast.domain.connectors import Batch, ConnectorClaim, Incoming
from holdfast.domain.ids import new_id
from holdfast.domain.turns import Delivery
from holdfast.store.store import Store
from holdfast.store.values import SessionFilter
from tests.integration.api.conftest import Running
from tests.integration.api.operating import DOCUMENT, asked, got, refused

SECRET = "xylophone"
BODIES: dict[str, Any] = {
    "/api/memories/{id}": {"text": "changed"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/responses": {"input": "hello"},
    "/v1/conversations/{id}": {"metadata": {"topic": "none"}},
    "/v1/conversations/{id}/items": {"items": [{"type": "message", "role": "user", "content": "hello"}]},
    "/api/processes/{id}/pin": {"hours": 1},
    "/api/turns/{id}": {"content": "changed"},
    "/api/sessions/{id}/rewind": {"to": 0},
    "/api/sessions/{id}/title": {"title": "changed"},
}
QUERIES = {"/api/search": f"?q={SECRET}"}
# What everybody with a key may see is nobody's.
# API keys are for admins alone: tests/integration/api/test_rate_limits.py. Pairings too, a delivery needs a
# connector, and a connector's routes are signed: tests/integration/connectors.
NOT_OWNED = {
    "/v1/models/{model}",
    "/api/keys/{id}/revoke",
    "/api/pairings/{id}/revoke",
    "/api/deliveries/{id}/retry",
    "/connectors/telegram/{name}",
    "/connectors/webhook/{name}",
}


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    streams: bool

    @property
    def names(self) -> list[str]:
        return re.findall(r"\{(\w+)\}", self.path)

    def at(self, ids: tuple[str, ...]) -> str:
        path = self.path
        for name, id_ in zip(self.names, ids, strict=True):
            path = path.replace(f"{{{name}}}", id_)
        return path + QUERIES.get(self.path, "")

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def operations() -> Iterator[Operation]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            kinds = operation["responses"]["200"]["content"]
            yield Operation(method.upper(), path, list(kinds) == ["text/event-stream"])


@pytest.fixture(autouse=True)
def bystander(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that can be watched."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        monkeypatch.setitem(BODIES, "/api/sessions/{id}/processes", {"pid": process.pid})
        yield
        process.kill()


NAMED = [each for each in operations() if each.names and each.path not in NOT_OWNED]
LISTS = [each for each in operations() if not each.names and each.method == "GET"]


async def ids_of(server: Running, client: httpx.AsyncClient, owner: str) -> dict[str, str]:
    """Something of every kind that can be named, made over HTTP."""
    said = (await server.say(SECRET, client=client, x_holdfast_session_key=f"{owner}:chat"))["holdfast"]
    response = await client.post("/v1/responses", json={"input": SECRET})
    assert response.status_code == 200, response.text
    answer = response.json()
    conversation = answer["holdfast"]["conversation_id"]
    items = (await client.get(f"/v1/conversations/{conversation}/items")).json()
    notice = await server.store.add_notice(owner, said["conversation_id"], "reset", SECRET)
    supervisor = server.services.holdfast.supervisor
    process = await supervisor.start(owner, said["session_id"], f"echo {SECRET}")
    await supervisor.wait(owner, process.id)
    while not (await server.store.process(owner, process.id)).ended:
        await supervisor.supervise_once()
    memory = await server.store.remember(owner, said["conversation_id"], SECRET)
    for _ in range(2):
        flushed = (await server.say(SECRET, client=client, x_holdfast_session_key=f"{owner}:old"))["holdfast"]
    await server.store.end_session(owner, flushed["session_id"], "new")
    alias = f"alias-{owner}"
    await server.store.add_alias(owner, alias, said["conversation_id"])
    attachment = await attach(server.store, owner)
    return {
        "session": said["session_id"],
        "conversation": conversation,
        "turn": said["turn_id"],
        "response": answer["id"],
        "item": items["data"][0]["id"],
        "notice": notice.id,
        "process": process.id,
        "memory": memory.id,
        "flushed": flushed["session_id"],
        "key": f"{owner}:chat",
        "alias": alias,
        "attachment": attachment,
    }


async def attach(store: Store, owner: str) -> str:
    """A file that this owner has sent from a messaging platform; its id."""
    name, code = f"phone-{owner}", f"{owner.upper()}-CODE"
    (node,) = await store.nodes()
    claim = await store.claim_connector(name, "telegram", node.id)
    assert isinstance(claim, ConnectorClaim)
    event = Incoming("1", "dm:42", "telegram:dm:42", "42", SECRET)
    await store.ask_pairing(name, event, code)
    await store.approve_pairing(code, owner)
    await store.receive(name, [event], [], claimed=claim)
    ((place, _),) = await store.waiting_places(name)
    batch = await store.take_messages(claim, place, new_id("turn"), "telegram", timedelta(0))
    assert isinstance(batch, Batch) and batch.place.conversation_id is not None
    await store.add_attachment(claim, batch, "1 0", FileRef("f", "kelp.txt", "text/plain"), SECRET.encode())
    await store.settle_messages(claim, batch)
    (found,) = (await store.attachments(owner, batch.place.conversation_id)).items
    return found.id


def never(name: str) -> str:
    """A name of the same form that nobody has."""
    return re.sub(r"[0-9a-f]{16}", "0123456789abcdef", name) if "_" in name else f"{name[:-1]}~"


async def told(client: httpx.AsyncClient, operation: Operation, ids: tuple[str, ...]) -> dict[str, Any]:
    """All of an answer that could tell two names apart, with the names themselves taken out."""
    body = BODIES.get(operation.path)
    async with client.stream(operation.method, operation.at(ids), json=body) as response:
        if operation.streams and response.status_code == 200:  # it has no end
            return {"status": 200}
        await response.aread()
    text = response.text
    for number, id_ in enumerate(ids):
        text = text.replace(id_, f"<{number}>")
    headers = {
        name: value
        for name, value in response.headers.items()
        if name not in ("x-request-id", "date", "content-length")
    }
    return {"status": response.status_code, "headers": headers, "body": text}


async def everything_of(store: Store, owner: str) -> dict[str, Any]:
    page = await store.sessions(SessionFilter(owner), limit=1000)
    conversations = sorted({session.conversation_id for session in page.items})
    for each in conversations:
        # That an answer was received is written a moment after it was.
        while any(turn.delivery is Delivery.SENDING for turn in await store.turns(owner, each)):
            await store.changed(store.version(), 0.1)
    return {
        "sessions": page.items,
        "messages": [(await store.messages(owner, each)).items for each in conversations],
        "turns": [await store.turns(owner, each) for each in conversations],
        "notices": (await store.notices(owner)).items,
        "memories": (await store.memories(owner)).items,
        "flushes": (await store.flushes(owner)).items,
        "events": await store.events(owner=owner),
    }


async def test_no_route_tells_anothers_id_from_one_that_never_was(server: Running) -> None:
    ada, bob = await server.client_of("ada"), await server.client_of("bob")
    theirs = await ids_of(server, ada, "ada")
    mine = await ids_of(server, bob, "bob")
    before = await everything_of(server.store, "ada")
    crossings = 0
    for caller in (bob, server.client, await server.client_of("bob", "bridge")):
        for operation in NAMED:
            for ids in product(theirs.values(), repeat=len(operation.names)):
                wrong = await told(caller, operation, ids)
                like = await told(caller, operation, tuple(map(never, ids)))
                assert wrong == like, f"{operation} {ids}"
                assert wrong["status"] in (400, 404), f"{operation} {ids}"
                crossings += 1
    for operation in NAMED:
        if len(operation.names) == 2:  # one's own conversation, another's item
            wrong = await told(bob, operation, (mine["conversation"], theirs["item"]))
            assert wrong["status"] == 404, operation
    assert crossings > 100
    assert await everything_of(server.store, "ada") == before


@pytest.mark.parametrize("operation", NAMED, ids=str)
async def test_each_route_can_be_reached_by_the_owner_itself(server: Running, operation: Operation) -> None:
    watches = (operation.method, operation.path) == ("POST", "/api/sessions/{id}/processes")
    ada = await server.client_of("ada", "admin" if watches else "chat")  # watching a process needs a right
    ids = await ids_of(server, ada, "ada")
    statuses = set()
    for names in product(ids.values(), repeat=len(operation.names)):
        statuses.add((await told(ada, operation, names))["status"])
    assert statuses & {200, 409}, "give it a body in BODIES, or a kind of id in ids_of"


@pytest.mark.parametrize("operation", LISTS, ids=str)
async def test_no_list_holds_anything_of_another(server: Running, operation: Operation) -> None:
    ada, bob = await server.client_of("ada"), await server.client_of("bob")
    theirs = await ids_of(server, ada, "ada")
    for caller in (bob, server.client, await server.client_of("bob", "bridge")):
        text = await text_of(caller, operation)
        found = [name for name in (*theirs.values(), SECRET) if name in text]
        assert found == [], f"{operation}: {text[:300]}"


async def text_of(client: httpx.AsyncClient, operation: Operation) -> str:
    if not operation.streams:
        return (await client.request(operation.method, operation.at(()))).text
    pieces = []
    async with client.stream(operation.method, operation.at(())) as response:
        try:
            async with asyncio.timeout(0.5):
                async for piece in response.aiter_text():
                    pieces.append(piece)
        except TimeoutError:
            pass
    return "".join(pieces)


async def test_what_names_a_conversation_in_a_body_or_header_crosses_nothing_either(server: Running) -> None:
    ada, bob = await server.client_of("ada"), await server.client_of("bob")
    theirs = await ids_of(server, ada, "ada")
    before = await everything_of(server.store, "ada")
    chat, hello = "/v1/chat/completions", BODIES["/v1/chat/completions"]
    for name in ("session", "conversation", "response", "turn"):
        for header in ("x-holdfast-session-id", "x-hermes-session-id"):
            response = await bob.post(chat, json=hello, headers={header: theirs[name]})
            assert response.status_code == 404, (name, response.text)
    for fields in (
        {"previous_response_id": theirs["response"]},
        {"conversation": theirs["conversation"]},
        {"conversation": {"id": theirs["conversation"]}},
    ):
        response = await bob.post("/v1/responses", json={"input": "hello", **fields})
        assert response.status_code == 404, response.text
    own = await bob.post(chat, json=hello, headers={"x-holdfast-session-key": theirs["key"]})
    assert own.status_code == 200
    assert own.json()["holdfast"]["session_id"] != theirs["session"], "a key is unique per owner"
    for cursor, path in {
        theirs["session"]: "/api/sessions",
        theirs["notice"]: "/api/notices",
        theirs["turn"]: f"/api/sessions/{theirs['key']}/turns",
        theirs["item"]: f"/api/sessions/{theirs['key']}/messages",
    }.items():
        assert (await bob.get(f"{path}?after={cursor}")).status_code == 404, path
    within = await bob.get(f"/api/search?q={SECRET}&session={theirs['conversation']}")
    assert within.status_code == 404
    assert await everything_of(server.store, "ada") == before


# --- admins --------------------------------------------------------------------------------------------


async def test_only_an_admin_may_name_an_owner(server: Running) -> None:
    for scope in ("chat", "bridge"):
        client = await server.client_of("ada", scope)
        for owner in ("ada", "bob", "*", ""):
            for operation in operations():
                documented = DOCUMENT["paths"][operation.path][operation.method.lower()]["parameters"]
                if not any(each["name"] == "owner" for each in documented):
                    continue
                path = operation.at(("x",) * len(operation.names))
                joined = f"{path}{'&' if '?' in path else '?'}owner={owner}"
                response = await client.request(operation.method, joined, json=BODIES.get(operation.path))
                assert response.status_code == 403, f"{operation} {owner} {response.text}"


async def test_an_admin_reads_another_owner_by_naming_it_and_leaves_an_event(server: Running) -> None:
    ada = await server.client_of("ada")
    ids = await ids_of(server, ada, "ada")
    session = ids["session"]
    (key,) = await server.store.keys("default")

    async def readings() -> list[Any]:
        events = await server.store.events(owner="ada")
        return [event for event in events if event.type == "messages.read_by_admin"]

    listed = await got(server, "/api/sessions?owner=ada")
    assert {each["owner"] for each in listed["data"]} == {"ada"}
    assert (await got(server, f"/api/sessions/{session}?owner=ada"))["owner"] == "ada"
    await got(server, f"/api/sessions/{session}/turns?owner=ada")
    await got(server, "/api/activity?owner=ada")
    assert await readings() == [], "none of these shows what a message says"
    for scope in ("session", "conversation", "context"):
        await got(server, f"/api/sessions/{session}/messages?owner=ada&scope={scope}")
    await got(server, f"/api/search?q={SECRET}&owner=ada")
    told = await readings()
    assert [(event.session_id, event.data) for event in told] == [
        *[(session, {"key_id": key.id})] * 3,
        (None, {"key_id": key.id}),
    ]
    await refused(server, "GET", f"/api/sessions/{session[:-1]}~/messages?owner=ada", 404, "not_found")
    await got(server, f"/api/sessions/{session}/messages", ada)
    assert await readings() == told, "neither a 404 nor the owner itself leaves one"


async def test_everybodys_lists_may_be_read_but_not_everybodys_messages(server: Running) -> None:
    ada = await server.client_of("ada")
    ids = await ids_of(server, ada, "ada")
    await server.say()
    everybody = await got(server, "/api/sessions?owner=*")
    assert {each["owner"] for each in everybody["data"]} == {"ada", "default"}
    living = (await got(server, "/api/activity?owner=*"))["data"]
    assert {each["owner"] for each in living} == {"ada", "default"}
    assert (await got(server, "/api/notices?owner=*"))["data"][0]["owner"] == "ada"
    for path in (
        f"/api/sessions/{ids['session']}/messages?owner=*",
        f"/api/sessions/{ids['session']}?owner=*",
        f"/api/search?q={SECRET}&owner=*",
        f"/api/turns/{ids['turn']}?owner=*",
    ):
        await refused(server, "GET", path, 400, "invalid_value")
    await refused(server, "DELETE", f"/api/sessions/{ids['session']}?owner=*", 400, "invalid_value")


async def test_an_admin_acts_for_another_owner_by_naming_it(server: Running) -> None:
    ada = await server.client_of("ada")
    ids = await ids_of(server, ada, "ada")
    ended = await asked(server, "POST", f"/api/sessions/{ids['session']}/end?owner=ada")
    assert ended["state"] == "ended"
    forked = await asked(server, "POST", f"/api/sessions/{ids['session']}/fork?owner=ada")
    assert (await got(server, f"/api/sessions/{forked['id']}", ada))["edge"] == "fork"
    await asked(server, "POST", f"/api/notices/{ids['notice']}/delivered?owner=ada")
    await asked(server, "DELETE", f"/api/sessions/{ids['session']}?owner=ada")
    await refused(server, "GET", f"/api/sessions/{ids['session']}", 404, "not_found", client=ada)


async def test_people_behind_one_bridge_key_are_apart(server: Running) -> None:
    token = await server.key("team", "bridge")
    ada = await server.with_token(token, **{"x-holdfast-owner": "ada"})
    bob = await server.with_token(token, **{"x-holdfast-owner": "bob"})
    ids = await ids_of(server, ada, "team/ada")
    for caller in (bob, await server.with_token(token)):
        assert (await got(server, "/api/sessions", caller))["data"] == []
        await refused(server, "GET", f"/api/sessions/{ids['session']}", 404, "not_found", client=caller)
    direct = await server.client_of("team/ada")
    assert (await got(server, f"/api/sessions/{ids['session']}", direct))["key"] == "team/ada:chat"
