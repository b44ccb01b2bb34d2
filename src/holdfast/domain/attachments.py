"""Files that people send with their messages: what a platform says of them, and what is stored.

The bytes are stored beside the conversation and count as its bytes. The model gets the file's name as text;
an image also as a content part, if the connector's settings say that the model can see.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from .ids import cut_name, storable
from .value import Value

IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""What models that see accept."""
LARGEST_IMAGE = 8 * 1024 * 1024
"""A larger image is not sent to the model."""
MOST_AT_ONCE = 20
"""Files of one message that are stored."""


class FileRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file on the platform, which can be fetched later."""

    ref: str
    """The platform's own reference."""
    name: str = ""
    mime: str = ""
    size: int = 0
    """As the platform says; 0: unknown."""

    def cleaned(self) -> FileRef:
        """So that it can be stored."""
        return FileRef(
            storable(self.ref), cut_name(storable(self.name)), cut_name(storable(self.mime)), self.size
        )


_decoder = msgspec.json.Decoder(tuple[FileRef, ...])


def encoded_refs(refs: tuple[FileRef, ...]) -> str | None:
    """As they are stored with the message; None: there are none."""
    return msgspec.json.encode([each.cleaned() for each in refs[:MOST_AT_ONCE]]).decode() if refs else None


def decoded_refs(stored: str | None) -> tuple[FileRef, ...]:
    return _decoder.decode(stored) if stored else ()


class Attachment(Value, frozen=True):
    """A stored file, without its bytes."""

    no: int
    id: str
    conversation_id: str
    turn_id: str
    name: str
    mime: str
    size: int
    created_at: datetime


def is_image(mime: str, size: int) -> bool:
    """True: a model that sees can be given this file."""
    return mime in IMAGES and size <= LARGEST_IMAGE
