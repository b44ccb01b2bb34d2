"""The model of the grid: an OpenAI-compatible server in a thread, which answers by rules, so that each client
can be asked for a certain answer.

| the person's words      | it answers                                                               |
|-------------------------|--------------------------------------------------------------------------|
| `say WORD-1`            | `I say WORD-1.`                                                          |
| `what did I say?`       | every such word of the conversation, as it got it                        |
| `use your tool`         | a call of the shell (or `weather`) tool on offer, then its result         |
| `ask a helper to …`     | a call of the tool that starts a sub-agent, with these words             |
| `tell the long story`   | a story of 40 words. While `held`, it stops in the middle until it is cut |
"""

from __future__ import annotations

import json
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAME = "mock"
STORY = " ".join(f"wave{number}" for number in range(40))
RESULT = "tide-42"
COMMAND = "echo tide-$((40+2))"
CALLS: dict[str, dict[str, Any]] = {
    "exec_command": {"cmd": COMMAND},
    "Bash": {"command": COMMAND, "description": "Print the tide"},
    "bash": {"command": COMMAND, "description": "Print the tide"},
    "weather": {"city": "Oslo"},
}
"""Arguments by the name of the tool."""
HELPERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "spawn_agent": lambda words: {"message": words},
    "Agent": lambda words: {"description": "Say a word", "prompt": words, "subagent_type": "general-purpose"},
    "task": lambda words: {"description": "Say a word", "prompt": words, "subagent_type": "general"},
}
"""Arguments for a sub-agent with these words, by the name of the tool that starts one."""
WORD = re.compile(r"\b[A-Z]{3,}-\d+\b")


class GridModel:
    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.held = threading.Event()
        """Set: stories stop in the middle."""
        self.halfway = threading.Event()
        """Set when a story has been told by half."""
        model = self

        class Handler(_Handler):
            pass

        Handler.model = model
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    @contextmanager
    def running(self) -> Iterator[GridModel]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.closing.set()
            self._server.shutdown()
            self._server.server_close()

    def reply(self, request: dict[str, Any]) -> tuple[str, dict[str, Any] | None]:
        """The text, or the call of a tool."""
        messages = request["messages"]
        tools = [each["function"]["name"] for each in request.get("tools") or () if "function" in each]
        result = _newest_result(messages)
        if result is not None:
            helper = re.search(r'"agent_id":\s*"([^"]+)"', result)  # Codex: it runs beside its parent
            waits = _called(tools, {"wait_agent": {"targets": [helper[1]]}}) if helper else None
            return waits or (f"The tool said {result}", None)
        words = _newest_words(messages)
        if "use your tool" in words:
            return _called(tools, CALLS) or (f"no tool that I know among {tools}", None)
        if helped := re.search(r"ask a helper to ([^\n\"]*)", words):
            wanted = {name: arguments(helped[1]) for name, arguments in HELPERS.items()}
            return _called(tools, wanted) or (f"no sub-agents among {tools}", None)
        if "what did I say" in words:
            said = [
                word
                for each in messages
                if each["role"] == "user"
                for word in WORD.findall(_text(each))
                if "say " + word in _text(each)
            ]
            return f"You said {', '.join(dict.fromkeys(said))}.", None
        if "the long story" in words:
            return STORY, None
        found = WORD.findall(words)
        return (f"I say {found[-1]}." if found else "Tides"), None


def _called(tools: Sequence[str], calls: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The call of the first of these tools that is on offer, be it in a namespace."""
    for name in tools:
        wanted = next((each for each in calls if name == each or name.endswith(f"__{each}")), None)
        if wanted is not None:
            return "", {"name": name, "arguments": json.dumps(calls[wanted])}
    return None


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content if isinstance(part, dict))


def _newest_result(messages: Sequence[dict[str, Any]]) -> str | None:
    """The tool's result, if the conversation ends with one; a program's own remarks may follow it."""
    for message in reversed(messages):
        if message["role"] == "tool":
            return _text(message)
        if message["role"] != "user" or not _text(message).lstrip().startswith("<"):
            return None
    return None


def _newest_words(messages: Sequence[dict[str, Any]]) -> str:
    return next((_text(each) for each in reversed(messages) if each["role"] == "user"), "")


class _Handler(BaseHTTPRequestHandler):
    model: GridModel

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self._json({"object": "list", "data": [{"id": NAME, "object": "model"}]})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.model.requests.append(request)
        text, call = self.model.reply(request)
        calls = [{"index": 0, "id": f"call_{time.time_ns()}", "type": "function", "function": call}]
        reason = "tool_calls" if call else "stop"
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        about = {"id": "chatcmpl-1", "model": NAME, "created": 1}
        if not request.get("stream"):
            message = {"role": "assistant", "content": text or None}
            if call:
                message["tool_calls"] = [{k: v for k, v in calls[0].items() if k != "index"}]  # type: ignore[assignment]
            choice = {"index": 0, "message": message, "finish_reason": reason}
            self._json({**about, "object": "chat.completion", "choices": [choice], "usage": usage})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            self._event({**about, "choices": [_choice({"role": "assistant", "content": ""}, None)]})
            for number, word in enumerate(re.findall(r"\S+\s*", text)):
                if text == STORY and number == 20 and self.model.held.is_set():
                    self.model.halfway.set()
                    self._wait_until_cut()
                    return
                self._event({**about, "choices": [_choice({"content": word}, None)]})
            if call:
                self._event({**about, "choices": [_choice({"tool_calls": calls}, None)]})
            self._event({**about, "choices": [_choice({}, reason)], "usage": usage})
            self.wfile.write(b"data: [DONE]\n\n")
        except (BrokenPipeError, ConnectionResetError):
            return

    def _wait_until_cut(self) -> None:
        while not self.model.closing.is_set():
            readable, _, _ = select.select([self.connection], [], [], 0.05)
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                return

    def _event(self, chunk: dict[str, Any]) -> None:
        chunk = {"object": "chat.completion.chunk", **chunk}
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.flush()

    def _json(self, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _choice(delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": reason}
