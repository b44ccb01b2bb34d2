"""What is known of windows: asked once, asked again behind the scenes, and corrected by what happens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.models import known_windows as windows
from holdfast.models.effective_window import ASSUMED_WINDOW, WindowOrigin
from holdfast.models.known_windows import Windows, is_known
from holdfast.models.scripted import ScriptedModel
from holdfast.settings import ModelSettings


class Asked(ScriptedModel):
    """Says how large its window is, when it may."""

    def __init__(self, *said: int | None) -> None:
        super().__init__()
        self._said = list(said)
        self.times = 0
        self.may = asyncio.Event()
        self.may.set()

    async def window(self, model: str | None = None) -> int | None:
        self.times += 1
        await self.may.wait()
        return self._said.pop(0) if len(self._said) > 1 else self._said[0]


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def known(model: ScriptedModel, time: Time | None = None, **settings: Any) -> Windows:
    return Windows(model, ModelSettings(**settings), time or Time())


async def until(found: Windows, tokens: int) -> None:
    for _ in range(100):
        if (await found.of("m")).tokens == tokens:
            return
        await asyncio.sleep(0)
    raise AssertionError("it was never known")


async def test_a_window_is_asked_for_once() -> None:
    model = Asked(4096)
    found = known(model)
    assert [(await found.of("m")).tokens for _ in range(3)] == [4096] * 3
    assert model.times == 1


async def test_it_is_asked_for_again_without_anybody_waiting() -> None:
    model, time = Asked(4096, 32768), Time()
    found = known(model, time)
    await found.of("m")
    time.now += windows.KEPT_SECONDS
    model.may.clear()
    assert (await found.of("m")).tokens == 4096
    model.may.set()
    await until(found, 32768)


async def test_a_model_that_does_not_answer_is_taken_for_one_that_does_not_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(windows, "PATIENCE_SECONDS", 0.01)
    model = Asked(4096)
    model.may.clear()
    found = known(model)
    window = await found.of("m")
    assert (window.tokens, is_known(window)) == (ASSUMED_WINDOW, False)
    model.may.set()
    await until(found, 4096)
    assert model.times == 1


async def test_what_happened_goes_before_what_was_said_for_a_while() -> None:
    time = Time()
    found = known(Asked(32768), time)
    found.learn("m", 4096)
    assert ((await found.of("m")).tokens, (await found.of("other")).tokens) == (4096, 32768)
    found.learn("m", 100_000)
    assert (await found.of("m")).tokens == 32768  # nobody believes that it can take more than it says
    found.learn("m", 4096)
    time.now += windows.LEARNT_SECONDS
    assert (await found.of("m")).tokens == 32768


async def test_what_happened_to_one_owner_changes_nothing_for_another() -> None:
    found = known(Asked(32768))
    found.learn("m", 300, "eve")
    assert found.suspect("n", 9000, "eve") and not found.suspect("n", 9000, "eve")
    assert [(await found.of(name, "eve")).tokens for name in "mn"] == [300, 9000]
    assert [(await found.of(name, "ada")).tokens for name in "mn"] == [32768, 32768]


async def test_what_happened_makes_an_assumed_window_a_known_one() -> None:
    found = known(Asked(None))
    assert not is_known(await found.of(None))
    found.learn(None, 100_000)
    window = await found.of(None)
    assert (window.tokens, window.origin) == (100_000, WindowOrigin.MODEL)


async def test_closing_leaves_nothing_behind() -> None:
    model = Asked(4096)
    model.may.clear()
    found = known(model)
    asking = asyncio.create_task(found.of("m"))
    await asyncio.sleep(0)
    await found.close()
    assert (await asking).tokens == ASSUMED_WINDOW


async def test_names_that_clients_make_up_are_forgotten() -> None:
    found = known(Asked(8000))
    for number in range(2 * windows.MOST_NAMES):
        await found.of(f"model-{number}")
        found.learn(f"model-{number}", 4000)
        found.suspect(f"model-{number}", 4000)
    assert len(found._known) <= windows.MOST_NAMES
    assert len(found._learnt) <= windows.MOST_NAMES
    assert len(found._suspected) <= windows.MOST_NAMES
    assert len(found._asking) <= 1
    await found.close()
