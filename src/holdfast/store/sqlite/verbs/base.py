"""What every verb needs of the engine: a way to read and a way to write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ..contexts import ContextCache
from ..locks import NodeLocks
from ..search import SearchIndex
from ..transaction import Transaction

T = TypeVar("T")


class Verbs(ABC):
    """A part of the engine; see `engine.SQLiteStore`, which has these."""

    _database: Path
    _cache: ContextCache
    _locks: NodeLocks

    @property
    @abstractmethod
    def location(self) -> str: ...

    @abstractmethod
    async def _read(self, work: Callable[[Transaction], T]) -> T: ...

    @abstractmethod
    async def _write(self, work: Callable[[Transaction], T]) -> T: ...

    @abstractmethod
    def _check_open(self) -> None: ...

    @abstractmethod
    def _index(self) -> SearchIndex: ...

    @abstractmethod
    def start_indexing(self) -> None: ...
