"""`Holdfast`: opens the store, starts every agent, and is the library's entry point.

    async with holdfast.open("sqlite:///agent.db") as hf:
        session = await hf.session(key="cli:ada")
        async with session.turn("my name is Ada") as turn:
            ...

Every moving part is built in `Holdfast._build` and started in `Holdfast.start`, each in one list. What
programs do with an open `Holdfast` is in `library.py`, what surfaces do in `operations.py`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from . import __version__
from .connectors.base import Connector, ConnectorDown, WrongSignature
from .connectors.worker import Connectors, ConnectorWorker
from .domain.ids import DEFAULT_OWNER, check_name
from .domain.nodes import BeatWatch, NodeKind
from .domain.sessions import EndReason
from .domain.turns import TurnStatus
from .errors import BadSetting, StoreError
from .library import LibraryOperations
from .models.base import Model
from .models.scripted import Answers, CallableModel
from .operations import Operations
from .runtime.agents.authenticator import Authenticator
from .runtime.agents.doctor import Doctor
from .runtime.agents.flusher import Flusher
from .runtime.agents.heartbeat import Heartbeat
from .runtime.agents.model_watch import ModelWatch
from .runtime.agents.notifier import Notifier
from .runtime.agents.queue_runner import QueueRunner
from .runtime.agents.reaper import Reaper
from .runtime.agents.receipts import Receipts
from .runtime.agents.recoverer import OnBegun, Rebuild, Recoverer, StoredTurns
from .runtime.agents.resetter import Resetter
from .runtime.agents.sweeper import Pruner, Sweeper
from .runtime.agents.titler import Titler
from .runtime.contexts.compactor import Compactor
from .runtime.contexts.preamble import TurnPreamble
from .runtime.processes.supervisor import Supervisor
from .runtime.shutdown import ExitSignals, SuspendSignal, finished
from .runtime.turns.gate import TurnGate
from .runtime.turns.history_matcher import HistoryMatcher, Placement
from .runtime.turns.live import Answered, Outcome, RunningTurn, TurnRenderer, TurnSpec, Unanswered
from .runtime.turns.runner import TurnRunner
from .session import NodeServices
from .settings import (
    ConnectorSettings,
    MatrixSettings,
    Settings,
    SlackSettings,
    TelegramSettings,
    WebhookSettings,
    store_location,
)
from .store.store import Store
from .wiring import (
    check_postgres,
    command_environment,
    compaction_rules_of,
    effective_settings,
    flush_target_of,
    import_engine,
    open_store,
    pace_of,
    process_limits_of,
    processes_directory,
    recall_of,
    recovery_rules_of,
    reschedule_mode_of,
    restore_store,
    retention_of,
    store_policy_of,
    telemetry_of,
    title_rules_of,
    toolbox_of,
)

if TYPE_CHECKING:
    from .runtime.otel import Telemetry

# Surfaces import from here what they need of the runtime by name.
__all__ = [
    "Answered",
    "ConnectorDown",
    "Holdfast",
    "ModelWatch",
    "Operations",
    "Outcome",
    "OwnModel",
    "Placement",
    "Receipts",
    "Recoverer",
    "RunningTurn",
    "TurnRenderer",
    "TurnRunner",
    "TurnSpec",
    "Unanswered",
    "WrongSignature",
    "answer_with",
    "as_model",
    "check_postgres",
    "effective_settings",
    "finished",
    "import_engine",
    "open",
    "open_store",
    "recover_with",
    "restore_store",
]

log = logging.getLogger(__name__)

SERVER_SWEEP_SECONDS = 1.0
DATING_SECONDS = 3.0
LEAVE_SECONDS = 5.0  # for a clean shutdown, however short `drain_seconds` is
SUSPEND_SECONDS = 2.0  # for the transaction under way, before Ctrl-Z stops the process

OwnModel: TypeAlias = Answers
"""A program's own model: `async (messages, purpose) -> str`."""


class Holdfast(LibraryOperations):
    """One node: sends heartbeats from entering to leaving. Use as an async context manager."""

    def __init__(
        self,
        settings: Settings,
        *,
        owner: str = DEFAULT_OWNER,
        kind: NodeKind = NodeKind.LIBRARY,
        sweep: bool = True,
        catch_signals: bool = True,
        model: Model | None = None,
        joins: bool = True,
        flushes: bool = True,
    ) -> None:
        """`model`: called to flush ended sessions into memory, and for summaries. `joins`: False opens the
        store without becoming a node, for short commands; operations that need a node then raise.
        `flushes`: False leaves flushing to another node of the same program."""
        super().__init__(settings)
        self._model = model
        self.owner = check_name("an owner", owner)
        self._kind = kind
        self._sweep = sweep
        self._signals = ExitSignals() if catch_signals else SuspendSignal(self._without_writes)
        self._joins = joins
        self.recoverer: Recoverer | None = None
        """Retries waiting turns; only servers have one."""
        self.connectors = Connectors({})
        self._flushes = flushes
        self.telemetry: Telemetry | None = None
        """Exports traces and metrics; None: off."""
        self.backlog: str | None = None
        """A sentence about the flush backlog at start, if it was large."""

    def __repr__(self) -> str:
        state = f"node {self.node_id}" if self._store is not None and self._joins else "not a node"
        return f"<Holdfast {store_location(self.settings.store.url)}, {state}>"

    # --- lifecycle ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, join as a node, start every agent."""
        self._store = await open_store(self.settings, self._kind, self._model)
        self._build(self._store)
        if self._joins:
            await self._start_agents(self._store)

    def _build(self, store: Store) -> None:
        """Every part of this node but the turn runner, which `answer_with` builds."""
        settings, lease = self.settings, self.settings.lease
        self.heartbeat = Heartbeat(
            store, self._kind, lease.heartbeat_seconds, lease.stale_seconds, version=__version__
        )
        sweep_seconds = SERVER_SWEEP_SECONDS if self._kind is NodeKind.SERVER else lease.sweep_seconds
        self.reaper = Reaper(
            store,
            own_node=lambda: self.node_id if self._joins else None,
            watch=BeatWatch(lease.stale_seconds, longest_gap=2 * sweep_seconds) if self._sweep else None,
            beating=lambda: self.heartbeat.beating,
        )
        self.resetter = Resetter(store, reschedule_mode_of(settings, self._kind))
        self.pruner = Pruner(store, retention_of(settings))
        self.sweeper = Sweeper(self.reaper, sweep_seconds, self.pruner, self.resetter)
        self.first_sweep = Sweeper(self.reaper, sweep_seconds, resetter=self.resetter)
        self.notifier: Notifier | None = None
        if self._sweep and settings.notify.webhook:
            self.notifier = Notifier(store, settings.notify.webhook, sweep_seconds)
        self.flusher: Flusher | None = None
        target = flush_target_of(settings, self._kind, self._model)
        if self._sweep and self._flushes and target is not None:
            self.flusher = Flusher(store, lambda: self.node_id, target, pace_of(settings), sweep_seconds)
        self.titler: Titler | None = None
        titling = title_rules_of(settings, self._kind, self._model)
        if self._model is not None and titling is not None:
            self.titler = Titler(store, self._model, titling)
        self.gate = TurnGate(store, self.heartbeat, self.reaper)
        self.matcher = HistoryMatcher(store)
        self.authenticator = Authenticator(store, os.environ.get("HOLDFAST_API_KEY"), settings.agent.tools)
        environment = command_environment(settings, self._kind)
        self.supervisor = Supervisor(
            store,
            own_node=lambda: self.node_id,
            directory=processes_directory(settings),
            limits=process_limits_of(settings),
            environment=environment,
            kept=timedelta(days=settings.retention.events_days),
        )
        self.doctor = Doctor(store, self.reaper, self.supervisor)
        self.toolbox = toolbox_of(
            settings.agent,
            store,
            self.supervisor,
            environment,
            recalls_all=settings.memory.recall == "owner",
        )
        self.preamble = TurnPreamble(store, self.supervisor, recall_of(settings))
        self.compactor = _compactor_of(self, self._model) if self._model is not None else None
        self._services = NodeServices(
            store,
            self.heartbeat,
            self.gate,
            self.supervisor,
            self.owner,
            settings.server.busy_wait_seconds,
            self.compactor,
        )

    async def _start_agents(self, store: Store) -> None:
        try:
            await self.heartbeat.join()
            self.heartbeat.start()
            store.start_indexing()
            if self._sweep:
                await self._record_policy(store)  # before anything is reset or deleted by it
                await self.sweeper.sweep_once()  # first clean up after an earlier run of this program
                self.sweeper.start()
                if self.notifier is not None:
                    self.notifier.start()
                if self.flusher is not None:
                    await self._tell_backlog(self.flusher)
                    self.flusher.start()
                await self.supervisor.supervise_once()  # and take over the processes it left running
                self.supervisor.start_loop()
        except BaseException:
            await self.stop()
            raise
        self._signals.catch()

    def _without_writes(self) -> AbstractContextManager[None]:
        return self._store.paused(SUSPEND_SECONDS) if self._store is not None else nullcontext()

    async def stop(self, reason: str = EndReason.CLOSED) -> None:
        """Interrupt turns, release leases and end sessions of this node, within `drain_seconds` or five
        seconds; then close the store."""
        store, self._store = self._store, None
        if store is None:
            return
        try:
            if self.recoverer is not None:
                await self.recoverer.stop()
            if self.queue_runner is not None:
                await self.queue_runner.stop()
            if self._runner is not None:
                await self._runner.close()
            await self.connectors.stop()
            async with asyncio.timeout(max(LEAVE_SECONDS, self.settings.server.drain_seconds)):
                await self.authenticator.uses.close()
                await self.sweeper.stop()
                if self.notifier is not None:
                    await self.notifier.stop()
                if self.flusher is not None:
                    await self.flusher.stop(self.settings.server.drain_seconds / 2)
                if self.compactor is not None:
                    await self.compactor.close()
                if self.titler is not None:
                    await self.titler.stop()
                await self.supervisor.stop_loop()
                await self.heartbeat.leave(reason)
        except (TimeoutError, StoreError) as error:
            log.warning("the shutdown was not clean (%s); the next sweep cleans up", error)
        finally:
            if self.telemetry is not None:
                await asyncio.to_thread(self.telemetry.shutdown)
            await store.close()
            self._signals.release()

    async def _record_policy(self, store: Store) -> None:
        """Record the policy of the whole store, as far as this program may; log where another program's
        recorded policy overrides this program's settings."""
        wanted = store_policy_of(self.settings, self._kind, self._model)
        holds = await store.record_policy(self._kind, wanted, self.node_id)
        if wanted.flush is not None and holds.flush is not None and wanted.flush.on != holds.flush.on:
            log.info(
                "sessions of this store are %s, as its last server recorded; [memory] flush of this program "
                "does not change that",
                "flushed" if holds.flush.on else "not flushed",
            )
        if wanted.retention != holds.retention:
            log.info("this store keeps events and requests as its last server recorded, not as set here")

    async def _tell_backlog(self, flusher: Flusher) -> None:
        """Log a large flush backlog. Sessions that new policies make due count, so these are rescheduled
        first, as far as that takes only a moment."""
        deadline = time.monotonic() + DATING_SECONDS
        while (more := await self.resetter.date_once()) and time.monotonic() < deadline:
            pass
        self.backlog = await flusher.backlog(more=more)
        if self.backlog is not None:
            log.info("memory: %s", self.backlog)

    async def __aenter__(self) -> Holdfast:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.stop()


def answer_with(
    node: Holdfast,
    model: Model,
    on_speech: Callable[[], None] = lambda: None,
    on_end: Callable[[TurnStatus], None] = lambda status: None,
) -> None:
    """Build the turn runner of a node that has started: it answers with this model until it stops.
    The callbacks count turns that begin and end."""
    node._runner = TurnRunner(
        node.store,
        node.heartbeat,
        node.gate,
        model,
        node.settings.server.checkpoint_seconds,
        on_speech,
        on_end,
        node.toolbox,
        node.preamble,
        node.compactor or _compactor_of(node, model),
        node.titler,
        recovery_rules_of(node.settings),
    )
    node.connectors = connectors_of(node)
    node.telemetry = telemetry_of(node.settings, node.node_id)
    if node.telemetry is not None:
        node.telemetry.instrument(node.store, node.matcher, model, node.toolbox, node._runner)


def recover_with(node: Holdfast, rebuild: Rebuild, on_begun: OnBegun) -> None:
    """Build what retries waiting turns and begins queued ones, on a node that answers. `rebuild` makes the
    turn of a stored request; `on_begun` is called when it runs."""
    stored = StoredTurns(node.store, node.authenticator, rebuild, on_begun)
    most = node.settings.server.max_requests
    node.recoverer = Recoverer(
        node.store, node.runner, stored, recovery_rules_of(node.settings), max(1, most // 4)
    )
    node.queue_runner = QueueRunner(
        node.store,
        node.runner,
        stored,
        most=max(1, most // 2),
        most_each=node.settings.limits.turns_per_key,
        collects=node.settings.turns.collect,
        own_node=lambda: node.node_id,
    )


def connectors_of(node: Holdfast) -> Connectors:
    """The connectors of the settings, for a node that answers. Raises BadSetting if a token is missing."""
    return Connectors(
        {
            name: ConnectorWorker(name, settings, _connector_of(name, settings), node)
            for name, settings in node.settings.connectors.items()
        }
    )


def _connector_of(name: str, settings: ConnectorSettings) -> Connector:
    """The registry of connectors: one line for each platform. Its file is imported when it is used."""
    match settings:
        case MatrixSettings():
            from .connectors.matrix import MatrixConnector

            return MatrixConnector(name, settings)
        case SlackSettings():
            from .connectors.slack import SlackConnector

            return SlackConnector(name, settings)
        case TelegramSettings():
            from .connectors.telegram import TelegramConnector

            return TelegramConnector(name, settings)
        case WebhookSettings():
            from .connectors.webhook import WebhookConnector

            return WebhookConnector(name, settings)
    raise BadSetting(f"connectors.{name}.kind: there is no connector {settings.kind!r}")


def _compactor_of(node: Holdfast, model: Model) -> Compactor:
    rules = compaction_rules_of(node.settings)
    return Compactor(node.store, node.heartbeat, node.gate, model, node.settings.model, rules)


def open(
    url: str | Path | None = None,
    *,
    owner: str = DEFAULT_OWNER,
    settings: Mapping[str, Any] | None = None,
    model: OwnModel | None = None,
    sweep: bool = True,
) -> Holdfast:
    """A node on the store at `url` (`sqlite:///agent.db`); without one, on the store of the settings.

    `settings` overrides the file and the environment: `{"lease": {"stale_seconds": 30}}`. `model` is an
    `async (messages, purpose) -> str`: without one nothing is compacted and nothing is flushed.
    """
    return Holdfast(effective_settings(url, settings), owner=owner, sweep=sweep, model=as_model(model))


def as_model(answers: OwnModel | None) -> Model | None:
    """A program's own callable as a model."""
    return None if answers is None else CallableModel(answers)
