"""The overview's table of who holds how much; and conversations whose messages are hard to show."""

from __future__ import annotations

import pytest

from holdfast.domain.messages import NESTED_TOO_DEEPLY, NewMessage
from tests.integration.api.conftest import Running, StartServer, server_home, start_server
from tests.integration.dashboard.test_logins import logged_in

__all__ = ["server_home", "start_server"]


@pytest.fixture
async def server(start_server: StartServer) -> Running:
    return await start_server()


async def test_an_admin_sees_what_every_owner_holds_and_others_see_their_own(server: Running) -> None:
    await server.say("hello")
    await server.say("hello " * 100, client=await server.client_of("bob"))
    page = (await (await logged_in(server)).get("/")).text
    stored = page.partition('data-part="usage"')[2].partition("</section>")[0]
    assert stored.index("bob") < stored.index("default")
    theirs = (await (await logged_in(server, await server.key("bob"))).get("/")).text
    stored = theirs.partition('data-part="usage"')[2].partition("</section>")[0]
    assert "bob" in stored
    assert "default" not in stored


@pytest.mark.parametrize("depth", [50, 900, 5_000, 100_000])
async def test_arguments_nested_however_deep_do_not_hide_a_conversation(server: Running, depth: int) -> None:
    arguments = "[" * depth + "]" * depth
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": arguments}}
    made = await server.client.post(
        "/v1/chat/completions",
        json={
            "messages": [
                {"role": "user", "content": "look at the kelp"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "a", "content": "done"},
            ]
        },
    )
    assert made.status_code == 200, made.text
    session_id = made.json()["holdfast"]["session_id"]
    page = await (await logged_in(server)).get(f"/sessions/{session_id}")
    assert page.status_code == 200
    assert "look at the kelp" in page.text
    assert len(page.text) < 60_000 + 4 * depth
    listed = await server.client.get(f"/api/sessions/{session_id}/messages")
    assert listed.status_code == 200


async def test_a_stored_body_that_cannot_be_read_does_not_hide_a_conversation(server: Running) -> None:
    """Bodies that deep are refused today; an older store or an import may hold one."""
    said = (await server.say("look at the kelp", x_holdfast_session_key="k"))["holdfast"]
    deep = b'{"role":"user","content":"odd","deep":' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    (node,) = await server.store.nodes()
    message = NewMessage("user", deep)
    await server.store.add_messages("default", said["conversation_id"], node.id, [message])
    page = await (await logged_in(server)).get(f"/sessions/{said['session_id']}")
    assert page.status_code == 200
    assert "look at the kelp" in page.text
    assert NESTED_TOO_DEEPLY in page.text
    listed = await server.client.get(f"/api/sessions/{said['session_id']}/messages")
    assert [each["content"] for each in listed.json()["data"]][-1] == NESTED_TOO_DEEPLY
