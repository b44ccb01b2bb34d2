"""A model's server on a real loopback socket that answers as told, well or badly.

`answers` holds one reaction for each coming chat request; `pages` what a GET or POST of another path gives.
Everything it is sent is kept. It stops with the test, also when it hangs on purpose.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
from aiohttp import web

Reaction: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Seen:
    """One request, as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@dataclass
class MockUpstream:
    root: str = ""
    seen: list[Seen] = field(default_factory=list)
    answers: list[Reaction] = field(default_factory=list)
    pages: dict[str, Any] = field(default_factory=dict)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Something was asked for, other than the list of models."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """A client went away while an answer was under way."""

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    @property
    def chats(self) -> list[Seen]:
        return [request for request in self.seen if "/chat/completions" in request.path]

    async def react(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.seen.append(Seen(request.method, request.path_qs, headers, body))
        if not request.path.endswith("/models"):  # a server looks there by itself
            self.asked.set()
        if request.path in self.pages:
            page = self.pages[request.path]
            if callable(page):
                reacted: web.StreamResponse = await page(request)
                return reacted
            return web.json_response(page)
        if not request.path.endswith("/chat/completions") or not self.answers:
            return web.json_response({"error": {"message": "no such page"}}, status=404)
        try:
            return await self.answers.pop(0)(request)
        except (asyncio.CancelledError, ConnectionResetError):
            self.left.set()
            raise


@asynccontextmanager
async def running() -> AsyncIterator[MockUpstream]:
    mock = MockUpstream()
    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_route("*", "/{path:.*}", mock.react)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    mock.root = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield mock
    finally:
        await runner.cleanup()


def event(value: Any) -> bytes:
    data = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return b"data: " + data + b"\n\n"


def delta(finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "tiny",
        "choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}],
    }


def hello() -> list[bytes]:
    """A well-behaved answer: two words, an end, usage, [DONE]."""
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    return [
        event(delta(role="assistant", content="")),
        event(delta(content="Hello ")),
        event(delta(content="Ada")),
        event(delta("stop")),
        event({**delta(), "choices": [], "usage": usage}),
        event(b"[DONE]"),
    ]


def says(pieces: Iterable[bytes] | None = None, pause: float = 0.0) -> Reaction:
    """Stream these bytes, one write each."""

    async def react(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in hello() if pieces is None else pieces:
            await response.write(piece)
            await asyncio.sleep(pause)
        return response

    return react


def cuts(pieces: Sequence[bytes] = ()) -> Reaction:
    """Stream these bytes, then drop the connection; without any, drop it before the status line."""

    async def react(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if pieces:
            await response.prepare(request)
            for piece in pieces:
                await response.write(piece)
            await asyncio.sleep(0.02)  # else the bytes may be thrown away with the connection
        assert request.transport is not None
        request.transport.abort()
        return response

    return react


def hangs(pieces: Sequence[bytes] = ()) -> Reaction:
    """Stream these bytes, then nothing; without any, not even a status line."""

    async def react(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if pieces:
            await response.prepare(request)
            for piece in pieces:
                await response.write(piece)
        await asyncio.sleep(600)
        return response

    return react


def refuses(status: int, body: Any = b"", headers: dict[str, str] | None = None) -> Reaction:
    async def react(request: web.Request) -> web.StreamResponse:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return web.Response(status=status, body=data, headers=headers)

    return react


def plain(completion: Any) -> Reaction:
    """A whole completion, though a stream was asked for."""

    async def react(request: web.Request) -> web.StreamResponse:
        return web.json_response(completion)

    return react
