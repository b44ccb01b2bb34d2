"""`/healthz`, `/readyz`, `/metrics`: for process managers, load balancers and Prometheus."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET

from ...domain.api_keys import check_admin
from .. import objects
from ..http import JsonResponse, RequestContext
from ..http_errors import HttpError
from ..openai.parameters import BadParameter
from ..routes import Parameter, Route
from ..schemas import HealthObject, ListObject, ModelHealthObject, NodeObject, ReadyObject


async def healthz(call: RequestContext) -> JsonResponse:
    """Liveness, and the number of running turns that a stop would interrupt."""
    running = len(call.services.runner.running)
    idle = 0.0 if running else call.services.metrics.idle_seconds
    return JsonResponse(
        HealthObject(
            status="draining" if call.services.draining.is_set() else "ok",
            running_turns=running,
            idle_seconds=round(idle, 3),
        )
    )


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
    flusher = call.hf.flusher
    text = services.metrics.text(
        len(services.runner.running),
        await call.hf.figures(),
        await call.hf.flush_figures(),
        flusher.counts if flusher is not None else {},
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
    return JsonResponse(
        objects.listed([objects.node(*each) for each in await call.hf.judged_nodes(gone=gone)])
    )


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
        "List the nodes of this store, whether each is alive, and the evidence; admin keys.",
        parameters=(Parameter("gone", "Also those that have left or were reaped.", FLAG),),
        answer=ListObject[NodeObject],
    ),
)
