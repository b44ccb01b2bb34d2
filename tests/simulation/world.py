"""The world: one machine, its programs, their clients, and the faults they meet, all from one seed.

A run lets one event loop at a time take one step, in an order that follows from the seed; when none has
anything to do, the clock moves to the next timer. Faults are injected every so often. After every commit the
watcher checks everything. At the end the faults stop, all programs finish, and nothing may be left open.

The same seed and plan produce the same run, to the last event: `World.digest` is the proof.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import random
import sys
import tempfile
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from holdfast import app
from holdfast.domain.conversations import Address
from holdfast.errors import HoldfastError, ModelError
from holdfast.models.base import Chunk, ModelRequest, Purpose
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.agents import queue_runner, recoverer
from holdfast.runtime.processes import supervisor
from holdfast.runtime.turns import runner
from holdfast.settings import load
from holdfast.store.sqlite import watch
from holdfast.store.sqlite.engine import SQLiteStore

from .checks import Ledger, Violation, Watcher
from .clients import POISON, Client
from .clock import EPOCH, Clock, VirtualLoop
from .machine import Machine
from .nodes import OWNER, TOOL, Program, Script, State

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None

Fault = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Plan:
    """How long a run takes, who is there, how often what goes wrong (mean seconds; 0: never)."""

    name: str
    seconds: float
    servers: int = 2
    scripts: int = 1
    clients: int = 5
    conversations: int = 4
    think_seconds: float = 6.0
    heartbeat_seconds: float = 15.0
    stale_seconds: float = 90.0
    sweep_seconds: float = 1.0
    tick_seconds: float = 2.0
    poll_seconds: float = 0.1
    idle: timedelta = timedelta(minutes=2)
    at_hour: int = 4
    quiet: timedelta = timedelta(minutes=1)
    timezone: str = "UTC"
    max_block: timedelta = timedelta(minutes=3)
    grace_seconds: float = 10.0
    start: datetime = EPOCH
    kill: float = 0.0
    leave: float = 0.0
    stop: float = 0.0
    longest_stop: float = 200.0
    sleep: float = 0.0
    longest_sleep: float = 7200.0
    freeze: float = 0.0
    jump: float = 0.0
    longest_jump: float = 7200.0
    full: float = 0.0
    break_: float = 0.0
    reboot: float = 0.0
    spawn: float = 0.0
    busy_chance: float = 0.0
    bad_model: float = 0.2
    longest_silence: float = 150.0
    """Of a model that hangs."""
    outage: float = 0.0
    longest_outage: float = 60.0
    tools: float = 0.0
    """How often the model calls a tool of the server; 0: there is none."""
    poison: float = 0.0
    """How many messages kill the server that answers them."""
    bursts: float = 0.0
    """How often a client sends several messages at once, instead of one."""
    max_attempts: int = 3
    recover_seconds: float = 0.5


STORM = Plan(
    "storm", 120, clients=6, think_seconds=2.5, start=EPOCH - timedelta(hours=6, minutes=10),
    heartbeat_seconds=3, stale_seconds=12, longest_silence=40,
    kill=30, leave=60, stop=15, longest_stop=30, sleep=60, freeze=90, jump=70, full=60, break_=120,
    reboot=200, spawn=30,
    busy_chance=0.02, outage=60, longest_outage=20, tools=0.3, poison=0.02,
)  # fmt: skip
"""Minutes in which everything happens. Beats come faster than by default, so that hangs are noticed soon."""

STALLS = replace(
    STORM, name="stalls", heartbeat_seconds=1.5, stale_seconds=6, stop=6, longest_stop=60,
    kill=0, leave=0, reboot=0, sleep=0, jump=0, full=0, break_=0,
)  # fmt: skip
"""Minutes in which nodes often hang for longer than they may, are reaped, and write when they go on."""

SEASON = Plan(
    "season", 14 * 86_400.0, servers=1, scripts=1, clients=3, conversations=3, think_seconds=4 * 3600,
    heartbeat_seconds=1800, stale_seconds=5400, sweep_seconds=1800, tick_seconds=1800, poll_seconds=2,
    idle=timedelta(hours=20), quiet=timedelta(minutes=30), timezone="Europe/Berlin",
    max_block=timedelta(hours=2), start=EPOCH + timedelta(days=20),
    kill=86_400 * 1.5, leave=86_400 * 2, stop=86_400 * 2, longest_stop=4 * 3600, sleep=86_400 / 2,
    longest_sleep=12 * 3600, jump=86_400 * 4, longest_jump=30 * 3600, full=86_400 * 5, reboot=86_400 * 6,
    spawn=86_400 / 2, busy_chance=0.01, longest_silence=20, outage=86_400, longest_outage=4 * 3600,
    recover_seconds=600, tools=0.2, poison=0.01, bursts=0.2,
)  # fmt: skip
"""Weeks of a laptop: closed every evening, its clock set now and then, over the change to summer time."""


class Model(ScriptedModel):
    """Answers, summarises and remembers; or fails, breaks off, or takes its time."""

    def __init__(self, world: World) -> None:
        super().__init__(self._answer, keeps_requests=False, window=600)
        self._world = world
        self._chance = world.chance
        self._calls = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        if request.purpose is Purpose.FLUSH:
            self._world.watcher.asked_to_flush(str(request.idempotency_key).removeprefix("flush-"))
        async for chunk in super().stream(request):
            yield chunk

    def _answer(self, messages: list[dict[str, Any]], purpose: Purpose) -> Any:
        if purpose is Purpose.TURN:
            said = [str(each["content"]) for each in messages if each["role"] == "user"]
            self._world.watcher.asked([text.split(" ", 1)[0] for text in said])
            if said and POISON in said[-1].split():
                return self._world.poisoned()
        if self._world.model_is_out or self._chance.random() < self._world.plan.bad_model / 4:
            return ModelError("the model is out", status=self._chance.choice((None, 429, 503)))
        if purpose is Purpose.TURN and self._chance.random() < self._world.plan.tools:
            self._calls += 1
            call = {"name": TOOL, "arguments": "{}"}
            return {"tool_calls": [{"id": f"call{self._calls}", "type": "function", "function": call}]}
        if purpose is Purpose.TURN:
            return self._speaks([self._world.new_reply(), *self._world.reply_words()])
        told = (
            "They spoke.",
            "NONE" if purpose is Purpose.FLUSH else "They spoke at length.",
            "",
            "so " * 2000,
        )
        return self._speaks(self._chance.choices(told, (8, 4, 1, 1))[0].split())

    async def _speaks(self, words: list[str]) -> AsyncIterator[str]:
        """Mostly all of them; now and then a part, or only after a long while."""
        bad = self._chance.random() < self._world.plan.bad_model
        how = self._chance.choice(("breaks off", "hangs", "is slow")) if bad else "answers"
        for number, word in enumerate(words):
            if number < 15:
                await asyncio.sleep(self._chance.choice((0.01, 0.1, 0.6)))
            if number and how != "answers" and self._chance.random() < 0.5:
                if how == "breaks off":
                    raise ModelError("the line is dead")
                longest = self._world.plan.longest_silence
                await asyncio.sleep(
                    self._chance.choice((0.05, 0.4)) * longest if how == "is slow" else longest
                )
                if how == "hangs":
                    raise ModelError("the model said nothing for too long")
            yield f" {word}" if number else word


class World:
    def __init__(self, seed: int, plan: Plan) -> None:
        self.seed = seed
        self.plan = plan
        self.chance = random.Random(f"{plan.name} {seed}")
        self.clock = Clock(plan.start)
        self.machine = Machine(self.clock, self.chance)
        self.machine.disk.busy_chance = plan.busy_chance
        self.machine.committed = self._committed
        self.ledger = Ledger()
        self.outside = VirtualLoop(self.clock, lambda: 0.0)
        self.outside.set_exception_handler(self.on_loop_error)
        self.servers = [Program(self, f"server{number}") for number in range(plan.servers)]
        self.scripts = [Script(self, f"script{number}") for number in range(plan.scripts)]
        self._programs = (*self.servers, *self.scripts)
        self.clients = [
            Client(self, f"client{number}", f"chat:{number % plan.conversations}")
            for number in range(plan.clients)
        ]
        self.model = Model(self)
        self.graveyard: list[Any] = []
        """Whatever dead programs leave in our memory: nothing of it may run again, not even to tidy up."""
        self.calm = False
        """Are the faults over?"""
        self.model_is_out = False
        self.watched = 0.0
        """How long a server was there to look after the others, and could write."""
        self.observed = 0.0
        """The same for any program at all: scripts sweep too. What an observer may take for time in which it
        watched, though it stood still or could not write, is in it."""
        self.continues = 0
        self.deaths = 0
        self._watching_since: dict[Program, float] = {}
        self._next_look = 0.0
        self._replies = 0
        self.steps = 0
        self.trouble: BaseException | None = None
        self.story: list[str] = []

    # --- a run ----------------------------------------------------------------------------------------

    def run(self) -> World:
        """The whole run. Raises what was violated, with the story before it."""
        with tempfile.TemporaryDirectory(prefix="simulated-", dir=MEMORY) as directory:
            database = Path(directory) / "store.db"
            database.write_bytes(_template())
            (Path(directory) / "holdfast.toml").touch()
            self.settings = self._settings(database, Path(directory) / "holdfast.toml")
            violated: str | None = None
            with _quiet(), self._constants(), self.machine.installed():
                self.watcher = Watcher(self, database)
                try:
                    self._live()
                except Violation as error:  # its traceback would keep the dead in memory
                    violated = f"{error}\n{self._told()}"
                except BaseException as error:
                    error.add_note(self._told())
                    raise
                finally:
                    self.trouble = None
                    self._end()
            if violated is not None:
                raise Violation(violated)
        return self

    def _live(self) -> None:
        for program in self._programs:
            program.start()
        for client in self.clients:
            self.outside.create_task(client.talk())
        for fault, every in self._faults():
            if every:
                self.outside.create_task(self._now_and_then(fault, every))
        begun = self.clock.monotonic
        self._until(begun + self.plan.seconds)
        self._come_to_rest()
        patience = self.clock.monotonic + 2 * self.plan.stale_seconds + 10 * self.plan.sweep_seconds + 400
        while self.clock.monotonic < patience and not self._at_rest():
            self._until(self.clock.monotonic + 10)
        self._nothing_is_left()
        self.seconds = self.clock.monotonic - begun

    def _until(self, end: float) -> None:
        while True:
            now, next_at = self.clock.monotonic, end
            ready: list[Program | None] = []
            at = self.outside.next_at()
            if at is not None and at <= now:
                ready.append(None)
            elif at is not None and at < next_at:
                next_at = at
            for program in self._programs:
                if program.loop is None or program.stopped:
                    continue
                at = program.loop.next_at()
                if at is not None and at <= now:
                    ready.append(program)
                elif at is not None and at < next_at:
                    next_at = at
            if not ready:
                self._move_to(next_at)
                if next_at >= end:
                    return
                continue
            self._step(self.chance.choice(ready))

    def _step(self, program: Program | None) -> None:
        self.steps += 1
        if program is None:
            self.outside.step()
        else:
            program.step()
        if self.trouble is not None:
            raise self.trouble

    def _move_to(self, monotonic: float) -> None:
        passed = monotonic - self.clock.monotonic
        self.clock.move_to(monotonic)
        self._passed(passed)

    def _passed(self, seconds: float) -> None:
        if not self.machine.disk.full:
            for program in self._programs:
                if program.runs:
                    self.observed += seconds
                    break
            for server in self.servers:
                if server.watches:
                    self.watched += seconds
                    break
        if self.clock.monotonic >= self._next_look:
            self._next_look = self.clock.monotonic + self.plan.sweep_seconds
            for server in self.servers:
                if not server.watches or not server.beats or self.machine.disk.full:
                    self._watching_since.pop(server, None)
                else:
                    self._watching_since.setdefault(server, self.watched)
            self.watcher.deadlines()

    def watching_for(self, server: Program) -> float:
        """How long this server has looked after the others without a break."""
        since = self._watching_since.get(server)
        return 0.0 if since is None else self.watched - since

    def _committed(self, program: Program | None) -> None:
        try:
            self.watcher.committed(program)
        except Violation as violation:
            self.trouble = self.trouble or violation

    def died(self, program: Program) -> None:
        """Whatever ends, somebody starts it again."""
        self.deaths += 1
        self._watching_since.pop(program, None)  # its successor counts from zero
        self.watcher.died(program)
        self.outside.call_later(self.chance.choice((0.1, 1.0, 8.0)), program.start)

    def on_loop_error(self, loop: Any, context: dict[str, Any]) -> None:
        """What nobody caught is a defect, of holdfast or of this world."""
        error = context.get("exception")
        if isinstance(error, Violation) or not isinstance(error, HoldfastError):
            self.trouble = self.trouble or error or AssertionError(str(context))

    def note(self, line: str) -> None:
        self.story.append(f"{self.clock.monotonic:12.3f}  {self.clock.wall():%m-%d %H:%M:%S}  {line}")

    def _told(self) -> str:
        lines = "\n".join(self.story[-40:])
        again = f"HOLDFAST_TEST_SEED={self.seed}"
        return f"plan {self.plan.name}, seed {self.seed} ({again}); what happened last:\n{lines}"

    @property
    def digest(self) -> str:
        """Of all that happened."""
        story = hashlib.blake2b("\n".join(self.story).encode(), digest_size=16).hexdigest()
        return f"{story} {self.watcher.log.hexdigest()} {self.steps} {self.watcher.commits}"

    # --- the end --------------------------------------------------------------------------------------

    def _come_to_rest(self) -> None:
        self.note("the faults are over")
        self.calm = True
        self.machine.disk.full, self.machine.disk.busy_chance = False, 0.0
        self.machine.disk.broken.clear()
        self.model_is_out = False
        for program in self._programs:
            if program.stopped:
                program.go_on()

    def _at_rest(self) -> bool:
        return all(each.state is State.UP for each in self.servers) and not self.watcher.unfinished()

    def _nothing_is_left(self) -> None:
        self.watcher.deadlines()
        self.watcher.everything(self.ledger)
        self.watcher.explained()
        self.watcher.intact()
        if left := self.watcher.unfinished():
            raise Violation(f"the faults have long been over, and this is still unfinished: {left}")

    def _end(self) -> None:
        for program in self._programs:
            program.kill("the run is over")
        self.watcher.close()
        self.graveyard.append((self.outside, asyncio.all_tasks(self.outside)))
        _bury(self.graveyard)

    # --- what befalls them ----------------------------------------------------------------------------

    def _faults(self) -> list[tuple[Fault, float]]:
        plan = self.plan
        return [
            (self._kill, plan.kill),
            (self._leave, plan.leave),
            (self._stop, plan.stop),
            (self._sleep, plan.sleep),
            (self._freeze, plan.freeze),
            (self._jump, plan.jump),
            (self._fill, plan.full),
            (self._break, plan.break_),
            (self._reboot, plan.reboot),
            (self._spawn, plan.spawn),
            (self._outage, plan.outage),
            (self._look, plan.kill or 30),
        ]

    async def _now_and_then(self, fault: Fault, every: float) -> None:
        while True:
            await asyncio.sleep(self.chance.expovariate(1 / every))
            if self.calm:
                return
            await fault()

    def _any(self, *, running: bool = True) -> Program | None:
        found = [each for each in self._programs if each.loop is not None and each.runs is running]
        return self.chance.choice(found) if found else None

    async def _kill(self) -> None:
        if program := self._any(running=self.chance.random() < 0.9):
            program.kill()

    async def _leave(self) -> None:
        if program := self._any():
            program.leave()

    async def _stop(self) -> None:
        if program := self._any():
            pid = program.pid
            program.stop()
            await asyncio.sleep(self.chance.choice((0.01, 0.1, 0.5, 1.0)) * self.plan.longest_stop)
            if program.loop is not None and program.pid == pid and program.stopped:
                program.go_on()
                self._continued()

    def _continued(self) -> None:
        """Who is continued may take up to two sweeps of its own standstill for time in which it watched."""
        self.continues += 1
        self.observed += 2 * self.plan.sweep_seconds

    async def _sleep(self) -> None:
        """The lid is closed: only the wall clock goes on."""
        seconds = self.chance.uniform(1, self.plan.longest_sleep)
        self.note(f"the machine sleeps for {seconds:.0f} s")
        self.clock.set_wall_forward(seconds)

    async def _freeze(self) -> None:
        """Everybody stands still, but the clocks do not: a machine that swaps, or is paused."""
        seconds = self.chance.choice((2.0, 10.0, self.plan.longest_stop))
        self.note(f"everything stands still for {seconds:.0f} s")
        self.clock.move_to(self.clock.monotonic + seconds)
        self._continued()

    async def _jump(self) -> None:
        seconds = self.chance.uniform(-1, 1) * self.plan.longest_jump
        self.note(f"the clock is set by {seconds:+.0f} s")
        self.clock.set_wall_forward(seconds)
        if seconds < 0:
            self.watcher.clock_was_set_back()

    async def _fill(self) -> None:
        self.machine.disk.full = True
        self.observed += self.plan.heartbeat_seconds  # nobody knows until its next beat
        self.note("the disk is full")
        await asyncio.sleep(self.chance.choice((0.5, 0.5, 3.0, 3.0, 10.0, 120.0)))
        self.machine.disk.full = False
        self.note("there is space again")

    async def _break(self) -> None:
        if program := self._any():
            self.note(f"the disk fails {program}")
            self.machine.disk.broken.add(program.pid)

    async def _reboot(self) -> None:
        self.note("the machine is restarted")
        for program in self._programs:
            program.kill("the machine is restarted")
        self.machine.restart()

    async def _outage(self) -> None:
        self.note("the model's provider is out")
        self.model_is_out = True
        await asyncio.sleep(self.chance.uniform(0, self.plan.longest_outage))
        self.model_is_out = False
        self.note("the model's provider is back")

    async def poisoned(self) -> str:
        """A question that kills the server that asks it."""
        if program := self.machine.current:
            self.outside.call_soon(self._poison, program, program.pid)
        await asyncio.sleep(60)
        return "it did no harm"

    def _poison(self, program: Program, pid: int) -> None:
        if program.pid == pid:
            program.kill("poison")

    async def _spawn(self) -> None:
        """A session starts something in the background, and forgets it."""
        servers = [each for each in self.servers if each.watches and each.services is not None]
        names = sorted(self.ledger.ids)
        if not servers or not names:
            return
        server, name = self.chance.choice(servers), self.chance.choice(names)
        kind = self.chance.choice(("idle", "busy", "busy stubborn"))
        lasts = self.chance.choice((0, 20, 300, 20_000))

        async def start() -> None:
            assert server.services is not None
            holdfast = server.services.holdfast
            address = Address(key=name) if ":" in name else Address(id=name)
            try:
                place = await holdfast.store.resolve(OWNER, address)
                await holdfast.supervisor.start(OWNER, place.tip.id, f"run {lasts} {kind}", "/")
            except HoldfastError as error:
                self.note(f"nothing was started: {type(error).__name__}")

        assert server.loop is not None
        self.note(f"{server} starts a process: {kind}, {lasts} s")
        server.loop.create_task(start())

    async def _look(self) -> None:
        self.watcher.everything(self.ledger)

    # --- the model ------------------------------------------------------------------------------------

    def new_reply(self) -> str:
        self._replies += 1
        return f"r{self._replies}"

    def reply_words(self) -> list[str]:
        return ["word"] * self.chance.choice((1, 3, 12))

    # --- settings -------------------------------------------------------------------------------------

    def _settings(self, database: Path, empty: Path) -> Any:
        plan = self.plan
        return load(
            empty,
            environment={},
            given={
                "store": {"url": f"sqlite:///{database}"},
                "lease": {
                    "heartbeat_seconds": plan.heartbeat_seconds,
                    "stale_seconds": plan.stale_seconds,
                    "sweep_seconds": plan.sweep_seconds,
                },
                "reset": {
                    "mode": "both",
                    "idle_minutes": plan.idle.total_seconds() / 60,
                    "at_hour": plan.at_hour,
                    "quiet_minutes": plan.quiet.total_seconds() / 60,
                    "timezone": plan.timezone,
                },
                "model": {"timeout_seconds": 30},
                "compaction": {
                    "threshold": 0.5,
                    "keep_first": 1,
                    "keep_last": 4,
                    "summary_timeout_seconds": 20,
                },
                "memory": {"flush": True, "min_messages": 2},
                "turns": {"max_attempts": plan.max_attempts},
                "processes": {
                    "max_block_minutes": plan.max_block.total_seconds() / 60,
                    "grace_seconds": plan.grace_seconds,
                    "active_window_seconds": max(60.0, 2 * plan.tick_seconds),
                },
            },
        )

    @contextmanager
    def _constants(self) -> Iterator[None]:
        """How often a server looks after things is not all in the settings."""
        plan = self.plan
        constants: list[tuple[Any, str, float]] = [
            (app, "SERVER_SWEEP_SECONDS", plan.sweep_seconds),
            (supervisor, "TICK_SECONDS", plan.tick_seconds),
            (watch, "POLL_SECONDS", plan.poll_seconds),
            (runner, "LOOK_SECONDS", 10 * plan.poll_seconds),
            (runner, "IDLE_SECONDS", 600 * plan.poll_seconds),
            (recoverer, "LOOK_SECONDS", plan.recover_seconds),
            (queue_runner, "LOOK_SECONDS", 2 * plan.recover_seconds),
        ]
        before = [(module, name, getattr(module, name)) for module, name, _ in constants]
        for module, name, value in constants:
            setattr(module, name, value)
        try:
            yield
        finally:
            for module, name, value in before:
                setattr(module, name, value)


@cache
def _template() -> bytes:
    """An empty store, to be copied: making one takes longer than a simulated minute."""
    with tempfile.TemporaryDirectory(prefix="simulated-", dir=MEMORY) as directory:
        database = Path(directory) / "store.db"
        asyncio.run(SQLiteStore(database).close())
        return database.read_bytes()


@contextmanager
def _quiet() -> Iterator[None]:
    """Thousands of deaths are nothing to tell anybody about."""
    logger = logging.getLogger("holdfast")
    before, collecting = logger.level, gc.isenabled()
    logger.setLevel(logging.CRITICAL + 1)
    gc.disable()  # or it would tidy up after the dead in the middle of a run
    try:
        yield
    finally:
        logger.setLevel(before)
        if collecting:
            gc.enable()


def _bury(graveyard: list[Any]) -> None:
    """Let go of what the dead have left. Their unfinished coroutines are torn apart by that, and complain."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of coroutines that died before their first step
            for _, tasks, *_rest in graveyard:
                for task in tasks:
                    task._log_destroy_pending = False
            graveyard.clear()
            gc.collect()
    finally:
        sys.unraisablehook = hook
