"""`holdfast pair`: who has asked, who may write, and codes that work once."""

from __future__ import annotations

import asyncio

from holdfast.domain.connectors import Incoming
from holdfast.store.sqlite.engine import open_store
from tests.unit.cli.conftest import Home

KEY = "agent:main:telegram:dm:42"


def ask(home: Home, person: str, code: str) -> None:
    """A stranger writes to a bot."""

    async def write() -> None:
        store = await open_store(home.store)
        try:
            event = Incoming("1", f"dm:{person}", f"telegram:dm:{person}", person, "let me in", name="Bob")
            assert await store.ask_pairing("phone", event, code)
        finally:
            await store.close()

    asyncio.run(write())


def test_a_code_lets_a_person_in_once_until_it_is_revoked(home: Home) -> None:
    assert "no one has written to a connector yet" in home.run("pair").stderr
    home.ok("run", "hello")
    ask(home, "42", "AAAA-BBBB")
    shown = home.ok("pair", "list")
    assert "42 Bob" in shown and "pending" in shown and "AAAA" not in shown
    said = home.ok("pair", "approve", "aaaa bbbb", "--owner", "ada", "--key", KEY)
    assert f"42 Bob may write through phone, as owner ada, key {KEY}." in " ".join(said.split())
    again = home.run("pair", "approve", "AAAA-BBBB")
    assert again.returncode == 1 and "AAAA-BBBB" in again.stderr
    (pairing,) = home.json("pair", "list")["data"]
    assert (pairing["state"], pairing["owner"], pairing["key"]) == ("approved", "ada", KEY)
    for _ in range(2):
        assert "42 may no longer write through phone." in home.ok("pair", "revoke", pairing["id"])
    assert [each["state"] for each in home.json("pair", "list")["data"]] == ["revoked"]


def test_a_person_is_an_owner_of_their_own_unless_another_is_named(home: Home) -> None:
    home.ok("run", "hello")
    ask(home, "43", "CCCC-DDDD")
    found = home.json("pair", "approve", "CCCC-DDDD")
    assert (found["owner"], found["key"]) == ("phone/43", "telegram:dm:43")
    assert home.run("pair", "approve", "CCCC-DDDD", "--owner", "*").returncode == 2
