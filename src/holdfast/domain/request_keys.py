"""Idempotency keys: whether a request is a new one or a retry of a stored turn."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from ..errors import BadInput
from .ids import check_name
from .recovery import Origin
from .turns import Delivery, Turn, TurnStatus
from .value import Value

MAX_ROUTE = 100
OPENER_FOR = timedelta(hours=1)
"""How long an opener may be retried: longer than the official SDK's three tries of ten minutes."""
SHARED = b"shared"


class RequestKey(Value, frozen=True):
    """Idempotency key of a request: owner, route and key identify it; the hash says whether its body is also
    the same."""

    route: str
    key: str
    body_hash: bytes
    implied: bool = False
    """The client sent no key: `is_sent_again` decides whether an identical body is a retry."""
    retries: int = 0
    """How many times its client has already sent it, by the client's own count."""
    opener: bool = False
    """Names no conversation and has no answer in its history: only the body identifies it."""
    shared: bool = False
    """True: two conversations have sent this body, so it identifies neither."""
    named: bytes = b""
    """Hash of how the request names its conversation; empty: it names none."""

    def __post_init__(self) -> None:
        check_name("a request key", self.key)
        if not 0 < len(self.route) <= MAX_ROUTE or not (self.route.isascii() and self.route.isprintable()):
            raise BadInput(f"a route has 1 to {MAX_ROUTE} ASCII characters, not {self.route!r:.200}")

    @property
    def fingerprint(self) -> bytes:
        """The bytes stored to recognise this request later."""
        if not self.implied:
            return self.body_hash + self.named
        return self.body_hash + bytes((min(self.retries, 255),)) + (SHARED if self.shared else b"")

    @property
    def may_repeat(self) -> bool:
        """False: a new request, even if one like it is stored."""
        return not self.implied or not self.opener or self.retries > 0

    def as_new(self) -> RequestKey:
        """The same request, marked as a retry of none."""
        return replace(self, opener=True, retries=0)

    def as_queued(self) -> RequestKey:
        """The same request, queued after a turn that a client waits for. It does not repeat that turn,
        whatever its body, unless it has a key or is a retry by its client's own count."""
        return self.as_new() if self.implied and not self.retries else self

    def is_same_body(self, fingerprint: bytes) -> bool:
        return fingerprint[: len(self.body_hash)] == self.body_hash

    def names_the_same(self, fingerprint: bytes) -> bool:
        """True: it names its conversation as that request did, or names none."""
        return not self.named or fingerprint[len(self.body_hash) :] == self.named


def is_sent_again(key: RequestKey, fingerprint: bytes, turn: Turn) -> bool:
    """True: a request without an Idempotency-Key is a retry of this turn, whose request had the same body.

    Once a client has received the whole answer, the same body is a new request. An opener carries no evidence
    of its origin, so it must be a later try by its own count, and no client may have received anything: then
    no other client can be in that conversation.
    """
    if not key.is_same_body(fingerprint) or fingerprint.endswith(SHARED):
        return False
    if turn.status is TurnStatus.CANCELLED:
        return False
    if turn.recovery.origin is Origin.QUEUED:  # its client knows that it was accepted
        return key.retries > 0
    if key.opener:
        return key.retries > fingerprint[len(key.body_hash)] and turn.delivery is Delivery.NONE
    if (
        turn.status is TurnStatus.FAILED and not turn.waits
    ):  # its client received the error; only a counted retry repeats it
        return key.retries > 0
    return turn.status is not TurnStatus.COMPLETED or turn.delivery is not Delivery.WHOLE
