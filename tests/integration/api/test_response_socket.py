"""WebSocket mode of `/v1/responses`: the acceptance cases of Open Responses, and hostile input."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.resources.responses.responses import AsyncResponsesConnection
from openai.types.responses import Response
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from holdfast.errors import ModelError
from holdfast.models.base import Chunk, ModelRequest
from holdfast.models.chunks import chunk_of
from holdfast.models.scripted import ScriptedModel, echo
from holdfast.server.limits import SOCKET_UNCOUNTED
from holdfast.server.openai import response_socket
from tests.integration.api import open_responses
from tests.integration.api.chatting import until
from tests.integration.api.conftest import Running, StartServer, running_server
from tests.integration.api.responding import finished, get, resumed
from tests.integration.api.test_open_responses import LAUNCH, compacted, said, summaries


@asynccontextmanager
async def socket(
    server: Running, key: str | None = None, path: str = "/v1/responses", **headers: str
) -> AsyncIterator[ClientConnection]:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    given["authorization"] = f"Bearer {server.admin_key if key is None else key}"
    url = server.url.replace("http", "ws", 1) + path
    async with connect(url, additional_headers=given, max_size=None, proxy=None) as opened:
        yield opened


async def ask(opened: ClientConnection, **fields: Any) -> list[dict[str, Any]]:
    """The messages that answer one `response.create`, each validated."""
    await opened.send(json.dumps({"type": "response.create", "model": "scripted", **fields}))
    return await heard(opened)


async def heard(opened: ClientConnection) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    while True:
        data = await asyncio.wait_for(opened.recv(), 60)
        assert isinstance(data, str), "events are text messages"
        event = json.loads(data)
        events.append(event)
        if event["type"] == "error":
            open_responses.check_socket_error(event)
            return events
        open_responses.check_event(event)
        if event["type"] in open_responses.FINAL:
            open_responses.check_order(events)
            return events


def ended(events: list[dict[str, Any]], status: str = "completed") -> dict[str, Any]:
    response: dict[str, Any] = events[-1]["response"]
    assert response["status"] == status, response
    return response


def code_of(events: list[dict[str, Any]]) -> str:
    assert [event["type"] for event in events] == ["error"], events
    return str(events[0]["error"]["code"])


def sent(server: Running) -> list[Any]:
    """What the model was told last."""
    return [message["content"] for message in json.loads(server.model.requests[-1].messages)]


# --- the acceptance cases --------------------------------------------------------------------------------


async def test_websocket_response(server: Running) -> None:
    async with socket(server) as opened:
        ended(await ask(opened, input=[said("user", "Count from 1 to 3.")]))


async def test_websocket_sequential_responses(server: Running) -> None:
    async with socket(server) as opened:
        first = ended(await ask(opened, store=False, input="first"))
        second = ended(await ask(opened, store=False, input="second"))
    assert first["id"] != second["id"]
    assert sent(server) == ["second"]


async def test_websocket_continuation(server: Running) -> None:
    async with socket(server) as opened:
        first = ended(await ask(opened, store=False, input="The word is cobalt."))
        second = ended(await ask(opened, store=False, input="Which?", previous_response_id=first["id"]))
        assert second["previous_response_id"] == first["id"]
        assert sent(server) == ["The word is cobalt.", "You said: The word is cobalt.", "Which?"]
        third = ended(await ask(opened, store=False, input="And?", previous_response_id=second["id"]))
        assert len(sent(server)) == 5
        # Only the newest response is remembered.
        assert code_of(await ask(opened, store=False, input="x", previous_response_id=first["id"])) == (
            "previous_response_not_found"
        )
        assert third["store"] is False
    assert (await server.client.get("/api/sessions")).json()["data"] == []


async def test_websocket_reconnect_store_false_recovery(server: Running) -> None:
    async with socket(server) as opened:
        first = ended(await ask(opened, store=False, input="The word is copper."))
    async with socket(server) as opened:
        lost = await ask(opened, store=False, input="go on", previous_response_id=first["id"])
        assert code_of(lost) == "previous_response_not_found"
        assert (lost[0]["status"], lost[0]["error"]["param"]) == (400, "previous_response_id")
        ended(await ask(opened, store=False, input=[said("user", "begin anew")]))


async def test_websocket_previous_response_not_found(server: Running) -> None:
    async with socket(server) as opened:
        for name in ("resp_missing_1", f"resp_{'a' * 32}"):
            lost = await ask(opened, store=False, input="x", previous_response_id=name)
            assert code_of(lost) == "previous_response_not_found"


async def test_websocket_failed_continuation_evicts_cache(server: Running) -> None:
    async with socket(server) as opened:
        first = ended(await ask(opened, store=False, input="The word is ember."))
        result = {"type": "function_call_output", "call_id": "call_missing", "output": "x"}
        failed = await ask(opened, store=False, input=[result], previous_response_id=first["id"])
        assert failed[-1]["type"] == "error"
        again = await ask(opened, store=False, input="stale", previous_response_id=first["id"])
        assert code_of(again) == "previous_response_not_found"


async def test_websocket_compact_new_chain(start_server: StartServer) -> None:
    server = await start_server(summaries("The word is slate."))
    made = await compacted(server, input=[*LAUNCH, said("user", "Compress this.")])
    async with socket(server) as opened:
        ended(await ask(opened, store=False, tools=[], input=[*made["output"], said("user", "Go on.")]))
    assert "The word is slate." in sent(server)[0]


# --- stored conversations --------------------------------------------------------------------------------


async def test_a_stored_response_is_continued_on_another_socket(server: Running) -> None:
    async with socket(server) as opened:
        first = ended(await ask(opened, input="one"))
    async with socket(server) as opened:
        second = ended(await ask(opened, input="two", previous_response_id=first["id"]))
    assert second["conversation"] == first["conversation"]
    assert sent(server) == ["one", "You said: one", "two"]
    assert second["holdfast"]["conversation_id"] == first["conversation"]["id"]


async def test_a_named_socket_is_one_conversation_and_keeps_its_instructions(server: Running) -> None:
    """Codex: the name is in the handshake, `store` is false, only what is new is sent."""
    async with socket(server, thread_id="thread-1") as opened:
        first = ended(
            await ask(opened, store=False, input=[said("developer", "be brief"), said("user", "one")])
        )
        second = ended(await ask(opened, store=False, input="two", previous_response_id=first["id"]))
    assert second["conversation"] == first["conversation"]
    assert sent(server) == ["be brief", "one", "You said: one", "two"]
    found = (await server.client.get("/api/sessions/thread-1/messages")).json()["data"]
    assert [message["content"] for message in found] == ["one", "You said: one", "two", "You said: two"]


async def test_tools_that_came_as_an_item_hold_for_what_continues_it(server: Running) -> None:
    """Codex sends its tools once, with the first message of a socket."""

    def brought(name: str) -> dict[str, Any]:
        return {
            "type": "additional_tools",
            "role": "developer",
            "tools": [{"type": "function", "name": name}],
        }

    def offered() -> list[str]:
        tools = server.model.requests[-1].options.get("tools") or ()
        return [tool["function"]["name"] for tool in tools]

    async with socket(server, thread_id="thread-4") as opened:
        warm = ended(
            await ask(opened, store=False, generate=False, input=[brought("run"), said("user", "one")])
        )
        first = ended(await ask(opened, store=False, input="two", previous_response_id=warm["id"]))
        second = ended(
            await ask(opened, store=False, input=[said("user", "three")], previous_response_id=first["id"])
        )
        assert offered() == ["run"]
        third = ended(
            await ask(
                opened,
                store=False,
                input=[brought("walk"), said("user", "four")],
                previous_response_id=second["id"],
            )
        )
        assert offered() == ["walk"]
        ended(await ask(opened, store=False, input="five", previous_response_id=third["id"]))
        assert offered() == ["walk"]
        ended(await ask(opened, store=False, input="anew"))
        assert offered() == []


async def test_a_warm_up_is_continued_without_an_answer(server: Running) -> None:
    async with socket(server, thread_id="thread-2") as opened:
        warm = ended(await ask(opened, store=False, generate=False, input=[said("user", "one")]))
        assert warm["output"] == []
        assert server.model.calls == 0
        ended(await ask(opened, store=False, input="two", previous_response_id=warm["id"]))
    assert sent(server) == ["one", "two"]


async def test_codex_metadata_comes_with_each_message(server: Running) -> None:
    metadata = {"x-codex-turn-metadata": json.dumps({"request_kind": "compaction"})}
    async with socket(server, thread_id="thread-3") as opened:
        first = ended(await ask(opened, store=False, input="one"))
        side = ended(await ask(opened, store=False, input="summarise", client_metadata=metadata))
    assert first["conversation"] is not None
    assert side["conversation"] is None


async def test_a_turn_outlives_its_socket(start_server: StartServer) -> None:
    may_answer = asyncio.Event()

    async def answer(messages: Any, purpose: Any) -> str:
        await may_answer.wait()
        return echo(messages, purpose)

    server = await start_server(ScriptedModel(answer))
    async with socket(server) as opened:
        await opened.send(json.dumps({"type": "response.create", "input": "one"}))
        begun = json.loads(await opened.recv())
        assert begun["type"] == "response.created"
    may_answer.set()
    response = await finished(server, begun["response"]["id"])
    events = await resumed(server, response["id"], after=0)
    assert events[-1]["type"] == "response.completed"
    async with socket(server) as opened:
        ended(await ask(opened, input="two", previous_response_id=response["id"]))
    assert sent(server) == ["one", "You said: one", "two"]


async def test_a_model_that_fails_ends_the_response_and_not_the_socket(start_server: StartServer) -> None:
    server = await start_server(
        ScriptedModel([("half", ModelError("it broke")), ModelError("no", 429), "ok"])
    )
    async with socket(server) as opened:
        ended(await ask(opened, input="one"), "failed")
        refused = await ask(opened, input="two")
        assert refused[0]["status"] == 429
        ended(await ask(opened, input="three"))


# --- the handshake ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": "Bearer nonsense"}, 401),
        ({}, 401),
        ({"origin": "https://elsewhere.example"}, 403),
        ({"host": "elsewhere.example"}, 421),
    ],
)
async def test_a_handshake_is_checked_like_a_request(
    server: Running, headers: dict[str, str], status: int
) -> None:
    if "authorization" not in headers and headers:
        headers = {**headers, "authorization": f"Bearer {server.admin_key}"}
    upgrade = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    client = await server.with_token(None)
    response = await client.get("/v1/responses", headers={**upgrade, **headers})
    assert response.status_code == status, response.text
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_only_responses_can_be_upgraded(server: Running) -> None:
    for path in ("/v1/chat/completions", "/v1/responses/compact", "/"):
        with pytest.raises(InvalidStatus):
            async with socket(server, path=path):
                pass
    plain = await server.client.get("/v1/responses")
    assert plain.status_code == 405


async def test_a_socket_counts_as_a_stream_of_its_key(start_server: StartServer) -> None:
    server = await start_server(limits={"streams_per_key": 1})
    key = await server.key()
    async with socket(server, key):
        with pytest.raises(InvalidStatus) as refused:
            async with socket(server, key):
                pass
        assert refused.value.response.status_code == 429
    await until(lambda: _can_open(server, key), "the first socket is not counted any more")


async def _can_open(server: Running, key: str) -> bool:
    try:
        async with socket(server, key):
            return True
    except InvalidStatus:
        return False


async def test_another_owners_response_is_not_found(server: Running) -> None:
    async with socket(server, await server.key("ada")) as opened:
        first = ended(await ask(opened, input="one"))
    async with socket(server, await server.key("bob")) as opened:
        assert code_of(await ask(opened, input="x", previous_response_id=first["id"])) == (
            "previous_response_not_found"
        )


# --- hostile and odd input -------------------------------------------------------------------------------


async def test_a_bad_message_is_answered_by_an_error_and_the_socket_stays_open(server: Running) -> None:
    async with socket(server) as opened:
        for data in (
            "",
            "nonsense",
            "[]",
            "7",
            "{}",
            '{"type": "session.update"}',
            '{"type": "response.create"}',
            '{"type": "response.create", "input": 7}',
            '{"type": "response.create", "input": "x", "background": true}',
            '{"type": "response.create", "input": "x", "generate": 1}',
            '{"type": "response.create", "input": [{"type": "nonsense"}]}',
            '{"type": "response.create", "input": "\\ud800"}',
            "[" * 100_000,
            b"\xff\xfe",
        ):
            await opened.send(data)
            answer = await heard(opened)
            assert answer[-1]["type"] == "error", data[:80]
            assert 400 <= answer[-1]["status"] < 500, answer
        ended(await ask(opened, input="still here"))


async def test_a_message_that_is_too_large_closes_the_socket(start_server: StartServer) -> None:
    server = await start_server()
    async with socket(server) as opened:
        with pytest.raises(ConnectionClosed) as closed:
            await opened.send("x" * (21 * 2**20))
            await opened.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009


@pytest.mark.parametrize("kind", ["fragments", "pings", "pongs"])
async def test_too_many_frames_close_the_socket(server: Running, kind: str) -> None:
    """6 MB of empty frames held the event loop, and every other client, for seconds."""
    opened = {"fragments": b"\x01\x80\0\0\0\0", "pings": b"", "pongs": b""}[kind]
    empty = {"fragments": b"\x00", "pings": b"\x89", "pongs": b"\x8a"}[kind] + b"\x80\0\0\0\0"
    async with socket(server) as one:
        one.transport.write(opened + empty * 100_000)
        with pytest.raises(ConnectionClosed) as closed:
            await asyncio.wait_for(one.recv(), 60)
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "too many frames")
    assert (await server.client.get("/healthz")).status_code == 200


async def test_a_large_message_may_come_in_small_fragments(server: Running) -> None:
    body = json.dumps({"type": "response.create", "model": "scripted", "input": "A" * 4_000_000})
    async with socket(server) as one:
        await one.send(body[at : at + 1000] for at in range(0, len(body), 1000))
        ended(await heard(one))


async def test_a_refused_or_malformed_socket_is_no_error_of_the_server(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InvalidStatus):
        async with socket(server, key="nonsense"):
            pass
    async with socket(server) as one:
        one.transport.write(b"\x81\x81\0\0\0\0\xff")
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(one.recv(), 60)
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]


class Odd(ScriptedModel):
    """A model whose answers are output that no client could send as input."""

    message: dict[str, Any]

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        head = {"id": "x", "object": "chat.completion.chunk", "model": "m"}
        yield chunk_of({**head, "choices": [{"index": 0, "delta": self.message, "finish_reason": None}]})
        yield chunk_of({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize(
    "message",
    [
        {"content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:x"}}]},
        {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "", "arguments": "{}"}}]},
    ],
    ids=["an image", "a call without a name"],
)
async def test_an_answer_that_cannot_be_input_reaches_its_end(
    start_server: StartServer, message: dict[str, Any], store: bool
) -> None:
    model = Odd()
    model.message = {"role": "assistant", **message}
    server = await start_server(model)
    async with socket(server) as opened:
        create = {"type": "response.create", "model": "m", "store": store}
        await opened.send(json.dumps({**create, "input": "x"}))
        event: dict[str, Any] = {"type": ""}
        while event["type"] not in open_responses.FINAL:
            event = json.loads(await asyncio.wait_for(opened.recv(), 60))
        response = event["response"]
        assert response["status"] == "completed"
        model.message = {"role": "assistant", "content": "more"}
        then = {**create, "input": "go on", "previous_response_id": response["id"]}
        await opened.send(json.dumps(then))
        events = await heard(opened)
        if store:  # it is continued from the store
            assert ended(events)["conversation"] == response["conversation"]
        else:
            assert code_of(events) == "previous_response_not_found"


async def test_too_many_messages_at_once_close_the_socket(start_server: StartServer) -> None:
    never = asyncio.Event()

    async def silent(*_: Any) -> str:
        await never.wait()
        return ""

    server = await start_server(ScriptedModel(silent))
    async with socket(server) as opened:
        with pytest.raises(ConnectionClosed) as closed:
            for number in range(20):
                await opened.send(
                    json.dumps({"type": "response.create", "input": str(number), "store": False})
                )
            while True:
                await opened.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
    never.set()


async def test_a_message_that_its_key_has_no_room_for_closes_an_idle_socket(server: Running) -> None:
    """Nothing reads from it any more: it must not stay open, and count as a stream, for an hour."""
    key = await server.key("ada")
    (found,) = await server.store.keys("ada")
    held = server.services.limits.bytes
    async with socket(server, key) as opened:
        ended(await ask(opened, input="one"))
        await until(lambda: not held.held(found.id), "the message before is no longer held")
        held.take(found.id, held._most)  # other requests of this key
        refused = await ask(opened, input="two")
        assert (refused[0]["status"], code_of(refused)) == (429, "too_many_bytes")
        with pytest.raises(ConnectionClosed) as closed:
            await asyncio.wait_for(opened.recv(), 60)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
    held.give_back(found.id, held._most)
    await until(lambda: not server.services.limits.streams.held(found.id), "its stream is given back")
    assert not held.held(found.id)


async def test_messages_that_never_end_count_for_their_key(server: Running) -> None:
    """A key could have 200 sockets, each with an unfinished message of 20 MB in memory."""
    key = await server.key("ada")
    (found,) = await server.store.keys("ada")
    held = server.services.limits.bytes
    size = 2 * SOCKET_UNCOUNTED
    unfinished = b"\x01\xff" + size.to_bytes(8) + b"\0\0\0\0" + b" " * size  # a first fragment
    async with socket(server, key) as one, socket(server, key) as two:
        one.transport.write(unfinished)
        await until(lambda: held.held(found.id) >= size, "the fragment counts")
        held.take(found.id, held._most - held.held(found.id))  # other requests of this key
        two.transport.write(unfinished)
        refused = await heard(two)
        assert (refused[0]["status"], code_of(refused)) == (429, "too_many_bytes")
        with pytest.raises(ConnectionClosed) as closed:
            await asyncio.wait_for(two.recv(), 60)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
        held.give_back(found.id, held.held(found.id) - size)
        rest = json.dumps({"type": "response.create", "model": "scripted", "input": "x"}).encode()
        one.transport.write(b"\x80\xfe" + len(rest).to_bytes(2) + b"\0\0\0\0" + rest)
        ended(await heard(one))
        await until(lambda: not held.held(found.id), "a whole message counts no more")
        one.transport.write(unfinished)
        await until(lambda: held.held(found.id) >= size, "the fragment counts")
    await until(lambda: not held.held(found.id), "nor does what a closed socket has sent")


async def test_messages_are_answered_in_their_order(server: Running) -> None:
    async with socket(server) as opened:
        for word in ("one", "two", "three"):
            await opened.send(json.dumps({"type": "response.create", "input": word, "store": False}))
        for word in ("one", "two", "three"):
            response = ended(await heard(opened))
            assert response["output"][0]["content"][0]["text"] == f"You said: {word}"


async def test_a_revoked_key_ends_an_idle_socket(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_socket, "LOOK_SECONDS", 0.05)
    key = await server.key("ada")
    async with socket(server, key) as opened:
        ended(await ask(opened, input="one"))
        (found,) = await server.store.keys("ada")
        await server.store.revoke_key(found.id, None)
        events = await heard(opened)
        assert events[0]["status"] == 401
        with pytest.raises(ConnectionClosed):
            await opened.recv()


async def test_an_old_socket_is_closed(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_socket, "MOST_SECONDS", 0.0)
    async with socket(server) as opened:
        assert code_of(await heard(opened)) == "websocket_connection_limit_reached"
        with pytest.raises(ConnectionClosed):
            await opened.recv()


async def test_a_server_that_stops_closes_its_sockets_after_the_response_under_way(
    start_server: StartServer,
) -> None:
    may_answer = asyncio.Event()

    async def answer(messages: Any, purpose: Any) -> str:
        await may_answer.wait()
        return echo(messages, purpose)

    server = await start_server(ScriptedModel(answer))
    async with socket(server) as idle, socket(server) as busy:
        await busy.send(json.dumps({"type": "response.create", "input": "one"}))
        await until(lambda: _is_asked(server), "the model is asked")
        server.services.draining.set()
        with pytest.raises(ConnectionClosed) as closed:
            await idle.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1012
        may_answer.set()
        response = ended(await heard(busy))
        with pytest.raises(ConnectionClosed) as closed:
            await busy.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1012
    assert (await get(server, response["id"]))["status"] == "completed"


async def _is_asked(server: Running) -> bool:
    return bool(server.model.calls)


async def test_closed_sockets_leave_nothing_behind(server: Running) -> None:
    for _ in range(3):
        async with socket(server) as opened:
            ended(await ask(opened, input="hello", store=False))
        opened = await connect(
            server.url.replace("http", "ws", 1) + "/v1/responses",
            additional_headers={"authorization": f"Bearer {server.admin_key}"},
            proxy=None,
        )
        await opened.send('{"type": "response.create", "input": "x"}')
        opened.transport.abort()

    async def is_quiet() -> bool:
        limits = server.services.limits
        return not limits.streams._held and not limits.bytes._held and server.connections.count <= 1

    await until(is_quiet, "no connection, stream or byte is counted")


async def test_a_compacted_history_goes_on_over_the_socket(start_server: StartServer) -> None:
    server = await start_server(summaries())
    threshold = [{"type": "compaction", "compact_threshold": 100}]
    long = [said("user", "word " * 200), said("assistant", "yes " * 200), said("user", "one")]
    async with socket(server) as opened:
        first = ended(await ask(opened, store=False, input=long, context_management=threshold))
        assert [item["type"] for item in first["output"]] == ["compaction", "message"]
        ended(await ask(opened, store=False, input="two", previous_response_id=first["id"]))
    texts = sent(server)
    assert "Launch on Tuesday." in texts[0]
    assert texts[1:] == ["one", "You said: one", "two"]


async def test_a_client_goes_on_after_its_server_was_replaced(tmp_path: Path) -> None:
    async def slow(messages: Any, purpose: Any) -> Any:
        async def words() -> AsyncIterator[str]:
            yield "half "
            await asyncio.Event().wait()

        return words()

    async with running_server(tmp_path, ScriptedModel(slow)) as first:
        connection = socket(first)
        opened = await connection.__aenter__()
        await opened.send(json.dumps({"type": "response.create", "input": "one"}))
        while (event := json.loads(await opened.recv()))["type"] != "response.output_text.delta":
            if event["type"] == "response.created":
                response_id = event["response"]["id"]
        seen = event["sequence_number"]
    with contextlib.suppress(ConnectionClosed):
        while True:
            event = json.loads(await opened.recv())
    assert event["type"] == "response.incomplete", "the end was told, or the connection broken"
    async with running_server(tmp_path) as second:
        missed = await resumed(second, response_id, after=seen)
        assert missed[-1]["type"] == "response.incomplete"
        async with socket(second) as opened:
            ended(await ask(opened, input="two", previous_response_id=response_id))
        texts = sent(second)
        assert texts[0] == "one" and texts[1].startswith("half") and texts[2] == "two"


async def completed(connection: AsyncResponsesConnection) -> Response:
    """The next response that the socket completes."""
    async for event in connection:
        if event.type == "response.completed":
            return event.response
    raise AssertionError("the socket was closed")


async def test_the_official_sdk_converses_over_a_socket(server: Running) -> None:
    client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.admin_key)
    async with client, client.responses.connect() as connection:
        await connection.response.create(model="scripted", input="one", store=False)
        first = await completed(connection)
        assert first.output_text == "You said: one"
        await connection.response.create(
            model="scripted", input="two", store=False, previous_response_id=first.id
        )
        await completed(connection)
    assert sent(server) == ["one", "You said: one", "two"]
