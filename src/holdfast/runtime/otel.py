"""OpenTelemetry: each attempt of a turn as a trace, and metrics of model calls, by the GenAI conventions.

Imported only if `[otel] endpoint` is set. It wraps methods of this node's own objects, so that without it
nothing is slower. A turn's trace has the spans `resolve`, `lease`, one for each model call and tool, and
`commit`; ids and numbers, never text of messages. The ids of a trace follow from the turn's id: an attempt
that takes over after a crash, on any node, is in the same trace and linked to the attempt before it, whose
own span may be lost with its process.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags, use_span

from ..domain.turns import Turn
from ..models.base import Chunk, Model, ModelRequest
from ..models.reply import ReplyFolder
from ..store.store import Store
from .tools.toolbox import Toolbox, ToolCall
from .turns.history_matcher import HistoryMatcher
from .turns.live import Answered, RunningTurn, TurnSpec
from .turns.runner import TurnRunner

EXPORT_SECONDS = 5
METRIC_MILLISECONDS = 60_000
MOST_BEGINNING = 10_000
"""Turns whose times are kept until they run; those that never do, because they are joined, are forgotten."""

_ids: ContextVar[tuple[int, int] | None] = ContextVar("holdfast_trace_ids", default=None)
_resolved: ContextVar[tuple[int, int] | None] = ContextVar("holdfast_resolved", default=None)
"""When this request's conversation was looked up, in nanoseconds."""


def trace_id_of(turn_id: str) -> int:
    return int.from_bytes(blake2b(turn_id.encode(), digest_size=16).digest(), "big")


def span_id_of(turn_id: str, attempt: int) -> int:
    return int.from_bytes(blake2b(f"{turn_id} {attempt}".encode(), digest_size=8).digest(), "big")


class _Ids(IdGenerator):
    """Random ids, but those of a turn for the span that begins its trace."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()

    def generate_trace_id(self) -> int:
        given = _ids.get()
        return given[0] if given is not None else self._random.generate_trace_id()

    def generate_span_id(self) -> int:
        given = _ids.get()
        return given[1] if given is not None else self._random.generate_span_id()


@dataclass(frozen=True, slots=True)
class _Beginning:
    resolved: tuple[int, int] | None
    leased: tuple[int, int]


class Telemetry:
    """The exporters of this node. `flush` and `shutdown` block: call them in a thread."""

    def __init__(self, endpoint: str, service: str, node_id: str, provider: str) -> None:
        base = endpoint.rstrip("/")
        resource = Resource.create({"service.name": service, "service.instance.id": node_id})
        self._provider = provider
        self._traces = TracerProvider(resource=resource, id_generator=_Ids())
        spans = OTLPSpanExporter(endpoint=f"{base}/v1/traces", timeout=EXPORT_SECONDS)
        self._traces.add_span_processor(BatchSpanProcessor(spans))
        reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(endpoint=f"{base}/v1/metrics", timeout=EXPORT_SECONDS),
            export_interval_millis=METRIC_MILLISECONDS,
        )
        self._metrics = MeterProvider(resource=resource, metric_readers=[reader])
        self._tracer = self._traces.get_tracer("holdfast")
        meter = self._metrics.get_meter("holdfast")
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Tokens of a model call, by type"
        )
        self._seconds = meter.create_histogram(
            "gen_ai.client.operation.duration", "s", "Seconds of a model call"
        )
        self._first = meter.create_histogram(
            "gen_ai.client.operation.time_to_first_chunk", "s", "Seconds until a model's first chunk"
        )
        self._turns = meter.create_counter("holdfast.turns", "{turn}", "Ended attempts of turns, by status")
        self._beginning: dict[str, _Beginning] = {}

    def flush(self) -> None:
        self._traces.force_flush()
        self._metrics.force_flush()

    def shutdown(self) -> None:
        self._traces.shutdown()
        self._metrics.shutdown()

    def instrument(
        self, store: Store, matcher: HistoryMatcher, model: Model, toolbox: Toolbox, runner: TurnRunner
    ) -> None:
        """Wrap the steps of a turn on these objects."""
        on: Any = store
        on.begin_turn = self._leased(store.begin_turn)
        on.commit_reply = self._step("commit", store.commit_reply)
        on.settle_turn = self._step("commit", store.settle_turn)
        on = matcher
        for name in ("match", "appended", "after_turn"):
            setattr(on, name, _resolving(getattr(matcher, name)))
        on = model
        on.stream = self._asked(model.stream)
        on = toolbox
        on.run = self._tool(toolbox.run)
        on = runner
        on._see_through = self._attempt(runner._see_through)

    # --- wrappers ----------------------------------------------------------------------------------

    def _leased(self, begin: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def leased(request: Any) -> Any:
            began = time.time_ns()
            outcome = await begin(request)
            if len(self._beginning) >= MOST_BEGINNING:
                self._beginning.clear()
            self._beginning[request.turn_id] = _Beginning(_resolved.get(), (began, time.time_ns()))
            return outcome

        return leased

    def _attempt(
        self, see_through: Callable[[RunningTurn, TurnSpec], Awaitable[None]]
    ) -> Callable[[RunningTurn, TurnSpec], Awaitable[None]]:
        async def attempt(running: RunningTurn, order: TurnSpec) -> None:
            known = self._beginning.pop(order.request.turn_id, None)
            span = self._root(running.turn, known)
            with use_span(span, end_on_exit=True, record_exception=False):
                if known is not None:
                    self._past("resolve", known.resolved)
                    self._past("lease", known.leased)
                await see_through(running, order)
                self._ended(span, running)

        return attempt

    def _root(self, turn: Turn, known: _Beginning | None) -> Span:
        links = []
        if turn.attempt > 1:
            before = SpanContext(
                trace_id_of(turn.id),
                span_id_of(turn.id, turn.attempt - 1),
                is_remote=True,
                trace_flags=TraceFlags(TraceFlags.SAMPLED),
            )
            links.append(Link(before, {"holdfast.link": "taken over from"}))
        given = _ids.set((trace_id_of(turn.id), span_id_of(turn.id, turn.attempt)))
        try:
            return self._tracer.start_span(
                "invoke_agent holdfast",
                attributes={
                    "gen_ai.operation.name": "invoke_agent",
                    "gen_ai.agent.name": "holdfast",
                    "gen_ai.conversation.id": turn.conversation_id,
                    "holdfast.session.id": turn.session_id,
                    "holdfast.turn.id": turn.id,
                    "holdfast.turn.attempt": turn.attempt,
                    "holdfast.node.id": turn.node_id,
                    "holdfast.owner": turn.owner,
                },
                links=links,
                start_time=(known.resolved or known.leased)[0] if known else None,
            )
        finally:
            _ids.reset(given)

    def _past(self, name: str, times: tuple[int, int] | None) -> None:
        if times is not None:
            self._tracer.start_span(name, start_time=times[0]).end(times[1])

    def _ended(self, span: Span, running: RunningTurn) -> None:
        outcome = running.outcome
        status = "completed" if isinstance(outcome, Answered) else str(getattr(outcome, "status", "unknown"))
        span.set_attribute("holdfast.turn.status", status)
        self._turns.add(1, {"holdfast.turn.status": status})
        if not isinstance(outcome, Answered):
            span.set_status(Status(StatusCode.ERROR, status))
            error = getattr(outcome, "error", None)
            span.set_attribute("error.type", type(error).__name__ if error is not None else status)

    def _step(self, name: str, step: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def traced(*given: Any, **named: Any) -> Any:
            with self._tracer.start_as_current_span(name, record_exception=False):
                return await step(*given, **named)

        return traced

    def _tool(self, run: Callable[[ToolCall], Awaitable[str]]) -> Callable[[ToolCall], Awaitable[str]]:
        async def traced(call: ToolCall) -> str:
            attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": call.name}
            with self._tracer.start_as_current_span(
                f"execute_tool {call.name}", attributes=attributes, record_exception=False
            ):
                return await run(call)

        return traced

    def _asked(
        self, stream: Callable[[ModelRequest], AsyncIterator[Chunk]]
    ) -> Callable[[ModelRequest], AsyncIterator[Chunk]]:
        async def traced(request: ModelRequest) -> AsyncIterator[Chunk]:
            asked = {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": self._provider,
                **({"gen_ai.request.model": request.model} if request.model else {}),
            }
            span = self._tracer.start_span(
                f"chat {request.model}" if request.model else "chat",
                kind=SpanKind.CLIENT,
                attributes={**asked, "holdfast.purpose": request.purpose.value},
            )
            began, first, last = time.monotonic(), None, None
            folder = ReplyFolder()
            try:
                async for chunk in stream(request):
                    if first is None:
                        first = time.monotonic() - began
                    if chunk.text is None:  # the others have neither usage nor an end
                        folder.add(chunk)
                        last = chunk
                    yield chunk
            except BaseException as error:
                asked["error.type"] = type(error).__name__
                span.set_attribute("error.type", type(error).__name__)
                if not isinstance(error, GeneratorExit):
                    span.set_status(Status(StatusCode.ERROR))
                raise
            finally:
                self._heard(span, asked, folder if last is not None else None)
                self._seconds.record(time.monotonic() - began, asked)
                if first is not None:
                    self._first.record(first, asked)
                span.end()

        return traced

    def _heard(self, span: Span, asked: Mapping[str, str], folder: ReplyFolder | None) -> None:
        """Note the usage, the end and the model of an answer, as far as it came."""
        if folder is None:
            return
        reply = folder.reply()
        if reply.model:
            span.set_attribute("gen_ai.response.model", reply.model)
        if reply.finish_reason:
            span.set_attribute("gen_ai.response.finish_reasons", [reply.finish_reason])
        usage = reply.usage or {}
        for kind, name in (("input", "prompt_tokens"), ("output", "completion_tokens")):
            figure = usage.get(name)
            if isinstance(figure, int):
                span.set_attribute(f"gen_ai.usage.{kind}_tokens", figure)
                self._tokens.record(figure, {**asked, "gen_ai.token.type": kind})


def _resolving(resolve: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def timed(*given: Any, **named: Any) -> Any:
        began = time.time_ns()
        try:
            return await resolve(*given, **named)
        finally:
            _resolved.set((began, time.time_ns()))

    return timed
