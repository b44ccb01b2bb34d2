"""The list of all pages; the server mounts it together with the API's routes.

To add a page: a handler in a file of this package, a template, a line here and in docs/reference/pages.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp

from ..server.gate import LOOPBACK
from ..server.http import Services
from ..server.response_writer import HttpResponse
from ..server.routes import Route
from ..settings import home
from . import (
    actions,
    connectors,
    conversation,
    demo,
    keys,
    lineage,
    login,
    logs,
    memories,
    overview,
    pages,
    processes,
    revisions,
    sessions,
    timeline,
    usage,
)
from .browser_sessions import LinkBook, Logins
from .endpoint import PageRoute, mounted, unknown_page
from .request import DashboardServices, PageRequest


async def live(visit: PageRequest) -> HttpResponse:
    """The stream of `/api/events`, after which the script fetches the page again."""
    headers = {"last-event-id": seen} if (seen := visit.call.headers.get("last-event-id")) else {}
    return await visit.answer(
        "GET", "/api/events", query={"after": visit.query("after") or "now"}, headers=headers
    )


PAGES: tuple[PageRoute, ...] = (
    PageRoute("GET", "/login", login.login, "The login form; with `link`, login by that link.", open=True),
    PageRoute("POST", "/login", login.log_in, "Log in with an API key or a one-time link.", open=True),
    PageRoute("POST", "/logout", login.log_out, "Log out."),
    PageRoute(
        "GET", "/static/{name}", pages.static_file, "Style, script, picture.", open=True, limited=False
    ),
    PageRoute(
        "GET", "/live", live, "Live updates for the script: the stream of `/api/events`.", limited=False
    ),
    PageRoute("GET", "/", overview.overview, "Overview: active sessions, figures, what needs attention."),
    PageRoute("GET", "/sessions", sessions.sessions, "Sessions, by state, source, key, title."),
    PageRoute("POST", "/bulk/export", revisions.export_several, "The selected conversations as JSON."),
    PageRoute(
        "POST",
        "/bulk/{act}",
        actions.act_on_several,
        "Confirm, then end or delete the selected conversations.",
    ),
    PageRoute("GET", "/search", sessions.search, "Messages that contain these words."),
    PageRoute("GET", "/new", conversation.new, "A form for the first message of a conversation."),
    PageRoute("POST", "/new", conversation.begin, "Start a conversation, or continue that of a session key."),
    PageRoute("GET", "/sessions/{id}", conversation.conversation, "One conversation."),
    PageRoute("POST", "/sessions/{id}/say", conversation.say, "Send a message in it."),
    PageRoute("POST", "/sessions/{id}/again", revisions.answer_again, "Answer the last message again."),
    PageRoute("GET", "/sessions/{id}/messages/{seq}/edit", revisions.edit, "A form to edit a message."),
    PageRoute(
        "POST",
        "/sessions/{id}/messages/{seq}/edit",
        revisions.resend,
        "Rewind to before it and send the new one.",
    ),
    PageRoute("GET", "/sessions/{id}/export/{kind}", revisions.export, "A file: `json` or `md`."),
    PageRoute("GET", "/sessions/{id}/summary", conversation.summary, "A summary and what it replaced."),
    PageRoute("GET", "/sessions/{id}/lineage", lineage.lineage, "All of its sessions, and its forks."),
    PageRoute("GET", "/sessions/{id}/timeline", timeline.timeline_page, "The steps of each turn."),
    PageRoute(
        "GET",
        "/sessions/{id}/{act}",
        actions.confirm_session,
        "Confirmation page of an action: end, cancel, resume, …",
    ),
    PageRoute("POST", "/sessions/{id}/{act}", actions.act_on_session, "Do it."),
    PageRoute(
        "GET", "/attachments/{id}", conversation.attachment, "A file that came with a message, to download."
    ),
    PageRoute("POST", "/turns/{id}/retry", conversation.retry, "Retry a turn."),
    PageRoute("POST", "/turns/{id}/withdraw", revisions.withdraw, "Withdraw a queued turn."),
    PageRoute(
        "GET",
        "/turns/{id}/reply",
        conversation.reply,
        "A running reply as a stream, for the script.",
        limited=False,
    ),
    PageRoute("GET", "/processes", processes.processes, "Background processes."),
    PageRoute("GET", "/processes/{id}", processes.process, "One process, with its output."),
    PageRoute("GET", "/processes/{id}/log", processes.process_log, "Its output, polled by the page."),
    PageRoute("GET", "/processes/{id}/{act}", actions.confirm_process, "Confirmation page: stop or pin it."),
    PageRoute("POST", "/processes/{id}/{act}", actions.act_on_process, "Do it."),
    PageRoute("GET", "/memories", memories.memories, "Memories, and dead letters."),
    PageRoute("POST", "/memories", memories.add, "Add a memory to a conversation."),
    PageRoute("POST", "/memories/forget", memories.forget_several, "Forget the chosen memories."),
    PageRoute("POST", "/memories/{id}", memories.edit, "Edit a memory."),
    PageRoute("GET", "/memories/{id}/forget", memories.confirm_forgetting, "Confirmation page: forget it."),
    PageRoute("POST", "/memories/{id}/forget", memories.forget, "Forget it."),
    PageRoute("POST", "/flushes/retry", memories.retry_all, "Retry every dead letter."),
    PageRoute("POST", "/flushes/{id}/retry", memories.retry, "Retry this flush."),
    PageRoute("POST", "/flushes/{id}/skip", memories.skip, "Do not flush this session."),
    PageRoute("GET", "/notices", sessions.notices, "Notices for people."),
    PageRoute("POST", "/notices/delivered", sessions.all_delivered, "Mark all delivered."),
    PageRoute("POST", "/notices/{id}/delivered", sessions.delivered, "Mark it delivered."),
    PageRoute("GET", "/keys", keys.keys, "API keys; for admins."),
    PageRoute("POST", "/keys", keys.create, "Create an API key and show it, once."),
    PageRoute("GET", "/keys/{id}/revoke", keys.confirm_revoking, "Confirmation page: revoke it."),
    PageRoute("POST", "/keys/{id}/revoke", keys.revoke, "Revoke it."),
    PageRoute("GET", "/connectors", connectors.connectors, "Connectors, pairings and deliveries."),
    PageRoute("POST", "/pairings", connectors.approve, "Approve a pairing code."),
    PageRoute("POST", "/pairings/{id}/revoke", connectors.revoke, "Refuse a person from now on."),
    PageRoute("POST", "/deliveries/{id}/retry", connectors.retry, "Send a dead letter again."),
    PageRoute("GET", "/usage", usage.usage, "Turns, tokens, latency and cost, by model and owner."),
    PageRoute("GET", "/nodes", sessions.nodes, "Nodes and their liveness; for admins."),
    PageRoute("GET", "/logs", logs.logs, "The newest log lines of this server; for admins."),
    PageRoute("GET", "/settings", sessions.settings, "Settings and where each comes from; for admins."),
)


class Dashboard(NamedTuple):
    routes: list[StarletteRoute]
    unknown: ASGIApp
    """The page for an address that no route has."""


def dashboard(services: Services, routes: Iterable[Route], links: LinkBook | None = None) -> Dashboard:
    """The Starlette routes of the pages, which call these routes of the API."""
    shows = os.environ.get("HOLDFAST_DEMO") == "1" and services.settings.server.host in LOOPBACK
    desk = DashboardServices(
        services,
        {(route.method, route.path): route.handler for route in routes},
        Logins(services.holdfast),
        links or LinkBook(home()),
        demo=shows,
    )
    pages = (*PAGES, *(demo.PAGES if shows else ()))
    return Dashboard(mounted(desk, pages), unknown_page(desk))
