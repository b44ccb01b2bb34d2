"""What every model promises: OpenAI chat messages in, a stream of OpenAI chat chunks out.

Messages arrive as the JSON bytes the store keeps and leave unparsed; chunks come back as the bytes they
were, with what they add to the reply beside them. Fields nobody here knows survive both ways.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import msgspec


class Purpose(StrEnum):
    """Why a model is asked; sent along as `X-Holdfast-Purpose`."""

    TURN = "turn"
    SUMMARY = "summary"
    FLUSH = "flush"


@dataclass(frozen=True, slots=True)
class ModelRequest:
    messages: bytes
    """A JSON array of OpenAI messages."""
    model: str | None = None
    """None: the configured one, or the upstream's first."""
    purpose: Purpose = Purpose.TURN
    options: Mapping[str, Any] = field(default_factory=dict)
    """Any further fields of a chat completion request, passed through as they are."""
    idempotency_key: str | None = None
    on_accepted: Callable[[], None] | None = field(default=None, compare=False, repr=False)
    """Called when the model has accepted the request, which may be long before its first word. A model that
    cannot tell does not call it: its first chunk says the same."""

    @property
    def wants_usage(self) -> bool:
        """Did whoever made this request ask for usage in the stream?

        Models send it either way, because it is counted. A stream that is passed on to somebody who did not
        ask leaves out the chunks that are `only_usage`.
        """
        options = self.options.get("stream_options")
        return isinstance(options, Mapping) and options.get("include_usage") is True


TEXT_FIELDS = {"content", "refusal", "reasoning", "reasoning_content", "thinking"}


def is_text_field(name: str) -> bool:
    """Is this a field of the reply that grows piece by piece, rather than one that is sent whole?"""
    return name in TEXT_FIELDS or name.startswith(("reasoning_", "thinking_"))


class Chunk:
    """One piece of an answer: its JSON as it came (`raw`), and the same decoded (`value`).

    Most chunks only add a few words. Of those only the words are read (`text`): they come by the thousand.
    """

    __slots__ = ("_value", "raw", "text")

    def __init__(
        self, raw: bytes, value: Mapping[str, Any] | None = None, *, text: str | None = None
    ) -> None:
        self.raw = raw
        self._value = value
        self.text = text
        """What it adds to the first choice's `content`, if it adds nothing else and says nothing new."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chunk) and self.raw == other.raw and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.raw)

    @property
    def value(self) -> Mapping[str, Any]:
        if self._value is None:
            self._value = msgspec.json.decode(self.raw)
        return self._value

    @property
    def adds(self) -> dict[str, str]:
        """The text it adds to fields of the reply, such as `content` or `reasoning_content`."""
        if self.text is not None:
            return {"content": self.text} if self.text else {}
        choices = self.value.get("choices") or ()
        delta = (choices[0].get("delta") or {}) if choices else {}
        return {
            name: text
            for name, text in delta.items()
            if text and is_text_field(name) and isinstance(text, str)
        }

    @property
    def finishes(self) -> bool:
        """Does it carry a `finish_reason`?"""
        return self.text is None and any(
            choice.get("finish_reason") for choice in self.value.get("choices") or ()
        )

    @property
    def only_usage(self) -> bool:
        """Is this the chunk that a stream has only because usage was asked for: usage, and no choice?"""
        return self.text is None and not self.value.get("choices") and bool(self.value.get("usage"))


class Model(Protocol):
    """Something that answers. Raises ModelError, with a sentence that says what to do, when it cannot."""

    @property
    def description(self) -> str:
        """Who answers, for people: `SmolLM2-135M (local, small)` or `gpt-5 at api.example.com`."""
        ...

    async def models(self) -> list[dict[str, Any]]:
        """The models it offers, as OpenAI model objects."""
        ...

    async def window(self, model: str | None = None) -> int | None:
        """The context window in tokens, asked of the model; None if it does not say."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """The answer as chat.completion.chunk objects, the last of which carries `finish_reason`."""
        ...

    async def close(self) -> None: ...


def request_body(request: ModelRequest, model: str, **ours: Any) -> bytes:
    """The request as JSON: its options, then `ours`, then the messages.

    It asks for a stream, unless the options say otherwise, and for usage at its end, which is counted whoever
    asked. `stream_options` that are None are left out, for a server that does not know them.
    """
    fields = {"stream": True, **request.options, "model": model, **ours}
    fields.pop("messages", None)
    options = fields.pop("stream_options", {})
    if fields["stream"] and options is not None:
        fields["stream_options"] = (
            {**options, "include_usage": True} if isinstance(options, Mapping) else options
        )
    head = msgspec.json.encode(fields)
    return b"".join((head[:-1], b',"messages":', request.messages, b"}"))
