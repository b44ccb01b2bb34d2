"""Items: JSON values of an owner, by space, namespace and name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

ItemPlace = tuple[str, str, str]
"""Space, namespace and name of an item."""


@dataclass(frozen=True, slots=True)
class Item:
    namespace: str
    name: str
    value: str
    """JSON."""
    created_at: datetime
    updated_at: datetime

    def decoded(self) -> Any:
        return msgspec.json.decode(self.value)


@dataclass(frozen=True, slots=True)
class PutItem:
    """A change: set this value, or delete the item if it is None."""

    space: str
    namespace: str
    name: str
    value: str | None
    ttl: timedelta | None = None
    conversation_id: str | None = None
