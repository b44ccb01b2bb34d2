"""The home's running server as the model of `chat` and `run`, so that no second model is loaded beside it.

It is asked where this process would otherwise look for a model or load one: `[model] kind` is auto or local,
without a base_url, and the server has the model that is wanted. Requests say `store: false`: the server only
answers, and the turn is recorded by this process. If the server stops, its successor on the same port is
waited for; only where it had the small local model, which is the same here, this process loads that instead.
A reply that had begun is cut, and `was_cut` says so, for a retry.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ..errors import BadSetting, ModelError
from ..local_server import local_key
from ..models import local
from ..models.base import Chunk, Model, ModelRequest
from ..models.choose import choose_from
from ..models.http_client import HttpFailure
from ..models.upstream import Upstream
from ..settings import Settings
from .format import note
from .shared_server import running_server

LOOK_SECONDS = 5.0
"""How long the server may take to list its models; they may be those of a slow upstream."""
RETURN_SECONDS = 60.0
"""How long a server that stopped is waited for."""
POLL_SECONDS = 0.5


async def model_beside(settings: Settings, home: Path, *, longest_wait: float) -> Model:
    """The home's running server, if it has the wanted model; else the model that `[model]` means.

    `longest_wait`: how many seconds a `Retry-After` is waited for.
    """

    async def own() -> Model:
        return await choose_from(settings.model, longest_wait=longest_wait)

    server = await _server(settings, home, longest_wait)
    return await own() if server is None else ServerModel(*server, own)


async def _server(settings: Settings, home: Path, longest_wait: float) -> tuple[Upstream, str, str] | None:
    choice = settings.model
    if choice.kind not in ("auto", "local") or choice.base_url:
        return None
    try:
        url, key = running_server(settings, home), local_key(home)
    except BadSetting:  # an unusable home: opening the store says what is wrong with it
        return None
    if url is None or key is None:
        return None
    name = choice.name or (local.NAME if choice.kind == "local" else "")
    timeout = choice.timeout_seconds
    found = Upstream(
        f"{url}/v1", key, name, timeout, backoff=(), longest_wait=longest_wait, is_own_server=True
    )
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            names = [entry["id"] for entry in await found.models()]
    except (ModelError, TimeoutError):
        names = []
    if names and (not name or name in names):
        return found, url, name or str(names[0])
    await found.close()
    return None


class ServerModel:
    """The server at `url`, whose default model is `name`. `own` returns a model of this process."""

    def __init__(self, server: Upstream, url: str, name: str, own: Callable[[], Awaitable[Model]]) -> None:
        self._server = server
        self._url = url
        self._name = name
        self._choose_own = own
        self._own: Model | None = None
        self.was_cut = False
        """True: the server stopped in the middle of the last reply. A retry may be answered."""
        self.on_wait: Callable[[str], None] = note
        """Called with a sentence when the server is waited for or replaced."""

    @property
    def description(self) -> str:
        if self._own is not None:
            return self._own.description
        return f"{self._name}, asked through the server at {self._url}"

    async def models(self) -> list[dict[str, Any]]:
        return await (self._own or self._server).models()

    async def window(self, model: str | None = None) -> int | None:
        return await (self._own or self._server).window(model or self._name)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        asked = replace(request, options={**request.options, "store": False})
        lost_at: float | None = None
        has_begun = self.was_cut = False
        while self._own is None:
            try:
                async with aclosing(self._server.stream(asked)) as chunks:
                    async for chunk in chunks:
                        has_begun = True
                        yield chunk
                return
            except ModelError as error:
                if has_begun:
                    self.was_cut = isinstance(error.__cause__, HttpFailure | OSError)
                if has_begun or error.status is not None:
                    raise
                lost_at = await self._wait(request, lost_at)
        async with aclosing(cast("AsyncGenerator[Chunk, None]", self._own.stream(request))) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _wait(self, request: ModelRequest, lost_at: float | None) -> float:
        """Wait before the server is asked again; returns since when it is lost. Replaces it if it had the
        small local model. Raises ModelError if it was waited for long enough."""
        now = time.monotonic()
        if local.is_name(request.model or self._name) and local.missing() is None:
            self._own = await self._choose_own()
            self.on_wait("the server has stopped; this process loads the model instead")
        elif lost_at is None:
            self.on_wait(f"the server at {self._url} has stopped; waiting up to {RETURN_SECONDS:g} s for it")
        elif now - lost_at > RETURN_SECONDS:
            raise ModelError(
                f"the server at {self._url} has stopped; start it again (`holdfast serve`), or name a model "
                "with --model"
            )
        await asyncio.sleep(POLL_SECONDS if self._own is None else 0)
        return lost_at or now

    async def close(self) -> None:
        await self._server.close()
        if self._own is not None:
            await self._own.close()
