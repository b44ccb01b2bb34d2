"""Who may knock: hosts the server may be called by, pages that may call it, and how many at once.

A browser on this machine will happily send a stranger's page to 127.0.0.1. So the Host header must name this
server (no DNS rebinding), an Origin must be this server's own or one that `cors_origins` lists, and without
such a list no answer carries a CORS header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ...settings import ServerSettings
from .failures import Refusal
from .headers import Headers
from .limits import FORMS

LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANY = ("0.0.0.0", "::", "")
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s\[\]:/?#@\\]*))(?::[0-9]{0,5})?")
"""An IPv6 address in brackets, or a name; then perhaps a port."""


class Doors:
    def __init__(self, settings: ServerSettings) -> None:
        named = {host.lower().strip("[]") for host in settings.allowed_hosts}
        bound = settings.host.lower()
        self._hosts = {*LOOPBACK, *named, *({bound} if not named else ())} - set(ANY)
        # Bound to every address without a list of names: it is called by names we cannot know.
        self._any_host = not named and bound in ANY
        self._origins = frozenset(origin.rstrip("/") for origin in settings.cors_origins)
        self._most = settings.max_requests
        self._inside = 0
        self._forms = 0

    def check(self, headers: Headers) -> None:
        """Refuse a request that was not meant for this server, or comes from a page that may not call it."""
        host = headers.once("host") or ""
        name = _name_of(host)
        if name is None or (not self._any_host and name not in self._hosts):
            raise Refusal(
                421, f"Host {host!r:.100} is not allowed; add it to [server] allowed_hosts", "unknown_host"
            )
        origin = headers.once("origin")
        if not origin or origin in self._origins:
            return
        if origin.partition("://")[2].lower() == host.lower():
            return  # the server's own pages
        raise Refusal(
            403,
            f"pages of {origin!r:.100} may not call this server; [server] cors_origins lists those that may",
            "origin_not_allowed",
        )

    def headers_for(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """What a page needs to be told, if it may call."""
        origin = headers.get("origin")
        if not origin or origin not in self._origins:
            return []
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", b"*"),
            (b"vary", b"origin"),
        ]

    def enter(self) -> None:
        """Room for one more request, or a refusal. Whoever entered must `leave`."""
        if self._inside >= self._most:
            raise Refusal(
                503,
                f"{self._most} requests are under way, which is the limit ([server] max_requests)",
                "too_many_requests",
                headers={"retry-after": "1", "x-should-retry": "true"},
            )
        self._inside += 1

    def leave(self) -> None:
        self._inside -= 1

    @contextmanager
    def form(self) -> Iterator[None]:
        """While a form is read that comes without a key; refused if too many are."""
        if self._forms >= FORMS:
            raise Refusal(
                503,
                f"{FORMS} forms are arriving, which is the limit; try again in a moment",
                "too_many_requests",
                headers={"retry-after": "1", "x-should-retry": "true"},
            )
        self._forms += 1
        try:
            yield
        finally:
            self._forms -= 1


def _name_of(host: str) -> str | None:
    """The name in a Host header, without its port; None if it is no host."""
    found = _HOST.fullmatch(host)
    return (found[1] or found[2] or "").lower() if found else None
