"""The contract of a connector: how one messaging platform receives, sends, edits, types and reacts.

A connector knows its platform and nothing else: no store, no turns, no rules about who may write. It
normalises what comes in to `Incoming` and hands it to a `Sink`, which returns when it is on disk; only then
does the connector acknowledge it to the platform. `send` sends one message, and raises one of
the errors below if the platform did not accept it. `worker.py` does the rest: claims, turns, retries,
splitting, order.

To add a platform: one file here with a class of this shape, its settings in `settings/sections.py`
(`CONNECTOR_KINDS`), one line in `app.py`'s registry, one test file, one page in docs/how-to. Its tests use a
stand-in that follows the documented wire.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..domain.connectors import Incoming, PlatformLimits
from ..errors import BadSetting, HoldfastError

if TYPE_CHECKING:
    import aiohttp


class ConnectorDown(HoldfastError):
    """The platform cannot be reached, or refuses us; the connector is started again with back-off."""


class SendFailed(HoldfastError):
    """The platform did not accept a message, or it is unknown whether it did; it is sent again."""

    def __init__(self, why: str, retry_after: timedelta | None = None) -> None:
        super().__init__(why)
        self.retry_after = retry_after
        """The platform's own Retry-After."""


class SendRefused(HoldfastError):
    """The platform will never accept this message: the chat is gone, or the bot was blocked. A dead
    letter."""


class MessageGone(HoldfastError):
    """The message to edit does not exist any more; its text is sent as a new one."""


class WrongSignature(HoldfastError):
    """A pushed request is not from the platform: nothing of it is used."""


def secret_of(variable: str, where: str) -> str:
    """The token in this environment variable. Raises BadSetting if there is none; tokens are never in the
    settings."""
    if not variable:
        raise BadSetting(f"{where} is empty; name the environment variable that holds the token")
    found = os.environ.get(variable, "").strip()
    if not found:
        raise BadSetting(f"{where} names {variable}, which is not set in the environment of this server")
    return found


class Sink(Protocol):
    """Where a connector puts what it receives."""

    cursor: str | None
    """The platform's cursor that was stored last; None: none yet."""

    async def receive(self, events: Sequence[Incoming], cursor: str | None = None) -> None:
        """Store these messages and the cursor after them. When it returns they are on disk, each once."""
        ...

    async def up(self) -> None:
        """The platform can be reached. Cheap; call it after every successful poll or connect."""
        ...


@runtime_checkable
class PostsEvents(Protocol):
    """A connector that can also send JSON documents to programs."""

    async def post_event(self, body: bytes, *, key: str) -> None:
        """Send a document; `key` is the same each time it is tried. Raises SendFailed or SendRefused."""
        ...


@runtime_checkable
class FetchesFiles(Protocol):
    """A connector that can fetch the files of messages."""

    async def fetch(self, ref: str, most: int) -> bytes:
        """The bytes of a file. Raises SendRefused if it is larger than `most` or gone; SendFailed if it
        cannot be fetched now."""
        ...


class Connector(Protocol):
    """One platform. `run` is called by one node at a time; `accept` by any node that gets a request."""

    kind: str
    """The settings' `kind`; also the source of its conversations."""
    limits: PlatformLimits

    async def run(self, sink: Sink) -> None:
        """Receive until cancelled. Raises ConnectorDown, and is then called again; a connector whose
        platform only pushes waits forever."""
        ...

    async def accept(self, headers: Mapping[str, str], body: bytes) -> Sequence[Incoming]:
        """The messages in a request that the platform pushed to us, or raises WrongSignature. Header names
        are in lower case. A connector that is never pushed to raises WrongSignature."""
        ...

    async def send(self, address: str, text: str, *, key: str, reply_to: str | None = None) -> str:
        """Send one message of at most `limits.characters`; returns the platform's id. `key` is the same
        each time the same message is tried: platforms that can, deduplicate by it. `reply_to` is an inbox
        message's platform id. Raises SendFailed or SendRefused."""
        ...

    async def edit(self, address: str, message_id: str, text: str, *, key: str) -> None:
        """Replace a sent message's text. Raises SendFailed, SendRefused or MessageGone. An unchanged text
        is no error."""
        ...

    async def typing(self, address: str) -> None:
        """Show that a reply is being written, for a few seconds. Never raises SendFailed for long: it is
        optional."""
        ...

    async def react(self, address: str, message_id: str, reaction: str) -> None:
        """React to a message, if the platform can."""
        ...

    async def close(self) -> None:
        """Close connections. Idempotent."""
        ...


DOWNLOAD_SECONDS = 120.0


async def download(
    http: aiohttp.ClientSession, url: str, most: int, who: str, headers: Mapping[str, str] | None = None
) -> bytes:
    """The bytes at an address of a platform. Raises SendRefused if there are more than `most`, or if it will
    never answer with them; else SendFailed. No error names the address, which may hold a token."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=DOWNLOAD_SECONDS)
    body = bytearray()
    try:
        async with http.get(url, headers=headers, timeout=timeout, allow_redirects=False) as answer:
            why = f"{who} answered {answer.status}"
            if answer.status == 429 or answer.status >= 500:
                raise SendFailed(why)
            if answer.status != 200:
                raise SendRefused(why)
            async for piece in answer.content.iter_chunked(65_536):
                body += piece
                if len(body) > most:
                    raise SendRefused(f"it is larger than {most / (1024 * 1024):g} MB")
    except TimeoutError:
        raise SendFailed(f"{who} did not send it within {DOWNLOAD_SECONDS:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise SendFailed(f"{who} cannot be reached: {type(error).__name__}") from None
    return bytes(body)
