"""Renders a turn as an Anthropic message: as one object, or as the events of a stream.

Text and thinking are streamed as they arrive, and so are the arguments of the first tool call. Further calls
are sent whole at the end: their pieces may arrive interleaved, and a stream has one open block at a time. The
event `message_delta`, with the `stop_reason`, is sent only after the answer is on disk; it has the `holdfast`
field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ...app import Answered, Outcome
from ...domain.messages import text_of
from ...domain.turns import Turn, TurnBegun
from ...domain.visible_messages import BETWEEN
from ...models.base import Chunk
from ..conversation_ref import about_begun
from ..http_errors import anthropic_error, failure_of

THOUGHTS = ("reasoning_content", "reasoning", "thinking")
STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}

NATIVE_REASONS = {*STOP_REASONS.values(), "stop_sequence", "pause_turn", "model_context_window_exceeded"}

_encode = msgspec.json.Encoder().encode


def message_id(turn: Turn) -> str:
    """The id of a turn's message: the same for every retry of its request."""
    return f"msg_{turn.id.removeprefix('turn_')}"


def event(name: str, **fields: Any) -> bytes:
    """An SSE event; clients of this API need its name."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode({"type": name, **fields}))


def usage_of(usage: Mapping[str, Any] | None) -> dict[str, int]:
    """Token usage under Anthropic's names; `input_tokens` are those that were not read from a cache."""
    found = usage or {}
    details = found.get("prompt_tokens_details")
    details = details if isinstance(details, Mapping) else {}
    cached, created = _count(details.get("cached_tokens")), _count(details.get("cache_creation_tokens"))
    return {
        "input_tokens": max(0, _count(found.get("prompt_tokens")) - cached - created),
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": cached,
        "output_tokens": _count(found.get("completion_tokens")),
    }


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def stop_of(choice: Mapping[str, Any], calls: object, stops: Sequence[str] = ()) -> tuple[str, str | None]:
    """The stop reason, and the stop sequence that ended the answer, if the model's server reports it."""
    native, sequence = choice.get("native_finish_reason"), choice.get("stop_sequence")
    if isinstance(native, str) and native in NATIVE_REASONS:
        return native, sequence if isinstance(sequence, str) else None
    if calls:
        return "tool_use", None
    said = choice.get("stop_reason")  # vLLM: the stop sequence
    if isinstance(said, str) and said in stops:
        return "stop_sequence", said
    return STOP_REASONS.get(str(choice.get("finish_reason")), "end_turn"), None


def content_of(message: Mapping[str, Any], *, shows_thinking: bool) -> list[dict[str, Any]]:
    """The content blocks of an assistant message."""
    blocks: list[dict[str, Any]] = []
    signed = message.get("thinking_blocks")
    if isinstance(signed, list):
        blocks += [dict(block) for block in signed if isinstance(block, Mapping)]
    elif shows_thinking and (thought := _thought(message)):
        blocks.append({"type": "thinking", "thinking": thought, "signature": ""})
    blocks += [dict(block) for block in message.get("anthropic_blocks") or () if isinstance(block, Mapping)]
    said = text_of(message.get("content"))
    refusal = message.get("refusal")
    if said or refusal:
        blocks.append({"type": "text", "text": said or str(refusal)})
    for call in message.get("tool_calls") or ():
        blocks.append(
            {
                "type": "tool_use",
                "id": call["id"],
                "name": call["function"]["name"],
                "input": arguments_of(call["function"]["arguments"]),
            }
        )
    return blocks


def _thought(message: Mapping[str, Any]) -> str:
    return next((str(message[name]) for name in THOUGHTS if message.get(name)), "")


def arguments_of(text: object) -> dict[str, Any]:
    """A call's arguments as the object that this API requires. Text that is not a JSON object is kept under
    `_arguments`, so that the client's tool can report it."""
    if not isinstance(text, str) or not text.strip():
        return {}
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        value = text
    return value if isinstance(value, dict) else {"_arguments": value}


def whole(
    turn: Turn,
    answer: Mapping[str, Any],
    message: Mapping[str, Any],
    ours: object,
    *,
    shows_thinking: bool,
    stops: Sequence[str] = (),
    named: str | None = None,
) -> dict[str, Any]:
    """A message object. `named` is the model that the client asked for."""
    body = message_object(
        message_id(turn), answer, message, shows_thinking=shows_thinking, stops=stops, named=named
    )
    return body if ours is None else {**body, "holdfast": ours}


def message_object(
    id_: str,
    answer: Mapping[str, Any],
    message: Mapping[str, Any],
    *,
    shows_thinking: bool,
    stops: Sequence[str] = (),
    named: str | None = None,
) -> dict[str, Any]:
    choices = answer.get("choices") or [{}]
    reason, sequence = stop_of(choices[0], message.get("tool_calls"), stops)
    return {
        "id": id_,
        "type": "message",
        "role": "assistant",
        "model": answer.get("model") or named or "",
        "content": content_of(message, shows_thinking=shows_thinking),
        "stop_reason": reason,
        "stop_sequence": sequence,
        "usage": usage_of(answer.get("usage")),
    }


def as_stream(message: Mapping[str, Any]) -> bytes:
    """A message object, with or without its `holdfast` field, as the events of a stream."""
    ours = {name: value for name, value in message.items() if name == "holdfast"}
    start = {name: value for name, value in message.items() if name not in ours}
    start |= {"content": [], "stop_reason": None, "stop_sequence": None}
    start["usage"] = {**message["usage"], "output_tokens": 0}
    events = [event("message_start", message=start)]
    for index, block in enumerate(message["content"]):
        events += _block_events(index, block)
    events += _ending(message["stop_reason"], message["stop_sequence"], message["usage"], ours)
    return b"".join(events)


def _ending(
    reason: str, sequence: str | None, usage: Mapping[str, int], ours: Mapping[str, Any]
) -> Iterator[bytes]:
    yield event(
        "message_delta", delta={"stop_reason": reason, "stop_sequence": sequence}, usage=usage, **ours
    )
    yield event("message_stop")


def _block_events(index: int, block: Mapping[str, Any]) -> Iterator[bytes]:
    match block["type"]:
        case "text":
            yield _start(index, {"type": "text", "text": ""})
            yield _delta(index, type="text_delta", text=block["text"])
        case "thinking":
            yield _start(index, {"type": "thinking", "thinking": "", "signature": ""})
            if block.get("thinking"):
                yield _delta(index, type="thinking_delta", thinking=block["thinking"])
            yield _delta(index, type="signature_delta", signature=block.get("signature") or "")
        case "tool_use":
            yield _start(index, {**block, "input": {}})
            yield _delta(index, type="input_json_delta", partial_json=_encode(block["input"]).decode())
        case _:
            yield _start(index, block)
    yield event("content_block_stop", index=index)


def _start(index: int, block: Mapping[str, Any]) -> bytes:
    return event("content_block_start", index=index, content_block=block)


def _delta(index: int, **delta: Any) -> bytes:
    return event("content_block_delta", index=index, delta=delta)


class MessageEvents:
    """The events of one answer, made from its chunks as they arrive."""

    def __init__(
        self, id_: str, model: str | None, *, shows_thinking: bool, stops: Sequence[str] = ()
    ) -> None:
        self.id = id_
        self._model = model
        self._shows_thinking = shows_thinking
        self._stops = stops
        self._begun = False
        self._index = 0
        """The index of the open block, or of the next one."""
        self._open = ""
        """The type of the open block; empty: none is open."""
        self._call: dict[str, Any] | None = None
        """The tool call that is streamed: its id, its index in the model's stream, the arguments sent."""
        self._late: list[str] = []
        """Text that arrived after a tool call began."""

    def add(self, chunk: Chunk) -> list[bytes]:
        """The events for what this chunk adds; its finish reason and usage are left to `end`."""
        events = [] if self._begun else self._begin(chunk)
        if chunk.text is not None:
            events += self.say("text", chunk.text)
            return events
        choices = chunk.value.get("choices") or ()
        delta = (choices[0].get("delta") or {}) if choices else {}
        if self._shows_thinking:
            for name in THOUGHTS:
                if isinstance(delta.get(name), str):
                    events += self.say("thinking", delta[name])
                    break
        for name in ("thinking_blocks", "anthropic_blocks"):
            for block in delta.get(name) or ():
                events += self._sign(block)
        if isinstance(delta.get("content"), str | list):
            events += self.say("text", text_of(delta["content"]))
        for piece in delta.get("tool_calls") or ():
            events += self._piece(piece)
        return events

    def end(
        self, answer: Mapping[str, Any], message: Mapping[str, Any], ours: Mapping[str, Any]
    ) -> list[bytes]:
        """The events from the end of the last streamed block on."""
        events = [] if self._begun else self._begin(None)
        calls = list(message.get("tool_calls") or ())
        if self._call is not None:
            sent = self._call
            known = next((call for call in calls if call["id"] == sent["id"]), None)
            if known is not None:
                calls.remove(known)
                rest = known["function"]["arguments"][len(sent["sent"]) :]
                if rest:
                    events.append(_delta(self._index, type="input_json_delta", partial_json=rest))
                elif not sent["sent"]:
                    events.append(_delta(self._index, type="input_json_delta", partial_json="{}"))
        events += self._close()
        late = "".join(self._late)
        refusal = message.get("refusal")
        if not late and isinstance(refusal, str) and not text_of(message.get("content")):
            late = refusal
        blocks = [{"type": "text", "text": late}] if late else []
        blocks += content_of({"tool_calls": calls}, shows_thinking=False)
        for block in blocks:
            events += _block_events(self._index, block)
            self._index += 1
        choices = answer.get("choices") or [{}]
        reason, sequence = stop_of(choices[0], message.get("tool_calls"), self._stops)
        events += _ending(reason, sequence, usage_of(answer.get("usage")), ours)
        return events

    def _begin(self, chunk: Chunk | None) -> list[bytes]:
        self._begun = True
        model = chunk.value.get("model") if chunk is not None else None
        start: dict[str, Any] = {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": model or self._model or "",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_of(None),
        }
        return [event("message_start", message=start)]

    def say(self, what: str, words: str) -> list[bytes]:
        """The events for more words of a `text` or `thinking` block."""
        if not words:
            return []
        if self._open == "tool_use":
            if what == "text":
                self._late.append(words)
            return []
        events = self._opened(what)
        if what == "text":
            events.append(_delta(self._index, type="text_delta", text=words))
        else:
            events.append(_delta(self._index, type="thinking_delta", thinking=words))
        return events

    def _opened(self, what: str) -> list[bytes]:
        if self._open == what:
            return []
        events = self._close()
        empty = {"type": "text", "text": ""}
        if what == "thinking":
            empty = {"type": "thinking", "thinking": "", "signature": ""}
        self._open = what
        return [*events, _start(self._index, empty)]

    def _sign(self, block: Mapping[str, Any]) -> list[bytes]:
        """End the open thinking block with its signature, or send a block whose text was not streamed."""
        if block.get("type") == "thinking" and self._open == "thinking":
            signature = str(block.get("signature") or "")
            events = [_delta(self._index, type="signature_delta", signature=signature)]
            self._open = "signed"
            return [*events, *self._close()]
        events = self._close()
        events += _block_events(self._index, block)
        self._index += 1
        return events

    def _piece(self, piece: Mapping[str, Any]) -> list[bytes]:
        function = piece.get("function") or {}
        if self._call is None:
            if not piece.get("id") or not function.get("name"):
                return []  # sent whole at the end
            events = self._close()
            self._open = "tool_use"
            self._call = {"id": piece["id"], "index": piece.get("index"), "sent": ""}
            block = {"type": "tool_use", "id": piece["id"], "name": function["name"], "input": {}}
            events.append(_start(self._index, block))
        elif piece.get("index") != self._call["index"] or piece.get("id") not in (None, "", self._call["id"]):
            return []
        else:
            events = []
        more = function.get("arguments")
        if isinstance(more, str) and more and self._open == "tool_use":
            self._call["sent"] += more
            events.append(_delta(self._index, type="input_json_delta", partial_json=more))
        return events

    def _close(self) -> list[bytes]:
        if not self._open:
            return []
        events = []
        if self._open == "thinking":
            events.append(_delta(self._index, type="signature_delta", signature=""))
        events.append(event("content_block_stop", index=self._index))
        self._open = ""
        self._index += 1
        return events


class MessageRenderer:
    """Renders a turn as the events of a message stream."""

    numbered = False
    apart = False

    def __init__(
        self,
        request_id: str,
        model: str | None,
        *,
        shows_thinking: bool,
        stops: Sequence[str] = (),
        silent: bool = False,
    ) -> None:
        self._request_id = request_id
        self._events = MessageEvents("", model, shows_thinking=shows_thinking, stops=stops)
        self._silent = silent
        """True: the answer is sent as one body, so no events are rendered."""
        self._begun: TurnBegun | None = None
        self._parts = False
        """True: the next text starts a new paragraph, because a tool was run since the last text."""

    def begin(self, begun: TurnBegun) -> Sequence[bytes]:
        self._begun = begun
        self._events.id = message_id(begun.turn)
        return ()

    def add(self, chunk: Chunk) -> Sequence[bytes]:
        if self._silent or chunk.only_usage:
            return ()
        if self._parts and chunk.adds.get("content"):
            self._parts = False
            return (*self._events.say("text", BETWEEN), *self._events.add(chunk))
        return self._events.add(chunk)

    def next_message(self, seq: int, *, spoke: bool) -> Sequence[bytes]:
        self._parts = self._parts or spoke
        return ()

    def moved(self, begun: TurnBegun) -> None:
        self._begun = begun

    def end(self, outcome: Outcome) -> Sequence[bytes]:
        if self._silent:
            return ()
        ours = {"holdfast": about_begun(self._begun)} if self._begun else {}
        if not isinstance(outcome, Answered):
            error = anthropic_error(failure_of(outcome.error), self._request_id)
            return (b"event: error\ndata: %b\n\n" % _encode({**error, **ours}),)
        return self._events.end(outcome.answer, outcome.reply.message, ours)
