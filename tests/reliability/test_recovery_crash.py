"""Accepted is answered: servers are killed or stopped again and again, and no client ever asks twice.

With `recover = "all"` every turn in the store ends answered, or failed with a reason; with the default every
background response does. Each answer is whole and there once, and no command of a turn is run twice. The
model is called once for each attempt and for each stored step, and every attempt is stored before it.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType

import pytest

from holdfast.domain.turns import TurnStatus
from holdfast.store.postgres import engine as postgres
from holdfast.store.sqlite import engine as sqlite
from holdfast.store.store import Store
from tests import postgres_server

from .attacking import _directory
from .conftest import Tell
from .mutants import NAME
from .recovering import Askers, Verdict, judged, settled
from .serving import Server, Servers, reserved_ports, servers
from .sizes import Size, short_and_soak
from .upstream import BREAKS_OFF, Upstream, upstream

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets two sockets share a port so")

CHECKPOINT_SECONDS = 0.05
BURST = 10
"""After so many kills the servers are left alone until every turn has ended. Otherwise turns that were cut
short three times would pile up: each of them is taken up alone."""
NODES = 3
STORES = 4
"""So many stores at once in a soak, each with its own servers, model and clients."""
DRAIN_SECONDS = 0.1


class Attack:
    """Servers on one store, a model, and clients that ask once."""

    def __init__(
        self, started: Servers, model: Upstream, ports: list[int], seed: int, recover: str, lines: Path
    ) -> None:
        self._servers = started
        self._model = model
        self._ports = ports
        self._living: list[Server] = []
        self._recover = recover
        self._lines = lines
        self._chance = random.Random(seed)
        self._more: dict[str, str] = {
            "HOLDFAST_TURNS__RECOVER": recover,
            "HOLDFAST_TURNS__MAX_DEATHS": "1000",
        }
        self._urls = [f"http://127.0.0.1:{port}" for port in ports]
        self.askers = Askers(self._urls, lines, seed)
        self.killed: dict[int, float] = {}
        self.stops = 0

    async def begin(self, more: Mapping[str, str] = MappingProxyType({})) -> None:
        self._more |= more
        self._living = [self._start(which) for which in range(len(self._ports))]
        for server in self._living:
            assert await server.ready(), self.log()
        self.askers.start()

    async def kill(self) -> None:
        """Kill a server and start it again: at any time, or right after it has promised an answer."""
        which = self._chance.randrange(len(self._living))
        if self._chance.random() < 0.5:
            await self.askers.promised(self._urls[which], 2.0)
            await asyncio.sleep(self._chance.uniform(0, 0.1))
        else:
            await asyncio.sleep(self._chance.uniform(0.05, 0.5))
        server = self._living[which]
        self.killed[server.pid] = time.time()
        server.send(signal.SIGKILL)
        assert await server.ended() == -signal.SIGKILL, self.log()
        await self._start_again(which)
        if len(self.killed) % BURST == 0:
            await self.askers.pause_until_settled()

    async def deploy(self) -> None:
        """Stop one server in good order and start its successor, one after the other."""
        await asyncio.sleep(self._chance.uniform(0.05, 0.5))
        which = self.stops % len(self._living)
        self.stops += 1
        server = self._living[which]
        server.send(signal.SIGTERM)
        assert await server.ended() == 0, self.log()
        await self._start_again(which)

    async def command_run(self) -> None:
        """Returns once some turn has run a command: on a slow machine none may have come so far."""
        async with asyncio.timeout(120):
            while not self._lines.exists():  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.05)

    async def finish(self, open_store: Callable[[], AsyncIterator[Store]]) -> Verdict:
        """No more kills: turns come to their end by themselves, servers leave, everything is read."""
        await self.askers.stop()
        await settled(self._urls[0])
        calls = self._model.calls()
        for server in self._living:
            server.send(signal.SIGTERM)
            assert await server.ended() == 0, self.log()
        self._living = []
        async with asynccontextmanager(open_store)() as store:
            verdict = await judged(
                store, self.askers, calls, self._lines, recover=self._recover, killed=self.killed
            )
        if "Traceback" in self.log():
            verdict.wrong.append(f"a server's log: {self.log()}")
        return verdict

    async def end(self) -> None:
        await self.askers.stop()
        for server in self._living:
            server.send(signal.SIGKILL)
            await server.ended()

    def log(self) -> str:
        return self._servers.log.read_text()[-3000:]

    def _start(self, which: int) -> Server:
        return self._servers.start(self._ports[which], CHECKPOINT_SECONDS, more=self._more)

    async def _start_again(self, which: int) -> None:
        """As a process manager does: a command that the dead server was just starting may still have its
        socket, until it runs its own program."""
        for _ in range(5):
            self._living[which] = self._start(which)
            if await self._living[which].ready():
                return
            await self._living[which].ended()
            assert self.log().count("Address already in use"), self.log()
            await asyncio.sleep(0.2)
        pytest.fail(self.log())


@asynccontextmanager
async def attacked(
    seed: int, recover: str, *, count: int = 1, url: str = "", breaks_off: float = BREAKS_OFF
) -> AsyncIterator[Attack]:
    """`count` servers on one SQLite file in memory, or on the PostgreSQL at `url`. `breaks_off`: how often
    the model does; a client that waits for its answer then gets an error."""
    with _directory(None) as directory, upstream(directory, breaks_off) as model:
        with servers(directory / "home", model.url) as started, reserved_ports(count) as ports:
            started.environment["HOLDFAST_AGENT__TOOLS"] = "terminal"
            started.environment["HOLDFAST_TITLES__GENERATE"] = "false"  # the model's calls are counted
            if url:
                started.environment["HOLDFAST_STORE__URL"] = url
            attack = Attack(started, model, ports, seed, recover, directory / "lines")
            try:
                yield attack
            finally:
                await attack.end()


def _opened(attack: Attack, url: str = "") -> Callable[[], AsyncIterator[Store]]:
    async def opened() -> AsyncIterator[Store]:
        database = attack._servers.database
        store = await (postgres.open_store(url) if url else sqlite.open_store(database))
        try:
            yield store
        finally:
            await store.close()

    return opened


def _stores(size: Size) -> int:
    return STORES if size.name == "soak" else 1


def _pace(began: float, number: int) -> str:
    return f"{(time.monotonic() - began) / number:.2f} s each"


async def _killed(size: Size, recover: str, seed: int, *, count: int = 1, urls: Sequence[str]) -> str:
    """Kill servers `size` times in all, on so many stores at once; returns the figures. While the turns of
    one store come to their end, those of the others are cut short."""
    rounds, began = size.rounds(), time.monotonic()

    async def on_one_store(number: int, url: str) -> tuple[int, Verdict]:
        async with attacked(seed + number, recover, count=count, url=url) as attack:
            await attack.begin()
            for _ in rounds:
                await attack.kill()
            await attack.command_run()
            return len(attack.killed), await attack.finish(_opened(attack, url))

    async with asyncio.TaskGroup() as stores:
        lanes = [stores.create_task(on_one_store(*each)) for each in enumerate(urls)]
    kills, verdict = 0, Verdict()
    for lane in lanes:
        number, found = lane.result()
        kills += number
        verdict.add(found)
    assert not verdict.wrong, "\n".join(verdict.wrong)
    assert verdict.seconds, "no turn was taken up and answered"
    assert verdict.commands, "no command was run"
    return f"{kills:,} kills on {len(urls)} stores ({_pace(began, kills)}), {verdict.figures()}"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("recover", ["all", "background"])
@short_and_soak(Size("short", 6), Size("soak", 500))
async def test_what_was_accepted_is_answered_though_no_client_asks_again(
    size: Size, recover: str, seed: int, figures: Tell
) -> None:
    figures(f"recovery, {recover}: {await _killed(size, recover, seed, urls=[''] * _stores(size))}")


@pytest.mark.timeout(3600)
@pytest.mark.postgres
@pytest.mark.parametrize("recover", ["all", "background"])
@short_and_soak(Size("short", 6), Size("soak", 150))
async def test_three_nodes_on_one_database_finish_each_others_turns(
    size: Size, recover: str, seed: int, figures: Tell
) -> None:
    with postgres_server.private(durable=size.name == "soak") as database:
        names = [f"holdfast{number}" for number in range(_stores(size))]
        for name in names:
            database.create(name)
        urls = [database.url(name) for name in names]
        found = await _killed(size, recover, seed, count=NODES, urls=urls)
    figures(f"recovery, {recover}, three nodes, one PostgreSQL: {found}")


def _not_answered(verdict: Verdict) -> list[str]:
    """A stop is no death: it uses up nothing, so every turn is answered."""
    return [
        f"{turn.id} is {turn.status}: {turn.why}"
        for turn in verdict.turns
        if turn.status is not TurnStatus.COMPLETED
    ] + [
        f"{turn.id} has used up {turn.recovery.all_tries} attempts"
        for turn in verdict.turns
        if turn.recovery.all_tries > 1
    ]


DEPLOY = {"HOLDFAST_SERVER__DRAIN_SECONDS": str(DRAIN_SECONDS)}


@pytest.mark.timeout(3600)
@short_and_soak(Size("short", 4), Size("soak", 50))
async def test_a_deploy_under_load_leaves_no_turn_without_an_answer(
    size: Size, seed: int, figures: Tell
) -> None:
    """Two servers share a store and are replaced in turn, while turns take longer than they may drain."""
    async with attacked(seed, "all", count=2, breaks_off=0) as attack:
        await attack.begin(DEPLOY)
        began = time.monotonic()
        for _ in size.rounds():
            await attack.deploy()
        pace = _pace(began, attack.stops)
        verdict = await attack.finish(_opened(attack))
    wrong = verdict.wrong + _not_answered(verdict)
    assert not wrong, "\n".join(wrong)
    assert verdict.again, "no turn was stopped"
    figures(f"deploy: {attack.stops} rolling restarts ({pace}), {verdict.figures()}")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mutant", ["attempts-not-counted", "open-calls-run-again", "stops-are-deaths"])
async def test_a_careless_recovery_is_noticed(
    mutant: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAME, mutant)
    for number in range(6):
        async with attacked(seed + number, "all", breaks_off=0) as attack:
            await attack.begin(DEPLOY)
            for _ in range(8):
                await (attack.deploy() if mutant == "stops-are-deaths" else attack.kill())
            verdict = await attack.finish(_opened(attack))
        if verdict.wrong or (mutant == "stops-are-deaths" and _not_answered(verdict)):
            return
    pytest.fail("servers were killed or stopped 48 times, and the mistake was not seen")
