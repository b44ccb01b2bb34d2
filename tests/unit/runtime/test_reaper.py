"""The reaper: proven deaths, hung nodes, and what it leaves behind."""

from __future__ import annotations

import pytest

from holdfast.domain.contexts import OUTCOME_UNKNOWN
from holdfast.domain.drafts import Draft
from holdfast.domain.new_messages import new_messages
from holdfast.domain.nodes import BeatWatch, Node
from holdfast.domain.turns import TurnStatus
from holdfast.errors import LeaseLost, StoreFull
from holdfast.runtime.agents.reaper import Reaper
from holdfast.store.sqlite.engine import SQLiteStore

from .conftest import Clock, Joined, begin, kill


def reaper_for(store: SQLiteStore, own: Node | None = None) -> Reaper:
    return Reaper(store, own_node=lambda: own.id if own else None)


async def test_a_killed_node_is_reaped_and_its_attached_session_ends(
    store: SQLiteStore, joined: Joined, clock: Clock
) -> None:
    node = await joined()
    turn = await begin(store, node, "cli:ada")
    await store.commit_reply(turn.lease, new_messages({"role": "assistant", "content": "Hi"}))
    spoke_at = (await store.session(None, turn.session.id)).last_activity_at
    clock.advance(hours=1)
    kill(store, node)

    done = await reaper_for(store).reap_once()

    session = await store.session(None, turn.session.id)
    assert (session.end_reason, done.sessions, list(done.nodes)) == ("reaped", [session.id], [node.id])
    assert session.last_activity_at == spoke_at, "being reaped is not speaking"


async def test_a_running_turn_is_interrupted_with_its_draft_and_its_open_calls_closed(
    store: SQLiteStore, joined: Joined
) -> None:
    node = await joined()
    turn = await begin(store, node, "api:1", attached=False)
    call = {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    await store.append(turn.lease, new_messages({"role": "assistant", "content": None, "tool_calls": [call]}))
    await store.append_draft(turn.lease, Draft(0, 0, adds={"content": "I am loo"}))
    kill(store, node)

    await reaper_for(store).reap_once()

    session = await store.session(None, turn.session.id)
    assert not session.ended, "a detached session goes on"
    assert (await store.turn(None, turn.turn.id)).status is TurnStatus.INTERRUPTED
    messages = [m.content() for m in (await store.messages(None, session.conversation_id)).items]
    assert messages[2] == {"role": "tool", "tool_call_id": "call_1", "content": OUTCOME_UNKNOWN}
    assert messages[3] == {"role": "assistant", "content": "I am loo"}
    another = await joined()
    assert (await begin(store, another, "api:1", "go on")).session.id == session.id, "continued at once"


async def test_reaping_twice_changes_nothing(store: SQLiteStore, joined: Joined) -> None:
    node = await joined()
    await begin(store, node, "cli:ada")
    kill(store, node)
    reaper = reaper_for(store)
    await reaper.reap_once()
    before = await store.events(owner=None)
    assert not (await reaper.reap_once()).anything
    assert await store.events(owner=None) == before


async def test_a_living_node_is_left_alone_whatever_the_wall_clock_says(
    store: SQLiteStore, joined: Joined, clock: Clock
) -> None:
    node = await joined()
    turn = await begin(store, node, "cli:ada")
    for days in (200, -400, 200):
        clock.advance(days=days)
        assert not (await reaper_for(store).reap_once()).anything
    await store.append(turn.lease, new_messages({"role": "assistant", "content": "still here"}))


class Awake:
    """The observer's own awake time."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


async def test_a_hung_node_is_reaped_after_a_whole_window_of_the_observers_awake_time(
    store: SQLiteStore, joined: Joined
) -> None:
    own, hung = await joined(), await joined()
    turn = await begin(store, hung, "cli:ada")
    awake = Awake()
    reaper = Reaper(store, lambda: own.id, BeatWatch(90, longest_gap=10), monotonic=awake)
    for _ in range(18):
        assert not (await reaper.reap_once()).anything
        awake.seconds += 5
    assert (await reaper.reap_once()).nodes == {hung.id: "no heartbeat for 90 s"}
    with pytest.raises(LeaseLost):
        await store.append(turn.lease, new_messages({"role": "assistant", "content": "too late"}))


async def test_a_beat_at_any_moment_saves_a_slow_node(store: SQLiteStore, joined: Joined) -> None:
    own, slow = await joined(), await joined()
    awake = Awake()
    reaper = Reaper(store, lambda: own.id, BeatWatch(90, longest_gap=10), monotonic=awake)
    for step in range(60):
        if step % 17 == 0:
            await store.beat(slow.id)
        assert not (await reaper.reap_once()).anything
        awake.seconds += 5


async def test_a_sleeping_laptop_reaps_nobody(store: SQLiteStore, joined: Joined) -> None:
    """Everybody slept: the observer's clock may have jumped, but it has not looked meanwhile."""
    own, other = await joined(), await joined()
    awake = Awake()
    reaper = Reaper(store, lambda: own.id, BeatWatch(90, longest_gap=10), monotonic=awake)
    await reaper.reap_once()
    for _ in range(5):
        awake.seconds += 8 * 3600
        assert not (await reaper.reap_once()).anything
        await store.beat(other.id)


async def test_while_the_observer_cannot_write_its_own_beat_nobody_elses_silence_counts(
    store: SQLiteStore, joined: Joined
) -> None:
    own, _other = await joined(), await joined()
    awake = Awake()
    full = True
    reaper = Reaper(
        store, lambda: own.id, BeatWatch(90, longest_gap=10), beating=lambda: not full, monotonic=awake
    )
    for _ in range(40):  # the disk is full: neither node can beat
        assert not (await reaper.reap_once()).anything
        awake.seconds += 5
    full = False  # space returned; the other node has a whole window to beat again
    for _ in range(18):
        assert not (await reaper.reap_once()).anything
        awake.seconds += 5


async def test_a_node_that_beats_between_the_look_and_the_blow_is_spared(
    store: SQLiteStore, joined: Joined
) -> None:
    node = await joined()
    seen = node.beat
    await store.beat(node.id)
    assert not await store.reap(node.id, seen, "it seemed to hang")


async def test_one_row_that_cannot_be_settled_does_not_stop_the_others(
    store: SQLiteStore, joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await joined()
    turns = [await begin(store, node, f"cli:{number}") for number in range(3)]
    kill(store, node)
    settle = store.settle_conversation

    async def troubled(conversation_id: str) -> bool:
        if conversation_id == turns[1].lease.conversation_id:
            raise StoreFull("no space for this one")
        return await settle(conversation_id)

    monkeypatch.setattr(store, "settle_conversation", troubled)
    done = await reaper_for(store).reap_once()
    assert len(done.conversations) == 2 and len(done.troubles) == 1
    monkeypatch.undo()
    assert (await reaper_for(store).reap_once()).conversations == [turns[1].lease.conversation_id]


async def test_a_reaper_killed_half_way_is_followed_by_the_next(store: SQLiteStore, joined: Joined) -> None:
    node = await joined()
    turn = await begin(store, node, "cli:ada")
    kill(store, node)
    assert await store.reap(node.id, node.beat, "marked, then the reaper died")
    await reaper_for(store).reap_once()
    assert (await store.session(None, turn.session.id)).end_reason == "reaped"
