"""Sends requests to a store and reports what it refuses.

On a full disk the request is retried: nothing may have been written, so a retry must be harmless. Once the
store has failed, all other requests are tried too, to check that it stays failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.domain.conversations import Address
from holdfast.domain.nodes import Node
from holdfast.domain.turns import Lease
from holdfast.errors import HoldfastError, NodeReaped, StoreFailed, StoreFull, TurnSuperseded
from holdfast.store.store import Store

from .records import OWNER, Note, Refused, Tell, message_of

T = TypeVar("T")


class Stopped(Exception):
    """The store refused for good; it was told."""


class Asker:
    def __init__(self, node: Node, tell: Tell) -> None:
        self.node = node
        self.tell = tell
        self.store: Store

    async def ask(self, verb: str, ask: Callable[[], Awaitable[T]]) -> T:
        """The store's answer. While the disk is full it is asked again: nothing may have been written, so
        that must be harmless. Any other refusal is told and ends the process."""
        for _ in range(1000):
            try:
                return await ask()
            except (TurnSuperseded, NodeReaped):
                raise
            except HoldfastError as error:
                self.tell(Refused(verb, type(error).__name__, str(error)[:1000]))
                if isinstance(error, StoreFailed) and verb != "open":
                    await self.try_everything()
                if not isinstance(error, StoreFull):
                    raise Stopped from error
                await asyncio.sleep(0.005)
        raise Stopped

    async def try_everything(self) -> None:
        """The store has failed: whatever else is asked of it must fail in the same way."""
        lease = Lease("conv_x", "sess_x", "turn_x", self.node.id, 1)
        address = Address(key="late")
        await self.attempt("open_session", lambda: self.store.open_session(OWNER, address, self.node.id))
        await self.attempt("append", lambda: self.store.append(lease, [message_of("a-late")]))
        await self.attempt("commit_reply", lambda: self.store.commit_reply(lease, [message_of("a-late")]))
        await self.attempt("beat", lambda: self.store.beat(self.node.id))
        await self.attempt("leave", lambda: self.store.leave(self.node.id, "completed"))

    async def attempt(self, verb: str, ask: Callable[[], Awaitable[object]]) -> None:
        try:
            await ask()
        except StoreFailed:
            return
        except HoldfastError as error:
            self.tell(Note("failed otherwise", {"verb": verb, "error": type(error).__name__}))
            return
        self.tell(Note("went on after failing", {"verb": verb}))
