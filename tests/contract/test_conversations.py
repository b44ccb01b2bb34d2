"""Conversations outside of any turn: create, list, set metadata, add messages, remove part of a message."""

import asyncio
import json

import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.messages import NewMessage
from holdfast.domain.nodes import Node
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.turns import TurnStatus
from holdfast.errors import BadInput, Conflict, ConversationBusy, NodeReaped, NotFound, RequestMismatch
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
    messages,
    new_node,
    reap,
    result,
    say,
    to_message,
    unchanged,
)

CANARY = "heliotrope"


def said(*texts: str) -> list[NewMessage]:
    return [to_message(text) for text in texts]


# --- beginning -------------------------------------------------------------------------------------


async def test_a_conversation_begins_with_its_messages_numbered_from_one(
    store: Store, node: Node, clock: Clock
) -> None:
    made = await store.create_conversation(
        OWNER,
        node.id,
        messages=[*said("hello"), to_message("hi", "assistant")],
        metadata={"sea": "calm"},
        source="web",
    )
    assert (made.owner, made.key, made.source, made.last_seq, made.created_at) == (
        OWNER,
        None,
        "web",
        2,
        clock.now,
    )
    assert made.metadata == {"sea": "calm"}
    assert [(message.seq, message.turn_id) for message in await messages(store, made.id)] == [
        (1, None),
        (2, None),
    ]
    session = await store.session(OWNER, made.tip_id)
    assert (session.attached, session.node_id, session.message_count) == (False, None, 2)
    assert await context_of(store, session.id) == ["hello", "hi"]
    assert [hit.message.seq for hit in await store.search(OWNER, "hello")] == [1]


async def test_a_conversation_may_begin_with_nothing(store: Store, node: Node) -> None:
    made = await store.create_conversation(OWNER, node.id)
    assert (made.last_seq, made.source, made.metadata) == (0, "api", {})
    begun = await say(store, node, "hello", "hi", id=made.id)
    assert begun.session.id == made.tip_id
    assert await contents(store, made.id) == ["hello", "hi"]


async def test_what_began_and_what_was_added_is_told_by_events(store: Store, node: Node) -> None:
    made = await store.create_conversation(OWNER, node.id, messages=said("a", "b"), source="web")
    await store.add_messages(OWNER, made.id, node.id, said("c"))
    told = [event for event in await all_events(store) if event.conversation_id == made.id]
    assert [event.type for event in told] == [
        "conversation.opened",
        "session.opened",
        "messages.added",
        "messages.added",
    ]
    assert told[0].data == {"key": None, "source": "web"}
    assert [(event.session_id, event.data) for event in told[2:]] == [
        (made.tip_id, {"first": 1, "last": 2}),
        (made.tip_id, {"first": 3, "last": 3}),
    ]


async def test_a_conversation_that_cannot_begin_leaves_nothing(store: Store, node: Node) -> None:
    gone = await new_node(store)
    await store.leave(gone.id, "closed")
    async with unchanged(store):
        with pytest.raises(NodeReaped):
            await store.create_conversation(OWNER, gone.id)
        with pytest.raises(BadInput):
            await store.create_conversation("", node.id)
        with pytest.raises(BadInput):
            await store.create_conversation(OWNER, node.id, metadata={"sea": "\ud800"})
        with pytest.raises(BadInput):
            await store.create_conversation(OWNER, node.id, metadata={"\x00": "calm"})
        with pytest.raises(BadInput):
            await store.create_conversation(OWNER, node.id, metadata={"sea": 7})  # type: ignore[dict-item]


# --- finding ---------------------------------------------------------------------------------------


async def test_any_name_leads_to_the_conversation_with_its_metadata(store: Store, node: Node) -> None:
    old = await ended(store, node, "new", key="cli:ada")
    await say(store, node, key="cli:ada")
    await store.add_alias(OWNER, "outside name", old.conversation_id)
    await store.set_metadata(OWNER, old.conversation_id, {"sea": "calm"})
    for address in (
        Address(id=old.conversation_id),
        Address(id=old.id),
        Address(id="outside name"),
        Address(key="cli:ada"),
    ):
        found = await store.conversation(OWNER, address)
        assert (found.id, found.metadata) == (old.conversation_id, {"sea": "calm"})
    for owner, address in (
        (OTHER, Address(id=old.conversation_id)),
        (OTHER, Address(key="cli:ada")),
        (OWNER, Address(id=new_id("conv"))),
        (OWNER, Address(id="unknown")),
    ):
        with pytest.raises(NotFound):
            await store.conversation(owner, address)
    assert (await store.conversation(None, Address(id=old.id))).id == old.conversation_id


async def test_metadata_is_replaced_as_a_whole_and_only_by_its_owner(store: Store, node: Node) -> None:
    made = await store.create_conversation(OWNER, node.id, metadata={"sea": "calm", "wind": "west"})
    await store.set_metadata(OWNER, made.id, {"sea": "rough"})
    assert (await store.conversation(OWNER, Address(id=made.id))).metadata == {"sea": "rough"}
    async with unchanged(store):
        with pytest.raises(NotFound):
            await store.set_metadata(OTHER, made.id, {})
        with pytest.raises(NotFound):
            await store.set_metadata(OWNER, new_id("conv"), {})
        with pytest.raises(BadInput):
            await store.set_metadata(OWNER, made.id, {"sea": "\ud800"})
    await store.set_metadata(None, made.id, {})
    assert (await store.conversation(OWNER, Address(id=made.id))).metadata == {}


async def test_noting_something_is_not_speaking(store: Store, node: Node, clock: Clock) -> None:
    made = await store.create_conversation(OWNER, node.id)
    before = await store.session(OWNER, made.tip_id)
    clock.move(hours=1)
    await store.set_metadata(OWNER, made.id, {"sea": "calm"})
    assert await store.session(OWNER, made.tip_id) == before


async def test_pages_of_conversations_hold_each_of_them_once_the_newest_first(
    store: Store, node: Node
) -> None:
    made = [(await store.create_conversation(OWNER, node.id, metadata={"no": str(n)})).id for n in range(3)]
    await ended(store, node, "new", key="cli:ada")
    tip = (await say(store, node, key="cli:ada")).session
    made += [tip.conversation_id, (await store.create_conversation(OWNER, node.id)).id]
    await store.create_conversation(OTHER, node.id)
    wanted = list(reversed(made))
    for limit in (1, 2, 5, 10):
        found: list[str] = []
        while True:
            page = await store.conversations(OWNER, after=found[-1] if found else None, limit=limit)
            found += [conversation.id for conversation in page.items]
            if not page.has_more:
                break
            assert len(page.items) == limit
        assert found == wanted
    page = await store.conversations(OWNER, limit=10)
    assert page.items[-1].metadata == {"no": "0"}
    assert page.items[1].tip_id == tip.id
    everybodys = await store.conversations(None)
    assert [conversation.owner for conversation in everybodys.items] == [OTHER, *[OWNER] * 5]


async def test_speaking_in_a_conversation_does_not_move_it_between_pages(store: Store, node: Node) -> None:
    made = [(await store.create_conversation(OWNER, node.id)).id for _ in range(4)]
    first = await store.conversations(OWNER, limit=2)
    await say(store, node, id=made[0])
    await say(store, node, id=made[2])
    rest = await store.conversations(OWNER, after=first.items[-1].id, limit=2)
    assert [conversation.id for conversation in (*first.items, *rest.items)] == made[::-1]


async def test_a_page_behind_an_unknown_or_anothers_conversation_is_not_found(
    store: Store, node: Node
) -> None:
    theirs = await store.create_conversation(OTHER, node.id)
    for after in (theirs.id, new_id("conv"), "x"):
        with pytest.raises(NotFound):
            await store.conversations(OWNER, after=after)
    for limit in (0, -1, 10**7):
        with pytest.raises(BadInput):
            await store.conversations(OWNER, limit=limit)
    assert (await store.conversations(OWNER)).items == []


@pytest.mark.parametrize("excluded", [True, False])
@pytest.mark.parametrize("newest_first", [True, False])
async def test_a_page_may_be_bounded_by_its_bytes(
    store: Store, node: Node, newest_first: bool, excluded: bool
) -> None:
    made = await store.create_conversation(OWNER, node.id)
    long = [to_message(f"{number} {'x' * 1000}") for number in range(7)]
    await store.add_messages(OWNER, made.id, node.id, long)
    found: list[int] = []
    first, last = 1, 7
    sizes = []
    while True:
        page = await store.messages(
            OWNER,
            made.id,
            first=first,
            last=last,
            limit=5,
            newest_first=newest_first,
            excluded=excluded,
            most_bytes=3500,
        )
        found += [message.seq for message in page.items]
        sizes.append(len(page.items))
        if not page.has_more:
            break
        first, last = (1, found[-1] - 1) if newest_first else (found[-1] + 1, 7)
    assert found == (list(range(7, 0, -1)) if newest_first else list(range(1, 8)))
    assert sizes == [3, 3, 1]
    least = await store.messages(OWNER, made.id, limit=5, most_bytes=1)
    assert (len(least.items), least.has_more) == (2, True)
    whole = await store.messages(OWNER, made.id, limit=5, most_bytes=10**6)
    assert (len(whole.items), whole.has_more) == (5, True)


async def test_excluded_messages_can_be_left_out_of_a_page(store: Store, node: Node) -> None:
    made = await store.create_conversation(OWNER, node.id, messages=said(*"abcdef"))
    await store.exclude(OWNER, made.id, [2, 5], "replaced")
    await store.delete_message(OWNER, made.id, 3)
    page = await store.messages(OWNER, made.id, limit=2, excluded=False)
    assert ([message.seq for message in page.items], page.has_more) == ([1, 4], True)
    page = await store.messages(OWNER, made.id, first=5, limit=2, excluded=False)
    assert ([message.seq for message in page.items], page.has_more) == ([6], False)
    page = await store.messages(OWNER, made.id, last=5, limit=2, newest_first=True, excluded=False)
    assert ([message.seq for message in page.items], page.has_more) == ([4, 1], False)
    assert [message.seq for message in (await store.messages(OWNER, made.id)).items] == [1, 2, 4, 5, 6]


# --- adding ----------------------------------------------------------------------------------------


async def test_added_messages_are_numbered_on_and_count_as_activity(
    store: Store, node: Node, clock: Clock
) -> None:
    session = (await say(store, node, "hello", "hi")).session
    assert await context_of(store, session.id) == ["hello", "hi"]
    later = clock.move(hours=2)
    assert await store.add_messages(OWNER, session.conversation_id, node.id, said("more", "and more")) == 4
    assert await contents(store, session.conversation_id) == ["hello", "hi", "more", "and more"]
    assert await context_of(store, session.id) == ["hello", "hi", "more", "and more"]
    assert (await store.session(OWNER, session.id)).last_activity_at == later
    assert len(await store.search(OWNER, "more")) == 2


async def test_added_messages_make_the_known_history_unknown(store: Store, node: Node) -> None:
    begun = await begin(store, node)
    await store.commit_reply(begun.lease, [to_message("hi", "assistant")], history=b"chain")
    conversation_id = begun.session.conversation_id
    before = (await store.resolve(OWNER, Address(id=conversation_id))).conversation
    assert before.history == b"chain"
    await store.add_messages(OWNER, conversation_id, node.id, said("more"))
    after = (await store.resolve(OWNER, Address(id=conversation_id))).conversation
    assert (after.history, after.last_seq, after.token) == (None, before.last_seq + 1, before.token)


async def test_added_results_answer_the_calls_that_are_awaited(store: Store, node: Node) -> None:
    session = (await say(store, node, "look", calling("a", "b"))).session
    assert (await store.context(OWNER, session.id)).awaited == ("a", "b")
    await store.add_messages(
        OWNER, session.conversation_id, node.id, [to_message(result("a")), to_message(result("b"))]
    )
    assert (await store.context(OWNER, session.id)).awaited == ()
    assert await context_of(store, session.id) == ["look", None, "42", "42"]


async def test_nothing_is_added_while_a_turn_holds_the_conversation(store: Store, node: Node) -> None:
    begun = await begin(store, node)
    async with unchanged(store):
        with pytest.raises(ConversationBusy) as busy:
            await store.add_messages(OWNER, begun.session.conversation_id, node.id, said("me too"))
    assert (busy.value.holder, busy.value.turn_id) == (node.id, begun.turn.id)
    await store.commit_reply(begun.lease, [to_message("hi", "assistant")])
    assert await store.add_messages(OWNER, begun.session.conversation_id, node.id, said("me too")) == 3


async def test_what_a_dead_node_left_is_settled_before_something_is_added(store: Store, node: Node) -> None:
    dead = await new_node(store)
    begun = await begin(store, dead, "hello", attached=True)
    await store.append_draft(begun.lease, draft(0, "I was say"))
    await reap(store, dead)
    conversation_id = begun.session.conversation_id
    assert await store.add_messages(OWNER, conversation_id, node.id, said("go on")) == 3
    assert await contents(store, conversation_id) == ["hello", "I was say", "go on"]
    assert (await store.turn(OWNER, begun.turn.id)).status is TurnStatus.INTERRUPTED
    line = await store.line(OWNER, conversation_id)
    assert [(session.end_reason, session.attached) for session in line] == [("reaped", False), (None, False)]


@pytest.mark.parametrize(
    ("reason", "edge", "shown"),
    [("closed", "resume", ["hello", "hi", "more"]), ("idle", "reset", ["more"]), ("new", "reset", ["more"])],
)
async def test_what_is_added_behind_an_ended_session_opens_the_next(
    store: Store, node: Node, reason: str, edge: str, shown: list[str]
) -> None:
    old = await ended(store, node, reason)
    await store.add_messages(OWNER, old.conversation_id, node.id, said("more"))
    tip = (await store.resolve(OWNER, Address(id=old.id))).tip
    assert (tip.edge, tip.parent_id, tip.attached, tip.first_seq) == (edge, old.id, False, 3)
    assert await context_of(store, tip.id) == shown
    assert (await store.session(OWNER, old.id)).message_count == 2


async def test_adding_to_anothers_attached_session_detaches_it(store: Store, node: Node) -> None:
    elsewhere = await new_node(store)
    session = (await say(store, elsewhere, attached=True)).session
    await store.add_messages(OWNER, session.conversation_id, elsewhere.id, said("mine"))
    assert (await store.session(OWNER, session.id)).attached
    await store.add_messages(OWNER, session.conversation_id, node.id, said("yours"))
    assert not (await store.session(OWNER, session.id)).attached
    assert [event.type for event in await all_events(store)].count("session.detached") == 1


async def test_what_cannot_be_added_leaves_no_trace(store: Store, node: Node) -> None:
    session = (await say(store, node)).session
    gone = await new_node(store)
    await store.leave(gone.id, "closed")
    async with unchanged(store):
        with pytest.raises(BadInput):
            await store.add_messages(OWNER, session.conversation_id, node.id, [])
        with pytest.raises(NotFound):
            await store.add_messages(OTHER, session.conversation_id, node.id, said("x"))
        with pytest.raises(NotFound):
            await store.add_messages(OWNER, new_id("conv"), node.id, said("x"))
        with pytest.raises(NodeReaped):
            await store.add_messages(OWNER, session.conversation_id, gone.id, said("x"))


async def test_additions_and_turns_at_once_leave_no_gap(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    made = await store.create_conversation(OWNER, node.id)

    async def add(by: Store, node_id: str, text: str) -> None:
        while True:
            try:
                await by.add_messages(OWNER, made.id, node_id, said(text))
                return
            except ConversationBusy:
                await asyncio.sleep(0.001)

    await asyncio.gather(
        *(add(store, node.id, f"a{n}") for n in range(20)),
        *(add(second_store, second_node.id, f"b{n}") for n in range(20)),
        say(store, node, id=made.id),
    )
    found = await messages(store, made.id)
    assert [message.seq for message in found] == list(range(1, 43))


# --- taking a part away ----------------------------------------------------------------------------


async def test_a_part_of_a_message_goes_and_the_rest_stays(store: Store, node: Node) -> None:
    session = (await say(store, node, "look", calling("a", "b", "c", content=CANARY))).session
    conversation_id = session.conversation_id
    before = (await store.resolve(OWNER, Address(id=session.id))).conversation
    assert await context_of(store, session.id)
    await store.reduce_message(OWNER, conversation_id, 2, to_message(calling("a", "b", "c")))
    await store.reduce_message(OWNER, conversation_id, 2, to_message(calling("a", "c")), [1])
    (_, message) = await messages(store, conversation_id)
    assert (message.content(), message.gaps) == (calling("a", "c"), (1,))
    assert (await store.context(OWNER, session.id)).awaited == ("a", "c")
    assert (await store.context(OWNER, session.id)).messages()[1] == calling("a", "c")
    after = (await store.resolve(OWNER, Address(id=session.id))).conversation
    assert after.revision > before.revision
    assert [event.data for event in await all_events(store) if event.type == "message.reduced"] == [
        {"seq": 2},
        {"seq": 2},
    ]


async def test_a_result_whose_call_is_taken_away_leaves_the_context_with_it(store: Store, node: Node) -> None:
    session = (await say(store, node, "look", calling("a", "b"), result("a", "1"), result("b", "2"))).session
    assert await context_of(store, session.id) == ["look", None, "1", "2"]
    await store.reduce_message(OWNER, session.conversation_id, 2, to_message(calling("b")), [0])
    assert await context_of(store, session.id) == ["look", None, "2"]


async def test_what_was_taken_away_is_found_no_more_and_what_is_left_still_is(
    store: Store, node: Node
) -> None:
    parts = [{"type": "text", "text": f"my {CANARY}"}, {"type": "text", "text": "my kelp"}]
    made = await store.create_conversation(
        OWNER, node.id, messages=[to_message({"role": "user", "content": parts})]
    )
    await store.repair()  # it is in the index
    assert len(await store.search(OWNER, CANARY)) == 1
    await store.reduce_message(OWNER, made.id, 1, to_message({"role": "user", "content": parts[1:]}))
    for _ in range(2):
        assert await store.search(OWNER, CANARY) == []
        assert [hit.message.seq for hit in await store.search(OWNER, "kelp")] == [1]
        await store.repair()


async def test_a_message_that_loses_part_after_part_is_searched_as_it_is_now(
    store: Store, node: Node
) -> None:
    words = ["kelp", "dulse", "laver", "carrageen", "wrack"]
    parts = [{"type": "text", "text": word} for word in words]
    made = await store.create_conversation(
        OWNER, node.id, messages=[to_message({"role": "user", "content": parts})]
    )
    for number in range(1, len(words)):
        rest = to_message({"role": "user", "content": parts[number:]})
        await store.reduce_message(OWNER, made.id, 1, rest)
        for word in words:
            assert len(await store.search(OWNER, word)) == (word in words[number:]), (word, number)
        if number % 2:
            await store.repair()  # it is in the index, or only behind it


async def test_the_checkpoints_of_a_reduced_reply_are_gone(store: Store, node: Node) -> None:
    begun = await begin(store, node)
    await store.append_draft(begun.lease, draft(0, CANARY))
    answer = (
        b'{"id":"x","choices":[{"finish_reason":"stop","logprobs":{"content":[{"token":"heliotrope"}]}}]}'
    )
    await store.commit_reply(begun.lease, [to_message(calling("a", content=CANARY))], answer=answer)
    await store.reduce_message(OWNER, begun.session.conversation_id, 2, to_message(calling("a")))
    assert await store.drafts(begun.turn.id) == []
    left = await store.turn_answer(begun.turn.id)
    assert left is not None
    assert json.loads(left) == {"id": "x", "choices": [{"finish_reason": "stop"}]}


async def test_a_text_of_one_character_can_go(store: Store, node: Node) -> None:
    session = (await say(store, node, "look", calling("a", content="x"))).session
    await store.reduce_message(OWNER, session.conversation_id, 2, to_message(calling("a")))
    assert (await messages(store, session.conversation_id))[1].content() == calling("a")


async def test_a_message_can_only_lose(store: Store, node: Node) -> None:
    session = (await say(store, node, "look", calling("a", "b"), result("a"))).session
    conversation_id = session.conversation_id
    async with unchanged(store):
        for seq, rest in [
            (1, "loo"),
            (1, "look"),
            (1, "look again"),
            (2, calling("b", "a")),
            (2, calling("a", "c")),
            (2, calling("a", "b", content="said")),
            (2, {"role": "user", "content": None}),
            (2, {**calling("a"), "name": "x"}),
            (3, {**result("a"), "tool_call_id": "b"}),
        ]:
            with pytest.raises(Conflict):
                await store.reduce_message(OWNER, conversation_id, seq, to_message(rest))  # type: ignore[arg-type]


async def test_only_its_owner_takes_from_a_message_that_is_there(store: Store, node: Node) -> None:
    session = (await say(store, node, "look", calling("a", "b"))).session
    await store.delete_message(OWNER, session.conversation_id, 1)
    rest = to_message(calling("a"))
    async with unchanged(store):
        for owner, conversation_id, seq in [
            (OTHER, session.conversation_id, 2),
            (OWNER, new_id("conv"), 2),
            (OWNER, session.conversation_id, 1),
            (OWNER, session.conversation_id, 0),
            (OWNER, session.conversation_id, 9),
        ]:
            with pytest.raises(NotFound):
                await store.reduce_message(owner, conversation_id, seq, rest, [1])


async def test_of_two_who_take_from_the_same_message_the_second_looks_again(store: Store, node: Node) -> None:
    session = (await say(store, node, "look", calling("a", "b", "c"))).session
    told = await asyncio.gather(
        store.reduce_message(OWNER, session.conversation_id, 2, to_message(calling("b", "c")), [0]),
        store.reduce_message(OWNER, session.conversation_id, 2, to_message(calling("a", "c")), [1]),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in told if outcome is not None] == [Conflict]
    (_, message) = await messages(store, session.conversation_id)
    assert len(message.content()["tool_calls"]) == 2


async def test_a_deleted_message_stays_deleted_after_it_was_reduced(store: Store, node: Node) -> None:
    session = (await say(store, node, "look", calling("a", content=CANARY))).session
    await store.reduce_message(OWNER, session.conversation_id, 2, to_message(calling("a")))
    await store.delete_message(OWNER, session.conversation_id, 2)
    assert await contents(store, session.conversation_id) == ["look"]
    assert await store.search(OWNER, CANARY) == []


# --- created once -------------------------------------------------------------------------------------------


def key_of(key: str = "k1", body: bytes = b"one", route: str = "/v1/conversations") -> RequestKey:
    return RequestKey(route, key, body)


async def test_the_same_request_creates_one_conversation_also_when_sent_twice_at_once(
    store: Store, node: Node
) -> None:
    made = await asyncio.gather(
        *(store.create_conversation(OWNER, node.id, request_key=key_of()) for _ in range(5))
    )
    assert len({each.id for each in made}) == 1
    assert (await store.create_conversation(OWNER, node.id, request_key=key_of())).id == made[0].id
    assert (await store.statistics(None)).conversations == 1


async def test_another_key_owner_or_route_is_another_request(store: Store, node: Node) -> None:
    made = [
        await store.create_conversation(OWNER, node.id, request_key=key_of()),
        await store.create_conversation(OTHER, node.id, request_key=key_of()),
        await store.create_conversation(OWNER, node.id, request_key=key_of("k2")),
        await store.create_conversation(OWNER, node.id, request_key=key_of(route="/other")),
        await store.create_conversation(OWNER, node.id),
    ]
    assert len({each.id for each in made}) == 5


async def test_a_key_with_another_body_is_refused_and_nothing_is_created(store: Store, node: Node) -> None:
    await store.create_conversation(OWNER, node.id, request_key=key_of())
    with pytest.raises(RequestMismatch):
        await store.create_conversation(OWNER, node.id, request_key=key_of(body=b"two"))
    assert (await store.statistics(None)).conversations == 1


async def test_the_key_of_a_deleted_conversation_creates_a_new_one(store: Store, node: Node) -> None:
    first = await store.create_conversation(OWNER, node.id, request_key=key_of())
    await store.delete_conversation(OWNER, first.id)
    assert (await store.create_conversation(OWNER, node.id, request_key=key_of(body=b"two"))).id != first.id
