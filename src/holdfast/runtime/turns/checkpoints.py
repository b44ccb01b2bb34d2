"""Keeps a growing reply on disk: what listeners have heard is never further than `seconds` ahead of it.

Words are saved together, a while after the first of them; a reply that is over sooner is never drafted, it is
committed. When the disk is slower than the model, the model waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ...domain.turns import Draft, Lease
from ...errors import StoreUncertain
from ...store.base import Store

EARLY = 0.6  # of the time: so that the commit, too, falls within it


class Checkpoints:
    """The checkpoints of one turn. With `numbered`, its events are kept too, from number `next_event` on."""

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
        """When the oldest word was said that no checkpoint holds; 0: there is none."""
        self._saving_since = 0.0
        """The same of the checkpoint under way."""
        self._unsure: Draft | None = None
        """A checkpoint of which the store could not say whether it was committed."""
        self._timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def add(self, adds: Mapping[str, str], events: Sequence[bytes]) -> None:
        """What was just said."""
        if self._numbered:
            self._events.extend(events)
        for name, text in adds.items():
            self._adds.setdefault(name, []).append(text)
        if not self._since and self._waiting:
            self._since = self._loop.time()
            if not self._is_saving:
                self._start_later()

    @property
    def _waiting(self) -> bool:
        """Is there something for a checkpoint? With `numbered` only with an event: a checkpoint takes at
        least one number, and numbers must stay those that listeners were told."""
        return bool(self._events if self._numbered else self._adds)

    @property
    def _is_saving(self) -> bool:
        return self._saving is not None and not self._saving.done()

    @property
    def behind(self) -> bool:
        """Has something been said longer ago than it may be without being on disk?"""
        since = self._saving_since or self._since
        return bool(since) and self._loop.time() - since > self._seconds

    async def room(self) -> None:
        """Wait while the disk is behind. Raises what saving raised."""
        if self._saving is not None and self._saving.done():
            self._saving.result()
        while self.behind:
            if not self._is_saving:
                self._start()
            assert self._saving is not None
            await asyncio.shield(self._saving)

    async def save(self) -> None:
        """Everything that was said until now is on disk."""
        await self.rest()
        await self._save()

    async def rest(self) -> None:
        """No more checkpoints: what is under way is finished, and nothing else is begun."""
        if self._timer is not None:
            self._timer.cancel()
        if self._is_saving and self._saving is not None:
            await asyncio.wait({self._saving})
        if self._timer is not None:
            self._timer.cancel()

    def next_reply(self) -> None:
        """Behind `rest`: the reply is on disk as a message, so no checkpoint needs to hold its words; what
        comes now is another reply."""
        self._adds, self._since = {}, 0.0
        if self._unsure is not None:  # of the reply before: written now, it would be taken for this one's
            self._stored(self._unsure)
            self._unsure = None
        if self._waiting:
            self._since = self._loop.time()
            self._start_later()

    def last(self, events: Sequence[bytes]) -> Draft | None:
        """The checkpoint that goes to disk with the whole answer: events that no other holds, and its end."""
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
        if self._is_saving:  # one after the other: what is said meanwhile goes into the next
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
            self._unsure = draft  # it may be stored: nothing may be added to it
            raise
        except BaseException:
            for name, parts in self._adds.items():
                adds.setdefault(name, []).extend(parts)
            self._adds, self._events, self._since = adds, events + self._events, since
            raise
        finally:
            self._saving_since = 0.0
        self._stored(draft)
        if self._since:  # more was said meanwhile
            self._start_later()

    async def _save_unsure(self) -> None:
        """Write the checkpoint again whose commit had an unknown outcome, as it was: it is stored once."""
        if self._unsure is not None:
            await self._put(self._unsure)
            self._stored(self._unsure)
            self._unsure = None

    async def _put(self, draft: Draft) -> None:
        try:
            await self._store.append_draft(self._lease, draft)
        except StoreUncertain:
            await self._store.append_draft(self._lease, draft)  # the same again; found stored, it is accepted

    def _stored(self, draft: Draft) -> None:
        self._next_event, self._restarts = draft.last_event + 1, False
