"""One turn of a chat: stores the message, streams the reply, and on Ctrl-C keeps the partial reply.

If the conversation is busy, waits for it and names the process that holds it. A message that could not be
sent is returned to the prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ..app import Answered, RunningTurn, TurnSpec, Unanswered
from ..cli.format import Styled, complain, next_step_after, on_terminal, sentences
from ..cli.run import SAY_WAITING_SECONDS, ReplyPrinter
from ..cli.server_model import ServerModel
from ..domain.conversations import Address
from ..domain.ids import new_id
from ..domain.messages import NewMessage, instruction
from ..domain.new_messages import user_message
from ..domain.rewinds import RETRY_LOOKS_AT, replies_to_person
from ..domain.sessions import Edge
from ..domain.turns import TurnBegun, TurnOutdated, TurnRepeated, TurnRequest, TurnStatus
from ..errors import BadInput, ConversationBusy, HoldfastError, LeaseLost, ModelError, NodeReaped, TurnStopped
from ..models.base import Chunk
from .reply import ReplyView
from .state import ChatState

BY_PERSON = "a person interrupted it"
LOOK_SECONDS = 0.1
MOST_CUTS = 3
"""How many times in a row a reply is regenerated automatically after the server stopped."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Outcome of a turn."""

    answered: bool
    unsaid: str = ""
    """Text that could not be sent. It is put back at the prompt."""


class Answering:
    def __init__(self, state: ChatState) -> None:
        self._state = state
        self._cuts = 0
        """How many replies in a row were cut because the server stopped."""

    async def say(self, text: str) -> Ended:
        """Send this message and show the reply."""
        try:
            message = user_message(text)
        except BadInput as error:
            complain(error)
            return Ended(False)
        return await self._turn(self._request(messages=(message,)), text)

    async def retry(self) -> Ended:
        """Retry the newest turn if it was interrupted or failed; otherwise answer its message again."""
        state = self._state
        turns = await state.node.turns(state.owner, state.conversation_id, limit=1)
        tip = await state.tip()
        if not turns or (tip.edge is Edge.RESET and turns[0].first_seq < tip.first_seq):
            state.say("Nothing to retry: this session has no messages yet.")
            return Ended(True)
        (turn,) = turns
        if turn.status in (TurnStatus.INTERRUPTED, TurnStatus.FAILED):
            return await self._turn(self._request(resumes_turn=turn.id))
        if turn.status is TurnStatus.RUNNING:
            state.say(f"It is being answered right now{await self.by(turn.node_id)}.")
            return Ended(True)
        return await self._again()

    async def _again(self) -> Ended:
        state = self._state
        newest = await state.node.visible(state.owner, state.conversation_id, limit=RETRY_LOOKS_AT)
        replies = replies_to_person(newest)
        if replies is None:
            state.say("Nothing to retry: the last reply did not answer a user message.")
            return Ended(True)
        return await self._turn(self._request(regenerates=replies, answer_existing=True))

    def _request(
        self,
        messages: tuple[NewMessage, ...] = (),
        *,
        resumes_turn: str | None = None,
        regenerates: tuple[int, ...] = (),
        answer_existing: bool = False,
    ) -> TurnRequest:
        state = self._state
        return TurnRequest(
            turn_id=new_id("turn"),
            owner=state.owner,
            node_id=state.node.node_id,
            address=Address(id=state.conversation_id, create=False),
            messages=messages,
            attached=True,
            model=state.model_name,
            resumes_turn=resumes_turn,
            regenerates=regenerates,
            answer_existing=answer_existing,
        )

    # --- one turn --------------------------------------------------------------------------------------

    async def _turn(self, request: TurnRequest, text: str = "") -> Ended:
        state = self._state
        try:
            begun = await self._begin(request)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the chat itself is shutting down
            state.say("Not sent: you cancelled the wait.")
            return Ended(False, text)
        except ConversationBusy as error:
            complain(f"not sent: {error}", next_step_after(error))
            return Ended(False, text)
        except HoldfastError as error:
            complain(error)
            return Ended(False, text)
        if isinstance(begun, TurnRepeated | TurnOutdated):
            state.say("It is being answered elsewhere already.")
            return Ended(True)
        state.own_turns.add(begun.turn.id)
        await self._hear(begun)  # first, without an await before it: Ctrl-C is for this reply from now on
        state.live = await state.node.session(id=state.conversation_id)
        await state.deliver()
        if self._was_cut(begun):
            return await self._turn(self._request(resumes_turn=begun.turn.id))
        self._cuts = 0
        return self._ended(begun)

    def _was_cut(self, ended: RunningTurn) -> bool:
        """True: the server stopped in the middle of this reply, and it is generated again by itself."""
        model, outcome = self._state.model, ended.outcome
        if not (isinstance(model, ServerModel) and model.was_cut and isinstance(outcome, Unanswered)):
            return False
        if not isinstance(outcome.error, ModelError) or self._cuts >= MOST_CUTS:
            return False
        self._cuts += 1
        self._state.say(
            Styled("The server stopped during this reply. ", "yellow"),
            "Partial reply saved; generating it again. Ctrl-C cancels.",
        )
        return True

    async def _begin(self, request: TurnRequest) -> RunningTurn | TurnRepeated | TurnOutdated:
        """Begin the turn; wait while the conversation is busy. Ctrl-C stops the wait."""
        state, settings = self._state, self._state.invocation.settings
        prompt = state.system_prompt
        self._voice = _ChatReplyPrinter(state)
        order = TurnSpec(
            request,
            self._voice,
            (instruction(prompt),) if prompt else (),
            model=request.model,
            tools=frozenset(settings.agent.tools),
        )
        wait = settings.server.busy_wait_seconds
        beginning = asyncio.ensure_future(state.node.runner.begin(order, wait))
        saying = asyncio.ensure_future(self._say_who_holds_it(wait))
        state.terminal.on_interrupt = beginning.cancel
        try:
            return await beginning
        finally:
            state.terminal.on_interrupt = None
            saying.cancel()

    async def _say_who_holds_it(self, wait: float) -> None:
        await asyncio.sleep(SAY_WAITING_SECONDS)
        state = self._state
        holder = (await state.tip()).running_node
        by = await self.by(holder) if holder else ""
        state.say(f"Another turn is running here{by}; waiting up to {wait:g} s. Ctrl-C gives up waiting.")

    async def by(self, node_id: str) -> str:
        """Describe the process of this node; empty if the node is unknown."""
        for node in await self._state.node.nodes():
            if node.id == node_id:
                return f", in {node.kind.value} process {node.identity.pid} on {node.identity.host}"
        return ""

    async def _hear(self, running: RunningTurn) -> None:
        """Return when the turn has ended, in any state."""
        state = self._state

        def interrupt() -> None:
            stopping.append(
                asyncio.ensure_future(
                    state.node.runner.stop(state.owner, running.turn.id, TurnStatus.INTERRUPTED, BY_PERSON)
                )
            )

        stopping: list[asyncio.Future[bool]] = []
        state.terminal.on_interrupt = interrupt
        doing = "model"
        try:
            self._voice.start()
            while await running.ended(LOOK_SECONDS) is None:
                if running.doing != doing:
                    doing = running.doing
                    self._voice.waits_for(doing)
                self._voice.draw()
            await asyncio.gather(*stopping)
        finally:
            state.terminal.on_interrupt = None
            self._voice.finish()

    def _ended(self, running: RunningTurn) -> Ended:
        state, outcome = self._state, running.outcome
        if isinstance(outcome, Answered):
            return Ended(True)
        assert isinstance(outcome, Unanswered)
        error = outcome.error
        kept = "Partial reply saved" if outcome.spoke else "Your message is saved"
        if isinstance(error, ModelError):
            complain(error, sentences(kept, "/retry to generate it again"))
        elif running.stop is not None and running.stop.why == BY_PERSON:
            state.say(Styled("Interrupted. ", "yellow"), f"{kept}. /retry to generate it again.")
        elif isinstance(error, TurnStopped | LeaseLost | NodeReaped):
            why = (
                "it was cancelled elsewhere"
                if outcome.status is TurnStatus.CANCELLED
                else "it was ended elsewhere"
            )
            state.say(Styled(f"Interrupted: {why}. ", "yellow"), f"{kept}. /retry to generate it again.")
        else:
            complain(error, sentences(kept, "/retry to generate it again"))
        return Ended(False)


class _ChatReplyPrinter(ReplyPrinter):
    """Shows the reply, after any undelivered notices: on a terminal rendered, in a pipe as it is."""

    def __init__(self, state: ChatState) -> None:
        super().__init__(nobody_listens=state.terminal.stop)
        self._state = state
        self._view = ReplyView() if state.terminal.interactive and on_terminal() else None

    def start(self) -> None:
        """Show that the reply is awaited."""
        if self._view is not None:
            self._view.start()

    def begin(self, begun: TurnBegun) -> Sequence[bytes]:
        for notice in begun.notices:
            if notice.id not in self._state.shown_notices:
                self._state.say(Styled(notice.text, "yellow"))
            self._state.shown_notices[notice.id] = False  # the model receives it in this turn
        return ()

    def draw(self) -> None:
        if self._view is not None:
            self._view.draw()

    def say(self, chunk: Chunk) -> None:
        if self._view is None:
            super().say(chunk)
        elif text := chunk.adds.get("content", ""):
            self._view.add(text)

    def next_message(self, seq: int, *, spoke: bool) -> Sequence[bytes]:
        if self._view is None:
            return super().next_message(seq, spoke=spoke)
        if spoke:
            self._view.add("\n\n")
        return ()

    def finish(self) -> None:
        if self._view is not None:
            self._view.finish()
        super().finish()

    def waits_for(self, doing: str) -> None:
        """Show what the turn waits for, such as `tool:terminal`; in a pipe nothing is shown for the model."""
        tool = doing.removeprefix("tool:") if doing.startswith("tool:") else ""
        if self._view is not None:
            self._view.doing = tool or ("" if doing == "model" else doing)
        elif tool:
            super().finish()
            self._state.say(f"[{tool} …]")
