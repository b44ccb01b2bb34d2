"""A response's stream read from the store: after a reconnect, a restart, or on another node.

Events that were kept are sent as they were. A turn that still runs elsewhere is followed checkpoint by
checkpoint. When a turn has ended and its end was not kept (a crash, or drafts that were dropped after a
day), the end is told from the response as it stands, under a number above all that were ever used, so
whatever a client has seen, it reaches the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...domain.turns import TurnStatus
from ..openai.replays import LAST, replay, terminal_event
from ..openai.response_events import encoded, frame
from .call import Call
from .response_records import Record, record_of
from .streams import HEADERS, LOOK_SECONDS, Listener

_ENDINGS = tuple(f"event: {name}\n".encode() for name in set(LAST.values()))


@dataclass(slots=True)
class StoredStream:
    """The events of a response numbered above `after`."""

    response_id: str
    after: int
    headers: Mapping[str, str] = field(default_factory=dict)

    async def send(self, call: Call) -> None:
        store = call.store
        record = await record_of(call, self.response_id)
        async with Listener(call) as listener:
            await call.start(200, {**HEADERS, **self.headers})
            heard = self.after
            while not listener.gone and not call.services.draining.is_set():
                version = store.version()
                record = await record_of(call, self.response_id)
                kept, number = await self._kept(call, record, heard)
                for event in kept:
                    await listener.say(event)
                heard = max(heard, number)
                if kept and kept[-1].startswith(_ENDINGS):
                    break
                if record.turn.status is not TurnStatus.RUNNING:
                    await self._end(call, record, heard, listener)
                    break
                await store.changed(version, LOOK_SECONDS)
                if not await listener.still_there():
                    break
            await call.send({"type": "http.response.body", "body": b""})

    async def _kept(self, call: Call, record: Record, after: int) -> tuple[list[bytes], int]:
        """The events above `after` of the newest attempt, as they were sent, and the last one's number."""
        events: list[bytes] = []
        last = after
        for draft in await call.store.drafts(record.turn.id, after_event=after):
            if draft.restarts:
                events.clear()  # an earlier attempt, which nobody goes on with
            frames = [piece + b"\n\n" for piece in draft.events.split(b"\n\n") if piece]
            skipped = max(0, after + 1 - draft.first_event)
            events.extend(frames[skipped:])
            last = draft.last_event
        return events, last

    async def _end(self, call: Call, record: Record, heard: int, listener: Listener) -> None:
        """The end that no checkpoint holds, told from what is known now."""
        response = await record.object(call)
        above = await call.store.last_number(record.turn.id) + 1
        if above:  # its checkpoints are there: what was said has been sent, as far as it was kept
            events = [terminal_event(response, max(above, heard + 1))]
        else:
            events = [event for event in replay(response) if event["sequence_number"] > heard]
            events = events or [terminal_event(response, heard + 1)]
        await listener.say(b"".join(frame(number, data) for number, data in encoded(events)))
