"""The webhook connector: any bridge posts messages to us, and gets replies posted back, both signed.

Both directions follow Standard Webhooks: headers `webhook-id`, `webhook-timestamp` and `webhook-signature`
(`v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`), with a secret `whsec_…` that both sides have.
An inbound request's `webhook-id` is the message's id: the same id again is the same message, answered once. A
timestamp more than five minutes off is refused. An outbound request has the same `webhook-id` in every
attempt, so a receiver that honours it gets each message exactly once.

Inbound body: `{"type": "message", "data": {"place", "person", "text", "name"?, "room"?, "key"?,
"message"?}}`; `type` may also be `edit` or `delete`, and `message` is then the `webhook-id` of the message
that it changes. Outbound body: `{"type": "message.sent", "timestamp", "data": {"id", "place", "text",
"reply_to"}}`; a reply of `{"id": "…"}` is the platform's id. The events of background responses
(`response.completed`, …) have OpenAI's shape.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from ..domain.connectors import Incoming, IncomingKind, PlatformLimits
from ..errors import BadInput, BadSetting
from ..settings import WebhookSettings
from .base import SendFailed, SendRefused, Sink, WrongSignature, secret_of

if TYPE_CHECKING:
    import aiohttp

TOLERANCE_SECONDS = 300
TIMEOUT_SECONDS = 30.0
LONGEST_ID = 256
REFUSED_FOR_GOOD = frozenset({400, 404, 405, 410, 413, 422})
"""Statuses of a receiver that will not change by waiting."""


class InboundData(msgspec.Struct):
    place: str
    """The chat, room or thread: replies go there."""
    text: str = ""
    person: str = ""
    """Who wrote it; empty: the place itself, a direct chat."""
    name: str = ""
    room: str = ""
    """The group's id; empty: a direct chat."""
    key: str = ""
    """The session key; empty: `webhook:<place>`."""
    message: str = ""
    """For an edit or a deletion: the `webhook-id` of the message."""


class InboundMessage(msgspec.Struct):
    data: InboundData
    type: str = "message"


class Signer:
    """Signs and verifies by Standard Webhooks with one secret."""

    def __init__(self, secret: str, where: str = "the secret") -> None:
        try:
            self._secret = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except (binascii.Error, ValueError):
            raise BadSetting(f"{where} must be a Standard Webhooks secret: whsec_ and base64") from None
        if len(self._secret) < 16:
            raise BadSetting(f"{where} is too short: a Standard Webhooks secret has at least 16 bytes")

    def signature(self, message_id: str, timestamp: int, body: bytes) -> str:
        signed = b"%b.%d.%b" % (message_id.encode(), timestamp, body)
        return "v1," + base64.b64encode(hmac.digest(self._secret, signed, hashlib.sha256)).decode()

    def headers(self, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
        return {
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": self.signature(message_id, timestamp, body),
        }

    def verify(self, headers: Mapping[str, str], body: bytes, now: float) -> tuple[str, int]:
        """The message's id and timestamp. Raises WrongSignature."""
        message_id = headers.get("webhook-id", "")
        stamp, given = headers.get("webhook-timestamp", ""), headers.get("webhook-signature", "")
        if not message_id or len(message_id) > LONGEST_ID or not message_id.isprintable() or not given:
            raise WrongSignature("webhook-id, webhook-timestamp and webhook-signature are required")
        if not stamp.isascii() or not stamp.isdecimal() or len(stamp) > 12:
            raise WrongSignature("webhook-timestamp must be a Unix time in seconds")
        timestamp = int(stamp)
        wanted = self.signature(message_id, timestamp, body).encode()
        if not any(hmac.compare_digest(each.encode(), wanted) for each in given.split()[:20]):
            raise WrongSignature("the signature does not match")
        if abs(now - timestamp) > TOLERANCE_SECONDS:
            raise WrongSignature("webhook-timestamp is more than five minutes off")
        return message_id, timestamp


class WebhookConnector:
    kind = "webhook"
    limits = PlatformLimits(characters=100_000, deduplicates=True)

    def __init__(self, name: str, settings: WebhookSettings) -> None:
        where = f"connectors.{name}.token_env"
        self._signer = Signer(secret_of(settings.token_env, where), where)
        self._url = settings.url
        self._session: aiohttp.ClientSession | None = None

    async def run(self, sink: Sink) -> None:
        """Nothing is fetched: bridges post to us. Reports that it is up, and waits."""
        await sink.up()
        await asyncio.Event().wait()

    async def accept(self, headers: Mapping[str, str], body: bytes) -> Sequence[Incoming]:
        message_id, timestamp = self._signer.verify(headers, body, time.time())
        try:
            said = msgspec.json.decode(body, type=InboundMessage)
            kind = IncomingKind(said.type)
        except (msgspec.MsgspecError, ValueError) as error:
            raise BadInput(f"the body is not a message of this connector: {error}") from None
        data = said.data
        if not data.place.strip():
            raise BadInput("data.place must not be empty")
        if kind is not IncomingKind.MESSAGE and not data.message:
            raise BadInput("data.message must name the webhook-id of the message")
        return [
            Incoming(
                platform_id=data.message or message_id,
                address=data.place,
                key=data.key or f"webhook:{data.place}",
                person=data.person or data.place,
                text=data.text,
                room=data.room,
                name=data.name,
                sent_at=datetime.fromtimestamp(timestamp, UTC),
                kind=kind,
            )
        ]

    async def send(self, address: str, text: str, *, key: str, reply_to: str | None = None) -> str:
        now = datetime.fromtimestamp(int(time.time()), UTC)
        body = msgspec.json.encode(
            {
                "type": "message.sent",
                "timestamp": now.isoformat().replace("+00:00", "Z"),
                "data": {"id": key, "place": address, "text": text, "reply_to": reply_to},
            }
        )
        return await self._post(body, key) or key

    async def post_event(self, body: bytes, *, key: str) -> None:
        await self._post(body, key)

    async def _post(self, body: bytes, key: str) -> str:
        """Post once, signed; returns the platform's id in the answer, if it has one."""
        import aiohttp

        if not self._url:
            raise SendFailed("connectors: url is empty, so nothing can be sent", timedelta(minutes=30))
        headers = {
            "content-type": "application/json",
            **self._signer.headers(key, int(time.time()), body),
        }
        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
                headers={"user-agent": "holdfast"},
            )
        try:
            async with self._session.post(
                self._url, data=body, headers=headers, allow_redirects=False
            ) as answer:
                if 200 <= answer.status < 300:
                    return _id_in(await answer.content.read(65_536))
                if answer.status in REFUSED_FOR_GOOD:
                    raise SendRefused(f"the receiver answered {answer.status}")
                raise SendFailed(f"the receiver answered {answer.status}", retry_after_of(answer.headers))
        except TimeoutError:
            raise SendFailed(f"the receiver did not answer within {TIMEOUT_SECONDS:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise SendFailed(f"the receiver cannot be reached: {type(error).__name__}") from None

    async def edit(self, address: str, message_id: str, text: str, *, key: str) -> None:
        raise SendRefused("a webhook's message cannot be edited")

    async def typing(self, address: str) -> None:
        return None

    async def react(self, address: str, message_id: str, reaction: str) -> None:
        return None

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def retry_after_of(headers: Mapping[str, str]) -> timedelta | None:
    """The `Retry-After` of an answer, in seconds; None: it has none, or only a date."""
    value = headers.get("Retry-After", "")
    return timedelta(seconds=min(int(value), 86_400)) if value.isascii() and value.isdecimal() else None


def _id_in(body: bytes) -> str:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    given = found.get("id") if isinstance(found, dict) else None
    return given[:LONGEST_ID] if isinstance(given, str) else ""
