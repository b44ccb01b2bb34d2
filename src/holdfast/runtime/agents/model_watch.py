"""Knows whether the model can be reached: asks it for its list of models, at start and every half minute.

A change is logged once. While the model is down it is asked more often. Being up says that the server answers
and takes the key, not that it will answer the next request. A server without a list of models is up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from ...errors import ModelError
from ...models.base import Model
from .. import periodic

log = logging.getLogger(__name__)

UP_SECONDS = 30.0
DOWN_SECONDS = 5.0
CHECK_SECONDS = 10.0


class ModelStatus(StrEnum):
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class ModelHealth:
    """The result of the last check; `since` is when the status became this one."""

    status: ModelStatus
    since: datetime
    problem: str = ""
    """Why it is down, for the operator; empty if it is up."""
    public: str = ""
    """The same without the model's address."""
    names: tuple[str, ...] = ()
    """The models it lists."""

    @property
    def is_up(self) -> bool:
        return self.status is ModelStatus.UP


class ModelWatch:
    """Checks one model. `start` begins to check periodically."""

    def __init__(self, model: Model, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._model = model
        self._clock = clock
        self._health: ModelHealth | None = None
        self._loop = periodic.every(
            UP_SECONDS,
            self.check_once,
            "check the model",
            pause=lambda health: UP_SECONDS if getattr(health, "is_up", False) else DOWN_SECONDS,
        )

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop()

    async def health(self) -> ModelHealth:
        """The last result; checks now if there is none yet."""
        return self._health or await self.check_once()

    async def check_once(self) -> ModelHealth:
        """Ask the model for its list, remember the result and log a change."""
        status, problem, public = ModelStatus.UP, "", ""
        names: tuple[str, ...] = ()
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                names = tuple(str(entry["id"]) for entry in await self._model.models())
        except TimeoutError:
            status, problem = ModelStatus.DOWN, f"the model did not answer within {CHECK_SECONDS:g} s"
            public = problem
        except ModelError as error:
            if error.status is None or error.status in (401, 403, 407) or error.status >= 500:
                status, problem, public = ModelStatus.DOWN, str(error), error.public
        before = self._health
        changed = before is None or before.status is not status
        since = self._clock() if before is None or changed else before.since
        self._health = health = ModelHealth(status, since, problem, public, names)
        if changed and not health.is_up:
            log.warning("the model is down: %s", problem)
        elif changed and before is not None:
            log.info("the model is up again")
        return health
