"""Knows each model's context window (tokens) without delaying turns.

A known value is used at once and refreshed in the background. A model that does not answer in time counts as
one that reports no window. A limit learnt from an upstream's refusal takes precedence over its own report,
for LEARNT_SECONDS. A limit suggested by token reports is only a hint: it can lower a window, but not below
the one assumed for unknown models. Settings always win.

Both kinds of limits hold for the owner whose request they are from: a refusal may repeat text of the request,
and what a report says depends on the text that was sent. So no owner changes the windows of another.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from .base import Model
from .effective_window import ASSUMED_WINDOW, Window, WindowOrigin, WindowSettings, window_of

log = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")

PATIENCE_SECONDS = 5.0
KEPT_SECONDS = 60.0
LEARNT_SECONDS = 900.0
MOST_NAMES = 256
"""Clients choose model names freely, so the caches are bounded; the oldest entry is evicted."""
CONFIGURED = frozenset({WindowOrigin.NAMED, WindowOrigin.CONFIGURED})


@dataclass(slots=True)
class _KnownWindow:
    window: Window
    asked_at: float


class Windows:
    def __init__(
        self, model: Model, settings: WindowSettings, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._model = model
        self._settings = settings
        self._monotonic = monotonic
        self._known: dict[str | None, _KnownWindow] = {}
        self._learnt: dict[tuple[str, str | None], tuple[int, float]] = {}
        """By owner and name of the model."""
        self._suspected: dict[tuple[str, str | None], tuple[int, float]] = {}
        self._asking: dict[str | None, asyncio.Task[None]] = {}

    async def of(self, name: str | None, owner: str = "") -> Window:
        """The window of the model with this name for requests of this owner; None: of the default model."""
        known = self._known.get(name)
        if known is None or known.asked_at + KEPT_SECONDS <= self._monotonic():
            asking = self._ask(name)
            if known is None:
                await asyncio.wait({asking}, timeout=PATIENCE_SECONDS)
                known = self._known.get(name)
        window = known.window if known else Window(ASSUMED_WINDOW, WindowOrigin.ASSUMED)
        if window.origin in CONFIGURED:
            return window
        limit, until = self._learnt.get((owner, name), (0, 0.0))
        if limit and until > self._monotonic() and (limit < window.tokens or not is_known(window)):
            window = replace(window, tokens=limit, origin=WindowOrigin.MODEL)
        hint, until = self._suspected.get((owner, name), (0, 0.0))
        if hint and until > self._monotonic() and hint < window.tokens:
            window = replace(window, tokens=hint, origin=WindowOrigin.REPORTED)
        return window

    def learn(self, name: str | None, tokens: int, owner: str = "") -> None:
        """Record a limit from a refusal; it lowers what the model reports."""
        self._learnt.pop((owner, name), None)  # newest last
        self._learnt[owner, name] = tokens, self._monotonic() + LEARNT_SECONDS
        _bound(self._learnt)

    def suspect(self, name: str | None, tokens: int, owner: str = "") -> bool:
        """Record a limit suggested by token reports. True: it was not known before."""
        now = self._monotonic()
        _, until = self._suspected.pop((owner, name), (0, 0.0))
        self._suspected[owner, name] = max(tokens, ASSUMED_WINDOW), now + LEARNT_SECONDS
        _bound(self._suspected)
        return until <= now

    async def close(self) -> None:
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    def _ask(self, name: str | None) -> asyncio.Task[None]:
        task = self._asking.get(name)
        if task is None or task.done():
            task = self._asking[name] = asyncio.get_running_loop().create_task(self._find_out(name))
            task.add_done_callback(lambda done: self._asked(name, done))
        return task

    def _asked(self, name: str | None, task: asyncio.Task[None]) -> None:
        if self._asking.get(name) is task:
            del self._asking[name]

    async def _find_out(self, name: str | None) -> None:
        try:
            window = await window_of(self._model, self._settings, name)
        except Exception:  # runs in its own task, where a failure would go unnoticed
            log.exception("the context window of %s could not be fetched", name or "the model")
            window = Window(ASSUMED_WINDOW, WindowOrigin.ASSUMED)
        self._known.pop(name, None)  # newest last
        self._known[name] = _KnownWindow(window, self._monotonic())
        _bound(self._known)


def _bound(kept: dict[K, T]) -> None:
    while len(kept) > MOST_NAMES:
        del kept[next(iter(kept))]


def is_known(window: Window) -> bool:
    """True if settings or the model state it; False if it is assumed or derived from token reports."""
    return window.origin not in (WindowOrigin.ASSUMED, WindowOrigin.REPORTED)
