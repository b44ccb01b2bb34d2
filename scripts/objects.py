#!/usr/bin/env python3
"""Writes docs/reference/objects.md: every public JSON object with its fields, derived from its Struct.

`tests/unit/test_docs.py` fails while the page is not what this would write.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from holdfast.server import schemas
from holdfast.server.anthropic import schemas as anthropic_schemas
from holdfast.server.openai import schemas as openai_schemas
from holdfast.server.openapi import Components
from holdfast.server.routes import Route

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "objects.md"
HEAD = """\
# Objects

The JSON objects of the [HTTP API](http.md), of `--json` and of `GET /openapi.json`, under the names that it
uses. Written by `scripts/objects.py` from the types in the code. A field is always present, and null if it
has no value, unless it is marked *optional*. Times are RFC 3339 in UTC, like `2026-01-01T12:00:00.000000Z`.
Fields are added, never removed; ignore those that you do not know.

A [list](http.md#lists) of any of these has the fields `object`, `data`, `first_id`, `last_id` and `has_more`.
"""
TABLE = "| field | type | meaning |\n|---|---|---|\n"


def structs() -> list[type[msgspec.Struct]]:
    """The public objects, in the order of the code."""
    found = [
        each
        for module in (schemas, openai_schemas, anthropic_schemas)
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, schemas.PublicObject)
    ]
    return [each for each in dict.fromkeys(found) if each not in (schemas.PublicObject, schemas.ListObject)]


def page() -> str:
    """The whole page."""

    async def nothing(_: object) -> Any: ...

    components = Components([Route("GET", "/", nothing, "", answer=tuple(structs()))])
    names = [components.schema(each)["$ref"].rpartition("/")[2] for each in structs()]
    parts = [HEAD]
    for name in names:
        schema = components.schemas[name]
        rows = "".join(
            f"| `{field}`{'' if field in schema['required'] else ' *optional*'} "
            f"| {_type(each, components)} | {each.get('description', '')} |\n"
            for field, each in schema["properties"].items()
        )
        parts.append(
            f"\n## {name}\n\n{schema['description']}\n\n| field | type | meaning |\n|---|---|---|\n{rows}"
        )
    return "".join(parts)


def _type(schema: dict[str, Any], components: Components) -> str:
    """A schema in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        target = components.schemas[name]
        return _type(target, components) if "enum" in target else f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(each, components) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{str(each).lower() if each is True else each}`" for each in schema["enum"])
    match schema.get("type"):
        case "array":
            return f"list of {_type(schema['items'], components)}"
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            return f"object of {_type(schema['additionalProperties'], components)}"
        case "string":
            return "time" if schema.get("format") == "date-time" else "text"
        case "integer":
            return "whole number"
        case "boolean":
            return "true or false"
        case None:
            return "any"
        case other:
            return str(other)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
