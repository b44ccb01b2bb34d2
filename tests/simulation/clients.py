"""Clients: they send messages now and then, by any name their conversation ever had, and retry persistently.

A request without an answer is sent again under its idempotency key, to any available server, as the official
SDKs do. What a client received goes into the ledger the moment it was sent.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.domain.conversations import Address
from holdfast.domain.queue import WhenBusy
from holdfast.domain.recovery import Origin

from .nodes import Answer, Ask, Begun, Failed, Heard, Program, Queued

if TYPE_CHECKING:
    from .world import World

POISON = "poison"
"""A message with this word kills the server that answers it."""
FINAL = {"TurnSuperseded", "RequestMismatch", "cancelled"}
"""Answers that asking again does not change."""


ACTS = ("begin anew", "resume", "cancel", "withdraw")


class Client:
    def __init__(self, world: World, name: str, key: str) -> None:
        self.world = world
        self.name = name
        self.key = key
        self.told: list[str] = []
        """Ids it knows its conversation by."""

    async def talk(self) -> None:
        chance, plan = self.world.chance, self.world.plan
        while not self.world.calm:
            await asyncio.sleep(chance.expovariate(1 / plan.think_seconds))
            if self.told and chance.random() < 0.1:
                chance.choice(self.world.servers).act(chance.choice(ACTS), chance.choice(self.told))
            elif chance.random() < plan.bursts:
                await asyncio.gather(*(self.say() for _ in range(3)))
            else:
                await self.say()

    async def say(self) -> None:
        """One message, asked for until it is answered, or given up."""
        chance = self.world.chance
        tag = self.world.ledger.ask()
        name = chance.choice([None, *self.told[:1], *self.told[-1:], *self.told])
        address = Address(key=self.key) if name is None else Address(id=name)
        said = f"{tag} {self.name} says{' something' * chance.choice((1, 5, 40))}"
        if chance.random() < self.world.plan.poison:
            said = f"{said} {POISON}"
        origin = chance.choice((Origin.FOREGROUND, Origin.BACKGROUND))
        ask = Ask(
            tag,
            address,
            said,
            f"request-{tag}",
            chance.choice((0.0, 5.0, 60.0)),
            chance.choices((*WhenBusy,), (8, 3, 3, 2, 1))[0],
            origin,
            covered=origin is Origin.BACKGROUND or chance.random() < 0.5,
        )
        for _ in range(chance.choice((1, 3, 8)) if origin is Origin.FOREGROUND else 1):
            patience = chance.choice((2.0, 20.0, 120.0))
            heard = await self._once(chance.choice(self.world.servers), ask, patience)
            if isinstance(heard, Answer) or heard.error in FINAL:
                return
            await asyncio.sleep(chance.choice((0.1, 1.0, 10.0)))

    async def _once(self, server: Program, ask: Ask, patience: float) -> Answer | Failed:
        outside = asyncio.get_running_loop()
        answered: asyncio.Future[Answer | Failed] = outside.create_future()

        def told(heard: Heard) -> None:
            """Called by the server's step: from now on it has been said."""
            if answered.done():
                return  # the client has gone away: what is sent now reaches nobody
            self._note(ask, heard)
            if not isinstance(heard, Begun | Queued):
                outside.call_soon(settle, heard)

        def settle(heard: Answer | Failed) -> None:
            if not answered.done():
                answered.set_result(heard)

        server.ask(ask, told)
        try:
            async with asyncio.timeout(patience):
                return await answered
        except TimeoutError:
            return Failed("timeout")

    def _note(self, ask: Ask, heard: Heard) -> None:
        ledger = self.world.ledger
        if isinstance(heard, Failed):
            return
        if isinstance(heard, Queued):
            ledger.queued[heard.turn_id] = ask.tag
            return
        ledger.acknowledged(ask.tag, heard.conversation_id)
        for name in (self.key, heard.conversation_id, heard.session_id):
            ledger.told_id(name, heard.conversation_id)
        if heard.session_id not in self.told:
            self.told.append(heard.session_id)
        if heard.conversation_id not in self.told:
            self.told.append(heard.conversation_id)
        if isinstance(heard, Answer):
            ledger.answered(ask.tag, heard.conversation_id, heard.text)
