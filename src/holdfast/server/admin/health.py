"""`/healthz`, `/readyz`, `/metrics`: for process managers, load balancers and Prometheus."""

from __future__ import annotations

import asyncio
import time
from typing import Literal

from msgspec import UNSET, UnsetType

from ...domain.api_keys import check_admin
from ...errors import HoldfastError
from .. import objects
from ..http import RequestContext, Services
from ..http_errors import HttpError
from ..openai.parameters import BadParameter
from ..response_writer import JsonResponse
from ..routes import Parameter, Route
from ..schemas import HealthObject, ListObject, ModelHealthObject, NodeObject, ReadyObject
from ..workers.board import RowColumn

WAITING_SECONDS = 1.0


async def healthz(call: RequestContext) -> JsonResponse:
    """Liveness, and the number of running turns that a stop would interrupt."""
    services, worker = call.services, call.services.worker
    return JsonResponse(
        HealthObject(
            status="draining" if services.draining.is_set() else "ok",
            running_turns=running_turns(services),
            waiting_turns=await _waiting(call),
            idle_seconds=round(idle_seconds(services), 3),
            workers=UNSET if worker is None else sum(worker.row.all(RowColumn.ACCEPTING)),
            connectors=await connector_health(call),
        )
    )


async def _waiting(call: RequestContext) -> int | None:
    """How many turns wait to be retried; None: the store does not answer at once."""
    try:
        async with asyncio.timeout(WAITING_SECONDS):
            return await call.hf.count_waiting()
    except (TimeoutError, HoldfastError):
        return None


async def connector_health(call: RequestContext) -> dict[str, str] | UnsetType:
    """The state of each connector of the settings, on whichever node it runs; UNSET: there are none, or
    the store does not answer at once."""
    names = call.hf.connectors.workers
    if not names:
        return UNSET
    try:
        async with asyncio.timeout(WAITING_SECONDS):
            states = {each.name: each.health.value for each in await call.hf.connector_states()}
    except (TimeoutError, HoldfastError):
        return UNSET
    return {name: states.get(name, "stopped") for name in names}


def running_turns(services: Services) -> int:
    """Running turns of this server, in all its workers."""
    if services.worker is not None:
        return services.worker.row.total(RowColumn.TURNS)
    return len(services.runner.running)


def idle_seconds(services: Services) -> float:
    """Seconds since a turn of this server last began or ended; 0 while one runs."""
    if running_turns(services):
        return 0.0
    if services.worker is not None:
        return max(0.0, (time.monotonic_ns() - max(services.worker.row.all(RowColumn.IDLE_SINCE))) / 1e9)
    return services.metrics.idle_seconds


async def readyz(call: RequestContext) -> JsonResponse:
    """Ready: the store answers. A model that is down is reported and does not make it unready, because
    conversations can still be read."""
    if call.services.draining.is_set():
        raise HttpError(503, "the server is stopping", "draining")
    await call.hf.nodes()  # raises if the store does not answer
    health = await call.services.model_watch.health()
    model = ModelHealthObject(
        status=health.status,
        since=objects.time(health.since),
        error=UNSET if health.is_up else health.public,
    )
    return JsonResponse(ReadyObject(status="ready", model=model))


async def metrics(call: RequestContext) -> JsonResponse:
    check_admin(call.caller, "/metrics")
    services = call.services
    flusher, queue = call.hf.flusher, call.hf.queue_runner
    services.metrics.note_queue(await call.hf.count_queued(), queue.begun if queue is not None else 0)
    text = services.metrics.text(
        running_turns(services),
        idle_seconds(services),
        await call.hf.figures(),
        await call.hf.flush_figures(),
        flusher.counts if flusher is not None else {},
        await call.hf.count_waiting(),
        call.hf.recoverer,
    )
    return JsonResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


ROUTES = (
    Route(
        "GET",
        "/healthz",
        healthz,
        "Report liveness, and how many turns a stop would interrupt.",
        open=True,
        answer=HealthObject,
    ),
    Route("GET", "/readyz", readyz, "Report readiness: 503 while it drains.", open=True, answer=ReadyObject),
    Route(
        "GET", "/metrics", metrics, "Export metrics for Prometheus; admin keys.", media_types=("text/plain",)
    ),
)


async def nodes(call: RequestContext) -> JsonResponse:
    check_admin(call.caller, "/api/nodes")
    gone = flag(call, "gone")
    now = call.hf.now()
    found = await call.hf.judged_nodes(gone=gone)
    return JsonResponse(objects.listed([objects.node(each, now) for each in found]))


def flag(call: RequestContext, name: str) -> bool:
    """The value of a boolean query parameter."""
    value = (call.query(name) or "0").lower()
    if value not in ("0", "1", "true", "false"):
        raise BadParameter(name, f"must be 1 or 0, not {value!r:.40}")
    return value in ("1", "true")


FLAG = Literal["0", "1", "true", "false"]

NODES_ROUTES = (
    Route(
        "GET",
        "/api/nodes",
        nodes,
        "List the nodes of this store: whether each is alive, the evidence, running turns; admin keys.",
        parameters=(Parameter("gone", "Also those that have left or were reaped.", FLAG),),
        answer=ListObject[NodeObject],
    ),
)
