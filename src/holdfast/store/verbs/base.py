"""What every store method needs of its engine: a way to read and a way to write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from ..context import ContextCache
from ..transaction import Transaction

T = TypeVar("T")


class Verbs(ABC):
    """A part of an engine."""

    _cache: ContextCache

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
    def start_indexing(self) -> None: ...
