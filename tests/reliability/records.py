"""What a writing process reports to its parent, line by line, and what its messages look like.

A record is written by one `os.write` of less than PIPE_BUF bytes, so a killed process leaves only whole
lines. `Asked` is sent before a request; `Begun`, `Said`, `Drafted` and `Replied` are acknowledgements: they
are sent after the store has answered, so they must be found again whatever happens afterwards.

Every message is identified by its tag, the first word of its text. Tag and body can be derived from each
other, so only the tag is reported.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable

import msgspec

from holdfast.domain.messages import NewMessage
from holdfast.domain.new_messages import new_message

OWNER = "default"
ROUTE = "chat"


class Joined(msgspec.Struct, frozen=True, tag=True):
    node: str


class Asked(msgspec.Struct, frozen=True, tag=True):
    """A request is about to be made, under this key; also before it is made again."""

    request: str
    chat: str


class Begun(msgspec.Struct, frozen=True, tag=True):
    request: str
    turn: str
    conversation: str
    first: int
    taken_up: bool


class Said(msgspec.Struct, frozen=True, tag=True):
    turn: str
    conversation: str
    last: int
    tags: list[str]


class Drafted(msgspec.Struct, frozen=True, tag=True):
    turn: str
    event: int
    text: str
    reply: str
    """The tag of the reply this is a draft of."""


class Replied(msgspec.Struct, frozen=True, tag=True):
    request: str
    turn: str
    conversation: str
    last: int
    tag_: str


class Known(msgspec.Struct, frozen=True, tag=True):
    """A request that was made again stands for this turn, which is settled for good."""

    request: str
    turn: str
    status: str


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The store raised this. Nothing may have been written."""

    verb: str
    error: str
    text: str


class Note(msgspec.Struct, frozen=True, tag=True):
    """Anything else a suite wants to know."""

    what: str
    data: dict[str, int | str] = {}


Record = Joined | Asked | Begun | Said | Drafted | Replied | Known | Refused | Note
Tell = Callable[[Record], None]

ACKNOWLEDGEMENTS = (Begun, Said, Drafted, Replied)
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def teller(pipe: int) -> Tell:
    """Writes each record as one line, at once."""

    def tell(record: Record) -> None:
        line = msgspec.json.encode(record) + b"\n"
        assert len(line) <= 4096, "longer than PIPE_BUF: a kill could tear it"
        os.write(pipe, line)

    return tell


def read_record(line: bytes) -> Record:
    return _decoder.decode(line)


def asked_tag(request: str) -> str:
    """The tag of the user's message of a request: the same whenever it is made again."""
    return f"u-{request}"


def said_tag(kind: str, request: str, attempt: int, number: int = 0) -> str:
    """A tag of what an attempt to answer said: `c` a tool call, `r` its result, `a` the reply."""
    return f"{kind}-{request}-{attempt}-{number}"


def message_of(tag: str) -> NewMessage:
    """The message with this tag. Mostly a few words, now and then several pages."""
    chance = random.Random(tag)
    pages = chance.random() < 0.02
    words = hashlib.sha256(tag.encode()).hexdigest()
    text = f"{tag} {words * chance.randrange(100, 300) if pages else words[: chance.randrange(64)]}"
    kind, _, rest = tag.partition("-")
    if kind == "c":
        function = {"name": "look", "arguments": "{}"}
        call = {"id": f"call-{rest}", "type": "function", "function": function}
        return new_message({"role": "assistant", "content": text, "tool_calls": [call]})
    if kind == "r":
        return new_message({"role": "tool", "tool_call_id": f"call-{rest}", "content": text})
    return new_message({"role": "user" if kind == "u" else "assistant", "content": text})
