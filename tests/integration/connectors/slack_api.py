"""A stand-in for Slack: the Web API's documented methods, limits and errors, and socket mode, on a socket.

It follows https://docs.slack.dev as far as the connector uses it: `apps.connections.open`, envelopes that are
repeated until they are acknowledged, `disconnect`, `chat.postMessage` and `chat.update` with at most 50
blocks of at most 3,000 characters, 429 with `Retry-After`, files by their `url_private` with the bot token
(without it, or without the scope `files:read`, a redirect to the sign-in page).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

TOKEN, APP_TOKEN = "xoxb-stand-in", "xapp-stand-in"
BOT = "UBOT"


class SlackStandIn:
    def __init__(self) -> None:
        self.url = ""
        self.sent: list[dict[str, Any]] = []
        """Every message that was posted, with its `ts` and as it was edited last."""
        self.edits = 0
        self.acknowledged: list[str] = []
        self.unacknowledged: dict[str, dict[str, Any]] = {}
        self.connections = 0
        self.reactions: list[tuple[str, str, str]] = []
        self.faults: dict[str, list[web.Response | str]] = defaultdict(list)
        """By method: an answer instead; `lost`: carry it out and close the connection without an answer."""
        self.sockets: list[web.WebSocketResponse] = []
        self.files: dict[str, bytes] = {}
        """What people have shared, by the file's id."""
        self.tokens_elsewhere: list[str | None] = []
        """The tokens that came to an address that is not one of files."""
        self._number = 0

    # --- people ------------------------------------------------------------------------------------------

    async def write(self, text: str, person: str = "U42", channel: str = "D42", **more: Any) -> str:
        """A person writes; returns the message's ts."""
        ts = self._ts()
        kind = "message" if channel.startswith("D") else "app_mention"
        await self.push({"type": kind, "user": person, "text": text, "ts": ts, "channel": channel, **more})
        return ts

    async def push(self, event: dict[str, Any]) -> str:
        self._number += 1
        envelope = {
            "envelope_id": f"e{self._number}",
            "type": "events_api",
            "accepts_response_payload": False,
            "payload": {"type": "event_callback", "event_id": f"Ev{self._number}", "event": event},
        }
        self.unacknowledged[f"e{self._number}"] = envelope
        for socket in self.sockets[-1:]:
            await socket.send_json(envelope)
        return f"e{self._number}"

    async def disconnect(self, reason: str = "refresh_requested") -> None:
        for socket in list(self.sockets):
            await socket.send_json({"type": "disconnect", "reason": reason})

    def said(self, channel: str = "D42", thread: str | None = None) -> list[str]:
        return [
            "\n\n".join(block["text"]["text"] for block in each["blocks"])
            for each in self.sent
            if each["channel"] == channel and each.get("thread_ts") == thread
        ]

    def file(self, id_: str, name: str, mime: str, **more: Any) -> dict[str, Any]:
        """A file as an event describes it."""
        facts = {"id": id_, "name": name, "mimetype": mime, "url_private": f"{self.url}/files-pri/{id_}"}
        return {**facts, "size": len(self.files.get(id_, b"")), **more}

    def _ts(self) -> str:
        self._number += 1
        return f"1700000000.{self._number:06}"

    # --- the wire ----------------------------------------------------------------------------------------

    async def handle(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        wanted = APP_TOKEN if method == "apps.connections.open" else TOKEN
        if request.headers.get("authorization") != f"Bearer {wanted}":
            return error("invalid_auth")
        fields = dict(await request.post()) if method == "users.info" else await request.json()
        fault = self.faults[method].pop(0) if self.faults[method] else None
        if isinstance(fault, web.Response):
            return fault
        answer: web.Response = getattr(self, "do_" + method.replace(".", "_"))(fields)
        if fault == "lost":
            assert request.transport is not None
            request.transport.close()
        return answer

    def do_auth_test(self, fields: dict[str, Any]) -> web.Response:
        return ok(user_id=BOT, bot_id="BBOT", team_id="T1")

    def do_apps_connections_open(self, fields: dict[str, Any]) -> web.Response:
        return ok(url=f"{self.url.replace('http', 'ws', 1)}/socket")

    def do_users_info(self, fields: dict[str, Any]) -> web.Response:
        return ok(user={"id": fields["user"], "real_name": f"Person {fields['user']}", "profile": {}})

    def do_chat_postMessage(self, fields: dict[str, Any]) -> web.Response:
        if (wrong := _checked(fields)) is not None:
            return wrong
        ts = self._ts()
        self.sent.append({**fields, "ts": ts})
        return ok(channel=fields["channel"], ts=ts)

    def do_chat_update(self, fields: dict[str, Any]) -> web.Response:
        if (wrong := _checked(fields)) is not None:
            return wrong
        for each in self.sent:
            if (each["channel"], each["ts"]) == (fields["channel"], fields["ts"]):
                each.update(fields)
                self.edits += 1
                return ok(ts=fields["ts"])
        return error("message_not_found")

    def do_reactions_add(self, fields: dict[str, Any]) -> web.Response:
        reaction = (fields["channel"], fields["timestamp"], fields["name"])
        if reaction in self.reactions:
            return error("already_reacted")
        self.reactions.append(reaction)
        return ok()

    async def download(self, request: web.Request) -> web.Response:
        fault = self.faults["download"].pop(0) if self.faults["download"] else None
        if isinstance(fault, web.Response):
            return fault
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return web.Response(status=302, headers={"Location": f"{self.url}/elsewhere"})
        body = self.files.get(request.match_info["id"])
        return web.Response(status=404) if body is None else web.Response(body=body)

    async def elsewhere(self, request: web.Request) -> web.Response:
        self.tokens_elsewhere.append(request.headers.get("authorization"))
        return web.Response(text="<!DOCTYPE html><title>Sign in</title>", content_type="text/html")

    async def socket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.connections += 1
        await socket.send_json({"type": "hello", "num_connections": 1})
        self.sockets.append(socket)
        for envelope in list(self.unacknowledged.values()):
            await socket.send_json({**envelope, "retry_attempt": 1, "retry_reason": "timeout"})
        try:
            async for frame in socket:
                envelope_id = frame.json()["envelope_id"]
                self.acknowledged.append(envelope_id)
                self.unacknowledged.pop(envelope_id, None)
        finally:
            self.sockets.remove(socket)
        return socket


def too_many(seconds: int) -> web.Response:
    return web.json_response(
        {"ok": False, "error": "ratelimited"}, status=429, headers={"Retry-After": str(seconds)}
    )


def _checked(fields: dict[str, Any]) -> web.Response | None:
    if not fields["blocks"] or len(fields["blocks"]) > 50:
        return error("invalid_blocks")
    if any(not 0 < len(block["text"]["text"]) <= 3000 for block in fields["blocks"]):
        return error("invalid_blocks")
    return None


def ok(**more: Any) -> web.Response:
    return web.json_response({"ok": True, **more})


def error(code: str) -> web.Response:
    return web.json_response({"ok": False, "error": code})


@asynccontextmanager
async def slack_stand_in() -> AsyncIterator[SlackStandIn]:
    stand_in = SlackStandIn()
    application = web.Application()
    application.router.add_post("/api/{method}", stand_in.handle)
    application.router.add_get("/socket", stand_in.socket)
    application.router.add_get("/files-pri/{id}", stand_in.download)
    application.router.add_get("/elsewhere", stand_in.elsewhere)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    stand_in.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield stand_in
    finally:
        await runner.cleanup()
