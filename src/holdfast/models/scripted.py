"""A model that answers from a script: for tests, demos and a first trial without any model.

Its script is a list, one entry for each request, or one callable for all of them; without a script it repeats
the last user message. The same script gives the same output, word by word. It keeps every request, unless
configured not to. A script that has run out raises an error.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from ..errors import ModelError
from .base import Chunk, ModelRequest, Purpose
from .chunks import ChunkMaker

Message: TypeAlias = dict[str, Any]

Line: TypeAlias = str | Mapping[str, Any] | BaseException | tuple[str, BaseException] | AsyncIterator[str]
"""One entry: a text; fields of an assistant message, such as `tool_calls` (and `finish_reason`, if it should
not follow from them); an exception to raise; a text and the exception raised after it; or an iterator of
words."""

Answer: TypeAlias = Callable[[list[Message], Purpose], Line | Awaitable[Line]]


def echo(messages: list[Message], purpose: Purpose) -> str:
    """Repeat the last message; for a transcript to be summarised, only its length."""
    if purpose is Purpose.SUMMARY:
        said = sum(len(_text(message.get("content"))) for message in messages)
        return f"They spoke; it was a transcript of {said} characters."
    for message in reversed(messages):
        if message.get("role") == "user":
            return f"You said: {_text(message.get('content'))}"
    return "You said nothing."


class ScriptedModel:
    """Streams its script, waiting `delay` seconds before each word."""

    def __init__(
        self,
        script: Sequence[Line | Answer] | Answer = echo,
        *,
        delay: float = 0.0,
        window: int | None = 8192,
        name: str = "scripted",
        keeps_requests: bool = True,
    ) -> None:
        self._script = script
        self._delay = delay
        self._window = window
        self._name = name
        self._keeps_requests = keeps_requests
        self.requests: list[ModelRequest] = []
        self.calls = 0
        """How many requests it got."""

    @property
    def description(self) -> str:
        return f"{self._name} (a script, not a model)"

    async def models(self) -> list[dict[str, Any]]:
        return [{"id": self._name, "object": "model", "created": 0, "owned_by": "holdfast"}]

    async def window(self, model: str | None = None) -> int | None:
        return self._window

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        self.calls += 1
        if self._keeps_requests:
            self.requests.append(request)
        messages: list[Message] = msgspec.json.decode(request.messages)
        line = await self._line(self.calls, messages, request.purpose)
        if isinstance(line, BaseException):
            raise line
        fields, breaks_off = _fields(line)
        maker = ChunkMaker(request.model or self._name)
        yield maker.delta(role="assistant")
        spoken = 0
        async for word in self._words(
            line if isinstance(line, AsyncIterator) else fields.pop("content", None)
        ):
            spoken += 1
            yield maker.delta(content=word)
        if breaks_off is not None:
            raise breaks_off
        reason = fields.pop("finish_reason", "tool_calls" if fields.get("tool_calls") else "stop")
        for piece in _pieces(fields):
            yield maker.delta(**piece)
        heard = sum(len(_text(message.get("content")).split()) for message in messages)
        yield maker.finish(reason)
        yield maker.usage(_usage(heard, spoken))

    async def close(self) -> None:
        return None

    async def _line(self, call: int, messages: list[Message], purpose: Purpose) -> Line:
        entry: Line | Answer
        if callable(self._script):
            entry = self._script
        elif call <= len(self._script):
            entry = self._script[call - 1]
        else:
            raise ModelError(f"the script has {len(self._script)} answers, and this is request {call}")
        if not callable(entry):
            return entry
        line = entry(messages, purpose)
        return await line if inspect.isawaitable(line) else line

    async def _words(self, said: str | AsyncIterator[str] | None) -> AsyncIterator[str]:
        if isinstance(said, AsyncIterator):
            async for word in said:
                yield word
            return
        for word in _split(said or ""):
            await asyncio.sleep(self._delay)
            yield word


def _split(text: str) -> list[str]:
    """Words with their leading blanks: joined they are the text."""
    return re.findall(r"\s*\S+(?:\s+\Z)?|\s+\Z", text)


def _fields(line: Line) -> tuple[dict[str, Any], BaseException | None]:
    if isinstance(line, str):
        return {"content": line}, None
    if isinstance(line, tuple):
        return {"content": line[0]}, line[1]
    return (dict(line), None) if isinstance(line, Mapping) else ({}, None)


def _pieces(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Tool calls as servers stream them: first the name, then the arguments."""
    for index, call in enumerate(fields.pop("tool_calls", None) or ()):
        function = dict(call.get("function") or {})
        arguments = function.pop("arguments", "")
        begun = {"index": index, "type": "function", **call, "function": {**function, "arguments": ""}}
        yield {"tool_calls": [begun]}
        yield {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}
    fields.pop("role", None)
    if fields:
        yield fields


def _usage(heard: int, spoken: int) -> dict[str, int]:
    return {"prompt_tokens": heard, "completion_tokens": spoken, "total_tokens": heard + spoken}


def _text(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


Answers: TypeAlias = Callable[[list[dict[str, Any]], str], Awaitable[str] | str]


class CallableModel:
    """This callable as a model."""

    def __init__(self, answers: Answers, *, window: int | None = None) -> None:
        self._answers = answers
        self._window = window
        self._name = getattr(answers, "__name__", type(answers).__name__)
        call = getattr(type(answers), "__call__", None)  # noqa: B004
        self._is_async = inspect.iscoroutinefunction(answers) or inspect.iscoroutinefunction(call)

    @property
    def description(self) -> str:
        return f"{self._name} (a callable)"

    async def models(self) -> list[dict[str, Any]]:
        return [{"id": self._name, "object": "model", "created": 0, "owned_by": "callable"}]

    async def window(self, model: str | None = None) -> int | None:
        return self._window

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        messages = msgspec.json.decode(request.messages)
        try:
            text: object
            if self._is_async:
                text = self._answers(messages, request.purpose.value)
            else:  # it may block: not in the event loop's thread
                text = await asyncio.to_thread(self._answers, messages, request.purpose.value)
            if inspect.isawaitable(text):
                text = await text
        except ModelError:
            raise
        except Exception as problem:
            raised = f"the model {self._name} raised {type(problem).__name__}"
            raise ModelError(f"{raised}: {problem}", public=raised) from problem
        if not isinstance(text, str):
            raise ModelError(f"the model {self._name} must return a str, and returned {type(text).__name__}")
        maker = ChunkMaker(self._name)
        yield maker.delta(role="assistant", content=text)
        yield maker.finish("stop")

    async def close(self) -> None:
        return None
