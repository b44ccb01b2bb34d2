"""`/openapi.json`: every route there is, as tools understand it."""

from __future__ import annotations

import copy
import re
from typing import Any

from holdfast.server.routes import mounted
from holdfast.server.server import ROUTES
from tests.integration.api.conftest import Running
from tests.integration.api.openapi_facts import KEPT, facts
from tests.integration.api.operating import DOCUMENT, refused


async def test_the_document_has_every_route_that_is_mounted(server: Running) -> None:
    document = (await server.client.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    mounts = {re.sub(r":\w+}", "}", route.path) for route in mounted(server.services, ROUTES)}
    assert mounts == set(document["paths"])
    assert len(ROUTES) == sum(len(methods) for methods in document["paths"].values())


async def test_the_document_needs_a_key_too(server: Running) -> None:
    stranger = await server.with_token(None)
    await refused(server, "GET", "/openapi.json", 401, "invalid_api_key", client=stranger)


def test_every_operation_has_a_name_of_its_own_its_path_parameters_and_the_error_shape() -> None:
    names = set()
    for path, methods in DOCUMENT["paths"].items():
        for operation in methods.values():
            names.add(operation["operationId"])
            in_path = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert in_path == set(re.findall(r"\{(\w+)\}", path))
            error = operation["responses"]["default"]["content"]["application/json"]["schema"]
            shape = "AnthropicError" if path.startswith("/v1/messages") else "Error"
            assert error == {"$ref": f"#/components/schemas/{shape}"}
            assert operation["summary"]
    assert len(names) == len(ROUTES)


def test_every_reference_leads_somewhere() -> None:
    def references(value: Any) -> set[str]:
        if isinstance(value, list):
            return set().union(*map(references, value))
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*map(references, value.values()))
        return set()

    found = references(DOCUMENT)
    assert found
    known = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert found <= known


def test_nothing_that_clients_rely_on_is_lost() -> None:
    """Every path, method, status, parameter and field, with its type and values, is as it was."""
    kept = set(KEPT.read_text("utf-8").splitlines())
    assert sorted(kept - facts(DOCUMENT)) == []


def test_a_lost_field_is_noticed() -> None:
    changed = copy.deepcopy(DOCUMENT)
    del changed["components"]["schemas"]["Turn"]["properties"]["error"]
    lost = facts(DOCUMENT) - facts(changed)
    assert lost == {f"<Turn>.error{fact}" for fact in ("", " required", ": string", ": null")}


def test_everything_that_is_added_is_written_down() -> None:
    """Else it could be lost again: `python -m tests.integration.api.openapi_facts` adds it."""
    kept = set(KEPT.read_text("utf-8").splitlines())
    assert sorted(facts(DOCUMENT) - kept) == []


def test_only_the_health_of_the_server_is_told_without_a_key() -> None:
    assert DOCUMENT["security"] == [{"key": []}]
    open_to_all = {
        path
        for path, methods in DOCUMENT["paths"].items()
        for operation in methods.values()
        if operation.get("security") == []
    }
    signed = {"/connectors/webhook/{name}", "/connectors/telegram/{name}"}  # by the platform
    assert open_to_all == {"/healthz", "/readyz", *signed}
