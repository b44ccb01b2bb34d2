"""Conversations, sessions, notices and keys: what is made, changed and deleted outside of a turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from ...domain.api_keys import ApiKey
from ...domain.conversations import Address, Conversation
from ...domain.messages import NewMessage
from ...domain.notices import Notice
from ...domain.sessions import Session
from ..values import Claimed, Page


class Converses(Protocol):
    """Changes what there is, outside of a turn."""

    # --- conversations and sessions ---------------------------------------------------------------------

    async def open_session(
        self, owner: str, address: Address, node_id: str, *, source: str = "", attached: bool = False
    ) -> Session:
        """The session the next message would go to: the open tip, or one opened now behind it.

        A new key opens a conversation. A tip left behind by a node that is gone counts as ended.
        """
        ...

    async def end_session(self, owner: str | None, session_id: str, reason: str) -> bool:
        """End an open session; False if it had ended already. ConversationBusy while a turn holds it."""
        ...

    async def resume_session(
        self, owner: str, session_id: str, node_id: str, *, attached: bool = False
    ) -> Session:
        """Go on from that very session: an open tip ends as `new`, a session with its view opens."""
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
        """Open a new conversation that begins with a copy of that session's context (up to a number)."""
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
        """A new conversation without a key, its first session detached, that begins with these messages."""
        ...

    async def add_messages(
        self, owner: str, conversation_id: str, node_id: str, messages: Sequence[NewMessage]
    ) -> int:
        """Append what a client says outside of any turn, to the session that the next message would go to;
        returns the last number. It counts as activity. ConversationBusy, having written nothing, while a turn
        holds the conversation."""
        ...

    async def set_metadata(
        self, owner: str | None, conversation_id: str, metadata: Mapping[str, str]
    ) -> None:
        """Note this about a conversation, instead of whatever was noted before."""
        ...

    async def set_title(self, owner: str | None, conversation_id: str, title: str) -> None: ...

    async def add_alias(self, owner: str, alias: str, conversation_id: str) -> None:
        """Let another name lead to this conversation. A name that leads elsewhere is a Conflict."""
        ...

    async def exclude(self, owner: str | None, conversation_id: str, seqs: Sequence[int], reason: str) -> int:
        """Take messages out of every context; they stay readable. Returns how many were not out yet."""
        ...

    async def delete_message(self, owner: str | None, conversation_id: str, seq: int) -> None:
        """Empty a message: its number stays, its text is gone from lists, contexts and search."""
        ...

    async def reduce_message(
        self,
        owner: str | None,
        conversation_id: str,
        seq: int,
        rest: NewMessage,
        gaps: Sequence[int] = (),
    ) -> None:
        """Delete a part of a message: `rest` is what is left of it, `gaps` are the places of all its calls
        that are gone. What was taken away is gone from lists, contexts and search.

        Conflict, having changed nothing, if `rest` is not less than what the message says now.
        """
        ...

    async def delete_conversation(self, owner: str | None, conversation_id: str) -> int:
        """Cancel what runs and remove the conversation completely. Returns its number of messages."""
        ...

    async def note_reading(self, owner: str, key_id: str, session: Session | None = None) -> None:
        """Leave an event with this owner: an admin's key has read their messages, of this session or by a
        search."""
        ...

    # --- notices ----------------------------------------------------------------------------------------

    async def add_notice(self, owner: str, conversation_id: str, kind: str, text: str) -> Notice:
        """Something the person of this conversation should be told; undelivered until somebody has."""
        ...

    async def notices(
        self, owner: str | None, *, undelivered: bool = False, after: str | None = None, limit: int = 20
    ) -> Page[Notice]:
        """A page of notices, oldest first, behind the notice `after`; only those nobody was told of."""
        ...

    async def undelivered(self, conversation_id: str) -> list[Notice]:
        """What the person of this conversation has not been told yet, oldest first."""
        ...

    async def deliver_notice(self, owner: str | None, notice_id: str) -> Notice:
        """The person has been told. A notice that was delivered before keeps its time."""
        ...

    async def notices_to_send(self) -> bool:
        """Does a notice wait to be sent to a webhook? Cheap: most of the time none does."""
        ...

    async def claim_notices(self, limit: int, span: timedelta, kept: timedelta) -> Claimed:
        """Take notices that wait to be sent, the longest waiting first; for `span` nobody else gets them.
        What is older than `kept` is given up."""
        ...

    async def notice_sent(self, notice_id: str) -> None:
        """It was accepted, and is never sent again."""
        ...

    async def notice_unsent(self, notice_id: str, pause: timedelta, *, tried: bool = True) -> None:
        """It was not accepted, or not even `tried`: it waits again, for at least this long."""
        ...

    # --- API keys ---------------------------------------------------------------------------------------

    async def add_key(self, key: ApiKey, secret_hash: bytes) -> None:
        """Let this key open what is its owner's. Conflict, having changed nothing, if its id is known."""
        ...

    async def key(self, key_id: str) -> tuple[ApiKey, bytes] | None:
        """The key of this id, revoked or not, and the hash of its secret; None if there is none."""
        ...

    async def keys(self, owner: str | None) -> list[ApiKey]:
        """All keys of an owner, revoked ones too, in the order they were made."""
        ...

    async def revoke_key(self, key_id: str, owner: str | None) -> bool:
        """From now on this key opens nothing, and never will again; its logins are gone. False if it was
        revoked already; NotFound if this owner has no such key."""
        ...

    # --- logins of browsers -----------------------------------------------------------------------------

    async def add_login(self, token_hash: bytes, api_key: str, lasts: timedelta, most: int) -> None:
        """Let the token of this hash act as this key, on every node, for so long. Of more than `most` logins
        of the key its oldest end; those of other keys stay. Some that have expired are dropped."""
        ...

    async def login(self, token_hash: bytes) -> str | None:
        """The key that this login stands for; None if there is none, or it has ended or expired."""
        ...

    async def end_login(self, token_hash: bytes) -> bool:
        """This login is no more. False if there was none."""
        ...
