"""Runs one turn: calls the model, runs the server tools it asks for, repeats until there is an answer.

The model's output is published to subscribers and saved in drafts as it arrives. A reply that calls server
tools is stored before the first tool runs, and each result is stored as soon as it exists. So after a crash
no tool runs twice and finished results are kept. The client runs its own tools. If a batch mixes both, the
server runs its own calls, and the turn ends with the client's calls.

A context that would not fit is compacted before the model is called, also between two steps. The turn then
continues in another session.

A resumed turn continues after the messages already stored. Stored output is published again. A mixed batch
whose calls no client has received is sent without calling the model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ...domain.context_size import extra_of
from ...domain.contexts import Context
from ...domain.figures import FIRST_TOKEN
from ...domain.fingerprints import EMPTY, extended, fingerprint_of, fingerprint_of_body, is_current
from ...domain.ids import message_id
from ...domain.messages import Message, NewMessage, text_of, without_calls
from ...domain.new_messages import said_by_model, tool_result
from ...domain.turns import Lease
from ...domain.usage import tokens
from ...domain.value import Value
from ...domain.visible_messages import as_shown, joined
from ...errors import ModelError
from ...models.base import Chunk, Model, ModelRequest, array_of, is_text_field
from ...models.chunks import ChunkMaker, calling, chunk_of, continuing, parted, summed, with_usage
from ...models.reply import Reply, ReplyFolder
from ...store.store import Store
from ..contexts.compactor import Compactor
from ..contexts.context_fitter import ContextFitter
from ..contexts.preamble import TurnPreamble
from ..shutdown import finished, through
from ..tools.open_calls import open_calls
from ..tools.toolbox import Toolbox, ToolCall, call_key, clients_tools
from .draft_writer import DraftWriter
from .live import Answered, RunningTurn, ShowsAttempts, TurnOutput, TurnSpec

NOT_RUN = "[Not run: this turn has reached its limit of steps or tool calls.]"
GAVE_UP = (
    "[I have taken {steps} steps without an answer, which is the limit of one turn "
    "([agent] max_steps). All steps are kept: write “continue” to let me continue.]"
)


class _LoopStep(Value, frozen=True):
    """A reply with its tool calls split into server calls (`own`) and client calls (`theirs`)."""

    message: dict[str, Any]
    """The client's calls come first, so their indexes are the same in every view."""
    own: tuple[dict[str, Any], ...]
    theirs: tuple[dict[str, Any], ...]

    @property
    def shown(self) -> dict[str, Any]:
        return without_calls(self.message, [call["id"] for call in self.own])

    @property
    def says_something(self) -> bool:
        """True if the reply has text or calls that a client sees."""
        return bool(self.theirs) or any(text for name, text in self.shown.items() if is_text_field(name))

    def stored(self) -> NewMessage:
        said = said_by_model(self.message)
        own = tuple(call["id"] for call in self.own)
        return replace(said, inner=not self.says_something, own_calls=own) if own else said


class AgentLoop:
    """Produces the answer of one turn. Call `run` once."""

    def __init__(
        self,
        store: Store,
        model: Model,
        running: RunningTurn,
        order: TurnSpec,
        checkpoint_seconds: float,
        toolbox: Toolbox,
        preamble: TurnPreamble | None,
        compactor: Compactor | None = None,
    ) -> None:
        self._store = store
        self._model = model
        self._running = running
        self._order = order
        self._toolbox = toolbox
        self._preamble = preamble
        self._clients_tools = clients_tools(order.options) if toolbox else frozenset()
        self._instructions = order.instructions
        self._own_calls = 0
        self._fitter = ContextFitter(compactor, running, order.model, order.compact_at) if compactor else None
        self.drafts = DraftWriter(
            store,
            running.lease,
            checkpoint_seconds,
            running.begun.next_event,
            numbered=order.renderer.numbered,
            restarts=running.begun.taken_up,
        )
        self._seq = running.session.last_seq + 1
        """The seq of the next reply."""
        self._folder = self._new_folder()
        self._origin: Chunk | None = None
        """The chunk whose stream fields later replies repeat, so that subscribers see one stream."""
        self._held: list[Chunk] = []
        """The reply's final chunks, held until it is known that the answer ends with it."""
        self._said: list[TurnOutput] = []
        """The client-visible part of replies already stored."""
        self._usages: list[Mapping[str, Any] | None] = []
        """Token usage of earlier replies."""
        self._answer_bytes = 0
        """The size of the last message of the answer."""
        self._began, self._timing = asyncio.get_running_loop().time(), dict[str, int]()
        self._steered = False
        """True: messages of others joined this turn, so its history must be read."""
        running.text_so_far = lambda: text_of(self._folder.reply().message.get("content"))

    @property
    def spoke(self) -> bool:
        """True once the model has begun to answer."""
        return self._folder.begun or self._origin is not None

    @property
    def usage(self) -> dict[str, int]:
        """Token usage so far, under the names we store."""
        return tokens(summed([*self._usages, self._folder.reply().usage]))

    async def compact_if_over_threshold(self) -> None:
        """After the answer: start a compaction if the context is over the threshold."""
        if self._fitter is not None:
            await self._fitter.compact_if_over_threshold(self._answer_bytes)

    async def run(self) -> Answered:
        begun, renderer = self._running.begun, self._order.renderer
        events = renderer.begin(begun)
        self._publish(events)
        self._running.preface = len(events)
        if self._preamble is not None:
            self._instructions = (*self._instructions, *await self._preamble.of(begun))
        asked = 0
        if begun.taken_up:
            messages = await self._store.turn_messages(begun.turn.id)
            await self._settle_open(messages)
            earlier = [each for each in messages if each.own_calls]
            asked = len(earlier)
            self._own_calls = sum(len(each.own_calls) for each in earlier)
            unshown = self._retell(earlier)
            if isinstance(renderer, ShowsAttempts):
                self._publish(renderer.resumed())
                self._running.preface = len(self._running.events)
            if unshown is not None:
                return await self._finish(unshown, stored=True)
        wanted, context = self._order.compacts, begun.context
        if wanted is not None and self._fitter is not None and await self._fitter.adopt(wanted):
            context = await self._moved()
        while True:
            asked += 1
            step = self._step(await self._ask(context, first=asked == 1))
            if not step.own:
                return await self._finish(step)
            exhausted = (asked >= self._toolbox.max_steps or self._used_up) and not step.theirs
            await self._take(step, run=not exhausted)
            if step.theirs:
                return await self._finish(step, stored=True)
            if exhausted:
                return await self._give_up(asked)
            await self._take_steering()
            context = None

    @property
    def _used_up(self) -> bool:
        """True: as many server tools were called as the request allows."""
        most = self._order.max_tool_calls
        return most is not None and self._own_calls >= most

    async def _take_steering(self) -> None:
        """Add the messages that steer this turn, between two of its steps."""
        if not await self._store.has_steering(self._running.turn.conversation_id):
            return
        steered = await finished(self._store.take_steering(self._running.lease))
        if steered is not None:
            self._steered = True
            self._next_message(steered.last_seq + 1, behind=None)

    # --- the model ---------------------------------------------------------------------------------

    async def _ask(self, context: Context | None, *, first: bool) -> Reply:
        """Return one reply. If the model rejects the context as too long, compact it and retry once."""
        options = self._options(first) if self._toolbox else self._order.options
        if context is None:
            context = await self._context()
        if self._fitter is not None:
            extra = extra_of(self._instructions, options)
            if await self._fitter.ensure_fits(context, extra, options):
                context = await self._moved()
                self._fitter.set_prompt(context, extra)
        try:
            reply = await self._heard(context, options)
        except ModelError as refusal:
            if self._fitter is None or self._folder.begun or not await self._fitter.fits_after(refusal):
                raise
            context = await self._moved()
            self._fitter.set_prompt(context, extra)
            reply = await self._heard(context, options)
        if self._fitter is not None:
            self._fitter.record_usage(reply.usage)
        return reply

    async def _moved(self) -> Context:
        """The context after its compaction, in the session where the turn continues."""
        self._order.renderer.moved(self._running.begun)
        return await self._context()

    async def _context(self) -> Context:
        return await self._store.context(self._running.turn.owner, self._running.session.id)

    async def _heard(self, context: Context, options: Mapping[str, Any]) -> Reply:
        """Return one reply; publish it and save drafts as it streams."""
        running, renderer = self._running, self._order.renderer
        drafts, folder, plain = self.drafts, self._folder, not self._toolbox
        running.doing = "model"
        messages = await array_of((*self._instructions, *context.chunks))
        order = self._order
        request = ModelRequest(
            messages, order.model, options=options, on_accepted=running.accept, native=order.native
        )
        async for chunk in self._model.stream(request):
            if not self._timing and chunk.adds:
                self._timing[FIRST_TOKEN] = round((asyncio.get_running_loop().time() - self._began) * 1000)
            if drafts.is_behind:
                await drafts.catch_up()
            folder.add(chunk)
            if plain:  # hot path: thousands of chunks
                events = renderer.add(chunk)
                if events:
                    running.publish(events)
                drafts.add(chunk.adds, events, is_last=chunk.whole)
            else:
                self._pass_on(chunk)
        reply = folder.reply()
        if reply.finish_reason is None:
            raise ModelError("the model's answer was cut off; its partial reply is kept")
        return reply

    def _options(self, first: bool) -> dict[str, Any]:
        """The request's options plus the server's tools. A forced tool_choice applies to the first call only:
        forced every time, the model would never answer."""
        options = dict(self._order.options)
        choice, given = options.get("tool_choice"), options.get("tools") or []
        if choice != "none" and isinstance(given, list):
            schemas = self._toolbox.schemas(self._order.tools, self._clients_tools)
            if schemas and not (self._used_up and given):
                options["tools"] = [*given, *schemas]
                if self._used_up:  # offered all the same: some models refuse a history of calls without tools
                    options["tool_choice"] = "none"
        if not first and (choice == "required" or isinstance(choice, Mapping)):
            options["tool_choice"] = "auto"
        return options

    def _pass_on(self, chunk: Chunk) -> None:
        """Publish the client-visible part of a chunk now; hold the rest for the end of the answer."""
        if self._origin is not None:
            chunk = continuing(chunk, self._origin)
        now, later = (chunk, None) if chunk.text is not None else parted(chunk)
        if now is not None:
            self._publish(self._order.renderer.add(now), now.adds)
        if later is not None:
            self._held.append(later)

    def _publish(self, events: Sequence[bytes], adds: Mapping[str, str] | None = None) -> None:
        self._running.publish(events)
        self.drafts.add(adds or {}, events)

    def _new_folder(self) -> ReplyFolder:
        return ReplyFolder(message_id(self._running.session.conversation_id, self._seq))

    # --- its calls ---------------------------------------------------------------------------------

    def _step(self, reply: Reply) -> _LoopStep:
        calls = reply.message.get("tool_calls") or ()
        own = tuple(call for call in calls if self._is_own(call))
        if not own:
            return _LoopStep(reply.message, (), tuple(calls))
        theirs = tuple(call for call in calls if not self._is_own(call))
        return _LoopStep({**reply.message, "tool_calls": [*theirs, *own]}, own, theirs)

    def _is_own(self, call: Mapping[str, Any]) -> bool:
        return self._toolbox.is_own(call["function"]["name"], self._clients_tools)

    async def _take(self, step: _LoopStep, *, run: bool) -> None:
        """Store a reply that calls server tools, then run them one after the other."""
        lease = self._running.lease
        await self.drafts.rest()
        seq = await finished(self._store_step(lease, step))
        if step.says_something:
            self._said.append(TurnOutput(self._seq, step.shown))
        if not step.theirs:
            self._go_on(step)
        for position, call in enumerate(step.own):
            text = NOT_RUN
            if run and not self._used_up:  # the limit holds within one batch, too
                await self._order.check()
                text = await self._toolbox.run(self._called(call, seq, position))
            self._own_calls += 1
            await finished(self._store.append(lease, (tool_result(call["id"], text, inner=True),)))

    async def _store_step(self, lease: Lease, step: _LoopStep) -> int:
        seq = await self._store.append(lease, (step.stored(),))
        self.drafts.next_reply()  # also if the turn is being stopped: a draft would repeat the text
        return seq

    async def _settle_open(self, messages: Sequence[Message]) -> None:
        """Replace the results of open calls whose outcome can be found out."""
        replaced, results = list[int](), list[NewMessage]()
        for each in open_calls(messages):
            await self._order.check()
            text = await self._toolbox.outcome(self._called(each.call, each.step_seq, each.position))
            if text is not None:
                replaced.append(each.result_seq)
                results.append(tool_result(each.call["id"], text, inner=True))
        if results:
            last_seq = await finished(self._store.replace_results(self._running.lease, replaced, results))
            self._running.appended(last_seq)
            self._seq = last_seq + 1
            self._folder = self._new_folder()

    def _called(self, call: Mapping[str, Any], seq: int, position: int) -> ToolCall:
        """The call at this position among the server's calls of message `seq`."""
        running, function = self._running, call["function"]
        running.doing = f"tool:{function['name']}"
        return ToolCall(
            call["id"],
            function["name"],
            function["arguments"],
            running.turn.owner,
            running.turn.conversation_id,
            running.session.id,
            running.turn.id,
            call_key(running.turn.id, seq, position),
            self._order.tools,
        )

    def _go_on(self, step: _LoopStep) -> None:
        """Go to the next reply of the same answer. Its seq follows the results of this reply's calls: while
        the lease is held, no other message can come between."""
        self._usages.append(self._folder.reply().usage)
        if self._origin is None:
            self._origin = self._held[-1] if self._held else chunk_of({})
        self._held = []
        self._next_message(self._seq + len(step.own) + 1, behind=step.shown)

    def _next_message(self, seq: int, behind: Mapping[str, Any] | None) -> None:
        self._seq = seq
        self._folder = self._new_folder()
        spoke = behind is not None and bool(text_of(behind.get("content")))
        self._publish(self._order.renderer.next_message(seq, spoke=spoke))

    def _retell(self, earlier: Sequence[Message]) -> _LoopStep | None:
        """Publish again the stored output of earlier attempts. Returns the last reply if it has calls that no
        client has received: then the model is not called."""
        shown = [message for message in earlier if not message.inner]
        before: dict[str, Any] | None = None
        maker = ChunkMaker(self._order.model or self._running.turn.model or "")
        for message in shown:
            self._next_message(message.seq, before)
            before = message.shown()
            self._said.append(TurnOutput(message.seq, before))
            texts = {name: text for name, text in before.items() if text and is_text_field(name)}
            chunk = maker.delta(**texts)
            self._origin = self._origin or chunk
            self._folder.add(chunk)
            self._publish(self._order.renderer.add(chunk))  # no draft: already stored
        if shown and before is not None and before.get("tool_calls"):
            end = maker.finish("tool_calls")
            self._folder.add(end)
            self._held.append(end)
            return _LoopStep(before, (), tuple(before["tool_calls"]))
        if shown:
            self._next_message(self._running.session.last_seq + 1, before)
        return None

    async def _give_up(self, asked: int) -> Answered:
        """max_steps reached without an answer: end the turn with a message that says so."""
        maker = ChunkMaker(self._order.model or self._running.turn.model or "")
        chunks = (maker.delta(content=GAVE_UP.format(steps=asked)), maker.finish("length"))
        for chunk in chunks:
            self._folder.add(chunk)
            self._pass_on(chunk)
        return await self._finish(_LoopStep(self._folder.reply().message, (), ()))

    # --- the end -----------------------------------------------------------------------------------

    async def _finish(self, step: _LoopStep, *, stored: bool = False) -> Answered:
        """Commit the answer, then publish its end. `stored`: the last reply is already on disk."""
        renderer, reply, answer = self._order.renderer, self._folder.reply(), self._folder.answer()
        usage = reply.usage
        if self._usages:
            usage = summed([*self._usages, usage])
            answer = {**answer, "usage": usage} if usage else answer
        if self._held:
            chunks = [with_usage(chunk, usage) for chunk in self._held]
            if step.theirs:
                chunks.insert(0, calling(chunks[0], step.theirs))
            for chunk in chunks:
                self._publish(renderer.add(chunk))
        await self.drafts.rest()
        if stored:
            last: tuple[NewMessage, ...] = ()
            self._answer_bytes = len(msgspec.json.encode(self._said[-1].message))
        else:
            self._said.append(TurnOutput(self._seq, step.shown))
            last = (said_by_model(step.message),)
            self._answer_bytes = len(last[0].body)
        whole = joined([each.message for each in self._said])
        ended_at = self._store.now()
        answered = Answered(replace(reply, message=whole, usage=usage), answer, tuple(self._said), ended_at)
        history = await self._history(whole)
        self._running.answered, self._running.final_events = answered, renderer.end(answered)
        await through(
            self._store.commit_reply(
                self._running.lease,
                last,
                usage=self._counted(usage),
                answer=msgspec.json.encode(answer),
                history=history,
                draft=self.drafts.last(self._running.final_events),
                delivery=self._running.delivery,
                notice=self._order.notice,
                model=reply.model,
                ended_at=ended_at,
            )
        )
        return answered

    def _counted(self, usage: Mapping[str, Any] | None) -> dict[str, int]:
        """Token usage, the context size and the time to the first token, as stored with the turn."""
        measured = self._fitter.measured if self._fitter is not None else None
        return {**tokens(usage), **(measured.fields() if measured is not None else {}), **self._timing}

    async def _history(self, whole: Mapping[str, Any]) -> bytes | None:
        """The history fingerprint of everything clients have now received. After an interrupted or resumed
        reply the fingerprint before it is unknown, so the messages are read."""
        if self._steered:
            return None  # messages of others are among its own: unknown until a request brings its history
        order, begun = self._order, self._running.begun
        apart = order.renderer.apart
        fingerprints = (
            [fingerprint_of(each.message) for each in self._said] if apart else [fingerprint_of(whole)]
        )
        known = order.history or begun.history
        if known is not None and is_current(known) and not begun.taken_up:
            return extended(extended(known, order.fingerprints), fingerprints)
        visible = await self._store.visible(begun.turn.owner, begun.turn.conversation_id)
        before = [message for message in visible if message.seq < self._said[0].seq]
        return extended(
            EMPTY,
            [*(fingerprint_of_body(each.body) for each in as_shown(before, apart=apart)), *fingerprints],
        )
