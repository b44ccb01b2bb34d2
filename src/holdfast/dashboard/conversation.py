"""`/sessions/{id}`: one conversation: messages, live reply, reset decision, lineage, processes, message form.

The newest messages are shown; earlier ones are paged by sequence number. An interrupted reply is marked. If
its turn is the newest, it can be retried; after a retry the partial reply is collapsed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from ..app import Holdfast
from ..domain.ids import new_id
from ..domain.messages import Message, MessageStatus
from ..domain.pages import PAGE_BYTES
from ..domain.sessions import Session
from ..domain.turns import Turn, TurnStatus, said
from ..errors import BadInput
from ..server import objects
from ..server.admin.turns import take_up
from ..server.http import HttpResponse, JsonResponse, RequestContext, Services
from ..server.owners import note_reading, owner_of
from ..server.streams import HEADERS as STREAM_HEADERS
from ..server.streams import Listener, TurnStream, framed
from .actions import acts_for
from .charts import picture_of, summary_in
from .pages import go, html, own_page
from .request import PageRequest

CHAT = ("POST", "/v1/chat/completions")
SHOWN = 60
MOST_TURNS = 100
MOST_HAPPENED = 40
LOOK_SECONDS = 0.5
PAUSE_SECONDS = 0.04

_UNDONE = (TurnStatus.INTERRUPTED, TurnStatus.FAILED)


# --- messages and timeline -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolCallView:
    name: str
    arguments: Any
    result: str | None


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message as the page shows it."""

    message: Message
    body: Mapping[str, Any]
    calls: tuple[ToolCallView, ...] = ()
    opens: Session | None = None
    """The session that starts with this message, if another session precedes it."""
    summary: str = ""
    """The summary that replaces the earlier messages in that session, if a compaction opened it."""
    replaced: bool = False
    """True: a partial reply whose turn was resumed later."""
    turn: Turn | None = None
    """The turn that ends with this message, if it failed, was interrupted or cancelled."""
    retry: bool = False
    """True: that turn can be retried."""


def shown(messages: Sequence[Message], turns: Sequence[Turn], line: Sequence[Session]) -> list[MessageView]:
    """The views of these messages, oldest first. Results of tools are shown with their calls."""
    by_turn = {turn.id: turn for turn in turns}
    newest = turns[0].id if turns else None
    by_id = {session.id: session for session in line}
    bodies = [message.content() for message in messages]
    results = {
        body.get("tool_call_id"): objects.message(message)["content"]
        for message, body in zip(messages, bodies, strict=True)
        if message.role == "tool"
    }
    told: set[str] = set()
    found: list[MessageView] = []
    last_of = {message.turn_id: number for number, message in enumerate(messages)}
    session = messages[0].session_id if messages else ""
    for number, (message, body) in enumerate(zip(messages, bodies, strict=True)):
        opens = by_id.get(message.session_id) if message.session_id != session else None
        session = message.session_id
        if message.role == "tool" and body.get("tool_call_id") in told:
            continue
        calls = tuple(
            ToolCallView(
                str((call.get("function") or {}).get("name", "tool")),
                (call.get("function") or {}).get("arguments", ""),
                results.get(call.get("id")),
            )
            for call in body.get("tool_calls") or ()
        )
        told.update(call.get("id") for call in body.get("tool_calls") or ())
        turn = by_turn.get(message.turn_id or "")
        cut = message.status is MessageStatus.INTERRUPTED
        ends = turn is not None and last_of[message.turn_id] == number
        undone = turn is not None and turn.status in (*_UNDONE, TurnStatus.CANCELLED)
        found.append(
            MessageView(
                message,
                body,
                calls,
                opens,
                summary_in(opens) if opens is not None else "",
                replaced=cut and turn is not None and turn.status not in (*_UNDONE, TurnStatus.CANCELLED),
                turn=turn if ends and undone else None,
                retry=ends and turn is not None and turn.id == newest and turn.status in _UNDONE,
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class Happened:
    at: datetime
    what: str
    data: Mapping[str, Any]


def timeline(history: Sequence[Mapping[str, Any]], turns: Sequence[Turn]) -> list[Happened]:
    """A session's events and turns, newest first."""
    found = [Happened(datetime.fromisoformat(each["at"]), each["type"], each["data"]) for each in history]
    for turn in turns:
        found.append(Happened(turn.started_at, "turn.started", {"turn": turn.id}))
        if turn.ended_at is not None:
            found.append(Happened(turn.ended_at, f"turn.{turn.status.value}", {"turn": turn.id}))
    return sorted(found, key=lambda each: each.at, reverse=True)[:MOST_HAPPENED]


async def conversation(visit: PageRequest) -> HttpResponse:
    hf, name = visit.hf, {"id": visit.path("id")}
    inner = visit.inner("GET", names=name)
    owner = owner_of(inner)
    session = await visit.ask("GET", "/api/sessions/{id}", names=name)
    found = await hf.find_session(owner, session["id"])
    conversation_id = found.conversation_id
    before = visit.call.query_number("before", 0) or None
    page, turns, line, forks, why, processes = await asyncio.gather(
        hf.messages(
            owner,
            conversation_id,
            last=before - 1 if before else None,
            limit=SHOWN,
            newest_first=True,
            most_bytes=PAGE_BYTES,
        ),
        hf.turns(owner, conversation_id, limit=MOST_TURNS),
        hf.line(owner, conversation_id),
        hf.forks(owner, conversation_id),
        visit.ask("GET", "/api/sessions/{id}/why", names={"id": found.id}),
        visit.ask("GET", "/api/processes", query={"session": found.id, "limit": 20}),
    )
    await note_reading(inner, owner, found)
    messages = list(reversed(page.items))
    tip = line[-1]
    return html(
        visit,
        "conversation.html",
        session=session,
        tip=tip,
        messages=shown(messages, turns, line),
        earlier=messages[0].seq if page.has_more and messages else None,
        later=before is not None,
        running=tip.running_turn,
        draft=await draft_of(visit.services, tip.running_turn) if tip.running_turn else "",
        doing=_doing(visit.services, tip.running_turn),
        why=why,
        processes=processes["data"],
        picture=picture_of(line, forks, await hf.states_of([*line, *forks]), found.id),
        happened=timeline(why["history"], [turn for turn in turns if turn.session_id == found.id]),
        acts=acts_for(visit, session),
        speaks=owner == visit.caller.owner,
        once=new_id("req"),
    )


def _doing(services: Services, turn_id: str | None) -> str:
    running = services.runner.running.get(turn_id or "")
    return running.doing if running is not None else "model"


# --- sending messages ----------------------------------------------------------------------------------


async def say(visit: PageRequest) -> HttpResponse:
    """Send a message in this conversation; redirects to the page, which streams the reply."""
    session_id = await _said(visit, {"x-holdfast-session-id": visit.path("id")})
    return go(visit.link(f"/sessions/{session_id}") + "#end")


async def new(visit: PageRequest) -> HttpResponse:
    return html(visit, "new.html", once=new_id("req"))


async def begin(visit: PageRequest) -> HttpResponse:
    """Send the first message of a new conversation, or the next one of that with this session key."""
    key = visit.form.get("key", "").strip()
    named = {"x-holdfast-session-key": key} if key else {"x-holdfast-source": "dashboard"}
    return go(f"/sessions/{await _said(visit, named)}#end")


async def _said(visit: PageRequest, named: Mapping[str, str]) -> str:
    """Start a turn with the form's message; returns its session id."""
    text = visit.form.get("text", "").replace("\r\n", "\n").strip()
    if not text:
        raise BadInput("there is nothing to say: write a message first")
    return await speak(visit, named, text, visit.form.get("once", ""))


async def speak(visit: PageRequest, named: Mapping[str, str], text: str, once: str) -> str:
    """Start a turn; returns its session id. Idempotent: `once` is its Idempotency-Key."""
    answer = await visit.answer(
        *CHAT,
        body={"messages": [{"role": "user", "content": text}], "stream": True},
        headers={**named, **({"idempotency-key": once} if once else {})},
    )
    if isinstance(answer, TurnStream):  # the turn runs without a subscriber
        return answer.running.session.id
    assert isinstance(answer, JsonResponse)  # sent before: its stored answer
    return {name.lower(): value for name, value in answer.headers.items()}["x-holdfast-session-id"]


async def retry(visit: PageRequest) -> HttpResponse:
    """Retry a turn; redirects to the page, which streams the reply."""
    inner = visit.inner("POST", names={"id": visit.path("id")})
    turn = await visit.hf.turn(owner_of(inner), visit.path("id"))
    await take_up(inner)
    back = visit.form.get("back")
    return go(own_page(back) if back else visit.link(f"/sessions/{turn.session_id}") + "#end")


# --- live reply ----------------------------------------------------------------------------------------


async def draft_of(services: Services, turn_id: str) -> str:
    """The reply of a running turn so far: from memory if it runs in this process, else from its drafts."""
    running = services.runner.running.get(turn_id)
    return running.said() if running is not None else await kept_of(services.holdfast, turn_id)


async def kept_of(hf: Holdfast, turn_id: str) -> str:
    """The part of the running reply that is on disk."""
    drafts = await hf.drafts(turn_id)
    behind = max((draft.after_seq for draft in drafts), default=0)
    return said(draft for draft in drafts if draft.after_seq == behind).get("content", "")


async def reply(visit: PageRequest) -> HttpResponse:
    inner = visit.inner("GET", names={"id": visit.path("id")})
    owner = owner_of(inner)
    turn = await visit.hf.turn(owner, visit.path("id"))
    await note_reading(inner, owner, await visit.hf.find_session(owner, turn.session_id))
    return ReplyStream(owner, turn.id)


@dataclass(slots=True)
class ReplyStream:
    """Streams a running reply as SSE. `{"at": 12, "text": "…"}` appends after the first 12 characters; `at` 0
    restarts the text. `{"end": "completed"}` is the last event."""

    owner: str
    turn_id: str

    async def send(self, call: RequestContext) -> None:
        services, hf = call.services, call.hf
        async with Listener(call) as listener:
            await call.start(200, STREAM_HEADERS)
            told = ""
            while not listener.gone and not services.draining.is_set():
                running = services.runner.running.get(self.turn_id)
                version = hf.version()
                now = await draft_of(services, self.turn_id)
                if now != told:
                    at = len(told) if now.startswith(told) else 0
                    await listener.say(framed(msgspec.json.encode({"at": at, "text": now[at:]})))
                    told = now
                if running is None:
                    turn = await hf.turn(self.owner, self.turn_id)
                    if turn.status is not TurnStatus.RUNNING:
                        await listener.say(framed(msgspec.json.encode({"end": turn.status.value})))
                        break
                    await hf.changed(version, LOOK_SECONDS)
                else:
                    await running.heard(len(running.events), LOOK_SECONDS)
                if listener.is_due and not await listener.still_there():
                    break
                await asyncio.sleep(PAUSE_SECONDS)
            await call.send({"type": "http.response.body", "body": b""})
