"""Storage quotas of a conversation and an owner.

A quota is checked only when something new is accepted: a turn begins, an item is added, a conversation is
opened. Running turns always finish, so a conversation may end up somewhat above its limit.
"""

from __future__ import annotations

from ..errors import QuotaExceeded
from .value import Value

MEBIBYTE = 1 << 20


class Quotas(Value, frozen=True):
    """The [limits] settings, in bytes and in conversations; 0: unlimited."""

    conversation_bytes: int = 0
    owner_bytes: int = 0
    owner_conversations: int = 0

    def check_conversation(self, conversation_id: str | None, used: int, added: int) -> None:
        """Raises QuotaExceeded if a conversation of `used` bytes would exceed its limit with `added` more."""
        limit = self.conversation_bytes
        if limit and used + added > limit:
            raise QuotaExceeded(
                "conversation_mb",
                limit,
                used,
                f"conversation {conversation_id or '(new)'} holds {_mb(used)} of at most {_mb(limit)} and "
                f"would get {_mb(added)} more; nothing was stored. Delete messages from it, continue in a "
                "new conversation, or raise [limits] conversation_mb",
            )

    def check_owner_bytes(self, owner: str, used: int, added: int) -> None:
        """The same for all data of an owner."""
        limit = self.owner_bytes
        if limit and used + added > limit:
            raise QuotaExceeded(
                "owner_mb",
                limit,
                used,
                f"the conversations of {owner!r} hold {_mb(used)} of at most {_mb(limit)} and would get "
                f"{_mb(added)} more; nothing was stored. Delete conversations, or raise [limits] owner_mb",
            )

    def check_owner_conversations(self, owner: str, count: int) -> None:
        """Raises QuotaExceeded if an owner with `count` conversations may not open one more."""
        limit = self.owner_conversations
        if limit and count >= limit:
            raise QuotaExceeded(
                "owner_conversations",
                limit,
                count,
                f"{owner!r} has {count:,} of at most {limit:,} conversations; nothing was stored. Delete "
                "conversations, continue in one of them, or raise [limits] owner_conversations",
            )


UNLIMITED = Quotas()


def to_bytes(mebibytes: float) -> int:
    """A limit in bytes. A tiny limit stays a limit: only 0 means unlimited."""
    return max(1, int(mebibytes * MEBIBYTE)) if mebibytes else 0


def _mb(number: int) -> str:
    """Bytes for people; three digits, to distinguish a limit from slightly more."""
    if number < 10_000:
        return f"{number:,} bytes"
    return f"{number / MEBIBYTE:,.3f} MiB"
