"""Whether the model is up: what counts as down, since when, and what is logged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.errors import ModelError
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.agents.model_watch import ModelWatch

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Listing(ScriptedModel):
    """A model whose list fails with the errors given, then works."""

    def __init__(self, *errors: ModelError) -> None:
        super().__init__()
        self.errors = list(errors)

    async def models(self) -> list[dict[str, Any]]:
        if self.errors:
            raise self.errors.pop(0)
        return await super().models()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelError("cannot connect"), "down"),
        (ModelError("no key", 401), "down"),
        (ModelError("broken", 503), "down"),
        (ModelError("no such page", 404), "up"),
        (ModelError("not a list", 200), "up"),
        (ModelError("slow down", 429), "up"),
    ],
)
async def test_what_counts_as_down(error: ModelError, status: str) -> None:
    assert (await ModelWatch(Listing(error)).check_once()).status == status


async def test_a_change_is_logged_once_and_dated(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    now = NOW
    down = ModelError("cannot connect to the model at http://h", public="cannot connect to the model")
    watch = ModelWatch(Listing(down, down), lambda: now)
    assert (await watch.health()).public == "cannot connect to the model"
    now += timedelta(seconds=5)
    assert (await watch.check_once()).since == NOW
    found = await watch.check_once()
    assert (found.status, found.since, found.names) == ("up", now, ("scripted",))
    assert await watch.health() is found, "not checked again"
    assert [record.getMessage() for record in caplog.records] == [
        "the model is down: cannot connect to the model at http://h",
        "the model is up again",
    ]
