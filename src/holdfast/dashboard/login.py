"""Login with a one-time link or an API key, and logout.

A GET of a link changes nothing, so that link previews and scanners do not use it up. The page that it opens
submits the link with a POST, with or without a click.
"""

from __future__ import annotations

from ..errors import BadKey
from ..server.response_writer import HttpResponse
from .browser_sessions import LOGIN_FOR, Login
from .pages import go, html, own_page
from .request import PageRequest, cookie_for


async def login(visit: PageRequest) -> HttpResponse:
    if visit.call.key is not None and not visit.query("link"):
        return go(own_page(visit.query("next")))
    return html(visit, "login.html", next=visit.query("next"), token=visit.query("link"), wrong="")


async def log_in(visit: PageRequest) -> HttpResponse:
    desk, then = visit.desk, visit.form.get("next", "")
    made: Login | None
    if visit.form.get("link"):
        linked = desk.links.use_link(visit.form["link"])
        made = await desk.logins.log_in(linked) if linked is not None else None
        wrong = "This link was used before or has expired. `holdfast serve` prints a new one at each start."
    else:
        try:
            key = await visit.hf.authenticator.authenticate(visit.form.get("key", "").strip())
            made = await desk.logins.log_in(visit.hf.authenticator.name_of(key))
        except BadKey:
            made = None
        wrong = "Invalid API key. `holdfast env` prints yours."
    if made is None:
        return html(visit, "login.html", 403, next=then, token="", wrong=wrong)
    return go(own_page(then), **{"set-cookie": cookie_for(visit.call.headers, made.token, LOGIN_FOR)})


async def log_out(visit: PageRequest) -> HttpResponse:
    if visit.login is not None:
        await visit.desk.logins.log_out(visit.login)
    return go("/login", **{"set-cookie": cookie_for(visit.call.headers, "", 0)})
