"""One HTTP request: authentication, limits, error handling.

`Endpoint` is the ASGI endpoint of a route. Before its handler runs, it checks Host and Origin, authenticates
the caller and applies the limits on requests. Exceptions of the handler are answered in the error shape of
the API that the request uses, OpenAI's or Anthropic's. `RequestContext` is what a handler is given; its parts
that read the body and send the response are in `bodies.py` and `response_writer.py`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from ..app import Holdfast, ModelWatch, TurnRunner
from ..domain.api_keys import ApiKey, Caller, acting_as, acting_for
from ..domain.ids import is_short, new_request_id
from ..errors import BadKey, HoldfastError, KeyRevoked, StoreFailed
from ..models.base import REQUEST_ID, Model
from ..settings import Settings
from .access_log import AccessLog
from .bodies import BodyReader, BodyThreads
from .connections import cycle_of
from .gate import Gate, Headers
from .http_errors import ErrorResponse, anthropic_error, failure_of
from .limits import KeyLimits
from .log_buffer import LogBuffer
from .metrics import Metrics
from .openai.parameters import BadParameter
from .response_writer import HttpResponse, JsonResponse, ResponseWriter
from .workers.worker import Worker

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Services:
    """The services that handlers use; `server.py` builds them once."""

    holdfast: Holdfast
    model: Model
    gate: Gate
    limits: KeyLimits
    body_threads: BodyThreads
    metrics: Metrics
    draining: asyncio.Event
    """Set when the server begins to stop: endless streams end now."""
    broken: asyncio.Event
    """Set when the store has failed permanently: the server must stop."""
    model_watch: ModelWatch
    access_log: AccessLog
    log_buffer: LogBuffer
    worker: Worker | None = None
    """This process among the server's workers; None: the server is one process."""

    @property
    def runner(self) -> TurnRunner:
        return self.holdfast.runner

    @property
    def settings(self) -> Settings:
        return self.holdfast.settings


@dataclass(slots=True)
class RequestContext(BodyReader, ResponseWriter):
    services: Services
    request: Request
    headers: Headers
    receive: Receive
    _send: Send
    id: str
    key: ApiKey | None = None
    _caller: Caller | None = None
    still_logged_in: Callable[[], Awaitable[bool]] | None = None
    """For a browser's request: returns whether its login is still valid."""
    started: bool = False
    status: int = 0
    began: float = field(default_factory=time.monotonic)
    _held: dict[str, Callable[[], None]] = field(default_factory=dict)
    _bytes: int = 0
    sent_bytes: int = 0
    """Bytes of the response's body so far."""
    reply_headers: dict[str, str] = field(default_factory=dict)
    """Headers to add to the response, whatever it is."""
    has_client: bool = True
    """False: a form of the dashboard makes this request, and its browser is not sent what becomes of it."""
    _cycle: RequestResponseCycle | None = field(init=False)

    def __post_init__(self) -> None:
        self._cycle = cycle_of(self.receive)

    @property
    def known_caller(self) -> Caller | None:
        """The caller; None: not authenticated."""
        return self._caller

    @property
    def caller(self) -> Caller:
        if self._caller is None:
            raise BadKey()
        return self._caller

    @property
    def owner(self) -> str:
        """The owner whose data this request writes."""
        return self.caller.owner

    @property
    def read_owner(self) -> str | None:
        """The owner whose data this request reads; None: all owners, for admins only."""
        return acting_for(self.caller, self.request.query_params.get("owner"))

    @property
    def hf(self) -> Holdfast:
        """The operations that handlers call."""
        return self.services.holdfast

    @property
    def is_anthropic(self) -> bool:
        """True: the request uses Anthropic's API, so its errors have Anthropic's shape."""
        path: str = self.request.scope["path"]
        return path.startswith("/v1/messages") or (
            path.startswith("/v1/models") and bool(self.headers.get("anthropic-version"))
        )

    def error(self, failure: ErrorResponse, ours: object = None) -> dict[str, Any]:
        """The body of an error response, in the shape of the API that the request uses; `ours`: its
        `holdfast` field."""
        added = {} if ours is None else {"holdfast": ours}
        if self.is_anthropic:
            return {**anthropic_error(failure, self.id), **added}
        return {"error": failure.object(), **added}

    async def check_key(self) -> None:
        """Raises KeyRevoked unless the request's API key, and its browser login if any, are still valid.

        Must be called after every wait, before anything is written or sent.
        """
        if self.key is None:
            return
        if not await self.hf.authenticator.is_valid(self.key):
            raise KeyRevoked
        if self.still_logged_in is not None and not await self.still_logged_in():
            raise KeyRevoked

    def header(self, *names: str) -> str | None:
        """The first of these headers that is present and not empty."""
        return self.headers.first(names)

    def query(self, name: str) -> str | None:
        return self.request.query_params.get(name)

    def query_number(self, name: str, default: int, least: int = 0, most: int = 2**53) -> int:
        text = self.request.query_params.get(name)
        if text is None or text == "":
            return default
        if not text.isascii() or not text.isdecimal() or len(text) > 16 or not least <= int(text) <= most:
            raise BadParameter(name, f"must be a whole number from {least} to {most}, not {text!r:.40}")
        return int(text)

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    async def changed(self, version: int, timeout: float) -> bool:
        """Wait for a commit, as `Store.changed`; the waits of one API key are paced together."""
        return await self.hf.changed(version, timeout, self._caller.key_id if self._caller else "open")


Handler = Callable[[RequestContext], Awaitable[HttpResponse]]


class Endpoint:
    """ASGI endpoint of a route: authenticates, applies limits, runs the handler, answers errors."""

    def __init__(self, services: Services, handler: Handler, *, name: str, open: bool = False) -> None:
        self._services = services
        self._handler = handler
        self._name = name
        self._open = open
        """True: no API key is needed."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services
        headers = Headers(scope["headers"])
        call = RequestContext(
            services, Request(scope, receive), headers, receive, send, request_id_of(headers)
        )
        REQUEST_ID.set(call.id)
        services.metrics.begin()
        try:
            services.gate.check(headers)
            if self._open:
                await (await self._handler(call)).send(call)
            else:
                await self._answer(call)
        except ClientDisconnect:
            return
        except StoreFailed as error:
            log.critical("%s; the server stops", error)
            services.broken.set()
            await fail(call, failure_of(error))
        except (HoldfastError, RecursionError) as error:
            note_trouble(self._name, call, error)
            await fail(call, failure_of(error))
        except Exception as error:
            log.exception("%s failed with an unexpected error (request %s)", self._name, call.id)
            await fail(call, failure_of(error))
        finally:
            call.give_back_all()
            services.metrics.end(self._name, call.status, call.began)
            services.access_log.note(call, self._name)

    async def _answer(self, call: RequestContext) -> None:
        services, headers = self._services, call.headers
        call.key = await services.holdfast.authenticator.authenticate(_token(headers))
        call._caller = acting_as(call.key, headers.once("x-holdfast-owner"))
        call.hold_slot()
        if call.request.path_params:
            await expand_id(call)
        answer = await self._handler(call)
        await call.check_key()  # it may have been revoked while the handler waited
        await answer.send(call)


async def expand_id(call: RequestContext) -> None:
    """Replace a shortened id in the path by the id that it begins. Raises AmbiguousId."""
    given = call.request.path_params.get("id")
    if given is not None and is_short(given):
        owner = call.owner if call.request.scope["path"].startswith("/v1/") else call.read_owner
        call.request.path_params["id"] = await call.hf.full_id(owner, given)


_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def request_id_of(headers: Headers) -> str:
    """The client's `X-Request-Id` if it can be used as one, else a new id."""
    given = headers.get("x-request-id")
    return given if given and _REQUEST_ID.fullmatch(given) else new_request_id()


def note_trouble(route: str, call: RequestContext, error: BaseException) -> None:
    """Log the details that are not sent to the client because they name files and hosts."""
    if isinstance(error, HoldfastError) and error.public != str(error):
        log.warning("%s: %s (request %s)", route, error, call.id)


async def fail(call: RequestContext, failure: ErrorResponse) -> None:
    """Send an error response. If a response has started, send nothing: the connection just ends."""
    if not call.started:
        await JsonResponse(call.error(failure), failure.status, failure.headers).send(call)


def _token(headers: Headers) -> str:
    """The API key of a request: a bearer token, else the header `x-api-key`; empty: none."""
    scheme, _, token = headers.get("authorization").partition(" ")
    return (token.strip() if scheme.lower() == "bearer" else "") or headers.get("x-api-key").strip()
