"""A model that tells stories slowly and answers everything else at once: an OpenAI-compatible server.

A story that is to be cut off is told until nobody listens any more: however slow the machine is, it does not
end before.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORDS, SECONDS = 60, 0.05
"""How long a story is, and how long each of its words takes."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, endless: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._endless = endless
        self._lock = threading.Lock()

    def is_endless(self, asked: str) -> bool:
        """True for the first story that holds the word of endless ones."""
        with self._lock:
            found = bool(self._endless) and self._endless in asked
            if found:
                self._endless = ""
        return found


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self._head("application/json")
        self.wfile.write(b'{"object": "list", "data": [{"id": "storyteller", "object": "model"}]}')

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = str(request["messages"][-1]["content"])
        self._head("text/event-stream")
        try:
            for word in self._words(asked):
                self._chunk({"content": word}, None)
            self._chunk({}, "stop")
            self.wfile.write(b"data: [DONE]\n\n")
        except (BrokenPipeError, ConnectionResetError):
            return  # whoever asked is gone

    def _words(self, asked: str) -> Iterator[str]:
        if "story" not in asked:
            yield f"You said: {asked}"
            return
        assert isinstance(self.server, _Server)
        for number in itertools.count() if self.server.is_endless(asked) else range(WORDS):
            time.sleep(SECONDS)
            yield f"wave {number} "

    def _chunk(self, delta: dict[str, str], reason: str | None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "storyteller", "created": 1}
        self.wfile.write(b"data: " + json.dumps({**chunk, "choices": [choice]}).encode() + b"\n\n")
        self.wfile.flush()

    def _head(self, media_type: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", media_type)
        self.end_headers()


@contextmanager
def storyteller(endless: str = "") -> Iterator[str]:
    """Its base URL, while it listens. The first story with the word `endless` is told until it is cut off."""
    server = _Server(endless)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
