"""A mock model with almost no cost, the upstream of every server whose API is measured.

It speaks the OpenAI protocol over raw sockets, in one process, and answers from prepared bytes: `GET
/v1/models`, and `POST /v1/chat/completions` plain or streaming, with usage. The model name selects the reply:
`plain` 1 KB of text, `stream-2000-0` 2,000 chunks of it back to back, `stream-40-5` 40 chunks, 5 ms apart. A
chunk is 20 bytes of text and one write. Each can be requested whole or as a stream: a server that streams
from the model to answer a plain request reads 52 chunks.

Its usage follows the request size: one token per BYTES_PER_TOKEN bytes. Started with `misreports` as second
argument it always reports the same usage, whatever the size.

It reads no more of a request than it needs. A request without Content-Length is refused (411).
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import uvloop
from measure import MESSAGE_BYTES

PLAIN = "plain"
SHORT, LONG, PACED = "stream-20-0", "stream-2000-0", "stream-40-5"
MODELS = (PLAIN, SHORT, LONG, PACED)
CHUNK_TEXT_BYTES = 20
MODEL = re.compile(rb'"model"\s*:\s*"([^"\\]*)"')
STREAMING = re.compile(rb'"stream"\s*:\s*true')
USAGE_WANTED = re.compile(rb'"include_usage"\s*:\s*true')
LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
WINDOW = 1_000_000
CREATED = 1_700_000_000
BYTES_PER_TOKEN = 4
REPLY_TOKENS = MISREPORTED = 250
PROMPT, TOTAL = 900_000_001, 900_000_002
"""Stand in prepared bytes for the numbers of a request, which are written over them, as wide as they are."""
USAGE = {"prompt_tokens": PROMPT, "completion_tokens": REPLY_TOKENS, "total_tokens": TOTAL}
MISREPORTS = "misreports"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def chunk_text(number: int) -> str:
    """20 bytes, each chunk another's, so that a lost, doubled or swapped one shows."""
    return f"chunk {number:>6} follows "[:CHUNK_TEXT_BYTES].ljust(CHUNK_TEXT_BYTES)


@dataclass(frozen=True)
class Manner:
    """How a model answers."""

    chunks: int
    gap_ms: int

    @classmethod
    def of(cls, model: str) -> Manner:
        if model == PLAIN:
            return cls(-(-MESSAGE_BYTES // CHUNK_TEXT_BYTES), 0)
        _, chunks, gap_ms = model.split("-")
        return cls(int(chunks), int(gap_ms))

    def texts(self) -> list[str]:
        return [chunk_text(number) for number in range(self.chunks)]


def reply_text(model: str) -> str:
    """What a client must have read in the end, whatever stood in between."""
    return "".join(Manner.of(model).texts())


class Answers(asyncio.Protocol):
    """One client's connection, kept alive; one request at a time."""

    def __init__(self, misreports: bool = False) -> None:
        self._misreports = misreports
        self._received = bytearray()
        self._transport: asyncio.Transport
        self._writable = True
        self._loop = asyncio.get_running_loop()
        self._pieces: list[bytes] = []
        self._sent = 0
        self._gap = 0.0
        self._began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, error: Exception | None) -> None:
        self._pieces = []

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        if self._pieces:
            self._next_piece()

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head, length = bytes(self._received[:end]), 0
        if found := LENGTH.search(head):
            length = int(found[1])
        elif head.startswith(b"POST"):
            self._transport.write(
                http(b'{"error": {"message": "no Content-Length"}}', b"411 Length Required")
            )
            self._transport.close()
            return
        if len(self._received) < end + 4 + length:
            return
        body = bytes(self._received[end + 4 : end + 4 + length])
        del self._received[: end + 4 + length]
        self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if not head.startswith(b"POST"):
            self._transport.write(models())
            return
        model = found[1].decode() if (found := MODEL.search(body)) else PLAIN
        tokens = MISREPORTED if self._misreports else len(body) // BYTES_PER_TOKEN
        if not STREAMING.search(body):
            self._transport.write(reporting(completion(model), tokens))
            return
        self._pieces = stream(model, bool(USAGE_WANTED.search(body)))
        if USAGE_WANTED.search(body):
            self._pieces = [*self._pieces[:-2], reporting(self._pieces[-2], tokens), self._pieces[-1]]
        self._gap = Manner.of(model).gap_ms / 1e3
        self._sent, self._began = 0, self._loop.time()
        self._next_piece()

    def _next_piece(self) -> None:
        """A write of its own for every chunk, as a model that has just thought of it."""
        if not self._writable or not self._pieces:
            return
        self._transport.write(self._pieces[self._sent])
        self._sent += 1
        if self._sent == len(self._pieces):
            self._pieces = []
        elif self._gap:
            # The first text follows the role at once: only what comes after it is paced.
            self._loop.call_at(self._began + (self._sent - 1) * self._gap, self._next_piece)
        else:
            self._loop.call_soon(self._next_piece)


def reporting(prepared: bytes, tokens: int) -> bytes:
    """The prepared bytes with the usage of a request of so many tokens."""
    for placeholder, number in ((PROMPT, tokens), (TOTAL, tokens + REPLY_TOKENS)):
        prepared = prepared.replace(b"%d" % placeholder, b"%9d" % number)
    return prepared


def http(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )


@cache
def models() -> bytes:
    model = {"id": PLAIN, "object": "model", "created": CREATED, "owned_by": "bench", "max_model_len": WINDOW}
    return http(json.dumps({"object": "list", "data": [model]}).encode())


@cache
def completion(model: str) -> bytes:
    message = {"role": "assistant", "content": reply_text(model)}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return http(encoded("chat.completion", model, [choice], usage=USAGE))


@cache
def stream(model: str, usage: bool) -> list[bytes]:
    """The whole stream, cut where it is written: the head goes out with the chunk that names the role."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": text} for text in Manner.of(model).texts()]
    events = [
        encoded("chat.completion.chunk", model, [{"index": 0, "delta": delta, "finish_reason": None}])
        for delta in deltas
    ]
    last = {"index": 0, "delta": {}, "finish_reason": "stop"}
    events.append(encoded("chat.completion.chunk", model, [last]))
    if usage:
        events.append(encoded("chat.completion.chunk", model, [], usage=USAGE))
    events.append(b"[DONE]")
    pieces = [b"%x\r\ndata: %b\n\n\r\n" % (len(event) + 8, event) for event in events]
    return [STREAM_HEAD + pieces[0], *pieces[1:-1], pieces[-1] + b"0\r\n\r\n"]


def encoded(kind: str, model: str, choices: list[Any], **more: Any) -> bytes:
    head = {"id": "chatcmpl-bench", "object": kind, "created": CREATED, "model": model}
    return json.dumps({**head, "choices": choices, **more}, separators=(",", ":")).encode()


async def serve(port: int, misreports: bool) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Answers(misreports), "127.0.0.1", port, backlog=512)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), MISREPORTS in sys.argv[2:]))
