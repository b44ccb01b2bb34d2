"""What has been gathered of a conversation on its way into a store, and where the next part goes."""

from __future__ import annotations

from datetime import datetime

from msgspec import Raw

from ..domain.records import (
    AliasRecord,
    ConversationRecord,
    ExclusionRecord,
    Hanging,
    Mark,
    MessageRecord,
    Part,
    SessionRecord,
    Stand,
)
from ..domain.views import View
from .reading import HermesMessage

ORIGIN = "hermes"


class Writing:
    """What has been gathered of a conversation and is not written yet."""

    def __init__(self, conversation: ConversationRecord, stand: Stand | None, ordinal: int) -> None:
        self.conversation = conversation
        self.stand = stand
        self.ordinal = ordinal
        self.next_seq = stand.last_seq + 1 if stand else 1
        self.before: str | None = None
        """The session that the next one comes from."""
        self.view: View | None = None
        self.began_at = self.next_seq
        """The number of that session's first message."""
        self.records: list[Hanging] = []
        self.aliases: list[AliasRecord] = []
        self.marks: list[Mark] = []
        self.count = self.size = 0

    @property
    def covers(self) -> tuple[int, int] | None:
        """The messages of that session, if it has any."""
        return (self.began_at, self.next_seq - 1) if self.began_at < self.next_seq else None

    def add(self, said: HermesMessage, session_id: str, here: str, said_at: datetime) -> None:
        message = said.message
        self.records.append(
            MessageRecord(
                seq=self.next_seq,
                session_id=here,
                turn_id=None,
                role=message.role,
                status=message.status.value,
                created_at=said_at,
                body=Raw(message.body),
                calls=message.calls,
                answers=message.answers,
                origin=origin_of(session_id, said.row),
                extra=said.extra,
            )
        )
        if said.aside is not None:
            self.records.append(ExclusionRecord(self.next_seq, said.aside, said_at))
        self.next_seq += 1
        self.count += 1
        self.size += len(message.body) + len(bytes(said.extra))

    def part(self) -> Part:
        return Part(
            ORIGIN, self.conversation, tuple(self.records), tuple(self.marks), self.stand, tuple(self.aliases)
        )

    def written(self, part: Part) -> None:
        """The next part goes behind this one."""
        sessions = [each.id for each in part.records if isinstance(each, SessionRecord)]
        tip = sessions[-1] if sessions else self.stand.tip_id if self.stand else ""
        self.stand = Stand(self.next_seq - 1, tip)
        self.records, self.aliases, self.marks = [], [], []
        self.count = self.size = 0


def origin_of(session_id: str, row: int) -> str:
    """Where a message came from."""
    return f"{ORIGIN}:{session_id}:{row}"
