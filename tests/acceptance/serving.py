"""`holdfast serve` as a process: started, talked to, killed, started again on the same port and home."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .command import Home, Running
from .shell import free_port

READY = "holdfast answers at"


class Serving:
    """A server on a home, which may be killed and started again."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.port = free_port()
        home.environment["HOLDFAST_SERVER__PORT"] = str(self.port)
        self._running: Running | None = None
        self.start()
        self.client_environment: dict[str, str] = home.json("env")
        """What `holdfast env` gives a client."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._running = self.home.start("serve")
        self._running.wait_for(READY)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit code."""
        running, self._running = self._running, None
        if running is None:
            return 0
        running.send(number)
        code, _, _ = running.end()
        return code

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def ask(
        self, method: str, path: str, body: Any = None, token: str | None = None, **headers: str
    ) -> tuple[int, Any]:
        """One request: the status and the JSON of its answer. Headers by their names with underscores."""
        token = token or self.client_environment["OPENAI_API_KEY"]
        sent = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refusal:
            return refusal.code, json.load(refusal)

    def say(self, text: str, **headers: str) -> dict[str, Any]:
        """One turn; its whole answer."""
        body = {"messages": [{"role": "user", "content": text}]}
        status, answer = self.ask("POST", "/v1/chat/completions", body, **headers)
        assert status == 200, answer
        whole: dict[str, Any] = answer
        return whole


@contextmanager
def serving(home: Home) -> Iterator[Serving]:
    server = Serving(home)
    try:
        yield server
    finally:
        server.kill()
