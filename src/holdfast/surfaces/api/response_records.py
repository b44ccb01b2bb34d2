"""A response as it stands in the store: the turn it is a name of, what it was asked, what it has said.

While its turn runs it shows what the checkpoints hold, so that whoever looks again sees it grow, from any
node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ...domain import drafts
from ...domain.ids import message_id
from ...domain.messages import Message, MessageStatus
from ...domain.turns import Response, Turn, TurnStatus
from ..openai.items import Item, items_from, items_of
from ..openai.response_object import ResponseHead, response_error, response_object, state_of
from ..openai.responses_request import custom_tools_of
from .call import Call
from .naming import about


@dataclass(frozen=True, slots=True)
class Record:
    response: Response
    asked: Mapping[str, Any]
    """`echo` and `model` of its request."""

    @property
    def id(self) -> str:
        return self.response.id

    @property
    def turn(self) -> Turn:
        return self.response.turn

    async def object(self, call: Call) -> dict[str, Any]:
        """The response object, as it is now. A turn that has moved on while it was read is read again, or
        what it has just committed would be shown beside the drafts of it."""
        record = self
        while True:
            value = await record._object(call)
            if record.turn.status is not TurnStatus.RUNNING:
                return value
            now = await record_of(call, self.id, self.turn.owner)
            if (now.turn.status, now.turn.attempt) == (record.turn.status, record.turn.attempt):
                return value
            record = now

    async def _object(self, call: Call) -> dict[str, Any]:
        turn = self.turn
        answer = msgspec.json.decode(await call.store.turn_answer(turn.id) or b"{}")
        choices: Any = answer.get("choices") or ({},)
        session = await call.store.session(None, turn.session_id)
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
            state_of(
                turn.status,
                finish_reason=choices[0].get("finish_reason"),
                error=response_error(turn.error) if turn.error else None,
            ),
            output=await self.output(call),
            usage=answer.get("usage") or turn.usage,
            model=answer.get("model"),
            completed_at=turn.ended_at,
            holdfast=about(session, turn),
        )

    async def input(self, call: Call) -> list[Item]:
        """What the request brought."""
        last = self.turn.first_seq + self.response.brought - 1
        messages = [m for m in await call.store.turn_messages(self.turn.id) if m.seq <= last]
        return [item for message in messages for item in self._items(message)]

    async def output(self, call: Call) -> list[Item]:
        """What was answered; of several attempts the last."""
        messages = await call.store.turn_messages(self.turn.id)
        first = self.turn.first_seq + self.response.brought
        said = [message for message in messages if message.seq >= first]
        items = [
            item
            for message in said
            if message.status is MessageStatus.COMPLETED and not message.inner
            for item in self._items(message)
        ]
        if self.turn.status is TurnStatus.RUNNING:
            last = messages[-1].seq if messages else self.turn.first_seq - 1
            return items + await self._growing(call, last + 1)
        # What an attempt left unfinished was written in the moment the turn ended; older pieces are of
        # attempts that were made again.
        cut = [
            m for m in said if m.status is MessageStatus.INTERRUPTED and m.created_at == self.turn.ended_at
        ]
        if cut and self.turn.status is not TurnStatus.COMPLETED:
            items += self._items(cut[-1])
        return items

    async def _growing(self, call: Call, seq: int) -> list[Item]:
        """What the checkpoints hold of the reply that will be message `seq`."""
        drafted = await call.store.drafts(self.turn.id)
        kept = [draft for draft in drafted if draft.after_seq == seq - 1]  # not of an earlier one
        texts = {name: text for name, text in drafts.said(kept).items() if text}
        if not texts:
            return []
        reply = {"role": "assistant", "content": "", **texts}
        items = items_from(reply, message_id(self.turn.conversation_id, seq))
        items[-1]["status"] = "in_progress"
        return items

    def _items(self, message: Message) -> list[Item]:
        return items_of(message, custom_tools=custom_tools_of(self.asked["echo"]))


async def record_of(call: Call, response_id: str, owner: str | None = None) -> Record:
    """NotFound, for this owner (or whoever calls), if there is no such response."""
    response = await call.store.response(owner or call.owner, response_id)
    return Record(response, msgspec.json.decode(response.request))
