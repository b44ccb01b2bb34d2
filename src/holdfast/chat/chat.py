"""The chat loop: opens a session, shows its state, then reads and handles one line at a time.

The session is attached: it ends with this process. If the process is killed, the session is reaped. The next
chat with the same key continues after it and shows the interrupted reply, marked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from ..app import answer_with
from ..cli.context import CommandContext
from ..cli.format import Styled, ago, complain, count, one_line, say, sentences
from ..cli.run import LONGEST_WAIT, model_usage
from ..cli.server_model import ServerModel, model_beside
from ..cli.session_views import ROLE_STYLES, text_of
from ..domain.messages import Message, MessageStatus
from ..domain.pages import SessionFilter
from ..domain.turns import TurnStatus
from ..errors import HoldfastError, ModelError
from ..models.base import Model
from ..settings import home
from .answering import Answering, Ended
from .commands import ChatActions, ChatCommand, ChatMessage, Slash, Unclear, completions, meaning_of
from .live_updates import LiveUpdates
from .state import ChatState, enter
from .terminal import ENTER_HINT, ChatInput, ChatTerminal, Cleared, Keyboard

LOOK_BACK = 8
"""How many of the newest messages are searched for the last exchange."""
LONGEST_SHOWN = 12
"""Lines shown of each message of the last exchange."""
LOOK_SECONDS = 3.0
"""How long the greeting waits for the model to say its name."""
RECENT = 50
"""Conversations offered as completions of /resume."""


async def chat(
    invocation: CommandContext, lines: ChatInput, key: str | None, resume: str | None, source: str
) -> int:
    """Run the chat; returns its exit code."""
    with ChatTerminal(lines) as terminal:
        try:
            return await _chat(invocation, terminal, key, resume, source)
        except asyncio.CancelledError:
            return terminal.exit_code


async def _chat(
    invocation: CommandContext, terminal: ChatTerminal, key: str | None, resume: str | None, source: str
) -> int:
    settings = invocation.settings
    with model_usage(invocation):
        model = await model_beside(settings, home(), longest_wait=LONGEST_WAIT)
    try:
        async with invocation.node(existing=resume is not None, stays=True, model=model) as node:
            answer_with(node, model)
            if resume is not None:
                live = await enter(node, resume, settings.server.busy_wait_seconds)
            else:
                live = await node.session(key, source=source)
            state = ChatState(invocation, node, model, terminal, live)
            if isinstance(model, ServerModel):
                model.on_wait = lambda sentence: state.say(f"({sentence}; Ctrl-C cancels)")
            return await Chat(state).run()
    finally:
        await model.close()


class Chat:
    def __init__(self, state: ChatState) -> None:
        self._state = state
        self._answering = Answering(state)
        self._acts = ChatActions(state, self._answering)

    async def run(self) -> int:
        state = self._state
        await self._greet()
        async with LiveUpdates(state) as updates:
            code = await self._lines(updates)
            await state.deliver(leaving=True)
        if state.terminal.interactive:
            say(Styled(f"Saved. Continue with: {state.resume_command}", "dim"))
        return code

    # --- reading lines ---------------------------------------------------------------------------------

    async def _lines(self, updates: LiveUpdates) -> int:
        """Read until the person leaves or the pipe ends. Returns the exit code.

        A failure ends a pipe, because the lines after it may depend on it.
        """
        state = self._state
        text, leaving = "", False
        while True:
            await updates.show()
            await self._offer_names()
            try:
                typed = await state.terminal.line(text)
            except Cleared as cleared:
                if leaving and not cleared.text:
                    return 0
                if not cleared.text:
                    state.say("Ctrl-C again, Ctrl-D or /quit exits.")
                text, leaving = "", not cleared.text
                continue
            if typed is None:
                return 0
            text, leaving = "", False
            wanted = meaning_of(typed)
            if wanted is None:
                continue
            if wanted == ChatCommand(Slash.QUIT):
                return 0
            ended = await self._do(wanted)
            text = ended.unsaid
            if not ended.answered and not state.terminal.interactive:
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

    async def _offer_names(self) -> None:
        """Completions of /resume: keys and session ids, with the titles of their conversations."""
        keyboard = self._state.terminal.lines
        if not isinstance(keyboard, Keyboard):
            return
        page = await self._state.node.session_page(SessionFilter(self._state.owner), limit=RECENT)
        names = {(session.key or session.id): one_line(session.title or "") for session in page.items}

        def choices(typed: str) -> Iterable[tuple[str, str]]:
            return completions(typed, names)

        keyboard.choices = choices

    # --- greeting --------------------------------------------------------------------------------------

    async def _greet(self) -> None:
        state = self._state
        session = await state.live.refresh()
        if not state.terminal.interactive:
            return
        named = session.key or session.title or session.id
        trouble = await _trouble_of(state.model)
        say(Styled(one_line(named), "bold"), Styled(f"  {state.model.description}", "dim"), fits=True)
        if trouble:
            state.say(Styled(sentences(f"The model does not answer now: {trouble}"), "yellow"))
        said = await state.node.visible(state.owner, state.conversation_id, limit=LOOK_BACK)
        if said:
            await self._look_back(said)
        else:
            state.say(f"{ENTER_HINT}; /help lists the commands; Ctrl-D exits.")
        await self._say_who_else()

    async def _look_back(self, said: Sequence[Message]) -> None:
        state, last = self._state, said[-1]
        state.say(f"{count(last.seq, 'message')} so far, the last {ago(last.created_at, state.node.now())}.")
        for message in _last_exchange(said):
            _show(message)
        turns = await state.node.turns(state.owner, state.conversation_id, limit=1)
        if turns and turns[0].status in (TurnStatus.INTERRUPTED, TurnStatus.FAILED):
            state.say(
                Styled(f"The last reply was {turns[0].status}. ", "yellow"), "/retry generates it again."
            )

    async def _say_who_else(self) -> None:
        """Warn the person if another process has this session open: both write to the same session."""
        state = self._state
        session = await state.live.refresh()
        owner = session.answering_node
        if owner is None or owner == state.node.node_id:
            return
        by = await self._answering.by(owner)
        state.say(Styled(f"This session is also open elsewhere{by}; ", "yellow"), "you take turns in it.")


async def _trouble_of(model: Model) -> str:
    """Why the model does not answer; empty if it does. Afterwards its description names the model."""
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            await model.models()
            await model.window()
    except ModelError as error:
        return str(error)
    except TimeoutError:
        return f"nothing came within {LOOK_SECONDS:g} s"
    return ""


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
    say(Styled(f"{message.role}: ", ROLE_STYLES.get(message.role, "bold")), "\n".join(words), cut, fits=True)
