"""From a request to a turn: where it belongs, then its lease, then the model; asked again if it has moved."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from ...domain.messages import instruction
from ...domain.turns import TurnOutdated, TurnRepeated
from ...errors import ConversationBusy
from ...runtime.continuity import Placed
from ...runtime.running_turn import RunningTurn
from ...runtime.turn_runner import Order
from .call import Call
from .naming import Naming

MOST_TRIES = 100


async def ask(
    call: Call, order: Order, place: Callable[[], Awaitable[Placed]], naming: Naming
) -> RunningTurn | TurnRepeated:
    """Begin the turn, join it, or find that it has been answered. `place` says where it belongs."""
    services = call.services
    prompt = services.settings.agent.system_prompt
    if prompt:
        order = replace(order, instructions=(instruction(prompt), *order.instructions))
    wait_seconds = services.settings.server.busy_wait_seconds
    for _ in range(MOST_TRIES):
        placed = await place()
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
