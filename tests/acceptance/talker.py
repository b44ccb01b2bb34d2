"""A model whose every word the test decides: an OpenAI-compatible server in a thread.

    talker.say("The", " tide")      # goes out at once
    talker.finish()                 # … and the answer is whole
    talker.break_off()              # or the connection is cut
    talker.refuse(503, "busy")      # or there is no answer at all

What is said is queued: a request takes from the queue until it is finished, broken off or refused.
"""

from __future__ import annotations

import json
import select
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

FINISH, BREAK_OFF = object(), object()


class Talker:
    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.asked = threading.Event()
        """Set when a request has come."""
        self.closing = threading.Event()
        self._lines: deque[object] = deque()
        self.changed = threading.Condition()
        """Guards the lines: who takes one has looked whether its client is still there."""
        self.usage: dict[str, int] = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        """What it says of every answer; nothing, if that is empty."""
        self.answering: set[int] = set()
        """Requests under way: whoever is told the next words. One that was given up stays for a moment."""
        self._calls = count()
        talker = self

        class Handler(_Handler):
            pass

        Handler.talker = talker
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def say(self, *words: str) -> None:
        self._put(*words)

    def _put(self, *lines: object) -> None:
        with self.changed:
            self._lines.extend(lines)
            self.changed.notify_all()

    @property
    def said_all(self) -> bool:
        return not self._lines

    def take(self) -> object:
        """The next line; None if there is none. The caller holds `changed`."""
        return self._lines.popleft() if self._lines else None

    def call(self, name: str, **arguments: Any) -> None:
        """Call a tool."""
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"index": 0, "id": f"call_{next(self._calls)}", "type": "function", "function": function}
        self._put({"tool_calls": [call]})

    def finish(self) -> None:
        self._put(FINISH)

    def answer(self, *words: str) -> None:
        self.say(*words)
        self.finish()

    def break_off(self) -> None:
        self._put(BREAK_OFF)

    def refuse(self, status: int, message: str) -> None:
        self._put((status, message))

    @property
    def heard(self) -> list[dict[str, Any]]:
        """The messages of the newest request."""
        messages: list[dict[str, Any]] = self.requests[-1]["messages"]
        return messages

    @contextmanager
    def running(self) -> Iterator[Talker]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.closing.set()
            self._server.shutdown()
            self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    talker: Talker

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self._json(200, {"object": "list", "data": [{"id": "talker", "object": "model"}]})

    def do_POST(self) -> None:
        self.talker.answering.add(id(self))
        try:
            self._answer()
        finally:
            self.talker.answering.discard(id(self))

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.talker.requests.append(json.loads(body))
        self.talker.asked.set()
        line = self._next()
        if isinstance(line, tuple):
            self._json(line[0], {"error": {"message": line[1], "type": "x", "param": None, "code": None}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            while isinstance(line, str | dict):
                self._event({"content": line} if isinstance(line, str) else line, None)
                line = self._next()
            if line is FINISH:
                self._event({}, "stop", {"usage": self.talker.usage} if self.talker.usage else None)
                self.wfile.write(b"data: [DONE]\n\n")
        except (BrokenPipeError, ConnectionResetError):
            return  # whoever asked is gone

    def _next(self) -> object:
        """A handler whose client has died takes nothing, however soon the next client comes: one that died
        before the words were said has hung up before they are taken."""
        with self.talker.changed:
            while not self.talker.closing.is_set() and not self._is_alone():
                line = self.talker.take()
                if line is not None:
                    return line
                self.talker.changed.wait(0.05)  # nothing tells of a client that hangs up
        return BREAK_OFF

    def _is_alone(self) -> bool:
        """Has whoever asked hung up? Then the words are for the next one."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        try:
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
        except ConnectionResetError:
            return True

    def _event(self, delta: dict[str, Any], reason: str | None, more: dict[str, Any] | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "talker", "created": 1}
        self.wfile.write(
            b"data: " + json.dumps({**chunk, "choices": [choice], **(more or {})}).encode() + b"\n\n"
        )
        self.wfile.flush()

    def _json(self, status: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
