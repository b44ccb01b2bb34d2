"""Disk full: a store on a tmpfs of two megabytes, which fills up at random moments.

The store names the cause, has written nothing of what it refuses, loses nothing it acknowledged, and
continues in the same process once there is space. Heartbeats fail meanwhile; no node is reaped for that.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.new_messages import user_message
from holdfast.domain.nodes import Liveness, Node, NodeKind
from holdfast.domain.turns import TurnBegun, TurnRequest, TurnStatus
from holdfast.errors import StoreFull, StoreUnusable
from holdfast.os_support import identity
from holdfast.runtime.agents.reaper import Reaper
from holdfast.store.sqlite.engine import open_store

from .conftest import Tell
from .ledger import Comparison, Ledger
from .mutants import NAME
from .nursery import Child, nursery
from .records import ACKNOWLEDGEMENTS, OWNER, Note, Refused, message_of, said_tag
from .scribe import Task
from .sizes import Size, short_and_soak

FULL = "the disk is full"


class SmallDisk:
    """A tmpfs whose size follows what is in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def fill(self, leaving: int = 0) -> None:
        """From now on there is no space but this many bytes."""
        for _ in range(
            100
        ):  # somebody may be writing meanwhile, and no disk can be smaller than what it holds
            if self._resize(leaving):
                return
        pytest.fail(f"{self.directory} cannot be made smaller")

    def give_space(self) -> None:
        assert self._resize(2_000_000)

    def _resize(self, free: int) -> bool:
        facts = os.statvfs(self.directory)
        size = (facts.f_blocks - facts.f_bfree) * facts.f_frsize + free
        size = max(size, facts.f_frsize)  # no size at all would mean no limit
        command = ["mount", "-o", f"remount,size={size}", str(self.directory)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount the small disk this needs")
    directory = tmp_path / "disk"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "holdfast-test", directory], check=True)
    try:
        yield SmallDisk(directory)
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


def listen(child: Child, ledger: Ledger, *, acknowledged: int = 0, refused: int = 0) -> None:
    """Until this much more was acknowledged and refused."""
    acknowledged += ledger.acknowledged
    refused += len(ledger.refused)
    while ledger.acknowledged < acknowledged or len(ledger.refused) < refused:
        before = ledger.acknowledged, len(ledger.refused)
        for record in child.records(5.0):
            assert not isinstance(record, Note), f"a writing process says: {record}"
            ledger.note(record)
            if isinstance(record, Refused):
                assert (record.error, FULL in record.text) == ("StoreFull", True), record
            if isinstance(record, (*ACKNOWLEDGEMENTS, Refused)):
                break
        assert (ledger.acknowledged, len(ledger.refused)) != before, "it says nothing any more"


@short_and_soak(Size("short", 8, 4.0), Size("soak", 200))
async def test_a_full_disk_loses_nothing_and_passes(
    size: Size, seed: int, small_disk: SmallDisk, figures: Tell
) -> None:
    chance = random.Random(seed)
    times = acknowledged = refused = 0
    with nursery() as forks:
        for number in size.rounds():
            place = small_disk.directory / f"{number}"
            place.mkdir()
            task = Task(
                str(place / "holdfast.db"), f"{number}", seed, checkpoint_pages=chance.choice((20, 2000))
            )
            child, ledger = forks.start(task), Ledger()
            listen(child, ledger, acknowledged=chance.randrange(1, 30))
            for _ in range(3):
                small_disk.fill(leaving=chance.choice((0, chance.randrange(200_000))))
                listen(child, ledger, refused=chance.randrange(1, 20))
                small_disk.give_space()
                listen(child, ledger, acknowledged=10)
            child.kill()
            for record in child.records():
                ledger.note(record)
            child.wait()
            small_disk.give_space()
            store = await open_store(place / "holdfast.db")
            try:
                await Reaper(store, lambda: None).reap_once()
                verdict = await Comparison(ledger).run(store)
                assert verdict.clean, f"round {number}: {verdict}"
            finally:
                await store.close()
                shutil.rmtree(place)
            times += 3
            acknowledged += ledger.acknowledged
            refused += len(ledger.refused)
    figures(
        f"disk full: {times:,} times, {refused:,} refusals in plain words, {acknowledged:,} acknowledged, "
        "0 lost, went on every time"
    )


async def test_while_the_disk_is_full_beats_fail_and_nobody_dies(small_disk: SmallDisk) -> None:
    store = await open_store(small_disk.directory / "holdfast.db")
    node = Node(new_id("node"), NodeKind.LIBRARY, identity())
    await store.join(node)
    request = TurnRequest(new_id("turn"), OWNER, node.id, Address(key="chat"), (user_message("begun"),))
    begun = await store.begin_turn(request)
    assert isinstance(begun, TurnBegun)

    small_disk.fill()
    kept = 0
    with pytest.raises(StoreFull, match=FULL):
        for kept in range(1000):
            await store.append(begun.lease, [message_of(said_tag("a", "full", 1, kept))])
    with pytest.raises(StoreFull, match=FULL):
        for _ in range(1000):
            await store.beat(node.id)
    beats = (await store.nodes())[0].beat
    assert (await store.turn(OWNER, begun.turn.id)).status is TurnStatus.RUNNING, "reading goes on"
    assert (await store.probe([node]))[node.id][0] is Liveness.ALIVE
    assert not (await Reaper(store, lambda: None).reap_once()).anything

    small_disk.give_space()
    await store.beat(node.id)
    last = await store.append(begun.lease, [message_of(said_tag("a", "full", 1, kept))])
    assert last == kept + 2, "what was refused has left no trace: the numbers go on without a gap"
    await store.commit_reply(begun.lease, [message_of(said_tag("a", "full", 2))])
    assert (await store.nodes())[0].beat == beats + 1
    assert await store.check() == []
    await store.close()


@pytest.mark.parametrize("known", [False, True], ids=["a new store", "a store"])
async def test_opening_on_a_full_disk_names_the_cause(small_disk: SmallDisk, known: bool) -> None:
    database = small_disk.directory / "holdfast.db"
    if known:
        await (await open_store(database)).close()
    small_disk.fill()
    with pytest.raises(StoreUnusable, match=FULL):
        await open_store(database)
    small_disk.give_space()
    store = await open_store(database)
    assert await store.check() == []
    await store.close()


async def test_acknowledging_before_the_commit_is_noticed(
    seed: int, small_disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAME, "acknowledge-before-commit")
    database, ledger = small_disk.directory / "holdfast.db", Ledger()
    with nursery() as forks:
        child = forks.start(Task(str(database), "life", seed))
        while not any(record.verb in ("append", "commit_reply") for record in ledger.refused[-12:]):
            small_disk.give_space()
            listen(child, ledger, acknowledged=10)
            small_disk.fill()
            listen(child, ledger, refused=12)
        child.kill()
        child.wait()
    small_disk.give_space()
    store = await open_store(database)
    verdict = await Comparison(ledger).run(store, settled=False)
    await store.close()
    assert any("it is nowhere" in sentence for sentence in verdict.lost), str(verdict)
