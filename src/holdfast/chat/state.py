"""What the parts of one chat share: the node, who answers, the person's desk, and the session they are in."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..app import Holdfast
from ..cli.context import CommandContext
from ..cli.format import Cell, Styled, note, say
from ..domain.conversations import Address
from ..domain.sessions import Session, continued_by
from ..models.base import Model
from ..readings import place_of
from ..runtime.turns.runner import TurnRunner
from ..session import LiveSession
from .terminal import ChatTerminal


@dataclass
class ChatState:
    invocation: CommandContext
    node: Holdfast
    model: Model
    runner: TurnRunner
    desk: ChatTerminal
    live: LiveSession
    own_turns: set[str] = field(default_factory=set)
    """Turns that were seen on this screen as they ran."""
    own_ends: set[str] = field(default_factory=set)
    """Sessions that were ended from here."""
    told: dict[str, bool] = field(default_factory=dict)
    """Notices that were shown here; does the model have to hear of it too?"""

    @property
    def owner(self) -> str:
        return self.node.owner

    @property
    def conversation_id(self) -> str:
        return self.live.conversation_id

    @property
    def go_on(self) -> str:
        """The command that comes back here."""
        key = self.live.key
        return self.invocation.command("chat", *(("--key", key) if key else ("--resume", self.live.id)))

    def tell(self, *parts: Cell) -> None:
        """Something besides the replies: on the screen, or beside them if stdout is a pipe."""
        if self.desk.interactive:
            say(*(part if isinstance(part, Styled) else Styled(part, "dim") for part in parts))
        else:
            note("".join(part.text if isinstance(part, Styled) else part for part in parts))

    async def tip(self) -> Session:
        """The conversation's newest session."""
        return (await self.node.store.resolve(self.owner, Address(id=self.conversation_id))).tip

    async def deliver(self, *, leaving: bool = False) -> None:
        """The person has been told of these. What the model has to hear as well waits for the next turn."""
        for notice_id, for_model in list(self.told.items()):
            if not (leaving and for_model):
                await self.node.store.deliver_notice(self.owner, notice_id)
                del self.told[notice_id]


async def enter(node: Holdfast, name: str, wait_seconds: float) -> LiveSession:
    """Go on with what this name means, in a session that lives with this process.

    A key, an alias or a conversation: its newest session, by its policy. A session: the newest that goes on
    with what it showed; if that has ended, or the conversation has begun afresh since, one that takes it up.
    """
    store, owner = node.store, node.owner
    place = await place_of(store, owner, name)
    if place.addressed is not None:
        newest = continued_by(await store.line(owner, place.conversation.id), place.addressed)
        if newest.ended:
            await node.leases.when_free(
                lambda: node.keeper.as_living(
                    lambda: store.resume_session(owner, newest.id, node.node_id, attached=True)
                ),
                wait_seconds,
            )
    return await node.session(id=place.conversation.id)
