"""What a program can list, search, read, delete and export: in both APIs."""

from __future__ import annotations

import asyncio
import json
import os
import pydoc
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.domain.ids import short
from holdfast.errors import NotFound, StoreClosed

OTHER = "bob"


async def told(path: Path) -> None:
    """Two conversations of one owner, one of another."""
    async with holdfast.open(path, owner=OTHER) as hf:
        session = await hf.session(key="cli:bob")
        async with session.turn("the secret lighthouse") as turn:
            await turn.append("safe")
    async with holdfast.open(path) as hf:
        for key in ("cli:ada", "web:ada"):
            session = await hf.session(key=key, attached=False)
            async with session.turn(f"the lighthouse of {key}") as turn:
                await turn.append("forty metres")
            await session.end("new")
            async with session.turn("again") as turn:
                await turn.append("yes")


async def test_a_program_lists_searches_reads_deletes_and_exports(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    await told(path)
    async with holdfast.open(path) as hf:
        assert [each.key for each in await hf.sessions()] == ["web:ada"] * 2 + ["cli:ada"] * 2
        newest = await hf.sessions(newest=True)
        assert [each.key for each in newest] == ["web:ada", "cli:ada"]
        assert await hf.sessions(newest=True, limit=1) == newest[:1]
        assert await hf.sessions(newest=True, after=newest[0].id) == newest[1:]
        assert [each.key for each in await hf.sessions(source="web", ended=False)] == ["web:ada"]
        found = await hf.search("lighthouse")
        assert {each.key for each in found} == {"cli:ada", "web:ada"}
        assert [each.key for each in await hf.search("lighthouse", source="web")] == ["web:ada"]
        assert await hf.search("lighthouse", role="tool") == []
        conversation = await hf.conversation("web:ada")
        assert conversation == await hf.conversation(short(newest[0].id))
        assert conversation.metadata == {}
        session = await hf.session(key="web:ada")
        await session.set_title("Lighthouses")
        assert [each.key for each in await hf.sessions(title="lighthouses", newest=True)] == ["web:ada"]
        lines = [json.loads(line) async for line in hf.export("web:ada")]
        assert lines[1]["record"] == "conversation"
        everything = [line async for line in hf.export()]
        assert len(everything) > len(lines)
        assert not any(b"secret" in line for line in everything)
        await hf.delete("web:ada")
        for call in (hf.conversation("web:ada"), hf.delete("web:ada"), hf.conversation("cli:bob")):
            with pytest.raises(NotFound):
                await call
        assert [each.key for each in await hf.sessions(newest=True)] == ["cli:ada"]


def test_the_same_without_an_event_loop(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    asyncio.run(told(path))
    with holdfast.open_sync(path) as hf:
        assert [each.key for each in hf.sessions(newest=True)] == ["web:ada", "cli:ada"]
        assert len(hf.search("lighthouse")) == 2
        assert len(hf.search("lighthouse", source="web", since=datetime(2026, 1, 1, tzinfo=UTC))) == 1
        assert hf.search("lighthouse", since=datetime(2999, 1, 1, tzinfo=UTC)) == []
        assert hf.conversation("cli:ada").key == "cli:ada"
        assert json.loads(list(hf.export("cli:ada"))[1])["record"] == "conversation"
        assert len(list(hf.export())) > len(list(hf.export("cli:ada")))
        hf.session(key="cli:ada").set_title("Lighthouses")
        assert hf.conversation("cli:ada").title == "Lighthouses"
        hf.delete("cli:ada")
        with pytest.raises(NotFound):
            hf.delete("cli:ada")
        with pytest.raises(NotFound):
            list(hf.export("cli:ada"))
        assert [each.key for each in hf.sessions(newest=True)] == ["web:ada"]


def test_a_conversation_begins_with_a_history_once(tmp_path: Path) -> None:
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "my name is Ada"},
        {"role": "assistant", "content": "Hello Ada"},
    ]
    for _ in range(2):
        with holdfast.open_sync(tmp_path / "agent.db") as hf:
            session = hf.session(key="cli:ada", attached=False)
            session.append(history, names=["old-1", "old-2"])
            assert session.context() == history


def test_every_public_member_says_what_it_does() -> None:
    shown = pydoc.plain(pydoc.render_doc(holdfast))
    assert all(name in shown for name in ("open(", "open_sync(", "class LeaseLost"))
    for kind in (holdfast.Holdfast, holdfast.BlockingHoldfast, holdfast.LiveSession, holdfast.LiveTurn):
        for name in ("sessions", "search", "conversation", "delete", "export", "set_title", "append"):
            if hasattr(kind, name):
                assert getattr(kind, name).__doc__, f"{kind.__name__}.{name}"


def test_a_forked_child_is_told_that_it_was_opened_elsewhere(tmp_path: Path) -> None:
    async def in_child() -> str:
        async with holdfast.open(tmp_path / "agent.db") as hf:
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                said = b"nothing was raised"
                try:
                    await hf.sessions()
                except StoreClosed as error:
                    said = str(error).encode()
                finally:
                    os.write(writer, said)
                    os._exit(0)
            os.close(writer)
            os.waitpid(child, 0)
            with os.fdopen(reader, "rb") as pipe:
                return pipe.read().decode()

    assert "opened in another process" in asyncio.run(in_child())
