"""Crash, connector: `holdfast serve` is killed with `kill -9` while people write to it through Telegram's
stand-in.

Every message must be answered, in order in each chat. Telegram does not deduplicate what a bot sends, so a
kill between sending and recording may repeat that one message: at most one duplicate for each kill.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from holdfast.store.sqlite.engine import open_store
from tests.integration.connectors.platform import until
from tests.integration.connectors.telegram_api import TOKEN, TelegramStandIn, telegram_stand_in

from .conftest import Tell
from .sizes import Size, short_and_soak

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the proof of death is tested elsewhere")

PEOPLE = range(1, 11)


class Server:
    """`holdfast serve` with a Telegram connector, started and killed."""

    def __init__(self, home: Path, telegram: TelegramStandIn) -> None:
        self._telegram = telegram
        config = home / "connectors.toml"
        config.write_text(
            f"""
[server]
port = 0
[model]
kind = "scripted"
[connectors.phone]
kind = "telegram"
token_env = "PHONE_TOKEN"
api_url = "{telegram.url}"
allow = ["*"]
poll_seconds = 5
"""
        )
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        self._environment = {
            **kept,
            "HOLDFAST_HOME": str(home),
            "HOLDFAST_CONFIG": str(config),
            "PHONE_TOKEN": TOKEN,
        }
        self._log = (home / "server.log").open("ab")
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, and wait until its connector works."""
        before = self._telegram.calls.count("getMe")
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "holdfast", "serve"),
            env=self._environment,
            stdout=self._log,
            stderr=self._log,
        )
        process = self._process
        await until(lambda: process.returncode or self._telegram.calls.count("getMe") > before, 120)
        assert process.returncode is None, "the server did not start: see server.log"

    async def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.timeout(1800)
@short_and_soak(Size("short", 5), Size("soak", 20))
async def test_every_message_is_answered_in_order_whenever_the_server_is_killed(
    size: Size, seed: int, tmp_path: Path, figures: Tell
) -> None:
    chance = random.Random(seed)
    written: dict[int, list[str]] = {person: [] for person in PEOPLE}
    kills = 0
    async with telegram_stand_in() as telegram:

        def write() -> None:
            person = chance.choice(PEOPLE)
            text = f"{person}.{len(written[person])}"
            written[person].append(text)
            update = telegram.write(text, person)
            if chance.random() < 0.1:
                telegram.push({"message": update["message"]})  # the platform repeats itself

        server = Server(tmp_path, telegram)
        try:
            for _ in size.rounds():
                await server.start()
                for _ in range(20):
                    write()
                    await asyncio.sleep(chance.uniform(0, 0.05))
                await asyncio.sleep(chance.uniform(0, 0.5))
                await server.kill()
                kills += 1
            await server.start()
            total = sum(map(len, written.values()))
            await until(lambda: len({fields["text"] for fields in telegram.sent}) >= total, 240)
            await until(lambda: nothing_left(tmp_path), 120)
        finally:
            await server.kill()
    sent = Counter((fields["chat_id"], fields["text"]) for fields in telegram.sent)
    lost = [
        text for person, texts in written.items() for text in texts if not sent[person, f"You said: {text}"]
    ]
    doubled = sum(count - 1 for count in sent.values())
    assert lost == []
    assert doubled <= kills
    for person, texts in written.items():
        firsts = list(dict.fromkeys(f["text"] for f in telegram.sent if f["chat_id"] == person))
        assert firsts == [f"You said: {text}" for text in texts]
    figures(f"crash, connector: {kills} kills, {total} messages, {len(lost)} lost, {doubled} doubled")


async def nothing_left(home: Path) -> bool:
    store = await open_store(home / "holdfast.db")
    try:
        pending = (await store.deliveries(None, state="pending")).items
        return not pending and not await store.waiting_places("phone") and await store.check() == []
    finally:
        await store.close()
