"""The demo's model: a script with an OpenAI-compatible API, in the demo's own process.

It is not a model, and the demo says so. It knows only the messages it is sent. It streams stories slowly, so
that there is time to interrupt them, and counts its calls, so that the proof does not depend on the server.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from aiohttp import web

NAME = "a-script"
WORD_SECONDS = 0.06
LONG_WORD_SECONDS = 0.15
STORY = (
    "Once a seaweed grew on a rock where the sea never rests. Every night the waves came and pulled at "
    "it, and every night they asked: why do you not let go? There is so much to see. I have seen it, said "
    "the seaweed, twice a day, when it comes by. In the third winter a storm broke the harbour wall and "
    "carried boats over the dunes. In the morning the beach had another shape, and the rock stood where "
    "it had stood, and the seaweed was on it, torn at the edges, and grew."
)
REMEMBERED = "The person is called Ada. She asked about seaweed."


class Storyteller:
    """Use as an async context manager; `url` is where it answers."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        """Number of calls, by purpose."""
        self.silent = asyncio.Event()
        """Set once it received a flush request that it does not answer."""
        self.keeps_flushes_waiting = False
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Storyteller:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _models(self, _: web.Request) -> web.Response:
        model = {"id": NAME, "object": "model", "created": 0, "owned_by": "holdfast", "context_length": 8192}
        return web.json_response({"object": "list", "data": [model]})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = msgspec.json.decode(await request.read())
        purpose = request.headers.get("X-Holdfast-Purpose", "turn")
        self.asked[purpose] += 1
        if purpose == "flush" and self.keeps_flushes_waiting:
            self.silent.set()
            await asyncio.sleep(3600)  # the caller is killed meanwhile
        words = self._words(purpose, body["messages"])
        if not body.get("stream"):
            text = "".join([word async for word in words])
            message = {"role": "assistant", "content": text}
            return web.json_response(_completion([{"message": message, "finish_reason": "stop"}]))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            await response.prepare(request)
            async for word in words:
                await response.write(_event({"delta": {"content": word}, "finish_reason": None}))
            await response.write(_event({"delta": {}, "finish_reason": "stop"}) + b"data: [DONE]\n\n")
        except ConnectionError:
            pass  # the caller was killed
        return response

    async def _words(self, purpose: str, messages: list[dict[str, Any]]) -> AsyncIterator[str]:
        said = [str(message.get("content") or "") for message in messages]
        knows = any("Ada" in text for text in said)
        asked = said[-1].lower() if said else ""
        if purpose == "summary":
            yield "The person is called Ada. She was told the story of a seaweed that does not let go."
        elif purpose == "flush":
            yield REMEMBERED if knows else "NONE"
        elif "story" in asked:
            pause, times = (LONG_WORD_SECONDS, 2) if "long" in asked else (WORD_SECONDS, 1)
            for word in " ".join([STORY] * times).split():
                await asyncio.sleep(pause)
                yield f"{word} "
        elif "name" in asked and "?" in asked:
            yield "Your name is Ada." if knows else "I do not know your name."
        elif "thank" in asked:
            yield "You are welcome."
        else:
            yield "Hello Ada." if knows else "Hello."


def _completion(choices: list[dict[str, Any]], kind: str = "chat.completion") -> dict[str, Any]:
    numbered = [{"index": number, **choice} for number, choice in enumerate(choices)]
    return {"id": "chatcmpl-demo", "object": kind, "created": 0, "model": NAME, "choices": numbered}


def _event(choice: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(_completion([choice], "chat.completion.chunk")) + b"\n\n"
