"""Every page, as one list; the server puts it beside the API's routes."""

from __future__ import annotations

import os
from collections.abc import Iterable

from starlette.routing import Route as StarletteRoute

from ...settings import home
from ..api.call import Answer, Services
from ..api.doors import LOOPBACK
from ..api.routes import Route
from . import acts, conversation, demo, login, memories, overview, processes, sessions, static_files
from .ends import Page, mounted
from .logins import LinkBook, Logins
from .visits import Desk, Visit


async def live(visit: Visit) -> Answer:
    """What happens, as `/api/events` tells it: the script then reads the page anew."""
    headers = {"last-event-id": seen} if (seen := visit.call.headers.get("last-event-id")) else {}
    return await visit.answer(
        "GET", "/api/events", query={"after": visit.query("after") or "now"}, headers=headers
    )


PAGES: tuple[Page, ...] = (
    Page("GET", "/login", login.login, "The login; with `link`, by a one-time link.", open=True),
    Page("POST", "/login", login.log_in, "Log in by a key, or use a one-time link up.", open=True),
    Page("POST", "/logout", login.log_out, "Log out."),
    Page(
        "GET", "/static/{name}", static_files.static_file, "Style, script, picture.", open=True, limited=False
    ),
    Page("GET", "/live", live, "What happens, for the script: the stream of `/api/events`.", limited=False),
    Page("GET", "/", overview.overview, "What is alive now, how it goes, what waits for somebody."),
    Page("GET", "/sessions", sessions.sessions, "Sessions, by state, source, key, title."),
    Page("GET", "/search", sessions.search, "Messages that hold these words."),
    Page("GET", "/new", conversation.new, "A box for the first message of a conversation."),
    Page("POST", "/new", conversation.begin, "Begin a conversation, or go on in that of a key."),
    Page("GET", "/sessions/{id}", conversation.conversation, "One conversation."),
    Page("POST", "/sessions/{id}/say", conversation.say, "Say something in it."),
    Page("GET", "/sessions/{id}/{act}", acts.confirm_session, "What an act would do: end, cancel, resume, …"),
    Page("POST", "/sessions/{id}/{act}", acts.act_on_session, "Do it."),
    Page("POST", "/turns/{id}/retry", conversation.retry, "Take a turn up again."),
    Page(
        "GET", "/turns/{id}/reply", conversation.reply, "A reply as it grows, for the script.", limited=False
    ),
    Page("GET", "/processes", processes.processes, "Background processes."),
    Page("GET", "/processes/{id}", processes.process, "One process, with what it says."),
    Page("GET", "/processes/{id}/log", processes.process_log, "What it says, for the script."),
    Page("GET", "/processes/{id}/{act}", acts.confirm_process, "What stopping or pinning it would do."),
    Page("POST", "/processes/{id}/{act}", acts.act_on_process, "Do it."),
    Page("GET", "/memories", memories.memories, "What is remembered, and flushes that were given up."),
    Page("POST", "/memories/{id}", memories.edit, "Let a memory say something else."),
    Page("GET", "/memories/{id}/forget", memories.confirm_forgetting, "What forgetting it would do."),
    Page("POST", "/memories/{id}/forget", memories.forget, "Forget it."),
    Page("POST", "/flushes/retry", memories.retry_all, "Try every flush again that was given up."),
    Page("POST", "/flushes/{id}/retry", memories.retry, "Try this one again."),
    Page("POST", "/flushes/{id}/skip", memories.skip, "Do not flush this session."),
    Page("GET", "/notices", sessions.notices, "What people should be told."),
    Page("POST", "/notices/{id}/delivered", sessions.delivered, "They have been told."),
    Page("GET", "/nodes", sessions.nodes, "Who is alive; for admins."),
)


def dashboard(
    services: Services, routes: Iterable[Route], links: LinkBook | None = None
) -> list[StarletteRoute]:
    """The pages, over these routes of the API."""
    shows = os.environ.get("HOLDFAST_DEMO") == "1" and services.settings.server.host in LOOPBACK
    desk = Desk(
        services,
        {(route.method, route.path): route.handler for route in routes},
        Logins(services.store),
        links or LinkBook(home()),
        demo=shows,
    )
    return mounted(desk, (*PAGES, *(demo.PAGES if shows else ())))
