"""`/api/processes…`: background processes of sessions. One list, for people, agents and bridges.

Starting a command needs the API key's `terminal` right, because there is no sandbox. Watching a process that
was started elsewhere on this machine needs that right or an admin key; so do reading its command line and
directory, and stopping it. A process that another owner's session started cannot be watched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...domain.api_keys import TERMINAL, check_right, may_see_commands
from ...domain.processes import Process
from .. import objects
from ..http import JsonResponse, RequestContext
from ..openai.parameters import BadParameter, kind
from ..owners import OWNER, OWNERS, note_reading, owner_of, owners_of, shows_owner
from ..routes import Parameter, Route
from ..schemas import NUMBER, list_of, ref
from .health import FLAG, flag
from .session_actions import body_of, fields_of
from .sessions import LARGEST_PAGE, paging

LARGEST_TAIL = 100_000


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
        data = [each for each in data if each["ended_at"] is None]
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
    await fields_of(call)
    if (await call.hf.process(owner, call.path("id"))).watched and not may_see_commands(call.caller):
        check_right(call.caller.tools, TERMINAL, "stopping a process that was started elsewhere")
    return await _shown(call, await call.hf.stop_process(owner, call.path("id")))


async def pin(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    hours = (await fields_of(call, "hours")).get("hours")
    if isinstance(hours, bool) or not isinstance(hours, int | float):
        raise BadParameter("hours", f"must be a number of hours, not {kind(hours)}")
    return await _shown(call, await call.hf.pin_process(owner, call.path("id"), hours))


async def begin(call: RequestContext) -> JsonResponse:
    """Start a command, or watch a process."""
    owner = owner_of(call)
    body = await fields_of(call, "command", "cwd", "stdin", "pid")
    place = await call.hf.resolve_name(owner, call.path("id"))
    if "pid" in body:
        found = await _watched(call, owner, place.tip.id, body)
    else:
        found = await _started(call, owner, place.tip.id, body)
    return await _shown(call, found)


async def _started(call: RequestContext, owner: str, session_id: str, body: dict[str, Any]) -> Process:
    check_right(call.caller.tools, TERMINAL, "starting a command")
    command, cwd, stdin = body.get("command"), body.get("cwd"), body.get("stdin", False)
    words = command if isinstance(command, list) else [command]
    if not words or not all(isinstance(word, str) for word in words):
        raise BadParameter("command", f"must be text for the shell, or a list of texts, not {kind(command)}")
    if cwd is not None and (not isinstance(cwd, str) or not cwd or "\0" in cwd):
        raise BadParameter("cwd", "must be the path of a directory")
    if not isinstance(stdin, bool):
        raise BadParameter("stdin", f"must be true or false, not {kind(stdin)}")
    return await call.hf.start_process(owner, session_id, body["command"], cwd, stdin=stdin)


async def _watched(call: RequestContext, owner: str, session_id: str, body: dict[str, Any]) -> Process:
    if not may_see_commands(call.caller):
        check_right(call.caller.tools, TERMINAL, "watching a process that was started elsewhere")
    if len(body) > 1:
        raise BadParameter("pid", "names a process that runs already; it cannot be used with other fields")
    pid = body["pid"]
    if isinstance(pid, bool) or not isinstance(pid, int):
        raise BadParameter("pid", f"must be the number of a process, not {kind(pid)}")
    may_stop = TERMINAL in call.caller.tools
    return await call.hf.watch_process(owner, session_id, pid, may_stop=may_stop)


async def _shown(call: RequestContext, found: Process) -> JsonResponse:
    (told,) = await _objects(call, [found])
    return JsonResponse(told)


async def _objects(call: RequestContext, found: Sequence[Process]) -> list[objects.Object]:
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
        "Background processes, newest first.",
        parameters=(
            Parameter("session", "Only those of this session's conversation: an id, a key or an alias."),
            Parameter("running", "Only those that have not ended (1), or have (0).", FLAG),
            *paging(),
            OWNERS,
        ),
        answer=list_of("Process"),
    ),
    Route(
        "GET",
        "/api/processes/{id}",
        process,
        "One process as it is right now.",
        parameters=(OWNER,),
        answer=ref("Process"),
    ),
    Route(
        "GET",
        "/api/processes/{id}/log",
        log,
        "What a process has said: its beginning and its newest, if it was too much to keep.",
        parameters=(
            Parameter("tail", "Only the last so many lines.", {**NUMBER, "maximum": LARGEST_TAIL}),
            Parameter("after", "Only what comes behind this byte: the `next` of the answer before.", NUMBER),
            OWNER,
        ),
        answer=ref("ProcessLog"),
    ),
    Route(
        "POST",
        "/api/processes/{id}/stop",
        stop,
        "Stop a process and all it has started: SIGTERM, later SIGKILL. Answers when it has ended.",
        parameters=(OWNER,),
        body=body_of(),
        body_optional=True,
        answer=ref("Process"),
    ),
    Route(
        "POST",
        "/api/processes/{id}/pin",
        pin,
        "Let a process hold resets up for so many hours, 0: no longer.",
        parameters=(OWNER,),
        body=body_of(hours={"type": "number", "minimum": 0, "maximum": 8_000_000}),
        answer=ref("Process"),
    ),
    Route(
        "POST",
        "/api/sessions/{id}/processes",
        begin,
        "Start a command in the background of a session (`command`), or watch a process that was started "
        "elsewhere on this machine (`pid`; an admin key may too). Needs the `terminal` right.",
        parameters=(OWNER,),
        body=body_of(
            command={
                "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]
            },
            cwd={"type": "string"},
            stdin={"type": "boolean"},
            pid={"type": "integer"},
        ),
        answer=ref("Process"),
    ),
)
