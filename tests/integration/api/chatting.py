"""What tests of chat share: the official SDK in front of a server, and what is stored behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx
import msgspec
import openai
from openai.types.chat import ChatCompletion, ChatCompletionToolParam

from holdfast.domain.conversations import Address
from holdfast.domain.messages import Message
from holdfast.domain.turns import Turn, TurnStatus
from tests.integration.api.conftest import Running

PATIENCE = 60.0
PATH = "/v1/chat/completions"
TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


def sdk(server: Running, token: str | None = None, **options: Any) -> openai.AsyncOpenAI:
    """The official client; it does not retry unless told to."""
    options.setdefault("max_retries", 0)
    return openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key=token or server.admin_key, timeout=PATIENCE, **options
    )


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


def assistant(content: str) -> Any:
    return {"role": "assistant", "content": content}


def call(call_id: str, name: str = "weather", arguments: str = '{"city": "Paris"}') -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*call_ids: str) -> dict[str, Any]:
    """What a model says that wants tools."""
    return {"tool_calls": [call(call_id) for call_id in call_ids]}


def result(call_id: str, content: str) -> Any:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def conversation_of(answer: Any) -> str:
    """The stable id that an answer, an SDK's or a plain one, names."""
    return str(named_by(answer)["conversation_id"])


def session_of(answer: Any) -> str:
    return str(named_by(answer)["session_id"])


def named_by(answer: Any) -> dict[str, Any]:
    """The `holdfast` field of an answer."""
    fields: Any = answer.model_extra if isinstance(answer, ChatCompletion) else answer
    ours: dict[str, Any] = fields["holdfast"]
    return ours


async def post(
    server: Running,
    messages: Sequence[Any],
    headers: dict[str, str] | None = None,
    client: httpx.AsyncClient | None = None,
    **fields: Any,
) -> httpx.Response:
    """A request as it is, whatever becomes of it."""
    body = {"messages": messages, **fields}
    return await (client or server.client).post(PATH, json=body, headers=headers)


async def ask(
    server: Running, messages: str | Sequence[Any], headers: dict[str, str] | None = None, **fields: Any
) -> dict[str, Any]:
    """A request that is answered."""
    given = [user(messages)] if isinstance(messages, str) else messages
    response = await post(server, given, headers, **fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def text_of(answer: Any) -> str:
    return str(answer["choices"][0]["message"]["content"])


def by_id(session_id: str) -> dict[str, str]:
    return {"x-holdfast-session-id": session_id}


def by_key(key: str) -> dict[str, str]:
    return {"x-holdfast-session-key": key}


def once(key: str, **headers: str) -> dict[str, str]:
    return {"idempotency-key": key, **headers}


async def stored(server: Running, conversation_id: str, owner: str | None = None) -> list[Message]:
    return list((await server.store.messages(owner, conversation_id)).items)


async def said(server: Running, conversation_id: str) -> list[str]:
    """Every stored message as `role: text`, `…` behind one that was interrupted."""
    return [
        f"{message.role}: {message.content().get('content')}"
        + ("…" if message.status.value == "interrupted" else "")
        for message in await stored(server, conversation_id)
    ]


async def context(server: Running, conversation_id: str) -> list[dict[str, Any]]:
    """What the model would get now."""
    place = await server.store.resolve(None, Address(id=conversation_id))
    return (await server.store.context(None, place.tip.id)).messages()


async def turns(server: Running, conversation_id: str) -> list[Turn]:
    """Oldest first."""
    return list(reversed(await server.store.turns(None, conversation_id)))


async def conversations(server: Running) -> int:
    return (await server.store.statistics(None)).conversations


def heard(server: Running, request: int = -1) -> list[dict[str, Any]]:
    """The messages a scripted model was sent."""
    messages: list[dict[str, Any]] = msgspec.json.decode(server.model.requests[request].messages)
    return messages


async def until(condition: Callable[[], Any], what: str) -> None:
    """Wait until something has become true; `condition` may be a coroutine function."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        assert asyncio.get_running_loop().time() < deadline, f"it never came to pass that {what}"
        await asyncio.sleep(0.01)


async def ended(server: Running, conversation_id: str, status: TurnStatus) -> None:
    """Wait until the newest turn of a conversation has this status."""

    async def is_so() -> bool:
        return (await turns(server, conversation_id))[-1].status is status

    await until(is_so, f"the turn is {status}")


class Words:
    """An answer whose words come when the test says so: `say`, then `finish`."""

    def __init__(self) -> None:
        self._words: asyncio.Queue[str | BaseException | None] = asyncio.Queue()
        self.asked = asyncio.Event()

    def say(self, *words: str) -> None:
        for word in words:
            self._words.put_nowait(word)

    def finish(self, *words: str) -> None:
        self.say(*words)
        self._words.put_nowait(None)

    def break_off(self, error: BaseException) -> None:
        self._words.put_nowait(error)

    def __call__(self, messages: Any, purpose: Any) -> AsyncIterator[str]:
        """An entry of a script."""
        self.asked.set()
        return self._spoken()

    async def _spoken(self) -> AsyncIterator[str]:
        while (word := await self._words.get()) is not None:
            if isinstance(word, BaseException):
                raise word
            yield word
