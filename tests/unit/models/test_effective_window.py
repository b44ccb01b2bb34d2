"""Whose word counts about how much a model can take."""

import pytest

from holdfast.models.effective_window import ASSUMED_WINDOW, Window, WindowOrigin, for_fixed_part, window_of
from holdfast.models.scripted import ScriptedModel
from holdfast.models.upstream import Upstream
from holdfast.settings import ModelSettings
from tests.unit.models.mock_upstream import MockUpstream

NAMED, CONFIGURED, MODEL, ASSUMED = (
    WindowOrigin.NAMED, WindowOrigin.CONFIGURED, WindowOrigin.MODEL, WindowOrigin.ASSUMED
)  # fmt: skip
TABLE = {"qwen3:8b": 32768, "llama3": 512}


@pytest.mark.parametrize(
    ("settings", "name", "said", "window"),
    [
        (ModelSettings(windows=TABLE, context_window=1024), "qwen3:8b", 2048, Window(32768, NAMED)),
        (ModelSettings(windows=TABLE), "llama3:latest", 2048, Window(512, NAMED)),
        (ModelSettings(windows=TABLE, name="llama3"), None, 2048, Window(512, NAMED)),
        (ModelSettings(windows=TABLE, name="llama3"), "qwen3:8b", 2048, Window(32768, NAMED)),
        (ModelSettings(windows=TABLE, context_window=1024), "other", 2048, Window(1024, CONFIGURED)),
        (ModelSettings(windows=TABLE), "other", 2048, Window(2048, MODEL)),
        (ModelSettings(context_window=1024), None, 2048, Window(1024, CONFIGURED)),
        (ModelSettings(), None, 2048, Window(2048, MODEL)),
        (ModelSettings(), None, None, Window(ASSUMED_WINDOW, ASSUMED)),
    ],
)
async def test_the_nearest_word_counts(
    settings: ModelSettings, name: str | None, said: int | None, window: Window
) -> None:
    assert await window_of(ScriptedModel(window=said), settings, name) == window


async def test_a_model_that_nobody_named_is_the_first_that_is_listed() -> None:
    model = ScriptedModel(name="llama3", window=2048)
    assert await window_of(model, ModelSettings(windows=TABLE)) == Window(512, NAMED)


async def test_an_upstream_is_asked_for_the_model_that_would_answer(server: MockUpstream) -> None:
    models = [{"id": "alpha", "max_model_len": 1000}, {"id": "beta", "max_model_len": 2000}]
    server.pages["/v1/models"] = {"data": models}
    upstream = Upstream(server.url)
    assert await window_of(upstream, ModelSettings()) == Window(1000, MODEL)
    assert await window_of(upstream, ModelSettings(), "beta") == Window(2000, MODEL)
    assert await window_of(upstream, ModelSettings(name="beta")) == Window(2000, MODEL)
    await upstream.close()


async def test_a_server_that_does_not_answer_is_no_error(server: MockUpstream) -> None:
    upstream = Upstream(server.url)
    assert await window_of(upstream, ModelSettings(windows=TABLE)) == Window(8192, ASSUMED)
    await upstream.close()


@pytest.mark.parametrize(
    ("window", "fixed", "tokens"),
    [
        (Window(8192, ASSUMED), 4096, 8192),
        (Window(8192, ASSUMED), 4097, 8 * 4097),
        (Window(8192, ASSUMED), 14_000, 112_000),
        (Window(8192, MODEL), 14_000, 8192),
        (Window(8192, CONFIGURED), 14_000, 8192),
        (Window(8192, WindowOrigin.REPORTED), 14_000, 8192),
    ],
)
def test_an_assumed_window_has_room_beside_the_instructions_and_tools(
    window: Window, fixed: int, tokens: int
) -> None:
    assert for_fixed_part(window, fixed) == Window(tokens, window.origin)
