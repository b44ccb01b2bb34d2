"""`holdfast memories list|search|add|edit|forget|retry|skip`: memories, and flushes that failed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ..domain.flushes import FlushState
from ..domain.memories import Memory
from ..domain.pages import Page
from ..server import objects
from .context import AsJson, CommandContext, Opened, command
from .format import Column, Styled, ago, clock, count, note, one_line, print_json, say, table
from .groups import memories

if TYPE_CHECKING:
    from ..app import Holdfast

MemoryId = Annotated[str, typer.Argument(metavar="ID", help="The memory's id, as the list shows it.")]
SKIPPED = "a person skipped it"
MOST_AT_ONCE = 1000


@command(memories, "list")
async def list_(
    invocation: CommandContext,
    key: Annotated[str | None, typer.Option(help="Only memories of this key's conversation.")] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Instead: sessions whose flush failed and was given up.")
    ] = False,
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="Next page: memories after this id.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List memories, the newest first.

    A memory is a text that an ended session left for later ones. Below the list: how many sessions wait to be
    flushed, and how many flushes failed.

    \b
    Examples:
      holdfast memories
      holdfast memories --key telegram:dm:42 --json
      holdfast memories list --failed
    """

    async with invocation.reading(quiet=as_json) as opened:
        if opened is None:
            return _nothing(invocation, as_json)
        after = await opened.full_id(after) if after else None
        if failed:
            return await _list_failed(invocation, opened.hf, opened.owner, after, limit, as_json)
        page = await opened.hf.memories(opened.owner, key=key, after=after, limit=limit)
        if as_json:
            everybody = invocation.of_everybody
            data = [objects.memory(each, with_owner=everybody) for each in page.items]
            print_json(objects.listed(data, has_more=page.has_more))
            return
        _show(page, opened.hf.now(), "no memories")
        await _say_what_waits(opened.hf)


@command(memories, "search")
async def search(
    invocation: CommandContext,
    words: Annotated[
        list[str], typer.Argument(metavar="WORDS…", help="Words that it contains, upper or lower case.")
    ],
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Search memories that contain all these words.

    \b
    Example:
      holdfast memories search kelp
    """

    async with invocation.reading(quiet=as_json) as opened:
        if opened is None:
            return _nothing(invocation, as_json)
        page = await opened.hf.memories(opened.owner, words=" ".join(words), limit=limit)
        if as_json:
            everybody = invocation.of_everybody
            data = [objects.memory(each, with_owner=everybody) for each in page.items]
            print_json(objects.listed(data, has_more=page.has_more))
        else:
            _show(page, opened.hf.now(), "nothing was found")


@command(memories, "add")
async def add(
    invocation: CommandContext,
    session: Annotated[
        str, typer.Argument(metavar="SESSION", help="The conversation: any id, key or alias of it.")
    ],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to remember.")],
    as_json: AsJson = False,
) -> None:
    """Add a memory to a conversation.

    The model is given it from the next turn on, also after a reset.

    \b
    Examples:
      holdfast memories add telegram:dm:42 "Prefers answers in German."
      holdfast memories add sess_3f2a… "The house is in Bergen."
    """

    async with invocation.existing(quiet=as_json) as opened:
        memory = await opened.hf.add_memory(opened.owner, text, name=session)
        if as_json:
            print_json(objects.memory(memory, with_owner=invocation.of_everybody))
        else:
            say(f"{memory.id} is added to {one_line(memory.key or memory.conversation_id)}.")


@command(memories, "edit")
async def edit(
    invocation: CommandContext,
    memory_id: MemoryId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The new text.")],
    as_json: AsJson = False,
) -> None:
    """Edit the text of a memory.

    \b
    Example:
      holdfast memories edit mem_3f2a… "Ada likes kelp, but not raw."
    """

    async with invocation.existing(quiet=as_json) as opened:
        memory = await opened.hf.edit_memory(opened.owner, await opened.full_id(memory_id), text)
        if as_json:
            print_json(objects.memory(memory, with_owner=invocation.of_everybody))
        else:
            say(f"{memory.id} is changed.")


@command(memories, "forget")
async def forget(
    invocation: CommandContext,
    memory_ids: Annotated[list[str], typer.Argument(metavar="ID…", help="The memories' ids.")],
    as_json: AsJson = False,
) -> None:
    """Delete memories permanently.

    The messages they came from stay; `holdfast sessions delete` deletes those.

    \b
    Example:
      holdfast memories forget mem_3f2a…
    """

    async with invocation.existing(quiet=as_json) as opened:
        memory_ids = [await opened.full_id(each) for each in memory_ids]
        for memory_id in memory_ids:  # check that all exist before any is deleted
            await opened.hf.memory(opened.owner, memory_id)
        for memory_id in memory_ids:
            await opened.hf.forget_memory(opened.owner, memory_id)
            if not as_json:
                say(f"{memory_id} is forgotten.")
        if as_json:
            print_json(objects.listed([objects.deleted_memory(each) for each in memory_ids]))


@command(memories, "retry")
async def retry(
    invocation: CommandContext,
    session_ids: Annotated[
        list[str] | None, typer.Argument(metavar="SESSION…", help="Sessions; without any, all that failed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Retry memory jobs that failed.

    The running server does it, or the next one that starts. A session that is named is also retried if its
    flush was skipped or is pending.

    \b
    Examples:
      holdfast memories retry
      holdfast memories retry sess_3f2a…
    """

    async with invocation.existing(quiet=as_json) as opened:
        retried = 0
        if session_ids:
            for flush in await _flushes_of(opened, session_ids):
                await opened.hf.retry_flush(opened.owner, flush)
                retried += 1
        else:
            retried = await opened.hf.retry_flushes(opened.owner)
        if as_json:
            print_json({"object": "flushes.retried", "count": retried})
        elif retried:
            say(f"{count(retried, 'session')} will be flushed by the server.")
        else:
            say("No flush was given up.")


@command(memories, "skip")
async def skip(
    invocation: CommandContext,
    session_ids: Annotated[
        list[str] | None, typer.Argument(metavar="SESSION…", help="Sessions that are not to be flushed.")
    ] = None,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="DATE", help="All sessions without a message since this date, such as 2026-03-01."
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Skip the memory jobs of sessions, by id or by date.

    With --before: pending and failed flushes, and the messages of open sessions so far, which a reset would
    have flushed. Later messages of those are flushed as usual. A skipped session can be retried by
    its id: `holdfast memories retry SESSION`.

    \b
    Examples:
      holdfast memories skip --before 2026-03-01
      holdfast memories skip --before 2026-03-01T08:00 --owner '*'
      holdfast memories skip sess_3f2a…
    """

    if not session_ids and before is None:
        invocation.wrong_usage("name sessions, or a date with --before")
    since = invocation.date(before) if before is not None else None
    async with invocation.existing(quiet=as_json) as opened:
        skipped = 0
        for flush in await _flushes_of(opened, session_ids or ()):
            await opened.hf.skip_flush(opened.owner, flush)
            skipped += 1
        if since is not None:
            skipped += await opened.hf.skip_flushes(opened.owner, since)
        if as_json:
            print_json({"object": "flushes.skipped", "count": skipped})
        else:
            say(f"{count(skipped, 'session')} will not be flushed." if skipped else "There was none to skip.")
    return 0


async def _flushes_of(opened: Opened, session_ids: Iterable[str]) -> list[str]:
    """The full ids of these sessions, each of which has a flush. Raises NotFound before any is changed."""
    found = [await opened.full_id(each) for each in session_ids]
    for session_id in found:
        await opened.hf.find_flush(opened.owner, session_id)
    return found


def _show(page: Page[Memory], now: datetime, nothing: str) -> None:

    if not page.items:
        note(nothing)
        return
    for number, memory in enumerate(page.items):
        if number:
            say()
        where = Styled(one_line(memory.key or memory.conversation_id), "bold")
        say(where, Styled(f"  {clock(memory.created_at, now)}  {memory.origin.value}  {memory.id}", "dim"))
        say(memory.text)
    if page.has_more:
        note(f"there are more: --after {page.items[-1].id}")


async def _list_failed(
    invocation: CommandContext, hf: Holdfast, owner: str | None, after: str | None, limit: int, as_json: bool
) -> None:

    page = await hf.flushes(owner, state=FlushState.DEAD, after=after, limit=limit)
    if as_json:
        data = [objects.flush(each, with_owner=invocation.of_everybody) for each in page.items]
        print_json(objects.listed(data, has_more=page.has_more))
        return
    if not page.items:
        note("no flush was given up")
        return
    titles = ("session", "key", "ended", "attempts", "given up", "why")
    rows = [
        [
            flush.session_id,
            flush.key or "—",
            flush.reason,
            str(flush.attempts),
            ago(flush.settled_at, hf.now()),
            one_line(flush.error or ""),
        ]
        for flush in page.items
    ]
    table([Column(title, whole=title == "session") for title in titles], rows)
    note("`holdfast memories retry` tries them again")


async def _say_what_waits(hf: Holdfast) -> None:

    figures = await hf.flush_figures()
    if waiting := figures.pending + figures.running:
        note(f"{count(waiting, 'session')} of all owners to be flushed")
    if figures.dead:
        failed = count(figures.dead, "session")
        note(f"{failed} of all owners could not be flushed: `holdfast memories --failed`")


def _nothing(invocation: CommandContext, as_json: bool) -> None:

    if as_json:
        print_json(objects.listed([]))
    else:
        note(f"there is no store yet at {invocation.location}")
