"""An OpenAPI document as facts, one line each, so that two documents can be compared by meaning.

    GET /api/sessions 200 application/json: <SessionList>
    <SessionList>.data[]: <Session>
    <Session>.state required
    <Session>.node: string
    <Session>.node: null

Alternatives are merged, so that it does not matter how a schema is written. `openapi.txt` holds the facts
that clients rely on: none of them may be lost. After adding something to the API, add its facts:
`python -m tests.integration.api.openapi_facts`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

KEPT = Path(__file__).with_name("openapi.txt")
LIMITS = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxProperties", "pattern", "default")


def facts(document: dict[str, Any]) -> set[str]:
    """Every fact of the document."""
    found = {
        f"<{name}>{fact}"
        for name, schema in document["components"]["schemas"].items()
        for fact in _of_schema(schema)
    }
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            name = f"{method.upper()} {path}"
            found.add(f"{name} key {'security' not in operation}")
            for each in operation["parameters"]:
                where = f"{name} {each['in']} {each['name']}"
                found.add(f"{where} {'required' if each['required'] else 'optional'}")
                found.update(f"{where}{fact}" for fact in _of_schema(each["schema"]))
            body = operation.get("requestBody")
            if body is not None:
                found.add(f"{name} body {'required' if body['required'] else 'optional'}")
                found.update(_of_content(f"{name} body", body["content"]))
            for status, response in operation["responses"].items():
                found.add(f"{name} {status}")
                found.update(_of_content(f"{name} {status}", response.get("content", {})))
    return found


def _of_content(where: str, content: dict[str, Any]) -> Iterator[str]:
    for kind, each in content.items():
        yield f"{where} {kind}"
        yield from (f"{where} {kind}{fact}" for fact in _of_schema(each["schema"]))


def _of_schema(schema: dict[str, Any]) -> Iterator[str]:
    """The facts of a schema, each beginning with the path of the field."""
    if "$ref" in schema:
        yield f": <{schema['$ref'].rpartition('/')[2]}>"
    for each in (*schema.get("anyOf", ()), *schema.get("allOf", ())):
        yield from _of_schema(each)
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    types = schema.get("type", [])
    for kind in [types] if isinstance(types, str) else types:
        yield f": {kind}"
    for value in values:
        yield ": null" if value is None else f" = {value!r}"
    if "format" in schema:
        yield f" format {schema['format']}"
    yield from (f" {limit} {schema[limit]}" for limit in LIMITS if limit in schema)
    if schema.get("additionalProperties") is False:
        yield " no other fields"
    elif isinstance(schema.get("additionalProperties"), dict):
        yield from (f".*{fact}" for fact in _of_schema(schema["additionalProperties"]))
    if "items" in schema:
        yield from (f"[]{fact}" for fact in _of_schema(schema["items"]))
    for name, each in schema.get("properties", {}).items():
        yield f".{name}"
        if name in schema.get("required", ()):
            yield f".{name} required"
        yield from (f".{name}{fact}" for fact in _of_schema(each))


if __name__ == "__main__":
    from tests.integration.api.operating import DOCUMENT

    KEPT.write_text("".join(f"{fact}\n" for fact in sorted(facts(DOCUMENT))), "utf-8")
