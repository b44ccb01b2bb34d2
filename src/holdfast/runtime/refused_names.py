"""Deletes a turn whose model's name was refused, with the conversation that it had begun.

Its client waits and is told, so it asks again with another name, and nobody would continue the conversation.
Where anything else is in that conversation, or nobody can be told, the turn ends as failed like any other. So
it does once the headers of a stream have gone out: they acknowledge the message, with its ids.
"""

from __future__ import annotations

import logging

from ..domain.recovery import refuses_name
from ..errors import HoldfastError, ModelError
from ..store.store import Store
from .turns.live import RunningTurn, TurnSpec

log = logging.getLogger(__name__)


async def withdraw(
    store: Store, running: RunningTurn, order: TurnSpec, error: HoldfastError, *, spoke: bool
) -> bool:
    """True: nothing of the turn is stored any more. `spoke`: the model had begun to answer."""
    turn = running.turn
    is_first = turn.attempt == 1 and running.session.last_seq == len(order.request.messages)
    can_be_told = order.withdraws_refused and running.has_listener and not running.sent
    if not (is_first and can_be_told and isinstance(error, ModelError)):
        return False
    if not refuses_name(
        error.status,
        name=order.request.model,
        said=error.said or "",
        code=error.code,
        spoke=spoke,
        origin=turn.recovery.origin,
    ):
        return False
    running.withdrawing = True  # from here on no stream sends its headers; if it is gone, none ever does
    try:
        running.withdrawing = await store.withdraw_refused(running.lease)
    except HoldfastError as trouble:  # ending it as failed decides what becomes of it
        running.withdrawing = False
        log.warning("turn %s, whose model's name was refused, is kept: %s", turn.id, trouble)
    return running.withdrawing
