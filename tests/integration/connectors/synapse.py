"""A real Matrix homeserver for tests: Synapse with SQLite on loopback, installed by scripts/synapse."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

import aiohttp

PYTHON = Path(__file__).parents[3] / "build" / "synapse" / "bin" / "python"
INSTALLED = (PYTHON.parents[1] / "installed.lock").exists()
SECRET = "loopback-only"
START_SECONDS = 120


def _plenty(*names: str) -> dict[str, object]:
    limit = {"per_second": 10_000, "burst_count": 10_000}
    return dict.fromkeys(names, limit)


@dataclass
class Synapse:
    url: str
    directory: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self.directory / "synapse.log").open("ab") as log:
            self.process = subprocess.Popen(
                [PYTHON, "-m", "synapse.app.homeserver", "-c", "homeserver.json", "--generate-keys"],
                cwd=self.directory,
                stdout=log,
                stderr=log,
            )
            assert self.process.wait(START_SECONDS) == 0, "see synapse.log"
            self.process = subprocess.Popen(
                [PYTHON, "-m", "synapse.app.homeserver", "-c", "homeserver.json"],
                cwd=self.directory,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            assert self.process.poll() is None, "Synapse did not start: see synapse.log"
            try:
                with urlopen(f"{self.url}/_matrix/client/versions", timeout=5):
                    return
            except (URLError, OSError):
                assert time.monotonic() < deadline, "Synapse does not answer: see synapse.log"
                time.sleep(0.1)

    def stop(self) -> None:
        process, self.process = self.process, None
        if process is not None and process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def synapse(directory: Path) -> Iterator[Synapse]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    listener = {
        "port": port,
        "type": "http",
        "tls": False,
        "bind_addresses": ["127.0.0.1"],
        "resources": [{"names": ["client", "media"], "compress": False}],
    }
    config = {
        "server_name": "localhost",
        "listeners": [listener],
        "database": {"name": "sqlite3", "args": {"database": str(directory / "synapse.db")}},
        "media_store_path": str(directory / "media"),
        "signing_key_path": str(directory / "signing.key"),
        "registration_shared_secret": SECRET,
        "macaroon_secret_key": SECRET,
        "form_secret": SECRET,
        "report_stats": False,
        "bcrypt_rounds": 4,
        "filter_timeline_limit": 10_000,
        "trusted_key_servers": [],
        **_plenty("rc_message", "rc_registration", "rc_room_creation"),
        "rc_joins": _plenty("local", "remote"),
        "rc_login": _plenty("address", "account", "failed_attempts"),
        "rc_invites": _plenty("per_room", "per_user", "per_issuer"),
    }
    (directory / "homeserver.json").write_text(json.dumps(config))
    server = Synapse(f"http://127.0.0.1:{port}", directory)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@dataclass
class Person:
    """An account, and what it asks of the homeserver: by the plain wire, not by the library under test."""

    session: aiohttp.ClientSession
    url: str
    id: str
    token: str
    sent: int = 0

    async def call(self, method: str, path: str, body: object = None, **query: str) -> dict[str, Any]:
        async with self.session.request(
            method,
            f"{self.url}/_matrix/client/v3/{path}",
            json={} if body is None and method != "GET" else body,
            params=query,
            headers={"authorization": f"Bearer {self.token}"},
        ) as answer:
            found: dict[str, Any] = await answer.json()
            assert answer.status == 200, (method, path, found)
            return found

    async def create(self, *invited: Person, direct: bool = False, encrypted: bool = False) -> str:
        """A new room with these people invited; returns its id."""
        room = await self.call(
            "POST",
            "createRoom",
            {
                "preset": "trusted_private_chat" if direct else "private_chat",
                "is_direct": direct,
                "invite": [each.id for each in invited],
                "initial_state": [
                    {
                        "type": "m.room.encryption",
                        "state_key": "",
                        "content": {"algorithm": "m.megolm.v1.aes-sha2"},
                    }
                ]
                if encrypted
                else [],
            },
        )
        return str(room["room_id"])

    async def put(self, room: str, content: dict[str, Any], kind: str = "m.room.message") -> str:
        """Send an event; returns its id."""
        self.sent += 1
        path = f"rooms/{quote(room)}/send/{kind}/{self.sent}-{id(self)}"
        return str((await self.call("PUT", path, content))["event_id"])

    async def write(self, room: str, text: str, **more: Any) -> str:
        return await self.put(room, {"msgtype": "m.text", "body": text, **more})

    async def upload(self, body: bytes, mime: str) -> str:
        """Upload a file; returns its address."""
        async with self.session.post(
            f"{self.url}/_matrix/media/v3/upload",
            data=body,
            headers={"authorization": f"Bearer {self.token}", "content-type": mime},
        ) as answer:
            assert answer.status == 200, await answer.text()
            return str((await answer.json())["content_uri"])

    async def join(self, room: str) -> None:
        await self.call("POST", f"rooms/{quote(room)}/join")

    async def events(self, room: str) -> list[dict[str, Any]]:
        """Every event of the room, oldest first."""
        found: list[dict[str, Any]] = []
        page: dict[str, str] = {}
        while True:
            got = await self.call("GET", f"rooms/{quote(room)}/messages", None, dir="f", limit="100", **page)
            found += got["chunk"]
            if "end" not in got:
                return found
            page = {"from": got["end"]}

    async def position(self) -> str:
        """Where the person's stream of events is now."""
        found = await self.call("GET", "sync", None, filter=_timeline(1))
        return str(found["next_batch"])

    async def arrived(self, room: str, since: str) -> list[dict[str, Any]]:
        """The room's events since a position, in the order in which the homeserver sent them to people. (By
        `events`, those that were written at the same moment may be in another order.)"""
        found = await self.call("GET", "sync", None, filter=_timeline(10_000), since=since)
        timeline = found["rooms"]["join"][room]["timeline"]
        assert not timeline["limited"]
        events: list[dict[str, Any]] = timeline["events"]
        return events

    async def said(self, room: str, by: Person) -> list[str]:
        """The messages of a person as a reader sees them now: edited, without redacted ones."""
        texts: dict[str, str] = {}
        for event in await self.events(room):
            content = event["content"]
            if event["type"] != "m.room.message" or event["sender"] != by.id or "body" not in content:
                continue
            relation = content.get("m.relates_to") or {}
            if relation.get("rel_type") != "m.replace":
                texts[event["event_id"]] = content["body"]
            elif relation["event_id"] in texts:
                texts[relation["event_id"]] = content["m.new_content"]["body"]
        return list(texts.values())


def _timeline(limit: int) -> str:
    return json.dumps({"room": {"timeline": {"limit": limit}}})


async def register(session: aiohttp.ClientSession, server: Synapse, name: str) -> Person:
    """A new account, made with the homeserver's shared secret."""
    address = f"{server.url}/_synapse/admin/v1/register"
    async with session.get(address) as answer:
        nonce = (await answer.json())["nonce"]
    signed = "\0".join((nonce, name, "password", "notadmin")).encode()
    body = {
        "nonce": nonce,
        "username": name,
        "password": "password",
        "admin": False,
        "mac": hmac.new(SECRET.encode(), signed, hashlib.sha1).hexdigest(),
    }
    async with session.post(address, json=body) as answer:
        found = await answer.json()
        assert answer.status == 200, found
    return Person(session, server.url, found["user_id"], found["access_token"])
