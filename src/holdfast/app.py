"""`Holdfast`: opens the store, starts every agent, and is the library's entry point.

    async with holdfast.open("sqlite:///agent.db") as hf:
        session = await hf.session(key="cli:ada")
        async with session.turn("my name is Ada") as turn:
            ...

Every moving part is built in `Holdfast._build` and started in `Holdfast.start`, each in one list. What
surfaces do with an open `Holdfast` is in `operations.py`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from .domain.conversations import Address
from .domain.events import Event
from .domain.ids import DEFAULT_OWNER, check_name
from .domain.maintenance import Progress, no_progress
from .domain.nodes import BeatWatch, NodeKind
from .domain.sessions import EndReason
from .domain.turns import TurnStatus
from .errors import BadInput, StoreError, StoreUnusable
from .models.base import Model
from .models.scripted import Answers, CallableModel
from .operations import Operations
from .runtime.agents.authenticator import Authenticator
from .runtime.agents.compactor import Compactor
from .runtime.agents.doctor import Doctor
from .runtime.agents.flusher import Flusher
from .runtime.agents.heartbeat import Heartbeat
from .runtime.agents.model_watch import ModelWatch
from .runtime.agents.notifier import Notifier
from .runtime.agents.reaper import Reaper
from .runtime.agents.resetter import Resetter
from .runtime.agents.sweeper import Pruner, Sweeper
from .runtime.processes.supervisor import Supervisor
from .runtime.shutdown import ExitSignals, finished
from .runtime.tools.choose import toolbox_of
from .runtime.turns.gate import TurnGate
from .runtime.turns.history_matcher import HistoryMatcher, Placement
from .runtime.turns.live import Answered, Outcome, RunningTurn, TurnSpec, Unanswered
from .runtime.turns.preamble import TurnPreamble
from .runtime.turns.receipts import Receipts
from .runtime.turns.runner import TurnRunner
from .session import LiveSession, NodeServices
from .settings import Settings, database_path, is_postgres, load, store_location
from .store.store import Store
from .wiring import (
    command_environment,
    compaction_rules_of,
    flush_rules_of,
    flush_target_of,
    pace_of,
    policies_of,
    process_limits_of,
    processes_directory,
    quotas_of,
    recall_of,
    reschedule_mode_of,
    retention_of,
    store_policy_of,
)

# Surfaces import from here what they need of the runtime by name.
__all__ = [
    "Answered",
    "Holdfast",
    "ModelWatch",
    "Operations",
    "Outcome",
    "OwnModel",
    "Placement",
    "Receipts",
    "RunningTurn",
    "TurnRunner",
    "TurnSpec",
    "Unanswered",
    "answer_with",
    "as_model",
    "check_postgres",
    "effective_settings",
    "finished",
    "open",
    "open_store",
    "restore_store",
]

log = logging.getLogger(__name__)

SERVER_SWEEP_SECONDS = 1.0
DATING_SECONDS = 3.0

OwnModel: TypeAlias = Answers
"""A program's own model: `async (messages, purpose) -> str`."""


def check_postgres() -> None:
    """Raises StoreUnusable unless the packages for a PostgreSQL store are installed."""
    if find_spec("psycopg") is None:
        raise StoreUnusable("a PostgreSQL store needs one more package: pip install 'psycopg[binary]'")


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


class Holdfast(Operations):
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
    ) -> None:
        """`model`: called to flush ended sessions into memory, and for summaries. `joins`: False opens the
        store without becoming a node, for short commands; operations that need a node then raise."""
        super().__init__(settings)
        self._model = model
        self.owner = check_name("an owner", owner)
        self._kind = kind
        self._sweep = sweep
        self._signals = ExitSignals() if catch_signals else None
        self._joins = joins
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
        self.heartbeat = Heartbeat(store, self._kind, lease.heartbeat_seconds, lease.stale_seconds)
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
        if self._sweep and target is not None:
            self.flusher = Flusher(store, lambda: self.node_id, target, pace_of(settings), sweep_seconds)
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
        if self._signals is not None:
            self._signals.catch()

    async def stop(self, reason: str = EndReason.CLOSED) -> None:
        """Interrupt turns, release leases and end sessions of this node, within `drain_seconds`; then close
        the store."""
        store, self._store = self._store, None
        if store is None:
            return
        try:
            if self._runner is not None:
                await self._runner.close()
            async with asyncio.timeout(self.settings.server.drain_seconds):
                await self.sweeper.stop()
                if self.notifier is not None:
                    await self.notifier.stop()
                if self.flusher is not None:
                    await self.flusher.stop(self.settings.server.drain_seconds / 2)
                if self.compactor is not None:
                    await self.compactor.close()
                await self.supervisor.stop_loop()
                await self.heartbeat.leave(reason)
        except (TimeoutError, StoreError) as error:
            log.warning("could not leave in good order (%s); the next sweep settles what is left", error)
        finally:
            await store.close()
            if self._signals is not None:
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

    # --- operations for programs -------------------------------------------------------------------

    async def session(
        self,
        key: str | None = None,
        *,
        id: str | None = None,
        source: str = "",
        attached: bool = True,
    ) -> LiveSession:
        """Resume or start the session that the next message of this key (or id) belongs to.

        Neither: a new conversation. An attached session ends when this program does; a detached one
        (`attached=False`) lives as long as its policy says.
        """
        store = self.store
        address = Address(id=id, key=key)
        if source:
            check_name("a source", source)

        async def open_session() -> LiveSession:
            node_id = self.heartbeat.node_id
            session = await store.open_session(self.owner, address, node_id, source=source, attached=attached)
            owner = session.answering_node
            if owner not in (None, node_id) and await self.reaper.reap_if_dead(owner):
                return await open_session()  # it belonged to a dead program: continue after it
            return LiveSession(self._services, session, attached)

        return await self.heartbeat.as_living(open_session)

    def events(self, after: int = 0, *, follow: bool = False) -> EventFeed:
        """The events after event `after`: `await` it for a list, or `async for` over it.

        With `follow`, iteration continues for ever with new events.
        """
        return EventFeed(self.store, self.owner, after, follow)


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
    )


def _compactor_of(node: Holdfast, model: Model) -> Compactor:
    rules = compaction_rules_of(node.settings)
    return Compactor(node.store, node.heartbeat, node.gate, model, node.settings.model, rules)


class EventFeed:
    """Events after a cursor, as a list (`await`) or one by one (`async for`)."""

    def __init__(self, store: Store, owner: str, after: int, follow: bool) -> None:
        self._store = store
        self._owner = owner
        self._after = after
        self._follow = follow

    def __await__(self) -> Generator[Any, None, list[Event]]:
        return self._list().__await__()

    async def _list(self) -> list[Event]:
        return [event async for event in EventFeed(self._store, self._owner, self._after, False)]

    async def __aiter__(self) -> AsyncIterator[Event]:
        cursor = self._after
        while True:
            version = self._store.version()
            batch = await self._store.events(owner=self._owner, after=cursor)
            for event in batch:
                cursor = event.id
                yield event
            if not batch:
                if not self._follow:
                    return
                await self._store.changed(version, 1.0)


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


def effective_settings(url: str | Path | None, given: Mapping[str, Any] | None) -> Settings:
    merged: dict[str, Any] = {name: dict(section) for name, section in (given or {}).items()}
    if url is not None:
        merged.setdefault("store", {})["url"] = f"sqlite:///{url}" if isinstance(url, Path) else url
    return load(given=merged, given_by="holdfast.open()")
