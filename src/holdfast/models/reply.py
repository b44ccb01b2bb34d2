"""Folds the chunks of an answer into a message, and checks the shape that folding needs.

Only the fields that folding uses are checked; all others pass. Servers differ, so a field that may be missing
may also be null.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..domain.value import Value
from .base import Chunk, is_text_field


class Function(msgspec.Struct):
    name: str | None = None


class CompletionToolCall(msgspec.Struct):
    id: str | None = None
    function: Function | None = None


class CompletionMessage(msgspec.Struct):
    """A `delta`, or the `message` of a whole completion."""

    role: str | None = None
    content: str | list[Any] | None = None
    tool_calls: list[CompletionToolCall] | None = None
    function_call: Function | None = None


class CompletionChoice(msgspec.Struct):
    index: int | None = None
    delta: CompletionMessage | None = None
    message: CompletionMessage | None = None
    finish_reason: str | None = None


class CompletionBody(msgspec.Struct):
    """A chunk, or a whole completion."""

    model: str | None = None
    choices: list[CompletionChoice] | None = None
    usage: dict[str, Any] | None = None


read_shape = msgspec.json.Decoder(CompletionBody).decode


# --- chunks that only add text -----------------------------------------------------------------------------


class Words(msgspec.Struct, forbid_unknown_fields=True):
    """A delta with text and nothing else."""

    content: str
    role: str | None = None
    refusal: None = None
    tool_calls: None = None
    function_call: None = None


class Saying(msgspec.Struct, forbid_unknown_fields=True):
    """A choice that adds text and does not finish."""

    delta: Words
    index: int = 0
    finish_reason: None = None
    logprobs: None = None


class MoreWords(msgspec.Struct, forbid_unknown_fields=True):
    """A chunk that adds text to one choice and otherwise repeats earlier chunks."""

    choices: list[Saying]
    id: msgspec.Raw = msgspec.Raw()
    object: msgspec.Raw = msgspec.Raw()
    created: msgspec.Raw = msgspec.Raw()
    model: msgspec.Raw = msgspec.Raw()
    system_fingerprint: msgspec.Raw = msgspec.Raw()
    service_tier: msgspec.Raw = msgspec.Raw()
    obfuscation: msgspec.Raw = msgspec.Raw()
    usage: None = None


_read_more_words = msgspec.json.Decoder(MoreWords).decode


def words_in(data: bytes) -> str | None:
    """The text that this chunk adds to the first choice; None if the chunk has anything else."""
    try:
        choices = _read_more_words(data).choices
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return choices[0].delta.content if len(choices) == 1 and choices[0].index == 0 else None


class Reply(Value, frozen=True):
    """The model's answer."""

    message: dict[str, Any]
    """An assistant message in OpenAI's shape."""
    finish_reason: str | None
    """None: the stream was cut off."""
    usage: dict[str, Any] | None
    model: str | None
    """The model's name as the answer gives it."""


def fold(chunks: Iterable[Chunk]) -> Reply:
    """The reply made of these chunks."""
    folder = ReplyFolder()
    for chunk in chunks:
        folder.add(chunk)
    return folder.reply()


class ReplyFolder:
    """Folds one answer, chunk by chunk. `stand_in` is used for tool call ids if neither the calls nor the
    stream have one: the same chunks with the same `stand_in` give the same ids."""

    def __init__(self, stand_in: str | None = None) -> None:
        self._choices: dict[int, _FoldedChoice] = {}
        self._top: dict[str, Any] = {}
        self._usage: dict[str, Any] | None = None
        self._begun = False
        self._reply: Reply | None = None
        self._stand_in = stand_in  # for tool call ids, where the stream has no id either

    @property
    def begun(self) -> bool:
        """True once a chunk has arrived."""
        return self._begun

    def add(self, chunk: Chunk) -> None:
        self._reply = None
        if chunk.text is not None and self._begun:
            self._choice(0).say(chunk.text)
            return
        self._begun = True
        for name, value in chunk.value.items():
            if name == "choices":
                for choice in value or ():
                    self._choice(choice.get("index") or 0).add(choice)
            elif name == "usage":
                self._usage = value or self._usage
            elif value is not None:
                self._top[name] = value

    def reply(self) -> Reply:
        """The first choice; it is the only one unless the request asked for more."""
        if self._reply is None:
            choice = self._choice(0)
            self._reply = Reply(
                message=choice.message(self._id()),
                finish_reason=choice.finish_reason,
                usage=self._usage,
                model=self._top.get("model"),
            )
        return self._reply

    def answer(self) -> dict[str, Any]:
        """The completion without its messages."""
        self._choice(0)
        choices = [
            {
                "index": index,
                "logprobs": choice.logprobs,
                "finish_reason": choice.finish_reason,
                **choice.others,
            }
            for index, choice in sorted(self._choices.items())
        ]
        usage = {"usage": self._usage} if self._usage else {}
        return {**self._top, "object": "chat.completion", "choices": choices, **usage}

    def completion(self) -> dict[str, Any]:
        """The whole answer as the `chat.completion` object for a request without `stream`."""
        answer = self.answer()
        answer["choices"] = [
            {"index": choice["index"], "message": self._choices[at].message(self._id(), at), **choice}
            for at, choice in zip(sorted(self._choices), answer["choices"], strict=True)
        ]
        return answer

    def _choice(self, index: int) -> _FoldedChoice:
        found = self._choices.get(index)
        if found is None:
            found = self._choices[index] = _FoldedChoice()
        return found

    def _id(self) -> str:
        if self._stand_in is None:
            self._stand_in = secrets.token_hex(8)
        return str(self._top.get("id") or self._stand_in).removeprefix("chatcmpl-")


@dataclass(slots=True)
class _FoldedChoice:
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None
    texts: dict[str, list[str]] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    calls: list[_FoldedCall] = field(default_factory=list)
    others: dict[str, Any] = field(default_factory=dict)

    def say(self, text: str) -> None:
        """Add text only."""
        said = self.texts.get("content")
        if said is None:
            self.texts["content"] = [text]
        else:
            said.append(text)

    def add(self, choice: Mapping[str, Any]) -> None:
        for name, value in choice.items():
            if name == "delta":
                self._add_delta(value or {})
            elif name == "finish_reason":
                self.finish_reason = value or self.finish_reason
            elif name == "logprobs":
                self.logprobs = _merged(self.logprobs, value)
            elif name != "index" and value is not None:
                self.others[name] = value

    def _add_delta(self, delta: Mapping[str, Any]) -> None:
        for name, value in delta.items():
            if value is None or name == "role":  # whatever some servers call it, this is the assistant
                continue
            if isinstance(value, str) and is_text_field(name):
                self.texts.setdefault(name, []).append(value)
            elif name == "tool_calls":
                for call in value:
                    self._call(call).add(call)
            elif name == "function_call":
                self.fields[name] = _grown(self.fields.get(name), value)
            else:
                self.fields[name] = _merged(self.fields.get(name), value)

    def _call(self, piece: Mapping[str, Any]) -> _FoldedCall:
        """The call that this piece belongs to."""
        index, call_id = piece.get("index"), piece.get("id")
        if index is None:
            known = [c for c in self.calls if c.id == call_id] if call_id else self.calls
        else:
            known = [c for c in self.calls if c.index == index and (not call_id or c.id in (None, call_id))]
        if known:
            return known[-1]
        self.calls.append(_FoldedCall(index))
        return self.calls[-1]

    def message(self, reply_id: str, choice: int = 0) -> dict[str, Any]:
        texts = {name: "".join(parts) for name, parts in self.texts.items()}
        message: dict[str, Any] = {"role": "assistant", "content": texts.pop("content", "") or None}
        message.update((name, text) for name, text in texts.items() if text)
        for name, value in self.fields.items():
            if name == "content" and message["content"] and isinstance(value, list):
                value = [*value, {"type": "text", "text": message["content"]}]
            message[name] = value
        if self.calls:
            prefix = f"call_{reply_id}_{choice}_" if choice else f"call_{reply_id}_"
            taken: set[str] = set()
            message["tool_calls"] = [call.whole(f"{prefix}{at}", taken) for at, call in enumerate(self.calls)]
        if message["content"] is None and not self.calls and not self.fields and "refusal" not in message:
            message["content"] = ""
        return message


@dataclass(slots=True)
class _FoldedCall:
    index: int | None
    id: str | None = None
    function: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)

    def add(self, piece: Mapping[str, Any]) -> None:
        for name, value in piece.items():
            if name == "id":
                self.id = value or self.id
            elif name == "function":
                self.function = _grown(self.function, value or {})
            elif name != "index" and value is not None:
                self.fields[name] = value

    def whole(self, stand_in: str, taken: set[str]) -> dict[str, Any]:
        """The call, with an id that is not `taken`: some servers give several calls of one reply the same."""
        function = {"name": "", "arguments": "", **self.function}
        call_id = self.id if self.id and self.id not in taken else stand_in
        taken.add(call_id)
        return {"id": call_id, "type": "function", **self.fields, "function": function}


def _grown(function: Mapping[str, Any] | None, piece: Mapping[str, Any]) -> dict[str, Any]:
    """A function with this piece: the arguments are concatenated, other fields are overwritten."""
    grown = dict(function or {})
    for name, value in piece.items():
        if name == "arguments":
            text = value if isinstance(value, str) else "" if value is None else _json(value)
            grown[name] = grown.get(name, "") + text
        elif value not in (None, ""):
            grown[name] = value
    return grown


def _merged(old: Any, new: Any) -> Any:
    """Lists are concatenated, objects merged, anything else is overwritten."""
    if isinstance(old, list) and isinstance(new, list):
        return [*old, *new]
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{name: _merged(old.get(name), value) for name, value in new.items()}}
    return old if new is None else new


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
