"""Conversations, sessions, notices and keys: create, change and delete outside of a turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

from ...domain.api_keys import ApiKey
from ...domain.conversations import Address, Conversation
from ...domain.messages import NewMessage
from ...domain.notices import Notice
from ...domain.sessions import Session
from ..values import Claimed, Page


class Converses(Protocol):
    """Writes outside of a turn."""

    # --- conversations and sessions ---------------------------------------------------------------------

    async def open_session(
        self, owner: str, address: Address, node_id: str, *, source: str = "", attached: bool = False
    ) -> Session:
        """The session that the next message goes to: the open tip, or a new one opened after it.

        A new key opens a conversation. A tip orphaned by a node that is gone counts as ended.
        """
        ...

    async def end_session(self, owner: str | None, session_id: str, reason: str) -> bool:
        """End an open session; False if it had already ended. ConversationBusy while a turn holds it."""
        ...

    async def resume_session(
        self, owner: str, session_id: str, node_id: str, *, attached: bool = False
    ) -> Session:
        """Resume that exact session: an open tip ends as `new`, and a session with its view opens."""
        ...

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
        """Open a new conversation that begins with a copy of that session's context (up to a seq)."""
        ...

    async def create_conversation(
        self,
        owner: str,
        node_id: str,
        *,
        messages: Sequence[NewMessage] = (),
        metadata: Mapping[str, str] | None = None,
        source: str = "",
    ) -> Conversation:
        """A new conversation without a key; its first session is detached and begins with these messages."""
        ...

    async def add_messages(
        self, owner: str, conversation_id: str, node_id: str, messages: Sequence[NewMessage]
    ) -> int:
        """Append a client's messages outside of any turn, to the session that the next message goes to;
        returns the last seq. Counts as activity. ConversationBusy, having written nothing, while a turn holds
        the conversation."""
        ...

    async def set_metadata(
        self, owner: str | None, conversation_id: str, metadata: Mapping[str, str]
    ) -> None:
        """Replace a conversation's metadata."""
        ...

    async def set_title(self, owner: str | None, conversation_id: str, title: str) -> None: ...

    async def note_side_request(self, owner: str, name: str, kind: str, facts: Mapping[str, Any]) -> None:
        """Record a program's side request (a title, a topic) as an event `request.side`, linked to the
        conversation that has this name, if there is one yet. `facts`: numbers and ids, no text."""
        ...

    async def add_alias(self, owner: str, alias: str, conversation_id: str) -> None:
        """Add an alias for this conversation. Conflict if the alias is used for another one."""
        ...

    async def exclude(self, owner: str | None, conversation_id: str, seqs: Sequence[int], reason: str) -> int:
        """Exclude messages from every context; they stay readable. Returns how many were not excluded
        before."""
        ...

    async def delete_message(self, owner: str | None, conversation_id: str, seq: int) -> None:
        """Empty a message: its seq stays, its text is gone from lists, contexts and search."""
        ...

    async def reduce_message(
        self,
        owner: str | None,
        conversation_id: str,
        seq: int,
        rest: NewMessage,
        gaps: Sequence[int] = (),
    ) -> None:
        """Delete a part of a message: `rest` is what remains, `gaps` are the indexes of all its deleted
        calls. The deleted part is gone from lists, contexts and search.

        Conflict, having changed nothing, if `rest` is not a part of the current message.
        """
        ...

    async def delete_conversation(self, owner: str | None, conversation_id: str) -> int:
        """Cancel running work and delete the conversation completely. Returns its number of messages."""
        ...

    async def note_reading(self, owner: str, key_id: str, session: Session | None = None) -> None:
        """Write an event for this owner: an admin's key has read their messages, of this session or by a
        search."""
        ...

    # --- notices ----------------------------------------------------------------------------------------

    async def add_notice(self, owner: str, conversation_id: str, kind: str, text: str) -> Notice:
        """Add a notice for the person of this conversation; undelivered until it is marked delivered."""
        ...

    async def notices(
        self, owner: str | None, *, undelivered: bool = False, after: str | None = None, limit: int = 20
    ) -> Page[Notice]:
        """A page of notices, oldest first, after the notice `after`; only undelivered ones."""
        ...

    async def undelivered(self, conversation_id: str) -> list[Notice]:
        """Undelivered notices of this conversation, oldest first."""
        ...

    async def deliver_notice(self, owner: str | None, notice_id: str) -> Notice:
        """Mark a notice delivered. Idempotent: delivering twice keeps the first time."""
        ...

    async def notices_to_send(self) -> bool:
        """True: a notice is waiting for the webhook. Cheap: usually none is."""
        ...

    async def claim_notices(self, limit: int, span: timedelta, kept: timedelta) -> Claimed:
        """Claim notices to send, the longest waiting first; for `span` no other node gets them. Notices older
        than `kept` are given up."""
        ...

    async def notice_sent(self, notice_id: str) -> None:
        """Mark a notice accepted by the webhook; it is never sent again."""
        ...

    async def notice_unsent(self, notice_id: str, pause: timedelta, *, tried: bool = True) -> None:
        """It was not accepted, or not even `tried`: requeue it, for at least this pause."""
        ...

    # --- API keys ---------------------------------------------------------------------------------------

    async def add_key(self, key: ApiKey, secret_hash: bytes) -> None:
        """Add this key. Conflict, having changed nothing, if its id exists."""
        ...

    async def key(self, key_id: str) -> tuple[ApiKey, bytes] | None:
        """The key of this id, revoked or not, and the hash of its secret; None if there is none."""
        ...

    async def keys(self, owner: str | None) -> list[ApiKey]:
        """All keys of an owner, revoked ones too, in creation order."""
        ...

    async def revoke_key(self, key_id: str, owner: str | None) -> bool:
        """Revoke this key for good and delete its logins. False if it was already revoked; NotFound if this
        owner has no such key."""
        ...

    # --- logins of browsers -----------------------------------------------------------------------------

    async def add_login(self, token_hash: bytes, api_key: str, lasts: timedelta, most: int) -> None:
        """Add a login: the token of this hash acts as this key, on every node, for this long. If the key has
        more than `most` logins, its oldest end; those of other keys stay. Some expired ones are deleted."""
        ...

    async def login(self, token_hash: bytes) -> str | None:
        """The key id of this login; None if there is none, or it has ended or expired."""
        ...

    async def end_login(self, token_hash: bytes) -> bool:
        """End this login. False if there was none."""
        ...
