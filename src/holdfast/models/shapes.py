"""What an answer must look like for its chunks to be folded into a message.

Only what folding touches is looked at; anything else passes, whatever it is. Servers differ, so what may be
missing may be null too.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Function(msgspec.Struct):
    name: str | None = None


class Call(msgspec.Struct):
    id: str | None = None
    function: Function | None = None


class Said(msgspec.Struct):
    """A `delta`, or the `message` of a whole completion."""

    role: str | None = None
    content: str | list[Any] | None = None
    tool_calls: list[Call] | None = None
    function_call: Function | None = None


class Choice(msgspec.Struct):
    index: int | None = None
    delta: Said | None = None
    message: Said | None = None
    finish_reason: str | None = None


class Answer(msgspec.Struct):
    """A chunk, or a whole completion."""

    model: str | None = None
    choices: list[Choice] | None = None
    usage: dict[str, Any] | None = None


read_shape = msgspec.json.Decoder(Answer).decode
