"""`[model.aliases]` and `[model] fallbacks`: names are mapped on purpose, and only then."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import BadSetting, ModelError
from holdfast.models import local
from holdfast.models.base import ModelRequest
from holdfast.models.choose import choose_from
from holdfast.models.local import NAME, LocalModel
from holdfast.models.measured import innermost
from holdfast.models.names import NamedModel
from holdfast.models.reply import fold
from holdfast.models.scripted import ScriptedModel
from holdfast.models.upstream import Upstream
from holdfast.settings import ModelSettings, load
from tests.unit.models.asking import answer, refusal
from tests.unit.models.mock_upstream import MockUpstream, Reaction, cuts, hello, refuses, says

OWN_KEY = "hf_" + "0" * 32 + "_" + "A" * 43
LISTED = {"data": [{"id": "tiny"}, {"id": "large"}]}


async def sent_name(server: MockUpstream, model: NamedModel, name: str | None) -> str:
    server.answers = [says()]
    await answer(model, ModelRequest(b"[]", name))
    return str(server.chats[-1].json["model"])


async def test_an_alias_is_sent_under_the_models_own_name(server: MockUpstream, upstream: Upstream) -> None:
    server.pages["/v1/models"] = LISTED
    model = NamedModel(upstream, {"claude": "large"})
    assert [await sent_name(server, model, name) for name in ("claude", "large", "gpt", None)] == [
        "large", "large", "gpt", "tiny"
    ]  # fmt: skip
    listed = await model.models()
    assert [entry["id"] for entry in listed] == ["tiny", "large", "claude"]
    assert listed[2]["alias_of"] == "large"


async def test_the_star_stands_for_every_name_that_is_not_listed(
    server: MockUpstream, upstream: Upstream
) -> None:
    server.pages["/v1/models"] = LISTED
    model = NamedModel(upstream, {"*": "tiny", "claude": "large"})
    assert [await sent_name(server, model, name) for name in ("gpt", "claude", "large")] == [
        "tiny", "large", "large"
    ]  # fmt: skip
    assert [entry["id"] for entry in await model.models()] == ["tiny", "large", "claude"], "no star"
    asked = len([seen for seen in server.seen if seen.path == "/v1/models"])
    await sent_name(server, model, "gpt")
    assert len([seen for seen in server.seen if seen.path == "/v1/models"]) == asked, "kept for a minute"


async def test_a_fallback_answers_when_the_default_model_cannot(server: MockUpstream) -> None:
    model = NamedModel(Upstream(server.url, model="first"), {}, ("second", "third"), "first")
    server.answers = [refuses(429, headers={"Retry-After": "60"}), refuses(404), says()]
    assert fold(await answer(model, ModelRequest(b"[]"))).message["content"] == "Hello Ada"
    assert [seen.json["model"] for seen in server.chats] == ["first", "second", "third"]
    server.answers = [refuses(500), refuses(500), refuses(500), says()]
    assert (await refusal(model, ModelRequest(b"[]", "first"))).status == 500
    await model.close()


@pytest.mark.parametrize("reaction", [refuses(400), refuses(401), refuses(413), cuts(hello()[:2])])
async def test_what_no_fallback_is_tried_for(
    server: MockUpstream, upstream: Upstream, reaction: Reaction
) -> None:
    model = NamedModel(upstream, {}, ("second",), "tiny")
    server.answers = [reaction, says()]
    await refusal(model, ModelRequest(b"[]", "tiny"))
    assert len(server.chats) == 1


async def test_a_model_that_was_asked_for_by_name_is_not_replaced(
    server: MockUpstream, upstream: Upstream
) -> None:
    model = NamedModel(upstream, {}, ("second",), "first")
    server.answers = [refuses(404), says()]
    assert (await refusal(model, ModelRequest(b"[]", "other"))).status == 404


@pytest.mark.parametrize("asked", ["gpt-4o-mini", "claude-opus-5-5", "local", "", None])
async def test_the_local_model_is_asked_whatever_name_a_request_has(
    monkeypatch: pytest.MonkeyPatch, asked: str | None
) -> None:
    """Its engine is replaced: what it is given, and nothing that needs the weights."""
    given: list[dict[str, Any]] = []

    class Engine:
        def handle_chat_completions(self, body: bytes, deliver: Callable[[bytes], bool]) -> None:
            given.append(json.loads(body))
            choice = {"index": 0, "delta": {"content": "Hello"}, "finish_reason": "stop"}
            deliver(json.dumps({"model": NAME, "choices": [choice]}).encode())

    monkeypatch.setattr(local, "_load", Engine)
    model = LocalModel()
    chunks = [chunk async for chunk in model.stream(ModelRequest(b"[]", asked))]
    assert [chunk.value["model"] for chunk in chunks] == [NAME]
    assert [body["model"] for body in given] == [NAME]
    await model.close()


def test_a_setting_names_the_local_model_only_by_its_names() -> None:
    for name in (None, "", "local", NAME, NAME.lower(), "SmolLM2-135M"):
        assert local.is_name(name)
    assert not local.is_name("gpt-4o-mini")


async def test_the_settings_map_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "missing", lambda: None)
    mapped = ModelSettings(kind="local", name="gpt-4o", aliases={"gpt-4o": NAME})
    model = await choose_from(mapped, {})
    assert isinstance(model, NamedModel) and isinstance(innermost(model), LocalModel)
    assert await model.own_name("gpt-4o") == NAME
    await model.close()
    with pytest.raises(BadSetting, match="nothing here serves the model 'gpt-4o'"):
        await choose_from(ModelSettings(kind="local", name="gpt-4o"), {})
    assert isinstance(await choose_from(ModelSettings(kind="scripted"), {}), ScriptedModel), "not wrapped"


def test_aliases_and_fallbacks_can_be_set_in_the_environment() -> None:
    found = load(
        environment={
            "HOLDFAST_HOME": "/nonexistent",
            "HOLDFAST_MODEL__ALIASES": "gpt-4o=qwen3:8b, *=qwen3:4b",
            "HOLDFAST_MODEL__FALLBACKS": "a,b",
        }
    ).model
    assert (found.aliases, found.fallbacks) == ({"gpt-4o": "qwen3:8b", "*": "qwen3:4b"}, ("a", "b"))
    with pytest.raises(BadSetting, match=r"model\.aliases\.x must be text"):
        load(environment={"HOLDFAST_HOME": "/nonexistent"}, given={"model": {"aliases": {"x": 3}}})


@pytest.mark.parametrize(("key", "told"), [("sk-provider-key", True), (OWN_KEY, False), ("", False)])
async def test_a_providers_key_alone_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, key: str, told: bool
) -> None:
    monkeypatch.setattr(local, "missing", lambda: None)

    async def absent(*_: object) -> None:
        return None

    monkeypatch.setattr("holdfast.models.choose._ollama", absent)
    model = await choose_from(ModelSettings(), {"OPENAI_API_KEY": key})
    await model.close()
    assert ("OPENAI_API_KEY is set, but [model] base_url is not" in caplog.text) is told


async def test_a_window_can_be_named_for_an_alias_or_its_target() -> None:
    from holdfast.models.effective_window import window_of

    inner = ScriptedModel(window=1024)
    for windows in ({"claude": 4096}, {"large": 4096}):
        settings = ModelSettings(aliases={"claude": "large"}, windows=windows)
        assert (await window_of(NamedModel(inner, settings.aliases), settings, "claude")).tokens == 4096


async def test_the_reply_names_the_model_that_answered() -> None:
    model = NamedModel(ScriptedModel([ModelError("no"), "yes"]), {}, ("second",))
    assert fold(await answer(model, ModelRequest(b"[]"))).model == "second"
