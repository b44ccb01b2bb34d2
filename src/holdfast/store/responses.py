"""The answer of a turn besides its messages: drafts while it runs, the model's answer, its Responses API
id."""

from __future__ import annotations

from msgspec.structs import replace

from ..domain.drafts import Draft
from ..domain.ids import storable
from ..domain.responses import Response
from ..domain.turns import Lease, NewResponse, Turn, TurnRequest, TurnStatus
from ..errors import BadInput, LeaseLost, NotFound
from .leases import holds
from .rows import to_draft, to_json, to_time, to_turn
from .transaction import Q, Transaction


def append_draft(tx: Transaction, lease: Lease, draft: Draft) -> None:
    """Store a draft of the running reply. LeaseLost writes nothing."""
    said = {
        "turn": lease.turn_id,
        "first_event": draft.first_event,
        "last_event": draft.last_event,
        "adds": to_json({name: storable(text) for name, text in draft.adds.items()}),
        "events": draft.events,
    }
    changed = tx.run(
        Q.insert_draft,
        conversation=lease.conversation_id,
        token=lease.token,
        node=lease.node_id,
        reserved_to=draft.reserved_to,
        restarts=draft.restarts,
        now=tx.now,
        **said,
    )
    if not changed:
        if not holds(tx, lease):
            raise LeaseLost(lease.conversation_id, lease.token)
        if tx.one(Q.same_draft, **said) is not None:
            return  # already written: its writer did not get the confirmation
        raise BadInput(f"event {draft.first_event} of turn {lease.turn_id} is not above the ones before it")


def drafts(tx: Transaction, turn_id: str, *, after_event: int = -1) -> list[Draft]:
    """A turn's drafts that hold events numbered above `after_event`."""
    return [to_draft(row) for row in tx.all(Q.drafts_of_turn, turn=turn_id, after_event=after_event)]


def last_number(tx: Transaction, turn_id: str) -> int:
    """The highest event number that any draft of this turn used or reserved; -1: there is none."""
    row = tx.one(Q.next_event, turn=turn_id)
    return row[0] - 1 if row else -1


def answer_of(tx: Transaction, turn_id: str) -> bytes | None:
    """The model's answer as `commit_reply` stored it, besides its messages."""
    row = tx.one(Q.turn_answer, id=turn_id)
    return row[0] if row else None


def response_of(tx: Transaction, owner: str | None, response_id: str) -> Response:
    """The response of this Responses API id, with its turn; one whose messages joined a running turn is
    answered by that one. Raises NotFound."""
    row = tx.one(Q.response_by_id, id=response_id, owner=owner)
    if row is None:
        raise NotFound("response", response_id)
    previous, background, brought, request, created_at, *columns = row
    turn = to_turn(columns)
    other = answered_by(tx, turn) if turn.joined else None
    return Response(
        response_id,
        other or turn,
        request.encode(),
        previous,
        bool(background),
        brought,
        to_time(created_at),
        joined=other is not None,
    )


def answered_by(tx: Transaction, turn: Turn) -> Turn | None:
    """The turn that this one's messages joined, as far as it answers them: from their number on, and under
    their response's id. One without an answer, of a request that has no response, is returned as it is, to
    be resumed. None: it is not stored."""
    row = tx.one(Q.turn_by_id, id=turn.joined, owner=turn.owner)
    if row is None:
        return None
    other = to_turn(row)
    if turn.response_id is None and other.status in (TurnStatus.INTERRUPTED, TurnStatus.FAILED):
        return other
    return replace(other, first_seq=turn.first_seq, response_id=turn.response_id, joined=other.id)


def delete(tx: Transaction, owner: str, response_id: str) -> None:
    """Delete a turn's Responses API id; the turn and its messages stay."""
    if not tx.run(Q.delete_response, id=response_id, owner=owner):
        raise NotFound("response", response_id)
    tx.erased = True


def insert_response(tx: Transaction, request: TurnRequest, response: NewResponse) -> None:
    """Store the Responses API's name of a turn that begins or is queued."""
    tx.run(
        Q.insert_response,
        id=response.id,
        owner=request.owner,
        turn=request.turn_id,
        previous=response.previous_id,
        background=response.background,
        brought=len(request.messages),
        request=response.request.decode(),
        webhook=response.webhook,
        now=tx.now,
    )
