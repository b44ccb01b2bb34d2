"""Lock hygiene: foreign programs open and close the database while a process writes; nothing may be lost.

The classic mistake is made in the same process: some code opens the file and closes it again, so the kernel
drops SQLite's locks; the next foreign program considers the log abandoned and deletes it. A store may recover
from that or stop, but what it acknowledges must be there. Holdfast itself never opens its files.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.runtime.agents.reaper import Reaper
from holdfast.store.sqlite.engine import open_store

from .conftest import Tell
from .forkserver import ROOT, environment
from .ledger import Comparison, Ledger, Verdict
from .mutants import NAME
from .nursery import Child, nursery
from .outsider import LEAST, WAYS, look_with_sqlite3
from .records import ACKNOWLEDGEMENTS, Note, Record, Refused, Replied
from .scribe import Task
from .sizes import Size, short_and_soak


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"tests.reliability.{program}", *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


async def compare(database: Path, ledger: Ledger) -> Verdict:
    store = await open_store(database)
    try:
        await Reaper(store, lambda: None).reap_once()
        return await Comparison(ledger).run(store)
    finally:
        await store.close()


@short_and_soak(Size("short", 1, 4.0), Size("soak", 1, 120.0))
async def test_outsiders_who_open_and_close_the_database_do_no_harm(
    size: Size, seed: int, tmp_path: Path, figures: Tell
) -> None:
    database, ledger = tmp_path / "holdfast.db", Ledger()
    with nursery() as forks:
        child = forks.start(Task(str(database), "life", seed, checkpoint_pages=50))
        for record in child.records():
            ledger.note(record)
            if ledger.acknowledged > 10:
                break
        outsiders = [start("outsider", way, str(database)) for way in WAYS for _ in range(2)]
        until = time.monotonic() + size.seconds
        while time.monotonic() < until:
            for record in child.records(0.1):
                assert not isinstance(record, Note | Refused), f"a writing process says: {record}"
                ledger.note(record)
        times = [int(outsider.communicate()[0]) for outsider in outsiders]
        assert [outsider.returncode for outsider in outsiders] == [0] * len(outsiders)
        child.kill()
        for record in child.records():
            ledger.note(record)
        child.wait()
    verdict = await compare(database, ledger)
    assert verdict.clean, str(verdict)
    assert min(times) >= LEAST
    figures(
        f"lock hygiene: {sum(times):,} times opened and closed by outsiders, "
        f"{ledger.acknowledged:,} acknowledged, 0 lost"
    )


def after_the_mistake(child: Child, ledger: Ledger, act: Callable[[], None]) -> list[Record]:
    """Listen until the process says that it has made its mistake, act, and hear the rest."""
    rest = list[Record]()
    made = False
    for record in child.records(60):
        ledger.note(record)
        if record == Note("mistake"):
            act()
            made = True
        elif made:
            rest.append(record)
    child.kill()
    child.wait()
    assert made
    return rest


@pytest.mark.parametrize(
    ("ending", "times"),
    [("", 8), ("", 0), ("-shm", 3), ("-shm", 0), ("-wal", 0)],
    ids=[
        "the database, while it writes",
        "the database, while it waits",
        "its shared memory, while it writes",
        "its shared memory, while it waits",
        "its log",
    ],
)
async def test_closing_a_handle_of_our_files_costs_nothing_acknowledged(
    seed: int, tmp_path: Path, ending: str, times: int
) -> None:
    """The classic mistake, followed by an outsider's look. While it writes, that is a race: several times."""
    busy = times > 0
    with nursery() as forks:
        for number in range(times or 1):
            place = tmp_path / f"{number}"
            place.mkdir()
            database, ledger = place / "holdfast.db", Ledger()
            task = Task(
                str(database),
                f"{number}",
                seed + number,
                writers=4 if busy else 1,
                turns=25 if busy else 6,
                mistake=f"{database}{ending}",
                pause_for="" if busy else str(place / "go"),
            )

            def outsider(place: Path = place, database: Path = database) -> None:
                for _ in range(3):
                    try:
                        look_with_sqlite3(str(database))
                    except sqlite3.DatabaseError as error:
                        print(f"the outsider says: {error}")
                (place / "go").touch()

            rest = after_the_mistake(forks.start(task), ledger, outsider)
            assert {record.error for record in ledger.refused} <= {"StoreFailed"}, ledger.refused
            broken = [
                note for note in rest if isinstance(note, Note) and note.what not in ("stopped", "finished")
            ]
            assert not broken
            verdict = await compare(database, ledger)
            assert verdict.clean, f"time {number}: {verdict}"


async def lose_the_log(tmp_path: Path, seed: int) -> tuple[list[Record], Verdict]:
    """Somebody deletes the log of a store in use; what it says then, and what is found later."""
    database, ledger = tmp_path / "holdfast.db", Ledger()
    with nursery() as forks:
        task = Task(
            database=str(database),
            life="life",
            seed=seed,
            writers=1,
            turns=6,
            mistake=os.devnull,
            pause_for=str(tmp_path / "go"),
            closes=False,
        )

        def vandal() -> None:
            os.unlink(f"{database}-wal")
            (tmp_path / "go").touch()

        rest = after_the_mistake(forks.start(task), ledger, vandal)
    return rest, await compare(database, ledger)


async def test_a_log_that_was_deleted_is_noticed_before_anything_is_acknowledged(
    tmp_path: Path, seed: int
) -> None:
    rest, _ = await lose_the_log(tmp_path, seed)
    assert [record for record in rest if isinstance(record, ACKNOWLEDGEMENTS)] == []
    assert [record.error for record in rest if isinstance(record, Refused)] == ["StoreFailed"]
    assert Note("stopped") in rest


async def test_without_the_inode_check_the_loss_is_noticed(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAME, "no-inode-check")
    rest, verdict = await lose_the_log(tmp_path, seed)
    replied = [record.tag_ for record in rest if isinstance(record, Replied)]
    assert any(replied[-1] in sentence for sentence in verdict.lost), str(verdict)


async def test_the_last_to_close_leaves_nothing_but_the_database(tmp_path: Path) -> None:
    """Whatever holds the log in place meanwhile is let go in time for SQLite to tidy up."""
    first, second = await open_store(tmp_path / "holdfast.db"), await open_store(tmp_path / "holdfast.db")
    await first.close()
    assert (tmp_path / "holdfast.db-wal").exists()
    await second.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["holdfast.db"]


def test_holdfast_never_opens_its_files_itself(tmp_path: Path) -> None:
    said, _ = start("tour", str(tmp_path)).communicate()
    assert said.split() == []
    assert (tmp_path / "copy.db").exists(), "the tour did not get to its end"


def test_opening_a_file_of_the_store_would_be_seen(tmp_path: Path) -> None:
    said, _ = start("tour", str(tmp_path), "--mistake").communicate()
    assert said.split() == ["holdfast.db"]
