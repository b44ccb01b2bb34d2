"""Compaction in a program's hands: its own model is asked, and its turns make room for themselves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.domain.conversations import Address
from tests.unit.cli.conftest import Home

LONG = "word " * 150
SETTINGS = {
    "model": {"context_window": 2000},
    "compaction": {"threshold": 0.5, "keep_first": 2, "keep_last": 4},
    "memory": {"flush": False},
}


class Summaries:
    """A program's own model."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[dict[str, Any]]]] = []

    async def __call__(self, messages: list[dict[str, Any]], purpose: str) -> str:
        self.asked.append((purpose, messages))
        return f"gist {len(self.asked)}"


async def talk(session: holdfast.LiveSession, turns: int) -> None:
    for number in range(turns):
        async with session.turn(f"{number} {LONG}") as turn:
            words = sum(len(str(each["content"]).split()) for each in await turn.context())
            await turn.append("fine")
            turn.usage = {"input_tokens": words, "output_tokens": 1}


async def test_a_program_compacts_by_hand_with_its_own_model(tmp_path: Path) -> None:
    model = Summaries()
    async with holdfast.open(f"sqlite:///{tmp_path}/a.db", model=model) as hf:
        session = await hf.session(key="cli:ada")
        await talk(session, 4)
        first = session.id
        await session.compact()
        assert session.id != first
        assert [purpose for purpose, _ in model.asked] == ["summary"]
        context = await session.context()
        assert context[2]["content"].endswith("gist 1")
        assert len(await session.messages("conversation")) == 8
        await talk(session, 1)
        assert (await hf.store.resolve("default", Address(id=first))).tip.id == session.id


async def test_without_a_model_nothing_is_compacted(tmp_path: Path) -> None:
    async with holdfast.open(f"sqlite:///{tmp_path}/a.db", settings=SETTINGS) as hf:
        session = await hf.session(key="cli:ada")
        first = session.id
        await talk(session, 20)
        with pytest.raises(holdfast.BadInput, match="needs a model"):
            await session.compact()
        assert session.id == first
        assert not [each for each in await hf.events() if each.type.startswith("compaction.")]


async def test_a_programs_turns_make_room_behind_them_and_for_themselves(tmp_path: Path) -> None:
    model = Summaries()
    async with holdfast.open(f"sqlite:///{tmp_path}/a.db", model=model, settings=SETTINGS) as hf:
        session = await hf.session(key="cli:ada")
        await talk(session, 7)
        async with asyncio.timeout(60):
            while not model.asked or (await hf.session(key="cli:ada")).id == session.id:
                await hf.store.changed(hf.store.version(), 0.1)
        parent = (await hf.session(key="cli:ada")).id
        async with session.turn("more " * 1500) as turn:  # as much as there is room for
            context = await turn.context()
            assert context[-1]["content"] == "more " * 1500
            assert session.id != parent
            await turn.append("made it")
        tip = (await hf.store.resolve("default", Address(id=parent))).tip
        assert (tip.edge, tip.attached, tip.node_id) == ("compaction", True, hf.node_id)
        turns = await hf.store.turns("default", session.conversation_id, limit=1)
        assert (turns[0].session_id, turns[0].status) == (session.id, "completed")
        whys = {each.data["why"] for each in await hf.events() if each.type == "compaction.completed"}
        assert whys == {"threshold", "no_fit"}
    async with holdfast.open(f"sqlite:///{tmp_path}/a.db") as hf:
        assert (await hf.store.session(None, tip.id)).end_reason == "closed"


async def test_a_handle_follows_its_session_when_that_was_compacted_behind_its_back(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    async with holdfast.open(url, model=Summaries()) as hf, holdfast.open(url) as other:
        session = await hf.session(key="cli:ada", attached=False)
        await talk(session, 4)
        stale = await other.session(key="cli:ada", attached=False)
        await session.compact()
        assert (await stale.context())[2]["content"].endswith("gist 1")
        assert stale.id == session.id
        stale = await other.session(id=session.id, attached=False)
        await session.compact()
        await stale.end("new")
        assert (await hf.store.session(None, session.id)).end_reason == "new"


async def test_a_summary_that_comes_during_the_next_turn_waits_for_its_end(tmp_path: Path) -> None:
    asked, may = asyncio.Event(), asyncio.Event()

    async def slowly(messages: list[dict[str, Any]], purpose: str) -> str:
        asked.set()
        await may.wait()
        return "gist"

    async with holdfast.open(f"sqlite:///{tmp_path}/a.db", model=slowly, settings=SETTINGS) as hf:
        session = await hf.session(key="cli:ada")
        async with asyncio.timeout(60):
            while not asked.is_set():
                await talk(session, 1)
            async with session.turn("meanwhile") as turn:
                may.set()
                for _ in range(3):  # it tries, and waits
                    await hf.store.changed(hf.store.version(), 0.05)
                await turn.append("fine")
            while (tip := await hf.session(key="cli:ada")).id == session.id:
                await hf.store.changed(hf.store.version(), 0.1)
        context = await tip.context()
        assert context[2]["content"].endswith("gist")
        assert [each["content"] for each in context[-2:]] == ["meanwhile", "fine"]


async def test_within_a_turn_of_its_own_a_program_cannot_compact(tmp_path: Path) -> None:
    async with holdfast.open(f"sqlite:///{tmp_path}/a.db", model=Summaries()) as hf:
        session = await hf.session(key="cli:ada")
        await talk(session, 4)
        async with session.turn("now?"):
            with pytest.raises(holdfast.NestedTurn):
                await session.compact()
        with pytest.raises(holdfast.NotCompacted):
            await (await hf.session(key="other")).compact()


def test_a_blocking_program_compacts_too(tmp_path: Path) -> None:
    with holdfast.open_sync(f"sqlite:///{tmp_path}/a.db", model=Summaries()) as hf:
        session = hf.session(key="cli:ada")
        for number in range(4):
            with session.turn(f"{number} {LONG}") as turn:
                turn.append("fine")
        first = session.id
        session.compact()
        assert session.id != first
        assert session.context()[2]["content"].endswith("gist 1")


def test_lineage_draws_what_each_session_sees(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with holdfast.open_sync(f"sqlite:///{home.store}", model=Summaries()) as hf:
        session = hf.session(key="cli:ada")
        for number in range(8):
            with session.turn(f"{number} {LONG}") as turn:
                turn.append("fine")
        session.compact()
        session.fork(key="cli:fork")
    drawn = home.ok("sessions", "lineage", "cli:ada").splitlines()
    assert "  #1–16  compaction " in drawn[1]
    assert "  nothing said  compaction ▸ closed " in drawn[2]
    assert drawn[3] == "     sees #1–2, a summary of #3–6, #7–…"
    assert "cli:fork" in drawn[4]
    data = home.json("sessions", "lineage", "cli:ada")["data"]
    assert [part["kind"] for part in data[1]["view"]] == ["messages", "summary", "messages"]
