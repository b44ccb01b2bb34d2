"""`holdfast serve` is killed while the server's own tools run: no command is ever run twice.

The model calls three commands and then a fourth, each of which appends a line to a file. The server is killed
somewhere between the question and the answer. Afterwards the same request is retried under its idempotency
key, or a new message is sent. Either way every line is there at most once, those of calls stored as finished
exactly once, open calls are closed as "outcome unknown", and the model is never sent an open call.

With `recover = "all"` no client asks twice: every accepted turn is answered, every command still runs once.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from holdfast.domain.contexts import OUTCOME_UNKNOWN
from holdfast.domain.messages import Message, MessageStatus
from holdfast.domain.turns import TurnStatus
from holdfast.store.sqlite.engine import open_store
from tests.contract.steps import all_sessions

from .conftest import Tell
from .serving import API_KEY, Server, Servers, reserved_ports, servers
from .sizes import Size, short_and_soak

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets two sockets share a port so")

COMMANDS = 3
SECONDS = 0.1
"""How long each command takes."""


class Model:
    """Asks for commands, then answers; and looks at every history it gets."""

    def __init__(self, lines: Path) -> None:
        self._lines = lines
        self.faults: list[str] = []

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        messages = body["messages"]
        self._check(messages)
        asked = max(at for at, message in enumerate(messages) if message["role"] == "user")
        tag, since = messages[asked]["content"], messages[asked + 1 :]
        steps = sum(bool(message.get("tool_calls")) for message in since)
        message: dict[str, Any] = {"role": "assistant", "content": f"done {tag}"}
        if tag.startswith("run") and steps < 2:
            numbers = range(COMMANDS) if steps == 0 else [COMMANDS]
            message |= {"content": None, "tool_calls": [self._call(tag, n) for n in numbers]}
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        return web.json_response(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1,
                "model": "m",
                "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            }
        )

    def _call(self, tag: str, number: int) -> dict[str, Any]:
        command = f"echo {tag}-{number} >> {self._lines}; sleep {SECONDS}"
        arguments = msgspec.json.encode({"command": command}).decode()
        function = {"name": "terminal", "arguments": arguments}
        return {"id": f"{tag}-{number}", "type": "function", "function": function}

    def _check(self, messages: list[Any]) -> None:
        awaited: list[str] = []
        for message in messages:
            if message["role"] == "tool":
                if message["tool_call_id"] not in awaited:
                    self.faults.append(f"a result for no call: {message['tool_call_id']}")
                    continue
                awaited.remove(message["tool_call_id"])
                continue
            if awaited:
                self.faults.append(f"calls without a result: {awaited}")
            awaited = [call["id"] for call in message.get("tool_calls") or ()]
        if awaited:
            self.faults.append(f"calls without a result at the end: {awaited}")


@asynccontextmanager
async def answering(model: Model) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/v1/models", model.models)
    app.router.add_post("/v1/chat/completions", model.complete)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}/v1"
    finally:
        await runner.cleanup()


class Attack:
    """One conversation, and a server that is killed while it answers in it."""

    def __init__(self, many: Servers, port: int, client: aiohttp.ClientSession, lines: Path) -> None:
        self._many = many
        self._port = port
        self._client = client
        self._lines = lines
        self._server: Server | None = None

    async def start(self, **more: str) -> None:
        self._server = self._many.start(self._port, 0.5, more=more)
        assert await self._server.ready()

    async def kill(self) -> None:
        assert self._server is not None
        self._server.send(signal.SIGKILL)
        await self._server.ended()

    async def ask(self, text: str, key: str) -> tuple[int, Any]:
        headers = {"idempotency-key": key, "x-holdfast-session-key": "a"}
        body = {"messages": [{"role": "user", "content": text}]}
        url = f"http://127.0.0.1:{self._port}/v1/chat/completions"
        async with self._client.post(url, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def messages(self) -> list[dict[str, Any]]:
        url = f"http://127.0.0.1:{self._port}/api/sessions/a/messages?scope=conversation&limit=1000"
        async with self._client.get(url) as answer:
            found: list[dict[str, Any]] = (await answer.json())["data"]
            return found

    def lines(self) -> Counter[str]:
        return Counter(self._lines.read_text().split()) if self._lines.exists() else Counter()


@short_and_soak(Size("short", 6, 12.0), Size("soak", 150))
async def test_no_command_is_run_twice_whenever_the_server_is_killed(
    size: Size, seed: int, figures: Tell, tmp_path: Path
) -> None:
    chance, lines, kills, unknown = random.Random(seed), tmp_path / "lines", 0, 0
    model = Model(lines)
    headers = {"authorization": f"Bearer {API_KEY}"}
    async with answering(model) as url, aiohttp.ClientSession(headers=headers) as client:
        with servers(tmp_path / "home", url) as many, reserved_ports(1) as (port,):
            many.environment["HOLDFAST_AGENT__TOOLS"] = "terminal"
            attack = Attack(many, port, client, lines)
            await attack.start()
            for number in size.rounds():
                tag = f"run{number}"
                asking = asyncio.create_task(attack.ask(tag, tag))
                await asyncio.sleep(chance.uniform(0, (COMMANDS + 1) * SECONDS * 1.5))
                await attack.kill()
                kills += 1
                with suppress(aiohttp.ClientError):
                    await asking
                await asyncio.sleep(SECONDS * 1.5)  # what ran when it was killed ends by itself
                await attack.start()
                text, key = (tag, tag) if chance.random() < 0.5 else (f"on{number}", f"on{number}")
                status, answer = await attack.ask(text, key)
                assert (status, answer["choices"][0]["message"]["content"]) == (200, f"done {text}"), answer
            ran, said = attack.lines(), await attack.messages()
            await attack.kill()
    assert model.faults == []
    assert [line for line, count in ran.items() if count > 1] == []
    for message in said:
        if message["role"] == "tool":
            closed = message["content"] == OUTCOME_UNKNOWN
            unknown += closed
            assert closed or ran[message["tool_call_id"]] == 1, message["content"]
            assert message["inner"]
    figures(f"tools: {kills} kills, {ran.total()} commands run, each once; {unknown} outcomes unknown")


async def _ask_once(client: aiohttp.ClientSession, url: str, number: int, kind: str) -> str | None:
    """One request of its own conversation, which is never sent again; the id of a response that was accepted
    for later."""
    headers = {"x-holdfast-session-key": f"s{number}"}
    with suppress(aiohttp.ClientError):
        if kind == "background":
            body: dict[str, Any] = {"input": f"run{number}", "background": True}
            async with client.post(f"{url}/v1/responses", json=body, headers=headers) as answer:
                return str((await answer.json())["id"]) if answer.status == 200 else None
        body = {"messages": [{"role": "user", "content": f"run{number}"}], "stream": kind == "stream"}
        async with client.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
            await answer.read()
    return None


async def _settled(client: aiohttp.ClientSession, url: str) -> None:
    """Returns when no turn runs or waits any more."""
    quiet = 0
    async with asyncio.timeout(120):
        while quiet < 3:
            async with client.get(f"{url}/healthz") as answer:
                health = await answer.json()
            quiet = 0 if health["running_turns"] or health["waiting_turns"] else quiet + 1
            await asyncio.sleep(0.1)


@short_and_soak(Size("short", 4), Size("soak", 300))
async def test_every_accepted_turn_is_answered_and_no_command_runs_twice_though_nobody_asks_again(
    size: Size, seed: int, figures: Tell, tmp_path: Path
) -> None:
    chance, lines, kills, asked = random.Random(seed), tmp_path / "lines", 0, 0
    accepted: list[str] = []
    model = Model(lines)
    headers = {"authorization": f"Bearer {API_KEY}"}
    more = {"HOLDFAST_TURNS__RECOVER": "all", "HOLDFAST_TURNS__MAX_DEATHS": "1000"}
    async with answering(model) as model_url, aiohttp.ClientSession(headers=headers) as client:
        with servers(tmp_path / "home", model_url) as many, reserved_ports(1) as (port,):
            many.environment["HOLDFAST_AGENT__TOOLS"] = "terminal"
            attack, url = Attack(many, port, client, lines), f"http://127.0.0.1:{port}"
            await attack.start(**more)
            for _ in size.rounds():
                asking = []
                for kind in ("plain", "stream", "background"):
                    asking.append(asyncio.create_task(_ask_once(client, url, asked, kind)))
                    asked += 1
                await asyncio.sleep(chance.uniform(0, (COMMANDS + 1) * SECONDS * 1.5))
                await attack.kill()
                kills += 1
                accepted += [each for each in await asyncio.gather(*asking) if each is not None]
                await asyncio.sleep(SECONDS * 1.5)  # what ran when it was killed ends by itself
                await attack.start(**more)
            await _settled(client, url)
            ran = attack.lines()
            await attack.kill()
        store = await open_store(tmp_path / "home" / "holdfast.db")
        try:
            turns = [
                turn
                for conversation in {each.conversation_id for each in await all_sessions(store)}
                for turn in await store.turns(None, conversation)
            ]
            kept = {(await store.response(None, each)).turn.id for each in accepted}
            assert kept <= {turn.id for turn in turns} and len(kept) == len(accepted)
            said = [each for turn in turns for each in await store.turn_messages(turn.id)]
            assert await store.check() == []
        finally:
            await store.close()
    assert model.faults == []
    assert [line for line, count in ran.items() if count > 1] == []
    lost = [turn for turn in turns if turn.status is not TurnStatus.COMPLETED and not turn.error]
    assert lost == [], "accepted, and neither answered nor failed with a reason"
    replies = Counter(str(each.content()["content"]) for each in said if _is_answer(each))
    answered = sum(turn.status is TurnStatus.COMPLETED for turn in turns)
    assert (len(replies), replies.total()) == (answered, answered), "each answer is there once"
    again = sum(turn.attempt > 1 for turn in turns)
    assert again, "no turn was taken up"
    figures(
        f"tools, nobody asks again: {kills} kills, {len(turns)} turns, {answered} answered, "
        f"{again} taken up, {ran.total()} commands run, each once"
    )


def _is_answer(message: Message) -> bool:
    return (
        message.role == "assistant"
        and message.status is MessageStatus.COMPLETED
        and not message.content().get("tool_calls")
    )
