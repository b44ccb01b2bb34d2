"""Nth fault: strace makes the Nth write or sync of a writing process fail, or kills it there; N = 1, 2, …

For every N: everything acknowledged is found when the store is opened again without faults, and every refusal
is one of our errors. After an I/O error the store stays failed. A full disk is temporary: it is named, and
the process continues. After a failed sync, whatever its cause, it is unknown what is on the disk.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.runtime.agents.reaper import Reaper
from holdfast.store.sqlite.engine import open_store

from .conftest import Tell
from .ledger import Comparison, Ledger, Verdict
from .mutants import NAME
from .nursery import nursery
from .records import ACKNOWLEDGEMENTS, Note, Record, Refused
from .scribe import Task
from .sizes import Size, short_and_soak
from .tracing import Fault, Run, count_calls, require_strace, run_with_fault

AT_ONCE = 2

# What the store must notice.
FATAL = [
    *(Fault(call, "error=EIO") for call in ("pwrite64", "fdatasync", "fsync", "ftruncate", "pread64")),
    *(Fault(call, "error=ENOSPC") for call in ("fdatasync", "fsync")),
]
# What it must name and get over.
FULL = [Fault("pwrite64", "error=ENOSPC"), Fault("ftruncate", "error=ENOSPC")]
# What ends it, or what SQLite may get over by itself.
OTHER = [
    *(Fault(call, "signal=KILL") for call in ("pwrite64", "fdatasync", "ftruncate", "unlink")),
    *(Fault(call, "error=EIO") for call in ("openat", "unlink", "fstat", "newfstatat")),
    Fault("mmap", "error=ENOMEM"),
]
CALLS = sorted({fault.call for fault in (*FATAL, *FULL, *OTHER)})


@dataclass
class Scene:
    """Where the fault strikes: the files a process finds, what was acknowledged of them, what it does."""

    name: str
    directory: Path
    told: list[Record]
    turns: int
    length: dict[tuple[str, bool], int]
    """How often each call is made if nothing goes wrong, without and with closing the store."""

    def calls(self, fault: Fault) -> int:
        """How many times this fault can strike."""
        return self.length.get((fault.call, fault in OTHER), 0)

    def task(self, directory: Path, *, closes: bool) -> Task:
        """One writer and few pages to a checkpoint: short, and nearly the same every time."""
        return Task(
            database=str(directory / "holdfast.db"),
            life="struck",
            seed=1,
            writers=1,
            chats=2,
            turns=self.turns,
            checkpoint_pages=20,
            closes=closes,
        )


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> list[Scene]:
    """A process that makes the store, and one that finds it as a killed one has left it and works on."""
    require_strace()
    directory = tmp_path_factory.mktemp("scenes")
    new, used = directory / "new", directory / "used"
    new.mkdir()
    used.mkdir()
    with nursery() as forks:
        child = forks.start(Task(str(used / "holdfast.db"), "earlier", 1, writers=2, chats=2))
        told = list[Record]()
        for record in child.records():
            told.append(record)
            if len(told) == 40:
                child.kill()
        child.wait()
    return [
        measured(Scene("new", new, [], 0, {}), directory),
        measured(Scene("used", used, told, 3, {}), directory),
    ]


def measured(scene: Scene, directory: Path) -> Scene:
    for closes in (False, True):
        place = directory / f"{scene.name}, measured {closes}"
        shutil.copytree(scene.directory, place)
        counted = count_calls(scene.task(place, closes=closes), CALLS, directory / "log")
        scene.length.update({(call, closes): times for call, times in counted.items()})
    return scene


async def strike(scene: Scene, fault: Fault, number: int, place: Path) -> tuple[Run, Verdict]:
    """Run with the fault, then open the store without it and compare."""
    shutil.copytree(scene.directory, place)
    task = scene.task(place, closes=fault in OTHER)
    run = await asyncio.to_thread(run_with_fault, task, fault, number, Path(f"{place}.log"))
    ledger = Ledger()
    for record in (*scene.told, *run.records):
        ledger.note(record)
    store = await open_store(Path(task.database))
    try:
        assert not (await Reaper(store, lambda: None).reap_once()).troubles
        return run, await Comparison(ledger).run(store)
    finally:
        await store.close()
        shutil.rmtree(place)


def judge(fault: Fault, run: Run) -> None:
    """Did the process say what it had to say?"""
    refusals = [record for record in run.records if isinstance(record, Refused)]
    notes = [record for record in run.records if isinstance(record, Note)]
    wrong = [note for note in notes if note.what not in ("finished", "stopped")]
    assert not wrong, f"{wrong}\n{run.said}"
    if run.status == -9:
        assert fault.effect == "signal=KILL"
        return
    assert run.status == 0, run.said
    for at, record in enumerate(run.records):
        if isinstance(record, Refused) and record.error == "StoreFailed":
            after = [late for late in run.records[at:] if isinstance(late, ACKNOWLEDGEMENTS)]
            assert not after, f"acknowledged by a store that had failed: {after}"
    finished = Note("finished") in notes
    kinds = {(refusal.verb == "open", refusal.error) for refusal in refusals}
    if fault in FULL:
        assert kinds <= {(False, "StoreFull"), (True, "StoreUnusable")}, refusals
        assert finished or (True, "StoreUnusable") in kinds
    if fault in FATAL and any(fatal(line) for line in run.struck):
        assert kinds and kinds <= {(False, "StoreFailed"), (True, "StoreUnusable")}, refusals or run.struck
        assert not finished


def fatal(line: str) -> bool:
    """SQLite does not look whether syncing a directory has failed."""
    return "holdfast.db" in line


Strike = tuple[Scene, Fault, int]


def every(places: list[Scene]) -> Iterator[Strike]:
    """N = 1, 2, … for each kind, to beyond the end of the program: `strike_all` stops a kind there."""
    for scene in places:
        for fault in (*FATAL, *FULL, *OTHER):
            for number in range(1, 2 * scene.calls(fault) + 10):
                yield scene, fault, number


def some(places: list[Scene], size: Size, chance: random.Random) -> Iterator[Strike]:
    """A spread: one N of each kind, then another of each, until the time is up."""
    kinds = [(scene, fault) for scene in places for fault in (*FATAL, *FULL, *OTHER)]
    kinds = [(scene, fault) for scene, fault in kinds if scene.calls(fault)]
    chance.shuffle(kinds)
    for number in size.rounds():
        scene, fault = kinds[number % len(kinds)]
        yield scene, fault, chance.randint(1, scene.calls(fault))


async def strike_all(strikes: Iterator[Strike], directory: Path) -> tuple[int, int]:
    """Each of these, a few at a time; how many really struck, and how much was acknowledged meanwhile."""
    struck = acknowledged = 0
    ended: set[tuple[str, Fault]] = set()

    async def work() -> None:
        nonlocal struck, acknowledged
        for scene, fault, number in strikes:
            if (scene.name, fault) in ended:
                continue
            what = f"{scene.name} store, {fault}, call {number}"
            run, verdict = await strike(scene, fault, number, directory / what)
            try:
                judge(fault, run)
            except AssertionError as error:
                raise AssertionError(f"{what}: {error}") from error
            assert verdict.clean, f"{what}: {verdict}"
            acknowledged += sum(isinstance(record, ACKNOWLEDGEMENTS) for record in run.records)
            struck += bool(run.struck)
            if not run.struck and number > scene.calls(fault):
                ended.add((scene.name, fault))

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())
    return struck, acknowledged


@short_and_soak(Size("short", 30, 18.0), Size("soak", 0))
async def test_no_fault_makes_the_store_acknowledge_what_it_does_not_hold(
    size: Size, seed: int, tmp_path: Path, scenes: list[Scene], figures: Tell
) -> None:
    strikes = some(scenes, size, random.Random(seed)) if size.least else every(scenes)
    struck, acknowledged = await strike_all(strikes, tmp_path)
    assert struck > size.least // 2, "hardly any fault struck"
    figures(f"Nth fault: {struck:,} faults, {acknowledged:,} acknowledged, 0 falsely")


async def test_acknowledging_before_the_commit_is_noticed(
    tmp_path: Path, scenes: list[Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    used = scenes[-1]
    monkeypatch.setenv(NAME, "acknowledge-before-commit")
    for number in range(60, 320, 13):
        _, verdict = await strike(used, Fault("pwrite64", "error=EIO"), number, tmp_path / str(number))
        if any("it is nowhere" in sentence for sentence in verdict.lost):
            return
    pytest.fail("a failed commit was acknowledged, and nobody noticed")
