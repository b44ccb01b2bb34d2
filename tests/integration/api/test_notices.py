"""`/api/notices`, `/api/search`, `/api/nodes`, `/metrics`: the smaller operations."""

from __future__ import annotations

import re

from tests.integration.api.conftest import Running, StartServer
from tests.integration.api.operating import Waiting, asked, got, ids, refused, speaking


async def test_a_notice_stays_until_somebody_says_it_was_delivered(server: Running) -> None:
    conversation = (await server.say(x_holdfast_session_key="telegram:dm:42"))["holdfast"]["conversation_id"]
    made = [await server.store.add_notice("default", conversation, "reset", f"number {n}") for n in range(3)]
    page = await got(server, "/api/notices?undelivered=1&limit=2")
    assert (ids(page), page["has_more"]) == ([each.id for each in made[:2]], True)
    assert page["data"][0]["key"] == "telegram:dm:42"
    delivered = await asked(server, "POST", f"/api/notices/{made[0].id}/delivered")
    assert delivered["delivered_at"] is not None
    assert await asked(server, "POST", f"/api/notices/{made[0].id}/delivered") == delivered
    assert ids(await got(server, "/api/notices?undelivered=1")) == [each.id for each in made[1:]]
    assert ids(await got(server, "/api/notices")) == [each.id for each in made]
    assert ids(await got(server, f"/api/notices?after={made[1].id}")) == [made[2].id]
    await refused(server, "POST", "/api/notices/note_x/delivered", 404, "not_found")
    await refused(server, "GET", "/api/notices?after=note_x", 404, "not_found")
    await refused(server, "GET", "/api/notices?undelivered=maybe", 400, "invalid_value")


async def test_search_finds_what_was_said_a_moment_ago(server: Running) -> None:
    ada = (await server.say("the kettle whistles", x_holdfast_session_key="a"))["holdfast"]
    await server.say("a kettle of fish", x_holdfast_session_key="b")
    found = await got(server, "/api/search?q=kettle&limit=2")
    assert (len(found["data"]), found["has_more"]) == (2, True)
    within = await got(server, "/api/search?q=kettle&session=a")
    assert {each["conversation_id"] for each in within["data"]} == {ada["conversation_id"]}
    assert "kettle" in within["data"][0]["snippet"]
    assert (await got(server, "/api/search?q=teapot"))["data"] == []
    for query in ("", "?q=", "?q=%20", "?q=a&limit=0"):
        await refused(server, "GET", f"/api/search{query}", 400, "invalid_value")
    await refused(server, "GET", "/api/search?q=a&session=nowhere", 404, "not_found")


async def test_nodes_are_for_admins(server: Running) -> None:
    (node,) = (await got(server, "/api/nodes"))["data"]
    assert (node["id"], node["state"]) == (server.services.holdfast.node_id, "alive")
    assert len((await got(server, "/api/nodes?gone=1"))["data"]) == 1
    client = await server.client_of("default")
    await refused(server, "GET", "/api/nodes", 403, "insufficient_scope", client=client)


async def figures(server: Running) -> dict[str, float]:
    text = (await server.client.get("/metrics")).text
    return {name: float(value) for name, value in re.findall(r"^([^#\s]\S*) (\S+)$", text, re.MULTILINE)}


async def test_metrics_count_turns_by_how_they_ended(start_server: StartServer) -> None:
    waiting = Waiting()
    server = await start_server(waiting.model())
    task = await speaking(server, waiting, "a")
    running = await figures(server)
    assert (running["holdfast_running_turns"], running["holdfast_store_running_turns"]) == (1, 1)
    assert running["holdfast_idle_seconds"] == 0
    await asked(server, "POST", "/api/sessions/a/cancel")
    await task
    waiting.may_go_on.set()
    await server.say("again", x_holdfast_session_key="a")
    after = await figures(server)
    assert after["holdfast_running_turns"] == 0
    assert after['holdfast_turns_total{status="cancelled"}'] == 1
    assert after['holdfast_turns_total{status="completed"}'] == 1
    assert after['holdfast_turns_total{status="failed"}'] == 0
    assert after['holdfast_requests_total{route="/v1/chat/completions",status="200"}'] == 1
    assert after['holdfast_request_seconds_count{route="/v1/chat/completions"}'] == 2
    assert (after["holdfast_store_open_sessions"], after["holdfast_store_messages"]) == (1, 4)
    assert after["holdfast_store_log_bytes"] > 0
    assert after["process_resident_memory_bytes"] > 1_000_000


async def test_metrics_name_nobody(server: Running) -> None:
    client = await server.client_of("ada-the-owner")
    session = (await server.say(client=client, x_holdfast_session_key="telegram:secret"))["holdfast"]
    await got(server, f"/api/sessions/{session['session_id']}", client)
    text = (await server.client.get("/metrics")).text
    for name in ("ada-the-owner", "telegram:secret", *session.values()):
        assert str(name) not in text or len(str(name)) < 6
