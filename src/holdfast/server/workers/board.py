"""Shared memory of the workers of one server: a row of numbers for each, and its counts per API key.

A row is written only by its worker, and cleared by the supervisor when that worker has ended. So there are no
locks, and a worker that is killed can leave none behind. A reader may see a number that is a moment old: a
limit over all workers can be exceeded by at most one unit for each other worker.
"""

from __future__ import annotations

import mmap
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b

KEYS = 512
"""Entries per worker for API keys that have something under way at the same time."""
PROBES = 16
"""How many entries are searched for one key."""


class RowColumn(IntEnum):
    """The numbers of a row."""

    PID = 0
    ACCEPTING = 1
    """1 while the worker accepts connections."""
    CONNECTIONS = 2
    REQUESTS = 3
    """Requests under way that count for `[server] max_requests`."""
    UNDER_WAY = 4
    """All requests under way."""
    TURNS = 5
    """Running turns."""
    IDLE_SINCE = 6
    """When a turn last began or ended; nanoseconds of the monotonic clock, which all processes share."""
    BEAT = 7
    """When the worker's event loop last ran; the same clock."""


class KeyColumn(IntEnum):
    """The counts of one API key in one worker."""

    REQUESTS = 1
    STREAMS = 2
    TURNS = 3
    BYTES = 4


_ENTRY = len(KeyColumn) + 1  # a hash of the key's id, then its counts
_HEAD = len(RowColumn)
_ROW = _HEAD + KEYS * _ENTRY


class Board:
    """The rows of all workers. Created by the supervisor before it forks; every worker inherits it."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._memory = mmap.mmap(-1, 8 * (_ROW * workers + 1))
        self.cells = memoryview(self._memory).cast("q")

    def row(self, index: int) -> Row:
        return Row(self, index)

    def clear(self, index: int) -> None:
        """Set every number of an ended worker's row to 0."""
        for cell in range(index * _ROW, (index + 1) * _ROW):
            self.cells[cell] = 0

    @property
    def ended_cpu(self) -> float:
        """CPU seconds that ended workers had used."""
        return self.cells[self.workers * _ROW] / 1e9

    def add_ended_cpu(self, seconds: float) -> None:
        self.cells[self.workers * _ROW] += int(seconds * 1e9)


class Row:
    """One worker's view of the board: it writes its own row and reads the others'."""

    def __init__(self, board: Board, index: int) -> None:
        self.index = index
        self.board = board
        self._cells = board.cells
        self._start = index * _ROW

    def get(self, column: RowColumn) -> int:
        return self._cells[self._start + column]

    def set(self, column: RowColumn, value: int) -> None:
        self._cells[self._start + column] = value

    def all(self, column: RowColumn) -> list[int]:
        """This number of every worker that accepts connections, and of this one."""
        cells = self._cells
        return [
            cells[start + column]
            for index in range(self.board.workers)
            if cells[(start := index * _ROW) + RowColumn.ACCEPTING] or index == self.index
        ]

    def total(self, column: RowColumn) -> int:
        """The sum over all workers, also those that are draining."""
        return sum(self._cells[index * _ROW + column] for index in range(self.board.workers))

    def elsewhere(self, column: RowColumn) -> int:
        """The sum over the other workers."""
        return self.total(column) - self.get(column)

    def pids(self) -> list[int]:
        """The process ids of all workers that have started."""
        found = (self._cells[index * _ROW + RowColumn.PID] for index in range(self.board.workers))
        return [pid for pid in found if pid]

    def counts(self, column: KeyColumn) -> KeyCounts:
        return KeyCounts(self, column)

    # --- API keys ----------------------------------------------------------------------------------

    def key_elsewhere(self, key_id: str, column: KeyColumn) -> int:
        """This count of one API key, summed over the other workers."""
        mark = _mark(key_id)
        return sum(
            self._cells[entry + column]
            for index in range(self.board.workers)
            if index != self.index and (entry := self._find(index, mark)) is not None
        )

    def publish_key(self, key_id: str, column: KeyColumn, count: int) -> None:
        """Show this worker's count of one API key to the others. If more keys than fit are in use at once,
        further ones are limited per worker only."""
        mark = _mark(key_id)
        entry = self._find(self.index, mark)
        if entry is None:
            if not count:
                return
            entry = self._unused(mark)
            if entry is None:
                return
            self._cells[entry] = mark
        self._cells[entry + column] = count

    def _find(self, index: int, mark: int) -> int | None:
        """The entry of a key in a worker's row."""
        cells = self._cells
        for entry in _entries(index, mark):
            if cells[entry] == mark:
                return entry
        return None

    def _unused(self, mark: int) -> int | None:
        """An entry of this worker without a key, or whose key has nothing under way."""
        cells = self._cells
        for entry in _entries(self.index, mark):
            if not any(cells[entry + 1 : entry + _ENTRY]):
                return entry
        return None


class KeyCounts:
    """One resource's counts per API key in all workers of a server."""

    def __init__(self, row: Row, column: KeyColumn) -> None:
        self._row = row
        self._column = column

    def elsewhere(self, key_id: str) -> int:
        return self._row.key_elsewhere(key_id, self._column)

    def publish(self, key_id: str, count: int) -> None:
        self._row.publish_key(key_id, self._column, count)


@lru_cache(4096)
def _mark(key_id: str) -> int:
    """A number for a key's id that is not 0 and fits a cell."""
    return int.from_bytes(blake2b(key_id.encode(), digest_size=8).digest()) >> 1 | 1


def _entries(index: int, mark: int) -> list[int]:
    first = (mark >> 8) % KEYS
    start = index * _ROW + _HEAD
    return [start + (first + step) % KEYS * _ENTRY for step in range(PROBES)]
