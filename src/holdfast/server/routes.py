"""A route's declaration: method, path, authentication, and the types of its parameters, body and answer.

`/openapi.json` is derived from these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.routing import Route as StarletteRoute
from starlette.types import Receive, Scope, Send

from ..domain.value import Value
from .gate import Headers
from .http import Endpoint, Handler, RequestContext, Services
from .http_errors import HttpError
from .response_writer import HttpResponse, JsonResponse
from .schemas import ErrorObject

TypeForm = Any
"""A type as `msgspec.json.schema` takes it (a Struct, `str`, `Annotated[int, Meta(ge=1)]`); or a JSON schema,
for an object of another API."""


class Parameter(Value, frozen=True):
    """A query parameter or header of a route."""

    name: str
    meaning: str
    type: TypeForm = str
    where: str = "query"
    required: bool = False
    default: str | int | None = None


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    handler: Handler
    meaning: str
    """What it does, in one sentence."""
    open: bool = False
    """True: no API key is needed."""
    parameters: tuple[Parameter, ...] = ()
    body: TypeForm | None = None
    body_optional: bool = False
    answer: TypeForm = dict[str, Any]
    """The type of a successful response; a tuple: any of these types."""
    status: int = 200
    also: Mapping[int, str] = field(default_factory=dict)
    """Other statuses that are not errors, with their meaning: 2xx has the same answer, 3xx none."""
    media_types: tuple[str, ...] = ("application/json",)
    error: TypeForm = ErrorObject


def mounted(services: Services, routes: Iterable[Route]) -> list[StarletteRoute]:
    """Starlette routes, one per path; a wrong method is answered with 405."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for route in routes:
        endpoint = Endpoint(services, route.handler, name=route.path, open=route.open)
        by_path.setdefault(route.path, {})[route.method] = endpoint
    return [StarletteRoute(path, _Methods(services, ends)) for path, ends in by_path.items()]


class _Methods:
    """The endpoints of one path, by method. Answers OPTIONS, including CORS preflights."""

    def __init__(self, services: Services, endpoints: Mapping[str, Endpoint]) -> None:
        self._endpoints = endpoints
        self._allowed = ", ".join(sorted({*endpoints, "OPTIONS"}))
        self._options = Endpoint(services, self._preflight, name="OPTIONS", open=True)
        self._wrong = Endpoint(services, self._refuse, name="wrong method", open=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        endpoint = self._endpoints.get("GET" if method == "HEAD" else method)
        if endpoint is None:
            endpoint = self._options if method == "OPTIONS" else self._wrong
        await endpoint(scope, receive, send)

    async def _preflight(self, call: RequestContext) -> HttpResponse:
        headers = {"allow": self._allowed}
        if call.services.gate.headers_for(call.headers):
            headers |= {
                "access-control-allow-methods": self._allowed,
                "access-control-allow-headers": call.headers.get("access-control-request-headers", "*"),
                "access-control-max-age": "600",
            }
        return JsonResponse(b"", 204, headers)

    async def _refuse(self, call: RequestContext) -> HttpResponse:
        raise HttpError(
            405,
            f"{call.request.method} is not allowed for {call.request.url.path}; allowed: {self._allowed}",
            "method_not_allowed",
            headers={"allow": self._allowed},
        )


UNVERSIONED = ("/chat/completions", "/conversations", "/messages", "/models", "/responses")
"""Paths of the model APIs as clients ask for them whose base URL lacks /v1."""


API = ("/v1", "/api")


def wants_page(method: str, path: str, headers: Headers) -> bool:
    """True if a browser opens this address, and it is not below one of the APIs."""
    is_api = path.startswith(tuple(f"{each}/" for each in API)) or path in API
    return method in ("GET", "HEAD") and not is_api and "text/html" in headers.get("accept")


async def unknown(call: RequestContext) -> HttpResponse:
    """Raises HttpError 404: no route has this path."""
    path = call.request.url.path
    hint = f"did you mean /v1{path:.100}?" if path.startswith(UNVERSIONED) else "GET /openapi.json lists all"
    raise HttpError(404, f"no route {path!r:.200}; {hint}", "not_found")
