from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.models.windows import ask_window

PS = {"models": [{"name": "qwen3:8b", "model": "qwen3:8b", "context_length": 32768}]}
PROPS = {"default_generation_settings": {"n_ctx": 16384, "params": {}}, "total_slots": 1}
SHOWN = {
    "parameters": 'stop                           "<|im_end|>"\nnum_ctx                        16384',
    "model_info": {"qwen3.context_length": 40960},
}


@pytest.mark.parametrize(
    ("model", "listed", "pages", "window"),
    [
        pytest.param("m", {"max_model_len": 65536}, {}, 65536, id="vLLM"),
        pytest.param("m", {"context_length": 200_000}, {"api/ps": PS}, 200_000, id="OpenRouter"),
        pytest.param("qwen3:8b", {"owned_by": "library"}, {"api/ps": PS}, 32768, id="Ollama, loaded"),
        pytest.param(
            "llama3",
            {},
            {"api/ps": {"models": [{"name": "llama3:latest", "context_length": 4096}]}},
            4096,
            id="Ollama, loaded, without its tag",
        ),
        pytest.param(
            "qwen3:14b", {}, {"api/ps": PS, "api/show": SHOWN}, 16384, id="Ollama, not loaded, a Modelfile"
        ),
        pytest.param(
            "qwen3:14b",
            {},
            {"api/ps": {"models": []}, "api/show": {"model_info": {"qwen3.context_length": 40960}}},
            None,
            id="Ollama, not loaded: what the weights could do is no answer",
        ),
        pytest.param(
            "m",
            {"owned_by": "llamacpp", "meta": {"n_ctx_train": 131072}},
            {"props": PROPS},
            16384,
            id="llama.cpp",
        ),
        pytest.param("m", {}, {"props": PROPS}, 16384, id="llama.cpp under another name"),
        pytest.param("m", {"meta": {"n_ctx_train": 131072}}, {}, 131072, id="llama.cpp without /props"),
        pytest.param("gpt", {"owned_by": "openai"}, {}, None, id="does not say"),
        pytest.param(
            "m",
            {"max_model_len": "many", "meta": None, "context_length": True},
            {"props": [1], "api/ps": "no"},
            None,
            id="nonsense",
        ),
    ],
)
async def test_the_window_is_found(
    model: str, listed: dict[str, Any], pages: dict[str, Any], window: int | None
) -> None:
    async def ask(path: str, body: Mapping[str, Any] | None = None) -> Any:
        return pages.get(path)

    assert await ask_window(model, listed, ask) == window
