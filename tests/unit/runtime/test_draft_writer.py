"""Drafts of a growing reply: what was published is never long ahead of the disk, and never cut in half."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.domain.drafts import Draft, drafted_text
from holdfast.domain.turns import TurnBegun, TurnStatus
from holdfast.errors import LeaseLost, StoreFull, StoreUncertain
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.turns.draft_writer import DraftWriter
from holdfast.runtime.turns.live import Answered
from holdfast.store.sqlite.engine import SQLiteStore
from tests import quiet_time

from .asking import Gated, Told, drafted, ended, serving, until_drafted, until_told, user
from .conftest import Joined, begin


@pytest.fixture
async def begun(store: SQLiteStore, joined: Joined) -> TurnBegun:
    return await begin(store, await joined(), "k", attached=False)


class Disk:
    """Lets drafts through when it is open, and counts those that are on their way."""

    def __init__(self, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = asyncio.Event()
        self.asked = asyncio.Event()
        self.fails: Exception | None = None
        self.writing = self.most = 0
        self._append = store.append_draft
        monkeypatch.setattr(store, "append_draft", self._append_draft)

    async def _append_draft(self, lease: Any, draft: Draft) -> None:
        self.writing += 1
        self.most = max(self.most, self.writing)
        self.asked.set()
        try:
            await self.open.wait()
            if self.fails is not None:
                raise self.fails
            await self._append(lease, draft)
        finally:
            self.writing -= 1


@pytest.fixture
async def disk(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Disk]:
    made = Disk(store, monkeypatch)
    yield made
    made.fails = None
    made.open.set()


def writer_of(
    store: SQLiteStore,
    begun: TurnBegun,
    seconds: float = 0.05,
    *,
    numbered: bool = False,
    restarts: bool = False,
) -> DraftWriter:
    return DraftWriter(store, begun.lease, seconds, begun.next_event, numbered=numbered, restarts=restarts)


async def test_words_are_on_disk_together_soon_after_the_first(store: SQLiteStore, begun: TurnBegun) -> None:
    drafts = writer_of(store, begun)
    drafts.add({"content": "The", "reasoning": "hm"}, [])
    drafts.add({"content": " tide"}, [])
    await until_drafted(store, begun.turn.id, "The tide")
    (draft,) = await store.drafts(begun.turn.id)
    assert draft.adds == {"content": "The tide", "reasoning": "hm"}
    drafts.add({"content": " turns"}, [])
    await until_drafted(store, begun.turn.id, "The tide turns")


async def test_a_reply_that_is_over_soon_is_never_drafted(store: SQLiteStore, begun: TurnBegun) -> None:
    drafts = writer_of(store, begun)
    drafts.add({"content": "word"}, [])
    await drafts.rest()
    await asyncio.sleep(0.1)
    assert await store.drafts(begun.turn.id) == []
    await drafts.save()
    assert await drafted(store, begun.turn.id) == "word", "unless it turns out that it was not"


async def test_what_is_said_while_a_checkpoint_is_written_goes_into_the_next(
    store: SQLiteStore, begun: TurnBegun, disk: Disk
) -> None:
    drafts = writer_of(store, begun)
    drafts.add({"content": "one"}, [])
    await disk.asked.wait()
    drafts.add({"content": " two"}, [])
    disk.open.set()
    await until_drafted(store, begun.turn.id, "one two")
    assert [draft.adds["content"] for draft in await store.drafts(begun.turn.id)] == ["one", " two"]


async def test_nobody_may_speak_on_while_the_disk_is_behind(
    store: SQLiteStore, begun: TurnBegun, disk: Disk
) -> None:
    drafts = writer_of(store, begun, 0.02)
    drafts.add({"content": "one"}, [])
    await disk.asked.wait()
    await asyncio.sleep(0.03)
    assert drafts.is_behind
    waiting = asyncio.create_task(drafts.catch_up())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    disk.open.set()
    await asyncio.wait_for(waiting, 60)
    assert await drafted(store, begun.turn.id) == "one"


async def test_a_checkpoint_is_never_cut_in_half(store: SQLiteStore, begun: TurnBegun, disk: Disk) -> None:
    drafts = writer_of(store, begun, 0.01)
    drafts.add({"content": "one"}, [])
    await disk.asked.wait()
    await asyncio.sleep(0.02)
    for wait in (drafts.catch_up, drafts.rest, drafts.save):
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    drafts.add({"content": " two"}, [])
    disk.open.set()
    await drafts.save()
    assert await drafted(store, begun.turn.id) == "one two"


async def test_a_checkpoint_that_failed_is_told_and_its_words_are_in_the_next(
    store: SQLiteStore, begun: TurnBegun, disk: Disk
) -> None:
    drafts = writer_of(store, begun, 0.02, numbered=True)
    disk.fails = StoreFull("the disk is full")
    drafts.add({"content": "one"}, [b"1"])
    await disk.asked.wait()
    drafts.add({"content": " two"}, [b"2"])
    disk.open.set()
    await asyncio.sleep(0.05)
    assert drafts.is_behind
    with pytest.raises(StoreFull):
        await drafts.catch_up()
    disk.fails = None
    await drafts.save()
    (draft,) = await store.drafts(begun.turn.id)
    assert (draft.first_event, draft.last_event, draft.events) == (0, 1, b"12")
    assert draft.adds == {"content": "one two"}


async def test_a_lost_lease_is_told_to_whoever_speaks_on(store: SQLiteStore, begun: TurnBegun) -> None:
    drafts = writer_of(store, begun, 0.02)
    await store.cancel_turn(None, begun.turn.id, TurnStatus.CANCELLED, "stop")
    drafts.add({"content": "one"}, [])
    await asyncio.sleep(0.05)
    with pytest.raises(LeaseLost):
        await drafts.catch_up()


async def test_drafts_never_overtake_each_other_though_the_loop_was_blocked(
    store: SQLiteStore, begun: TurnBegun, disk: Disk
) -> None:
    drafts = writer_of(store, begun, 0.02, numbered=True)
    drafts.add({"content": "one"}, [b"1"])
    time.sleep(0.05)  # the timer and whoever speaks on are now due in the same moment
    waiting = asyncio.create_task(drafts.catch_up())
    await disk.asked.wait()
    drafts.add({"content": " two"}, [b"2"])
    await asyncio.sleep(0.05)
    assert disk.most == 1
    disk.open.set()
    await waiting
    await drafts.save()
    assert disk.most == 1
    assert await drafted(store, begun.turn.id) == "one two"
    assert [draft.first_event for draft in await store.drafts(begun.turn.id)] == [0, 1]


async def test_after_rest_nothing_is_begun(store: SQLiteStore, begun: TurnBegun, disk: Disk) -> None:
    drafts = writer_of(store, begun, 0.01)
    drafts.add({"content": "one"}, [])
    await disk.asked.wait()
    drafts.add({"content": " two"}, [])
    resting = asyncio.create_task(drafts.rest())
    disk.open.set()
    await resting
    await asyncio.sleep(0.05)
    assert await drafted(store, begun.turn.id) == "one"


# --- numbers ------------------------------------------------------------------------------------------------


async def numbers(store: SQLiteStore, turn_id: str) -> list[tuple[int, int, bytes]]:
    return [(draft.first_event, draft.last_event, draft.events) for draft in await store.drafts(turn_id)]


async def test_events_are_kept_under_the_numbers_they_were_told_with(
    store: SQLiteStore, begun: TurnBegun
) -> None:
    drafts = writer_of(store, begun, numbered=True)
    drafts.add({}, [b"a", b"b"])
    await drafts.save()
    drafts.add({"content": "x"}, [b"c"])
    await drafts.save()
    assert await numbers(store, begun.turn.id) == [(0, 1, b"ab"), (2, 2, b"c")]


async def test_text_of_which_nobody_was_told_takes_no_number(store: SQLiteStore, begun: TurnBegun) -> None:
    drafts = writer_of(store, begun, 0.01, numbered=True)
    drafts.add({}, [b"a"])
    await drafts.save()
    drafts.add({"reasoning_extra": "hm"}, [])
    await asyncio.sleep(0.05)
    assert not drafts.is_behind
    drafts.add({"content": "x"}, [b"b"])
    await drafts.save()
    assert await numbers(store, begun.turn.id) == [(0, 0, b"a"), (1, 1, b"b")]
    assert drafted_text(await store.drafts(begun.turn.id)) == {"reasoning_extra": "hm", "content": "x"}


async def test_the_last_checkpoint_holds_what_no_other_does_and_the_end(
    store: SQLiteStore, begun: TurnBegun
) -> None:
    drafts = writer_of(store, begun, numbered=True, restarts=True)
    drafts.add({"content": "x"}, [b"a"])
    await drafts.save()
    drafts.add({"content": "y"}, [b"b"])
    await drafts.rest()
    last = drafts.last([b"end"])
    assert last == Draft(1, 2, b"bend", {}, False)
    assert writer_of(store, begun).last([b"end"]) is None, "only where events are kept"


async def test_only_the_first_checkpoint_of_an_attempt_begins_anew(
    store: SQLiteStore, begun: TurnBegun
) -> None:
    drafts = writer_of(store, begun, restarts=True)
    for word in ("one", " two"):
        drafts.add({"content": word}, [])
        await drafts.save()
    assert [draft.restarts for draft in await store.drafts(begun.turn.id)] == [True, False]


# --- in a turn ----------------------------------------------------------------------------------------------


async def test_listeners_hear_nothing_that_the_disk_will_not_soon_hold(
    store: SQLiteStore, disk: Disk
) -> None:
    gated = Gated()
    async with serving(store, gated.model, checkpoint_seconds=0.05) as server:
        running = await server.run(user("tell me"))
        gated.say("one")
        await until_told(running, 2)
        await asyncio.sleep(0.1)
        gated.say(" two", " three")
        await asyncio.sleep(0.1)
        assert running.events == [b"begun", b"one"]
        disk.open.set()
        gated.finish()
        outcome = await ended(running)
    assert isinstance(outcome, Answered)
    assert outcome.reply.message["content"] == "one two three"


async def test_drafts_are_saved_at_most_so_often(store: SQLiteStore) -> None:
    model = ScriptedModel(lambda messages, purpose: " ".join(["word"] * 60), delay=0.005)
    began = time.monotonic()
    async with serving(store, model, checkpoint_seconds=0.1) as server:
        running = await server.run(user("tell me"))
        await ended(running)
    took = time.monotonic() - began
    assert 1 <= len(await store.drafts(running.turn.id)) <= took / 0.1 + 2


async def test_what_is_told_is_never_longer_ahead_of_the_disk_than_it_may(store: SQLiteStore) -> None:
    seconds, told_at = 0.5, list[tuple[float, int]]()  # of which 0.1 are meant
    model = ScriptedModel(lambda messages, purpose: " ".join(["word"] * 150), delay=0.005)
    async with serving(store, model, checkpoint_seconds=0.1) as server:
        running = await server.run(user("tell me"), renderer=Told())
        while running.outcome is None:
            told_at.append((quiet_time.now(), len(b"".join(running.events[1:]))))
            on_disk = len(await drafted(store, running.turn.id))
            if running.outcome is None:
                late = [length for at, length in told_at if at < told_at[-1][0] - seconds]
                assert not late or on_disk >= late[-1]
            await asyncio.sleep(0.01)
    assert len(told_at) > 5


# --- an outcome that is not known --------------------------------------------------------------------------


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("times", [1, 2])
async def test_a_checkpoint_with_an_unknown_outcome_is_written_again_and_stored_once(
    store: SQLiteStore,
    begun: TurnBegun,
    monkeypatch: pytest.MonkeyPatch,
    numbered: bool,
    committed: bool,
    times: int,
) -> None:
    append, left = store.append_draft, [times]

    async def uncertain(lease: Any, draft: Draft) -> None:
        if left[0]:
            left[0] -= 1
            if committed:
                await append(lease, draft)
            raise StoreUncertain("the connection was lost in the commit")
        await append(lease, draft)

    monkeypatch.setattr(store, "append_draft", uncertain)
    saving = DraftWriter(store, begun.lease, 60, 0, numbered=numbered, restarts=False)
    saving.add({"content": "The tide "}, [b"event 0"])
    if times == 2:
        with pytest.raises(StoreUncertain):
            await saving.save()
    saving.add({"content": "turns"}, [b"event 1"])
    await saving.save()
    drafts = await store.drafts(begun.turn.id)
    assert "".join(draft.adds.get("content", "") for draft in drafts) == "The tide turns"
    assert b"".join(draft.events for draft in drafts) == (b"event 0event 1" if numbered else b"")
    assert [(draft.first_event, draft.last_event) for draft in drafts] in (
        [(0, 0), (1, 1)],
        [(0, 1)],
        [(0, 0)],
    )


async def test_output_that_came_during_a_write_is_not_being_written_after_rest(
    store: SQLiteStore, begun: TurnBegun, disk: Disk
) -> None:
    """Otherwise the answer is committed with the same event number, and the turn fails."""
    drafts = DraftWriter(store, begun.lease, 0.0, 0, numbered=True, restarts=False)
    drafts.add({"content": "a"}, [b"1"])
    await disk.asked.wait()
    resting = asyncio.create_task(drafts.rest())
    await asyncio.sleep(0)
    drafts.add({"content": "b"}, [b"2"])
    disk.open.set()
    await resting
    last = drafts.last([b"end"])
    assert last is not None and disk.writing == 0
    assert [draft.last_event for draft in await store.drafts(begun.turn.id)][-1] + 1 == last.first_event
