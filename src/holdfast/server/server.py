"""The server process: starts holdfast as a node, serves HTTP until a signal, drains and stops.

On SIGTERM or SIGINT no new request is accepted. Running turns get `drain_seconds` and are then interrupted;
their partial replies are kept. A second signal interrupts them at once. If the store has failed, the
server stops with exit code 1, because its responses could not be trusted.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import cast

import uvicorn
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from ..app import Holdfast, ModelWatch, answer_with, recover_with
from ..dashboard import pages
from ..dashboard.browser_sessions import LinkBook
from ..dashboard.routes import dashboard
from ..domain.nodes import NodeKind
from ..domain.value import Value
from ..errors import BadSetting
from ..models.base import Model
from ..models.measured import measured
from ..os_support import hide_from_own_user, return_freed_buffers
from ..settings import Settings
from . import openapi
from .access_log import UNKNOWN_ROUTE, AccessLog
from .admin import (
    activity,
    connectors,
    events,
    health,
    keys,
    live,
    logs,
    memories,
    notices,
    processes,
    queue,
    search,
    session_actions,
    sessions,
    turns,
)
from .admin import health as nodes
from .anthropic import messages
from .bodies import BodyThreads
from .connections import Connections, http_config
from .gate import Gate, Headers
from .http import Endpoint, Services
from .limits import KeyLimits, connection_limit, files_wanted
from .log_buffer import LogBuffer
from .metrics import Metrics, keep_in_files
from .openai import chat, compaction, conversations, models, responses
from .openai.response_socket import ResponseSocket
from .rebuild import rebuilt
from .routes import Route, mounted, unknown, wants_page
from .workers.board import RowColumn
from .workers.worker import FairAcceptor, Worker, WorkerReport

log = logging.getLogger(__name__)

ROUTES: tuple[Route, ...] = (
    *chat.ROUTES,
    *messages.ROUTES,
    *compaction.ROUTES,
    *responses.ROUTES,
    *conversations.ROUTES,
    *models.ROUTES,
    *sessions.ROUTES,
    *session_actions.ROUTES,
    *turns.ROUTES,
    *queue.ROUTES,
    *processes.ROUTES,
    *activity.ROUTES,
    *events.ROUTES,
    *notices.ROUTES,
    *connectors.ROUTES,
    *live.ROUTES,
    *memories.ROUTES,
    *search.ROUTES,
    *keys.ROUTES,
    *nodes.NODES_ROUTES,
    *logs.ROUTES,
    *health.ROUTES,
    *openapi.routes_of(lambda: ROUTES),
)

GRACE_SECONDS = 5
"""How much longer than `drain_seconds` a connection may take to send the rest of its response."""


class Listening(Value, frozen=True):
    """The server's address, its store's location and its flush backlog."""

    host: str
    port: int
    location: str
    backlog: str | None = None
    """A sentence about the sessions to be flushed, if they are many."""

    @property
    def url(self) -> str:
        """The URL for a client on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host).strip("[]")
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"


async def _nothing(*_: object) -> None:
    return None


def application(services: Services, links: LinkBook | None = None) -> ASGIApp:
    """All routes and pages as one ASGI application. `links` replaces the home's."""
    pages = dashboard(services, ROUTES, links)
    routes = [*mounted(services, ROUTES), *pages.routes]
    not_found = Endpoint(services, unknown, name=UNKNOWN_ROUTE, open=True)

    async def no_route(scope: Scope, receive: Receive, send: Send) -> None:
        """A page for a browser, JSON for any other client and for what looks like a route of the API."""
        is_page = scope["type"] == "http" and wants_page(
            scope["method"], scope["path"], Headers(scope["headers"])
        )
        await (pages.unknown if is_page else not_found)(scope, receive, send)

    router = Router(routes, redirect_slashes=False, default=no_route)
    plain = {route.path: route.app for route in routes if "{" not in route.path}
    socket = ResponseSocket(services)

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        """Look up paths without parameters directly: most requests have one, and the router would search."""
        if scope["type"] == "websocket":
            await socket(scope, receive, send)
            return
        await plain.get(scope.get("path", ""), router)(scope, receive, send)

    return dispatch


async def serve(
    settings: Settings,
    model: Model,
    *,
    watch: ModelWatch | None = None,
    prepare: Callable[[Holdfast, Settings], Awaitable[None]] = _nothing,
    announce: Callable[[Listening], Awaitable[None]] = _nothing,
    worker: Worker | None = None,
) -> int:
    """Serve until a signal arrives; returns the exit code.

    `prepare` may raise before any request is answered; `announce` is called when the server listens. `watch`
    knows already whether the model is up. `worker`: this process is one of several on the same port.
    """
    hide_from_own_user()  # its child commands must not read its keys from /proc/PID/environ
    return_freed_buffers()
    listening = worker.listening if worker else bound(settings.server.host, settings.server.port)
    log_buffer = LogBuffer()
    logging.getLogger().addHandler(log_buffer)
    holdfast = Holdfast(
        settings,
        kind=NodeKind.SERVER,
        catch_signals=False,
        model=model,
        flushes=worker is None or worker.flushes,
    )
    try:
        await holdfast.start()
        await prepare(holdfast, settings)
    except BaseException:
        listening.close()
        await holdfast.stop()
        logging.getLogger().removeHandler(log_buffer)
        raise
    services = services_of(holdfast, model, watch, worker, log_buffer)
    port = listening.getsockname()[1]
    where = Listening(settings.server.host, port, holdfast.location, holdfast.backlog)
    most_requests = settings.server.max_requests
    connections = Connections(
        connection_limit(allow_files(most_requests), most_requests), worker.row if worker else None
    )
    server = _Server(
        http_config(
            application(services),
            connections,
            int(settings.server.drain_seconds) + GRACE_SECONDS,
            int(settings.server.max_body_mb * 2**20),
        ),
        lambda: announce(where),
        worker,
        connections,
    )
    leaving = _Leaving(services, server)
    leaving.on_signals()
    if worker is not None:
        worker.obey(leaving.drain, leaving.hurry)
    _spare_the_collector()
    services.model_watch.start()
    if holdfast.recoverer is not None:
        holdfast.recoverer.start()
    if holdfast.queue_runner is not None:
        holdfast.queue_runner.start()
    holdfast.connectors.start()
    try:
        await server.serve(sockets=[listening])
        await leaving.done()
    finally:
        services.access_log.flush()
        await services.model_watch.stop()
        await holdfast.stop()
        if worker is not None:
            await worker.close()
        logging.getLogger().removeHandler(log_buffer)
    return leaving.exit_code


def _spare_the_collector() -> None:
    """Freeze the objects made at startup, since they are never garbage, and run the garbage collector less
    often, since a request makes few cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def allow_files(requests: int) -> int:
    """Raise the limit on open files (RLIMIT_NOFILE) to what this many requests need, as far as allowed.
    Returns the limit now in effect; `connection_limit` stays below it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files_wanted(requests)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return max(soft, wanted)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("only %d files may be open at once: %s", soft, error)
        return soft
    return wanted


def bound(host: str, port: int) -> socket.socket:
    """A socket bound to this address; raises BadSetting with the reason if that fails."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        advice = "change [server] host and port (--host, --port)"
        if error.errno == errno.EADDRINUSE:
            advice = (
                "if that is a holdfast server, use it (`holdfast nodes` lists this store's) or stop it; "
                "otherwise choose another port with --port"
            )
        raise BadSetting(f"cannot listen on {host} port {port}: {why}; {advice}") from None
    listening.setblocking(False)
    return listening


def services_of(
    holdfast: Holdfast,
    model: Model,
    watch: ModelWatch | None = None,
    worker: Worker | None = None,
    log_buffer: LogBuffer | None = None,
) -> Services:
    """The services that handlers use, built on a holdfast that has started. `log_buffer` gets the log."""
    settings = holdfast.settings
    row = worker.row if worker else None
    if worker is not None:
        keep_in_files(worker.directory, worker.row.index)
    metrics = Metrics(row)
    model = measured(model, metrics)
    spoken = metrics.spoken
    if worker is not None:
        spoken = _shown(holdfast, metrics, worker)
    max_body = int(settings.server.max_body_mb * 2**20)
    limits = KeyLimits(settings.limits, settings.server.max_requests, max_body, row)
    answer_with(holdfast, model, spoken, metrics.ended)
    recover_with(holdfast, partial(rebuilt, holdfast), limits.turns.runs)
    return Services(
        holdfast=holdfast,
        model=model,
        gate=Gate(settings.server, row),
        limits=limits,
        body_threads=BodyThreads(),
        metrics=metrics,
        draining=asyncio.Event(),
        broken=asyncio.Event(),
        model_watch=watch or ModelWatch(model),
        access_log=AccessLog(settings.log),
        log_buffer=log_buffer or LogBuffer(),
        worker=worker,
    )


def _shown(holdfast: Holdfast, metrics: Metrics, worker: Worker) -> Callable[[], None]:
    """Show this worker's turns to the others. Returns what to call when a turn begins or ends."""

    def spoken() -> None:
        metrics.spoken()
        worker.row.set(RowColumn.TURNS, len(holdfast.runner.running))

    def report() -> WorkerReport:
        runner = holdfast.runner
        return WorkerReport(
            {turn_id: running.doing for turn_id, running in runner.running.items()},
            sorted(runner.compactor.compacting) if runner.compactor is not None else [],
        )

    def beat() -> None:  # another worker may export the metrics
        if holdfast.flusher is not None:
            metrics.note_attempts(holdfast.flusher.counts)
        if holdfast.recoverer is not None:
            metrics.note_recoveries(holdfast.recoverer)

    worker.report, worker.on_beat = report, beat
    return spoken


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: `_Leaving` handles signals."""

    def __init__(
        self,
        config: uvicorn.Config,
        on_started: Callable[[], Awaitable[None]],
        worker: Worker | None,
        connections: Connections,
    ) -> None:
        super().__init__(config)
        self._on_started = on_started
        self._worker = worker
        self._connections = connections

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets if self._worker is None else [])
        if self._worker is not None:
            acceptor = FairAcceptor(self._worker, self._protocol, lambda: self._connections.count)
            self.servers.append(cast("asyncio.Server", acceptor))
        if self.started:
            await self._on_started()
            if self._worker is not None:
                await self._worker.started()
            # In a thread: the first page would otherwise stop the event loop for as long.
            asyncio.get_running_loop().run_in_executor(None, pages.environment)

    def _protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


class _Leaving:
    """Graceful shutdown: drains running turns after a signal or a store failure."""

    def __init__(self, services: Services, server: _Server) -> None:
        self._services = services
        self._server = server
        self._drain: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._broken = asyncio.create_task(self._when_broken())
        self.exit_code = 0

    def on_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.leave)

    def leave(self) -> None:
        """First call: start to drain. Second call: interrupt the running turns at once."""
        if self._drain is not None:
            self.hurry()
            return
        running = len(self._services.runner.running)
        log.info("stopping: %d %s running", running, "turn is" if running == 1 else "turns are")
        self._services.draining.set()
        self._services.holdfast.connectors.drain()
        self._server.should_exit = True
        self._drain = asyncio.create_task(self._until_drained())

    def drain(self) -> None:
        """Start to drain, unless that has been done: the supervisor and a signal may both ask for it."""
        if self._drain is None:
            self.leave()

    def hurry(self) -> None:
        """Interrupt the turns that are being drained."""
        self._hurry.set()

    async def done(self) -> None:
        """Returns when no turn runs any more."""
        self._broken.cancel()
        if self._drain is not None:
            await self._drain

    async def _until_drained(self) -> None:
        runner = self._services.runner
        patient = asyncio.create_task(runner.drain(self._services.settings.server.drain_seconds))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({patient, hurry}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not patient.done():
            await runner.drain(0)
        await patient

    async def _when_broken(self) -> None:
        await self._services.broken.wait()
        self.exit_code = 1
        self.leave()
