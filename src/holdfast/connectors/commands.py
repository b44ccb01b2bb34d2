"""Commands that people type in a place: `/new /stop /retry /why /ps /compact /title /link /unlink /help`.

Each calls an operation that every surface has, and answers with a sentence. A command is a row of the inbox,
so it is answered once; the operations themselves may be repeated after a crash without harm.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ..domain.connectors import COMMANDS, Batch, Place
from ..domain.conversations import Address
from ..domain.rewinds import RETRY_LOOKS_AT, replies_to_person
from ..domain.sessions import Edge, EndReason, Session
from ..domain.turns import TurnRequest, TurnStatus
from ..errors import NotFound
from ..operations import Operations

NOTHING_YET = "There are no messages here yet."


@dataclass(frozen=True, slots=True)
class RetryWanted:
    """`/retry` has found a turn to answer again; its reply is the command's answer."""

    turn_id: str
    """The turn that is resumed, or the id of the new one."""
    owner: str
    conversation_id: str
    resumes: bool
    regenerates: tuple[int, ...] = ()

    def request(self, node_id: str) -> TurnRequest:
        return TurnRequest(
            turn_id=self.turn_id,
            owner=self.owner,
            node_id=node_id,
            address=Address(id=self.conversation_id, create=False),
            messages=(),
            resumes_turn=self.turn_id if self.resumes else None,
            regenerates=self.regenerates,
            answer_existing=not self.resumes,
        )


class PlaceCommands:
    """Runs the commands of places."""

    def __init__(self, hf: Operations) -> None:
        self._hf = hf
        self._acts: dict[str, Callable[[Batch, str], Awaitable[str | RetryWanted]]] = {
            "new": self._new,
            "stop": self._stop,
            "retry": self._retry,
            "why": self._why,
            "ps": self._ps,
            "compact": self._compact,
            "title": self._title,
            "link": self._link,
            "unlink": self._unlink,
            "help": self._help,
        }

    async def run(self, batch: Batch) -> str | RetryWanted:
        """The answer to a command. Raises HoldfastError, with a sentence for the person, if it fails."""
        command = batch.command
        assert command is not None
        return await self._acts[command.name](batch, command.argument)

    async def _tip(self, place: Place) -> Session | None:
        """The newest session of the place's conversation; None: there is none yet."""
        try:
            found = await self._hf.resolve(place.owner, _address(place))
        except NotFound:
            return None
        return found.tip

    async def _new(self, batch: Batch, _: str) -> str:
        tip = await self._tip(batch.place)
        if tip is None:
            return NOTHING_YET
        if not tip.ended:
            wait = self._hf.settings.server.busy_wait_seconds
            await self._hf.end_session(batch.place.owner, tip.id, EndReason.NEW, wait_seconds=wait)
        return "Your next message starts a new session. Earlier messages stay readable."

    async def _stop(self, batch: Batch, _: str) -> str:
        tip = await self._tip(batch.place)
        if tip is None:
            return NOTHING_YET
        cancelled = await self._hf.cancel_running(batch.place.owner, tip.conversation_id)
        said = "Stopped; the partial reply is kept." if cancelled.stopped else "No reply is being written."
        return f"{said} {cancelled.queue_sentence}." if cancelled.withdrawn else said

    async def _retry(self, batch: Batch, _: str) -> str | RetryWanted:
        tip = await self._tip(batch.place)
        if tip is None:
            return NOTHING_YET
        owner, conversation_id = batch.place.owner, tip.conversation_id
        turns = await self._hf.turns(owner, conversation_id, limit=1)
        if not turns or (tip.edge is Edge.RESET and turns[0].first_seq < tip.first_seq):
            return NOTHING_YET
        (turn,) = turns
        if turn.status in (TurnStatus.INTERRUPTED, TurnStatus.FAILED) or turn.id == batch.turn_id:
            return RetryWanted(turn.id, owner, conversation_id, resumes=True)
        if turn.status is TurnStatus.RUNNING:
            return "It is being answered right now."
        replies = replies_to_person(await self._hf.visible(owner, conversation_id, limit=RETRY_LOOKS_AT))
        if replies is None:
            return "There is no message to answer again."
        return RetryWanted(batch.turn_id, owner, conversation_id, resumes=False, regenerates=replies)

    async def _why(self, batch: Batch, _: str) -> str:
        tip = await self._tip(batch.place)
        return NOTHING_YET if tip is None else (await self._hf.why(batch.place.owner, tip.id)).sentence

    async def _ps(self, batch: Batch, _: str) -> str:
        tip = await self._tip(batch.place)
        if tip is None:
            return NOTHING_YET
        page = await self._hf.processes(
            batch.place.owner, conversation_id=tip.conversation_id, running=True, limit=20
        )
        found = await self._hf.processes_seen(page.items)
        lines = [f"{each.id}  {each.state.value}  {each.command}" for each in found]
        return "\n".join(lines) or "No background process is running."

    async def _compact(self, batch: Batch, _: str) -> str:
        tip = await self._tip(batch.place)
        if tip is None:
            return NOTHING_YET
        if tip.ended:
            return "The session has ended: your next message begins the next one."
        await self._hf.compact(batch.place.owner, tip.id)
        return "Older messages were replaced by a summary; they stay readable."

    async def _title(self, batch: Batch, title: str) -> str:
        tip = await self._tip(batch.place)
        if tip is None:
            return NOTHING_YET
        if not title:
            return f"Title: {tip.title!r}." if tip.title else "It has no title: /title NAME"
        await self._hf.set_title(batch.place.owner, tip.conversation_id, title)
        return f"This conversation is now called {title!r}."

    async def _link(self, batch: Batch, argument: str) -> str:
        place = batch.place
        if not argument:
            tip = await self._tip(place)
            if tip is None:
                return NOTHING_YET
            link = await self._hf.new_link(place.owner, tip.conversation_id)
            return (
                f"Write this in another place of yours within an hour: /link {link.code}\n"
                "With “all” after it, that place also gets the messages of the others."
            )
        code, _, choice = argument.partition(" ")
        joined = await self._hf.store.link_place(place.id, code, hears_all=choice.strip().lower() == "all")
        if joined is None:
            return "This code is not valid here: it may have expired, or belong to another owner."
        return "This place is now part of that conversation; /unlink leaves it."

    async def _unlink(self, batch: Batch, _: str) -> str:
        left = await self._hf.store.unlink_place(batch.place.id)
        return "This place has its own conversation again." if left else "This place is not linked."

    async def _help(self, batch: Batch, _: str) -> str:
        return "\n".join(f"/{name} – {meaning}" for name, meaning in COMMANDS.items())


def _address(place: Place) -> Address:
    if place.linked and place.conversation_id is not None:
        return Address(id=place.conversation_id, create=False)
    return Address(key=place.key, create=False)
