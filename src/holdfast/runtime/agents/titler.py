"""Has the model name conversations that have no title, in the background.

A conversation is named once it has `min_messages` and has been quiet for QUIET_SECONDS, so that its next turn
need not wait. At most `per_minute` are named in a minute by this node. A title that a person has set, also
meanwhile, is never replaced. After a failure it is tried again when the conversation has doubled.

Limit: what is waiting is in memory only. After a restart a conversation is named after its next turn.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ...domain.compaction import Entry, summary_in, transcript
from ...domain.conversations import Address
from ...domain.headings import PROMPT, title_in
from ...domain.messages import instruction, text_of
from ...domain.new_messages import user_message
from ...domain.sessions import Session
from ...errors import HoldfastError, ModelError, NotFound
from ...models.base import Model, ModelRequest, Purpose
from ...models.reply import ReplyFolder
from ...store.store import Store
from .. import periodic

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
QUIET_SECONDS = 30.0
ANSWER_SECONDS = 60.0
MOST_WAITING = 1000
READ_MESSAGES = 12
READ_BYTES = 256 * 1024
CHARACTERS = 3000
"""How much of a conversation the model is given."""
ANSWER_TOKENS = 400
"""Limit of the answer: a title is short, but some models think first."""


@dataclass(frozen=True, slots=True)
class TitleRules:
    min_messages: int
    per_minute: int
    model: str | None = None


@dataclass(frozen=True, slots=True)
class _Waiting:
    owner: str
    size: int
    """Messages of the conversation."""
    due_at: float


class Titler:
    def __init__(
        self,
        store: Store,
        model: Model,
        rules: TitleRules,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._model = model
        self._rules = rules
        self._monotonic = monotonic
        self._waiting: dict[str, _Waiting] = {}
        self._failed: dict[str, int] = {}
        """Sizes of conversations for which the model gave no title."""
        self._made_at: deque[float] = deque(maxlen=rules.per_minute)
        self._loop = periodic.every(LOOK_SECONDS, self.title_once, "name conversations")

    @property
    def running(self) -> bool:
        return self._loop.running

    def answered(self, session: Session, size: int) -> None:
        """A turn of this session was answered; its conversation has `size` messages now."""
        conversation = session.conversation_id
        if session.title is not None or size < self._rules.min_messages:
            return
        if size < 2 * self._failed.get(conversation, 0):
            return
        if len(self._waiting) >= MOST_WAITING and conversation not in self._waiting:
            return
        self._waiting[conversation] = _Waiting(session.owner, size, self._monotonic() + QUIET_SECONDS)
        if not self._loop.running:
            self._loop.start()

    async def title_once(self) -> int:
        """Name the conversations that are due; returns how many were named."""
        named = 0
        for conversation, waiting in list(self._waiting.items()):
            if waiting.due_at > self._monotonic() or self._waiting.get(conversation) is not waiting:
                continue
            if len(self._made_at) == self._made_at.maxlen and self._monotonic() - self._made_at[0] < 60:
                break
            del self._waiting[conversation]
            try:
                named += await self._name(conversation, waiting.owner)
            except (ModelError, TimeoutError) as error:
                self._note_failure(conversation, waiting.size, error)
            except NotFound:
                continue  # deleted meanwhile
        return named

    async def stop(self) -> None:
        await self._loop.stop()

    async def _name(self, conversation: str, owner: str) -> bool:
        if (await self._store.conversation(owner, Address(id=conversation))).title is not None:
            return False
        page = await self._store.messages(
            owner, conversation, limit=READ_MESSAGES, excluded=False, most_bytes=READ_BYTES
        )
        entries = [
            Entry(each.seq, each.seq, each.role, (each.body,))
            for each in page.items
            if each.role in ("user", "assistant")
        ]
        self._made_at.append(self._monotonic())
        async with asyncio.timeout(ANSWER_SECONDS):
            title = title_in(await self._ask(transcript(entries, CHARACTERS)))
        if title is None:
            raise ModelError("the model's answer has no title")
        return await self._store.suggest_title(owner, conversation, title)

    async def _ask(self, text: str) -> str:
        messages = b"[%b,%b]" % (instruction(PROMPT), user_message(text).body)
        options = {"max_tokens": ANSWER_TOKENS, "stream": False}
        folder = ReplyFolder()
        async for chunk in self._model.stream(
            ModelRequest(messages, self._rules.model, Purpose.TITLE, options)
        ):
            folder.add(chunk)
        return summary_in(text_of(folder.reply().message.get("content")))

    def _note_failure(self, conversation: str, size: int, error: Exception) -> None:
        if len(self._failed) >= MOST_WAITING:
            self._failed.clear()
        self._failed[conversation] = size
        reason = error if isinstance(error, HoldfastError) else f"no answer within {ANSWER_SECONDS:g} s"
        log.info("no title was made for %s: %s", conversation, reason)
