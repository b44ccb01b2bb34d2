"""Crash, Matrix: `holdfast serve` is killed with `kill -9` while people write in the rooms of a real Synapse.

Ten people write in five rooms. The server is killed again and again, and once another node that already runs
on the same store takes its connector over. Matrix deduplicates by our transaction ids, so every message must
be answered by exactly one event, whole and in the order of the room, with nothing left in the outbox.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from holdfast.store.sqlite.engine import open_store
from tests.integration.connectors.platform import until
from tests.integration.connectors.synapse import INSTALLED, Person, Synapse, register, synapse

from .conftest import Tell
from .serving import Server, Servers, reserved_ports, servers
from .sizes import Size, short_and_soak
from .upstream import call_of, upstream

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets two sockets share a port so"),
]

ROOMS, PEOPLE = 5, 10
EACH_KILL = 10
"""Messages for each kill: 200 in the full run."""
SLOW = 0.1
"""How many replies are written so slowly that the platform shows them while they grow."""


@dataclass
class Rooms:
    """The rooms, who writes in each, and what was asked there."""

    bot: Person
    members: dict[str, list[Person]]
    since: dict[str, str]
    """Where the stream of each room's first person was at the beginning."""
    asked: dict[str, str] = field(default_factory=dict)
    """The first word of each question, by its event."""
    numbers: int = 0

    async def ask(self, chance: random.Random) -> None:
        room = chance.choice(list(self.members))
        tag = f"{'slow' if chance.random() < SLOW else 'q'}{self.numbers}"
        self.numbers += 1
        mention = {"m.mentions": {"user_ids": [self.bot.id]}}
        person = chance.choice(self.members[room])
        self.asked[await person.write(room, f"{self.bot.id} {tag} please", **mention)] = tag

    async def have_joined(self) -> bool:
        for room, (first, *_) in self.members.items():
            if self.bot.id not in (await first.call("GET", f"rooms/{room}/joined_members"))["joined"]:
                return False
        return True


async def rooms_of(session: aiohttp.ClientSession, homeserver: Synapse) -> Rooms:
    bot, *people = [await register(session, homeserver, f"p{number}") for number in range(PEOPLE + 1)]
    members, since = {}, {}
    for number in range(ROOMS):
        first, *others = people[number::ROOMS]
        room = await first.create(bot, *others)
        for each in others:
            await each.join(room)
        members[room], since[room] = [first, *others], await first.position()
    return Rooms(bot, members, since)


@dataclass
class RoomSeen:
    """A room as a reader sees it."""

    questions: list[str]
    answered: list[str]
    """What each of the bot's messages is a reply to, in order."""
    texts: dict[str, str]
    """The bot's messages, as they were edited last."""


def seen(events: list[dict[str, Any]], bot: Person, asked: Mapping[str, str]) -> RoomSeen:
    found = RoomSeen([], [], {})
    for event in events:
        content = event["content"]
        relation = content.get("m.relates_to") or {}
        if event["event_id"] in asked:
            found.questions.append(asked[event["event_id"]])
        elif event["type"] != "m.room.message" or event["sender"] != bot.id:
            continue
        elif relation.get("rel_type") == "m.replace":
            found.texts[relation["event_id"]] = content["m.new_content"]["body"]
        else:
            found.answered.append(asked[relation["m.in_reply_to"]["event_id"]])
            found.texts[event["event_id"]] = content["body"]
    return found


def settings(directory: Path, homeserver: Synapse, bot: Person) -> Mapping[str, str]:
    config = directory / "matrix.toml"
    config.write_text(
        f"""
[turns]
max_deaths = 1000
max_attempts = 1000
[connectors.mx]
kind = "matrix"
token_env = "MX_TOKEN"
homeserver = "{homeserver.url}"
allow = ["*"]
poll_seconds = 5
"""
    )
    return {"HOLDFAST_CONFIG": str(config), "MX_TOKEN": bot.token, "HOLDFAST_LOG__LEVEL": "info"}


async def killed(server: Server) -> None:
    server.send(signal.SIGKILL)
    await server.ended()


async def attacked(
    size: Size, chance: random.Random, rooms: Rooms, started: Servers, more: Mapping[str, str]
) -> int:
    """Let people write while servers are killed; returns the number of kills. Then all is quiet."""

    async def begin(port: int) -> Server:
        server = started.start(port, 0.05, more=more)
        assert await server.ready(), started.log.read_text()
        return server

    kills, replaced_at = 0, size.least // 2
    with reserved_ports(2) as (first, second):
        server = await begin(first)
        await until(rooms.have_joined, 120)
        for number in size.rounds():
            writing = [asyncio.create_task(rooms.ask(chance)) for _ in range(EACH_KILL)]
            other = await begin(second) if number == replaced_at else None
            await asyncio.sleep(chance.uniform(0, 2))
            await killed(server)
            kills += 1
            await asyncio.gather(*writing)
            if other is not None:  # it has waited for the connector
                server, first, second = other, second, first
            else:
                server = await begin(first)
        await until(lambda: nothing_left(started.database, rooms), 300)
        server.send(signal.SIGTERM)
        await server.ended()
    return kills


async def nothing_left(database: Path, rooms: Rooms) -> bool:
    """True: every question is settled and every delivery is sent."""
    await asyncio.sleep(0.5)
    store = await open_store(database)
    try:
        if await store.waiting_places("mx") or (await store.deliveries(None, state="pending")).items:
            return False
        sent, after = 0, None
        while True:
            page = await store.deliveries(None, state="sent", after=after, limit=100)
            sent += len(page.items)
            if not page.has_more:
                return sent >= len(rooms.asked)
            after = page.items[-1].id
    finally:
        await store.close()


@pytest.mark.timeout(1800)
@short_and_soak(Size("short", 3), Size("soak", 20))
async def test_every_message_is_answered_exactly_once_whenever_the_server_is_killed(
    size: Size, seed: int, figures: Tell
) -> None:
    assert INSTALLED, "Synapse is not installed: run scripts/synapse"
    chance, began = random.Random(seed), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-") as name:
        directory = Path(name)
        (directory / "synapse").mkdir()
        with synapse(directory / "synapse") as homeserver, upstream(directory) as model:
            async with aiohttp.ClientSession() as session:
                rooms = await rooms_of(session, homeserver)
                with servers(directory / "home", model.url) as started:
                    kills = await attacked(
                        size, chance, rooms, started, settings(directory, homeserver, rooms.bot)
                    )
                found = {
                    room: seen(await members[0].arrived(room, rooms.since[room]), rooms.bot, rooms.asked)
                    for room, members in rooms.members.items()
                }
        store = await open_store(directory / "home" / "holdfast.db")
        try:
            assert await store.check() == []
            assert (await store.deliveries(None, state="dead")).items == []
        finally:
            await store.close()
    answers = Counter(each for room in found.values() for each in room.answered)
    lost = [each for each in rooms.asked.values() if not answers[each]]
    doubled = sum(count - 1 for count in answers.values())
    figures(
        f"crash, matrix: real Synapse, {PEOPLE} people, {ROOMS} rooms, {kills} kills (1 takeover by a second "
        f"node), {len(rooms.asked)} messages, {len(lost)} lost, {doubled} doubled, "
        f"{time.monotonic() - began:.0f} s"
    )
    assert (lost, doubled) == ([], 0)
    for room in found.values():
        assert room.answered == room.questions
        for text in room.texts.values():
            known = call_of(f"{text.strip()} ")
            assert known is not None and known[1].strip() == text.strip(), f"not whole: {text!r}"
