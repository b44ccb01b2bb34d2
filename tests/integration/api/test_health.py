"""`/healthz`, `/readyz`, `/metrics`."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.errors import ModelError
from holdfast.models.scripted import ScriptedModel
from holdfast.models.upstream import Upstream
from holdfast.server.admin import health
from holdfast.server.metrics import MOST_MODELS, Metrics
from tests.integration.api.conftest import Running, StartServer


async def test_health_is_told_without_a_key(server: Running) -> None:
    stranger = await server.with_token(None)
    told = (await stranger.get("/healthz")).json()
    assert (told["status"], told["running_turns"]) == ("ok", 0)
    ready = (await stranger.get("/readyz")).json()
    assert (ready["status"], ready["model"]["status"]) == ("ready", "up")


async def test_a_server_whose_store_does_not_answer_is_alive(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_SECRET", f"whsec_{'A' * 32}")
    hook = {"kind": "webhook", "token_env": "HOOK_SECRET", "url": "http://127.0.0.1:1/hook"}
    server = await start_server(connectors={"hook": hook})
    assert (await server.client.get("/healthz")).json()["connectors"] == {"hook": "stopped"}

    async def never() -> None:
        await asyncio.Event().wait()

    for name in ("count_waiting", "connector_states"):
        monkeypatch.setattr(server.store, name, never)
    monkeypatch.setattr(health, "WAITING_SECONDS", 0.05)
    async with asyncio.timeout(60):
        told = (await server.client.get("/healthz")).json()
    assert (told["status"], told["waiting_turns"], "connectors" in told) == ("ok", None, False)


async def test_a_model_that_is_down_is_told_without_its_address(start_server: StartServer) -> None:
    model = Upstream("http://127.0.0.1:9/v1", backoff=())
    server = await start_server(model)
    told = await (await server.with_token(None)).get("/readyz")
    await model.close()
    assert (told.status_code, told.json()["model"]["status"]) == (200, "down")
    assert "cannot connect to the model" in told.json()["model"]["error"]
    assert "127.0.0.1" not in told.text


async def test_a_server_that_is_about_to_stop_is_alive_but_not_ready(server: Running) -> None:
    server.services.draining.set()
    assert (await server.client.get("/healthz")).json()["status"] == "draining"
    told = await server.client.get("/readyz")
    assert (told.status_code, told.json()["error"]["code"]) == (503, "draining")


async def test_metrics_are_for_admins(server: Running) -> None:
    assert (await server.client.get("/metrics")).status_code == 200
    for scope in ("chat", "bridge"):
        refused = await (await server.client_of("ada", scope)).get("/metrics")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_scope")
    assert (await (await server.with_token(None)).get("/metrics")).status_code == 401


async def test_the_fixture_speaks_to_a_durable_conversation(server: Running) -> None:
    answer = await server.say("hello", x_holdfast_session_key="cli:ada")
    assert answer["choices"][0]["message"]["content"] == "You said: hello"
    session = await server.store.session("default", answer["holdfast"]["session_id"])
    assert session.key == "cli:ada"


async def test_model_calls_are_measured_by_model(start_server: StartServer) -> None:
    server = await start_server(
        ScriptedModel(
            ["Hello there.", ("Half an", ModelError("gone")), ModelError("busy", 429)], name="small"
        )
    )
    for text, status in (("hello", 200), ("again", 502), ("once more", 429)):
        body = {"messages": [{"role": "user", "content": text}]}
        assert (await server.client.post("/v1/chat/completions", json=body)).status_code == status
    text = (await server.client.get("/metrics")).text
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("holdfast_model_"))
    assert figures['holdfast_model_first_token_seconds_count{model="small"}'] == "2.0"
    assert figures['holdfast_model_seconds_count{model="small"}'] == "1.0"
    assert float(figures['holdfast_model_tokens_total{kind="input",model="small"}']) > 0
    assert float(figures['holdfast_model_tokens_total{kind="output",model="small"}']) > 0
    assert figures['holdfast_model_errors_total{model="small",status="none"}'] == "1.0"
    assert figures['holdfast_model_errors_total{model="default",status="429"}'] == "1.0"


def test_models_beyond_the_limit_are_counted_together() -> None:
    metrics = Metrics()
    for number in range(MOST_MODELS + 2):
        metrics.failed(f"model-{number}", 404)
    labels = {
        sample.labels["model"]
        for metric in metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "holdfast_model_errors_total"
    }
    assert len(labels) == MOST_MODELS + 1
    assert "other" in labels
