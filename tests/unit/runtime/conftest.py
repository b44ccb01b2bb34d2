"""The runtime on a real SQLite store, with a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.new_messages import new_messages
from holdfast.domain.nodes import Node, NodeKind
from holdfast.domain.turns import TurnBegun, TurnRequest
from holdfast.os_support import identity
from holdfast.store.sqlite.engine import SQLiteStore, open_store


class Clock:
    """The store's time. Moves only when told to."""

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time

    def advance(self, **span: float) -> None:
        self.time += timedelta(**span)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[SQLiteStore]:
    opened = await open_store(tmp_path / "store.db", clock=clock)
    yield opened
    await opened.close()


Joined = Callable[..., Awaitable[Node]]


@pytest.fixture
def joined(store: SQLiteStore) -> Joined:
    """Another node. `alive=False`: its process was killed, so the kernel has let go of its lock."""

    async def join(alive: bool = True, kind: NodeKind = NodeKind.LIBRARY) -> Node:
        node = Node(new_id("node"), kind, identity())
        await store.join(node)
        if not alive:
            kill(store, node)
        return node

    return join


def kill(store: SQLiteStore, node: Node) -> None:
    """What the kernel does when a process dies: its lock is free, its file stays."""
    path = store._locks.path_of(node.id)
    store._locks.let_go(node.id)
    path.touch()


async def begin(
    store: SQLiteStore, node: Node, key: str, text: str = "hello", attached: bool = True
) -> TurnBegun:
    outcome = await store.begin_turn(
        TurnRequest(
            new_id("turn"), "default", node.id, Address(key=key), new_messages(text), attached=attached
        )
    )
    assert isinstance(outcome, TurnBegun)
    return outcome
