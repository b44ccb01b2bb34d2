"""`holdfast pair list|approve|revoke`: people who wrote to a connector, and whether they may."""

from __future__ import annotations

from typing import Annotated

import typer

from ..server import objects
from .context import AsJson, CommandContext, command
from .format import Column, Styled, ago, note, one_line, print_json, say, table
from .groups import pair

SHADES = {"pending": "yellow", "approved": "green", "revoked": "dim"}


@command(pair, "list")
async def list_(invocation: CommandContext, as_json: AsJson = False) -> None:
    """List people who may write through a connector, or have asked to.

    An unknown person who writes to a bot gets a code, at most one an hour; what they write is not stored. The
    code is not shown here: they have to give it to you.

    \b
    Examples:
      holdfast pair
      holdfast pair list --json
    """
    async with invocation.reading(quiet=as_json) as opened:
        found = await opened.hf.pairings() if opened is not None else []
        if as_json:
            print_json(objects.listed([objects.pairing(each) for each in found]))
            return
        if opened is None or not found:
            note("no one has written to a connector yet")
            return
        now = opened.hf.now()
        rows = [
            (
                each.id,
                each.connector,
                one_line(f"{each.person} {each.name or ''}".strip()),
                Styled(each.state.value, SHADES[each.state.value]),
                one_line(each.owner or "—"),
                ago(each.created_at, now),
            )
            for each in found
        ]
        titles = ("pairing", "connector", "person", "state", "owner", "age")
        table([Column(title, whole=title == "pairing") for title in titles], rows)


@command(pair, "approve")
async def approve(
    invocation: CommandContext,
    code: Annotated[str, typer.Argument(metavar="CODE", help="The code that the person was given.")],
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Continue the conversation with this session key.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Let the person with this code write.

    A code works once and expires after an hour. The person becomes an owner of their own, CONNECTOR/PERSON;
    --owner and --key bind them to an existing owner and session key instead, such as an imported
    conversation's.

    \b
    Examples:
      holdfast pair approve K7QW-3MHX
      holdfast pair approve K7QW-3MHX --owner ada --key agent:main:telegram:dm:42
    """
    if invocation.of_everybody:
        invocation.wrong_usage("name one owner, not *")
    async with invocation.existing(quiet=as_json) as opened:
        found = await opened.hf.approve_pairing(code, invocation.owner_name, key)
        if as_json:
            print_json(objects.pairing(found))
        else:
            name = one_line(f"{found.person} {found.name or ''}".strip())
            say(f"{name} may write through {found.connector}, as owner {found.owner}, key {found.key}.")


@command(pair, "revoke")
async def revoke(
    invocation: CommandContext,
    pairing_id: Annotated[str, typer.Argument(metavar="ID", help="The pairing's id, as the list shows it.")],
    as_json: AsJson = False,
) -> None:
    """Refuse a person from now on. Their conversations stay.

    \b
    Example:
      holdfast pair revoke pair_0a1b2c3d
    """
    async with invocation.existing(quiet=as_json) as opened:
        found = await opened.hf.revoke_pairing(pairing_id)
        if as_json:
            print_json(objects.pairing(found))
        else:
            say(f"{one_line(found.person)} may no longer write through {found.connector}.")
