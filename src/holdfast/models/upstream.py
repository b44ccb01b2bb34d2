"""Any OpenAI-compatible server as a model: OpenAI, vLLM, llama.cpp, Ollama, OpenRouter, a gateway, …

Nothing is lost: the messages are put into the request as the bytes they are, unknown options are passed on,
and chunks are returned as received. Answers are streamed; `timeout_seconds` is the longest silence, before
the answer and inside it. Once a byte of the answer has arrived, nothing is retried. Closing the iterator
closes the connection, which stops the generation at the server. The rules of `connection.py` about the key,
redirects, proxies and retries apply.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from ..errors import ModelError
from .base import Chunk, ModelRequest, Purpose, request_body
from .chunks import AnswerReader
from .connection import BACKOFF_SECONDS, SHORT_WAIT_SECONDS, Connection
from .http_client import HttpFailure, UpstreamResponse
from .windows import ask_window

TAIL_SECONDS = 5.0
"""How long usage may take to follow a finished answer."""
EOF_SECONDS = 0.1
"""How long to wait for the end of the body after [DONE], to reuse the connection."""
WINDOW_KEPT_SECONDS = 60.0
MOST_WINDOWS = 256


class ServedModel(ABC):
    """A model of a server, with any API. An empty `model` means the first that the server lists."""

    def __init__(self, connection: Connection, model: str) -> None:
        self._connection = connection
        self._model = model
        self._first = ""

    @property
    def description(self) -> str:
        return f"{self._model or self._first or 'the first model'} at {self._connection.host}"

    @abstractmethod
    async def models(self) -> list[dict[str, Any]]: ...

    async def close(self) -> None:
        await self._connection.close()

    async def _name(self, model: str | None) -> str:
        name = model or self._model or self._first
        if not name:
            models = await self.models()
            if not models:
                raise self._connection.error(
                    f"the server at {self._connection.where} offers no model: load one there, "
                    "or name one with [model] name"
                )
            name = self._first = str(models[0]["id"])
        return name

    async def _accepted(
        self, request: ModelRequest, path: str, body: bytes, headers: Mapping[str, str]
    ) -> UpstreamResponse:
        """Post the request; returns the response, of which nothing is read yet. Raises ModelError."""
        sent = {**headers, "X-Holdfast-Purpose": request.purpose.value}
        if request.idempotency_key:
            sent["Idempotency-Key"] = request.idempotency_key
        try:
            once = request.purpose is Purpose.FLUSH
            response = await self._connection.open("POST", path, body, sent, once=once)
        except ModelError as refusal:
            if refusal.status == 404:
                self._first = ""  # the server may have another model by now
            raise
        if request.on_accepted is not None:
            request.on_accepted()
        return response

    async def _read(self, response: UpstreamResponse, finished: bool, silence: Silence) -> bytes:
        """The next bytes of a streamed answer; empty at its end. Keepalives do not extend the timeout.
        `finished`: the answer is complete, though more may follow."""
        try:
            if silence.left is None:  # only events so far: the connection's own timeout applies
                return await response.readany()
            async with asyncio.timeout(silence.left):
                with silence:
                    return await response.readany()
        except (HttpFailure, OSError) as problem:
            if finished:
                return b""  # only usage could have followed
            if isinstance(problem, TimeoutError) and silence.left is not None:
                self._connection.fail_silent()
            self._connection.fail(problem, begun=not isinstance(problem, TimeoutError))


class Upstream(ServedModel):
    """The server at `base_url`, with OpenAI's API."""

    def __init__(
        self,
        base_url: str,
        api_key: str = "",
        model: str = "",
        timeout_seconds: float = 600,
        connect_timeout: float = 10,
        *,
        backoff: Sequence[float] = BACKOFF_SECONDS,
        key_variable: str = "",
        longest_wait: float = SHORT_WAIT_SECONDS,
        is_own_server: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        connection = Connection(
            base_url,
            api_key,
            timeout_seconds,
            connect_timeout,
            backoff,
            key_variable=key_variable,
            longest_wait=longest_wait,
            is_own_server=is_own_server,
        )
        super().__init__(connection, model)
        self._clock = clock
        self._windows: dict[str, tuple[float, int | None]] = {}

    async def models(self) -> list[dict[str, Any]]:
        response = await self._connection.open("GET", "models")
        try:
            async with asyncio.timeout(self._connection.timeout_seconds):
                value = msgspec.json.decode(await response.read())
        except (HttpFailure, OSError) as problem:
            self._connection.fail(problem)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            value = None
        finally:
            response.close()
        listed = value.get("data") if isinstance(value, dict) else None
        if listed is None and isinstance(value, dict) and "data" in value:
            return []  # Ollama without a model
        if not isinstance(listed, list):
            where = self._connection.where
            advice = "does [model] base_url end in /v1?"
            if not where.rstrip("/").endswith("/v1"):
                advice = f"set [model] base_url to {where.rstrip('/')}/v1"
            raise self._connection.error(
                f"{where}/models is not a list of models; {advice}",
                200,
                public="the model's server has no list of models; does [model] base_url end in /v1?",
            )
        return [entry for entry in listed if isinstance(entry, dict) and entry.get("id")]

    async def window(self, model: str | None = None) -> int | None:
        """None if the server does not report it, or does not answer. Asks the server at most once
        a minute."""
        try:
            name = await self._name(model)
            known = self._windows.get(name)
            if known is None or known[0] <= self._clock():
                listed = next((entry for entry in await self.models() if entry["id"] == name), {})
                window = await ask_window(name, listed, self._connection.ask)
                self._windows.pop(name, None)
                known = self._windows[name] = self._clock() + WINDOW_KEPT_SECONDS, window
                while len(self._windows) > MOST_WINDOWS:  # clients choose model names freely
                    del self._windows[next(iter(self._windows))]
        except ModelError:
            return None
        return known[1]

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        if self._connection.is_ollama:
            request = replace(request, options=_as_ollama_says(request.options))
        body = await request_body(request, await self._name(request.model))
        response = await self._accepted(request, "chat/completions", body, {})
        choices = request.options.get("n")
        answer = AnswerReader(max(1, choices) if isinstance(choices, int) else 1, self._connection.shown)
        silence = Silence(self._connection.timeout_seconds)
        try:
            while not answer.done and (piece := await self._read(response, answer.finished, silence)):
                heard = answer.heard
                for chunk in answer.feed(piece):
                    yield chunk
                silence.read(answer.heard > heard, answer.finished)
            if answer.done:
                await _reach_end(response)
            else:
                for chunk in answer.end():
                    yield chunk
        finally:
            response.close()  # no effect on a connection that was read to its end


class Silence:
    """How long the model may still send no event. Counted only while reading, so a slow consumer does not use
    it up. `left` is None while each piece has brought an event, so a flowing stream costs no timers."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._is_tail = False
        self._began = 0.0
        self.left: float | None = None

    def read(self, brought_event: bool, finished: bool) -> None:
        """Record that a piece was read. Once the answer is complete, the rest gets TAIL_SECONDS in all."""
        if finished and not self._is_tail:
            self._is_tail, self.left = True, TAIL_SECONDS
        elif not finished:
            if brought_event:
                self.left = None
            elif self.left is None:
                self.left = self._timeout_seconds

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        assert self.left is not None
        self.left = max(0.0, self.left - (time.monotonic() - self._began))


def _as_ollama_says(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rename the token limit: Ollama supports only its old name, and silently ignores the new one."""
    if "max_completion_tokens" not in options or "max_tokens" in options:
        return options
    named = dict(options)
    return {"max_tokens": named.pop("max_completion_tokens"), **named}


async def _reach_end(response: UpstreamResponse) -> None:
    if response.at_eof:
        return
    try:
        async with asyncio.timeout(EOF_SECONDS):
            while await response.readany():
                pass
    except (HttpFailure, OSError):
        return  # closed instead of reused: the answer is complete either way
