"""Logging in: what opens the pages, what does not, and what no other page can make a browser do."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from holdfast.dashboard import browser_sessions
from holdfast.dashboard.browser_sessions import LINK_FOR, LinkBook, login_link
from holdfast.dashboard.routes import PAGES
from holdfast.domain.api_keys import parse_token
from holdfast.server import sse
from holdfast.server.admin import events
from tests.integration.api.conftest import Running, StartServer, running_server, server_home, start_server

__all__ = ["server_home", "start_server"]

HTML = {"accept": "text/html,*/*"}


@pytest.fixture
async def server(start_server: StartServer) -> Running:
    return await start_server()


def home_of(server: Running) -> Path:
    return Path(server.store.location.removeprefix("sqlite:///")).parent


async def logged_in(server: Running, token: str | None = None) -> httpx.AsyncClient:
    """A client with the cookie of a login, as a browser would have it."""
    client = await server.with_token(None, origin=server.url, **HTML)
    answer = await client.post("/login", data={"key": token or server.admin_key})
    assert answer.status_code == 303, answer.text
    return client


async def form_of(client: httpx.AsyncClient) -> str:
    found = re.search(r'name="form" value="(\w{64})"', (await client.get("/")).text)
    assert found is not None
    return found[1]


# --- the book --------------------------------------------------------------------------------------------


def test_a_link_is_used_once(tmp_path: Path) -> None:
    book = LinkBook(tmp_path)
    link = book.new_link("key_1")
    assert LinkBook(tmp_path).use_link(link) == "key_1"  # also after a restart
    assert book.use_link(link) is None


def test_links_grow_old(tmp_path: Path) -> None:
    now = [1000.0]
    book = LinkBook(tmp_path, lambda: now[0])
    link = book.new_link("key_1")
    now[0] += LINK_FOR
    assert book.use_link(link) is None


def test_nothing_on_disk_logs_anybody_in(tmp_path: Path) -> None:
    book = LinkBook(tmp_path)
    token = book.new_link("key_1")
    for path in tmp_path.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0
        if path.is_file():
            assert token not in f"{path.name} {path.read_text()}"
            assert book.use_link(path.name) is None


def test_no_more_links_are_kept_than_anybody_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser_sessions, "MOST_KEPT", 3)
    book = LinkBook(tmp_path)
    made = [book.new_link("key_1") for _ in range(6)]
    assert len(list((tmp_path / "links").iterdir())) <= 4
    assert book.use_link(made[-1]) == "key_1"


def test_there_is_no_link_without_a_local_key(tmp_path: Path) -> None:
    assert login_link("http://127.0.0.1:1", tmp_path) is None


# --- over HTTP -------------------------------------------------------------------------------------------


async def test_only_the_login_and_static_files_are_open(server: Running) -> None:
    stranger = await server.with_token(None)
    for page in PAGES:
        path = re.sub(r"\{\w+\}", "holdfast.css" if page.path.startswith("/static") else "x", page.path)
        answer = await stranger.request(page.method, path, headers=HTML)
        if page.open:
            assert answer.status_code in (200, 403), path
        elif page.method == "GET":
            assert answer.status_code == 303 and answer.headers["location"].startswith("/login?next="), path
        else:
            assert answer.status_code == 401, path
        assert "script-src 'self'" in answer.headers["content-security-policy"], path


async def test_a_key_logs_in_and_the_cookie_is_kept_from_scripts_and_other_sites(server: Running) -> None:
    client = await server.with_token(None, origin=server.url, **HTML)
    wrong = await client.post("/login", data={"key": "hf_" + "0" * 32 + "_" + "A" * 43})
    assert wrong.status_code == 403 and "set-cookie" not in wrong.headers
    assert "Invalid API key" in wrong.text
    answer = await client.post("/login", data={"key": server.admin_key, "next": "/sessions?state=idle"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/sessions?state=idle")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Secure" not in cookie
    assert server.admin_key not in cookie
    assert (await client.get("/")).status_code == 200
    over_tls = await client.post(
        "/login", data={"key": server.admin_key}, headers={"origin": server.url.replace("http:", "https:")}
    )
    assert "; Secure" in over_tls.headers["set-cookie"]


@pytest.mark.parametrize(
    "elsewhere", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:x", "/a\r\nb: c"]
)
async def test_a_login_leads_to_a_page_of_ours_and_nowhere_else(server: Running, elsewhere: str) -> None:
    client = await server.with_token(None, origin=server.url, **HTML)
    answer = await client.post("/login", data={"key": server.admin_key, "next": elsewhere})
    assert answer.headers["location"] == "/"


async def test_looking_at_a_link_does_not_use_it_up(server: Running) -> None:
    key = parse_token(server.admin_key)
    assert key is not None
    link = LinkBook(home_of(server)).new_link(key.key_id)
    client = await server.with_token(None, origin=server.url, **HTML)
    for _ in range(3):
        assert (await client.get("/login", params={"link": link})).status_code == 200
    assert (await client.post("/login", data={"link": link})).status_code == 303
    assert (await client.get("/")).status_code == 200
    other = await server.with_token(None, origin=server.url, **HTML)
    used = await other.post("/login", data={"link": link})
    assert used.status_code == 403 and "used before" in used.text
    assert (await other.get("/")).status_code == 303


async def test_logging_out_ends_the_login_and_not_only_the_cookie(server: Running) -> None:
    client = await logged_in(server)
    cookies = dict(client.cookies)
    assert (await client.post("/logout", data={"form": await form_of(client)})).status_code == 303
    kept = await server.with_token(None, **HTML)
    kept.cookies.update(cookies)
    assert (await kept.get("/")).status_code == 303


async def test_a_login_ends_with_its_key_and_survives_the_server(server_home: Path) -> None:
    async with running_server(server_home) as first:
        token = await first.key("ada")
        cookies = dict((await logged_in(first, token)).cookies)
        port = first.url.rpartition(":")[2]
    async with running_server(server_home) as second:
        client = await second.with_token(None, **HTML)
        name = f"holdfast_{second.url.rpartition(':')[2]}"
        client.cookies.set(name, cookies[f"holdfast_{port}"])
        assert (await client.get("/")).status_code == 200
        key = parse_token(token)
        assert key is not None
        await second.store.revoke_key(key.key_id, None)
        second.services.holdfast.authenticator._looked_at = float("-inf")  # it asks once a second
        assert (await client.get("/")).status_code == 303


async def test_the_logins_of_one_key_end_no_others(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser_sessions, "MOST_LOGINS", 3)
    admin, eve = await logged_in(server), await server.key("eve")
    browsers = [await logged_in(server, eve) for _ in range(5)]
    assert (await admin.get("/")).status_code == 200
    assert [(await each.get("/")).status_code for each in browsers] == [303, 303, 200, 200, 200]


async def test_nothing_in_the_store_logs_anybody_in(server: Running) -> None:
    client = await logged_in(server)
    (token,) = client.cookies.values()
    for path in home_of(server).rglob("*"):
        assert not path.is_file() or token.encode() not in path.read_bytes(), path


async def test_servers_on_one_store_share_a_login_and_its_end(start_server: StartServer) -> None:
    first, second = await start_server(), await start_server()
    client = await logged_in(first)
    (token,) = client.cookies.values()
    there = await second.with_token(None, **HTML)
    there.cookies.set(f"holdfast_{second.url.rpartition(':')[2]}", token)
    assert (await there.get("/")).status_code == 200
    assert (await client.post("/logout", data={"form": await form_of(client)})).status_code == 303
    assert (await there.get("/")).status_code == 303


@pytest.mark.parametrize("ends", ["log out", "revoke"])
async def test_live_streams_end_with_their_login(
    server: Running, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(events, "LOOK_SECONDS", 0.1)
    token = await server.key("ada")
    client = await logged_in(server, token)
    form = await form_of(client)
    async with client.stream("GET", "/live?after=now", timeout=60) as stream:
        assert stream.status_code == 200
        pieces = stream.aiter_bytes()
        await anext(pieces)
        if ends == "revoke":
            key = parse_token(token)
            assert key is not None
            await server.store.revoke_key(key.key_id, None)
        else:
            assert (await client.post("/logout", data={"form": form})).status_code == 303
        said = b"".join([piece async for piece in pieces])  # it ends by itself
    assert b"invalid_api_key" in said


async def test_pages_act_as_the_owner_that_a_bridge_names(server: Running) -> None:
    bridge = await server.key("team", "bridge")
    as_ada = await server.with_token(bridge, **{"x-holdfast-owner": "ada", **HTML})
    await server.say("hello from ada", client=as_ada, X_Holdfast_Session_Key="telegram:dm:42")
    plain = await server.with_token(bridge, **HTML)
    assert "telegram:dm:42" in (await as_ada.get("/sessions")).text
    assert "telegram:dm:42" not in (await plain.get("/sessions")).text
    chat = await server.with_token(await server.key("eve"), **{"x-holdfast-owner": "ada", **HTML})
    assert (await chat.get("/sessions")).status_code == 403


async def test_a_form_needs_the_logins_own_mark(server: Running) -> None:
    client = await logged_in(server)
    other = await logged_in(server)
    said = await server.say("hello", X_Holdfast_Session_Key="cli:ada")
    path = f"/sessions/{said['holdfast']['session_id']}/end"
    for form in ({}, {"form": ""}, {"form": "x"}, {"form": await form_of(other)}):
        answer = await client.post(path, data=form)
        assert answer.status_code == 403 and "no longer, yours" in answer.text
    assert (await server.client.get("/api/sessions")).json()["data"][0]["ended_at"] is None
    assert (await client.post(path, data={"form": await form_of(client)})).status_code == 303
    assert (await server.client.get("/api/sessions")).json()["data"][0]["ended_at"] is not None


@pytest.mark.parametrize("allowed", ["http://localhost:3000", "*"])
async def test_other_pages_cannot_act_even_if_they_may_call_the_api(
    start_server: StartServer, allowed: str
) -> None:
    friend = "http://localhost:3000"
    server = await start_server(server={"cors_origins": [allowed]})
    client = await logged_in(server)
    form = await form_of(client)
    for headers in (
        {"origin": friend},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site"},
    ):
        answer = await client.post("/logout", data={"form": form}, headers=headers)
        assert answer.status_code == 403, headers
    assert (await client.get("/")).status_code == 200
    page = await client.get("/", headers={"origin": friend})
    assert page.headers["cross-origin-resource-policy"] == "same-origin"


async def test_a_page_is_not_there_under_another_name_of_the_machine(server: Running) -> None:
    client = await logged_in(server)
    answer = await client.get("/", headers={"host": "rebound.example"})
    assert answer.status_code == 421 and "rebound.example" in answer.text


async def test_a_cookie_opens_no_route_of_the_api(server: Running) -> None:
    client = await logged_in(server)
    assert (await client.get("/api/sessions")).status_code == 401
    assert (await client.get("/metrics")).status_code == 401


async def test_anothers_pages_are_like_those_that_never_existed(server: Running) -> None:
    theirs = (await server.say("secret plan", X_Holdfast_Session_Key="cli:ada"))["holdfast"]
    client = await logged_in(server, await server.key("bob"))
    form = await form_of(client)
    asked = [
        ("GET", "/sessions/{}"),
        ("GET", "/sessions/{}/end"),
        ("POST", "/sessions/{}/end"),
        ("POST", "/sessions/{}/delete"),
        ("POST", "/sessions/{}/say"),
    ]
    for method, path in asked:
        answers = []
        for name in (theirs["session_id"], "sess_" + "0" * 32):
            data = {"form": form, "text": "hi"} if method == "POST" else None
            answer = await client.request(method, path.format(name), data=data)
            answers.append((answer.status_code, answer.text.replace(name, "ID")))
        assert answers[0] == answers[1] and answers[0][0] == 404, path
    turn = theirs["turn_id"]
    assert (await client.get(f"/turns/{turn}/reply")).status_code == 404
    assert (await client.post(f"/turns/{turn}/retry", data={"form": form})).status_code == 404
    for path in ("/", "/sessions", "/search?q=secret", "/processes", "/notices", "/memories"):
        text = (await client.get(path)).text
        assert "cli:ada" not in text and "plan" not in text, path
    assert (await client.get("/nodes")).status_code == 403
    assert (await client.get("/sessions?owner=default")).status_code == 403


async def test_an_admin_sees_all_owners_by_naming_them_and_reading_leaves_an_event(server: Running) -> None:
    ada = await server.client_of("ada")
    said = (await server.say("my own words", client=ada, X_Holdfast_Session_Key="cli:ada"))["holdfast"]
    client = await logged_in(server)
    assert "cli:ada" not in (await client.get("/sessions")).text
    listed = (await client.get("/sessions?owner=*")).text
    assert "cli:ada" in listed and f"/sessions/{said['session_id']}?owner=ada" in listed
    assert (await client.get(f"/sessions/{said['session_id']}")).status_code == 404
    page = (await client.get(f"/sessions/{said['session_id']}?owner=ada")).text
    assert "my own words" in page and "see in its events" in page and "<textarea" not in page
    events = await server.store.events(owner="ada")
    assert "messages.read_by_admin" in [event.type for event in events]


async def test_the_environments_key_logs_in_and_another_value_logs_out(
    server_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_API_KEY", "a shared secret")
    async with running_server(server_home) as first:
        cookies = dict((await logged_in(first, "a shared secret")).cookies)
    (cookie,) = cookies.values()
    for value, status in (("a shared secret", 200), ("another", 303)):
        monkeypatch.setenv("HOLDFAST_API_KEY", value)
        async with running_server(server_home) as server:
            client = await server.with_token(None, **HTML)
            client.cookies.set(f"holdfast_{server.url.rpartition(':')[2]}", cookie)
            assert (await client.get("/")).status_code == status
