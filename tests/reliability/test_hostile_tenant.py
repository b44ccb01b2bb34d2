"""One tenant tries to exhaust, block or stop a shared server; other tenants notice almost nothing.

A real `holdfast serve` process. Mallory has a `chat` key, or none, and tries sizes, counts, names, searches,
streams, slow bodies, responses she does not read, silent connections. Ada has a key of another owner:
throughout she talks, lists and checks the server's health. Each of her requests must succeed, with her own
data, in bounded time, and the process and its memory must survive.

Each attack also checks that it met its limit: a server without that limit is caught even on a machine that is
fast enough not to suffer (`no-header-limit`, `no-stream-limit`, `trailers-are-headers`, `no-frame-limit` in
mutants.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import DatabaseMaker

from .conftest import Tell
from .serving import Server, reserved_ports, servers
from .sizes import Size, short_and_soak

REQUESTS, STREAMS, TURNS, MESSAGES = 100, 30, 20, 1000
CONNECTIONS = 2 * REQUESTS
PATIENCE = 60.0
"""How long any of Ada's requests may take at most: a server that is blocked or locks her out takes longer."""
GROWTH_MB = 700
"""How much memory the server may have needed at its peak beyond what it began with."""
CHAT = "/v1/chat/completions"


@dataclass
class Scene:
    """A server under attack, and its two tenants."""

    port: int
    pid: int
    ada: httpx.AsyncClient
    mallory: httpx.AsyncClient
    larger: int = 1
    """How many times as much the attacks do."""
    latencies: list[float] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    silent: list[asyncio.StreamWriter] = field(default_factory=list)
    """Connections that stay until the end."""

    @property
    def key(self) -> str:
        return self.mallory.headers["authorization"]

    def memory_mb(self, which: str = "VmRSS") -> int:
        with open(f"/proc/{self.pid}/status") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith(which)) // 1024

    def hang_up(self) -> None:
        for writer in self.silent:
            writer.close()
        self.silent.clear()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def send(self, *pieces: bytes) -> int:
        """The status of the answer to what is sent on a connection of its own; 0: it was closed."""
        reader, writer = await self.connect()
        try:
            answer = asyncio.create_task(reader.read(16))
            with contextlib.suppress(OSError):
                for piece in pieces:
                    if answer.done():
                        break
                    writer.write(piece)
                    await writer.drain()
            async with asyncio.timeout(PATIENCE):
                said = (await asyncio.gather(answer, return_exceptions=True))[0]
            return int(said.split()[1]) if isinstance(said, bytes) and said else 0
        finally:
            writer.close()


# --- the bystander -------------------------------------------------------------------------------------


async def bystand(scene: Scene, over: asyncio.Event) -> None:
    """Ada goes about her business until it is over."""
    while not over.is_set():
        await one_round(scene)
        await asyncio.sleep(0.05)


async def one_round(scene: Scene) -> None:
    text = f"line {len(scene.said)}"
    body = {"messages": [{"role": "user", "content": text}]}
    answer = await timed(scene, lambda: scene.ada.post(CHAT, json=body))
    assert answer["choices"][0]["message"]["content"] == f"You said: {text}"
    scene.said += [text, f"You said: {text}"]
    alive = await timed(scene, lambda: scene.ada.get("/healthz"))
    assert alive["status"] == "ok"
    listed = await timed(scene, lambda: scene.ada.get("/api/sessions"))
    assert {each["key"] for each in listed["data"]} == {"ada:1"}, "her own, and nothing else"


async def timed(scene: Scene, ask: Callable[[], Awaitable[httpx.Response]]) -> Any:
    began = time.monotonic()
    answer = await ask()
    scene.latencies.append(time.monotonic() - began)
    assert answer.status_code == 200, answer.text
    return answer.json()


# --- attacks without a key -----------------------------------------------------------------------------

HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"


async def endless_heads(scene: Scene) -> None:
    """Headers without end, in lines and in one line, a URL without end: 16 MiB of each."""
    before = scene.memory_mb()
    for first, piece in (
        (HEAD, b"a:b\r\n" * 13_000),
        (HEAD + b"x: ", b"x" * 65_536),
        (b"GET /", b"x" * 65_536),
        (b"", b"\r\n" * 32_768),
    ):
        status = await scene.send(first, *[piece] * 256 * scene.larger)
        assert status in (400, 431), "a head without end was taken in"
    assert scene.memory_mb() - before < 100, "what is refused is not kept"


async def trailing_fields(scene: Scene) -> None:
    """A key behind the body opens nothing, and fields without end there are not kept."""
    head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n"
    authorized = f"{head}Authorization: {scene.key}\r\n\r\n".encode()
    assert await scene.send(authorized) == 401, "a trailer was taken for a header"
    assert await scene.send(head.encode(), *[b"a:b\r\n" * 13_000] * 64) in (0, 401)


async def empty_frames(scene: Scene) -> None:
    """A WebSocket of a hundred thousand empty fragments is closed after some of them."""
    reader, writer = await scene.connect()
    head = f"GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {scene.key}\r\n"
    writer.write(
        f"{head}Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    try:
        async with asyncio.timeout(PATIENCE):
            assert b" 101 " in await reader.readline()
            while await reader.readline() != b"\r\n":
                pass
            writer.write(b"\x01\x80\0\0\0\0" + b"\x00\x80\0\0\0\0" * 100_000)
            closed = await reader.readexactly(4)
        assert (closed[0], closed[2:]) == (0x88, b"\x03\xf0"), f"closed with 1008, not {closed!r}"
    except TimeoutError:
        pytest.fail("a socket may send any number of empty frames")
    finally:
        writer.close()


async def silent_connections(scene: Scene) -> None:
    """More connections than the server takes, which say nothing. They stay while the other attacks run."""
    for _ in range(3 * CONNECTIONS):
        _, writer = await scene.connect()
        scene.silent.append(writer)


async def piled_up_requests(scene: Scene) -> None:
    """Thousands of requests on one connection, of which no answer is read."""
    for _ in range(5):
        _, writer = await scene.connect()
        with contextlib.suppress(OSError):
            writer.write((HEAD + b"\r\n") * 20_000)
        scene.silent.append(writer)


# --- attacks with a key --------------------------------------------------------------------------------


async def many_streams(scene: Scene) -> None:
    """As many streams as there are, of events and of the dashboard: only so many are given."""
    async with AsyncExitStack() as streams:
        statuses = []
        for number in range(2 * STREAMS):
            path = "/api/events" if number % 2 else "/live"
            answer = await streams.enter_async_context(scene.mallory.stream("GET", path))
            statuses.append(answer.status_code)
        assert statuses == [200] * STREAMS + [429] * STREAMS, "one key had more streams than it may"


async def slow_bodies(scene: Scene) -> None:
    """Requests whose bodies never come: they take no more than a key's share of the room."""
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {scene.key}\r\nContent-Length: 9\r\n\r\n"
    )
    slow = [await scene.connect() for _ in range(REQUESTS - 5)]
    for _, writer in slow:
        writer.write(head.encode() + b"{")
    refused = [asyncio.create_task(reader.read(12)) for reader, _ in slow]
    done, waiting = await asyncio.wait(refused, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    assert done and all(each.result() == b"HTTP/1.1 429" for each in done), "beyond its share"
    assert (await scene.ada.get("/api/sessions")).status_code == 200
    for _, writer in slow:
        writer.close()
    await asyncio.gather(*waiting, return_exceptions=True)


async def huge_requests(scene: Scene) -> None:
    """Bodies of many messages, parts, values: refused before they are made."""
    message = {"role": "user", "content": "x"}
    part = {"type": "text", "text": "x"}
    many = json.dumps({"messages": [message] * 200_000}).encode()
    parts = json.dumps({"messages": [{"role": "user", "content": [part] * 30_000}]}).encode()
    values = b'{"messages": [' + b"[]," * 6_000_000 + b"0]}"
    few = json.dumps({"messages": [message] * (MESSAGES + 1)}).encode()
    for body in (many, parts, values, few):
        answer = await scene.mallory.post(CHAT, content=body)
        assert answer.status_code == 400, answer.text[:200]
        assert "messages_per_request" in answer.text
    history = [message, {"role": "assistant", "content": "y"}] * (MESSAGES // 2 - 1)
    answer = await scene.mallory.post(CHAT, json={"messages": [*history, message]})
    assert answer.status_code == 200


async def large_items(scene: Scene) -> None:
    """Large items, and answers of many MiB that nobody reads."""
    made = (await scene.mallory.post("/v1/conversations", json={})).json()
    path = f"/v1/conversations/{made['id']}/items"
    item = {"role": "user", "content": [{"type": "input_text", "text": "x" * 10_000_000}]}
    for _ in range(scene.larger):
        answer = await scene.mallory.post(path, json={"items": [item]})
        assert answer.status_code in (200, 400, 413, 429), answer.text[:200]
    ask = f"GET {path}?limit=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {scene.key}\r\n\r\n".encode()
    for _ in range(6 * scene.larger):
        _, writer = await scene.connect()
        writer.write(ask)
        scene.silent.append(writer)


async def odd_names(scene: Scene) -> None:
    """Names that are long, look like others' or mean something elsewhere."""
    names = ("n" * 512, "é" * 256, "日" * 170, "ada:1", "../../etc", "' OR 1=1 --", "a\u200bb", "x" * 513)
    for name in names:
        headers = [(b"x-holdfast-session-key", name.encode())]
        answer = await scene.mallory.post(
            CHAT, json={"messages": [{"role": "user", "content": "mine"}]}, headers=headers
        )
        assert answer.status_code in (200, 400), answer.text
    turns = [
        scene.mallory.post(
            CHAT,
            json={"messages": [{"role": "user", "content": "again"}]},
            headers={"x-holdfast-session-key": "one conversation"},
        )
        for _ in range(2 * TURNS)
    ]
    statuses = {answer.status_code for answer in await asyncio.gather(*turns)}
    assert 200 in statuses and statuses <= {200, 429, 409}


async def long_searches(scene: Scene) -> None:
    """Searches of thousands of words, several at once."""
    words = " ".join(f"word{number} line" for number in range(700))
    searches = [scene.mallory.get("/api/search", params={"q": words}) for _ in range(4)]
    statuses = {answer.status_code for answer in await asyncio.gather(*searches)}
    assert statuses <= {200, 400}


ATTACKS = (
    silent_connections,
    endless_heads,
    trailing_fields,
    empty_frames,
    piled_up_requests,
    many_streams,
    slow_bodies,
    huge_requests,
    large_items,
    odd_names,
    long_searches,
)


# --- the whole -----------------------------------------------------------------------------------------


@asynccontextmanager
async def under_attack(store_url: str | None, larger: int) -> AsyncIterator[Scene]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 8192) if hard != resource.RLIM_INFINITY else 8192
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    more = {
        "HOLDFAST_MODEL__KIND": "scripted",
        "HOLDFAST_MODEL__BASE_URL": "",
        "HOLDFAST_SERVER__MAX_REQUESTS": str(REQUESTS),
        "HOLDFAST_LIMITS__MESSAGES_PER_REQUEST": str(MESSAGES),
        "HOLDFAST_LIMITS__STREAMS_PER_KEY": str(STREAMS),
        "HOLDFAST_LIMITS__TURNS_PER_KEY": str(TURNS),
        **({"HOLDFAST_STORE__URL": store_url} if store_url else {}),
    }
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-") as directory,
        reserved_ports(1) as (port,),
        servers(Path(directory) / "home", "") as starter,
    ):
        starter.environment.update(more)
        tokens = await asyncio.gather(*(_key(starter, owner) for owner in ("ada", "mallory")))
        server = starter.start(port, 0.5)
        assert await server.ready(), starter.log.read_text()
        try:
            async with AsyncExitStack() as stack:
                ada, mallory = [await stack.enter_async_context(_client(port, token)) for token in tokens]
                ada.headers["x-holdfast-session-key"] = "ada:1"
                yield Scene(port, server.pid, ada, mallory, larger)
        finally:
            await _end(server)


def _client(port: int, token: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}",
        headers={"authorization": f"Bearer {token}"},
        timeout=2 * PATIENCE,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=5),
        trust_env=False,
    )


async def _key(starter: Any, owner: str) -> str:
    made = await asyncio.to_thread(starter.command, "keys", "create", "--owner", owner, "--json")
    return str(json.loads(made.stdout)["key"])


async def _end(server: Server) -> None:
    import signal

    server.send(signal.SIGTERM)
    assert await server.ended() == 0, "it did not end in good order"


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> str | None:
    if request.param == "sqlite":
        return None
    maker: DatabaseMaker = request.getfixturevalue("new_database")
    return maker()


@short_and_soak(Size("short", 1), Size("soak", 5, 300.0))
async def test_no_tenant_can_exhaust_block_or_stop_the_others(
    size: Size, store_url: str | None, figures: Tell
) -> None:
    async with under_attack(store_url, 1 if size.name == "short" else 3) as scene:
        for _ in range(5):
            await one_round(scene)
        calm, began_mb = list(scene.latencies), scene.memory_mb()
        scene.latencies.clear()
        over = asyncio.Event()
        bystander = asyncio.create_task(bystand(scene, over))
        took: dict[str, float] = {}
        try:
            for _ in size.rounds():
                for attack in ATTACKS:
                    began = time.monotonic()
                    await attack(scene)
                    took[attack.__name__] = time.monotonic() - began
                    assert not bystander.done(), bystander.result()
                scene.hang_up()
        finally:
            over.set()
            scene.hang_up()
            await asyncio.gather(bystander, return_exceptions=True)
        bystander.result()
        worst, usual = max(scene.latencies), statistics.median(scene.latencies)
        grown = scene.memory_mb("VmHWM") - began_mb
        assert worst < PATIENCE, f"Ada once waited {worst:.1f} s"
        assert grown < GROWTH_MB, f"the server needed {grown} MB more"
        listed = (await scene.ada.get("/api/sessions")).json()["data"]
        kept = (
            await scene.ada.get(f"/api/sessions/{listed[0]['id']}/messages?scope=conversation&limit=100")
        ).json()["data"]
        assert [each["content"] for each in kept] == scene.said[: len(kept)]
        figures(
            f"hostile tenant, {'postgres' if store_url else 'sqlite'}: {len(scene.latencies)} requests of a "
            f"bystander during {len(ATTACKS)} attacks; median {usual * 1000:.0f} ms (calm "
            f"{statistics.median(calm) * 1000:.0f}), worst {worst:.2f} s; memory +{grown} MB"
        )
        print({name: round(seconds, 1) for name, seconds in took.items()})
