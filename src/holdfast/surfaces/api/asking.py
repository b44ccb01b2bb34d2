"""From a request to a turn: where it belongs, then its lease, then the model; asked again if it has moved."""

from __future__ import annotations

from dataclasses import replace

from ...domain.histories import History
from ...domain.turns import TurnOutdated, TurnRepeated
from ...errors import ConversationBusy
from ...runtime.running_turn import RunningTurn
from ...runtime.turn_runner import Order
from .call import Call
from .naming import Naming

MOST_TRIES = 100


async def ask(call: Call, order: Order, history: History, naming: Naming) -> RunningTurn | TurnRepeated:
    """Begin the turn, join it, or find that it has been answered."""
    services = call.services
    wait_seconds = services.settings.server.busy_wait_seconds
    for _ in range(MOST_TRIES):
        placed = await services.continuity.placed(order.request.owner, naming.address, history)
        attempt = replace(
            order, request=placed.applied_to(order.request), prints=placed.prints, history=placed.history
        )
        outcome = await services.runner.begin(attempt, wait_seconds, interrupt=naming.interrupts_others)
        if not isinstance(outcome, TurnOutdated):
            if naming.alias is not None and isinstance(outcome, RunningTurn):
                await services.store.add_alias(
                    order.request.owner, naming.alias, outcome.session.conversation_id
                )
            return outcome
    raise ConversationBusy(str(naming.address))
