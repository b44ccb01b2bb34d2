"""The chat loop: opens a session, shows its state, then reads and handles one line at a time.

The session is attached: it ends with this process. If the process is killed, the session is reaped. The next
chat with the same key continues after it and shows the interrupted reply, marked.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..app import answer_with
from ..cli.context import CommandContext
from ..cli.format import Styled, ago, complain, console, count, one_line, say, width_of
from ..cli.run import model_usage
from ..cli.session_views import ROLE_STYLES, text_of
from ..domain.messages import Message, MessageStatus
from ..domain.pages import SessionFilter
from ..domain.turns import TurnStatus
from ..errors import HoldfastError
from ..models.choose import choose_from
from .answering import Answering, Ended
from .commands import ChatActions, ChatCommand, ChatMessage, Slash, Unclear, meaning_of
from .live_updates import LiveUpdates
from .state import ChatState, enter
from .terminal import ChatTerminal, Cleared, EndOfInput, TypedLine, Woken

PROMPT = "> "
GOES_ON = "… "
LOOK_BACK = 8
"""How many of the newest messages are searched for the last exchange."""
LONGEST_SHOWN = 12
"""Lines shown of each message of the last exchange."""
RECENT = 50


async def chat(
    invocation: CommandContext, desk: ChatTerminal, key: str | None, resume: str | None, source: str
) -> int:
    """Run the chat; returns its exit code."""
    settings = invocation.settings
    with model_usage(invocation):
        model = await choose_from(settings.model, longest_wait=60.0)
    try:
        async with invocation.node(existing=resume is not None, stays=True, model=model) as node:
            answer_with(node, model)
            if resume is not None:
                live = await enter(node, resume, settings.server.busy_wait_seconds)
            else:
                live = await node.session(key, source=source)
            return await Chat(ChatState(invocation, node, model, desk, live)).run()
    finally:
        await model.close()


class Chat:
    def __init__(self, room: ChatState) -> None:
        self._room = room
        self._answering = Answering(room)
        self._acts = ChatActions(room, self._answering)

    async def run(self) -> int:
        room = self._room
        await self._greet()
        async with LiveUpdates(room) as tidings:
            code = await self._lines(tidings)
            await room.deliver(leaving=True)
        if room.desk.interactive:
            room.tell(f"Kept. Go on with: {room.go_on}")
        return code

    # --- reading lines ---------------------------------------------------------------------------------

    async def _lines(self, tidings: LiveUpdates) -> int:
        """Read until the person leaves or the pipe ends. Returns the exit code.

        A failure ends a pipe, because the lines after it may depend on it.
        """
        room = self._room
        text, begun, leaving = "", "", False
        while True:
            await tidings.tell()
            reading = await room.desk.line(
                self._prompt(GOES_ON if begun else PROMPT), text, await self._names()
            )
            text = ""
            match reading:
                case EndOfInput():
                    if room.desk.interactive:
                        say()
                    return 0
                case Woken(typed):
                    text = typed
                    self._wipe(PROMPT + typed)
                    continue
                case Cleared(typed):
                    say()
                    if leaving and not typed:
                        return 0
                    if not typed and not begun:
                        room.tell("Ctrl-C again, Ctrl-D or /quit leaves.")
                    leaving, begun = not typed, ""
                    continue
                case TypedLine(typed):
                    leaving = False
                    if room.desk.interactive and typed.endswith("\\"):
                        begun += f"{typed[:-1]}\n"
                        continue
                    whole, begun = begun + typed, ""
            wanted = meaning_of(whole)
            if wanted is None:
                continue
            if wanted == ChatCommand(Slash.QUIT):
                return 0
            ended = await self._do(wanted)
            text = ended.unsaid
            if not ended.answered and not room.desk.interactive:
                return 1

    async def _do(self, wanted: ChatMessage | ChatCommand | Unclear) -> Ended:
        try:
            match wanted:
                case ChatMessage(text):
                    return await self._answering.say(text)
                case Unclear(sentence):
                    complain(sentence)
                    return Ended(False)
                case ChatCommand():
                    return await self._acts.do(wanted)
        except HoldfastError as error:
            complain(error)
            return Ended(False)

    async def _names(self) -> Sequence[str]:
        """Completions for /resume."""
        if not self._room.desk.interactive:
            return ()
        page = await self._room.node.sessions(SessionFilter(self._room.owner), limit=RECENT)
        keys = dict.fromkeys(session.key for session in page.items if session.key)
        return [*keys, *(session.id for session in page.items)]

    def _prompt(self, words: str) -> str:
        """The prompt for readline: bytes 1 and 2 enclose what has zero width (escape sequences)."""
        screen = console()
        if screen.color_system is None or screen.no_color:
            return words
        return f"\001\033[1;36m\002{words}\001\033[0m\002"

    def _wipe(self, typed: str) -> None:
        """Erase the prompt line, so that updates can be printed there."""
        rows = width_of(typed) // max(1, console().width)
        sys.stdout.write(f"\r\033[{rows}A\033[J" if rows else "\r\033[K")
        sys.stdout.flush()

    # --- greeting --------------------------------------------------------------------------------------

    async def _greet(self) -> None:
        room = self._room
        session = await room.live.refresh()
        if not room.desk.interactive:
            return
        named = session.key or session.title or session.id
        say(Styled(one_line(named), "bold"), Styled(f"  {room.model.description}", "dim"))
        said = await room.node.visible(room.owner, room.conversation_id, limit=LOOK_BACK)
        if said:
            await self._look_back(said)
        else:
            room.tell("/help lists the commands; Ctrl-D leaves.")
        await self._say_who_else()

    async def _look_back(self, said: Sequence[Message]) -> None:
        room, last = self._room, said[-1]
        room.tell(f"{count(last.seq, 'message')} so far, the last {ago(last.created_at, room.node.now())}.")
        for message in _last_exchange(said):
            _show(message)
        turns = await room.node.turns(room.owner, room.conversation_id, limit=1)
        if turns and turns[0].status in (TurnStatus.INTERRUPTED, TurnStatus.FAILED):
            room.tell(Styled(f"The last reply was {turns[0].status}. ", "yellow"), "/retry takes it up.")

    async def _say_who_else(self) -> None:
        """Tell the person if another process has this session open: both write to the same session."""
        room = self._room
        session = await room.live.refresh()
        owner = session.answering_node
        if owner is None or owner == room.node.node_id:
            return
        by = await self._answering.by(owner)
        room.tell(Styled(f"This session is also open elsewhere{by}; ", "yellow"), "you take turns in it.")


def _last_exchange(said: Sequence[Message]) -> Sequence[Message]:
    """The messages from the last user message on."""
    for number in range(len(said) - 1, -1, -1):
        if said[number].role == "user":
            return said[number:]
    return said[-1:]


def _show(message: Message) -> None:
    words = text_of(message.content().get("content")).strip().splitlines() or [""]
    if len(words) > LONGEST_SHOWN:
        words = [*words[:LONGEST_SHOWN], "…"]
    cut = Styled("  — interrupted", "yellow") if message.status is MessageStatus.INTERRUPTED else Styled("")
    say(Styled(f"{message.role}: ", ROLE_STYLES.get(message.role, "bold")), "\n".join(words), cut)
