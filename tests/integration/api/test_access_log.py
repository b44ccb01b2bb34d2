"""One line per request, without its content; request ids go through to the upstream."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.models.upstream import Upstream
from holdfast.server.access_log import LONGEST_PATH, AccessLog
from holdfast.settings import LogSettings
from tests.integration.api.conftest import Running, StartServer
from tests.unit.models.mock_upstream import running, says


def listening(server: Running, **settings: Any) -> list[str]:
    """The lines that the server writes from now on; empty until they are flushed."""
    written: list[str] = []
    server.services.access_log = AccessLog(LogSettings(**settings), written.append)
    return written


async def lines(server: Running, written: list[str]) -> list[str]:
    server.services.access_log.flush()
    return "".join(written).splitlines()


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")


async def test_a_line_has_the_facts_of_a_request_and_nothing_that_was_said(server: Running) -> None:
    written = listening(server, format="json")
    answer = await server.client.post(
        "/v1/chat/completions", json={"model": "", "messages": [{"role": "user", "content": "a secret"}]}
    )
    await (await server.client_of("ada")).get("/api/sessions/sess_nothing")
    await (await server.with_token(None)).get("/v1/models")
    await server.client.get("/healthz")
    chat, missing, stranger = map(json.loads, await lines(server, written))
    assert (chat["method"], chat["route"], chat["status"]) == ("POST", "/v1/chat/completions", 200)
    assert (chat["owner"], chat["level"], chat["logger"]) == ("default", "info", "holdfast.access")
    assert chat["key_id"].startswith("key_")
    assert chat["bytes"] == len(answer.content)
    assert chat["ms"] > 0
    assert chat["request_id"] == answer.headers["x-request-id"]
    assert (missing["route"], missing["status"], missing["owner"]) == ("/api/sessions/{id}", 404, "ada")
    assert (stranger["status"], stranger["owner"], stranger["key_id"]) == (401, None, None)
    assert "secret" not in "".join(written) and "sess_" not in "".join(written)


async def test_a_stream_is_counted_to_its_end(server: Running) -> None:
    written = listening(server)
    body = {"model": "", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    answer = await server.client.post("/v1/chat/completions", json=body)
    (line,) = await lines(server, written)
    at, _, line = line.partition(" ")
    assert abs(datetime.now(UTC) - datetime.fromisoformat(at)) < timedelta(minutes=5)
    assert line.startswith("INFO holdfast.access: POST /v1/chat/completions 200 owner=default key=key_")
    assert f" {len(answer.content)} B {answer.headers['x-request-id']}" in line


async def test_an_unknown_route_is_logged_with_its_path(server: Running) -> None:
    text = listening(server)
    await server.client.get("/v1/nope?token=hf_secret")
    await server.client.get("/v1/%0aINFO%20forged%1b[2J")
    await server.client.get("/v1/" + "x" * 3_000)
    written = await lines(server, text)
    assert [line.split()[3:5] for line in written] == [
        ["GET", "/v1/nope"],
        ["GET", "/v1/%0aINFO%20forged%1b[2J"],
        ["GET", "/v1/" + "x" * (LONGEST_PATH - 4) + "…"],
    ]
    assert "secret" not in "".join(written)
    as_json = listening(server, format="json")
    await server.client.get("/v1/nope?token=hf_secret")
    await server.client.get("/v1/models")
    unknown, known = map(json.loads, await lines(server, as_json))
    assert (unknown["route"], unknown["path"], unknown["message"]) == (
        "unknown",
        "/v1/nope",
        "GET /v1/nope 404",
    )
    assert "path" not in known


@pytest.mark.parametrize("off", [{"access": False}, {"level": "warning"}])
async def test_it_can_be_turned_off(server: Running, off: dict[str, Any]) -> None:
    written = listening(server, **off)
    await server.client.get("/v1/models")
    assert await lines(server, written) == []


async def test_pages_are_logged_too(server: Running) -> None:
    written = listening(server)
    await (await server.with_token(None)).get("/login")
    (line,) = await lines(server, written)
    assert "GET /login 200 owner=- key=-" in line


async def test_a_request_id_goes_through_to_the_upstream(start_server: StartServer) -> None:
    async with running() as upstream:
        model = Upstream(upstream.url, model="tiny")
        server = await start_server(model)
        for given in ("trace-42", "not one, because of its spaces", ""):
            upstream.answers = [says()]
            answer = await server.client.post(
                "/v1/chat/completions",
                json={"model": "tiny", "messages": [{"role": "user", "content": "hello"}]},
                headers={"x-request-id": given},
            )
            told = answer.headers["x-request-id"]
            assert (told == given) is (given == "trace-42")
            assert upstream.chats[-1].headers["x-request-id"] == told
        await model.close()
