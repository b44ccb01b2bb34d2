"""Maps the settings to each component's policies, limits, rules and directories, and to the store.

Nothing here acts, but for opening and restoring the store that the settings name; `app.py` passes the results
on. Two inputs are facts of this machine: its time zone and its environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .domain.api_keys import holds_token
from .domain.compaction import KeepPolicy
from .domain.flushes import FlushPolicy, FlushRules
from .domain.installation import install_command
from .domain.maintenance import Progress, no_progress
from .domain.nodes import NodeKind
from .domain.processes import ProcessLimits
from .domain.quotas import Quotas, to_bytes
from .domain.recovery import RecoveryRules
from .domain.resets import DEFAULT, ResetMode, ResetPolicies, ResetPolicy
from .errors import BadInput, BadSetting, StoreUnusable
from .models.base import Model
from .os_support import installation, timezone
from .runtime.agents.flusher import Pace
from .runtime.agents.memory_writers import FlushTarget, ModelTarget, WebhookTarget
from .runtime.agents.resetter import RescheduleMode
from .runtime.agents.titler import TitleRules
from .runtime.contexts.compactor import CompactionRules
from .runtime.contexts.preamble import Recall
from .runtime.processes.supervisor import Supervisor
from .runtime.tools.memory import MemoryTool
from .runtime.tools.open_calls import ReconcileWebhook
from .runtime.tools.process import ProcessTool
from .runtime.tools.search import SearchTool
from .runtime.tools.terminal import Terminal
from .runtime.tools.toolbox import Tool, Toolbox
from .settings import (
    ENVIRONMENT_PREFIX,
    AgentSettings,
    Settings,
    database_path,
    home,
    is_postgres,
    is_variable,
    load,
    without_password,
)
from .store.store import Store
from .store.values import Retention, StorePolicy

if TYPE_CHECKING:
    from .runtime.otel import Telemetry

DRAFTS_KEPT = timedelta(hours=24)


def effective_settings(url: str | Path | None, given: Mapping[str, Any] | None) -> Settings:
    """All settings of a program: what it has given, and the store at `url`, override the file and the
    environment."""
    merged: dict[str, Any] = dict(given or {})
    if url is not None:
        named = {"url": f"sqlite:///{url}" if isinstance(url, Path) else url}
        merged["store"] = {**merged.get("store", {}), **named}
    return load(given=merged, given_by="holdfast.open()")


def retention_of(settings: Settings) -> Retention:
    kept = settings.retention
    return Retention(
        drafts=DRAFTS_KEPT,
        events=timedelta(days=kept.events_days),
        requests=timedelta(days=kept.requests_days),
        conversations=timedelta(days=kept.conversations_days) if kept.conversations_days else None,
    )


def recovery_rules_of(settings: Settings) -> RecoveryRules:
    turns = settings.turns
    return RecoveryRules(
        turns.recover,
        turns.max_attempts,
        turns.max_deaths,
        timedelta(hours=turns.recover_hours),
        turns.retry_model,
        timedelta(hours=turns.retry_hours),
    )


def policies_of(settings: Settings) -> ResetPolicies:
    """When sessions are reset, by source; each value with its origin."""
    reset = settings.reset
    default = _policy(settings, {})
    processes = settings.processes
    return ResetPolicies(
        default,
        {source: _policy(settings, differs, source) for source, differs in reset.sources.items()},
        max_block=timedelta(minutes=processes.max_block_minutes),
        look_again=timedelta(seconds=min(30.0, processes.active_window_seconds / 2)),
        active_window=timedelta(seconds=processes.active_window_seconds),
        stop_processes=processes.on_reset == "stop",
    )


def reschedule_mode_of(settings: Settings, kind: NodeKind) -> RescheduleMode:
    """Whether this node reschedules sessions, if programs on one store have different policies."""
    if kind is NodeKind.SERVER:
        return RescheduleMode.ALWAYS
    return (
        RescheduleMode.NEVER if kind is NodeKind.CLI or policies_of(settings).never else RescheduleMode.ONCE
    )


def _policy(settings: Settings, differs: Mapping[str, Any], source: str = "") -> ResetPolicy:
    names = [each.name for each in fields(settings.reset) if each.name != "sources"]
    values = {name: differs.get(name, getattr(settings.reset, name)) for name in names}
    origins = {}
    for name in names:
        table = f"reset.sources.{source}" if name in differs else "reset"
        given = settings.origins.get(f"{table}.{name}")
        origins[name] = DEFAULT if given is None else given if is_variable(given) else f"[{table}] in {given}"
    return ResetPolicy(
        ResetMode(values["mode"]),
        timedelta(minutes=values["idle_minutes"]),
        values["at_hour"],
        timedelta(minutes=values["quiet_minutes"]),
        values["timezone"] or timezone(),
        origins,
    )


def process_limits_of(settings: Settings) -> ProcessLimits:
    processes = settings.processes
    return ProcessLimits(
        max_block=timedelta(minutes=processes.max_block_minutes),
        active_window=timedelta(seconds=processes.active_window_seconds),
        stop_on_reset=processes.on_reset == "stop",
        grace=timedelta(seconds=processes.grace_seconds),
    )


def quotas_of(settings: Settings) -> Quotas:
    limits = settings.limits
    return Quotas(to_bytes(limits.conversation_mb), to_bytes(limits.owner_mb), limits.owner_conversations)


def processes_directory(settings: Settings) -> Path:
    """The directory for the shims' records and logs: beside the database; for a database server, in the home
    on this machine, one for each database, whichever user the URL names."""
    url = settings.store.url
    if is_postgres(url):
        database_of = urlsplit(without_password(url))
        place = f"{database_of.hostname}:{database_of.port}{database_of.path}?{database_of.query}"
        return home().absolute() / f"postgresql-{sha256(place.encode()).hexdigest()[:12]}.processes"
    database = database_path(url).resolve()  # one directory, by whatever path the store was opened
    return database.with_name(f"{database.name}.processes")


def command_environment(settings: Settings, kind: NodeKind) -> Mapping[str, str]:
    """The environment of commands: this program's. Where other people or a model may start commands, it is
    without holdfast's own variables (HOLDFAST_…: keys, the store's password), the keys of the model and of
    PostgreSQL, and any other value with a key of holdfast's form."""
    if not (kind is NodeKind.SERVER or settings.agent.tools):
        return dict(os.environ)
    hidden = {"OPENAI_API_KEY", "PGPASSWORD", "PGPASSFILE", "PROMETHEUS_MULTIPROC_DIR"}
    hidden.add(settings.model.api_key_env)
    for connector in settings.connectors.values():
        hidden |= {
            str(getattr(connector, each.name)) for each in fields(connector) if each.name.endswith("_env")
        }
    return {
        name: value
        for name, value in os.environ.items()
        if name not in hidden and not name.startswith(ENVIRONMENT_PREFIX) and not holds_token(value)
    }


def store_policy_of(settings: Settings, kind: NodeKind, model: Model | None) -> StorePolicy:
    """The policy that this program records for the whole store. It records whether sessions are flushed only
    if it knows: because it can flush them, or because its settings say so. Only a server records reset
    policies."""
    return StorePolicy(
        _flush_policy_of(settings, kind, model),
        retention_of(settings),
        policies_of(settings).stamp if kind is NodeKind.SERVER else None,
    )


def _flush_policy_of(settings: Settings, kind: NodeKind, model: Model | None) -> FlushPolicy | None:
    memory = settings.memory
    if "memory.flush" in settings.origins or flush_target_of(settings, kind, model) is not None:
        return FlushPolicy(memory.flush, memory.min_messages)
    if model is not None and answers_locally(settings, model):
        return FlushPolicy(False, memory.min_messages, assumed=True)
    return None


def flush_rules_of(settings: Settings, kind: NodeKind, model: Model | None) -> FlushRules | None:
    """Which ended sessions are flushed, by this program's settings; None: none. It applies to a store for
    which no node has recorded it, and decides whether this program flushes. A library without a model has no
    model to call. The local model is used only if the settings name it: it is too small to be trusted with
    this. A command need not know the model: the sessions it ends are flushed by a program that does."""
    memory = settings.memory
    if not memory.flush:
        return None
    if not memory.webhook:
        if kind is NodeKind.LIBRARY and model is None:
            return None
        if "memory.flush" not in settings.origins and answers_locally(settings, model):
            return None
    return FlushRules(memory.min_messages)


def answers_locally(settings: Settings, model: Model | None) -> bool:
    if model is None:
        return settings.model.kind == "local"
    from .models.local import LocalModel
    from .models.measured import innermost

    return isinstance(innermost(model), LocalModel)


def flush_target_of(settings: Settings, kind: NodeKind, model: Model | None) -> FlushTarget | None:
    """Where this program flushes sessions to; None: it does not flush, others may."""
    memory = settings.memory
    if flush_rules_of(settings, kind, model) is None:
        return None
    if memory.webhook:
        return WebhookTarget(memory.webhook)
    if model is None:
        return None
    return ModelTarget(
        model,
        settings.model,
        name=memory.model,
        prompt=memory.prompt,
        timeout_seconds=settings.model.timeout_seconds,
    )


def pace_of(settings: Settings) -> Pace:
    memory = settings.memory
    return Pace(
        memory.concurrency,
        memory.per_minute,
        memory.max_attempts,
        timedelta(seconds=memory.retry_seconds),
    )


def compaction_rules_of(settings: Settings) -> CompactionRules:
    compaction = settings.compaction
    return CompactionRules(
        compaction.threshold,
        KeepPolicy(compaction.keep_first, compaction.keep_last),
        compaction.summary_timeout_seconds,
        compaction.model,
        compaction.prompt,
    )


def title_rules_of(settings: Settings, kind: NodeKind, model: Model | None) -> TitleRules | None:
    """How this program names conversations; None: it does not. Only a server does. The local model and a
    script do only if the settings say so."""
    titles = settings.titles
    if kind is not NodeKind.SERVER or model is None or not titles.generate:
        return None
    if "titles.generate" not in settings.origins and (answers_locally(settings, model) or is_scripted(model)):
        return None
    return TitleRules(titles.min_messages, titles.per_minute, titles.model or settings.model.name or None)


def is_scripted(model: Model) -> bool:
    from .models.measured import innermost
    from .models.scripted import ScriptedModel

    return isinstance(innermost(model), ScriptedModel)


def recall_of(settings: Settings) -> Recall | None:
    """Which memories of earlier sessions are included in a turn; None: none."""
    memory = settings.memory
    if memory.recall == "none":
        return None
    return Recall(memory.recall == "owner", memory.recall_chars)


def toolbox_of(
    settings: AgentSettings,
    store: Store,
    supervisor: Supervisor,
    environment: Mapping[str, str],
    *,
    recalls_all: bool = False,
) -> Toolbox:
    """The toolbox with the tools that the settings name. `environment`: that of commands. `recalls_all`: the
    memory tool sees all of its owner's memories."""
    known: list[Tool] = [
        Terminal(supervisor, environment),
        ProcessTool(store, supervisor),
        SearchTool(store, whole_owner=settings.search == "owner"),
        MemoryTool(store, whole_owner=recalls_all),
    ]
    reconcile = ReconcileWebhook(settings.reconcile) if settings.reconcile else None
    return Toolbox([tool for tool in known if tool.name in settings.tools], settings.max_steps, reconcile)


def telemetry_of(settings: Settings, node_id: str) -> Telemetry | None:
    """The exporter of traces and metrics, if the settings name a receiver."""
    if not settings.otel.endpoint:
        return None
    if find_spec("opentelemetry.sdk") is None or find_spec("opentelemetry.exporter") is None:
        command = install_command(
            installation(), "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"
        )
        raise BadSetting(f"[otel] endpoint needs more packages (the extra `otel`): {command}")
    from .runtime.otel import Telemetry

    provider = settings.model.kind if settings.model.kind in ("anthropic", "local", "scripted") else "openai"
    return Telemetry(settings.otel.endpoint, settings.otel.service_name, node_id, provider)


def check_postgres() -> None:
    """Raises StoreUnusable unless the packages for a PostgreSQL store are installed."""
    if find_spec("psycopg") is None:
        command = install_command(installation(), "psycopg[binary]")
        raise StoreUnusable(f"a PostgreSQL store needs one more package (the extra `postgres`): {command}")


def import_engine(settings: Settings) -> None:
    """Import the engine that `open_store` will use, so that processes forked later share its memory."""
    if is_postgres(settings.store.url):
        check_postgres()
    else:
        from .store.sqlite import engine as _sqlite  # noqa: F401


async def open_store(settings: Settings, kind: NodeKind = NodeKind.CLI, model: Model | None = None) -> Store:
    """Open the store that the settings name, for this kind of node. An engine is imported when it is used."""
    flushing = flush_rules_of(settings, kind, model)
    if is_postgres(settings.store.url):
        check_postgres()
        from .store.postgres.engine import open_store as open_postgres

        return await open_postgres(
            settings.store.url, policies=policies_of(settings), flushing=flushing, quotas=quotas_of(settings)
        )
    from .store.sqlite.engine import open_store as open_sqlite

    return await open_sqlite(
        database_path(settings.store.url),
        policies=policies_of(settings),
        flushing=flushing,
        quotas=quotas_of(settings),
    )


def restore_store(settings: Settings, backup: Path, progress: Progress = no_progress) -> Path | None:
    """Put a copy of this backup in the place of the settings' SQLite store; returns where the old one is now.

    No process may have the store open. Raises BadInput, having changed nothing, if that cannot be done.
    """
    if is_postgres(settings.store.url):
        raise BadInput(
            "a PostgreSQL store is restored by PostgreSQL's own tools, from a file of pg_dump: "
            "pg_restore --clean --if-exists --dbname=… FILE"
        )
    from .store.sqlite.restore import restore

    return restore(backup, database_path(settings.store.url).absolute(), progress)
