"""State shared by the parts of one chat: the node, the model, the terminal and the current session."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..app import Holdfast
from ..cli.context import CommandContext
from ..cli.format import Cell, Styled, note, say
from ..domain.conversations import Address
from ..domain.sessions import Session
from ..models.base import Model
from ..session import LiveSession
from .terminal import ChatTerminal


@dataclass
class ChatState:
    invocation: CommandContext
    node: Holdfast
    model: Model
    terminal: ChatTerminal
    live: LiveSession
    own_turns: set[str] = field(default_factory=set)
    """Turns that ran in this chat and were shown as they ran."""
    own_ends: set[str] = field(default_factory=set)
    """Sessions that this chat ended."""
    shown_notices: dict[str, bool] = field(default_factory=dict)
    """Ids of notices shown here. True: the model must receive the notice too."""
    model_name: str | None = None
    """The model that is asked for; None: the one that answers by default. Changed by /model."""
    system_prompt: str = ""
    """The instructions of each turn. Changed by /system."""

    def __post_init__(self) -> None:
        self.model_name = self.invocation.settings.model.name or None
        self.system_prompt = self.invocation.settings.agent.system_prompt

    @property
    def owner(self) -> str:
        return self.node.owner

    @property
    def conversation_id(self) -> str:
        return self.live.conversation_id

    @property
    def resume_command(self) -> str:
        """The command that resumes this chat."""
        key = self.live.key
        return self.invocation.command("chat", *(("--key", key) if key else ("--resume", self.live.id)))

    def say(self, *parts: Cell) -> None:
        """Print text that is not a reply: to the terminal, or to stderr if stdout is a pipe."""
        if self.terminal.interactive:
            say(*(part if isinstance(part, Styled) else Styled(part, "dim") for part in parts), fits=True)
        else:
            note("".join(part.text if isinstance(part, Styled) else part for part in parts))

    async def tip(self) -> Session:
        """The conversation's newest session."""
        return (await self.node.resolve(self.owner, Address(id=self.conversation_id))).tip

    async def deliver(self, *, leaving: bool = False) -> None:
        """Mark shown notices as delivered; on leaving, except those that the model must still receive."""
        for notice_id, for_model in list(self.shown_notices.items()):
            if not (leaving and for_model):
                await self.node.deliver_notice(self.owner, notice_id)
                del self.shown_notices[notice_id]


async def enter(node: Holdfast, name: str, wait_seconds: float) -> LiveSession:
    """Resume what this name resolves to, in a session attached to this process.

    Key, alias or conversation: its newest session, by its policy. Session: the newest continuation of what it
    showed; if that has ended, or the conversation was reset since, a new session that resumes it.
    """
    return await node.session(id=await node.resume_newest(node.owner, name, wait_seconds))
