"""Converts what a file, a variable or a program gave to the type of a setting, and checks its limits.

An invalid value is a BadSetting that names its origin, the setting and what it should be; nothing is guessed.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, Field
from typing import Any
from urllib.parse import unquote

from ..domain.api_keys import holds_token
from ..errors import BadSetting
from .sections import FAR, database_path, is_postgres

_FLAGS = {
    "true": True,
    "false": False,
    "yes": True,
    "no": False,
    "on": True,
    "off": False,
    "1": True,
    "0": False,
}


def default_of(setting: Field[Any]) -> Any:
    """The value when nothing sets it."""
    if setting.default_factory is not MISSING:
        return setting.default_factory()
    return setting.default


def convert(value: Any, setting: Field[Any], where: str) -> Any:
    """The value as the setting's type. Raises BadSetting, saying what it should be."""
    limits = setting.metadata
    match default_of(setting):
        case bool():
            return _flag(value, where)
        case int() | float() as default:
            return _number(value, type(default), limits, where)
        case tuple():
            return _texts(value, limits, where)
        case dict():
            return _table(value, limits, where)
        case _:
            return _text(value, limits, where)


def _number(value: Any, kind: type[Any], limits: Mapping[str, Any], where: str) -> Any:
    try:
        number = kind(value) if isinstance(value, str | int) and not isinstance(value, bool) else value
    except (ValueError, OverflowError):
        number = None
    if isinstance(number, bool) or not isinstance(number, kind):
        raise BadSetting(f"{where} must be a {'whole ' if kind is int else ''}number, not {value!r}")
    least, most = limits.get("at_least", float("-inf")), limits.get("at_most", float("inf"))
    above, below = limits.get("above", float("-inf")), limits.get("below", float("inf"))
    endless = kind is float and not float("-inf") < number < float("inf")
    if (endless or not (least <= number <= most and above < number < below)) and not (
        limits.get("or_zero") and number == 0
    ):
        words = {"at_least": "at least", "above": "above", "at_most": "at most", "below": "below"}
        if most >= FAR and not number > most:
            del words["at_most"]  # a limit that is hardly ever reached is named only when exceeded
        allowed = " and ".join(f"{word} {limits[name]}" for name, word in words.items() if name in limits)
        zero = "0 or " if limits.get("or_zero") else ""
        raise BadSetting(f"{where} must be {zero}{allowed or 'finite'}, not {value}")
    return number


def _flag(value: Any, where: str) -> bool:
    """A boolean; in the environment, as a word or a digit."""
    if isinstance(value, str) and value.lower() in _FLAGS:
        return _FLAGS[value.lower()]
    if not isinstance(value, bool):
        raise BadSetting(f"{where} must be true or false, not {value!r}")
    return value


def _text(value: Any, limits: Mapping[str, Any], where: str) -> str:
    if not isinstance(value, str):
        raise BadSetting(f"{where} must be text, not {value!r}")
    if limits.get("not_empty") and not value.strip():
        raise BadSetting(f"{where} must not be empty")
    if "choices" in limits and value not in limits["choices"]:
        raise BadSetting(f"{where} must be one of {', '.join(limits['choices'])}, not {value!r}")
    if limits.get("zone") and value:
        _check_zone(value, where)
    if limits.get("store") and not is_postgres(value):
        try:
            database_path(value)
        except BadSetting as error:
            raise BadSetting(f"{where}: {error}") from None
    if limits.get("outgoing") and holds_token(unquote(value)):
        raise BadSetting(
            f"{where} holds a key of holdfast's own, which is never sent to another server; take it out"
        )
    if "shape" in limits and value and not limits["shape"].fullmatch(value):
        raise BadSetting(f"{where} must look like {limits['such_as']}, not {value!r}")
    return value


def _check_zone(name: str, where: str) -> None:
    from zoneinfo import ZoneInfo, available_timezones

    try:
        ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        close = difflib.get_close_matches(name, available_timezones(), 1, 0.5)
        hint = f"; did you mean {close[0]}?" if close else ", such as Europe/Berlin"
        raise BadSetting(f"{where} must be an IANA time zone, not {name!r}{hint}") from None


def _texts(value: Any, limits: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """A list of strings. One string, as in the environment, is split at its commas, or parsed as
    in the file."""
    if isinstance(value, str) and value.strip().startswith("["):
        try:
            value = tomllib.loads(f"list = {value}")["list"]
        except tomllib.TOMLDecodeError:
            raise BadSetting(f"{where} must be a list of texts, not {value!r}") from None
    elif isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list | tuple) or not all(isinstance(part, str) for part in value):
        raise BadSetting(f"{where} must be a list of texts, not {value!r}")
    for part in value:
        if "shape" in limits and not limits["shape"].fullmatch(part):
            raise BadSetting(f"{where} has {part!r}; each must look like {limits['such_as']}")
    return tuple(value)


def _table(value: Any, limits: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Integers, or strings, by name. A string, as in the environment, is parsed as `name=value,…`."""
    table = value
    if isinstance(value, str):
        pairs = [part.rpartition("=") for part in value.split(",") if part.strip()]
        table = {name.strip(): item.strip() for name, _, item in pairs}
    what = "texts" if limits.get("texts") else "numbers"
    if not isinstance(table, Mapping) or not all(isinstance(name, str) and name for name in table):
        raise BadSetting(f"{where} must be a table of {what} by name, not {value!r}")
    if limits.get("texts"):
        needs = {"not_empty": True, **{name: limits[name] for name in ("shape", "such_as") if name in limits}}
        return {name: _text(item, needs, f"{where}.{name}") for name, item in table.items()}
    return {name: _number(number, int, limits, f"{where}.{name}") for name, number in table.items()}
