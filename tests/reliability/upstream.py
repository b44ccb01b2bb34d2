"""A model in a separate process: it streams slowly, counts its calls and records every request it got.

    python -m tests.reliability.upstream PORT_FILE

Its words name the call: the first word of call 7, which will have 12 words, is `c7of12`, the others are
`c7w1`, `c7w2`, … So any piece of text tells which call produced it, how far it got, and whether it is
complete. The question's first word (its tag) sets how long it streams. A repeated question is answered
faster, so that it is answered eventually however often its server is killed. Now and then it breaks off.
"""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import msgspec
from aiohttp import web

from .nursery import ROOT, environment

NAME = "slow"
BREAKS_OFF = 0.02

_FIRST = re.compile(r"c(\d+)of(\d+) ")


class Call(msgspec.Struct, frozen=True):
    """A request that the model got."""

    number: int
    tag: str
    messages: list[tuple[str, str]]
    """Role and text of each."""


def words(number: int, count: int) -> list[str]:
    """What call `number` says, word by word."""
    return [f"c{number}of{count} ", *(f"c{number}w{at} " for at in range(1, count))]


def call_of(text: str) -> tuple[int, str] | None:
    """The number of the call that said this, and all that it would have said; None if nothing was said."""
    first = _FIRST.match(text)
    if first is None:
        return None
    number, count = int(first[1]), int(first[2])
    return number, "".join(words(number, count))


class Model:
    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._asked: Counter[str] = Counter()

    async def list_models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": NAME, "object": "model"}]})

    async def tell_calls(self, request: web.Request) -> web.Response:
        after = int(request.query["after"])
        return web.Response(body=msgspec.json.encode(self.calls[after:]))

    async def complete(self, request: web.Request) -> web.StreamResponse:
        asked = msgspec.json.decode(await request.read())
        messages = [(message["role"], message["content"]) for message in asked["messages"]]
        tag = [text for role, text in messages if role == "user"][-1].split()[0]
        call = Call(len(self.calls), tag, messages)
        self.calls.append(call)
        self._asked[tag] += 1
        chance = random.Random(tag)
        seconds = chance.choice((0.03, 0.03, 0.2, 0.2, 0.6, 1.2)) * chance.random() / self._asked[tag]
        count = chance.randrange(1, 40)
        breaks_off = self._asked[tag] == 1 and chance.random() < BREAKS_OFF
        stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
        try:
            await stream.prepare(request)
            await stream.write(_chunk(call, {"role": "assistant", "content": ""}))
            for word in words(call.number, count):
                await stream.write(_chunk(call, {"content": word}))
                await asyncio.sleep(seconds / count)
                if breaks_off:
                    if request.transport is not None:
                        request.transport.abort()
                    return stream
            given = 5 + sum(len(text) for _, text in messages) // 4  # one that counted less would seem to cut
            usage = {"prompt_tokens": given, "completion_tokens": count, "total_tokens": count + given}
            await stream.write(_chunk(call, {}, "stop", usage=usage) + b"data: [DONE]\n\n")
        except ConnectionResetError:
            return stream  # whoever asked was killed
        return stream


def _chunk(call: Call, delta: dict[str, Any], reason: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    chunk = {"id": f"chatcmpl-{call.number}", "object": "chat.completion.chunk", "created": 1, "model": NAME}
    return b"data: %b\n\n" % msgspec.json.encode({**chunk, "choices": [choice], **more})


class Upstream:
    """The model's process, seen from the test."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._known: list[Call] = []
        self._opener = build_opener(ProxyHandler({}))

    def calls(self) -> list[Call]:
        """Every request it got so far."""
        with self._opener.open(f"{self.url}/calls?after={len(self._known)}", timeout=30) as answer:
            self._known += msgspec.json.decode(answer.read(), type=list[Call])
        return self._known


@contextmanager
def upstream(directory: Path) -> Iterator[Upstream]:
    """A model for as long as the block lasts."""
    port_file = directory / "upstream.port"
    command = [sys.executable, "-m", "tests.reliability.upstream", str(port_file)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment())
    try:
        deadline = time.monotonic() + 30
        while not port_file.exists():
            assert process.poll() is None and time.monotonic() < deadline, "the model did not start"
            time.sleep(0.01)
        yield Upstream(f"http://127.0.0.1:{port_file.read_text()}/v1")
    finally:
        process.kill()
        process.wait()
        port_file.unlink(missing_ok=True)


async def _serve(port_file: Path) -> None:
    model = Model()
    app = web.Application(client_max_size=64 << 20)
    app.router.add_get("/v1/models", model.list_models)
    app.router.add_get("/v1/calls", model.tell_calls)
    app.router.add_post("/v1/chat/completions", model.complete)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    (address,) = runner.addresses
    beside = port_file.with_suffix(".new")
    beside.write_text(str(address[1]))
    beside.rename(port_file)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
