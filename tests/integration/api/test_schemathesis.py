"""Requests made up from `/openapi.json`, sensible and otherwise, to every route: none is a server error, and
every error has OpenAI's shape, or Anthropic's."""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.result import Ok

from tests.integration.api.conftest import running_server
from tests.integration.api.operating import DOCUMENT

EXAMPLES = 10
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
ENDLESS = {"/api/events"}
"""A stream without an end of its own; test_activity listens to it."""

SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = sorted(
    (
        found.ok()
        for found in SCHEMA.get_all_operations()
        if isinstance(found, Ok) and found.ok().path not in ENDLESS
    ),
    key=lambda operation: operation.method == "delete",  # what the others need goes last
)


@dataclass
class Served:
    """A server in a thread of its own: schemathesis blocks."""

    url: str = ""
    token: str = ""
    ids: list[str] = field(default_factory=list)
    """Names that lead somewhere; without them every path would be a 404."""


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    served, ready, done = Served(), threading.Event(), threading.Event()

    async def serve(home: Path) -> None:
        async with running_server(home) as server:
            answer = (await server.say(x_holdfast_session_key="cli:ada"))["holdfast"]
            response = (await server.client.post("/v1/responses", json={"input": "hello"})).json()
            conversation = response["holdfast"]["conversation_id"]
            items = (await server.client.get(f"/v1/conversations/{conversation}/items")).json()
            notice = await server.store.add_notice("default", answer["conversation_id"], "reset", "x")
            served.url, served.token = server.url, server.admin_key
            served.ids += [
                *(answer["session_id"], answer["conversation_id"], answer["turn_id"], "cli:ada"),
                *(response["id"], conversation, items["data"][0]["id"], notice.id, "scripted"),
            ]
            ready.set()
            await asyncio.to_thread(done.wait)

    with tempfile.TemporaryDirectory(prefix="holdfast-") as directory:
        thread = threading.Thread(target=lambda: asyncio.run(serve(Path(directory))))
        thread.start()
        try:
            assert ready.wait(60)
            yield served
        finally:
            done.set()
            thread.join()


def test_the_whole_document_is_understood() -> None:
    assert len(OPERATIONS) + len(ENDLESS) == sum(len(methods) for methods in DOCUMENT["paths"].values())


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_no_request_is_a_server_error(served: Served, operation: Any) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=st.one_of(*map(operation.as_strategy, MODES)), name=st.sampled_from([None, *served.ids]))
    def ask(case: Any, name: str | None) -> None:
        if name is not None:
            case.path_parameters = dict.fromkeys(case.path_parameters or {}, name)
        response = case.call(base_url=served.url, headers={"authorization": f"Bearer {served.token}"})
        assert response.status_code < 500, response.text
        if response.status_code >= 400:
            body = json.loads(response.text)
            assert set(body["error"]) == {"message", "type", "param", "code"}
            assert (body.get("type") == "error") is operation.path.startswith("/v1/messages")

    ask()
