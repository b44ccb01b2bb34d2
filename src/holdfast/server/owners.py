"""Determines which owner's data an `/api` request may access.

An API key sees its own owner's data; another owner's id is a 404, like one that never existed. An admin may
name another owner, or all of them for lists without message text. When an admin reads another owner's
messages, an event records it for that owner.
"""

from __future__ import annotations

from ..domain.sessions import Session
from .http import RequestContext
from .openai.parameters import BadParameter
from .routes import Parameter

OWNER = Parameter("owner", "The owner of the data; only an admin may name another than its own.")
OWNERS = Parameter(
    "owner", "The owner of the data, `*` for all; only an admin may name another than its own."
)


def owner_of(call: RequestContext) -> str:
    """The one owner whose data this request accesses."""
    owner = call.read_owner
    if owner is None:
        raise BadParameter("owner", "must name one owner here; * is for lists without message text")
    return owner


def owners_of(call: RequestContext) -> str | None:
    """The owner whose data a list holds; None: all owners."""
    return call.read_owner


def shows_owner(call: RequestContext) -> bool:
    """True: the request names `owner`, so each object in the response has the field `owner`."""
    return call.query("owner") is not None


async def note_reading(call: RequestContext, owner: str, session: Session | None = None) -> None:
    """Record the event of reading another owner's messages; must be called before they are shown."""
    if owner != call.owner:
        await call.hf.note_reading(owner, call.caller.key_id, session)
