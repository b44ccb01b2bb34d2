"""Faults of a platform: stand-ins repeat and shuffle updates, refuse, fail and go silent.

Every message must be answered; of Telegram, which gives many updates at once, in order in each chat. Neither
Telegram nor Slack deduplicates what a bot sends, so each answer that is lost after the platform accepted the
message may repeat that one message, and nothing else may.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from holdfast.connectors.telegram import TelegramConnector
from tests.integration.connectors.platform import until
from tests.integration.connectors.slack_api import slack_stand_in
from tests.integration.connectors.slack_api import too_many as slack_has_too_many
from tests.integration.connectors.telegram_api import telegram_stand_in, too_many
from tests.integration.connectors.test_slack import serving as serving_slack
from tests.integration.connectors.test_slack import settled as slack_settled
from tests.integration.connectors.test_telegram import serving, settled

from .conftest import Tell
from .sizes import Size, short_and_soak

PEOPLE = 50
PAGE = 100
"""Updates that Telegram returns at once: these are shuffled among each other."""
REPEATED = 10
"""How many of them are repetitions."""
PATIENCE = 5.0
"""Seconds until an answer counts as lost, instead of 30."""


@pytest.mark.timeout(900)
@short_and_soak(Size("short", 100), Size("soak", 1000))
async def test_nothing_is_lost_whatever_the_platform_answers(
    size: Size, seed: int, tmp_path: Path, figures: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = TelegramConnector._call.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "seconds", PATIENCE)
    chance = random.Random(seed)
    written: dict[int, list[str]] = {person: [] for person in range(1, PEOPLE + 1)}
    async with telegram_stand_in() as telegram:
        updates = []
        for _ in range(size.least):
            person = chance.randrange(1, PEOPLE + 1)
            written[person].append(f"{person}.{len(written[person])}")
            updates.append(telegram.write(written[person][-1], person)["message"])
        telegram.updates.clear()
        repeated = 0
        for first in range(0, len(updates), PAGE - REPEATED):
            page = updates[first : first + PAGE - REPEATED]
            again = chance.sample(page, min(REPEATED, len(page)))
            repeated += len(again)
            for message in chance.sample([*page, *again], len(page) + len(again)):
                telegram.push({"message": message})
            while len(telegram.updates) % PAGE:  # the next page begins with a poll of its own
                telegram.push({"poll": {}})
        faults: list[dict[str, Any] | str] = [too_many(1), "5xx", "hang"]
        plan = [*faults, *chance.choices(faults, [0.6, 0.3, 0.1], k=size.least // 50)]
        for fault in plan:
            telegram.faults["sendMessage"] += [*["none"] * chance.randrange(size.least // len(plan)), fault]
        telegram.faults["getUpdates"] = ["5xx", too_many(1)]
        began = time.monotonic()
        async with serving(tmp_path, telegram, allow=("*",)) as worker:
            await until(lambda: len({each["text"] for each in telegram.sent}) >= size.least, 600)
            await until(lambda: settled(worker), 120)
            dead = (await worker._hf.deliveries(None, state="dead")).items
        took = time.monotonic() - began
    sent = Counter((fields["chat_id"], fields["text"]) for fields in telegram.sent)
    wanted = [(person, f"You said: {text}") for person, texts in written.items() for text in texts]
    lost = [each for each in wanted if not sent[each]]
    doubled = sum(count - 1 for count in sent.values())
    silent = plan.count("hang")
    figures(
        f"faults, connector: {size.least} messages at once, {repeated} repeated and all shuffled, "
        f"{len(plan)} refused, failed or silent ({silent} silent after accepting): {len(lost)} lost, "
        f"{doubled} doubled, {took:.0f} s"
    )
    assert (lost, dead) == ([], [])
    assert doubled <= silent
    assert set(sent) == set(wanted)
    for person, texts in written.items():
        firsts = list(dict.fromkeys(each["text"] for each in telegram.sent if each["chat_id"] == person))
        assert firsts == [f"You said: {text}" for text in texts]


@pytest.mark.timeout(900)
@short_and_soak(Size("short", 100), Size("soak", 1000))
async def test_nothing_is_lost_whatever_slack_answers(
    size: Size, seed: int, tmp_path: Path, figures: Tell
) -> None:
    chance = random.Random(seed)
    people = [chance.randrange(1, PEOPLE + 1) for _ in range(size.least)]
    events = [
        {
            "type": "message",
            "user": f"U{person}",
            "channel": f"D{person}",
            "text": f"{person}.{at}",
            "ts": f"1700000000.{at + 1:06}",
        }
        for at, person in enumerate(people)
    ]
    again = chance.sample(events, size.least // 10)
    kinds = ["429", "5xx", "lost"]
    plan = [*kinds, *chance.choices(kinds, [0.6, 0.3, 0.1], k=size.least // 50)]
    async with slack_stand_in() as slack:
        for kind in plan:
            fault = {"429": slack_has_too_many(1), "5xx": web.Response(status=502)}.get(kind, "lost")
            pause = chance.randrange(size.least // len(plan))
            slack.faults["chat.postMessage"] += [*["none"] * pause, fault]
        for event in chance.sample([*events, *again], len(events) + len(again)):
            await slack.push(event)
        began = time.monotonic()
        async with serving_slack(tmp_path, slack, allow=("*",)) as worker:
            await until(lambda: len({each["text"] for each in slack.sent}) >= size.least, 600)
            await until(lambda: slack_settled(worker), 120)
            dead = (await worker._hf.deliveries(None, state="dead")).items
            assert not slack.unacknowledged
        took = time.monotonic() - began
    sent = Counter((fields["channel"], fields["text"]) for fields in slack.sent)
    wanted = {(str(event["channel"]), f"You said: {event['text']}") for event in events}
    lost = [each for each in wanted if not sent[each]]
    doubled, silent = sum(count - 1 for count in sent.values()), plan.count("lost")
    figures(
        f"faults, slack: {size.least} messages at once, {len(again)} repeated and all shuffled, {len(plan)} "
        f"refused, failed or silent ({silent} silent after accepting): {len(lost)} lost, {doubled} doubled, "
        f"{took:.0f} s"
    )
    assert (lost, dead) == ([], [])
    assert doubled <= silent
    assert set(sent) == wanted
