"""Limits of connections and request heads, tried over plain sockets: what is too much is refused and closed,
and what follows a request's head never becomes a header of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from holdfast.server import connections
from holdfast.server.connections import Connections
from holdfast.server.limits import (
    HEAD_BYTES,
    HEADERS,
    PIPELINED,
    SMALL_CHUNK,
    SMALL_CHUNKS,
    connection_limit,
    files_wanted,
)
from tests.integration.api.conftest import Running

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
CHAT = "/v1/chat/completions"


@asynccontextmanager
async def connected(server: Running) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def answer_to(server: Running, *pieces: bytes) -> tuple[int, dict[str, str], bytes]:
    """The first answer on a connection of its own: status, headers, body."""
    async with connected(server) as (reader, writer):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await read_answer(reader)


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(status.split()[1]), headers, await reader.readexactly(int(headers["content-length"]))


def code_in(body: bytes) -> Any:
    error = msgspec.json.decode(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error["code"]


def fields(count: int) -> bytes:
    return b"".join(b"x-%d: y\r\n" % number for number in range(count))


# --- the body ------------------------------------------------------------------------------------------


async def posted(server: Running, size: int, count: int) -> bytes:
    """What a chat request is answered whose text arrives in `count` chunks of `size` bytes."""
    key = await server.key("ada")
    chunk = b"%x\r\n%b\r\n" % (size, b"x" * size)
    head = b'{"messages": [{"role": "user", "content": "'
    async with connected(server) as (reader, writer):
        writer.write(
            b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %b\r\nConnection: close\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n" % (CHAT.encode(), key.encode())
        )
        try:
            writer.write(b"%x\r\n%b\r\n" % (len(head), head) + chunk * count + b'4\r\n"}]}\r\n0\r\n\r\n')
            await writer.drain()
            return await asyncio.wait_for(reader.read(), 60)
        except ConnectionResetError:
            return b""


async def test_a_body_may_come_in_chunks_but_not_in_any_number_of_tiny_ones(server: Running) -> None:
    """Chunks of one byte held the event loop for seconds: each cost as much as a large one."""
    assert (await posted(server, SMALL_CHUNK, 2 * SMALL_CHUNKS)).startswith(b"HTTP/1.1 200")
    assert (await posted(server, 1, SMALL_CHUNKS - 100)).startswith(b"HTTP/1.1 200")
    stored = msgspec.json.decode(server.model.requests[-1].messages)
    assert [each["content"] for each in stored] == ["x" * (SMALL_CHUNKS - 100)]
    assert await posted(server, 1, SMALL_CHUNKS + 100) == b""
    assert (await server.client.get("/healthz")).status_code == 200


# --- the head ------------------------------------------------------------------------------------------


async def test_a_hundred_headers_are_taken_and_one_more_is_a_431(server: Running) -> None:
    status, _, _ = await answer_to(server, HEALTH, fields(HEADERS - 1), b"\r\n")
    assert status == 200
    status, headers, body = await answer_to(server, HEALTH, fields(HEADERS), b"\r\n")
    assert (status, code_in(body)) == (431, "headers_too_large")
    assert headers["connection"] == "close"
    assert headers["x-request-id"].startswith("req_")


async def test_a_head_of_64_kib_is_taken_and_a_larger_one_is_a_431(server: Running) -> None:
    rest = HEAD_BYTES - len(b"/healthz" + b"Host127.0.0.1" + b"x")
    status, _, _ = await answer_to(server, HEALTH, b"x: ", b"y" * rest, b"\r\n\r\n")
    assert status == 200
    status, _, body = await answer_to(server, HEALTH, b"x: ", b"y" * (rest + 1), b"\r\n\r\n")
    assert (status, code_in(body)) == (431, "headers_too_large")


ENDLESS = {
    "a header's value": HEALTH + b"x: ",
    "a header's name": HEALTH,
    "a URL": b"GET /",
    "a query": b"GET /healthz?",
    "a method": b"",
    "a trailer": b"POST /api/sweep HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx: ",
    "a chunk's extension": b"POST /x HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n5;",
}


@pytest.mark.parametrize("what", ENDLESS)
async def test_what_never_ends_is_refused_without_being_kept(server: Running, what: str) -> None:
    async with connected(server) as (reader, writer):
        writer.write(ENDLESS[what])
        answered = asyncio.create_task(reader.read())
        for _ in range(4096):  # 64 MiB, in pieces
            writer.write(b"x" * 16384)
            try:
                await writer.drain()
            except OSError:
                break
            if answered.done():
                break
        else:
            pytest.fail("it was read to the end")
        said = (await asyncio.gather(answered, return_exceptions=True))[0]
        if isinstance(said, bytes):
            assert said == b"" or said.split()[1] in (b"400", b"431", b"401", b"404"), said


async def test_blank_lines_without_end_are_refused(server: Running) -> None:
    status, _, _ = await answer_to(server, b"\r\n" * HEAD_BYTES)
    assert status in (400, 431)


async def test_what_is_not_http_is_a_400_that_names_no_program(server: Running) -> None:
    status, headers, body = await answer_to(server, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
    assert (status, code_in(body)) == (400, "invalid_http")
    assert "server" not in headers


async def test_an_answer_that_comes_before_the_request_is_whole_can_be_read(server: Running) -> None:
    """The rest of the request is dropped for a while: a reset would destroy the answer on its way."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000000\r\n\r\n"
    async with connected(server) as (reader, writer):
        writer.write(head + b"x" * 300_000)
        status, _, _ = await read_answer(reader)
        assert status == 401
        writer.write(b"x" * 300_000)
        await writer.drain()
        assert await reader.read() == b"", "no second answer is made of the rest of the body"


# --- trailers ------------------------------------------------------------------------------------------


async def test_trailers_are_no_headers(server: Running) -> None:
    """Whatever stands behind the body is dropped: a proxy has checked only what stood before it."""
    ada = await server.key("ada")
    start = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n".encode()
    body = b'{"messages": [{"role": "user", "content": "hello"}]}'
    chunk = b"%x\r\n%b\r\n0\r\n" % (len(body), body)
    key = f"Authorization: Bearer {ada}\r\n".encode()
    status, _, _ = await answer_to(server, start + b"\r\n" + chunk + key + b"\r\n")
    assert status == 401, "a key in a trailer opens nothing"
    others = b"X-Holdfast-Session-Key: other\r\nX-Holdfast-Owner: bob\r\nHost: evil.example\r\n"
    status, headers, _ = await answer_to(server, start + key + b"\r\n" + chunk + others + b"\r\n")
    assert status == 200
    client = await server.with_token(ada)
    session = (await client.get(f"/api/sessions/{headers['x-holdfast-session-id']}")).json()
    assert session["key"] is None


# --- time ----------------------------------------------------------------------------------------------


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)


@pytest.mark.usefixtures("hasty")
async def test_a_connection_that_says_nothing_is_closed(server: Running) -> None:
    async with connected(server) as (reader, _):
        assert await asyncio.wait_for(reader.read(), 60) == b""


@pytest.mark.usefixtures("hasty")
async def test_a_head_that_does_not_arrive_is_a_408(server: Running) -> None:
    for before in (b"", HEALTH + b"\r\n"):  # the first request, and a later one
        async with connected(server) as (reader, writer):
            writer.write(before)
            if before:
                assert (await read_answer(reader))[0] == 200
            writer.write(HEALTH)
            status, _, body = await asyncio.wait_for(read_answer(reader), 60)
            assert (status, code_in(body)) == (408, "request_timeout")


@pytest.mark.usefixtures("hasty")
async def test_a_head_that_comes_byte_by_byte_gets_no_more_time(server: Running) -> None:
    async with connected(server) as (reader, writer):
        answered = asyncio.create_task(read_answer(reader))
        while not answered.done():
            writer.write(b"x")
            await asyncio.sleep(0.02)
        assert answered.result()[0] in (400, 408)


@pytest.mark.usefixtures("hasty")
async def test_a_blank_line_between_requests_does_not_keep_a_connection_for_ever(server: Running) -> None:
    async with connected(server) as (reader, writer):
        writer.write(HEALTH + b"\r\n")
        await read_answer(reader)
        writer.write(b"\r\n")
        assert await asyncio.wait_for(reader.read(), 60) == b""


async def test_a_client_that_takes_nothing_of_its_answer_is_disconnected(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STALL_SECONDS", 0.2)
    client = await server.client_of("ada")
    large = {"role": "user", "content": "x" * 8_000_000}
    said = await client.post("/v1/conversations", json={"items": [large]})
    path = f"/v1/conversations/{said.json()['id']}/items"
    async with connected(server) as (_, writer):
        key = client.headers["authorization"]
        assert server.connections.count == 2
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {key}\r\n\r\n".encode())
        async with asyncio.timeout(60):
            while server.connections.count > 1:
                await client.get("/healthz")


# --- number --------------------------------------------------------------------------------------------


def test_connections_are_fewer_than_files() -> None:
    for requests in (1, 10, 1000, 100_000):
        files = files_wanted(requests)
        most = connection_limit(files, requests)
        assert most + requests < files, "room for the model's sockets and the store"
        assert most == 2 * requests
    assert connection_limit(1024, 1000) == 549, "where fewer files are allowed, fewer connections are"
    assert connection_limit(64, 1000) == 1


class _Connection:
    """What `Connections` needs of one."""

    def __init__(self) -> None:
        self.transport = self
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def test_at_the_limit_the_connection_that_waits_longest_makes_room() -> None:
    shared = Connections(3)
    first, second, third, fourth, fifth, sixth = every = [_Connection() for _ in range(6)]
    known: list[Any] = every
    assert all(shared.enter(each) for each in known[:3])
    shared.busy(known[0])
    assert shared.enter(known[3])
    assert (first.aborted, second.aborted, third.aborted) == (False, True, False)
    shared.leave(known[1])
    shared.busy(known[2])
    shared.idle(known[2])  # it had a request: those that never had one go first
    assert shared.enter(known[4])
    assert (third.aborted, fourth.aborted) == (False, True)
    shared.leave(known[3])
    for each in known[:5]:
        shared.busy(each)
    assert not shared.enter(known[5]), "each has a request under way"
    assert not (first.aborted or third.aborted or fifth.aborted or sixth.aborted)


async def test_requests_that_are_piled_up_on_one_connection_are_not_all_taken_in(server: Running) -> None:
    async with connected(server) as (reader, writer):
        writer.write((HEALTH + b"\r\n") * 4)
        for _ in range(4):
            assert (await read_answer(reader))[0] == 200
    async with connected(server) as (reader, writer):
        writer.write((HEALTH + b"\r\n") * 20_000)
        said = (await asyncio.gather(reader.read(), return_exceptions=True))[0]
        assert not isinstance(said, bytes) or said.count(b"HTTP/1.1 200") <= PIPELINED + 1


async def test_a_wish_for_another_protocol_is_ignored(server: Running) -> None:
    wish = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n"
    status, _, _ = await answer_to(server, HEALTH + wish)
    assert status == 200


async def test_every_answer_forbids_guessing_its_type(server: Running) -> None:
    for path in ("/healthz", "/api/sessions", "/api/nothing", "/openapi.json", "/metrics", "/login"):
        response: httpx.Response = await server.client.get(path)
        assert response.headers.get_list("x-content-type-options") == ["nosniff"], path
