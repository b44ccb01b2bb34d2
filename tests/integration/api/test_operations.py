"""`/api/sessions…`: looking at sessions and acting on them, over real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.domain.turns import TurnStatus
from holdfast.errors import ModelError
from tests.integration.api.conftest import Running, StartServer
from tests.integration.api.operating import Waiting, asked, got, ids, refused, speaking

UNKNOWN = "sess_" + "0" * 32


# --- looking -------------------------------------------------------------------------------------------


async def test_sessions_are_listed_the_newest_first_page_by_page(server: Running) -> None:
    made = [
        (await server.say(str(n), x_holdfast_session_key=f"cli:{n}"))["holdfast"]["session_id"]
        for n in range(5)
    ]
    first = await got(server, "/api/sessions?limit=2")
    assert (ids(first), first["has_more"], first["last_id"]) == (made[:2:-1], True, made[3])
    second = await got(server, f"/api/sessions?limit=2&after={first['last_id']}")
    assert ids(second) == made[2:0:-1]
    last = await got(server, f"/api/sessions?limit=2&after={second['last_id']}")
    assert (ids(last), last["has_more"]) == (made[:1], False)


async def test_sessions_are_filtered_by_state_source_key_and_words(server: Running) -> None:
    ada = (await server.say(x_holdfast_session_key="telegram:ada"))["holdfast"]["session_id"]
    bob = (await server.say(x_holdfast_session_key="cli:bob"))["holdfast"]["session_id"]
    await asked(server, "POST", f"/api/sessions/{bob}/end")
    wanted = {
        "state=idle": [ada],
        "state=ended": [bob],
        "state=active": [],
        "state=orphaned": [],
        "source=telegram": [ada],
        "key=cli:bob": [bob],
        "q=ADA": [ada],
        "q=gram:&state=idle": [ada],
        "source=cli&state=idle": [],
        "key=": [],
    }
    assert {query: ids(await got(server, f"/api/sessions?{query}")) for query in wanted} == wanted


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=101", "limit=x", "limit=-1", "limit=1e9", "state=dead", "limit=" + "9" * 400]
)
async def test_a_query_that_cannot_be_is_refused(server: Running, query: str) -> None:
    await refused(server, "GET", f"/api/sessions?{query}", 400, "invalid_value")


async def test_active_sessions_are_found_with_the_filters_too(start_server: StartServer) -> None:
    waiting = Waiting()
    server = await start_server(waiting.model())
    task = await speaking(server, waiting, "cli:ada")
    (active,) = (await got(server, "/api/sessions?state=active"))["data"]
    assert (active["key"], active["state"], active["node"]) == (
        "cli:ada",
        "active",
        server.services.holdfast.node_id,
    )
    for query, number in {"key=cli:ada": 1, "key=cli:bob": 0, "source=cli": 1, "q=ad": 1, "q=bo": 0}.items():
        assert len((await got(server, f"/api/sessions?state=active&{query}"))["data"]) == number, query
    assert ids(await got(server, f"/api/sessions?state=active&after={active['id']}")) == []
    waiting.may_go_on.set()
    assert (await task).status_code == 200


async def test_an_id_is_that_very_session_and_any_other_name_the_newest(server: Running) -> None:
    first = (await server.say(x_holdfast_session_key="cli:ada"))["holdfast"]
    await asked(server, "POST", f"/api/sessions/{first['session_id']}/end", json={"reason": "new"})
    second = (await server.say("afresh", x_holdfast_session_key="cli:ada"))["holdfast"]
    stale = await got(server, f"/api/sessions/{first['session_id']}")
    assert (stale["id"], stale["state"], stale["tip_id"], stale["end_reason"]) == (
        first["session_id"],
        "ended",
        second["session_id"],
        "new",
    )
    for name in (first["conversation_id"], "cli:ada", first["turn_id"], second["session_id"]):
        assert (await got(server, f"/api/sessions/{name}"))["id"] == second["session_id"], name


async def test_an_alias_names_a_session_too(server: Running) -> None:
    made = (await server.say(x_hermes_session_id="my chat"))["holdfast"]["session_id"]
    assert (await got(server, "/api/sessions/my%20chat"))["id"] == made


async def test_messages_are_those_of_the_session_the_conversation_or_the_context(server: Running) -> None:
    first = (await server.say("one", x_holdfast_session_key="a"))["holdfast"]["session_id"]
    await asked(server, "POST", f"/api/sessions/{first}/end", json={"reason": "new"})
    await server.say("two", x_holdfast_session_key="a")

    async def contents(name: str, scope: str) -> list[str]:
        page = await got(server, f"/api/sessions/{name}/messages?scope={scope}")
        return [message["content"] for message in page["data"]]

    assert await contents(first, "session") == ["one", "You said: one"]
    assert await contents("a", "session") == ["two", "You said: two"]
    assert await contents(first, "conversation") == ["one", "You said: one", "two", "You said: two"]
    assert await contents(first, "context") == ["one", "You said: one"]
    assert await contents("a", "context") == ["two", "You said: two"]
    await refused(server, "GET", "/api/sessions/a/messages?scope=all", 400, "invalid_value")


async def test_messages_come_page_by_page(server: Running) -> None:
    for number in range(3):
        await server.say(str(number), x_holdfast_session_key="a")
    path = "/api/sessions/a/messages?limit=4"
    first = await got(server, path)
    assert ([each["seq"] for each in first["data"]], first["has_more"]) == ([1, 2, 3, 4], True)
    rest = await got(server, f"{path}&after={first['last_id']}")
    assert ([each["seq"] for each in rest["data"]], rest["has_more"]) == ([5, 6], False)
    assert (await got(server, f"{path}&after={rest['last_id']}"))["data"] == []
    elsewhere = (await server.say())["holdfast"]["conversation_id"].replace("conv_", "msg_") + "_1"
    for unknown in (elsewhere, "msg_x", "nonsense", f"{first['last_id']}x"):
        await refused(server, "GET", f"{path}&after={unknown}", 404, "not_found")
    await refused(server, "GET", f"{path}&scope=context", 400, "invalid_value")


async def test_the_pages_of_a_conversation_go_on_past_the_session_that_names_it(server: Running) -> None:
    first = (await server.say("one", x_holdfast_session_key="a"))["holdfast"]["session_id"]
    for number in range(3):
        await asked(server, "POST", "/api/sessions/a/end", json={"reason": "new"})
        await server.say(str(number), x_holdfast_session_key="a")
    path, seen = f"/api/sessions/{first}/messages?scope=conversation&limit=3", list[int]()
    page = await got(server, path)
    while page["data"] and len(seen) < 20:
        seen += [each["seq"] for each in page["data"]]
        page = await got(server, f"{path}&after={page['last_id']}")
    assert seen == list(range(1, 9))
    far = f"{(await got(server, path))['first_id']}{'0' * 30}"
    assert (await got(server, f"{path}&after={far}"))["data"] == []


async def test_turns_are_those_of_the_session_or_the_conversation_newest_first(server: Running) -> None:
    first = (await server.say("one", x_holdfast_session_key="a"))["holdfast"]
    await asked(server, "POST", "/api/sessions/a/end", json={"reason": "new"})
    second = (await server.say("two", x_holdfast_session_key="a"))["holdfast"]
    both = [second["turn_id"], first["turn_id"]]
    assert ids(await got(server, "/api/sessions/a/turns")) == both
    assert ids(await got(server, f"/api/sessions/{first['session_id']}/turns")) == both[1:]
    page = await got(server, "/api/sessions/a/turns?limit=1")
    assert (ids(page), page["has_more"]) == (both[:1], True)
    rest = await got(server, f"/api/sessions/a/turns?limit=1&after={page['last_id']}")
    assert (ids(rest), rest["has_more"]) == (both[1:], False)
    turn = await got(server, f"/api/turns/{first['turn_id']}")
    assert (turn["status"], turn["usage"]) == ("completed", {"input_tokens": 1, "output_tokens": 3})
    await refused(server, "GET", "/api/turns/turn_" + "0" * 32, 404, "not_found")


async def test_a_lineage_shows_the_line_and_its_forks(server: Running) -> None:
    first = (await server.say("one", x_holdfast_session_key="a"))["holdfast"]["session_id"]
    await asked(server, "POST", f"/api/sessions/{first}/end")
    resumed = await asked(server, "POST", f"/api/sessions/{first}/resume")
    forked = await asked(server, "POST", f"/api/sessions/{first}/fork", json={"key": "b"})
    lineage = await got(server, "/api/sessions/a/lineage")
    assert [(each["id"], each["edge"]) for each in lineage["data"]] == [
        (first, None),
        (resumed["id"], "resume"),
    ]
    (fork,) = lineage["forks"]
    assert (fork["forked_from"], ids(fork)) == (first, [forked["id"]])


# --- acting --------------------------------------------------------------------------------------------


async def test_a_session_is_ended_once_with_a_reason_a_person_may_give(server: Running) -> None:
    session = (await server.say(x_holdfast_session_key="a"))["holdfast"]["session_id"]
    for reason in ("reaped", "compaction", "", 5, ["closed"]):
        await refused(server, "POST", "/api/sessions/a/end", 400, "invalid_value", json={"reason": reason})
    assert (await got(server, "/api/sessions/a"))["state"] == "idle"
    ended = await asked(server, "POST", "/api/sessions/a/end", json={"reason": "completed"})
    assert (ended["id"], ended["state"], ended["end_reason"]) == (session, "ended", "completed")
    again = await asked(server, "POST", "/api/sessions/a/end", json={"reason": "new"})
    assert again == ended
    error = await refused(server, "POST", "/api/sessions/a/end", 400, "invalid_value", json={"raeson": "new"})
    assert "raeson" in error["message"]


async def test_resuming_an_older_session_ends_the_newer_and_sees_what_it_saw(server: Running) -> None:
    first = (await server.say("my name is Ada", x_holdfast_session_key="a"))["holdfast"]["session_id"]
    await asked(server, "POST", f"/api/sessions/{first}/end", json={"reason": "new"})
    second = (await server.say("afresh", x_holdfast_session_key="a"))["holdfast"]["session_id"]
    resumed = await asked(server, "POST", f"/api/sessions/{first}/resume")
    assert (resumed["edge"], resumed["parent_id"], resumed["attached"]) == ("resume", first, False)
    assert (await got(server, f"/api/sessions/{second}"))["end_reason"] == "new"
    context = await got(server, f"/api/sessions/{resumed['id']}/messages?scope=context")
    assert [message["content"] for message in context["data"]] == [
        "my name is Ada",
        "You said: my name is Ada",
    ]
    assert (await asked(server, "POST", f"/api/sessions/{resumed['id']}/resume"))["id"] == resumed["id"]


async def test_a_fork_begins_with_a_copy_up_to_a_message(server: Running) -> None:
    await server.say("one", x_holdfast_session_key="a")
    await server.say("two", x_holdfast_session_key="a")
    forked = await asked(server, "POST", "/api/sessions/a/fork", json={"up_to": 2, "key": "b"})
    assert (forked["edge"], forked["key"], forked["message_count"]) == ("fork", "b", 2)
    assert forked["conversation_id"] != (await got(server, "/api/sessions/a"))["conversation_id"]
    for wrong in ({"up_to": "2"}, {"up_to": True}, {"up_to": 2**70}, {"up_to": -1}, {"key": ""}, {"key": 5}):
        await refused(server, "POST", "/api/sessions/a/fork", 400, "invalid_value", json=wrong)
    await refused(server, "POST", "/api/sessions/a/fork", 409, "conflict", json={"key": "b"})
    assert len((await got(server, "/api/sessions"))["data"]) == 2


async def test_cancelling_ends_the_running_turn_and_its_listener_is_told(start_server: StartServer) -> None:
    waiting = Waiting()
    server = await start_server(waiting.model())
    task = await speaking(server, waiting, "a")
    turn = await asked(server, "POST", "/api/sessions/a/cancel")
    assert turn["status"] == "cancelled"
    response = await task
    assert (response.status_code, response.json()["error"]["code"]) == (409, "turn_cancelled")
    *_, said = (await got(server, "/api/sessions/a/messages"))["data"]
    assert (said["content"], said["status"]) == ("Once upon", "interrupted")
    nothing = await asked(server, "POST", "/api/sessions/a/cancel")
    assert (nothing["object"], nothing["id"]) == ("session.not_cancelled", turn["session_id"])
    assert (nothing["cancelled"], nothing["withdrawn"]) == (False, 0)
    assert nothing["message"] == "no turn is running in this session"
    assert (await asked(server, "POST", f"/api/sessions/{turn['id']}/cancel"))["status"] == "cancelled"


async def test_what_needs_a_free_conversation_waits_then_says_that_it_is_busy(
    start_server: StartServer,
) -> None:
    waiting = Waiting()
    server = await start_server(waiting.model(), server={"busy_wait_seconds": 0.05})
    task = await speaking(server, waiting, "a")
    error = await refused(server, "POST", "/api/sessions/a/end", 409, "conversation_locked")
    assert "busy" in error["message"]
    waiting.may_go_on.set()
    assert (await task).status_code == 200
    assert (await asked(server, "POST", "/api/sessions/a/end"))["state"] == "ended"


async def test_deleting_cancels_what_runs_and_leaves_nothing(start_server: StartServer) -> None:
    waiting = Waiting()
    server = await start_server(waiting.model())
    task = await speaking(server, waiting, "a", "a secret word")
    session = await got(server, "/api/sessions/a")
    told = await asked(server, "DELETE", f"/api/sessions/{session['id']}")
    assert told == {
        "id": session["id"],
        "object": "session.deleted",
        "conversation_id": session["conversation_id"],
        "deleted": True,
    }
    response = await task
    assert (response.status_code, response.json()["error"]["code"]) == (409, "turn_cancelled")
    for name in (session["id"], session["conversation_id"], "a", session["tip_id"]):
        await refused(server, "GET", f"/api/sessions/{name}", 404, "not_found")
    assert (await got(server, "/api/search?q=secret"))["data"] == []
    assert server.services.runner.running == {}


async def test_an_unknown_session_is_a_404_everywhere(server: Running) -> None:
    for method, path in (
        *(("GET", path) for path in ("", "/messages", "/turns", "/lineage")),
        *(("POST", path) for path in ("/end", "/cancel", "/resume", "/fork")),
        ("DELETE", ""),
    ):
        for name in (UNKNOWN, "nobody:knows"):
            await refused(server, method, f"/api/sessions/{name}{path}", 404, "not_found")


# --- taking a turn up again -----------------------------------------------------------------------------


async def test_an_interrupted_turn_is_taken_up_by_hand(start_server: StartServer) -> None:
    waiting = Waiting()
    server = await start_server(waiting.model(), agent={"system_prompt": "be brief"})
    task = await speaking(server, waiting, "a")
    (turn_id,) = server.services.runner.running
    await server.services.runner.stop(None, turn_id, TurnStatus.INTERRUPTED, "a test")
    assert (await task).status_code == 409
    waiting.may_go_on.set()
    turn = await asked(server, "POST", f"/api/turns/{turn_id}/retry")
    assert (turn["id"], turn["status"]) == (turn_id, "completed")
    context = await got(server, "/api/sessions/a/messages?scope=context")
    assert [message["content"] for message in context["data"]] == ["hello", "Once upon a time"]
    sent = server.model.requests[-1].messages
    assert sent.startswith(b'[{"role":"system","content":"be brief"},')
    error = await refused(server, "POST", f"/api/turns/{turn_id}/retry", 409, "conflict")
    assert "completed" in error["message"]


async def test_a_turn_that_is_no_longer_the_newest_is_not_taken_up(server: Running) -> None:
    server.model._script = [ModelError("broken", 500), "fine"]
    failed = await server.client.post(
        "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "hello"}]},
        headers={"x-holdfast-session-key": "a"},
    )
    assert failed.status_code == 502
    (turn,) = (await got(server, "/api/sessions/a/turns"))["data"]
    assert (turn["status"], turn["error"]) == ("failed", "broken")
    await server.say("again", x_holdfast_session_key="a")
    await refused(server, "POST", f"/api/turns/{turn['id']}/retry", 409, "turn_superseded")


async def test_a_client_that_repeats_its_request_joins_a_retry_by_hand(start_server: StartServer) -> None:
    waiting = Waiting()
    server = await start_server(waiting.model())
    body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
    headers = {"x-holdfast-session-key": "a", "idempotency-key": "m1"}

    async def listen() -> str:
        response = await server.client.post("/v1/chat/completions", json=body, headers=headers)
        return response.text

    first = asyncio.create_task(listen())
    async with asyncio.timeout(60):
        await waiting.speaks.wait()
    (turn_id,) = server.services.runner.running
    await server.services.runner.stop(None, turn_id, TurnStatus.INTERRUPTED, "a test")
    assert "turn_interrupted" in await first
    waiting.speaks.clear()
    by_hand = asyncio.create_task(asked(server, "POST", f"/api/turns/{turn_id}/retry"))
    async with asyncio.timeout(60):
        await waiting.speaks.wait()
    joined = asyncio.create_task(listen())
    await asyncio.sleep(0.05)
    waiting.may_go_on.set()
    assert " a time" in await joined
    assert (await by_hand)["status"] == "completed"
    assert len((await got(server, "/api/sessions/a/turns"))["data"]) == 1


async def test_a_response_is_taken_up_by_hand_with_what_its_object_repeats(start_server: StartServer) -> None:
    waiting = Waiting()
    server = await start_server(waiting.model())
    body = {"input": "hello", "instructions": "be brief", "temperature": 0.5, "model": "scripted"}
    task = asyncio.create_task(server.client.post("/v1/responses", json=body))
    async with asyncio.timeout(60):
        await waiting.speaks.wait()
    ((turn_id, running),) = server.services.runner.running.items()
    await server.services.runner.stop(None, turn_id, TurnStatus.INTERRUPTED, "a test")
    await task
    waiting.may_go_on.set()
    turn = await asked(server, "POST", f"/api/turns/{turn_id}/retry")
    assert (turn["status"], turn["response_id"]) == ("completed", running.turn.response_id)
    response = (await server.client.get(f"/v1/responses/{turn['response_id']}")).json()
    assert (response["status"], response["output"][-1]["content"][0]["text"]) == (
        "completed",
        "Once upon a time",
    )
    sent = server.model.requests[-1]
    assert sent.options["temperature"] == 0.5
    assert b"be brief" in sent.messages
    stream = await server.client.get(f"/v1/responses/{turn['response_id']}?stream=true")
    assert "response.completed" in stream.text


# --- rewinding -------------------------------------------------------------------------------------------


async def _context(server: Running, name: str) -> list[str]:
    return [m["content"] for m in (await got(server, f"/api/sessions/{name}/messages?scope=context"))["data"]]


async def test_a_session_is_rewound_to_a_message_or_turn_and_forward_again(server: Running) -> None:
    first = (await server.say("one", x_holdfast_session_key="cli:ada"))["holdfast"]
    await server.say("two", x_holdfast_session_key="cli:ada")
    name = first["session_id"]
    whole = await _context(server, name)
    assert len(whole) == 4
    shown = await asked(server, "POST", f"/api/sessions/{name}/rewind", json={"to": first["turn_id"]})
    assert shown["id"] == name
    assert await _context(server, name) == whole[:2]
    messages = (await got(server, f"/api/sessions/{name}/messages?scope=conversation"))["data"]
    assert len(messages) == 4
    await asked(server, "POST", f"/api/sessions/{name}/rewind", json={"to": messages[-1]["id"]})
    assert await _context(server, name) == whole
    await asked(server, "POST", f"/api/sessions/{name}/rewind", json={"to": messages[0]["id"]})
    assert await _context(server, name) == whole[:1]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"to": None}, 400),
        ({"to": ""}, 400),
        ({"to": -1}, 404),
        ({"to": True}, 400),
        ({"to": []}, 400),
        ({"to": "nonsense"}, 400),
        ({"to": 2, "more": 1}, 400),
        ({"to": 99}, 404),
        ({"to": "turn_" + "0" * 32}, 404),
        ({"to": "msg_" + "0" * 32 + "_1"}, 404),
        ({"to": "msg_unknown"}, 404),
        ({"to": "msg_" + "0" * 32 + "_" + "9" * 5_000}, 404),
    ],
)
async def test_a_rewind_to_nothing_is_refused(server: Running, body: dict[str, object], status: int) -> None:
    name = (await server.say("one", x_holdfast_session_key="cli:ada"))["holdfast"]["session_id"]
    answer = await server.client.post(f"/api/sessions/{name}/rewind", json=body)
    assert answer.status_code == status, answer.text
    assert len(await _context(server, name)) == 2


async def test_a_running_turn_is_not_rewound(start_server: StartServer) -> None:
    waiting = Waiting()
    server = await start_server(waiting.model())
    task = await speaking(server, waiting, "cli:ada")
    await refused(server, "POST", "/api/sessions/cli:ada/rewind", 409, "conversation_locked", json={"to": 0})
    waiting.may_go_on.set()
    assert (await task).status_code == 200


async def test_a_response_continues_after_a_rewind_to_it_and_not_from_one_that_was_left(
    server: Running,
) -> None:
    async def respond(text: str, previous: str | None = None) -> Any:
        body: dict[str, Any] = {"input": text, "previous_response_id": previous}
        return await asked(server, "POST", "/v1/responses", json=body)

    first = await respond("one")
    second = await respond("two", first["id"])
    conversation = second["holdfast"]["conversation_id"]
    await asked(
        server, "POST", f"/api/sessions/{conversation}/rewind", json={"to": first["holdfast"]["turn_id"]}
    )
    third = await respond("three", first["id"])
    assert third["holdfast"]["conversation_id"] == conversation
    refusal = await server.client.post(
        "/v1/responses", json={"input": "x", "previous_response_id": second["id"]}
    )
    assert refusal.status_code == 409
    assert "rewind" in refusal.json()["error"]["message"]
