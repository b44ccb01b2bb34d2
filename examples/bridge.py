"""A chat bridge in sixty lines: any chat platform on one side, a holdfast server on the other.

The platform here is a pipe of JSON lines, so that you can try it: `{"chat": "42", "id": "m1", "text": "hi"}`
comes in, `{"chat": "42", "text": "…"}` goes out. A real bridge replaces `incoming` and `deliver`.

    eval "$(holdfast env)"
    echo '{"chat": "42", "id": "m1", "text": "hi"}' | python examples/bridge.py

Each chat is a key, so its conversation is found again by whoever restarts. The platform's message id, with
the chat in front because most are unique only there, is the Idempotency-Key: a message that the platform
delivers twice, or that is sent again after a crash of either side, is one turn. Notices are told to the chat
they belong to and crossed off after that: one may be told twice, if the bridge dies in between, and none is
lost.
"""

import asyncio
import json
import os
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

SERVER = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8377/v1").removesuffix("/v1")
HEADERS = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
NOTICE_SECONDS = float(os.environ.get("BRIDGE_NOTICE_SECONDS", "5"))
TROUBLE = (aiohttp.ClientError, TimeoutError)  # the server or the network is away: try again

in_order: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
answered: dict[str, str] = {}
"""The message of each chat that was answered last: what the platform repeats, people need not read twice."""


async def incoming() -> AsyncIterator[dict[str, Any]]:
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield json.loads(line)


def deliver(chat: str, text: str) -> None:
    print(json.dumps({"chat": chat, "text": text}), flush=True)


async def answer(http: aiohttp.ClientSession, message: dict[str, Any]) -> None:
    """Send a message until it is answered: its id makes every try the same turn."""
    chat, id_ = message["chat"], message["id"]
    headers = {"X-Holdfast-Session-Key": f"lines:{chat}", "Idempotency-Key": f"lines:{chat}:{id_}"}
    body = {"messages": [{"role": "user", "content": message["text"]}]}
    async with in_order[chat]:
        while answered.get(chat) != id_:
            try:
                async with http.post(f"{SERVER}/v1/chat/completions", json=body, headers=headers) as reply:
                    said = await reply.json()
                    passes = "true" if reply.status >= 500 or reply.status == 429 else "false"
                    if reply.status == 200:
                        answered[chat] = id_
                        return deliver(chat, said["choices"][0]["message"]["content"])
                    if reply.headers.get("x-should-retry", passes) == "false":
                        return deliver(chat, f"(not answered: {said['error']['message']})")
            except TROUBLE as trouble:
                print(f"{trouble}; trying again", file=sys.stderr)
            await asyncio.sleep(1)


async def tell_notices(http: aiohttp.ClientSession) -> None:
    after = ""  # the last one that is done with
    while True:
        try:
            params = {"undelivered": "1", "after": after}
            async with http.get(f"{SERVER}/api/notices", params=params) as reply:
                page = await reply.json() if reply.status == 200 else {"data": []}
                after = after if reply.status == 200 else ""
            for notice in page["data"]:
                if (notice["key"] or "").startswith("lines:"):
                    deliver(notice["key"].removeprefix("lines:"), notice["text"])
                    await http.post(f"{SERVER}/api/notices/{notice['id']}/delivered", raise_for_status=True)
                after = notice["id"]
        except TROUBLE as trouble:
            print(f"{trouble}; trying again", file=sys.stderr)
        await asyncio.sleep(NOTICE_SECONDS)


async def main() -> None:
    async with aiohttp.ClientSession(headers=HEADERS) as http, asyncio.TaskGroup() as group:
        notices = group.create_task(tell_notices(http))
        answering = [group.create_task(answer(http, message)) async for message in incoming()]
        await asyncio.gather(*answering)
        notices.cancel()


if __name__ == "__main__":
    asyncio.run(main())
