"""What tests of responses share: the events as they go over the wire, each checked by the official SDK."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.integration.api.chatting import until
from tests.integration.api.conftest import Running

PATH = "/v1/responses"
ENDINGS = ("response.completed", "response.incomplete", "response.failed")
FIELDS = {"session_id", "conversation_id", "turn_id", "compacted", "reset", "notices", "attempt"}

_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

Event = dict[str, Any]


async def respond(
    server: Running,
    input: Any = "hello",
    headers: dict[str, str] | None = None,
    client: httpx.AsyncClient | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """A response that is made."""
    answer = await post(server, {"input": input, **fields}, headers, client)
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    checked(response)
    return response


async def post(
    server: Running,
    body: Any,
    headers: dict[str, str] | None = None,
    client: httpx.AsyncClient | None = None,
) -> httpx.Response:
    """A request as it is, whatever becomes of it."""
    return await (client or server.client).post(PATH, json=body, headers=headers)


def same_response(one: dict[str, Any], other: dict[str, Any]) -> None:
    """The response that a client received, and the stored one."""
    assert one == other


async def get(
    server: Running, response_id: str, client: httpx.AsyncClient | None = None, **query: Any
) -> dict[str, Any]:
    answer = await (client or server.client).get(f"{PATH}/{response_id}", params=query)
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    checked(response)
    return response


def checked(response: dict[str, Any]) -> Response:
    """As the SDK's own type has it; an extra reason of ours is not among OpenAI's."""
    if response["incomplete_details"] == {"reason": "interrupted"}:
        response = {**response, "incomplete_details": None}
    return Response.model_validate(response, strict=True)


def spoken(response: dict[str, Any]) -> str:
    """Everything it says as text."""
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
        if part["type"] == "output_text"
    )


async def events_of(answer: httpx.Response) -> AsyncIterator[Event]:
    """The events of a stream, each checked: its name, its number, its type by the SDK."""
    assert answer.status_code == 200, await answer.aread()
    assert answer.headers["content-type"].startswith("text/event-stream")
    frame: dict[str, str] = {}
    done = False
    async for line in answer.aiter_lines():
        if line.startswith(":"):
            continue
        assert not done or not line, "an event after [DONE]"
        if line:
            name, _, value = line.partition(": ")
            assert name not in frame
            frame[name] = value
            continue
        if not frame:
            continue
        if frame == {"data": "[DONE]"}:
            done, frame = True, {}
            continue
        event: Event = json.loads(frame["data"])
        assert frame["event"] == event["type"]
        assert frame["id"] == str(event["sequence_number"])
        _check(event)
        frame = {}
        yield event
    assert not frame, "the stream ended in the middle of an event"


def _check(event: Event) -> None:
    if event["type"] in ENDINGS and event["response"]["incomplete_details"] == {"reason": "interrupted"}:
        event = {**event, "response": {**event["response"], "incomplete_details": None}}
    _EVENT.validate_python(event)


async def streamed(
    server: Running, body: dict[str, Any], headers: dict[str, str] | None = None
) -> list[Event]:
    """All events of a new response."""
    async with server.client.stream("POST", PATH, json={**body, "stream": True}, headers=headers) as answer:
        return [event async for event in events_of(answer)]


async def resumed(
    server: Running,
    response_id: str,
    after: int | None = None,
    headers: dict[str, str] | None = None,
) -> list[Event]:
    """The events that a client hears which has heard number `after`."""
    query: dict[str, Any] = {"stream": "true"}
    if after is not None:
        query["starting_after"] = after
    async with server.client.stream("GET", f"{PATH}/{response_id}", params=query, headers=headers) as answer:
        return [event async for event in events_of(answer)]


def numbers(events: list[Event]) -> list[int]:
    return [event["sequence_number"] for event in events]


def text_of(events: list[Event]) -> str:
    """What was said piece by piece."""
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


async def finished(server: Running, response_id: str, status: str = "completed") -> dict[str, Any]:
    """Wait until a response has this status."""
    found: dict[str, Any] = {}

    async def is_so() -> bool:
        nonlocal found
        found = await get(server, response_id)
        return bool(found["status"] == status)

    await until(is_so, f"the response is {status}")
    return found
