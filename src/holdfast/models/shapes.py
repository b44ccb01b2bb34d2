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


# --- a few more words --------------------------------------------------------------------------------------


class Words(msgspec.Struct, forbid_unknown_fields=True):
    content: str
    role: str | None = None
    refusal: None = None
    tool_calls: None = None
    function_call: None = None


class Saying(msgspec.Struct, forbid_unknown_fields=True):
    delta: Words
    index: int = 0
    finish_reason: None = None
    logprobs: None = None


class MoreWords(msgspec.Struct, forbid_unknown_fields=True):
    """A chunk that adds words to one choice and otherwise repeats what the chunks before it said."""

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
    """The words that this chunk adds to the first choice; None if there is more to it than that."""
    try:
        choices = _read_more_words(data).choices
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return choices[0].delta.content if len(choices) == 1 and choices[0].index == 0 else None
