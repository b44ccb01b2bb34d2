"""`GET /api/sessions…`: sessions, their messages, turns, side requests and lineage. Reading never
opens a session.

A session id names exactly that session, stale or not. A conversation id, a session key or an alias names the
newest session of the conversation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Annotated, Literal, get_args

from msgspec import Meta

from ...domain.contexts import Context
from ...domain.headings import NO_HEADING, Heading
from ...domain.ids import parse_message_id
from ...domain.pages import PAGE_BYTES, SessionFilter
from ...domain.sessions import Session, SessionState
from ...errors import NotFound
from .. import objects
from ..http import RequestContext
from ..openai.parameters import BadParameter
from ..owners import OWNER, OWNERS, note_reading, owner_of, owners_of, shows_owner
from ..response_writer import HttpResponse, JsonResponse, PiecesResponse
from ..routes import Parameter, Route
from ..schemas import (
    ContextMessageObject,
    LineageObject,
    ListObject,
    MessageObject,
    SessionObject,
    SideRequestObject,
    TurnObject,
    WhyObject,
)
from .health import FLAG, flag

LARGEST_PAGE = 100
LARGEST_MESSAGE_PAGE = 1000
LARGEST_SEQ = 2**62
"""Greater than the number of every message, and within the integer range of every store."""
MessageScope = Literal["session", "conversation", "context"]
SCOPES: tuple[str, ...] = get_args(MessageScope)


def paging(largest: int = LARGEST_PAGE, default: int = 20) -> tuple[Parameter, Parameter]:
    """The query parameters of a paginated list."""
    return (
        Parameter("after", "The `last_id` of the previous page."),
        Parameter("limit", "How many at most.", Annotated[int, Meta(ge=1, le=largest)], default=default),
    )


async def sessions(call: RequestContext) -> JsonResponse:
    owner = owners_of(call)
    wanted = SessionFilter(
        owner,
        source=call.query("source"),
        key=call.query("key"),
        title=call.query("q") or None,
        newest=flag(call, "newest"),
    )
    page, states = await call.hf.sessions_with_states(
        wanted,
        _state(call),
        after=call.query("after") or None,
        limit=call.query_number("limit", 20, 1, LARGEST_PAGE),
    )
    flushes = await call.hf.flushes_of(page.items)
    with_owner = shows_owner(call)
    return JsonResponse(
        objects.sessions(
            page.items,
            states,
            flushes,
            has_more=page.has_more,
            with_owner=with_owner,
            headings=await _headings(call, page.items),
        )
    )


async def _headings(call: RequestContext, found: Iterable[Session]) -> Mapping[str, Heading]:
    """Words of these conversations; none of another owner's, since they are text of messages."""
    return await call.hf.headings_of(each for each in found if each.owner == call.owner)


def _state(call: RequestContext) -> SessionState | None:
    state = call.query("state") or None
    if state is None:
        return None
    if state not in set(SessionState):
        raise BadParameter("state", f"must be one of {', '.join(SessionState)}, not {state!r:.40}")
    return SessionState(state)


async def session(call: RequestContext) -> JsonResponse:
    return await shown(call, await call.hf.session_named(owner_of(call), call.path("id")))


async def shown(call: RequestContext, found: Session) -> JsonResponse:
    """One session as its JSON object."""
    states = await call.hf.states_of([found])
    flushes = await call.hf.flushes_of([found])
    headings = await _headings(call, [found])
    return JsonResponse(
        objects.session(
            found,
            states[found.id],
            flushes.get(found.id),
            with_owner=shows_owner(call),
            heading=headings.get(found.conversation_id, NO_HEADING),
        )
    )


async def messages(call: RequestContext) -> HttpResponse:
    owner = owner_of(call)
    scope = call.query("scope") or SCOPES[0]
    if scope not in SCOPES:
        raise BadParameter("scope", f"must be one of {', '.join(SCOPES)}, not {scope!r:.40}")
    found = await call.hf.session_named(owner, call.path("id"))
    if scope == "context":
        for name in ("after", "limit"):
            if call.query(name):
                raise BadParameter(name, "cannot be used with scope=context: it is given whole")
        context = await call.hf.context(owner, found.id)
        await note_reading(call, owner, found)
        call.hold_bytes(sum(map(len, context.chunks)))
        return PiecesResponse(_listed(context))
    first, last = (1, None) if scope == "conversation" else (found.first_seq, found.last_seq)
    page = await call.hf.messages(
        owner,
        found.conversation_id,
        first=max(first, _behind(call, found.conversation_id)),
        last=last,
        limit=call.query_number("limit", LARGEST_MESSAGE_PAGE, 1, LARGEST_MESSAGE_PAGE),
        most_bytes=PAGE_BYTES,
    )
    await note_reading(call, owner, found)
    return JsonResponse(
        objects.listed([objects.message(each) for each in page.items], has_more=page.has_more)
    )


async def _listed(context: Context) -> AsyncIterator[bytes]:
    """A context as a list, in its stored bytes: decoding hundreds of MiB would stop all other requests. Its
    messages have no ids: it is not paged."""
    yield b'{"object":"list","data":['
    for number, chunk in enumerate(context.chunks):
        yield b"," if number else b""
        yield chunk
    yield b'],"first_id":null,"last_id":null,"has_more":false}'


def _behind(call: RequestContext, conversation_id: str) -> int:
    """The sequence number that follows the message `after`; 1 without one."""
    after = call.query("after") or None
    if after is None:
        return 1
    named = parse_message_id(after)
    if named is None or named[0] != conversation_id:
        raise NotFound("message", after)
    return min(named[1], LARGEST_SEQ) + 1


async def turns(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    place = await call.hf.resolve_name(owner, call.path("id"))
    limit = call.query_number("limit", 20, 1, LARGEST_PAGE)
    found = await call.hf.turns(
        owner,
        place.conversation.id,
        session_id=place.addressed,
        after=call.query("after") or None,
        limit=limit + 1,
    )
    return JsonResponse(
        objects.listed([objects.turn(each) for each in found[:limit]], has_more=len(found) > limit)
    )


async def why(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    found = await call.hf.session_named(owner, call.path("id"))
    return JsonResponse(objects.why(await call.hf.why(owner, found.id)))


async def lineage(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    place = await call.hf.resolve_name(owner, call.path("id"))
    line = await call.hf.lineage(owner, place.conversation.id)
    states, flushes = await call.hf.states_of(line), await call.hf.flushes_of(line)
    return JsonResponse(objects.lineage(line, states, flushes, await _headings(call, line)))


async def side_requests(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    session = await call.hf.session_named(owner, call.path("id"))
    await note_reading(call, owner, session)
    page = await call.hf.side_requests(
        owner,
        session.conversation_id,
        after=call.query("after") or None,
        limit=call.query_number("limit", 20, 1, LARGEST_PAGE),
    )
    data = [objects.side_request(each, session.conversation_id) for each in page.items]
    return JsonResponse(objects.listed(data, has_more=page.has_more))


ROUTES = (
    Route(
        "GET",
        "/api/sessions",
        sessions,
        "List sessions, the most recently active first.",
        parameters=(
            Parameter("state", "Only those in this state.", SessionState),
            Parameter("source", "Only those of this source."),
            Parameter("key", "Only those of the conversation with this session key."),
            Parameter("q", "Only those whose title, if one was set, or session key contains this."),
            Parameter("newest", "Only the newest session of each conversation.", FLAG),
            *paging(),
            OWNERS,
        ),
        answer=ListObject[SessionObject],
    ),
    Route(
        "GET",
        "/api/sessions/{id}",
        session,
        "Read exactly this session, stale or not; for a conversation id, a key or an alias the newest.",
        parameters=(OWNER,),
        answer=SessionObject,
    ),
    Route(
        "GET",
        "/api/sessions/{id}/messages",
        messages,
        "List the messages of this session or its conversation, or the context of the model.",
        parameters=(
            Parameter("scope", "Which messages.", MessageScope, default=SCOPES[0]),
            *paging(LARGEST_MESSAGE_PAGE, LARGEST_MESSAGE_PAGE),
            OWNER,
        ),
        answer=(ListObject[MessageObject], ListObject[ContextMessageObject]),
    ),
    Route(
        "GET",
        "/api/sessions/{id}/turns",
        turns,
        "List turns, newest first: of this session for its id, else of the whole conversation.",
        parameters=(*paging(), OWNER),
        answer=ListObject[TurnObject],
    ),
    Route(
        "GET",
        "/api/sessions/{id}/lineage",
        lineage,
        "List the sessions of the conversation, oldest first, and the conversations forked from it.",
        parameters=(OWNER,),
        answer=LineageObject,
    ),
    Route(
        "GET",
        "/api/sessions/{id}/why",
        why,
        "Explain whether and when this session is reset, by which rule, and what defers it.",
        parameters=(OWNER,),
        answer=WhyObject,
    ),
    Route(
        "GET",
        "/api/sessions/{id}/side-requests",
        side_requests,
        "List a conversation's side requests (titles, topics, a program's own compaction), oldest first.",
        parameters=(*paging(), OWNER),
        answer=ListObject[SideRequestObject],
    ),
)
