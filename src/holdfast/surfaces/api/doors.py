"""Who may knock: hosts the server may be called by, pages that may call it, and how many at once.

A browser on this machine will happily send a stranger's page to 127.0.0.1. So the Host header must name this
server (no DNS rebinding), an Origin must be this server's own or one that `cors_origins` lists, and without
such a list no answer carries a CORS header.
"""

from __future__ import annotations

from ...settings import ServerSettings
from .failures import Refusal
from .headers import Headers

LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANY = ("0.0.0.0", "::", "")


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

    def check(self, headers: Headers) -> None:
        """Refuse a request that was not meant for this server, or comes from a page that may not call it."""
        host = headers.get("host")
        name = _name_of(host)
        if not self._any_host and name not in self._hosts:
            raise Refusal(
                421,
                f"this server is not called {name!r}; [server] allowed_hosts names what it is called",
                "unknown_host",
            )
        origin = headers.get("origin")
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


def _name_of(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()
