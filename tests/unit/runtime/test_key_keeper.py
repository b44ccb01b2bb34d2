"""Which keys open the server, and how soon a revoked one does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.domain import api_keys
from holdfast.domain.api_keys import TOOLS, ApiKey, Scope, Token, new_key
from holdfast.errors import BadKey, StoreClosed
from holdfast.runtime.agents import authenticator
from holdfast.runtime.agents.authenticator import Authenticator
from holdfast.store.sqlite.engine import SQLiteStore, open_store
from tests.unit.runtime.conftest import Clock


class Seconds:
    """A monotonic time that only moves when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Asked:
    """Counts what the keeper asks of its store."""

    def __init__(self, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys: list[str] = []
        self.versions = 0
        key, version = store.key, store.version

        async def counted_key(key_id: str) -> tuple[ApiKey, bytes] | None:
            self.keys.append(key_id)
            return await key(key_id)

        def counted_version() -> int:
            self.versions += 1
            return version()

        monkeypatch.setattr(store, "key", counted_key)
        monkeypatch.setattr(store, "version", counted_version)


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


@pytest.fixture
def keeper(store: SQLiteStore, seconds: Seconds) -> Authenticator:
    return Authenticator(store, None, TOOLS, monotonic=seconds)


@pytest.fixture
async def elsewhere(store: SQLiteStore, tmp_path: Path, clock: Clock) -> AsyncIterator[SQLiteStore]:
    """The same database, as another process has it open."""
    opened = await open_store(tmp_path / "store.db", clock=clock)
    yield opened
    await opened.close()


async def made(
    store: SQLiteStore, owner: str = "ada", scope: Scope = Scope.CHAT, *tools: str
) -> tuple[ApiKey, Token]:
    key, token = new_key(owner, scope, tools, store.now())
    await store.add_key(key, token.hash)
    return key, token


async def refused(authenticating: Awaitable[ApiKey]) -> str:
    with pytest.raises(BadKey) as told:
        await authenticating
    return str(told.value)


async def test_a_key_is_recognised_by_its_token(store: SQLiteStore, keeper: Authenticator) -> None:
    for scope in Scope:
        key, token = await made(store, "ada", scope, "search")
        assert await keeper.authenticate(str(token)) == key
        assert await keeper.is_valid(key)


async def test_a_key_has_only_the_tools_that_the_settings_name_as_well(store: SQLiteStore) -> None:
    _, token = await made(store, "ada", Scope.CHAT, "search", "terminal")
    for named in ([], ["memory"], ["search", "memory"]):
        keeper = Authenticator(store, None, named)
        assert (await keeper.authenticate(str(token))).tools == {"search", "terminal"} & set(named)


async def test_every_kind_of_wrong_key_is_refused_in_the_same_words(
    store: SQLiteStore, keeper: Authenticator
) -> None:
    key, token = await made(store)
    revoked, its_token = await made(store)
    await store.revoke_key(revoked.id, None)
    _, stranger = new_key("ada", Scope.CHAT, (), store.now())
    wrong = [
        None,
        "",
        "sk-whatever",
        str(stranger),
        str(replace(token, secret=stranger.secret)),
        str(replace(stranger, secret=token.secret)),
        str(token)[:-1],
        f"{token} ",
        str(its_token),
        key.id,
        "\ud800",
    ]
    (told,) = {await refused(keeper.authenticate(text)) for text in [*wrong, *wrong]}
    assert not [text for text in wrong if text and text in told]


async def test_secrets_are_compared_in_constant_time(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr(api_keys, "compare_digest", compare)
    keeper = Authenticator(store, "from the environment")
    _, token = await made(store)
    _, other = await made(store)
    wrong = replace(token, secret=other.secret)
    for _ in range(2):  # the second time from memory
        await keeper.authenticate(str(token))
        await refused(keeper.authenticate(str(wrong)))
        await keeper.authenticate("from the environment")
    by_secret = [pair for pair in compared if token.hash in pair]
    assert by_secret == [(token.hash, token.hash), (wrong.hash, token.hash)] * 2
    assert len(compared) - len(by_secret) == 6, "the environment's key is compared so as well"


# --- revoking ------------------------------------------------------------------------------------------


async def test_a_key_revoked_by_another_process_opens_nothing_a_second_later(
    store: SQLiteStore, elsewhere: SQLiteStore, keeper: Authenticator, seconds: Seconds
) -> None:
    key, token = await made(store)
    _, spared = await made(store)
    await keeper.authenticate(str(token))
    await keeper.authenticate(str(spared))
    await elsewhere.revoke_key(key.id, None)
    seconds.now += authenticator.RECHECK_SECONDS
    await refused(keeper.authenticate(str(token)))
    assert not await keeper.is_valid(key)
    assert (await keeper.authenticate(str(spared))).id == spared.key_id
    assert authenticator.RECHECK_SECONDS <= 2


async def test_a_key_revoked_by_this_process_opens_nothing_a_second_later(
    store: SQLiteStore, keeper: Authenticator, seconds: Seconds
) -> None:
    key, token = await made(store)
    await keeper.authenticate(str(token))
    await store.revoke_key(key.id, None)
    seconds.now += authenticator.RECHECK_SECONDS
    assert not await keeper.is_valid(key)
    await refused(keeper.authenticate(str(token)))


async def test_a_new_key_opens_at_once_though_it_was_refused_before(
    store: SQLiteStore, elsewhere: SQLiteStore, keeper: Authenticator
) -> None:
    key, token = new_key("ada", Scope.CHAT, (), store.now())
    await refused(keeper.authenticate(str(token)))
    await elsewhere.add_key(key, token.hash)
    assert (await keeper.authenticate(str(token))).id == key.id


async def test_a_revocation_that_falls_between_version_and_row_is_not_missed(
    store: SQLiteStore,
    elsewhere: SQLiteStore,
    keeper: Authenticator,
    seconds: Seconds,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key, token = await made(store)
    read = store.key

    async def revoked_right_after(key_id: str) -> tuple[ApiKey, bytes] | None:
        found = await read(key_id)
        await elsewhere.revoke_key(key_id, None)
        return found

    monkeypatch.setattr(store, "key", revoked_right_after)
    await keeper.authenticate(str(token))
    monkeypatch.setattr(store, "key", read)
    seconds.now += authenticator.RECHECK_SECONDS
    assert not await keeper.is_valid(key)


# --- what it costs -------------------------------------------------------------------------------------


async def test_a_request_on_the_hot_path_asks_the_store_nothing(
    store: SQLiteStore, keeper: Authenticator, seconds: Seconds, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, token = await made(store)
    asked = Asked(store, monkeypatch)
    for _ in range(100):
        await keeper.authenticate(str(token))
        await keeper.is_valid(key)
    assert (asked.keys, asked.versions) == ([key.id], 1)
    for _ in range(10):  # nothing is committed meanwhile: only the version is asked for, once a second
        seconds.now += authenticator.RECHECK_SECONDS
        for _ in range(10):
            await keeper.authenticate(str(token))
    assert (asked.keys, asked.versions) == ([key.id], 11)


async def test_while_others_write_all_the_time_a_key_is_read_once_a_second(
    store: SQLiteStore, keeper: Authenticator, seconds: Seconds, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, token = await made(store)
    await keeper.authenticate(str(token))
    asked = Asked(store, monkeypatch)
    for _ in range(4):
        for _ in range(5):
            await made(store)
            seconds.now += authenticator.RECHECK_SECONDS / 5
            await asyncio.gather(*(keeper.authenticate(str(token)) for _ in range(20)))
    assert asked.keys == [key.id] * 4, "twenty at once ask once"


async def test_what_is_remembered_is_bounded_and_guesses_are_not_remembered(
    store: SQLiteStore, keeper: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authenticator, "MOST_KEYS", 3)
    tokens = [(await made(store))[1] for _ in range(5)]
    for _ in range(2):
        for token in tokens:
            assert (await keeper.authenticate(str(token))).id == token.key_id
    for _ in range(10):
        await refused(keeper.authenticate(str(new_key("ada", Scope.CHAT, (), store.now())[1])))
    assert [*keeper._known] == [token.key_id for token in tokens[2:]]


# --- trouble -------------------------------------------------------------------------------------------


def failing(error: BaseException) -> Callable[[str], Awaitable[None]]:
    async def fail(key_id: str) -> None:
        raise error

    return fail


@pytest.mark.parametrize("error", [StoreClosed("gone"), asyncio.CancelledError()], ids=["store", "cancelled"])
async def test_a_key_that_could_not_be_asked_about_is_asked_about_again(
    store: SQLiteStore,
    keeper: Authenticator,
    seconds: Seconds,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    key, token = await made(store)
    await keeper.authenticate(str(token))
    await store.revoke_key(key.id, None)
    seconds.now += authenticator.RECHECK_SECONDS
    with monkeypatch.context() as patched:
        patched.setattr(store, "key", failing(error))
        for _ in range(2):
            with pytest.raises(type(error)):
                await keeper.authenticate(str(token))
    await refused(keeper.authenticate(str(token)))


# --- the environment's key -----------------------------------------------------------------------------


async def test_the_environments_key_is_an_admin_of_the_default_owner_with_the_settings_tools(
    store: SQLiteStore,
) -> None:
    keeper = Authenticator(store, "open sesame\n", ["terminal"])
    key = await keeper.authenticate("open sesame")
    assert (key.owner, key.scope, key.tools) == ("default", Scope.ADMIN, frozenset({"terminal"}))
    assert await keeper.is_valid(key)
    assert await store.keys(None) == [], "it is not the store's"
    for wrong in ("open sesam", "open sesame ", "open sésame", "Open sesame"):
        await refused(keeper.authenticate(wrong))


@pytest.mark.parametrize("empty", [None, "", "  "])
async def test_an_empty_key_in_the_environment_opens_nothing(store: SQLiteStore, empty: str | None) -> None:
    keeper = Authenticator(store, empty)
    for token in (None, "", "  "):
        await refused(keeper.authenticate(token))


async def test_other_keys_open_beside_the_environments(store: SQLiteStore) -> None:
    keeper = Authenticator(store, "open sesame")
    key, token = await made(store)
    assert await keeper.authenticate(str(token)) == key
