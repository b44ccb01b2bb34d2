"""`/connectors/…`, `/api/connectors`, `/api/pairings`, `/api/deliveries`, `POST /api/sessions/{id}/link`,
files of messages.

What a platform pushes is authenticated by the platform's signature, not by an API key; a refused request
stores nothing. Pairing decides who may write, so it is for admins.
"""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import quote

from ...app import ConnectorDown, WrongSignature
from ...domain.api_keys import check_admin
from ...domain.connectors import PairingState
from .. import objects
from ..http import RequestContext
from ..http_errors import RETRY, HttpError
from ..limits import FORM_SECONDS, LONGEST_PUSH
from ..openai.parameters import BadParameter, RequestBody, must_be
from ..owners import OWNER, OWNERS, note_reading, owner_of, owners_of, shows_owner
from ..response_writer import JsonResponse
from ..routes import Parameter, Route
from ..schemas import (
    AcceptedObject,
    AttachmentObject,
    ConnectorObject,
    DeliveryObject,
    LinkObject,
    ListObject,
    PairingObject,
)
from .sessions import LARGEST_PAGE, paging

STATES = ("pending", "sent", "dead")


class ApproveBody(RequestBody, frozen=True, kw_only=True):
    code: Annotated[str, must_be("a pairing code", minLength=1, maxLength=64)]
    owner: Annotated[str | None, must_be("text", minLength=1, maxLength=512)] = None
    key: Annotated[str | None, must_be("text", minLength=1, maxLength=512)] = None


# --- what platforms push ------------------------------------------------------------------------------------


async def webhook(call: RequestContext) -> JsonResponse:
    return await _pushed(call, "webhook")


async def telegram(call: RequestContext) -> JsonResponse:
    return await _pushed(call, "telegram")


async def _pushed(call: RequestContext, kind: str) -> JsonResponse:
    call.hf.connectors.require(kind, call.path("name"))  # before its body: who sends it is not known yet
    with call.services.gate.push():
        body = await call.body(FORM_SECONDS, LONGEST_PUSH)
    headers = {name: call.headers.get(name) for name in PUSHED_HEADERS}
    try:
        stored = await call.hf.connectors.pushed(kind, call.path("name"), headers, body)
    except WrongSignature as refused:
        raise HttpError(401, str(refused), "bad_signature") from None
    except ConnectorDown as down:
        raise HttpError(503, str(down), "connector_down", headers=RETRY) from None
    return JsonResponse(AcceptedObject(status="accepted" if stored else "unchanged"))


PUSHED_HEADERS = (
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
    "x-telegram-bot-api-secret-token",
)
"""The headers by which platforms sign what they push."""


# --- connectors and pairings --------------------------------------------------------------------------------


async def connectors(call: RequestContext) -> JsonResponse:
    check_admin(call.caller, "/api/connectors")
    states = await call.hf.connector_states()
    return JsonResponse(objects.listed([objects.connector(each) for each in states]))


async def pairings(call: RequestContext) -> JsonResponse:
    check_admin(call.caller, "/api/pairings")
    state = call.query("state")
    if state is not None and state not in set(PairingState):
        raise BadParameter("state", f"must be pending, approved or revoked, not {state!r:.40}")
    found = await call.hf.pairings(PairingState(state) if state else None)
    return JsonResponse(objects.listed([objects.pairing(each) for each in found]))


async def approve(call: RequestContext) -> JsonResponse:
    check_admin(call.caller, "/api/pairings")
    body = await call.decoded(ApproveBody)
    return JsonResponse(objects.pairing(await call.hf.approve_pairing(body.code, body.owner, body.key)))


async def revoke(call: RequestContext) -> JsonResponse:
    check_admin(call.caller, "/api/pairings")
    await call.decoded(RequestBody)
    return JsonResponse(objects.pairing(await call.hf.revoke_pairing(call.path("id"))))


# --- deliveries and links -----------------------------------------------------------------------------------


async def deliveries(call: RequestContext) -> JsonResponse:
    state = call.query("state") or None
    if state is not None and state not in STATES:
        raise BadParameter("state", f"must be pending, sent or dead, not {state!r:.40}")
    page = await call.hf.deliveries(
        owners_of(call),
        state=state,
        after=call.query("after") or None,
        limit=call.query_number("limit", 20, 1, LARGEST_PAGE),
    )
    data = [objects.delivery(each, with_owner=shows_owner(call)) for each in page.items]
    return JsonResponse(objects.listed(data, has_more=page.has_more))


async def retry(call: RequestContext) -> JsonResponse:
    await call.decoded(RequestBody)
    found = await call.hf.retry_delivery(owner_of(call), call.path("id"))
    return JsonResponse(objects.delivery(found, with_owner=shows_owner(call)))


async def link(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    await call.decoded(RequestBody)
    session = await call.hf.current_session(owner, call.path("id"))
    made = await call.hf.new_link(owner, session.conversation_id)
    return JsonResponse(
        LinkObject(
            code=made.code,
            session_id=session.id,
            conversation_id=made.conversation_id,
            expires_at=objects.time(made.expires_at),
        )
    )


async def attachments(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    session = await call.hf.session_named(owner, call.path("id"))
    await note_reading(call, owner, session)
    page = await call.hf.attachments(
        owner,
        session.conversation_id,
        after=call.query("after") or None,
        limit=call.query_number("limit", 20, 1, LARGEST_PAGE),
    )
    data = [objects.attachment(each) for each in page.items]
    return JsonResponse(objects.listed(data, has_more=page.has_more))


async def attachment(call: RequestContext) -> JsonResponse:
    """The bytes of a file. They may be hostile: no browser shows or runs them."""
    owner = owner_of(call)
    found, body = await call.hf.attachment(owner, call.path("id"))
    if owner != call.owner:
        await note_reading(call, owner, await call.hf.session_named(owner, found.conversation_id))
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(found.name or found.id, safe='')}",
        "content-security-policy": "sandbox; default-src 'none'",
    }
    return JsonResponse(body, headers=headers, media_type=BYTES)


BYTES = "application/octet-stream"

ROUTES = (
    Route(
        "GET",
        "/api/sessions/{id}/attachments",
        attachments,
        "List the files that came with the conversation's messages, oldest first.",
        parameters=(OWNER, *paging()),
        answer=ListObject[AttachmentObject],
    ),
    Route(
        "GET",
        "/api/attachments/{id}",
        attachment,
        "The bytes of a file that came with a message.",
        parameters=(OWNER,),
        media_types=(BYTES,),
    ),
    Route(
        "POST",
        "/connectors/webhook/{name}",
        webhook,
        "Take a message from a bridge, signed by Standard Webhooks.",
        open=True,
        answer=AcceptedObject,
    ),
    Route(
        "POST",
        "/connectors/telegram/{name}",
        telegram,
        "Take an update from Telegram, with the secret token given to setWebhook.",
        open=True,
        answer=AcceptedObject,
    ),
    Route(
        "GET",
        "/api/connectors",
        connectors,
        "List connectors: whether each can reach its platform, and what it has to send; admin keys.",
        answer=ListObject[ConnectorObject],
    ),
    Route(
        "GET",
        "/api/pairings",
        pairings,
        "List people who may write through a connector, or have asked to; admin keys.",
        parameters=(
            Parameter("state", "Only those in this state.", Literal["pending", "approved", "revoked"]),
        ),
        answer=ListObject[PairingObject],
    ),
    Route(
        "POST",
        "/api/pairings",
        approve,
        "Let the person with this code write; `owner` and `key` bind them to a conversation; admin keys.",
        body=ApproveBody,
        answer=PairingObject,
    ),
    Route(
        "POST",
        "/api/pairings/{id}/revoke",
        revoke,
        "Refuse a person from now on. Idempotent; admin keys.",
        answer=PairingObject,
    ),
    Route(
        "GET",
        "/api/deliveries",
        deliveries,
        "List messages to platforms, oldest first.",
        parameters=(
            Parameter("state", "Only those in this state.", Literal["pending", "sent", "dead"]),
            *paging(),
            OWNERS,
        ),
        answer=ListObject[DeliveryObject],
    ),
    Route(
        "POST",
        "/api/deliveries/{id}/retry",
        retry,
        "Send a dead letter again.",
        parameters=(OWNER,),
        answer=DeliveryObject,
    ),
    Route(
        "POST",
        "/api/sessions/{id}/link",
        link,
        "Make a code by which a place of the same owner joins this conversation.",
        parameters=(OWNER,),
        answer=LinkObject,
    ),
)
