"""Which store is measured in which case: one line per row of each table."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from environments import Package

HERMES = Package("hermes-agent", "0.19.0", alone=True)
OPENAI_AGENTS = Package("openai-agents", "0.24.0")
LANGGRAPH = Package("langgraph-checkpoint-sqlite", "3.1.2")
OPENAI_AGENTS_POSTGRES = Package("openai-agents[sqlalchemy]", "0.24.0", and_also=("asyncpg==0.32.0",))
LANGGRAPH_POSTGRES = Package(
    "langgraph-checkpoint-postgres", "3.2.0", and_also=("psycopg[binary,pool]==3.3.8",)
)

_PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
GOOGLE_ADK = Package(
    "google-adk",
    "2.13.0",
    and_also=(
        "aiosqlite==0.22.1",
        "asyncpg==0.32.0",
        "sqlalchemy[asyncio]>=2",
        "psycopg[binary]==3.3.8",
        *_PROJECT["dependencies"],  # our adapter runs in the same environment, from this tree
    ),
)

WRITERS = (1, 16, 64)
HISTORY_MESSAGES = 10_000
HERE = None
"""No package: the project's own environment."""


@dataclass(frozen=True)
class Row:
    """A row of a table: its label, and the script, environment and case that fill it."""

    key: str
    label: str
    script: str
    package: Package | None
    case: str
    options: dict[str, Any] = field(default_factory=dict)


APPEND = (
    Row("hermes", "hermes-agent 0.19 SessionDB, as shipped", "hermes_session_db", HERMES, "append"),
    Row(
        "hermes_bare",
        "the same, its full-text triggers dropped",
        "hermes_session_db",
        HERMES,
        "append",
        {"triggers": False},
    ),
    Row("openai", "openai-agents 0.24 SQLiteSession", "openai_agents_session", OPENAI_AGENTS, "append"),
    Row("langgraph", "langgraph SQLite saver 3.1, 50 messages", "langgraph_saver", LANGGRAPH, "append"),
    Row("bare", "bare SQLite, one commit a message", "bare_sqlite", HERE, "append"),
    Row("group", "bare SQLite, group commit", "bare_sqlite", HERE, "group"),
    Row("append", "holdfast, append under a lease", "holdfast_store", HERE, "append"),
    Row("begin", "holdfast, begin turn", "holdfast_store", HERE, "begin"),
    Row("turn", "holdfast, begin turn + commit reply (turns/s)", "holdfast_store", HERE, "turn"),
)

# Not a row of the table: one append of a single writer beside one bare commit, in one process.
SINGLE = Row("single", "holdfast, one append beside one bare commit", "holdfast_store", HERE, "single")

HISTORY = (
    Row("hermes", "hermes get_messages_as_conversation", "hermes_session_db", HERMES, "history"),
    Row("openai", "openai-agents get_items", "openai_agents_session", OPENAI_AGENTS, "history"),
    Row("rows", "bare SQLite, rows + fast JSON (msgspec)", "bare_sqlite", HERE, "history"),
    Row(
        "joined", "bare SQLite, bytes joined, never decoded", "bare_sqlite", HERE, "history", {"joined": True}
    ),
    Row(
        "langgraph",
        "langgraph, one blob (rewritten whole on every append)",
        "langgraph_saver",
        LANGGRAPH,
        "history",
    ),
    Row("cold", "holdfast, context as joined bytes, cold", "holdfast_reading", HERE, "history"),
    Row("hot", "holdfast, context as joined bytes, hot", "holdfast_reading", HERE, "history", {"hot": True}),
)

# These compare holdfast with itself; both sides are asked alternately in one process.
RESOLVE = (Row("resolve", "resolve a stale id", "holdfast_reading", HERE, "resolve", {"lines": [2, 2000]}),)
OPEN = (Row("open", "open a store", "holdfast_reading", HERE, "open"),)
SWEEP = (Row("sweep", "reset what is due", "holdfast_sweeping", HERE, "sweep", {"few": 10_000}),)

POSTGRES = (
    Row(
        "openai",
        "openai-agents 0.24 SQLAlchemySession, asyncpg",
        "openai_agents_postgres",
        OPENAI_AGENTS_POSTGRES,
        "append",
    ),
    Row(
        "langgraph",
        "langgraph PostgreSQL saver 3.2, 50 messages",
        "langgraph_postgres",
        LANGGRAPH_POSTGRES,
        "append",
    ),
    Row("bare", "bare PostgreSQL, one commit a message", "bare_postgres", HERE, "append"),
    Row("group", "bare PostgreSQL, group commit", "bare_postgres", HERE, "group"),
    Row("append", "holdfast, append under a lease", "holdfast_store", HERE, "append"),
    Row("begin", "holdfast, begin turn", "holdfast_store", HERE, "begin"),
    Row("turn", "holdfast, begin turn + commit reply (turns/s)", "holdfast_store", HERE, "turn"),
)

# Not rows of that table: turns of several nodes together, and one store beside a much larger one.
NODE = Row("node", "holdfast, turns of one node", "holdfast_store", HERE, "turn")
SCALE = Row("scale", "sweeps and lists", "holdfast_postgres_scale", HERE, "scale", {"few": 10_000})


def _pair(
    framework: str, engine: str, own: str, script: str, package: Package, ours: Package | None
) -> list[Row]:
    """A framework's own store, and ours in its place."""
    key = f"{framework}_{engine}"
    label = f"{framework.replace('_', '-')}, holdfast on {engine}"
    return [
        Row(f"{key}_own", f"{framework.replace('_', '-')}, {own} on {engine}", script, package, engine),
        Row(key, label, "holdfast_adapters", ours, engine, {"adapter": framework}),
    ]


# The case of these rows is the engine: each is measured in several cases.
ADAPTERS = (
    *_pair("openai_agents", "sqlite", "its SQLiteSession", "openai_agents_session", OPENAI_AGENTS, HERE),
    *_pair(
        "openai_agents",
        "postgres",
        "its SQLAlchemySession",
        "openai_agents_postgres",
        OPENAI_AGENTS_POSTGRES,
        HERE,
    ),
    *_pair("langgraph", "sqlite", "its SqliteSaver", "langgraph_saver", LANGGRAPH, HERE),
    *_pair("langgraph", "postgres", "its PostgresSaver", "langgraph_postgres", LANGGRAPH_POSTGRES, HERE),
    *_pair("google_adk", "sqlite", "its DatabaseSessionService", "google_adk_own", GOOGLE_ADK, GOOGLE_ADK),
    *_pair("google_adk", "postgres", "its DatabaseSessionService", "google_adk_own", GOOGLE_ADK, GOOGLE_ADK),
)
