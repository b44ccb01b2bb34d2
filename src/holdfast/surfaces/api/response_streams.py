"""A response's stream read from the store: after a reconnect, a restart, or on another node.

Events that were kept are sent as they were. A turn that still runs elsewhere is followed checkpoint by
checkpoint. When a turn has ended and its end was not kept (a crash, or drafts that were dropped after a
day), the end is told from the response as it stands, under a number above all that were ever used, so
whatever a client has seen, it reaches the end. One that has heard the end already is told nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ...domain.drafts import Draft
from ...domain.turns import Delivery, TurnStatus
from ...errors import NotFound
from ..openai.item_events import Event
from ..openai.replays import LAST, replay, terminal_event
from ..openai.response_events import encoded, frame
from .call import Call
from .failures import failure_of
from .response_records import Record, record_of
from .streams import HEADERS, LOOK_SECONDS, Listener

_ENDINGS = tuple(f"event: {name}\n".encode() for name in set(LAST.values()))


@dataclass(slots=True)
class StoredStream:
    """The events of a response numbered above `after`."""

    response_id: str
    owner: str
    after: int
    headers: Mapping[str, str] = field(default_factory=dict)

    async def send(self, call: Call) -> None:
        await record_of(call, self.response_id, self.owner)
        call.leave_slot()
        async with Listener(call) as listener:
            await call.start(200, {**HEADERS, **self.headers})
            try:
                ended = await self._tell(call, listener)
            except NotFound as gone:  # deleted meanwhile
                await listener.say(_framed([_error(gone, self.after + 1)]))
                ended = False
            if await call.finish(b"") and ended and not listener.gone and self.owner == call.owner:
                await self._note_received(call)

    async def _note_received(self, call: Call) -> None:
        with suppress(NotFound):  # deleted meanwhile
            turn = (await record_of(call, self.response_id, self.owner)).turn
            if turn.status is TurnStatus.COMPLETED:
                call.services.runner.receipts.note(turn.id, Delivery.WHOLE)

    async def _tell(self, call: Call, listener: Listener) -> bool:
        """True: the last event was sent."""
        while not listener.gone and not call.services.draining.is_set():
            version = call.store.version()
            record = await record_of(call, self.response_id, self.owner)
            kept = kept_events(await call.store.drafts(record.turn.id, after_event=self.after), self.after)
            if kept is not None:
                events, self.after = kept
                for event in events:
                    await listener.say(event)
                if events and events[-1].startswith(_ENDINGS):
                    return True
            if record.turn.status is not TurnStatus.RUNNING:
                await listener.say(_framed(await self._end(call, record, kept is not None)))
                return True
            await call.store.changed(version, LOOK_SECONDS)
            if not await listener.still_there():
                break
        return False

    async def _end(self, call: Call, record: Record, are_kept: bool) -> list[Event]:
        """The end that no checkpoint holds, told from what is known now."""
        heard = self.after
        response = await record.object(call)
        above = await call.store.last_number(record.turn.id) + 1
        if not above or not are_kept:
            told = replay(response)
            if heard == told[-1]["sequence_number"]:
                return []
            return [event for event in told if event["sequence_number"] > heard] or [
                terminal_event(response, heard + 1)
            ]
        # Its checkpoints are there: what was said has been sent, as far as it was kept.
        if heard == above or await self._has_ended(call, record):
            return []
        return [terminal_event(response, max(above, heard + 1))]

    async def _has_ended(self, call: Call, record: Record) -> bool:
        """Is the last event that the client has heard an end that was kept?"""
        kept = kept_events(
            await call.store.drafts(record.turn.id, after_event=self.after - 1), self.after - 1
        )
        return kept is not None and bool(kept[0]) and kept[0][0].startswith(_ENDINGS)


def kept_events(drafts: Iterable[Draft], after: int) -> tuple[Sequence[bytes], int] | None:
    """The events above `after` of the newest attempt, as they were sent, and the last one's number.

    None: some of them are gone, because drafts are dropped one by one when they are old.
    """
    events: list[bytes] = []
    last, is_whole = after, True
    for draft in drafts:
        if draft.restarts:
            events.clear()  # an earlier attempt, which nobody goes on with
            is_whole = True
        elif draft.first_event > last + 1:
            is_whole = False
        frames = [piece + b"\n\n" for piece in draft.events.split(b"\n\n") if piece]
        events.extend(frames[max(0, after + 1 - draft.first_event) :])
        last = draft.last_event
    return (events, last) if is_whole else None


def _framed(events: Iterable[Event]) -> bytes:
    return b"".join(frame(number, data) for number, data in encoded(events))


def _error(error: NotFound, number: int) -> Event:
    failure = failure_of(error)
    return {
        "type": "error",
        "code": failure.code,
        "message": failure.message,
        "param": None,
        "sequence_number": number,
    }
