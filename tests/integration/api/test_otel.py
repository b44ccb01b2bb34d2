"""Traces and metrics, as an OTLP receiver gets them over HTTP."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from holdfast.domain.turns import TurnStatus
from holdfast.errors import ModelError
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.otel import span_id_of, trace_id_of
from tests.integration.api.chatting import PATH, until, user
from tests.integration.api.conftest import Running, StartServer


class Receiver:
    """An OTLP receiver: decodes what is sent to it."""

    def __init__(self) -> None:
        self.traces: list[ExportTraceServiceRequest] = []
        self.metrics: list[ExportMetricsServiceRequest] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.path == "/v1/traces":
                    receiver.traces.append(ExportTraceServiceRequest.FromString(body))
                elif self.path == "/v1/metrics":
                    receiver.metrics.append(ExportMetricsServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                return None

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def spans(self) -> list[Any]:
        return [
            span
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def measured(self) -> dict[str, Any]:
        return {
            metric.name: metric
            for request in self.metrics
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in span.attributes}


async def ended(server: Running, receiver: Receiver, attempts: int) -> list[Any]:
    """The spans that began these traces, in order, when there are so many: they end after the answer."""
    telemetry = server.services.holdfast.telemetry
    assert telemetry is not None

    async def arrived() -> list[Any]:
        await asyncio.to_thread(telemetry.flush)
        found = [span for span in receiver.spans() if span.name == "invoke_agent holdfast"]
        found.sort(key=lambda span: span.start_time_unix_nano)
        return found if len(found) >= attempts else []

    await until(arrived, "the spans arrive")
    return await arrived()


async def test_a_turn_is_a_trace_of_its_steps(start_server: StartServer, receiver: Receiver) -> None:
    server = await start_server(otel={"endpoint": receiver.url, "service_name": "kelp"})
    said = (await server.say("the secret lighthouse"))["holdfast"]
    await ended(server, receiver, 1)
    spans = {span.name: span for span in receiver.spans()}
    assert set(spans) == {"invoke_agent holdfast", "resolve", "lease", "chat", "commit"}
    root = spans.pop("invoke_agent holdfast")
    assert int.from_bytes(root.trace_id, "big") == trace_id_of(said["turn_id"])
    assert int.from_bytes(root.span_id, "big") == span_id_of(said["turn_id"], 1)
    for span in spans.values():
        assert (span.trace_id, span.parent_span_id) == (root.trace_id, root.span_id), span.name
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= root.end_time_unix_nano
    order = sorted(spans.values(), key=lambda span: span.start_time_unix_nano)
    assert [span.name for span in order] == ["resolve", "lease", "chat", "commit"]
    facts = attributes(root)
    assert facts["gen_ai.operation.name"] == "invoke_agent"
    assert facts["gen_ai.conversation.id"] == said["conversation_id"]
    assert facts["holdfast.turn.status"] == "completed"
    called = attributes(spans["chat"])
    assert called["gen_ai.operation.name"] == "chat"
    assert called["gen_ai.usage.input_tokens"] > 0 < called["gen_ai.usage.output_tokens"]
    resource = receiver.traces[0].resource_spans[0].resource
    assert attributes(resource)["service.name"] == "kelp"
    assert not any(b"lighthouse" in request.SerializeToString() for request in receiver.traces)
    assert {"gen_ai.client.token.usage", "gen_ai.client.operation.duration", "holdfast.turns"} <= set(
        receiver.measured()
    )


async def test_an_attempt_that_takes_over_is_linked_to_the_one_before(
    start_server: StartServer, receiver: Receiver
) -> None:
    model = ScriptedModel([ModelError("the model is down"), "back again"])
    server = await start_server(model, otel={"endpoint": receiver.url})
    failed = await server.client.post(PATH, json={"messages": [user("hello")]})
    assert failed.status_code == 502
    turn_id = failed.headers["x-holdfast-turn-id"]
    retried = await server.client.post(f"/api/turns/{turn_id}/retry")
    assert retried.json()["status"] == TurnStatus.COMPLETED
    first, second = await ended(server, receiver, 2)
    assert first.trace_id == second.trace_id
    assert attributes(first)["holdfast.turn.status"] == "failed"
    assert attributes(first)["error.type"] == "ModelError"
    assert not first.links
    (link,) = second.links
    assert (link.trace_id, link.span_id) == (first.trace_id, first.span_id)
    assert attributes(second)["holdfast.turn.attempt"] == 2


async def test_a_receiver_that_is_down_changes_no_answer(start_server: StartServer) -> None:
    server = await start_server(otel={"endpoint": "http://127.0.0.1:9"})
    assert (await server.say())["choices"]


async def test_it_is_off_unless_configured(server: Running) -> None:
    await server.say()
    assert server.services.holdfast.telemetry is None


def test_nothing_of_it_is_imported_unless_configured() -> None:
    program = (
        "import sys, holdfast.server.server, holdfast.app; "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
