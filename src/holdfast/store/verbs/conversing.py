"""Conversations, sessions, notices and keys, outside of a turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from ...domain.api_keys import ApiKey
from ...domain.conversations import Address, Conversation
from ...domain.messages import NewMessage
from ...domain.notices import Notice
from ...domain.sessions import Session
from .. import api_keys, conversations, reads, sessions, turns
from .. import notices as notice_writes
from ..base import Claimed, Page
from .base import Verbs


class ConversingVerbs(Verbs):
    """Implements `store.promises.conversing.Converses`."""

    # --- conversations and sessions ---------------------------------------------------------------------

    async def open_session(
        self, owner: str, address: Address, node_id: str, *, source: str = "", attached: bool = False
    ) -> Session:
        return await self._write(lambda tx: turns.open_session(tx, owner, address, node_id, source, attached))

    async def end_session(self, owner: str | None, session_id: str, reason: str) -> bool:
        return await self._write(lambda tx: sessions.end_session(tx, owner, session_id, reason))

    async def resume_session(
        self, owner: str, session_id: str, node_id: str, *, attached: bool = False
    ) -> Session:
        return await self._write(lambda tx: sessions.resume_session(tx, owner, session_id, node_id, attached))

    async def fork(
        self,
        owner: str,
        session_id: str,
        node_id: str,
        *,
        up_to: int | None = None,
        key: str | None = None,
        attached: bool = False,
    ) -> Session:
        return await self._write(
            lambda tx: sessions.fork(tx, owner, session_id, node_id, up_to, key, attached)
        )

    async def create_conversation(
        self,
        owner: str,
        node_id: str,
        *,
        messages: Sequence[NewMessage] = (),
        metadata: Mapping[str, str] | None = None,
        source: str = "",
    ) -> Conversation:
        return await self._write(
            lambda tx: conversations.create(tx, owner, node_id, messages, metadata or {}, source)
        )

    async def add_messages(
        self, owner: str, conversation_id: str, node_id: str, messages: Sequence[NewMessage]
    ) -> int:
        return await self._write(
            lambda tx: conversations.add_messages(tx, owner, conversation_id, node_id, messages)
        )

    async def set_metadata(
        self, owner: str | None, conversation_id: str, metadata: Mapping[str, str]
    ) -> None:
        await self._write(lambda tx: conversations.set_metadata(tx, owner, conversation_id, metadata))

    async def set_title(self, owner: str | None, conversation_id: str, title: str) -> None:
        await self._write(lambda tx: sessions.set_title(tx, owner, conversation_id, title))

    async def note_side_request(self, owner: str, name: str, kind: str, facts: Mapping[str, Any]) -> None:
        await self._write(lambda tx: sessions.note_side_request(tx, owner, name, kind, facts))

    async def add_alias(self, owner: str, alias: str, conversation_id: str) -> None:
        await self._write(lambda tx: sessions.add_alias(tx, owner, alias, conversation_id))

    async def exclude(self, owner: str | None, conversation_id: str, seqs: Sequence[int], reason: str) -> int:
        return await self._write(lambda tx: sessions.exclude(tx, owner, conversation_id, seqs, reason))

    async def delete_message(self, owner: str | None, conversation_id: str, seq: int) -> None:
        await self._write(lambda tx: sessions.delete_message(tx, owner, conversation_id, seq))
        self._cache.clear()
        self.start_indexing()

    async def reduce_message(
        self,
        owner: str | None,
        conversation_id: str,
        seq: int,
        rest: NewMessage,
        gaps: Sequence[int] = (),
    ) -> None:
        await self._write(
            lambda tx: conversations.reduce_message(tx, owner, conversation_id, seq, rest, gaps)
        )
        self._cache.clear()
        self.start_indexing()

    async def delete_conversation(self, owner: str | None, conversation_id: str) -> int:
        number = await self._write(lambda tx: sessions.delete_conversation(tx, owner, conversation_id))
        self._cache.clear()
        self.start_indexing()
        return number

    async def note_reading(self, owner: str, key_id: str, session: Session | None = None) -> None:
        await self._write(lambda tx: api_keys.note_reading(tx, owner, key_id, session))

    # --- notices ----------------------------------------------------------------------------------------

    async def add_notice(self, owner: str, conversation_id: str, kind: str, text: str) -> Notice:
        return await self._write(lambda tx: notice_writes.add(tx, owner, conversation_id, kind, text))

    async def notices(
        self, owner: str | None, *, undelivered: bool = False, after: str | None = None, limit: int = 20
    ) -> Page[Notice]:
        return await self._read(lambda tx: notice_writes.notices(tx, owner, undelivered, after, limit))

    async def undelivered(self, conversation_id: str) -> list[Notice]:
        return await self._read(lambda tx: notice_writes.undelivered(tx, conversation_id))

    async def deliver_notice(self, owner: str | None, notice_id: str) -> Notice:
        return await self._write(lambda tx: notice_writes.deliver(tx, owner, notice_id))

    async def notices_to_send(self) -> bool:
        return await self._read(notice_writes.to_send)

    async def claim_notices(self, limit: int, span: timedelta, kept: timedelta) -> Claimed:
        return await self._write(lambda tx: notice_writes.claim(tx, limit, span, kept))

    async def notice_sent(self, notice_id: str) -> None:
        await self._write(lambda tx: notice_writes.sent(tx, notice_id))

    async def notice_unsent(self, notice_id: str, pause: timedelta, *, tried: bool = True) -> None:
        await self._write(lambda tx: notice_writes.unsent(tx, notice_id, pause, tried))

    # --- API keys ---------------------------------------------------------------------------------------

    async def add_key(self, key: ApiKey, secret_hash: bytes) -> None:
        await self._write(lambda tx: api_keys.add(tx, key, secret_hash))

    async def key(self, key_id: str) -> tuple[ApiKey, bytes] | None:
        return await self._read(lambda tx: reads.key(tx, key_id))

    async def keys(self, owner: str | None) -> list[ApiKey]:
        return await self._read(lambda tx: reads.keys(tx, owner))

    async def revoke_key(self, key_id: str, owner: str | None) -> bool:
        return await self._write(lambda tx: api_keys.revoke(tx, key_id, owner))

    # --- logins of browsers -----------------------------------------------------------------------------

    async def add_login(self, token_hash: bytes, api_key: str, lasts: timedelta, most: int) -> None:
        await self._write(lambda tx: api_keys.add_login(tx, token_hash, api_key, lasts, most))

    async def login(self, token_hash: bytes) -> str | None:
        return await self._read(lambda tx: api_keys.login(tx, token_hash))

    async def end_login(self, token_hash: bytes) -> bool:
        return await self._write(lambda tx: api_keys.end_login(tx, token_hash))
