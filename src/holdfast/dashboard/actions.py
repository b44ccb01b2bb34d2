"""Manual actions on a session or a process, each with a confirmation page that explains its effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..domain.sessions import EndReason
from ..errors import BadInput, NotFound
from ..server.http import HttpResponse
from .pages import go, html
from .request import PageRequest


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    label: str
    choices: tuple[tuple[str, str], ...] = ()
    """Value and meaning of each choice; empty: free text."""
    kind: str = "text"
    optional: bool = True
    value: str = ""


@dataclass(frozen=True, slots=True)
class Act:
    name: str
    route: tuple[str, str]
    title: str
    says: str
    """The effect, as shown on the confirmation page."""
    button: str
    fields: tuple[Field, ...] = ()
    danger: bool = False


_REASONS = (
    (EndReason.CLOSED.value, "closed: the next message goes on from here"),
    (EndReason.COMPLETED.value, "completed: the work is done; the next message goes on from here"),
    (EndReason.NEW.value, "new: the next message begins afresh"),
)

SESSION_ACTS = {
    act.name: act
    for act in (
        Act(
            "end",
            ("POST", "/api/sessions/{id}/end"),
            "End this session",
            "It is ended now and never reopened. Everything that was said stays. If a reply is under way, "
            "this waits for it.",
            "End it",
            (Field("reason", "As", _REASONS),),
        ),
        Act(
            "cancel",
            ("POST", "/api/sessions/{id}/cancel"),
            "Stop the reply",
            "The turn that runs is cancelled. What it has said so far is kept and marked as cut short.",
            "Stop it",
        ),
        Act(
            "resume",
            ("POST", "/api/sessions/{id}/resume"),
            "Go on from this session",
            "A new session opens that sees what this one saw. If a newer one is open, it ends as “new”.",
            "Go on from here",
        ),
        Act(
            "fork",
            ("POST", "/api/sessions/{id}/fork"),
            "Fork into a new conversation",
            "A new conversation begins with a copy of this one's context. This one stays as it is.",
            "Fork",
            (
                Field("key", "Key of the new conversation (empty: none)"),
                Field("up_to", "Up to message number (empty: all)", kind="number"),
            ),
        ),
        Act(
            "compact",
            ("POST", "/api/sessions/{id}/compact"),
            "Compact this conversation",
            "It goes on in a new session, in which a summary stands for the older messages. The messages "
            "themselves stay readable. The model writes the summary, which takes a while.",
            "Compact",
        ),
        Act(
            "delete",
            ("DELETE", "/api/sessions/{id}"),
            "Delete the whole conversation",
            "Whatever runs is cancelled, and the conversation is removed with all of its sessions and "
            "messages. This cannot be undone.",
            "Delete it for good",
            danger=True,
        ),
    )
}

PROCESS_ACTS = {
    act.name: act
    for act in (
        Act(
            "stop",
            ("POST", "/api/processes/{id}/stop"),
            "Stop this process",
            "It and everything it has started get SIGTERM, and SIGKILL if that does not help.",
            "Stop it",
            danger=True,
        ),
        Act(
            "pin",
            ("POST", "/api/processes/{id}/pin"),
            "Pin this process",
            "For so long it may hold its session's reset up, whatever it does. 0 takes the pin away.",
            "Pin",
            (Field("hours", "Hours", kind="number", optional=False, value="8"),),
        ),
    )
}


async def confirm_session(visit: PageRequest) -> HttpResponse:
    act = _act(visit, SESSION_ACTS)
    about = await visit.ask("GET", "/api/sessions/{id}", names={"id": visit.path("id")})
    name = about["title"] or about["key"] or about["id"]
    return html(visit, "confirm.html", act=act, about=name, back=visit.link(f"/sessions/{about['id']}"))


async def act_on_session(visit: PageRequest) -> HttpResponse:
    act, name = _act(visit, SESSION_ACTS), visit.path("id")
    done = await visit.ask(*act.route, names={"id": name}, body=_fields(visit, act))
    if act.name == "delete":
        return go(visit.link("/sessions"))
    opened = done.get("session_id") or done.get("id") if isinstance(done, Mapping) else None
    return go(visit.link(f"/sessions/{opened if str(opened).startswith('sess_') else name}"))


async def confirm_process(visit: PageRequest) -> HttpResponse:
    act = _act(visit, PROCESS_ACTS)
    about = await visit.ask("GET", "/api/processes/{id}", names={"id": visit.path("id")})
    back = visit.link(f"/processes/{about['id']}")
    return html(visit, "confirm.html", act=act, about=about["command"], back=back)


async def act_on_process(visit: PageRequest) -> HttpResponse:
    act, name = _act(visit, PROCESS_ACTS), visit.path("id")
    await visit.ask(*act.route, names={"id": name}, body=_fields(visit, act))
    return go(visit.link(f"/processes/{name}"))


def acts_for(visit: PageRequest, session: Mapping[str, Any]) -> list[Act]:
    """The actions that are possible in the session's present state and have a route."""
    ended, newest = session["ended_at"] is not None, session["id"] == session["tip_id"]
    fits = {
        "end": not ended,
        "cancel": session["state"] == "active",
        "resume": ended or not newest,
        "fork": session["message_count"] > 0,
        "compact": newest and not ended,
        "delete": True,
    }
    return [act for name, act in SESSION_ACTS.items() if fits[name] and visit.has(*act.route)]


def _act(visit: PageRequest, acts: Mapping[str, Act]) -> Act:
    act = acts.get(visit.path("act"))
    if act is None or not visit.has(*act.route):
        raise NotFound("page", visit.call.request.url.path)
    return act


def _fields(visit: PageRequest, act: Act) -> dict[str, Any]:
    """The form's fields as the body of the API request."""
    found: dict[str, Any] = {}
    for field in act.fields:
        value = visit.form.get(field.name, "").strip()
        if not value:
            continue
        if field.kind == "number":
            try:
                number = float(value)
            except ValueError:
                raise BadInput(f"{field.label} must be a number, not {value!r:.40}") from None
            found[field.name] = int(number) if number.is_integer() else number
        else:
            found[field.name] = value
    return found
