"""`holdfast sessions end|cancel|resume|fork|delete`: acting on a session by hand."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from .invocation import AsJson, IdOrKey, Invocation, command
from .tree import sessions

if TYPE_CHECKING:
    from ...domain.sessions import Session
    from ...store.base import Store


class Reason(StrEnum):
    CLOSED = "closed"
    COMPLETED = "completed"
    NEW = "new"


@command(sessions, "end")
async def end(
    invocation: Invocation,
    id_or_key: IdOrKey,
    reason: Annotated[
        Reason, typer.Option(help="Why; after 'new' the next message begins afresh, else it goes on.")
    ] = Reason.CLOSED,
    as_json: AsJson = False,
) -> None:
    """End an open session.

    \b
    Examples:
      holdfast sessions end cli:ada
      holdfast sessions end cli:ada --reason new
    """
    from ..readings import session_going_on
    from .output import say

    async with invocation.existing(quiet=as_json) as opened:
        session = await session_going_on(opened.store, opened.owner, id_or_key)
        ended = await opened.store.end_session(opened.owner, session.id, reason.value)
        session = await opened.store.session(opened.owner, session.id)
        if as_json:
            await _print_session(opened.store, session)
        elif ended:
            say(f"{session.id} has ended: {session.end_reason}.")
        else:
            say(f"{session.id} had already ended: {session.end_reason}.")


@command(sessions, "cancel")
async def cancel(invocation: Invocation, id_or_key: IdOrKey, as_json: AsJson = False) -> None:
    """Stop the turn that is running; what it had said is kept.

    \b
    Example:
      holdfast sessions cancel cli:ada
    """
    from ...domain.turns import TurnStatus
    from .. import objects
    from ..readings import place_of
    from .output import print_json, say

    async with invocation.existing(quiet=as_json) as opened:
        if id_or_key.startswith("turn_"):
            turn_id: str | None = id_or_key
        else:
            turn_id = (await place_of(opened.store, opened.owner, id_or_key)).tip.running_turn
        stopped = turn_id is not None and await opened.store.cancel_turn(
            opened.owner, turn_id, TurnStatus.CANCELLED, "a person cancelled it"
        )
        turn = await opened.store.turn(opened.owner, turn_id) if turn_id else None
        if as_json:
            print_json(objects.turn(turn) if turn else None)
        elif stopped:
            say(f"{turn_id} was cancelled; what it had said is kept.")
        elif turn:
            say(f"{turn_id} was not running any more: {turn.status.value}.")
        else:
            say("No turn is running there.")


@command(sessions, "resume")
async def resume(invocation: Invocation, id_or_key: IdOrKey, as_json: AsJson = False) -> None:
    """Go on from an older session.

    Opens a new session, detached, that sees what that very session saw. If a newer one of the conversation
    is open, it ends as 'new'.

    \b
    Example:
      holdfast sessions resume sess_3f2a…
    """
    from ..readings import session_named
    from .output import say

    async with invocation.node(existing=True, quiet=as_json) as node:
        session = await session_named(node.store, invocation.owner, id_or_key)
        resumed = await node.keeper.as_living(
            lambda: node.store.resume_session(session.owner, session.id, node.node_id)
        )
        if as_json:
            await _print_session(node.store, resumed)
        elif resumed.id == session.id:
            say(f"{session.id} is open already.")
        else:
            say(f"{resumed.id} goes on where {session.id} stood.")
        if not as_json:
            say(f"Speak to it with: {invocation.speaking(resumed.id, resumed.key, resumed.owner)}")


@command(sessions, "fork")
async def fork(
    invocation: Invocation,
    id_or_key: IdOrKey,
    up_to: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Only up to message number N.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="The new conversation's key.")] = None,
    as_json: AsJson = False,
) -> None:
    """Begin a new conversation with a copy of a session's context.

    The session itself stays as it is.

    \b
    Examples:
      holdfast sessions fork cli:ada --key cli:ada:experiment
      holdfast sessions fork sess_3f2a… --up-to 4
    """
    from ..readings import session_named
    from .output import say

    async with invocation.node(existing=True, quiet=as_json) as node:
        session = await session_named(node.store, invocation.owner, id_or_key)
        forked = await node.keeper.as_living(
            lambda: node.store.fork(session.owner, session.id, node.node_id, up_to=up_to, key=key)
        )
        if as_json:
            await _print_session(node.store, forked)
        else:
            say(f"{forked.id} in {forked.conversation_id} begins as a copy of {session.id}.")
            say(f"Speak to it with: {invocation.speaking(forked.id, forked.key, forked.owner)}")


@command(sessions, "delete")
async def delete(
    invocation: Invocation,
    id_or_key: IdOrKey,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Delete a whole conversation, for good.

    The one the session belongs to, with every session and message in it; a running turn is cancelled.

    \b
    Examples:
      holdfast sessions delete cli:ada
      holdfast sessions delete conv_9c41… --yes
    """
    from ..readings import place_of
    from .output import complain, say
    from .words import count

    async with invocation.existing() as opened:
        place = await place_of(opened.store, opened.owner, id_or_key)
        conversation = place.conversation
        line = await opened.store.line(opened.owner, conversation.id)
        name = f"{conversation.id} ({conversation.key})" if conversation.key else conversation.id
        holds = f"{count(len(line), 'session')}, {count(conversation.last_seq, 'message')}"
        if not yes:
            if not sys.stdin.isatty():
                complain(f"this would delete {name} for good", "Say --yes to do so.")
                return 2
            if not typer.confirm(f"Delete {name}, {holds}, for good?"):
                say("Nothing was deleted.")
                return 1
        await opened.store.delete_conversation(opened.owner, conversation.id)
        say(f"{name} is deleted: {holds}.")
        return 0


async def _print_session(store: Store, session: Session) -> None:
    from ...runtime.states import flushes_of, states_of
    from .. import objects
    from .output import print_json

    states, flushes = await states_of(store, [session]), await flushes_of(store, [session])
    print_json(objects.session(session, states[session.id], flushes.get(session.id)))
