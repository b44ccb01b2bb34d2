"""Runs one connector on this node: claims it, receives, answers each place in order, and sends what is due.

Everything that must survive is a row (`store/connectors.py`, `store/deliveries.py`); this file holds only
tasks. Three loops, each with a public `…_once`: `claim_once` gets the connector for this node and keeps its
receiver running; `answer_once` starts a task for each place with unanswered messages; `send_once` sends what
the outbox holds. A write that comes too late, because another node has claimed the connector since, raises
ConnectorLost: this node then stops working in its name.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from ..domain.connectors import (
    MOST_PENDING,
    Batch,
    ConnectorClaim,
    ConnectorHealth,
    Gathering,
    InboxState,
    Incoming,
    Outgoing,
    Place,
    PlaceKind,
    new_pairing_code,
    pause_after,
)
from ..domain.conversations import Address
from ..domain.ids import new_id
from ..domain.messages import NewMessage, instruction
from ..domain.new_messages import new_message
from ..domain.recovery import Origin, RequestToStore, encoded_request
from ..domain.request_keys import RequestKey
from ..domain.turns import Turn, TurnBegun, TurnRepeated, TurnRequest, TurnStatus
from ..errors import (
    ConnectorLost,
    ConversationBusy,
    HoldfastError,
    LeaseLost,
    ModelError,
    NodeReaped,
    NotFound,
    StoreClosed,
    StoreError,
)
from ..models.base import Chunk
from ..operations import Operations
from ..runtime import periodic
from ..runtime.turns.live import Answered, Outcome, RunningTurn, TurnSpec, Unanswered
from ..settings import ConnectorSettings
from .attachments import AttachmentStore
from .base import Connector, ConnectorDown, SendFailed, SendRefused
from .commands import PlaceCommands, RetryWanted
from .outbox import Outbox

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
PAUSE_SECONDS = 0.1
"""The least time between two reads of the store: a busy one changes more often than people read."""
MOST_PLACES = 32
"""Places that are answered at the same time."""
MODEL_ATTEMPTS = 6
"""A message is given up after its turn failed so often: after about a minute."""
FILE_ATTEMPTS = 4
"""A message is answered without a file that could not be fetched so often."""
TYPING_SECONDS = 4.0
ELSEWHERE_SECONDS = 1.0
FIRST_BACKOFF, LONGEST_BACKOFF = 0.5, 60.0
ONE_BODY = sha256(b"").digest()
"""A platform's id names one message, even if others have joined its turn."""
_NAME_IN_GROUP = re.compile(r"[^A-Za-z0-9_-]+")

STRANGER = (
    "I do not know you yet. Give this code to the operator of this bot: {code}\nIt is valid for an hour: "
    "holdfast pair approve {code}"
)
GIVEN_UP = "I could not answer this: {why}."
KEPT = " Your message is kept; /retry asks again."
DIED = "the server was stopped {times} times while it was being answered"
STOPPED = "[stopped]"
BUSY = "I am still answering your last message; write again when I have."
INTERRUPTED = "it was replaced by a newer message"
UNEXPECTED = "That failed with an unexpected error; the server's log has the reason."


class TextRenderer:
    """Renders a turn as its text alone, which a place shows while it grows."""

    numbered = False
    apart = False

    def __init__(self) -> None:
        self.text = ""

    def begin(self, begun: TurnBegun) -> Sequence[bytes]:
        self.text = ""
        return ()

    def add(self, chunk: Chunk) -> Sequence[bytes]:
        added = chunk.adds.get("content", "")
        self.text += added
        return (added.encode("utf-8", "replace"),) if added else ()

    def next_message(self, seq: int, *, spoke: bool) -> Sequence[bytes]:
        if spoke:
            self.text += "\n\n"
        return ()

    def moved(self, begun: TurnBegun) -> None:
        return None

    def end(self, outcome: Outcome) -> Sequence[bytes]:
        return ()


@dataclass(frozen=True, slots=True)
class _Shown:
    """A growing reply: its delivery, and the text that the platform was given last."""

    delivery_id: str
    text: str


class ConnectorWorker:
    """Runs one connector while this node holds its claim. `start` and `stop` its loops."""

    def __init__(self, name: str, settings: ConnectorSettings, connector: Connector, hf: Operations) -> None:
        self.name = name
        self.settings = settings
        self.connector = connector
        self._hf = hf
        self._store = hf.store
        self._commands = PlaceCommands(hf)
        self._files = AttachmentStore(settings, connector, hf)
        self._outbox = Outbox(name, connector, hf, self.note_up)
        self._claim: ConnectorClaim | None = None
        self._receiver: asyncio.Task[None] | None = None
        self._healthy: bool | None = None
        """What was noted of the platform last; None: nothing yet under this claim."""
        self._home_is_set = not hf.settings.notify.home
        self._places: dict[str, asyncio.Task[None]] = {}
        """Places that are being answered."""
        self._turns: dict[str, str] = {}
        """The running turn of a place, by place id."""
        self._asides: dict[int | str, asyncio.Task[None]] = {}
        """Commands by the number of their message, and `when_busy` by place id, that are at work."""
        self._unsent_codes: dict[str, str] = {}
        """Pairing codes that the platform did not accept, by person."""
        self._draining = False
        self._loops = (
            periodic.every(LOOK_SECONDS, self.claim_once, "run a connector"),
            periodic.every(PAUSE_SECONDS, self.answer_once, "answer messages from platforms"),
            periodic.every(PAUSE_SECONDS, self.send_once, "send messages to platforms"),
        )

    @property
    def claim(self) -> ConnectorClaim | None:
        """The claim of this node; None: another node runs the connector, or none does yet."""
        return self._claim

    # --- lifecycle ------------------------------------------------------------------------------------

    def start(self) -> None:
        for loop in self._loops:
            loop.start()

    async def stop(self) -> None:
        """Stop working and release the claim. Turns that run are left to the turn runner."""
        for loop in self._loops:
            await loop.stop()
        claim = self._claim
        await self._let_go()
        if claim is not None:
            with suppress(StoreError):
                await self._store.release_connector(claim)
        await self.connector.close()

    def drain(self) -> None:
        """Begin no further turn; what runs is finished and sent."""
        self._draining = True

    async def _let_go(self) -> None:
        """Forget the claim and cancel everything that works under it."""
        self._claim = None
        receiver = [self._receiver] if self._receiver else []
        tasks = [*self._places.values(), *self._asides.values(), *receiver]
        self._receiver = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._places.clear()  # one that had not begun yet did not remove itself
        self._asides.clear()

    def _lost(self, claim: ConnectorClaim) -> None:
        """Stop working under a claim that another node has replaced; `claim_once` cleans up."""
        if self._claim is claim:
            log.warning("connector %s: another node runs it now", self.name)
            self._claim = None

    # --- claiming and receiving -----------------------------------------------------------------------

    async def claim_once(self) -> bool:
        """Claim the connector if no living node runs it. True: this node runs it."""
        if self._claim is None:
            await self._let_go()
            made = await self._hf.heartbeat.as_living(
                lambda: self._store.claim_connector(self.name, self.settings.kind, self._hf.node_id)
            )
            if isinstance(made, str):
                if not await self._hf.reaper.reap_if_dead(made):
                    return False
                return await self.claim_once()
            self._claim, self._healthy = made, None
            await self._set_home()
        if self._receiver is None or self._receiver.done():
            self._receiver = asyncio.create_task(self._receive(self._claim), name=f"connector {self.name}")
        return True

    async def _receive(self, claim: ConnectorClaim) -> None:
        """Run the platform's receiver; after an outage run it again."""
        failures = 0
        sink = _ClaimedSink(self, claim)
        while self._claim is claim:
            try:
                began = asyncio.get_running_loop().time()
                await self.connector.run(sink)
            except ConnectorLost:
                self._lost(claim)
                return
            except StoreClosed:
                return
            except (ConnectorDown, SendFailed, OSError, StoreError) as error:
                await self._down(claim, str(error))
            except Exception as error:
                log.exception("connector %s: its receiver failed with an unexpected error", self.name)
                await self._down(claim, f"{type(error).__name__}: {error}")
            if asyncio.get_running_loop().time() - began > LONGEST_BACKOFF:
                failures = 0
            failures += 1
            await asyncio.sleep(min(FIRST_BACKOFF * 2 ** min(failures - 1, 10), LONGEST_BACKOFF))

    async def _down(self, claim: ConnectorClaim, problem: str) -> None:
        if self._healthy is not False:
            log.error("connector %s: %s; it will be retried", self.name, problem)
        self._healthy = False
        with suppress(ConnectorLost, StoreError):
            await self._store.note_connector(claim, ConnectorHealth.DOWN, problem)

    async def note_up(self, claim: ConnectorClaim) -> None:
        """Record that the platform can be reached, if that is news."""
        if self._healthy:
            return
        if self._healthy is False:
            log.info("connector %s: it works again", self.name)
        self._healthy = True
        await self._store.note_connector(claim, ConnectorHealth.UP)

    async def receive(
        self, events: Sequence[Incoming], cursor: str | None = None, claim: ConnectorClaim | None = None
    ) -> int:
        """Store what came in; strangers get a pairing code. Returns how many messages were new. Without a
        claim: for what a platform pushes to any node."""
        store = self._store
        if not events and cursor is None:
            return 0
        found = await store.receive(self.name, events, self.settings.allow, claimed=claim, cursor=cursor)
        for platform_id, why in found.refused:
            log.warning("connector %s: message %s is left out: %s", self.name, platform_id, why)
        for event in found.strangers:
            await self._pair(event)
        if found.stored:
            await self._set_home()
            self._loops[1].wake()
        return found.stored

    async def _pair(self, event: Incoming) -> None:
        code = new_pairing_code()
        if await self._store.ask_pairing(self.name, event, code):
            log.info("connector %s: %s has asked to be paired", self.name, event.person)
        elif event.person in self._unsent_codes and event.place_kind is PlaceKind.DIRECT:
            code = self._unsent_codes[event.person]
        else:
            return
        self._unsent_codes.pop(event.person, None)
        try:
            await self.connector.send(
                event.address, STRANGER.format(code=code), key=f"pair-{event.platform_id}"
            )
        except (SendFailed, SendRefused) as error:
            if len(self._unsent_codes) < MOST_PENDING:
                self._unsent_codes[event.person] = code  # it is sent when they write again
            log.warning(
                "connector %s: the pairing code for %s was not sent: %s", self.name, event.person, error
            )

    async def _set_home(self) -> None:
        if not self._home_is_set:
            self._home_is_set = await self._store.set_home(self._hf.settings.notify.home)

    # --- answering ------------------------------------------------------------------------------------

    async def answer_once(self) -> int:
        """Start answering every place that has messages to answer; returns how many places are at work."""
        claim, store = self._claim, self._store
        if claim is None or self._draining:
            await asyncio.sleep(LOOK_SECONDS / 4)
            return 0
        version = store.version()
        at_work = set(self._asides)  # what ends while we read may still be found
        for batch in await store.urgent_commands(self.name):
            if (number := batch.messages[0].no) not in at_work and number not in self._asides:
                self._aside(claim, number, self._command(claim, batch))
        now = store.now()
        for place_id, due_at in await store.waiting_places(self.name):
            if place_id in self._places:
                if place_id in self._turns and place_id not in self._asides:
                    self._aside(claim, place_id, self._while_busy(claim, place_id))
            elif due_at <= now and len(self._places) < MOST_PLACES:
                self._places[place_id] = asyncio.create_task(self._answer(claim, place_id))
        await store.changed(version, LOOK_SECONDS / 2)
        return len(self._places)

    def _aside(
        self, claim: ConnectorClaim, what: int | str, work: Coroutine[Any, Any, None]
    ) -> asyncio.Task[None]:
        """Run this beside the loop: no place waits for what is done for another."""

        async def run() -> None:
            try:
                await work
            except ConnectorLost:
                self._lost(claim)
            except (StoreError, NodeReaped) as error:
                log.warning("connector %s: cannot answer now: %s", self.name, error)
                await asyncio.sleep(LOOK_SECONDS)
            except Exception:
                log.exception("connector %s: a place could not be answered", self.name)
                await asyncio.sleep(LOOK_SECONDS)
            finally:
                self._asides.pop(what, None)

        task = self._asides[what] = asyncio.create_task(run())
        return task

    async def _while_busy(self, claim: ConnectorClaim, place_id: str) -> None:
        """Apply `when_busy` to messages that arrived during the place's running turn."""
        turn_id, rule = self._turns.get(place_id), self.settings.when_busy
        if turn_id is None or rule not in ("interrupt", "reject", "steer"):
            return
        if rule == "steer":
            await self._steer(claim, place_id)
            return
        newer = await self._store.newer_messages(self.name, place_id)
        if newer is None:
            return
        if rule == "reject":
            await self._store.settle_messages(claim, newer, BUSY)
        else:
            with suppress(NotFound):
                await self._hf.runner.stop(None, turn_id, TurnStatus.INTERRUPTED, INTERRUPTED)

    async def _steer(self, claim: ConnectorClaim, place_id: str) -> None:
        """Have new messages join the running turn at its next step. If it ends before, or a crash comes
        between, they are answered after it: their turn id is stored."""
        batch = await self._store.steering_messages(claim, place_id, new_id("turn"))
        if batch is None:
            return
        most = self._hf.settings.turns.queue
        try:
            request = await self._request(claim, batch)
            await self._hf.queue_turn(request, most=most, steers=True)
        except (ConnectorLost, StoreError, NodeReaped):
            raise
        except HoldfastError:  # they are answered, or given up with the reason, after the running turn
            return

    async def _answer(self, claim: ConnectorClaim, place_id: str) -> None:
        """Answer the messages of one place, in order, until there are none."""
        try:
            gather = timedelta(seconds=self.settings.gather_seconds)
            while self._claim is claim:
                taken = await self._store.take_messages(
                    claim, place_id, new_id("turn"), self.settings.kind, gather
                )
                if taken is None:
                    return
                if isinstance(taken, Gathering):
                    await asyncio.sleep(max(0.01, (taken.until - self._store.now()).total_seconds()))
                elif taken.command is not None:  # once: `answer_once` may have begun it
                    number = taken.messages[0].no
                    command = self._asides.get(number)
                    await asyncio.wait([command or self._aside(claim, number, self._command(claim, taken))])
                elif not await self._turn_of(claim, taken):
                    return
        except ConnectorLost:
            self._lost(claim)
        except (StoreError, NodeReaped) as error:
            log.warning("connector %s: cannot answer now: %s", self.name, error)
            await asyncio.sleep(LOOK_SECONDS)
        except Exception:
            log.exception("connector %s: a place could not be answered", self.name)
            await asyncio.sleep(LOOK_SECONDS)
        finally:
            self._places.pop(place_id, None)
            self._turns.pop(place_id, None)

    async def _command(self, claim: ConnectorClaim, batch: Batch) -> None:
        assert batch.command is not None
        try:
            answer = await self._commands.run(batch)
        except (NodeReaped, StoreError, ConnectorLost):
            raise
        except HoldfastError as error:
            if error.public != str(error):
                log.warning("connector %s: /%s failed: %s", self.name, batch.command.name, error)
            answer = error.public
        except Exception:  # else the command would be tried for ever, and what follows it would wait
            log.exception("connector %s: /%s failed", self.name, batch.command.name)
            answer = UNEXPECTED
        if isinstance(answer, RetryWanted):
            await self._store.assign_turn(claim, batch, answer.turn_id)
            await self._turn(claim, replace(batch, turn_id=answer.turn_id), answer.request(self._hf.node_id))
        else:
            await self._store.settle_messages(claim, batch, answer)

    # --- one turn -------------------------------------------------------------------------------------

    async def _turn_of(self, claim: ConnectorClaim, batch: Batch) -> bool:
        """Answer a batch by its turn. False: leave it for later."""
        if died := await self._deaths(batch):
            await self._give_up(claim, batch, HoldfastError(DIED.format(times=died)))
            return True
        try:
            request = await self._request(claim, batch)
        except SendFailed as error:
            pause = pause_after(batch.messages[0].attempts + 1, error.retry_after)
            await self._store.postpone_messages(claim, batch, pause, str(error))
            return True
        except (ConnectorLost, StoreError, NodeReaped):
            raise
        except HoldfastError as error:  # such as a message that is too large: it stays so
            await self._give_up(claim, batch, error)
            return True
        return await self._turn(claim, batch, request)

    async def _deaths(self, batch: Batch) -> int:
        """How often a server died while it answered this batch; 0: not too often. One message must not stop
        servers forever."""
        first = batch.messages[0]
        if first.state is not InboxState.TAKEN:
            return 0
        try:
            turn = await self._hf.turn(None, batch.turn_id)
        except NotFound:
            return 0
        ended = turn.status in (TurnStatus.COMPLETED, TurnStatus.QUEUED)
        deaths = turn.attempt - first.attempts
        return 0 if ended or deaths <= self._hf.settings.turns.max_deaths else deaths

    async def _request(self, claim: ConnectorClaim, batch: Batch) -> TurnRequest:
        """The turn that answers this batch: the same request at each attempt. Its files are stored.
        Raises SendFailed if one cannot be fetched now."""
        place, first = batch.place, batch.messages[0]
        last_try = first.attempts + 1 >= FILE_ATTEMPTS
        attached = await self._files.attached(claim, batch, last_try=last_try)
        messages = tuple(
            _message(place, more.content(each.text), each.sender_name or each.sender)
            for each, more in zip(batch.messages, attached, strict=True)
        )
        return TurnRequest(
            turn_id=batch.turn_id,
            owner=place.owner,
            node_id=self._hf.node_id,
            address=Address(id=place.conversation_id, create=False)
            if place.linked
            else Address(key=place.key),
            messages=messages,
            source=self.settings.kind,
            request_key=RequestKey(f"connector/{self.name}", first.platform_id, ONE_BODY),
            model=self._hf.settings.model.name or None,
            stored=RequestToStore(
                encoded_request("chat", b"{}", self._instructions(), tools=self.settings.tools),
                Origin.CONNECTOR,
            ),
        )

    def _queued(self, turn: Turn) -> TurnRequest:
        """Begins a queued turn."""
        return TurnRequest(
            turn_id=turn.id,
            owner=turn.owner,
            node_id=self._hf.node_id,
            address=Address(id=turn.conversation_id, create=False),
            messages=(),
            starts_queued=True,
            model=turn.model,
        )

    def _instructions(self) -> tuple[bytes, ...]:
        prompt = self._hf.settings.agent.system_prompt
        return (instruction(prompt),) if prompt else ()

    async def _turn(self, claim: ConnectorClaim, batch: Batch, request: TurnRequest) -> bool:
        """Run the turn and show it while it grows. Its commit writes the delivery. False: leave it for
        later."""
        renderer = TextRenderer()
        spec = TurnSpec(
            request,
            renderer,
            self._instructions(),
            model=request.model,
            follows=True,
            tools=frozenset(self.settings.tools),
        )
        try:
            begun = await self._hf.runner.begin(spec, self._hf.settings.server.busy_wait_seconds)
        except ConversationBusy:
            await self._store.postpone_messages(claim, batch, timedelta(seconds=ELSEWHERE_SECONDS))
            return True
        except (NodeReaped, StoreError):
            raise
        except HoldfastError as error:
            await self._give_up(claim, batch, error)
            return True
        if isinstance(begun, RunningTurn):
            self._turns[batch.place.id] = begun.turn.id
            shown = await self._follow(claim, batch, begun, renderer)
            outcome = await begun.ended()
            assert outcome is not None
            return isinstance(outcome, Answered) or await self._unanswered(
                claim, batch, begun, outcome, shown
            )
        if isinstance(begun, TurnRepeated):
            return await self._repeated(claim, batch, begun)
        return True  # the conversation changed meanwhile: try again

    async def _repeated(self, claim: ConnectorClaim, batch: Batch, repeated: TurnRepeated) -> bool:
        turn = repeated.turn
        if turn.status is TurnStatus.COMPLETED:
            await self._store.deliver_reply(claim, turn.conversation_id, turn.id)
        elif turn.status is TurnStatus.RUNNING:  # on another node, or waiting to be retried there
            await asyncio.sleep(ELSEWHERE_SECONDS)
        elif turn.status is TurnStatus.QUEUED:  # it could not join the turn before it
            return await self._turn(claim, batch, self._queued(turn))
        else:
            await self._store.settle_messages(claim, batch)
        return True

    async def _unanswered(
        self,
        claim: ConnectorClaim,
        batch: Batch,
        running: RunningTurn,
        outcome: Unanswered,
        shown: _Shown | None,
    ) -> bool:
        error = outcome.error
        if running.stop is not None and running.stop.retry:
            return False  # this server stops: the connector's next node retries the turn
        if isinstance(error, LeaseLost | NodeReaped | StoreError):
            await asyncio.sleep(ELSEWHERE_SECONDS)
            return True
        attempts = batch.messages[0].attempts + 1
        if (
            outcome.status is TurnStatus.FAILED
            and isinstance(error, ModelError)
            and attempts < MODEL_ATTEMPTS
        ):
            await self._store.postpone_messages(claim, batch, pause_after(attempts), str(error))
            return True
        if shown is not None:
            await self._store.stop_growing(claim, shown.delivery_id, f"{shown.text}\n\n{STOPPED}")
        if outcome.status is TurnStatus.FAILED:
            await self._give_up(claim, batch, error)
        else:
            await self._store.settle_messages(claim, batch)
        return True

    async def _give_up(self, claim: ConnectorClaim, batch: Batch, error: HoldfastError) -> None:
        log.warning("connector %s: a message of %s was not answered: %s", self.name, batch.place.owner, error)
        said = GIVEN_UP.format(why=error.public.rstrip("."))
        with suppress(NotFound):  # then no turn has the message, and /retry would answer the one before it
            await self._hf.turn(None, batch.turn_id)
            said += KEPT
        await self._store.settle_messages(claim, batch, said, error.public)

    async def _follow(
        self, claim: ConnectorClaim, batch: Batch, running: RunningTurn, renderer: TextRenderer
    ) -> _Shown | None:
        """Show typing, and the reply while it grows, until the turn ends. Returns the delivery's id and
        the text shown last, if any was."""
        limits, address = self.connector.limits, batch.place.address
        reply_to = batch.messages[-1].platform_id
        growing: Outgoing | None = None
        text = ""
        loop = asyncio.get_running_loop()
        next_edit, next_typing = loop.time() + limits.edit_seconds, loop.time()
        while running.outcome is None:
            if limits.can_type and loop.time() >= next_typing:
                next_typing = loop.time() + TYPING_SECONDS
                with suppress(SendFailed, SendRefused):
                    await self.connector.typing(address)
            if (
                limits.can_edit
                and loop.time() >= next_edit
                and renderer.text.strip()
                and renderer.text != text
            ):
                next_edit = loop.time() + limits.edit_seconds
                if growing is None:
                    growing = await self._store.grow_delivery(claim, batch.place, running.turn.id, reply_to)
                    if growing is None:  # it is whole, or waits for an earlier message of the place
                        await running.ended(limits.edit_seconds)
                        continue
                text = renderer.text
                try:
                    async with self._outbox.lock(address):
                        if running.outcome is None:
                            growing = replace(growing, parts=await self._outbox.show(claim, growing, text))
                except SendFailed as failure:
                    pause = failure.retry_after or timedelta(seconds=5)
                    noted = await self._store.grow_delivery(claim, batch.place, running.turn.id, reply_to)
                    growing = noted or growing  # with what was recorded before it was sent
                    next_edit = loop.time() + max(limits.edit_seconds, pause.total_seconds())
                except SendRefused:
                    next_edit = float("inf")
            await running.ended(
                min(limits.edit_seconds if limits.can_edit else TYPING_SECONDS, TYPING_SECONDS)
            )
        return None if growing is None else _Shown(growing.id, text or renderer.text)

    # --- sending --------------------------------------------------------------------------------------

    async def send_once(self) -> int:
        """Send what is due, at most one message of each place; returns how many were tried. What an earlier
        call could not record as sent or failed, because the store was unavailable, is sent again."""
        claim, store = self._claim, self._store
        if claim is None:
            await asyncio.sleep(LOOK_SECONDS / 4)
            return 0
        version = store.version()
        due_at = await store.next_delivery(self.name)
        if due_at is None or due_at > store.now():
            await store.changed(version, _until(due_at, store.now()))
            return 0
        try:
            claimed = await store.claim_deliveries(claim, anew=True)
            sends = (self._outbox.send(claim, each) for each in claimed)
            for outcome in await asyncio.gather(*sends, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome  # after all of them have ended: none is sent twice at the same time
        except ConnectorLost:
            self._lost(claim)
            return 0
        if not claimed:  # what is due waits for something before it in the same place
            await store.changed(version, LOOK_SECONDS)
        return len(claimed)


class _ClaimedSink:
    """What a connector's `run` puts its messages into, under one claim."""

    def __init__(self, worker: ConnectorWorker, claim: ConnectorClaim) -> None:
        self._worker = worker
        self._claim = claim
        self.cursor = claim.cursor

    async def receive(self, events: Sequence[Incoming], cursor: str | None = None) -> None:
        await self._worker.receive(events, cursor, self._claim)
        self.cursor = cursor or self.cursor
        await self._worker.note_up(self._claim)

    async def up(self) -> None:
        await self._worker.note_up(self._claim)


class Connectors:
    """The connectors of the settings on this node."""

    def __init__(self, workers: Mapping[str, ConnectorWorker]) -> None:
        self.workers = workers

    def start(self) -> None:
        for worker in self.workers.values():
            worker.start()

    def drain(self) -> None:
        """Begin no further turn: the server stops."""
        for worker in self.workers.values():
            worker.drain()

    async def stop(self) -> None:
        await asyncio.gather(*(worker.stop() for worker in self.workers.values()))

    def require(self, kind: str, name: str) -> ConnectorWorker:
        """The connector of this kind and name. Raises NotFound."""
        worker = self.workers.get(name)
        if worker is None or worker.settings.kind != kind:
            raise NotFound("connector", name)
        return worker

    async def pushed(self, kind: str, name: str, headers: Mapping[str, str], body: bytes) -> int:
        """Store what a platform has pushed to this node; returns how many messages were new. Raises
        NotFound and WrongSignature, having stored nothing."""
        worker = self.require(kind, name)
        return await worker.receive(await worker.connector.accept(headers, body))


def _message(place: Place, content: str | Sequence[Any], name: str) -> NewMessage:
    """A person's message. In a group it says who wrote it."""
    value: dict[str, Any] = {"role": "user", "content": content or "(empty message)"}
    if place.kind is PlaceKind.GROUP and (short := _NAME_IN_GROUP.sub("_", name)[:64].strip("_")):
        value["name"] = short
    return new_message(value)


def _until(due_at: datetime | None, now: datetime) -> float:
    return LOOK_SECONDS if due_at is None else min(LOOK_SECONDS, max(0.0, (due_at - now).total_seconds()))
