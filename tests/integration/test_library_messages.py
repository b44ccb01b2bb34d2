"""Messages outside of turns and state, through the library: async and blocking."""

from pathlib import Path

import pytest

import holdfast
from holdfast.errors import BadInput, Conflict


async def test_messages_are_appended_removed_replaced_and_cleared(tmp_path: Path) -> None:
    async with holdfast.open(tmp_path / "store.db") as hf:
        session = await hf.session(key="k", attached=False)

        async def texts(scope: str = "context", limit: int | None = None) -> list[str]:
            return [m.content()["content"] for m in await session.messages(scope, limit=limit)]

        assert await session.append("one") == 1
        assert (
            await session.append([{"role": "assistant", "content": text} for text in ("two", "three")]) == 2
        )
        assert await texts() == ["one", "two", "three"]
        assert await texts(limit=1) == await texts("session", limit=1) == ["three"]
        assert [m.content()["content"] for m in await session.remove_last()] == ["three"]
        assert [m["content"] for m in await session.context()] == ["one", "two"]
        assert await session.replace("short", since=2, last_seq=3) == 4
        assert await texts() == ["one", "short"]
        with pytest.raises(Conflict):
            await session.replace("late", last_seq=3)
        branch = await session.fork(key="branch")
        await session.clear()
        assert await texts() == []
        assert await texts("session") == ["one", "two", "three", "short"]
        assert [m.content()["content"] for m in await branch.messages("context")] == ["one", "short"]
        with pytest.raises(BadInput, match="scope"):
            await session.messages("all")


async def test_a_repeated_append_by_name_is_stored_once(tmp_path: Path) -> None:
    async with holdfast.open(tmp_path / "store.db") as hf:
        session = await hf.session(key="k", attached=False)
        said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        assert await session.append(said, names=["1", "2"]) == 2
        assert await session.append(said, names=["1", "2"]) == 0
        assert await session.append([]) == 0
        with pytest.raises(BadInput, match="names"):
            await session.append(said, names=["3"])


async def test_an_append_waits_for_the_running_turn(tmp_path: Path) -> None:
    settings = {"server": {"busy_wait_seconds": 0.05}}
    async with holdfast.open(tmp_path / "store.db", settings=settings) as hf:
        session = await hf.session(key="k")
        other = await hf.session(key="other")
        async with session.turn("hello"):
            with pytest.raises(holdfast.NestedTurn):
                await session.append("never answered: this program holds the turn itself")
            await other.append("elsewhere")
        await session.append("later")


def test_the_blocking_library_offers_the_same(tmp_path: Path) -> None:
    with holdfast.open_sync(tmp_path / "store.db") as hf:
        session = hf.session(key="k", attached=False)
        session.append("one")
        session.append({"role": "assistant", "content": "two"}, names=["2"])
        assert [m.content()["content"] for m in session.remove_last()] == ["two"]
        session.replace("new")
        assert [m.content()["content"] for m in session.messages("context")] == ["new"]
        session.clear()
        assert session.context() == []
        assert session.update_state({"a": 1, "b": 2}, remove=["b"]) == {"a": 1} == session.state()
