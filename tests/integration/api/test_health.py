"""`/healthz`, `/readyz`, `/metrics`."""

from __future__ import annotations

from holdfast.models.upstream import Upstream
from tests.integration.api.conftest import Running, StartServer


async def test_health_is_told_without_a_key(server: Running) -> None:
    stranger = await server.with_token(None)
    health = (await stranger.get("/healthz")).json()
    assert (health["status"], health["running_turns"]) == ("ok", 0)
    ready = (await stranger.get("/readyz")).json()
    assert (ready["status"], ready["model"]["status"]) == ("ready", "up")


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
