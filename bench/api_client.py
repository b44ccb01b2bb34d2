"""The clients of the API table: one process, keep-alive raw sockets, each client waiting for its whole reply.

A script that reads one JSON job from its command line and prints one JSON line, as the peers do. Replies are
checked: a status other than 200, a reply that ends early or a text that is not the model's fails the
measurement. The job sets how a conversation is addressed: `turns` of them under one session key, then a new
key; with 0, no key, so that every request begins a conversation.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, cast

import psutil
import uvloop
from api_mock import LONG, PLAIN, SHORT, Manner, reply_text
from measure import Stopwatch, answer, message_bodies

CONTENT = re.compile(rb'"content": ?"[^"]')
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
WARM_UP_SECONDS = 0.5
LAST_CHUNK = b"\r\n0\r\n\r\n"
LONG_STREAMS = 10


@dataclass(frozen=True)
class ClientJob:
    """One measurement of the server on `port`, which is the process `pid` and its children."""

    phase: str
    port: int
    pid: int
    clients: int = 1
    seconds: float = 1.0
    model: str = PLAIN
    turns: int = 0
    key: str = "bench"

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_argv(cls) -> ClientJob:
        return cls(**json.loads(sys.argv[1]))


class Failed(Exception):
    """What a server did that no measurement can be made of."""


class Connection(asyncio.Protocol):
    """One keep-alive connection. `ask` gives the reply's body; `on_first` hears of its first bit of text."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._replied: asyncio.Future[bytes] | None = None
        self._on_first: Callable[[], None] | None = None
        self._head_end = 0
        self._length: int | None = None
        self._transport: asyncio.Transport | None = None

    async def ask(self, request: bytes, on_first: Callable[[], None] | None = None) -> bytes:
        """Raises Failed if the reply is not a whole 200."""
        assert self._transport is not None
        self._received.clear()
        self._head_end, self._length, self._on_first = 0, None, on_first
        self._replied = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._replied

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, error: Exception | None) -> None:
        if self._replied is not None and not self._replied.done():
            self._replied.set_exception(Failed(f"the connection was lost mid-reply ({error})"))

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        if not self._head_end and not self._read_head():
            return
        if self._on_first is not None and CONTENT.search(received, self._head_end):
            self._on_first()
            self._on_first = None
        if self._length is not None:
            whole = len(received) >= self._head_end + self._length
        else:
            whole = received.endswith(LAST_CHUNK)
        if whole and self._replied is not None and not self._replied.done():
            self._reply(self._replied)

    def _read_head(self) -> bool:
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return False
        self._head_end = end + 4
        found = LENGTH.search(self._received, 0, end)
        self._length = int(found[1]) if found else None
        return True

    def _reply(self, replied: asyncio.Future[bytes]) -> None:
        body = bytes(self._received[self._head_end :])
        if self._received[9:12] == b"200":
            replied.set_result(body if self._length is not None else unchunked(body))
        else:
            status = bytes(self._received[9:12]).decode()
            replied.set_exception(Failed(f"answered {status}: {body[:200].decode(errors='replace')}"))


def unchunked(body: bytes) -> bytes:
    """The bytes that were sent in chunks."""
    pieces, at = list[bytes](), 0
    while True:
        line = body.index(b"\r\n", at)
        size = int(body[at:line], 16)
        if not size:
            return b"".join(pieces)
        pieces.append(body[line + 2 : line + 2 + size])
        at = line + 2 + size + 2


def streamed_text(body: bytes) -> str:
    """The text of a chat stream that ends as it should."""
    events = [line[6:] for line in body.splitlines() if line.startswith(b"data: ")]
    if events[-1:] != [b"[DONE]"]:
        raise Failed(f"a stream ended without [DONE]: …{body[-200:].decode(errors='replace')}")
    parsed = [json.loads(event) for event in events[:-1]]
    deltas = [choice["delta"] for event in parsed for choice in event.get("choices", ())]
    return "".join(delta.get("content") or "" for delta in deltas)


def plain_text(body: bytes) -> str:
    return str(json.loads(body)["choices"][0]["message"]["content"])


class Client:
    """Says one new 1 KB message after another, each unlike any before it."""

    def __init__(self, job: ClientJob, number: int, connection: Connection) -> None:
        self._job = job
        self._connection = connection
        self._name = f"bench:{uuid.uuid4().hex[:12]}:{number}"
        self._said = 0
        self._text = message_bodies(1)[0]["content"]
        self._expected = reply_text(job.model)

    async def ask(self, model: str | None = None, on_first: Callable[[], None] | None = None) -> None:
        """One request and its whole reply."""
        model = model or self._job.model
        body = await self._connection.ask(self._request(model), on_first)
        # Comparing the whole of a plain reply is cheap only as bytes; `check` reads one properly.
        if model == PLAIN and self._expected.encode() not in body:
            raise Failed(f"another reply than the model's: {body[:200].decode(errors='replace')}")
        if model != PLAIN and b"[DONE]" not in body[-64:]:
            raise Failed(f"a stream ended without [DONE]: …{body[-200:].decode(errors='replace')}")

    async def check(self, model: str) -> None:
        """One request whose reply is read as a client library would."""
        body = await self._connection.ask(self._request(model))
        text = plain_text(body) if model == PLAIN else streamed_text(body)
        if text != reply_text(model):
            raise Failed(f"another text than the model's: {text[:100]!r}, {len(text)} characters")

    def _request(self, model: str) -> bytes:
        self._said += 1
        opening = f"{self._name} {self._said} "
        message = {"role": "user", "content": opening + self._text[len(opening) :]}
        said: dict[str, Any] = {"model": model, "messages": [message]}
        if model != PLAIN:
            said["stream"] = True
        body = json.dumps(said, separators=(",", ":")).encode()
        key = ""
        if self._job.turns:
            key = f"X-Holdfast-Session-Key: {self._name}:{(self._said - 1) // self._job.turns}\r\n"
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{self._job.port}\r\n{key}"
            f"Authorization: Bearer {self._job.key}\r\nContent-Type: application/json\r\n"
            f"Accept: */*\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


class Processor:
    """How much processor time a process and its children have used."""

    def __init__(self, pid: int) -> None:
        self._parent = psutil.Process(pid)

    def seconds(self) -> float:
        spent = 0.0
        for process in [self._parent, *self._parent.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):  # a child that has just ended; the server itself cannot be
                times = process.cpu_times()
                spent += times.user + times.system
        return spent


async def connected(job: ClientJob) -> list[Client]:
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(Connection, "127.0.0.1", job.port) for _ in range(job.clients)]
    return [Client(job, number, connection) for number, (_, connection) in enumerate(made)]


async def all_ask(job: ClientJob, ask: Callable[[Client, Stopwatch], Awaitable[None]]) -> dict[str, Any]:
    """Every client asks again and again until the time is over; also what the server spent in the window."""
    clients, processor = await connected(job), Processor(job.pid)
    clock = Stopwatch(job.seconds, WARM_UP_SECONDS)
    spent: list[float] = []

    async def one(client: Client) -> None:
        while not clock.over():
            await ask(client, clock)

    async def watch() -> None:
        for moment in (clock.opens, clock.closes):
            await asyncio.sleep(moment - clock.now())
            spent.append(processor.seconds())

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(watch())
        for client in clients:
            tasks.create_task(one(client))
    report = clock.report()
    cpu = spent[1] - spent[0]
    return {
        **report,
        "cpu_share": cpu / job.seconds,
        "cpu_us": cpu / job.seconds / report["per_second"] * 1e6,
    }


async def plain(job: ClientJob) -> dict[str, Any]:
    """Whole replies a second, and how long each took."""

    async def ask(client: Client, clock: Stopwatch) -> None:
        since = clock.now()
        await client.ask()
        clock.done(since)

    return await all_ask(job, ask)


async def first(job: ClientJob) -> dict[str, Any]:
    """How long until the first bit of text of a stream; streams are read to their end."""

    async def ask(client: Client, clock: Stopwatch) -> None:
        since = clock.now()
        await client.ask(on_first=lambda: clock.done(since))

    return await all_ask(job, ask)


async def chunk(job: ClientJob) -> dict[str, Any]:
    """Processor time of the server for one more chunk of a stream: long streams less as many short ones.

    Processor time is counted in ticks of 10 ms in places, hence several streams.
    """
    (client,), processor = await connected(job), Processor(job.pid)
    spent, streams = {}, LONG_STREAMS
    await client.ask(LONG)
    for model in (LONG, SHORT):
        began, before, done = time.perf_counter(), processor.seconds(), 0
        while done < streams and (model == SHORT or time.perf_counter() - began < 2 * job.seconds):
            await client.ask(model)
            done += 1
        streams = done
        spent[model] = processor.seconds() - before
    more = Manner.of(LONG).chunks - Manner.of(SHORT).chunks
    return {
        "cpu_us": (spent[LONG] - spent[SHORT]) / (streams * more) * 1e6,
        "acknowledged": 2 * streams + 1,
    }


async def check(job: ClientJob) -> dict[str, Any]:
    """Whether the server gives the model's own words, plain and streaming."""
    (client,) = await connected(job)
    for model in (PLAIN, SHORT, LONG):
        await client.check(model)
    return {"acknowledged": 3}


if __name__ == "__main__":
    job = ClientJob.from_argv()
    phases = {"plain": plain, "first": first, "chunk": chunk, "check": check}
    try:
        answer(uvloop.run(phases[job.phase](job)))
    except* Failed as failures:
        sys.exit(str(failures.exceptions[0]))
