"""Kills `holdfast serve` at every step of a compaction: it is done completely or not at all.

One client, which knows only the first id it got and retries unanswered messages under their idempotency key;
one model, which counts a token per word and records its requests. After each kill the conversation goes on,
its sessions form one line, every message is there once, and the model is never again sent what a summary
replaced.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from . import kill_points
from .conftest import Tell
from .mutants import NAME
from .serving import API_KEY, Server, Servers, reserved_ports, servers
from .sizes import Size, short_and_soak

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets two sockets share a port so")

LONG = "word " * 90
GIST = "[Summary of the earlier part of this conversation]\n"
SETTINGS = {
    "HOLDFAST_MODEL__CONTEXT_WINDOW": "1200",
    "HOLDFAST_COMPACTION__THRESHOLD": "0.5",
    "HOLDFAST_COMPACTION__KEEP_LAST": "4",
    "HOLDFAST_MEMORY__FLUSH": "false",
}
WITHIN_TURNS = {**SETTINGS, "HOLDFAST_COMPACTION__THRESHOLD": "1.0"}


class Model:
    """Answers turns at once, and summaries when it may."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.summaries = 0
        self.may_summarise = asyncio.Event()
        self.may_summarise.set()

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def complete(self, request: web.Request) -> web.Response:
        said = [str(message["content"]) for message in (await request.json())["messages"]]
        if request.headers["x-holdfast-purpose"] == "summary":
            self.summaries += 1
            number = self.summaries
            await self.may_summarise.wait()
            text = f"gist {number}"
        else:
            self.asked.append(said)
            text = f"re {said[-1][:20]}"
        words = sum(len(each.split()) for each in said)
        return web.json_response(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1,
                "model": "m",
                "choices": [
                    {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
                ],
                "usage": {"prompt_tokens": words, "completion_tokens": 2, "total_tokens": words + 2},
            }
        )


class Bridge:
    """A client that always sends its first id."""

    def __init__(self, many: Servers, port: int, client: aiohttp.ClientSession, model: Model) -> None:
        self._many = many
        self._port = port
        self._client = client
        self.model = model
        self._server: Server | None = None
        self.first = ""
        self.conversations = 0
        self.said: list[str] = []
        self.faults: list[str] = []

    async def start(self, **environment: str) -> None:
        self._server = self._many.start(self._port, 0.5, more=environment)
        assert await self._server.ready()

    async def died(self) -> int:
        assert self._server is not None
        return await self._server.ended()

    def begin(self) -> None:
        """Another conversation."""
        self.first, self.said = "", []
        self.conversations += 1

    async def say(self, words: int = 90) -> bool:
        """One turn. False: the server died before it was answered."""
        text = f"{len(self.said)} {'word ' * words}"
        self.said.append(text)
        return await self._send()

    async def again(self) -> None:
        """What was said last, under the same key."""
        assert await self._send()

    async def _send(self) -> bool:
        headers = {"idempotency-key": f"{self.conversations}-{len(self.said)}"}
        if self.first:
            headers["x-holdfast-session-id"] = self.first
        body = {"messages": [{"role": "user", "content": self.said[-1]}]}
        url = f"http://127.0.0.1:{self._port}/v1/chat/completions"
        try:
            async with self._client.post(url, json=body, headers=headers) as answer:
                told = await answer.json()
        except aiohttp.ClientError:
            return False
        if answer.status != 200:
            self.faults.append(f"{answer.status}: {told}")
            return True
        self.first = self.first or told["holdfast"]["session_id"]
        return True

    async def get(self, path: str) -> Any:
        async with self._client.get(f"http://127.0.0.1:{self._port}{path}") as answer:
            return await answer.json()

    async def post(self, path: str, body: Any = None) -> Any:
        async with self._client.post(f"http://127.0.0.1:{self._port}{path}", json=body or {}) as answer:
            return await answer.json()

    async def line(self) -> list[dict[str, Any]]:
        data: list[dict[str, Any]] = (await self.get(f"/api/sessions/{self.first}/lineage"))["data"]
        return data

    async def look(self) -> None:
        """Is all of it as it should be?"""
        line = await self.line()
        for parent, child in pairwise(line):
            if (parent["end_reason"], child["edge"], child["parent_id"]) != (
                "compaction",
                "compaction",
                parent["id"],
            ):
                self.faults.append(f"{child['id']} does not continue {parent['id']}")
        if [each["end_reason"] for each in line].count(None) != 1:
            self.faults.append("not exactly one session is open")
        page = (await self.get(f"/api/sessions/{self.first}/messages?scope=conversation&limit=1000"))["data"]
        users = [each["content"] for each in page if each["role"] == "user"]
        if users != self.said:
            self.faults.append(f"said {len(self.said)}, stored {len(users)}")
        if [each["seq"] for each in page] != list(range(1, len(page) + 1)):
            self.faults.append("numbers have gaps")
        summaries = [part for each in line for part in each["view"] if part["kind"] == "summary"]
        if len(summaries) != len(line) - 1:
            self.faults.append("a compacted session has no summary")


@asynccontextmanager
async def bridged(tmp_path: Path, settings: dict[str, str]) -> AsyncIterator[Bridge]:
    model = Model()
    app = web.Application()
    app.router.add_get("/v1/models", model.models)
    app.router.add_post("/v1/chat/completions", model.complete)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        headers = {"authorization": f"Bearer {API_KEY}"}
        async with aiohttp.ClientSession(headers=headers) as client:
            with servers(tmp_path / "home", f"http://{host}:{port}/v1") as many, reserved_ports(1) as (own,):
                many.environment.update(settings)
                bridge = Bridge(many, own, client, model)
                yield bridge
                model.may_summarise.set()
    finally:
        await runner.cleanup()


@short_and_soak(Size("short", 1), Size("soak", 20))
@pytest.mark.parametrize("when", ["behind a reply", "within a turn"])
async def test_a_compaction_is_done_wholly_or_not_at_all_wherever_the_server_is_killed(
    when: str, size: Size, tmp_path: Path, figures: Tell
) -> None:
    kills = compactions = 0
    async with bridged(tmp_path, SETTINGS if when == "behind a reply" else WITHIN_TURNS) as bridge:
        for _ in size.rounds():
            for point in kill_points.ALL:
                bridge.begin()
                await bridge.start(**{kill_points.NAME: point})
                while await bridge.say():
                    assert len(bridge.said) < 20, f"it was never killed: {point}"
                    # Behind a reply it dies a moment later: whoever asks it something sees that.
                assert await bridge.died() == -9
                kills += 1
                await bridge.start()
                before = await bridge.line()
                assert len(before) == (2 if point == "swapped" else 1), point
                await bridge.again()
                await bridge.look()
                for _ in range(4):
                    assert await bridge.say()
                await bridge.look()
                assert bridge.faults == [], point
                compactions += len(await bridge.line()) - 1
                assert (await bridge.line())[-1]["edge"] == "compaction", point
                shown = bridge.model.asked[-1]
                assert shown[2].startswith(GIST)
                assert sum(len(each.split()) for each in shown) < 1200
                bridge._server.send(9)  # type: ignore[union-attr,arg-type]
                await bridge.died()
    figures(f"compaction, {when}: {kills} kills at {len(kill_points.ALL)} steps, {compactions} compactions")


async def a_bridge_across_compactions(bridge: Bridge) -> None:
    """The first id, again and again; meanwhile a person begins anew while a summary is being made."""
    await bridge.start()
    while bridge.model.summaries < 3 and len(bridge.said) < 40 and not bridge.faults:
        await bridge.say()
    bridge.model.may_summarise.clear()
    asked = bridge.model.summaries
    while bridge.model.summaries == asked and len(bridge.said) < 60 and not bridge.faults:
        await bridge.say()
    if not bridge.faults:
        await bridge.post(f"/api/sessions/{(await bridge.line())[-1]['id']}/end", {"reason": "new"})
        await bridge.say()
        if len(bridge.model.asked[-1]) != 1:
            bridge.faults.append("what began anew was shown what was before")
        bridge.model.may_summarise.set()
        async with asyncio.timeout(60):
            while (await bridge.get("/api/activity"))["data"][0]["doing"] is not None:  # noqa: ASYNC110 - the server is asked
                await asyncio.sleep(0.05)
        await bridge.say()
        if any(each.startswith(GIST) for each in bridge.model.asked[-1]):
            bridge.faults.append("what began anew was given the summary of what was before")


async def test_a_bridge_goes_on_whatever_comes_between(tmp_path: Path) -> None:
    async with bridged(tmp_path, SETTINGS) as bridge:
        await a_bridge_across_compactions(bridge)
    assert bridge.faults == []


@pytest.mark.parametrize("mutant", ["no-tip-resolution", "no-compare-and-swap"])
async def test_a_server_that_mistakes_its_sessions_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    monkeypatch.setenv(NAME, mutant)
    async with bridged(tmp_path, SETTINGS) as bridge:
        await a_bridge_across_compactions(bridge)
    assert bridge.faults
