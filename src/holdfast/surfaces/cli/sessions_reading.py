"""`holdfast sessions show|messages|turns|lineage`: one session or its conversation. Reading opens nothing."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from .invocation import AsJson, IdOrKey, Invocation, command
from .tree import sessions

if TYPE_CHECKING:
    from ...domain.messages import Message
    from ...domain.sessions import Session
    from ...store.base import Store


class Scope(StrEnum):
    SESSION = "session"
    CONVERSATION = "conversation"
    CONTEXT = "context"


@command(sessions, "show")
async def show(invocation: Invocation, id_or_key: IdOrKey, as_json: AsJson = False) -> None:
    """Show one session.

    That very session for its id, the newest one for a key or conversation.

    \b
    Examples:
      holdfast sessions show cli:ada
      holdfast sessions show sess_3f2a… --json
    """
    from ...runtime.states import flushes_of, states_of
    from .. import objects
    from ..readings import session_named
    from . import session_views
    from .output import Styled, print_json, say

    async with invocation.existing(quiet=as_json) as opened:
        session = await session_named(opened.store, opened.owner, id_or_key)
        states = await states_of(opened.store, [session])
        flush = (await flushes_of(opened.store, [session])).get(session.id)
        if as_json:
            everybody = invocation.of_everybody
            print_json(objects.session(session, states[session.id], flush, with_owner=everybody))
        else:
            session_views.show_one(session, states[session.id], opened.store.now(), flush)
            say(Styled(f"\n{_next_step(invocation, session)}", "dim"))


@command(sessions, "messages")
async def messages(
    invocation: Invocation,
    id_or_key: IdOrKey,
    scope: Annotated[
        Scope,
        typer.Option(help="This session's, the whole conversation's, or what the model would get."),
    ] = Scope.SESSION,
    as_json: AsJson = False,
) -> None:
    """Read what was said.

    \b
    Examples:
      holdfast sessions messages cli:ada
      holdfast sessions messages cli:ada --scope conversation
      holdfast sessions messages sess_3f2a… --scope context --json
    """
    from .. import objects
    from ..readings import session_named
    from . import message_views
    from .output import note, print_json

    async with invocation.existing(quiet=as_json) as opened:
        session = await session_named(opened.store, opened.owner, id_or_key)
        if scope.value == "context":
            context = (await opened.store.context(opened.owner, session.id)).messages()
            if as_json:
                print_json(objects.listed(context))
            else:
                message_views.show_context(context)
            shown = len(context)
        else:
            found = await _said(opened.store, opened.owner, session, scope.value)
            if as_json:
                print_json(objects.listed([objects.message(each) for each in found]))
            else:
                message_views.show_messages(found, opened.store.now())
            shown = len(found)
        if not shown and not as_json:
            note("nothing was said yet")


@command(sessions, "turns")
async def turns(
    invocation: Invocation,
    id_or_key: IdOrKey,
    after: Annotated[str | None, typer.Option(metavar="TURN", help="The page behind this turn.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List turns, newest first.

    Those of a session for its id, those of a whole conversation for a key.

    \b
    Example:
      holdfast sessions turns cli:ada
    """
    from .. import objects
    from ..readings import place_of
    from . import session_views
    from .output import note, print_json

    async with invocation.existing(quiet=as_json) as opened:
        place = await place_of(opened.store, opened.owner, id_or_key)
        found = await opened.store.turns(
            opened.owner, place.conversation.id, session_id=place.addressed, after=after, limit=limit + 1
        )
        found, has_more = found[:limit], len(found) > limit
        if as_json:
            print_json(objects.listed([objects.turn(each) for each in found], has_more=has_more))
        elif found:
            session_views.show_turns(found, opened.store.now())
            if has_more:
                note(f"there are more: --after {found[-1].id}")
        else:
            note("no turn yet")


@command(sessions, "lineage")
async def lineage(invocation: Invocation, id_or_key: IdOrKey, as_json: AsJson = False) -> None:
    """Draw a conversation's line of sessions, and its forks.

    \b
    Example:
      holdfast sessions lineage cli:ada
    """
    from ...runtime.states import flushes_of, states_of
    from .. import objects
    from ..readings import lineage_of, place_of
    from .lineage_view import draw
    from .output import print_json, say

    async with invocation.existing(quiet=as_json) as opened:
        place = await place_of(opened.store, opened.owner, id_or_key)
        line = await lineage_of(opened.store, opened.owner, place.conversation.id)
        states = await states_of(opened.store, line)
        if as_json:
            print_json(objects.lineage(line, states, await flushes_of(opened.store, line)))
        else:
            for parts in draw(line, states, opened.store.now()):
                say(*parts)


def _next_step(invocation: Invocation, session: Session) -> str:
    if session.running_turn:
        return f"Stop what is running: {invocation.command('sessions', 'cancel', session.id)}"
    if session.tip_id != session.id:
        return f"Go back to it: {invocation.command('sessions', 'resume', session.id)}"
    return f"Go on with: {invocation.speaking(session.id, session.key, session.owner)}"


async def _said(store: Store, owner: str | None, session: Session, scope: str) -> list[Message]:
    whole = scope == "conversation"
    page = await store.messages(
        owner,
        session.conversation_id,
        first=1 if whole else session.first_seq,
        last=None if whole else session.last_seq,
    )
    return list(page.items)
