"""Asks a model for the summary of a part of a conversation, within a time.

It either returns a summary or says in one word why there is none: nothing is guessed and nothing is half
done. A transcript that turns out to be too long for the model is shortened and tried once more.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from ..domain.budgets import Scale
from ..domain.compaction import Failure, Gap
from ..domain.summaries import summary_in, summary_request, transcript_within
from ..errors import HoldfastError, ModelError
from ..models.base import Model, ModelRequest, Purpose
from ..models.refusals import is_too_long, limit_said
from ..models.reply import ReplyFolder

log = logging.getLogger(__name__)

SHARE = 0.8
"""Of the window; the rest is for the question and the answer."""


class NoSummary(HoldfastError):
    """There is no summary: in one word, and in the model's own words."""

    def __init__(self, failure: Failure, said: str) -> None:
        super().__init__(said)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Wanted:
    """A summary that is wanted."""

    gap: Gap
    scale: Scale
    allowed: int
    """Tokens it may have."""
    model: str | None
    window: int


class Summariser:
    def __init__(self, model: Model, prompt: str, timeout_seconds: float) -> None:
        self._model = model
        self._prompt = prompt
        self._timeout_seconds = timeout_seconds

    async def summary(self, wanted: Wanted) -> str:
        """NoSummary if it takes too long, fails, or says nothing."""
        room = max(1, int(wanted.window * SHARE) - wanted.allowed)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                try:
                    text = await self._ask(wanted, room)
                except ModelError as refusal:
                    if not is_too_long(refusal):
                        raise
                    limit = limit_said(refusal) or wanted.window
                    text = await self._ask(wanted, max(1, min(room, int(limit * SHARE)) // 2))
        except TimeoutError:
            said = f"the summary took longer than {self._timeout_seconds:g} s"
            raise NoSummary(Failure.SUMMARY_TIMED_OUT, said) from None
        except ModelError as error:
            raise NoSummary(Failure.SUMMARY_FAILED, str(error)) from error
        if not text:
            raise NoSummary(Failure.SUMMARY_EMPTY, "the model's summary was empty")
        return text

    async def _ask(self, wanted: Wanted, room: int) -> str:
        told = transcript_within(wanted.gap.entries, wanted.scale.tokens, room)
        messages = summary_request(self._prompt, wanted.allowed, told)
        folder = ReplyFolder()
        async for chunk in self._model.stream(ModelRequest(messages, wanted.model, Purpose.SUMMARY)):
            folder.add(chunk)
        reply = folder.reply()
        if reply.finish_reason is None:
            raise ModelError("the summary broke off before its end")
        return summary_in(reply.message.get("content"))
