"""`GET /openapi.json`: describes every route, from the same table that the server mounts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from .. import __version__
from .http import JsonResponse, RequestContext
from .routes import Parameter, Route
from .schemas import SCHEMAS, ref

PATH_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
ERROR = {"application/json": {"schema": ref("Error")}}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The OpenAPI document of these routes."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = PATH_PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "holdfast",
            "version": __version__,
            "description": "Durable sessions for LLM agents, behind the OpenAI API. A key sees what is its "
            "owner's; a bridge key names the person it speaks for with X-Holdfast-Owner.",
        },
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    in_path = [Parameter(name, f"Which {name}.", where="path") for name in PATH_PARAMETER.findall(route.path)]
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.meaning,
        "tags": [route.path.split("/")[2] if route.path.count("/") > 1 else "server"],
        "parameters": [_parameter(each) for each in (*in_path, *route.parameters)],
        "responses": _responses(route),
    }
    if route.body is not None:
        content = {"application/json": {"schema": route.body}}
        operation["requestBody"] = {"required": not route.body_optional, "content": content}
    if route.open:
        operation["security"] = []
    return operation


def _responses(route: Route) -> dict[str, Any]:
    content = {kind: {"schema": _said(route, kind)} for kind in route.media_types}
    responses: dict[str, Any] = {str(route.status): {"description": "As asked.", "content": content}}
    for status, meaning in route.also.items():
        said = {"content": content} if status < 300 else {}
        responses[str(status)] = {"description": meaning, **said}
    return {**responses, "default": {"description": "An error, in OpenAI's shape.", "content": ERROR}}


def _said(route: Route, media_type: str) -> dict[str, Any]:
    """The response schema for this media type; streams and plain text are strings."""
    return dict(route.answer) if media_type == "application/json" else {"type": "string"}


def _parameter(value: Parameter) -> dict[str, Any]:
    return {
        "name": value.name,
        "in": value.where,
        "required": value.required or value.where == "path",
        "description": value.meaning,
        "schema": dict(value.schema),
    }


def _operation_id(route: Route) -> str:
    words = re.findall(r"\w+", PATH_PARAMETER.sub(r"by_\1", route.path))
    return "_".join((route.method.lower(), *words))


def routes_of(everything: Callable[[], Iterable[Route]]) -> tuple[Route, ...]:
    """The route of `/openapi.json`. `everything` is called on the first request only."""
    made: list[dict[str, Any]] = []

    async def openapi(call: RequestContext) -> JsonResponse:
        if not made:
            made.append(document(everything()))
        return JsonResponse(made[0])

    return (Route("GET", "/openapi.json", openapi, "This document: every route."),)
