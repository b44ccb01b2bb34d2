"""Clients of every kind at random, on one key and on none, against what must hold whatever they do.

Nothing said is lost; nobody finds a message stored twice; the model reads what the client sent, the newest
message last; a fork never changes where it came from; every id leads to the tip; the chain that the store
keeps is that of what it shows; what is kept in memory of a context is what is on disk.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st

from holdfast.domain.contexts import INTERRUPTED
from holdfast.domain.conversations import Address
from holdfast.domain.request_keys import RequestKey
from holdfast.errors import ModelError, TurnSuperseded
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.turns.live import Answered, RunningTurn, Unanswered
from holdfast.store.sqlite.engine import SQLiteStore, open_store
from holdfast.store.values import SessionFilter

from .asking import OWNER, Server, assert_history_is_right, ended, key, said_by_model, serving, stored, user

EXAMPLES = 1500 if os.environ.get("HOLDFAST_TEST_SOAK") else 30
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None

Said = dict[str, Any]


@dataclass
class Client:
    """What a client believes was said, and how it names the conversation."""

    kind: str
    name: dict[str, Any]
    transcript: list[Said] = field(default_factory=list)
    last: tuple[list[Said], RequestKey, dict[str, Any]] | None = None

    @property
    def follows(self) -> bool:
        return self.kind in ("follows", "trims")

    def request(self, new: Sequence[Said], number: int) -> list[Said]:
        if self.kind == "only new":
            return list(new)
        if self.kind == "trims" and len(self.transcript) > 2:
            start = 1 + number % (len(self.transcript) - 1)
            while start < len(self.transcript) and self.transcript[start]["role"] != "assistant":
                start += 1
            return [*self.transcript[start:], *new]
        return [*self.transcript, *new]


class World:
    def __init__(self, server: Server, store: SQLiteStore, other: SQLiteStore) -> None:
        self.server = server
        self.store = store
        self.other = other
        self.clients = [
            Client("follows", {"key": "k"}),
            Client("by key", {"key": "k"}),
            Client("only new", {"key": "k"}),
            Client("trims", {"key": "k"}),
            Client("nameless", {}),
            Client("nameless", {}),
        ]
        self.said: list[str] = []
        self.sessions: dict[str, str] = {}
        self.asked: list[list[Said]] = []
        self.failed: set[str] = set()
        self.misled: list[Any] = []
        self.fresh = True
        """Has nothing ever been reset, so that a context is all there is?"""
        self.line: Callable[[str], Any] = lambda reply: reply
        self.targets: set[str] = set()

    # --- the model ------------------------------------------------------------------------------------

    async def answer(self, messages: list[Said], purpose: Any) -> Any:
        """Says something new each time, and looks whether it was told the truth."""
        contexts = [
            (await self.other.context(None, running.session.id)).messages()
            for running in list(self.server.runner.running.values())
        ]
        if messages not in contexts:
            self.misled.append((messages, contexts))
        self.asked.append(messages)
        return self.line(f"Reply {len(self.asked)} ends")

    # --- what clients do ------------------------------------------------------------------------------

    async def say(self, client: Client, number: int) -> None:
        text = self.new_text()
        await self.ask(client, client.request([user(text)], number), number, new=text)

    async def edit(self, client: Client, number: int) -> None:
        """Say something else instead of an earlier message."""
        places = [at for at, message in enumerate(client.transcript) if message["role"] == "user"]
        if places and client.kind != "only new":
            del client.transcript[places[number % len(places)] :]
        await self.say(client, number)

    async def regenerate(self, client: Client, number: int) -> None:
        before = list(client.transcript)
        while client.transcript and client.transcript[-1]["role"] == "assistant":
            client.transcript.pop()
        request = client.request([], number)
        if len(request) < 2:  # one message alone is new, even in the same words
            client.transcript = before
            return await self.say(client, number)
        await self.ask(client, request, number)

    async def retry(self, client: Client, number: int) -> None:
        """Send the same request once more, as if the answer had been lost."""
        if client.last is None:
            return
        messages, request_key, name = client.last
        try:
            outcome = await self.server.ask(*messages, request_key=request_key, **name)
        except TurnSuperseded:
            return
        if isinstance(outcome, RunningTurn):
            self.targets.add(outcome.turn.conversation_id)
            ending = await ended(outcome)
            if isinstance(ending, Answered) and client.transcript[-1:] == messages[-1:]:
                client.transcript.append(ending.reply.message)

    async def together(self, client: Client, number: int) -> None:
        other = self.clients[number % len(self.clients)]
        if other is client:
            return await self.say(client, number)
        await asyncio.gather(self.say(client, number), self.say(other, number + 1))

    async def end(self, client: Client, number: int) -> None:
        """Somebody ends the session of the key."""
        place = await self.place()
        if place is not None and not place.tip.ended:
            reason = ("closed", "new", "idle")[number % 3]
            self.fresh &= reason == "closed"
            await self.store.end_session(OWNER, place.tip.id, reason)

    async def open(self, client: Client, number: int) -> None:
        """Somebody opens the key's next session, before anything is said in it."""
        if (place := await self.place()) is not None:
            self.targets.add(place.conversation.id)
            await self.store.open_session(OWNER, Address(key="k"), self.server.keeper.node_id)

    async def take_out(self, client: Client, number: int) -> None:
        """Somebody takes a message out of the key's conversation."""
        place = await self.place()
        if place is not None and place.conversation.last_seq:
            seq = 1 + number % place.conversation.last_seq
            self.targets.add(place.conversation.id)
            await self.store.exclude(OWNER, place.conversation.id, [seq], "chance")

    # --- how it is done -------------------------------------------------------------------------------

    def new_text(self) -> str:
        self.said.append(f"message {len(self.said)}.")
        return self.said[-1]

    async def place(self) -> Any:
        try:
            return await self.store.resolve(OWNER, Address(key="k"))
        except Exception:
            return None

    async def ask(self, client: Client, messages: list[Said], number: int, new: str | None = None) -> None:
        request_key = key(f"r{len(self.said)}-{len(self.asked)}-{id(messages)}")
        client.last = (messages, request_key, dict(client.name))
        heard = len(self.asked)
        running = await self.server.run(*messages, request_key=request_key, **client.name)
        self.targets.add(running.turn.conversation_id)
        self.sessions[running.session.id] = running.turn.conversation_id
        outcome = await ended(running)
        self.check_read(messages, heard)
        if client.follows:
            client.name = {"id": (running.session.id, running.turn.conversation_id)[number % 2]}
        if new is not None:
            client.transcript.append(user(new))
        if isinstance(outcome, Answered):
            client.transcript.append(outcome.reply.message)
            return
        assert isinstance(outcome, Unanswered)
        self.failed.add(_text(messages[-1]))
        partial = "".join(event.decode() for event in running.events[1:-1])
        if partial and number % 2:
            client.transcript.append(said_by_model(partial))
        elif number % 3 == 0 or len(client.transcript) == 1:
            # It drops what failed. It must, if that is all it has: several messages without any answer are as
            # new as one.
            while client.transcript and client.transcript[-1]["role"] == "user":
                client.transcript.pop()

    def check_read(self, messages: list[Said], heard: int) -> None:
        """Somebody was asked about this very request, and could read all of it."""
        texts = [_text(message) for message in messages]
        read = [[_text(message) for message in asked] for asked in self.asked[heard:]]
        about = [context for context in read if context and context[-1] == texts[-1]]
        assert about, (texts, read)
        if self.fresh:
            assert any(_is_within(texts, context) for context in about), (texts, about)

    # --- what must hold -------------------------------------------------------------------------------

    async def conversations(self) -> dict[str, Any]:
        page = await self.store.sessions(SessionFilter(owner=None), limit=1000)
        ids = {session.conversation_id for session in page.items}
        return {
            id_: (
                (await self.store.resolve(None, Address(id=id_))).conversation,
                await stored(self.store, id_),
                [message.seq for message in await self.store.visible(None, id_)],
            )
            for id_ in ids
        }

    async def check(self, before: dict[str, Any]) -> dict[str, Any]:
        assert self.misled == [], "what the model reads is what is on disk"
        after = await self.conversations()
        for id_, known in before.items():
            if id_ not in self.targets:
                assert after[id_] == known, "only where somebody spoke does anything change"
        everything: set[str] = set()
        for id_, (_, messages, _) in after.items():
            texts = Counter(text for role, text, _ in messages if role == "user")
            everything.update(texts)
            twice = {text for text, count in texts.items() if count > 1}
            assert twice <= self.failed, "only what failed, and others spoke behind it, is said anew"
            await assert_history_is_right(self.store, id_)
        assert everything == set(self.said), "nothing said is lost"
        for session_id, conversation_id in self.sessions.items():
            place = await self.store.resolve(OWNER, Address(id=session_id))
            assert place.conversation.id == conversation_id
            assert place.tip.id == place.conversation.tip_id
        return after


def _text(message: Said) -> str:
    return str(message["content"]).strip()


def _is_within(texts: Sequence[str], context: Sequence[str]) -> bool:
    """Do these stand in the context, in this order? One that was cut short stands for any part of it."""
    read = iter(context)
    return all(any(there == text or there.endswith(INTERRUPTED) for there in read) for text in texts)


LINES: dict[str, Callable[[str], Any]] = {
    "answers": lambda reply: reply,
    "refuses": lambda reply: ModelError("no"),
    "breaks off": lambda reply: (reply, ModelError("the line is dead")),
}

steps = st.tuples(
    st.sampled_from(
        ["say", "say", "say", "edit", "regenerate", "retry", "together", "end", "open", "take_out"]
    ),
    st.integers(0, 5),
    st.integers(0, 11),
    st.sampled_from(["answers", "answers", "answers", "refuses", "breaks off"]),
)


@settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, min_size=1, max_size=14))
@example(
    [
        ("say", 0, 0, "answers"),
        ("say", 0, 1, "refuses"),
        ("end", 0, 1, "answers"),
        ("regenerate", 0, 0, "answers"),
    ]
)
def test_whatever_clients_do_at_random_these_things_hold(todo: list[tuple[str, int, int, str]]) -> None:
    note("\n".join(map(repr, todo)))
    asyncio.run(_live(todo))


async def _live(todo: list[tuple[str, int, int, str]]) -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir=MEMORY) as directory:
        store, other = [await open_store(Path(directory) / "store.db") for _ in range(2)]
        worlds: list[World] = []

        async def answer(messages: list[Said], purpose: Any) -> Any:
            return await worlds[0].answer(messages, purpose)

        model = ScriptedModel(answer)
        try:
            async with serving(store, model) as server, asyncio.timeout(60):
                world = World(server, store, other)
                worlds.append(world)
                before: dict[str, Any] = {}
                for name, who, number, line in todo:
                    world.line, world.targets = LINES[line], set()
                    act: Callable[[Client, int], Awaitable[None]] = getattr(world, name)
                    await act(world.clients[who], number)
                    before = await world.check(before)
                assert server.runner.running == {}
                assert await store.check() == []
        finally:
            await other.close()
            await store.close()


def test_the_clients_of_this_test_do_what_they_are_called() -> None:
    trims = Client("trims", {}, [user("a"), said_by_model("A"), user("b"), said_by_model("B")])
    assert trims.request([user("c")], 0) == [said_by_model("A"), user("b"), said_by_model("B"), user("c")]
    assert trims.request([user("c")], 1) == [said_by_model("B"), user("c")]
    assert Client("only new", {}, [user("a")]).request([user("b")], 0) == [user("b")]
    assert _is_within(["a", "b"], ["a", "x", "b"]) and not _is_within(["b", "a"], ["a", "b"])
