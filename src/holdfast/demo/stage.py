"""The demo's environment: a temporary home, the servers and programs that run in it, and how to kill them.

On exit everything is removed, however the demo ends: first the processes, then the home.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec

from ..os_support import exists, open_private, write_private

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds that any step may take on a slow machine before the demo fails."""
SETTINGS = """\
[reset.sources.telegram]
mode = "idle"
idle_minutes = 0.1              # six seconds, so that the demo is short

[processes]
active_window_seconds = 1

[agent]
tools = ["terminal"]            # so that a session may start a process

[turns]
recover = "all"                 # a killed server's reply is finished by the next
max_attempts = 20               # on the page the red button may be clicked again and again

[compaction]
keep_first = 0
keep_last = 2

[memory]
flush = true
retry_seconds = 0.5
"""


class WentWrong(Exception):
    """A step of the demo did not have the announced result."""


class Stage:
    """Use as an async context manager."""

    def __init__(self, model_url: str) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
        self._key = f"demo-{secrets.token_hex(16)}"
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "OPENAI_"))
        }
        self.environment: Mapping[str, str] = {
            **kept,
            "HOLDFAST_HOME": str(self.home),
            "HOLDFAST_DEMO": "1",
            "HOLDFAST_API_KEY": self._key,
            "HOLDFAST_MODEL__KIND": "openai",
            "HOLDFAST_MODEL__BASE_URL": model_url,
            "PYTHONUNBUFFERED": "1",
        }
        self.server: Process | None = None
        self.port = 0
        self._programs: list[Process] = []
        self._session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Stage:
        write_private(self.home / "holdfast.toml", SETTINGS)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=PATIENCE, sock_read=PATIENCE)
        self._session = aiohttp.ClientSession(timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._session is not None:
                await self._session.close()
            await self._stop_processes()
            for process in self._programs:
                await kill(process)
        finally:
            shutil.rmtree(self.home, ignore_errors=True)

    # --- programs --------------------------------------------------------------------------------------

    async def start(self, *arguments: str, stdin: int = asyncio.subprocess.DEVNULL) -> Process:
        """Start the `holdfast` command as a process. Ctrl-C at this terminal does not reach it."""
        with os.fdopen(open_private(self.home / "demo.log", os.O_WRONLY | os.O_APPEND), "ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "holdfast", *arguments),
                stdin=stdin,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=dict(self.environment),
                cwd=self.home,
                start_new_session=True,
            )
        self._programs.append(process)
        return process

    async def serve(self) -> int:
        """Start the server, on its previous port if it had one. Returns its pid once it answers."""
        tries = 1 if self.port else 5  # another demo may have just taken the first port
        while True:
            port = self.port or free_port()
            self.server = await self.start("serve", "--port", str(port))
            try:
                await self._line_with(self.server, "answers at")
                self.port = port
                return self.server.pid
            except WentWrong:
                tries -= 1
                if not tries:
                    raise

    async def kill_server(self) -> None:
        """kill -9 the server, and wait until it has exited."""
        assert self.server is not None
        await kill(self.server)

    async def run(self, *arguments: str) -> str:
        """Run a command to its end; returns its stdout."""
        process = await self.start(*arguments)
        out, _ = await within(process.communicate(), f"`holdfast {' '.join(arguments)}` ends")
        if process.returncode != 0:
            raise WentWrong(f"`holdfast {' '.join(arguments)}` exited with {process.returncode}")
        return out.decode()

    async def _line_with(self, process: Process, words: str) -> str:
        assert process.stdout is not None
        while line := await within(process.stdout.readline(), f"a program says {words!r}"):
            if words in line.decode():
                return line.decode()
        raise WentWrong(f"a program ended before it printed {words!r}")

    async def _stop_processes(self) -> None:
        """Stop the sessions' background processes: they outlive servers."""
        with suppress(WentWrong, msgspec.DecodeError):
            if exists(self.home / "holdfast.db.processes"):
                listed = msgspec.json.decode(await self.run("ps", "--running", "--json"))
                for process in listed["data"]:
                    await self.run("stop", process["id"])

    def last_words(self) -> str:
        """What programs wrote to stderr, for diagnosis."""
        with suppress(OSError):
            return "\n".join((self.home / "demo.log").read_text("utf-8", "replace").splitlines()[-8:])
        return ""

    # --- requests --------------------------------------------------------------------------------------

    async def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[Any, Mapping[str, str]]:
        """Send a request; returns the JSON and the headers. Request headers are named with underscores."""
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self._open(method, path, data, headers) as response:
                answer = msgspec.json.decode(await response.read())
                if response.status >= 400:
                    raise WentWrong(f"{method} {path}: {response.status} {answer['error']['message']}")
                return answer, response.headers
        except aiohttp.ClientError as error:
            raise WentWrong(f"{method} {path}: {type(error).__name__}: {error}") from error

    async def data(self, path: str) -> list[dict[str, Any]]:
        """The items of a list response."""
        answer, _ = await self.ask("GET", path)
        found: list[dict[str, Any]] = answer["data"]
        return found

    async def say(self, text: str, **headers: str) -> tuple[str, dict[str, Any], Mapping[str, str]]:
        """Run a turn: the reply, the holdfast object of the response, and the headers."""
        body = {"messages": [{"role": "user", "content": text}]}
        answer, out = await self.ask("POST", "/v1/chat/completions", body, **headers)
        return answer["choices"][0]["message"]["content"], answer["holdfast"], out

    async def stream(self, text: str, **headers: str) -> AsyncIterator[str]:
        """The words of a streamed reply as they arrive. Ends without an error when the server is killed."""
        body = {"messages": [{"role": "user", "content": text}], "stream": True}
        data = msgspec.json.encode(body)
        with suppress(aiohttp.ClientError, ConnectionError):
            async with self._open("POST", "/v1/chat/completions", data, headers) as response:
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        choices = msgspec.json.decode(line[6:]).get("choices") or [{}]
                        yield (choices[0].get("delta") or {}).get("content") or ""

    def _open(self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]) -> Any:
        assert self._session is not None
        sent = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self._session.request(method, f"{self.url}{path}", data=data, headers=sent)


async def kill(process: Process) -> None:
    """kill -9, and wait until it has exited."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        await process.wait()


async def within(work: Awaitable[T], what: str) -> T:
    """Wait for this, with a time limit."""
    try:
        async with asyncio.timeout(PATIENCE):
            return await work
    except TimeoutError:
        raise WentWrong(f"after {PATIENCE:g} s it is still not true that {what}") from None


async def until(condition: Callable[[], Awaitable[T]], what: str) -> T:
    """Poll until the condition returns a true value; returns that value."""

    async def asked() -> T:
        while not (found := await condition()):  # noqa: ASYNC110 - it comes to pass in another process
            await asyncio.sleep(0.05)
        return found

    return await within(asked(), what)


def free_port() -> int:
    """A free port below the ephemeral range, so no outgoing connection takes it while the server is down."""
    first = random.randrange(18_000, 28_000)
    for port in range(first, first + 1000):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise WentWrong(f"there is no free port on 127.0.0.1 from {first} on")
