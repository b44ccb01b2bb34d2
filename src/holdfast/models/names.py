"""Maps model names by the settings: `[model.aliases]` and `[model] fallbacks`.

An alias is a client's name for one of the model's own: a request for it is sent under the other name. The
alias `*` matches every name that is neither an alias nor in the model's list. Without an alias nothing is
mapped: a name that the model does not have is refused by it. (The small local model has no other names to
refuse: it answers under every one.)

Fallbacks are tried in order when the default model cannot answer: it is not there, overloaded, broken or not
reachable. Nothing is tried once a chunk of an answer has arrived, or after a refusal of the request itself
(400, 401, 413, …). The chunks carry the name of the model that answered.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

from ..errors import ModelError
from .base import Chunk, Model, ModelRequest

log = logging.getLogger(__name__)

EVERY_OTHER = "*"
LIST_KEPT_SECONDS = 60.0
PASSING = frozenset({404, 408, 409, 429, 500, 502, 503, 504, 529})
"""The statuses after which another model may answer the same request."""


class NamedModel:
    """The model `inner` under the names of the settings. `name` is the default model's; empty: its first."""

    def __init__(
        self,
        inner: Model,
        aliases: Mapping[str, str],
        fallbacks: Sequence[str] = (),
        name: str = "",
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inner = inner
        self._aliases = aliases
        self._fallbacks = tuple(fallbacks)
        self._name = name
        self._clock = clock
        self._listed: frozenset[str] = frozenset()
        self._listed_until = float("-inf")

    @property
    def description(self) -> str:
        return self.inner.description

    async def models(self) -> list[dict[str, Any]]:
        """The model's own list, then the aliases, each with `alias_of`."""
        found = await self.inner.models()
        self._remember(found)
        known = {entry["id"] for entry in found}
        return [
            *found,
            *(
                {"id": alias, "object": "model", "created": 0, "owned_by": "holdfast", "alias_of": target}
                for alias, target in self._aliases.items()
                if alias not in known and alias != EVERY_OTHER
            ),
        ]

    async def window(self, model: str | None = None) -> int | None:
        return await self.inner.window(await self.own_name(model))

    async def own_name(self, name: str | None) -> str | None:
        """The model's own name for this one. None: the default model."""
        if not name or name in self._aliases:
            return self._aliases[name] if name else None
        other = self._aliases.get(EVERY_OTHER)
        if other is None or name in (self._name, *self._aliases.values(), *self._fallbacks):
            return name
        return name if name in await self._own_names() else other

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        name = await self.own_name(request.model)
        request = replace(request, model=name)
        for other in self._fallbacks if name in (None, self._name) else ():
            begun = False
            try:
                async with aclosing(self._stream(request)) as answer:
                    async for chunk in answer:
                        begun = True
                        yield chunk
                return
            except ModelError as error:
                if begun or not (error.status is None or error.status in PASSING):
                    raise
                log.warning("%s; trying the model %s instead", error, other)
                request = replace(request, model=other)
        async with aclosing(self._stream(request)) as answer:
            async for chunk in answer:
                yield chunk

    async def close(self) -> None:
        await self.inner.close()

    def _stream(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        return cast("AsyncGenerator[Chunk, None]", self.inner.stream(request))

    async def _own_names(self) -> frozenset[str]:
        """The names in the model's list, asked for once a minute; while it is down, those last seen."""
        if self._listed_until <= self._clock():
            try:
                self._remember(await self.inner.models())
            except ModelError as error:
                log.debug("the list of models cannot be read now: %s", error)
        return self._listed

    def _remember(self, found: Sequence[Mapping[str, Any]]) -> None:
        self._listed = frozenset(str(entry["id"]) for entry in found)
        self._listed_until = self._clock() + LIST_KEPT_SECONDS
