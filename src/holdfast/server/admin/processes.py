"""`/api/processes…`: background processes of sessions. One list, for people, agents and bridges.

Starting a command needs the API key's `terminal` right, because there is no sandbox. Watching a process that
was started elsewhere on this machine needs that right or an admin key; so do reading its command line and
directory, and stopping it. A process that another owner's session started cannot be watched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from ...domain.api_keys import TERMINAL, check_right, may_see_commands
from ...domain.processes import Process
from .. import objects
from ..http import RequestContext
from ..openai.parameters import BadParameter, RequestBody, must_be
from ..owners import OWNER, OWNERS, note_reading, owner_of, owners_of, shows_owner
from ..response_writer import JsonResponse
from ..routes import Parameter, Route
from ..schemas import Count, ListObject, ProcessLogObject, ProcessObject
from .health import FLAG, flag
from .sessions import LARGEST_PAGE, paging

LARGEST_TAIL = 100_000


class PinBody(RequestBody, frozen=True, kw_only=True):
    hours: Annotated[float, must_be("a number of hours", minimum=0, maximum=8_000_000)]


class ProcessBody(RequestBody, frozen=True, kw_only=True):
    """A command to start, or with `pid` a process to watch."""

    command: Annotated[
        str | Annotated[list[str], Meta(min_length=1)] | None,
        must_be("text for the shell, or a list of texts"),
    ] = None
    cwd: Annotated[str | None, must_be("the path of a directory")] = None
    stdin: Annotated[bool | None, must_be("true or false")] = None
    pid: Annotated[int | None, must_be("the number of a process")] = None


async def processes(call: RequestContext) -> JsonResponse:
    owner, named = owners_of(call), call.query("session")
    conversation = (await call.hf.resolve_name(owner, named)).conversation.id if named else None
    running = flag(call, "running") if call.query("running") else None
    page = await call.hf.processes(
        owner,
        conversation_id=conversation,
        running=running,
        after=call.query("after") or None,
        limit=call.query_number("limit", 20, 1, LARGEST_PAGE),
    )
    data = await _objects(call, page.items)
    if running:  # one may have ended just now, before the store recorded it
        data = [each for each in data if each.ended_at is None]
    return JsonResponse(objects.listed(data, has_more=page.has_more))


async def process(call: RequestContext) -> JsonResponse:
    return await _shown(call, await call.hf.process(owner_of(call), call.path("id")))


async def log(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    tail = call.query_number("tail", LARGEST_TAIL, 0, LARGEST_TAIL) if call.query("tail") else None
    found = await call.hf.process(owner, call.path("id"))
    part = await call.hf.process_log(owner, found.id, after=call.query_number("after", 0), tail=tail)
    if owner != call.owner:
        await note_reading(call, owner, await call.hf.find_session(owner, found.session_id))
    return JsonResponse(objects.process_log(found, part))


async def stop(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    await call.decoded(RequestBody)
    if (await call.hf.process(owner, call.path("id"))).watched and not may_see_commands(call.caller):
        check_right(call.caller.tools, TERMINAL, "stopping a process that was started elsewhere")
    return await _shown(call, await call.hf.stop_process(owner, call.path("id")))


async def pin(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    asked = await call.decoded(PinBody)
    return await _shown(call, await call.hf.pin_process(owner, call.path("id"), asked.hours))


async def begin(call: RequestContext) -> JsonResponse:
    """Start a command, or watch a process."""
    owner = owner_of(call)
    asked = await call.decoded(ProcessBody)
    place = await call.hf.resolve_name(owner, call.path("id"))
    if asked.pid is not None:
        found = await _watched(call, owner, place.tip.id, asked.pid, asked)
    else:
        found = await _started(call, owner, place.tip.id, asked)
    return await _shown(call, found)


async def _started(call: RequestContext, owner: str, session_id: str, asked: ProcessBody) -> Process:
    check_right(call.caller.tools, TERMINAL, "starting a command")
    command, cwd = asked.command, asked.cwd
    if command is None:
        raise BadParameter("command", "must be text for the shell, or a list of texts; it is missing")
    if cwd is not None and (not cwd or "\0" in cwd):
        raise BadParameter("cwd", "must be the path of a directory")
    return await call.hf.start_process(owner, session_id, command, cwd, stdin=bool(asked.stdin))


async def _watched(
    call: RequestContext, owner: str, session_id: str, pid: int, asked: ProcessBody
) -> Process:
    if not may_see_commands(call.caller):
        check_right(call.caller.tools, TERMINAL, "watching a process that was started elsewhere")
    if asked != ProcessBody(pid=pid):
        raise BadParameter("pid", "names a process that runs already; it cannot be used with other fields")
    may_stop = TERMINAL in call.caller.tools
    return await call.hf.watch_process(owner, session_id, pid, may_stop=may_stop)


async def _shown(call: RequestContext, found: Process) -> JsonResponse:
    (shown,) = await _objects(call, [found])
    return JsonResponse(shown)


async def _objects(call: RequestContext, found: Sequence[Process]) -> list[ProcessObject]:
    """The processes' objects, after a probe of their present state."""
    now = call.hf.now()
    seen = await call.hf.processes_seen(found)
    return [
        objects.process(
            each,
            call.hf.is_active(each, now),
            with_owner=shows_owner(call),
            whole=may_see_commands(call.caller),
        )
        for each in seen
    ]


ROUTES = (
    Route(
        "GET",
        "/api/processes",
        processes,
        "List background processes, newest first.",
        parameters=(
            Parameter("session", "Only those of this session's conversation: an id, a key or an alias."),
            Parameter("running", "1: only those that have not ended; 0: only those that have.", FLAG),
            *paging(),
            OWNERS,
        ),
        answer=ListObject[ProcessObject],
    ),
    Route(
        "GET",
        "/api/processes/{id}",
        process,
        "Read one process in its present state.",
        parameters=(OWNER,),
        answer=ProcessObject,
    ),
    Route(
        "GET",
        "/api/processes/{id}/log",
        log,
        "Read the output of a process; if it was too much to keep, its head and its tail.",
        parameters=(
            Parameter("tail", "Only so many lines at the end.", Annotated[int, Meta(ge=0, le=LARGEST_TAIL)]),
            Parameter("after", "Only the output after this byte: `next` of the previous answer.", Count),
            OWNER,
        ),
        answer=ProcessLogObject,
    ),
    Route(
        "POST",
        "/api/processes/{id}/stop",
        stop,
        "Stop a process and its descendants: SIGTERM, later SIGKILL. Answers when it has ended.",
        parameters=(OWNER,),
        body=RequestBody,
        body_optional=True,
        answer=ProcessObject,
    ),
    Route(
        "POST",
        "/api/processes/{id}/pin",
        pin,
        "Let a process defer resets for so many hours; 0: no longer.",
        parameters=(OWNER,),
        body=PinBody,
        answer=ProcessObject,
    ),
    Route(
        "POST",
        "/api/sessions/{id}/processes",
        begin,
        "Start a command in the background of a session (`command`), or watch a process that was started "
        "elsewhere on this machine (`pid`; an admin key may too). Needs the `terminal` right.",
        parameters=(OWNER,),
        body=ProcessBody,
        answer=ProcessObject,
    ),
)
