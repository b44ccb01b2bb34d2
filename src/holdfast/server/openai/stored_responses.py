"""Reads a response from the store: its turn, its request, its input and output items, its events.

While its turn runs, the output is that of its drafts, so that a client can poll it from any node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ...domain.drafts import Draft, drafted_text
from ...domain.ids import message_id
from ...domain.messages import Message, MessageStatus
from ...domain.responses import Response
from ...domain.turns import Delivery, Turn, TurnStatus
from ...domain.value import Value
from ...errors import HoldfastError, NotFound, StoreError, StoreFailed
from ..conversation_ref import about
from ..http import RequestContext
from ..http_errors import failure_of
from ..sse import DONE, HEADERS, LOOK_SECONDS, Listener
from .items import Item, items_from, items_of
from .response_events import LAST, Event, created_before, frames, replay, terminal_event
from .response_object import QUEUED, ResponseHead, response_error, response_object, state_of
from .responses_request import custom_tools_of


class Record(Value, frozen=True):
    response: Response
    asked: Mapping[str, Any]
    """`echo` and `model` of its request."""

    @property
    def id(self) -> str:
        return self.response.id

    @property
    def turn(self) -> Turn:
        return self.response.turn

    async def object(self, call: RequestContext) -> dict[str, Any]:
        """The response object in its present state. If the turn changed status or attempt during the read, it
        is read again; otherwise a reply could be shown twice, as committed and as draft."""
        record = self
        while True:
            value = await record._object(call)
            if record.turn.is_final:
                return value
            now = await record_of(call, self.id, self.turn.owner)
            if (now.turn.status, now.turn.attempt) == (record.turn.status, record.turn.attempt):
                return value
            record = now

    async def _object(self, call: RequestContext) -> dict[str, Any]:
        turn = self.turn
        answer = msgspec.json.decode(await call.hf.turn_answer(turn.id) or b"{}")
        choices: Any = answer.get("choices") or ({},)
        session = await call.hf.find_session(None, turn.session_id)
        output = await self.output(call)
        state = state_of(
            turn.shown_status,
            finish_reason=choices[0].get("finish_reason"),
            error=response_error(turn.error or turn.why or "") if turn.error or turn.why else None,
            is_fault=self.response.background and turn.recovery.cause is not None,
        )
        return response_object(
            ResponseHead(
                self.id,
                self.response.created_at,
                self.asked["echo"],
                self.asked.get("model") or "",
                turn.conversation_id,
                self.response.previous_id,
                self.response.background,
            ),
            QUEUED if turn.waits and not output else state,
            output=output,
            usage=answer.get("usage") or turn.usage,
            model=answer.get("model"),
            completed_at=turn.ended_at,
            holdfast=about(session, turn),
        )

    async def input(self, call: RequestContext) -> list[Item]:
        """The items of the request's input."""
        first = self.turn.first_seq
        last = first + self.response.brought - 1
        messages = [m for m in await call.hf.turn_messages(self.turn.id) if first <= m.seq <= last]
        return [item for message in messages for item in self._items(message)]

    async def output(self, call: RequestContext) -> list[Item]:
        """The items of the answer; if there were several attempts, of the last."""
        messages = await call.hf.turn_messages(self.turn.id)
        first = self.turn.first_seq + self.response.brought
        said = [message for message in messages if message.seq >= first and message.role != "user"]
        items = [
            item
            for message in said
            if message.status is MessageStatus.COMPLETED and not message.inner
            for item in self._items(message)
        ]
        if self.turn.status is TurnStatus.RUNNING and not self.turn.waits:
            last = messages[-1].seq if messages else self.turn.first_seq - 1
            return items + await self._growing(call, last + 1)
        # The partial reply of the last attempt has the time at which the turn ended; older partial replies
        # are of attempts that were retried.
        cut = [
            m for m in said if m.status is MessageStatus.INTERRUPTED and m.created_at == self.turn.ended_at
        ]
        if cut and self.turn.status is not TurnStatus.COMPLETED:
            unfinished = self._items(cut[-1])
            if self.turn.waits:
                unfinished[-1]["status"] = "in_progress"
            items += unfinished
        return items

    async def _growing(self, call: RequestContext, seq: int) -> list[Item]:
        """The items, as far as drafts hold them, of the reply that will be message `seq`."""
        drafted = await call.hf.drafts(self.turn.id)
        kept = [draft for draft in drafted if draft.after_seq == seq - 1]  # not of an earlier reply
        texts = {name: text for name, text in drafted_text(kept).items() if text}
        if not texts:
            return []
        reply = {"role": "assistant", "content": "", **texts}
        items = items_from(reply, message_id(self.turn.conversation_id, seq))
        items[-1]["status"] = "in_progress"
        return items

    def _items(self, message: Message) -> list[Item]:
        return items_of(message, custom_tools=custom_tools_of(self.asked["echo"]))


async def record_of(call: RequestContext, response_id: str, owner: str | None = None) -> Record:
    """The response of this owner (default: the caller); raises NotFound if there is none."""
    response = await call.hf.response(owner or call.owner, response_id)
    return Record(response, msgspec.json.decode(response.request))


_BEGINS_AGAIN = b"event: response.in_progress\n"
_ENDINGS = tuple(f"event: {name}\n".encode() for name in set(LAST.values()))


@dataclass(slots=True)
class StoredStream:
    """Streams the events of a response numbered above `after`, from the store."""

    response_id: str
    owner: str
    after: int
    headers: Mapping[str, str] = field(default_factory=dict)

    async def send(self, call: RequestContext) -> None:
        await record_of(call, self.response_id, self.owner)
        call.leave_slot()
        async with Listener(call) as listener:
            await call.start(200, {**HEADERS, **self.headers})
            ended = await self.follow(call, listener, self.after)
            # Read before the end is sent: once a client has it, it may send the same words as a new request.
            answered = ended and self.owner == call.owner and await self._completed_turn(call)
            if await call.finish(DONE if ended else b"") and answered and not listener.gone:
                call.services.runner.receipts.note(answered, Delivery.WHOLE)

    async def follow(self, call: RequestContext, listener: Listener, after: int) -> bool:
        """Send the events numbered above `after` on a stream that is open. True: the terminal event was
        sent."""
        self.after = after
        try:
            return await self._tell(call, listener)
        except StoreFailed:
            raise  # the server must stop
        except (NotFound, StoreError) as error:  # deleted meanwhile, or the store is unreachable
            await listener.say(b"".join(frames([_error(error, self.after + 1)])))
            return False

    async def _completed_turn(self, call: RequestContext) -> str | None:
        """The id of the response's turn, if that is completed."""
        try:
            record = await record_of(call, self.response_id, self.owner)
        except NotFound:  # deleted meanwhile
            return None
        is_answered = record.turn.status is TurnStatus.COMPLETED and not record.response.joined
        return record.turn.id if is_answered else None

    async def _tell(self, call: RequestContext, listener: Listener) -> bool:
        """Send the events as they are stored. True: the terminal event was sent."""
        while not listener.gone and not call.services.draining.is_set():
            version = call.hf.version()
            record = await record_of(call, self.response_id, self.owner)
            drafts = await call.hf.drafts(record.turn.id, after_event=self.after)
            # Events of a turn that its messages joined are those of another response.
            kept = None if record.response.joined else kept_events(drafts, self.after)
            if kept is not None:
                events, last = kept
                if self.after < 0 and events and events[0].startswith(_BEGINS_AGAIN):
                    await listener.say(created_before(events[0]))
                self.after = last
                for event in events:
                    await listener.say(event)
                if events and events[-1].startswith(_ENDINGS):
                    return True
            if record.turn.is_final:
                await listener.say(b"".join(frames(await self._end(call, record, kept is not None))))
                return True
            await call.changed(version, LOOK_SECONDS)
            if not await listener.still_there():
                break
        return False

    async def _end(self, call: RequestContext, record: Record, are_kept: bool) -> list[Event]:
        """The final events if no draft has the terminal event, made from the stored response."""
        heard = self.after
        response = await record.object(call)
        above = await call.hf.last_number(record.turn.id) + 1
        if not above or not are_kept:
            told = replay(response)
            if heard == told[-1]["sequence_number"]:
                return []
            return [event for event in told if event["sequence_number"] > heard] or [
                terminal_event(response, heard + 1)
            ]
        # All events in drafts have been sent: only the terminal event can be missing.
        if heard == above or await self._has_ended(call, record):
            return []
        return [terminal_event(response, max(above, heard + 1))]

    async def _has_ended(self, call: RequestContext, record: Record) -> bool:
        """True: the last event that the client has received is a stored terminal event."""
        kept = kept_events(await call.hf.drafts(record.turn.id, after_event=self.after - 1), self.after - 1)
        return kept is not None and bool(kept[0]) and kept[0][0].startswith(_ENDINGS)


def kept_events(drafts: Iterable[Draft], after: int) -> tuple[Sequence[bytes], int] | None:
    """The events above `after` of the newest attempt, as they were sent, and the last one's number.

    None: some of them are missing, because old drafts are deleted one by one.
    """
    events: list[bytes] = []
    last, is_whole = after, True
    for draft in drafts:
        if draft.restarts:
            events.clear()  # of an earlier attempt, which was abandoned
            is_whole = True
        elif draft.first_event > last + 1:
            is_whole = False
        frames = [piece + b"\n\n" for piece in draft.events.split(b"\n\n") if piece]
        events.extend(frames[max(0, after + 1 - draft.first_event) :])
        last = draft.last_event
    return (events, last) if is_whole else None


def _error(error: HoldfastError, number: int) -> Event:
    failure = failure_of(error)
    return {
        "type": "error",
        "code": failure.code,
        "message": failure.message,
        "param": None,
        "sequence_number": number,
        "error": failure.object(),
    }
