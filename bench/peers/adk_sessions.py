"""What a session service of Google's ADK is measured with, whichever it is: events of 1 KB, one session a
writer, tasks of one event loop. A writer keeps its session object, as the ADK's runner does within a run."""

from __future__ import annotations

import asyncio
from typing import Any

from measure import Job, conversation_bodies, median_ms_async, message_bodies, write_by_tasks

APP, USER = "bench", "user"


def event_of(body: dict[str, str]) -> Any:
    from google.adk.events.event import Event
    from google.genai import types

    content = types.Content(role="user", parts=[types.Part(text=body["content"])])
    return Event(author="user" if body["role"] == "user" else "agent", invocation_id="i", content=content)


async def append_events(job: Job, service: Any) -> dict[str, Any]:
    bodies = message_bodies(500)
    names = [f"session-{writer}" for writer in range(job.writers)]
    sessions = [
        await service.create_session(app_name=APP, user_id=USER, session_id=name, state={}) for name in names
    ]
    # Every connection of a pool is made before the clock starts.
    await asyncio.gather(*(service.append_event(session, event_of(bodies[0])) for session in sessions))

    async def append_one(writer: int, number: int) -> None:
        await service.append_event(sessions[writer], event_of(bodies[(writer * 7 + number) % len(bodies)]))

    figures = await write_by_tasks(job, append_one)
    stored = 0
    for name in names:
        found = await service.get_session(app_name=APP, user_id=USER, session_id=name)
        stored += len(found.events) - 1
    return {**figures, "stored": stored}


async def read_session(job: Job, service: Any) -> dict[str, Any]:
    """How long reading a session of `job.size` events takes."""
    who = {"app_name": APP, "user_id": USER, "session_id": "long"}
    session = await service.get_session(**who)
    if session is None:
        session = await service.create_session(**who, state={})
        for body in conversation_bodies(job.size):
            await service.append_event(session, event_of(body))

    async def read() -> Any:
        return await service.get_session(**who)

    assert len((await read()).events) == job.size
    return {"ms": await median_ms_async(job.runs, read)}
