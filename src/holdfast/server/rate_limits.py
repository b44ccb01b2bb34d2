"""Applies the limits of an API key: requests and tokens per minute and per day, exact over all nodes.

A request counts when it asks for an answer of the model: a turn, a retry of one, or an answer that is not
stored. It is refused once a window's requests or tokens are used up. Tokens count when an answer is committed
or ends, as the model reports them: answers that run at the same time may together exceed the limit, and none
is cut short. Summaries and flushes count for no key. A key without limits costs nothing here.

Apart from `limits.py`, which `http.py` imports.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from ..domain.api_keys import ApiKey
from ..domain.usage import tokens_in, usable_usage
from ..errors import RateLimited
from ..models.base import Chunk
from .http import RequestContext


def limited_key(call: RequestContext) -> str | None:
    """The id of the request's API key if its tokens must be counted."""
    key = call.key
    return key.id if key is not None and key.limits else None


async def count_request(call: RequestContext) -> None:
    """Count this request for its API key. At a limit: raises RateLimited, having counted nothing."""
    if call.key is not None and call.key.limits:
        await _count(call, call.key)


async def _count(call: RequestContext, key: ApiKey) -> None:
    reached = await call.hf.count_request(key.id, key.limits)
    if reached is not None:
        raise RateLimited(reached.name, reached.most, reached.retry_after.total_seconds())


async def counted(
    call: RequestContext, key: ApiKey, chunks: AsyncGenerator[Chunk, None]
) -> AsyncGenerator[Chunk, None]:
    """The chunks of an answer that is not stored; its request is counted before the model is asked, its
    tokens before its end."""
    await _count(call, key)
    usage: object = None
    async for chunk in chunks:
        usage = chunk.value.get("usage") or usage
        yield chunk
    await call.hf.spend_tokens(key.id, tokens_in(usable_usage(usage)[0]))
