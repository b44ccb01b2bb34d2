"""Keeps one turn's context within the window of the model that answers it.

The context is compacted before the model is called if it would not fit, and once more if the model rejects it
as too long. The model's token report is stored with the turn. After the answer is on disk, a context over the
threshold is compacted in the background.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from ...domain.compaction import ClientCompaction, Compacted, Report, Trigger
from ...domain.context_size import Budget, Growth, Size, TokenEstimator, TokenReport, reserve_of
from ...domain.contexts import Context
from ...domain.sessions import Session
from ...domain.turns import Lease
from ...errors import ModelError
from ...models.effective_window import SMALLEST_WINDOW, Window, for_fixed_part
from ...models.known_windows import is_known
from ...models.refusals import is_too_long, limit_said
from .compactor import Compactor


class TurnLease(Protocol):
    """The running turn. Its lease and session change when its context is compacted."""

    @property
    def lease(self) -> Lease: ...

    @property
    def session(self) -> Session: ...

    def compacts(self) -> None:
        """Called before waiting for a summary."""
        ...

    def moved(self, done: Compacted) -> None:
        """Called when the turn continues in another session."""
        ...


class ContextFitter:
    def __init__(
        self, compactor: Compactor, holder: TurnLease, model: str | None, compact_at: int | None = None
    ) -> None:
        """`compact_at`: the request's own threshold in tokens."""
        self._compactor = compactor
        self._compact_at = compact_at
        self._holder = holder
        self._model = model
        self._window: Window | None = None
        """The window that the model was called with; None: not looked up, or another one since."""
        self._context = Size()
        self._extra = Size()
        self._reserve = 0
        self._session_id = ""
        self._cut: Growth | None = None
        self.measured: TokenReport | None = None
        """The model's token report for its last request."""

    async def ensure_fits(self, context: Context, extra: Size, options: Mapping[str, Any]) -> bool:
        """Compact the context if it would not fit together with `extra` (instructions and tools). True: it
        was compacted; read it again and pass it to `set_prompt`."""
        self.set_prompt(context, extra)
        if self._compact_at is not None and await self._compacts_at(self._compact_at):
            return True
        if (self._context + extra).most <= SMALLEST_WINDOW // 2:
            return False  # fits every window: no need to look up this one
        window = self._window = await self._find_window()
        self._reserve = reserve_of(options, window.tokens)
        if (self._context + extra).most + self._reserve <= window.tokens:
            return False
        budget = Budget(await self._tokens(), window.tokens, self._compactor.threshold, self._reserve)
        if budget.fits:
            return False
        # A token report alone never removes messages without a summary: our own estimate must agree.
        own = TokenEstimator().total(self._context, self._extra.bytes) + self._extra.parts
        must = is_known(window) and not replace(budget, tokens=own).fits
        return await self._compact(Trigger.NO_FIT, budget, must=must)

    async def adopt(self, wanted: ClientCompaction) -> bool:
        """Compact the context as the turn's client has compacted its own history. False: it is not possible
        now, and the context stays whole."""
        done = await self._compactor.adopt(self._holder.lease, wanted)
        if done is not None:
            self._holder.moved(done)
        return done is not None

    async def _compacts_at(self, threshold: int) -> bool:
        """Compact a context that is over the request's own threshold. True: it was compacted."""
        tokens = await self._tokens()
        if tokens <= threshold:
            return False
        window = await self._find_window()
        budget = Budget(tokens, window.tokens, min(1.0, threshold / window.tokens))
        return await self._compact(Trigger.THRESHOLD, budget, must=False)

    async def fits_after(self, refusal: ModelError) -> bool:
        """Compact after the model refused the request as too long. False: it refused for another reason, or
        nothing was compacted."""
        if not is_too_long(refusal):
            return False
        known = self._window or await self._find_window()
        tokens = await self._tokens()
        limit = limit_said(refusal)
        if limit is not None:
            self._compactor.windows.learn(self._model, limit, self._holder.session.owner)
            self._window = None  # another one from now on
        else:
            limit = min(known.tokens, tokens)
        # The request exceeded the limit, whatever our estimate says: scale the limit to the estimate's units.
        window = limit * tokens // max(tokens, limit + 1)
        budget = Budget(tokens, max(1, window), self._compactor.threshold, min(self._reserve, window // 2))
        return await self._compact(Trigger.REFUSED, budget, must=True)

    def record_usage(self, usage: Mapping[str, Any] | None) -> None:
        """Record the usage that the model reported with its answer."""
        reported = (usage or {}).get("prompt_tokens")
        sent = self._context + self._extra
        if not isinstance(reported, int) or isinstance(reported, bool) or reported <= 0 or not sent.bytes:
            self.measured = None
            return
        measured = TokenReport(reported, sent.bytes, self._extra.bytes, sent.parts)
        conversation_id = self._holder.session.conversation_id
        report = Report(measured, self._session_id, self._model)
        if not measured.is_plausible:
            self.measured, self._cut = None, None
            return
        self._cut = self._compactor.cut_from(conversation_id, report)
        if self._cut is not None:
            estimate = TokenEstimator(self._cut.base, same_context=True).total(
                self._context, self._extra.bytes
            )
            report = replace(report, measured=replace(measured, tokens=estimate))
        self.measured = report.measured
        self._compactor.note(conversation_id, report)

    async def compact_if_over_threshold(self, said: int) -> None:
        """Start a background compaction if the context, with an answer of `said` bytes, is over the
        threshold."""
        context = self._context + Size(said)
        if (context + self._extra).most <= SMALLEST_WINDOW * self._compactor.threshold:
            return
        suspects = self._cut is not None and self._compactor.windows.suspect(
            self._model, self._cut.base.tokens, self._holder.session.owner
        )
        scale = (
            await self._scale() if self.measured is None else TokenEstimator(self.measured, same_context=True)
        )
        tokens = scale.total(context, self._extra.bytes)
        if tokens <= SMALLEST_WINDOW * self._compactor.threshold:
            return
        window = await self._find_window() if suspects or self._window is None else self._window
        budget = Budget(tokens, window.tokens, self._compactor.threshold, self._reserve)
        if budget.past_threshold:
            why = Trigger.CUT if self._cut else Trigger.THRESHOLD
            self._compactor.start_in_background(self._holder.session, why, budget)
        if suspects and self._cut is not None:
            await self._compactor.explain(self._holder.session, self._model, self._cut, budget)

    async def _compact(self, why: Trigger, budget: Budget, *, must: bool) -> bool:
        self._holder.compacts()
        holder = self._holder
        done = await self._compactor.under(holder.lease, holder.session, why, budget, must=must)
        if done is None:
            return False
        holder.moved(done)
        return True

    def set_prompt(self, context: Context, extra: Size) -> None:
        """Record what the model is called with."""
        self._context, self._extra = context.weight(), extra
        self._session_id = self._holder.session.id

    async def _find_window(self) -> Window:
        window = await self._compactor.windows.of(self._model, self._holder.session.owner)
        return for_fixed_part(window, TokenEstimator().tokens(self._extra))

    async def _scale(self) -> TokenEstimator:
        report = await self._compactor.report(self._holder.session.conversation_id)
        if report is None:
            return TokenEstimator()
        return TokenEstimator(report.measured, same_context=report.session_id == self._session_id)

    async def _tokens(self) -> int:
        return (await self._scale()).total(self._context, self._extra.bytes) + self._extra.parts
