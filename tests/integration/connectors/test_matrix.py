"""The Matrix connector against a real homeserver: Synapse, which `scripts/synapse` installs (`make peers`
does)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from holdfast.app import Holdfast, answer_with
from holdfast.connectors.base import SendFailed, SendRefused
from holdfast.connectors.matrix import MatrixConnector, content_of
from holdfast.connectors.worker import Connectors, ConnectorWorker
from holdfast.domain.connectors import ConnectorHealth
from holdfast.domain.nodes import NodeKind
from holdfast.domain.turns import TurnStatus
from holdfast.errors import BadSetting
from holdfast.models.base import Model
from holdfast.models.scripted import ScriptedModel
from holdfast.settings import MatrixSettings, load
from tests.integration.connectors.platform import until
from tests.integration.connectors.synapse import INSTALLED, Person, Synapse, register, synapse

real = pytest.mark.slow
"""Talks to a real Synapse, which `make test` installs (scripts/synapse)."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Synapse]:
    assert INSTALLED, "Synapse is not installed: run scripts/synapse"
    with synapse(tmp_path_factory.mktemp("synapse")) as started:
        yield started


class World:
    """The bot and two people, new for each test."""

    def __init__(self, server: Synapse, bot: Person, ada: Person, bo: Person) -> None:
        self.server, self.bot, self.ada, self.bo = server, bot, ada, bo

    async def direct(self) -> str:
        return await self.ada.create(self.bot, direct=True)

    async def group(self) -> str:
        room = await self.ada.create(self.bot, self.bo)
        await self.bo.join(room)
        return room

    async def joined(self, room: str) -> None:
        """Wait until the bot has joined."""

        async def has_joined() -> bool:
            found = await self.ada.call("GET", f"rooms/{room}/joined_members")
            return self.bot.id in found["joined"]

        await until(has_joined)

    def says(self, room: str, *texts: str) -> Callable[[], Awaitable[bool]]:
        """A condition: these are the bot's messages in the room."""

        async def has_said() -> bool:
            await asyncio.sleep(0.1)  # the homeserver has other things to do
            return [each.strip() for each in await self.ada.said(room, self.bot)] == list(texts)

        return has_said


_numbers = iter(range(1, 1000))


@pytest.fixture
async def world(server: Synapse) -> AsyncIterator[World]:
    number = next(_numbers)
    async with aiohttp.ClientSession() as session:
        yield World(
            server, *[await register(session, server, f"{name}{number}") for name in ("bot", "ada", "bo")]
        )


@asynccontextmanager
async def serving(
    directory: Path, world: World, model: Model | None = None, **given: Any
) -> AsyncIterator[ConnectorWorker]:
    loaded = load(
        environment={"HOLDFAST_HOME": str(directory)},
        given={"store": {"url": f"sqlite:///{directory / 'store.db'}"}, "server": {"drain_seconds": 0}},
    )
    wanted = {"kind": "matrix", "allow": (world.ada.id, world.bo.id), "poll_seconds": 5, **given}
    settings = MatrixSettings(homeserver=world.server.url, **wanted)
    node = Holdfast(replace(loaded, connectors={}), kind=NodeKind.SERVER, catch_signals=False)
    await node.start()
    try:
        answer_with(node, model or ScriptedModel())
        worker = ConnectorWorker("mx", settings, MatrixConnector("mx", settings, world.bot.token), node)
        node.connectors = Connectors({"mx": worker})
        worker.start()
        yield worker
    finally:
        await node.stop()


async def settled(worker: ConnectorWorker) -> bool:
    store = worker._hf.store
    pending = (await store.deliveries(None, state="pending")).items
    return not pending and not await store.waiting_places("mx")


@real
async def test_a_direct_chat_is_joined_and_answered(tmp_path: Path, world: World) -> None:
    room = await world.direct()
    await world.ada.write(room, "written before the bot joined")
    async with serving(tmp_path, world) as worker:
        await until(world.says(room, "You said: written before the bot joined"))
        found = await worker._hf.resolve_name(f"mx/{world.ada.id}", f"matrix:{room}")
        assert found.tip.source == "matrix"
        await until(lambda: settled(worker))
        await world.ada.write(room, "!title Tides")  # many clients keep the slash for themselves

        async def is_named() -> bool:
            return "Tides" in (await world.ada.said(room, world.bot))[-1]

        await until(is_named)


@real
async def test_messages_of_an_outage_are_answered_once_each_in_order(tmp_path: Path, world: World) -> None:
    room = await world.direct()
    async with serving(tmp_path, world):
        await world.joined(room)
        await world.ada.write(room, "first")
        await until(world.says(room, "You said: first"))
    texts = [f"{number}" for number in range(130)]  # more than one sync returns
    for text in texts:
        await world.ada.write(room, text)
    owner = f"mx/{world.ada.id}"
    async with serving(tmp_path, world, gather_seconds=0.5) as worker:
        conversation = (await worker._hf.resolve_name(owner, f"matrix:{room}")).conversation

        async def asked() -> list[str]:
            page = await worker._hf.messages(owner, conversation.id, limit=200)
            return [each.shown()["content"] for each in page.items if each.role == "user"]

        async def has_all() -> bool:
            return len(await asked()) > len(texts)

        await until(has_all, 120)
        await until(lambda: settled(worker))
        assert await asked() == ["first", *texts]
    answers = await world.ada.said(room, world.bot)
    assert len(answers) == len(set(answers))


@real
async def test_a_growing_reply_is_one_message_and_code_is_formatted(tmp_path: Path, world: World) -> None:
    release = asyncio.Event()

    async def slowly() -> AsyncIterator[str]:
        yield "The **tide** "
        await release.wait()
        yield "is `high`."

    room = await world.direct()
    async with serving(tmp_path, world, ScriptedModel([slowly()])) as worker:
        await world.joined(room)
        await world.ada.write(room, "tide?")
        await until(world.says(room, "The **tide**"))
        release.set()
        await until(world.says(room, "The **tide** is `high`."))
        await until(lambda: settled(worker))
    edits = [each["content"] for each in await world.ada.events(room) if "m.new_content" in each["content"]]
    assert edits[-1]["m.new_content"]["formatted_body"] == (
        "<p>The <strong>tide</strong> is <code>high</code>.</p>"
    )


@real
async def test_a_redacted_growing_reply_is_sent_anew(tmp_path: Path, world: World) -> None:
    release = asyncio.Event()

    async def slowly() -> AsyncIterator[str]:
        yield "The tide "
        await release.wait()
        yield "is high."

    room = await world.direct()
    async with serving(tmp_path, world, ScriptedModel([slowly()])) as worker:
        await world.joined(room)
        await world.ada.write(room, "tide?")
        await until(world.says(room, "The tide"))
        shown = [each for each in await world.ada.events(room) if each["sender"] == world.bot.id][-1]
        await world.ada.call("PUT", f"rooms/{room}/redact/{shown['event_id']}/r1", {})
        connector = worker.connector
        assert isinstance(connector, MatrixConnector)
        await until(lambda: shown["event_id"] in connector._gone)
        release.set()
        await until(world.says(room, "The tide is high."))


@real
async def test_in_a_room_the_bot_answers_only_if_it_is_meant(tmp_path: Path, world: World) -> None:
    room = await world.group()
    async with serving(tmp_path, world) as worker:
        await world.joined(room)
        await world.ada.write(room, "not for you")
        mention = {"m.mentions": {"user_ids": [world.bot.id]}}
        name = world.bot.id[1:].partition(":")[0]
        asked = await world.ada.write(room, f"{name}: high tide?", **mention)
        await until(world.says(room, "You said: high tide?"))
        reply = [each for each in await world.ada.events(room) if each["sender"] == world.bot.id][-1]
        assert reply["content"]["m.relates_to"] == {"m.in_reply_to": {"event_id": asked}}
        replying = {"m.relates_to": {"m.in_reply_to": {"event_id": reply["event_id"]}}}
        await world.bo.write(room, "and tomorrow?", **replying)
        await until(world.says(room, "You said: high tide?", "You said: and tomorrow?"))
        found = await worker._hf.resolve_name(f"mx/{room}", f"matrix:{room}")
        assert found.tip.owner == f"mx/{room}"


@real
async def test_a_thread_is_a_conversation_of_its_own(tmp_path: Path, world: World) -> None:
    room = await world.direct()
    async with serving(tmp_path, world) as worker:
        await world.joined(room)
        root = await world.ada.write(room, "hello")
        await until(world.says(room, "You said: hello"))
        thread = {"rel_type": "m.thread", "event_id": root, "is_falling_back": True}
        await world.ada.write(room, "aside", **{"m.relates_to": thread})
        await until(world.says(room, "You said: hello", "You said: aside"))
        reply = [each for each in await world.ada.events(room) if each["sender"] == world.bot.id][-1]
        assert reply["content"]["m.relates_to"]["event_id"] == root
        await worker._hf.resolve_name(f"mx/{world.ada.id}", f"matrix:{room}:thread:{root}")


@real
async def test_another_person_in_a_direct_chat_does_not_reach_its_conversation(
    tmp_path: Path, world: World
) -> None:
    room = await world.direct()
    async with serving(tmp_path, world) as worker:
        await world.joined(room)
        await world.ada.write(room, "my secret")
        await until(world.says(room, "You said: my secret"))
        await world.ada.call("POST", f"rooms/{room}/invite", {"user_id": world.bo.id})
        await world.bo.join(room)
        await world.bo.write(room, f"{world.bot.id} hello")
        await until(world.says(room, "You said: my secret", "You said: hello"))
        await world.ada.call("POST", f"rooms/{room}/leave")
        await world.bo.write(room, "alone with it")

        async def places() -> bool:
            return {(each.owner, each.key) for each in await worker._hf.store.places_of(None)} == {
                (owner, f"matrix:{room}")
                for owner in (f"mx/{world.ada.id}", f"mx/{room}", f"mx/{world.bo.id}")
            }

        await until(places)


@real
async def test_reactions_stop_the_reply_and_ask_for_another(tmp_path: Path, world: World) -> None:
    never = asyncio.Event()

    async def endless() -> AsyncIterator[str]:
        yield "Once upon "
        await never.wait()

    room = await world.direct()
    async with serving(tmp_path, world, ScriptedModel([endless(), "The end."])) as worker:
        await world.joined(room)
        await world.ada.write(room, "a story")
        await until(world.says(room, "Once upon"))
        shown = [each for each in await world.ada.events(room) if each["sender"] == world.bot.id][-1]
        relation = {"rel_type": "m.annotation", "event_id": shown["event_id"], "key": "🛑"}
        await world.ada.put(room, {"m.relates_to": relation}, "m.reaction")
        await until(lambda: settled(worker))
        conversation = (await worker._hf.resolve_name(f"mx/{world.ada.id}", f"matrix:{room}")).conversation
        (turn,) = await worker._hf.turns(f"mx/{world.ada.id}", conversation.id)
        assert turn.status is TurnStatus.CANCELLED
        await world.ada.put(room, {"m.relates_to": {**relation, "key": "🔁"}}, "m.reaction")

        async def is_told() -> bool:
            return (await world.ada.said(room, world.bot))[-1] == "The end."

        await until(is_told)
        found = (await world.ada.call("GET", "sync"))["rooms"]["join"][room]["ephemeral"]["events"]
        read = [each["content"] for each in found if each["type"] == "m.receipt"]
        assert any(world.bot.id in who.get("m.read", {}) for each in read for who in each.values())


@real
async def test_an_edit_of_another_persons_message_changes_nothing(tmp_path: Path, world: World) -> None:
    room = await world.group()
    release = asyncio.Event()

    async def slowly() -> AsyncIterator[str]:
        await release.wait()
        yield "first"

    async with serving(tmp_path, world, ScriptedModel([slowly(), "second"])) as worker:
        await world.joined(room)
        await world.ada.write(room, f"{world.bot.id} one")
        await until(lambda: worker._turns)
        waiting = await world.ada.write(room, f"{world.bot.id} tow")

        async def edit(by: Person, text: str) -> None:
            content = {"msgtype": "m.text", "body": f"{world.bot.id} {text}"}
            relation = {"rel_type": "m.replace", "event_id": waiting}
            await by.write(room, f"* {text}", **{"m.new_content": content, "m.relates_to": relation})

        await edit(world.ada, "two")
        await edit(world.bo, "forged")
        await world.ada.write(room, f"{world.bot.id} three")
        (place,) = await worker._hf.store.places_of(None)

        async def waits() -> list[str]:
            newer = await worker._hf.store.newer_messages("mx", place.id)
            return [each.text for each in newer.messages] if newer else []

        async def has_all() -> bool:
            return "three" in await waits()

        await until(has_all)
        assert await waits() == ["two", "three"]
        release.set()


@real
async def test_media_is_stored_as_an_attachment(tmp_path: Path, world: World) -> None:
    room = await world.direct()
    async with serving(tmp_path, world) as worker:
        await world.joined(room)
        url = await world.ada.upload(b"OggS" * 100, "audio/ogg")
        info = {"mimetype": "audio/ogg", "size": 400}
        await world.ada.put(room, {"msgtype": "m.audio", "body": "note.ogg", "url": url, "info": info})
        await until(world.says(room, "You said: [audio, note.ogg, audio/ogg]"))
        hf, owner = worker._hf, f"mx/{world.ada.id}"
        conversation = (await hf.resolve_name(owner, f"matrix:{room}")).conversation
        (found,) = (await hf.attachments(owner, conversation.id)).items
        assert (found.name, found.mime) == ("note.ogg", "audio/ogg")
        assert (await hf.attachment(owner, found.id))[1] == b"OggS" * 100


@real
async def test_a_stranger_gets_a_code_and_an_invitation_of_one_is_not_accepted(
    tmp_path: Path, world: World
) -> None:
    room, group = await world.direct(), await world.group()
    async with serving(tmp_path, world, allow=()) as worker:
        await world.joined(room)
        await world.ada.write(room, "secret plans")

        async def has_code() -> bool:
            said = await world.ada.said(room, world.bot)
            return len(said) == 1 and "holdfast pair approve" in said[0]

        await until(has_code)
        found = await world.ada.call("GET", f"rooms/{group}/joined_members")
        assert world.bot.id not in found["joined"]
        assert await worker._hf.store.places_of(None) == []


@real
async def test_a_room_that_cannot_be_joined_does_not_stop_the_others(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the homeserver of who invites is down: the bot's own answers 502, or not at all."""
    room, dead, silent = await world.direct(), await world.direct(), await world.direct()
    monkeypatch.setattr("holdfast.connectors.matrix.FIRST_JOIN_PAUSE", 0.1)
    monkeypatch.setattr("holdfast.connectors.matrix.JOIN_SECONDS", 1.0)
    faults = iter([TimeoutError(), TimeoutError()])
    async with serving(tmp_path, world) as worker:
        client = worker.connector._client  # type: ignore[attr-defined]
        join = client.join

        async def failing(asked: str) -> object:
            if asked == silent:
                await asyncio.Event().wait()
            if asked == dead:
                for fault in faults:
                    raise fault
            return await join(asked)

        monkeypatch.setattr(client, "join", failing)
        await world.joined(room)
        await world.ada.write(room, "hello")
        await until(world.says(room, "You said: hello"))
        await world.joined(dead)  # at the third attempt


async def test_a_room_is_joined_also_if_the_receiver_was_cancelled_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after the connector's claim was lost: the same connector runs again under the next one."""
    from nio import InviteMemberEvent

    connector = MatrixConnector("m", MatrixSettings(kind="matrix", homeserver="http://127.0.0.1:1"), "token")
    connector._me = "@bot:here"
    content = {"membership": "invite", "is_direct": True}
    invitation = InviteMemberEvent({}, "@ada:there", connector._me, "invite", None, content)
    invited = {"!room:there": SimpleNamespace(invite_state=[invitation])}
    found = SimpleNamespace(rooms=SimpleNamespace(invite=invited))
    asked: asyncio.Queue[str] = asyncio.Queue()

    async def join(room: str) -> object:
        await asked.put(room)
        return await asyncio.Event().wait()

    monkeypatch.setattr(connector._client, "join", join)
    poll = asyncio.create_task(connector._accept_invitations(found))
    await asked.get()
    poll.cancel()
    await asyncio.gather(poll, return_exceptions=True)
    joining = [*connector._joining.values()]
    await connector.close()
    assert not connector._joining
    assert all(task.done() for task in joining)


@real
async def test_a_room_that_a_stranger_calls_a_direct_chat_is_left_again(tmp_path: Path, world: World) -> None:
    room = await world.ada.create(world.bo, world.bot, direct=True)
    await world.bo.join(room)
    async with serving(tmp_path, world, allow=()):

        async def has_left() -> bool:
            members = [each for each in await world.ada.events(room) if each["type"] == "m.room.member"]
            own = [each["content"]["membership"] for each in members if each["state_key"] == world.bot.id]
            return own == ["invite", "join", "leave"]

        await until(has_left)


@real
async def test_the_same_key_is_one_event_and_a_room_that_is_gone_is_final(
    tmp_path: Path, world: World
) -> None:
    room = await world.direct()
    settings = MatrixSettings(kind="matrix", homeserver=world.server.url)
    async with serving(tmp_path, world):
        await world.joined(room)
    connector = MatrixConnector("mx", settings, world.bot.token)
    try:
        first = await connector.send(room, "once", key="d1-0")
        assert await connector.send(room, "once", key="d1-0") == first
        assert await world.ada.said(room, world.bot) == ["once"]
        with pytest.raises(SendRefused):
            await connector.send("!nowhere:localhost", "lost", key="d2-0")
        long = "€" * connector.limits.characters
        await connector.edit(room, await connector.send(room, long, key="d3-0"), "*🌊*" * 1750, key="d3-0-1")
        assert (await world.ada.said(room, world.bot))[-1] == "*🌊*" * 1750
    finally:
        await connector.close()


@real
async def test_a_wrong_token_is_an_outage(tmp_path: Path, world: World) -> None:
    world.bot.token = "wrong"
    async with serving(tmp_path, world) as worker:

        async def is_down() -> bool:
            return any(
                each.health is ConnectorHealth.DOWN and "M_UNKNOWN_TOKEN" in (each.problem or "")
                for each in await worker._hf.store.connector_states()
            )

        await until(is_down)


async def test_a_homeserver_that_cannot_be_reached_is_tried_again() -> None:
    settings = MatrixSettings(kind="matrix", homeserver="http://127.0.0.1:9")
    connector = MatrixConnector("mx", settings, "token")
    try:
        with pytest.raises(SendFailed, match="cannot be reached"):
            await connector.send("!room:localhost", "hello", key="d1-0")
    finally:
        await connector.close()


def test_the_homeserver_and_the_token_are_required() -> None:
    with pytest.raises(BadSetting, match="homeserver"):
        MatrixConnector("mx", MatrixSettings(kind="matrix"), "token")


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("plain\ntext", None),
        ("**bold**", "<p><strong>bold</strong></p>"),
        ("<script>`x`</script>", "<p>&lt;script&gt;<code>x</code>&lt;/script&gt;</p>"),
        ("[x](javascript:alert(1))", None),
    ],
)
def test_markdown_becomes_html_and_html_does_not(text: str, html: str | None) -> None:
    content = content_of(text)
    assert content["body"] == text
    assert content.get("formatted_body") == html
