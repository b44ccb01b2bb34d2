"""Shortened ids, titles and previews over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.domain.ids import short
from holdfast.errors import AmbiguousId
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.agents import titler
from tests.integration.api.chatting import until
from tests.integration.api.conftest import Running, StartServer
from tests.integration.api.test_doors import check_error


async def test_every_route_takes_the_beginning_of_an_id(server: Running) -> None:
    answer = await server.say("How tall is the lighthouse?")
    names = answer["holdfast"]
    session, turn, conversation = names["session_id"], names["turn_id"], names["conversation_id"]
    client = server.client
    for path in ("", "/messages", "/turns", "/lineage", "/why"):
        for name in (short(session), short(conversation), session[:30], turn[:30]):
            assert (await client.get(f"/api/sessions/{name}{path}")).status_code == 200, (name, path)
    assert (await client.get(f"/api/turns/{turn[:30]}")).json()["id"] == turn
    assert (await client.get(f"/v1/conversations/{short(conversation)}")).json()["id"] == conversation
    again = await server.say("And how old?", x_holdfast_session_id=short(session))
    assert again["holdfast"]["conversation_id"] == conversation
    page = await client.get(f"/sessions/{short(session)}", headers={"accept": "text/html"})
    assert page.status_code == 200

    first = (await client.post("/v1/responses", json={"input": "hello"})).json()
    continued = await client.post(
        "/v1/responses", json={"input": "go on", "previous_response_id": first["id"][:30]}
    )
    assert continued.json()["previous_response_id"] == first["id"]
    assert (await client.get(f"/v1/responses/{first['id'][:30]}")).json()["id"] == first["id"]


async def test_a_shortened_id_reaches_no_other_owner(server: Running) -> None:
    session = (await server.say("mine"))["holdfast"]["session_id"]
    bob = await server.client_of("bob")
    for path in ("/api/sessions/{}", "/api/sessions/{}/messages"):
        others = await bob.get(path.format(short(session)))
        never = await bob.get(path.format("sess_00000000"))
        assert others.status_code == never.status_code == 404
        assert others.text == never.text.replace("sess_00000000", short(session))
    refused = await bob.post(
        "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "hi"}]},
        headers={"x-holdfast-session-id": short(session)},
    )
    check_error(refused, 404, "not_found")


async def test_a_beginning_of_several_is_refused_with_the_candidates(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [(await server.say(f"hello {number}"))["holdfast"]["session_id"] for number in range(2)]

    async def both(*_: Any, **__: Any) -> list[str]:
        return sorted(ids)

    monkeypatch.setattr(server.store, "ids_like", both)
    with pytest.raises(AmbiguousId) as told:
        await server.services.holdfast.full_id("default", "sess_0000")
    assert told.value.candidates == tuple(sorted(ids))
    for response in (
        await server.client.get("/api/sessions/sess_0000"),
        await server.client.post(
            "/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "hi"}]},
            headers={"x-holdfast-session-id": "sess_0000"},
        ),
    ):
        message = check_error(response, 400, "invalid_value")["message"]
        assert all(id_ in message for id_ in ids)


# --- titles --------------------------------------------------------------------------------------------


async def sessions(server: Running, **query: str) -> list[dict[str, Any]]:
    response = await server.client.get("/api/sessions", params=query)
    assert response.status_code == 200
    found: list[dict[str, Any]] = response.json()["data"]
    return found


async def test_a_session_is_titled_by_its_first_words_until_it_gets_a_title(server: Running) -> None:
    session = (await server.say("How tall is the lighthouse?"))["holdfast"]["session_id"]
    (listed,) = await sessions(server)
    assert listed["title"] == "How tall is the lighthouse?"
    assert listed["preview"] == "You said: How tall is the lighthouse?"
    renamed = await server.client.post(f"/api/sessions/{session}/title", json={"title": "Lighthouse"})
    assert (renamed.json()["title"], renamed.json()["preview"]) == ("Lighthouse", listed["preview"])
    assert (await sessions(server))[0]["title"] == "Lighthouse"
    for body in ({}, {"title": ""}, {"title": 3}, {"title": "x" * 600}):
        refused = await server.client.post(f"/api/sessions/{session}/title", json=body)
        assert refused.status_code == 400, body


async def test_text_of_another_owners_messages_is_in_no_list(server: Running) -> None:
    bob = await server.client_of("bob")
    session = (await server.say("the secret of bob", client=bob))["holdfast"]["session_id"]
    for owner in ("bob", "*"):
        assert all("secret" not in str(each) for each in await sessions(server, owner=owner))
    shown = await server.client.get(f"/api/sessions/{session}", params={"owner": "bob"})
    assert shown.status_code == 200
    assert "secret" not in shown.text
    assert (await bob.get(f"/api/sessions/{session}")).json()["title"] == "the secret of bob"


async def test_only_the_newest_session_of_each_conversation_on_request(server: Running) -> None:
    for _ in range(2):
        said = await server.say("hello", x_holdfast_session_key="cli:ada")
        await server.client.post(
            f"/api/sessions/{said['holdfast']['session_id']}/end", json={"reason": "new"}
        )
    assert len(await sessions(server)) == 2
    (newest,) = await sessions(server, newest="1")
    assert newest["id"] == newest["tip_id"]
    refused = await server.client.get("/api/sessions", params={"newest": "maybe"})
    check_error(refused, 400, "invalid_value")


async def test_the_model_names_a_conversation_in_the_background(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(titler, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(titler, "LOOK_SECONDS", 0.01)
    model = ScriptedModel(lambda _, purpose: "The lighthouse" if purpose == "title" else "Forty metres.")
    server = await start_server(model, memory={"flush": False}, titles={"generate": True, "min_messages": 4})
    session = (await server.say("How tall is the lighthouse?"))["holdfast"]["session_id"]
    assert [request.purpose.value for request in model.requests] == ["turn"]
    await server.say("Really?", x_holdfast_session_id=session)

    async def titled() -> bool:
        return bool((await sessions(server))[0]["title"] == "The lighthouse")

    await until(titled, "the model names it")
    assert [request.purpose.value for request in model.requests] == ["turn", "turn", "title"]
