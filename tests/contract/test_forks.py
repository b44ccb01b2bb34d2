"""Forks: a copy of a context, in a conversation of its own."""

import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.ids import message_id, new_id
from holdfast.domain.messages import MessageStatus
from holdfast.domain.nodes import Node
from holdfast.domain.sessions import Edge
from holdfast.domain.turns import TurnFailure, TurnStatus
from holdfast.errors import BadInput, Conflict, NotFound
from holdfast.store.store import Store
from tests.contract.steps import (
    OTHER,
    OWNER,
    Clock,
    all_events,
    begin,
    calling,
    contents,
    context_of,
    draft,
    ended,
    everything,
    files_of,
    messages,
    result,
    say,
    unchanged,
    with_files,
)
from tests.contract.test_compaction import compacted, talked


async def test_a_fork_begins_with_the_same_context_and_goes_its_own_way(store: Store, node: Node) -> None:
    source = (await say(store, node, "look", calling("a"), result("a"), "seen", key="cli:ada")).session
    fork = await store.fork(OWNER, source.id, node.id)
    assert (await store.context(OWNER, fork.id)).json() == (await store.context(OWNER, source.id)).json()
    await say(store, node, "this way", "yes", id=fork.id)
    await say(store, node, "that way", "no", id=source.id)
    assert (await context_of(store, fork.id))[-2:] == ["this way", "yes"]
    assert (await context_of(store, source.id))[-2:] == ["that way", "no"]


async def test_a_fork_says_where_it_and_its_messages_come_from(
    store: Store, node: Node, clock: Clock
) -> None:
    source = (await say(store, node, key="telegram:dm:42")).session
    await store.set_title(OWNER, source.conversation_id, "Kelp")
    said = await messages(store, source.conversation_id)
    clock.move(hours=1)
    fork = await store.fork(OWNER, source.id, node.id, attached=True)
    assert fork.conversation_id != source.conversation_id
    assert (fork.edge, fork.parent_id, fork.ordinal) == (Edge.FORK, source.id, 1)
    assert (fork.key, fork.title, fork.source) == (None, "Kelp", "telegram")
    assert (fork.attached, fork.node_id) == (True, node.id)
    place = await store.resolve(OWNER, Address(id=fork.id))
    assert (place.conversation.forked_from, place.conversation.last_seq) == (source.id, 2)
    copies = await messages(store, fork.conversation_id)
    assert [copy.origin for copy in copies] == [message_id(source.conversation_id, seq) for seq in (1, 2)]
    assert [copy.body for copy in copies] == [message.body for message in said]
    assert [copy.created_at for copy in copies] == [message.created_at for message in said]
    assert {copy.session_id for copy in copies} == {fork.id}
    (event,) = [event for event in await all_events(store) if event.type == "conversation.forked"]
    assert (event.conversation_id, event.data) == (
        fork.conversation_id,
        {"source": source.id, "messages": 2},
    )


async def test_a_fork_of_a_fork_tells_the_first_origin(store: Store, node: Node) -> None:
    source = (await say(store, node)).session
    fork = await store.fork(OWNER, source.id, node.id)
    await say(store, node, "more", id=fork.id)
    again = await store.fork(OWNER, fork.id, node.id)
    assert [copy.origin for copy in await messages(store, again.conversation_id)] == [
        message_id(source.conversation_id, 1),
        message_id(source.conversation_id, 2),
        message_id(fork.conversation_id, 3),
        message_id(fork.conversation_id, 4),
    ]


async def test_a_fork_has_the_files_of_its_messages_also_when_its_source_is_deleted(
    store: Store, node: Node
) -> None:
    source = await with_files(store, node, b"OggS" * 50, b"png")
    owner = "phone/42"
    session = (await store.resolve(owner, Address(id=source))).tip
    fork = await store.fork(owner, session.id, node.id)
    again = await store.fork(owner, fork.id, node.id)
    empty = await store.fork(owner, session.id, node.id, up_to=0)
    await store.delete_conversation(owner, source)
    for copy in (fork, again):
        files = await files_of(store, copy.conversation_id)
        assert [(file.name, file.mime, body) for file, body in files] == [
            ("näme 0.ogg", "audio/ogg", b"OggS" * 50),
            ("näme 1.ogg", "audio/ogg", b"png"),
        ]
    assert await files_of(store, empty.conversation_id) == []


async def test_files_of_a_fork_count_and_go_with_their_message(store: Store, node: Node) -> None:
    source = await with_files(store, node, b"x" * 5000)
    owner = "phone/42"
    session = (await store.resolve(owner, Address(id=source))).tip
    fork = await store.fork(owner, session.id, node.id)
    (usage,) = await store.usage(owner)
    assert usage.bytes >= 10_000
    await store.delete_message(owner, fork.conversation_id, 1)
    assert await files_of(store, fork.conversation_id) == []
    assert len(await files_of(store, source)) == 1
    (usage,) = await store.usage(owner)
    assert 5000 <= usage.bytes < 10_000


async def test_forking_leaves_the_source_as_it_was(store: Store, node: Node) -> None:
    source = (await say(store, node)).session
    before = await everything(store)
    fork = await store.fork(OWNER, source.id, node.id)
    await store.delete_conversation(OWNER, fork.conversation_id)
    after = await everything(store)
    for what in ("sessions", "conversations", "messages", "contexts", "turns"):
        assert after[what] == before[what]


async def test_a_fork_lives_on_after_its_source_was_deleted(store: Store, node: Node) -> None:
    source = (await say(store, node, "the tide", "comes in")).session
    fork = await store.fork(OWNER, source.id, node.id)
    await store.delete_conversation(OWNER, source.conversation_id)
    assert await context_of(store, fork.id) == ["the tide", "comes in"]
    assert [hit.message.conversation_id for hit in await store.search(OWNER, "tide")] == [
        fork.conversation_id
    ]
    assert (await say(store, node, "more", id=fork.id)).session.id == fork.id


@pytest.mark.parametrize(
    ("up_to", "copied"), [(0, []), (1, ["a"]), (3, ["a", "A", "b"]), (4, ["a", "A", "b", "B"])]
)
async def test_a_fork_may_stop_at_an_earlier_message(
    store: Store, node: Node, up_to: int, copied: list[str]
) -> None:
    source = (await say(store, node, "a", "A", key="cli:ada")).session
    await say(store, node, "b", "B", key="cli:ada")
    fork = await store.fork(OWNER, source.id, node.id, up_to=up_to)
    assert await contents(store, fork.conversation_id) == copied
    assert await context_of(store, fork.id) == copied
    await say(store, node, "c", "C", id=fork.id)
    assert await context_of(store, fork.id) == [*copied, "c", "C"]


@pytest.mark.parametrize("up_to", [-1, 3, 1000])
async def test_a_fork_cannot_stop_where_nothing_was_said(store: Store, node: Node, up_to: int) -> None:
    source = (await say(store, node)).session
    async with unchanged(store):
        with pytest.raises(BadInput):
            await store.fork(OWNER, source.id, node.id, up_to=up_to)


async def test_a_fork_of_a_fork_before_its_summary_has_no_summary(store: Store, node: Node) -> None:
    fork = await store.fork(OWNER, (await compacted(store, node, await talked(store, node))).id, node.id)
    copied = await context_of(store, fork.id)
    assert copied[2].endswith("gist")
    for up_to, expected in ((2, copied[:2]), (3, copied[:4]), (None, copied)):
        other = await store.fork(OWNER, fork.id, node.id, up_to=up_to)
        assert await context_of(store, other.id) == expected, up_to


async def test_a_fork_of_a_stale_session_copies_what_that_one_saw(store: Store, node: Node) -> None:
    old = await ended(store, node, "new", key="cli:ada")
    await say(store, node, "other matters", key="cli:ada")
    fork = await store.fork(OWNER, old.id, node.id)
    assert await context_of(store, fork.id) == ["hello", "hi"]
    with pytest.raises(BadInput):
        await store.fork(OWNER, old.id, node.id, up_to=3)


async def test_a_fork_copies_the_view_of_a_resumed_session_numbered_from_one(
    store: Store, node: Node
) -> None:
    first = await ended(store, node, "new", key="cli:ada")
    await ended(store, node, "new", key="cli:ada")
    resumed = await store.resume_session(OWNER, first.id, node.id)
    await say(store, node, "again", "yes", id=resumed.id)
    fork = await store.fork(OWNER, resumed.id, node.id)
    copies = await messages(store, fork.conversation_id)
    assert [copy.seq for copy in copies] == [1, 2, 3, 4]
    assert [copy.origin for copy in copies] == [message_id(first.conversation_id, n) for n in (1, 2, 5, 6)]
    assert await context_of(store, fork.id) == ["hello", "hi", "again", "yes"]


async def test_what_was_excluded_or_deleted_is_not_copied(store: Store, node: Node) -> None:
    source = (await say(store, node, "a", "A", key="cli:ada")).session
    await say(store, node, "b", "B", key="cli:ada")
    await say(store, node, "c", "C", key="cli:ada")
    await store.exclude(OWNER, source.conversation_id, [2], "wrong")
    await store.delete_message(OWNER, source.conversation_id, 5)
    fork = await store.fork(OWNER, source.id, node.id)
    copies = await messages(store, fork.conversation_id)
    assert [(copy.seq, copy.content()["content"]) for copy in copies] == [
        (1, "a"),
        (2, "b"),
        (3, "B"),
        (4, "C"),
    ]
    assert [copy.origin for copy in copies] == [message_id(source.conversation_id, n) for n in (1, 3, 4, 6)]


async def test_what_was_excluded_from_a_fork_stays_in_its_source(store: Store, node: Node) -> None:
    source = (await say(store, node)).session
    fork = await store.fork(OWNER, source.id, node.id)
    await store.exclude(OWNER, fork.conversation_id, [1], "wrong")
    assert await context_of(store, source.id) == ["hello", "hi"]
    assert await context_of(store, fork.id) == ["hi"]


async def test_interrupted_replies_and_open_calls_are_copied_as_what_they_are(
    store: Store, node: Node
) -> None:
    begun = await begin(store, node, key="cli:ada")
    await store.append_draft(begun.lease, draft(0, "I was"))
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.INTERRUPTED))
    await say(store, node, "look", calling("a"), key="cli:ada")
    fork = await store.fork(OWNER, begun.session.id, node.id)
    assert (await messages(store, fork.conversation_id))[1].status is MessageStatus.INTERRUPTED
    context = await store.context(OWNER, fork.id)
    assert context.json() == (await store.context(OWNER, begun.session.id)).json()
    assert context.awaited == ("a",)


async def test_a_fork_may_take_a_new_key_but_not_one_that_leads_somewhere(store: Store, node: Node) -> None:
    source = (await say(store, node, key="cli:ada")).session
    await say(store, node, key="theirs", owner=OTHER)
    for taken in ("cli:ada",):
        async with unchanged(store):
            with pytest.raises(Conflict):
                await store.fork(OWNER, source.id, node.id, key=taken)
    fork = await store.fork(OWNER, source.id, node.id, key="theirs")
    assert (await store.resolve(OWNER, Address(key="theirs"))).tip.id == fork.id


async def test_a_fork_of_anothers_session_is_not_found(store: Store, node: Node) -> None:
    source = (await say(store, node)).session
    async with unchanged(store):
        with pytest.raises(NotFound) as of_another:
            await store.fork(OTHER, source.id, node.id)
        with pytest.raises(NotFound):
            await store.fork(OWNER, new_id("sess"), node.id)
    assert str(of_another.value) == f"no session {source.id!r}"


async def test_the_forks_of_a_conversation_are_those_of_all_its_sessions(
    store: Store, node: Node, clock: Clock
) -> None:
    old = await ended(store, node, "new", key="cli:ada")
    tip = (await say(store, node, key="cli:ada")).session
    first = await store.fork(OWNER, old.id, node.id)
    clock.move(seconds=1)
    second = await store.fork(OWNER, tip.id, node.id)
    await say(store, node)
    await store.end_session(OWNER, first.id, "new")
    await say(store, node, id=first.id)
    for owner in (OWNER, None):
        assert [s.id for s in await store.forks(owner, old.conversation_id)] == [first.id, second.id]
    assert await store.forks(OWNER, first.conversation_id) == []


async def test_a_running_conversation_can_be_forked(store: Store, node: Node) -> None:
    begun = await begin(store, node)
    fork = await store.fork(OWNER, begun.session.id, node.id)
    assert await context_of(store, fork.id) == ["hello"]
    assert (await store.resolve(OWNER, Address(id=fork.id))).conversation.holder is None
    await store.commit_reply(begun.lease)
