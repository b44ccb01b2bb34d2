"""The named statements in PostgreSQL's form: numbered parameters, each of a known type, prepared once.

In the `.sql` files a parameter is `:name` (or psycopg's `%(name)s`); its type is given there too.
Types are declared when a statement is prepared: nothing is guessed from the values of the first call, and
one statement has one plan.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from ...errors import BadInput
from ..annotations import Notes, notes, types
from ..queries import load

_TYPE_OF = types(__package__)
NOTHING_SAID = Notes()

PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)(::[a-z]+(?:\[\])?)?|%\(([a-z_]+)\)s(::[a-z]+(?:\[\])?)?")
_LENGTH = struct.Struct(">i")
_ARRAY = struct.Struct(">iiiii")

Values = list[bytes | None]


def _text(value: str) -> bytes:
    try:
        encoded = value.encode()
    except UnicodeEncodeError:
        raise BadInput("a name or text holds a lone surrogate, which cannot be stored or looked up") from None
    if b"\0" in encoded:
        raise BadInput("a name or text holds a NUL byte, which cannot be stored or looked up")
    return encoded


def _bigint(value: int) -> bytes:
    if not -(2**63) <= value < 2**63:
        raise BadInput("a number is larger than any that can be stored or looked up")
    return b"%d" % value


def _boolean(value: object) -> bytes:
    return b"t" if value else b"f"


def _bytes(value: bytes) -> bytes:
    return value


def _array(element: int, encode: Callable[[Any], bytes]) -> Callable[[Sequence[Any]], bytes]:
    """PostgreSQL's binary form of an array, from its elements' binary form."""

    def encode_all(values: Sequence[Any]) -> bytes:
        pieces = (
            [_ARRAY.pack(1, 1, element, len(values), 1)] if values else [struct.pack(">iii", 0, 0, element)]
        )
        for value in values:
            if value is None:
                pieces.append(b"\xff\xff\xff\xff")
            else:
                encoded = encode(value)
                pieces.append(_LENGTH.pack(len(encoded)))
                pieces.append(encoded)
        return b"".join(pieces)

    return encode_all


TEXT, BINARY = 0, 1
# By type: its OID in every PostgreSQL, the format we send, and the encoder.
_TYPES: Mapping[str, tuple[int, int, Callable[[Any], bytes]]] = {
    "text": (25, BINARY, _text),  # binary, because text format ends at a NUL
    "bigint": (20, TEXT, _bigint),
    "boolean": (16, TEXT, _boolean),
    "bytea": (17, BINARY, _bytes),
    "text[]": (1009, BINARY, _array(25, _text)),
    "bigint[]": (1016, BINARY, _array(20, struct.Struct(">q").pack)),
    "boolean[]": (1000, BINARY, _array(16, lambda value: b"\1" if value else b"\0")),
    "bytea[]": (1001, BINARY, _array(17, _bytes)),
}


class Statement:
    """One statement, ready to be prepared on any connection."""

    __slots__ = (
        "_encoders",
        "changes",
        "conversation",
        "formats",
        "is_long",
        "is_planned_freely",
        "keys",
        "locks",
        "must_change",
        "name",
        "names",
        "needs_count",
        "oids",
        "text",
        "usually_empty",
    )

    def __init__(self, name: str, text: str, said: Notes = NOTHING_SAID) -> None:
        types: dict[str, str] = {}

        def number(match: re.Match[str]) -> str:
            parameter = match[1] or match[3]
            cast = (match[2] or match[4] or "")[2:]
            types[parameter] = cast or types.get(parameter) or _TYPE_OF.get(parameter, "text")
            return f"${list(types).index(parameter) + 1}" + (f"::{cast}" if cast else "")

        self.text = PARAMETER.sub(number, text).encode()
        self.name = name.encode()
        self.names = tuple(types)
        self.changes = not text.lstrip().upper().startswith(("SELECT", "BEGIN", "COMMIT", "SET"))
        """True: it changes rows. Lock statements do not."""
        self.locks = said.locks
        self.conversation = said.conversation
        """The column with the id of a conversation found by a name; see `annotations.py`."""
        self.needs_count = said.rows != "any"
        self.must_change = said.rows == "one"
        self.is_long = said.scans == "whole tables" and said.time != "usual"
        """True: it gets a longer time limit."""
        self.is_planned_freely = self.is_long or said.plan == "free"
        self.usually_empty = said.usually == "empty"
        self.keys = tuple(list(types).index(name) for name in said.many)
        """Places of the parameters by which its rows differ, if it may be executed for many at once."""
        known = [_TYPES[type_] for type_ in types.values()]
        self.oids = [oid for oid, _, _ in known]
        self.formats = [format_ for _, format_, _ in known]
        self._encoders = [encode for _, _, encode in known]

    def encode(self, values: Mapping[str, Any]) -> Values:
        encoded: Values = []
        for name, encode in zip(self.names, self._encoders, strict=True):
            value = values[name]
            encoded.append(None if value is None else encode(value))
        return encoded


@cache
def statement(name: str) -> Statement:
    """The statement of this name."""
    return Statement(name, load(__package__)[name], notes(__package__).get(name, NOTHING_SAID))


BEGIN = Statement("begin", "BEGIN")
BEGIN_READING = Statement("begin_reading", "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
COMMIT = Statement("commit", "COMMIT")
ROLLBACK = Statement("rollback", "ROLLBACK")
