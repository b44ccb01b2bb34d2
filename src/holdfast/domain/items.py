"""Items: JSON values that programs and adapters keep for an owner, by space, namespace and name.

A space is one use of them: the state of conversations, or the data of an adapter. An item may belong to a
conversation: then it is deleted with it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from .value import Value

ItemPlace = tuple[str, str, str]
"""Space, namespace and name of an item."""


class Item(Value, frozen=True):
    namespace: str
    name: str
    value: str
    """JSON."""
    created_at: datetime
    updated_at: datetime
    conversation_id: str | None = None

    def decoded(self) -> Any:
        return msgspec.json.decode(self.value)


class PutItem(Value, frozen=True):
    """A change: set this value, or delete the item if it is None."""

    space: str
    namespace: str
    name: str
    value: str | None
    ttl: timedelta | None = None
    conversation_id: str | None = None
