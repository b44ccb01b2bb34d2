"""`holdfast sessions export`: conversations as JSON Lines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import typer

from .invocation import Invocation, command
from .tree import sessions


@command(sessions, "export")
async def export(
    invocation: Invocation,
    id_or_key: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID_OR_KEY]", help="The conversation that this session id, key or alias leads to."
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every conversation, also without saying so.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to; it must not exist yet.")
    ] = None,
) -> None:
    """Write conversations as JSON Lines, with everything in them.

    `holdfast import FILE` takes them over into another store.

    \b
    Examples:
      holdfast sessions export cli:ada > ada.jsonl
      holdfast sessions export --all -o conversations.jsonl
    """
    import sys

    from ...runtime.carrying import all_conversations, exported
    from ..readings import place_of
    from .output import remark
    from .progress import busy
    from .words import count

    if id_or_key is not None and everything:
        invocation.wrong_usage("name one conversation, or say --all, but not both")
    _require_new(output)
    async with invocation.existing(quiet=True) as opened:
        if id_or_key is not None:
            place = await place_of(opened.store, opened.owner, id_or_key)
            wanted = _only(place.conversation.id)
        else:
            wanted = all_conversations(opened.store, opened.owner)
        lines = exported(opened.store, opened.owner, wanted)
        if output is None:
            async for line in lines:
                sys.stdout.buffer.write(line + b"\n")
            return
        with busy("exporting"):
            conversations = await _write(output, lines)
        remark(f"{count(conversations, 'conversation')} exported to {output}")


def _require_new(target: Path | None) -> None:
    from ...errors import BadInput

    if target is not None and target.exists():
        raise BadInput(f"{target} exists already; an export never overwrites a file")


async def _only(conversation_id: str) -> AsyncIterator[str]:
    yield conversation_id


async def _write(target: Path, lines: AsyncIterator[bytes]) -> int:
    """Write a file that appears whole or not at all, readable only by its owner; how many conversations."""
    import os

    from ...domain.ids import new_id
    from ...errors import BadInput

    partial = target.with_name(f"{target.name}.{new_id('partial')}")
    number = 0
    try:
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            async for line in lines:
                number += line.startswith(b'{"record":"conversation"')
                file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, target)
    except OSError as error:
        raise BadInput(f"cannot write {target} ({error.strerror}); nothing was left behind") from error
    finally:
        partial.unlink(missing_ok=True)
    return number
