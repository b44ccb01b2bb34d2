"""`holdfast keys create|list|revoke`: API keys. A key is shown once, when it is created."""

from __future__ import annotations

from typing import Annotated

import typer

from ..domain import api_keys as domain
from ..domain.api_keys import ApiKey
from ..domain.ids import DEFAULT_OWNER
from ..errors import BadInput
from ..server import objects
from .context import AsJson, CommandContext, command
from .format import Cell, Column, Styled, ago, note, print_json, remark, say, table
from .groups import keys


@command(keys, "create")
async def create(
    invocation: CommandContext,
    scope: Annotated[
        domain.Scope,
        typer.Option(
            help="How far it reaches: its owner's own; also owners it names below its own; also, by naming "
            "them, others' data."
        ),
    ] = domain.Scope.CHAT,
    tools: Annotated[
        str,
        typer.Option(
            metavar="A,B", help="Server-side tools it may use: terminal, process, memory, search. Else none."
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Make an API key. It is shown now and never again; only its hash is kept.

    The key acts as --owner, 'default' unless named. Tools must be named by the settings as well ([agent]
    tools).

    \b
    Examples:
      holdfast keys create
      holdfast keys create --owner ada --tools search,memory
      holdfast keys create --owner team --scope bridge --json
    """

    owner = DEFAULT_OWNER if invocation.owner_name is None else invocation.owner_name
    names = [name.strip() for name in tools.split(",") if name.strip()]
    try:
        domain.check_owner(owner)
        domain.check_tools(names)
    except BadInput as error:
        invocation.wrong_usage(str(error))
    async with invocation.making(quiet=as_json) as opened:
        key, token = await opened.hf.create_key(owner, scope, names)
        if as_json:
            shown = {"id": key.id, "key": str(token), "owner": key.owner, "scope": key.scope.value}
            print_json({**shown, "tools": sorted(key.tools)})
            return
        say(str(token))
        remark(
            f"This is {key.id}: owner {key.owner}, scope {key.scope.value}, tools {_tools(key)}",
            "Keep it now: it is not shown again",
        )


@command(keys, "list")
async def list_(invocation: CommandContext, as_json: AsJson = False) -> None:
    """List API keys, of all owners unless one is named. Their secrets are not kept and cannot be shown.

    \b
    Examples:
      holdfast keys list
      holdfast keys list --owner ada --json
    """

    async with invocation.reading(quiet=as_json) as opened:
        found = await opened.hf.keys(_whose(invocation)) if opened else []
        if as_json:
            print_json(objects.listed([objects.api_key(key) for key in found]))
            return
        if not found:
            note("there are no API keys; `holdfast keys create` makes one")
            return
        assert opened is not None
        now = opened.hf.now()
        rows: list[list[Cell]] = [
            [
                key.id,
                key.owner,
                key.scope.value,
                _tools(key),
                ago(key.created_at, now),
                Styled(f"revoked {ago(key.revoked_at, now)}", "dim") if key.revoked_at else "valid",
            ]
            for key in found
        ]
        titles = ("id", "owner", "scope", "tools", "made", "state")
        table([Column(title, whole=title == "id") for title in titles], rows)


@command(keys, "revoke")
async def revoke(
    invocation: CommandContext,
    key_id: Annotated[
        str, typer.Argument(metavar="ID", help="The key's id, as `holdfast keys list` shows it.")
    ],
    as_json: AsJson = False,
) -> None:
    """Take an API key back, for good. Whoever has it is refused within seconds; its open streams end.

    \b
    Example:
      holdfast keys revoke key_3f2a…
    """

    async with invocation.existing(quiet=as_json) as opened:
        revoked = await opened.hf.revoke_key(key_id, _whose(invocation))
        found = await opened.hf.find_key(key_id)
        assert found is not None
        if as_json:
            print_json(objects.api_key(found[0]))
        elif revoked:
            say(f"{key_id} of {found[0].owner} is revoked.")
        else:
            say(f"{key_id} of {found[0].owner} was revoked already.")


def _whose(invocation: CommandContext) -> str | None:
    """The owner named, else None for all owners: a list of keys is often read to find a key's owner."""
    return None if invocation.owner_name is None else invocation.owner


def _tools(key: ApiKey) -> str:
    return ", ".join(sorted(key.tools)) or "none"
