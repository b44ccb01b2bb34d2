"""Browser logins: each belongs to an API key, ends with it, and is limited per key."""

from __future__ import annotations

from datetime import timedelta

from holdfast.domain.api_keys import Scope, new_key
from holdfast.store.store import Store
from tests.contract.steps import Clock

WEEK = timedelta(days=7)


def token(number: int) -> bytes:
    return bytes([number]) * 32


async def test_a_login_stands_for_its_key_until_it_is_ended(store: Store) -> None:
    assert await store.login(token(1)) is None
    await store.add_login(token(1), "key_1", WEEK, 50)
    assert await store.login(token(1)) == "key_1"
    assert await store.login(token(2)) is None
    assert await store.end_login(token(1))
    assert not await store.end_login(token(1))
    assert await store.login(token(1)) is None


async def test_a_login_expires(store: Store, clock: Clock) -> None:
    await store.add_login(token(1), "key_1", WEEK, 50)
    clock.move(seconds=7 * 86_400 - 1)
    assert await store.login(token(1)) == "key_1"
    clock.move(seconds=1)
    assert await store.login(token(1)) is None
    await store.add_login(token(2), "key_2", WEEK, 50)  # which drops what has expired
    assert not await store.end_login(token(1))


async def test_of_too_many_logins_the_oldest_of_that_key_end(store: Store, clock: Clock) -> None:
    await store.add_login(token(99), "key_other", WEEK, 3)
    for number in range(5):
        clock.move(seconds=1)
        await store.add_login(token(number), "key_1", WEEK, 3)
    kept = [number for number in range(5) if await store.login(token(number))]
    assert kept == [2, 3, 4]
    assert await store.login(token(99)) == "key_other", "another key's logins are not touched"


async def test_revoking_a_key_ends_its_logins_and_no_others(store: Store) -> None:
    key, secret = new_key("ada", Scope.CHAT, (), store.now())
    await store.add_key(key, secret.hash)
    await store.add_login(token(1), key.id, WEEK, 50)
    await store.add_login(token(2), "key_other", WEEK, 50)
    await store.revoke_key(key.id, None)
    assert await store.login(token(1)) is None
    assert await store.login(token(2)) == "key_other"
