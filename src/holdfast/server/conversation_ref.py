"""Reads which conversation a request names, and writes the ids of the conversation into its response.

In: a session id (newest or stale), a conversation id or an alias; a session key; or nothing. Out: the
effective session and the stable conversation id, in headers and in the response's `holdfast` field. The
headers of Hermes work too. Also reads from its headers how its turn is retried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256

from ..domain.conversations import Address
from ..domain.ids import check_name, is_ours, is_short
from ..domain.notices import Notice
from ..domain.queue import WhenBusy
from ..domain.recovery import Origin, RequestToStore, encoded_request, is_covered
from ..domain.request_keys import RequestKey
from ..domain.sessions import Session
from ..domain.turns import Turn, TurnBegun, reset_before
from ..domain.value import Value
from ..errors import BadInput, NotAllowed, NotFound
from .client_names import ClientName, client_name
from .http import RequestContext
from .objects import notice
from .schemas import HoldfastObject

SESSION_ID = ("x-holdfast-session-id", "x-hermes-session-id")
SESSION_KEY = ("x-holdfast-session-key", "x-hermes-session-key")
SOURCE = "x-holdfast-source"
WHEN_BUSY = "x-holdfast-when-busy"
ON_DISCONNECT = "x-holdfast-on-disconnect"
RECOVER = "x-holdfast-recover"
STORE = "x-holdfast-store"
STORED = "x-holdfast-stored"
IDEMPOTENCY_KEY = "idempotency-key"
RETRY_COUNT = "x-stainless-retry-count"
CLIENT = ("user-agent", "x-forwarded-for")
"""Headers that are equal in a request and its retry by the same program through the same proxies."""

DEFAULT_SOURCE = "api"
_WHEN_BUSY = tuple(WhenBusy)


class ConversationRef(Value, frozen=True):
    """The conversation that a request's headers name, and how its turn handles conflicts and disconnects."""

    address: Address
    source: str
    alias: str | None
    """A new alias to add to the conversation."""
    when_busy: WhenBusy
    interrupted_by_leaving: bool
    client: ClientName | None = None
    """The name that the client's program gives its session, if no holdfast header names a conversation."""
    side_of: str | None = None
    """The conversation to which the side requests of the client's program belong; None: it has none."""
    never: bool = False
    """True: nothing of this request is stored (`X-Holdfast-Store: never`, or its API key says so)."""

    def at(self, address: Address) -> ConversationRef:
        """A copy with the address of the conversation that the body names."""
        return replace(self, address=address)

    @property
    def names_something(self) -> bool:
        return self.address.id is not None or self.address.key is not None

    def keeps(self, store: bool, dropped: bool) -> bool:
        """True: the request's turn is stored. `store` is what the request says, True by default; `dropped`:
        `[clients] store_false` is `drop`, so a program's name does not override it."""
        if self.never:
            return False
        if store or not self.names_something:
            return store
        return self.client is None or (self.client.overrides_store and not dropped)


async def conversation_ref_of(call: RequestContext, cache_key: object = None) -> ConversationRef:
    """Read the headers. If both an id and a session key are sent, the id decides; an unknown id becomes an
    alias of the session key's conversation. Without either, a name that the client's program sends is used;
    `cache_key` is the body's `prompt_cache_key`. With either, that name becomes an alias if it is unknown, so
    that the program finds the conversation again without the header; a sub-agent's conversation is its own.
    """
    id_, key = call.header(*SESSION_ID), call.header(*SESSION_KEY)
    alias: str | None = None
    client = client_name(call.headers, call.services.settings.clients.names, cache_key)
    side_of = (id_ or client.name) if client else None
    if client is not None and (id_ is not None or key is not None):
        if client.parent is None:
            if key is None and client.overrides_store:
                alias = await _unknown(call, client.name)
            client = None
        elif id_ is not None:
            client, id_ = replace(client, parent=id_), None
    if client is not None:
        id_, key = client.name, None
    if id_ is not None and is_short(id_):
        id_ = await call.hf.full_id(call.owner, id_)
    if id_ is not None and key is not None:
        try:
            await call.hf.resolve(call.owner, Address(id=id_))
            key = None
        except NotFound:
            if not Address(id=id_).may_create:
                raise
            id_, alias = None, id_
    address = Address(id=id_, key=key)
    source = call.header(SOURCE)
    if source is not None:
        check_name("X-Holdfast-Source", source)
    return ConversationRef(
        address,
        source or ("" if key and ":" in key else DEFAULT_SOURCE),
        alias,
        WhenBusy(_choice(call, WHEN_BUSY, _WHEN_BUSY, call.services.settings.turns.when_busy)),
        _choice(call, ON_DISCONNECT, ("finish", "interrupt"), call.services.settings.server.on_disconnect)
        == "interrupt",
        client,
        side_of,
        _is_never_stored(call),
    )


def _is_never_stored(call: RequestContext) -> bool:
    return _choice(call, STORE, ("never",), "") == "never" or not call.caller.keeps


def check_stores(call: RequestContext, what: str) -> None:
    """Raises NotAllowed, naming `what`, if nothing of this request may be stored: then it can do nothing."""
    if _is_never_stored(call):
        raise NotAllowed(
            f"{what} stores what it is sent, and nothing of this request may be stored: its API key was "
            "created with `--store never`, or it has the header X-Holdfast-Store"
        )


async def _unknown(call: RequestContext, name: str) -> str | None:
    """The name, if it can become an alias: no conversation of this owner has it."""
    if is_ours(name):
        return None
    try:
        await call.hf.resolve(call.owner, Address(id=name, create=False))
    except NotFound:
        return name
    return None


def idempotency_key(route: str, key: str, digest: bytes, names: bytes = b"") -> RequestKey:
    """The key of this header; `names`: a hash of how the request names its conversation."""
    return RequestKey(route, check_name("an Idempotency-Key", key), digest, named=names)


def request_key(
    call: RequestContext, route: str, digest: bytes, *, opener: bool, client: ClientName | None = None
) -> RequestKey:
    """The idempotency key by which a retry is recognised: the header Idempotency-Key, else a hash of the body
    and of the conversation it names. An `opener` names no conversation and has no answer in its history. Its
    hash includes the API key and the client's address and program, so that few other clients can be mistaken
    for it; any other request is the same one also with another API key of its owner."""
    named = f"{call.header(*SESSION_ID) or ''}\0{call.header(*SESSION_KEY) or ''}"
    if client is not None:
        named = f"{client.name}\0"
    key = call.header(IDEMPOTENCY_KEY)
    if key is not None:
        names = sha256(named.encode()).digest()[:16] if named.strip("\0") else b""
        return idempotency_key(route, key, digest, names)
    whose = named
    if opener:
        peer = call.request.client
        sender = (call.caller.key_id, peer.host if peer else "")
        whose = "\0".join((*sender, *(call.headers.get(name) for name in CLIENT)))
    implied = sha256(f"{whose}\0\0".encode() + digest).hexdigest()
    count = call.header(RETRY_COUNT) or "0"
    retries = int(count) if count.isascii() and count.isdecimal() and len(count) < 4 else 0
    return RequestKey(route, f"body:{implied}", digest, implied=True, retries=retries, opener=opener)


def headers_of(session: Session, turn: Turn) -> dict[str, str]:
    """The response headers with the ids. The first turn after a reset also has `x-holdfast-reset`."""
    headers = {
        "x-holdfast-session-id": session.id,
        "x-hermes-session-id": session.id,
        "x-holdfast-conversation-id": session.conversation_id,
        "x-holdfast-turn-id": turn.id,
    }
    headers |= attempt_header(turn.attempt)
    reset = reset_before(session, turn)
    return {**headers, "x-holdfast-reset": reset} if reset else headers


def attempt_header(attempt: int) -> dict[str, str]:
    """The response header of a turn that was taken up."""
    return {"x-holdfast-turn-attempt": str(attempt)} if attempt > 1 else {}


def headers_begun(begun: TurnBegun) -> dict[str, str]:
    """`headers_of` for a turn that runs in this process."""
    return headers_of(begun.session, begun.turn)


def about(
    session: Session, turn: Turn, addressed: str | None = None, notices: Sequence[Notice] = ()
) -> HoldfastObject:
    """The `holdfast` field of a response. `addressed`: the session that the request named."""
    return HoldfastObject(
        session_id=session.id,
        conversation_id=session.conversation_id,
        turn_id=turn.id,
        compacted=addressed is not None and addressed != session.id,
        reset=reset_before(session, turn),
        attempt=turn.attempt,
        notices=[notice(each) for each in notices] if notices else [],
    )


def about_begun(begun: TurnBegun) -> HoldfastObject:
    return about(begun.session, begun.turn, begun.addressed, begun.notices)


def to_store(
    call: RequestContext,
    surface: str,
    body: bytes,
    instructions: tuple[bytes, ...],
    *,
    origin: Origin = Origin.FOREGROUND,
    headers: Mapping[str, str] | None = None,
) -> RequestToStore:
    """What `begin_turn` stores of the request, to ask the model again on any node (`rebuild.py`).
    `body`: its fields as JSON, without the messages and without any key."""
    policy = call.services.settings.turns.recover
    return RequestToStore(
        encoded_request(surface, body, instructions, call.caller.key_id, dict(headers) if headers else None),
        origin,
        is_covered(policy, origin, wants_recovery(call)),
    )


def wants_recovery(call: RequestContext) -> bool | None:
    """Whether the request asks for automatic retries of its turn; None: the settings decide."""
    chosen = _choice(call, RECOVER, ("yes", "no"), "")
    return chosen == "yes" if chosen else None


def _choice(call: RequestContext, header: str, choices: tuple[str, ...], default: str) -> str:
    value = call.header(header)
    if value is None:
        return default
    if value.lower() not in choices:
        raise BadInput(f"{header} must be {' or '.join(choices)}, not {value!r:.60}")
    return value.lower()
