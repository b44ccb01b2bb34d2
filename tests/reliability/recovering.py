"""Clients that ask once and go away, and the check that what was accepted of them was answered.

A third of the questions is plain, a third streamed, a third for later; every fifth has the server run
commands, each of which adds a line to a file. Nothing is ever asked for again. `judged` compares the store
with what clients received, with every request that the model got, and with the lines.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import httpx
import msgspec

from holdfast.domain.contexts import OUTCOME_UNKNOWN
from holdfast.domain.messages import Message, MessageStatus
from holdfast.domain.turns import Turn, TurnStatus
from holdfast.store.store import Store
from tests.contract.steps import all_events

from .serving import API_KEY
from .upstream import TOOLS, Call, call_of

KINDS = ("plain", "stream", "later")
ENOUGH = 600.0


class Askers:
    """`together` clients, each of which asks one question after the other at any of these servers."""

    def __init__(self, urls: Sequence[str], lines: Path, seed: int, together: int = 4) -> None:
        self._urls = urls
        self._lines = lines
        self._chance = random.Random(seed)
        self._number = 0
        self._together = together
        self._tasks: list[asyncio.Task[None]] = []
        self.accepted: dict[str, str] = {}
        """Turns whose status line or id a client has: their question's tag."""
        self.answers: dict[str, str] = {}
        """The answers that clients have received whole, by tag."""
        self.wrong: list[str] = []
        self._may_ask = asyncio.Event()
        self._may_ask.set()
        self._promised: dict[str, asyncio.Event] = {url: asyncio.Event() for url in urls}

    async def promised(self, url: str, seconds: float) -> None:
        """Returns when this server has accepted something for later; or after so long."""
        self._promised[url].clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._promised[url].wait(), seconds)

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._ask()) for _ in range(self._together)]

    async def stop(self) -> None:
        for each in self._tasks:
            each.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        self.wrong += [repr(each) for each in ended if not isinstance(each, asyncio.CancelledError)]

    async def pause_until_settled(self) -> None:
        """Ask nothing until what was accepted has come to its end."""
        self._may_ask.clear()
        await settled(self._urls[0])
        self._may_ask.set()

    async def _ask(self) -> None:
        headers = {"authorization": f"Bearer {API_KEY}"}
        async with httpx.AsyncClient(headers=headers, timeout=30, trust_env=False) as client:
            while True:
                await self._may_ask.wait()
                self._number += 1
                tag, url = f"q{self._number}", self._chance.choice(self._urls)
                tools = self._chance.random() < 0.2
                text = f"{tag} {TOOLS} {self._lines}" if tools else f"{tag} please"
                try:
                    await self._one(client, url, tag, text, self._chance.choice(KINDS))
                except httpx.HTTPError:
                    await asyncio.sleep(0.02)  # its server was killed, or is stopping

    async def _one(self, client: httpx.AsyncClient, url: str, tag: str, text: str, kind: str) -> None:
        if kind == "later":
            body: dict[str, Any] = {"input": text, "background": True}
            answer = await client.post(f"{url}/v1/responses", json=body)
            if self._is_accepted(answer, tag):
                self._promised[url].set()
                await asyncio.sleep(self._chance.random() * 0.2)
            return
        body = {"messages": [{"role": "user", "content": text}], "stream": kind == "stream"}
        if kind == "plain":
            answer = await client.post(f"{url}/v1/chat/completions", json=body)
            if self._is_accepted(answer, tag):
                self.answers[tag] = answer.json()["choices"][0]["message"]["content"]
            return
        async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
            if not self._is_accepted(answer, tag):
                return
            said = ""
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                for choice in msgspec.json.decode(line.removeprefix("data: ")).get("choices", ()):
                    said += choice["delta"].get("content") or ""
                    if choice["finish_reason"] == "stop":
                        self.answers[tag] = said

    def _is_accepted(self, answer: httpx.Response, tag: str) -> bool:
        turn_id = answer.headers.get("x-holdfast-turn-id")
        if answer.status_code == 200:
            if turn_id is None:
                self.wrong.append(f"the reply to {tag} names no turn: {answer.headers}")
            else:
                self.accepted[turn_id] = tag
            return True
        if answer.status_code not in (502, 503):  # the model broke off, or the server is stopping
            self.wrong.append(f"{tag} was refused: {answer.status_code} {answer.headers}")
        return False


async def settled(url: str) -> None:
    """Returns when no turn runs or waits any more."""
    deadline = time.monotonic() + ENOUGH
    async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:
        quiet = 0
        while quiet < 3:
            health = (await client.get("/healthz")).json()
            quiet = 0 if health["running_turns"] or health["waiting_turns"] else quiet + 1
            assert time.monotonic() < deadline, health
            await asyncio.sleep(0.1)


@dataclass
class Verdict:
    """What a run has come to. `wrong`: every promise that was broken."""

    wrong: list[str] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    calls: int = 0
    steps: int = 0
    """Replies that called commands."""
    commands: int = 0
    unknown: int = 0
    """Commands whose outcome is unknown."""
    seconds: list[float] = field(default_factory=list)
    """From the death that cut a turn short to its answer."""

    def add(self, other: Verdict) -> None:
        """The other's turns and figures count as this one's."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def count(self, status: TurnStatus) -> int:
        return sum(turn.status is status for turn in self.turns)

    @property
    def again(self) -> list[Turn]:
        return [turn for turn in self.turns if turn.attempt > 1]

    def figures(self) -> str:
        took = f"median {statistics.median(self.seconds):.2f} s" if self.seconds else "none"
        return (
            f"{len(self.turns):,} turns, {self.count(TurnStatus.COMPLETED):,} answered, "
            f"{self.count(TurnStatus.FAILED):,} failed with a reason, "
            f"{self.count(TurnStatus.INTERRUPTED):,} interrupted with a reason, {len(self.again):,} taken up "
            f"({took} from death to answer); {self.calls:,} model calls, "
            f"{len(self.turns) + self.steps:,} without faults; {self.commands:,} commands run, each once, "
            f"{self.unknown:,} outcomes unknown; 0 lost, 0 doubled"
        )


async def judged(
    store: Store,
    askers: Askers,
    calls: Sequence[Call],
    lines: Path,
    *,
    recover: str,
    killed: Mapping[int, float],
) -> Verdict:
    """Everything that was promised, at rest. `killed`: when each server was killed, by pid."""
    found, wrong = Verdict(calls=len(calls)), list(askers.wrong)
    found.wrong = wrong
    events = await all_events(store)
    ran = Counter(lines.read_text().split()) if lines.exists() else Counter[str]()
    found.commands = ran.total()
    wrong += [f"the command {line} was run {count} times" for line, count in ran.items() if count > 1]
    asked, tags = Counter(call.tag for call in calls), dict[str, str]()
    for turn_id in [event.turn_id for event in events if event.type == "turn.started" and event.turn_id]:
        turn = await store.turn(None, turn_id)
        messages = await store.turn_messages(turn_id)
        found.turns.append(turn)
        tag = str(messages[0].content()["content"]).split()[0]
        if tag in tags:
            wrong.append(f"{tag} is stored in {tags[tag]} and {turn_id}")
        tags[tag] = turn_id
        steps = sum(bool(each.own_calls) for each in messages)
        found.steps += steps
        # Each attempt is stored before it asks the model, and asks it again only after a stored step.
        if asked[tag] > turn.attempt + steps:
            wrong.append(f"the model was asked {asked[tag]} times in {turn.attempt} attempts of {tag}")
        wrong += _unfinished(turn, recover) + _answers(tag, turn, messages, askers)
        for each in messages:
            if each.role == "tool":
                result = each.content()
                call, unknown = result["tool_call_id"], result["content"] == OUTCOME_UNKNOWN
                found.unknown += unknown
                if not unknown and ran[call] != 1:
                    wrong.append(f"the result of {call} is stored, and it was run {ran[call]} times")
    wrong += [f"the model was asked {tag}, which is not stored" for tag in asked.keys() - tags.keys()]
    wrong += [
        f"{tag} was accepted as {turn_id}, and is not stored"
        for turn_id, tag in askers.accepted.items()
        if tags.get(tag) != turn_id
    ]
    wrong += [f"doctor: {finding}" for finding in await store.check()]
    nodes = {node.id: node.identity.pid for node in await store.nodes(gone=True)}
    ran_on: dict[str, str] = {}
    deaths: dict[str, float] = {}
    for event in events:
        if event.type in ("turn.started", "turn.taken_up") and event.turn_id:
            before = ran_on.get(event.turn_id)
            if before is not None and nodes[before] in killed:
                deaths[event.turn_id] = killed[nodes[before]]
            ran_on[event.turn_id] = str(event.data["node"])
    found.seconds = [
        turn.ended_at.timestamp() - deaths[turn.id]
        for turn in found.turns
        if turn.status is TurnStatus.COMPLETED and turn.ended_at and turn.id in deaths
    ]
    return found


def _unfinished(turn: Turn, recover: str) -> list[str]:
    """Every turn that is covered is answered, or has failed; every turn without an answer says why."""
    covered = recover == "all" or turn.response_id is not None
    ends = {TurnStatus.COMPLETED, TurnStatus.FAILED} | (set() if covered else {TurnStatus.INTERRUPTED})
    if turn.status not in ends or turn.waits:
        return [f"{turn.id} is {turn.status}: {turn.why}"]
    if turn.status is not TurnStatus.COMPLETED and not turn.why:
        return [f"{turn.id} is {turn.status} without a reason"]
    return []


def _answers(tag: str, turn: Turn, messages: Sequence[Message], askers: Askers) -> list[str]:
    """An answered turn has one whole answer, and it is the one that its client received."""
    said = [
        str(each.content()["content"])
        for each in messages
        if each.role == "assistant" and each.status is MessageStatus.COMPLETED and not each.own_calls
    ]
    received = askers.answers.get(tag)
    if turn.status is not TurnStatus.COMPLETED:
        return [f"{tag} is {turn.status} and has answers: {said}"] if said or received else []
    known = call_of(said[0]) if len(said) == 1 else None
    if known is None or said[0] != known[1]:
        return [f"{tag} is answered by {said}"]
    if received is not None and received != said[0]:
        return [f"the client of {tag} received {received!r}, stored is {said[0]!r}"]
    return []
