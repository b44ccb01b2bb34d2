"""Notices: undelivered until marked delivered; bound to their conversation and owner."""

import pytest

from holdfast.domain.notices import LONGEST_TEXT
from holdfast.domain.turns import TurnStatus
from holdfast.errors import BadInput, NotFound
from holdfast.store.store import Store
from tests.contract.steps import OTHER, OWNER, Clock, begin, new_node, say, to_message, unchanged


async def conversation(store: Store, key: str, owner: str = OWNER) -> str:
    node = await new_node(store)
    return (await say(store, node, key=key, owner=owner)).session.conversation_id


async def test_a_notice_is_undelivered_until_somebody_says_so(store: Store, clock: Clock) -> None:
    chat = await conversation(store, "telegram:dm:42")
    made_at = clock.move(seconds=1)
    notice = await store.add_notice(OWNER, chat, "reset", "a new session has begun")
    assert (notice.key, notice.created_at, notice.delivered_at) == ("telegram:dm:42", made_at, None)
    assert await store.undelivered(chat) == [notice]
    told_at = clock.move(seconds=5)
    delivered = await store.deliver_notice(OWNER, notice.id)
    assert delivered.delivered_at == told_at
    assert await store.undelivered(chat) == []
    assert (await store.notices(OWNER, undelivered=True)).items == []
    assert (await store.notices(OWNER)).items == [delivered]


async def test_a_notice_delivered_twice_keeps_its_first_time(store: Store, clock: Clock) -> None:
    notice = await store.add_notice(OWNER, await conversation(store, "a"), "reset", "x")
    first = await store.deliver_notice(OWNER, notice.id)
    clock.move(seconds=5)
    assert await store.deliver_notice(OWNER, notice.id) == first


async def test_notices_come_oldest_first_page_by_page(store: Store) -> None:
    chat, other = await conversation(store, "a"), await conversation(store, "b")
    made = [await store.add_notice(OWNER, (chat, other)[n % 2], "reset", str(n)) for n in range(5)]
    await store.deliver_notice(OWNER, made[2].id)
    first = await store.notices(OWNER, undelivered=True, limit=2)
    assert (list(first.items), first.has_more) == (made[:2], True)
    rest = await store.notices(OWNER, undelivered=True, after=made[1].id, limit=2)
    assert (list(rest.items), rest.has_more) == (made[3:], False)
    whole = await store.notices(OWNER, limit=5)
    assert ([each.id for each in whole.items], whole.has_more) == ([each.id for each in made], False)
    assert await store.undelivered(chat) == [made[0], made[4]]


async def test_the_newest_notices_come_first_by_state(store: Store) -> None:
    chat = await conversation(store, "a")
    made = [await store.add_notice(OWNER, chat, "reset", str(n)) for n in range(5)]
    theirs = await store.add_notice(OTHER, await conversation(store, "a", OTHER), "reset", "x")
    told = [await store.deliver_notice(OWNER, made[n].id) for n in (1, 3)]
    first = await store.newest_notices(OWNER, limit=2)
    assert (list(first.items), first.has_more) == ([made[4], told[1]], True)
    rest = await store.newest_notices(OWNER, after=made[3].id)
    assert (list(rest.items), rest.has_more) == ([made[2], told[0], made[0]], False)
    assert list((await store.newest_notices(OWNER, delivered=True)).items) == told[::-1]
    assert list((await store.newest_notices(OWNER, delivered=False)).items) == [made[4], made[2], made[0]]
    assert (await store.newest_notices(None)).items[0] == theirs
    with pytest.raises(NotFound):
        await store.newest_notices(OWNER, after=theirs.id)


async def test_all_notices_of_an_owner_are_delivered_at_once(store: Store, clock: Clock) -> None:
    chat = await conversation(store, "a")
    made = [await store.add_notice(OWNER, chat, "reset", str(n)) for n in range(3)]
    theirs = await store.add_notice(OTHER, await conversation(store, "a", OTHER), "reset", "x")
    before = await store.deliver_notice(OWNER, made[0].id)
    clock.move(seconds=5)
    assert await store.deliver_notices(OWNER) == 2
    assert await store.deliver_notices(OWNER) == 0
    assert (await store.notices(OWNER)).items[0] == before, "the first time is kept"
    assert (await store.notices(OTHER, undelivered=True)).items == [theirs]
    assert await store.deliver_notices(None) == 1


async def test_a_notice_says_which_webhook_and_reply_had_it_and_when(store: Store, clock: Clock) -> None:
    chat = await conversation(store, "a")
    notice = await store.add_notice(OWNER, chat, "reset", "x")
    sent_at = clock.move(seconds=5)
    await store.notice_sent(notice.id)
    told_at = clock.move(seconds=5)
    await store.commit_reply((await begin(store, await new_node(store), key="a")).lease)
    (found,) = (await store.notices(OWNER)).items
    assert (found.sent_at, found.told_at, found.delivered_at) == (sent_at, told_at, None)
    assert await store.notice_deliveries([notice.id]) == {}, "no connector serves this conversation"


async def test_another_owners_notice_is_like_one_that_never_existed(store: Store) -> None:
    theirs = await store.add_notice(OTHER, await conversation(store, "a", OTHER), "reset", "x")
    mine = await conversation(store, "a")
    async with unchanged(store):
        for unknown in (theirs.id, "note_never"):
            with pytest.raises(NotFound, match=f"^no notice '{unknown}'$"):
                await store.deliver_notice(OWNER, unknown)
            with pytest.raises(NotFound, match=f"^no notice '{unknown}'$"):
                await store.notices(OWNER, after=unknown)
        for foreign in (theirs.conversation_id, "conv_never"):
            with pytest.raises(NotFound):
                await store.add_notice(OWNER, foreign, "reset", "x")
    assert (await store.notices(OWNER)).items == []
    assert await store.undelivered(mine) == []
    assert (await store.deliver_notice(None, theirs.id)).delivered_at is not None, "an operator reaches all"


async def test_an_operator_reads_the_notices_of_all(store: Store) -> None:
    made = [
        await store.add_notice(owner, await conversation(store, "a", owner), "reset", owner)
        for owner in (OWNER, OTHER)
    ]
    assert list((await store.notices(None)).items) == made
    await store.deliver_notice(None, made[0].id)
    assert list((await store.notices(None, undelivered=True)).items) == made[1:]


@pytest.mark.parametrize(("kind", "text"), [("", "x"), ("reset", " "), ("reset", "x" * (LONGEST_TEXT + 1))])
async def test_a_notice_that_says_nothing_or_too_much_is_refused(store: Store, kind: str, text: str) -> None:
    chat = await conversation(store, "a")
    with pytest.raises(BadInput):
        await store.add_notice(OWNER, chat, kind, text)
    assert await store.undelivered(chat) == []


async def test_notices_go_with_their_conversation(store: Store) -> None:
    chat = await conversation(store, "a")
    await store.add_notice(OWNER, chat, "reset", "x")
    await store.delete_conversation(OWNER, chat)
    assert (await store.notices(None)).items == []


async def test_a_reply_marks_only_those_notices_told_that_its_turn_was_given(store: Store) -> None:
    """All at one moment: when a notice was written says nothing of who was given it."""
    node = await new_node(store)
    chat = (await say(store, node, key="a")).session.conversation_id
    first = await store.add_notice(OWNER, chat, "process", "the build has ended")
    begun = await begin(store, node, key="a")
    assert list(begun.notices) == [first]
    late = await store.add_notice(OWNER, chat, "process", "the tests have ended")
    await store.commit_reply(begun.lease, [to_message("done", "assistant")])
    after = await begin(store, node, key="a")
    assert list(after.notices) == [late]
    await store.commit_reply(after.lease, [to_message("done", "assistant")])
    assert (await begin(store, node, key="a")).notices == ()


async def test_what_a_turn_without_an_answer_was_given_is_given_to_the_next(store: Store) -> None:
    node = await new_node(store)
    chat = (await say(store, node, key="a")).session.conversation_id
    notice = await store.add_notice(OWNER, chat, "process", "the build has ended")
    begun = await begin(store, node, key="a")
    assert await store.cancel_turn(OWNER, begun.turn.id, TurnStatus.CANCELLED, "stop")
    after = await say(store, node, key="a")
    assert list(after.notices) == [notice]
    assert (await begin(store, node, key="a")).notices == ()
