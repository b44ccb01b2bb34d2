"""Crash, store: a writing process is killed with `kill -9` at random moments; what it acknowledged is kept.

One database lives through many kills, so leftovers accumulate. Dead nodes are reaped by the parent or by the
next writing process, which first retries the unanswered requests: each is one turn, however often it is sent.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest

from holdfast.runtime.agents.reaper import Reaper
from holdfast.store.sqlite.engine import open_store
from holdfast.store.store import Store

from .conftest import Tell
from .ledger import Comparison, Ledger, Verdict
from .mutants import NAME
from .nursery import Child, Nursery, nursery
from .records import Note, Record, Refused
from .scribe import Task
from .sizes import Size, short_and_soak

KILLS_PER_DATABASE = 250


def live(child: Child, ledger: Ledger, chance: random.Random) -> None:
    """Listen for a while: hardly (it is just starting), for some time, or until some number of words."""
    seconds, words = chance.choice(
        (
            (chance.random() * 0.03, 1_000_000),
            (chance.random() * 0.2, 1_000_000),
            (2.0, chance.randrange(1, 20)),
            (2.0, chance.randrange(1, 150)),
        )
    )
    for record in child.records(seconds):
        note(ledger, record)
        words -= 1
        if words <= 0:
            return


def note(ledger: Ledger, record: Record) -> None:
    assert not isinstance(record, Note | Refused), f"a writing process says: {record}"
    ledger.note(record)


def die(child: Child, ledger: Ledger) -> None:
    child.kill()
    for record in child.records():
        note(ledger, record)
    assert child.wait() == -9


async def reap(store: Store) -> int:
    """Settle what the dead left; a second time there is nothing left to do."""
    reaper = Reaper(store, lambda: None)
    done = await reaper.reap_once()
    assert not done.troubles
    assert not (await reaper.reap_once()).anything
    return len(done.nodes)


async def everything_again(database: Path, ledger: Ledger) -> Verdict:
    """Reap, and compare from the first message on."""
    store = await open_store(database)
    try:
        await reap(store)
        return await Comparison(ledger).run(store)
    finally:
        await store.close()


async def lives_of_one_process(
    forks: Nursery, database: Path, ledger: Ledger, size: Size, seed: int
) -> AsyncGenerator[Verdict, None]:
    """Start, kill, reopen, compare; one verdict per kill."""
    chance = random.Random(seed)
    comparison = Comparison(ledger)
    for kill in size.rounds():
        task = Task(str(database), f"{seed}.{kill}", seed, again=list(ledger.open.values()))
        child = forks.start(task)
        live(child, ledger, chance)
        die(child, ledger)
        store = await open_store(database)
        try:
            settled = chance.random() < 0.7  # else it is left to the next process
            if settled:
                await reap(store)
            yield await comparison.run(store, settled=settled)
        finally:
            await store.close()


@short_and_soak(Size("short", 60, 12.0), Size("soak", 1000))
async def test_what_was_acknowledged_before_a_kill_is_there_once_after_it(
    size: Size, seed: int, tmp_path: Path, figures: Tell
) -> None:
    kills = acknowledged = taken_up = 0
    with nursery() as forks:
        while kills < size.least:
            database, ledger = tmp_path / f"{kills}.db", Ledger()
            part = Size(size.name, min(size.least, KILLS_PER_DATABASE), size.seconds)
            async for verdict in lives_of_one_process(forks, database, ledger, part, seed + kills):
                kills += 1
                assert verdict.clean, f"after kill {kills}: {verdict}"
            verdict = await everything_again(database, ledger)
            assert verdict.clean, f"at the end: {verdict}"
            acknowledged += ledger.acknowledged
            taken_up += ledger.taken_up
    assert acknowledged > 2 * kills, "hardly anything was written between the kills"
    assert taken_up, "no request was made again"
    figures(
        f"crash, store: {kills:,} kills, {acknowledged:,} acknowledged, 0 lost, 0 doubled, 0 gaps; "
        f"{taken_up:,} turns taken up again"
    )


@short_and_soak(Size("short", 12, 5.0), Size("soak", 100))
async def test_a_kill_harms_nobody_who_writes_to_the_same_file(
    size: Size, seed: int, tmp_path: Path, figures: Tell
) -> None:
    """Two processes share the file and the conversations. One is killed; the other goes on meanwhile."""
    chance = random.Random(seed)
    database, ledger, kills = tmp_path / "shared.db", Ledger(), 0
    comparison = Comparison(ledger)
    with nursery() as forks:

        def start(number: int) -> Child:
            lost = [
                a for a in ledger.open.values() if not a.request.startswith(tuple(f"{n}." for n in alive))
            ]
            return forks.start(Task(str(database), f"{number}", seed, again=lost))

        alive: dict[int, Child] = {}
        alive[0] = start(0)
        alive[1] = start(1)
        for kills in size.rounds():
            for child in alive.values():
                live(child, ledger, chance)
            die(alive.pop(chance.choice(list(alive))), ledger)
            store = await open_store(database)
            try:
                assert await reap(store) <= 1, "somebody alive was taken for dead"
                verdict = await comparison.run(store, settled=False)
                assert verdict.clean, f"after kill {kills}: {verdict}"
            finally:
                await store.close()
            alive[kills + 2] = start(kills + 2)
        for child in alive.values():
            die(child, ledger)
    verdict = await everything_again(database, ledger)
    assert verdict.clean, f"at the end: {verdict}"
    figures(
        f"crash, two writers: {kills + 3:,} kills, {ledger.acknowledged:,} acknowledged, "
        "0 lost, 0 doubled, 0 gaps"
    )


@short_and_soak(Size("short", 40, 2.0), Size("soak", 1000))
async def test_several_processes_may_make_a_store_at_the_same_moment(
    size: Size, seed: int, tmp_path: Path, figures: Tell
) -> None:
    """Whoever comes second waits for the first; nobody is refused."""
    with nursery() as forks:
        for number in size.rounds():
            start_at, database = time.monotonic() + 0.02, str(tmp_path / f"{number}.db")
            tasks = [Task(database, f"{who}", seed, turns=0, start_at=start_at) for who in range(3)]
            for child in [forks.start(task) for task in tasks]:
                said = list(child.records())
                child.wait()
                assert said[-1] == Note("finished"), f"store {number}: {said}"
    figures(f"made at once: {number + 1:,} stores by 3 processes each, 0 refused")


async def test_acknowledging_before_the_commit_is_noticed(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAME, "acknowledge-before-commit")
    with nursery() as forks:
        lives = lives_of_one_process(forks, tmp_path / "store.db", Ledger(), Size("mutant", 50), seed)
        async with aclosing(lives):
            async for verdict in lives:
                if any("it is nowhere" in sentence for sentence in verdict.lost):
                    return
    pytest.fail("50 kills, and nothing was found to be lost")
