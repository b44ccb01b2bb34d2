"""A turn as it is ordered: what begins it, how it is told, and what the model gets besides the context."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..domain.turns import TurnRequest
from .running_turn import Client, Telling


async def allowed() -> None:
    """The check of a caller whose right cannot end: this program's own."""


@dataclass(frozen=True, slots=True)
class Order:
    request: TurnRequest
    telling: Telling
    instructions: tuple[bytes, ...] = ()
    """Messages that go first, as JSON; not stored."""
    options: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    prints: tuple[bytes, ...] = ()
    """Of the request's messages."""
    history: bytes | None = None
    """The chain of what is shown before them, where the caller knows it better than the store."""
    follows: bool = False
    """Can whoever asks follow, by its checkpoints, a turn that this request already is on another node?"""
    client: Client | None = None
    """Who waits for the answer; None: nobody is connected for it."""
    tools: frozenset[str] = frozenset()
    """Those of the server's tools that whoever asks may use."""
    check: Callable[[], Awaitable[None]] = allowed
    """Raises when the caller may no longer act (KeyRevoked). Asked after every wait: before the turn begins
    and before each tool call."""
