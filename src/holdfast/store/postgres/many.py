"""Executes the same statement of many turns as one.

A statement annotated `many` has a second form, derived from its text: its parameters become arrays, with one
value for each turn. What it does to each row is the same. Only turns of different conversations are merged,
whose rows differ; `-- many:` names the parameters by which that is checked.

`merge` takes what several functions queued. Functions that queued the same sequence of statements are merged
position by position, so the order of each one's statements stays as it was.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from ..queries import load
from ..transaction import Q
from .pipeline import Asked
from .statements import PARAMETER, Statement, Values, statement

_WRITTEN = {Q.untold_of_conversation: Q.untold_of_many, Q.tell_notices: Q.tell_notices_of_many}
"""Statements whose second form is not derived: a join could begin with the notices of all conversations."""
_NAMES = {25: "text", 20: "bigint", 16: "boolean", 17: "bytea"}
_LENGTH = struct.Struct(">i")
_HEAD = struct.Struct(">iiiii")
_BIGINT = struct.Struct(">iq")
_NULL = b"\xff\xff\xff\xff"
_FROM = re.compile(r"\bFROM\s")
_WHERE = re.compile(r"\bWHERE\s")


class Queued(NamedTuple):
    """What one function has queued: statements, which of them must change rows, which should find nothing."""

    statements: list[Asked]
    expected: dict[int, int]
    empty: set[int]


@cache
def many(single: Statement) -> Statement:
    """The form of a statement that is executed for many values at once. Its last column, if it returns rows,
    is the number of the values that a row belongs to, from 1."""
    name = single.name.decode()
    if name in _WRITTEN:
        return statement(_WRITTEN[name])
    text = load(__package__)[name].strip().rstrip(";")
    types = dict(zip(single.names, (_NAMES[oid] for oid in single.oids), strict=True))
    arrays = ", ".join(f":{name}::{type_}[]" for name, type_ in types.items())
    columns = ", ".join(f"p_{name}" for name in types)
    given = f"unnest({arrays}) WITH ORDINALITY AS given ({columns}, place)"
    body = PARAMETER.sub(lambda found: f"given.p_{found[1] or found[3]}{found[2] or found[4] or ''}", text)
    if "VALUES (" in body:
        start = body.index("VALUES (")
        end = _closing(body, start + len("VALUES "))
        body = f"{body[:start]}SELECT {body[start + len('VALUES (') : end]} FROM {given}{body[end + 1 :]}"
    elif body.startswith("UPDATE"):
        where = _WHERE.search(body)
        assert where is not None
        body = f"{body[: where.start()]}FROM {given} {body[where.start() :]}"
        if "RETURNING" in body:
            body += ", given.place"
    else:
        returned = ", given.place " if body.startswith("SELECT") else ""
        body = _FROM.sub(f"{returned}FROM {given} CROSS JOIN ", body, count=1)
    return Statement(f"{name} of many", body)


def _closing(text: str, start: int) -> int:
    """Where the bracket that opens at `start` closes."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise ValueError(text)


def asked_of_many(single: Statement, rows: Sequence[Values]) -> Asked:
    """One statement for all of these, whose values are those of single executions."""
    form = many(single)
    columns = {
        name: _array(oid, column)
        for name, oid, column in zip(single.names, single.oids, zip(*rows, strict=True), strict=True)
    }
    return form, [columns[name] for name in form.names]


def _array(oid: int, values: Sequence[bytes | None]) -> bytes:
    """PostgreSQL's binary form of an array. The values are as sent alone: numbers and booleans as text."""
    pieces = [_HEAD.pack(1, 1, oid, len(values), 1)]
    for value in values:
        if value is None:
            pieces.append(_NULL)
        elif oid == 20:
            pieces.append(_BIGINT.pack(8, int(value)))
        elif oid == 16:
            pieces.append(b"\0\0\0\1\1" if value == b"t" else b"\0\0\0\1\0")
        else:
            pieces.append(_LENGTH.pack(len(value)))
            pieces.append(value)
    return b"".join(pieces)


def are_different(single: Statement, rows: Sequence[Values]) -> bool:
    """True if these values change different rows, so that one statement may be executed for all."""
    if not single.keys or len(rows) < 2:
        return False
    return len({tuple(row[place] for place in single.keys) for row in rows}) == len(rows)


def merge(queued: Sequence[Queued]) -> Queued:
    """The same statements with as few executions as possible."""
    alike: dict[tuple[bytes, ...], list[Queued]] = {}
    for each in queued:
        alike.setdefault(tuple(statement.name for statement, _ in each.statements), []).append(each)
    merged = Queued([], {}, set())
    for group in alike.values():
        for place in range(len(group[0].statements)):
            single = group[0].statements[place][0]
            rows = [each.statements[place][1] for each in group]
            is_empty = place in group[0].empty
            if are_different(single, rows):
                least = sum(each.expected.get(place, 0) for each in group)
                _add(merged, asked_of_many(single, rows), least, is_empty)
            else:
                for each, row in zip(group, rows, strict=True):
                    _add(merged, (single, row), each.expected.get(place, 0), is_empty)
    return merged


def _add(merged: Queued, statement: Asked, least: int, is_empty: bool) -> None:
    if least:
        merged.expected[len(merged.statements)] = least
    if is_empty:
        merged.empty.add(len(merged.statements))
    merged.statements.append(statement)
