"""Shared by every peer: the same messages, the same clock, the same percentiles.

Standard library only, because each peer imports this from its own environment. A peer is a script that reads
one JSON job from its command line and prints one JSON line (`answer`). A *writer* is a thread or a task that
appends to its own conversation and waits for the acknowledgement before it appends again.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

MESSAGE_BYTES = 1024
WARM_UP_SECONDS = 0.3


@dataclass(frozen=True)
class Job:
    """One measurement in one process, on a database at `path` that no other job is using."""

    case: str
    path: str
    writers: int = 1
    seconds: float = 1.0
    runs: int = 7
    size: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_argv(cls) -> Job:
        return cls(**json.loads(sys.argv[1]))


def answer(result: dict[str, Any]) -> None:
    """Print the result as the one line the runner reads, whatever a library has printed before it."""
    sys.stdout.flush()
    print(json.dumps(result), flush=True)


def message_bodies(count: int) -> list[dict[str, str]]:
    """`count` chat messages whose compact JSON is exactly 1 KB. Always the same ones, and made of words, so
    that a full-text index has its usual work: neither one token repeated nor random bytes."""
    dice = random.Random(20)
    syllables = [c + v for c in "bdfghklmnprstvwz" for v in ("a", "e", "i", "o", "u", "ai", "er", "on")]
    words = ["".join(dice.choices(syllables, k=dice.choice((1, 2, 2, 3, 4)))) for _ in range(4000)]
    frame = len(encode({"role": "user", "content": ""}))
    bodies = []
    for _ in range(count):
        text = " ".join(dice.choices(words, k=260))[: MESSAGE_BYTES - frame]
        bodies.append({"role": "user", "content": text.ljust(MESSAGE_BYTES - frame, ".")})
    return bodies


def conversation_bodies(count: int) -> list[dict[str, str]]:
    """The same 1 KB messages as a conversation: user and assistant take turns."""
    pool = message_bodies(500)
    turns = []
    for number in range(count):
        text = pool[number % len(pool)]["content"]
        turns.append(
            {"role": "user", "content": text}
            if number % 2 == 0
            else {"role": "assistant", "content": text[:-5]}
        )
    return turns


def encode(body: dict[str, str]) -> bytes:
    """A message as compact JSON."""
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed."""
    return sorted_values[max(0, min(len(sorted_values) - 1, int(len(sorted_values) * share + 0.999999) - 1))]


class Stopwatch:
    """Collects acknowledgements of many writers and reports those that fell into the measured window.

    Writers call `since = now()`, wait for the acknowledgement, then `done(since)`; they stop once `over()`.
    What is acknowledged while warming up, or after the end, counts as acknowledged but not as measured.
    """

    now = staticmethod(time.perf_counter)

    def __init__(self, seconds: float, warm_up: float = WARM_UP_SECONDS) -> None:
        self.opens = self.now() + warm_up
        self.closes = self.opens + seconds
        self.acknowledged: list[tuple[float, float]] = []
        self._cpu = time.process_time()

    def over(self) -> bool:
        return self.now() >= self.closes

    def done(self, since: float) -> None:
        self.acknowledged.append(
            (since, self.now())
        )  # list.append is atomic: threads share it without a lock

    def report(self) -> dict[str, Any]:
        """Acknowledgements a second within the window, and how long each write that touches it had to wait:
        also one that was starved past the end, or the slowest would be left out."""
        within = sum(self.opens <= end < self.closes for _, end in self.acknowledged)
        waits = sorted(
            end - since for since, end in self.acknowledged if end >= self.opens and since < self.closes
        )
        if not within:
            raise RuntimeError("no write was acknowledged within the measured window")
        return {
            "per_second": within / (self.closes - self.opens),
            "p50_ms": percentile(waits, 0.50) * 1e3,
            "p99_ms": percentile(waits, 0.99) * 1e3,
            "acknowledged": len(self.acknowledged),
            "cpu_us": (time.process_time() - self._cpu) / len(self.acknowledged) * 1e6,
        }


def cpu_us(work: Callable[[], object], times: int = 300) -> float:
    """The processor time of one call, in microseconds."""
    since = time.thread_time()
    for _ in range(times):
        work()
    return (time.thread_time() - since) / times * 1e6


def write_by_threads(job: Job, append: Callable[[int, int], object]) -> dict[str, Any]:
    """Measure `append(writer, number)` called by `job.writers` threads."""
    clock = Stopwatch(job.seconds)
    failures: list[BaseException] = []

    def writer(index: int) -> None:
        try:
            number = 0
            while not clock.over():
                since = clock.now()
                append(index, number)
                clock.done(since)
                number += 1
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=writer, args=(index,)) for index in range(job.writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return clock.report()


async def write_by_tasks(job: Job, append: Callable[[int, int], Awaitable[object]]) -> dict[str, Any]:
    """Measure `append(writer, number)` awaited by `job.writers` tasks of one event loop."""
    clock = Stopwatch(job.seconds)

    async def writer(index: int) -> None:
        number = 0
        while not clock.over():
            since = clock.now()
            await append(index, number)
            clock.done(since)
            number += 1

    async with asyncio.TaskGroup() as writers:
        for index in range(job.writers):
            writers.create_task(writer(index))
    return clock.report()


def median_ms(runs: int, read: Callable[[], object]) -> float:
    """The median time of `runs` calls, after one that is not counted."""
    read()
    times = []
    for _ in range(runs):
        since = time.perf_counter()
        read()
        times.append(time.perf_counter() - since)
    return median(times) * 1e3


async def median_ms_async(runs: int, read: Callable[[], Awaitable[object]]) -> float:
    """The median time of `runs` awaited calls, after one that is not counted."""
    await read()
    times = []
    for _ in range(runs):
        since = time.perf_counter()
        await read()
        times.append(time.perf_counter() - since)
    return median(times) * 1e3


def fsyncs_per_second(directory: str, seconds: float) -> tuple[float, float]:
    """What the disk gives a single writer: 4 KB then fsync, growing a file, and again over what is there.

    A write-ahead log grows until its first checkpoint and is overwritten from then on.
    """
    path = os.path.join(directory, "fsync.calibration")
    block = os.urandom(4096)
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        rates = []
        written = 0
        for growing in (True, False):
            count = 0
            end = time.perf_counter() + seconds / 2
            while time.perf_counter() < end:
                os.pwrite(handle, block, (written if growing else count % written) * len(block))
                os.fsync(handle)
                written += growing
                count += 1
            rates.append(count / (seconds / 2))
        return rates[0], rates[1]
    finally:
        os.close(handle)
        os.unlink(path)
