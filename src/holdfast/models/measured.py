"""Measures the calls of a model: seconds to the first token and to the end, tokens, errors.

The meter gets only figures and names of models. Clients choose names, so it bounds how many it keeps.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Protocol, cast

from ..errors import ModelError
from .base import Chunk, Model, ModelRequest
from .names import NamedModel


class ModelMeter(Protocol):
    def first_token(self, model: str, seconds: float) -> None: ...
    def answered(self, model: str, seconds: float, input_tokens: int, output_tokens: int) -> None: ...
    def failed(self, model: str, status: int | None) -> None: ...


def measured(model: Model, meter: ModelMeter) -> Model:
    """This model, with each of its calls measured. Below the mapping of names: models are counted by their
    own names, and a fallback separately."""
    if isinstance(model, NamedModel):
        model.inner = MeasuredModel(model.inner, meter)
        return model
    return MeasuredModel(model, meter)


class MeasuredModel:
    def __init__(self, inner: Model, meter: ModelMeter) -> None:
        self.inner = inner
        self._meter = meter

    @property
    def description(self) -> str:
        return self.inner.description

    async def models(self) -> list[dict[str, Any]]:
        return await self.inner.models()

    async def window(self, model: str | None = None) -> int | None:
        return await self.inner.window(model)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        began, name, usage = time.monotonic(), request.model or "", {}
        is_first = True
        try:
            async with aclosing(cast("AsyncGenerator[Chunk, None]", self.inner.stream(request))) as chunks:
                async for chunk in chunks:
                    if is_first and (chunk.text or chunk.adds or _calls(chunk)):
                        is_first = False
                        name = str(chunk.value.get("model") or name)
                        self._meter.first_token(name, time.monotonic() - began)
                    if chunk.text is None and chunk.value.get("usage"):
                        usage = chunk.value["usage"]
                    yield chunk
        except ModelError as error:
            self._meter.failed(name, error.status)
            raise
        counts = (_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")))
        self._meter.answered(name, time.monotonic() - began, *counts)

    async def close(self) -> None:
        await self.inner.close()


def innermost(model: Model) -> Model:
    """The model that answers, without the mapping of names and the meter."""
    while isinstance(model, NamedModel | MeasuredModel):
        model = model.inner
    return model


def _calls(chunk: Chunk) -> bool:
    """True if it begins or continues the call of a tool."""
    return any((choice.get("delta") or {}).get("tool_calls") for choice in chunk.value.get("choices") or ())


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
