"""The local key: one per home, known to every store it is used with."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast import local_server as local_keys
from holdfast.domain.api_keys import TOOLS, Scope, Token, new_key, parse_token
from holdfast.errors import BadSetting, StoreBusy
from holdfast.local_server import ensure_local_key, local_key
from holdfast.runtime.agents.authenticator import Authenticator
from holdfast.store.sqlite.engine import SQLiteStore, open_store

ASK = """
import asyncio, sys
from pathlib import Path
from holdfast.local_server import ensure_local_key
from holdfast.store.sqlite.engine import open_store

async def ask():
    store = await open_store(Path(sys.argv[1]))
    sys.stdin.readline()
    print(*await ensure_local_key(store, Path(sys.argv[2])))
    await store.close()

print("ready", flush=True)
asyncio.run(ask())
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
async def another_store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    opened = await open_store(tmp_path / "another.db")
    yield opened
    await opened.close()


def id_in(text: str) -> str:
    token = parse_token(text)
    assert token is not None
    return token.key_id


async def test_the_first_who_asks_makes_it_and_the_next_gets_the_same(store: SQLiteStore, home: Path) -> None:
    assert local_key(home) is None
    token, created = await ensure_local_key(store, home)
    assert created
    assert await ensure_local_key(store, home) == (token, False)
    assert local_key(home) == token
    (key,) = await store.keys(None)
    assert (key.owner, key.scope, key.tools) == ("default", Scope.ADMIN, frozenset(TOOLS))
    assert await Authenticator(store, None, TOOLS).authenticate(token) == key


async def test_it_is_for_its_owner_alone(store: SQLiteStore, home: Path) -> None:
    before = os.umask(0)
    try:
        await ensure_local_key(store, home)
    finally:
        os.umask(before)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "api.key").stat().st_mode) == 0o600
    assert [path.name for path in home.iterdir()] == ["api.key"], "nothing is left beside it"


async def test_a_file_that_others_can_read_is_closed_and_told_of(
    store: SQLiteStore, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token, _ = await ensure_local_key(store, home)
    (home / "api.key").chmod(0o644)
    with caplog.at_level(logging.WARNING):
        assert await ensure_local_key(store, home) == (token, False)
    assert stat.S_IMODE((home / "api.key").stat().st_mode) == 0o600
    assert "was readable by other users" in caplog.text
    assert token not in caplog.text


async def test_a_store_that_does_not_know_it_yet_learns_it(
    store: SQLiteStore, another_store: SQLiteStore, home: Path
) -> None:
    token, _ = await ensure_local_key(store, home)
    assert await ensure_local_key(another_store, home) == (token, False)
    for each in (store, another_store):
        assert (await Authenticator(each).authenticate(token)).scope is Scope.ADMIN


async def test_a_revoked_one_is_replaced(store: SQLiteStore, home: Path) -> None:
    old, _ = await ensure_local_key(store, home)
    await store.revoke_key(id_in(old), None)
    token, created = await ensure_local_key(store, home)
    assert created
    assert token != old
    assert local_key(home) == token
    assert (await Authenticator(store).authenticate(token)).id == id_in(token)
    assert len([key for key in await store.keys(None) if key.revoked_at is None]) == 1


async def test_one_whose_secret_is_not_the_stores_is_replaced(store: SQLiteStore, home: Path) -> None:
    old, _ = await ensure_local_key(store, home)
    _, other = new_key("ada", Scope.CHAT, (), store.now())
    (home / "api.key").write_text(str(Token(id_in(old), other.secret)))
    token, created = await ensure_local_key(store, home)
    assert created
    assert (await Authenticator(store).authenticate(token)).id == id_in(token)


@pytest.mark.parametrize("damaged", [b"", b"\n", b"hf_", b"\xff\xfe\x00", b"hello"])
async def test_a_file_that_holds_no_key_is_replaced(store: SQLiteStore, home: Path, damaged: bytes) -> None:
    home.mkdir()
    (home / "api.key").write_bytes(damaged)
    assert local_key(home) is None
    token, created = await ensure_local_key(store, home)
    assert created
    assert local_key(home) == token


async def test_who_died_before_the_store_knew_it_is_finished_by_the_next(
    store: SQLiteStore, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(store, "add_key", die)
        with pytest.raises(ZeroDivisionError):
            await ensure_local_key(store, home)
    token, created = await ensure_local_key(store, home)
    assert not created
    assert (await Authenticator(store).authenticate(token)).id == id_in(token)


@pytest.mark.parametrize("revoked", [False, True], ids=["none yet", "revoked"])
async def test_tasks_that_ask_at_once_get_the_same_one(store: SQLiteStore, home: Path, revoked: bool) -> None:
    if revoked:
        await store.revoke_key(id_in((await ensure_local_key(store, home))[0]), None)
    told = await asyncio.gather(*(ensure_local_key(store, home) for _ in range(10)))
    assert len({token for token, _ in told}) == 1
    assert [created for _, created in told].count(True) == 1
    assert len([key for key in await store.keys(None) if key.revoked_at is None]) == 1


async def test_processes_that_ask_at_once_get_the_same_one(
    store: SQLiteStore, home: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", ASK, str(tmp_path / "store.db"), str(home)]
    asking = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    for process in asking:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in asking:
        assert process.stdin is not None
        process.stdin.write("now\n")
        process.stdin.flush()
    told = [process.communicate(timeout=60)[0].split() for process in asking]
    assert len({token for token, _ in told}) == 1
    assert [created for _, created in told].count("True") == 1
    (key,) = await store.keys(None)
    assert key.id == id_in(told[0][0])


async def test_who_waits_too_long_for_another_process_says_so(
    store: SQLiteStore, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_keys, "LOCAL_KEY_PATIENCE_SECONDS", 0.1)
    home.mkdir()
    async with local_keys._alone(home):
        with pytest.raises(StoreBusy, match="another process"):
            await ensure_local_key(store, home)
    await ensure_local_key(store, home)


async def test_a_home_that_cannot_be_used_is_named(store: SQLiteStore, home: Path) -> None:
    home.write_text("a file")
    for asking in (ensure_local_key(store, home), ensure_local_key(store, home / "below")):
        with pytest.raises(BadSetting, match=r"api\.key.*HOLDFAST_HOME"):
            await asking
    with pytest.raises(BadSetting, match=r"api\.key"):
        local_key(home)
    assert await store.keys(None) == []


async def test_a_file_in_the_keys_place_that_cannot_be_read_is_named(store: SQLiteStore, home: Path) -> None:
    (home / "api.key").mkdir(parents=True)
    with pytest.raises(BadSetting, match=r"api\.key"):
        await ensure_local_key(store, home)
