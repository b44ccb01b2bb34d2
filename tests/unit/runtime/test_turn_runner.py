"""One turn, driven by a scripted model on a real store: what is told, what is kept, how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.app import Holdfast
from holdfast.domain.drafts import said
from holdfast.domain.turns import TurnStatus
from holdfast.errors import LeaseLost, ModelError
from holdfast.handles import LiveTurn
from holdfast.models.base import Chunk, ModelRequest
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.turn_runner import TurnRunner, finished, instructed, tokens


@pytest.fixture
async def hf(tmp_path: Path) -> AsyncIterator[Holdfast]:
    async with holdfast.open(f"sqlite:///{tmp_path / 'a.db'}", sweep=False) as opened:
        yield opened


class Gated:
    """Words that come when the test says so."""

    def __init__(self) -> None:
        self._words: asyncio.Queue[str | None] = asyncio.Queue()
        self.model = ScriptedModel(lambda messages, purpose: self._said())

    def say(self, *words: str) -> None:
        for word in words:
            self._words.put_nowait(word)

    def finish(self) -> None:
        self._words.put_nowait(None)

    async def _said(self) -> AsyncIterator[str]:
        while (word := await self._words.get()) is not None:
            yield word


async def drafted(hf: Holdfast, turn_id: str) -> str:
    return said(await hf.store.drafts(turn_id)).get("content", "")


async def until(hf: Holdfast, turn_id: str, text: str) -> None:
    async with asyncio.timeout(10):
        while await drafted(hf, turn_id) != text:
            await hf.store.changed(hf.store.version(), 0.05)


async def messages_of(hf: Holdfast, key: str) -> list[tuple[str, Any, str]]:
    session = await hf.session(key=key)
    return [
        (message.role, message.content()["content"], message.status.value)
        for message in await session.messages("conversation")
    ]


async def test_the_answer_is_told_stored_and_counted(hf: Holdfast) -> None:
    session = await hf.session(key="k")
    told: list[Chunk] = []
    async with session.turn("hello there") as turn:
        reply = await TurnRunner(hf.store).answer(turn, ScriptedModel(), listen=told.append)
    assert reply.message["content"] == "You said: hello there"
    assert "".join(chunk.adds.get("content", "") for chunk in told) == "You said: hello there"
    done = await hf.store.turn("default", turn.id)
    assert done.status is TurnStatus.COMPLETED
    assert done.usage == {"input_tokens": 2, "output_tokens": 4}
    assert await messages_of(hf, "k") == [
        ("user", "hello there", "completed"),
        ("assistant", "You said: hello there", "completed"),
    ]


async def test_instructions_go_first_and_are_not_stored(hf: Holdfast) -> None:
    model = ScriptedModel()
    session = await hf.session(key="k")
    async with session.turn("hello") as turn:
        await TurnRunner(hf.store).answer(turn, model, instructions="be brief", name="m")
    (request,) = model.requests
    assert msgspec.json.decode(request.messages)[0] == {"role": "system", "content": "be brief"}
    assert request.model == "m"
    assert len(await messages_of(hf, "k")) == 2


async def test_the_first_words_are_on_disk_at_once_and_later_ones_soon(hf: Holdfast) -> None:
    gated, session = Gated(), await hf.session(key="k")
    async with session.turn("tell me") as turn:
        answering = asyncio.create_task(TurnRunner(hf.store, 0.05).answer(turn, gated.model))
        gated.say("The", " tide")
        await until(hf, turn.id, "The tide")
        gated.say(" turns")
        await until(hf, turn.id, "The tide turns")
        gated.finish()
        await answering


async def test_checkpoints_come_at_most_so_often(hf: Holdfast) -> None:
    session = await hf.session(key="k")
    model = ScriptedModel(lambda messages, purpose: " ".join(["word"] * 60), delay=0.005)
    async with session.turn("tell me") as turn:
        drafts: list[str] = []
        stored = turn.draft

        async def draft(text: str) -> None:
            drafts.append(text)
            await stored(text)

        turn.draft = draft  # type: ignore[method-assign]
        await TurnRunner(hf.store, 0.1).answer(turn, model)
    assert 1 <= len(drafts) <= 10


async def test_a_slow_disk_holds_the_stream_back(hf: Holdfast) -> None:
    """Nobody is told more than `checkpoint_seconds` ahead of the disk."""
    gated, session, told = Gated(), await hf.session(key="k"), list[str]()
    async with session.turn("tell me") as turn:
        disk, stored = asyncio.Event(), turn.draft

        async def draft(text: str) -> None:
            await disk.wait()
            await stored(text)

        turn.draft = draft  # type: ignore[method-assign]
        listening = asyncio.create_task(
            TurnRunner(hf.store, 0.05).answer(
                turn, gated.model, listen=lambda chunk: told.append(chunk.adds.get("content", ""))
            )
        )
        gated.say("one")
        await asyncio.sleep(0.2)
        gated.say(" two", " three")
        await asyncio.sleep(0.2)
        assert "".join(told) == "one"
        disk.set()
        gated.finish()
        reply = await listening
    assert "".join(told) == reply.message["content"] == "one two three"


async def test_a_cancelled_turn_keeps_every_word_that_was_told(hf: Holdfast) -> None:
    gated, session, told = Gated(), await hf.session(key="k"), asyncio.Event()

    def listen(chunk: Chunk) -> None:
        if chunk.adds.get("content") == " is":
            told.set()

    async def talk() -> None:
        async with session.turn("tell me") as turn:
            await TurnRunner(hf.store, 60).answer(turn, gated.model, listen=listen)

    talking = asyncio.create_task(talk())
    gated.say("The")
    async with asyncio.timeout(10):
        while not (turns := await hf.store.turns("default", session.conversation_id)):
            await hf.store.changed(hf.store.version(), 0.05)
    await until(hf, turns[0].id, "The")
    gated.say(" tide", " is")  # told, but not on disk for a minute
    await asyncio.wait_for(told.wait(), 10)
    talking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await talking
    assert (await messages_of(hf, "k"))[-1] == ("assistant", "The tide is", "interrupted")
    (turn,) = await hf.store.turns("default", session.conversation_id)
    assert turn.status is TurnStatus.INTERRUPTED


async def test_a_model_that_breaks_off_fails_the_turn_and_its_words_stay(hf: Holdfast) -> None:
    session = await hf.session(key="k")
    model = ScriptedModel([("The tide", ModelError("the line is dead"))])
    with pytest.raises(ModelError, match="the line is dead"):
        async with session.turn("tell me") as turn:
            await TurnRunner(hf.store).answer(turn, model)
    assert (await messages_of(hf, "k"))[-1] == ("assistant", "The tide", "interrupted")
    (done,) = await hf.store.turns("default", session.conversation_id)
    assert done.status is TurnStatus.FAILED


class Unfinished(ScriptedModel):
    """Its stream ends without saying that the answer did."""

    async def stream(self, request: ModelRequest) -> Any:
        async for chunk in super().stream(request):
            if chunk.adds:
                yield chunk


async def test_an_answer_without_an_end_is_not_taken_for_a_whole_one(hf: Holdfast) -> None:
    session = await hf.session(key="k")
    with pytest.raises(ModelError, match="broke off"):
        async with session.turn("tell me") as turn:
            await TurnRunner(hf.store).answer(turn, Unfinished())
    assert (await messages_of(hf, "k"))[-1] == ("assistant", "You said: tell me", "interrupted")


@pytest.mark.parametrize("ended_by", ["cancelled", "deleted"])
async def test_a_turn_ended_by_someone_else_stops_while_the_model_is_silent(
    hf: Holdfast, ended_by: str
) -> None:
    gated, session = Gated(), await hf.session(key="k")

    async def talk(begun: asyncio.Future[LiveTurn]) -> None:
        async with session.turn("tell me") as turn:
            begun.set_result(turn)
            await TurnRunner(hf.store).answer(turn, gated.model)

    begun: asyncio.Future[LiveTurn] = asyncio.get_running_loop().create_future()
    talking = asyncio.create_task(talk(begun))
    turn = await begun
    gated.say("The tide")
    await until(hf, turn.id, "The tide")
    if ended_by == "cancelled":
        assert await hf.store.cancel_turn("default", turn.id, TurnStatus.CANCELLED, "a person said stop")
    else:
        await hf.store.delete_conversation("default", turn.conversation_id)
    async with asyncio.timeout(10):
        with pytest.raises(LeaseLost):
            await talking
    if ended_by == "cancelled":
        assert (await messages_of(hf, "k"))[-1] == ("assistant", "The tide", "interrupted")


@pytest.mark.parametrize(
    ("messages", "instructions", "expected"),
    [
        (b'[{"a":1}]', "", b'[{"a":1}]'),
        (b'[{"a":1}]', "x", b'[{"role":"system","content":"x"},{"a":1}]'),
        (b"[]", "x", b'[{"role":"system","content":"x"}]'),
    ],
)
def test_instructions_are_spliced_in(messages: bytes, instructions: str, expected: bytes) -> None:
    assert instructed(messages, instructions) == expected


@pytest.mark.parametrize(
    ("reported", "stored"),
    [
        (None, {}),
        (
            {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
            {"input_tokens": 3, "output_tokens": 4},
        ),
        ({"prompt_tokens": 3, "completion_tokens": None}, {"input_tokens": 3}),
    ],
)
def test_usage_is_stored_under_our_names(reported: dict[str, Any] | None, stored: dict[str, int]) -> None:
    assert tokens(reported) == stored


async def test_what_must_be_finished_is_finished_before_the_cancellation_counts() -> None:
    done = list[str]()

    async def work() -> str:
        await asyncio.sleep(0.05)
        done.append("work")
        return "result"

    task = asyncio.create_task(finished(work()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["work"]
    assert await finished(work()) == "result"
