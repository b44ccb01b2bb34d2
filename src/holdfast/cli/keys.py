"""`holdfast keys create|list|revoke`: API keys. A key is shown once, when it is created."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated

import msgspec
import typer

from ..domain import api_keys as domain
from ..domain.api_keys import ApiKey
from ..domain.ids import DEFAULT_OWNER
from ..errors import BadInput
from ..server import objects
from .context import AsJson, CommandContext, command
from .format import Cell, Column, Styled, ago, note, print_json, remark, say, span, table
from .groups import keys

Limit = Annotated[int, typer.Option(metavar="N", min=0, help="The maximum; 0: unlimited.")]
NEVER = "never"
"""`--store never`: nothing of the key's requests is stored."""


@command(keys, "create")
async def create(
    invocation: CommandContext,
    scope: Annotated[
        domain.Scope,
        typer.Option(
            help="chat: its owner's data; bridge: also the owners below its own; admin: also the data of "
            "any owner that a request names."
        ),
    ] = domain.Scope.CHAT,
    tools: Annotated[
        str,
        typer.Option(
            metavar="A,B",
            help="Server-side tools it may use: terminal, process, memory, search. Default: none.",
        ),
    ] = "",
    name: Annotated[str, typer.Option(metavar="TEXT", help="A name for people.")] = "",
    expires: Annotated[
        float | None,
        typer.Option(metavar="DAYS", help="Valid for this many days; default: until it is revoked."),
    ] = None,
    requests_per_minute: Limit = 0,
    requests_per_day: Limit = 0,
    tokens_per_minute: Limit = 0,
    tokens_per_day: Limit = 0,
    webhook: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Notify this connector of kind webhook when a background response ends, signed.",
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Create an API key. It is shown now and never again; only its hash is kept.

    The key acts as --owner, 'default' unless named. Tools must be named by the settings as well ([agent]
    tools). Limits count on all servers of the store together; 0 is unlimited. With --store never, nothing of
    its requests is stored.

    \b
    Examples:
      holdfast keys create
      holdfast keys create --owner ada --tools search,memory
      holdfast keys create --owner team --scope bridge --json
      holdfast keys create --name laptop --expires 90
      holdfast keys create --owner ada --requests-per-minute 20
      holdfast keys create --store never
      holdfast keys create --owner ada --webhook alerts
    """

    keeps = invocation.store_url != NEVER
    if not keeps:  # the word names no store: it is about the new key
        invocation = replace(invocation, store_url=None)
    owner = DEFAULT_OWNER if invocation.owner_name is None else invocation.owner_name
    names = [name.strip() for name in tools.split(",") if name.strip()]
    try:
        domain.check_owner(owner)
        domain.check_tools(names)
        domain.check_key_name(name)
        if expires is not None:
            domain.check_expiry(expires)
        limits = domain.RateLimits(requests_per_minute, requests_per_day, tokens_per_minute, tokens_per_day)
    except BadInput as error:
        invocation.wrong_usage(str(error))
    async with invocation.making(quiet=as_json) as opened:
        key, token = await opened.hf.create_key(
            owner, scope, names, keeps=keeps, name=name, expires_days=expires, limits=limits, webhook=webhook
        )
        if as_json:
            shown = {"id": key.id, "key": str(token), "owner": key.owner, "scope": key.scope.value}
            never = {} if keeps else {"store": NEVER}
            found = msgspec.structs.asdict(objects.api_key(key))
            terms = ("name", "expires_at", *domain.LIMIT_NAMES, "webhook")
            given = {each: found[each] for each in terms if found[each]}
            print_json({**shown, "tools": sorted(key.tools), **never, **given})
            return
        say(str(token))
        remark(
            f"This is {key.id}: owner {key.owner}, scope {key.scope.value}, tools {_tools(key)}"
            + (f"; {', '.join(shown_terms)}" if (shown_terms := _terms(key)) else "")
            + ("" if keeps else "; nothing of its requests is stored"),
            "Save it now: it is not shown again",
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
                key.name or "—",
                key.owner,
                key.scope.value,
                _tools(key),
                ago(key.last_used_at, now) if key.last_used_at else "never",
                _limits(key) or "none",
                _state(key, now),
            ]
            for key in found
        ]
        titles = ("id", "name", "owner", "scope", "tools", "used", "limits", "state")
        table([Column(title, whole=title == "id") for title in titles], rows)


@command(keys, "revoke")
async def revoke(
    invocation: CommandContext,
    key_id: Annotated[
        str, typer.Argument(metavar="ID", help="The key's id, as `holdfast keys list` shows it.")
    ],
    as_json: AsJson = False,
) -> None:
    """Revoke an API key. Its requests are refused within seconds; its open streams end.

    \b
    Example:
      holdfast keys revoke key_3f2a…
    """

    async with invocation.existing(quiet=as_json) as opened:
        key_id = await opened.hf.full_id(_whose(invocation), key_id)
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


def _state(key: ApiKey, now: datetime) -> Cell:
    if key.revoked_at is not None:
        return Styled(f"revoked {ago(key.revoked_at, now)}", "dim")
    if key.expires_at is None:
        return "valid"
    if key.has_expired(now):
        return Styled(f"expired {ago(key.expires_at, now)}", "dim")
    return f"valid for {span(key.expires_at - now)}"


def _limits(key: ApiKey) -> str:
    """Its limits, such as `20 requests/minute, 200,000 tokens/day`."""
    return ", ".join(
        f"{most:,} {name.replace('_per_', '/')}"
        for name in domain.LIMIT_NAMES
        if (most := getattr(key.limits, name))
    )


def _terms(key: ApiKey) -> list[str]:
    """Its name, expiry, limits and webhook, for a sentence."""
    named = [f"name {key.name}"] if key.name else []
    until = [f"valid until {key.expires_at:%Y-%m-%d %H:%M} UTC"] if key.expires_at else []
    notifies = [f"notifies {key.webhook}"] if key.webhook else []
    return [*named, *until, *([_limits(key)] if key.limits else []), *notifies]


def _tools(key: ApiKey) -> str:
    return ", ".join(sorted(key.tools)) or "none"
