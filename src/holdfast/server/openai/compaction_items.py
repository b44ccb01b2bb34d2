"""The item `compaction`: a summary that a client keeps and sends back in place of what it replaces.

The item holds the summary itself, compressed and signed, so it works without anything stored: after the
conversation it came from is deleted, and for clients that store nothing. The signature binds it to this store
and to the owner it was made for; any other is refused. It is not secret: it contains only what its client,
or its conversation, has sent. A store that was restored from a backup has another key, and refuses items
made before.
"""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Mapping
from hashlib import blake2b
from hmac import compare_digest
from typing import Any

import msgspec

from ...domain.contexts import summary_body
from ...domain.ids import new_id
from ..http import RequestContext
from .input_items import OpenSummary
from .parameters import BadParameter, given_name

VERSION = b"\1"
SIGNATURE = 32
LONGEST = 10_485_760
"""Characters of `encrypted_content`, as Open Responses limits it."""
LARGEST = 16 * 2**20
"""Bytes of a summary."""


def compaction_item(secret: str, owner: str, summary: str) -> dict[str, Any]:
    """An item that holds this summary, for this owner."""
    packed = zlib.compress(summary.encode())
    token = VERSION + _signature(secret, owner, packed) + packed
    return {
        "id": f"cmp_{new_id('cmp').partition('_')[2]}",
        "type": "compaction",
        "encrypted_content": urlsafe_b64encode(token).decode(),
    }


def open_summary(secret: str, owner: str, value: object, param: str) -> str:
    """The summary in an `encrypted_content`. Raises BadParameter if it was not made for this owner here."""
    text = given_name(value, param)
    if len(text) > LONGEST:
        raise BadParameter(param, f"may be {LONGEST} characters long at most; it is {len(text)}")
    try:
        token = urlsafe_b64decode(text)
    except (NotBase64, ValueError):
        token = b""
    signed, packed = token[1 : 1 + SIGNATURE], token[1 + SIGNATURE :]
    if token[:1] != VERSION or not compare_digest(signed, _signature(secret, owner, packed)):
        raise BadParameter(
            param, "was not made by this server for this owner, or was changed; send the messages instead"
        )
    return zlib.decompressobj().decompress(packed, LARGEST).decode()


async def summary_opener(call: RequestContext, items: object) -> OpenSummary | None:
    """What opens the compaction items of this input; None if it has none."""
    given = items if isinstance(items, list) else ()
    if not any(isinstance(item, Mapping) and item.get("type") == "compaction" for item in given):
        return None
    secret, owner = await call.hf.store_id(), call.owner
    size, most = 0, int(call.services.settings.server.max_body_mb * 2**20)

    def opened(value: object, param: str) -> dict[str, Any]:
        nonlocal size
        summary = open_summary(secret, owner, value, param)
        size += len(summary)
        if size > most:  # they are compressed: a small body may hold any number of large ones
            raise BadParameter(
                param, f"and the summaries before it exceed {most / 2**20:g} MiB ([server] max_body_mb)"
            )
        return summary_message(summary)

    return opened


def summary_message(summary: str) -> dict[str, Any]:
    """A summary as a chat message, in the form of our own compaction."""
    message: dict[str, Any] = msgspec.json.decode(summary_body(summary))
    return message


def _signature(secret: str, owner: str, packed: bytes) -> bytes:
    keyed = blake2b(key=blake2b(secret.encode()).digest(), digest_size=SIGNATURE, person=b"hf compaction")
    keyed.update(len(owner.encode()).to_bytes(8, "big") + owner.encode())
    keyed.update(packed)
    return keyed.digest()
