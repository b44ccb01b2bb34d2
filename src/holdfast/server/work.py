"""Limits the size of request bodies in JSON values, and processes large bodies in threads.

On the event loop a body of many MiB would delay every other request. Each API key uses one thread at a time,
so that one key's large bodies do not delay another's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ..errors import BadInput
from .limits import LARGE_BODY, PARTS_PER_MESSAGE, VALUES_PER_MESSAGE, WORK_THREADS
from .openai.parameters import BadParameter

T = TypeVar("T")

_PIECE = 2**20
# An unterminated string matches as a string: that keeps the search linear, and the parser rejects it.
_STRUCTURE = re.compile(rb'"(?:[^"\\]++|\\(?:.|\Z))*+(?:"|\Z)|[\[{,]', re.DOTALL)
_QUOTE = b'"'[0]


class BodyThreads:
    """Threads for large bodies."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(WORK_THREADS, thread_name_prefix="holdfast-body")
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}

    async def run(self, key_id: str, size: int, work: Callable[[], T]) -> T:
        """Returns `work()`. `size`: bytes of the body that it processes; a large one runs in a thread."""
        if size <= LARGE_BODY:
            return work()
        lock, waiting = self._turns.get(key_id) or (asyncio.Lock(), 0)
        self._turns[key_id] = lock, waiting + 1
        try:
            async with lock:
                return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            lock, waiting = self._turns[key_id]
            if waiting > 1:
                self._turns[key_id] = lock, waiting - 1
            else:
                del self._turns[key_id]


def check_values(body: bytes, most_messages: int) -> None:
    """Raises BadInput, before parsing, if a JSON body has too many values. 0 messages: unlimited."""
    most = VALUES_PER_MESSAGE * most_messages
    if not most or len(body) <= most:
        return
    found = 0
    for start in range(0, len(body), _PIECE):  # in pieces: other threads can run in between
        found += sum(body.count(mark, start, start + _PIECE) for mark in (b",", b"[", b"{"))
    if found <= most:
        return
    found = 0  # count exactly: many may be inside strings
    for match in _STRUCTURE.finditer(body):
        if match[0][0] != _QUOTE:
            found += 1
            if found > most:
                raise BadInput(
                    f"the body holds more than {most} JSON values; that many are allowed for "
                    f"{most_messages} messages ([limits] messages_per_request)"
                )


def check_counts(values: Any, param: str, most: int) -> None:
    """Raises BadParameter for more than `most` messages or items, or too many parts and calls in them. 0:
    unlimited."""
    if not most or not isinstance(values, list):
        return
    if len(values) > most:
        raise BadParameter(
            param,
            f"holds {len(values)} entries; at most {most} are allowed in one request "
            "([limits] messages_per_request)",
        )
    parts = 0
    for value in values:
        if isinstance(value, dict):
            for name in ("content", "tool_calls", "output", "summary"):
                inner = value.get(name)
                if isinstance(inner, list):
                    parts += len(inner)
    if parts > PARTS_PER_MESSAGE * most:
        raise BadParameter(
            param,
            f"holds {parts} parts and tool calls; at most {PARTS_PER_MESSAGE * most} are allowed in one "
            f"request ({PARTS_PER_MESSAGE} for each of [limits] messages_per_request)",
        )
