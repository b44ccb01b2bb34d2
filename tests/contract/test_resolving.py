"""Name resolution: the newest continuation, for its owner only."""

from collections.abc import Awaitable, Callable

import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.ids import OUR_PREFIXES, message_id, new_id
from holdfast.domain.nodes import Node
from holdfast.domain.turns import TurnBegun
from holdfast.errors import BadInput, Conflict, NotFound
from holdfast.store.store import Store
from tests.contract.steps import OTHER, OWNER, all_sessions, begin, ended, request, say, unchanged


async def a_line(store: Store, node: Node, length: int = 3) -> list[str]:
    """The ids of the sessions of one conversation with the key `cli:ada`, oldest first."""
    ids = []
    for _ in range(length - 1):
        ids.append((await ended(store, node, "new", key="cli:ada")).id)
    return [*ids, (await say(store, node, key="cli:ada")).session.id]


async def test_every_session_id_leads_to_the_newest_of_its_line(store: Store, node: Node) -> None:
    line = await a_line(store, node)
    for named in line:
        place = await store.resolve(OWNER, Address(id=named))
        assert place.tip.id == place.conversation.tip_id == line[-1]
        assert place.addressed == named


async def test_an_ended_tip_is_still_what_every_id_leads_to(store: Store, node: Node) -> None:
    line = await a_line(store, node, 2)
    await store.end_session(OWNER, line[-1], "new")
    place = await store.resolve(OWNER, Address(id=line[0]))
    assert place.tip.id == line[-1]
    assert place.tip.ended


async def test_the_aliases_of_a_conversation_are_listed_with_the_oldest_first(
    store: Store, node: Node
) -> None:
    begun, other = await say(store, node, key="cli:ada"), await say(store, node, key="cli:bob")
    for name in ("thread b", "thread a"):
        await store.add_alias(OWNER, name, begun.session.conversation_id)
    assert sorted(await store.aliases(OWNER, begun.session.conversation_id)) == ["thread a", "thread b"]
    assert await store.aliases(None, other.session.conversation_id) == []
    with pytest.raises(NotFound):
        await store.aliases(OTHER, begun.session.conversation_id)


async def test_conversation_key_alias_turn_and_message_lead_to_the_tip_without_naming_a_session(
    store: Store, node: Node
) -> None:
    begun = await say(store, node, key="cli:ada")
    conversation = begun.session.conversation_id
    await store.add_alias(OWNER, "outside name", conversation)
    for address in (
        Address(id=conversation),
        Address(key="cli:ada"),
        Address(id="outside name"),
        Address(id=begun.turn.id),
        Address(id=message_id(conversation, 1)),
    ):
        place = await store.resolve(OWNER, address)
        assert (place.conversation.id, place.tip.id, place.addressed) == (
            conversation,
            begun.session.id,
            None,
        )


async def test_a_stale_id_and_the_newest_lead_a_turn_to_the_same_session(store: Store, node: Node) -> None:
    line = await a_line(store, node)
    stale = await begin(store, node, id=line[0])
    assert (stale.session.id, stale.addressed) == (line[-1], line[0])
    await store.commit_reply(stale.lease)
    newest = await begin(store, node, id=line[-1])
    assert (newest.session.id, newest.addressed) == (line[-1], line[-1])


Naming = Callable[[Store, TurnBegun], Awaitable[Address]]


async def by_session(_store: Store, begun: TurnBegun) -> Address:
    return Address(id=begun.session.id)


async def by_conversation(_store: Store, begun: TurnBegun) -> Address:
    return Address(id=begun.session.conversation_id)


async def by_key(_store: Store, _begun: TurnBegun) -> Address:
    return Address(key="cli:ada", create=False)


async def by_alias(store: Store, begun: TurnBegun) -> Address:
    await store.add_alias(OWNER, "outside name", begun.session.conversation_id)
    return Address(id="outside name", create=False)


async def by_turn(_store: Store, begun: TurnBegun) -> Address:
    return Address(id=begun.turn.id)


async def by_message(_store: Store, begun: TurnBegun) -> Address:
    return Address(id=message_id(begun.session.conversation_id, 1))


NAMINGS = [by_session, by_conversation, by_key, by_alias, by_turn, by_message]


@pytest.mark.parametrize("naming", NAMINGS)
async def test_anothers_name_reads_exactly_like_one_that_never_existed(
    store: Store, node: Node, naming: Naming
) -> None:
    begun = await say(store, node, key="cli:ada")
    address = await naming(store, begun)
    assert (await store.resolve(OWNER, address)).tip.id == begun.session.id
    async with unchanged(store):
        with pytest.raises(NotFound) as of_another:
            await store.resolve(OTHER, address)
        with pytest.raises(NotFound) as in_a_turn:
            await store.begin_turn(request(node, id=address.id, key=address.key, create=False, owner=OTHER))
        with pytest.raises(NotFound) as in_opening:
            await store.open_session(OTHER, address, node.id)
    theirs = [str(error.value) for error in (of_another, in_a_turn, in_opening)]
    await store.delete_conversation(OWNER, begun.session.conversation_id)
    with pytest.raises(NotFound) as never:
        await store.resolve(OTHER, address)
    with pytest.raises(NotFound) as never_in_a_turn:
        await store.begin_turn(request(node, id=address.id, key=address.key, create=False, owner=OTHER))
    with pytest.raises(NotFound) as never_in_opening:
        await store.open_session(OTHER, address, node.id)
    assert theirs == [str(error.value) for error in (never, never_in_a_turn, never_in_opening)]


@pytest.mark.parametrize("naming", NAMINGS)
async def test_an_operator_means_all_owners(store: Store, node: Node, naming: Naming) -> None:
    begun = await say(store, node, key="cli:ada")
    place = await store.resolve(None, await naming(store, begun))
    assert place.conversation.owner == OWNER


async def test_an_operator_must_say_whose_when_several_have_the_name(store: Store, node: Node) -> None:
    for owner in (OWNER, OTHER):
        await say(store, node, owner=owner, key="cli:ada")
        await say(store, node, owner=owner, id="outside name")
    with pytest.raises(BadInput, match="several owners"):
        await store.resolve(None, Address(key="cli:ada"))
    with pytest.raises(BadInput, match="several owners"):
        await store.resolve(None, Address(id="outside name"))


@pytest.mark.parametrize("prefix", OUR_PREFIXES)
async def test_an_unknown_id_of_our_form_never_becomes_an_alias(
    store: Store, node: Node, prefix: str
) -> None:
    name = new_id(prefix.removesuffix("_"))
    async with unchanged(store):
        with pytest.raises(NotFound):
            await store.resolve(OWNER, Address(id=name))
        with pytest.raises(NotFound):
            await store.begin_turn(request(node, id=name))
        with pytest.raises(NotFound):
            await store.open_session(OWNER, Address(id=name), node.id)


async def test_an_unknown_foreign_id_becomes_an_alias_by_a_turn(store: Store, node: Node) -> None:
    begun = await say(store, node, id="20260301_120000_ab")
    again = await say(store, node, id="20260301_120000_ab")
    assert again.session.id == begun.session.id
    assert (await store.resolve(OWNER, Address(id="20260301_120000_ab"))).tip.id == begun.session.id


async def test_an_unknown_foreign_id_becomes_an_alias_by_opening_a_session(store: Store, node: Node) -> None:
    session = await store.open_session(OWNER, Address(id="20260301_120000_ab"), node.id)
    assert (await store.resolve(OWNER, Address(id="20260301_120000_ab"))).tip.id == session.id


async def test_an_alias_belongs_to_its_owner(store: Store, node: Node) -> None:
    mine = await say(store, node, id="shared name")
    theirs = await say(store, node, id="shared name", owner=OTHER)
    assert mine.session.conversation_id != theirs.session.conversation_id
    assert (await store.resolve(OWNER, Address(id="shared name"))).conversation.owner == OWNER
    assert (await store.resolve(OTHER, Address(id="shared name"))).conversation.owner == OTHER


async def test_a_key_belongs_to_its_owner(store: Store, node: Node) -> None:
    mine = await say(store, node, key="telegram:dm:42")
    theirs = await say(store, node, key="telegram:dm:42", owner=OTHER)
    assert mine.session.conversation_id != theirs.session.conversation_id


async def test_a_key_and_an_alias_of_the_same_spelling_are_two_names(store: Store, node: Node) -> None:
    by_its_key = await say(store, node, key="same")
    by_its_alias = await say(store, node, id="same")
    assert by_its_key.session.conversation_id != by_its_alias.session.conversation_id


@pytest.mark.parametrize("address", [Address(key="new", create=False), Address(id="new", create=False)])
async def test_a_new_name_opens_nothing_when_it_may_not(store: Store, node: Node, address: Address) -> None:
    async with unchanged(store):
        with pytest.raises(NotFound):
            await store.begin_turn(request(node, id=address.id, key=address.key, create=False))
        with pytest.raises(NotFound):
            await store.open_session(OWNER, address, node.id)


async def test_resolving_opens_nothing(store: Store, node: Node) -> None:
    session = await ended(store, node, "new", key="cli:ada")
    async with unchanged(store):
        assert (await store.resolve(OWNER, Address(id=session.id))).tip.id == session.id
        for address in (Address(), Address(id="unknown"), Address(key="unknown")):
            with pytest.raises(NotFound):
                await store.resolve(OWNER, address)


async def test_no_name_at_all_is_a_new_conversation_each_time(store: Store, node: Node) -> None:
    first, second = await say(store, node), await say(store, node)
    assert first.session.conversation_id != second.session.conversation_id
    assert len(await all_sessions(store)) == 2


async def test_an_alias_given_by_hand_leads_there_and_may_be_given_twice(store: Store, node: Node) -> None:
    session = (await say(store, node)).session
    for _ in range(2):
        await store.add_alias(OWNER, "harbour", session.conversation_id)
    assert (await store.resolve(OWNER, Address(id="harbour"))).tip.id == session.id


async def test_an_alias_that_leads_elsewhere_is_a_conflict(store: Store, node: Node) -> None:
    first, second = (await say(store, node)).session, (await say(store, node)).session
    await store.add_alias(OWNER, "harbour", first.conversation_id)
    async with unchanged(store):
        with pytest.raises(Conflict):
            await store.add_alias(OWNER, "harbour", second.conversation_id)
    assert (await store.resolve(OWNER, Address(id="harbour"))).tip.id == first.id


async def test_an_alias_of_our_form_or_for_anothers_conversation_is_refused(store: Store, node: Node) -> None:
    session = (await say(store, node)).session
    with pytest.raises(BadInput):
        await store.add_alias(OWNER, "sess_mine", session.conversation_id)
    with pytest.raises(NotFound) as of_another:
        await store.add_alias(OTHER, "harbour", session.conversation_id)
    assert str(of_another.value) == f"no conversation {session.conversation_id!r}"
    with pytest.raises(NotFound):
        await store.resolve(OTHER, Address(id="harbour"))


async def test_a_turn_begins_with_its_alias_in_one_transaction(store: Store, node: Node) -> None:
    """A request that names both a key and a new id; the id must lead there even if the server dies now."""
    first = await say(store, node, key="cli:ada", alias="harbour")
    for address in (Address(id="harbour"), Address(key="cli:ada")):
        assert (await store.resolve(OWNER, address)).tip.id == first.session.id
    await begin(store, node, key="cli:ada", alias="pier")
    assert await store.aliases(OWNER, first.session.conversation_id) == ["harbour", "pier"]


async def test_a_turn_begins_although_another_conversation_has_taken_its_alias(
    store: Store, node: Node
) -> None:
    """Decided in the transaction: the name was free when the request was read."""
    first = await begin(store, node, key="cli:ada", alias="harbour")
    second = await begin(store, node, key="cli:bob", alias="harbour")
    assert (await store.resolve(OWNER, Address(id="harbour"))).tip.id == first.session.id
    assert await store.aliases(OWNER, second.session.conversation_id) == []


@pytest.mark.parametrize("name", ["' OR 1=1 --", "a;b", "%", "ключ", "\U0001f41a", "x" * 512, "tab\there"])
async def test_any_text_can_be_a_name(store: Store, node: Node, name: str) -> None:
    await say(store, node)
    by_its_key = (await say(store, node, key=name)).session
    by_its_alias = (await say(store, node, id=name)).session
    assert (await store.resolve(OWNER, Address(key=name))).tip.id == by_its_key.id
    assert (await store.resolve(OWNER, Address(id=name))).tip.id == by_its_alias.id


async def test_what_one_store_object_opens_another_resolves_at_once(
    store: Store, node: Node, second_store: Store
) -> None:
    session = (await say(store, node, key="cli:ada")).session
    assert (await second_store.resolve(OWNER, Address(key="cli:ada"))).tip.id == session.id


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (Address(id="sess_" + "0" * 32), "no session 'sess_"),
        (Address(id="conv_" + "0" * 32), "no conversation 'conv_"),
        (Address(id="elsewhere", create=False), "no session 'elsewhere'"),
        (Address(key="cli:nobody", create=False), "no conversation 'cli:nobody'"),
    ],
)
async def test_what_is_not_there_is_called_what_it_is(
    store: Store, node: Node, address: Address, said: str
) -> None:
    for asked in (store.resolve(OWNER, address), store.open_session(OWNER, address, node.id)):
        with pytest.raises(NotFound) as unknown:
            await asked
        assert str(unknown.value).startswith(said)
