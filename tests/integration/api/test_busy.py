"""A request that finds its conversation busy: it waits, is queued, steers, interrupts or is rejected."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from holdfast.domain.api_keys import Scope, new_key
from holdfast.models.base import Purpose
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.agents import authenticator
from tests.integration.api.chatting import call, until
from tests.integration.api.conftest import Running, StartServer
from tests.integration.api.operating import asked, got, refused
from tests.integration.api.responding import events_of

KEY = "cli:ada"
UNKNOWN = "turn_" + "0" * 32


class Slow:
    """A model that answers "to TEXT", each time when the test says so."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[list[dict[str, Any]]] = asyncio.Queue()
        self._may = asyncio.Semaphore(0)

    def model(self) -> ScriptedModel:
        return ScriptedModel(self._answer)

    def go_on(self, times: int = 1) -> None:
        for _ in range(times):
            self._may.release()

    def _answer(self, messages: list[dict[str, Any]], purpose: Purpose) -> AsyncIterator[str]:
        return self._words(messages)

    async def _words(self, messages: list[dict[str, Any]]) -> AsyncIterator[str]:
        self.asked.put_nowait(messages)
        yield "to "
        await self._may.acquire()
        yield str(messages[-1]["content"])

    async def has_been_asked(self) -> list[str]:
        """What the model was given, once it is asked."""
        async with asyncio.timeout(60):
            return [str(message["content"]) for message in await self.asked.get()]


def body(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


async def chat(
    server: Running, text: str, busy: str | None = None, *, key: str = KEY, **more: Any
) -> httpx.Response:
    headers = {"x-holdfast-session-key": key, **({"x-holdfast-when-busy": busy} if busy else {})}
    headers.update(more.pop("headers", {}))
    return await server.client.post(
        "/v1/chat/completions", json=body(text, **more), headers=headers, timeout=60
    )


async def busy_server(start_server: StartServer, slow: Slow, **settings: Any) -> tuple[Running, Any]:
    """A server with a turn that runs."""
    server = await start_server(slow.model(), **settings)
    task = asyncio.create_task(chat(server, "one"))
    assert await slow.has_been_asked() == ["one"]
    return server, task


async def is_in(server: Running, turn_id: str, status: str) -> None:
    async def seen() -> bool:
        return bool((await got(server, f"/api/turns/{turn_id}"))["status"] == status)

    await until(seen, f"{turn_id} is {status}")


async def test_reject_is_409_at_once(start_server: StartServer) -> None:
    slow = Slow()
    server, task = await busy_server(start_server, slow)
    answer = await chat(server, "two", "reject")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conversation_locked")
    slow.go_on()
    assert (await task).status_code == 200
    slow.go_on()
    assert (await chat(server, "two", "reject")).status_code == 200


@pytest.mark.parametrize("word", ["later", "queue,steer", "wait now"])
async def test_another_word_is_refused(server: Running, word: str) -> None:
    answer = await chat(server, "one", headers={"x-holdfast-when-busy": word})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")


async def test_queued_messages_are_answered_in_order(start_server: StartServer) -> None:
    slow = Slow()
    server, task = await busy_server(start_server, slow)
    two, three = await chat(server, "two", "queue"), await chat(server, "three", "QUEUE")
    assert (two.status_code, three.status_code) == (202, 202)
    places = [
        (each.json()["object"], each.json()["status"], each.json()["position"]) for each in (two, three)
    ]
    assert places == [("turn", "queued", 1), ("turn", "queued", 2)]
    assert two.headers["x-holdfast-turn-id"] == two.json()["id"]
    queue = await got(server, f"/api/sessions/{KEY}/queue")
    assert [each["id"] for each in queue["data"]] == [two.json()["id"], three.json()["id"]]
    assert queue["data"][1]["behind"] == two.json()["id"]
    assert queue["data"][0]["messages"] == [{"role": "user", "content": "two"}]
    assert (await got(server, f"/api/turns/{two.json()['id']}"))["status"] == "queued"
    slow.go_on(3)
    assert (await task).status_code == 200
    await is_in(server, three.json()["id"], "completed")
    messages = (await got(server, f"/api/sessions/{KEY}/messages"))["data"]
    assert [m["content"] for m in messages] == ["one", "to one", "two", "to two", "three", "to three"]
    assert (await got(server, f"/api/sessions/{KEY}/queue"))["data"] == []


async def test_a_queued_stream_begins_when_its_time_comes(start_server: StartServer) -> None:
    slow = Slow()
    server, task = await busy_server(start_server, slow)
    stream = asyncio.create_task(chat(server, "two", "queue", stream=True))
    await until(server.store.count_queued, "it is queued")
    slow.go_on(2)
    assert (await task).status_code == 200
    answer = await stream
    assert (answer.status_code, answer.headers["content-type"][:17]) == (200, "text/event-stream")
    chunks = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert chunks[-1] == "[DONE]"
    said = [msgspec.json.decode(chunk)["choices"][0]["delta"].get("content") or "" for chunk in chunks[:-1]]
    assert "".join(said) == "to two"


async def test_a_queued_stream_keeps_its_client_waiting_with_comments(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.server import repeated, sse

    monkeypatch.setattr(repeated, "HEADERS_SECONDS", 0.05)
    monkeypatch.setattr(repeated, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(sse, "KEEPALIVE_SECONDS", 0.01)
    slow = Slow()
    server, task = await busy_server(start_server, slow)
    headers = {"x-holdfast-session-key": KEY, "x-holdfast-when-busy": "queue"}
    async with server.client.stream(
        "POST", "/v1/chat/completions", json=body("two", stream=True), headers=headers
    ) as response:
        assert response.status_code == 200
        assert response.headers["x-holdfast-turn-id"].startswith("turn_")
        lines = response.aiter_lines()
        assert await anext(lines) == ": keepalive"
        slow.go_on(2)
        rest = [line async for line in lines]
    assert rest[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line[6:]) for line in rest if line.startswith("data: {")]
    said = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    assert said == "to two"
    await task


async def test_a_client_that_leaves_its_queued_stream_leaves_the_turn(start_server: StartServer) -> None:
    slow = Slow()
    server, task = await busy_server(start_server, slow)
    stream = asyncio.create_task(chat(server, "two", "queue", stream=True))
    await until(server.store.count_queued, "it is queued")
    (queued,) = (await got(server, f"/api/sessions/{KEY}/queue"))["data"]
    stream.cancel()
    slow.go_on(2)
    await task
    await is_in(server, queued["id"], "completed")


async def test_a_queue_is_bounded_and_its_end_is_named(start_server: StartServer) -> None:
    slow = Slow()
    server, task = await busy_server(start_server, slow, turns={"queue": 2, "when_busy": "queue"})
    for text in ("two", "three"):
        assert (await chat(server, text)).status_code == 202
    answer = await chat(server, "four")
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
    slow.go_on(3)
    await task


async def test_a_queued_turn_is_edited_and_withdrawn(start_server: StartServer) -> None:
    slow = Slow()
    server, task = await busy_server(start_server, slow)
    two, three = [(await chat(server, text, "queue")).json()["id"] for text in ("two", "three")]
    edited = await asked(server, "PATCH", f"/api/turns/{two}", json={"content": "two, but better"})
    assert (edited["position"], edited["messages"][0]["content"]) == (1, "two, but better")
    wrong: dict[str, Any]
    for wrong in (
        {},
        {"content": None},
        {"content": 7},
        {"messages": []},
        {"messages": ["x"]},
        {"text": "x"},
    ):
        await refused(server, "PATCH", f"/api/turns/{two}", 400, "invalid_value", json=wrong)
    both = {"content": "x", "messages": [{"role": "user", "content": "y"}]}
    await refused(server, "PATCH", f"/api/turns/{two}", 400, "invalid_value", json=both)
    foreign = {"messages": [{"role": "assistant", "content": "y"}]}
    await refused(server, "PATCH", f"/api/turns/{two}", 400, "invalid_value", json=foreign)
    gone = await asked(server, "DELETE", f"/api/turns/{three}")
    assert (gone["id"], gone["status"]) == (three, "cancelled")
    for turn, status, code in ((three, 409, "conflict"), (UNKNOWN, 404, "not_found")):
        await refused(server, "DELETE", f"/api/turns/{turn}", status, code)
        await refused(server, "PATCH", f"/api/turns/{turn}", status, code, json={"content": "x"})
    slow.go_on(2)
    await task
    await is_in(server, two, "completed")
    assert await slow.has_been_asked() == ["one", "to one", "two, but better"]
    await refused(server, "DELETE", f"/api/turns/{two}", 409, "conflict")


async def test_cancelling_the_session_withdraws_its_queue(start_server: StartServer) -> None:
    slow = Slow()
    server, task = await busy_server(start_server, slow)
    two = (await chat(server, "two", "queue")).json()["id"]
    cancelled = await asked(server, "POST", f"/api/sessions/{KEY}/cancel")
    assert cancelled["status"] == "cancelled"
    assert (await got(server, f"/api/turns/{two}"))["status"] == "cancelled"
    assert (await task).status_code == 409


async def test_messages_behind_one_turn_become_one_turn(start_server: StartServer) -> None:
    slow = Slow()
    server, task = await busy_server(start_server, slow, turns={"collect": True})
    two, three = [(await chat(server, text, "queue")).json()["id"] for text in ("two", "three")]
    slow.go_on(2)
    await task
    assert await slow.has_been_asked() == ["one", "to one", "two", "three"]
    await is_in(server, two, "completed")
    await is_in(server, three, "completed")
    assert slow.asked.empty()


@pytest.mark.parametrize("busy", ["queue", "steer"])
async def test_the_same_words_again_are_a_message_of_their_own(start_server: StartServer, busy: str) -> None:
    slow = Slow()
    server, task = await busy_server(start_server, slow)
    again, once_more = [await chat(server, "one", busy) for _ in range(2)]
    assert (again.status_code, once_more.status_code) == (202, 202), again.text
    queue = await got(server, f"/api/sessions/{KEY}/queue")
    assert [each["id"] for each in queue["data"]] == [again.json()["id"], once_more.json()["id"]]
    counted = await chat(server, "one", busy, headers={"x-stainless-retry-count": "1"})
    assert counted.json()["id"] == once_more.json()["id"], "a retry by its own count is no message"
    slow.go_on(3)
    assert (await task).status_code == 200
    await is_in(server, once_more.json()["id"], "completed")
    messages = (await got(server, f"/api/sessions/{KEY}/messages"))["data"]
    assert [m["content"] for m in messages] == ["one", "to one"] * 3


async def test_a_key_stands_for_its_queued_turn_and_then_for_its_answer(start_server: StartServer) -> None:
    slow = Slow()
    server, task = await busy_server(start_server, slow)
    once = {"idempotency-key": "once"}
    first, again = [await chat(server, "two", "queue", headers=once) for _ in range(2)]
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json() == again.json()
    slow.go_on(2)
    await task
    await is_in(server, first.json()["id"], "completed")
    answer = await chat(server, "two", "queue", headers=once)
    assert (answer.status_code, answer.json()["choices"][0]["message"]["content"]) == (200, "to two")


async def test_a_background_response_is_queued(start_server: StartServer) -> None:
    slow = Slow()
    server, task = await busy_server(start_server, slow)
    headers = {"x-holdfast-session-key": KEY, "x-holdfast-when-busy": "queue"}
    answer = await server.client.post(
        "/v1/responses", json={"input": "two", "background": True}, headers=headers
    )
    assert (answer.status_code, answer.json()["status"]) == (200, "queued")
    plain = await server.client.post("/v1/responses", json={"input": "three"}, headers=headers)
    assert (plain.status_code, plain.json()["object"], plain.json()["position"]) == (202, "turn", 2)
    withdrawn = await server.client.post(
        "/v1/responses", json={"input": "four", "background": True}, headers=headers
    )
    path = f"/v1/responses/{withdrawn.json()['id']}"
    assert (await server.client.post(f"{path}/cancel")).json()["status"] == "cancelled"
    slow.go_on(3)
    await task

    async def done() -> bool:
        found = (await server.client.get(f"/v1/responses/{answer.json()['id']}")).json()
        return bool(found["status"] == "completed" and found["output"])

    await until(done, "it is answered")


async def test_nothing_follows_a_response_that_was_withdrawn_from_its_queue(
    start_server: StartServer,
) -> None:
    slow = Slow()
    server, task = await busy_server(start_server, slow)
    named = {"x-holdfast-session-key": KEY, "x-holdfast-when-busy": "queue"}
    queued = await server.client.post(
        "/v1/responses", json={"input": "two", "background": True}, headers=named
    )
    after = {"input": "three", "previous_response_id": queued.json()["id"]}
    waits = asyncio.create_task(server.client.post("/v1/responses", json=after))
    await until(lambda: len(server.services.runner._beginning) == 1, "one that follows it waits")
    cancelled = await server.client.post(f"/v1/responses/{queued.json()['id']}/cancel")
    assert cancelled.json()["status"] == "cancelled"
    slow.go_on()
    assert (await task).status_code == 200
    for answer in (await waits, await server.client.post("/v1/responses", json=after)):
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"] == "previous_response_id"
        assert queued.json()["conversation"]["id"] in error["message"]


async def test_a_streamed_response_is_queued(start_server: StartServer) -> None:
    slow = Slow()
    server, task = await busy_server(start_server, slow)
    headers = {"x-holdfast-session-key": KEY, "x-holdfast-when-busy": "queue"}
    stream = asyncio.create_task(
        server.client.post(
            "/v1/responses", json={"input": "two", "stream": True}, headers=headers, timeout=60
        )
    )
    await until(server.store.count_queued, "it is queued")
    slow.go_on(2)
    await task
    text = (await stream).text
    assert "event: response.completed" in text
    assert "to two" in text


async def test_a_message_through_anthropics_api_is_queued(start_server: StartServer) -> None:
    slow = Slow()
    server, task = await busy_server(start_server, slow)
    headers = {"x-holdfast-session-key": KEY, "x-holdfast-when-busy": "queue"}
    asked_for = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "two"}]}
    answer = await server.client.post("/v1/messages", json=asked_for, headers=headers)
    assert (answer.status_code, answer.json()["status"]) == (202, "queued")
    slow.go_on(2)
    await task
    await is_in(server, answer.json()["id"], "completed")


def runs(command: str) -> dict[str, Any]:
    arguments = msgspec.json.encode({"command": command}).decode()
    return {"content": None, "tool_calls": [call("c", "terminal", arguments)]}


async def test_a_steering_message_joins_the_running_turn_after_a_tool(
    start_server: StartServer, tmp_path: Any
) -> None:
    gate = tmp_path / "gate"
    model = ScriptedModel([runs(f"while [ ! -e {gate} ]; do sleep 0.05; done"), "done", "later"])
    server = await start_server(model, agent={"tools": ["terminal"]})
    key, token = new_key("ada", Scope.CHAT, ("terminal",), server.store.now())
    await server.store.add_key(key, token.hash)
    client = await server.with_token(str(token))
    headers = {"x-holdfast-session-key": KEY}
    task = asyncio.create_task(
        client.post("/v1/chat/completions", json=body("one"), headers=headers, timeout=60)
    )
    await until(lambda: _runs_tool(server), "the tool runs")
    later = await client.post(
        "/v1/chat/completions", json=body("later"), headers={**headers, "x-holdfast-when-busy": "queue"}
    )
    steer = await client.post(
        "/v1/chat/completions",
        json=body("no, the other"),
        headers={**headers, "x-holdfast-when-busy": "steer"},
    )
    assert (steer.status_code, steer.json()["status"]) == (202, "queued")
    gate.touch()
    answer = (await task).json()
    assert answer["choices"][0]["message"]["content"] == "done"
    given = msgspec.json.decode(model.requests[1].messages)
    assert [message["role"] for message in given] == ["user", "assistant", "tool", "user"]
    assert given[-1]["content"] == "no, the other"
    turn = (await client.get(f"/api/turns/{steer.json()['id']}")).json()
    assert turn["status"] == "completed"

    async def answered() -> bool:
        found = (await client.get(f"/api/turns/{later.json()['id']}")).json()
        return bool(found["status"] == "completed")

    await until(answered, "it is answered")


@pytest.mark.parametrize("surface", ["/v1/chat/completions", "/v1/responses"])
async def test_a_steering_response_joins_the_running_turn_and_keeps_its_own_answer(
    start_server: StartServer, tmp_path: Any, surface: str
) -> None:
    gate = tmp_path / "gate"
    model = ScriptedModel([runs(f"while [ ! -e {gate} ]; do sleep 0.05; done"), "the other, then", "later"])
    server = await start_server(model, agent={"tools": ["terminal"]})
    key, token = new_key("ada", Scope.CHAT, ("terminal",), server.store.now())
    await server.store.add_key(key, token.hash)
    client = await server.with_token(str(token))
    headers = {"x-holdfast-session-key": KEY}
    first = body("one") if "chat" in surface else {"input": "one"}
    task = asyncio.create_task(client.post(surface, json=first, headers=headers, timeout=60))
    await until(lambda: _runs_tool(server), "the tool runs")
    steers = {**headers, "x-holdfast-when-busy": "steer", "idempotency-key": "s1"}
    asked_for = {"input": "no, the other", "background": True}
    steer = (await client.post("/v1/responses", json=asked_for, headers=steers)).json()
    assert steer["status"] == "queued"
    gate.touch()
    answer = (await task).json()
    given = msgspec.json.decode(model.requests[1].messages)
    assert [message["role"] for message in given] == ["user", "assistant", "tool", "user"]
    if "chat" not in surface:
        own = (await client.get(f"/v1/responses/{answer['id']}")).json()
        for each in (answer, own):
            (said,) = each["output"]  # not the message that has joined
            assert (said["role"], said["content"][0]["text"]) == ("assistant", "the other, then")
    found = (await client.get(f"/v1/responses/{steer['id']}")).json()
    assert (found["id"], found["status"]) == (steer["id"], "completed")
    assert [item["content"][0]["text"] for item in found["output"]] == ["the other, then"]
    items = (await client.get(f"/v1/responses/{steer['id']}/input_items")).json()["data"]
    assert [item["content"][0]["text"] for item in items] == ["no, the other"]
    again = (await client.post("/v1/responses", json=asked_for, headers=steers)).json()
    assert (again["id"], again["output"]) == (steer["id"], found["output"])
    async with client.stream("GET", f"/v1/responses/{steer['id']}?stream=true") as answered:
        events = [event async for event in events_of(answered)]
    assert {each["response"]["id"] for each in events if "response" in each} == {steer["id"]}
    assert events[-1]["type"] == "response.completed"
    follows = {"input": "and now", "previous_response_id": steer["id"]}
    later = (await client.post("/v1/responses", json=follows)).json()
    assert later["holdfast"]["conversation_id"] == found["holdfast"]["conversation_id"]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_steering_stream_gets_the_answer_of_the_turn_that_it_joined(
    start_server: StartServer, tmp_path: Any, streams: bool
) -> None:
    """Whatever the other client asked for: one body, or the stream of another API."""
    gate = tmp_path / "gate"
    model = ScriptedModel([runs(f"while [ ! -e {gate} ]; do sleep 0.05; done"), "the other, then"])
    server = await start_server(model, agent={"tools": ["terminal"]})
    key, token = new_key("ada", Scope.CHAT, ("terminal",), server.store.now())
    await server.store.add_key(key, token.hash)
    client = await server.with_token(str(token))
    headers = {"x-holdfast-session-key": KEY}
    first = {"input": "one", "stream": True} if streams else body("one")
    surface = "/v1/responses" if streams else "/v1/chat/completions"
    task = asyncio.create_task(client.post(surface, json=first, headers=headers, timeout=60))
    await until(lambda: _runs_tool(server), "the tool runs")
    steers = {**headers, "x-holdfast-when-busy": "steer"}
    asked_for = {**body("no, the other"), "stream": True}
    steer = asyncio.create_task(
        client.post("/v1/chat/completions", json=asked_for, headers=steers, timeout=60)
    )
    await until(lambda: _is_queued(server), "it is queued")
    gate.touch()
    await task
    text = (await steer).text
    assert "chat.completion.chunk" in text
    assert "response." not in text
    assert "the other, then" in text


async def _is_queued(server: Running) -> bool:
    return await server.store.count_queued() == 1


async def _runs_tool(server: Running) -> bool:
    return any(turn.doing == "tool:terminal" for turn in server.services.runner.running.values())


async def test_a_steering_message_without_a_next_step_is_queued(start_server: StartServer) -> None:
    slow = Slow()
    server, task = await busy_server(start_server, slow)
    two = (await chat(server, "two", "steer")).json()
    slow.go_on(2)
    assert (await task).json()["choices"][0]["message"]["content"] == "to one"
    await is_in(server, two["id"], "completed")


async def test_a_revoked_key_fails_its_queued_turns_and_holds_nothing_up(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authenticator, "RECHECK_SECONDS", 0.0)
    slow = Slow()
    server = await start_server(slow.model())
    key, token = new_key("ada", Scope.CHAT, (), server.store.now())
    await server.store.add_key(key, token.hash)
    kept, kept_token = new_key("ada", Scope.CHAT, (), server.store.now())
    await server.store.add_key(kept, kept_token.hash)
    revoked, other = await server.with_token(str(token)), await server.with_token(str(kept_token))
    headers = {"x-holdfast-session-key": KEY}
    queueing = {**headers, "x-holdfast-when-busy": "queue"}
    url = "/v1/chat/completions"
    task = asyncio.create_task(other.post(url, json=body("one"), headers=headers, timeout=60))
    await slow.has_been_asked()
    two = (await revoked.post(url, json=body("two"), headers=queueing)).json()["id"]
    three = (await other.post(url, json=body("three"), headers=queueing)).json()["id"]
    await server.store.revoke_key(key.id, "ada")
    slow.go_on(2)
    await task

    async def ended() -> bool:
        found = (await other.get(f"/api/turns/{three}")).json()
        return bool(found["status"] == "completed")

    await until(ended, "it is answered")
    assert (await other.get(f"/api/turns/{two}")).json()["status"] == "failed"


async def test_activity_and_metrics_tell_what_is_queued(start_server: StartServer) -> None:
    slow = Slow()
    server, task = await busy_server(start_server, slow)
    for text in ("two", "three"):
        await chat(server, text, "queue")
    (living,) = (await got(server, "/api/activity"))["data"]
    assert (living["doing"], living["queued"]) == ("model", 2)
    assert "holdfast_turns_queued 2.0" in (await server.client.get("/metrics")).text
    slow.go_on(3)
    await task

    async def empty() -> bool:
        return "holdfast_queued_turns_begun_total 2.0" in (await server.client.get("/metrics")).text

    await until(empty, "both have begun")
    assert "holdfast_turns_queued 0.0" in (await server.client.get("/metrics")).text
