"""When a conversation is named by the model, and when it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.domain.nodes import Node, NodeKind
from holdfast.domain.sessions import Session
from holdfast.errors import ModelError
from holdfast.models.base import Purpose
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.agents.titler import QUIET_SECONDS, Titler, TitleRules
from holdfast.settings import Settings, load
from holdfast.store.sqlite.engine import SQLiteStore
from holdfast.wiring import title_rules_of
from tests.contract.steps import say
from tests.unit.runtime.conftest import Joined


class Seconds:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def node(joined: Joined) -> Node:
    return await joined()


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


async def spoken(store: SQLiteStore, node: Node, key: str) -> Session:
    return (await say(store, node, "How tall is the lighthouse?", "Forty metres.", key=key)).session


def naming(store: SQLiteStore, seconds: Seconds, *script: str | ModelError, per_minute: int = 10) -> Titler:
    return Titler(store, ScriptedModel(list(script)), TitleRules(4, per_minute), monotonic=seconds)


async def title_of(store: SQLiteStore, session: Session) -> str | None:
    return (await store.session(None, session.id)).title


async def test_a_conversation_is_named_once_it_is_quiet(
    store: SQLiteStore, node: Node, seconds: Seconds
) -> None:
    session = await spoken(store, node, "a")
    model = ScriptedModel(['"The lighthouse."'])
    titler = Titler(store, model, TitleRules(4, 10, "small"), monotonic=seconds)
    titler.answered(session, 3)
    seconds.now += 2 * QUIET_SECONDS
    assert await titler.title_once() == 0, "too few messages"
    titler.answered(session, 4)
    assert await titler.title_once() == 0, "its next turn may come"
    seconds.now += QUIET_SECONDS
    assert await titler.title_once() == 1
    assert await title_of(store, session) == "The lighthouse"
    (request,) = model.requests
    assert (request.purpose, request.model) == (Purpose.TITLE, "small")
    assert b"How tall is the lighthouse?" in request.messages
    await titler.stop()


async def test_a_title_of_a_person_is_never_replaced(
    store: SQLiteStore, node: Node, seconds: Seconds
) -> None:
    session = await spoken(store, node, "a")
    titler = naming(store, seconds, "made")
    titler.answered(session, 4)
    await store.set_title(None, session.conversation_id, "set")
    seconds.now += QUIET_SECONDS
    assert await titler.title_once() == 0
    titler.answered(await store.session(None, session.id), 6)
    seconds.now += QUIET_SECONDS
    assert await titler.title_once() == 0
    assert await title_of(store, session) == "set"
    await titler.stop()


async def test_after_a_failure_it_waits_until_the_conversation_has_doubled(
    store: SQLiteStore, node: Node, seconds: Seconds
) -> None:
    session = await spoken(store, node, "a")
    titler = naming(store, seconds, ModelError("busy"), "made")
    for size, named in ((4, 0), (6, 0), (8, 1)):
        titler.answered(session, size)
        seconds.now += QUIET_SECONDS
        assert await titler.title_once() == named, size
    await titler.stop()


async def test_so_many_a_minute(store: SQLiteStore, node: Node, seconds: Seconds) -> None:
    titler = naming(store, seconds, *["made"] * 5, per_minute=2)
    for number in range(3):
        titler.answered(await spoken(store, node, f"k{number}"), 4)
    seconds.now += QUIET_SECONDS
    assert await titler.title_once() == 2
    seconds.now += 59
    assert await titler.title_once() == 0
    seconds.now += 1
    assert await titler.title_once() == 1
    await titler.stop()


async def test_a_conversation_that_was_deleted_is_forgotten(
    store: SQLiteStore, node: Node, seconds: Seconds
) -> None:
    session = await spoken(store, node, "a")
    titler = naming(store, seconds, "made")
    titler.answered(session, 4)
    await store.delete_conversation(None, session.conversation_id)
    seconds.now += QUIET_SECONDS
    assert await titler.title_once() == 0
    await titler.stop()


def test_only_a_server_with_a_model_names_and_a_small_or_scripted_one_only_if_asked(tmp_path: Path) -> None:
    def settings(**titles: object) -> Settings:
        return load(environment={"HOLDFAST_HOME": str(tmp_path)}, given={"titles": titles} if titles else {})

    scripted = ScriptedModel()
    assert title_rules_of(settings(), NodeKind.SERVER, scripted) is None
    assert title_rules_of(settings(generate=True), NodeKind.SERVER, scripted) == TitleRules(4, 10)
    for kind, model in ((NodeKind.LIBRARY, scripted), (NodeKind.CLI, scripted), (NodeKind.SERVER, None)):
        assert title_rules_of(settings(generate=True), kind, model) is None
    assert title_rules_of(settings(generate=False), NodeKind.SERVER, scripted) is None
