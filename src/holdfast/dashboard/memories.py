"""`/memories`: lists, adds, edits and deletes memories; lists flushes that wait, run or have failed."""

from __future__ import annotations

import asyncio
from typing import Any

from ..cli.format import count
from ..errors import HoldfastError
from ..server.http import note_trouble
from ..server.response_writer import HttpResponse
from .actions import CHOSEN, Act, chosen_fields
from .pages import go, html
from .request import PageRequest
from .sessions import EVERYBODY, first_words

PAGE = 50
MOST_COUNTED = 100

FORGET = Act(
    "forget",
    ("DELETE", "/api/memories/{id}"),
    "Forget this memory",
    "Its text is deleted, and the session it came from is not flushed again. This cannot be undone.",
    "Forget it",
    danger=True,
)


async def memories(visit: PageRequest) -> HttpResponse:
    if visit.owner_named == EVERYBODY:  # memories are read one owner at a time
        return go(visit.link("/memories", owner=None))
    asked = {"q": visit.query("q"), "key": visit.query("key"), "after": visit.query("after")}
    adds_to = visit.query("add")
    page, recent, dead, pending, running = await asyncio.gather(
        visit.ask("GET", "/api/memories", query={**asked, "limit": PAGE}),
        visit.ask("GET", "/api/sessions", query={"newest": "1", "limit": PAGE}),
        *(
            visit.ask("GET", "/api/flushes", query={"state": state, "limit": PAGE})
            for state in ("dead", "pending", "running")
        ),
    )
    return html(
        visit,
        "memories.html",
        page=page,
        names=await first_words(visit, [each["conversation_id"] for each in page["data"]]),
        recent=recent["data"],
        adds_to=await _named(visit, adds_to) if adds_to not in ("", "1") else None,
        adds=adds_to != "",
        asked=asked,
        dead=dead,
        waiting=[*running["data"], *pending["data"]],
        more_waiting=pending["has_more"] or running["has_more"],
        shows_queue=visit.query("show") == "queued",
    )


async def _named(visit: PageRequest, name: str) -> Any:
    """The session of this name, to which a memory is added."""
    return await visit.ask("GET", "/api/sessions/{id}", names={"id": name})


async def add(visit: PageRequest) -> HttpResponse:
    text = visit.form.get("text", "").replace("\r\n", "\n").strip()
    session = visit.form.get("session", "").strip()
    await visit.ask("POST", "/api/memories", body={"text": text, "session_id": session})
    return go(visit.link("/memories"))


async def counted(visit: PageRequest, state: str) -> dict[str, Any]:
    """The flushes in this state: their `number`, at most MOST_COUNTED, and whether there are `more`."""
    page = await visit.ask("GET", "/api/flushes", query={"state": state, "limit": MOST_COUNTED})
    return {"number": len(page["data"]), "more": page["has_more"]}


async def edit(visit: PageRequest) -> HttpResponse:
    text = visit.form.get("text", "").replace("\r\n", "\n")
    await visit.ask("PATCH", "/api/memories/{id}", names={"id": visit.path("id")}, body={"text": text})
    return go(visit.link("/memories"))


async def confirm_forgetting(visit: PageRequest) -> HttpResponse:
    return html(visit, "confirm.html", act=FORGET, about=visit.path("id"), back=visit.link("/memories"))


async def forget(visit: PageRequest) -> HttpResponse:
    await visit.ask(*FORGET.route, names={"id": visit.path("id")})
    return go(visit.link("/memories"))


async def forget_several(visit: PageRequest) -> HttpResponse:
    """Forget the memories that were chosen in the list: first a confirmation page, then, with `sure`, each of
    them. One that fails does not stop the others; the page says which and why."""
    fields = chosen_fields(visit, "no memory was selected")
    ids = [field.removeprefix(CHOSEN) for field in fields]
    sure, failed = visit.form.get("sure"), []
    if sure:
        for memory_id in ids:
            try:
                await visit.ask(*FORGET.route, names={"id": memory_id})
            except HoldfastError as error:
                note_trouble("/memories/forget", visit.call, error)
                failed.append((memory_id, error.public))
    return html(
        visit,
        "bulk.html",
        title=f"Forget {count(len(ids), 'memory')}",
        says="Their texts are deleted, and the sessions they came from are not flushed again. This cannot be "
        "undone.",
        button="Forget them",
        danger=True,
        sure=sure,
        fields=fields,
        chosen=[(fields[CHOSEN + each], each) for each in ids],
        failed=failed,
        done=len(ids) - len(failed),
        back=("/memories", "memories"),
    )


async def retry(visit: PageRequest) -> HttpResponse:
    await visit.ask("POST", "/api/flushes/{id}/retry", names={"id": visit.path("id")})
    return go(visit.link("/memories"))


async def retry_all(visit: PageRequest) -> HttpResponse:
    await visit.ask("POST", "/api/flushes/retry")
    return go(visit.link("/memories"))


async def skip(visit: PageRequest) -> HttpResponse:
    await visit.ask("POST", "/api/flushes/{id}/skip", names={"id": visit.path("id")})
    return go(visit.link("/memories"))
