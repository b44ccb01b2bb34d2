"""Manual actions on sessions and processes, each with a confirmation page that explains its effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..cli.format import count
from ..domain.sessions import EndReason
from ..errors import BadInput, HoldfastError, NotFound
from ..server.http import note_trouble
from ..server.response_writer import HttpResponse
from .pages import go, html, short
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
    (EndReason.CLOSED.value, "closed: the next message continues from here"),
    (EndReason.COMPLETED.value, "completed: the work is done; the next message continues from here"),
    (EndReason.NEW.value, "new: the next message starts a new session"),
)

SESSION_ACTS = {
    act.name: act
    for act in (
        Act(
            "title",
            ("POST", "/api/sessions/{id}/title"),
            "Rename this conversation",
            "The title is shown in lists, here and in the terminal. The key stays.",
            "Rename",
            (Field("title", "Title", optional=False),),
        ),
        Act(
            "end",
            ("POST", "/api/sessions/{id}/end"),
            "End this session",
            "The session is ended and never reopened. All messages are kept. A running reply is waited for.",
            "End it",
            (Field("reason", "As", _REASONS),),
        ),
        Act(
            "cancel",
            ("POST", "/api/sessions/{id}/cancel"),
            "Stop the reply",
            "The running turn is cancelled. Its partial reply is kept and marked as interrupted.",
            "Stop it",
        ),
        Act(
            "resume",
            ("POST", "/api/sessions/{id}/resume"),
            "Continue from this session",
            "A new session opens with the context of this one. If a newer one is open, it ends as “new”.",
            "Continue from here",
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
            "The conversation continues in a new session, where a summary replaces the older messages. The "
            "messages stay readable. The model writes the summary, which takes a while.",
            "Compact",
        ),
        Act(
            "delete",
            ("DELETE", "/api/sessions/{id}"),
            "Delete the whole conversation",
            "The running turn is cancelled, and the conversation is deleted with all of its sessions and "
            "messages. This cannot be undone.",
            "Delete permanently",
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
            "Prevents resets of its session while it runs, for this long. 0 removes the pin.",
            "Pin",
            (Field("hours", "Hours", kind="number", optional=False, value="8"),),
        ),
    )
}


async def confirm_session(visit: PageRequest) -> HttpResponse:
    act = _act(visit, SESSION_ACTS)
    about = await visit.ask("GET", "/api/sessions/{id}", names={"id": visit.path("id")})
    name = about["title"] or about["key"] or about["id"]
    given = {"title": about["title"] or ""}
    back = visit.link(f"/sessions/{about['id']}")
    return html(visit, "confirm.html", act=act, about=name, back=back, given=given)


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
    return html(visit, "confirm.html", act=act, about=about["command"], back=back, given={})


async def act_on_process(visit: PageRequest) -> HttpResponse:
    act, name = _act(visit, PROCESS_ACTS), visit.path("id")
    await visit.ask(*act.route, names={"id": name}, body=_fields(visit, act))
    return go(visit.link(f"/processes/{name}"))


# --- several conversations at once ---------------------------------------------------------------------


async def act_on_several(visit: PageRequest) -> HttpResponse:
    """End or delete the conversations that were chosen in the list: first a confirmation page, then, with
    `sure`, each of them. One that fails does not stop the others; the page says which and why."""
    act = SESSION_ACTS.get(visit.path("act"))
    if act is None or act.name not in ("end", "delete"):
        raise NotFound("page", visit.call.request.url.path)
    fields = chosen_fields(visit)
    sure = visit.form.get("sure")
    chosen, failed, done = [], [], 0
    for field, owner in fields.items():
        names, query = {"id": field.removeprefix(CHOSEN)}, {"owner": owner or visit.owner_named}
        name = names["id"]
        try:
            about = await visit.ask("GET", "/api/sessions/{id}", names=names, query=query)
            name = about["title"] or about["key"] or short(about["id"])
            if sure and act.name == "end" and about["ended_at"] is not None:
                done += 1
            elif sure:
                await visit.ask(*act.route, names=names, query=query)
                done += 1
        except HoldfastError as error:
            note_trouble("/bulk/{act}", visit.call, error)
            failed.append((name, error.public))
        chosen.append((name, names["id"]))
    return html(
        visit,
        "bulk.html",
        title=f"{'End' if act.name == 'end' else 'Delete'} {count(len(fields), 'conversation')}",
        says=SEVERAL[act.name],
        button=act.button.replace("it", "them"),
        danger=act.danger,
        sure=sure,
        fields=fields,
        chosen=chosen,
        failed=failed,
        done=done,
        back=("/sessions", "sessions"),
    )


CHOSEN = "id-"
SEVERAL = {
    "end": "Their sessions are ended and never reopened; the next message continues from there. All messages "
    "are kept. A running reply is waited for.",
    "delete": "Their running turns are cancelled, and they are deleted with all of their sessions and "
    "messages. This cannot be undone.",
}


def chosen_fields(visit: PageRequest, none: str = "no conversation was selected") -> dict[str, str]:
    """The form's fields for the chosen rows, with their values: for a session the owner it belongs to, if the
    list shows several. Raises BadInput if none was chosen."""
    found = {name: value for name, value in visit.form.items() if name.startswith(CHOSEN)}
    if not found:
        raise BadInput(none)
    return found


def acts_for(visit: PageRequest, session: Mapping[str, Any]) -> list[Act]:
    """The actions that are possible in the session's present state and have a route."""
    ended, newest = session["ended_at"] is not None, session["id"] == session["tip_id"]
    fits = {
        "title": True,
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
