"""What a turn is told at its start about background processes that have ended."""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.processes import LogPart, Process, ProcessState
from holdfast.os_support import identity
from holdfast.runtime.contexts.preamble import MOST_PROCESSES, ROOM, TurnPreamble
from holdfast.runtime.processes.launcher import ProcessReader
from holdfast.store.sqlite.engine import SQLiteStore
from tests.unit.runtime.conftest import Joined, begin


class Talkative(ProcessReader):
    """Every process has said more than any reader wants."""

    async def log(
        self, owner: str | None, process_id: str, *, after: int = 0, tail: int | None = None
    ) -> LogPart:
        return LogPart("word " * 10_000, 0)


async def test_many_processes_that_ended_do_not_fill_the_context(
    store: SQLiteStore, joined: Joined, tmp_path: Path
) -> None:
    """A turn that fails is told the same again: if this did not fit, no later turn would have an answer."""
    node, many = await joined(), 2 * MOST_PROCESSES
    session = await store.open_session("default", Address(key="k"), node.id)
    for number in range(many):
        process = Process(
            new_id("proc"), "default", "", session.id, identity(), f"build {number} of many", "/",
            ProcessState.STARTING, store.now(), node.id,
        )  # fmt: skip
        await store.add_process(process)
        await store.end_process(process.id, ProcessState.EXITED, exit_code=0)
    begun = await begin(store, node, "k")
    assert len(begun.notices) == many
    (told,) = await TurnPreamble(store, Talkative(store, tmp_path)).of(begun)
    text = msgspec.json.decode(told)["content"]
    assert len(text) < ROOM + MOST_PROCESSES * 200
    assert f"[{many - MOST_PROCESSES} more, earlier]" in text
    assert f"build {many - 1} of many" in text.splitlines()[-2], "the newest is last, with its output"
    assert text.endswith("word") and "build 0 of many" not in text
