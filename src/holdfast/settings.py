"""Settings: `holdfast.toml`, then the environment, then what a program or flag says; the later wins.

Every value knows where it came from. An unknown or impossible setting is an error that names its origin, the
key and the nearest valid name; nothing is guessed.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from .errors import BadSetting

ENVIRONMENT_PREFIX = "HOLDFAST_"
_NOT_SETTINGS = {"HOLDFAST_HOME", "HOLDFAST_CONFIG", "HOLDFAST_API_KEY"}


def _setting(default: Any, meaning: str, **limits: Any) -> Any:
    return field(default=default, metadata={"meaning": meaning, **limits})


@dataclass(frozen=True, slots=True)
class StoreSettings:
    url: str = _setting("", "empty: holdfast.db in the home; or sqlite:///path (relative to where you are)")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    busy_wait_seconds: float = _setting(
        60.0, "how long a second request to a busy conversation waits", at_least=0
    )
    drain_seconds: float = _setting(
        5.0, "how long leaving in good order may take; what is left then is settled by a sweep", at_least=0
    )


@dataclass(frozen=True, slots=True)
class ModelSettings:
    kind: str = _setting("auto", "who answers", choices=("auto", "openai", "local", "scripted"))
    base_url: str = _setting("", "the address of an OpenAI-compatible server, ending in /v1")
    name: str = _setting("", "the model to ask for; empty: the upstream's first")
    api_key_env: str = _setting("OPENAI_API_KEY", "the environment variable that holds the upstream's key")
    timeout_seconds: float = _setting(600.0, "how long the model may be silent", above=0)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    system_prompt: str = _setting("", "instructions for every turn")


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    heartbeat_seconds: float = _setting(15.0, "how often a node says that it lives", above=0)
    stale_seconds: float = _setting(
        90.0, "a node whose beat stands still this long is taken for hung", above=0
    )
    sweep_seconds: float = _setting(5.0, "how often what is due is looked for", above=0)


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    events_days: float = _setting(30.0, "how long events are kept", above=0)
    requests_days: float = _setting(30.0, "how long a retried request is recognised", above=0)


@dataclass(frozen=True, slots=True)
class LogSettings:
    level: str = _setting("info", "how much is told", choices=("debug", "info", "warning", "error"))
    format: str = _setting("text", "how it is told", choices=("text", "json"))


@dataclass(frozen=True, slots=True)
class Settings:
    store: StoreSettings = field(default_factory=StoreSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    agent: AgentSettings = field(default_factory=AgentSettings)
    lease: LeaseSettings = field(default_factory=LeaseSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    log: LogSettings = field(default_factory=LogSettings)
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where each value that is not a default came from, by `section.name`."""


SECTIONS: Mapping[str, type[Any]] = {
    name: kind for name, kind in get_type_hints(Settings).items() if name != "origins"
}


def home(environment: Mapping[str, str] = os.environ) -> Path:
    """Where holdfast.db and everything else of this user lives."""
    return Path(environment.get("HOLDFAST_HOME") or Path.home() / ".holdfast")


def load(
    config: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    given: Mapping[str, Any] | None = None,
    given_by: str = "settings=",
) -> Settings:
    """All settings, from the file (if there is one), the environment and `given`, in this order."""
    settings = Settings()
    path = _find_file(config, environment)
    if path is not None:
        settings = _apply(settings, _read_file(path), str(path))
    settings = _apply_environment(settings, environment)
    settings = _apply(settings, given or {}, given_by)
    if settings.lease.stale_seconds < 2 * settings.lease.heartbeat_seconds:
        raise BadSetting(
            f"lease.stale_seconds ({settings.lease.stale_seconds:g}, from "
            f"{settings.origins.get('lease.stale_seconds', 'the default')}) must be at least twice "
            f"lease.heartbeat_seconds ({settings.lease.heartbeat_seconds:g}), "
            "or a living node would be taken for hung"
        )
    return settings


def _find_file(config: Path | None, environment: Mapping[str, str]) -> Path | None:
    named = config or (Path(environment["HOLDFAST_CONFIG"]) if environment.get("HOLDFAST_CONFIG") else None)
    if named is not None:
        if not named.is_file():
            raise BadSetting(f"there is no settings file {named}")
        return named
    for candidate in (Path("holdfast.toml"), home(environment) / "holdfast.toml"):
        if candidate.is_file():
            return candidate
    return None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise BadSetting(f"{path} cannot be read as TOML: {error}") from error


def _apply_environment(settings: Settings, environment: Mapping[str, str]) -> Settings:
    for variable, text in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in _NOT_SETTINGS:
            continue
        section, separator, name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().partition("__")
        if separator:
            settings = _apply(settings, {section: {name: text}}, variable)
    return settings


def _apply(settings: Settings, values: Mapping[str, Any], origin: str) -> Settings:
    origins = dict(settings.origins)
    for section, content in values.items():
        if section not in SECTIONS:
            raise BadSetting(f"{origin}: there is no section [{section}]{_nearest(section, SECTIONS)}")
        if not isinstance(content, Mapping):
            raise BadSetting(f"{origin}: [{section}] must be a table of settings, not {content!r}")
        known = {item.name: item for item in fields(SECTIONS[section])}
        changes = {}
        for name, value in content.items():
            if name not in known:
                raise BadSetting(
                    f"{origin}: there is no setting {section}.{name}{_nearest(name, known, section)}"
                )
            changes[name] = _convert(value, known[name], f"{origin}: {section}.{name}")
            origins[f"{section}.{name}"] = origin
        settings = replace(settings, **{section: replace(getattr(settings, section), **changes)})
    return replace(settings, origins=origins)


def _nearest(name: str, valid: Mapping[str, Any], section: str = "") -> str:
    close = difflib.get_close_matches(name, list(valid), 1, 0.5)
    prefix = f"{section}." if section else ""
    return f"; did you mean {prefix}{close[0]}?" if close else f"; valid are {', '.join(sorted(valid))}"


def _convert(value: Any, setting: Any, where: str) -> Any:
    """A value of the setting's type, or BadSetting saying what it should be."""
    wanted = type(setting.default) if setting.default is not MISSING else str
    limits = setting.metadata
    if wanted is float:
        try:
            value = float(value) if not isinstance(value, bool) else float("nan")
        except (TypeError, ValueError):
            raise BadSetting(f"{where} must be a number, not {value!r}") from None
        if not (limits.get("at_least", float("-inf")) <= value < float("inf")) or not value > limits.get(
            "above", float("-inf")
        ):
            least = (
                f"at least {limits['at_least']}" if "at_least" in limits else f"above {limits.get('above')}"
            )
            raise BadSetting(f"{where} must be {least}, not {value:g}")
    elif not isinstance(value, wanted):
        raise BadSetting(f"{where} must be {wanted.__name__}, not {value!r}")
    if "choices" in limits and value not in limits["choices"]:
        raise BadSetting(f"{where} must be one of {', '.join(limits['choices'])}, not {value!r}")
    return value


def database_path(url: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The SQLite file a store URL means; empty: the home's."""
    if not url:
        return home(environment) / "holdfast.db"
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise BadSetting(f"a store URL looks like sqlite:///path/to/file.db, not {url!r}")
    if scheme != "sqlite":
        raise BadSetting(f"there is no store engine for {scheme!r}; use sqlite:///path/to/file.db")
    path = rest.removeprefix("/") if rest.startswith("/") else ""
    if not path or path == ":memory:":
        raise BadSetting(f"{url!r} names no file; use sqlite:///relative.db or sqlite:////absolute.db")
    return Path(path).expanduser()
