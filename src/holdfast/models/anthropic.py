"""Any server that speaks Anthropic's API as a model (`[model] kind = "anthropic"`).

A client that uses Anthropic's API itself is served without translation: its fields, its tools and the content
blocks of its messages are sent as it sent them, with `cache_control`, signatures and blocks that chat has no
form for. Only what the client did not send is translated from chat: messages of other clients, summaries of
compactions, the server's own instructions and tools. Answers become chat chunks; thinking blocks with their
signatures and blocks of tools that ran at Anthropic are kept in fields of the reply (`thinking_blocks`,
`anthropic_blocks`).

Limits: `reasoning_effort` of chat clients is not sent; citations are dropped; sound becomes a note. The rules
of `connection.py` about the key, redirects, proxies and retries apply.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from ..domain.fingerprints import fingerprint_of
from ..domain.messages import text_of
from ..domain.new_messages import long_number
from ..errors import ModelError
from .base import Chunk, ModelRequest, NativeRequest, Purpose
from .chunks import ChunkMaker, chunk_of
from .connection import BACKOFF_SECONDS, Connection
from .http_client import HttpFailure, UpstreamResponse
from .refusals import refusal_in
from .sse import MAX_EVENT, EventReader
from .upstream import ServedModel, Silence

VERSION = "2023-06-01"
CLAUDE_WINDOW = 200_000
"""Assumed for names that begin with `claude`, if the server does not report a window."""
MOST_TOKENS = 8192
"""`max_tokens` for a request that has none: this API requires it."""
OURS = frozenset({"messages", "system", "model", "stream", "tools", "tool_choice", "store"})
"""Fields of a client's request that are not sent unchanged."""
FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}

Block = Mapping[str, Any]


class AnthropicUpstream(ServedModel):
    """The server at `base_url`. An empty `model` means the first that the server lists."""

    def __init__(
        self,
        base_url: str,
        api_key: str = "",
        model: str = "",
        timeout_seconds: float = 600,
        *,
        backoff: Sequence[float] = BACKOFF_SECONDS,
    ) -> None:
        super().__init__(Connection(base_url, api_key, timeout_seconds, backoff=backoff), model)
        self._connection.send_key_as("x-api-key")

    async def models(self) -> list[dict[str, Any]]:
        value = await self._json("GET", "models")
        listed = value.get("data") if isinstance(value, Mapping) else None
        if not isinstance(listed, list):
            raise self._connection.error(
                f"{self._connection.where}/models is not a list of models; does [model] base_url end in /v1?",
                public="the model's server has no list of models; does [model] base_url end in /v1?",
            )
        return [_model_object(entry) for entry in listed if isinstance(entry, Mapping) and entry.get("id")]

    async def window(self, model: str | None = None) -> int | None:
        """What the server reports (`max_input_tokens`), else that of Claude for its names; None: unknown."""
        try:
            name = await self._name(model)
            listed = next((entry for entry in await self.models() if entry["id"] == name), {})
        except ModelError:
            return None
        known = listed.get("max_input_tokens")
        if isinstance(known, int) and known > 0:
            return known
        return CLAUDE_WINDOW if name.startswith("claude") else None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        name = await self._name(request.model)
        body = msgspec.json.encode(request_fields(request, name))
        response = await self._accepted(request, "messages", body, _headers(request.native))
        answer = AnswerTranslator(name)
        try:
            if response.content_type == "application/json":
                for chunk in answer.whole(self._decoded(await self._body(response))):
                    yield chunk
                return
            events, silence = EventReader(), Silence(self._connection.timeout_seconds)
            while not answer.done and (piece := await self._read(response, answer.finished, silence)):
                heard = answer.heard
                for event in events.feed(piece):
                    for chunk in answer.add(self._event(event.data)):
                        yield chunk
                silence.read(answer.heard > heard, answer.finished)
            for event in () if answer.done else events.finish():
                for chunk in answer.add(self._event(event.data)):
                    yield chunk
            for chunk in answer.end():
                yield chunk
        finally:
            response.close()

    async def count_tokens(self, native: NativeRequest, model: str | None) -> int:
        """The tokens of a client's request, counted by the server."""
        fields = {name: value for name, value in native.body.items() if name not in ("stream", "store")}
        fields["model"] = await self._name(model)
        value = await self._json(
            "POST", "messages/count_tokens", msgspec.json.encode(fields), _headers(native)
        )
        count = value.get("input_tokens") if isinstance(value, Mapping) else None
        if not isinstance(count, int) or isinstance(count, bool):
            raise ModelError("the model's server gave no token count")
        return count

    async def _json(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        response = await self._connection.open(method, path, body, headers or _headers(None))
        try:
            return self._decoded(await self._body(response))
        finally:
            response.close()

    async def _body(self, response: UpstreamResponse) -> bytes:
        pieces, size = [], 0
        try:
            async with asyncio.timeout(self._connection.timeout_seconds):
                while piece := await response.readany():
                    pieces.append(piece)
                    size += len(piece)
                    if size > MAX_EVENT:
                        raise ModelError(f"the model's answer is larger than {MAX_EVENT >> 20} MiB")
        except (HttpFailure, OSError) as problem:
            self._connection.fail(problem, begun=bool(pieces))
        return b"".join(pieces)

    def _event(self, data: bytes) -> Mapping[str, Any]:
        value = self._decoded(data) if data else {}
        if not isinstance(value, Mapping):
            raise ModelError("the model sent JSON that is not an event of a message")
        return value

    def _decoded(self, data: bytes) -> Any:
        try:
            value = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise ModelError(f"the model sent something that is not JSON ({problem})") from None
        if isinstance(value, Mapping) and value.get("type") == "error":
            refused = refusal_in(value, self._connection.shown)
            raise refused.error(f"the model reported an error: {refused.said or 'it gave no reason'}")
        return value


def _headers(native: NativeRequest | None) -> dict[str, str]:
    return {"anthropic-version": VERSION, **(native.headers if native else {})}


def _model_object(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A model object in OpenAI's shape."""
    try:
        created = int(datetime.fromisoformat(str(entry.get("created_at"))).timestamp())
    except ValueError:
        created = 0
    known = {name: entry[name] for name in ("display_name", "max_input_tokens") if entry.get(name)}
    return {"id": str(entry["id"]), "object": "model", "created": created, "owned_by": "anthropic", **known}


# --- requests --------------------------------------------------------------------------------------------


def request_fields(request: ModelRequest, model: str) -> dict[str, Any]:
    """The request in Anthropic's API."""
    native, options = request.native, request.options
    if native is not None and request.purpose is Purpose.TURN:
        fields = {name: value for name, value in native.body.items() if name not in OURS}
    else:
        native = None
        fields = _plain_fields(options)
    fields |= _tools(native, options)
    system, messages = _messages(msgspec.json.decode(request.messages), native)
    if system:
        fields["system"] = system
    return {**fields, "model": model, "stream": options.get("stream", True), "messages": messages}


def _plain_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        name: options[name] for name in ("temperature", "top_p", "top_k") if options.get(name) is not None
    }
    limit = options.get("max_completion_tokens") or options.get("max_tokens")
    fields["max_tokens"] = limit if isinstance(limit, int) else MOST_TOKENS
    stop = options.get("stop")
    if stop:
        fields["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    shape = options.get("response_format")
    if isinstance(shape, Mapping) and isinstance(named := shape.get("json_schema"), Mapping):
        fields["output_config"] = {"format": {"type": "json_schema", "schema": named.get("schema") or {}}}
    return fields


def _tools(native: NativeRequest | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The client's tools as it sent them, then those that only the chat options have."""
    tools = list(native.body.get("tools") or ()) if native is not None else []
    known = {tool.get("name") for tool in tools if isinstance(tool, Mapping)}
    for tool in options.get("tools") or ():
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and function.get("name") not in known:
            schema = function.get("parameters") or {"type": "object"}
            described = {"description": function["description"]} if function.get("description") else {}
            tools.append({"name": function.get("name"), **described, "input_schema": schema})
    fields: dict[str, Any] = {"tools": tools} if tools else {}
    choice: Any = _choice(options)
    if native is not None:
        own = native.body.get("tool_choice")
        forced = isinstance(own, Mapping) and own.get("type") in ("any", "tool")
        choice = choice if forced and options.get("tool_choice") == "auto" else own
    if choice and tools:
        fields["tool_choice"] = choice
    return fields


def _choice(options: Mapping[str, Any]) -> dict[str, Any]:
    choice = options.get("tool_choice")
    found: dict[str, Any] = {}
    if isinstance(choice, str):
        found = {"type": {"required": "any"}.get(choice, choice)}
    elif isinstance(choice, Mapping):
        found = {"type": "tool", "name": (choice.get("function") or {}).get("name")}
    if options.get("parallel_tool_calls") is False and found.get("type") != "none":
        found = {"type": "auto", **found, "disable_parallel_tool_use": True}
    return found


def _messages(
    values: Sequence[Mapping[str, Any]], native: NativeRequest | None
) -> tuple[list[Block], list[dict[str, Any]]]:
    """The system blocks and the messages; neighbours of one role are one message."""
    system: list[Block] = []
    messages: list[dict[str, Any]] = []
    for value in values:
        role, text = value.get("role"), text_of(value.get("content"))
        if role in ("system", "developer") and not messages:
            own = native.body.get("system") if native is not None and text == native.system else None
            system += own if isinstance(own, list) else _said(text)
            continue
        known = native.blocks.get(fingerprint_of(value)) if native is not None else None
        blocks = known if known else list(_blocks(value))
        if role in ("system", "developer") and known:
            spoken = "system"  # its client may send such messages, so its server takes them
        else:
            spoken = "assistant" if role == "assistant" else "user"
        if not blocks:
            continue
        if messages and messages[-1]["role"] == spoken:
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": spoken, "content": list(blocks)})
    return system, messages


def _blocks(message: Mapping[str, Any]) -> Iterator[Block]:
    """The content blocks of a chat message."""
    content = message.get("content")
    if message.get("role") == "tool":
        inner = list(_parts(content))
        result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id")}
        yield {**result, "content": inner} if inner else result
        return
    if message.get("role") == "assistant":
        for name in ("thinking_blocks", "anthropic_blocks"):
            found = message.get(name)  # a client may send anything
            yield from (
                (block for block in found if isinstance(block, Mapping)) if isinstance(found, list) else ()
            )
    yield from _parts(content)
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        yield {
            "type": "tool_use",
            "id": call.get("id"),
            "name": function.get("name") or "",
            "input": _input(function.get("arguments")),
        }


def _input(arguments: Any) -> Any:
    if isinstance(arguments, str) and long_number(arguments) is not None:
        return {"_arguments": arguments}
    try:
        value = msgspec.json.decode(arguments) if arguments else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError, TypeError):
        value = arguments
    return value if isinstance(value, dict) else {"_arguments": value}


def _said(text: str) -> list[Block]:
    return [{"type": "text", "text": text}] if text.strip() else []


def _parts(content: Any) -> Iterator[Block]:
    if not isinstance(content, list):
        yield from _said(content if isinstance(content, str) else "")
        return
    for part in content:
        if isinstance(part, str):
            yield from _said(part)
            continue
        match part.get("type"):
            case "image_url":
                image = part.get("image_url")
                url = image.get("url") if isinstance(image, Mapping) else image
                yield {"type": "image", "source": _source(str(url))}
            case "file":
                file = part.get("file")
                yield from _file(file if isinstance(file, Mapping) else {})
            case "input_audio":
                yield {"type": "text", "text": "[sound, which this model cannot take]"}
            case _:
                yield from _said(str(part.get("text") or part.get("refusal") or ""))


def _file(file: Mapping[str, Any]) -> Iterator[Block]:
    if file.get("file_id"):
        source = {"type": "file", "file_id": file["file_id"]}
    else:
        source = _source(str(file.get("file_data")))
    titled = {"title": file["filename"]} if file.get("filename") else {}
    yield {"type": "document", "source": source, **titled}


def _source(url: str) -> dict[str, Any]:
    head, comma, data = url.partition(",")
    if url.startswith("data:") and comma:
        media_type = head.removeprefix("data:").partition(";")[0]
        return {"type": "base64", "media_type": media_type, "data": data}
    return {"type": "url", "url": url}


# --- answers ---------------------------------------------------------------------------------------------


class AnswerTranslator:
    """Turns the events of one message, or a whole message, into chat chunks."""

    def __init__(self, model: str) -> None:
        self._maker = ChunkMaker(model)
        self._model = model
        self._usage: dict[str, Any] = {}
        self._block: dict[str, Any] = {}
        self._json: list[str] = []
        self._calls = 0
        self._stop: Mapping[str, Any] | None = None
        self.done = False
        """True once the server has sent the end of the message."""
        self.heard = 0
        """Grows with each event, but not with pings."""

    @property
    def finished(self) -> bool:
        """True if the stop reason is known: the answer is complete."""
        return self._stop is not None

    def whole(self, message: Any) -> Iterator[Chunk]:
        """The chunks of a message that came as one object."""
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), list):
            raise ModelError("the model answered with JSON that is not a message; check [model] base_url")
        yield from self.add({"type": "message_start", "message": message})
        for block in message["content"]:
            begun = {**block, **({"input": {}} if "input" in block else {})}
            for name in ("text", "thinking"):
                if name in begun:
                    begun[name] = ""
            yield from self.add({"type": "content_block_start", "content_block": begun})
            if "input" in block:
                given = msgspec.json.encode(block["input"]).decode()
                yield from self.add({"type": "content_block_delta", "delta": {"partial_json": given}})
            yield from self.add({"type": "content_block_delta", "delta": {**block, "signature": ""}})
            yield from self.add({"type": "content_block_stop"})
        yield from self.add({"type": "message_delta", "delta": message, "usage": message.get("usage")})
        yield from self.end()

    def add(self, event: Mapping[str, Any]) -> Iterator[Chunk]:
        """The chunks for one event; unknown events are ignored."""
        self.heard += event.get("type") != "ping"
        match event.get("type"):
            case "message_start":
                message = event.get("message") or {}
                self._maker = ChunkMaker(str(message.get("model") or self._model))
                self._usage |= _numbers(message.get("usage"))
                yield self._maker.delta(role="assistant")
            case "content_block_start":
                self._block, self._json = dict(event.get("content_block") or {}), []
                yield from self._begin()
            case "content_block_delta":
                yield from self._delta(event.get("delta") or {})
            case "content_block_stop":
                yield from self._end_block()
            case "message_delta":
                self._usage |= _numbers(event.get("usage"))
                self._stop = event.get("delta") or {}
            case "message_stop":
                self.done = True

    def end(self) -> Iterator[Chunk]:
        """The last chunks. Raises ModelError if the answer is incomplete."""
        if self._stop is None:
            raise ModelError("the model's stream ended early: the connection ended without a stop_reason")
        reason = str(self._stop.get("stop_reason") or "end_turn")
        finish = self._maker.finish(FINISH_REASONS.get(reason, "stop"))
        (choice,) = finish.value["choices"]
        told = {**choice, "native_finish_reason": reason, "stop_sequence": self._stop.get("stop_sequence")}
        yield chunk_of({**finish.value, "choices": [told]})
        if self._usage:
            yield self._maker.usage(_usage(self._usage))

    def _begin(self) -> Iterator[Chunk]:
        block = self._block
        if block.get("type") == "tool_use":
            function = {"name": block.get("name") or "", "arguments": ""}
            call = {"index": self._calls, "id": block.get("id"), "type": "function", "function": function}
            yield self._maker.delta(tool_calls=[call])
        elif block.get("text") or block.get("thinking"):
            yield from self._delta({name: block.pop(name) for name in ("text", "thinking") if name in block})

    def _delta(self, delta: Mapping[str, Any]) -> Iterator[Chunk]:
        block = self._block
        if delta.get("text") and block.get("type") == "text":
            yield self._maker.delta(content=delta["text"])
        if delta.get("thinking"):
            block["thinking"] = block.get("thinking", "") + delta["thinking"]
            yield self._maker.delta(reasoning_content=delta["thinking"])
        if delta.get("signature"):
            block["signature"] = block.get("signature", "") + delta["signature"]
        if delta.get("partial_json"):
            self._json.append(delta["partial_json"])
            if block.get("type") == "tool_use":
                yield self._call_piece(delta["partial_json"])

    def _end_block(self) -> Iterator[Chunk]:
        block, self._block = self._block, {}
        match block.get("type"):
            case "tool_use":
                if not self._json:
                    yield self._call_piece("{}")
                self._calls += 1
            case "thinking" | "redacted_thinking":
                yield self._maker.delta(thinking_blocks=[block])
            case "text" | None:
                pass
            case _:
                if self._json:
                    block["input"] = _input("".join(self._json))
                yield self._maker.delta(anthropic_blocks=[block])

    def _call_piece(self, text: str) -> Chunk:
        return self._maker.delta(tool_calls=[{"index": self._calls, "function": {"arguments": text}}])


def _numbers(usage: Any) -> dict[str, int]:
    if not isinstance(usage, Mapping):
        return {}
    return {
        name: value for name, value in usage.items() if isinstance(value, int) and name.endswith("tokens")
    }


def _usage(usage: Mapping[str, int]) -> dict[str, Any]:
    """Token usage under OpenAI's names: `prompt_tokens` include those read from and written to a cache."""
    cached = usage.get("cache_read_input_tokens", 0)
    created = usage.get("cache_creation_input_tokens", 0)
    prompt, completion = usage.get("input_tokens", 0) + cached + created, usage.get("output_tokens", 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached, "cache_creation_tokens": created},
    }
