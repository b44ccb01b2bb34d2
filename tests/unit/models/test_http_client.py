"""The HTTP client of upstreams: framing, reuse of connections, back-pressure, and the failures of a peer."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.models.http_client import (
    BUFFER_BYTES,
    HEAD_BYTES,
    BrokenBody,
    ConnectTimeout,
    Disconnected,
    HttpClient,
    InvalidResponse,
)

GET = b"GET /v1/models HTTP/1.1\r\nHost: model\r\n\r\n"
PATIENCE = 30.0
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Peer:
    """A server that answers each request of each connection with `answer`."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.connections = 0
        self.requests = 0
        self.closed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while not writer.is_closing():
                await reader.readuntil(b"\r\n\r\n")
                self.requests += 1
                await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.closed.set()
            writer.close()


@asynccontextmanager
async def talking_to(answer: Answer | bytes) -> AsyncIterator[tuple[HttpClient, Peer]]:
    """A client, and its peer; bytes are the peer's response to every request."""

    async def fixed(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert isinstance(answer, bytes)
        writer.write(answer)

    peer = Peer(fixed if isinstance(answer, bytes) else answer)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = HttpClient("127.0.0.1", port, tls=False, connect_seconds=PATIENCE)
    try:
        yield client, peer
    finally:
        client.close()
        server.close()


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nT: 1\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
    ],
    ids=["length", "chunked", "informational", "bare line feeds"],
)
async def test_a_whole_response_is_read_and_its_connection_reused(response: bytes) -> None:
    async with talking_to(response) as (client, peer):
        for _ in range(3):
            answer = await client.request(GET, b"", PATIENCE)
            assert answer.status == 200
            assert "link" not in answer.headers
            assert "t" not in answer.headers
            assert await answer.read() == b"hello"
            assert answer.at_eof
            answer.close()
        assert (peer.connections, peer.requests) == (1, 3)


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad",
    ],
    ids=["says close", "HTTP/1.0", "sends more than was asked for"],
)
async def test_a_connection_that_cannot_be_trusted_is_not_reused(response: bytes) -> None:
    async with talking_to(response) as (client, peer):
        for _ in range(2):
            assert await (await client.request(GET, b"", PATIENCE)).read() == b"hello"
        assert peer.connections == 2


async def test_a_response_without_a_length_ends_with_its_connection() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhel")
        await writer.drain()
        writer.write(b"lo")
        writer.close()

    async with talking_to(answer) as (client, _):
        assert await (await client.request(GET, b"", PATIENCE)).read() == b"hello"


async def test_pieces_are_given_before_the_failure_that_follows_them() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhel")
        writer.close()

    async with talking_to(answer) as (client, _):
        response = await client.request(GET, b"", PATIENCE)
        assert await response.readany() == b"hel"
        with pytest.raises(BrokenBody):
            await response.readany()
        with pytest.raises(BrokenBody):  # for good
            await response.readany()


@pytest.mark.parametrize(
    ("sent", "failure"),
    [
        (b"", Disconnected),
        (b"SSH-2.0-OpenSSH_9.9\r\n", InvalidResponse),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * (HEAD_BYTES + 1), InvalidResponse),
        (b"HTTP/1.1 200 OK\r\nContent-Len", Disconnected),
    ],
    ids=["nothing", "no HTTP", "endless head", "half a head"],
)
async def test_a_peer_that_gives_no_response(sent: bytes, failure: type[Exception]) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        writer.close()

    async with talking_to(answer) as (client, _):
        with pytest.raises(failure):
            await client.request(GET, b"", PATIENCE)


async def test_silence_is_a_timeout_before_and_inside_a_response() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if peer.requests > 1:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhel")
        await asyncio.Event().wait()

    async with talking_to(answer) as (client, peer):
        with pytest.raises(TimeoutError):
            await client.request(GET, b"", 0.05)
        response = await client.request(GET, b"", 2.0)
        assert await response.readany() == b"hel"
        with pytest.raises(TimeoutError):
            await response.readany()


async def test_a_slow_body_is_no_silence() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
        for letter in b"hello":
            await asyncio.sleep(0.5)
            writer.write(bytes([letter]))

    async with talking_to(answer) as (client, _):  # 2.5 s in all: longer than the silence that is allowed
        assert await (await client.request(GET, b"", 2.0)).read() == b"hello"


async def test_a_body_that_is_not_read_is_not_received() -> None:
    whole = b"x" * (64 * BUFFER_BYTES)
    sent = asyncio.Event()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(whole) + whole)
        await writer.drain()
        sent.set()

    async with talking_to(answer) as (client, _):
        response = await client.request(GET, b"", PATIENCE)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sent.wait(), 0.3)
        assert await response.read() == whole
        await asyncio.wait_for(sent.wait(), PATIENCE)


async def test_a_body_is_sent_with_its_head() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = await reader.readexactly(3_000_000)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n%b" % body[-3:])

    async with talking_to(answer) as (client, _):
        head = b"POST / HTTP/1.1\r\nHost: model\r\nContent-Length: 3000000\r\n\r\n"
        response = await client.request(head, b"x" * 2_999_997 + b"end", PATIENCE)
        assert await response.read() == b"end"


async def test_a_connection_whose_request_was_not_taken_is_not_reused() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await asyncio.Event().wait()  # reads nothing of the body

    async with talking_to(answer) as (client, peer):
        for _ in range(2):
            response = await client.request(GET, b"x" * 50_000_000, PATIENCE)
            assert (response.status, await response.read()) == (413, b"no")
        assert peer.connections == 2


async def test_a_connection_closed_while_idle_is_replaced() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    async with talking_to(answer) as (client, peer):
        for _ in range(3):
            assert await (await client.request(GET, b"", PATIENCE)).read() == b"ok"
            await asyncio.wait_for(peer.closed.wait(), PATIENCE)
            peer.closed.clear()
            await asyncio.sleep(0.05)  # the end of the connection arrives
        assert peer.connections == 3


@pytest.mark.parametrize("begins", [False, True])
async def test_giving_up_a_response_closes_its_connection(begins: bool) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if begins:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhel")

    async with talking_to(answer) as (client, peer):
        if begins:
            (await client.request(GET, b"", PATIENCE)).close()
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.request(GET, b"", PATIENCE), 0.2)
        await asyncio.wait_for(peer.closed.wait(), PATIENCE)


async def test_closing_the_client_closes_idle_and_busy_connections() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhel")

    async with talking_to(answer) as (client, peer):
        response = await client.request(GET, b"", PATIENCE)
        client.close()
        await asyncio.wait_for(peer.closed.wait(), PATIENCE)
        assert await response.readany() == b"hel"
        with pytest.raises(BrokenBody):
            await response.readany()


async def test_no_connection_within_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("aiohappyeyeballs.start_connection", never)
    client = HttpClient("127.0.0.1", 9, tls=False, connect_seconds=0.05)
    with pytest.raises(ConnectTimeout):
        await client.request(GET, b"", PATIENCE)


def certificate(directory: Path) -> Path:
    """A file with a key and a certificate of `localhost` that it has signed itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = directory / "localhost.pem"
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    return file


async def test_tls_needs_a_trusted_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")

    file, peer = certificate(tmp_path), Peer(answer)
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    theirs.load_cert_chain(file)
    server = await asyncio.start_server(peer.serve, "localhost", 0, ssl=theirs)
    port = server.sockets[0].getsockname()[1]
    client = HttpClient("localhost", port, tls=True, connect_seconds=PATIENCE)
    with pytest.raises(ssl.SSLCertVerificationError):
        await client.request(GET, b"", PATIENCE)
    assert peer.requests == 0
    monkeypatch.setattr(
        "holdfast.models.http_client._tls_context", lambda: ssl.create_default_context(cafile=file)
    )
    client = HttpClient("localhost", port, tls=True, connect_seconds=PATIENCE)
    for _ in range(2):
        assert await (await client.request(GET, b"", PATIENCE)).read() == b"hello"
    assert peer.connections == 1
    client.close()
    server.close()
