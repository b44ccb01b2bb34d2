"""`holdfast notices list|delivered`: texts for people, such as that their chat was reset."""

from __future__ import annotations

from typing import Annotated

import typer

from ..server import objects
from .context import AsJson, CommandContext, command
from .format import Column, Styled, ago, note, one_line, print_json, remark, say, table
from .groups import notices


@command(notices, "list")
async def list_(
    invocation: CommandContext,
    undelivered: Annotated[
        bool, typer.Option("--undelivered", help="Only notices that were not delivered yet.")
    ] = False,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Next page: notices after this id.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List notices, the oldest first.

    A notice says what happened to a person's conversation, such as a reset. The server gives it to
    the next request, a bridge fetches it (`GET /api/notices`), a webhook gets it ([notify] webhook).

    \b
    Examples:
      holdfast notices
      holdfast notices list --undelivered --json
    """
    async with invocation.reading(quiet=as_json) as opened:
        if opened is None:
            if as_json:
                print_json(objects.listed([]))
            else:
                note(f"no notices: there is no store at {invocation.location}")
            return
        after = await opened.full_id(after) if after else None
        page = await opened.hf.notices(opened.owner, undelivered=undelivered, after=after, limit=limit)
        if as_json:
            data = [objects.notice(each, with_owner=invocation.of_everybody) for each in page.items]
            print_json(objects.listed(data, has_more=page.has_more))
            return
        if not page.items:
            note("no notices")
            return
        now = opened.hf.now()
        rows = [
            (
                each.id,
                ago(each.created_at, now),
                Styled("delivered", "dim") if each.delivered_at else Styled("undelivered", "yellow"),
                one_line(f"{each.key or each.conversation_id}: {each.text}"),
            )
            for each in page.items
        ]
        table((Column("notice", whole=True), Column("age"), Column("state"), Column("text")), rows)
        if page.has_more:
            remark(f"More: {invocation.command('notices', '--after', page.items[-1].id)}")


@command(notices, "delivered")
async def delivered(
    invocation: CommandContext,
    notice_id: Annotated[str, typer.Argument(metavar="ID", help="The notice's id, as the list shows it.")],
    as_json: AsJson = False,
) -> None:
    """Mark a notice as delivered. Doing so twice keeps the first time.

    \b
    Example:
      holdfast notices delivered note_0a1b2c3d
    """
    async with invocation.existing(quiet=as_json) as opened:
        notice = await opened.hf.deliver_notice(opened.owner, await opened.full_id(notice_id))
        if as_json:
            print_json(objects.notice(notice, with_owner=invocation.of_everybody))
        else:
            say(f"{notice.id} is delivered.")
