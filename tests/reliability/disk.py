"""A simulated disk with a power failure: computes what is left of some files.

Synced data stays. Of the writes since the last sync anything may be left: none, all, the first few, any
subset. A write may be torn at a sector, and a torn sector may hold garbage, but never outside the bytes that
were written. Names are synced apart from contents: a file created or deleted since its directory was last
synced may exist or not.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

SECTOR = 512


class Platter:
    """One file's contents: what is safe, and what is on its way."""

    def __init__(self, contents: bytes = b"") -> None:
        self.safe = bytearray(contents)
        self.underway: list[tuple[int, bytes | None]] = []
        """Writes as (offset, bytes) and truncations as (size, None), in order."""

    def sync(self) -> None:
        for offset, data in self.underway:
            change(self.safe, offset, data)
        self.underway.clear()

    def after_a_cut(self, chance: random.Random) -> bytes:
        left = bytearray(self.safe)
        kind = chance.choice(("nothing", "all", "first", "any", "any"))
        first = chance.randrange(len(self.underway) + 1)
        for number, (offset, data) in enumerate(self.underway):
            if kind == "nothing" or (kind == "first" and number > first):
                continue
            torn = chance.random() < 0.3 if kind == "any" else kind == "first" and number == first
            if kind == "any" and chance.random() < 0.5:
                continue
            if torn and data is not None:
                tear(left, offset, data, chance)
            else:
                change(left, offset, data)
        return bytes(left)


def change(contents: bytearray, offset: int, data: bytes | None) -> None:
    """Write into a file, or cut it off at `offset`."""
    if data is None:
        del contents[offset:]
        return
    if len(contents) < offset:
        contents.extend(bytes(offset - len(contents)))
    contents[offset : offset + len(data)] = data


def tear(contents: bytearray, offset: int, data: bytes, chance: random.Random) -> None:
    """Only some sectors of a write are left; now and then one holds rubbish."""
    for start in range(0, len(data), SECTOR):
        piece = data[start : start + SECTOR]
        fate = chance.random()
        if fate < 0.5:
            change(contents, offset + start, piece)
        elif fate < 0.6:
            change(contents, offset + start, chance.randbytes(len(piece)))


class Disk:
    """The files of one directory, by name. Counts operations, and cuts the power before a given one."""

    def __init__(self, directory: Path, cuts: dict[int, Callable[[], None]]) -> None:
        self.directory = directory
        self._cuts = cuts
        self._lock = threading.RLock()
        self._names = {
            file.name: Platter(file.read_bytes()) for file in directory.iterdir() if file.is_file()
        }
        self._safe_names = dict(self._names)
        self.operations = 0

    def holds(self, path: str) -> bool:
        return os.path.dirname(path) == str(self.directory)

    def _step(self) -> None:
        self.operations += 1
        cut = self._cuts.get(self.operations)
        if cut is not None:
            cut()

    def open(self, path: str) -> Platter:
        with self._lock:
            name = os.path.basename(path)
            if name not in self._names:
                self._step()
                self._names[name] = Platter()
            return self._names[name]

    def write(self, platter: Platter, offset: int, data: bytes | None) -> None:
        with self._lock:
            self._step()
            platter.underway.append((offset, data))

    def sync(self, platter: Platter) -> None:
        with self._lock:
            self._step()
            platter.sync()

    def delete(self, path: str) -> None:
        with self._lock:
            self._step()
            self._names.pop(os.path.basename(path), None)

    def sync_names(self) -> None:
        with self._lock:
            self._step()
            self._safe_names = dict(self._names)

    def leave_behind(self, target: Path, chance: random.Random) -> int:
        """Make the directory that would be found if the power failed now; returns how many writes were
        under way."""
        with self._lock:
            target.mkdir()
            underway = 0
            for name in sorted({*self._names, *self._safe_names}):
                platter = chance.choice((self._names.get(name), self._safe_names.get(name)))
                if platter is not None:
                    underway += len(platter.underway)
                    (target / name).write_bytes(platter.after_a_cut(chance))
            return underway
