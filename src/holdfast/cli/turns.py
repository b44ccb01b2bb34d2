"""`holdfast turns list|retry|give-up`: running turns, and turns that wait to be retried by a server."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import Conflict
from ..server import objects
from . import session_views
from .context import AsJson, CommandContext, command
from .format import note, print_json, say
from .groups import turns

BY_HAND = "Given up by hand."

TurnId = Annotated[str, typer.Argument(metavar="ID", help="The turn's id, as the list shows it.")]


@command(turns, "list")
async def list_(
    invocation: CommandContext,
    waiting: Annotated[bool, typer.Option("--waiting", help="Only turns that wait for a retry.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List running, waiting and queued turns.

    A turn whose server died or was stopped, or that the model refuses for now, waits until a server retries
    it ([turns] recover). The list shows the reason, and which attempt comes next.

    \b
    Examples:
      holdfast turns
      holdfast turns list --waiting --json
    """
    async with invocation.reading(quiet=as_json) as opened:
        found = []
        if opened is not None:
            found = list(await opened.hf.waiting_turns(opened.owner, limit=limit))
            if not waiting:
                running = await opened.hf.running_turns(opened.owner, limit=limit)
                queued = await opened.hf.queued_turns(opened.owner, limit=limit)
                found = [*running, *found, *queued][:limit]
        most = invocation.settings.turns.max_attempts
        if as_json:
            print_json(objects.listed([objects.turn(each, most_attempts=most) for each in found]))
        elif opened is None or not found:
            note("no turn is waiting" if waiting else "no turn is running, waiting or queued")
        else:
            session_views.show_turns(found, opened.hf.now(), most)


@command(turns, "retry")
async def retry(invocation: CommandContext, turn_id: TurnId, as_json: AsJson = False) -> None:
    """Retry a waiting turn now.

    The turn must be the newest of its conversation and interrupted or failed, or waiting. The model
    gets its original request, which is kept for a day.

    \b
    Example:
      holdfast turns retry turn_0a1b2c3d
    """
    async with invocation.existing(quiet=as_json) as opened:
        turn = await opened.hf.retry_turn(opened.owner, await opened.full_id(turn_id))
        if as_json:
            print_json(objects.turn(turn, most_attempts=invocation.settings.turns.max_attempts))
            return
        say(f"{turn.id} is due: a server retries it at its next check.")
        if not any(node.kind.value == "server" for node in await opened.hf.nodes()):
            note("no server is running on this store now")


@command(turns, "give-up")
async def give_up(invocation: CommandContext, turn_id: TurnId, as_json: AsJson = False) -> None:
    """End a waiting turn as failed; its conversation is free.

    \b
    Example:
      holdfast turns give-up turn_0a1b2c3d
    """
    async with invocation.existing(quiet=as_json) as opened:
        turn = await opened.hf.turn(opened.owner, await opened.full_id(turn_id))
        if not await opened.hf.give_up_turn(turn.id, BY_HAND):
            raise Conflict(f"turn {turn.id} is {turn.shown_status.value} and does not wait for a retry")
        if as_json:
            print_json(objects.turn(await opened.hf.turn(opened.owner, turn.id)))
        else:
            say(f"{turn.id} was given up.")
