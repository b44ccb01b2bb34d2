"""The server that runs of `holdfast launch` share: found, or started in the background, and stopped by the
last of them.

A server that was started otherwise is used and left alone. One that a launch started is stopped when the
last launch ends, unless it still has turns to answer. Runs that end or begin at the same time are serialised
by a lock in the home; the kernel releases it, and a run's share of the server, when a process is killed.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ..errors import BadSetting, HoldfastError
from ..local_server import is_listening, local_address
from ..os_support import private_directory, start_of
from ..settings import Settings, is_variable
from .env import address
from .serve import LOOPBACK

LOCK_FILE = "launch.lock"
USERS_FILE = "launch.users"
SERVER_FILE = "launch.server"
LOG_FILE = "launch.log"
START_SECONDS = 60.0
STOP_SECONDS = 60.0
LEAVE_SECONDS = 10.0
"""How long a server that is no longer wanted may take to stop by itself."""
POLL_SECONDS = 0.05
LOG_LINES = 12
"""How many lines of the log are shown if the server did not start."""


class StartedServer(msgspec.Struct, frozen=True):
    """The server that a launch started, as SERVER_FILE records it."""

    pid: int
    pid_start: str
    """When the process started: another process may get the same pid later."""
    url: str

    def lives(self) -> bool:
        return start_of(self.pid) == self.pid_start


@dataclass
class ServerInUse:
    url: str
    started: bool
    """True: this run started it."""
    ending: str = ""
    """What became of it, once the run has ended."""


@asynccontextmanager
async def server_in_use(
    settings: Settings, home: Path, options: Mapping[str, str]
) -> AsyncIterator[ServerInUse]:
    """The home's server, started if there is none. `options` of `holdfast serve` by name. Raises BadSetting
    if it cannot be started."""
    users = _open_users(home)
    try:
        async with _alone(home):
            found = running_server(settings, home)
            server = ServerInUse(found or await _start(settings, home, options), found is None)
            fcntl.flock(users, fcntl.LOCK_SH)
        try:
            yield server
        finally:
            async with _alone(home):
                fcntl.flock(users, fcntl.LOCK_UN)
                server.ending = await _leave(home, users, server)
    finally:
        os.close(users)


def _open_users(home: Path) -> int:
    private_directory(home)
    return os.open(home / USERS_FILE, os.O_RDWR | os.O_CREAT, 0o600)


def running_server(settings: Settings, home: Path) -> str | None:
    """The URL of the server that clients of this home use; None: none runs."""
    named = any(is_variable(settings.origins.get(name, "")) for name in ("server.host", "server.port"))
    if named and settings.server.port:
        url = address(settings).removesuffix("/v1")
        return url if is_listening(url) else None
    return local_address(home)


async def _start(settings: Settings, home: Path, options: Mapping[str, str]) -> str:
    """Start `holdfast serve`, wait until it listens and record it; returns its URL."""
    process = _spawn(settings, home, options)
    try:
        return await _listening(process, home)
    except BaseException:  # Ctrl-C too: no launch would stop it later
        process.terminate()
        try:
            process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


async def _listening(process: subprocess.Popen[bytes], home: Path) -> str:
    """Wait until the server that was started listens, and record it; returns its URL."""
    deadline = asyncio.get_running_loop().time() + START_SECONDS
    while (url := local_address(home)) is None:
        if process.poll() is not None:
            raise BadSetting(f"the server could not be started: {_said(home)}")
        if asyncio.get_running_loop().time() > deadline:
            process.kill()
            raise BadSetting(f"the server did not listen within {START_SECONDS:g} s: {_said(home)}")
        await asyncio.sleep(POLL_SECONDS)
    record = StartedServer(process.pid, start_of(process.pid) or "", url)
    _write_private(home / SERVER_FILE, msgspec.json.encode(record))
    return url


def _spawn(settings: Settings, home: Path, options: Mapping[str, str]) -> subprocess.Popen[bytes]:
    given = [word for name, value in options.items() for word in (f"--{name}", value)]
    command = [sys.executable, "-m", "holdfast", "serve", "--port", str(_port(settings)), *given]
    log = os.open(home / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        # A session of its own: Ctrl-C in this terminal is meant for the program.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    finally:
        os.close(log)


def _port(settings: Settings) -> int:
    """The port of the settings if it is free, else 0: any."""
    host, port = settings.server.host, settings.server.port
    place = "127.0.0.1" if host in LOOPBACK else host
    try:
        with socket.create_server((place, port), reuse_port=False):
            return port
    except OSError:
        return 0


def _said(home: Path) -> str:
    with suppress(OSError):
        lines = (home / LOG_FILE).read_text("utf-8", "replace").strip().splitlines()
        return " / ".join(line.strip() for line in lines[-LOG_LINES:]) or f"see {home / LOG_FILE}"
    return f"see {home / LOG_FILE}"


async def _leave(home: Path, users: int, server: ServerInUse) -> str:
    """Stop the server if a launch started it and this run was its last user; returns what was done."""
    started = _recorded(home)
    if started is None or not started.lives() or started.url != server.url:
        return ""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return f"The server at {server.url} keeps running: another `holdfast launch` uses it"
    running = await _running_turns(server.url)
    if running:
        return (
            f"The server at {server.url} keeps running: it is answering {running} "
            f"{'turn' if running == 1 else 'turns'}. Stop it with: kill {started.pid}"
        )
    with suppress(ProcessLookupError):
        os.kill(started.pid, signal.SIGTERM)
    deadline = asyncio.get_running_loop().time() + STOP_SECONDS
    while started.lives():
        if asyncio.get_running_loop().time() > deadline:
            return f"The server at {server.url} was sent SIGTERM, and still runs as process {started.pid}"
        await asyncio.sleep(POLL_SECONDS)
    (home / SERVER_FILE).unlink(missing_ok=True)
    return "The server, which was started for this, is stopped"


def _recorded(home: Path) -> StartedServer | None:
    try:
        return msgspec.json.decode((home / SERVER_FILE).read_bytes(), type=StartedServer)
    except (OSError, msgspec.DecodeError):
        return None


async def _running_turns(url: str) -> int:
    try:
        _, body = await get_json(f"{url}/healthz")
        return int(body["running_turns"])
    except (HoldfastError, KeyError, TypeError, ValueError):
        return 0


async def get_json(url: str, key: str = "") -> tuple[int, Any]:
    """GET: the status and the JSON of the answer; None if not JSON. BadSetting if there is no answer."""
    import aiohttp

    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as client:
            async with client.get(url, headers=headers) as answer:
                body = await answer.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise BadSetting(f"no server answers at {url}: {error}") from error
    try:
        return answer.status, msgspec.json.decode(body)
    except msgspec.DecodeError:
        return answer.status, None


def _write_private(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    os.replace(draft, path)


@asynccontextmanager
async def _alone(home: Path) -> AsyncIterator[None]:
    """Exclusive among the launches of this home."""
    lock = os.open(home / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(POLL_SECONDS)
        yield
    finally:
        os.close(lock)
