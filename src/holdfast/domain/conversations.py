"""Conversations: the durable chat, and how it is addressed.

A conversation never changes its id. It holds one append-only, gap-free list of messages and a line of
sessions. Its *tip* is the newest session, so any id that ever named a part of it leads to its newest
continuation in one step.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from ..errors import BadInput
from .ids import check_name, is_ours, unstorable
from .value import Value


class Conversation(Value, frozen=True):
    id: str
    owner: str
    key: str | None
    title: str | None
    source: str
    tip_id: str
    last_seq: int
    token: int
    holder: str | None
    turn_id: str | None
    created_at: datetime
    forked_from: str | None = None
    """The session whose view was copied to begin this conversation."""
    revision: int = 0
    """Changes when a context changes in any way other than an appended message."""
    history: bytes | None = None
    """Fingerprint chain of all visible messages; None while a turn runs, and whenever it is unknown."""
    metadata: Mapping[str, str] | None = None
    """A client's metadata. None where it was not read: resolving, which every turn does, skips it."""


def check_metadata(pairs: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the metadata to store with a conversation, or raises BadInput."""
    for name, text in pairs.items():
        for what, value in (("a name in metadata", name), (f"metadata {name!r:.80}", text)):
            if not isinstance(value, str):
                raise BadInput(f"{what} must be text, not {type(value).__name__}")
            if fault := unstorable(value):
                raise BadInput(f"{what} {fault}")
    return pairs


class Address(Value, frozen=True):
    """How a caller names a conversation: by an id (of a session, stale or not, of the conversation, or an
    alias), by a session key, or not at all (a new one)."""

    id: str | None = None
    key: str | None = None
    create: bool = True
    """True: an unknown key, or unknown id not of our form (an alias), opens a conversation."""

    def __post_init__(self) -> None:
        if self.id is not None and self.key is not None:
            raise BadInput("address a conversation by an id or by a key, not by both")
        if self.id is not None:
            check_name("an id", self.id)
        if self.key is not None:
            check_name("a key", self.key)

    @property
    def may_create(self) -> bool:
        return self.create and not (self.id is not None and is_ours(self.id))

    @property
    def noun(self) -> str:
        """What it names, for an error that there is none."""
        return "conversation" if self.id is None or self.id.startswith("conv_") else "session"

    def __str__(self) -> str:
        return self.id or self.key or "(new)"
