"""What must not get in: strange hosts and pages, wrong methods, bodies that are too large, too deep, too slow
or of the wrong kind. Each is a 4xx in OpenAI's error shape, and nothing is stored."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from holdfast.models.scripted import ScriptedModel
from holdfast.server import bodies
from holdfast.server.server import allow_files
from holdfast.store.values import SessionFilter
from tests.integration.api.conftest import Running, StartServer
from tests.integration.api.operating import DOCUMENT

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
POSTED = [path for path, methods in DOCUMENT["paths"].items() if "post" in methods]
WITH_BODY = [path for path in POSTED if "requestBody" in DOCUMENT["paths"][path]["post"]]


def check_error(response: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    """OpenAI's shape, all four fields, and an id to ask about."""
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert all(isinstance(error[name], str) for name in ("message", "type", "code"))
    assert response.headers["x-request-id"].startswith("req_")
    assert response.headers["content-type"] == "application/json"
    if code is not None:
        assert error["code"] == code
    return error


async def check_nothing_stored(server: Running) -> None:
    assert (await server.store.sessions(SessionFilter(None))).items == []
    assert (await server.store.figures()).messages == 0
    assert server.model.calls == 0


# --- who calls -----------------------------------------------------------------------------------------


HOSTILE = (
    "[::1].evil.example",
    "[::1]evil.example:80",
    "[::1",
    "localhost:80:80",
    "localhost:evil",
    "127.0.0.1/evil.example",
    "user@localhost",
    "evil.example",
    "evil.example:80",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "",
)


async def test_a_request_for_another_host_is_refused(server: Running) -> None:
    for path in (*POSTED, "/api/sessions", "/healthz", "/openapi.json", "/nothing/here"):
        for host in HOSTILE:
            if path in POSTED:
                response = await server.client.post(path, json=HELLO, headers={"host": host})
            else:
                response = await server.client.get(path, headers={"host": host})
            check_error(response, 421, "unknown_host")
    await check_nothing_stored(server)


async def test_the_names_of_this_machine_are_this_server(server: Running) -> None:
    for host in ("localhost", "LOCALHOST:8377", "127.0.0.1:1", "[::1]:8377", "[::1]"):
        response = await server.client.get("/api/sessions", headers={"host": host})
        assert response.status_code == 200, host


async def test_a_page_from_elsewhere_may_not_call(server: Running) -> None:
    for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example", "x"):
        for method, path in (
            ("POST", CHAT),
            ("GET", "/api/sessions"),
            ("GET", "/healthz"),
            ("OPTIONS", CHAT),
        ):
            response = await server.client.request(
                method, path, json=HELLO if method == "POST" else None, headers={"origin": origin}
            )
            check_error(response, 403, "origin_not_allowed")
            assert not [name for name in response.headers if name.startswith("access-control")]
    await check_nothing_stored(server)


async def test_pages_that_are_listed_may_call_and_ask_first(start_server: StartServer) -> None:
    page = "https://chat.example.com"
    server = await start_server(server={"cors_origins": [page]})
    asked = await server.client.options(
        CHAT, headers={"origin": page, "access-control-request-headers": "authorization"}
    )
    assert asked.status_code == 204
    assert asked.headers["access-control-allow-origin"] == page
    assert asked.headers["access-control-allow-headers"] == "authorization"
    response = await server.client.post(CHAT, json=HELLO, headers={"origin": page})
    assert (response.status_code, response.headers["access-control-allow-origin"]) == (200, page)
    check_error(await server.client.get("/api/sessions", headers={"origin": f"{page}.evil.example"}), 403)


async def test_a_star_lets_pages_of_every_origin_call_but_only_with_a_key(start_server: StartServer) -> None:
    server = await start_server(server={"cors_origins": ["*"]})
    stranger = await server.with_token(None)
    for origin in ("https://chat.example.com", "http://localhost:3000", "null"):
        asked = await stranger.options(
            CHAT, headers={"origin": origin, "access-control-request-headers": "authorization"}
        )
        assert asked.status_code == 204
        assert asked.headers["access-control-allow-origin"] == "*"
        assert asked.headers["access-control-allow-headers"] == "authorization"
        assert "access-control-allow-credentials" not in asked.headers
        response = await server.client.post(CHAT, json=HELLO, headers={"origin": origin})
        assert (response.status_code, response.headers["access-control-allow-origin"]) == (200, "*")
        check_error(await stranger.post(CHAT, json=HELLO, headers={"origin": origin}), 401)
    elsewhere = {"origin": "https://rebound.example", "host": "rebound.example"}
    check_error(await server.client.get("/api/sessions", headers=elsewhere), 421)


async def test_without_a_good_key_nothing_is_told(server: Running) -> None:
    client = await server.with_token(None)
    wrong = [
        *(b"", b"Bearer", b"Bearer x", b"Basic eDp5", b"Bearer hf_%b_%b" % (b"0" * 32, b"A" * 43)),
        *(b"x" * 5000, "Bearer clé".encode("latin-1"), "Bearer clé".encode()),
    ]
    told = set()
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            if operation.get("security") == []:
                continue
            filled = path.replace("{id}", "sess_x").replace("{item_id}", "msg_x").replace("{model}", "x")
            for authorization in (None, *wrong):
                headers = [] if authorization is None else [(b"authorization", authorization)]
                response = await client.request(method, filled, headers=headers, json=HELLO)
                error = check_error(response, 401, "invalid_api_key")
                told.add(json.dumps({**error, "type": "as its API names it"}))
                assert response.headers["www-authenticate"] == "Bearer"
    assert len(told) == 1, "trying keys teaches nothing"
    await check_nothing_stored(server)


# --- paths and methods ---------------------------------------------------------------------------------


async def test_an_unknown_path_is_a_404(server: Running) -> None:
    for path in ("/nothing", "/api", "/api/sessions/", "/v1/chat", "/api/../etc/passwd", "/api/why"):
        for client in (server.client, await server.with_token(None)):
            check_error(await client.get(path), 404, "not_found")


PAGE = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.mark.parametrize("path", ["/nothing", "/nothing/at/all", "/apiary", "/conversations/x", "/<b>x"])
async def test_an_unknown_address_is_a_page_in_a_browser(server: Running, path: str) -> None:
    """With or without a login, and the page of one without says nothing that it could not know."""
    for client in (server.client, await server.with_token(None)):
        page = await client.get(path, headers=PAGE)
        assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert "content-security-policy" in page.headers and "Not found" in page.text
        assert 'href="/"' in page.text and "<b>x" not in page.text
        is_known = client is server.client
        assert ('href="/login"' in page.text) is not is_known
        assert ('href="/sessions"' in page.text) is is_known, "menus are for those who may use them"
    head = await server.client.head(path, headers=PAGE)
    assert (head.status_code, head.content) == (404, b"")


async def test_an_unknown_address_is_json_for_everything_else(server: Running) -> None:
    for path in ("/v1", "/v1/nothing", "/api", "/api/nothing"):
        check_error(await server.client.get(path, headers=PAGE), 404, "not_found")
    check_error(await server.client.get("/nothing", headers={"accept": "*/*"}), 404, "not_found")
    check_error(await server.client.post("/nothing", headers=PAGE), 404, "not_found")
    refused = await server.client.get("/nothing", headers={**PAGE, "host": "evil.example"})
    assert refused.status_code == 421


async def test_a_path_without_its_version_is_a_404_that_names_the_right_one(server: Running) -> None:
    for path in ("/chat/completions", "/responses", "/models", "/messages"):
        response = await server.client.post(path, json={})
        check_error(response, 404, "not_found")
        assert f"did you mean /v1{path}?" in response.json()["error"]["message"]
    assert "did you mean" not in (await server.client.get("/nothing")).json()["error"]["message"]


async def test_a_wrong_method_is_a_405_that_names_the_right_ones(server: Running) -> None:
    for path, methods in DOCUMENT["paths"].items():
        filled = path.replace("{id}", "x").replace("{item_id}", "x").replace("{model}", "x")
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "TRACE"} - {m.upper() for m in methods}:
            response = await server.client.request(method, filled)
            check_error(response, 405, "method_not_allowed")
            assert {m.upper() for m in methods} <= set(response.headers["allow"].split(", "))


async def test_head_is_get_without_its_body(server: Running) -> None:
    response = await server.client.head("/api/sessions")
    assert (response.status_code, response.content) == (200, b"")


# --- bodies --------------------------------------------------------------------------------------------

WRONG_BODIES = {
    "empty": b"",
    "not JSON": b"{",
    "trailing": b'{"messages": []} x',
    "a list": b"[]",
    "a text": b'"hello"',
    "null": b"null",
    "a number": b"5",
    "not UTF-8": b'{"messages": "\xff\xfe"}',
    "NaN": b'{"messages": NaN}',
    "a lone surrogate": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "a NUL": b'{"messages": [{"role": "us\\u0000er", "content": "x"}]}',
    "no messages": b"{}",
    "messages null": b'{"messages": null}',
    "messages a text": b'{"messages": "hello"}',
    "messages empty": b'{"messages": []}',
    "a message a text": b'{"messages": ["hello"]}',
    "a message a number": b'{"messages": [5]}',
    "no role": b'{"messages": [{"content": "hello"}]}',
    "a user without content": b'{"messages": [{"role": "user"}]}',
    "role a number": b'{"messages": [{"role": 5, "content": "hello"}]}',
    "role unknown type": b'{"messages": [{"role": ["user"], "content": "hello"}]}',
    "stream a text": b'{"messages": [{"role": "user", "content": "x"}], "stream": "yes"}',
    "store a number": b'{"messages": [{"role": "user", "content": "x"}], "store": 1}',
    "model a list": b'{"messages": [{"role": "user", "content": "x"}], "model": []}',
    "n a text": b'{"messages": [{"role": "user", "content": "x"}], "n": "2"}',
    "n huge": b'{"messages": [{"role": "user", "content": "x"}], "n": 1e300}',
    "deep": b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"messages": [{"role": "user", "content": '
    + b'{"a":' * 50_000
    + b"1"
    + b"}" * 50_000
    + b"}]}",
}


async def test_a_body_of_the_wrong_kind_is_a_400(server: Running) -> None:
    for body in WRONG_BODIES.values():
        response = await server.client.post(CHAT, content=body, headers={"x-holdfast-session-key": "a"})
        check_error(response, 400)
    await check_nothing_stored(server)


async def test_no_route_falls_over_a_body_of_the_wrong_kind(server: Running) -> None:
    for path in WITH_BODY:
        filled = path.replace("{id}", "sess_" + "0" * 32)
        for name, body in WRONG_BODIES.items():
            response = await server.client.post(filled, content=body)
            assert response.status_code < 500, (path, name, response.text)
            if response.status_code >= 400:
                check_error(response, response.status_code)
    assert (await server.store.figures()).messages == 0


async def test_a_body_that_is_too_large_is_refused_by_its_word_and_by_its_size(
    start_server: StartServer,
) -> None:
    server = await start_server(server={"max_body_mb": 0.01})
    large = {"messages": [{"role": "user", "content": "x" * 20_000}]}
    check_error(await server.client.post(CHAT, json=large), 413, "request_too_large")

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 1_000

    check_error(await server.client.post(CHAT, content=pieces()), 413, "request_too_large")
    await check_nothing_stored(server)


async def test_a_body_that_takes_too_long_is_refused(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.2)

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"messages": '
        await asyncio.sleep(1)
        yield b"[]}"

    response = await server.client.post(CHAT, content=slowly())
    check_error(response, 408, "request_timeout")
    await check_nothing_stored(server)


async def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_nothing(server: Running) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {server.admin_key}\r\n"
    writer.write(f"{head}Content-Length: 1000\r\n\r\n".encode() + b'{"messages": [')
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await server.client.get("/api/sessions")).json()["data"] == []
    await check_nothing_stored(server)


async def test_headers_that_make_no_sense_are_refused(server: Running) -> None:
    wrong: list[Any] = [
        {"x-holdfast-session-id": "x" * 600},
        {"x-holdfast-session-key": "x" * 600},
        {"x-holdfast-session-id": "sess_unknown"},
        {"x-holdfast-source": "x" * 600},
        {"x-holdfast-when-busy": "later"},
        {"x-holdfast-on-disconnect": "explode"},
        {"idempotency-key": "x" * 600},
        {"x-holdfast-owner": "ada"},
        [("x-holdfast-session-key", "a"), ("x-holdfast-session-key", "b")],
    ]
    for headers in wrong:
        response = await server.client.post(CHAT, json=HELLO, headers=headers)
        assert 400 <= response.status_code < 500, headers
        check_error(response, response.status_code)
    await check_nothing_stored(server)


async def test_more_requests_than_there_is_room_for_are_turned_away(start_server: StartServer) -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    async def silent(*_: Any) -> str:
        asked.set()
        await never.wait()
        return "late"

    server = await start_server(ScriptedModel(silent), server={"max_requests": 1})
    asking = asyncio.create_task(server.client.post(CHAT, json=HELLO))
    await asked.wait()
    response = await server.client.get("/api/sessions")
    check_error(response, 503, "too_many_requests")
    assert response.headers["x-should-retry"] == "true"
    assert (await server.client.get("/healthz")).status_code == 200, "who looks after it still gets in"
    never.set()
    assert (await asking).status_code == 200


async def test_a_stream_that_only_listens_takes_the_room_of_no_request(start_server: StartServer) -> None:
    server = await start_server(server={"max_requests": 1})
    async with server.client.stream("GET", "/api/events") as stream:
        assert (stream.status_code, (await server.client.get("/api/sessions")).status_code) == (200, 200)


async def test_with_a_list_of_hosts_the_machine_itself_still_gets_in(start_server: StartServer) -> None:
    server = await start_server(server={"allowed_hosts": ["agent.example.com", "[fd00::1]"]})
    answers = {"agent.example.com": 200, "localhost:1": 200, "[fd00::1]:80": 200, "evil": 421}
    for host, status in answers.items():
        assert (await server.client.get("/healthz", headers={"host": host})).status_code == status, host


def test_a_server_is_allowed_as_many_files_as_its_requests_need() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        assert allow_files(500) == 1700
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1700, hard)
        assert allow_files(10) == 1700
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1700, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
