"""API keys: found by their hash, revoked for good, bound to their owner."""

import asyncio

import msgspec
import pytest

from holdfast.domain.api_keys import ApiKey, Scope, Token, new_key
from holdfast.errors import Conflict, NotFound
from holdfast.store.store import Store
from tests.contract.steps import OTHER, OWNER, Clock, all_events, unchanged


async def made(
    store: Store, owner: str = OWNER, scope: Scope = Scope.CHAT, *tools: str
) -> tuple[ApiKey, Token]:
    key, token = new_key(owner, scope, tools, store.now())
    await store.add_key(key, token.hash)
    return key, token


async def test_a_key_is_found_by_its_id_with_the_hash_of_its_secret(store: Store) -> None:
    for scope in Scope:
        key, token = await made(store, OWNER, scope, "terminal", "search")
        assert await store.key(key.id) == (key, token.hash)
    assert await store.key("key_unknown") is None


async def test_a_key_remembers_whether_its_requests_are_kept(store: Store) -> None:
    key, token = new_key(OWNER, Scope.CHAT, (), store.now(), keeps=False)
    await store.add_key(key, token.hash)
    kept, _ = await made(store)
    assert [each.keeps for each in await store.keys(OWNER) if each.id == key.id] == [False]
    assert [each.keeps for each in await store.keys(OWNER) if each.id == kept.id] == [True]
    assert await store.key(key.id) == (key, token.hash)


async def test_a_key_is_seen_by_another_process_at_once(store: Store, second_store: Store) -> None:
    version = second_store.version()
    key, token = await made(store)
    assert await second_store.changed(version, 5)
    assert await second_store.key(key.id) == (key, token.hash)
    version = second_store.version()
    assert await store.revoke_key(key.id, None)
    assert await second_store.changed(version, 5)
    found = await second_store.key(key.id)
    assert found is not None
    assert found[0].revoked_at == store.now()


async def test_keys_are_listed_by_owner_in_the_order_they_were_made(store: Store, clock: Clock) -> None:
    keys = []
    for owner in (OWNER, OTHER, OWNER):
        keys.append((await made(store, owner))[0])
        clock.move(seconds=1)
    assert await store.keys(OWNER) == [keys[0], keys[2]]
    assert await store.keys(OTHER) == [keys[1]]
    assert await store.keys(None) == keys
    assert await store.keys("nobody") == []


async def test_a_key_can_be_revoked_once_and_stays_in_the_list(store: Store, clock: Clock) -> None:
    key, token = await made(store)
    at = clock.move(seconds=5)
    assert await store.revoke_key(key.id, OWNER)
    clock.move(seconds=5)
    assert not await store.revoke_key(key.id, OWNER)
    (listed,) = await store.keys(OWNER)
    assert listed.revoked_at == at
    assert await store.key(key.id) == (listed, token.hash)


async def test_a_revoked_key_cannot_be_added_again(store: Store) -> None:
    key, token = await made(store)
    await store.revoke_key(key.id, OWNER)
    with pytest.raises(Conflict):
        await store.add_key(key, token.hash)
    (listed,) = await store.keys(OWNER)
    assert listed.revoked_at is not None


async def test_an_id_that_is_known_keeps_its_owner_and_secret(store: Store) -> None:
    key, token = await made(store)
    stranger, other = new_key(OTHER, Scope.ADMIN, (), store.now())
    async with unchanged(store):
        with pytest.raises(Conflict, match=key.id):
            await store.add_key(
                ApiKey(key.id, stranger.owner, stranger.scope, stranger.tools, stranger.created_at),
                other.hash,
            )
    assert await store.key(key.id) == (key, token.hash)


async def test_of_two_processes_that_add_the_same_key_one_does(store: Store, second_store: Store) -> None:
    key, token = new_key(OWNER, Scope.ADMIN, (), store.now())
    told = await asyncio.gather(
        store.add_key(key, token.hash), second_store.add_key(key, token.hash), return_exceptions=True
    )
    assert sorted(type(outcome).__name__ for outcome in told) == ["Conflict", "NoneType"]
    assert await store.keys(None) == [key]


async def test_another_owners_key_is_like_one_that_never_existed(store: Store) -> None:
    theirs, _ = await made(store, OTHER)
    async with unchanged(store):
        for unknown in (theirs.id, "key_never"):
            with pytest.raises(NotFound) as told:
                await store.revoke_key(unknown, OWNER)
            assert str(told.value) == f"no API key {unknown!r}"
    assert await store.revoke_key(theirs.id, None), "an operator reaches all"


async def test_keys_leave_events_that_never_hold_the_secret(store: Store) -> None:
    key, token = await made(store, OWNER, Scope.BRIDGE)
    await store.revoke_key(key.id, None)
    await store.revoke_key(key.id, None)
    created, revoked = await store.events(owner=OWNER)
    assert (created.type, created.data) == ("key.created", {"key_id": key.id, "scope": "bridge"})
    assert (revoked.type, revoked.data) == ("key.revoked", {"key_id": key.id})
    told = msgspec.json.encode(await all_events(store))
    assert token.secret.encode() not in told
    assert token.hash.hex().encode() not in told
