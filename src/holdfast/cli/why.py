"""`holdfast why`: whether and when a session will be reset, by which rule, and what blocks the reset."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ..domain.events import Event
from ..domain.queue import QueuedTurn
from ..domain.why import Why
from ..server import objects
from .context import AsJson, CommandContext, IdOrKey, command
from .format import Column, Styled, clock, print_json, say, table
from .groups import app


@command(app, "why")
async def why(invocation: CommandContext, id_or_key: IdOrKey, as_json: AsJson = False) -> None:
    """Explain whether and when a session will be reset.

    By which rule, and what defers it until when.

    For a session id exactly that session; for a key or conversation its newest.

    \b
    Examples:
      holdfast why telegram:dm:42
      holdfast why sess_3f2a… --json
    """

    async with invocation.existing(quiet=as_json) as opened:
        session = await opened.hf.session_named(opened.owner, id_or_key)
        found = await opened.hf.why(opened.owner, session.id)
        if as_json:
            print_json(objects.why(found))
        else:
            _show(found, opened.hf.now())
            _show_queue(await opened.hf.queue(opened.owner, session.conversation_id))


def _show(found: Why, now: datetime) -> None:

    say(found.sentence)
    say(Styled("\nPolicy", "bold"))
    table(
        [Column("setting"), Column("value"), Column("from")],
        [[name, _number(each.value), each.origin] for name, each in found.policy.items()],
    )
    say(Styled("\nReasons", "bold"))
    table(
        [Column("reason", whole=True), Column("until"), Column("which")],
        [
            [reason.code, clock(reason.until, now) if reason.until else "", reason.message]
            for reason in found.reasons
        ],
    )
    if found.history:
        say(Styled("\nHistory", "bold"))
        table(
            [Column("when"), Column("what", whole=True), Column("which")],
            [[clock(event.at, now), event.type, _data(event)] for event in found.history],
        )


def _show_queue(queue: Sequence[QueuedTurn]) -> None:
    if queue:
        say(Styled("\nQueued turns", "bold"))
        table(
            [Column("position"), Column("turn", whole=True), Column("behind", whole=True)],
            [[str(each.position), each.turn.id, each.behind or ""] for each in queue],
        )


def _number(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _data(event: Event) -> str:
    """An event's data on one line: `reason idle, messages 12`."""
    return ", ".join(
        f"{name} {_said(value)}" for name, value in event.data.items() if value not in (None, [], "")
    )


def _said(value: object) -> str:
    if isinstance(value, list):
        return " + ".join(_said(each) for each in value)
    if isinstance(value, dict):
        return " ".join(str(each) for each in value.values() if each)
    return str(value)
