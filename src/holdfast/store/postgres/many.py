"""Executes the same statement of many turns as one.

A statement annotated `many` has a second form, derived from its text: its parameters become arrays, with one
value for each turn. What it does to each row is the same. Only turns of different conversations are merged,
whose rows differ; `-- many:` names the parameters by which that is checked.

`merge` takes what several functions queued. Functions that queued the same sequence of statements are merged
position by position, so the order of each one's statements stays as it was.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from ..queries import load
from ..transaction import Q
from .pipeline import Asked
from .statements import PARAMETER, Statement, Values

_WRITTEN = {Q.untold_of_conversation: Q.untold_of_many, Q.tell_notices: Q.tell_notices_of_many}
"""Statements whose second form is not derived: a join could begin with the notices of all conversations."""
_NAMES = {25: "text", 20: "bigint", 16: "boolean", 17: "bytea"}
_FROM = re.compile(r"\bFROM\s")
_WHERE = re.compile(r"\bWHERE\s")


@cache
def many(single: Statement) -> Statement:
    """The form of a statement that is executed for many values at once. Its last column, if it returns rows,
    is the number of the values that a row belongs to, from 1."""
    name = single.name.decode()
    if name in _WRITTEN:
        return Statement(_WRITTEN[name], load(__package__)[_WRITTEN[name]], of_many=single)
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
    return Statement(f"{name} of many", body, of_many=single)


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
    return form, {name: [row[name] for row in rows] for name in form.names}


def are_different(single: Statement, rows: Sequence[Values]) -> bool:
    """True if these values change different rows, so that one statement may be executed for all."""
    if not single.keys or len(rows) < 2:
        return False
    return len({tuple([row[key] for key in single.keys]) for row in rows}) == len(rows)


def merge(queued: Sequence[Sequence[Asked]]) -> list[Asked]:
    """The same statements with as few executions as possible. Each item is what one function queued."""
    alike: dict[tuple[Statement, ...], list[Sequence[Asked]]] = {}
    for each in queued:
        alike.setdefault(tuple([single for single, _ in each]), []).append(each)
    merged: list[Asked] = []
    for statements, group in alike.items():
        for place, single in enumerate(statements):
            rows = [each[place][1] for each in group]
            if are_different(single, rows):
                merged.append(asked_of_many(single, rows))
            else:
                merged += [(single, row) for row in rows]
    return merged


def is_as_assumed(asked: Asked, count: int) -> bool:
    """False: a statement that must change a row for each of its values did not, or one that usually finds
    nothing found something."""
    wanted, values = asked
    if wanted.must_change:
        return count >= (len(values[wanted.names[0]]) if wanted.is_of_many else 1)
    return not (wanted.usually_empty and count)
