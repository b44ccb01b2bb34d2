"""The agent programs that `holdfast launch` can start, and what each needs to use a holdfast server.

A program is one entry of `PROGRAMS`. What it needs is given for one run only: variables of its environment,
arguments before the user's, or files in a temporary directory. None of the user's files is changed, and the
program keeps its own home, so its logins, settings and older sessions stay as they are.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..domain.api_keys import holds_token
from ..os_support import is_directory, is_file, user_directory, write_private

KEY_VARIABLE = "HOLDFAST_LAUNCH_KEY"
"""Holds the run's API key, for programs that read a key from a variable whose name they are given."""
PROVIDER = "holdfast"


@dataclass(frozen=True, slots=True)
class LocalEndpoint:
    """The server as a program sees it."""

    url: str
    """Without `/v1`."""
    key: str
    model: str
    headers: Mapping[str, str]
    """To be sent with every request: the source, and the conversation that is continued."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What one run of a program needs besides the user's arguments and environment."""

    variables: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    """Variables that would make it use another server or key."""
    arguments: tuple[str, ...] = ()
    """Placed before the user's."""


Prepare = Callable[[LocalEndpoint, Path, Mapping[str, str]], Prepared]
"""From the endpoint, a temporary directory of this run (mode 0700) and the user's environment."""


@dataclass(frozen=True, slots=True)
class Program:
    name: str
    """As in `holdfast launch NAME`; also the source of its conversations."""
    title: str
    command: str
    install: str
    """The command that installs it."""
    prepare: Prepare
    resume: str = ""
    """Its command that continues a session, `{}` being the session's name; empty: it has no sessions."""


def _codex(endpoint: LocalEndpoint, scratch: Path, environment: Mapping[str, str]) -> Prepared:
    headers = ", ".join(f"{_toml(name)} = {_toml(value)}" for name, value in endpoint.headers.items())
    provider = f"model_providers.{PROVIDER}"
    settings = {
        "model_provider": _toml(PROVIDER),
        "model": _toml(endpoint.model),
        f"{provider}.name": _toml(PROVIDER),
        f"{provider}.base_url": _toml(f"{endpoint.url}/v1"),
        f"{provider}.env_key": _toml(KEY_VARIABLE),
        f"{provider}.http_headers": f"{{ {headers} }}",
    }
    arguments = tuple(word for name, value in settings.items() for word in ("-c", f"{name}={value}"))
    return Prepared({KEY_VARIABLE: endpoint.key}, arguments=arguments)


CLAUDE_MODELS = (
    *("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL"),
    *("ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL"),
)
"""Every name under which Claude Code looks for a model: the main one, its aliases, titles and sub-agents."""


def _claude(endpoint: LocalEndpoint, scratch: Path, environment: Mapping[str, str]) -> Prepared:
    own = environment.get("ANTHROPIC_CUSTOM_HEADERS", "")
    headers = [*own.splitlines(), *(f"{name}: {value}" for name, value in endpoint.headers.items())]
    variables = {
        "ANTHROPIC_BASE_URL": endpoint.url,
        "ANTHROPIC_AUTH_TOKEN": endpoint.key,
        "ANTHROPIC_CUSTOM_HEADERS": "\n".join(headers),
        **dict.fromkeys(CLAUDE_MODELS, endpoint.model),
    }
    others = (
        "ANTHROPIC_API_KEY",
        "CLAUDE_CODE_USE_BEDROCK",
        "CLAUDE_CODE_USE_VERTEX",
        "CLAUDE_CODE_USE_FOUNDRY",
    )
    return Prepared(variables, others)


def _opencode(endpoint: LocalEndpoint, scratch: Path, environment: Mapping[str, str]) -> Prepared:
    try:
        given = json.loads(environment.get("OPENCODE_CONFIG_CONTENT") or "{}")
    except ValueError:
        given = {}
    own: dict[str, Any] = given if isinstance(given, dict) else {}
    model = f"{PROVIDER}/{endpoint.model}"
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": PROVIDER,
        "options": {
            "baseURL": f"{endpoint.url}/v1",
            "apiKey": f"{{env:{KEY_VARIABLE}}}",
            "headers": dict(endpoint.headers),
        },
        "models": {endpoint.model: {"name": endpoint.model}},
    }
    content = {
        **own,
        "model": model,
        "small_model": model,
        "provider": {**own.get("provider", {}), PROVIDER: provider},
    }
    return Prepared({KEY_VARIABLE: endpoint.key, "OPENCODE_CONFIG_CONTENT": json.dumps(content)})


PI_EXTENSION = """\
export default function (pi) {
  pi.registerProvider(%s, %s);
}
"""


def _pi(endpoint: LocalEndpoint, scratch: Path, environment: Mapping[str, str]) -> Prepared:
    provider = {
        "baseUrl": f"{endpoint.url}/v1",
        "apiKey": KEY_VARIABLE,
        "api": "openai-completions",
        "headers": dict(endpoint.headers),
        "models": [
            {
                "id": endpoint.model,
                "name": endpoint.model,
                "reasoning": False,
                "input": ["text", "image"],
                "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
                "contextWindow": 128_000,
                "maxTokens": 16_384,
                "compat": {"sendSessionAffinityHeaders": True},  # else it does not name its session
            }
        ],
    }
    extension = scratch / "holdfast.js"
    write_private(extension, PI_EXTENSION % (json.dumps(PROVIDER), json.dumps(provider)))
    arguments = ("-e", str(extension), "--provider", PROVIDER, "--model", endpoint.model)
    return Prepared({KEY_VARIABLE: endpoint.key}, arguments=arguments)


LLM_MODELS_FILE = "extra-openai-models.yaml"
LLM_FILES = (
    *("logs.db", "logs.db-wal", "logs.db-shm", "embeddings.db", "keys.json", "aliases.json", "logs-off"),
    *("model_options.json", "default_model.txt", "default_embedding_model.txt", "templates"),
)


def _llm(endpoint: LocalEndpoint, scratch: Path, environment: Mapping[str, str]) -> Prepared:
    """llm reads models only from its user directory: a temporary one, of links into the user's own, except
    for the list of models, which is a longer copy. Links to files that do not exist yet create them there."""
    own = _llm_directory(environment)
    names = {*LLM_FILES, *(each.name for each in own.iterdir())} if is_directory(own) else set(LLM_FILES)
    own.mkdir(parents=True, exist_ok=True)  # as llm itself does
    for name in names - {LLM_MODELS_FILE}:
        (scratch / name).symlink_to(own / name)
    model = {
        "model_id": PROVIDER,
        "model_name": endpoint.model,
        "api_base": f"{endpoint.url}/v1",
        "supports_tools": True,
        "supports_schema": True,
        "headers": {"Authorization": f"Bearer {endpoint.key}", **endpoint.headers},
    }
    entry = f"- {json.dumps(model)}\n"  # JSON is YAML
    listed = own / LLM_MODELS_FILE
    models = listed.read_text("utf-8") if is_file(listed) else ""
    write_private(scratch / LLM_MODELS_FILE, f"{models.rstrip()}\n{entry}".lstrip())
    return Prepared({"LLM_USER_PATH": str(scratch), "LLM_MODEL": PROVIDER})


def _llm_directory(environment: Mapping[str, str]) -> Path:
    if named := environment.get("LLM_USER_PATH"):
        return Path(named)
    if sys.platform == "darwin":
        return user_directory() / "Library" / "Application Support" / "io.datasette.llm"
    return Path(environment.get("XDG_CONFIG_HOME") or user_directory() / ".config") / "io.datasette.llm"


def _aider(endpoint: LocalEndpoint, scratch: Path, environment: Mapping[str, str]) -> Prepared:
    model = f"openai/{endpoint.model}"
    settings = [{"name": model, "extra_params": {"extra_headers": dict(endpoint.headers)}}]
    path = scratch / "aider.model.settings.yml"
    write_private(path, json.dumps(settings))
    variables = {
        "AIDER_MODEL": model,
        "AIDER_OPENAI_API_BASE": f"{endpoint.url}/v1",
        "AIDER_OPENAI_API_KEY": endpoint.key,
        "OPENAI_API_BASE": f"{endpoint.url}/v1",
        "OPENAI_API_KEY": endpoint.key,
        "AIDER_MODEL_SETTINGS_FILE": str(path),
    }
    return Prepared(variables)


PROGRAMS: Mapping[str, Program] = {
    program.name: program
    for program in (
        Program(
            "codex",
            "Codex",
            "codex",
            "npm install -g @openai/codex",
            _codex,
            resume="codex resume {}",
        ),
        Program(
            "claude",
            "Claude Code",
            "claude",
            "npm install -g @anthropic-ai/claude-code",
            _claude,
            resume="claude --resume {}",
        ),
        Program(
            "opencode",
            "opencode",
            "opencode",
            "npm install -g opencode-ai",
            _opencode,
            resume="opencode -s {}",
        ),
        Program(
            "pi",
            "pi",
            "pi",
            "npm install -g @mariozechner/pi-coding-agent",
            _pi,
            resume="pi --session {}",
        ),
        Program("llm", "llm", "llm", "pip install llm", _llm),
        Program("aider", "aider", "aider", "pip install aider-chat", _aider),
    )
}

ALSO_KNOWN_AS = {"claude-code": "claude"}
"""Names that other commands, such as `holdfast import`, have for a program."""


def environment_of(prepared: Prepared, environment: Mapping[str, str]) -> dict[str, str]:
    """The program's environment: without any holdfast key of the user's, because the commands that the
    program runs inherit it."""
    kept = {
        name: value
        for name, value in environment.items()
        if name not in ("HOLDFAST_API_KEY", *prepared.removed) and not holds_token(value)
    }
    return {**kept, **prepared.variables}


def _toml(text: str) -> str:
    """A TOML string: the escapes of JSON's control characters are TOML's too."""
    return json.dumps(text, ensure_ascii=False)
