"""Chooses the model by the settings: `[model]` of holdfast.toml in, a model out.

`auto` takes `base_url` if it is set, else the Ollama on this machine if it answers at once and has a model,
else the small local model if it is installed, else an error says what to do. A name that the local model does
not have is refused, never answered by another model. The API key belongs to `base_url`: an Ollama found
automatically does not get it. Modules are imported only when chosen, so extras stay optional.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import BadSetting, ModelError

if TYPE_CHECKING:
    from .base import Model
    from .upstream import Upstream

KINDS = ("auto", "openai", "anthropic", "local", "scripted")
OLLAMA = "http://127.0.0.1:11434/v1"
OLLAMA_SECONDS = 0.3


class ModelChoice(Protocol):
    """The part of `[model]` that decides which model answers."""

    @property
    def kind(self) -> str: ...
    @property
    def base_url(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def api_key_env(self) -> str: ...
    @property
    def timeout_seconds(self) -> float: ...


async def choose_from(settings: ModelChoice, environment: Mapping[str, str] = os.environ) -> Model:
    """The model that `[model]` means; its API key is read from the variable that the settings name."""
    return await choose(
        settings.kind,
        settings.base_url,
        settings.name,
        environment.get(settings.api_key_env, ""),
        settings.timeout_seconds,
    )


async def choose(
    kind: str = "auto",
    base_url: str = "",
    name: str = "",
    api_key: str = "",
    timeout_seconds: float = 600,
    *,
    ollama_url: str = OLLAMA,
) -> Model:
    """The model that these settings mean. Raises ModelError if there is none."""
    if kind not in KINDS:
        raise BadSetting(f"[model] kind is {kind!r}; it can be {', '.join(KINDS)}")
    if kind == "scripted":
        from .scripted import ScriptedModel

        return ScriptedModel(keeps_requests=False)
    if kind == "openai" or (kind == "auto" and base_url):
        if not base_url:
            raise BadSetting('[model] kind = "openai" needs base_url, such as https://api.openai.com/v1')
        from .upstream import Upstream

        return Upstream(base_url, api_key, name, timeout_seconds)
    if kind == "anthropic":
        if not base_url:
            raise BadSetting(
                '[model] kind = "anthropic" needs base_url, such as https://api.anthropic.com/v1'
            )
        from .anthropic import AnthropicUpstream

        return AnthropicUpstream(base_url, api_key, name, timeout_seconds)
    if kind == "auto" and (found := await _ollama(ollama_url, name, timeout_seconds)):
        return found
    from . import local

    if name and name not in (local.NAME, local.SHORT_NAME):
        raise BadSetting(
            f"nothing here serves the model {name!r}. One of these: name the server that does, with [model] "
            "base_url (HOLDFAST_MODEL__BASE_URL); start Ollama on this machine and `ollama pull` it; or "
            f"leave the name ([model] name, --model) out, and the small local model {local.NAME} answers"
        )
    if not local.installed():
        raise ModelError(
            f"the small local model is not installed: {local.INSTALL}" if kind == "local" else _ways_out()
        )
    return local.LocalModel()


async def _ollama(url: str, name: str, timeout_seconds: float) -> Upstream | None:
    """The Ollama on this machine, if it answers at once and has a model."""
    from .upstream import Upstream

    found = Upstream(url, "", name, timeout_seconds, backoff=())
    models: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(OLLAMA_SECONDS):
            models = await found.models()
    except (ModelError, TimeoutError):
        return None
    finally:
        if not models:
            await found.close()
    return found if models else None


def _ways_out() -> str:
    from .local import INSTALL

    return (
        "there is no model to answer. One of these: set [model] base_url (HOLDFAST_MODEL__BASE_URL) to any "
        "OpenAI-compatible server; or start Ollama on this machine and `ollama pull` a model; or install the "
        f"small local model: {INSTALL}"
    )
