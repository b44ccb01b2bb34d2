"""Resolves names: the one resolver, used by every reading and writing route."""

from __future__ import annotations

from ..domain.conversations import Address, Conversation
from ..domain.ids import parse_message_id
from ..domain.sessions import Session
from ..errors import BadInput, NotFound
from .rows import ResolvedRow, Row, to_conversation, to_session
from .transaction import Q, Transaction
from .values import Resolved


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
        raise NotFound(address.noun, str(address))
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
