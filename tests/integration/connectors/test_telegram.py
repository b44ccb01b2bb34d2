"""The Telegram connector against a stand-in that follows the Bot API's documented wire."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC
from pathlib import Path

import msgspec
import pytest

from holdfast.app import Holdfast, answer_with
from holdfast.connectors.base import SendFailed, SendRefused, WrongSignature
from holdfast.connectors.telegram import TelegramConnector, with_entities
from holdfast.connectors.worker import Connectors, ConnectorWorker
from holdfast.domain.nodes import NodeKind
from holdfast.errors import BadSetting, NotFound
from holdfast.importers.hermes.snapshot import read_home
from holdfast.models.base import Model
from holdfast.models.scripted import ScriptedModel, echo
from holdfast.settings import TelegramSettings, load
from tests.hermes.homes import KEY as HERMES_KEY
from tests.hermes.homes import VERSIONS, in_memory, write
from tests.integration.connectors.platform import until
from tests.integration.connectors.telegram_api import (
    TOKEN,
    TelegramStandIn,
    blocked,
    telegram_stand_in,
    too_many,
)

GROUP = {"id": -100123, "type": "supergroup", "title": "Tides"}


@pytest.fixture
async def telegram() -> AsyncIterator[TelegramStandIn]:
    async with telegram_stand_in() as stand_in:
        yield stand_in


@asynccontextmanager
async def serving(
    directory: Path, telegram: TelegramStandIn, model: Model | None = None, **given: object
) -> AsyncIterator[ConnectorWorker]:
    loaded = load(
        environment={"HOLDFAST_HOME": str(directory)},
        given={"store": {"url": f"sqlite:///{directory / 'store.db'}"}, "server": {"drain_seconds": 0}},
    )
    wanted = {"kind": "telegram", "allow": ("42", "43", "-100123"), "poll_seconds": 1, **given}
    settings = TelegramSettings(**{"api_url": telegram.url, **wanted})  # type: ignore[arg-type]
    node = Holdfast(replace(loaded, connectors={}), kind=NodeKind.SERVER, catch_signals=False)
    await node.start()
    try:
        answer_with(node, model or ScriptedModel())
        connector = TelegramConnector("phone", settings, TOKEN, "s3cret")
        worker = ConnectorWorker("phone", settings, connector, node)
        node.connectors = Connectors({"phone": worker})
        worker.start()
        yield worker
    finally:
        await node.stop()


async def settled(worker: ConnectorWorker) -> bool:
    store = worker._hf.store
    pending = (await store.deliveries(None, state="pending")).items
    return not pending and not await store.waiting_places("phone")


async def test_a_private_chat_is_answered_and_acknowledged_once_it_is_stored(
    tmp_path: Path, telegram: TelegramStandIn
) -> None:
    async with serving(tmp_path, telegram) as worker:
        update = telegram.write("hello")
        await until(telegram.said)
        assert telegram.said() == ["You said: hello"]
        await until(lambda: telegram.acknowledged == update["update_id"] + 1)
        found = await worker._hf.resolve_name("phone/42", "telegram:dm:42")
        assert found.tip.source == "telegram"


async def test_a_repeated_update_after_a_restart_is_answered_once(
    tmp_path: Path, telegram: TelegramStandIn
) -> None:
    for _ in range(2):
        async with serving(tmp_path, telegram) as worker:
            if not telegram.updates:
                telegram.write("hello")
            await until(telegram.said)
            telegram.push({"message": telegram.updates[0]["message"]})
            await until(lambda: telegram.acknowledged == telegram.updates[-1]["update_id"] + 1)
            await until(lambda worker=worker: settled(worker))  # type: ignore[misc]
    assert telegram.said() == ["You said: hello"]


async def test_in_a_group_the_bot_answers_only_if_it_is_meant_and_in_its_topic(
    tmp_path: Path, telegram: TelegramStandIn
) -> None:
    async with serving(tmp_path, telegram) as worker:
        telegram.write("not for you", chat=GROUP)
        mention = [{"type": "mention", "offset": 3, "length": 13}]
        telegram.write("🌊 @holdfast_bot high tide?", chat=GROUP, entities=mention)
        await until(lambda: telegram.said(-100123))
        assert telegram.said(-100123) == ["You said: 🌊 high tide?"]
        assert (
            telegram.sent[-1]["reply_parameters"]["message_id"]
            == telegram.updates[-1]["message"]["message_id"]
        )
        topic = {"message_thread_id": 7, "is_topic_message": True}
        telegram.write("and here?", chat=GROUP, reply_to_message={"from": {"id": 7}}, **topic)
        await until(lambda: telegram.said(-100123, 7))
        keys = {place.key for place in await worker._hf.places_of("phone/-100123")}
    assert keys == {"telegram:group:-100123", "telegram:group:-100123:topic:7"}


async def test_commands_of_groups_name_the_bot(tmp_path: Path, telegram: TelegramStandIn) -> None:
    async with serving(tmp_path, telegram):
        command = [{"type": "bot_command", "offset": 0, "length": 18}]
        telegram.write("/help@holdfast_bot", chat=GROUP, entities=command)
        await until(lambda: telegram.said(-100123))
    assert "/new" in telegram.said(-100123)[0]


async def test_a_reply_grows_by_edits_and_its_first_message_is_completed(
    tmp_path: Path, telegram: TelegramStandIn
) -> None:
    release = asyncio.Event()

    async def slowly() -> AsyncIterator[str]:
        yield "The tide "
        await release.wait()
        yield "is high."

    async with serving(tmp_path, telegram, ScriptedModel([slowly()])) as worker:
        telegram.write("tide?")
        await until(telegram.said)
        assert telegram.said()[0].strip() == "The tide"
        release.set()
        await until(lambda: telegram.said() == ["The tide is high."])
        await until(lambda: settled(worker))
    assert len(telegram.sent) == 1
    assert "sendChatAction" in telegram.calls


async def test_a_message_that_vanished_while_it_grew_is_sent_anew(
    tmp_path: Path, telegram: TelegramStandIn
) -> None:
    release = asyncio.Event()

    async def slowly() -> AsyncIterator[str]:
        yield "The tide "
        await release.wait()
        yield "is high."

    async with serving(tmp_path, telegram, ScriptedModel([slowly()])) as worker:
        telegram.write("tide?")
        await until(telegram.said)
        telegram.chats[42, None].clear()
        release.set()
        await until(lambda: telegram.said() == ["The tide is high."])
        await until(lambda: settled(worker))


async def test_a_waiting_message_is_answered_as_it_was_edited(
    tmp_path: Path, telegram: TelegramStandIn
) -> None:
    release = asyncio.Event()

    async def slowly() -> AsyncIterator[str]:
        await release.wait()
        yield "first"

    async with serving(tmp_path, telegram, ScriptedModel([slowly(), echo])) as worker:
        answered = telegram.write("one")
        await until(lambda: worker._turns)
        waiting = telegram.write("tow")
        for update, text in ((waiting, "two"), (answered, "too late")):
            telegram.push({"edited_message": {**update["message"], "text": text, "edit_date": 1_700_000_009}})
        await until(lambda: telegram.acknowledged == telegram.updates[-1]["update_id"] + 1)
        release.set()
        await until(lambda: len(telegram.said()) == 2)
        await until(lambda: settled(worker))
    assert telegram.said() == ["first", "You said: two"]


async def test_too_many_requests_are_retried_when_telegram_says(
    tmp_path: Path, telegram: TelegramStandIn
) -> None:
    telegram.faults["sendMessage"] = [too_many(2), "5xx"]
    async with serving(tmp_path, telegram) as worker:
        telegram.write("hello")

        async def told() -> bool:
            return any("429" in (each.error or "") for each in (await worker._hf.deliveries(None)).items)

        await until(told)
        (waiting,) = (await worker._hf.deliveries(None)).items
        assert (waiting.due_at - waiting.created_at).total_seconds() >= 2
        await until(telegram.said)
        await until(lambda: settled(worker))
    assert telegram.said() == ["You said: hello"]


async def test_a_blocked_bot_is_a_dead_letter(tmp_path: Path, telegram: TelegramStandIn) -> None:
    telegram.faults["sendMessage"] = [blocked()]
    async with serving(tmp_path, telegram) as worker:
        telegram.write("hello")

        async def dead() -> bool:
            return bool((await worker._hf.deliveries(None, state="dead")).items)

        await until(dead)
    assert telegram.said() == []


async def test_a_reply_of_20_000_characters_is_split_and_its_code_kept_whole(
    tmp_path: Path, telegram: TelegramStandIn
) -> None:
    code = "```python\n" + "\n".join(f"print({number})" for number in range(200)) + "\n```"
    text = "\n\n".join(["a sentence of the tide. " * 20] * 50 + [code, "🌊 " * 100])
    assert len(text) > 20_000
    async with serving(tmp_path, telegram, ScriptedModel([text])) as worker:
        telegram.write("everything")
        await until(telegram.said)
        await until(lambda: settled(worker))
    assert len(telegram.said()) >= 6
    blocks = [fields for fields in telegram.sent if fields.get("entities")]
    assert sum(any(each["type"] == "pre" for each in fields["entities"]) for fields in blocks) == 1
    joined = "".join(telegram.said())
    assert joined.count("a sentence of the tide.") == 1000 and joined.count("print(") == 200


async def test_an_outage_ends_by_itself(tmp_path: Path, telegram: TelegramStandIn) -> None:
    telegram.faults["getMe"] = ["5xx", {"ok": False, "error_code": 409, "description": "Conflict"}]
    async with serving(tmp_path, telegram):
        telegram.write("hello")
        await until(telegram.said)


async def test_what_came_with_a_message_is_named(tmp_path: Path, telegram: TelegramStandIn) -> None:
    async with serving(tmp_path, telegram):
        telegram.write("", voice={"duration": 12, "mime_type": "audio/ogg"}, caption="listen")
        await until(telegram.said)
    assert telegram.said() == ["You said: listen\n[voice note, audio/ogg, 12 s]"]


async def test_files_are_stored_once_as_attachments_of_their_message(
    tmp_path: Path, telegram: TelegramStandIn
) -> None:
    telegram.files = {"voice-1": b"OggS" * 500, "photo-2": b"\x89PNG" * 100, "large": b"x" * 2_000_000}
    telegram.faults["download"] = ["502"]
    voice = {"file_id": "voice-1", "duration": 12, "mime_type": "audio/ogg", "file_size": 2000}
    async with serving(tmp_path, telegram, attachment_mb=1) as worker:
        update = telegram.write("", voice=voice, caption="listen")
        telegram.push({"message": update["message"]})
        telegram.write("", photo=[{"file_id": "photo-1"}, {"file_id": "photo-2"}])
        telegram.write("", document={"file_id": "large", "file_name": "big.bin", "file_size": 2_000_000})
        telegram.write("", document={"file_id": "gone", "file_name": "../../etc/passwd"})
        await until(lambda: len(telegram.said()) == 4, 120)
        await until(lambda: settled(worker))
        hf = worker._hf
        conversation = (await hf.resolve_name("phone/42", "telegram:dm:42")).conversation
        found = (await hf.attachments("phone/42", conversation.id)).items
        kept = [(each.name, each.mime, (await hf.attachment("phone/42", each.id))[1]) for each in found]
        with pytest.raises(NotFound):
            await hf.attachment("phone/43", found[0].id)
        (held,) = {each.bytes for each in await hf.store.usage("phone/42")}
        assert held > 2000 + 400
    assert kept == [
        ("voice note", "audio/ogg", telegram.files["voice-1"]),
        ("photo", "image/jpeg", telegram.files["photo-2"]),
    ]
    assert telegram.said() == [
        "You said: listen\n[voice note, audio/ogg, 12 s]",
        "You said: [photo]",
        "You said: [document, big.bin]\n[big.bin is not stored: it is larger than 1 MB]",
        "You said: [document, ../../etc/passwd]\n[../../etc/passwd is not stored: Telegram answered 400: "
        "Bad Request: invalid file_id]",
    ]


async def test_an_image_is_given_to_a_model_that_sees(tmp_path: Path, telegram: TelegramStandIn) -> None:
    telegram.files = {"p": b"jpeg"}
    model = ScriptedModel(["a boat"])
    async with serving(tmp_path, telegram, model, images=True):
        telegram.write("", photo=[{"file_id": "p"}], caption="what is it?")
        await until(telegram.said)
    (message,) = msgspec.json.decode(model.requests[0].messages)
    text, image = message["content"]
    assert text == {"type": "text", "text": "what is it?\n[photo]"}
    assert image == {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,anBlZw=="}}


async def test_a_strangers_file_is_not_fetched(tmp_path: Path, telegram: TelegramStandIn) -> None:
    telegram.files = {"v": b"OggS"}
    async with serving(tmp_path, telegram, allow=()) as worker:
        telegram.write("", voice={"file_id": "v"})
        await until(telegram.said)
        assert "pair approve" in telegram.said()[0]
        assert await worker._hf.places_of(None) == []
    assert "getFile" not in telegram.calls


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "http://elsewhere/x", ""])
async def test_a_file_path_that_leads_elsewhere_is_not_followed(
    telegram: TelegramStandIn, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lies(fields: object) -> dict[str, str]:
        return {"file_path": path}

    monkeypatch.setattr(telegram, "do_getFile", lies)
    settings = TelegramSettings(kind="telegram", api_url=telegram.url)
    connector = TelegramConnector("phone", settings, TOKEN)
    try:
        with pytest.raises(SendRefused, match="did not say where"):
            await connector.fetch("f", 100)
    finally:
        await connector.close()


@pytest.mark.slow
async def test_the_user_of_an_imported_hermes_home_goes_on_from_the_phone(
    tmp_path: Path, telegram: TelegramStandIn
) -> None:
    model = ScriptedModel(["welcome back"])
    with in_memory() as home:
        write(VERSIONS[-1], "whole", home / "hermes")
        async with serving(tmp_path, telegram, model, allow=()) as worker:
            hf = worker._hf
            with read_home(home / "hermes", UTC) as seen:
                await hf.import_hermes("default", seen, lambda *_: None)
            before = await hf.resolve_name("default", HERMES_KEY)
            telegram.write("still there?")
            await until(telegram.said)
            (asked,) = await hf.pairings()
            code = re.findall(r"[A-Z0-9]{4}-[A-Z0-9]{4}", telegram.said()[0])[0]
            assert asked.key == "telegram:dm:42"
            await hf.approve_pairing(code, "default", HERMES_KEY)
            telegram.write("where were we?")
            await until(lambda: "welcome back" in telegram.said())
            after = await hf.resolve_name("default", HERMES_KEY)
            assert after.conversation.id == before.conversation.id
            assert after.tip.owner == "default"
            assert [each.owner for each in await hf.places_of(None)] == ["default"]
    asked_model = [each["content"] for each in msgspec.json.decode(model.requests[-1].messages)]
    assert asked_model[-1] == "where were we?"
    assert "where?" in asked_model, "the model has what was said to Hermes"
    assert "still there?" not in asked_model, "what was written before pairing is not kept"


async def test_updates_that_cannot_be_read_block_nothing(tmp_path: Path, telegram: TelegramStandIn) -> None:
    async with serving(tmp_path, telegram):
        telegram.push({"message": {"chat": 7}})
        telegram.push(
            {"message": {"message_id": "x", "from": {"id": 42}, "chat": {"id": 42, "type": "private"}}}
        )
        telegram.push({"poll": {}})
        telegram.write("hello")
        await until(telegram.said)


async def test_the_webhook_takes_an_update_only_with_the_secret(
    tmp_path: Path, telegram: TelegramStandIn
) -> None:
    async with serving(tmp_path, telegram, mode="webhook", secret_env="X") as worker:
        body = msgspec.json.encode(telegram.write("hello"))
        telegram.updates.clear()
        for headers in ({}, {"x-telegram-bot-api-secret-token": "wrong"}):
            with pytest.raises(WrongSignature):
                await worker._hf.connectors.pushed("telegram", "phone", headers, body)  # type: ignore[attr-defined]
        good = {"x-telegram-bot-api-secret-token": "s3cret"}
        connectors = worker._hf.connectors  # type: ignore[attr-defined]
        assert [await connectors.pushed("telegram", "phone", good, body) for _ in range(2)] == [1, 0]
        await until(telegram.said)
    assert telegram.said() == ["You said: hello"]


async def test_no_error_names_the_token(telegram: TelegramStandIn) -> None:
    settings = TelegramSettings(kind="telegram", api_url="http://127.0.0.1:1")
    connector = TelegramConnector("phone", settings, TOKEN)
    with pytest.raises(SendFailed) as caught:
        await connector.send("dm:42", "x", key="k")
    assert TOKEN not in str(caught.value)
    await connector.close()


def test_a_missing_token_is_an_error_that_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    with pytest.raises(BadSetting, match=r"connectors.phone.token_env names NO_SUCH_TOKEN"):
        TelegramConnector("phone", TelegramSettings(kind="telegram", token_env="NO_SUCH_TOKEN"))


def test_code_and_bold_become_entities_in_utf16_units() -> None:
    plain, entities = with_entities("🌊 **high** `x`\n```py\nprint()\n```\nend")
    assert plain == "🌊 high x\nprint()\nend"
    assert entities == [
        {"type": "bold", "offset": 3, "length": 4},
        {"type": "code", "offset": 8, "length": 1},
        {"type": "pre", "offset": 10, "length": 7, "language": "py"},
    ]
