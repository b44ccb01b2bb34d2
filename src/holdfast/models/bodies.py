"""The body of a chat completion request, without decoding the history it carries.

The messages are spliced in as the bytes the store keeps: sending a long history costs a copy, no parsing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.models.base import ModelRequest


def request_body(request: ModelRequest, model: str, **ours: Any) -> bytes:
    """The request as JSON: its options, then `ours`, then the messages.

    It asks for a stream, unless the options say otherwise, and for usage at its end, which is counted whoever
    asked. `stream_options` that are None are left out, for a server that does not know them.
    """
    fields = {"stream": True, **request.options, "model": model, **ours}
    fields.pop("messages", None)
    options = fields.pop("stream_options", {})
    if fields["stream"] and options is not None:
        fields["stream_options"] = (
            {**options, "include_usage": True} if isinstance(options, Mapping) else options
        )
    head = msgspec.json.encode(fields)
    return b"".join((head[:-1], b',"messages":', request.messages, b"}"))
