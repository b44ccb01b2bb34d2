"""Chooses the model by the settings: `[model]` of holdfast.toml in, a model out.

`auto` takes `base_url` if it is set, else the Ollama on this machine if it answers at once and has a model,
else the small local model if it is installed, else an error says what to do. A name in the settings that the
local model does not have is refused, so that nobody who chose a model gets this one unknowingly; a request
that names another model is answered by it. The API key belongs to `base_url`: an Ollama found automatically
does not get it. Modules are imported only when chosen, so extras stay optional.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..domain.api_keys import holds_token
from ..errors import BadSetting, ModelError

if TYPE_CHECKING:
    from .base import Model
    from .upstream import Upstream

log = logging.getLogger(__name__)

KINDS = ("auto", "openai", "anthropic", "local", "scripted")
OLLAMA = "http://127.0.0.1:11434/v1"
OLLAMA_SECONDS = 0.3
REPLACED_KEY = "HOLDFAST_UPSTREAM_API_KEY"
"""The variable in which `holdfast env` keeps the upstream's key, whose own variable it sets."""


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
    @property
    def aliases(self) -> Mapping[str, str]: ...
    @property
    def fallbacks(self) -> Sequence[str]: ...


async def choose_from(
    settings: ModelChoice, environment: Mapping[str, str] = os.environ, *, longest_wait: float = 5.0
) -> Model:
    """The model that `[model]` means, under the names of `[model.aliases]`.

    Its API key is read from the variable that the settings name. `longest_wait`: how many seconds a
    `Retry-After` of the upstream is waited for.
    """
    name = settings.aliases.get(settings.name, settings.name)
    key = environment.get(settings.api_key_env, "")
    if holds_token(key):  # from `holdfast env`, which keeps the key it replaces
        key = environment.get(REPLACED_KEY, "") or key
    model = await choose(
        settings.kind,
        settings.base_url,
        name,
        key,
        settings.timeout_seconds,
        key_variable=settings.api_key_env,
        longest_wait=longest_wait,
    )
    if settings.kind == "auto" and not settings.base_url and not name:
        _tell_unused_key(model, key, settings.api_key_env, environment)
    if not settings.aliases and not settings.fallbacks:
        return model
    from .names import NamedModel

    return NamedModel(model, settings.aliases, settings.fallbacks, name)


def _tell_unused_key(model: Model, key: str, variable: str, environment: Mapping[str, str]) -> None:
    """Log that a provider's key alone chooses no provider, if the small local model answers instead."""
    from .local import LocalModel

    ours = holds_token(key) or key == environment.get("HOLDFAST_API_KEY", "")
    if key and not ours and isinstance(model, LocalModel):
        log.warning(
            "%s is set, but [model] base_url is not, so the small local model answers; for OpenAI itself set "
            "HOLDFAST_MODEL__BASE_URL=https://api.openai.com/v1",
            variable,
        )


async def choose(
    kind: str = "auto",
    base_url: str = "",
    name: str = "",
    api_key: str = "",
    timeout_seconds: float = 600,
    *,
    ollama_url: str = OLLAMA,
    key_variable: str = "",
    longest_wait: float = 5.0,
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

        return Upstream(
            base_url, api_key, name, timeout_seconds, key_variable=key_variable, longest_wait=longest_wait
        )
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

    if not local.is_name(name):
        raise BadSetting(
            f"nothing here serves the model {name!r}. One of these: name the server that does, with [model] "
            "base_url (HOLDFAST_MODEL__BASE_URL); start Ollama on this machine and `ollama pull` it; or "
            f"leave the name ([model] name, --model) out, and the small local model {local.NAME} answers"
        )
    if lacks := local.missing():
        raise ModelError(lacks if kind == "local" else _ways_out(lacks))
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


def _ways_out(lacks: str) -> str:
    return (
        "there is no model to answer. One of these: set [model] base_url (HOLDFAST_MODEL__BASE_URL) to any "
        "OpenAI-compatible server; or start Ollama on this machine and `ollama pull` a model; or have the "
        f"small local model answer ({lacks})"
    )
