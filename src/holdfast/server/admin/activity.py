"""`GET /api/activity`: live and recently ended sessions, cheap to poll.

The reads are bounded, however much is stored. The ETag covers everything but `as_of`: a poll with
If-None-Match gets a 304 without a body until something has changed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256

import msgspec

from ...domain.api_keys import may_see_commands
from ...domain.headings import NO_HEADING
from ...domain.processes import Process, ProcessLimits, is_active
from ...domain.sessions import Session, SessionState
from ...domain.value import Value
from ...os_support import identity
from .. import objects
from ..http import RequestContext
from ..owners import OWNERS, owners_of, shows_owner
from ..response_writer import HttpResponse, JsonResponse
from ..routes import Parameter, Route
from ..schemas import ActivityObject, RunningProcessObject
from ..workers.worker import doing_elsewhere

ENDED_FOR = timedelta(seconds=60)
"""How long a session is still listed after it has ended."""
MOST_PROCESSES = 1000


async def activity(call: RequestContext) -> HttpResponse:
    owner, hf = owners_of(call), call.hf
    now = hf.now()
    living, ended, running = await asyncio.gather(
        hf.alive(owner),
        hf.ended_since(owner, now - ENDED_FOR),
        hf.processes(owner, running=True, limit=MOST_PROCESSES),
    )
    states = await hf.states_of(living)
    queued = Counter(turn.conversation_id for turn in await hf.queued_turns(owner))
    elsewhere = await doing_elsewhere(call.services.worker)
    with_owner = shows_owner(call)
    untitled = (each for each in (*living, *ended) if each.title is None and each.owner == call.owner)
    headings = await hf.headings_of(untitled)
    processes = _by_conversation(
        running.items,
        now,
        call.hf.supervisor.limits,
        whole=may_see_commands(call.caller),
    )
    found = ActivityObject(
        as_of="",
        node=call.hf.node_id,
        host=identity().host,
        running_turns=sum(state is SessionState.ACTIVE for state in states.values()),
        data=[
            objects.living(
                session,
                states[session.id],
                _doing(call, session, states, *elsewhere, queued),
                queued=queued.get(session.conversation_id, 0),
                processes=processes.get(session.conversation_id, ()),
                with_owner=with_owner,
                heading=headings.get(session.conversation_id, NO_HEADING),
            )
            for session in living
        ],
        ended=[
            objects.gone(
                session,
                with_owner=with_owner,
                heading=headings.get(session.conversation_id, NO_HEADING),
            )
            for session in ended
        ],
    )
    tag = f'W/"{sha256(msgspec.json.encode(found)).hexdigest()[:32]}"'
    headers = {"etag": tag, "cache-control": "no-cache"}
    if tag in (call.header("if-none-match") or ""):
        return NotModified(headers)
    return JsonResponse(msgspec.structs.replace(found, as_of=objects.time(now)), headers=headers)


def _by_conversation(
    running: Sequence[Process], now: datetime, limits: ProcessLimits, *, whole: bool
) -> dict[str, list[RunningProcessObject]]:
    found: dict[str, list[RunningProcessObject]] = {}
    for each in running:
        shown = objects.running_process(each, is_active(each, now, limits), whole=whole)
        found.setdefault(each.conversation_id, []).append(shown)
    return found


class NotModified(Value, frozen=True):
    """304: the client's copy is current."""

    headers: Mapping[str, str]

    async def send(self, call: RequestContext) -> None:
        await call.start(304, self.headers)
        await call.send({"type": "http.response.body", "body": b""})


def _doing(
    call: RequestContext,
    session: Session,
    states: Mapping[str, SessionState],
    doing: Mapping[str, str],
    compacting: Collection[str],
    queued: Collection[str] = (),
) -> str | None:
    """What a session is doing; None: nothing. `doing` and `compacting` are of the other workers. For
    a turn of another server it is unknown: "model"."""
    if states[session.id] is not SessionState.ACTIVE:
        compactor = call.services.runner.compactor
        here = compactor is not None and compactor.is_compacting(session.conversation_id)
        if here or session.conversation_id in compacting:
            return "compacting"
        return "waiting" if session.conversation_id in queued else None  # a turn is about to begin
    if session.running_node is None:  # its turn waits to be retried
        return "waiting"
    turn_id = session.running_turn or ""
    running = call.services.runner.running.get(turn_id)
    return running.doing if running is not None else doing.get(turn_id, "model")


ROUTES = (
    Route(
        "GET",
        "/api/activity",
        activity,
        "List the live sessions, and those that ended in the last minute.",
        parameters=(
            Parameter(
                "if-none-match",
                "The `ETag` of the last answer.",
                where="header",
            ),
            OWNERS,
        ),
        answer=ActivityObject,
        also={304: "Nothing has changed."},
    ),
)
