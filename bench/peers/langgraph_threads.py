"""What a LangGraph saver is measured with, whichever it is: checkpoints that hold 50 messages.

Each append drops the oldest message, adds one and writes all 50 again, as a saver does after every step of a
graph. Messages are plain dicts, the cheapest value its serializer supports. The writers are threads.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from measure import Job, conversation_bodies, median_ms, message_bodies, write_by_threads

HELD_MESSAGES = 50


class Thread:
    """What one writer hands to the saver: its place in the line of checkpoints, and the messages it holds."""

    def __init__(self, name: str, messages: list[dict[str, str]]) -> None:
        self.config: Any = {"configurable": {"thread_id": name, "checkpoint_ns": ""}}
        self.held = deque(messages, maxlen=len(messages))
        self.step = 0

    def put(self, saver: Any, message: dict[str, str]) -> None:
        """Checkpoint this thread with one more message, and the oldest gone."""
        from langgraph.checkpoint.base import empty_checkpoint
        from langgraph.checkpoint.base.id import uuid6

        self.held.append(message)
        self.step += 1
        version = f"{self.step:032}"
        checkpoint = empty_checkpoint()
        checkpoint["id"] = str(uuid6(clock_seq=self.step))
        checkpoint["channel_values"] = {"messages": list(self.held)}
        checkpoint["channel_versions"] = {"messages": version}
        metadata: Any = {"source": "loop", "step": self.step, "parents": {}}
        self.config = saver.put(self.config, checkpoint, metadata, {"messages": version})


def append_checkpoints(job: Job, saver: Any) -> dict[str, Any]:
    bodies = message_bodies(500)
    threads = [Thread(f"thread-{writer}", bodies[:HELD_MESSAGES]) for writer in range(job.writers)]
    for thread in threads:  # before the clock starts: the first checkpoint of a thread has 50 new messages
        thread.put(saver, bodies[HELD_MESSAGES])

    def append_one(writer: int, number: int) -> None:
        threads[writer].put(saver, bodies[(writer * 7 + number) % len(bodies)])

    figures = write_by_threads(job, append_one)
    return {**figures, "acknowledged": figures["acknowledged"] + len(threads)}


def read_thread(job: Job, saver: Any) -> dict[str, Any]:
    """How long reading the newest checkpoint takes, with `job.size` messages in it."""
    latest: Any = {"configurable": {"thread_id": "long", "checkpoint_ns": ""}}
    if saver.get_tuple(latest) is None:
        bodies = conversation_bodies(job.size)
        Thread("long", bodies).put(saver, bodies[0])

    def read() -> list[dict[str, str]]:
        saved = saver.get_tuple(latest)
        messages: list[dict[str, str]] = saved.checkpoint["channel_values"]["messages"]
        return messages

    assert len(read()) == job.size
    return {"ms": median_ms(job.runs, read)}
