"""Whose data an `/api` request is about.

A key sees its own owner's; another owner's id is a 404 like one that never existed. An admin may name another
owner, or, for lists that hold no message text, all of them; when it reads what another owner's messages say,
that leaves an event with them.
"""

from __future__ import annotations

from ..domain.sessions import Session
from .http import RequestContext
from .openai.parameters import BadParameter
from .routes import Parameter

OWNER = Parameter("owner", "Whose; only an admin may name another than its own.")
OWNERS = Parameter("owner", "Whose, or `*` for everybody's; only an admin may name another than its own.")


def owner_of(call: RequestContext) -> str:
    """The one owner this request is about."""
    owner = call.read_owner
    if owner is None:
        raise BadParameter("owner", "must name one owner here; * is for lists that hold no message text")
    return owner


def owners_of(call: RequestContext) -> str | None:
    """The owner a list is about; None: everybody."""
    return call.read_owner


def shows_owner(call: RequestContext) -> bool:
    """Has it been asked for by owner, so that the answer says whose each is?"""
    return call.query("owner") is not None


async def note_reading(call: RequestContext, owner: str, session: Session | None = None) -> None:
    """Called before another owner's messages are shown."""
    if owner != call.owner:
        await call.store.note_reading(owner, call.caller.key_id, session)
