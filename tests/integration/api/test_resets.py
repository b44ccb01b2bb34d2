"""Resets as clients, bridges and people meet them: on a server whose clock is moved."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from holdfast.domain.conversations import Address
from holdfast.models.scripted import ScriptedModel
from holdfast.store.sqlite.engine import SQLiteStore
from tests.contract.steps import Clock
from tests.integration.api.chatting import by_id, by_key, calls, post, result, user
from tests.integration.api.conftest import Running, StartServer
from tests.integration.api.operating import Waiting, asked, got, refused, speaking
from tests.integration.api.responding import ENDINGS, events_of
from tests.integration.api.responding import post as post_response

RESET: dict[str, Any] = {
    "mode": "none",
    "idle_minutes": 120,
    "at_hour": 6,
    "timezone": "Europe/Berlin",
    "sources": {
        "telegram": {"mode": "idle"},
        "daily": {"mode": "daily"},
        "both": {"mode": "both"},
        "slow": {"mode": "idle", "idle_minutes": 600},
    },
}
KEY = "telegram:dm:42"


async def moved(server: Running, clock: Clock) -> Running:
    """The same server, in the time of this clock; it sweeps only when a test calls `sweep`."""
    assert isinstance(server.store, SQLiteStore)
    await server.services.holdfast.sweeper.stop()
    server.store._clock = clock
    return server


@pytest.fixture
def clock() -> Clock:
    return Clock(datetime(2026, 11, 2, 12, tzinfo=UTC))


@pytest.fixture
async def server(start_server: StartServer, clock: Clock) -> Running:
    return await moved(await start_server(reset=RESET), clock)


async def sweep(server: Running) -> dict[str, str]:
    """What a sweep resets."""
    return (await server.services.holdfast.sweeper.sweep_once()).reset.reset


async def chat(server: Running, text: str = "hello", **headers: str) -> httpx.Response:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    response = await post(server, [user(text)], sent or by_key(KEY))
    assert response.status_code == 200, response.text
    return response


def told(response: httpx.Response) -> tuple[str | None, str | None, int]:
    """What a whole answer says of a reset: in its header, in its JSON, and by notices."""
    ours = response.json()["holdfast"]
    return response.headers.get("x-holdfast-reset"), ours["reset"], len(ours["notices"])


async def carried_out_by_the_message(server: Running) -> None:
    """Nobody has swept."""


async def carried_out_by_a_sweep(server: Running) -> None:
    assert list((await sweep(server)).values()) == ["idle"]


async def carried_out_by_another_process(server: Running) -> None:
    assert isinstance(server.store, SQLiteStore)
    other = SQLiteStore(server.store._database, clock=server.store._clock, policies=server.store._policies)
    try:
        for session_id in await other.due_sessions():
            await other.reset_session(session_id)
    finally:
        await other.close()


CARRIED_OUT = [carried_out_by_the_message, carried_out_by_a_sweep, carried_out_by_another_process]


@pytest.mark.parametrize("carried_out", CARRIED_OUT)
async def test_the_first_answer_of_a_fresh_session_says_so_and_the_next_does_not(
    server: Running, clock: Clock, carried_out: Any
) -> None:
    first = await chat(server)
    assert told(first) == (None, None, 0)
    clock.move(hours=2)
    await carried_out(server)
    fresh = await chat(server, "good evening")
    assert told(fresh) == ("idle", "idle", 1)
    (notice,) = fresh.json()["holdfast"]["notices"]
    assert (notice["kind"], notice["key"]) == ("reset", KEY)
    assert "no message for 2 h" in notice["text"]
    for name in ("x-holdfast-conversation-id", "x-holdfast-session-id"):
        same = fresh.headers[name] == first.headers[name]
        assert same == name.endswith("conversation-id")
    assert server.model.requests[-1].messages.count(b'"role"') == 1, "the model hears only what is new"
    assert told(await chat(server, "and again")) == (None, None, 0)
    listed = (await got(server, "/api/notices?undelivered=1"))["data"]
    assert [each["id"] for each in listed] == [notice["id"]], (
        "a reply has carried it; nobody has delivered it"
    )


@pytest.mark.parametrize("carried_out", CARRIED_OUT)
async def test_a_stream_says_so_in_its_header_and_on_the_chunk_that_ends_it(
    server: Running, clock: Clock, carried_out: Any
) -> None:
    await chat(server)
    clock.move(hours=2)
    await carried_out(server)
    body = {"messages": [user("hello")], "stream": True}
    async with server.client.stream("POST", "/v1/chat/completions", json=body, headers=by_key(KEY)) as answer:
        assert answer.headers["x-holdfast-reset"] == "idle"
        lines = [line async for line in answer.aiter_lines() if line.startswith("data: {")]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    (ours,) = [chunk["holdfast"] for chunk in chunks if "holdfast" in chunk]
    assert (ours["reset"], len(ours["notices"])) == ("idle", 1)


@pytest.mark.parametrize("carried_out", CARRIED_OUT)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_response_says_so_too(server: Running, clock: Clock, carried_out: Any, stream: bool) -> None:
    await chat(server)
    clock.move(hours=2)
    await carried_out(server)
    if not stream:
        answer = await post_response(server, {"input": "hello"}, by_key(KEY))
        headers, ours = answer.headers, answer.json()["holdfast"]
    else:
        body = {"input": "hello", "stream": True}
        async with server.client.stream("POST", "/v1/responses", json=body, headers=by_key(KEY)) as events:
            headers = events.headers
            said = [event async for event in events_of(events)]
        ours = next(event for event in said if event["type"] in ENDINGS)["response"]["holdfast"]
    assert headers["x-holdfast-reset"] == "idle"
    assert (ours["reset"], len(ours["notices"])) == ("idle", 1)


async def test_a_repeated_request_is_told_of_its_reset_again(server: Running, clock: Clock) -> None:
    await chat(server)
    clock.move(hours=2)
    answers = [await chat(server, "hi", x_holdfast_session_key=KEY, idempotency_key="k") for _ in range(2)]
    assert [told(answer)[:2] for answer in answers] == [("idle", "idle")] * 2
    assert len({answer.headers["x-holdfast-turn-id"] for answer in answers}) == 1


async def test_a_stale_session_id_leads_to_the_fresh_session(server: Running, clock: Clock) -> None:
    old = (await chat(server)).json()["holdfast"]["session_id"]
    clock.move(hours=2)
    fresh = await post(server, [user("hello")], by_id(old))
    assert told(fresh) == ("idle", "idle", 1)
    assert fresh.json()["holdfast"]["compacted"], "it says that the session has gone on in a newer one"


@pytest.mark.parametrize(
    ("headers", "hours", "expected"),
    [
        ({"x-holdfast-session-key": "telegram:dm:1"}, 2, "idle"),
        ({"x-holdfast-session-key": "agent:main:telegram:dm:1"}, 2, "idle"),
        ({"x-holdfast-session-key": "k", "x-holdfast-source": "telegram"}, 2, "idle"),
        ({"x-holdfast-session-key": "telegram:dm:1", "x-holdfast-source": "slow"}, 9, None),
        ({"x-holdfast-session-key": "telegram:dm:1", "x-holdfast-source": "slow"}, 10, "idle"),
        ({"x-holdfast-session-key": "slow:1"}, 9, None),
        ({"x-holdfast-session-key": "daily:1"}, 16, None),
        ({"x-holdfast-session-key": "daily:1"}, 17, "daily"),  # six o'clock in Berlin
        ({"x-holdfast-session-key": "both:1"}, 2, "idle"),
        ({"x-holdfast-session-key": "cli:1"}, 24 * 3650, None),
        ({"x-holdfast-session-key": "k"}, 24 * 3650, None),
    ],
)
async def test_each_source_has_its_own_policy(
    server: Running, clock: Clock, headers: dict[str, str], hours: float, expected: str | None
) -> None:
    await post(server, [user("hello")], headers)
    clock.move(hours=hours)
    swept = list((await sweep(server)).values())
    assert swept == ([expected] if expected else [])
    assert told(await post(server, [user("hello")], headers))[:2] == (expected, expected)


async def test_a_daily_reset_does_not_cut_a_talk_in_two(server: Running, clock: Clock) -> None:
    key = {"x_holdfast_session_key": "daily:1"}
    await chat(server, **key)
    clock.move(hours=16.9)
    for _ in range(6):  # until well past six, never quiet for a quarter of an hour
        assert told(await chat(server, **key))[0] is None
        clock.move(hours=0.2)
        assert await sweep(server) == {}
    why = await got(server, "/api/sessions/daily:1/why")
    assert (why["decision"], why["reasons"][0]["code"]) == ("not_due", "daily")
    assert "once there was no message for 15 min" in why["sentence"]
    clock.move(hours=0.05)
    assert list((await sweep(server)).values()) == ["daily"]
    assert told(await chat(server, **key)) == ("daily", "daily", 1)


async def test_a_running_turn_defers_and_says_so(start_server: StartServer, clock: Clock) -> None:
    waiting = Waiting()
    server = await moved(await start_server(waiting.model(), reset=RESET), clock)
    task = await speaking(server, waiting, KEY)
    clock.move(hours=5)
    for _ in range(3):
        assert await sweep(server) == {}
        clock.move(seconds=40)
    why = await got(server, f"/api/sessions/{KEY}/why")
    assert why["decision"] == "deferred"
    assert [reason["code"] for reason in why["reasons"]] == ["idle", "turn"]
    assert "is being answered and due to be reset since" in why["sentence"]
    history = [event["type"] for event in why["history"]]
    assert history.count("session.reset_deferred") == 1, "once per change, not per sweep"
    waiting.may_go_on.set()
    assert (await task).status_code == 200
    assert await sweep(server) == {}, "being answered is activity"
    clock.move(hours=2)
    assert list((await sweep(server)).values()) == ["idle"]


async def test_awaited_tool_calls_defer_for_a_while_and_their_results_are_never_reset_away(
    start_server: StartServer, clock: Clock
) -> None:
    script = ScriptedModel([calls("call_1"), "It rains.", calls("call_2"), "Hello."])
    server = await moved(await start_server(script, reset=RESET), clock)
    await chat(server, "weather?")
    clock.move(hours=3.9)
    assert await sweep(server) == {}
    why = await got(server, f"/api/sessions/{KEY}/why")
    assert [(reason["code"], "until" in reason) for reason in why["reasons"]] == [
        ("idle", True),
        ("tool_calls", True),
    ]
    answer = await post(server, [result("call_1", "rain")], by_key(KEY))
    assert told(answer) == (None, None, 0)
    await chat(server, "and tomorrow?")
    clock.move(hours=4)
    assert list((await sweep(server)).values()) == ["idle"], "not for ever: max_block_minutes"
    late = await post(server, [result("call_2", "sun")], by_key(KEY))
    assert (late.status_code, late.json()["error"]["code"]) == (409, "tool_call_closed")
    assert told(await chat(server, "hello")) == ("idle", "idle", 1)


async def test_a_result_that_comes_late_but_before_any_reset_is_taken(
    start_server: StartServer, clock: Clock
) -> None:
    server = await moved(
        await start_server(ScriptedModel([calls("call_1"), "It rains."]), reset=RESET), clock
    )
    first = await chat(server, "weather?")
    assert isinstance(server.store, SQLiteStore)
    await server.services.holdfast.sweeper.stop()
    clock.move(hours=9)
    answer = await post(server, [result("call_1", "rain")], by_key(KEY))
    assert answer.status_code == 200
    assert answer.headers["x-holdfast-session-id"] == first.headers["x-holdfast-session-id"]


async def test_looking_restarting_and_recovering_never_move_the_clock(
    start_server: StartServer, clock: Clock
) -> None:
    clock.now = datetime.now(UTC)  # a server that starts looks at the real one first
    server = await moved(await start_server(reset=RESET), clock)
    session = (await chat(server)).json()["holdfast"]["session_id"]
    before = await got(server, f"/api/sessions/{session}")
    clock.move(hours=1)
    for path in ("", "/messages", "/turns", "/lineage", "/why", "/messages?scope=context"):
        await got(server, f"/api/sessions/{session}{path}")
    await got(server, "/api/activity")
    other = await moved(await start_server(reset=RESET), clock)
    await other.services.holdfast.sweeper.sweep_once()
    after = await got(other, f"/api/sessions/{session}")
    for name in ("last_activity_at", "next_due_at"):
        assert after[name] == before[name]


async def test_a_session_that_is_resumed_on_purpose_is_not_reset_at_once(
    server: Running, clock: Clock
) -> None:
    old = (await chat(server)).json()["holdfast"]["session_id"]
    clock.move(hours=48)
    await sweep(server)
    resumed = await asked(server, "POST", f"/api/sessions/{old}/resume")
    assert await sweep(server) == {}
    answer = await chat(server)
    assert answer.headers["x-holdfast-session-id"] == resumed["id"]
    assert told(answer)[0] is None


async def test_why_says_the_rule_with_its_origin_for_whoever_may_see_the_session(
    server: Running, clock: Clock
) -> None:
    session = (await chat(server)).json()["holdfast"]["session_id"]
    why = await got(server, f"/api/sessions/{KEY}/why")
    assert why == await got(server, f"/api/sessions/{session}/why")
    assert why["session_id"] == session
    assert why["sentence"] == (
        f"{KEY} has been idle since 13:00 and will be reset at 15:00 (idle 120 min, from [reset])."
    )
    assert why["policy"]["mode"] == {"value": "idle", "origin": "[reset.sources.telegram] in settings="}
    assert why["policy"]["quiet_minutes"] == {"value": 15, "origin": "the default"}
    assert [event["type"] for event in why["history"]] == ["session.opened"]
    clock.move(hours=3)
    assert (await got(server, f"/api/sessions/{KEY}/why"))["decision"] == "due"
    await sweep(server)
    ended = await got(server, f"/api/sessions/{session}/why")
    assert (ended["decision"], ended["next_due_at"]) == ("ended", None)
    assert [event["type"] for event in ended["history"]][-2:] == ["session.ended", "session.reset"]
    stranger = await server.client_of("stranger")
    await refused(server, "GET", f"/api/sessions/{session}/why", 404, "not_found", client=stranger)
    await refused(server, "GET", "/api/sessions/nowhere/why", 404, "not_found")


@asynccontextmanager
async def many(store: SQLiteStore, number: int) -> AsyncIterator[list[str]]:
    """So many open sessions of a source, made by a node that has since left."""
    from tests.contract.steps import new_node

    node = await new_node(store)
    opened = [
        (await store.open_session("default", Address(key=f"telegram:{each}"), node.id)).id
        for each in range(number)
    ]
    await store.leave(node.id, "closed")
    yield opened


@pytest.mark.slow
async def test_other_policies_date_thousands_of_sessions_without_holding_up_the_start(
    start_server: StartServer, capsys: pytest.CaptureFixture[str]
) -> None:
    first = await start_server()
    assert isinstance(first.store, SQLiteStore)
    first.store._clock = lambda: datetime.now(UTC) - timedelta(days=3)
    async with many(first.store, 3000) as opened:
        began = time.perf_counter()
        server = await start_server(reset={"mode": "both", "idle_minutes": 120, "at_hour": 6})
        took = time.perf_counter() - began
        await server.client.get("/healthz")
        async with _until_all_are_reset(server, opened):
            settled = time.perf_counter() - began
    with capsys.disabled():
        print(f"\n3000 sessions under new policies: start {took:.2f} s, all reset after {settled:.2f} s")
    assert took < settled / 2, "the start waited for the sessions"


@asynccontextmanager
async def _until_all_are_reset(server: Running, opened: list[str]) -> AsyncIterator[None]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        swept = await server.services.holdfast.sweeper.sweep_once()
        if not swept.more and not (await server.store.due_sessions()):
            break
    for session_id in (opened[0], opened[-1]):
        assert (await server.store.session(None, session_id)).end_reason in ("idle", "daily")
    yield
