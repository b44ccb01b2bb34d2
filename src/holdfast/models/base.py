"""The contract of every model: OpenAI chat messages in, a stream of OpenAI chat chunks out.

Messages arrive as the JSON bytes that the store keeps and are sent on unparsed. Chunks are returned as the
bytes received, with what they add to the reply. Unknown fields are kept in both directions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import msgspec

REQUEST_ID: ContextVar[str] = ContextVar("holdfast_request_id", default="")
"""The id of the HTTP request that this task works for; sent to an upstream as `X-Request-Id`."""

LARGE_BYTES = 1 << 20
"""From this size on, `bytes.join` releases the interpreter's lock."""


class Purpose(StrEnum):
    """Why the model is called; sent as `X-Holdfast-Purpose`."""

    TURN = "turn"
    SUMMARY = "summary"
    FLUSH = "flush"
    TITLE = "title"


@dataclass(frozen=True, slots=True)
class NativeRequest:
    """A client's request in the API it used, for a model that speaks that API itself."""

    body: Mapping[str, Any]
    """The request as the client sent it."""
    blocks: Mapping[bytes, list[Mapping[str, Any]]]
    """The content blocks of its messages, by the fingerprint of the chat message made of them."""
    system: str = ""
    """The text of the chat message made of its `system` blocks."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Its headers that choose a version and features of the API."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    messages: bytes
    """A JSON array of OpenAI messages."""
    model: str | None = None
    """None: the configured model, or the upstream's first."""
    purpose: Purpose = Purpose.TURN
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of a chat completion request, passed through unchanged."""
    idempotency_key: str | None = None
    on_accepted: Callable[[], None] | None = field(default=None, compare=False, repr=False)
    """Called when the model has accepted the request, which may be long before its first chunk. A model that
    cannot know this does not call it: its first chunk implies acceptance."""
    native: NativeRequest | None = field(default=None, compare=False, repr=False)
    """The client's request in Anthropic's API, if it used that; only a model that speaks it reads this."""

    @property
    def wants_usage(self) -> bool:
        """True if the client asked for usage in the stream.

        Models send it in any case, because it is counted. A stream for a client that did not ask omits the
        chunks that are `only_usage`.
        """
        options = self.options.get("stream_options")
        return isinstance(options, Mapping) and options.get("include_usage") is True


TEXT_FIELDS = {"content", "refusal", "reasoning", "reasoning_content", "thinking"}


def is_text_field(name: str) -> bool:
    """True if this field of the reply grows chunk by chunk, rather than being sent whole."""
    return name in TEXT_FIELDS or name.startswith(("reasoning_", "thinking_"))


class Chunk:
    """One chunk of an answer: its JSON as received (`raw`), and decoded (`value`).

    Most chunks only add a few words. For those only the text is decoded (`text`): there are thousands.
    """

    __slots__ = ("_adds", "_raw", "_value", "text", "whole")

    def __init__(
        self,
        raw: bytes | None,
        value: Mapping[str, Any] | None = None,
        *,
        text: str | None = None,
        whole: bool = False,
    ) -> None:
        """Without `raw` it is encoded from `value` when it is first used."""
        self._raw = raw
        self._value = value
        self.text = text
        """The text added to the first choice's `content`, if the chunk adds nothing else."""
        self.whole = whole
        """True: it is a whole answer, and nothing follows it."""
        self._adds: dict[str, str] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chunk) and self.raw == other.raw and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.raw)

    @property
    def raw(self) -> bytes:
        if self._raw is None:
            self._raw = msgspec.json.encode(self._value)
        return self._raw

    @property
    def value(self) -> Mapping[str, Any]:
        if self._value is None:
            self._value = msgspec.json.decode(self.raw)
        return self._value

    @property
    def adds(self) -> Mapping[str, str]:
        """The text it adds to fields of the reply, such as `content` or `reasoning_content`."""
        if self._adds is None:
            if self.text is not None:
                self._adds = {"content": self.text} if self.text else {}
            else:
                choices = self.value.get("choices") or ()
                delta = (choices[0].get("delta") or {}) if choices else {}
                self._adds = {
                    name: text
                    for name, text in delta.items()
                    if text and is_text_field(name) and isinstance(text, str)
                }
        return self._adds

    @property
    def finishes(self) -> bool:
        """True if it has a `finish_reason`."""
        return self.text is None and any(
            choice.get("finish_reason") for choice in self.value.get("choices") or ()
        )

    @property
    def only_usage(self) -> bool:
        """True if it has usage and no choice: a stream has this chunk only because usage was asked for."""
        return self.text is None and not self.value.get("choices") and bool(self.value.get("usage"))


class Model(Protocol):
    """Answers requests. Raises ModelError, with a sentence that says what to do, when it cannot."""

    @property
    def description(self) -> str:
        """The model's name for people: `SmolLM2-135M (local, small)` or `gpt-5 at api.example.com`."""
        ...

    async def models(self) -> list[dict[str, Any]]:
        """The models it offers, as OpenAI model objects."""
        ...

    async def window(self, model: str | None = None) -> int | None:
        """The context window in tokens, as the model reports it; None if it does not."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """The answer as chat.completion.chunk objects; the last has a `finish_reason`."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class CountsTokens(Protocol):
    """A model whose server counts the tokens of a request in Anthropic's API."""

    async def count_tokens(self, native: NativeRequest, model: str | None) -> int: ...


async def request_body(request: ModelRequest, model: str, **ours: Any) -> bytes:
    """The request as JSON: its options, then `ours`, then the messages.

    It asks for a stream, unless the options say otherwise, and for usage at its end, which is always counted.
    `stream_options` of None are left out, for a server that does not support them.
    """
    fields = {"stream": True, **request.options, "model": model, **ours}
    fields.pop("messages", None)
    options = fields.pop("stream_options", {})
    if fields["stream"] and options is not None:
        fields["stream_options"] = (
            {**options, "include_usage": True} if isinstance(options, Mapping) else options
        )
    head = msgspec.json.encode(fields)
    return await join((head[:-1], b',"messages":', request.messages, b"}"))


async def array_of(objects: Sequence[bytes]) -> bytes:
    """One JSON array of these objects, which may be joined by commas already."""
    if sum(map(len, objects)) < LARGE_BYTES:  # most: one copy
        return b"[%b]" % b",".join(objects)
    commas = (piece for each in objects for piece in (b",", each))
    return await join((b"[", *islice(commas, 1, None), b"]"))


async def join(pieces: Sequence[bytes]) -> bytes:
    """The pieces as one. Many MiB are copied in a thread: `bytes.join` releases the interpreter's lock for
    them, so that other requests are answered meanwhile."""
    if sum(map(len, pieces)) < LARGE_BYTES:
        return b"".join(pieces)
    return await asyncio.to_thread(b"".join, pieces)
