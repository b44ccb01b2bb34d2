"""Reads the settings: `holdfast.toml`, then the environment, then the program's arguments; the later wins.

Every value knows its origin. A list or a table replaces the earlier one completely, so the last place that
sets it holds all of it.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import stat
import sys
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import Field, dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..domain.trust import TrustVerdict
from ..errors import BadSetting
from ..os_support import holdfast_home as home
from ..trust import check_home, command_for, is_trusted, judge_file, trust
from .convert import convert
from .sections import CONNECTOR_KINDS, ENVIRONMENT_PREFIX, SECTIONS, ConnectorSettings, Settings

_NOT_SETTINGS = {"HOLDFAST_HOME", "HOLDFAST_CONFIG", "HOLDFAST_API_KEY", "HOLDFAST_DEMO"}
_UNMISTAKABLE = {"port", "host", "base_url", "api_key_env", "idle_minutes", "timezone"}
_CONNECTOR_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def load(
    config: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    given: Mapping[str, Any] | None = None,
    given_by: str = "settings=",
) -> Settings:
    """All settings: from the file (if there is one), the environment and `given`, in this order.

    A `./holdfast.toml` that is not trusted is ignored, with a line on stderr, and so is a file of the home
    that others can change or that cannot be read. Raises BadSetting if other users could have changed the
    home, or a file that was named.
    """
    check_home(home(environment))
    file, ignored = _find_file(config, environment)
    settings = Settings(
        ignored=ignored[0].path if ignored else None, ignored_for=tuple(each.reason for each in ignored)
    )
    if file is not None:
        settings = _apply(settings, _parsed(file), str(file.path))
    for each in ignored:
        _report_ignored(each)
    settings = _apply_environment(settings, environment)
    settings = _apply(settings, given or {}, given_by)
    if settings.lease.stale_seconds < 2 * settings.lease.heartbeat_seconds:
        raise BadSetting(
            f"lease.stale_seconds ({settings.lease.stale_seconds:g}, from "
            f"{settings.origins.get('lease.stale_seconds', 'the default')}) must be at least twice "
            f"lease.heartbeat_seconds ({settings.lease.heartbeat_seconds:g}), "
            "or a healthy node would count as hung"
        )
    return settings


@dataclass(frozen=True, slots=True)
class _File:
    """A settings file and its content, read once: the checked bytes are the used bytes."""

    path: Path
    content: bytes


@dataclass(frozen=True, slots=True)
class _Ignored:
    """A settings file that is not used."""

    path: Path
    reason: str
    """Names the file and says what to do."""


LOCAL_FILE = Path("holdfast.toml")
_told: set[str] = set()
"""The ignored files that this process has already reported."""


def _find_file(
    config: Path | None, environment: Mapping[str, str]
) -> tuple[_File | None, tuple[_Ignored, ...]]:
    """The settings file to use, and those that would come before or in its place, but are ignored."""
    named = config or (Path(environment["HOLDFAST_CONFIG"]) if environment.get("HOLDFAST_CONFIG") else None)
    if named is not None:
        return _named_file(named), ()
    own = home(environment) / "holdfast.toml"
    local = _local_file()
    ignored: tuple[_Ignored, ...] = ()
    if local is not None and not _is_local(own):
        if is_trusted(home(environment), local.path, local.content):
            return local, ()
        ignored = (
            _ignored(
                local.path,
                "is not trusted",
                "to use it, read it and run `holdfast config trust` in that directory",
            ),
        )
    try:
        file, verdict = _read(own)
    except (FileNotFoundError, NotADirectoryError):
        return None, ignored
    except OSError as error:
        reason = f"cannot be read ({error.strerror or error})"
        return None, (*ignored, _ignored(own, reason, "let this user read it, or remove it"))
    if not verdict.is_trusted:
        advice = f"check what it says, then run `{command_for(verdict.remedy, own)}`"
        return None, (*ignored, _ignored(own, verdict.reason, advice))
    return file, ignored


def _ignored(path: Path, reason: str, advice: str) -> _Ignored:
    where = os.path.realpath(path)
    name = where if where.isprintable() else repr(where)
    return _Ignored(path, f"{name} {reason} and was ignored; {advice}")


def _named_file(path: Path) -> _File:
    """The file that the user has named. Raises BadSetting if it cannot be read or others can change it."""
    file, verdict = _read_named(path)
    if not verdict.is_trusted:
        remedy = command_for(verdict.remedy, path)
        raise BadSetting(
            f"{path} {verdict.reason}, so it is not used; check what it says, then run `{remedy}`"
        )
    return file


def _read_named(path: Path) -> tuple[_File, TrustVerdict]:
    """Raises BadSetting if there is none or it cannot be read."""
    try:
        return _read(path)
    except (FileNotFoundError, NotADirectoryError):
        raise BadSetting(f"there is no settings file {path}") from None
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror or error}") from error


def _is_local(path: Path) -> bool:
    """True if this file is also the one in the working directory."""
    try:
        return path.samefile(LOCAL_FILE)
    except OSError:
        return False


def _local_file() -> _File | None:
    """The settings file in the working directory. One that cannot be read is not trusted; a directory that
    may not be searched (another user's, after sudo) has none."""
    try:
        return _read(LOCAL_FILE)[0]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return _File(LOCAL_FILE, b"") if os.access(".", os.X_OK) else None


def _read(path: Path) -> tuple[_File, TrustVerdict]:
    """A settings file, and whether it can be trusted: of the file that was read, also if it is replaced
    meanwhile. Raises FileNotFoundError if there is none, or something else in its place."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe is not waited for
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(errno.ENOENT, "Not a file", str(path))
        return _File(path, file.read()), judge_file(path, status)


def _parsed(file: _File) -> dict[str, Any]:
    try:
        return tomllib.loads(file.content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"{file.path} cannot be read as TOML: {error}") from error


def _report_ignored(ignored: _Ignored) -> None:
    """Report it in one line on stderr, once in a process."""
    where = os.path.realpath(ignored.path)
    if where not in _told:
        _told.add(where)
        sys.stderr.write(f"holdfast: {ignored.reason}\n")


def trust_file(path: Path) -> list[str]:
    """Trust this settings file as it is now, whoever can change it: a changed file is no longer trusted.
    Returns the names of its settings. Raises BadSetting if it is none."""
    file, _ = _read_named(path)
    found = _apply(Settings(), _parsed(file), str(path))
    check_home(home())
    trust(home(), path, file.content)
    return sorted(found.origins)


def _apply_environment(settings: Settings, environment: Mapping[str, str]) -> Settings:
    # A connector's kind first: it decides which settings there are.
    for variable, text in sorted(
        environment.items(), key=lambda each: (not each[0].endswith("__KIND"), each)
    ):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in _NOT_SETTINGS:
            continue
        section, separator, name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().partition("__")
        if separator:
            *outer, last = name.split("__")
            content: dict[str, Any] = {last: text}
            for part in reversed(outer):  # HOLDFAST_RESET__SOURCES__TELEGRAM__MODE
                content = {part: content}
            settings = _apply(settings, {section: content}, variable)
        elif not text.startswith(("tcp://", "udp://")):  # Kubernetes sets such for a service named holdfast
            _refuse_misspelt(variable, section)
    return settings


def _refuse_misspelt(variable: str, name: str) -> None:
    """Raises BadSetting for HOLDFAST_PORT and HOLDFAST_SERVER_PORT, which mean HOLDFAST_SERVER__PORT."""
    for section, kind in SECTIONS.items():
        for setting in fields(kind):
            if name == f"{section}_{setting.name}" or (name == setting.name and name in _UNMISTAKABLE):
                meant = f"{ENVIRONMENT_PREFIX}{section}__{setting.name}".upper()
                raise BadSetting(f"{variable} is not a setting; did you mean {meant}?")


def _apply(settings: Settings, values: Mapping[str, Any], origin: str) -> Settings:
    origins = dict(settings.origins)
    for section, content in values.items():
        if section == "connectors":
            connectors = _connectors(settings.connectors, content, origin, origins)
            settings = replace(settings, connectors=connectors)
            continue
        if section not in SECTIONS:
            raise BadSetting(
                f"{origin}: there is no section [{section}]{_nearest(section, (*SECTIONS, 'connectors'))}"
            )
        if not isinstance(content, Mapping):
            raise BadSetting(f"{origin}: [{section}] must be a table of settings, not {content!r}")
        known = {item.name: item for item in fields(SECTIONS[section])}
        changes = {}
        for name, value in content.items():
            if name not in known:
                raise BadSetting(
                    f"{origin}: there is no setting {section}.{name}{_nearest(name, known, section)}"
                )
            if known[name].metadata.get("by_source"):
                before = getattr(getattr(settings, section), name)
                changes[name] = _by_source(before, value, known, f"{section}.{name}", origin, origins)
                continue
            changes[name] = convert(value, known[name], f"{origin}: {section}.{name}")
            origins[f"{section}.{name}"] = origin
        settings = replace(settings, **{section: replace(getattr(settings, section), **changes)})
    return replace(settings, origins=origins)


def _by_source(
    before: Mapping[str, Mapping[str, Any]],
    value: Any,
    known: Mapping[str, Field[Any]],
    where: str,
    origin: str,
    origins: dict[str, str],
) -> dict[str, dict[str, Any]]:
    """The overrides for each source, merged into the earlier ones."""
    if not isinstance(value, Mapping) or not all(isinstance(each, Mapping) for each in value.values()):
        raise BadSetting(f"{origin}: {where} must be a table for each source, not {value!r}")
    found = {source: dict(differs) for source, differs in before.items()}
    for source, differs in value.items():
        for name, given in differs.items():
            if name not in known or known[name].metadata.get("by_source"):
                plain = {each: item for each, item in known.items() if not item.metadata.get("by_source")}
                raise BadSetting(
                    f"{origin}: there is no setting {where}.{source}.{name}"
                    f"{_nearest(name, plain, f'{where}.{source}')}"
                )
            converted = convert(given, known[name], f"{origin}: {where}.{source}.{name}")
            found.setdefault(source, {})[name] = converted
            origins[f"{where}.{source}.{name}"] = origins[where] = origin
    return found


def _connectors(
    before: Mapping[str, ConnectorSettings], value: Any, origin: str, origins: dict[str, str]
) -> dict[str, ConnectorSettings]:
    """The connectors, merged into the earlier ones. The kind decides which settings one has."""
    if not isinstance(value, Mapping) or not all(isinstance(each, Mapping) for each in value.values()):
        raise BadSetting(f"{origin}: connectors must be a table for each connector, not {value!r}")
    found = dict(before)
    for connector, content in value.items():
        where = f"connectors.{connector}"
        if not _CONNECTOR_NAME.fullmatch(connector):
            raise BadSetting(
                f"{origin}: a connector's name has small letters, digits, - and _, not {connector!r}"
            )
        earlier = found.get(connector)
        kind = content.get("kind", earlier.kind if earlier else "")
        if kind not in CONNECTOR_KINDS:
            raise BadSetting(
                f"{origin}: {where}.kind must be one of {', '.join(CONNECTOR_KINDS)}, not {kind!r}"
            )
        if earlier is None or earlier.kind != kind:
            earlier = CONNECTOR_KINDS[kind](kind=kind)
        known = {item.name: item for item in fields(earlier)}
        changes = {}
        for name, given in content.items():
            if name not in known:
                raise BadSetting(
                    f"{origin}: there is no setting {where}.{name}{_nearest(name, known, where)}"
                )
            changes[name] = convert(given, known[name], f"{origin}: {where}.{name}")
            origins[f"{where}.{name}"] = origin
        found[connector] = replace(earlier, **changes)
    return found


def _nearest(name: str, valid: Collection[str], section: str = "") -> str:
    close = difflib.get_close_matches(name, list(valid), 1, 0.5)
    prefix = f"{section}." if section else ""
    return f"; did you mean {prefix}{close[0]}?" if close else f"; valid are {', '.join(sorted(valid))}"
