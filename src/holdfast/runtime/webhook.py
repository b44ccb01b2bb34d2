"""POSTs JSON to one webhook of the settings: notices, sessions to flush, questions about tool calls.

One POST for each call, with an `Idempotency-Key`; the caller retries. Anything but a 2xx is a failure, also a
redirect, which is not followed. No cookies, proxy or login of the environment is used. A failure is described
without the webhook's address, whose path may be secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp


MOST_BYTES = 1_000_000


class Webhook:
    def __init__(self, url: str, timeout_seconds: float) -> None:
        self._url = url
        self._timeout_seconds = timeout_seconds
        self._session: aiohttp.ClientSession | None = None

    async def post(self, body: bytes, idempotency_key: str) -> str | None:
        """Why the webhook did not accept this, such as "answered 503"; None: it did."""
        answer = await self.ask(body, idempotency_key)
        return answer if isinstance(answer, str) else None

    async def ask(self, body: bytes, idempotency_key: str) -> bytes | str:
        """The body of the webhook's answer, at most MOST_BYTES of it; as text: why it did not accept this."""
        import aiohttp  # a program without a webhook never loads it

        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=self._timeout_seconds),
                headers={"content-type": "application/json", "user-agent": "holdfast"},
            )
        try:
            async with self._session.post(
                self._url, data=body, headers={"idempotency-key": idempotency_key}, allow_redirects=False
            ) as answer:
                if not 200 <= answer.status < 300:
                    return f"answered {answer.status}"
                return await _body(answer) if answer.status == 200 else b""
        except TimeoutError:
            return f"did not answer within {self._timeout_seconds:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return f"cannot be reached: {type(error).__name__}"

    async def close(self) -> None:
        """Close its connections. Idempotent; the next `post` opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    """The body, which may arrive in pieces, up to MOST_BYTES."""
    body = bytearray()
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) >= MOST_BYTES:
            break
    return bytes(body[:MOST_BYTES])
