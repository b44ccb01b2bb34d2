"""Bodies that are taken, and responses that are written, in one piece, past uvicorn's messages."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from holdfast.server.connections import in_ascii, take_body, write_whole


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
    assert write_whole(cycle, {"x-request-id": "req_1"}, b'{"a":1}')
    close = b"" if keep_alive else b"connection: close\r\n"
    assert transport.written == [
        b"HTTP/1.1 200 OK\r\ndate: today\r\nx-request-id: req_1\r\n%bcontent-length: 7\r\n\r\n" % close
        + b'{"a":1}'
    ]
    assert transport.closed is not keep_alive
    assert ended == ["ended"]
    assert (await cycle.receive())["type"] == "http.disconnect"
    assert not write_whole(cycle, {}, b"again")
    assert len(transport.written) == 1


@pytest.mark.parametrize("hindrance", ["paused", "gone", "started"])
async def test_nothing_is_written_past_a_connection_that_cannot_take_it(hindrance: str) -> None:
    transport, ended = Transport(), list[str]()
    cycle = cycle_on(transport, ended)
    cycle.flow.write_paused = hindrance == "paused"
    cycle.disconnected = hindrance == "gone"
    cycle.response_started = hindrance == "started"
    assert not write_whole(cycle, {}, b"{}")
    assert (transport.written, ended) == ([], [])


def received(cycle: RequestResponseCycle, body: bytes) -> RequestResponseCycle:
    cycle.body += body
    cycle.more_body = False
    cycle.message_event.set()
    return cycle


async def test_a_body_that_has_arrived_is_taken_as_receive_would_return_it() -> None:
    taken, asked = (received(cycle_on(Transport(), []), b'{"a":1}') for _ in range(2))
    message = await asked.receive()
    assert take_body(taken) == message["body"] == b'{"a":1}'  # type: ignore[typeddict-item]
    assert taken.message_event.is_set() is asked.message_event.is_set() is False
    assert taken.body == asked.body == b""
    assert take_body(taken) is None


@pytest.mark.parametrize("hindrance", ["unfinished", "paused", "gone", "answered", "expects 100"])
async def test_a_body_that_receive_has_to_wait_for_is_not_taken(hindrance: str) -> None:
    cycle = received(cycle_on(Transport(), []), b"{}")
    cycle.more_body = hindrance == "unfinished"
    cycle.flow.read_paused = hindrance == "paused"
    cycle.disconnected = hindrance == "gone"
    cycle.response_complete = hindrance == "answered"
    cycle.waiting_for_100_continue = hindrance == "expects 100"
    assert take_body(cycle) is None
    assert cycle.body == b"{}"


def test_only_a_value_that_is_not_printable_ascii_is_percent_encoded() -> None:
    plain = {"content-type": "text/event-stream; charset=utf-8"}
    assert in_ascii(plain) is plain
    assert in_ascii({**plain, "x-a": "é b\r\nx-b: 1"}) == {**plain, "x-a": "%C3%A9%20b%0D%0Ax-b:%201"}
