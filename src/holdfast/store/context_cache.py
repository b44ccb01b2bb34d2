"""The contexts that this process has read or written, kept while they stay valid: LRU, bounded by bytes.

Messages never change and are only appended, so a rendered prefix stays valid as long as the conversation's
`revision` does. A turn that only appends gets its context from here, without a query.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from ..domain.context_size import weight_of
from ..domain.contexts import Context
from ..domain.fingerprints import EMPTY
from ..domain.messages import MessageStatus, NewMessage
from ..domain.turns import TurnBegun
from ..domain.value import Value

CACHE_BYTES = 64 * 1024 * 1024

MOST_CHUNKS = 64


class _CachedContext(Value, frozen=True):
    revision: int
    context: Context
    size: int


class ContextCache:
    """LRU cache of this process's contexts, bounded by bytes."""

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _CachedContext] = OrderedDict()
        self._size = 0

    def get(self, session_id: str, revision: int) -> Context | None:
        with self._lock:
            kept = self._kept.get(session_id)
            if kept is None or kept.revision != revision:
                return None
            self._kept.move_to_end(session_id)
            return kept.context

    def begun(self, begun: TurnBegun, messages: Sequence[NewMessage]) -> Context | None:
        """The context of a turn that has just begun, if everything before its messages is cached; None: read
        it."""
        session, last_seq = begun.session, begun.session.last_seq
        if begun.history == EMPTY and session.edge is None and len(messages) == last_seq:
            before, revision = Context((), 0), 0
        elif begun.revision is not None:
            kept = self.get(session.id, begun.revision)
            if kept is None:
                return None
            before, revision = kept, begun.revision
        else:
            return None
        return self._extend(session.id, revision, before, messages, last_seq)

    def replied(self, session_id: str, messages: Sequence[NewMessage], last_seq: int) -> None:
        """Extend the cached context of a session by a turn's last committed messages."""
        with self._lock:
            kept = self._kept.get(session_id)
        if kept is not None:
            self._extend(session_id, kept.revision, kept.context, messages, last_seq)

    def _extend(
        self, session_id: str, revision: int, before: Context, messages: Sequence[NewMessage], last_seq: int
    ) -> Context | None:
        """The context extended by these messages, if they need no rendering and follow it directly."""
        if before.awaited or before.last_seq + len(messages) != last_seq:
            return None
        if any(m.calls or m.answers or m.status is not MessageStatus.COMPLETED for m in messages):
            return None
        added = tuple([message.body for message in messages])
        chunks = before.chunks + added
        if len(chunks) > MOST_CHUNKS:
            chunks = (b",".join(chunks),)
        context = Context(chunks, last_seq, size=before.weight() + weight_of(added))
        self.put(session_id, revision, context)
        return context

    def clear(self) -> None:
        """After a deletion: deleted text must not stay in the cache."""
        with self._lock:
            self._kept.clear()
            self._size = 0

    def put(self, session_id: str, revision: int, context: Context) -> None:
        size = sum(map(len, context.chunks))
        with self._lock:
            old = self._kept.pop(session_id, None)
            self._size -= old.size if old else 0
            if size > self._limit:
                return  # it would evict all others, then itself
            self._size += size
            self._kept[session_id] = _CachedContext(revision, context, size)
            while self._size > self._limit:
                _, dropped = self._kept.popitem(last=False)
                self._size -= dropped.size
