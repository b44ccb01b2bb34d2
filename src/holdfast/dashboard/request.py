"""One request for a page: its login, form and cookies, and calls of the API's handlers.

A page is an in-process client of `/api`: it reads and acts through the handlers of those routes, with the
caller's API key. So permissions, errors and figures are the API's.

A browser is authenticated by its cookie; a program may send its API key as for `/api`. A request that changes
something must come from a page of this server and carry the login's CSRF token: the cookie alone is not
enough.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
from starlette.requests import Request, cookie_parser

from ..app import Holdfast
from ..domain.api_keys import Caller, Scope, acting_for
from ..domain.figures import Prices
from ..errors import BadInput
from ..server.gate import Headers
from ..server.http import Handler, RequestContext, Services
from ..server.http_errors import HttpError
from ..server.limits import FORM_SECONDS
from ..server.response_writer import HttpResponse, JsonResponse
from .browser_sessions import LinkBook, Login, Logins

LONGEST_FORM = 2**20
LONGEST_WITH_PICTURES = 8 * 2**20


@dataclass(slots=True)
class DashboardServices:
    """What all page requests share."""

    services: Services
    handlers: Mapping[tuple[str, str], Handler]
    """The API's handlers, by method and path."""
    logins: Logins
    links: LinkBook
    demo: bool = False
    """True: this is the server of `holdfast demo`."""


@dataclass(slots=True)
class PageRequest:
    desk: DashboardServices
    call: RequestContext
    login: Login | None = None
    form: Mapping[str, str] = field(default_factory=dict)
    """The fields of the form that was sent."""
    cursor: int = 0
    """The newest event before anything was read for this page: later events may not be shown on it."""

    # --- caller and parameters ---------------------------------------------------------------------

    @property
    def services(self) -> Services:
        return self.desk.services

    @property
    def hf(self) -> Holdfast:
        """The operations that pages call."""
        return self.services.holdfast

    @property
    def caller(self) -> Caller:
        return self.call.caller

    @property
    def is_admin(self) -> bool:
        return self.call.key is not None and self.caller.scope is Scope.ADMIN

    @property
    def now(self) -> datetime:
        return self.hf.now()

    @property
    def prices(self) -> Prices:
        """What models cost, by their names; for figures."""
        return self.services.settings.model.price_table

    @property
    def owner_named(self) -> str | None:
        """The owner whom an admin has named in the URL; None: their own."""
        return self.query("owner") or None

    @property
    def owner(self) -> str | None:
        """The owner whose data is shown; None: all owners."""
        return acting_for(self.caller, self.owner_named)

    def query(self, name: str) -> str:
        return self.call.request.query_params.get(name, "").strip()

    def path(self, name: str) -> str:
        return self.call.path(name)

    def link(self, path: str, **query: Any) -> str:
        """A path of this server that keeps the parameter `owner`. None and empty parameters are left out."""
        given = {"owner": self.owner_named, **query}
        kept = {name: value for name, value in given.items() if value not in (None, "")}
        path = quote(path)
        return f"{path}?{urlencode(kept)}" if kept else path

    # --- the API -----------------------------------------------------------------------------------

    def has(self, method: str, path: str) -> bool:
        """True: the API has this route."""
        return (method, path) in self.desk.handlers

    async def ask(self, method: str, path: str, **asked: Any) -> Any:
        """The JSON object that this route of the API returns, as dictionaries and lists."""
        answer = await self.answer(method, path, **asked)
        assert isinstance(answer, JsonResponse)
        return msgspec.to_builtins(answer.value)

    async def answer(
        self,
        method: str,
        path: str,
        *,
        names: Mapping[str, str] | None = None,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        """The response of this API route, not sent. `names` fill the path; the parameter `owner` is kept."""
        call = self.inner(method, names=names, query=query, body=body, headers=headers)
        return await self.desk.handlers[method, path](call)

    def inner(
        self,
        method: str,
        *,
        names: Mapping[str, str] | None = None,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> RequestContext:
        """This request's context as that of an API request."""
        given = {"owner": self.owner_named, **(query or {})}
        kept = {name: str(value) for name, value in given.items() if value not in (None, "")}
        scope = {
            **self.call.request.scope,
            "method": method,
            "query_string": urlencode(kept).encode(),
            "path_params": dict(names or {}),
        }
        sent = msgspec.json.encode(body or {})

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": sent, "more_body": False}

        return replace(
            self.call,
            request=Request(scope, receive),
            headers=Headers(
                [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
            ),
            receive=receive,
            has_client=False,
        )

    # --- forms -------------------------------------------------------------------------------------

    async def read_form(self) -> Mapping[str, str]:
        """The form's fields; if a name is repeated, the last one. Raises HttpError or BadInput if invalid."""
        headers = self.call.headers
        length = headers.get("content-length", "0")
        longest = LONGEST_FORM if self.call.key is None else LONGEST_WITH_PICTURES
        if headers.get("transfer-encoding") or not length.isdecimal() or int(length) > longest:
            raise HttpError(413, "this form is too long, or has no Content-Length", "request_too_large")
        if self.call.key is None:
            with self.services.gate.form():
                body = await self.call.body(FORM_SECONDS)
        else:
            body = await self.call.body()
        if not body:
            return {}
        kind = headers.get("content-type").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise BadInput(f"a form is sent as application/x-www-form-urlencoded, not {kind!r:.60}")
        try:
            return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=100, errors="strict"))
        except ValueError:
            raise BadInput("this form cannot be read") from None

    def check_origin(self) -> None:
        """Raises HttpError 403 for a request from a page of another origin, even one allowed by CORS."""
        origin, host = self.call.headers.get("origin"), self.call.headers.get("host")
        own = not origin or origin.partition("://")[2].lower() == host.lower()
        if not own or self.call.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            raise HttpError(403, "this can only be done from a page of this server", "origin_not_allowed")

    def check_form(self) -> None:
        """Raises HttpError 403 unless the form has this login's CSRF token. Requests by API key need none."""
        if self.login is not None and not hmac.compare_digest(
            self.form.get("form", "").encode(), self.login.form.encode()
        ):
            raise HttpError(
                403,
                "this form is not, or no longer, yours: open the page again and repeat what you did",
                "form_expired",
            )


# --- cookies -------------------------------------------------------------------------------------------


def cookie_name(host: str) -> str:
    """The cookie's name, different for each port: browsers share cookies between all ports of a host."""
    port = host.rpartition(":")[2] if ":" in host.rpartition("]")[2] else ""
    return f"holdfast_{port}" if port.isdecimal() else "holdfast"


def cookie_in(headers: Headers) -> str:
    """The login's token, or an empty string. Cookies of other programs on this host are ignored."""
    return cookie_parser(headers.get("cookie")).get(cookie_name(headers.get("host")), "")


def cookie_for(headers: Headers, token: str, seconds: float) -> str:
    """The Set-Cookie value: HttpOnly and SameSite=Strict, and Secure if the browser used TLS."""
    secure = "; Secure" if headers.get("origin").startswith("https://") else ""
    name = cookie_name(headers.get("host"))
    return f"{name}={token}; Path=/; Max-Age={int(seconds)}; HttpOnly; SameSite=Strict{secure}"
