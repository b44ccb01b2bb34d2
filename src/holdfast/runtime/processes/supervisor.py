"""Supervises background processes of sessions on this machine.

It starts each under its own shim; samples resource use; records how processes ended, also those that ended
while no holdfast ran; executes stop requests; and takes over processes of nodes that are gone. If it dies,
the processes continue: the next supervisor on this machine resumes from the rows and the shims' records. A
signal is sent only to what is proven to be the process itself or something it started.

`supervise_once` is one pass over all processes; a loop calls it. A failure of one row does not affect others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from ...domain.nodes import Liveness
from ...domain.processes import (
    Process,
    ProcessLimits,
    ProcessState,
    Sample,
    Sighting,
    activity_between,
    end_of,
    log_name,
)
from ...errors import HoldfastError, NotFound, StoreError
from ...os_support import identity, running_processes, send_signal
from ...store.store import Store
from .. import periodic
from .files import ProcessFiles
from .launcher import POLL_SECONDS, START_SECONDS, Launcher, ProcessReader
from .probe import ProbeResult, is_here, members, probe, sample

log = logging.getLogger(__name__)

LOG_BYTES = 4 * 2**20
"""The most bytes kept of a process's output."""
STOP_SECONDS = 10.0
"""How long, after the grace period, a stop may take to be observed."""
TICK_SECONDS = 0.5
SAMPLES_PER_WINDOW = 12
LONGEST_BETWEEN_SAMPLES = 5.0
NOTED_EVERY_SECONDS = 60.0
"""How often the row of an idle process is updated with the time of its last probe."""
FORGET_EVERY_SECONDS = 600.0
KEPT = timedelta(days=30)


@dataclass(slots=True)
class Supervised:
    """What one pass has done, by process id."""

    adopted: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    signalled: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    @property
    def anything(self) -> bool:
        return bool(self.adopted or self.ended or self.signalled or self.troubles)


@dataclass(slots=True)
class _ObservedProcess:
    """What is kept of a process between two samples."""

    sample: Sample
    noted: float = 0.0
    listening: bool = False


class Supervisor(ProcessReader):
    def __init__(
        self,
        store: Store,
        own_node: Callable[[], str],
        directory: Path,
        limits: ProcessLimits,
        *,
        environment: Mapping[str, str] | None = None,
        kept: timedelta = KEPT,
        log_bytes: int = LOG_BYTES,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(store, directory)
        self._own_node = own_node
        self.limits = limits
        self._launcher = Launcher(store, own_node, directory, environment, log_bytes)
        self.start, self.watch = self._launcher.start, self._launcher.watch
        self._kept = kept
        self._monotonic = monotonic
        self._terminated: dict[str, float] = {}
        """When SIGTERM was sent to each process that is being stopped."""
        self._seen: dict[str, _ObservedProcess] = {}
        self._troubled: set[tuple[str, str]] = set()
        """Errors and signals already logged, by process: each is logged once."""
        self._next_sample = 0.0
        self._next_forgetting = monotonic() + FORGET_EVERY_SECONDS / 10  # not in one-shot programs
        self._loop = periodic.every(TICK_SECONDS, self.supervise_once, "look after processes")

    # --- lifecycle ---------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._loop.running

    def start_loop(self) -> None:
        self._loop.start()

    async def stop_loop(self) -> None:
        """Stop supervising. Processes continue; the next supervisor on this machine takes over."""
        await self._loop.stop()

    async def supervise_once(self) -> Supervised:
        """One pass: take over orphaned processes, record ends, execute stop requests, sample."""
        done = Supervised()
        mine = await self.adopt_once(done)
        mine = await self._settle(mine, done)
        await self._stop_requested(mine, done)
        if mine and self._monotonic() >= self._next_sample:
            every = self.limits.active_window.total_seconds() / SAMPLES_PER_WINDOW
            self._next_sample = self._monotonic() + min(every, LONGEST_BETWEEN_SAMPLES)
            await self.sample_once(mine)
        if self._monotonic() >= self._next_forgetting:
            self._next_forgetting = self._monotonic() + FORGET_EVERY_SECONDS
            await self.forget_once()
        return done

    # --- supervising -------------------------------------------------------------------------------

    async def adopt_once(self, done: Supervised | None = None) -> list[Process]:
        """Take over processes without a living supervisor; returns all that this node supervises, oldest
        first."""
        done = Supervised() if done is None else done
        own = self._own_node()
        found = await self._store.unended_processes(identity())
        if self._troubled:
            known = {each.id for each in found}
            self._troubled = {each for each in self._troubled if each[0] in known}
        others = {each.supervisor for each in found} - {own}
        living = await self._living(others) if others else set()
        mine = []
        for process in found:
            if process.supervisor == own:
                mine.append(process)
            elif process.supervisor not in living and await self._alone(process, self._claim(process), done):
                done.adopted.append(process.id)
                mine.append(replace(process, supervisor=own))
        return mine

    async def _claim(self, process: Process) -> bool:
        claimed = await self._store.claim_process(process.id, self._own_node(), process.supervisor)
        if claimed:
            log.info("looking after %s now", log_name(process))
        return claimed

    async def _living(self, node_ids: set[str | None]) -> set[str]:
        nodes = [node for node in await self._store.nodes() if node.id in node_ids]
        proofs = await self._store.probe(nodes)
        return {node.id for node in nodes if proofs[node.id][0] is not Liveness.DEAD}

    async def _settle(self, mine: Sequence[Process], done: Supervised) -> list[Process]:
        """Record what has begun or ended; returns the processes that still run."""
        running = []
        for process in mine:
            if process.id in self._launcher.starting:
                continue
            if await self._alone(process, self._settle_one(process, done), done):
                running.append(process)
        for gone in set(self._seen) - {process.id for process in mine}:
            del self._seen[gone]
        return running

    async def _settle_one(self, process: Process, done: Supervised) -> bool:
        """Record its start or end; True if it still runs."""
        found = await asyncio.to_thread(probe, process, self._directory)
        if process.state is ProcessState.STARTING:
            if process.watched:
                await self._store.process_started(process.id, process.identity)
            elif found.begun is None and found.alive:
                return not await self._give_up(process, done)
            await self._launcher.note_start(process, found.begun)
        if not found.alive:
            await self._note_end(process, found, done)
        elif found.ending is not None and process.exit_code is None:
            await self._store.process_finished(process.id, found.ending.exit_code)
        return found.alive

    async def _note_end(self, process: Process, found: ProbeResult, done: Supervised) -> None:
        ending = found.ending
        code = ending.exit_code if ending else process.exit_code
        state = end_of(process, code, ending is not None)
        at = ending.at if ending else None
        if await self._store.end_process(process.id, state, exit_code=code, at=at, why=found.why):
            done.ended.append(process.id)
            self._terminated.pop(process.id, None)
            how = f"with code {code}" if code is not None else found.why
            log.info("%s %s: %s", log_name(process), state.value, how)

    async def _give_up(self, process: Process, done: Supervised) -> bool:
        """Give up a start whose node died, once START_SECONDS have passed."""
        age = (self._store.now() - process.started_at).total_seconds()
        if abs(age) < START_SECONDS or not ProcessFiles(self._directory, process.id).abandon():
            return False
        why = "it was never started: the node that was about to start it is gone"
        if await self._store.end_process(process.id, ProcessState.LOST, why=why):
            done.ended.append(process.id)
        return True

    async def _alone(self, process: Process, act: Awaitable[bool], done: Supervised) -> bool:
        """Isolate failures: an error of one process is logged once; the others continue."""
        try:
            result = await act
        except StoreError:
            raise
        except Exception as error:
            self._note_trouble(process, error, done)
            return False
        return result

    def _note_trouble(self, process: Process, error: Exception, done: Supervised | None) -> None:
        if self._is_new(process, f"{type(error).__name__}: {error}"):
            expected = isinstance(error, HoldfastError | OSError)
            log.warning(
                "trouble with process %s: %s; it will be tried again",
                process.id, error, exc_info=None if expected else error,
            )  # fmt: skip
        if done is not None:
            done.troubles.append(f"{process.id}: {error}")

    async def sample_once(self, mine: Sequence[Process] | None = None) -> list[Sighting]:
        """Sample this node's processes; changes are written in one batch."""
        mine = await self.adopt_once() if mine is None else mine
        running = [process for process in mine if process.state is ProcessState.RUNNING]
        samples = await asyncio.to_thread(self._samples, running) if running else {}
        sightings = []
        for process_id, now in samples.items():
            before = self._seen.get(process_id)
            activity = activity_between(before.sample if before else None, now)
            seen = _ObservedProcess(now, before.noted if before else 0.0, now.listening)
            stale = self._monotonic() - seen.noted >= NOTED_EVERY_SECONDS
            if activity or before is None or stale or before.listening != now.listening:
                sightings.append(Sighting(process_id, activity, now.listening))
                seen.noted = self._monotonic()
            self._seen[process_id] = seen
        if sightings:
            await self._store.sample_processes(sightings)
        return sightings

    def _samples(self, running: Sequence[Process]) -> dict[str, Sample]:
        table = running_processes()
        samples = {}
        for process in running:
            try:
                samples[process.id] = sample(process, table, self._directory)
            except Exception as error:  # isolate failures: the others are still sampled
                self._note_trouble(process, error, None)
        return samples

    async def forget_once(self) -> int:
        """Delete rows of processes that ended long ago, and directories without a row."""
        recorded = (await self._store.policy()).retention
        before = self._store.now() - (recorded.events if recorded is not None else self._kept)
        while len(await self._store.prune_processes(before)) == 1000:
            continue

        def kept() -> list[str]:
            try:
                return [name for name in os.listdir(self._directory) if name.startswith("proc_")]
            except FileNotFoundError:
                return []

        ids = await asyncio.to_thread(kept)
        unknown = await self._store.unknown_processes(ids) if ids else []

        def remove() -> int:
            rubbish = [ProcessFiles(self._directory, id_) for id_ in unknown]
            dropped = [files for files in rubbish if files.shim_lives() is not True]
            for files in dropped:
                files.remove()
            return len(dropped)

        return await asyncio.to_thread(remove) if unknown else 0

    # --- stopping ----------------------------------------------------------------------------------

    async def stop(self, owner: str | None, process_id: str, reason: str) -> Process:
        """Request a stop; wait until the process has ended, at most the grace period plus STOP_SECONDS."""
        process = await self._store.request_stop(owner, process_id, reason)
        self._loop.wake()
        patience = self.limits.grace.total_seconds() + STOP_SECONDS
        until = self._monotonic() + patience
        while not process.ended and self._monotonic() < until:
            if not self._loop.running:
                await self._tend(process)
            await asyncio.sleep(POLL_SECONDS)
            try:
                process = await self._store.process(owner, process_id)
            except NotFound:  # its conversation was deleted, and the process with it
                return replace(process, state=ProcessState.STOPPED, ended_at=self._store.now())
        return process

    async def _tend(self, process: Process) -> None:
        """Without a loop of our own: execute the stop if no living supervisor would."""
        if process.supervisor != self._own_node():
            elsewhere = not is_here(process, identity()) or await self._living({process.supervisor})
            if elsewhere or not await self._claim(process):
                return
        done = Supervised()
        await self._stop_requested(await self._settle([process], done), done)

    async def _stop_requested(self, mine: Sequence[Process], done: Supervised) -> None:
        """Execute stop requests: SIGTERM, and after the grace period SIGKILL, to the whole process tree."""
        for process in mine:
            if process.stopping and process.may_stop:
                await self._alone(process, self._stop_one(process, done), done)

    async def _stop_one(self, process: Process, done: Supervised) -> bool:
        sent = self._terminated.get(process.id)
        now = self._monotonic()
        late = sent is not None and now - sent >= self.limits.grace.total_seconds()
        if sent is not None and not late:
            return False
        number = signal.SIGKILL if late else signal.SIGTERM
        reached = await asyncio.to_thread(self._signal, process, number)
        if reached:
            self._terminated.setdefault(process.id, now)
            done.signalled.append(process.id)
            if self._is_new(process, number.name):
                log.info(
                    "%s to %d of %s: %s",
                    number.name, reached, log_name(process), process.stop_reason,
                )  # fmt: skip
        return reached > 0

    def _is_new(self, process: Process, what: str) -> bool:
        """True the first time: it is to be logged."""
        if (process.id, what) in self._troubled:
            return False
        self._troubled.add((process.id, what))
        return True

    def _signal(self, process: Process, number: signal.Signals) -> int:
        """Signal the command and all its descendants; returns how many were reached."""
        reached: set[tuple[int, str]] = set()
        for _ in range(5):  # repeat: finds what they start meanwhile
            found = members(process, running_processes(), thorough=True)
            new = [one for one in found if (one.pid, one.start) not in reached]
            for one in new:
                try:
                    if send_signal(one.pid, one.start, number):
                        reached.add((one.pid, one.start))
                except PermissionError:
                    if self._is_new(process, f"pid {one.pid}"):
                        log.warning("process %d of %s belongs to another user", one.pid, process.id)
            if not new:
                break
        return len(reached)
