"""Responses that are written in one piece, past uvicorn's two messages."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from holdfast.server.connections import write_whole


class Transport:
    """Keeps what is written to it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closed = True


def cycle_on(transport: Transport, ended: list[str], *, keep_alive: bool = True) -> RequestResponseCycle:
    log = logging.getLogger("test")
    return RequestResponseCycle(
        scope=cast(Any, {"type": "http", "method": "POST"}),
        transport=cast(Any, transport),
        flow=FlowControl(cast(Any, transport)),
        logger=log,
        access_logger=log,
        access_log=False,
        default_headers=[(b"date", b"today")],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=keep_alive,
        on_response=lambda: ended.append("ended"),
    )


@pytest.mark.parametrize("keep_alive", [True, False])
async def test_a_whole_response_is_one_write_and_ends_its_request(keep_alive: bool) -> None:
    transport, ended = Transport(), list[str]()
    cycle = cycle_on(transport, ended, keep_alive=keep_alive)
    assert write_whole(cycle, [(b"x-request-id", b"req_1")], b'{"a":1}')
    close = b"" if keep_alive else b"connection: close\r\n"
    assert transport.written == [
        b"HTTP/1.1 200 OK\r\ndate: today\r\nx-request-id: req_1\r\n%bcontent-length: 7\r\n\r\n" % close
        + b'{"a":1}'
    ]
    assert transport.closed is not keep_alive
    assert ended == ["ended"]
    assert (await cycle.receive())["type"] == "http.disconnect"
    assert not write_whole(cycle, [], b"again")
    assert len(transport.written) == 1


@pytest.mark.parametrize("hindrance", ["paused", "gone", "started"])
async def test_nothing_is_written_past_a_connection_that_cannot_take_it(hindrance: str) -> None:
    transport, ended = Transport(), list[str]()
    cycle = cycle_on(transport, ended)
    cycle.flow.write_paused = hindrance == "paused"
    cycle.disconnected = hindrance == "gone"
    cycle.response_started = hindrance == "started"
    assert not write_whole(cycle, [], b"{}")
    assert (transport.written, ended) == ([], [])
