"""`/sessions/{id}`: one conversation: messages, live reply, reset decision, lineage, processes, message form.

The newest messages are shown; earlier ones are paged by sequence number. An interrupted reply is marked. If
its turn is the newest, it can be retried; after a retry the partial reply is collapsed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ..app import Holdfast
from ..domain.drafts import text_so_far
from ..domain.ids import new_id
from ..domain.messages import Message, MessageStatus, NewMessage, text_of
from ..domain.pages import PAGE_BYTES
from ..domain.queue import WhenBusy
from ..domain.sessions import Edge, Session
from ..domain.turns import Turn, TurnStatus
from ..domain.views import Summary
from ..errors import BadInput, NotFound
from ..server import objects
from ..server.admin.turns import take_up
from ..server.http import RequestContext, Services
from ..server.owners import note_reading, owner_of
from ..server.repeated import QueuedStream
from ..server.response_writer import HttpResponse, JsonResponse
from ..server.sse import HEADERS as STREAM_HEADERS
from ..server.sse import Listener, framed
from ..server.streams import TurnStream
from .actions import acts_for
from .charts import summary_in, waterfall_of
from .lineage import drawn
from .pages import HEADERS, go, html, own_page
from .request import PageRequest
from .timeline import queued_in, timeline

CHAT = ("POST", "/v1/chat/completions")
SHOWN = 60
MOST_TURNS = 100
MOST_REPLACED = 200
MOST_FILES = 100
LOOK_SECONDS = 0.5
PAUSE_SECONDS = 0.04
HEALTH_SECONDS = 1.0
PICTURE = "picture-"
"""Form fields that begin so are pictures, as data: URLs."""

_UNDONE = (TurnStatus.INTERRUPTED, TurnStatus.FAILED)


# --- messages ------------------------------------------------------------------------------------------


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
    """True: a partial reply whose turn was resumed later, with or without success."""
    turn: Turn | None = None
    """The turn that ends with this message, if it failed, was interrupted or cancelled."""
    retry: bool = False
    """True: that turn can be retried."""
    answered: Turn | None = None
    """The turn that ends with this message, if it was answered."""
    left: bool = False
    """True: it was rewound or answered again, and is not in the context."""


def can_answer_again(turns: Sequence[Turn], tip: Session) -> bool:
    """True: the newest turn is over and its reply is in the context, so another can take its place."""
    newest = next((turn for turn in turns if turn.first_seq), None)
    if newest is None or tip.running_turn is not None:
        return False
    reset = tip.edge is Edge.RESET and newest.first_seq < tip.first_seq
    return newest.status in (TurnStatus.COMPLETED, TurnStatus.CANCELLED) and not reset


def shown(
    messages: Sequence[Message],
    turns: Sequence[Turn],
    line: Sequence[Session],
    left: Collection[int] = (),
) -> list[MessageView]:
    """The views of these messages, oldest first. Results of tools are shown with their calls. `left`: the
    numbers of those that are not in the context."""
    by_turn = {turn.id: turn for turn in turns}
    newest = next((turn.id for turn in turns if turn.first_seq), None)  # queued ones have not begun
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
    last_cut = {
        message.turn_id: number
        for number, message in enumerate(messages)
        if message.status is MessageStatus.INTERRUPTED
    }
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
        undone = turn is not None and turn.shown_status in (*_UNDONE, TurnStatus.CANCELLED)
        found.append(
            MessageView(
                message,
                body,
                calls,
                opens,
                summary_in(opens) if opens is not None else "",
                replaced=cut
                and turn is not None
                and (turn.status not in (*_UNDONE, TurnStatus.CANCELLED) or last_cut[turn.id] != number),
                turn=turn if ends and undone else None,
                retry=ends and turn is not None and turn.id == newest and turn.shown_status in _UNDONE,
                left=message.seq in left,
                answered=turn if ends and turn is not None and turn.status is TurnStatus.COMPLETED else None,
            )
        )
    return found


async def conversation(visit: PageRequest) -> HttpResponse:
    hf, name = visit.hf, {"id": visit.path("id")}
    inner = visit.inner("GET", names=name)
    owner = owner_of(inner)
    session = await visit.ask("GET", "/api/sessions/{id}", names=name)
    found = await hf.find_session(owner, session["id"])
    conversation_id = found.conversation_id
    before = visit.call.query_number("before", 0) or None
    page, turns, line, forks, why, processes, queue, files = await asyncio.gather(
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
        hf.queue(owner, conversation_id),
        hf.attachments(owner, conversation_id, limit=MOST_FILES),
    )
    await note_reading(inner, owner, found)
    messages = list(reversed(page.items))
    left = await _left(visit, owner, messages)
    tip = line[-1]
    models = await model_names(visit)
    return await asyncio.to_thread(  # rendering Markdown takes a millisecond for a few hundred words
        html,
        visit,
        "conversation.html",
        session=session,
        tip=tip,
        messages=shown(messages, turns, line, left),
        again=can_answer_again(turns, tip),
        answered_by=session["model"] or next((turn.model for turn in turns if turn.model), None),
        earlier=messages[0].seq if page.has_more and messages else None,
        later=before is not None,
        running=tip.running_turn,
        draft=await draft_of(visit.services, tip.running_turn) if tip.running_turn else "",
        doing="waiting" if tip.running_node is None else _doing(visit.services, tip.running_turn),
        why=why,
        processes=processes["data"],
        files=files,
        queue=[(each, [text_in(message) for message in each.messages]) for each in queue],
        picture=await drawn(visit, line, forks, found.id),
        waterfall=waterfall_of(
            [turn for turn in turns if turn.session_id == found.id],
            messages,
            visit.now,
            queued=queued_in(why["history"]),
        ),
        happened=timeline(why["history"]),
        models=models,
        acts=acts_for(visit, session),
        speaks=owner == visit.caller.owner,
        once=new_id("req"),
    )


async def _left(visit: PageRequest, owner: str | None, messages: Sequence[Message]) -> set[int]:
    """The numbers of those messages that were rewound or answered again."""
    if not messages:
        return set()
    first, last = messages[0], messages[-1]
    page = await visit.hf.messages(
        owner, first.conversation_id, first=first.seq, last=last.seq, limit=SHOWN, excluded=False
    )
    there = {message.seq for message in page.items}
    return {message.seq for message in messages if not message.inner and message.seq not in there}


async def attachment(visit: PageRequest) -> HttpResponse:
    """A file that came with a message, as a download. It may be hostile: no browser shows or runs it."""
    answer = await visit.answer("GET", "/api/attachments/{id}", names={"id": visit.path("id")})
    assert isinstance(answer, JsonResponse)
    return replace(answer, headers={**HEADERS, **answer.headers})


def text_in(message: NewMessage) -> str:
    """What a message says, for a person."""
    return text_of(msgspec.json.decode(message.body).get("content"))


def _doing(services: Services, turn_id: str | None) -> str:
    running = services.runner.running.get(turn_id or "")
    return running.doing if running is not None else "model"


async def summary(visit: PageRequest) -> HttpResponse:
    """The summary with which a compaction opened this session, beside the messages that it replaced."""
    inner = visit.inner("GET", names={"id": visit.path("id")})
    owner = owner_of(inner)
    session = await visit.ask("GET", "/api/sessions/{id}", names={"id": visit.path("id")})
    found = await visit.hf.find_session(owner, session["id"])
    parts = [part for part in found.view.parts if isinstance(part, Summary)]
    if found.edge is not Edge.COMPACTION or not parts:
        raise NotFound("summary of session", found.id)
    first, last = min(part.first for part in parts), max(part.last for part in parts)
    page = await visit.hf.messages(
        owner, found.conversation_id, first=first, last=last, limit=MOST_REPLACED, most_bytes=PAGE_BYTES
    )
    await note_reading(inner, owner, found)
    return await asyncio.to_thread(
        html,
        visit,
        "summary.html",
        session=session,
        summary=summary_in(found),
        first=first,
        last=last,
        messages=shown(page.items, (), ()),
        has_more=page.has_more,
        speaks=False,
    )


# --- sending messages ----------------------------------------------------------------------------------


async def say(visit: PageRequest) -> HttpResponse:
    """Send a message in this conversation, or queue it while a reply is under way; redirects to the page,
    which streams the reply."""
    named = {"x-holdfast-session-id": visit.path("id"), "x-holdfast-when-busy": WhenBusy.QUEUE.value}
    session_id = await _said(visit, named)
    return go(visit.link(f"/sessions/{session_id}") + "#end")


async def new(visit: PageRequest) -> HttpResponse:
    return html(visit, "new.html", once=new_id("req"), models=await model_names(visit))


async def model_names(visit: PageRequest) -> tuple[str, ...]:
    """The models that a person may choose from; empty if there is no choice."""
    health = await model_health(visit)
    names: tuple[str, ...] = health.names if health is not None else ()
    return names if len(names) > 1 else ()


async def model_health(visit: PageRequest) -> Any:
    """Whether the model can be reached; None: that is not known yet."""
    try:
        async with asyncio.timeout(HEALTH_SECONDS):
            return await visit.services.model_watch.health()
    except TimeoutError:
        return None


async def begin(visit: PageRequest) -> HttpResponse:
    """Send the first message of a new conversation, or the next one of that with this session key."""
    key = visit.form.get("key", "").strip()
    named = {"x-holdfast-session-key": key} if key else {"x-holdfast-source": "dashboard"}
    return go(f"/sessions/{await _said(visit, named)}#end")


async def _said(visit: PageRequest, named: Mapping[str, str]) -> str:
    """Start a turn with the form's message; returns its session id."""
    from .markdown import is_picture  # its libraries are imported once the server listens

    text = visit.form.get("text", "").replace("\r\n", "\n").strip()
    attached = [value for name, value in visit.form.items() if name.startswith(PICTURE)]
    if not all(is_picture(url) for url in attached):
        raise BadInput("a picture must be a PNG, JPEG, GIF or WebP file")
    if not text and not attached:
        raise BadInput("the message is empty")
    content: Any = text
    if attached:
        words = [{"type": "text", "text": text}] if text else []
        content = [*words, *({"type": "image_url", "image_url": {"url": url}} for url in attached)]
    return await speak(visit, named, content, visit.form.get("once", ""), visit.form.get("model", ""))


async def speak(
    visit: PageRequest, named: Mapping[str, str], content: Any, once: str, model: str = ""
) -> str:
    """Start a turn; returns its session id. Idempotent: `once` is its Idempotency-Key."""
    answer = await visit.answer(
        *CHAT,
        body={
            "messages": [{"role": "user", "content": content}],
            "stream": True,
            **({"model": model} if model else {}),
        },
        headers={**named, **({"idempotency-key": once} if once else {})},
    )
    if isinstance(answer, TurnStream):  # the turn runs without a subscriber
        return answer.running.session.id
    if isinstance(answer, QueuedStream):
        return answer.queued.session.id
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
    return running.text_so_far() if running is not None else await kept_of(services.holdfast, turn_id)


async def kept_of(hf: Holdfast, turn_id: str) -> str:
    """The part of the running reply that is on disk."""
    return text_so_far(await hf.drafts(turn_id))


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
                    if turn.shown_status is not TurnStatus.RUNNING:
                        await listener.say(framed(msgspec.json.encode({"end": turn.status.value})))
                        break
                    await call.changed(version, LOOK_SECONDS)
                else:
                    await running.wait_for_events(len(running.events), LOOK_SECONDS)
                if listener.is_due and not await listener.still_there():
                    break
                await asyncio.sleep(PAUSE_SECONDS)
            await call.send({"type": "http.response.body", "body": b""})
