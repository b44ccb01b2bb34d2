"""The list of all pages; the server mounts it together with the API's routes."""

from __future__ import annotations

import os
from collections.abc import Iterable

from starlette.routing import Route as StarletteRoute

from ..server.gate import LOOPBACK
from ..server.http import HttpResponse, Services
from ..server.routes import Route
from ..settings import home
from . import actions, conversation, demo, login, memories, overview, pages, processes, sessions
from .browser_sessions import LinkBook, Logins
from .endpoint import PageRoute, mounted
from .request import DashboardServices, PageRequest


async def live(visit: PageRequest) -> HttpResponse:
    """The stream of `/api/events`, after which the script fetches the page again."""
    headers = {"last-event-id": seen} if (seen := visit.call.headers.get("last-event-id")) else {}
    return await visit.answer(
        "GET", "/api/events", query={"after": visit.query("after") or "now"}, headers=headers
    )


PAGES: tuple[PageRoute, ...] = (
    PageRoute("GET", "/login", login.login, "The login; with `link`, by a one-time link.", open=True),
    PageRoute("POST", "/login", login.log_in, "Log in by a key, or use a one-time link up.", open=True),
    PageRoute("POST", "/logout", login.log_out, "Log out."),
    PageRoute(
        "GET", "/static/{name}", pages.static_file, "Style, script, picture.", open=True, limited=False
    ),
    PageRoute(
        "GET", "/live", live, "What happens, for the script: the stream of `/api/events`.", limited=False
    ),
    PageRoute("GET", "/", overview.overview, "What is alive now, how it goes, what waits for somebody."),
    PageRoute("GET", "/sessions", sessions.sessions, "Sessions, by state, source, key, title."),
    PageRoute("GET", "/search", sessions.search, "Messages that hold these words."),
    PageRoute("GET", "/new", conversation.new, "A box for the first message of a conversation."),
    PageRoute("POST", "/new", conversation.begin, "Begin a conversation, or go on in that of a key."),
    PageRoute("GET", "/sessions/{id}", conversation.conversation, "One conversation."),
    PageRoute("POST", "/sessions/{id}/say", conversation.say, "Say something in it."),
    PageRoute(
        "GET", "/sessions/{id}/{act}", actions.confirm_session, "What an act would do: end, cancel, resume, …"
    ),
    PageRoute("POST", "/sessions/{id}/{act}", actions.act_on_session, "Do it."),
    PageRoute("POST", "/turns/{id}/retry", conversation.retry, "Take a turn up again."),
    PageRoute(
        "GET", "/turns/{id}/reply", conversation.reply, "A reply as it grows, for the script.", limited=False
    ),
    PageRoute("GET", "/processes", processes.processes, "Background processes."),
    PageRoute("GET", "/processes/{id}", processes.process, "One process, with what it says."),
    PageRoute("GET", "/processes/{id}/log", processes.process_log, "What it says, for the script."),
    PageRoute(
        "GET", "/processes/{id}/{act}", actions.confirm_process, "What stopping or pinning it would do."
    ),
    PageRoute("POST", "/processes/{id}/{act}", actions.act_on_process, "Do it."),
    PageRoute("GET", "/memories", memories.memories, "What is remembered, and flushes that were given up."),
    PageRoute("POST", "/memories/{id}", memories.edit, "Let a memory say something else."),
    PageRoute("GET", "/memories/{id}/forget", memories.confirm_forgetting, "What forgetting it would do."),
    PageRoute("POST", "/memories/{id}/forget", memories.forget, "Forget it."),
    PageRoute("POST", "/flushes/retry", memories.retry_all, "Try every flush again that was given up."),
    PageRoute("POST", "/flushes/{id}/retry", memories.retry, "Try this one again."),
    PageRoute("POST", "/flushes/{id}/skip", memories.skip, "Do not flush this session."),
    PageRoute("GET", "/notices", sessions.notices, "What people should be told."),
    PageRoute("POST", "/notices/{id}/delivered", sessions.delivered, "They have been told."),
    PageRoute("GET", "/nodes", sessions.nodes, "Who is alive; for admins."),
)


def dashboard(
    services: Services, routes: Iterable[Route], links: LinkBook | None = None
) -> list[StarletteRoute]:
    """The Starlette routes of the pages, which call these routes of the API."""
    shows = os.environ.get("HOLDFAST_DEMO") == "1" and services.settings.server.host in LOOPBACK
    desk = DashboardServices(
        services,
        {(route.method, route.path): route.handler for route in routes},
        Logins(services.holdfast),
        links or LinkBook(home()),
        demo=shows,
    )
    return mounted(desk, (*PAGES, *(demo.PAGES if shows else ())))
