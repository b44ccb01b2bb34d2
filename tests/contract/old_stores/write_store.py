"""Writes the stores of schema 10 that the migration tests begin with. Runs with the code of commit 7dbfd3b:

    git worktree add --detach ../at-7dbfd3b 7dbfd3b
    cd ../at-7dbfd3b && PYTHONPATH=src:. python …/write_store.py FOLDER postgresql://…/an_empty_database

It leaves `schema-10.db.gz`, a SQLite store, and `schema-10.sql.gz`, a dump of the PostgreSQL store with the
same content. Every table but `imports` has rows.
"""

# mypy: ignore-errors

import asyncio
import gzip
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from holdfast.domain.keys import ApiKey, Scope

from holdfast.domain.compaction import Trigger
from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.nodes import Identity, Node, NodeKind
from holdfast.domain.processes import Process, ProcessState
from holdfast.domain.turns import NewResponse, RequestKey, Settlement, TurnStatus
from holdfast.store.postgres.engine import open_store as open_postgres
from holdfast.store.sqlite.engine import open_store as open_sqlite
from tests.contract.steps import (
    FLUSHING,
    OTHER,
    OWNER,
    POLICIES,
    Clock,
    begin,
    calling,
    draft,
    result,
    say,
    to_message,
)

HOST = Identity("old-host", "00000000-0000-0000-0000-000000000010", "pid:[1]", 4242, "4242.1")


async def fill(store, clock):
    node = Node(new_id("node"), NodeKind.SERVER, HOST)
    gone = Node(new_id("node"), NodeKind.LIBRARY, replace(HOST, pid=4243))
    await store.join(node)
    await store.join(gone)

    # Two conversations of one owner, one of another; tools, metadata, names, a request key, a response.
    first = await say(
        store, node, "the tide tables of Ostend", "High water is at six.", key="cli:ada", model="m"
    )
    await say(
        store,
        node,
        "and tomorrow?",
        "At seven.",
        key="cli:ada",
        request_key=RequestKey("chat", "k1", b"h" * 32),
    )
    begun = await begin(store, node, "look it up", id=first.session.conversation_id)
    await store.append(begun.lease, [*map(to_message, (calling("c1"), result("c1")))])
    await store.commit_reply(
        begun.lease,
        [to_message({"role": "assistant", "content": "Found."})],
        usage={"input_tokens": 12},
        answer=b"{}",
    )
    await store.set_title(OWNER, first.session.conversation_id, "Tides")
    await store.set_metadata(OWNER, first.session.conversation_id, {"colour": "blue"})
    await store.add_alias(OWNER, "chat-17", first.session.conversation_id)
    await store.exclude(OWNER, first.session.conversation_id, [2], "not needed")
    other = await say(
        store, gone, "hello", "hi", owner=OTHER, attached=True, response=NewResponse(new_id("resp"), b"{}")
    )
    await store.fork(OWNER, first.session.id, node.id, key="cli:fork")
    deleted = await say(store, node, "a secret", "kept", key="cli:deleted")
    await store.delete_message(OWNER, deleted.session.conversation_id, 1)

    # An ended session with its flush, a memory, and the session after it.
    await say(store, node, "one", "1", key="idle:ada", source="idle")
    talk = await say(store, node, "two", "2", key="idle:ada", source="idle")
    assert await store.end_session(None, talk.session.id, "closed")
    clock.move(hours=1)
    (claimed,) = await store.claim_flushes(node.id, together=5, per_minute=5)
    assert await store.finish_flush(claimed, "Ada counts.")
    await store.remember(OWNER, talk.session.conversation_id, "Ada lives in Ostend.")
    await say(store, node, "three", "3", key="idle:ada", source="idle")

    # What operators and agents leave: keys, notices, a process, a compaction, a failed turn.
    for number, revoked in ((1, False), (2, True)):
        key = ApiKey(f"key_old{number}", OWNER, Scope.CHAT, frozenset(), clock())
        await store.add_key(key, bytes([number]) * 32)
        if revoked:
            await store.revoke_key(key.id, None)
    for text in ("The disk is full.", "The disk is fine."):
        notice = await store.add_notice(OWNER, first.session.conversation_id, "process", text)
    await store.deliver_notice(OWNER, notice.id)
    tip = (await store.resolve(None, Address(id=first.session.conversation_id))).tip
    starting = replace(HOST, pid=0, pid_start="")
    process = Process(
        new_id("proc"),
        OWNER,
        tip.conversation_id,
        tip.id,
        starting,
        "sleep 9",
        "/",
        ProcessState.STARTING,
        clock(),
        node.id,
    )
    await store.add_process(process)
    await store.process_started(
        process.id, replace(HOST, pid=77, pid_start="77.1"), shim_pid=76, shim_start="76.1"
    )
    await store.claim_compaction(
        tip.id, node.id, timedelta(minutes=5), why=Trigger.BY_HAND, tokens=10, window=100
    )
    failed = await begin(store, node, "this fails", key="cli:failed")
    await store.settle_turn(failed.lease, Settlement(TurnStatus.FAILED, error="the model broke off"))

    # The node of this session leaves; the other one dies in the middle of a reply.
    assert other.session.attached
    await store.leave(gone.id, "closed")
    unfinished = await begin(
        store, node, "never answered", key="cli:crashed", request_key=RequestKey("chat", "k2", b"i" * 32)
    )
    await store.append_draft(unfinished.lease, draft(1, "half an ans"))


async def main(database, url):
    for open_store, where in ((open_sqlite, database), (open_postgres, url)):
        clock = Clock(datetime(2026, 3, 1, 12, tzinfo=UTC))
        store = await open_store(where, clock=clock, policies=POLICIES, flushing=FLUSHING)
        await fill(store, clock)
        await store.close()


if __name__ == "__main__":
    folder, url = Path(sys.argv[1]), sys.argv[2]
    database = folder / "schema-10.db"
    asyncio.run(main(database, url))
    (folder / "schema-10.db.gz").write_bytes(gzip.compress(database.read_bytes(), mtime=0))
    dump = subprocess.run(
        ["pg_dump", "--inserts", "--no-owner", "--no-privileges", url], capture_output=True, check=True
    ).stdout
    lines = [
        line
        for line in dump.splitlines()
        if line and not line.startswith((b"--", b"\\", b"SET ", b"SELECT pg_catalog.set_config"))
    ]
    (folder / "schema-10.sql.gz").write_bytes(gzip.compress(b"\n".join(lines), mtime=0))
