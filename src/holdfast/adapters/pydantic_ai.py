"""`HoldfastHistory`: the message history of a Pydantic AI agent, stored as a conversation.

    history = HoldfastHistory("user_123", "sqlite:///agent.db")
    result = await agent.run("Hello", message_history=await history.messages())
    await history.append(result.new_messages())

Pydantic AI has no store of its own: a program passes the history in and stores what a run returns. `append`
is one transaction, durable when it returns; the messages of a run that are appended again are stored once.
Every method exists blocking too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from ..domain.contexts import summary_body
from ..domain.messages import Message, NewMessage
from ..domain.new_messages import decode_object
from ..domain.session_messages import InContext, Named
from ..domain.views import Summary
from .bridge import Bridge, FrameworkConversation, Node
from .carried import carried, carrying, text_of

SOURCE = "pydantic-ai"
MESSAGE = "pydantic_ai_message"


class HoldfastHistory:
    """The history with this `session_id`: the conversation with the key `pydantic-ai:<session_id>`, or with
    an id of holdfast (`conv_…`, `sess_…`) any existing one. `node` is the URL of a store, or a node that the
    program has opened."""

    def __init__(self, session_id: str, node: Node, *, owner: str | None = None) -> None:
        self.session_id = session_id
        self._bridge = Bridge(node, owner)
        self._conversation = FrameworkConversation(self._bridge, SOURCE, session_id)

    async def messages(self) -> list[ModelMessage]:
        """The messages in the context, oldest first, for `message_history`."""
        return _shown(await self._bridge.run_single(self._conversation.read))

    def messages_sync(self) -> list[ModelMessage]:
        return _shown(self._bridge.call(self._conversation.read))

    async def append(self, messages: Sequence[ModelMessage]) -> None:
        """Append what a run returned (`result.new_messages()`), all or none. Messages of a run that are
        stored already are skipped."""
        named = _named(messages)
        await self._bridge.run_single(lambda: self._conversation.append(named))

    def append_sync(self, messages: Sequence[ModelMessage]) -> None:
        named = _named(messages)
        self._bridge.call(lambda: self._conversation.append(named))

    async def clear(self) -> None:
        """Empty the context. The messages stay readable in the conversation."""
        await self._bridge.run(self._clear)

    def clear_sync(self) -> None:
        self._bridge.call(self._clear)

    async def _clear(self) -> None:
        if await self._conversation.exists():
            await self._conversation.replace([])


# --- messages --------------------------------------------------------------------------------------------


def _named(messages: Sequence[ModelMessage]) -> list[Named]:
    named = []
    for position, each in enumerate(messages):
        message = message_of(each)
        name = None
        if run := getattr(each, "run_id", None):
            digest = blake2b((message.extra or "").encode(), digest_size=12).hexdigest()
            name = f"{run}:{position}:{digest}"
        named.append(Named(message, name))
    return named


def _shown(context: InContext | None) -> list[ModelMessage]:
    return [] if context is None else [model_message_of(part) for part in context.parts]


def message_of(message: ModelMessage) -> NewMessage:
    """A message of Pydantic AI as ours: what was said or called, and the message itself beside it."""
    (data,) = ModelMessagesTypeAdapter.dump_python([message], mode="json")
    return carrying(MESSAGE, data, _body(message))


def _body(message: ModelMessage) -> dict[str, Any]:
    if isinstance(message, ModelResponse):
        text = "".join(part.content for part in message.parts if isinstance(part, TextPart))
        calls = [
            {
                "id": part.tool_call_id,
                "type": "function",
                "function": {"name": part.tool_name, "arguments": part.args_as_json_str()},
            }
            for part in message.parts
            if isinstance(part, ToolCallPart)
        ]
        body: dict[str, Any] = {"role": "assistant", "content": text or None}
        if calls:
            return {**body, "tool_calls": calls}
        return {**body, "content": text or "[response]"}
    results = [part for part in message.parts if isinstance(part, ToolReturnPart | RetryPromptPart)]
    if len(results) == 1 and len(message.parts) == 1 and results[0].tool_call_id:
        return {"role": "tool", "tool_call_id": results[0].tool_call_id, "content": _said(results[0].content)}
    said = [
        _said(part.content)
        for part in message.parts
        if isinstance(part, UserPromptPart | ToolReturnPart | RetryPromptPart)
    ]
    if not said:
        system = [part.content for part in message.parts if isinstance(part, SystemPromptPart)]
        return {"role": "system", "content": "\n".join(system) or "[request]"}
    return {"role": "user", "content": "\n".join(each for each in said if each) or "[request]"}


def _said(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        return " ".join(each for each in content if isinstance(each, str)) or json.dumps(content, default=str)
    return json.dumps(content, default=str)


def model_message_of(part: Message | Summary) -> ModelMessage:
    """The message of Pydantic AI that a message carries. One of another client, and the summary of older
    ones, become a prompt or a response with its text."""
    data = carried(MESSAGE, part) if isinstance(part, Message) else None
    if data is not None:
        (found,) = ModelMessagesTypeAdapter.validate_python([data])
        return found
    body = decode_object(summary_body(part.text)) if isinstance(part, Summary) else part.content()
    text = text_of(body.get("content"))
    if body.get("role") == "assistant":
        return ModelResponse(parts=[TextPart(content=text)])
    return ModelRequest(parts=[UserPromptPart(content=text)])
