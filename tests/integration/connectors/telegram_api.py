"""A stand-in for Telegram's Bot API: the documented methods, limits and errors, on a real socket.

It follows https://core.telegram.org/bots/api as far as the connector uses it: `getUpdates` with offset and
time-out, `sendMessage` and `editMessageText` with their 4,096 UTF-16 units, 429 with
`parameters.retry_after`, `getFile` and its 20 MB, the errors of a blocked bot and of a vanished message.
`faults` are answers that the next calls of a method get instead.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

TOKEN = "123456:stand-in"
BOT = {"id": 7, "is_bot": True, "first_name": "Bot", "username": "holdfast_bot"}


class TelegramStandIn:
    def __init__(self) -> None:
        self.url = ""
        self.updates: list[dict[str, Any]] = []
        self.acknowledged = 0
        self.chats: dict[tuple[int, int | None], dict[int, str]] = defaultdict(dict)
        """The bot's messages by chat and topic."""
        self.sent: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.faults: dict[str, list[dict[str, Any] | str]] = defaultdict(list)
        """By method: an error answer; `hang`: carry it out and never answer; `5xx`: an answer that is no
        JSON."""
        self.files: dict[str, bytes] = {}
        """What people have sent, by `file_id`."""
        self._number = 100
        self._arrived = asyncio.Event()

    # --- people ------------------------------------------------------------------------------------------

    def write(
        self, text: str, person: int = 42, *, chat: dict[str, Any] | None = None, **more: Any
    ) -> dict[str, Any]:
        """A person writes; returns the update."""
        self._number += 1
        message = {
            "message_id": self._number,
            "date": 1_700_000_000,
            "from": {"id": person, "is_bot": False, "first_name": f"Person {person}"},
            "chat": chat or {"id": person, "type": "private"},
            "text": text,
            **more,
        }
        return self.push({"message": message})

    def push(self, update: dict[str, Any]) -> dict[str, Any]:
        update = {"update_id": 1000 + len(self.updates), **update}
        self.updates.append(update)
        self._arrived.set()
        return update

    def said(self, chat: int = 42, topic: int | None = None) -> list[str]:
        return list(self.chats[chat, topic].values())

    # --- the wire ----------------------------------------------------------------------------------------

    async def handle(self, request: web.Request) -> web.Response:
        token, method = request.match_info["token"], request.match_info["method"]
        if token != TOKEN:
            return _error(401, "Unauthorized")
        fields = await request.json()
        self.calls.append(method)
        fault = self.faults[method].pop(0) if self.faults[method] else None
        if isinstance(fault, dict):
            return web.json_response(fault, status=fault["error_code"])
        if fault == "5xx":
            return web.Response(status=502, text="<html>Bad Gateway</html>")
        answer = await getattr(self, f"do_{method}")(fields)
        if fault == "hang":
            await asyncio.sleep(3600)
        return (
            answer if isinstance(answer, web.Response) else web.json_response({"ok": True, "result": answer})
        )

    async def do_getMe(self, fields: dict[str, Any]) -> Any:
        return BOT

    async def do_deleteWebhook(self, fields: dict[str, Any]) -> Any:
        return True

    async def do_getUpdates(self, fields: dict[str, Any]) -> Any:
        offset = fields["offset"]
        self.acknowledged = max(self.acknowledged, offset)
        waiting = [each for each in self.updates if each["update_id"] >= offset]
        if not waiting and fields["timeout"]:
            self._arrived.clear()
            try:
                async with asyncio.timeout(fields["timeout"]):
                    await self._arrived.wait()
            except TimeoutError:
                pass
            waiting = [each for each in self.updates if each["update_id"] >= offset]
        return waiting[:100]

    async def do_sendMessage(self, fields: dict[str, Any]) -> Any:
        if (wrong := _checked(fields)) is not None:
            return wrong
        self._number += 1
        self.chats[fields["chat_id"], fields.get("message_thread_id")][self._number] = fields["text"]
        self.sent.append(fields)
        return {"message_id": self._number, "chat": {"id": fields["chat_id"]}, "text": fields["text"]}

    async def do_editMessageText(self, fields: dict[str, Any]) -> Any:
        if (wrong := _checked(fields)) is not None:
            return wrong
        for (chat, _), messages in self.chats.items():
            if chat == fields["chat_id"] and fields["message_id"] in messages:
                if messages[fields["message_id"]] == fields["text"]:
                    return _error(400, "Bad Request: message is not modified")
                messages[fields["message_id"]] = fields["text"]
                return {"message_id": fields["message_id"]}
        return _error(400, "Bad Request: message to edit not found")

    async def do_getFile(self, fields: dict[str, Any]) -> Any:
        if fields["file_id"] not in self.files:
            return _error(400, "Bad Request: invalid file_id")
        size = len(self.files[fields["file_id"]])
        if size > 20 * 1024 * 1024:
            return _error(400, "Bad Request: file is too big")
        return {"file_id": fields["file_id"], "file_size": size, "file_path": f"files/{fields['file_id']}"}

    async def download(self, request: web.Request) -> web.Response:
        if request.match_info["token"] != TOKEN:
            return web.Response(status=404)
        if self.faults["download"]:
            return web.Response(status=int(str(self.faults["download"].pop(0))))
        return web.Response(body=self.files[request.match_info["id"]])

    async def do_sendChatAction(self, fields: dict[str, Any]) -> Any:
        return True

    async def do_setMessageReaction(self, fields: dict[str, Any]) -> Any:
        return True


def too_many(seconds: int) -> dict[str, Any]:
    return {
        "ok": False,
        "error_code": 429,
        "description": f"Too Many Requests: retry after {seconds}",
        "parameters": {"retry_after": seconds},
    }


def blocked() -> dict[str, Any]:
    return {"ok": False, "error_code": 403, "description": "Forbidden: bot was blocked by the user"}


def _checked(fields: dict[str, Any]) -> web.Response | None:
    units = len(fields["text"].encode("utf-16-le")) // 2
    if not fields["text"].strip():
        return _error(400, "Bad Request: message text is empty")
    if units > 4096:
        return _error(400, "Bad Request: message is too long")
    for entity in fields.get("entities", ()):
        if entity["offset"] + entity["length"] > units:
            return _error(400, "Bad Request: entity is out of the message")
    return None


def _error(status: int, description: str) -> web.Response:
    return web.json_response({"ok": False, "error_code": status, "description": description}, status=status)


@asynccontextmanager
async def telegram_stand_in() -> AsyncIterator[TelegramStandIn]:
    stand_in = TelegramStandIn()
    application = web.Application()
    application.router.add_post("/bot{token}/{method}", stand_in.handle)
    application.router.add_get("/file/bot{token}/files/{id}", stand_in.download)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    stand_in.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield stand_in
    finally:
        await runner.cleanup()
