"""Power loss: the real store on a disk that loses unsynced data, cut off at random operations.

A machine runs from one boot to a last power cut. On the way many more cuts are simulated: each yields a
directory as it might be found, which is opened with the ordinary VFS and compared with what was acknowledged
until then. The next boot continues from the directory that the last cut left.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from holdfast.runtime.agents.reaper import Reaper
from holdfast.store.sqlite.engine import open_store

from .conftest import Tell
from .ledger import Comparison, Expected, Ledger, Verdict
from .mutants import NAME
from .nursery import Nursery, nursery
from .records import OWNER, Note, Record
from .scribe import Task
from .sizes import Size, short_and_soak

CUTS_PER_BOOT = 20
BOOTS_PER_MACHINE = 5


@dataclass
class Machine:
    """One disk through several boots, and everything that was told about it and is binding."""

    forks: Nursery
    directory: Path
    seed: int
    told: list[Record] = field(default_factory=list)
    found: list[Expected] = field(default_factory=list)
    """What has outlived a cut is as good as acknowledged."""
    underway: int = 0

    def ledger(self, more: Sequence[Record] = ()) -> Ledger:
        ledger = Ledger()
        for record in (*self.told, *more):
            ledger.note(record)
        ledger.expected += self.found
        return ledger

    async def boot(self, number: int) -> AsyncGenerator[Verdict, None]:
        """Run until the last cut; one verdict per cut."""
        chance = random.Random(f"{self.seed} {number}")
        disk, survivors = self.directory / f"disk {number}", self.directory / f"survivors {number}"
        survivors.mkdir()
        disk.mkdir(exist_ok=True)
        records, cuts = self._run(number, disk, survivors, chance)
        after = self.directory / f"disk {number + 1}"
        shutil.copytree(survivors / str(len(cuts) - 1), after)
        for cut, told in enumerate(cuts):
            comparison = Comparison(self.ledger(records[:told]))
            verdict = await after_a_cut(survivors / str(cut) / "holdfast.db", comparison, chance)
            yield verdict
        self.told += records[: cuts[-1]]
        self.found = [Expected(*where, tag) for where, tag in comparison.found.items()]
        shutil.rmtree(disk)
        shutil.rmtree(survivors)

    def _run(
        self, number: int, disk: Path, survivors: Path, chance: random.Random
    ) -> tuple[list[Record], list[int]]:
        """What was told, and how much of it before each cut."""
        at, operations = 0, []
        for _ in range(CUTS_PER_BOOT):
            at += chance.randint(1, chance.choice((5, 80, 500)))
            operations.append(at)
        task = Task(
            database=str(disk / "holdfast.db"),
            life=f"{self.seed}.{number}",
            seed=self.seed,
            again=list(self.ledger().open.values()),
            checkpoint_pages=chance.choice((30, 200)),
            boot_id=f"boot {number}",
            search=True,
            cuts=operations,
            survivors=str(survivors),
        )
        child = self.forks.start(task)
        records, cuts = list[Record](), list[int]()
        for record in child.records():
            if isinstance(record, Note):
                assert record.what == "cut", f"a writing process says: {record}"
                cuts.append(int(record.data["told"]))
                self.underway += int(record.data["underway"])
            else:
                records.append(record)
        assert child.wait() == 0
        assert len(cuts) == CUTS_PER_BOOT
        return records, cuts


async def after_a_cut(database: Path, comparison: Comparison, chance: random.Random) -> Verdict:
    """Open what the cut has left, as anyone would, and compare."""
    store = await open_store(database)
    try:
        assert not (await Reaper(store, lambda: None).reap_once()).troubles
        verdict = await comparison.run(store)
        if comparison.found:
            (conversation, number), tag = chance.choice(sorted(comparison.found.items()))
            hits = [hit.message for hit in await store.search(OWNER, tag, limit=100)]
            if (conversation, number) not in [(hit.conversation_id, hit.seq) for hit in hits]:
                verdict.lost.append(f"{tag} is not found by searching for it")
        return verdict
    finally:
        await store.close()


@short_and_soak(Size("short", 60, 13.0), Size("soak", 1000))
async def test_what_was_acknowledged_survives_a_power_cut(
    size: Size, seed: int, tmp_path: Path, figures: Tell
) -> None:
    cuts = acknowledged = underway = 0
    with nursery() as forks:
        for boot in Size(size.name, size.least // CUTS_PER_BOOT, size.seconds).rounds():
            if boot % BOOTS_PER_MACHINE == 0:
                directory = tmp_path / f"machine {boot}"
                directory.mkdir()
                machine = Machine(forks, directory, seed + boot)
            before = machine.ledger().acknowledged, machine.underway
            async for verdict in machine.boot(boot % BOOTS_PER_MACHINE):
                cuts += 1
                assert verdict.clean, f"cut {cuts}: {verdict}"
            acknowledged += machine.ledger().acknowledged - before[0]
            underway += machine.underway - before[1]
    assert acknowledged > cuts, "hardly anything was written between the cuts"
    assert underway > cuts, "hardly anything was under way when the power was cut"
    figures(
        f"power loss: {cuts:,} cuts, {acknowledged:,} acknowledged, {underway:,} writes under way, "
        "0 lost, 0 corrupt"
    )


async def test_commits_that_do_not_wait_for_the_disk_are_noticed(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAME, "synchronous-normal")
    with nursery() as forks:
        machine = Machine(forks, tmp_path, seed)
        for number in range(BOOTS_PER_MACHINE):  # in one boot all cuts may hit right after a checkpoint
            cuts = machine.boot(number)
            async with aclosing(cuts):
                async for verdict in cuts:
                    if any("it is nowhere" in sentence for sentence in verdict.lost):
                        return
    pytest.fail(f"{BOOTS_PER_MACHINE * CUTS_PER_BOOT} cuts, and nothing was found to be lost")
