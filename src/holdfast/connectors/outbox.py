"""Sends deliveries to a platform: whole, in parts, by edits; and notes each part that the platform accepted.

What is sent again after a crash or a lost answer has the same key. A platform that does not deduplicate by it
gets one message at a time, so that a crash repeats at most that one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import nullcontext

from ..domain.connectors import ConnectorClaim, Outgoing, OutgoingKind, OutgoingState, SentPart, digest
from ..errors import ConnectorLost, NotFound, StoreError
from ..operations import Operations
from .base import Connector, MessageGone, PostsEvents, SendFailed, SendRefused

log = logging.getLogger(__name__)


class Outbox:
    def __init__(
        self,
        name: str,
        connector: Connector,
        hf: Operations,
        note_up: Callable[[ConnectorClaim], Awaitable[None]],
    ) -> None:
        self._name = name
        self._connector = connector
        self._store = hf.store
        self._note_up = note_up
        self._sending = asyncio.Lock()
        """One message at a time to a platform that does not deduplicate."""
        self._locks: dict[str, asyncio.Lock] = {}

    async def send(self, claim: ConnectorClaim, out: Outgoing) -> None:
        """Send a claimed delivery and note what became of it. Raises ConnectorLost and StoreError."""
        store = self._store
        try:
            async with self.lock(out.address):
                out = await store.delivery(None, out.id)  # a growing reply may have added parts meanwhile
                if out.kind is OutgoingKind.EVENT:
                    parts = await self._post(out)
                else:
                    parts = await self.show(claim, out, out.text)
                await store.delivery_sent(claim, out.id, parts)
                await self._note_up(claim)
        except NotFound:
            return  # deleted with its conversation
        except SendRefused as error:
            await store.delivery_failed(claim, out.id, out.attempts, str(error), for_good=True)
            log.error("connector %s: delivery %s was refused permanently: %s", self._name, out.id, error)
        except SendFailed as error:
            retry_after = error.retry_after
            if await store.delivery_failed(claim, out.id, out.attempts, str(error), retry_after=retry_after):
                log.error("connector %s: delivery %s is given up: %s", self._name, out.id, error)
        except (ConnectorLost, StoreError):
            raise
        except Exception as error:
            log.exception("connector %s: delivery %s failed with an unexpected error", self._name, out.id)
            await store.delivery_failed(claim, out.id, out.attempts, f"{type(error).__name__}: {error}")

    async def _post(self, out: Outgoing) -> tuple[SentPart, ...]:
        if not isinstance(self._connector, PostsEvents):
            raise SendRefused(f"connector {self._name} is not a webhook: it cannot send events to programs")
        await self._connector.post_event(out.text.encode(), key=out.id)
        return (SentPart(out.id, digest(out.text)),)

    async def show(self, claim: ConnectorClaim, out: Outgoing, text: str) -> tuple[SentPart, ...]:
        """Let the platform show this text: edit the parts that differ, send those that are missing. Each
        part is recorded as soon as the platform has accepted it. Returns all parts.

        A part of a growing reply is also recorded before it is sent. If that was tried before with another
        text, a platform that deduplicates may have kept that one: then it is edited.
        """
        parts, limits = list(out.parts), self._connector.limits
        noted_first = limits.deduplicates and limits.can_edit and out.state is OutgoingState.GROWING
        for at, piece in enumerate(limits.pieces(text)):
            new, key = SentPart("", digest(piece)), f"{out.id}-{at}"
            if at == len(parts):
                parts.append(new)
                if noted_first:
                    await self._store.note_parts(claim, out.id, parts)
            if not parts[at].platform_id:
                message_id = await self._send(out, at, piece, key)
                parts[at] = SentPart(message_id, parts[at].digest)
                await self._store.note_parts(claim, out.id, parts)
            if parts[at].digest == new.digest:
                continue
            message_id = parts[at].platform_id
            try:
                if not limits.can_edit:
                    raise MessageGone("this platform edits nothing")
                await self._connector.edit(out.address, message_id, piece, key=f"{key}-{new.digest}")
            except MessageGone:
                message_id = await self._send(out, at, piece, f"{key}-{new.digest}")
            parts[at] = SentPart(message_id, new.digest)
            await self._store.note_parts(claim, out.id, parts)
        return tuple(parts)

    async def _send(self, out: Outgoing, at: int, piece: str, key: str) -> str:
        """Send a part as a new message; returns the platform's id of it."""
        async with nullcontext() if self._connector.limits.deduplicates else self._sending:
            reply_to = out.reply_to if at == 0 else None
            return await self._connector.send(out.address, piece, key=key, reply_to=reply_to)

    def lock(self, address: str) -> asyncio.Lock:
        """One message at a time for each address, so that a part is recorded before the next is sent."""
        lock = self._locks.get(address)
        if lock is None:
            if len(self._locks) > 10_000:
                self._locks = {name: each for name, each in self._locks.items() if each.locked()}
            lock = self._locks[address] = asyncio.Lock()
        return lock
