"""Points within a compaction at which a server process kills itself, if its environment says so.

HOLDFAST_TEST_KILL_AT=claimed     the compaction claim is committed, the model has not been called
HOLDFAST_TEST_KILL_AT=asking      the model is about to be called for the summary
HOLDFAST_TEST_KILL_AT=answered    the summary was received and not used yet
HOLDFAST_TEST_KILL_AT=ending      within the transaction: the parent has ended, there is no child yet
HOLDFAST_TEST_KILL_AT=opening     within the transaction: both are written, nothing is committed
HOLDFAST_TEST_KILL_AT=swapped     it is committed, and no subscriber was notified
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.domain.compaction import ClaimRefused, CompactionOutdated, CompactionWaits

NAME = "HOLDFAST_TEST_KILL_AT"
ALL = ("claimed", "asking", "answered", "ending", "opening", "swapped")


def install() -> None:
    """Put them into this process. They do nothing until the environment names one."""
    from holdfast.runtime.contexts.compactor import Summariser
    from holdfast.store import compaction
    from holdfast.store.store import Store

    Store.claim_compaction = _after(Store.claim_compaction, "claimed")
    Store.compact = _after(Store.compact, "swapped")
    Summariser.summary = _after(_before(Summariser.summary, "asking"), "answered")  # type: ignore[method-assign]
    for name, point in (("write_end", "ending"), ("continue_conversation", "opening")):
        setattr(compaction, name, _after_work(getattr(compaction, name), point))


def _die_at(point: str) -> None:
    if os.environ.get(NAME) == point:
        os.kill(os.getpid(), signal.SIGKILL)


def _before(act: Callable[..., Awaitable[Any]], point: str) -> Any:
    async def acts(*given: Any, **named: Any) -> Any:
        _die_at(point)
        return await act(*given, **named)

    return acts


def _after(act: Callable[..., Awaitable[Any]], point: str) -> Any:
    async def acts(*given: Any, **named: Any) -> Any:
        outcome = await act(*given, **named)
        if not isinstance(outcome, ClaimRefused | CompactionWaits | CompactionOutdated):
            _die_at(point)
        return outcome

    return acts


def _after_work(work: Callable[..., Any], point: str) -> Any:
    def works(*given: Any, **named: Any) -> Any:
        outcome = work(*given, **named)
        _die_at(point)
        return outcome

    return works
