"""The upper bound for holdfast's API: a pass-through that does nothing but write one durable journal.

Starlette on uvicorn (uvloop, httptools), the aiohttp client, and one SQLite row per request, committed with
`synchronous=FULL` before the model is called, and so before the reply's status line. A separate thread groups
commits. No session, no lease, no history, no stored reply: what remains is the cost of durability and HTTP in
Python.

    python api_passthrough.py PORT MODEL_URL JOURNAL KEY
"""

from __future__ import annotations

import asyncio
import hmac
import queue
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import apsw
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

Entry = tuple[bytes, asyncio.Future[None]]


class Journal:
    """A writer thread; a group is whatever was handed in while the last one was being committed."""

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = apsw.Connection(path)
        self._connection.pragma("journal_mode", "wal")
        self._connection.pragma("synchronous", "FULL")
        self._connection.execute("CREATE TABLE IF NOT EXISTS journal (no INTEGER PRIMARY KEY, body BLOB)")
        self._loop = loop
        self._handed_in: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="journal")
        self._thread.start()

    def keep(self, body: bytes) -> asyncio.Future[None]:
        """Done once the body is on disk."""
        kept = self._loop.create_future()
        self._handed_in.put((body, kept))
        return kept

    def stop(self) -> None:
        self._handed_in.put(None)
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        cursor, waiting = self._connection.cursor(), self._handed_in
        while (first := waiting.get()) is not None:
            group = [first]
            while not waiting.empty():
                if (entry := waiting.get()) is None:
                    waiting.put(None)  # told to stop: after this group
                    break
                group.append(entry)
            cursor.execute("BEGIN IMMEDIATE")
            for body, _ in group:
                cursor.execute("INSERT INTO journal (body) VALUES (?)", (body,))
            cursor.execute("COMMIT")
            self._loop.call_soon_threadsafe(self._acknowledge, group)

    @staticmethod
    def _acknowledge(group: list[Entry]) -> None:
        for _, kept in group:
            if not kept.done():
                kept.set_result(None)


@dataclass(frozen=True)
class Settings:
    model_url: str
    journal: str
    key: str


def application(settings: Settings) -> Starlette:
    wanted = f"Bearer {settings.key}".encode()
    completions = f"{settings.model_url}/chat/completions"
    journal: Journal
    upstream: aiohttp.ClientSession

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        nonlocal journal, upstream
        journal = Journal(settings.journal, asyncio.get_running_loop())
        connector = aiohttp.TCPConnector(limit=0)
        upstream = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False
        )
        yield
        await upstream.close()
        journal.stop()

    async def ready(_: Request) -> Response:
        return PlainTextResponse("ready")

    async def complete(request: Request) -> Response:
        if not hmac.compare_digest(request.headers.get("authorization", "").encode(), wanted):
            return Response(status_code=401)
        body = await request.body()
        await journal.keep(body)
        answer = await upstream.post(completions, data=body, headers={"Content-Type": "application/json"})
        if "event-stream" in answer.content_type:
            # iter_any is what has arrived, as it came: nothing is held back and nothing is looked at.
            return StreamingResponse(passed_on(answer), answer.status, media_type="text/event-stream")
        async with answer:
            return Response(await answer.read(), answer.status, media_type="application/json")

    async def passed_on(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        async with answer:
            async for piece in answer.content.iter_any():
                yield piece

    routes = [Route("/readyz", ready), Route("/v1/chat/completions", complete, methods=["POST"])]
    return Starlette(routes=routes, lifespan=lifespan)


if __name__ == "__main__":
    port, *rest = sys.argv[1:]
    uvicorn.run(
        application(Settings(*rest)),
        host="127.0.0.1",
        port=int(port),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )
