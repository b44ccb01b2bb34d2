"""The body of a chat completion request, without decoding the history it carries.

The messages are spliced in as the bytes the store keeps: sending a long history costs a copy, no parsing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.models.base import ModelRequest


def request_body(request: ModelRequest, model: str, **ours: Any) -> bytes:
    """The request as JSON: its options, then `ours`, then the messages.

    It asks for a stream and for usage at its end, unless the options say otherwise.
    """
    fields = {"stream": True, **request.options, "model": model, **ours}
    fields.pop("messages", None)
    options = fields.pop("stream_options", {})
    if fields["stream"] and options is not None:
        fields["stream_options"] = {"include_usage": True, **options}
    head = msgspec.json.encode(fields)
    return b"".join((head[:-1], b',"messages":', request.messages, b"}"))
