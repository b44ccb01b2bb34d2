"""Asks an upstream for a model's context window in tokens. There is no standard for it.

- vLLM and similar servers put it in the model list (`max_model_len`), as do some hosted ones
  (`context_length`, …).
- llama.cpp reports at `/props` what it was started with; `n_ctx_train`, the weights' limit, is used last.
- Ollama reports at `/api/ps` what a model was loaded with, and in `/api/show` what its Modelfile wants. The
  weights' limit is *not* used there: Ollama loads less by default and truncates the prompt silently. So a
  model that is not loaded yet and has no `num_ctx` gets None; ask again after its first answer.

None also when the upstream does not report it, or does not answer: an unknown window is not an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

IN_THE_LIST = ("max_model_len", "context_window", "context_length", "max_context_length")


class Ask(Protocol):
    """GET a path of the upstream's root (with a body: POST it). Returns its JSON, or None if that failed."""

    async def __call__(self, path: str, body: Mapping[str, Any] | None = None) -> Any: ...


async def ask_window(model: str, listed: Mapping[str, Any], ask: Ask) -> int | None:
    """The window of this model, whose entry in the model list is `listed`."""
    for name in IN_THE_LIST:
        if found := _positive(listed.get(name)):
            return found
    if listed.get("owned_by") == "llamacpp" or isinstance(listed.get("meta"), dict):
        return await _llama_cpp(listed, ask)
    return await _ollama(model, ask) or await _llama_cpp(listed, ask)


async def _llama_cpp(listed: Mapping[str, Any], ask: Ask) -> int | None:
    props = _object(await ask("props"))
    started_with = _object(props.get("default_generation_settings")).get("n_ctx") or props.get("n_ctx")
    meta = _object(listed.get("meta"))
    return _positive(started_with) or _positive(meta.get("n_ctx")) or _positive(meta.get("n_ctx_train"))


async def _ollama(model: str, ask: Ask) -> int | None:
    running = _object(await ask("api/ps")).get("models")
    if not isinstance(running, list):
        return None  # not Ollama
    for entry in map(_object, running):
        if tagged(model) in (tagged(entry.get("model")), tagged(entry.get("name"))):
            return _positive(entry.get("context_length"))
    parameters = str(_object(await ask("api/show", {"model": model})).get("parameters") or "")
    wanted = re.search(r"^num_ctx\s+(\d{1,12})", parameters, re.MULTILINE)
    return int(wanted[1]) if wanted else None


def tagged(name: Any) -> str:
    """Ollama's full name of a model: `llama3` is `llama3:latest`."""
    text = str(name or "")
    return text if ":" in text.rpartition("/")[2] else f"{text}:latest"


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
