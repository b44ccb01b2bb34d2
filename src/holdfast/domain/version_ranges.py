"""Whether a version is one that a requirement allows, for requirements such as `uvicorn>=0.53,<0.55`.

Only releases are compared, as far as they are numbers: `1.2rc1` counts as 1.2, and `1.2.0` as 1.2.
Requirements with other operators than `>=` and `<` are not decided here; holdfast declares none.
"""

from __future__ import annotations

import re

from .value import Value

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_EXTRA = re.compile(r"""\bextra\s*==\s*['"]([\w.-]+)['"]""")
_BOUND = re.compile(r"(>=|<)(\d[\w.+!-]*)")


class Requirement(Value, frozen=True):
    """What a package's metadata says of one dependency."""

    name: str
    bounds: str
    """Such as `<0.55,>=0.53`; empty: any version."""
    extra: str | None = None
    """The extra that needs it, its hyphens as underscores; None: every installation does."""


def requirement_of(line: str) -> Requirement:
    """A line of `Requires-Dist`, such as `psycopg[binary]<3.4,>=3.2.1; extra == 'postgres'`."""
    wanted, _, marker = line.partition(";")
    wanted = "".join(wanted.split())
    name = _NAME.match(wanted)
    if name is None:
        raise ValueError(f"not a requirement: {line!r}")
    bounds = wanted[name.end() :]
    if bounds.startswith("["):  # extras of it
        bounds = bounds.partition("]")[2]
    extra = _EXTRA.search(marker)
    return Requirement(name[0], bounds, extra[1].replace("-", "_") if extra else None)


def is_within(version: str, bounds: str) -> bool:
    """True if the bounds allow this version. Raises ValueError for an operator other than `>=` and `<`."""
    here = _release(version)
    for bound in bounds.split(",") if bounds else ():
        found = _BOUND.fullmatch(bound.strip())
        if found is None:
            raise ValueError(f"not a bound: {bound!r}")
        limit = _release(found[2])
        if (here < limit) if found[1] == ">=" else (here >= limit):
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    """Its numbers, without zeros at the end."""
    found = re.match(r"(?:\d+!)?(\d+(?:\.\d+)*)", version)
    numbers = [int(each) for each in found[1].split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
