"""ASGI endpoint of a page: authenticates, authorises or redirects to /login; errors are pages too."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from ..domain.api_keys import acting_as
from ..errors import BadKey, HoldfastError, StoreFailed
from ..server.access_log import UNKNOWN_ROUTE
from ..server.gate import Headers
from ..server.http import RequestContext, expand_id, note_trouble, request_id_of
from ..server.http_errors import HttpError, failure_of
from ..server.response_writer import HttpResponse
from .pages import go, html
from .request import DashboardServices, PageRequest, cookie_in

log = logging.getLogger(__name__)

PageHandler = Callable[[PageRequest], Awaitable[HttpResponse]]


@dataclass(frozen=True, slots=True)
class PageRoute:
    method: str
    path: str
    handler: PageHandler
    meaning: str
    """What it shows or does, in one sentence."""
    open: bool = False
    """True: no login is needed."""
    limited: bool = True
    """True: it counts as a request under way. False for what a browser keeps open or polls all the time."""


def mounted(desk: DashboardServices, pages: Iterable[PageRoute]) -> list[StarletteRoute]:
    by_path: dict[str, dict[str, PageRoute]] = {}
    for page in pages:
        by_path.setdefault(page.path, {})[page.method] = page
    return [StarletteRoute(path, _PageEndpoint(desk, found)) for path, found in by_path.items()]


def unknown_page(desk: DashboardServices) -> ASGIApp:
    """Answers an address that no route has with the error page, also to a browser that is not logged in."""
    return _PageEndpoint(desk, {"GET": PageRoute("GET", UNKNOWN_ROUTE, _refuse_unknown, "404.", open=True)})


async def _refuse_unknown(visit: PageRequest) -> HttpResponse:
    raise HttpError(404, f"there is no page {visit.call.request.url.path!r:.200}", "not_found")


class _PageEndpoint:
    def __init__(self, desk: DashboardServices, pages: Mapping[str, PageRoute]) -> None:
        self._desk = desk
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._desk.services
        headers = Headers(scope["headers"])
        call = RequestContext(
            services, Request(scope, receive), headers, receive, send, request_id_of(headers)
        )
        visit = PageRequest(self._desk, call)
        services.metrics.begin()
        name = next(iter(self._pages.values())).path
        try:
            await (await self._answer(visit)).send(call)
        except ClientDisconnect:
            return
        except StoreFailed as error:
            log.critical("%s; the server stops", error)
            services.broken.set()
            await self._fail(visit, error)
        except (HoldfastError, RecursionError) as error:
            note_trouble(name, call, error)
            await self._fail(visit, error)
        except Exception as error:
            log.exception("%s failed with an unexpected error (request %s)", name, call.id)
            await self._fail(visit, error)
        finally:
            call.give_back_all()
            services.metrics.end(name, call.status, call.began)
            services.access_log.note(call, name)

    async def _answer(self, visit: PageRequest) -> HttpResponse:
        call, gate = visit.call, self._desk.services.gate
        gate.check(call.headers)
        method = call.request.method
        page = self._pages.get("GET" if method == "HEAD" else method)
        if page is None:
            allowed = ", ".join(sorted(self._pages))
            said = f"{method} is not a method of {call.request.url.path}; it has {allowed}"
            raise HttpError(405, said, "method_not_allowed", headers={"allow": allowed})
        changes = method not in ("GET", "HEAD")
        if changes:
            visit.check_origin()
        try:
            await self._recognise(visit)
        except BadKey:
            if not page.open:
                return self._log_in_first(visit, page)
        if call.key is not None:
            await expand_id(call)
        if changes:
            visit.form = await visit.read_form()
            if not page.open:
                visit.check_form()
        if not page.limited:
            return await page.handler(visit)
        if call.key is not None:
            call.hold_slot()
            visit.cursor = (await visit.hf.event_bounds())[1]
        return await page.handler(visit)

    async def _recognise(self, visit: PageRequest) -> None:
        """Authenticate by a program's API key, else by the browser's cookie; raises BadKey if invalid."""
        call, keys = visit.call, visit.hf.authenticator
        scheme, _, token = call.headers.get("authorization").partition(" ")
        if scheme.lower() == "bearer":
            key = await keys.authenticate(token.strip())
        else:
            logins, token = self._desk.logins, cookie_in(call.headers)
            login = await logins.find(token)
            if login is None:
                raise BadKey

            async def still_logged_in() -> bool:
                return await logins.find(token) is not None

            key = await keys.named(login.key)
            call.still_logged_in = still_logged_in  # a logout ends the browser's streams
            visit.login = login
        call._caller = acting_as(key, call.headers.once("x-holdfast-owner"))
        call.key = key

    def _log_in_first(self, visit: PageRequest, page: PageRoute) -> HttpResponse:
        """Redirect a page to /login, which leads back to it; raises BadKey for any other request."""
        request = visit.call.request
        if page.method != "GET" or "text/html" not in visit.call.headers.get("accept"):
            raise BadKey
        query = f"?{request.url.query}" if request.url.query else ""
        return go(f"/login?next={quote(request.url.path + query, safe='')}")

    async def _fail(self, visit: PageRequest, error: BaseException) -> None:
        if visit.call.started:
            return  # no error can be sent: the connection just ends
        failure = failure_of(error)
        reply = html(visit, "error.html", failure.status, failure.headers, failure=failure)
        await reply.send(visit.call)
