"""The library's own kind of model: an `async (messages, purpose) -> str` that the caller brings.

It gets the messages as dicts and the purpose as a word (`turn`, `summary`, `flush`), and its string becomes
the reply, in one piece: nothing streams, there is no usage, and the window is unknown unless it is given.
Whatever it raises becomes a ModelError that names it, and stays its cause.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeAlias

import msgspec

from holdfast.errors import ModelError
from holdfast.models.base import Chunk, ModelRequest
from holdfast.models.chunks import ChunkMaker

Answers: TypeAlias = Callable[[list[dict[str, Any]], str], Awaitable[str]]


class CallableModel:
    """This callable as a model."""

    def __init__(self, answers: Answers, *, window: int | None = None) -> None:
        self._answers = answers
        self._window = window
        self._name = getattr(answers, "__name__", type(answers).__name__)

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
            text: object = await self._answers(messages, request.purpose.value)
        except ModelError:
            raise
        except Exception as problem:
            raise ModelError(
                f"the model {self._name} raised {type(problem).__name__}: {problem}"
            ) from problem
        if not isinstance(text, str):
            raise ModelError(f"the model {self._name} must return a str, and returned {type(text).__name__}")
        maker = ChunkMaker(self._name)
        yield maker.delta(role="assistant", content=text)
        yield maker.finish("stop")

    async def close(self) -> None:
        return None
