"""A conversation's line of sessions: opened, ended once, never reopened, listed."""

import asyncio

import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.nodes import Node
from holdfast.domain.sessions import Edge, EndReason, Session
from holdfast.errors import BadInput, ConversationBusy, NodeReaped, NotFound
from holdfast.store import session_lists as session_reads
from holdfast.store.store import Store
from holdfast.store.values import Page, SessionFilter
from tests.contract.steps import (
    OTHER,
    OWNER,
    Clock,
    all_events,
    begin,
    contents,
    context_of,
    ended,
    new_node,
    reap,
    say,
    unchanged,
)


async def test_opening_gives_an_empty_session_in_a_conversation_of_its_own(
    store: Store, node: Node, clock: Clock
) -> None:
    session = await store.open_session(OWNER, Address(key="telegram:dm:42"), node.id)
    assert session.id.startswith("sess_")
    assert session.conversation_id.startswith("conv_")
    assert (session.owner, session.key, session.source) == (OWNER, "telegram:dm:42", "telegram")
    assert (session.edge, session.parent_id, session.ordinal) == (None, None, 1)
    assert session.opened_at == session.last_activity_at == clock.now
    assert (session.attached, session.node_id, session.ended) == (False, None, False)
    assert session.message_count == 0
    assert await store.session(OWNER, session.id) == session


async def test_opening_again_is_the_same_session(store: Store, node: Node) -> None:
    first = await store.open_session(OWNER, Address(key="cli:ada"), node.id)
    for address in (Address(key="cli:ada"), Address(id=first.id), Address(id=first.conversation_id)):
        assert await store.open_session(OWNER, address, node.id) == first


@pytest.mark.parametrize("attached", [True, False])
async def test_a_session_says_whether_it_lives_with_its_node(
    store: Store, node: Node, attached: bool
) -> None:
    opened = await store.open_session(OWNER, Address(), node.id, attached=attached)
    begun = await begin(store, node, attached=attached)
    for session in (opened, begun.session):
        assert (session.attached, session.node_id) == (attached, node.id if attached else None)


async def test_a_stated_source_goes_before_the_keys(store: Store, node: Node) -> None:
    stated = await store.open_session(OWNER, Address(key="telegram:dm:42"), node.id, source="batch")
    assert stated.source == "batch"
    assert (await begin(store, node, key="signal:7")).session.source == "signal"
    assert (await begin(store, node, source="cron")).session.source == "cron"


async def test_many_who_open_one_key_at_once_share_one_session(
    store: Store, node: Node, second_store: Store
) -> None:
    opened = await asyncio.gather(
        *(s.open_session(OWNER, Address(key="cli:ada"), node.id) for s in (store, second_store) * 10)
    )
    assert len({session.id for session in opened}) == 1
    assert len(await store.line(OWNER, opened[0].conversation_id)) == 1


async def test_ending_says_when_why_and_up_to_which_message(store: Store, node: Node, clock: Clock) -> None:
    session = (await say(store, node, attached=True)).session
    at = clock.move(seconds=5)
    assert await store.end_session(OWNER, session.id, "closed")
    after = await store.session(OWNER, session.id)
    assert (after.ended_at, after.end_reason) == (at, "closed")
    assert (after.first_seq, after.last_seq, after.message_count) == (1, 2, 2)
    assert after.last_activity_at == session.last_activity_at
    (event,) = [event for event in await all_events(store) if event.type == "session.ended"]
    assert (event.session_id, event.data) == (session.id, {"reason": "closed"})


async def test_ending_twice_changes_nothing(store: Store, node: Node, clock: Clock) -> None:
    session = await ended(store, node, "closed")
    clock.move(seconds=5)
    async with unchanged(store):
        assert not await store.end_session(OWNER, session.id, "new")


@pytest.mark.parametrize("reason", ["", "because", "Closed", "hermes"])
async def test_an_unknown_end_reason_is_refused(store: Store, node: Node, reason: str) -> None:
    session = (await say(store, node)).session
    async with unchanged(store):
        with pytest.raises(BadInput):
            await store.end_session(OWNER, session.id, reason)


async def test_a_session_does_not_end_while_a_turn_holds_it(store: Store, node: Node) -> None:
    begun = await begin(store, node)
    async with unchanged(store):
        with pytest.raises(ConversationBusy) as busy:
            await store.end_session(OWNER, begun.session.id, "closed")
    assert (busy.value.conversation_id, busy.value.turn_id) == (begun.session.conversation_id, begun.turn.id)
    await store.commit_reply(begun.lease)
    assert await store.end_session(OWNER, begun.session.id, "closed")


CONTINUED = ["closed", "completed", "reaped", "compaction", "hermes:agent_close"]
FRESH = ["idle", "daily", "new"]


def test_the_two_lists_of_end_reasons_are_all_there_are() -> None:
    assert {*CONTINUED, *FRESH} == {*EndReason, "hermes:agent_close"}


@pytest.mark.parametrize("reason", CONTINUED)
async def test_after_such_an_end_the_next_message_goes_on(
    store: Store, node: Node, clock: Clock, reason: str
) -> None:
    before = await ended(store, node, reason)
    clock.move(hours=1)
    after = (await begin(store, node, "more", id=before.id)).session
    assert (after.edge, after.parent_id, after.ordinal) == (Edge.RESUME, before.id, 2)
    assert (after.first_seq, after.last_seq) == (3, 3)
    assert await context_of(store, after.id) == ["hello", "hi", "more"]
    assert (await store.session(OWNER, before.id)).end_reason == reason


@pytest.mark.parametrize("reason", FRESH)
async def test_after_such_an_end_the_next_message_begins_afresh(
    store: Store, node: Node, reason: str
) -> None:
    before = await ended(store, node, reason)
    after = (await begin(store, node, "more", id=before.id)).session
    assert (after.edge, after.parent_id, after.ordinal) == (Edge.RESET, before.id, 2)
    assert await context_of(store, after.id) == ["more"]
    assert await context_of(store, before.id) == ["hello", "hi"]
    assert await contents(store, after.conversation_id) == ["hello", "hi", "more"]


@pytest.mark.parametrize("reason", [*CONTINUED, *FRESH])
async def test_opening_a_session_decides_like_a_message_would(store: Store, node: Node, reason: str) -> None:
    before = await ended(store, node, reason)
    opened = await store.open_session(OWNER, Address(id=before.id), node.id)
    assert (opened.edge, opened.parent_id) == (Edge.RESUME if reason in CONTINUED else Edge.RESET, before.id)
    assert (await begin(store, node, id=before.id)).session.id == opened.id


async def test_going_on_is_not_speaking(store: Store, node: Node, clock: Clock) -> None:
    before = await ended(store, node, "closed")
    clock.move(hours=30)
    opened = await store.open_session(OWNER, Address(id=before.id), node.id)
    assert opened.opened_at == clock.now
    assert opened.last_activity_at == before.last_activity_at


async def test_a_next_session_keeps_the_source_unless_told_otherwise(store: Store, node: Node) -> None:
    before = await ended(store, node, "new", key="telegram:dm:42")
    assert (await say(store, node, id=before.id)).session.source == "telegram"
    other = await ended(store, node, "new", key="signal:7")
    assert (await say(store, node, id=other.id, source="cron")).session.source == "cron"


async def test_a_session_is_attached_to_the_node_that_opens_it_not_to_its_parents(
    store: Store, node: Node
) -> None:
    before = await ended(store, node, "closed", attached=True)
    assert not before.attached
    after = (await begin(store, node, id=before.id, attached=False)).session
    assert (after.attached, after.node_id) == (False, None)


async def test_an_open_tip_that_is_resumed_is_itself(store: Store, node: Node) -> None:
    session = (await say(store, node)).session
    async with unchanged(store):
        assert (await store.resume_session(OWNER, session.id, node.id)).id == session.id


async def test_resuming_an_older_session_takes_its_view_and_ends_the_tip_as_new(
    store: Store, node: Node
) -> None:
    first = await ended(store, node, "new", key="cli:ada")
    second = (await say(store, node, "other matters", "indeed", key="cli:ada")).session
    resumed = await store.resume_session(OWNER, first.id, node.id)
    assert (resumed.edge, resumed.parent_id, resumed.ordinal) == (Edge.RESUME, first.id, 3)
    assert (await store.session(OWNER, second.id)).end_reason == "new"
    assert await context_of(store, resumed.id) == ["hello", "hi"]
    await say(store, node, "back again", "welcome", id=first.id)
    assert await context_of(store, resumed.id) == ["hello", "hi", "back again", "welcome"]
    assert await context_of(store, first.id) == ["hello", "hi"]
    assert await context_of(store, second.id) == ["other matters", "indeed"]


async def test_what_was_resumed_goes_on_with_the_same_view_after_its_own_end(
    store: Store, node: Node
) -> None:
    first = await ended(store, node, "new", key="cli:ada")
    await ended(store, node, "new", key="cli:ada")
    resumed = await store.resume_session(OWNER, first.id, node.id)
    await say(store, node, "again", "yes", id=resumed.id)
    await store.end_session(OWNER, resumed.id, "closed")
    after = (await say(store, node, "and again", "yes yes", id=resumed.id)).session
    assert await context_of(store, after.id) == ["hello", "hi", "again", "yes", "and again", "yes yes"]


@pytest.mark.parametrize("reason", [*CONTINUED, *FRESH])
async def test_resuming_an_ended_tip_goes_on_whatever_it_ended_of(
    store: Store, node: Node, reason: str
) -> None:
    tip = await ended(store, node, reason)
    resumed = await store.resume_session(OWNER, tip.id, node.id, attached=True)
    assert (resumed.edge, resumed.parent_id, resumed.attached) == (Edge.RESUME, tip.id, True)
    assert resumed.last_activity_at == tip.last_activity_at
    assert await context_of(store, resumed.id) == ["hello", "hi"]
    assert (await store.session(OWNER, tip.id)).end_reason == reason


async def test_nothing_is_resumed_while_a_turn_holds_the_conversation(store: Store, node: Node) -> None:
    first = await ended(store, node, "new", key="cli:ada")
    begun = await begin(store, node, key="cli:ada")
    async with unchanged(store):
        with pytest.raises(ConversationBusy):
            await store.resume_session(OWNER, first.id, node.id)
    await store.commit_reply(begun.lease)
    assert (await store.resume_session(OWNER, first.id, node.id)).parent_id == first.id


async def test_an_ended_session_never_changes_again(store: Store, node: Node, clock: Clock) -> None:
    session = await ended(store, node, "closed")
    clock.move(hours=1)
    await store.resume_session(OWNER, session.id, node.id)
    await say(store, node, id=session.id)
    after = await store.session(OWNER, session.id)
    assert (after.ended_at, after.end_reason, after.last_seq, after.last_activity_at) == (
        session.ended_at,
        session.end_reason,
        session.last_seq,
        session.last_activity_at,
    )


async def test_a_line_is_told_oldest_first_with_at_most_one_open(
    store: Store, node: Node, clock: Clock
) -> None:
    reasons = ["closed", "new", "idle", "completed", "daily"]
    for reason in reasons:
        await ended(store, node, reason, key="cli:ada")
        clock.move(seconds=1)
    tip = (await say(store, node, key="cli:ada")).session
    line = await store.line(OWNER, tip.conversation_id)
    assert [session.end_reason for session in line] == [*reasons, None]
    assert [session.edge for session in line] == [
        None,
        Edge.RESUME,
        Edge.RESET,
        Edge.RESET,
        Edge.RESUME,
        Edge.RESET,
    ]
    assert [session.parent_id for session in line] == [None, *(session.id for session in line[:-1])]
    assert [session.ordinal for session in line] == [1, 2, 3, 4, 5, 6]
    assert {session.tip_id for session in line} == {tip.id}


async def test_sessions_of_a_line_share_the_messages_out_without_gap(store: Store, node: Node) -> None:
    for _ in range(3):
        await ended(store, node, "new", key="cli:ada")
    tip = await store.open_session(OWNER, Address(key="cli:ada"), node.id)
    line = await store.line(OWNER, tip.conversation_id)
    assert [(session.first_seq, session.last_seq) for session in line] == [(1, 2), (3, 4), (5, 6), (7, 6)]


@pytest.mark.parametrize("verb", ["open", "resume", "fork"])
async def test_a_node_that_is_gone_or_never_joined_opens_nothing(store: Store, node: Node, verb: str) -> None:
    session = await ended(store, node, "new")
    gone = await new_node(store)
    await reap(store, gone)
    for node_id in (gone.id, new_id("node")):
        async with unchanged(store):
            with pytest.raises(NodeReaped) as refusal:
                if verb == "open":
                    await store.open_session(OWNER, Address(key="new"), node_id)
                elif verb == "resume":
                    await store.resume_session(OWNER, session.id, node_id)
                else:
                    await store.fork(OWNER, session.id, node_id)
            assert refusal.value.node_id == node_id


async def test_a_title_is_told_by_every_session_of_the_line(store: Store, node: Node) -> None:
    first = await ended(store, node, "new", key="cli:ada")
    await say(store, node, key="cli:ada")
    await store.set_title(OWNER, first.conversation_id, "Kelp & tides")
    assert [s.title for s in await store.line(OWNER, first.conversation_id)] == ["Kelp & tides"] * 2
    with pytest.raises(NotFound):
        await store.set_title(OTHER, first.conversation_id, "mine now")
    for title in ("", "x" * 513, "a\x00", "\ud800"):
        with pytest.raises(BadInput):
            await store.set_title(OWNER, first.conversation_id, title)
    assert (await store.session(OWNER, first.id)).title == "Kelp & tides"


async def test_tokens_and_model_are_those_of_the_sessions_turns(store: Store, node: Node) -> None:
    begun = await begin(store, node, key="cli:ada", model="small")
    await store.commit_reply(begun.lease, usage={"input_tokens": 10, "output_tokens": 5})
    begun = await begin(store, node, key="cli:ada", model="large")
    await store.commit_reply(begun.lease, usage={"prompt_tokens": 7, "completion_tokens": 2})
    session = await store.session(OWNER, begun.session.id)
    assert (session.input_tokens, session.output_tokens, session.model) == (17, 7, "large")


async def test_a_running_turn_shows_on_the_tip_and_only_there(store: Store, node: Node) -> None:
    old = await ended(store, node, "new", key="cli:ada")
    begun = await begin(store, node, key="cli:ada")
    tip = await store.session(OWNER, begun.session.id)
    assert (tip.running_turn, tip.running_node) == (begun.turn.id, node.id)
    assert tip.host == node.identity.host
    stale = await store.session(OWNER, old.id)
    assert (stale.running_turn, stale.running_node, stale.tip_id) == (None, None, tip.id)
    await store.commit_reply(begun.lease)
    assert (await store.session(OWNER, tip.id)).running_turn is None


# --- listing -------------------------------------------------------------------------------------


async def pages(store: Store, wanted: SessionFilter, limit: int) -> list[Page[Session]]:
    found = [await store.sessions(wanted, limit=limit)]
    while found[-1].has_more:
        found.append(await store.sessions(wanted, after=found[-1].items[-1].id, limit=limit))
    return found


async def test_the_most_recently_active_come_first(store: Store, node: Node, clock: Clock) -> None:
    ids = []
    for number in range(5):
        clock.move(seconds=1)
        ids.append((await say(store, node, key=f"k{number}")).session.id)
    clock.move(seconds=1)
    await say(store, node, id=ids[1])
    page = await store.sessions(SessionFilter(owner=OWNER))
    assert [session.id for session in page.items] == [ids[1], ids[4], ids[3], ids[2], ids[0]]
    assert not page.has_more


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 9, 10, 100])
async def test_pages_join_without_gap_or_repetition_though_times_tie(
    store: Store, node: Node, clock: Clock, limit: int
) -> None:
    for number in range(9):
        await store.open_session(OWNER, Address(), node.id)
        if number % 3 == 2:
            clock.move(seconds=1)
    for owner in (OWNER, None):
        found = await pages(store, SessionFilter(owner=owner), limit)
        listed = [session for page in found for session in page.items]
        assert len({session.id for session in listed}) == len(listed) == 9
        times = [session.last_activity_at for session in listed]
        assert times == sorted(times, reverse=True)
        assert [page.has_more for page in found] == [True] * (len(found) - 1) + [False]
        assert all(len(page.items) == limit for page in found[:-1])


async def test_a_list_holds_the_owners_sessions_only(store: Store, node: Node) -> None:
    mine = (await say(store, node)).session
    theirs = (await say(store, node, owner=OTHER)).session
    assert [s.id for s in (await store.sessions(SessionFilter(owner=OWNER))).items] == [mine.id]
    assert [s.id for s in (await store.sessions(SessionFilter(owner=OTHER))).items] == [theirs.id]
    assert {s.id for s in (await store.sessions(SessionFilter(owner=None))).items} == {mine.id, theirs.id}
    assert (await store.sessions(SessionFilter(owner="nobody"))).items == []


async def test_filters_narrow_the_list_and_combine(store: Store, node: Node, clock: Clock) -> None:
    chat = await ended(store, node, "new", key="telegram:dm:42")
    clock.move(seconds=1)
    chat_now = (await say(store, node, key="telegram:dm:42")).session
    clock.move(seconds=1)
    job = await ended(store, node, "completed", key="cron:nightly")
    clock.move(seconds=1)
    untitled = (await say(store, node)).session
    await store.set_title(OWNER, job.conversation_id, "Backup of the Reef")

    async def listed(
        ended: bool | None = None, source: str | None = None, key: str | None = None, title: str | None = None
    ) -> list[str]:
        for owner in (OWNER, None):
            page = await store.sessions(SessionFilter(owner, ended, source, key, title))
            found = [session.id for session in page.items]
        return found

    assert await listed() == [untitled.id, job.id, chat_now.id, chat.id]
    assert await listed(ended=True) == [job.id, chat.id]
    assert await listed(ended=False) == [untitled.id, chat_now.id]
    assert await listed(source="telegram") == [chat_now.id, chat.id]
    assert await listed(source="api") == [untitled.id]
    assert await listed(key="cron:nightly") == [job.id]
    assert await listed(title="reef") == [job.id]
    assert await listed(title="DM:4") == [chat_now.id, chat.id]
    assert await listed(title="%") == []
    assert await listed(source="telegram", ended=True) == [chat.id]
    assert await listed(source="telegram", title="reef") == []


async def test_a_filtered_list_has_pages_too(store: Store, node: Node) -> None:
    for number in range(6):
        await ended(store, node, "closed" if number % 2 else "new", key=f"k{number}")
        await store.open_session(OWNER, Address(key=f"open{number}"), node.id)
    found = await pages(store, SessionFilter(OWNER, ended=True), 2)
    assert [len(page.items) for page in found] == [2, 2, 2]
    assert all(session.ended for page in found for session in page.items)


async def test_a_title_is_found_alike_whether_few_or_many_have_it(
    store: Store, node: Node, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        clock.move(seconds=1)
        await ended(store, node, "new", key=f"reef:{number % 3}")
        await ended(store, node, "new", key=f"reef:{number % 3}", owner=OTHER)
    for owner in (OWNER, None):
        found = []
        for few in (0, 100):
            monkeypatch.setattr(session_reads, "FEW_TITLES", few)
            listed = await pages(store, SessionFilter(owner, title="REEF"), 2)
            found.append([[session.id for session in page.items] for page in listed])
        assert found[0] == found[1]
        assert sum(map(len, found[0])) == (5 if owner else 10)


async def test_a_cursor_that_is_unknown_or_anothers_is_not_found(store: Store, node: Node) -> None:
    theirs = (await say(store, node, owner=OTHER)).session
    for cursor in (theirs.id, new_id("sess"), "gibberish"):
        with pytest.raises(NotFound):
            await store.sessions(SessionFilter(owner=OWNER), after=cursor)


async def test_statistics_count_what_an_owner_has(store: Store, node: Node) -> None:
    await ended(store, node, "new", key="telegram:dm:42")
    await say(store, node, key="telegram:dm:42")
    await ended(store, node, "completed")
    await say(store, node, owner=OTHER)
    mine, every = await store.statistics(OWNER), await store.statistics(None)
    assert (mine.sessions, mine.open, mine.messages, mine.conversations) == (3, 1, 6, 2)
    assert mine.end_reasons == {"new": 1, "completed": 1}
    assert mine.sources == {"telegram": 2, "api": 1}
    assert (every.sessions, every.open, every.messages, every.conversations) == (4, 2, 8, 3)
