"""`holdfast sessions list|stats|search`: over all sessions. Reading opens nothing."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from .invocation import AsJson, Invocation, command
from .tree import sessions


class State(StrEnum):
    """The states of `domain.sessions`, here because importing that would slow `--help` down."""

    ACTIVE = "active"
    IDLE = "idle"
    ORPHANED = "orphaned"
    ENDED = "ended"


@command(sessions, "list")
async def list_(
    invocation: Invocation,
    state: Annotated[State | None, typer.Option(help="Only sessions in this state.")] = None,
    source: Annotated[str | None, typer.Option(help="Only sessions from this source.")] = None,
    key: Annotated[str | None, typer.Option(help="Only sessions of this key.")] = None,
    words: Annotated[str | None, typer.Option("-q", help="A part of the title or key.")] = None,
    after: Annotated[str | None, typer.Option(metavar="ID", help="The page behind this session.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List sessions, the most recently active first.

    \b
    Examples:
      holdfast sessions
      holdfast sessions list --state ended --source telegram --limit 50
      holdfast sessions --key cli:ada --json
    """
    from ...domain.sessions import SessionState
    from ...runtime.states import flushes_of
    from ...store.base import SessionFilter
    from .. import objects
    from ..readings import page_of_sessions
    from . import session_views
    from .output import note, print_json

    async with invocation.reading(quiet=as_json) as opened:
        if opened is None:
            return _nothing(invocation, as_json)
        wanted = SessionFilter(opened.owner, source=source, key=key, title=words)
        page, states = await page_of_sessions(
            opened.store, wanted, SessionState(state.value) if state else None, after=after, limit=limit
        )
        everybody = invocation.of_everybody
        if as_json:
            flushes = await flushes_of(opened.store, page.items)
            print_json(
                objects.sessions(page.items, states, flushes, has_more=page.has_more, with_owner=everybody)
            )
        elif not page.items:
            filtered = any((state, source, key, words, after))
            note("no session matches" if filtered else "there is no session yet")
        else:
            session_views.show_list(page.items, states, opened.store.now(), with_owner=everybody)
            if page.has_more:
                note(f"there are more: --after {page.items[-1].id}")


@command(sessions, "stats")
async def stats(invocation: Invocation, as_json: AsJson = False) -> None:
    """Count sessions: open, leaked, how they ended.

    A leaked session is open though its owner is dead. A sweep ends those, and one ran just before.

    \b
    Examples:
      holdfast sessions stats
      holdfast sessions stats --owner '*' --json
    """
    from ...store.base import Statistics
    from .. import objects
    from ..readings import leaked_sessions
    from . import session_views
    from .output import note, print_json

    async with invocation.reading(quiet=as_json) as opened:
        if opened is None:
            numbers, leaked = Statistics(0, 0, 0, 0), 0
        else:
            numbers = await opened.store.statistics(opened.owner)
            leaked = len(await leaked_sessions(opened.store, opened.owner))
        if as_json:
            print_json(objects.statistics(numbers, leaked))
        else:
            if opened is None:
                note(f"there is nothing yet: no store at {invocation.location}")
            session_views.show_statistics(numbers, leaked)


@command(sessions, "search")
async def search(
    invocation: Invocation,
    words: Annotated[list[str], typer.Argument(metavar="WORDS…", help="All of them; quotes keep a phrase.")],
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Find messages that hold all these words.

    Each word counts from its beginning: data finds database.

    \b
    Examples:
      holdfast sessions search lighthouse keeper
      holdfast sessions search '"my name is"' --json
    """
    from .. import objects
    from . import message_views
    from .output import note, print_json

    async with invocation.reading(quiet=as_json) as opened:
        if opened is None:
            return _nothing(invocation, as_json)
        found = await opened.store.search(opened.owner, " ".join(words), limit=limit + 1)
        found, has_more = found[:limit], len(found) > limit
        if as_json:
            print_json(objects.listed([objects.found(each) for each in found], has_more=has_more))
        elif found:
            message_views.show_found(found, opened.store.now())
            if has_more:
                note(f"only the best {limit}; see more with --limit")
        else:
            note("nothing was found")


def _nothing(invocation: Invocation, as_json: bool) -> None:
    from .. import objects
    from .output import note, print_json

    if as_json:
        print_json(objects.listed([]))
    else:
        note(f"there is nothing yet: no store at {invocation.location}. `holdfast run` begins one")
