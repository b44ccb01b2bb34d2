"""The history of a socket's newest response, so that the next message need only send what is new.

It is used if the response was not stored, or if a header of the socket names the conversation: then the whole
history is matched with the stored one, instructions included. Any other stored response is continued from the
store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...domain.history import check_results
from ...domain.new_messages import new_message
from ...errors import BadMessage
from .input_items import messages_from_input
from .parameters import BadParameter
from .responses_request import ResponsesRequest


@dataclass(slots=True)
class Chain:
    id: str | None = None
    """The newest response; None: none can be continued from here."""
    stored: bool = False
    warms_up: bool = False
    """True: the request being handled prepares a response and asks for no answer (`generate: false`)."""
    _messages: tuple[dict[str, Any], ...] = ()
    _coming: tuple[dict[str, Any], ...] = ()
    """The messages of the request that is being answered, with those before it."""
    _tools: tuple[Mapping[str, Any], ...] = ()
    """The items `additional_tools` of the history: its tools hold for what continues it."""
    _coming_tools: tuple[Mapping[str, Any], ...] = ()
    _bytes: int = 0
    """About how large the history is."""
    _grows: bool = False

    def begin(self, *, warms_up: bool) -> None:
        self.warms_up, self._grows = warms_up, False
        self._coming = ()

    def with_tools(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a message, with the items `additional_tools` of the history that it continues, unless
        it brings its own."""
        value = fields.get("input")
        own = [item for item in value if _adds_tools(item)] if isinstance(value, list) else []
        self._coming_tools = tuple(own)
        if own or not self._tools or self.id is None or fields.get("previous_response_id") != self.id:
            return dict(fields)
        self._coming_tools = self._tools
        new = [{"role": "user", "content": value}] if isinstance(value, str) else value
        return {**fields, "input": [*self._tools, *new] if isinstance(new, list) else value}

    def continues(self, asked: ResponsesRequest, *, named: bool) -> bool:
        """True: this request continues from the messages here. `named`: headers name its conversation."""
        return self.id is not None and asked.previous_response_id == self.id and (named or not self.stored)

    def extended(self, asked: ResponsesRequest) -> ResponsesRequest:
        """The request with the messages before it. Raises BadParameter if a tool result answers no call."""
        try:
            called = [call for value in self._messages for call in new_message(value).calls]
            check_results([new_message(value) for value in asked.messages], (), called)
        except BadMessage as error:
            raise BadParameter("input", f"cannot be used: {error}") from None
        self._grows = True
        return replace(asked, messages=(*self._messages, *asked.messages))

    def note(self, messages: Sequence[dict[str, Any]]) -> None:
        """Note the whole history of the request that is being answered."""
        self._coming = tuple(messages)

    def end(self, response: Mapping[str, Any]) -> bool:
        """Keep the response with its history, unless it failed. False: it failed. One whose output cannot be
        input, such as an image or a call without a name, is forgotten."""
        if response["status"] == "failed":
            return False
        output = [item for item in response["output"] if item["type"] != "compaction"]  # noted by `note`
        try:
            said = messages_from_input(output)
        except BadParameter:
            self.forget()
            return True
        self.id = response["id"]
        self.stored = response.get("conversation") is not None
        self._messages = (*self._coming, *said)
        self._tools = self._coming_tools
        return True

    def limit(self, more: int, most_mb: float) -> None:
        """Add the bytes of a request and its answer. A history larger than a request may be is forgotten."""
        self._bytes = self._bytes + more if self._grows else more
        if self._bytes > most_mb * 2**20:
            self.forget()

    def forget(self) -> None:
        self.id, self._messages, self._tools, self._bytes = None, (), (), 0


def _adds_tools(item: object) -> bool:
    return isinstance(item, Mapping) and item.get("type") == "additional_tools"
