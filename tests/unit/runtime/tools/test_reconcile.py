"""The webhook that knows what became of an open call."""

from __future__ import annotations

import msgspec
import pytest
from aiohttp import web

from holdfast.runtime.tools.open_calls import ReconcileWebhook
from holdfast.runtime.tools.toolbox import ToolCall

CALL = ToolCall("c", "terminal", "{}", "ada", "conv_1", "sess_1", "turn_1", "turn_1.2.0", frozenset())


@pytest.mark.parametrize(
    ("status", "body", "known"),
    [
        (200, b'{"result": "it was paid"}', "it was paid"),
        (200, b"{}", None),
        (200, b"not JSON", None),
        (200, b'{"result": 7}', None),
        (200, b"", None),
        (204, b"", None),
        (404, b'{"result": "no"}', None),
        (500, b"", None),
    ],
)
async def test_it_gets_the_call_and_answers_with_its_result(
    status: int, body: bytes, known: str | None
) -> None:
    got: list[tuple[str | None, object]] = []

    async def handle(request: web.Request) -> web.Response:
        got.append((request.headers.get("Idempotency-Key"), msgspec.json.decode(await request.read())))
        return web.Response(status=status, body=body)

    app = web.Application()
    app.router.add_post("/hook", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        assert await ReconcileWebhook(f"http://127.0.0.1:{port}/hook")(CALL) == known
    finally:
        await runner.cleanup()
    ((key, asked),) = got
    assert key == "turn_1.2.0"
    assert isinstance(asked, dict)
    assert (asked["id"], asked["name"], asked["turn_id"]) == ("turn_1.2.0", "terminal", "turn_1")
    assert await ReconcileWebhook(f"http://127.0.0.1:{port}/hook")(CALL) is None
