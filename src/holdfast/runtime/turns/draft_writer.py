"""Saves a streaming reply as drafts: what subscribers have received is at most `seconds` ahead of the disk.

Chunks are saved in batches, some time after the first of a batch. A reply that ends before that is committed
without a draft. If the disk is slower than the model, the model waits (back-pressure).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ...domain.drafts import Draft
from ...domain.turns import Lease
from ...errors import StoreUncertain
from ...store.store import Store

EARLY = 0.6  # of the interval: leaves time for the commit itself


class DraftWriter:
    """Writes the drafts of one turn. `numbered`: its events are stored too, from number `next_event` on."""

    def __init__(
        self, store: Store, lease: Lease, seconds: float, next_event: int, *, numbered: bool, restarts: bool
    ) -> None:
        self._store = store
        self._lease = lease
        self._seconds = seconds
        self._next_event = next_event
        self._numbered = numbered
        self._restarts = restarts
        self._adds: dict[str, list[str]] = {}
        self._events: list[bytes] = []
        self._since = 0.0
        """When the oldest unsaved output arrived; 0: none."""
        self._saving_since = 0.0
        """The same for the draft being written."""
        self._unsure: Draft | None = None
        """A draft whose commit has an unknown outcome."""
        self._timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def add(self, adds: Mapping[str, str], events: Sequence[bytes], *, is_last: bool = False) -> None:
        """Record new output; schedule a draft, unless it `is_last`: then the commit follows."""
        if self._numbered:
            self._events.extend(events)
        for name, text in adds.items():
            self._adds.setdefault(name, []).append(text)
        if not self._since and not is_last and self._waiting:
            self._since = self._loop.time()
            if not self._is_saving:
                self._start_later()

    @property
    def _waiting(self) -> bool:
        """True if there is output to save. With `numbered` this needs an event: a draft takes at least
        one number, and the numbers must be those that subscribers received."""
        return bool(self._events if self._numbered else self._adds)

    @property
    def _is_saving(self) -> bool:
        return self._saving is not None and not self._saving.done()

    @property
    def is_behind(self) -> bool:
        """True if output has been unsaved for longer than allowed."""
        since = self._saving_since or self._since
        return bool(since) and self._loop.time() - since > self._seconds

    async def catch_up(self) -> None:
        """Back-pressure: wait while saving is behind. Raises what saving raised."""
        if self._saving is not None and self._saving.done():
            self._saving.result()
        while self.is_behind:
            if not self._is_saving:
                self._start()
            assert self._saving is not None
            await asyncio.shield(self._saving)

    async def save(self) -> None:
        """Return when all output so far is on disk."""
        await self.rest()
        await self._save()

    async def rest(self) -> None:
        """Stop saving: finish the write in progress, start no other."""
        while True:
            if self._timer is not None:
                self._timer.cancel()
            if self._saving is None or self._saving.done():
                return
            # Before this task runs again, a timer may start the next write: then wait for that one too.
            await asyncio.wait({self._saving})

    def next_reply(self) -> None:
        """Begin another reply. Call after `rest`: the reply is stored as a message, so no draft needs
        its text."""
        self._adds, self._since = {}, 0.0
        if self._unsure is not None:  # of the previous reply: written now, it would count as this one's
            self._stored(self._unsure)
            self._unsure = None
        if self._waiting:
            self._since = self._loop.time()
            self._start_later()

    def last(self, events: Sequence[bytes]) -> Draft | None:
        """The draft to commit with the answer: events not yet stored, and the end event."""
        if not self._numbered:
            return None
        events = (*self._events, *events)
        first = self._next_event if self._unsure is None else self._unsure.last_event + 1
        return Draft(first, first + max(1, len(events)) - 1, b"".join(events), {}, self._restarts)

    def _start_later(self) -> None:
        self._timer = self._loop.call_later(self._seconds * EARLY, self._start)

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._is_saving:  # one write at a time: newer output goes into the next
            return
        self._saving = self._loop.create_task(self._save())
        self._saving.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _save(self) -> None:
        await self._save_unsure()
        adds, events, since = self._adds, self._events, self._since
        if not adds and not events:
            return
        self._adds, self._events, self._since, self._saving_since = {}, [], 0.0, since
        draft = Draft(
            self._next_event,
            self._next_event + max(1, len(events)) - 1,
            b"".join(events),
            {name: "".join(parts) for name, parts in adds.items()},
            self._restarts,
        )
        try:
            await self._put(draft)
        except StoreUncertain:
            self._unsure = draft  # it may be stored, so nothing may be added to it
            raise
        except BaseException:
            for name, parts in self._adds.items():
                adds.setdefault(name, []).extend(parts)
            self._adds, self._events, self._since = adds, events + self._events, since
            raise
        finally:
            self._saving_since = 0.0
        self._stored(draft)
        if self._since:  # more output arrived meanwhile
            self._start_later()

    async def _save_unsure(self) -> None:
        """Retry, unchanged, the draft whose commit had an unknown outcome: idempotent, it is stored
        once."""
        if self._unsure is not None:
            await self._put(self._unsure)
            self._stored(self._unsure)
            self._unsure = None

    async def _put(self, draft: Draft) -> None:
        try:
            await self._store.append_draft(self._lease, draft)
        except StoreUncertain:
            await self._store.append_draft(self._lease, draft)  # idempotent: accepted if already stored

    def _stored(self, draft: Draft) -> None:
        self._next_event, self._restarts = draft.last_event + 1, False
