"""A model's context window in tokens, as far as holdfast knows, and where the figure comes from.

Precedence: the settings for this model's name, the settings for all models, then what the model reports. If
there is none, a small window is assumed; the origin says so, so that the operator can be warned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Protocol

from ..domain.value import Value
from ..errors import ModelError
from .base import Model
from .windows import tagged

ASSUMED_WINDOW = 8192
TIMES_FIXED = 8
"""An assumed window is at least this many times as large as the instructions and tools, if they fill half of
it: a client that sends so much, such as a coding agent, is made for models with large windows."""
SMALLEST_WINDOW = 256
"""A smaller window cannot hold a question and its answer."""


class WindowOrigin(StrEnum):
    """Where the window's size comes from."""

    NAMED = "model.windows"
    CONFIGURED = "model.context_window"
    MODEL = "the model"
    REPORTED = "what its reports suggest"
    ASSUMED = "assumed"


class Window(Value, frozen=True):
    tokens: int
    origin: WindowOrigin


def for_fixed_part(window: Window, tokens: int) -> Window:
    """The window for requests whose instructions and tools, which no compaction shortens, have this many
    tokens. Only an assumed window changes: a known one is what it is."""
    if window.origin is not WindowOrigin.ASSUMED or 2 * tokens <= window.tokens:
        return window
    return replace(window, tokens=TIMES_FIXED * tokens)


class WindowSettings(Protocol):
    """What `[model]` says about windows, and the name of the default model."""

    @property
    def name(self) -> str: ...
    @property
    def context_window(self) -> int: ...
    @property
    def windows(self) -> Mapping[str, int]: ...
    @property
    def aliases(self) -> Mapping[str, str]: ...


async def window_of(model: Model, settings: WindowSettings, name: str | None = None) -> Window:
    """The window of the model with this name; without one, of the default model."""
    name = name or settings.name
    if settings.windows:
        called = name or await _first(model)
        for each in (called, settings.aliases.get(called)):
            for known, tokens in settings.windows.items():
                if each and tagged(known) == tagged(each):
                    return Window(tokens, WindowOrigin.NAMED)
    if settings.context_window:
        return Window(settings.context_window, WindowOrigin.CONFIGURED)
    if said := await model.window(name or None):
        return Window(said, WindowOrigin.MODEL)
    return Window(ASSUMED_WINDOW, WindowOrigin.ASSUMED)


async def _first(model: Model) -> str:
    """The default model's name; empty if it cannot be known now."""
    try:
        return next((str(entry["id"]) for entry in await model.models()), "")
    except ModelError:
        return ""
