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
_NULL = b"\xff\xff\xff\xff"
_BIGINT = struct.Struct(">q").pack
_LARGEST = 2**63
_NUL = "a name or text holds a NUL byte, which cannot be stored or looked up"

Values = Mapping[str, Any]
"""The parameters of one execution, by name."""
Column = Sequence[Any]


def check(value: object) -> None:
    """Raises BadInput for a value that cannot be stored or looked up. Every other one can be encoded."""
    if isinstance(value, str):
        try:
            if "\0" in value:
                raise BadInput(_NUL)
            value.encode()
        except UnicodeEncodeError:
            raise BadInput(
                "a name or text holds a lone surrogate, which cannot be stored or looked up"
            ) from None
    elif isinstance(value, int):
        if not -_LARGEST <= value < _LARGEST:
            raise BadInput("a number is larger than any that can be stored or looked up")
    elif isinstance(value, list | tuple):
        for each in value:
            check(each)


def check_all(values: Values) -> None:
    """The same for parameters; nearly all of them are short and ASCII, which is known at once."""
    for value in values.values():
        if value.__class__ is str:
            if not value.isascii() or "\0" in value:
                check(value)
        elif value.__class__ is int:
            if not -_LARGEST <= value < _LARGEST:
                check(value)
        elif value is not None and value.__class__ is not bytes:
            check(value)


def _boolean(value: object) -> bytes:
    return b"\1" if value else b"\0"


def _bytes(value: bytes) -> bytes:
    return value


def _texts(column: Column) -> list[bytes]:
    """Many texts, encoded at once."""
    encoded = "\0".join(column).encode().split(b"\0")
    if len(encoded) != len(column):
        raise ValueError(_NUL)
    return encoded


def _bigints(column: Column) -> list[bytes]:
    return list(map(_BIGINT, column))


def _booleans(column: Column) -> list[bytes]:
    return [b"\1" if value else b"\0" for value in column]


def _array(element: int, encode_all: Callable[[Column], Sequence[bytes]]) -> Callable[[Column], bytes]:
    """PostgreSQL's binary form of an array, from its elements' binary form."""

    def encode(values: Column) -> bytes:
        if not values:
            return struct.pack(">iii", 0, 0, element)
        head = _ARRAY.pack(1, 1, element, len(values), 1)
        missing = values.count(None)
        if missing == len(values):
            return head + _NULL * missing
        if not missing:
            encoded = encode_all(values)
            sizes = set(map(len, encoded))
            if len(sizes) == 1:  # ids, numbers: one length before each
                length = _LENGTH.pack(sizes.pop())
                return head + length + length.join(encoded)
            found = iter(encoded)
        else:
            found = iter(encode_all([value for value in values if value is not None]))
        pieces = [head]
        for value in values:
            if value is None:
                pieces.append(_NULL)
            else:
                encoded_value = next(found)
                pieces.append(_LENGTH.pack(len(encoded_value)))
                pieces.append(encoded_value)
        return b"".join(pieces)

    return encode


# By type: its OID in every PostgreSQL, and the encoder of its binary form.
_TYPES: Mapping[str, tuple[int, Callable[[Any], bytes]]] = {
    "text": (25, str.encode),
    "bigint": (20, _BIGINT),
    "boolean": (16, _boolean),
    "bytea": (17, _bytes),
    "text[]": (1009, _array(25, _texts)),
    "bigint[]": (1016, _array(20, _bigints)),
    "boolean[]": (1000, _array(16, _booleans)),
    "bytea[]": (1001, _array(17, list)),
}
_BINARY = 1


class Statement:
    """One statement, ready to be prepared on any connection."""

    __slots__ = (
        "_encoders",
        "changes",
        "conversation",
        "formats",
        "is_long",
        "is_of_many",
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

    def __init__(
        self, name: str, text: str, said: Notes = NOTHING_SAID, of_many: Statement | None = None
    ) -> None:
        """`of_many`: the statement of which this is the form with arrays."""
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
        self.is_of_many = of_many is not None
        self.must_change: bool = said.rows == "one" or (of_many is not None and of_many.must_change)
        self.is_long = said.scans == "whole tables" and said.time != "usual"
        """True: it gets a longer time limit."""
        self.is_planned_freely = self.is_long or said.plan == "free"
        self.usually_empty: bool = said.usually == "empty" or (of_many is not None and of_many.usually_empty)
        self.keys = said.many
        """The parameters by which its rows differ, if it may be executed for many at once."""
        known = [_TYPES[type_] for type_ in types.values()]
        self.oids = [oid for oid, _ in known]
        self.formats = [_BINARY] * len(known)
        self._encoders = [(name, encode) for name, (_, encode) in zip(types, known, strict=True)]

    def encode(self, values: Values) -> list[bytes | None]:
        """The parameters as they are sent. They were checked before: see `check_all`."""
        return [None if (value := values[name]) is None else encode(value) for name, encode in self._encoders]


@cache
def statement(name: str) -> Statement:
    """The statement of this name."""
    return Statement(name, load(__package__)[name], notes(__package__).get(name, NOTHING_SAID))


BEGIN = Statement("begin", "BEGIN")
BEGIN_READING = Statement("begin_reading", "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
COMMIT = Statement("commit", "COMMIT")
ROLLBACK = Statement("rollback", "ROLLBACK")
