"""The worker of a connector: messages once in, replies in order out, through the faults that platforms
have."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.connectors.base import SendFailed, SendRefused
from holdfast.connectors.commands import PlaceCommands
from holdfast.connectors.worker import UNEXPECTED, ConnectorWorker
from holdfast.domain.attachments import FileRef
from holdfast.domain.connectors import ConnectorHealth, PlatformLimits
from holdfast.domain.conversations import Address
from holdfast.domain.turns import TurnStatus
from holdfast.errors import ModelError, StoreBusy
from holdfast.models.scripted import ScriptedModel
from holdfast.settings import TelegramSettings
from tests.integration.connectors.platform import (
    NAME,
    IncomingKind,
    Platform,
    PlatformConnector,
    serving,
    until,
)

EDITS = PlatformLimits(4096, can_edit=True, edit_seconds=0.02, can_type=True)
ADA = "phone/42"


def settings(**given: object) -> TelegramSettings:
    return TelegramSettings(kind="telegram", allow=("42", "43"), **given)  # type: ignore[arg-type]


async def nothing_left(worker: ConnectorWorker) -> bool:
    """True: every message is settled and every delivery sent."""
    store = worker._hf.store
    pending = (await store.deliveries(None, state="pending")).items
    return not pending and not await store.waiting_places(NAME)


async def test_a_message_is_answered_where_it_was_written(tmp_path: Path) -> None:
    platform = Platform()
    async with serving(tmp_path, platform) as worker:
        platform.write("hello")
        platform.write("hello too", "43")
        await until(lambda: platform.said("dm:42") and platform.said("dm:43"))
        assert platform.said("dm:42") == ["You said: hello"]
        assert platform.said("dm:43") == ["You said: hello too"]
        found = await worker._hf.resolve_name(ADA, "telegram:dm:42")
        assert (found.tip.source, found.tip.owner) == ("telegram", ADA)


async def test_the_same_update_again_is_answered_once(tmp_path: Path) -> None:
    platform = Platform()
    async with serving(tmp_path, platform):
        event = platform.write("hello")
        platform.repeat(event, event)
        await until(platform.said)
        platform.repeat(event)
        platform.write("and now?")
        await until(lambda: len(platform.said()) == 2)
    assert [text for _, text in platform.sent] == ["You said: hello", "You said: and now?"]


async def test_a_server_that_died_between_any_two_steps_answers_once(tmp_path: Path) -> None:
    """The next server finds rows in every state that a crash can leave."""
    platform = Platform()
    async with serving(tmp_path, platform, start=False) as worker:
        await worker.claim_once()
        for text in ("received", "taken", "begun"):
            platform.write(text, "42" if text == "received" else "43")
        await until(platform.updates.empty)
        store = worker._hf.store
        await until(lambda: store.waiting_places(NAME))
        claim = worker.claim
        assert claim is not None
        places = {place.address: place for place in await store.places_of(None)}
        await store.take_messages(claim, places["dm:43"].id, "turn_taken", "telegram", timedelta(0))
    async with serving(tmp_path, platform) as worker:
        await until(lambda: nothing_left(worker))
    assert sorted(platform.sent) == [
        ("dm:42", "You said: received"),
        ("dm:43", "You said: begun"),
        ("dm:43", "You said: taken"),
    ]


async def test_a_reply_is_completed_in_the_message_that_the_dead_server_had_begun(tmp_path: Path) -> None:
    platform = Platform(EDITS)
    release = asyncio.Event()

    async def slowly() -> AsyncIterator[str]:
        yield "The tide "
        await release.wait()
        yield "is high."

    async with serving(tmp_path, platform, ScriptedModel([slowly()]), server={"drain_seconds": 0}):
        platform.write("tide?")
        await until(platform.said)
        assert platform.said()[0].startswith("The")
    async with serving(tmp_path, platform, ScriptedModel(["The tide is high."])) as worker:
        await until(lambda: platform.said() == ["The tide is high."])
        await until(lambda: nothing_left(worker))
    assert platform.said() == ["The tide is high."]
    assert len(platform.sent) == 1
    assert platform.typed


async def test_a_message_whose_answer_stops_every_server_is_given_up(tmp_path: Path) -> None:
    platform, never = Platform(), asyncio.Event()

    async def hangs() -> AsyncIterator[str]:
        yield "The "
        await never.wait()

    brief: dict[str, Any] = {"server": {"drain_seconds": 0}, "turns": {"max_deaths": 2}}
    platform.write("poison")
    for _ in range(3):
        async with serving(tmp_path, platform, ScriptedModel([hangs()]), **brief) as worker:
            await until(lambda worker=worker: worker._turns)  # type: ignore[misc]
    async with serving(tmp_path, platform, ScriptedModel(["fine"]), **brief) as worker:
        platform.write("and this?")
        await until(lambda: nothing_left(worker))
        await until(lambda: len(platform.said()) == 2)
    assert platform.said()[0].startswith("I could not answer this: the server was stopped 3 times")
    assert platform.said()[1] == "fine"


async def test_messages_that_arrive_while_a_reply_is_written_are_answered_in_order(tmp_path: Path) -> None:
    platform = Platform()
    async with serving(tmp_path, platform, ScriptedModel(delay=0.01)):
        for number in range(5):
            platform.write(str(number))
        await until(lambda: len(platform.said()) == 5)
    assert platform.said() == [f"You said: {number}" for number in range(5)]


async def test_a_burst_is_one_turn(tmp_path: Path) -> None:
    platform = Platform()
    async with serving(tmp_path, platform, settings=settings(gather_seconds=0.5)) as worker:
        for text in ("one", "two", "three"):
            platform.write(text)
        await until(platform.said)
        (turn,) = await worker._hf.turns(
            ADA, (await worker._hf.resolve_name(ADA, "telegram:dm:42")).conversation.id
        )
        said = [message.shown()["content"] for message in await worker._hf.turn_messages(turn.id)]
    assert said == ["one", "two", "three", "You said: three"]


async def test_the_newest_message_interrupts_if_the_settings_say_so(tmp_path: Path) -> None:
    platform = Platform()
    never = asyncio.Event()

    async def endless() -> AsyncIterator[str]:
        yield "Well, "
        await never.wait()

    model = ScriptedModel([endless(), "quick"])
    async with serving(tmp_path, platform, model, settings(when_busy="interrupt")) as worker:
        platform.write("tell me everything")
        await until(lambda: worker._hf.runner.running)
        platform.write("no, stop")
        await until(platform.said)
        assert platform.said() == ["quick"]
        await until(lambda: nothing_left(worker))


async def test_a_message_joins_the_running_turn_at_its_next_step_if_the_settings_say_so(
    tmp_path: Path,
) -> None:
    platform, release = Platform(), asyncio.Event()

    async def call(messages: list[dict[str, object]], purpose: object) -> dict[str, object]:
        await release.wait()
        function = {"name": "search", "arguments": '{"query": "tide"}'}
        return {"tool_calls": [{"id": "call_1", "type": "function", "function": function}]}

    def said(messages: list[dict[str, object]], purpose: object) -> str:
        return " / ".join(str(each["content"]) for each in messages if each["role"] == "user")

    chosen = settings(when_busy="steer", tools=("search",))
    model = ScriptedModel([call, said, "and this after it"])
    async with serving(tmp_path, platform, model, chosen, agent={"tools": ["search"]}) as worker:
        platform.write("high tide?")
        await until(lambda: worker._turns)
        platform.write("tomorrow, I mean")

        async def is_queued() -> bool:
            return await worker._hf.store.count_queued() == 1

        await until(is_queued)
        platform.write("/title Tides")
        platform.write("and later?")
        release.set()
        await until(lambda: len(platform.said()) == 3)
        await until(lambda: nothing_left(worker))
        found = await worker._hf.resolve_name(ADA, "telegram:dm:42")
        turns = await worker._hf.turns(ADA, found.conversation.id)
        assert [turn.status for turn in turns] == [TurnStatus.COMPLETED] * 3
    assert platform.said() == [
        "high tide? / tomorrow, I mean",
        "This conversation is now called 'Tides'.",
        "and this after it",
    ]


async def test_a_message_that_could_not_join_the_turn_is_answered_after_it(tmp_path: Path) -> None:
    platform, release = Platform(), asyncio.Event()

    async def slowly() -> AsyncIterator[str]:
        yield "first"
        await release.wait()

    chosen = settings(when_busy="steer")
    async with serving(tmp_path, platform, ScriptedModel([slowly(), "second"]), chosen) as worker:
        platform.write("one")
        await until(lambda: worker._turns)
        platform.write("two")

        async def is_queued() -> bool:
            return await worker._hf.store.count_queued() == 1

        await until(is_queued)
        release.set()
        await until(lambda: len(platform.said()) == 2)
        await until(lambda: nothing_left(worker))
    assert platform.said() == ["first", "second"]


async def test_a_message_is_refused_while_a_reply_is_written_if_the_settings_say_so(tmp_path: Path) -> None:
    platform = Platform()
    release = asyncio.Event()

    async def slowly() -> AsyncIterator[str]:
        await release.wait()
        yield "done"

    async with serving(tmp_path, platform, ScriptedModel([slowly()]), settings(when_busy="reject")) as worker:
        platform.write("first")
        await until(lambda: worker._turns)
        platform.write("second")
        await until(platform.said)
        assert platform.said()[0].startswith("I am still answering")
        release.set()
        await until(lambda: "done" in platform.said())


async def test_a_model_that_fails_is_asked_again_and_then_the_person_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.connectors.worker.pause_after", lambda attempts: timedelta(milliseconds=10))
    platform = Platform()
    model = ScriptedModel([ModelError("down"), "up again", *(ModelError("down") for _ in range(6))])
    async with serving(tmp_path, platform, model) as worker:
        platform.write("first")
        await until(lambda: platform.said() == ["up again"])
        platform.write("second")
        await until(lambda: len(platform.said()) == 2)
        assert platform.said()[1].startswith("I could not answer this: down")
        await until(lambda: nothing_left(worker))
        model._script = ["at last"] * 10
        platform.write("/retry")
        await until(lambda: platform.said()[2:] == ["at last"])
        await until(lambda: nothing_left(worker))


# --- the platform's faults ---------------------------------------------------------------------------------


async def test_a_refused_send_is_tried_again_not_before_the_platform_says(tmp_path: Path) -> None:
    platform = Platform(faults=iter([SendFailed("429", timedelta(seconds=1)), SendFailed("502"), None]))
    async with serving(tmp_path, platform) as worker:
        platform.write("hello")
        began = asyncio.get_running_loop().time()
        await until(platform.said)
        assert asyncio.get_running_loop().time() - began >= 1
        await until(lambda: nothing_left(worker))
    assert platform.said() == ["You said: hello"]


async def test_an_answer_lost_after_the_platform_accepted_is_one_duplicate_at_most(tmp_path: Path) -> None:
    platform = Platform(faults=iter(["lost", None]))
    async with serving(tmp_path, platform) as worker:
        platform.write("hello")
        await until(lambda: len(platform.said()) == 2)
        await until(lambda: nothing_left(worker))
    assert platform.said() == ["You said: hello"] * 2


async def test_a_reply_that_could_not_be_recorded_as_sent_does_not_block_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is unavailable for a moment after the platform has accepted a message."""
    platform = Platform(PlatformLimits(4096, deduplicates=True))
    async with serving(tmp_path, platform) as worker:
        store, outages = worker._hf.store, iter([StoreBusy("it is busy")])
        sent = store.delivery_sent

        async def unavailable_once(*given: Any) -> None:
            for outage in outages:
                raise outage
            await sent(*given)

        monkeypatch.setattr(store, "delivery_sent", unavailable_once)
        platform.write("hello")
        platform.write("and hello from another place", "43")
        await until(platform.said)
        platform.write("still there?")
        await until(lambda: len(platform.said()) == 2)
        await until(lambda: nothing_left(worker))
    assert platform.said() == ["You said: hello", "You said: still there?"]
    assert platform.said("dm:43") == ["You said: and hello from another place"]


async def test_and_none_where_the_platform_deduplicates(tmp_path: Path) -> None:
    platform = Platform(PlatformLimits(4096, deduplicates=True), faults=iter(["lost", None]))
    async with serving(tmp_path, platform) as worker:
        platform.write("hello")
        await until(platform.said)
        await until(lambda: nothing_left(worker))
    assert platform.said() == ["You said: hello"]


@pytest.mark.parametrize("grows_on", [False, True])
async def test_a_first_part_whose_answer_was_lost_is_completed_where_the_platform_deduplicates(
    tmp_path: Path, grows_on: bool
) -> None:
    """It keeps the first text that it got under a key: the whole one would be taken for a repetition."""
    limits = PlatformLimits(4096, can_edit=True, edit_seconds=0.05, deduplicates=True)
    pause = timedelta(milliseconds=1) if grows_on else timedelta(hours=1)
    platform = Platform(limits, faults=iter([pause, None]))
    release = asyncio.Event()

    async def slowly() -> AsyncIterator[str]:
        yield "The tide "
        await release.wait()
        yield "is high."

    async with serving(tmp_path, platform, ScriptedModel([slowly()])) as worker:
        platform.write("tide?")
        await until(platform.said)
        assert platform.said()[0].startswith("The")
        release.set()
        await until(lambda: nothing_left(worker))
        await until(lambda: platform.said() == ["The tide is high."], 10)
    assert len(platform.sent) == 1


async def test_a_server_killed_before_it_noted_the_first_part_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = Platform(PlatformLimits(4096, can_edit=True, edit_seconds=0.05, deduplicates=True))
    forever = asyncio.Event()

    async def slowly() -> AsyncIterator[str]:
        yield "The tide "
        await forever.wait()

    async with serving(tmp_path, platform, ScriptedModel([slowly()]), server={"drain_seconds": 0}) as worker:
        noted: Any = worker._store.note_parts

        async def killed_behind_it(claim: Any, delivery_id: str, parts: Any) -> bool:
            if parts[0].platform_id:
                await forever.wait()
            return bool(await noted(claim, delivery_id, parts))

        monkeypatch.setattr(worker._outbox, "_store", SimpleNamespace(note_parts=killed_behind_it))
        platform.write("tide?")
        await until(platform.said)
        assert platform.said()[0].startswith("The")
    async with serving(tmp_path, platform, ScriptedModel(["The tide is high."])) as worker:
        await until(lambda: nothing_left(worker))
        await until(lambda: platform.said() == ["The tide is high."], 10)
    assert len(platform.sent) == 1


async def test_a_blocked_bot_leaves_a_dead_letter_and_other_places_go_on(tmp_path: Path) -> None:
    platform = Platform(faults=iter([SendRefused("the bot was blocked")]))
    async with serving(tmp_path, platform) as worker:
        platform.write("hello")
        store = worker._hf.store

        async def is_dead() -> bool:
            return bool((await store.deliveries(None, state="dead")).items)

        await until(is_dead)
        platform.write("hello", "43")
        await until(lambda: platform.said("dm:43"))
        (dead,) = (await store.deliveries(ADA, state="dead")).items
        await store.retry_delivery(ADA, dead.id)
        await until(platform.said)
    assert platform.said() == ["You said: hello"]


async def test_notices_and_dead_letters_go_where_the_person_is_or_home(tmp_path: Path) -> None:
    platform = Platform()
    home = {"home": "telegram:dm:43"}
    async with serving(tmp_path, platform, notify=home) as worker:
        hf = worker._hf
        for person in ("42", "43"):
            platform.write("hello", person)
            await until(lambda person=person: platform.said(f"dm:{person}"))  # type: ignore[misc]
        await until(lambda: nothing_left(worker))
        ada = await hf.resolve_name(ADA, "telegram:dm:42")
        await hf.store.add_notice(ADA, ada.conversation.id, "reset", "It was reset.")
        await until(lambda: "It was reset." in platform.said("dm:42"))
        elsewhere = await hf.store.open_session("api", Address(key="k"), hf.node_id)
        await hf.store.add_notice("api", elsewhere.conversation_id, "process", "A process was stopped.")
        await until(lambda: "A process was stopped." in platform.said("dm:43"))
        platform.faults = iter([SendRefused("the bot was blocked")])
        platform.write("lost")
        await until(lambda: any("given up" in each for each in platform.said("dm:43")))
        await until(lambda: nothing_left(worker))
    assert platform.said("dm:42") == ["You said: hello", "It was reset."]


async def test_a_vanished_message_is_sent_anew(tmp_path: Path) -> None:
    platform = Platform(EDITS)
    release = asyncio.Event()

    async def slowly() -> AsyncIterator[str]:
        yield "The tide "
        await release.wait()
        yield "is high."

    async with serving(tmp_path, platform, ScriptedModel([slowly()])) as worker:
        platform.write("tide?")
        await until(platform.said)
        platform.chats["dm:42"].clear()
        release.set()
        await until(lambda: nothing_left(worker))
    assert platform.said() == ["The tide is high."]


async def test_a_long_reply_arrives_whole_in_parts(tmp_path: Path) -> None:
    words = " ".join(f"word{number}" for number in range(2500))
    text = f"{words}\n\n```python\n" + "print('x')\n" * 100 + "```\n\nend"
    assert len(text) > 20_000
    platform = Platform(faults=iter([None, None, SendFailed("502"), None]))
    async with serving(tmp_path, platform, ScriptedModel([text])) as worker:
        platform.write("all of it")
        await until(platform.said)
        await until(lambda: nothing_left(worker))
    said = platform.said()
    assert len(said) >= 6
    assert "".join(said).replace(" ", "").replace("\n", "") == text.replace(" ", "").replace("\n", "")
    assert sum("```" in part for part in said) == 1


async def test_an_outage_is_logged_once_shown_and_over_by_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    platform = Platform(down="refused")
    with caplog.at_level(logging.INFO):
        async with serving(tmp_path, platform) as worker:
            store = worker._hf.store

            async def health() -> ConnectorHealth | None:
                states = await store.connector_states()
                return states[0].health if states else None

            async def is_down() -> bool:
                return await health() is ConnectorHealth.DOWN

            async def is_up() -> bool:
                return await health() is ConnectorHealth.UP

            await until(is_down)
            (state,) = await store.connector_states()
            assert state.problem == "refused"
            platform.down = ""
            await until(is_up)
            platform.write("hello")
            await until(platform.said)
    lines = [record.getMessage() for record in caplog.records if "connector phone" in record.getMessage()]
    assert sum("refused" in line for line in lines) == 1
    assert sum("works again" in line for line in lines) == 1


async def test_two_hundred_messages_at_once_are_answered_once_each(tmp_path: Path) -> None:
    platform = Platform()
    people = [str(number) for number in range(50)]
    everyone = TelegramSettings(kind="telegram", allow=("*",))
    async with serving(tmp_path, platform, settings=everyone) as worker:
        events = [platform.write(f"{person}.{at}", person) for at in range(4) for person in people]
        while not platform.updates.empty():
            platform.updates.get_nowait()
        platform.repeat(*events, *events[:50])
        await until(lambda: len(platform.sent) >= len(events), 240)
        await until(lambda: nothing_left(worker))
    assert len(platform.sent) == len(events)
    for person in people:
        assert platform.said(f"dm:{person}") == [f"You said: {person}.{at}" for at in range(4)]


# --- who may write -----------------------------------------------------------------------------------------


async def test_a_stranger_gets_one_code_and_is_answered_once_it_is_approved(tmp_path: Path) -> None:
    platform = Platform()
    async with serving(tmp_path, platform, settings=TelegramSettings(kind="telegram")) as worker:
        platform.write("secret plans")
        platform.write("are you there?")
        await until(platform.said)
        (told,) = platform.said()
        code = told.split(": ")[1].split()[0]
        store = worker._hf.store
        assert await store.waiting_places(NAME) == [] and await store.places_of(None) == []
        await worker._hf.approve_pairing(code, "ada", "agent:main:telegram:dm:42")
        await until(lambda: len(platform.said()) == 2)
        assert platform.said()[1].startswith("You are paired")
        platform.write("now?")
        await until(lambda: len(platform.said()) == 3)
        found = await worker._hf.resolve_name("ada", "agent:main:telegram:dm:42")
        assert found.tip.source == "telegram"
    assert b"secret plans" not in (tmp_path / "store.db").read_bytes()


# --- commands ----------------------------------------------------------------------------------------------


async def test_a_code_that_the_platform_did_not_accept_is_sent_when_the_stranger_writes_again(
    tmp_path: Path,
) -> None:
    platform = Platform(faults=iter([SendFailed("429"), SendFailed("502"), None]))
    async with serving(tmp_path, platform) as worker:
        for text in ("hello?", "hello??", "hello???", "anyone?"):
            platform.write(text, "99")
        await until(platform.updates.empty)
        await until(lambda: platform.said("dm:99"))
        code = platform.said("dm:99")[0].partition("bot: ")[2].partition("\n")[0]
        pairing = await worker._hf.approve_pairing(code)
        assert pairing.person == "99"
        await until(lambda: len(platform.said("dm:99")) == 2)
    assert platform.said("dm:99")[1].startswith("You are paired.")


async def test_commands_are_answered_in_their_place(tmp_path: Path) -> None:
    platform = Platform()
    async with serving(tmp_path, platform) as worker:
        for text, expected in (
            ("/why", "There are no messages here yet."),
            ("hello", "You said: hello"),
            ("/title Tides", "This conversation is now called 'Tides'."),
            ("/why", "never"),
            ("/ps", "No background process is running."),
            ("/stop", "No reply is being written."),
            ("/retry", "You said: hello"),
            ("/retry", "You said: hello"),
            ("/compact", "was not compacted: what must stay leaves too little to summarise"),
            ("/new", "Your next message starts a new session. Earlier messages stay readable."),
            ("/compact", "The session has ended: your next message begins the next one."),
            ("/link", "Write this in another place of yours within an hour: /link "),
            ("/link AAAA-BBBB", "This code is not valid here"),
            ("/help", "/new"),
            ("/unlink", "This place is not linked."),
            ("/unknown word", "You said: /unknown word"),
        ):
            before = len(platform.said())
            platform.write(text)
            await until(lambda before=before: len(platform.said()) > before)  # type: ignore[misc]
            assert expected in platform.said()[-1], text
        line = await worker._hf.line(
            ADA, (await worker._hf.resolve_name(ADA, "telegram:dm:42")).conversation.id
        )
        assert [session.end_reason for session in line] == ["new", None]


async def test_compact_replaces_older_messages_by_a_summary(tmp_path: Path) -> None:
    platform = Platform()
    model = ScriptedModel(["wave " * 200, "tide " * 200, "Yes.", "A summary.", "Of waves."])
    keep = {"keep_first": 0, "keep_last": 2}
    async with serving(tmp_path, platform, model, compaction=keep) as worker:
        for number, text in enumerate(("one", "two", "three", "/compact", "what was it?"), 1):
            platform.write(text)
            await until(lambda number=number: len(platform.said()) == number)  # type: ignore[misc]
        line = await worker._hf.line(
            ADA, (await worker._hf.resolve_name(ADA, "telegram:dm:42")).conversation.id
        )
    assert platform.said()[3:] == [
        "Older messages were replaced by a summary; they stay readable.",
        "Of waves.",
    ]
    assert [session.end_reason for session in line] == ["compaction", None]


async def test_a_connector_has_only_the_tools_of_its_settings(tmp_path: Path) -> None:
    agent = {"tools": ["search", "memory"]}
    for directory, tools in ((tmp_path / "none", ()), (tmp_path / "one", ("search",))):
        directory.mkdir()
        platform, model = Platform(), ScriptedModel(["fine"])
        async with serving(directory, platform, model, settings(tools=tools), agent=agent):
            platform.write("hello")
            await until(platform.said)
        (request,) = model.requests
        offered = [each["function"]["name"] for each in request.options.get("tools", ())]
        assert offered == list(tools)


async def test_stop_acts_at_once_and_shows_what_was_said(tmp_path: Path) -> None:
    platform = Platform(EDITS)
    never = asyncio.Event()

    async def endless() -> AsyncIterator[str]:
        yield "Once upon "
        await never.wait()

    async with serving(tmp_path, platform, ScriptedModel([endless()])) as worker:
        platform.write("a story")
        await until(platform.said)
        platform.write("/stop")
        await until(lambda: len(platform.said()) == 2)
        await until(lambda: nothing_left(worker))
        (turn,) = await worker._hf.turns(
            ADA, (await worker._hf.resolve_name(ADA, "telegram:dm:42")).conversation.id
        )
        assert turn.status is TurnStatus.CANCELLED
    assert any(text.startswith("Once upon") and text.endswith("[stopped]") for text in platform.said())


async def test_a_reply_that_takes_long_to_stop_delays_no_other_place(tmp_path: Path) -> None:
    platform, never, release = Platform(), asyncio.Event(), asyncio.Event()

    async def ends_slowly() -> AsyncIterator[str]:
        try:
            yield "The tide "
            await never.wait()
        finally:
            await release.wait()

    async with serving(tmp_path, platform, ScriptedModel([ends_slowly(), "hello Bob"])) as worker:
        platform.write("tide?")
        await until(lambda: worker._turns)
        platform.write("/stop")
        await until(lambda: worker._asides)
        platform.write("hello", "43")
        await until(lambda: platform.said("dm:43") == ["hello Bob"])
        release.set()
        await until(platform.said)
        await until(lambda: nothing_left(worker))
    assert platform.said() == ["Stopped; the partial reply is kept."]


@pytest.mark.parametrize("first", ["loop", "place"])
async def test_a_stop_acts_once_and_not_on_what_is_written_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """The loop and the command's place both find it; the first of them is slow."""
    platform, taken, release, ran = Platform(), asyncio.Event(), asyncio.Event(), []
    stop = PlaceCommands._stop

    async def slowly(*given: Any) -> str:
        ran.append("stop")
        await release.wait()
        return await stop(*given)

    monkeypatch.setattr(PlaceCommands, "_stop", slowly)
    async with serving(tmp_path, platform, start=False) as worker:
        await worker.claim_once()
        store = worker._hf.store
        take, urgent = store.take_messages, store.urgent_commands

        async def noted(*given: Any) -> Any:
            found = await take(*given)
            taken.set()
            return found

        async def none(*_: object) -> list[Any]:
            return []

        monkeypatch.setattr(store, "take_messages", noted)
        monkeypatch.setattr(store, "urgent_commands", none if first == "place" else urgent)
        platform.write("/stop")
        platform.write("hello")
        await until(lambda: store.waiting_places(NAME))
        await worker.answer_once()
        await taken.wait()
        monkeypatch.setattr(store, "urgent_commands", urgent)
        await worker.answer_once()
        await until(lambda: ran)
        release.set()
        worker.start()
        await until(lambda: nothing_left(worker))
    assert ran == ["stop"]
    assert platform.said() == ["There are no messages here yet.", "You said: hello"]


async def test_what_is_cancelled_before_it_began_is_not_taken_for_work_under_the_next_claim(
    tmp_path: Path,
) -> None:
    platform = Platform()
    async with serving(tmp_path, platform, start=False) as worker:
        await worker.claim_once()
        assert worker.claim is not None
        worker._places["place"] = asyncio.create_task(worker._answer(worker.claim, "place"))
        worker._asides["place"] = asyncio.create_task(worker._while_busy(worker.claim, "place"))
        worker._lost(worker.claim)
        await worker._let_go()
        assert not worker._asides and not worker._places


async def test_a_file_that_is_fetched_for_a_running_turn_delays_no_other_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform, fetching, release = Platform(), asyncio.Event(), asyncio.Event()

    async def fetch(_: object, ref: str, most: int) -> bytes:
        fetching.set()
        await release.wait()
        return b"bytes"

    async def slowly() -> AsyncIterator[str]:
        yield "first"
        await release.wait()

    monkeypatch.setattr(PlatformConnector, "fetch", fetch, raising=False)
    chosen, model = settings(when_busy="steer"), ScriptedModel([slowly(), "hello Bob", "second"])
    async with serving(tmp_path, platform, model, chosen) as worker:
        platform.write("one")
        await until(lambda: worker._turns)
        platform.write("look", files=(FileRef("ref", "tide.txt", "text/plain"),))
        await fetching.wait()
        platform.write("hello", "43")
        await until(lambda: platform.said("dm:43") == ["hello Bob"])
        release.set()
        await until(lambda: len(platform.said()) == 2)
        await until(lambda: nothing_left(worker))
    assert platform.said() == ["first", "second"]


@pytest.mark.parametrize("when_busy", ["queue", "steer"])
async def test_a_message_that_cannot_be_stored_is_given_up_and_does_not_block_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when_busy: str
) -> None:
    platform, release = Platform(), asyncio.Event()
    monkeypatch.setattr("holdfast.domain.new_messages.MAX_BODY_BYTES", 1000)

    async def slowly() -> AsyncIterator[str]:
        yield "first"
        await release.wait()

    model = ScriptedModel([slowly(), "third"])
    async with serving(tmp_path, platform, model, settings(when_busy=when_busy)) as worker:
        platform.write("one")
        await until(lambda: worker._turns)
        platform.write("x" * 2000)
        await until(platform.updates.empty)
        release.set()
        await until(lambda: len(platform.said()) == 2)
        platform.write("three")
        await until(lambda: "third" in platform.said())
        await until(lambda: nothing_left(worker))
    first, given_up, third = platform.said()
    assert (first, third) == ("first", "third")
    assert given_up.startswith("I could not answer this: the message is")
    assert "/retry" not in given_up  # it would answer "one" again


async def test_a_command_that_fails_unexpectedly_is_answered_and_blocks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = Platform()

    async def broken(*_: object) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr(PlaceCommands, "_why", broken)
    monkeypatch.setattr(PlaceCommands, "_title", broken)
    async with serving(tmp_path, platform) as worker:
        platform.write("/why")
        platform.write("/title Tides")
        platform.write("hello")
        platform.write("hello", "43")
        await until(lambda: "You said: hello" in platform.said())
        await until(lambda: nothing_left(worker))
    assert sorted(platform.said()) == [UNEXPECTED, UNEXPECTED, "You said: hello"]
    assert platform.said("dm:43") == ["You said: hello"]


async def test_two_places_of_one_owner_share_a_conversation(tmp_path: Path) -> None:
    platform = Platform()
    async with serving(tmp_path, platform) as worker:
        hf = worker._hf
        async with asyncio.timeout(60):
            for person in ("1", "2"):
                event = platform.write("let me in", person)
                platform.updates.get_nowait()
                await hf.store.ask_pairing(NAME, event, f"AAAA-000{person}")
                await hf.approve_pairing(f"AAAA-000{person}", "ada")
        platform.write("hello", "1")
        await until(lambda: len(platform.said("dm:1")) == 2)
        platform.write("/link", "1")
        await until(lambda: len(platform.said("dm:1")) == 3)
        code = platform.said("dm:1")[-1].split("/link ")[1].split()[0]
        platform.write(f"/link {code} all", "2")
        await until(lambda: len(platform.said("dm:2")) == 2)
        platform.write("from here", "1")
        await until(lambda: len(platform.said("dm:2")) == 3)
        assert platform.said("dm:2")[-1] == "> from here\n\nYou said: from here"
        platform.write("from there", "2")
        await until(lambda: len(platform.said("dm:2")) == 4)
        found = await hf.resolve_name("ada", "telegram:dm:1")
        texts = [each.shown()["content"] for each in (await hf.messages("ada", found.conversation.id)).items]
    assert texts == [
        *("hello", "You said: hello", "from here", "You said: from here"),
        *("from there", "You said: from there"),
    ]


async def test_an_edited_or_deleted_message_that_waits_is_answered_as_it_is_now(tmp_path: Path) -> None:
    platform = Platform()
    release = asyncio.Event()

    async def slowly() -> AsyncIterator[str]:
        await release.wait()
        yield "first"

    async with serving(tmp_path, platform, ScriptedModel([slowly(), "second"])) as worker:
        platform.write("one")
        await until(lambda: worker._turns)
        platform.write("tow", id="2")
        platform.write("two", id="2", kind=IncomingKind.EDIT)
        platform.write("three", id="3")
        platform.write("", id="3", kind=IncomingKind.DELETE)
        (place,) = await worker._hf.store.places_of(None)

        async def is_edited() -> bool:
            newer = await worker._hf.store.newer_messages(NAME, place.id)
            return newer is not None and [each.text for each in newer.messages] == ["two"]

        await until(lambda: platform.updates.empty() and is_edited())
        release.set()
        await until(lambda: len(platform.said()) == 2)
        await until(lambda: nothing_left(worker))
        found = await worker._hf.resolve_name(ADA, "telegram:dm:42")
        page = await worker._hf.messages(ADA, found.conversation.id)
    assert [each.shown()["content"] for each in page.items if each.role == "user"] == ["one", "two"]


async def test_two_nodes_never_run_one_connector_at_the_same_time(tmp_path: Path) -> None:
    platform = Platform()
    async with serving(tmp_path, platform) as first, serving(tmp_path, platform) as second:
        await until(lambda: first.claim or second.claim)
        holder, other = (first, second) if first.claim else (second, first)
        platform.write("hello")
        await until(platform.said)
        assert not await other.claim_once()
        await holder.stop()
        await until(lambda: other.claim)
        platform.write("and now?")
        await until(lambda: len(platform.said()) == 2)
    assert len(platform.sent) == 2


async def test_a_platform_that_never_accepts_does_not_stop_the_worker(tmp_path: Path) -> None:
    platform = Platform(faults=repeat(SendFailed("502")))
    async with serving(tmp_path, platform) as worker:
        platform.write("hello")
        store = worker._hf.store

        async def failed() -> bool:
            return any(each.error for each in (await store.deliveries(None)).items)

        await until(failed)
        (waiting,) = (await store.deliveries(None, state="pending")).items
        assert waiting.error == "502"
