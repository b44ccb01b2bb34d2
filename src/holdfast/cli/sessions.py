"""`holdfast sessions list|stats|search|show|messages|turns|lineage`: read-only; opens no session."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ..domain.figures import Statistics
from ..domain.headings import NO_HEADING
from ..domain.messages import Message
from ..domain.pages import SearchFilter, SessionFilter
from ..domain.sessions import Session, SessionState
from ..server import objects
from . import session_views
from . import session_views as message_views
from .context import AsJson, CommandContext, IdOrKey, command
from .format import Styled, note, print_json, say
from .groups import sessions
from .session_views import draw


@command(sessions, "list")
async def list_(
    invocation: CommandContext,
    state: Annotated[SessionState | None, typer.Option(help="Only sessions in this state.")] = None,
    source: Annotated[str | None, typer.Option(help="Only sessions from this source.")] = None,
    key: Annotated[str | None, typer.Option(help="Only sessions of this key.")] = None,
    words: Annotated[str | None, typer.Option("-q", help="A part of the title or key.")] = None,
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="Next page: sessions after this id.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 20,
    each: Annotated[
        bool, typer.Option("--each", help="Every session, also the older ones of a conversation.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List sessions, the most recently active first.

    One row for each conversation: its newest session. With --each, --key or --json: every session.

    \b
    Examples:
      holdfast sessions
      holdfast sessions list --state ended --source telegram --limit 50
      holdfast sessions --key cli:ada --json
    """

    async with invocation.reading(quiet=as_json) as opened:
        if opened is None:
            return _nothing(invocation, as_json)
        folded = not (each or key or as_json)
        wanted = SessionFilter(opened.owner, source=source, key=key, title=words, newest=folded)
        after = await opened.full_id(after) if after else None
        page, states = await opened.hf.sessions_with_states(wanted, state, after=after, limit=limit)
        everybody = invocation.of_everybody
        headings = {} if everybody else await opened.hf.headings_of(page.items)
        if as_json:
            flushes = await opened.hf.flushes_of(page.items)
            print_json(
                objects.sessions(
                    page.items,
                    states,
                    flushes,
                    has_more=page.has_more,
                    with_owner=everybody,
                    headings=headings,
                )
            )
        elif not page.items:
            filtered = any((state, source, key, words, after))
            note("no session matches" if filtered else "there is no session yet")
        else:
            session_views.show_list(
                page.items, states, opened.hf.now(), headings, with_owner=everybody, folded=folded
            )
            if page.has_more:
                note(f"there are more: --after {page.items[-1].id}")


@command(sessions, "stats")
async def stats(invocation: CommandContext, as_json: AsJson = False) -> None:
    """Count sessions: open, leaked, how they ended.

    A leaked session is open although its node is dead. A sweep ends those; one ran just before.

    \b
    Examples:
      holdfast sessions stats
      holdfast sessions stats --owner '*' --json
    """

    async with invocation.reading(quiet=as_json) as opened:
        if opened is None:
            numbers, leaked = Statistics(0, 0, 0, 0), 0
        else:
            numbers = await opened.hf.statistics(opened.owner)
            leaked = len(await opened.hf.leaked_sessions(opened.owner))
        if as_json:
            print_json(objects.statistics(numbers, leaked))
        else:
            if opened is None:
                note(f"there is no store yet at {invocation.location}")
            session_views.show_statistics(numbers, leaked)


@command(sessions, "search")
async def search(
    invocation: CommandContext,
    words: Annotated[list[str], typer.Argument(metavar="WORDS…", help="All of them; quotes keep a phrase.")],
    role: Annotated[
        str | None, typer.Option(help="Only messages of this role, such as user or assistant.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Only sessions of this source.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="DATE", help="Only messages since then, such as 2026-03-01.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Search messages that contain all these words.

    Each word is matched as a prefix: data finds database.

    \b
    Examples:
      holdfast sessions search lighthouse keeper
      holdfast sessions search '"my name is"' --json
      holdfast sessions search kelp --role user --since 2026-03-01
    """

    wanted = SearchFilter(role=role, source=source, since=invocation.date(since) if since else None)
    async with invocation.reading(quiet=as_json) as opened:
        if opened is None:
            return _nothing(invocation, as_json)
        found = await opened.hf.search_messages(opened.owner, " ".join(words), wanted=wanted, limit=limit + 1)
        found, has_more = found[:limit], len(found) > limit
        if as_json:
            print_json(objects.listed([objects.found(each) for each in found], has_more=has_more))
        elif found:
            message_views.show_found(found, opened.hf.now())
            if has_more:
                note(f"only the best {limit}; see more with --limit")
        else:
            note("nothing was found")


def _nothing(invocation: CommandContext, as_json: bool) -> None:

    if as_json:
        print_json(objects.listed([]))
    else:
        note(f"there is no store yet at {invocation.location}. `holdfast run` begins one")


if TYPE_CHECKING:
    from ..app import Holdfast


class MessageScopeOption(StrEnum):
    SESSION = "session"
    CONVERSATION = "conversation"
    CONTEXT = "context"


@command(sessions, "show")
async def show(invocation: CommandContext, id_or_key: IdOrKey, as_json: AsJson = False) -> None:
    """Show one session.

    For a session id exactly that session; for a key or conversation its newest.

    \b
    Examples:
      holdfast sessions show cli:ada
      holdfast sessions show sess_3f2a… --json
    """

    async with invocation.existing(quiet=as_json) as opened:
        session = await opened.hf.session_named(opened.owner, id_or_key)
        states = await opened.hf.states_of([session])
        flush = (await opened.hf.flushes_of([session])).get(session.id)
        everybody = invocation.of_everybody
        headings = {} if everybody else await opened.hf.headings_of([session])
        heading = headings.get(session.conversation_id, NO_HEADING)
        if as_json:
            shown = objects.session(session, states[session.id], flush, with_owner=everybody, heading=heading)
            print_json(shown)
        else:
            aside = await opened.hf.count_side_requests(opened.owner, session.conversation_id)
            names = await opened.hf.aliases(opened.owner, session.conversation_id)
            cost = await opened.hf.cost(opened.owner, session.conversation_id, session.id)
            sums = await opened.hf.sums_of_conversations([session.conversation_id])
            answered_by = sums[session.conversation_id].model
            session_views.show_one(
                session, states[session.id], opened.hf.now(), flush, heading, aside, names, cost, answered_by
            )
            say(Styled(f"\n{_next_step(invocation, session)}", "dim"))


@command(sessions, "messages")
async def messages(
    invocation: CommandContext,
    id_or_key: IdOrKey,
    scope: Annotated[
        MessageScopeOption,
        typer.Option(help="This session's, the whole conversation's, or what the model would get."),
    ] = MessageScopeOption.SESSION,
    as_json: AsJson = False,
) -> None:
    """Print a session's messages.

    \b
    Examples:
      holdfast sessions messages cli:ada
      holdfast sessions messages cli:ada --scope conversation
      holdfast sessions messages sess_3f2a… --scope context --json
    """

    async with invocation.existing(quiet=as_json) as opened:
        session = await opened.hf.session_named(opened.owner, id_or_key)
        if scope.value == "context":
            context = (await opened.hf.context(opened.owner, session.id)).messages()
            if as_json:
                print_json(objects.listed(context))
            else:
                message_views.show_context(context)
            shown = len(context)
        else:
            found = await _said(opened.hf, opened.owner, session, scope.value)
            if as_json:
                print_json(objects.listed([objects.message(each) for each in found]))
            else:
                message_views.show_messages(found, opened.hf.now())
            shown = len(found)
        if not shown and not as_json:
            note("no messages yet")


@command(sessions, "turns")
async def turns(
    invocation: CommandContext,
    id_or_key: IdOrKey,
    after: Annotated[str | None, typer.Option(metavar="TURN", help="Next page: turns after this id.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List turns, newest first.

    For a session id those of that session; for a key those of the whole conversation.

    \b
    Example:
      holdfast sessions turns cli:ada
    """

    async with invocation.existing(quiet=as_json) as opened:
        place = await opened.hf.resolve_name(opened.owner, id_or_key)
        after = await opened.full_id(after) if after else None
        found = await opened.hf.turns(
            opened.owner, place.conversation.id, session_id=place.addressed, after=after, limit=limit + 1
        )
        found, has_more = found[:limit], len(found) > limit
        if as_json:
            print_json(objects.listed([objects.turn(each) for each in found], has_more=has_more))
        elif found:
            session_views.show_turns(found, opened.hf.now())
            if has_more:
                note(f"there are more: --after {found[-1].id}")
        else:
            note("no turn yet")


@command(sessions, "lineage")
async def lineage(invocation: CommandContext, id_or_key: IdOrKey, as_json: AsJson = False) -> None:
    """Show a conversation's sessions and forks as a tree.

    \b
    Example:
      holdfast sessions lineage cli:ada
    """

    async with invocation.existing(quiet=as_json) as opened:
        place = await opened.hf.resolve_name(opened.owner, id_or_key)
        line = await opened.hf.lineage(opened.owner, place.conversation.id)
        states = await opened.hf.states_of(line)
        if as_json:
            headings = {} if invocation.of_everybody else await opened.hf.headings_of(line)
            print_json(objects.lineage(line, states, await opened.hf.flushes_of(line), headings))
        else:
            for parts in draw(line, states, opened.hf.now()):
                say(*parts)


def _next_step(invocation: CommandContext, session: Session) -> str:
    if session.running_turn:
        return f"Stop what is running: {invocation.command('sessions', 'cancel', session.id)}"
    if session.tip_id != session.id:
        return f"Continue from it: {invocation.command('sessions', 'resume', session.id)}"
    return f"Continue with: {invocation.speaking(session.id, session.key, session.owner)}"


async def _said(hf: Holdfast, owner: str | None, session: Session, scope: str) -> list[Message]:
    whole = scope == "conversation"
    page = await hf.messages(
        owner,
        session.conversation_id,
        first=1 if whole else session.first_seq,
        last=None if whole else session.last_seq,
    )
    return list(page.items)
