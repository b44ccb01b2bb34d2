"""Answers the last message again, sends a message in other words, withdraws a queued one; exports.

Nothing is deleted: a reply that was answered again, and what followed a message that was edited, leave the
context and stay readable on the page.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec

from ..app import TurnSpec
from ..cli.session_views import text_of
from ..domain.conversations import Address
from ..domain.ids import new_id
from ..domain.messages import Message, instruction
from ..domain.pages import PAGE_BYTES
from ..domain.rewinds import RETRY_LOOKS_AT, replies_to_person
from ..domain.sessions import Session
from ..domain.turns import TurnRequest
from ..errors import BadInput, Conflict, HoldfastError
from ..server import objects
from ..server.limits import count_request, counted_turn, limited_key
from ..server.openai.completions import ChatRenderer
from ..server.owners import note_reading, owner_of
from ..server.response_writer import HttpResponse, PiecesResponse
from .actions import CHOSEN, chosen_fields
from .conversation import can_answer_again, speak
from .pages import HEADERS, go, html
from .request import PageRequest

PAGE = 1000
KINDS = {"json": "application/json", "md": "text/markdown; charset=utf-8"}


# --- answering again -----------------------------------------------------------------------------------


async def answer_again(visit: PageRequest) -> HttpResponse:
    """Answer the last message again; redirects to the page, which streams the reply."""
    hf, call = visit.hf, visit.call
    owner = visit.caller.owner
    session = await hf.session_named(owner, visit.path("id"))
    conversation_id = session.conversation_id
    tip = (await hf.resolve_name(owner, conversation_id)).tip
    turns = await hf.turns(owner, conversation_id, limit=10)
    if not can_answer_again(turns, tip):
        raise Conflict("there is no finished reply that could be written again")
    turn = next(each for each in turns if each.first_seq)
    replies = replies_to_person(await hf.visible(owner, conversation_id, limit=RETRY_LOOKS_AT))
    if replies is None:
        raise Conflict("the last reply does not answer a message of the user")
    request = TurnRequest(
        turn_id=new_id("turn"),
        owner=owner,
        node_id=hf.node_id,
        address=Address(id=conversation_id, create=False),
        messages=(),
        model=turn.model,
        regenerates=replies,
        answer_existing=True,
        api_key=limited_key(call),
    )
    prompt = visit.services.settings.agent.system_prompt
    order = TurnSpec(
        request,
        ChatRenderer(wants_usage=False),
        (instruction(prompt),) if prompt else (),
        model=turn.model,
        tools=call.caller.tools,
        check=call.check_key,
    )
    await count_request(call)
    wait_seconds = visit.services.settings.server.busy_wait_seconds
    await counted_turn(call, request.turn_id, lambda: visit.services.runner.begin(order, wait_seconds))
    return go(visit.link(f"/sessions/{tip.id}") + "#end")


# --- other words ---------------------------------------------------------------------------------------


async def edit(visit: PageRequest) -> HttpResponse:
    """The form with the words of a message, to be sent again."""
    message, session = await _message(visit)
    return html(
        visit,
        "edit.html",
        text=text_of(message.content().get("content")),
        seq=message.seq,
        back=visit.link(f"/sessions/{session.id}"),
        once=new_id("req"),
    )


async def resend(visit: PageRequest) -> HttpResponse:
    """Rewind to before a message and send it in other words; redirects to the page with the reply. If that is
    refused before the turn begins, the rewind is undone."""
    text = visit.form.get("text", "").replace("\r\n", "\n").strip()
    if not text:
        raise BadInput("the message is empty")
    message, _ = await _message(visit)
    owner, conversation_id = visit.caller.owner, message.conversation_id
    last_seq = (await visit.hf.resolve_name(owner, conversation_id)).conversation.last_seq
    shown = await visit.hf.visible(owner, conversation_id)
    before = max((each.seq for each in shown if each.seq < message.seq), default=0)
    rewound = await visit.hf.rewind(owner, conversation_id, before, check=visit.call.check_key)
    named = {"x-holdfast-session-id": rewound.session.id}
    try:
        session_id = await speak(visit, named, text, visit.form.get("once", ""))
    except HoldfastError:
        with suppress(HoldfastError):  # else it can be rewound forward by hand
            if (await visit.hf.resolve_name(owner, conversation_id)).conversation.last_seq == last_seq:
                await visit.hf.rewind(owner, conversation_id, shown[-1].seq)
        raise
    return go(visit.link(f"/sessions/{session_id}") + "#end")


async def _message(visit: PageRequest) -> tuple[Message, Session]:
    """The user's message that the path names, if it is in the context."""
    owner, number = visit.caller.owner, visit.path("seq")
    session = await visit.hf.session_named(owner, visit.path("id"))
    seq = int(number) if number.isdecimal() and len(number) < 16 else 0
    page = await visit.hf.messages(
        owner, session.conversation_id, first=seq, last=seq, limit=1, excluded=False
    )
    if not page.items or page.items[0].role != "user":
        raise Conflict(
            f"message {number!r:.20} cannot be edited: it is not a message of yours in the context"
        )
    return page.items[0], session


async def withdraw(visit: PageRequest) -> HttpResponse:
    """Withdraw a turn that is queued."""
    turn = await visit.ask("DELETE", "/api/turns/{id}", names={"id": visit.path("id")})
    return go(visit.link(f"/sessions/{turn['session_id']}") + "#end")


# --- export --------------------------------------------------------------------------------------------


async def export(visit: PageRequest) -> HttpResponse:
    """A conversation as a file: every message as JSON, or what was said as Markdown."""
    kind = visit.path("kind")
    if kind not in KINDS:
        raise BadInput(f"a conversation is exported as json or md, not {kind!r:.20}")
    session, pages = await _whole(visit, visit.path("id"), visit.owner_named)
    written = _json_of(session, pages) if kind == "json" else _markdown_of(session, pages)
    return _file(written, f"holdfast-{session['conversation_id']}.{kind}", KINDS[kind])


async def export_several(visit: PageRequest) -> HttpResponse:
    """The conversations that were chosen in the list, as one JSON file."""
    found = [
        await _whole(visit, field.removeprefix(CHOSEN), owner or visit.owner_named)
        for field, owner in chosen_fields(visit).items()
    ]

    async def written() -> AsyncIterator[bytes]:
        yield b'{\n  "conversations": ['
        for number, (session, pages) in enumerate(found):
            yield b",\n    " if number else b"\n    "
            async for piece in _json_of(session, pages):
                yield piece.replace(b"\n", b"\n    ")
        yield b"\n  ]\n}" if found else b"]\n}"

    return _file(written(), "holdfast-conversations.json", KINDS["json"])


Pages: TypeAlias = AsyncIterator[list[Message]]


async def _whole(visit: PageRequest, name: str, owner_named: str | None) -> tuple[Any, Pages]:
    """A session as the API's object, and all messages of its conversation, page by page."""
    inner = visit.inner("GET", names={"id": name}, query={"owner": owner_named})
    owner = owner_of(inner)
    session = await visit.ask("GET", "/api/sessions/{id}", names={"id": name}, query={"owner": owner_named})
    found = await visit.hf.find_session(owner, session["id"])
    await note_reading(inner, owner, found)

    async def pages() -> Pages:
        first, more = 1, True
        while more:
            page = await visit.hf.messages(
                owner, found.conversation_id, first=first, limit=PAGE, most_bytes=PAGE_BYTES
            )
            if page.items:
                first = page.items[-1].seq + 1
                yield list(page.items)
            more = page.has_more

    return session, pages()


def _file(written: AsyncIterator[bytes], name: str, media_type: str) -> HttpResponse:
    sent_as = {"content-disposition": f'attachment; filename="{name}"'}
    return PiecesResponse(written, media_type, {**HEADERS, **sent_as})


async def _json_of(session: Any, pages: Pages) -> AsyncIterator[bytes]:
    """A session and its messages as a JSON document, message by message: all of them may be 256 MiB."""
    begin = _as_json({"session": session, "messages": []})
    yield begin.removesuffix(b"[]\n}") + b"["
    comma = b""
    async for page in pages:
        for message in page:
            yield comma + b"\n    " + _as_json(objects.message(message)).replace(b"\n", b"\n    ")
            comma = b","
    yield b"\n  ]\n}" if comma else b"]\n}"


def _as_json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2)


async def _markdown_of(session: Any, pages: Pages) -> AsyncIterator[bytes]:
    """What was said, as a Markdown document, message by message."""
    title = session["title"] or session["key"] or session["id"]
    yield f"# {' '.join(title.split())}".encode()
    async for page in pages:
        for message in page:
            text = text_of(message.content().get("content")).strip()
            if text and message.role in ("user", "assistant") and not message.inner:
                yield f"\n\n## {message.role}, {message.created_at:%Y-%m-%d %H:%M:%S} UTC\n\n{text}".encode()
    yield b"\n"
