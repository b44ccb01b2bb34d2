"""`/healthz`, `/readyz`, `/metrics`: for process managers, load balancers and Prometheus."""

from __future__ import annotations

from ...domain.keys import check_admin
from .call import Call, Reply
from .failures import Refusal
from .routes import Route
from .schemas import ref


async def healthz(call: Call) -> Reply:
    """Alive, and whether stopping now would interrupt somebody."""
    running = len(call.services.runner.running)
    idle = 0.0 if running else call.services.meters.idle_seconds
    return Reply(
        {
            "status": "draining" if call.services.draining.is_set() else "ok",
            "running_turns": running,
            "idle_seconds": round(idle, 3),
        }
    )


async def readyz(call: Call) -> Reply:
    if call.services.draining.is_set():
        raise Refusal(503, "the server is about to stop", "draining")
    await call.store.nodes()  # the store answers
    return Reply({"status": "ready"})


async def metrics(call: Call) -> Reply:
    check_admin(call.caller, "/metrics")
    services = call.services
    flusher = services.holdfast.flusher
    text = services.meters.text(
        len(services.runner.running),
        await call.store.figures(),
        await call.store.flush_figures(),
        flusher.counts if flusher is not None else {},
    )
    return Reply(text, media_type="text/plain; version=0.0.4; charset=utf-8")


ROUTES = (
    Route(
        "GET",
        "/healthz",
        healthz,
        "Is it alive, and would stopping now interrupt someone?",
        open=True,
        answer=ref("Health"),
    ),
    Route("GET", "/readyz", readyz, "Can it serve?", open=True),
    Route("GET", "/metrics", metrics, "Figures for Prometheus; admin keys.", media_types=("text/plain",)),
)
