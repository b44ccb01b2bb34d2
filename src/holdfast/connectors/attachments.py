"""Fetches the files of messages and stores them before their turn begins.

A file is stored once, also after a crash: the message keeps the platform's reference until then. One that
cannot be fetched, is too large or exceeds a quota is named in the message, with the reason.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..domain.attachments import FileRef, is_image
from ..domain.connectors import Batch, ConnectorClaim
from ..errors import QuotaExceeded
from ..operations import Operations
from ..settings import ConnectorSettings
from .base import Connector, FetchesFiles, SendFailed, SendRefused

MEGABYTE = 1024 * 1024
MOST_SHOWN = 20 * MEGABYTE
"""Bytes of images that one message gives the model. Encoded they fit into a message; further ones are only
named."""


@dataclass(frozen=True, slots=True)
class Attached:
    """What a message says besides its text."""

    notes: tuple[str, ...] = ()
    """Why a file is not stored."""
    images: tuple[str, ...] = ()
    """For a model that sees: `data:` addresses."""

    def content(self, text: str) -> str | list[Mapping[str, object]]:
        """The content of the message with this text."""
        text = "\n".join(filter(None, (text, *self.notes)))
        if not self.images:
            return text
        shown = [{"type": "image_url", "image_url": {"url": each}} for each in self.images]
        return [{"type": "text", "text": text}, *shown]


NOTHING = Attached()


class AttachmentStore:
    def __init__(self, settings: ConnectorSettings, connector: Connector, hf: Operations) -> None:
        self._most = int(settings.attachment_mb * MEGABYTE)
        self._shows_images = settings.images
        self._connector = connector
        self._store = hf.store

    async def attached(self, claim: ConnectorClaim, batch: Batch, *, last_try: bool) -> Sequence[Attached]:
        """Store the files of these messages; returns what each message says besides its text. Raises
        SendFailed if a file cannot be fetched now, unless it is the `last_try`."""
        if not any(message.files for message in batch.messages):
            return [NOTHING] * len(batch.messages)
        known = await self._store.stored_attachments(batch.turn_id)
        found = []
        for message in batch.messages:
            notes, images, left = [], [], MOST_SHOWN
            for at, file in enumerate(message.files):
                source = f"{message.platform_id} {at}"
                try:
                    body = b""
                    if source not in known:
                        body = await self._fetched(file)
                        await self._store.add_attachment(claim, batch, source, file, body)
                    elif self._shows_images:
                        body = (await self._store.attachment(None, known[source].id))[1]
                except (SendRefused, QuotaExceeded) as error:
                    notes.append(f"[{file.name or 'the file'} is not stored: {error}]")
                    continue
                except SendFailed as error:
                    if not last_try:
                        raise
                    notes.append(f"[{file.name or 'the file'} is not stored: {error}]")
                    continue
                if self._shows_images and is_image(file.mime, len(body)) and len(body) <= left:
                    left -= len(body)
                    images.append(f"data:{file.mime};base64,{base64.b64encode(body).decode()}")
            found.append(Attached(tuple(notes), tuple(images)))
        return found

    async def _fetched(self, file: FileRef) -> bytes:
        if file.size > self._most:
            raise SendRefused(f"it is larger than {self._most / MEGABYTE:g} MB")
        if not isinstance(self._connector, FetchesFiles):
            raise SendRefused("this connector stores no files")
        return await self._connector.fetch(file.ref, self._most)
