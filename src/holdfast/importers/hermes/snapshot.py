"""A snapshot of a Hermes home: all that both doctor and import need, read once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path

import apsw

from ..writing import StepProgress, no_step_progress
from .database_copy import STATEMENTS, private_copy
from .home import ChatRoutes, Home, home_at, routes_in
from .lineage import HermesLineage, lineage_of
from .reading import HermesSession, sessions_in


@dataclass(frozen=True, slots=True)
class HomeSnapshot:
    home: Home
    copy: apsw.Connection
    schema: int
    sessions: tuple[HermesSession, ...]
    lineage: HermesLineage
    routes: ChatRoutes
    zone: tzinfo
    """The zone of times that are stored without one."""


@contextmanager
def read_home(
    path: Path, zone: tzinfo, places: Sequence[Path] = (), progress: StepProgress = no_step_progress
) -> Iterator[HomeSnapshot]:
    """Read the home at this path. Raises BadInput, worded for its owner, if there is none or it is damaged.

    `places`: directories that may have room for a copy, besides the system's temporary directory.
    """
    home = home_at(path)
    with private_copy(home.database, places, progress) as copy:
        progress("reading", 0, 1)
        sessions = tuple(sessions_in(copy))
        routes = routes_in(_routing(copy), home.sessions_file, zone)
        yield HomeSnapshot(home, copy, _schema(copy), sessions, lineage_of(sessions), routes, zone)


def _schema(copy: apsw.Connection) -> int:
    """Hermes' schema version; 0 if it has none."""
    if not _has(copy, "schema_version"):
        return 0
    ((number,),) = copy.execute(STATEMENTS["schema_version"])
    return number if isinstance(number, int) else 0


def _routing(copy: apsw.Connection) -> list[tuple[str, str]]:
    if not _has(copy, "gateway_routing"):
        return []
    return [(str(key), str(entry)) for key, entry in copy.execute(STATEMENTS["routing"])]


def _has(copy: apsw.Connection, table: str) -> bool:
    return bool(copy.execute(STATEMENTS["has_table"], {"name": table}).fetchall())
