"""What tests of the operations share: answers held against `/openapi.json`, and a model that waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import jsonschema_rs

from holdfast.models.base import Purpose
from holdfast.models.scripted import ScriptedModel
from holdfast.server.openapi import PATH_PARAMETER, document
from holdfast.server.server import ROUTES
from tests.integration.api.conftest import Running

DOCUMENT = document(ROUTES)


class Waiting:
    """A script that says a few words, then waits until it may go on."""

    def __init__(self, first: str = "Once upon", rest: str = " a time") -> None:
        self._first, self._rest = first, rest
        self.speaks = asyncio.Event()
        self.may_go_on = asyncio.Event()

    def model(self) -> ScriptedModel:
        return ScriptedModel(self._answer)

    def _answer(self, messages: list[dict[str, Any]], purpose: Purpose) -> AsyncIterator[str]:
        return self._words()

    async def _words(self) -> AsyncIterator[str]:
        yield self._first
        self.speaks.set()
        await self.may_go_on.wait()
        yield self._rest


async def speaking(server: Running, waiting: Waiting, key: str, text: str = "hello") -> asyncio.Task[Any]:
    """A turn that runs, its model waiting in the middle of a sentence."""
    task = asyncio.create_task(
        server.client.post(
            "/v1/chat/completions",
            json={"messages": [{"role": "user", "content": text}]},
            headers={"x-holdfast-session-key": key},
        )
    )
    async with asyncio.timeout(60):
        await waiting.speaks.wait()
    return task


def route_of(method: str, path: str) -> dict[str, Any]:
    """The operation of the document that this request is one of."""
    parts = path.partition("?")[0].split("/")
    for known, operations in DOCUMENT["paths"].items():
        wanted = known.split("/")
        same = len(wanted) == len(parts) and all(
            a == b or PATH_PARAMETER.fullmatch(a) for a, b in zip(wanted, parts, strict=True)
        )
        if same and method.lower() in operations:
            operation: dict[str, Any] = operations[method.lower()]
            return operation
    raise AssertionError(f"{method} {path} is not in the document")


def check_answer(method: str, path: str, response: httpx.Response) -> None:
    """The answer is what the document says it is."""
    responses = route_of(method, path)["responses"]
    said = responses["200" if response.is_success else "default"]["content"]["application/json"]["schema"]
    validator = jsonschema_rs.Draft202012Validator({**said, "components": DOCUMENT["components"]})
    troubles = [f"{error.instance_path}: {error.message}" for error in validator.iter_errors(response.json())]
    assert troubles == [], f"{method} {path}"


async def asked(
    server: Running,
    method: str,
    path: str,
    *,
    client: httpx.AsyncClient | None = None,
    json: Any = None,
    status: int = 200,
) -> Any:
    """The answer's JSON, held against the document; with the status that was expected."""
    response = await (client or server.client).request(method, path, json=json)
    assert response.status_code == status, response.text
    check_answer(method, path, response)
    return response.json()


async def got(server: Running, path: str, client: httpx.AsyncClient | None = None) -> Any:
    return await asked(server, "GET", path, client=client)


async def refused(
    server: Running,
    method: str,
    path: str,
    status: int,
    code: str,
    *,
    client: httpx.AsyncClient | None = None,
    json: Any = None,
) -> dict[str, Any]:
    """The error object of a request that is refused with this status and code."""
    told = await asked(server, method, path, client=client, json=json, status=status)
    error: dict[str, Any] = told["error"]
    assert error["code"] == code, error
    return error


def ids(page: Any) -> list[Any]:
    return [each["id"] for each in page["data"]]
