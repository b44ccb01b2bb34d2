"""Requests to a model: what they hold, and that large ones are copied outside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.models import base
from holdfast.models.base import ModelRequest, array_of, request_body

BODIES = (b'{"a":1}', b'{"b":2},{"c":3}', b'{"d":4}')


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Those in which a large value was joined, which is one of 10 bytes here."""
    monkeypatch.setattr(base, "LARGE_BYTES", 10)
    used: list[threading.Thread] = []
    to_thread = asyncio.to_thread

    async def recorded(work: Callable[..., Any], *given: Any) -> Any:
        def run() -> Any:
            used.append(threading.current_thread())
            return work(*given)

        return await to_thread(run)

    monkeypatch.setattr(asyncio, "to_thread", recorded)
    return used


@pytest.mark.parametrize("bodies", [(), BODIES[:1], BODIES])
async def test_an_array_is_the_same_however_large(
    bodies: tuple[bytes, ...], threads: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "LARGE_BYTES", 1000)
    small = await array_of(bodies)
    assert not threads
    monkeypatch.setattr(base, "LARGE_BYTES", 0)
    assert await array_of(bodies) == small
    assert [thread is threading.main_thread() for thread in threads] == [False]
    assert msgspec.json.decode(small) == msgspec.json.decode(b"[" + b",".join(bodies) + b"]")


async def test_a_large_request_is_joined_in_a_thread(threads: list[threading.Thread]) -> None:
    body = await request_body(ModelRequest(await array_of(BODIES), options={"top_p": 1}), "m")
    assert [thread is threading.main_thread() for thread in threads] == [False, False]
    assert msgspec.json.decode(body) == {
        "stream": True,
        "top_p": 1,
        "model": "m",
        "stream_options": {"include_usage": True},
        "messages": [{"a": 1}, {"b": 2}, {"c": 3}, {"d": 4}],
    }
