"""Pages: from values to HTML.

Templates escape everything: nothing that a person or a model said becomes markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

import jinja2
import msgspec

from ... import __version__
from ...domain.messages import NESTED_TOO_DEEPLY, is_nested_deeper
from ..api.call import Reply
from ..cli import words
from ..cli.message_views import text_of
from .policy import HEADERS
from .static_files import address
from .visits import Visit

MOST_INDENTED = 20
"""Levels of arguments that are written line by line: more of them would mostly be blanks."""


@cache
def environment() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("holdfast.surfaces.dashboard"),
        autoescape=True,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    found.filters.update(
        time=time_of,
        clock=clock,
        short=short,
        count=words.count,
        text=text_of,
        pieces=pieces,
        pretty=pretty,
        within=in_words,
    )
    found.globals.update(version=__version__, address=address, span=words.span, ago=words.ago)
    return found


def html(
    visit: Visit, template: str, status: int = 200, headers: Mapping[str, str] | None = None, **values: Any
) -> Reply:
    """A page for this visit."""
    text = (
        environment()
        .get_template(template)
        .render(
            visit=visit,
            link=visit.link,
            now=visit.now,
            form=visit.login.form if visit.login else "",
            **values,
        )
    )
    return Reply(
        text.encode("utf-8", "replace"), status, {**HEADERS, **(headers or {})}, "text/html; charset=utf-8"
    )


def go(to: str, **headers: str) -> Reply:
    """Look there instead."""
    return Reply(b"", 303, {**HEADERS, "location": to, **headers}, "text/plain")


def own_page(path: str) -> str:
    """A page of ours, whatever the link says: `//elsewhere` is another server's."""
    safe = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if safe and path.isascii() else "/"


# --- how values are written ----------------------------------------------------------------------------


def time_of(value: str | datetime | None) -> datetime | None:
    """The time in one of the API's fields."""
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def clock(value: str | datetime | None) -> str:
    """A time on this machine's clock, in full."""
    then = time_of(value)
    return f"{then.astimezone():%Y-%m-%d %H:%M:%S %Z}" if then else "—"


def short(identifier: str | None) -> str:
    """An id as far as a person needs it to tell it from others."""
    kind, mark, rest = (identifier or "").partition("_")
    return f"{kind}{mark}{rest[:8]}" if mark else kind[:16]


def pretty(arguments: Any) -> str:
    """Arguments of a tool, line by line if they are JSON that a person could read so."""
    try:
        value = msgspec.json.decode(arguments) if isinstance(arguments, str) else arguments
        if is_nested_deeper(value, MOST_INDENTED):
            return arguments if isinstance(arguments, str) else msgspec.json.encode(value).decode()
        return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    except RecursionError:
        return arguments if isinstance(arguments, str) else NESTED_TOO_DEEPLY
    except (msgspec.DecodeError, ValueError):
        return str(arguments)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a text: prose, or what stood between fences."""

    text: str
    code: bool = False


def pieces(text: str) -> Iterator[Piece]:
    """A text with its fenced code told apart. Everything else stays as it was written."""
    lines: list[str] = []
    fence = ""
    for line in text.splitlines():
        mark = line.lstrip()[:3]
        if not fence and mark in ("```", "~~~"):
            if "\n".join(lines).strip():
                yield Piece("\n".join(lines).strip("\n"))
            lines, fence = [], mark
        elif fence and line.strip() == fence:
            yield Piece("\n".join(lines), code=True)
            lines, fence = [], ""
        else:
            lines.append(line)
    if "\n".join(lines).strip():
        yield Piece("\n".join(lines).strip("\n"), code=bool(fence))


def in_words(then: datetime, now: datetime) -> str:
    """How long from now, either way."""
    return f"in {words.span(then - now)}" if then > now else words.ago(then, now)
