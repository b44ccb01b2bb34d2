"""`GET /openapi.json`: describes every route, derived from the same table that the server mounts.

The schemas are those of the types that a route declares for its parameters, its body and its answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from .. import __version__
from .http import RequestContext
from .response_writer import JsonResponse
from .routes import Parameter, Route
from .schemas import ErrorObject

PATH_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
REFERENCE = "#/components/schemas/"


class Components:
    """The JSON schemas of all types that these routes use."""

    def __init__(self, routes: Iterable[Route]) -> None:
        types = [str, *(each for route in routes for each in _types_of(route))]
        derived, components = msgspec.json.schema_components(types, ref_template=f"{REFERENCE}{{name}}")
        self._schemas = list(zip(types, map(_renamed, derived), strict=True))
        self.schemas = {
            component_name(name): {**_renamed(schema), "title": component_name(name)}
            for name, schema in components.items()
        }

    def schema(self, wanted: Any) -> dict[str, Any]:
        """The schema of a type; a reference, if it is a component. A schema is returned as it is."""
        if isinstance(wanted, Mapping):
            return dict(wanted)
        if isinstance(wanted, tuple):
            return {"anyOf": [self.schema(each) for each in wanted]}
        return next(dict(schema) for known, schema in self._schemas if known == wanted)


def _types_of(route: Route) -> list[Any]:
    answers = route.answer if isinstance(route.answer, tuple) else (route.answer,)
    found = [*answers, route.body, route.error, *(each.type for each in route.parameters)]
    return [each for each in found if each is not None and not isinstance(each, Mapping)]


def component_name(name: str) -> str:
    """The public name of a class: without `Object`, and `SessionList` for a list of `SessionObject`."""
    inner = re.fullmatch(r"ListObject_(\w+)_", name)
    return f"{component_name(inner[1])}List" if inner else name.removesuffix("Object")


def _renamed(schema: Any) -> Any:
    """The same schema, with public names in its references, and with the type of an enum of text."""
    if isinstance(schema, list):
        return [_renamed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(schema.get("$ref"), str):
        return {**schema, "$ref": REFERENCE + component_name(schema["$ref"].removeprefix(REFERENCE))}
    text = all(isinstance(each, str) for each in schema.get("enum", (None,)))
    return {**({"type": "string"} if text else {}), **{name: _renamed(each) for name, each in schema.items()}}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The OpenAPI document of these routes."""
    routes = tuple(routes)
    components = Components(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = PATH_PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "holdfast",
            "version": __version__,
            "description": "Durable sessions for LLM agents, with the OpenAI API. An API key sees the data "
            "of its owner; a bridge key names the owner that it acts for with X-Holdfast-Owner.",
        },
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": components.schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, components: Components) -> dict[str, Any]:
    in_path = [Parameter(name, f"Which {name}.", where="path") for name in PATH_PARAMETER.findall(route.path)]
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.meaning,
        "tags": [route.path.split("/")[2] if route.path.count("/") > 1 else "server"],
        "parameters": [_parameter(each, components) for each in (*in_path, *route.parameters)],
        "responses": _responses(route, components),
    }
    if route.body is not None:
        content = {"application/json": {"schema": components.schema(route.body)}}
        operation["requestBody"] = {"required": not route.body_optional, "content": content}
    if route.open:
        operation["security"] = []
    return operation


def _responses(route: Route, components: Components) -> dict[str, Any]:
    """The responses by status. Streams and plain text are strings."""
    json = components.schema(route.answer)
    content = {
        kind: {"schema": json if kind == "application/json" else {"type": "string"}}
        for kind in route.media_types
    }
    responses: dict[str, Any] = {str(route.status): {"description": "Success.", "content": content}}
    for status, meaning in route.also.items():
        body = {"content": content} if status < 300 else {}
        responses[str(status)] = {"description": meaning, **body}
    error = {"application/json": {"schema": components.schema(route.error)}}
    shape = "OpenAI's" if route.error is ErrorObject else "Anthropic's"
    return {**responses, "default": {"description": f"An error, in {shape} shape.", "content": error}}


def _parameter(value: Parameter, components: Components) -> dict[str, Any]:
    schema = components.schema(value.type)
    return {
        "name": value.name,
        "in": value.where,
        "required": value.required or value.where == "path",
        "description": value.meaning,
        "schema": schema if value.default is None else {**schema, "default": value.default},
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

    return (Route("GET", "/openapi.json", openapi, "Describe every route: this document."),)
