"""Renders pages from templates, with their security headers, static files and template filters.

The Content-Security-Policy allows only our own script and style sheet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec

from .. import __version__
from ..cli import format
from ..cli.session_views import text_of
from ..domain.figures import cost_of
from ..domain.messages import NESTED_TOO_DEEPLY
from ..domain.new_messages import is_nested_deeper
from ..server.http_errors import HttpError
from ..server.response_writer import HttpResponse, JsonResponse
from .charts import duration
from .request import PageRequest

if TYPE_CHECKING:
    import jinja2

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


KINDS = {
    "holdfast.css": "text/css; charset=utf-8",
    "holdfast.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


@cache
def content(name: str) -> bytes:
    return files(__package__).joinpath("static", name).read_bytes()


@cache
def address(name: str) -> str:
    """The URL of a static file. It contains a hash of the content, so that browsers can cache it forever."""
    return f"/static/{name}?v={sha256(content(name)).hexdigest()[:12]}"


async def static_file(visit: PageRequest) -> HttpResponse:
    name = visit.path("name")
    if name not in KINDS:
        raise HttpError(404, f"there is no file {name!r:.60}", "not_found")
    kept = "public, max-age=31536000, immutable" if visit.query("v") else "no-cache"
    return JsonResponse(content(name), headers={**HEADERS, "cache-control": kept}, media_type=KINDS[name])


MOST_INDENTED = 20
"""JSON nested deeper than this is not indented: the text would be mostly spaces."""


@cache
def environment() -> jinja2.Environment:
    """The templates. Imports what renders them: a server imports it in the background once it listens."""
    import jinja2

    from .markdown import code, markdown, pictures, worded

    found = jinja2.Environment(
        loader=jinja2.PackageLoader("holdfast.dashboard"),
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
        count=format.count,
        text=text_of,
        worded=worded,
        pieces=pieces,
        markdown=markdown,
        code=code,
        pictures=pictures,
        pretty=pretty,
        within=in_words,
        duration=duration,
        compact=compact,
        plain=plain,
        cause=cause,
        money=format.money,
        cost=lambda turn, prices: cost_of([turn], prices).amount,
        seconds=lambda number: timedelta(seconds=number),
    )
    found.globals.update(version=__version__, address=address, span=format.span, ago=format.ago)
    return found


def html(
    visit: PageRequest,
    template: str,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    **values: Any,
) -> JsonResponse:
    """The HTML response of this template for this request."""
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
    return JsonResponse(
        text.encode("utf-8", "replace"), status, {**HEADERS, **(headers or {})}, "text/html; charset=utf-8"
    )


def go(to: str, **headers: str) -> JsonResponse:
    """A redirect (303)."""
    return JsonResponse(b"", 303, {**HEADERS, "location": to, **headers}, "text/plain")


def own_page(path: str) -> str:
    """The path if it is on this server, else `/`. Prevents open redirects: `//other` is another server."""
    safe = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if safe and path.isascii() else "/"


# --- template filters ----------------------------------------------------------------------------------


def time_of(value: str | datetime | None) -> datetime | None:
    """The time in a field of an API object."""
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def clock(value: str | datetime | None) -> str:
    """The full date and time, in this machine's time zone."""
    then = time_of(value)
    return f"{then.astimezone():%Y-%m-%d %H:%M:%S %Z}" if then else "—"


def short(identifier: str | None) -> str:
    """A shortened id, which commands and routes take too."""
    kind, mark, rest = (identifier or "").partition("_")
    return f"{kind}{mark}{rest[:8]}" if mark else kind[:16]


def pretty(arguments: Any) -> str:
    """A tool's arguments, indented if they are JSON that stays readable."""
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
    """A part of a text: prose, or fenced code."""

    text: str
    code: bool = False
    language: str = ""


def pieces(text: str) -> Iterator[Piece]:
    """Splits a text into prose and fenced code. Everything else is unchanged."""
    lines: list[str] = []
    fence = language = ""
    for line in text.splitlines():
        mark = line.lstrip()[:3]
        if not fence and mark in ("```", "~~~"):
            if "\n".join(lines).strip():
                yield Piece("\n".join(lines).strip("\n"))
            lines, fence, language = [], mark, line.strip().strip("`~").strip()
        elif fence and line.strip() == fence:
            yield Piece("\n".join(lines), code=True, language=language)
            lines, fence = [], ""
        else:
            lines.append(line)
    if "\n".join(lines).strip():
        yield Piece("\n".join(lines).strip("\n"), bool(fence), language if fence else "")


def compact(number: int) -> str:
    """A count in few characters: `950`, `12.4k`, `3.1M`."""
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if number >= size:
            return f"{number / (1000 if unit == 'k' else size):.1f}{unit}"
    return f"{number:,}"


_TURN = re.compile(r"^turn turn_\S+ was (?:interrupted|cancelled): ")


def cause(sentence: str) -> str:
    """Why a turn was not answered, without the turn's id and state, which are shown beside it."""
    return _TURN.sub("", sentence)


def plain(value: Any) -> Any:
    """A number without a fraction that is zero: `240`, not `240.0`."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def in_words(then: datetime, now: datetime) -> str:
    """The time between `now` and `then`, in words, past or future."""
    return f"in {format.span(then - now)}" if then > now else format.ago(then, now)
