"""A process that deletes a conversation and reads one that is too long for one value; it reports failures.

    python -m tests.reliability.one_store DIRECTORY SECONDS

Prints one line for each broken promise; it may run with a fault (`mutants`). `SECONDS` is how long deleted
text may stay in the files of the open store.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import apsw

from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.new_messages import new_messages
from holdfast.domain.nodes import Node, NodeKind
from holdfast.domain.turns import TurnBegun, TurnRequest
from holdfast.errors import HoldfastError
from holdfast.os_support import identity
from holdfast.store import context
from holdfast.store.sqlite import connections, engine
from holdfast.store.sqlite.engine import SQLiteStore, open_store
from holdfast.store.sqlite.transaction import STATEMENTS

from .mutants import break_on_purpose

OWNER = "default"
CANARY = "heliotropezanzibar"
LARGEST_VALUE = 100_000
"""Stands for SQLite's limit of a billion bytes."""
BODY = 30_000


async def say(store: SQLiteStore, node: Node, key: str, *said: str) -> TurnBegun:
    messages = tuple(message for text in said for message in new_messages(text))
    request = TurnRequest(new_id("turn"), OWNER, node.id, Address(key=key), messages)
    begun = await store.begin_turn(request)
    assert isinstance(begun, TurnBegun)
    await store.commit_reply(begun.lease, new_messages({"role": "assistant", "content": "noted"}))
    return begun


def holding(directory: Path) -> list[str]:
    """In a process of its own: a handle of the database closed here would drop this process's locks."""
    found = subprocess.run(
        ["grep", "-rlaF", CANARY, str(directory)], capture_output=True, text=True, check=False
    )
    return sorted(Path(line).name for line in found.stdout.splitlines())


async def large_contexts(store: SQLiteStore, node: Node) -> list[str]:
    faults = []
    large = await say(store, node, "large", *("x" * BODY for _ in range(20)))
    store._cache.clear()  # it is read, not remembered
    try:
        found = await store.context(OWNER, large.session.id)
        if sum(map(len, found.chunks)) < 20 * BODY:
            faults.append("a part of the long context is missing")
    except HoldfastError as error:
        faults.append(f"the long context cannot be read: {error}")
    statement = STATEMENTS["turn_by_id"]
    STATEMENTS["turn_by_id"] = "SELECT zeroblob(2000000000) WHERE :id IS NOT :owner"
    try:
        await store.turn(OWNER, large.turn.id)
    except HoldfastError:
        pass
    finally:
        STATEMENTS["turn_by_id"] = statement
    if store.failure is not None:
        faults.append(f"one statement stopped the store: {store.failure}")
    return faults


async def erasing(store: SQLiteStore, node: Node, directory: Path, seconds: float) -> list[str]:
    for number in range(5):
        await say(store, node, "kept", *(f"the tide {number} {at}" for at in range(50)))
    secret = await say(store, node, "secret", f"my {CANARY}")
    await asyncio.to_thread(store._index().rebuild)
    if not holding(directory):
        return ["the word was never written"]
    await store.delete_conversation(OWNER, secret.session.conversation_id)
    until = time.monotonic() + seconds
    found = holding(directory)
    while found and time.monotonic() < until:
        await asyncio.sleep(0.1)
        found = holding(directory)
    return [f"deleted text is still in {name}" for name in found]


async def main(directory: Path, seconds: float) -> list[str]:
    careful = connections.connect

    def limited(database: Path, *, patience: float = 30.0, reader: bool = False) -> apsw.Connection:
        connection = careful(database, patience=patience, reader=reader)
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, LARGEST_VALUE)
        return connection

    engine.connect = limited  # type: ignore[attr-defined]
    context.SPAN_BYTES = LARGEST_VALUE
    break_on_purpose()
    store = await open_store(directory / "store.db")
    store.start_indexing()
    node = Node(new_id("node"), NodeKind.LIBRARY, identity())
    await store.join(node)
    faults = await erasing(store, node, directory, seconds)
    faults += await large_contexts(store, node)
    await store.close()
    return faults


if __name__ == "__main__":
    for fault in asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2]))):
        print(fault)
