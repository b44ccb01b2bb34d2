"""Memory in a program: with a model of its own sessions are flushed, without one it is left to others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast

SETTINGS = {"memory": {"min_messages": 2}, "lease": {"sweep_seconds": 0.02}}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'agent.db'}"


async def said(session: holdfast.LiveSession, text: str = "I like kelp") -> None:
    async with session.turn(text) as turn:
        await turn.append("fine")


async def test_a_program_with_a_model_remembers(url: str) -> None:
    asked: list[tuple[list[dict[str, Any]], str]] = []

    async def model(messages: list[dict[str, Any]], purpose: str) -> str:
        asked.append((messages, purpose))
        return "Likes kelp."

    async with holdfast.open(url, settings=SETTINGS, model=model) as hf:
        session = await hf.session("cli:ada", attached=False)
        await said(session)
        await session.end("new")
        again = await hf.session("cli:ada")
        async with asyncio.timeout(60):
            while not await again.memories():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        (memory,) = await again.memories()
        assert (memory.text, memory.session_id, memory.key) == ("Likes kelp.", session.id, "cli:ada")
        async with again.turn("what do I like?") as turn:
            assert [message["role"] for message in await turn.context()] == ["user"], "as it was said"
    ((messages, purpose),) = asked
    assert purpose == "flush"
    assert "I like kelp" in messages[-1]["content"]


async def test_a_program_without_a_model_leaves_flushes_to_one_that_can(url: str) -> None:
    """The row is written, because the store's policy says so; it waits for a node with a model."""

    async def model(messages: list[dict[str, Any]], purpose: str) -> str:
        return "Likes kelp."

    async with holdfast.open(url, settings=SETTINGS, model=model) as hf:
        session = await hf.session("cli:ada", attached=False)
        await said(session)
    async with holdfast.open(url, settings=SETTINGS) as hf:
        assert hf.flusher is None
        again = await hf.session("cli:ada")
        await said(again, "more")
        await again.end("new")
        assert (await hf.store.flush(None, again.id)).shown == "pending"
    async with holdfast.open(url, settings=SETTINGS, model=model) as hf:
        async with asyncio.timeout(60):
            while (await hf.store.flush(None, again.id)).shown != "done":  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)


async def test_a_store_that_nobody_flushes_gets_no_flush_rows(url: str) -> None:
    async with holdfast.open(url, settings=SETTINGS) as hf:
        session = await hf.session("cli:ada", attached=False)
        await said(session)
        await session.end("new")
        assert await hf.store.flushes_of([session.id]) == {}


def test_the_same_without_an_event_loop(url: str) -> None:
    async def model(messages: list[dict[str, Any]], purpose: str) -> str:
        return "Likes kelp."

    with holdfast.open_sync(url, settings=SETTINGS, model=model) as hf:
        session = hf.session("cli:ada", attached=False)
        with session.turn("I like kelp") as turn:
            turn.append("fine")
        session.end("new")
        for event in hf.events():
            assert event.type != "flush.dead"
        assert isinstance(session.memories(), list)


async def test_a_program_adds_a_memory_of_its_own(url: str) -> None:
    async with holdfast.open(url) as hf:
        session = await hf.session("cli:ada")
        memory = await session.remember("Is called Ada.")
        assert (memory.origin, memory.key, await session.memories()) == ("person", "cli:ada", [memory])
        with pytest.raises(holdfast.BadInput):
            await session.remember(" ")
