"""A chat bridge: any chat platform on one side, a holdfast server's webhook connector on the other.

The platform here is a pipe of JSON lines, so that you can try it: `{"chat": "42", "id": "m1", "text": "hi"}`
comes in, `{"chat": "42", "text": "…"}` goes out. A real bridge replaces `incoming` and `deliver`.

    # holdfast.toml: [connectors.lines] kind = "webhook", token_env = "LINES_SECRET", allow = ["*"],
    #                                   url = "http://127.0.0.1:9000/"
    export LINES_SECRET="whsec_$(head -c 24 /dev/urandom | base64)"
    holdfast serve &
    echo '{"chat": "42", "id": "m1", "text": "hi"}' | python examples/bridge.py

Both directions are signed by Standard Webhooks. The server stores a message before it answers 200, and knows
it by its id: so the bridge just posts it until then. It runs the turn, and posts the reply and notices until
we answer 200. Nothing is kept here; what is posted twice has the same id.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import web

from holdfast.connectors.webhook import Signer

SERVER = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8377/v1").removesuffix("/v1")
SECRET = os.environ["LINES_SECRET"]
PORT = int(os.environ.get("BRIDGE_PORT", "9000"))

delivered: set[str] = set()
"""Ids of what was delivered already: a real bridge keeps them as long as it must not say something twice."""


async def incoming() -> AsyncIterator[dict[str, Any]]:
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield json.loads(line)


def deliver(chat: str, text: str) -> None:
    print(json.dumps({"chat": chat, "text": text}), flush=True)


async def forward(http: aiohttp.ClientSession, message: dict[str, Any]) -> None:
    """Post a message until the server has it. Most ids are unique only in their chat: it goes in front."""
    data = {"place": message["chat"], "text": message["text"], "key": f"lines:{message['chat']}"}
    body = json.dumps({"type": "message", "data": data}).encode()
    id_ = f"{message['chat']}:{message['id']}"
    while True:
        headers = Signer(SECRET).headers(id_, int(time.time()), body)
        try:
            async with http.post(f"{SERVER}/connectors/webhook/lines", data=body, headers=headers) as reply:
                if reply.status < 500:
                    return
        except (aiohttp.ClientError, TimeoutError) as trouble:
            print(f"{trouble}; trying again", file=sys.stderr)
        await asyncio.sleep(0.5)


async def take(request: web.Request) -> web.Response:
    """A reply or a notice of the server."""
    body = await request.read()
    headers = {name.lower(): value for name, value in request.headers.items()}
    id_, _ = Signer(SECRET).verify(headers, body, time.time())
    if id_ not in delivered:
        data = json.loads(body)["data"]
        deliver(data["place"], data["text"])
        delivered.add(id_)
    return web.json_response({})


async def main() -> None:
    application = web.Application()
    application.router.add_post("/", take)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", PORT).start()
    async with aiohttp.ClientSession() as http:
        async for message in incoming():
            await forward(http, message)
        await asyncio.Event().wait()  # the platform has no more messages; replies may still come


if __name__ == "__main__":
    asyncio.run(main())
