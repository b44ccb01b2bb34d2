"""Admission checks of a request: strict headers, allowed Host, allowed Origin (CORS), number under way.

Headers are parsed once per request: most requests need about a dozen of them.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from functools import lru_cache

from ..errors import BadInput
from ..settings import ServerSettings
from .http_errors import HttpError
from .limits import FORMS, PUSHES
from .workers.board import Row, RowColumn


class Headers:
    """Headers by their lower-case names. Values that identify something must be UTF-8 (`once`); any other is
    decoded as UTF-8, else as Latin-1 (`get`)."""

    __slots__ = ("_found", "_repeated", "names")

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._found: dict[str, bytes] = {}
        self._repeated: list[str] = []
        for raw_name, value in raw:
            name = raw_name.decode("latin-1")
            if name in self._found:
                self._repeated.append(name)
            else:
                self._found[name] = value
        self.names: Set[str] = self._found.keys()
        """The names of all headers that were sent."""

    def get(self, name: str, default: str = "") -> str:
        """The first header of this name; `default` if it is absent or empty."""
        value = self._found.get(name)
        if not value:
            return default
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.decode("latin-1")

    def first(self, names: Iterable[str]) -> str | None:
        """The first of these headers that is present and not empty, read as by `once`."""
        for name in names:
            if name in self._found and (value := self.once(name)):
                return value
        return None

    def once(self, name: str) -> str | None:
        """A header that identifies an owner or a conversation; None: absent. Raises BadInput if it was sent
        more than once, or is not UTF-8 in NFC without invisible characters: different values must not look
        alike."""
        value = self._found.get(name)
        if value is None:
            return None
        if name in self._repeated:
            raise BadInput(f"the header {name} was sent more than once; send it once")
        return _unmistakable(name, value)


def _unmistakable(name: str, value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise BadInput(f"the header {name} is not UTF-8; send its value encoded as UTF-8") from None
    if text.isascii() and text.isprintable():
        return text
    for character in text:
        if is_invisible(character):
            raise BadInput(
                f"the header {name} contains an invisible character, U+{ord(character):04X}; remove it"
            )
    if not unicodedata.is_normalized("NFC", text):
        raise BadInput(f"the header {name} is not in Unicode's normal form NFC; normalise it before sending")
    return text


# Characters that fonts draw as blank although their Unicode category is letter or mark.
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})


def is_invisible(character: str) -> bool:
    """True for control, format and unassigned characters, spaces other than U+0020, and blank letters."""
    if character == " ":
        return False
    code = ord(character)
    return (
        unicodedata.category(character) in _INVISIBLE
        or character in _BLANKS
        or 0xFE00 <= code <= 0xFE0F
        or 0xE0100 <= code <= 0xE01EF  # variation selectors
    )


LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANY = ("0.0.0.0", "::", "")
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s\[\]:/?#@\\]*))(?::[0-9]{0,5})?")
"""An IPv6 address in brackets, or a name; then an optional port."""


class Gate:
    """Checks Host and Origin, and limits requests, and unauthenticated bodies, that are under way."""

    def __init__(self, settings: ServerSettings, worker: Row | None = None) -> None:
        """`worker`: this worker's row, if the server has several: `max_requests` counts all of them."""
        self._worker = worker
        named = {host.lower().strip("[]") for host in settings.allowed_hosts}
        bound = settings.host.lower()
        self._hosts = {*LOOPBACK, *named, *({bound} if not named else ())} - set(ANY)
        # Bound to every address without allowed_hosts: the names that clients use cannot be known.
        # An address, unlike a name, cannot be made to mean this machine by a foreign page (DNS rebinding).
        self._any_host = "*" in named or (not named and bound in ANY)
        self._any_address = bound in ANY
        self._origins = frozenset(origin.rstrip("/") for origin in settings.cors_origins)
        # Safe: an API key is sent by the page itself, never added by the browser as a cookie would be.
        self._any_origin = "*" in self._origins
        self._is_allowed = lru_cache(256)(self._is_allowed_host)  # clients use few hosts
        self._most = settings.max_requests
        self._inside = 0
        self._forms = self._pushes = 0

    def check(self, headers: Headers) -> None:
        """Raises HttpError if the Host is not allowed (421), or the Origin is not (403)."""
        host = headers.once("host") or ""
        if not self._is_allowed(host):
            raise HttpError(
                421, f"Host {host!r:.100} is not allowed; add it to [server] allowed_hosts", "unknown_host"
            )
        origin = headers.once("origin")
        if not origin or self._any_origin or origin in self._origins:
            return
        if origin.partition("://")[2].lower() == host.lower():
            return  # the server's own pages
        raise HttpError(
            403,
            f"Origin {origin!r:.100} is not allowed; add it to [server] cors_origins",
            "origin_not_allowed",
        )

    def _is_allowed_host(self, host: str) -> bool:
        name = _name_of(host)
        return name is not None and (
            self._any_host or name in self._hosts or (self._any_address and _is_address(name))
        )

    def headers_for(self, headers: Headers) -> dict[str, str]:
        """The CORS response headers if the request's Origin is allowed; else none."""
        origin = headers.get("origin")
        if not origin or not (self._any_origin or origin in self._origins):
            return {}
        return {
            "access-control-allow-origin": "*" if self._any_origin else origin,
            "access-control-expose-headers": "*",
            "vary": "origin",
        }

    def enter(self) -> None:
        """Count one more request; the caller must `leave`. Raises HttpError 503 at the limit."""
        elsewhere = 0 if self._worker is None else self._worker.elsewhere(RowColumn.REQUESTS)
        if self._inside + elsewhere >= self._most:
            raise HttpError(
                503,
                f"{self._most} requests are in progress, which is the limit ([server] max_requests)",
                "too_many_requests",
                headers={"retry-after": "1", "x-should-retry": "true"},
            )
        self._inside += 1
        if self._worker is not None:
            self._worker.set(RowColumn.REQUESTS, self._inside)

    def leave(self) -> None:
        self._inside -= 1
        if self._worker is not None:
            self._worker.set(RowColumn.REQUESTS, self._inside)

    @contextmanager
    def form(self) -> Iterator[None]:
        """Count an unauthenticated form while it is read; raises HttpError 503 at the limit."""
        _check_number("forms", self._forms, FORMS)
        self._forms += 1
        try:
            yield
        finally:
            self._forms -= 1

    @contextmanager
    def push(self) -> Iterator[None]:
        """Count a message that a platform pushes while it is read; raises HttpError 503 at the limit."""
        _check_number("messages of platforms", self._pushes, PUSHES)
        self._pushes += 1
        try:
            yield
        finally:
            self._pushes -= 1


def _check_number(what: str, number: int, most: int) -> None:
    if number >= most:
        raise HttpError(
            503,
            f"{most} {what} are being uploaded, which is the limit; retry soon",
            "too_many_requests",
            headers={"retry-after": "1", "x-should-retry": "true"},
        )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _name_of(host: str) -> str | None:
    """The name in a Host header, without its port; None if the header is not valid."""
    found = _HOST.fullmatch(host)
    return (found[1] or found[2] or "").lower() if found else None
