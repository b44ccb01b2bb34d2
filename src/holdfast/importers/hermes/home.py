"""Finds the files of a Hermes home, and reads its chat routes, processes, memories and reset rule.

The database is `state.db`. The session of each chat is in its `gateway_routing` table (from 0.19 on) and in
`sessions/sessions.json`; where both have a key, the table wins. `processes.json` lists background processes,
`memories/*.md` holds the agent's memories, `config.yaml` says when sessions are reset.

A file that cannot be parsed is reported. Chat routes are never guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any

from ...errors import BadInput
from ...os_support import exists, is_directory, is_file

ENTRY_BETWEEN = "\n§\n"
NOTHING = "Nothing was imported"


@dataclass(frozen=True, slots=True)
class Home:
    """The files of a home. All but the database may be missing."""

    path: Path
    database: Path

    @property
    def sessions_file(self) -> Path:
        return self.path / "sessions" / "sessions.json"

    @property
    def processes_file(self) -> Path:
        return self.path / "processes.json"


def home_at(path: Path) -> Home:
    """The home in this directory, or the one of this `state.db`. Raises BadInput if there is none."""
    try:
        if is_file(path) and path.name == "state.db":
            path = path.parent
        if not exists(path):
            raise BadInput(f"there is no {path}")
        if not is_directory(path):
            raise BadInput(f"{path} is a file; give the directory of a Hermes home (usually ~/.hermes)")
        database = path / "state.db"
        if not is_file(database):
            raise BadInput(
                f"{path} is not a Hermes home: it has no state.db (a home is usually ~/.hermes). {NOTHING}"
            )
    except PermissionError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}). {NOTHING}") from error
    return Home(path, database)


# --- chat routes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChatRoute:
    """A chat's key and the session that Hermes sends its next message to."""

    key: str
    session_id: str
    updated_at: datetime | None
    settled: bool
    """True: its expiry was handled, and Hermes has recorded that."""


@dataclass(frozen=True, slots=True)
class ChatRoutes:
    by_key: Mapping[str, ChatRoute]
    skipped: tuple[str, ...] = ()
    """Descriptions of entries that are not valid routes."""


def routes_in(stored: Iterable[tuple[str, str]], file: Path, zone: tzinfo) -> ChatRoutes:
    """The routes of a home: those in its database (key and JSON, newest last), and those only in its file.

    Times without a zone are read in `zone`.
    """
    found: dict[str, ChatRoute] = {}
    skipped: list[str] = []
    for key, text in stored:
        try:
            _add(found, skipped, key, json.loads(text), zone, "gateway_routing")
        except (ValueError, RecursionError):
            skipped.append(f"gateway_routing: the entry of {key!r:.80} is not valid JSON")
    from_file: dict[str, ChatRoute] = {}
    entries = _read_json(file) if exists(file) else {}
    if not isinstance(entries, dict):
        raise BadInput(f"{file} must hold a JSON object, not a {type(entries).__name__}. {_mend(file)}")
    for key, entry in entries.items():
        _add(from_file, skipped, key, entry, zone, file.name)
    return ChatRoutes({**from_file, **found}, tuple(skipped))


def _add(
    found: dict[str, ChatRoute], skipped: list[str], key: str, entry: object, zone: tzinfo, where: str
) -> None:
    if key.startswith("_"):
        return  # a note to readers, not a chat
    session_id = entry.get("session_id") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(session_id, str) or not session_id:
        skipped.append(f"{where}: the entry of {key!r:.80} names no session")
        return
    settled = bool(entry.get("expiry_finalized", entry.get("memory_flushed", False)))
    found[key] = ChatRoute(key, session_id, time_of(entry.get("updated_at"), zone), settled)


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except PermissionError as error:
        raise BadInput(f"{file} cannot be read ({error.strerror}). {NOTHING}") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{file} is damaged or half-written ({error}). {_mend(file)}") from error


def _mend(file: Path) -> str:
    return f"{NOTHING}. Repair it, or move {file.name} away to import without the chats' keys"


def time_of(value: object, zone: tzinfo) -> datetime | None:
    """Parse a time as Hermes writes it: seconds since 1970, or ISO 8601; without a zone it is in `zone`."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(float(value), UTC)
        if isinstance(value, str) and value:
            read = datetime.fromisoformat(value)
            return (read if read.tzinfo else read.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return None


# --- background processes ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Background:
    """A background process as Hermes recorded it."""

    key: str
    task: str
    command: str
    pid: int | None
    on_host: bool
    start: str | None
    """Start time in the kernel's own units; recorded from 0.19 on."""
    started_at: datetime | None


def background_of(file: Path, zone: tzinfo) -> tuple[list[Background], str | None]:
    """The processes in `processes.json`; and a problem if it cannot be parsed."""
    if not exists(file):
        return [], None
    try:
        entries = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        return [], f"{file.name} cannot be read ({error}); background processes are not known"
    if not isinstance(entries, list):
        return [], f"{file.name} does not hold a list; background processes are not known"
    found = []
    for entry in entries:
        if isinstance(entry, dict):
            pid, start = entry.get("pid"), entry.get("host_start_time")
            found.append(
                Background(
                    str(entry.get("session_key") or ""),
                    str(entry.get("task_id") or ""),
                    str(entry.get("command") or ""),
                    pid if isinstance(pid, int) and pid > 0 else None,
                    entry.get("pid_scope", "host") == "host",
                    str(start) if start is not None else None,
                    time_of(entry.get("started_at"), zone),
                )
            )
    return found, None


# --- memories and resets -------------------------------------------------------------------------------


def memories_of(home: Home) -> dict[str, list[str]]:
    """The agent's memories: entries by file."""
    found = {}
    for name in ("MEMORY.md", "USER.md"):
        file = home.path / "memories" / name
        try:
            text = file.read_text("utf-8", "replace").replace("\x00", "\ufffd")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise BadInput(f"{file} cannot be read ({error.strerror}). {NOTHING}") from error
        entries = [entry.strip() for entry in text.split(ENTRY_BETWEEN) if entry.strip()]
        if entries:
            found[name] = entries
    return found


@dataclass(frozen=True, slots=True)
class ResetRule:
    """When Hermes would reset a chat."""

    mode: str
    idle_minutes: float
    at_hour: int


def reset_rule_of(home: Home, schema: int) -> ResetRule:
    """`session_reset` of `config.yaml`, read without a YAML parser: three plain values below one name.

    Missing values are Hermes' defaults. The default mode became `none` with schema 19.
    """
    values: dict[str, str] = {}
    try:
        text = (home.path / "config.yaml").read_text("utf-8", "replace")
    except OSError:
        text = ""
    block = re.search(r"^session_reset:[ \t]*(\{.*?\}|(?:\n[ \t]+.*|\n[ \t]*(?:#.*)?$)*)", text, re.MULTILINE)
    for name, value in re.findall(r"\b(\w+)[\"']?\s*:\s*[\"']?([\w.]+)", block[1] if block else ""):
        values.setdefault(name, value)
    default = ResetRule("none" if schema >= 19 else "both", 1440.0, 4)
    try:
        return ResetRule(
            values.get("mode", default.mode),
            float(values.get("idle_minutes", default.idle_minutes)),
            int(values.get("at_hour", default.at_hour)),
        )
    except ValueError:
        return default
