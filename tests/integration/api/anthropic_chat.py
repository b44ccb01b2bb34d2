"""What tests of Anthropic's API share: the official SDK in front of a server."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx

from tests.integration.api.chatting import PATIENCE
from tests.integration.api.conftest import Running

PATH = "/v1/messages"
TOOLS: list[Any] = [
    {
        "name": "weather",
        "description": "The weather in a city",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]


def sdk(server: Running, token: str | None = None, **options: Any) -> anthropic.AsyncAnthropic:
    """The official client; it does not retry unless told to."""
    options.setdefault("max_retries", 0)
    return anthropic.AsyncAnthropic(
        base_url=server.url, api_key=token or server.admin_key, timeout=PATIENCE, **options
    )


async def create(client: anthropic.AsyncAnthropic, messages: list[Any], **fields: Any) -> Any:
    """One plain request."""
    fields.setdefault("max_tokens", 100)
    fields.setdefault("model", "m")
    return await client.messages.create(messages=messages, **fields)


async def post(server: Running, body: dict[str, Any], **headers: str) -> httpx.Response:
    """A raw request, with `max_tokens` unless the body has it."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return await server.client.post(PATH, json={"max_tokens": 100, **body}, headers=given)


def events_in(text: str) -> list[tuple[str, Any]]:
    """The events of a stream: names and data."""
    found = []
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            name, data = lines
            assert name.startswith("event: ") and data.startswith("data: ")
            found.append((name[7:], httpx.Response(200, text=data[6:]).json()))
    return found


def blocks_of(message: Any) -> list[dict[str, Any]]:
    """The content of an SDK's message, as a client sends it back."""
    return [block.model_dump(exclude_none=True) for block in message.content]


def ours(message: Any) -> dict[str, Any]:
    """The `holdfast` field of an SDK's message."""
    found: dict[str, Any] = message.model_extra["holdfast"]
    return found
