"""Kills servers repeatedly under clients that retry, and checks the state after each kill.

The clients, the model and the servers are separate connections and processes; only the kills happen here. A
kill comes at a random time, during startup, or right after a client got its status line, a chunk or its
reply: there it catches a server that acknowledges more than it has written.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from holdfast.errors import ConversationBusy
from holdfast.store.sqlite.engine import open_store
from holdfast.store.store import Store

from .callers import Caller, a_chat
from .exchanges import Chat, Ledger, Moment
from .reckoning import Reckoning, Verdict
from .serving import Server, Servers, reserved_ports, servers
from .upstream import Upstream, upstream

CALLERS = 6
CHATS_EACH = 3
CHECKPOINT_SECONDS = (0.1, 0.1, 0.5)
"""How far servers let a stream get ahead of the disk: the default, and less, so that more is stored."""
MOMENTS: tuple[Moment | None, ...] = (None, None, "accepted", "word", "answered")


class Attack:
    """One store, its clients, and a server at each port. All clients speak in `shared` of the chats."""

    def __init__(
        self,
        started: Servers,
        model: Upstream,
        ports: list[int],
        seed: int,
        shared: int = 2,
        moments: Sequence[Moment | None] = MOMENTS,
    ) -> None:
        self.chance = random.Random(seed)
        self.ledger = Ledger()
        self.reckoning = Reckoning(self.ledger)
        self.kills = self.cut = 0
        self._servers = started
        self._model = model
        self._moments = moments
        self._ports = ports
        self._living: list[Server] = []
        self._checkpoint_seconds = [0.0] * len(ports)
        self._enough = asyncio.Event()
        self._talking: list[asyncio.Task[None]] = []
        self._numbers = itertools.count()
        self._store: Store | None = None
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        everybodys = [self._chat(shared=True) for _ in range(shared)]
        self._callers = [
            Caller(self.ledger, urls, f"{seed}-{which}", [*self._own(), *everybodys], self._chat)
            for which in range(CALLERS)
        ]

    # --- servers and clients -------------------------------------------------------------------------

    async def begin(self) -> None:
        """Start the servers, the first as the installed program, and let the clients speak."""
        self._living = [self._start(which, cold=not which) for which in range(len(self._ports))]
        for server in self._living:
            assert await server.ready(), self.log()[-3000:]
        self._store = await self.open_store()
        self._talking = [asyncio.create_task(caller.talk(self._enough)) for caller in self._callers]

    async def open_store(self) -> Store:
        """The servers' store, once more."""
        return await open_store(self._servers.database)

    async def finish(self) -> Verdict:
        """No more kills: clients get their answers, servers leave in good order, everything is read."""
        self._enough.set()
        await asyncio.gather(*self._talking)
        for server in self._living:
            server.send(signal.SIGTERM)
            status = await server.ended()
            assert status == 0, f"a server that was told to stop ended as {status}: {self.log()[-3000:]}"
        self._living = []
        verdict = await self.reckoning.at_the_end(self.store, self._model.calls())
        doctor = self._servers.command("doctor")
        if doctor.returncode != 0:
            verdict.untruthful.append(f"doctor: {doctor.stdout} {doctor.stderr}")
        if "Traceback" in self.log():
            verdict.untruthful.append(f"a server's log: {self.log()[-3000:]}")
        return verdict

    async def end(self) -> None:
        """Whatever still goes on is broken off."""
        for task in self._talking:
            task.cancel()
        await asyncio.gather(*self._talking, return_exceptions=True)
        for server in self._living:
            server.send(signal.SIGKILL)
            await server.ended()
        if self._store is not None:
            await self._store.close()

    @property
    def store(self) -> Store:
        """The store as somebody sees it who serves nobody."""
        assert self._store is not None
        return self._store

    def log(self) -> str:
        """What the servers have complained about."""
        return self._servers.log.read_text()

    def _own(self) -> list[Chat]:
        return [self._chat() for _ in range(CHATS_EACH)]

    def _chat(self, *, shared: bool = False) -> Chat:
        return a_chat(self.chance, next(self._numbers), shared=shared)

    def _start(self, which: int, *, cold: bool = False) -> Server:
        seconds = self._checkpoint_seconds[which] = self.chance.choice(CHECKPOINT_SECONDS)
        return self._servers.start(self._ports[which], seconds, cold=cold)

    # --- kills ---------------------------------------------------------------------------------------

    async def kill_and_look(self) -> Verdict:
        """Kill one server, start it again, and compare what was acknowledged with what is stored."""
        for task in self._talking:
            if task.done():
                task.result()
        which = self.chance.randrange(len(self._ports))
        await self._kill(which)
        if len(self._ports) > 1 and self.chance.random() < 0.3:
            verdict = await self._settled()  # by those that are left
            if not verdict.clean:
                return verdict
        self._living[which] = self._start(which)
        if self.chance.random() < 0.1:
            await asyncio.sleep(self.chance.random() * 0.2)  # mostly while it is starting
            await self._kill(which, at_once=True)
            self._living[which] = self._start(which)
        assert await self._living[which].ready(), self.log()[-3000:]
        verdict = await self._settled()
        if verdict.clean:
            verdict = await self.reckoning.so_far(self.store, self._model.calls())
        await self._make_stale()
        return verdict

    async def _settled(self) -> Verdict:
        turns = {owed.turn for owed in self.ledger.owed[-20:]}
        return await self.reckoning.settled(self.store, sorted(turns))

    async def _kill(self, which: int, *, at_once: bool = False) -> None:
        """Wait for a good moment and strike."""
        server, struck = self._living[which], asyncio.Event()

        def strike() -> None:
            if not struck.is_set():
                struck.set()
                self.cut += self.ledger.killed(which, self._checkpoint_seconds[which])
                server.send(signal.SIGKILL)

        if not at_once:
            moment = self.chance.choice(self._moments)
            if moment is not None:
                self.ledger.listener = _at(
                    moment, self.chance.randrange(1, 40 if moment == "word" else 4), strike
                )
            with suppress(TimeoutError):
                await asyncio.wait_for(struck.wait(), self.chance.random() * 0.9)
        strike()
        self.ledger.listener = lambda _: None
        self.kills += 1
        assert await server.ended() == -signal.SIGKILL, self.log()[-3000:]

    async def _make_stale(self) -> None:
        """End a session, so that from the next message on its id leads to a newer one."""
        chats = [exchange.chat for exchange in self.ledger.accepted[-20:]]
        if chats and self.chance.random() < 0.5:
            with suppress(ConversationBusy):
                await self.store.end_session(None, self.chance.choice(chats).sessions[-1], "closed")

    # --- figures -------------------------------------------------------------------------------------

    def figures(self, seconds: float) -> str:
        ledger, counts = self.ledger, self.ledger.counts
        oldest = ", ".join(
            f"{age:.2f} s (of {limit:g})" for limit, age in sorted(self.reckoning.oldest_lost_word.items())
        )
        return (
            f"{self.kills:,} kills ({seconds / self.kills:.2f} s each), {len(ledger.accepted):,} messages "
            f"accepted, {len(ledger.answered):,} answered, 0 lost, 0 doubled, 0 untruthful; "
            f"{self.cut:,} streams cut, {counts['retried']:,} messages sent again, "
            f"{counts['SDK retries']:,} retries by the SDK, {counts['streams resumed']:,} streams resumed; "
            f"settled {self.reckoning.slowest_settling:.2f} s after a restart at most, "
            f"the oldest word that was not stored was heard {oldest} before its kill"
        )


def _at(moment: Moment, count: int, strike: Callable[[], None]) -> Callable[[Moment], None]:
    """Strike when this has been noticed so many times."""
    left = count

    def notice(noticed: Moment) -> None:
        nonlocal left
        left -= noticed == moment
        if left <= 0:
            strike()

    return notice


@asynccontextmanager
async def attacked(
    seed: int, disk: Path | None = None, *, count: int = 1, **how: Any
) -> AsyncIterator[Attack]:
    """`count` servers on one store, and clients that speak to them; `how` is Attack's.

    The store is on this disk, or in memory where the system offers that: `kill -9` loses nothing of it, and
    other people's disk traffic does not decide how late a checkpoint is.
    """
    with _directory(disk) as directory, upstream(directory) as model:
        with servers(directory / "home", model.url) as started, reserved_ports(count) as ports:
            attack = Attack(started, model, ports, seed, **how)
            try:
                await attack.begin()
                yield attack
            finally:
                await attack.end()


@contextmanager
def _directory(disk: Path | None) -> Iterator[Path]:
    memory = Path("/dev/shm")
    if disk is None and os.access(memory, os.W_OK):
        disk = memory
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir=disk) as name:
        yield Path(name)
