"""A response as it stands in the store: the turn it is a name of, what it was asked, what it has said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ...domain.messages import Message, MessageStatus
from ...domain.turns import Response, Turn, TurnStatus
from ..openai.items import items_of
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
        """The response object, as it is now."""
        turn, echo = self.turn, self.asked["echo"]
        answer = msgspec.json.decode(await call.store.turn_answer(turn.id) or b"{}")
        choices: Any = answer.get("choices") or ({},)
        custom = custom_tools_of(echo)
        output = [item for m in await self.output(call) for item in items_of(m, custom_tools=custom)]
        session = await call.store.session(None, turn.session_id)
        return response_object(
            ResponseHead(
                self.id,
                self.response.created_at,
                echo,
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
            output=output,
            usage=answer.get("usage") or turn.usage,
            model=answer.get("model"),
            completed_at=turn.ended_at,
            holdfast=about(session, turn),
        )

    async def input(self, call: Call) -> list[Message]:
        """The messages that the request brought."""
        last = self.turn.first_seq + self.response.brought - 1
        return [message for message in await call.store.turn_messages(self.turn.id) if message.seq <= last]

    async def output(self, call: Call) -> list[Message]:
        """What was answered; of several attempts the last."""
        first = self.turn.first_seq + self.response.brought
        messages = [m for m in await call.store.turn_messages(self.turn.id) if m.seq >= first]
        if self.turn.status is TurnStatus.COMPLETED or not messages:
            return [message for message in messages if message.status is MessageStatus.COMPLETED]
        cut = [message for message in messages if message.status is MessageStatus.INTERRUPTED]
        whole = [message for message in messages if message.status is MessageStatus.COMPLETED]
        return [*whole, *cut[-1:]] if self.turn.status is not TurnStatus.RUNNING else whole


async def record_of(call: Call, response_id: str) -> Record:
    """NotFound, for this owner, if there is no such response."""
    response = await call.store.response(call.owner, response_id)
    return Record(response, msgspec.json.decode(response.request))
