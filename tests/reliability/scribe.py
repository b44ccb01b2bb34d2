"""The program of a writing process: concurrent writers, on shared conversations, through the real store.

It does what a starting holdfast does (open, join, reap), retries the requests whose answers were lost, and
then runs one turn after another until it has done enough or is killed. Every answer or refusal of the store
is reported over the pipe at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import random
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from holdfast.domain.conversations import Address
from holdfast.domain.drafts import Draft
from holdfast.domain.ids import new_id
from holdfast.domain.nodes import Node, NodeKind
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.turns import (
    Lease,
    TurnBegun,
    TurnOutcome,
    TurnRepeated,
    TurnRequest,
    TurnWaits,
)
from holdfast.errors import NodeReaped, StoreFull, TurnSuperseded
from holdfast.os_support import identity
from holdfast.runtime.agents.reaper import Reaper
from holdfast.store.sqlite import writer
from holdfast.store.sqlite.engine import open_store

from .asking import Asker, Stopped
from .mutants import break_on_purpose, mutant
from .power_vfs import install
from .records import (
    OWNER,
    ROUTE,
    Asked,
    Begun,
    Drafted,
    Joined,
    Known,
    Note,
    Replied,
    Said,
    Tell,
    asked_tag,
    message_of,
    said_tag,
    teller,
)

EVENTS_PER_ATTEMPT = 1_000_000


class Task(msgspec.Struct, frozen=True):
    """What a writing process is to do."""

    database: str
    life: str
    """Unique: request keys and tags begin with it."""
    seed: int
    writers: int = 4
    chats: int = 6
    turns: int | None = None
    """How many turns each writer takes; None: until it is killed."""
    again: list[Asked] = []
    """Requests to be made again first."""
    checkpoint_pages: int | None = None
    """Move the log into the file this often, so that a short run sees it happen."""
    boot_id: str | None = None
    """Pretend that the machine was started anew."""
    start_at: float = 0.0
    """On the monotonic clock: several processes may do their first step at the same moment."""
    closes: bool = True
    """Close the store at the end, or just leave the process?"""
    search: bool = False
    """Keep the search index right behind."""
    mistake: str = ""
    """A file that some code in this process opens and closes, after a while …"""
    pause_for: str = ""
    """… and a file it then waits for before it writes on."""
    cuts: list[int] = []
    """Cut the power before these operations on the disk, leaving behind what would be found …"""
    survivors: str = ""
    """… below this directory."""


class Scribe(Asker):
    def __init__(self, task: Task, tell: Tell) -> None:
        who = identity() if task.boot_id is None else replace(identity(), boot_id=task.boot_id)
        super().__init__(Node(new_id("node"), NodeKind.LIBRARY, who), tell)
        self.task = task
        self.early = mutant() == "acknowledge-before-commit"

    async def run(self) -> None:
        self.store = await self.ask("open", lambda: open_store(Path(self.task.database)))
        await self.ask("join", lambda: self.store.join(self.node))
        self.tell(Joined(self.node.id))
        if self.task.search:
            self.store.start_indexing()
        await self.ask("reap", self.reap)
        for asked in self.task.again:
            await self.turn(asked.request, asked.chat)
        async with asyncio.TaskGroup() as group:
            for number in range(self.task.writers):
                group.create_task(self.write(number))
            if self.task.mistake and not self.task.pause_for:
                group.create_task(self.make_the_mistake())
        await self.ask("leave", lambda: self.store.leave(self.node.id, "completed"))
        with suppress(NodeReaped):  # the right answer: it has left. A store that has failed meanwhile says so
            await self.ask("beat", lambda: self.store.beat(self.node.id))
        if self.task.closes:
            await self.store.close()
        self.tell(Note("finished"))

    async def reap(self) -> None:
        """Settle what the dead left. What a full disk prevents is done in the next round."""
        troubles = (await Reaper(self.store, lambda: self.node.id).reap_once()).troubles
        if troubles:
            assert "the disk is full" in troubles[0], troubles
            raise StoreFull(troubles[0])

    async def write(self, which: int) -> None:
        chance = random.Random(f"{self.task.seed} {self.task.life} {which}")
        number = 0
        while self.task.turns is None or number < self.task.turns:
            await self.turn(f"{self.task.life}.{which}.{number}", f"chat:{chance.randrange(self.task.chats)}")
            number += 1
            if self.task.pause_for and number == 3:
                await self.make_the_mistake()

    async def make_the_mistake(self) -> None:
        """What nobody may do: close a handle of a file that SQLite has open in this process."""
        if not self.task.pause_for:
            await asyncio.sleep(0.05)
        with open(self.task.mistake, "rb"):
            pass
        self.tell(Note("mistake"))
        while self.task.pause_for and not os.path.exists(self.task.pause_for):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.001)

    async def turn(self, request: str, chat: str) -> None:
        """One turn, from the question to the reply."""
        self.tell(Asked(request, chat))
        outcome = await self.begin(request, chat)
        if isinstance(outcome, TurnBegun):
            turn = outcome.turn
            self.tell(Begun(request, turn.id, turn.conversation_id, turn.first_seq, outcome.taken_up))
            await self.answer(request, outcome)
        elif isinstance(outcome, TurnRepeated):
            self.tell(Known(request, outcome.turn.id, outcome.turn.status.value))
        else:
            self.tell(Known(request, "", "superseded"))

    async def begin(self, request: str, chat: str) -> TurnOutcome | None:
        """Wait until nobody else holds the conversation. None: a later turn was quicker."""
        message = message_of(asked_tag(request))
        wanted = TurnRequest(
            turn_id=new_id("turn"),
            owner=OWNER,
            node_id=self.node.id,
            address=Address(key=chat),
            messages=(message,),
            attached=chat[-1] in "02468",
            request_key=RequestKey(ROUTE, request, hashlib.sha256(message.body).digest()),
        )
        while True:
            try:
                outcome = await self.ask("begin_turn", lambda: self.store.begin_turn(wanted))
            except TurnSuperseded:
                return None
            if not isinstance(outcome, TurnWaits):
                return outcome
            await asyncio.sleep(0.002)

    async def answer(self, request: str, begun: TurnBegun) -> None:
        lease, attempt = begun.lease, begun.turn.attempt
        chance = random.Random(f"{request} {attempt}")
        last = begun.turn.first_seq  # of a turn that was taken up, not quite; only the early mutant cares
        if chance.random() < 0.3:
            for kind in "cr":
                last = await self.say(lease, said_tag(kind, request, attempt), last + 1)
        reply = said_tag("a", request, attempt)
        for number in range(chance.choice((0, 0, 1, 3))):
            await self.draft(lease, attempt * EVENTS_PER_ATTEMPT + number, f"{reply} piece {number}. ", reply)
        replied = Replied(request, lease.turn_id, lease.conversation_id, last + 1, reply)
        if self.early:
            self.tell(replied)
        last = await self.ask("commit_reply", lambda: self.store.commit_reply(lease, [message_of(reply)]))
        if not self.early:
            self.tell(msgspec.structs.replace(replied, last=last))

    async def say(self, lease: Lease, tag: str, expected: int) -> int:
        said = Said(lease.turn_id, lease.conversation_id, expected, [tag])
        if self.early:
            self.tell(said)
        last = await self.ask("append", lambda: self.store.append(lease, [message_of(tag)]))
        if not self.early:
            self.tell(msgspec.structs.replace(said, last=last))
        return last

    async def draft(self, lease: Lease, event: int, text: str, reply: str) -> None:
        draft = Draft(event, event, text.encode(), {"content": text})
        await self.ask("append_draft", lambda: self.store.append_draft(lease, draft))
        self.tell(Drafted(lease.turn_id, event, text, reply))


def run_task(task: Task, pipe: int) -> None:
    """Blocking: do the task, telling everything over `pipe`."""
    tell = teller(pipe)
    logging.disable()
    break_on_purpose()
    if task.checkpoint_pages is not None:
        assert hasattr(writer, "CHECKPOINT_PAGES")
        writer.CHECKPOINT_PAGES = task.checkpoint_pages
    if task.cuts:
        tell = install(task.database, task.cuts, task.survivors, task.seed, tell)
    while time.monotonic() < task.start_at:
        pass
    try:
        asyncio.run(Scribe(task, tell).run())
    except* Stopped:
        tell(Note("stopped"))
    except* Exception as errors:
        tell(Note("broken", {"text": repr(errors)[:2000]}))
        raise
    if not task.closes:
        os._exit(0)


if __name__ == "__main__":
    run_task(msgspec.json.decode(sys.argv[1], type=Task), int(sys.argv[2]))
