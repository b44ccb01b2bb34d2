"""What one API key may hold at once: streams, turns, requests, bytes; and how much one request may bring."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any, cast

import httpx
import pytest

from holdfast.domain.contexts import Context
from holdfast.domain.new_messages import MOST_DIGITS, long_number
from holdfast.errors import ModelError
from holdfast.models.base import Purpose
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.turns.agent_loop import AgentLoop
from holdfast.server import bodies, limits
from holdfast.server.bodies import check_values
from tests.integration.api.chatting import until, user
from tests.integration.api.conftest import Running, StartServer
from tests.integration.api.test_doors import check_error

CHAT = "/v1/chat/completions"
HELLO = {"messages": [user("hello")]}


class Slow:
    """A model that answers when it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, messages: Any, purpose: Purpose) -> str:
        await self.go.wait()
        return "done"


# --- streams -------------------------------------------------------------------------------------------


async def test_one_key_may_have_so_many_streams_and_others_are_not_concerned(
    start_server: StartServer,
) -> None:
    slow = Slow()
    server = await start_server(ScriptedModel(slow), limits={"streams_per_key": 4})
    ada, bob = await server.client_of("ada"), await server.client_of("bob")
    async with AsyncExitStack() as streams:
        for _ in range(2):
            await streams.enter_async_context(ada.stream("GET", "/api/events"))
        begun = await ada.post("/v1/responses", json={"input": "hi", "background": True})
        response = f"/v1/responses/{begun.json()['id']}"
        await streams.enter_async_context(ada.stream("GET", f"{response}?stream=true"))
        await streams.enter_async_context(ada.stream("GET", "/live", headers={"accept": "text/event-stream"}))
        turn = begun.headers["x-holdfast-turn-id"]
        for method, path, body in (
            ("GET", "/api/events", None),
            ("GET", f"{response}?stream=true", None),
            ("POST", CHAT, {**HELLO, "stream": True}),
            ("POST", CHAT, {**HELLO, "stream": True, "store": False}),
            ("POST", "/v1/responses", {"input": "x", "stream": True}),
            ("POST", "/v1/responses", {"input": "x", "stream": True, "store": False}),
        ):
            refused = await ada.request(method, path, json=body)
            error = check_error(refused, 429, "too_many_streams")
            assert "streams_per_key" in error["message"]
            assert (refused.headers["retry-after"], refused.headers["x-should-retry"]) == ("5", "true")
        for path in ("/live", f"/turns/{turn}/reply"):
            assert (await ada.get(path)).status_code == 429
        assert server.model.calls == 1, "what is refused begins nothing"
        assert (await ada.get("/api/sessions")).status_code == 200, "what is no stream is not refused"
        async with bob.stream("GET", "/api/events") as other:
            assert other.status_code == 200
    slow.go.set()
    await until(lambda: not server.services.limits.streams.held(_key_id(ada)), "streams are given back")
    async with ada.stream("GET", "/api/events") as again:
        assert again.status_code == 200


async def test_a_stream_is_given_back_when_its_client_goes(start_server: StartServer) -> None:
    server = await start_server(limits={"streams_per_key": 1})
    for _ in range(3):
        async with server.client.stream("POST", CHAT, json={**HELLO, "stream": True}) as response:
            assert response.status_code == 200
            await anext(response.aiter_raw())
        await until(
            lambda: not server.services.limits.streams.held(_key_id(server.client)), "it is given back"
        )


async def test_no_limit_is_a_limit_of_0(start_server: StartServer) -> None:
    server = await start_server(limits={"streams_per_key": 0, "turns_per_key": 0, "messages_per_request": 0})
    async with AsyncExitStack() as streams:
        for _ in range(5):
            await streams.enter_async_context(server.client.stream("GET", "/api/events"))
        assert (await server.client.post(CHAT, json={"messages": [user("x")] * 20})).status_code == 200


async def test_a_context_is_sent_as_it_is_stored_and_counts_for_its_key(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 MiB decoded and encoded again on the event loop stopped all other requests for seconds."""
    server = await start_server(server={"max_body_mb": 1})
    ada, bob = await server.client_of("ada"), await server.client_of("bob")
    created = (await ada.post("/v1/conversations", json={})).json()["id"]
    for _ in range(11):
        items = {"items": [{"type": "message", "role": "user", "content": "A" * 1_000_000}]}
        assert (await ada.post(f"/v1/conversations/{created}/items", json=items)).status_code == 200
    path = f"/api/sessions/{created}/messages?scope=context"

    def fail(context: Context) -> None:
        raise AssertionError("it was decoded")

    monkeypatch.setattr(Context, "messages", fail)
    async with ada.stream("GET", path) as unread:  # the first may exceed the limit
        assert unread.status_code == 200
        check_error(await ada.get(path), 429, "too_many_bytes")
        assert (await bob.get("/api/sessions")).status_code == 200
        listed = json.loads(b"".join([piece async for piece in unread.aiter_bytes()]))
    assert [len(each["content"]) for each in listed.pop("data")] == [1_000_000] * 11
    assert listed == {"object": "list", "first_id": None, "last_id": None, "has_more": False}
    assert (await ada.get(path)).status_code == 200, "what was read is given back"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, HELLO),
        (CHAT, {**HELLO, "store": False}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/responses", {"input": "x", "background": True}),
        ("/v1/responses/compact", {"input": "x"}),
        ("/v1/messages", {"max_tokens": 9, **HELLO}),
    ],
)
async def test_a_models_name_is_as_short_as_other_names(
    start_server: StartServer, path: str, body: dict[str, Any]
) -> None:
    """It is stored with each turn and shown in every list: 100 sessions with 19 MB names were one page."""
    server = await start_server()
    refused = await server.client.post(path, json={**body, "model": "m" * 513})
    assert refused.status_code == 400
    assert "model is 513 characters long; at most 512 are allowed" in refused.text
    assert (await server.client.post(path, json={**body, "model": "m" * 512})).status_code == 200
    refused = await server.client.post(path, json={**body, "model": "m\0"})
    assert refused.status_code == 400, "no store can keep it"


# --- waiting for commits -------------------------------------------------------------------------------


async def test_streams_and_waiting_requests_of_a_key_are_paced_together(start_server: StartServer) -> None:
    """Each of them reads or writes after every commit: unpaced, 200 make every chat of others cost fifteen
    times as much."""
    slow = Slow()
    server = await start_server(ScriptedModel(slow), server={"busy_wait_seconds": 60})
    ada = await server.client_of("ada")
    waiting = server.services.holdfast.store._watch._groups
    begun = await ada.post("/v1/responses", json={"input": "hi", "background": True})
    session = begun.headers["x-holdfast-session-id"]
    async with AsyncExitStack() as streams:
        for path in ("/api/events", "/live", f"/api/sessions/{session}/live"):
            await streams.enter_async_context(ada.stream("GET", path))
        await until(lambda: waiting[_key_id(ada)] == 3, "the streams wait as one group")
        posts = [
            asyncio.create_task(ada.post(path, json=body, headers={"x-holdfast-session-id": session}))
            for path, body in ((CHAT, HELLO), ("/v1/responses", {"input": "x"}))
        ]
        await until(lambda: waiting["ada"] == 2, "requests for a busy conversation wait as one group")
        end = asyncio.create_task(ada.post(f"/api/sessions/{session}/end", json={}))
        conversation = begun.headers["x-holdfast-conversation-id"]
        await until(lambda: waiting[conversation] == 1, "operations wait by conversation")
        slow.go.set()
        assert [each.status_code for each in await asyncio.gather(*posts, end)] == [200, 200, 200]
    await until(lambda: not waiting[_key_id(ada)], "nothing is left of them")


# --- turns ---------------------------------------------------------------------------------------------


async def test_one_key_may_have_so_many_turns_running(start_server: StartServer) -> None:
    slow = Slow()
    server = await start_server(ScriptedModel(slow), limits={"turns_per_key": 2})
    ada, bob = await server.client_of("ada"), await server.client_of("bob")
    for _ in range(2):  # in the background: no request of them is under way any more
        assert (await ada.post("/v1/responses", json={"input": "hi", "background": True})).status_code == 200
    for path, body in (
        (CHAT, HELLO),
        (CHAT, {**HELLO, "store": False}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/responses", {"input": "x", "store": False}),
        ("/v1/responses", {"input": "x", "background": True}),
    ):
        refused = await ada.post(path, json=body)
        error = check_error(refused, 429, "too_many_turns")
        assert "turns_per_key" in error["message"]
        assert refused.headers["retry-after"] == "5"
    asking = asyncio.create_task(bob.post(CHAT, json=HELLO))
    await until(lambda: server.model.calls == 3, "another key's turn begins")
    slow.go.set()
    assert (await asking).status_code == 200
    await until(lambda: not server.services.runner.running, "they end")
    assert (await ada.post(CHAT, json=HELLO)).status_code == 200
    assert server.services.limits.turns.running(_key_id(ada)) == 0


async def test_an_answer_that_is_not_stored_is_a_turn_whatever_its_request_is_called(
    start_server: StartServer,
) -> None:
    """A client may choose the id of its request, also the same one for all."""
    slow = Slow()
    server = await start_server(ScriptedModel(slow), limits={"turns_per_key": 2})
    ada = await server.client_of("ada", **{"x-request-id": "req_mine"})
    body = {**HELLO, "store": False}
    asking = [asyncio.create_task(ada.post(CHAT, json=body)) for _ in range(2)]
    await until(lambda: server.model.calls == 2, "two run")
    for path in (CHAT, "/v1/responses"):
        refused = await ada.post(path, json=body if path == CHAT else {"input": "x", "store": False})
        check_error(refused, 429, "too_many_turns")
    slow.go.set()
    assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}
    await until(lambda: not server.services.limits.turns.running(_key_id(ada)), "they are given back")


async def test_a_turn_no_longer_counts_when_its_answer_arrives(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = asyncio.Event()

    async def compacts_for_long(_: AgentLoop) -> None:
        await may_end.wait()

    monkeypatch.setattr(AgentLoop, "compact_if_over_threshold", compacts_for_long)
    server = await start_server(ScriptedModel(["done"] * 4), limits={"turns_per_key": 1})
    ada = await server.client_of("ada")
    for stream in (False, True) * 2:
        assert (await ada.post(CHAT, json={**HELLO, "stream": stream})).status_code == 200
    may_end.set()


async def test_requests_that_wait_for_a_conversation_count_as_turns(start_server: StartServer) -> None:
    slow = Slow()
    server = await start_server(ScriptedModel(slow), limits={"turns_per_key": 3})
    ada = await server.client_of("ada")
    ada.headers["x-holdfast-session-key"] = "one"
    waiting = [asyncio.create_task(ada.post(CHAT, json=HELLO)) for _ in range(3)]
    await until(lambda: server.services.limits.turns.running(_key_id(ada)) == 3, "one runs, two wait")
    check_error(await ada.post(CHAT, json=HELLO), 429, "too_many_turns")
    slow.go.set()
    assert {response.status_code for response in await asyncio.gather(*waiting)} == {200}
    assert server.services.limits.turns.running(_key_id(ada)) == 0


async def test_turns_that_were_queued_count_when_they_run(start_server: StartServer) -> None:
    """Else a key could fill one conversation after the other."""
    slow = Slow()
    server = await start_server(ScriptedModel(slow), limits={"turns_per_key": 2})
    ada = await server.client_of("ada")
    key = {"x-holdfast-session-key": "k", "x-holdfast-when-busy": "queue"}
    first = asyncio.create_task(ada.post(CHAT, json=HELLO, headers=key))
    await until(lambda: server.model.calls == 1, "it runs")
    later = await ada.post(CHAT, json={"messages": [user("later")]}, headers=key)
    assert later.status_code == 202, later.text
    (running,) = server.services.runner.running
    assert (await ada.post(f"/api/sessions/{running}/cancel")).status_code == 200
    assert (await first).status_code == 409
    await until(lambda: later.json()["id"] in server.services.runner.running, "the queued one runs")
    asking = asyncio.create_task(ada.post(CHAT, json=HELLO))
    await until(lambda: server.model.calls == 3, "another one runs")
    check_error(await ada.post(CHAT, json=HELLO), 429, "too_many_turns")
    slow.go.set()
    assert (await asking).status_code == 200
    await until(lambda: not server.services.limits.turns.running(_key_id(ada)), "they are given back")


class Elsewhere:
    """Another worker, which begins a turn of the same key whenever this one has ended one."""

    turns = 0

    def publish(self, key_id: str, count: int) -> None:
        self.turns = 1 - count

    def elsewhere(self, key_id: str) -> int:
        return self.turns


async def test_a_request_that_has_resumed_its_turn_is_not_refused(start_server: StartServer) -> None:
    refusals = iter([ModelError("no", 400)])
    answers = ScriptedModel(lambda messages, purpose: next(refusals, "done"))
    server = await start_server(answers, limits={"turns_per_key": 1})
    server.services.limits.turns._workers = other = cast(Any, Elsewhere())
    ada = await server.client_of("ada", **{"idempotency-key": "m1"})
    assert (await ada.post(CHAT, json=HELLO)).status_code == 400
    other.turns = 0
    assert (await ada.post(CHAT, json=HELLO)).status_code == 200


async def test_a_request_that_joins_its_turn_is_not_counted_twice(start_server: StartServer) -> None:
    slow = Slow()
    server = await start_server(ScriptedModel(slow), limits={"turns_per_key": 2})
    ada = await server.client_of("ada")
    same = {"idempotency-key": "m1"}
    asking = [asyncio.create_task(ada.post(CHAT, json=HELLO, headers=same))]
    await until(lambda: server.model.calls == 1, "it runs")
    asking.append(asyncio.create_task(ada.post(CHAT, json=HELLO, headers=same)))
    await until(lambda: server.services.limits.requests.held(_key_id(ada)) == 2, "its retry has come")
    await until(lambda: server.services.limits.turns.running(_key_id(ada)) == 1, "and joined it")
    slow.go.set()
    answers = await asyncio.gather(*asking)
    assert len({answer.json()["holdfast"]["turn_id"] for answer in answers}) == 1
    assert server.services.limits.turns.running(_key_id(ada)) == 0


# --- requests and bytes --------------------------------------------------------------------------------


async def test_one_key_leaves_room_for_others(start_server: StartServer) -> None:
    slow = Slow()
    server = await start_server(ScriptedModel(slow), server={"max_requests": 20})
    ada, bob = await server.client_of("ada"), await server.client_of("bob")
    asking = [asyncio.create_task(ada.post(CHAT, json=HELLO)) for _ in range(18)]
    await until(lambda: server.services.limits.requests.held(_key_id(ada)) == 18, "they are under way")
    check_error(await ada.get("/api/sessions"), 429, "too_many_requests")
    assert (await bob.get("/api/sessions")).status_code == 200
    slow.go.set()
    assert {response.status_code for response in await asyncio.gather(*asking)} == {200}
    assert (await ada.get("/api/sessions")).status_code == 200


async def test_the_bodies_of_one_key_are_bounded_together(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BODIES_PER_KEY", 2)
    slow = Slow()
    server = await start_server(ScriptedModel(slow), server={"max_body_mb": 0.01})
    ada, bob = await server.client_of("ada"), await server.client_of("bob")
    large = {"messages": [user("x" * 9_000)]}
    asking = [asyncio.create_task(ada.post(CHAT, json=large)) for _ in range(2)]
    await until(lambda: server.model.calls == 2, "they are asked")
    check_error(await ada.post(CHAT, json=large), 429, "too_many_bytes")
    asking.append(asyncio.create_task(bob.post(CHAT, json=large)))
    await until(lambda: server.model.calls == 3, "another's is taken")
    slow.go.set()
    assert {response.status_code for response in await asyncio.gather(*asking)} == {200}
    assert server.services.limits.bytes.held(_key_id(ada)) == 0


@pytest.mark.parametrize("route", ["input_tokens", "compact"])
async def test_a_stored_past_that_is_read_counts_and_is_read_outside_the_event_loop(
    server: Running, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    ada = await server.client_of("ada")
    large = "x" * limits.LARGE_BODY
    said = (await ada.post("/v1/responses", json={"input": large})).json()
    body = {"model": "m", "input": "and?", "previous_response_id": said["id"]}
    path, held, sizes = f"/v1/responses/{route}", server.services.limits.bytes, list[int]()
    work = bodies.BodyThreads.run

    async def noted(threads: bodies.BodyThreads, key_id: str, size: int, what: Any) -> Any:
        sizes.append(size)
        return await work(threads, key_id, size, what)

    monkeypatch.setattr(bodies.BodyThreads, "run", noted)
    assert (await ada.post(path, json=body)).status_code == 200
    assert len(sizes) == 1 and sizes[0] > limits.LARGE_BODY
    other = held._most - limits.LARGE_BODY
    held.take(_key_id(ada), other)
    check_error(await ada.post(path, json=body), 429, "too_many_bytes")
    held.give_back(_key_id(ada), other)


async def test_forms_without_a_key_are_few_and_short(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.gate.FORMS", 2)
    monkeypatch.setattr("holdfast.dashboard.request.FORM_SECONDS", 0.5)
    stranger = await server.with_token(None)
    form = {"content-type": "application/x-www-form-urlencoded", "content-length": "100"}
    gate = asyncio.Event()

    async def never() -> Any:
        yield b"key="
        await gate.wait()
        yield b"x" * 96

    slow = [asyncio.create_task(stranger.post("/login", content=never(), headers=form)) for _ in range(2)]
    await until(lambda: server.services.gate._forms == 2, "they are being read")
    assert (await stranger.post("/login", data={"key": "x"})).status_code == 503
    ada = await server.client_of("ada")
    assert (await ada.get("/api/sessions")).status_code == 200
    await until(lambda: server.services.gate._forms == 0, "they were given up")
    assert (await stranger.post("/login", data={"key": "x"})).status_code == 403
    gate.set()
    await asyncio.gather(*slow, return_exceptions=True)


# --- one request ---------------------------------------------------------------------------------------


async def test_a_request_of_too_many_messages_is_refused(start_server: StartServer) -> None:
    server = await start_server(limits={"messages_per_request": 10})
    said = await server.client.post("/v1/conversations", json={})
    items = f"/v1/conversations/{said.json()['id']}/items"
    for path, param in (
        (CHAT, "messages"),
        ("/v1/responses", "input"),
        ("/v1/conversations", "items"),
        (items, "items"),
    ):
        assert (await server.client.post(path, json={param: [user("x")] * 10})).status_code == 200
        error = check_error(await server.client.post(path, json={param: [user("x")] * 11}), 400)
        assert error["param"] == param
        assert "messages_per_request" in error["message"]
        parts = [{"type": "text" if path == CHAT else "input_text", "text": "x"}]
        many = {param: [{"role": "user", "content": parts * 101}]}
        error = check_error(await server.client.post(path, json=many), 400)
        assert "parts" in error["message"]


async def test_a_queued_turn_is_edited_within_the_limits_of_a_request(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow()
    server = await start_server(ScriptedModel(slow), limits={"messages_per_request": 10})
    key = {"x-holdfast-session-key": "k", "x-holdfast-when-busy": "queue"}
    running = asyncio.create_task(server.client.post(CHAT, json=HELLO, headers=key))
    await until(lambda: server.model.calls == 1, "a turn runs")
    later = await server.client.post(CHAT, json={"messages": [user("later")]}, headers=key)
    path = f"/api/turns/{later.json()['id']}"
    for body, param in (
        ({"messages": [user("x")] * 11}, "messages"),
        ({"content": [{"type": "text", "text": "x"}] * 101}, "content"),
    ):
        error = check_error(await server.client.patch(path, json=body), 400)
        assert error["param"] == param and "messages_per_request" in error["message"]
    works: list[int] = []
    work = bodies.BodyThreads.run

    async def noted(threads: bodies.BodyThreads, key_id: str, size: int, what: Any) -> Any:
        works.append(size)
        return await work(threads, key_id, size, what)

    monkeypatch.setattr(bodies.BodyThreads, "run", noted)
    edited = await server.client.patch(path, json={"messages": [user("x" * limits.LARGE_BODY)] * 10})
    assert edited.status_code == 200 and len(edited.json()["messages"]) == 10
    assert len(works) == 1, "a large body is read in a thread"
    slow.go.set()
    assert (await running).status_code == 200


async def test_each_result_of_a_message_in_anthropics_api_is_a_message(start_server: StartServer) -> None:
    server = await start_server(limits={"messages_per_request": 10})
    uses = [{"type": "tool_use", "id": f"toolu_{at}", "name": "f", "input": {}} for at in range(9)]
    results = [{"type": "tool_result", "tool_use_id": each["id"], "content": "x"} for each in uses]
    body: dict[str, Any] = {"model": "m", "max_tokens": 9}
    for count, status in ((8, 200), (9, 400)):
        body["messages"] = [
            user("x"),
            {"role": "assistant", "content": uses[:count]},
            {"role": "user", "content": results[:count]},
        ]
        answer = await server.client.post("/v1/messages", json=body)
        assert answer.status_code == status, answer.text
    assert "messages_per_request" in answer.json()["error"]["message"]


def test_json_values_are_counted_before_they_are_made() -> None:
    few = json.dumps({"text": '[{,"\\' * 1000}).encode()
    assert len(few) > 500
    check_values(few, 10)  # what stands in texts does not count
    for many in (b"[" + b"[]," * 600 + b"0]", b'{"a":' * 600, b'"x",' * 600):
        with pytest.raises(Exception, match="more than 500 JSON values"):
            check_values(many, 10)
        check_values(many, 0)


@pytest.mark.parametrize("before", [0, 1, 499, 500, 2**20 - 1, 2**20 - 501])
def test_a_number_of_too_many_digits_is_found_wherever_it_is(before: int) -> None:
    """16 MB of numbers of 4,000 digits took seconds to be parsed, in which nothing else ran."""
    text = b'{"a":"' + b"x" * before + b'"'
    digits = b"9" * MOST_DIGITS
    assert long_number(text + b',"b":9' + digits + b"}") == len(text) + 5
    assert long_number(text + b',"b":-0.5' + digits + b"1e5}") == len(text) + 8
    assert long_number(text + b',"b":' + digits + b',"c":"\\"9' + digits + b'"}') is None
    assert long_number((text + b',"b":9' + digits + b"}").decode()) == len(text) + 5


async def test_a_number_of_too_many_digits_is_refused_in_a_body_and_compared_as_text_in_arguments(
    server: Running,
) -> None:
    digits = "9" * (MOST_DIGITS + 1)
    body = f'{{"messages": [{{"role": "user", "content": "x"}}], "seed": {digits}}}'
    answer = await server.client.post(CHAT, content=body)
    assert answer.status_code == 400
    assert f"more than {MOST_DIGITS} digits" in answer.json()["error"]["message"]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": f'{{"a": {digits}}}'}}
    messages = [
        user(digits),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ]
    assert (await server.client.post(CHAT, json={"messages": messages})).status_code == 200


def test_counting_hostile_json_takes_no_longer_than_reading_it() -> None:
    """Strings that never end, made of what begins others: a search that begins anew at each would not end."""
    for hostile in (b'"' + b'\\"' * 1_000_000, b'"\\' * 1_000_000, b"," * 600_000 + b'"' * 1_000_001):
        try:
            check_values(hostile, 10_000)
        except Exception as error:
            assert "JSON values" in str(error)


async def test_others_are_answered_while_a_large_body_is_worked_on(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work happens in a thread: it waits there until another request has been answered."""
    import threading

    answered = threading.Event()
    checked = bodies.check_values

    def waits(body: bytes, most: int) -> None:
        if len(body) > limits.LARGE_BODY:
            assert answered.wait(30), "the event loop was not free"
        checked(body, most)

    monkeypatch.setattr("holdfast.server.bodies.check_values", waits)
    large = asyncio.create_task(
        server.client.post(CHAT, json={"messages": [user("x" * 2 * limits.LARGE_BODY)]})
    )
    while not large.done() and not answered.is_set():
        assert (await server.client.get("/healthz")).status_code == 200
        if server.services.limits.bytes.held(_key_id(server.client)) > limits.LARGE_BODY:
            assert (await server.client.get("/healthz")).status_code == 200
            answered.set()
    assert (await large).status_code == 200


# --- names ---------------------------------------------------------------------------------------------

NAMING = ("x-holdfast-session-id", "x-hermes-session-key", "x-holdfast-source", "idempotency-key")
MISTAKABLE = {
    "Latin-1": "é".encode("latin-1"),
    "not NFC": b"e\xcc\x81",
    "half a character": b"\xc3",
    "a zero-width space": "a\u200bb".encode(),
    "a right-to-left mark": "a\u200fb".encode(),
    "a soft hyphen": "a\u00adb".encode(),
    "a no-break space": "a\u00a0b".encode(),
    "a tab": b"a\tb",
    "a line separator": "a\u2028b".encode(),
    "a Hangul filler": "\u3164".encode(),
    "a blank Braille pattern": "\u2800".encode(),
    "a variation selector": "a\ufe0f".encode(),
    "a byte order mark": "\ufeffa".encode(),
    "a private character": "\ue000".encode(),
    "a C1 control": "a\u0085b".encode(),
}


@pytest.mark.parametrize("what", MISTAKABLE)
async def test_names_that_look_like_others_are_refused(server: Running, what: str) -> None:
    bridge = await server.client_of("team", "bridge")
    for name in (*NAMING, "x-holdfast-owner"):
        response = await _raw_post(bridge, name, MISTAKABLE[what])
        error = check_error(response, 400)
        assert name in error["message"]
    assert (await server.store.figures()).messages == 0


async def test_owners_of_other_writing_are_told_apart(server: Running) -> None:
    bridge = await server.client_of("team", "bridge")
    for owner in ("é", "Ã©", "日本", "Ørsted", "a b"):
        assert (await _raw_post(bridge, "x-holdfast-owner", owner.encode())).status_code == 200
    seen = {
        owner: len((await _raw_get(bridge, owner)).json()["data"]) for owner in ("é", "Ã©", "日本", "Ørsted")
    }
    assert set(seen.values()) == {1}


async def _raw_post(client: httpx.AsyncClient, name: str, value: bytes) -> httpx.Response:
    return await client.post(CHAT, json=HELLO, headers=[(name.encode(), value)])


async def _raw_get(client: httpx.AsyncClient, owner: str) -> httpx.Response:
    return await client.get("/api/sessions", headers=[(b"x-holdfast-owner", owner.encode())])


def _key_id(client: httpx.AsyncClient) -> str:
    """The id inside a client's token."""
    from holdfast.domain.api_keys import parse_token

    claimed = parse_token(client.headers["authorization"].removeprefix("Bearer "))
    assert claimed is not None
    return claimed.key_id
