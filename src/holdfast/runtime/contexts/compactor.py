"""Compacts contexts: replaces a part of a conversation by a summary that a model writes, within a timeout.

`Summariser` returns a summary or raises NoSummary with a one-word reason; there are no partial results. A
transcript that is too long for the model is shortened and retried once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

from ...domain.compaction import (
    Claim,
    ClaimRefused,
    ClientCompaction,
    Compacted,
    CompactionFailure,
    CompactionOutdated,
    CompactionStats,
    CompactionWaits,
    ContextOutline,
    Entry,
    KeepPolicy,
    NothingToGain,
    Plan,
    Report,
    SummarySpan,
    Trigger,
    allowed,
    entries_of,
    left_out,
    plan,
    shown_entries,
    shrinks,
    summary_in,
    summary_request,
    total_weight,
    transcript_within,
)
from ...domain.context_size import Budget, Growth, Size, TokenEstimator
from ...domain.sessions import Session
from ...domain.turns import Lease
from ...domain.views import View, spans
from ...errors import ConversationBusy, HoldfastError, ModelError, NotCompacted, StoreClosed
from ...models.base import LARGE_BYTES, Model, ModelRequest, Purpose
from ...models.effective_window import WindowSettings
from ...models.known_windows import Windows, is_known
from ...models.refusals import is_too_long, limit_said
from ...models.reply import ReplyFolder
from ...store.store import Store
from ..agents.heartbeat import Heartbeat
from ..shutdown import finished, through
from ..turns.gate import TurnGate

log = logging.getLogger(__name__)

SHARE = 0.8
"""Share of the window for the transcript; the rest is for the prompt and the answer."""


class NoSummary(HoldfastError):
    """There is no summary. `failure` is the one-word reason; the text is the model's error."""

    def __init__(self, failure: CompactionFailure, said: str, public: str | None = None) -> None:
        super().__init__(said, public=public)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """A request for one summary."""

    gap: SummarySpan
    scale: TokenEstimator
    allowed: int
    """Maximum tokens of the summary."""
    model: str | None
    window: int
    instructions: str = ""
    """Further instructions, by the client."""


@dataclass(frozen=True, slots=True)
class Summarised:
    """A summary, and the usage that the model reported for it."""

    text: str
    usage: Mapping[str, Any] | None


class Summariser:
    def __init__(self, model: Model, prompt: str, timeout_seconds: float) -> None:
        self._model = model
        self._prompt = prompt
        self._timeout_seconds = timeout_seconds

    async def summary(self, wanted: SummaryRequest) -> Summarised:
        """Return the summary. Raises NoSummary on timeout, failure or an empty answer."""
        room = max(1, int(wanted.window * SHARE) - wanted.allowed)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                try:
                    found = await self._ask(wanted, room)
                except ModelError as refusal:
                    if not is_too_long(refusal):
                        raise
                    limit = limit_said(refusal) or wanted.window
                    found = await self._ask(wanted, max(1, min(room, int(limit * SHARE)) // 2))
        except TimeoutError:
            said = f"the summary took longer than {self._timeout_seconds:g} s"
            raise NoSummary(CompactionFailure.SUMMARY_TIMED_OUT, said) from None
        except ModelError as error:
            raise NoSummary(CompactionFailure.SUMMARY_FAILED, str(error), error.public) from error
        if not found.text:
            raise NoSummary(CompactionFailure.SUMMARY_EMPTY, "the model's summary was empty")
        return found

    async def _ask(self, wanted: SummaryRequest, room: int) -> Summarised:
        entries = wanted.gap.entries
        transcript = await off_loop(entries, lambda: transcript_within(entries, wanted.scale.tokens, room))
        messages = summary_request(self._prompt, wanted.allowed, transcript, wanted.instructions)
        folder = ReplyFolder()
        async for chunk in self._model.stream(ModelRequest(messages, wanted.model, Purpose.SUMMARY)):
            folder.add(chunk)
        reply = folder.reply()
        if reply.finish_reason is None:
            raise ModelError("the summary was cut off")
        return Summarised(summary_in(reply.message.get("content")), reply.usage)


BUSY_SECONDS = 600.0
"""How long a background compaction waits for a gap between turns."""
BY_HAND_SHARE = 0.8
"""A manual compaction leaves at most this share of the context, if possible."""
MOST_REPORTS = 1000
MANY_ENTRIES = 1000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CompactionRules:
    threshold: float
    keep: KeepPolicy
    summary_seconds: float
    model: str = ""
    prompt: str = ""


@dataclass(frozen=True, slots=True)
class _CompactionJob:
    """One compaction to do."""

    session_id: str
    why: Trigger
    budget: Budget
    lease: Lease | None = None
    must: bool = False
    """True: the context does not fit, so messages have to leave it."""
    busy_seconds: float = BUSY_SECONDS


class _Unmade(HoldfastError):
    """The compaction was not done. `failure` is the one-word reason; the text is for people."""

    def __init__(self, failure: CompactionFailure, said: str, public: str | None = None) -> None:
        super().__init__(said, public=public)
        self.failure = failure


class Compactor:
    """Runs all compactions of this node."""

    def __init__(
        self,
        store: Store,
        heartbeat: Heartbeat,
        gate: TurnGate,
        model: Model,
        settings: WindowSettings,
        rules: CompactionRules,
    ) -> None:
        self._store = store
        self._heartbeat = heartbeat
        self._gate = gate
        self._name = settings.name
        self._rules = rules
        self._summariser = Summariser(model, rules.prompt, rules.summary_seconds)
        self._background: dict[str, asyncio.Task[None]] = {}
        self._compacting: set[str] = set()
        self._closed = False
        self._reports: OrderedDict[str, Report] = OrderedDict()
        self._growths: OrderedDict[str, tuple[Growth, str, str | None]] = OrderedDict()
        self.windows = Windows(model, settings)

    @property
    def threshold(self) -> float:
        return self._rules.threshold

    def is_compacting(self, conversation_id: str) -> bool:
        """True while a context of this conversation is being summarised here."""
        return conversation_id in self._compacting

    @property
    def compacting(self) -> frozenset[str]:
        """The conversations whose context is being summarised here."""
        return frozenset(self._compacting)

    # --- token reports -----------------------------------------------------------------------------

    def note(self, conversation_id: str, report: Report) -> None:
        """Cache a model's latest token report; on disk it is stored with its turn."""
        self._reports[conversation_id] = report
        self._reports.move_to_end(conversation_id)
        while len(self._reports) > MOST_REPORTS:
            self._reports.popitem(last=False)

    async def report(self, conversation_id: str) -> Report | None:
        """The latest token report of this conversation."""
        return self._reports.get(conversation_id) or await self._store.report(conversation_id)

    def cut_from(self, conversation_id: str, now: Report) -> Growth | None:
        """If several token reports show that the upstream truncates its input: those reports."""
        before, *of = self._growths.get(conversation_id, (None, "", None))
        if before is None or of != [now.session_id, now.model]:
            growth = Growth(now.measured)
        else:
            growth = before.followed_by(now.measured)
        self._growths[conversation_id] = growth, now.session_id, now.model
        self._growths.move_to_end(conversation_id)
        while len(self._growths) > MOST_REPORTS:
            self._growths.popitem(last=False)
        return growth if growth.is_cut else None

    async def explain(self, session: Session, model: str | None, growth: Growth, budget: Budget) -> None:
        """Log, and record in an event, that this model's window is now derived from its token reports."""
        reported, reports = growth.base.tokens, growth.flat
        log.warning(
            "the model %s seems to truncate its input at %d tokens; assuming a window of %d. Set "
            "model.context_window or model.windows to the real size",
            model or "by default", reported, budget.window,
        )  # fmt: skip
        await self._store.note_suspected_window(
            session, model, reported=reported, given=budget.tokens, reports=reports, window=budget.window
        )

    # --- triggers ----------------------------------------------------------------------------------

    def start_in_background(self, session: Session, why: Trigger, budget: Budget) -> None:
        """Compact this session in the background. One at a time for each conversation."""
        if self._closed or session.conversation_id in self._background:
            return
        # An empty context: the task must not inherit `own_turns` of the turn that starts it, or waiting for
        # that turn would count as waiting for itself.
        task = asyncio.get_running_loop().create_task(
            self._run_in_background(_CompactionJob(session.id, why, budget)),
            name=f"compacting {session.id}",
            context=Context(),
        )
        self._background[session.conversation_id] = task
        task.add_done_callback(lambda _: self._background.pop(session.conversation_id, None))

    async def under(
        self, lease: Lease, session: Session, why: Trigger, budget: Budget, *, must: bool
    ) -> Compacted | None:
        """Compact the context of a turn, which waits for it. None: it is unchanged."""
        job = _CompactionJob(session.id, why, budget, lease, must)
        try:
            return await self._compact(job)
        except (_Unmade, NotCompacted) as unmade:
            log.warning("the context of %s is unchanged: %s", session.id, unmade)
            return None

    async def by_hand(self, session: Session, busy_seconds: float) -> Session:
        """Compact this session now, however small it is; returns the session that continues it.

        NotCompacted: it is not open, another compaction holds the claim, or there is nothing to gain.
        ModelError: there is no summary. ConversationBusy: a turn held it for too long. Nothing has changed
        then.
        """
        window = await self.windows.of(session.model, session.owner)
        outline = await self._store.outline(None, session.id)
        tokens = _scale(outline).total(await _weight(outline))
        budget = Budget(tokens, window.tokens, self._rules.threshold)
        job = _CompactionJob(session.id, Trigger.BY_HAND, budget, busy_seconds=busy_seconds)
        try:
            return (await self._compact(job)).session
        except _Unmade as unmade:
            said = f"session {session.id} was not compacted: {unmade}"
            public = f"session {session.id} was not compacted: {unmade.public}"
            match unmade.failure:
                case CompactionFailure.BUSY:
                    raise ConversationBusy(session.conversation_id) from unmade
                case CompactionFailure.NOTHING_TO_GAIN | CompactionFailure.OUTDATED:
                    raise NotCompacted(said) from unmade
                case CompactionFailure.SUMMARY_TIMED_OUT:
                    raise ModelError(said, 504, public=public) from unmade
                case _:
                    raise ModelError(said, public=public) from unmade

    async def adopt(self, lease: Lease, wanted: ClientCompaction) -> Compacted | None:
        """Compact the context of a turn as its client has compacted its own history, of which the turn has
        stored the summary. None: it was not done, and nothing has changed."""
        session_id, view = wanted.session_id, wanted.view
        try:
            outline = await self._store.outline(None, session_id)
            scale = _scale(outline)
            before = scale.tokens(await _weight(outline))
            kept = shown_entries(outline.entries, spans(view.parts, outline.session.last_seq))
            after = scale.tokens(await off_loop(kept, lambda: total_weight(kept)))
            facts = CompactionStats(Trigger.CLIENT, before, after, wanted.messages)
            window = await self.windows.of(outline.session.model, outline.session.owner)
            budget = Budget(before, window.tokens, self._rules.threshold)
            job = _CompactionJob(session_id, Trigger.CLIENT, budget, lease)
            claim = await self._claimed(job)
        except NotCompacted as refused:
            log.info("the client's own compaction was not applied to %s: %s", session_id, refused)
            return None
        try:
            return await self._swapped(job, claim, view, outline.revision, facts)
        except _Unmade as unmade:
            await self._give_up(job, claim, unmade.failure)
            log.info("the client's own compaction was not applied to %s: %s", session_id, unmade)
            return None
        except BaseException:
            await through(self._give_up(job, claim, CompactionFailure.STOPPED))
            raise

    async def summarise(
        self, messages: Sequence[Mapping[str, Any]], model: str | None, instructions: str = ""
    ) -> Summarised:
        """A summary of these messages, of which nothing is stored. Raises ModelError if there is none."""
        scale = TokenEstimator()
        name = self._rules.model or model
        window = await self.windows.of(name)
        entries = entries_of(messages)
        gap = SummarySpan(entries, sum(scale.tokens(entry.weight) for entry in entries))
        wanted = SummaryRequest(gap, scale, allowed(gap, window.tokens), name, window.tokens, instructions)
        try:
            return await self._summariser.summary(wanted)
        except NoSummary as none:
            if isinstance(none.__cause__, ModelError):
                raise none.__cause__ from None
            timed_out = none.failure is CompactionFailure.SUMMARY_TIMED_OUT
            raise ModelError(f"there is no summary: {none}", 504 if timed_out else None) from none

    async def close(self) -> None:
        """Cancel background compactions; they have changed nothing."""
        self._closed = True
        tasks = list(self._background.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.windows.close()

    async def settled(self) -> None:
        """Wait for background compactions."""
        await asyncio.gather(*self._background.values(), return_exceptions=True)

    async def _run_in_background(self, job: _CompactionJob) -> None:
        try:
            await self._compact(job)
        except _Unmade as unmade:
            level = logging.INFO if unmade.failure.is_nobodys_fault else logging.WARNING
            log.log(level, "the context of %s is unchanged: %s", job.session_id, unmade)
        except NotCompacted as refused:
            log.debug("%s is not compacted: %s", job.session_id, refused)
        except StoreClosed:
            return
        except HoldfastError as error:
            log.warning("%s could not be compacted: %s", job.session_id, error)
        except Exception:  # a background task: a failure would go unnoticed
            log.exception("compacting %s failed with an unexpected error", job.session_id)

    # --- steps -------------------------------------------------------------------------------------

    async def _compact(self, job: _CompactionJob) -> Compacted:
        claim = await self._claimed(job)
        self._compacting.add(claim.conversation_id)
        try:
            return await self._carried_out(job, claim)
        except asyncio.CancelledError:
            await through(self._give_up(job, claim, CompactionFailure.STOPPED))
            raise
        except _Unmade as unmade:
            await self._give_up(job, claim, unmade.failure)
            raise
        except Exception:
            with suppress(HoldfastError):  # raise the first error; the claim expires by itself
                await self._give_up(job, claim, CompactionFailure.STOPPED)
            raise
        finally:
            self._compacting.discard(claim.conversation_id)

    async def _give_up(self, job: _CompactionJob, claim: Claim, failure: CompactionFailure) -> None:
        turn_id = job.lease.turn_id if job.lease else None
        await self._store.give_up_compaction(claim, failure, job.why, turn_id=turn_id)

    async def _claimed(self, job: _CompactionJob) -> Claim:
        span = timedelta(seconds=2 * self._rules.summary_seconds + job.busy_seconds + 60)
        claiming = asyncio.ensure_future(
            self._heartbeat.as_living(
                lambda: self._store.claim_compaction(
                    job.session_id,
                    job.lease.node_id if job.lease else self._heartbeat.node_id,
                    span,
                    why=job.why,
                    tokens=job.budget.tokens,
                    window=job.budget.window,
                    lease=job.lease,
                )
            )
        )
        try:
            found = await asyncio.shield(claiming)
        except asyncio.CancelledError:
            await through(self._unclaim(job, claiming))
            raise
        if isinstance(found, ClaimRefused):
            until = f", not before {found.until:%H:%M:%S} UTC" if found.until else ""
            raise NotCompacted(f"{found.reason}{until}")
        return found

    async def _unclaim(self, job: _CompactionJob, claiming: asyncio.Future[Claim | ClaimRefused]) -> None:
        """Release a claim whose caller was cancelled while it was made."""
        with suppress(HoldfastError):  # there is none, or it expires by itself
            found = await claiming
            if isinstance(found, Claim):
                await self._give_up(job, found, CompactionFailure.STOPPED)

    async def _carried_out(self, job: _CompactionJob, claim: Claim) -> Compacted:
        outline = await self._store.outline(None, job.session_id)
        scale = _scale(outline)
        tokens = scale.tokens(await _weight(outline))
        others = max(0, job.budget.tokens - tokens)  # instructions and tools
        target = max(1, job.budget.target - others)
        if job.why is Trigger.BY_HAND:  # manual: compact a good part, whatever the window
            target = int(tokens * BY_HAND_SHARE)
        found = await off_loop(
            outline.entries,
            lambda: plan(
                outline.entries,
                self._rules.keep,
                scale.tokens,
                target,
                last_seq=outline.session.last_seq,
                open_part=outline.open_part,
            ),
        )
        if isinstance(found, NothingToGain):
            raise _Unmade(CompactionFailure.NOTHING_TO_GAIN, found.reason)
        texts, failure = await self._texts(job, claim, found, outline, scale)
        shorter, after = shrinks(found, texts, scale.tokens)
        if not shorter and failure is None and job.must:
            texts, failure = [left_out(gap) for gap in found.gaps], CompactionFailure.SUMMARY_TOO_LONG
            shorter, after = shrinks(found, texts, scale.tokens)
        if not shorter:
            said = f"{found.before} tokens would have become {after}"
            raise _Unmade(failure or CompactionFailure.SUMMARY_TOO_LONG, f"the summary is too long: {said}")
        facts = CompactionStats(job.why, job.budget.tokens, others + after, found.summarised, failure)
        return await self._swap(job, claim, found, texts, outline, facts)

    async def _texts(
        self, job: _CompactionJob, claim: Claim, found: Plan, outline: ContextOutline, scale: TokenEstimator
    ) -> tuple[list[str], CompactionFailure | None]:
        """The summaries. If there are none and the context must shrink: placeholder texts and the reason."""
        if claim.cooling and job.why is not Trigger.BY_HAND:
            return self._without(
                job, found, NoSummary(CompactionFailure.COOLING_DOWN, "earlier ones have failed")
            )
        name = self._rules.model or self._name or outline.session.model
        window = await self.windows.of(name, outline.session.owner)
        if not self._rules.model and not is_known(window):  # the same model: assume no less than for its turn
            window = replace(window, tokens=max(window.tokens, job.budget.window))
        room = min(job.budget.target, window.tokens)
        texts = []
        try:
            for gap in found.gaps:
                wanted = SummaryRequest(gap, scale, allowed(gap, room), name, window.tokens)
                texts.append((await self._summariser.summary(wanted)).text)
        except NoSummary as none:
            return self._without(job, found, none)
        return texts, None

    def _without(
        self, job: _CompactionJob, found: Plan, none: NoSummary
    ) -> tuple[list[str], CompactionFailure]:
        if not job.must:
            raise _Unmade(none.failure, str(none), none.public) from none
        log.warning("%s loses its oldest messages without a summary: %s", job.session_id, none)
        return [left_out(gap) for gap in found.gaps], none.failure

    async def _swap(
        self,
        job: _CompactionJob,
        claim: Claim,
        found: Plan,
        texts: list[str],
        outline: ContextOutline,
        facts: CompactionStats,
    ) -> Compacted:
        return await self._swapped(job, claim, found.view(texts), outline.revision, facts)

    async def _swapped(
        self, job: _CompactionJob, claim: Claim, view: View, revision: int, facts: CompactionStats
    ) -> Compacted:
        async def swap() -> Compacted:
            # Once the write is started, its outcome must be known, even if the task is cancelled.
            outcome = await finished(self._store.compact(claim, view, revision, facts, lease=job.lease))
            if isinstance(outcome, CompactionWaits):
                raise ConversationBusy(outcome.conversation_id, outcome.holder, outcome.turn_id)
            if isinstance(outcome, CompactionOutdated):
                raise _Unmade(CompactionFailure.OUTDATED, outcome.reason)
            return outcome

        try:
            done = await self._gate.when_free(swap, job.busy_seconds)
        except ConversationBusy as busy:
            raise _Unmade(CompactionFailure.BUSY, str(busy)) from busy
        log.info(
            "conversation %s continues in %s: %d messages became a summary, %d tokens became %d",
            claim.conversation_id, done.session.id, facts.messages, facts.tokens_before, facts.tokens_after,
        )  # fmt: skip
        return done


def _scale(outline: ContextOutline) -> TokenEstimator:
    report = outline.report
    if report is None:
        return TokenEstimator()
    return TokenEstimator(report.measured, same_context=report.session_id == outline.session.id)


async def _weight(outline: ContextOutline) -> Size:
    return await off_loop(outline.entries, lambda: total_weight(outline.entries))


async def off_loop(entries: Sequence[Entry], work: Callable[[], T]) -> T:
    """What `work` on these entries returns; in a thread if they are many or large. Hundreds of MiB take
    seconds, and on the event loop no other request would be answered meanwhile."""
    size = sum(len(body) for entry in entries[:MANY_ENTRIES] for body in entry.bodies)
    return await asyncio.to_thread(work) if len(entries) > MANY_ENTRIES or size > LARGE_BYTES else work()
