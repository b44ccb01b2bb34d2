"""A model in a separate process: it streams slowly, counts its calls and records every request it got.

    python -m tests.reliability.upstream PORT_FILE CHANCE

Its words name the call: the first word of call 7, which will have 12 words, is `c7of12`, the others are
`c7w1`, `c7w2`, … So any piece of text tells which call produced it, how far it got, and whether it is
complete. The question's first word (its tag) sets how long it streams; `slow…` takes four seconds. A repeated
question is answered faster, so that it is answered eventually however often its server is killed. Now and
then it breaks off, by this chance.

A question whose second word is `tools` has it run commands of the server first, each of which adds a line to
the file that the question names: `q7-0` and `q7-1` in one step, `q7-2` in the next.
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

from .forkserver import ROOT, environment

NAME = "slow"
BREAKS_OFF = 0.02
TOOLS = "tools"
COMMANDS: tuple[tuple[int, ...], ...] = ((0, 1), (2,))
"""The numbers of the commands of each step."""
COMMAND_SECONDS = 0.1

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
    def __init__(self, breaks_off: float = BREAKS_OFF) -> None:
        self._breaks_off = breaks_off
        self.calls: list[Call] = []
        self._asked: Counter[str] = Counter()

    async def list_models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": NAME, "object": "model"}]})

    async def tell_calls(self, request: web.Request) -> web.Response:
        after = int(request.query["after"])
        return web.Response(body=msgspec.json.encode(self.calls[after:]))

    async def complete(self, request: web.Request) -> web.StreamResponse:
        asked = msgspec.json.decode(await request.read())
        messages = [(message["role"], message["content"] or "") for message in asked["messages"]]
        question = max(at for at, (role, _) in enumerate(messages) if role == "user")
        tag, *more = messages[question][1].split()
        call = Call(len(self.calls), tag, messages)
        self.calls.append(call)
        self._asked[tag] += 1
        chance = random.Random(tag)
        seconds = chance.choice((0.03, 0.03, 0.2, 0.2, 0.6, 1.2)) * chance.random() / self._asked[tag]
        count = chance.randrange(1, 40)
        if tag.startswith("slow"):
            seconds, count = 4.0 / self._asked[tag], 40
        breaks_off = self._asked[tag] == 1 and chance.random() < self._breaks_off
        stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
        try:
            await stream.prepare(request)
            await stream.write(_chunk(call, {"role": "assistant", "content": ""}))
            steps = sum(bool(message.get("tool_calls")) for message in asked["messages"][question:])
            if more[:1] == [TOOLS] and steps < len(COMMANDS):
                await asyncio.sleep(seconds / 4)
                calls = [_command(at, tag, number, more[1]) for at, number in enumerate(COMMANDS[steps])]
                end = _chunk(call, {}, "tool_calls") + b"data: [DONE]\n\n"
                await stream.write(_chunk(call, {"tool_calls": calls}) + end)
                return stream
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


def _command(at: int, tag: str, number: int, lines: str) -> dict[str, Any]:
    arguments = {"command": f"echo {tag}-{number} >> {lines}; sleep {COMMAND_SECONDS}"}
    function = {"name": "terminal", "arguments": msgspec.json.encode(arguments).decode()}
    return {"index": at, "id": f"{tag}-{number}", "type": "function", "function": function}


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
        with self._opener.open(f"{self.url}/calls?after={len(self._known)}", timeout=60) as answer:
            self._known += msgspec.json.decode(answer.read(), type=list[Call])
        return self._known


@contextmanager
def upstream(directory: Path, breaks_off: float = BREAKS_OFF) -> Iterator[Upstream]:
    """A model for as long as the block lasts."""
    port_file = directory / "upstream.port"
    command = [sys.executable, "-m", "tests.reliability.upstream", str(port_file), str(breaks_off)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment())
    try:
        deadline = time.monotonic() + 60
        while not port_file.exists():
            assert process.poll() is None and time.monotonic() < deadline, "the model did not start"
            time.sleep(0.01)
        yield Upstream(f"http://127.0.0.1:{port_file.read_text()}/v1")
    finally:
        process.kill()
        process.wait()
        port_file.unlink(missing_ok=True)


async def _serve(port_file: Path, breaks_off: float) -> None:
    model = Model(breaks_off)
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
    asyncio.run(_serve(Path(sys.argv[1]), float(sys.argv[2])))
