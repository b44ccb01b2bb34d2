"""`holdfast config|version`: what is in effect here. Neither needs a store."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import apsw
import typer

from .. import __version__
from ..errors import BadSetting, ModelError
from ..os_support import is_directory
from ..settings import LOCAL_FILE, SECTIONS, Settings, home, trust_file
from ..trust import untrust as forget
from .context import AsJson, CommandContext, command
from .format import Cell, Column, Styled, print_json, say, table, wide
from .groups import app
from .groups import settings as settings_group

if TYPE_CHECKING:
    from ..models.base import Model

HIDDEN = "(hidden)"
_PASSWORD = re.compile(r"(?P<before>://[^/?#@\s:]*:)[^/?#@\s]*(?=@)")
_PARAMETER = re.compile(r"(?P<name>[?&][^=?&#\s]*)=[^&#\s]+")
_SECRETS = ("password", "secret", "token", "key", "sig")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")


@command(settings_group, "show")
async def config(invocation: CommandContext, as_json: AsJson = False) -> None:
    """Show every setting, its value, and where it came from.

    Secrets are never shown.

    Later wins: the file (--config, $HOLDFAST_CONFIG, ./holdfast.toml if it is trusted, or holdfast.toml in
    $HOLDFAST_HOME), the environment (HOLDFAST_SECTION__NAME), options.

    \b
    Examples:
      holdfast config show
      HOLDFAST_LEASE__STALE_SECONDS=60 holdfast config --json
    """

    model = await _model(invocation.settings)
    settings = list(effective(invocation.settings, model))
    ignored = invocation.settings.ignored
    if as_json:
        from ..server import objects

        found = objects.fields_of(objects.listed(settings))
        print_json({**found, "ignored_file": str(ignored.absolute()) if ignored else None})
        return
    rows: list[list[Cell]] = []
    for each in settings:
        default = each["origin"].startswith("default")
        value = each["value"]
        if each["name"] == "store.url" and not value:
            value = invocation.location
        rows.append(
            [
                each["name"],
                Styled(shown_value(value) or "—", "" if default else "bold"),
                Styled(each["origin"], "dim" if default else ""),
                *([Styled(each["meaning"], "dim")] if wide() else []),
            ]
        )
    titles = ("setting", "value", "from", *(("meaning",) if wide() else ()))
    table([Column(title, whole=title == "setting") for title in titles], rows)
    for reason in invocation.settings.ignored_for:
        say(f"{reason}.")


SettingsFile = Annotated[
    Path | None, typer.Argument(metavar="[PATH]", help="The file; without one ./holdfast.toml.")
]


@command(settings_group, "trust")
async def trust(invocation: CommandContext, path: SettingsFile = None) -> None:
    """Use the holdfast.toml of a directory when you work there.

    It decides where keys are sent and which commands may be run, so read it first. Its path and the hash of
    its content are kept in the home: when it changes, it is ignored until it is trusted again.

    \b
    Examples:
      holdfast config trust
      holdfast config trust ~/work/agent/holdfast.toml
    """

    file = _settings_file(path)
    sets = trust_file(file)
    say(f"{file.resolve()} is trusted as it is now. It sets {', '.join(sets) or 'nothing'}.")


@command(settings_group, "untrust")
async def untrust(invocation: CommandContext, path: SettingsFile = None) -> None:
    """Ignore the holdfast.toml of a directory again.

    \b
    Example:
      holdfast config untrust
    """

    file = _settings_file(path)
    was = forget(home(), file)
    say(f"{file.resolve()} is {'no longer' if was else 'not'} trusted.")


def _settings_file(path: Path | None) -> Path:
    """The settings file of this path: for a directory, the one in it."""

    return path / LOCAL_FILE if path is not None and is_directory(path) else path or LOCAL_FILE


async def _model(settings: Settings) -> Model | None:
    """The model that a server with these settings would answer with; None: there is none."""
    from ..models.choose import choose_from

    try:
        model = await choose_from(settings.model, {})
    except (ModelError, BadSetting):
        return None
    await model.close()
    return model


def effective(settings: Settings, model: Model | None) -> Iterator[dict[str, Any]]:
    """Every setting with its value, its origin and its meaning, if this model answers."""

    unflushed = (
        settings.memory.flush
        and not settings.memory.webhook
        and "memory.flush" not in settings.origins
        and _is_local(settings, model)
    )
    for section in SECTIONS:
        values = getattr(settings, section)
        for each in fields(values):
            name = f"{section}.{each.name}"
            off = unflushed and name == "memory.flush"
            yield {
                "name": name,
                "value": False if off else without_secret(name, getattr(values, each.name)),
                "origin": "default for the local model" if off else settings.origins.get(name, "default"),
                "meaning": each.metadata.get("meaning", ""),
            }
    for connector, found in settings.connectors.items():
        for each in fields(found):
            name = f"connectors.{connector}.{each.name}"
            yield {
                "name": name,
                "value": without_secret(name, getattr(found, each.name)),
                "origin": settings.origins.get(name, "default"),
                "meaning": each.metadata.get("meaning", ""),
            }


def _is_local(settings: Settings, model: Model | None) -> bool:
    """True: the local model answers, which is not trusted with memories unless the settings say so."""
    from ..models.local import LocalModel
    from ..models.measured import innermost

    return settings.model.kind == "local" if model is None else isinstance(innermost(model), LocalModel)


def without_secret(name: str, value: Any, environment: Mapping[str, str] = os.environ) -> Any:
    """The value; hides a password, key or token in a URL, and an API key where a variable name is
    expected."""
    if not isinstance(value, str):
        return value
    if name.endswith("_env") and value and not (_VARIABLE.fullmatch(value) or value in environment):
        return HIDDEN
    value = _PASSWORD.sub(rf"\g<before>{HIDDEN}", value)
    return _PARAMETER.sub(_without_value, value)


def _without_value(found: re.Match[str]) -> str:
    """The parameter of a URL; if its name is that of a secret, without its value."""
    name = found["name"]
    return f"{name}={HIDDEN}" if any(word in name.lower() for word in _SECRETS) else found[0]


def shown_value(value: Any) -> str:
    """A setting's value on one line; empty for an empty one."""
    if isinstance(value, tuple):
        return ", ".join(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {number}" for name, number in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


@command(app, "version", hides=("owner", "config", "store"))
async def version(invocation: CommandContext, as_json: AsJson = False) -> None:
    """Print the versions of holdfast, Python and SQLite.

    \b
    Example:
      holdfast version
    """

    versions = {
        "holdfast": __version__,
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
    }
    if as_json:
        print_json(versions)
    else:
        say(f"holdfast {__version__} (Python {versions['python']}, SQLite {versions['sqlite']})")
