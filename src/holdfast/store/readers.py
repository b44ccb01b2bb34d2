"""Reader threads: a few, each with its own connection, so that reads never wait for the writer.

Every read is short: one snapshot, all rows fetched.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from ..errors import StoreBusy, StoreClosed, StoreError, StoreFailed
from .transaction import Transaction

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")

THREADS = 4


class Readers(ABC, Generic[C]):
    """Threads and their connections, of type `C`. An engine implements `run_here`."""

    def __init__(
        self,
        connect: Callable[[], C],
        location: str,
        on_failure: Callable[[StoreFailed], None],
        threads: int = THREADS,
    ) -> None:
        self._connect = connect
        self._location = location
        self._on_failure = on_failure
        self._local = threading.local()
        self._opened: list[C] = []
        self._guard = threading.Lock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="holdfast-reader")
        self._closed = False

    def run(
        self, work: Callable[Concatenate[Transaction, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """Run `work` on one of the threads, inside one snapshot."""
        if self._closed:
            raise StoreClosed("the store is closed")
        try:
            return asyncio.get_running_loop().run_in_executor(self._pool, self.run_here, work, args, kwargs)
        except RuntimeError as error:
            raise self._refused(error) from error

    def run_blocking(
        self, work: Callable[Concatenate[Transaction, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The same for a thread without an event loop."""
        if self._closed:
            raise StoreClosed("the store is closed")
        try:
            reading = self._pool.submit(self.run_here, work, args, kwargs)
        except RuntimeError as error:
            raise self._refused(error) from error
        return reading.result()

    def _refused(self, error: RuntimeError) -> StoreError:
        """The pool has no thread for a read: the system gives none, or the store was closed meanwhile."""
        if self._closed:
            return StoreClosed("the store is closed")
        return StoreBusy(f"cannot read {self._location} now: {error}")

    @abstractmethod
    def run_here(self, work: Callable[..., T], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> T:
        """The same on the calling thread, blocking; each thread has its own connection."""
