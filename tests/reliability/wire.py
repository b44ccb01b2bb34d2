"""HTTP as seen by clients of a server that may be killed at any moment: complete, refused, or broken off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec


class Broken(Exception):
    """The connection ended before the answer did."""


class Refused(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.code = code


class connection:
    """An HTTP exchange whose end before its time is `Broken`."""

    def __init__(self, request: Any) -> None:
        self._request = request

    async def __aenter__(self) -> aiohttp.ClientResponse:
        try:
            answer: aiohttp.ClientResponse = await self._request.__aenter__()
        except (aiohttp.ClientError, OSError) as error:
            raise Broken from error
        return answer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: Any
    ) -> None:
        await self._request.__aexit__(kind, error, trace)
        if isinstance(error, (aiohttp.ClientError, OSError)) and not isinstance(error, TimeoutError):
            raise Broken from error


async def data_of(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """What the events of a stream carry."""
    async for line in answer.content:
        if line.startswith(b"data: "):
            yield line[6:].strip()


async def refusal_of(answer: aiohttp.ClientResponse) -> Refused:
    body = await answer.read()
    try:
        error = msgspec.json.decode(body)["error"]
        return Refused(answer.status, error["code"], error["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return Refused(answer.status, "not in OpenAI's shape", body.decode(errors="replace")[:200])
