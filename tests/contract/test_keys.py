"""API keys: found by their hash, revoked for good, bound to their owner."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from holdfast.domain.api_keys import ApiKey, LimitReached, RateLimits, Scope, Token, new_key
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


# --- expiry, last use and limits -----------------------------------------------------------------------


async def test_a_key_keeps_its_name_expiry_and_limits(store: Store) -> None:
    limits = RateLimits(1, 2, 3, 4)
    key, token = new_key(OWNER, Scope.CHAT, (), store.now(), name="laptop", expires_days=2, limits=limits)
    await store.add_key(key, token.hash)
    assert key.expires_at == store.now() + timedelta(days=2)
    assert await store.key(key.id) == (key, token.hash)
    assert not key.has_expired(store.now())
    assert key.has_expired(key.expires_at)


async def test_the_last_use_of_a_key_only_moves_forward(store: Store, clock: Clock) -> None:
    key, _ = await made(store)
    clock.move(seconds=1)
    revoked, _ = await made(store)
    await store.revoke_key(revoked.id, None)
    early, late = store.now(), clock.move(seconds=70)
    await store.note_key_uses({key.id: late, revoked.id: late, "key_unknown": late})
    await store.note_key_uses({key.id: early})
    used, unused = await store.keys(OWNER)
    assert used == replace(key, last_used_at=late)
    assert unused.last_used_at is None


async def limited(store: Store, **limits: int) -> tuple[str, RateLimits]:
    key, token = new_key(OWNER, Scope.CHAT, (), store.now(), limits=RateLimits(**limits))
    await store.add_key(key, token.hash)
    return key.id, key.limits


async def test_requests_are_counted_in_each_minute_and_day(store: Store, clock: Clock) -> None:
    clock.move(seconds=-clock().timestamp() % 86400)
    key_id, limits = await limited(store, requests_per_minute=2, requests_per_day=3)
    clock.move(seconds=20)
    for _ in range(2):
        assert await store.count_request(key_id, limits) is None
    minute_is_full = LimitReached("requests_per_minute", 2, timedelta(seconds=40))
    async with unchanged(store):
        assert await store.count_request(key_id, limits) == minute_is_full
    clock.move(seconds=40)
    assert await store.count_request(key_id, limits) is None
    clock.move(seconds=60)
    day_is_full = LimitReached("requests_per_day", 3, timedelta(days=1) - timedelta(seconds=120))
    assert await store.count_request(key_id, limits) == day_is_full
    clock.move(hours=24)
    assert await store.count_request(key_id, limits) is None


async def test_a_request_is_refused_once_the_tokens_of_a_window_are_used_up(
    store: Store, clock: Clock
) -> None:
    clock.move(seconds=-clock().timestamp() % 86400)
    key_id, limits = await limited(store, tokens_per_minute=10, tokens_per_day=25)
    assert await store.count_request(key_id, limits) is None
    await store.spend_tokens(key_id, 9)
    assert await store.count_request(key_id, limits) is None
    await store.spend_tokens(key_id, 9)
    reached = await store.count_request(key_id, limits)
    assert reached == LimitReached("tokens_per_minute", 10, timedelta(minutes=1))
    clock.move(seconds=60)
    assert await store.count_request(key_id, limits) is None
    await store.spend_tokens(key_id, 7)
    reached = await store.count_request(key_id, limits)
    assert reached is not None
    assert (reached.name, reached.retry_after) == ("tokens_per_day", timedelta(days=1, minutes=-1))


async def test_a_clock_that_is_behind_opens_no_window_again(store: Store, clock: Clock) -> None:
    clock.move(seconds=-clock().timestamp() % 60)
    key_id, limits = await limited(store, requests_per_minute=1)
    assert await store.count_request(key_id, limits) is None
    clock.move(seconds=-1)
    reached = await store.count_request(key_id, limits)
    assert reached == LimitReached("requests_per_minute", 1, timedelta(seconds=61))


async def test_a_clock_that_was_ahead_for_a_moment_does_not_refuse_a_key_for_as_long(
    store: Store, clock: Clock
) -> None:
    clock.move(seconds=-clock().timestamp() % 86400)
    key_id, limits = await limited(store, requests_per_minute=2, tokens_per_day=5)
    clock.move(hours=24 * 365)
    assert await store.count_request(key_id, limits) is None
    await store.spend_tokens(key_id, 5)
    clock.move(hours=-24 * 365)
    for _ in range(3):
        for _ in range(2):
            assert await store.count_request(key_id, limits) is None
        assert await store.count_request(key_id, limits) == LimitReached(
            "requests_per_minute", 2, timedelta(minutes=1)
        )
        clock.move(seconds=60)
    clock.move(hours=24 * 365)
    await store.spend_tokens(key_id, 5)
    clock.move(hours=-24 * 365)
    await store.spend_tokens(key_id, 4)
    assert await store.count_request(key_id, limits) is None


async def test_of_many_requests_on_two_nodes_exactly_the_limit_is_let_in(
    store: Store, second_store: Store
) -> None:
    key_id, limits = await limited(store, requests_per_day=25)
    told = await asyncio.gather(
        *(each.count_request(key_id, limits) for _ in range(30) for each in (store, second_store))
    )
    assert sum(reached is None for reached in told) == 25
