"""Resolves names: the one resolver, used by every reading and writing route."""

from __future__ import annotations

from ..domain.conversations import Address, Conversation
from ..domain.ids import parse_message_id
from ..domain.resets import ResetPolicies
from ..domain.sessions import Session
from ..domain.turns import ConversationVersion
from ..domain.value import Value
from ..errors import BadInput, NotFound
from .rows import (
    Row,
    bytes_of,
    conversation_in,
    history_in,
    is_ready,
    may_have_memories,
    may_have_notices,
    queued_in,
    seen_in,
    tip_in,
    to_conversation,
    to_place,
    to_session,
    token_of,
)
from .transaction import Q, Transaction
from .values import Resolved


class ResolvedRow(Value, frozen=True):
    """What a name resolves to, as raw rows: turns begin too often to build values that are not used."""

    row: Row
    addressed: str | None

    def is_ready_for(self, node_id: str, now: int, policies: ResetPolicies) -> bool:
        """True: the conversation is free, its tip open and not due, so a turn of this node can begin at once.

        False if the tip is attached to another node: that one may be gone.
        """
        return is_ready(self.row, node_id, now, None if policies.never else policies.stamp)

    @property
    def conversation_id(self) -> str:
        return conversation_in(self.row)

    @property
    def tip_id(self) -> str:
        return tip_in(self.row)

    @property
    def token(self) -> int:
        return token_of(self.row)

    @property
    def held(self) -> int:
        """Bytes of the conversation's messages."""
        return bytes_of(self.row)

    @property
    def queued(self) -> int:
        """How many turns are queued in the conversation."""
        return queued_in(self.row)

    @property
    def may_have_notices(self) -> bool:
        """False: it has no notice that the next reply should carry."""
        return may_have_notices(self.row)

    @property
    def may_have_memories(self) -> bool:
        """False: it has no memory."""
        return may_have_memories(self.row)

    @property
    def seen(self) -> ConversationVersion:
        return seen_in(self.row)

    @property
    def history(self) -> bytes | None:
        return history_in(self.row)

    def place(self) -> Resolved:
        return Resolved(*to_place(self.row), self.addressed)


def lookup(tx: Transaction, owner: str | None, address: Address) -> ResolvedRow | None:
    """Look up an id, key or alias; None if unknown."""
    addressed: str | None = None
    if address.key is not None:
        row = _by_key(tx, owner, address.key)
    elif address.id is None:
        return None
    elif address.id.startswith("conv_"):
        row = tx.one(Q.place_by_conversation, id=address.id, owner=owner)
    elif address.id.startswith("sess_"):
        row = tx.one(Q.place_by_session, id=address.id, owner=owner)
        addressed = address.id
    elif address.id.startswith("turn_"):
        row = tx.one(Q.place_by_turn, id=address.id, owner=owner)
    elif address.id.startswith("resp_"):
        row = tx.one(Q.place_by_response, id=address.id, owner=owner)
    elif message := parse_message_id(address.id):
        row = tx.one(Q.place_by_conversation, id=message[0], owner=owner)
    else:
        row = _by_alias(tx, owner, address.id)
        addressed = _meant_by(tx, row, address.id)
    return None if row is None else ResolvedRow(row, addressed)


def find(tx: Transaction, owner: str | None, address: Address) -> Resolved | None:
    """The conversation and tip that an id, key or alias resolves to; None if unknown."""
    reached = lookup(tx, owner, address)
    return None if reached is None else reached.place()


def place(tx: Transaction, owner: str | None, address: Address) -> Resolved:
    """Resolve a session id (newest or stale), conversation id, alias or key. Opens nothing. Raises
    NotFound."""
    reached = lookup(tx, owner, address)
    if reached is None:
        raise NotFound("conversation" if address.key else "session", str(address))
    return reached.place()


def session_of(tx: Transaction, owner: str | None, session_id: str) -> Session:
    """That exact session, stale or not. Raises NotFound."""
    row = tx.one(Q.session_by_id, id=session_id, owner=owner)
    if row is None:
        raise NotFound("session", session_id)
    return to_session(row)


def conversation_of(tx: Transaction, owner: str | None, conversation_id: str) -> Conversation:
    row = tx.one(Q.conversation_by_id, id=conversation_id, owner=owner)
    if row is None:
        raise NotFound("conversation", conversation_id)
    return to_conversation(row)


def _by_key(tx: Transaction, owner: str | None, key: str) -> Row | None:
    if owner is not None:
        return tx.one(Q.place_by_key, owner=owner, key=key)
    return _only(tx.all(Q.places_by_key_anywhere, key=key), "key", key)


def _by_alias(tx: Transaction, owner: str | None, alias: str) -> Row | None:
    if owner is not None:
        return tx.one(Q.place_by_alias, owner=owner, id=alias)
    return _only(tx.all(Q.places_by_alias_anywhere, id=alias), "alias", alias)


def _meant_by(tx: Transaction, row: Row | None, alias: str) -> str | None:
    """The exact session that an imported alias referred to, if it did."""
    meant = tx.one(Q.meant_by_alias, conversation=row[1], alias=alias) if row is not None else None
    return meant[0] if meant else None


def _only(rows: list[Row], what: str, name: str) -> Row | None:
    if len(rows) > 1:
        raise BadInput(f"several owners have the {what} {name!r}; name one with --owner")
    return rows[0] if rows else None
