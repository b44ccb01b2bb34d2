"""The body of a request: read within limits of size and time, parsed as JSON, large ones in threads.

On the event loop a body of many MiB would delay every other request. Each API key uses one thread at a time,
so that one key's large bodies do not delay another's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Receive
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from ..domain.new_messages import MOST_DIGITS, long_number
from ..errors import BadInput
from .connections import take_body
from .gate import Headers
from .http_errors import HttpError
from .limits import BODY_SECONDS, LARGE_BODY, PARTS_PER_MESSAGE, VALUES_PER_MESSAGE, WORK_THREADS, HeldLimits
from .openai.parameters import BadParameter, body_from

T = TypeVar("T")
Body = TypeVar("Body", bound=msgspec.Struct)

_PIECE = 2**20
# An unterminated string matches as a string: that keeps the search linear, and the parser rejects it.
_STRUCTURE = re.compile(rb'"(?:[^"\\]++|\\(?:.|\Z))*+(?:"|\Z)|[\[{,]', re.DOTALL)
_QUOTE = b'"'[0]
# Not possessive as a whole: Python before 3.11.5 ends such a group too early. A bounded number of repetitions
# keeps what may be backtracked small.
_WHOLE_PAIRS = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?:d[89ab]..\\ud[c-f]..|(?!d[89a-f])....)){1,1000}", re.DOTALL | re.IGNORECASE
)
_SURROGATE = re.compile(rb"\\ud[89a-f][0-9a-f]{2}", re.IGNORECASE)


class BodyThreads:
    """Threads for large bodies."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(WORK_THREADS, thread_name_prefix="holdfast-body")
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}

    async def run(self, key_id: str, size: int, work: Callable[[], T]) -> T:
        """Returns `work()`. `size`: bytes of the body that it processes; a large one runs in a thread."""
        if size <= LARGE_BODY:
            return work()
        lock, waiting = self._turns.get(key_id) or (asyncio.Lock(), 0)
        self._turns[key_id] = lock, waiting + 1
        try:
            async with lock:
                return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            lock, waiting = self._turns[key_id]
            if waiting > 1:
                self._turns[key_id] = lock, waiting - 1
            else:
                del self._turns[key_id]


def check_values(body: bytes, most_messages: int) -> None:
    """Raises BadInput, before parsing, if a JSON body has too many values. 0 messages: unlimited."""
    most = VALUES_PER_MESSAGE * most_messages
    if not most or len(body) <= most:
        return
    found = 0
    for start in range(0, len(body), _PIECE):  # in pieces: other threads can run in between
        found += sum(body.count(mark, start, start + _PIECE) for mark in (b",", b"[", b"{"))
    if found <= most:
        return
    found = 0  # count exactly: many may be inside strings
    for match in _STRUCTURE.finditer(body):
        if match[0][0] != _QUOTE:
            found += 1
            if found > most:
                raise BadInput(
                    f"the body holds more than {most} JSON values; that many are allowed for "
                    f"{most_messages} messages ([limits] messages_per_request)"
                )


def check_counts(values: Any, param: str, most: int) -> None:
    """Raises BadParameter for more than `most` messages or items, or too many parts and calls in them. 0:
    unlimited."""
    if not most or not isinstance(values, list):
        return
    if len(values) > most:
        raise BadParameter(
            param,
            f"holds {len(values)} entries; at most {most} are allowed in one request "
            "([limits] messages_per_request)",
        )
    parts = 0
    for value in values:
        if isinstance(value, dict):
            for name in ("content", "tool_calls", "output", "summary"):
                inner = value.get(name)
                if isinstance(inner, list):
                    parts += len(inner)
    if parts > PARTS_PER_MESSAGE * most:
        raise BadParameter(
            param,
            f"holds {parts} parts and tool calls; at most {PARTS_PER_MESSAGE * most} are allowed in one "
            f"request ({PARTS_PER_MESSAGE} for each of [limits] messages_per_request)",
        )


class BodyReader(HeldLimits):
    """The part of a `RequestContext` that reads its body. A body is read only on demand."""

    if not TYPE_CHECKING:  # the attributes below are slots of RequestContext
        __slots__ = ()

    headers: Headers
    receive: Receive
    _cycle: RequestResponseCycle | None

    async def body(self, seconds: float | None = None, most: int | None = None) -> bytes:
        """The request's body. Raises HttpError if it is too large (`most` bytes, if that is less than
        `max_body_mb`), arrives too slowly (`seconds` replaces BODY_SECONDS), or if this API key's requests
        exceed their memory limit."""
        limit = self._max_body if most is None else min(self._max_body, most)
        declared = self.headers.get("content-length")
        if declared.isdecimal() and int(declared) > limit:
            raise self._too_large(limit)
        cycle = self._cycle
        whole = take_body(cycle) if cycle is not None else None
        if whole is not None:
            if len(whole) > limit:
                raise self._too_large(limit)
            self.hold_bytes(len(whole))
            return whole
        whole = b""
        with BodyDeadline(BODY_SECONDS if seconds is None else seconds) as deadline:
            whole = await self._read_body(limit)
        if deadline.passed:
            raise HttpError(408, "the request's body did not arrive in time", "request_timeout")
        return whole

    @property
    def _max_body(self) -> int:
        return int(self.services.settings.server.max_body_mb * 2**20)

    def _too_large(self, limit: int) -> HttpError:
        setting = " ([server] max_body_mb)" if limit == self._max_body else ""
        return HttpError(413, f"the body is larger than {limit / 2**20:g} MiB{setting}", "request_too_large")

    async def _read_body(self, limit: int) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect()
            piece = message.get("body", b"")
            size += len(piece)
            if size > limit:
                raise self._too_large(limit)
            self.hold_bytes(len(piece))
            pieces.append(piece)
            if not message.get("more_body"):
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def json(self, *, optional: bool = False) -> dict[str, Any]:
        """The body as a JSON object; with `optional`, a missing body is an empty object."""
        body = await self.body()
        return await self.work(len(body), lambda: self.parsed(body, optional=optional))

    async def decoded(self, kind: type[Body]) -> Body:
        """The body as this Struct; a missing body is an empty object. Raises BadParameter if it does not
        match."""
        return body_from(await self.json(optional=True), kind)

    def parsed(self, body: bytes, *, optional: bool = False) -> dict[str, Any]:
        """Parse a body as a JSON object, within the limits on JSON values and on the digits of a number."""
        if (at := long_number(body)) is not None:
            raise BadInput(f"the number at byte {at} has more than {MOST_DIGITS} digits; send it as a string")
        check_values(body, self.services.settings.limits.messages_per_request)
        return parsed(body, optional=optional)

    async def work(self, size: int, work: Callable[[], T]) -> T:
        """Returns `work()`; runs it in a thread if `size`, the bytes of the body it processes, is large."""
        if size <= LARGE_BODY:
            return work()
        return await self.services.body_threads.run(self._caller.key_id if self._caller else "", size, work)


class BodyDeadline:
    """Timeout for the awaits in its block; `passed` is True if it expired. Costs only a timer, because every
    request with a body has one."""

    __slots__ = ("_seconds", "_task", "_timer", "passed")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.passed = False

    def __enter__(self) -> BodyDeadline:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._pass)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._timer.cancel()
        if not self.passed or kind is None or not issubclass(kind, asyncio.CancelledError):
            return False
        assert self._task is not None
        return self._task.uncancel() == 0  # True: only this deadline cancelled it

    def _pass(self) -> None:
        assert self._task is not None
        self.passed = True
        self._task.cancel()


def parsed(body: bytes, *, optional: bool = False) -> dict[str, Any]:
    if optional and not body.strip():
        return {}
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"the body is not valid JSON: {_fault(body) or error}") from None
    if not isinstance(value, dict):
        raise BadInput("the body must be a JSON object")
    return value


def _fault(body: bytes) -> str | None:
    """What is wrong with a body's text, and where; None: nothing. The parser takes half a surrogate pair
    at the end of a string for the end of the body, and counts the bytes of a string from its beginning."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start} (0x{body[error.start]:02x}) is not UTF-8"
    end = 0
    while sound := _WHOLE_PAIRS.match(body, end):
        end = sound.end()
    alone = _SURROGATE.match(body, end)
    if alone is None:
        return None
    return (
        f"the escape {alone[0].decode()} at byte {alone.start()} is half of a surrogate pair; "
        "send both halves, or the character itself in UTF-8"
    )
