"""holdfast's adapters, doing what the frameworks' own stores do in the scripts beside this one.

The same messages, the same number of writers, the same window of 50 messages for LangGraph; the database at
`job.path` is a file, or a PostgreSQL URL. Each adapter is called as its framework calls it: tasks of one
event loop, or threads over a blocking saver, which is what LangGraph's own savers are measured with.

`framework_us` is the processor time that the framework takes to make and encode what one append stores: both
sides pay it, whichever the store.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

from adk_sessions import append_events, event_of, read_session
from langgraph_threads import HELD_MESSAGES, Thread, append_checkpoints, read_thread
from measure import Job, answer, conversation_bodies, cpu_us, median_ms_async, message_bodies, write_by_tasks

import holdfast


def url_of(job: Job) -> str:
    return job.path if job.path.startswith("postgresql://") else f"sqlite:///{job.path}"


async def openai_agents(job: Job) -> dict[str, Any]:
    from holdfast.adapters.openai_agents import HoldfastSession

    async with holdfast.open(url_of(job)) as hf:
        if job.case == "history":
            session = HoldfastSession("long", hf)
            if not await session.get_items(limit=1):
                items: Any = conversation_bodies(job.size)
                await session.add_items(items)
            assert len(await session.get_items()) == job.size
            return {"ms": await median_ms_async(job.runs, session.get_items)}
        bodies: Any = message_bodies(500)
        sessions = [HoldfastSession(f"session-{writer}", hf) for writer in range(job.writers)]

        async def append_one(writer: int, number: int) -> None:
            await sessions[writer].add_items([bodies[(writer * 7 + number) % len(bodies)]])

        figures = await write_by_tasks(job, append_one)
        stored = (await hf.store.statistics(hf.owner)).messages
        return {**figures, "stored": stored, "framework_us": cpu_us(lambda: json.dumps(bodies[0]))}


class Encoded:
    """A saver that encodes a checkpoint, and stores nothing."""

    def __init__(self, serde: Any) -> None:
        self._serde = serde

    def put(self, config: Any, checkpoint: Any, *_: Any) -> Any:
        self._serde.dumps_typed(checkpoint)
        return config


async def langgraph(job: Job) -> dict[str, Any]:
    from holdfast.adapters.langgraph import HoldfastSaver

    with holdfast.open_sync(url_of(job)) as hf:
        saver = HoldfastSaver(hf)
        if job.case == "history":
            return await asyncio.to_thread(read_thread, job, saver)
        figures = await asyncio.to_thread(append_checkpoints, job, saver)
        stored = await asyncio.to_thread(lambda: sum(1 for _ in saver.list(None)))
        bodies = message_bodies(HELD_MESSAGES)
        encoded = Encoded(saver.serde)
        thread = Thread("none", bodies)
        return {
            **figures,
            "stored": stored,
            "framework_us": cpu_us(lambda: thread.put(encoded, bodies[0])),
        }


async def google_adk(job: Job) -> dict[str, Any]:
    from holdfast.adapters.google_adk import HoldfastSessionService

    async with holdfast.open(url_of(job)) as hf:
        service = HoldfastSessionService(hf)
        if job.case == "history":
            return await read_session(job, service)
        figures = await append_events(job, service)
        body = message_bodies(1)[0]
        encode = cpu_us(lambda: event_of(body).model_dump(mode="json", exclude_none=True))
        return {**figures, "framework_us": encode}


ADAPTERS: dict[str, Callable[[Job], Coroutine[Any, Any, dict[str, Any]]]] = {
    "openai_agents": openai_agents,
    "langgraph": langgraph,
    "google_adk": google_adk,
}

if __name__ == "__main__":
    job = Job.from_argv()
    answer(asyncio.run(ADAPTERS[job.options["adapter"]](job)))
