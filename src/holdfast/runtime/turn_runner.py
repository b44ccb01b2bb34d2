"""Drives one turn: the context to the model, its words to a listener and into drafts, the answer to disk.

The listener is never further than `checkpoint_seconds` ahead of the disk: when a checkpoint takes longer,
the stream waits for it. Whatever cuts the turn short (a signal, the model, a lost lease), what was said until
then is kept as its draft, unless somebody else has ended the turn already; then `LeaseLost` is raised, also
while the model is silent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from ..domain.turns import TurnStatus
from ..errors import ModelError, NotFound
from ..models.base import Chunk, Model, ModelRequest
from ..models.reply import Reply, ReplyFolder
from ..store.base import Store

T = TypeVar("T")

CHECKPOINT_SECONDS = 0.5
LOOK_SECONDS = 1.0

Listener = Callable[[Chunk], None]


class RunningTurn(Protocol):
    """What the runner needs of a turn; `handles.LiveTurn` is one."""

    usage: dict[str, int]

    @property
    def id(self) -> str: ...

    async def context_json(self) -> bytes: ...

    async def draft(self, text: str) -> None: ...

    async def append(self, content: Any) -> int: ...


class TurnRunner:
    def __init__(self, store: Store, checkpoint_seconds: float = CHECKPOINT_SECONDS) -> None:
        self._store = store
        self._checkpoint_seconds = checkpoint_seconds

    async def answer(
        self,
        turn: RunningTurn,
        model: Model,
        *,
        instructions: str = "",
        name: str | None = None,
        listen: Listener = lambda chunk: None,
    ) -> Reply:
        """Ask the model and append what it answers; returns it. The turn itself is left to its block.

        `instructions` go first, as a system message that is not stored. `name`: the model to ask for.
        Raises ModelError if there was no whole answer, LeaseLost if the turn was ended by someone else.
        """
        messages = instructed(await turn.context_json(), instructions)
        folder = ReplyFolder()
        drafts = _Drafts(turn, self._checkpoint_seconds)
        reading = asyncio.create_task(
            self._read(model, ModelRequest(messages, model=name), folder, drafts, listen)
        )
        watching = asyncio.create_task(self._until_ended(turn))
        keeping = asyncio.create_task(drafts.keep())
        whole = False
        try:
            await asyncio.wait({reading, watching, keeping}, return_when=asyncio.FIRST_COMPLETED)
            whole = reading.done() and not reading.cancelled() and reading.exception() is None
        finally:
            for task in (reading, watching):
                task.cancel()
            await asyncio.gather(reading, watching, return_exceptions=True)
            # The answer itself is about to be stored; anything less is kept as the draft it is.
            drafts.stop(keep_rest=not whole)
            await finished(asyncio.gather(keeping, return_exceptions=True))
        for task in (keeping, watching, reading):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        reply = folder.reply()
        turn.usage = tokens(reply.usage)
        if reply.finish_reason is None:
            await drafts.save()
            raise ModelError("the model's answer broke off before its end; what it had said is kept")
        await finished(turn.append(reply.message))
        return reply

    async def _read(
        self, model: Model, request: ModelRequest, folder: ReplyFolder, drafts: _Drafts, listen: Listener
    ) -> None:
        async for chunk in model.stream(request):
            await drafts.room()
            folder.add(chunk)
            listen(chunk)
            drafts.add(chunk.adds.get("content", ""))

    async def _until_ended(self, turn: RunningTurn) -> None:
        """Notice that somebody else ended the turn, though the model may be silent: raises LeaseLost."""
        while True:
            version = self._store.version()
            try:
                running = (await self._store.turn(None, turn.id)).status is TurnStatus.RUNNING
            except NotFound:
                running = False  # its conversation was deleted
            if not running:
                await turn.append(())  # under its lease: refused, since that has passed on
            await self._store.changed(version, LOOK_SECONDS)
            await asyncio.sleep(LOOK_SECONDS / 4)


class _Drafts:
    """Keeps the growing reply on disk, at most every `seconds`. A checkpoint is never cut in half."""

    def __init__(self, turn: RunningTurn, seconds: float) -> None:
        self._turn = turn
        self._seconds = seconds
        self._text = ""
        self._unsaved_since: float | None = None
        """When the oldest word was said that is not on disk."""
        self._saving = 0
        """How much of the text the checkpoint under way holds, or the last one held."""
        self._grown_since: float | None = None
        """When the oldest word was said that this checkpoint does not hold."""
        self._grown = asyncio.Event()
        self._saved = asyncio.Event()
        self._stopping = asyncio.Event()
        self._keep_rest = True

    def add(self, text: str) -> None:
        if not text:
            return
        self._text += text
        now = time.monotonic()
        self._unsaved_since = self._unsaved_since or now
        self._grown_since = self._grown_since or now
        self._grown.set()

    async def room(self) -> None:
        """Wait while there are words that were said longer than `seconds` ago and are not on disk."""
        while self._unsaved_since and time.monotonic() - self._unsaved_since > self._seconds:
            self._saved.clear()
            await self._saved.wait()

    async def save(self) -> None:
        if len(self._text) > self._saving:
            self._saving, self._grown_since = len(self._text), None
            await self._turn.draft(self._text)
            self._unsaved_since = self._grown_since
        self._saved.set()

    def stop(self, *, keep_rest: bool) -> None:
        self._keep_rest = keep_rest
        self._stopping.set()
        self._grown.set()

    async def keep(self) -> None:
        """The first words at once, then whatever has come since, until told to stop."""
        while not self._stopping.is_set():
            await self._grown.wait()
            self._grown.clear()
            if self._stopping.is_set():
                break
            await self.save()
            try:
                async with asyncio.timeout(self._seconds):
                    await self._stopping.wait()
            except TimeoutError:
                continue
        if self._keep_rest:
            await self.save()


def instructed(messages: bytes, instructions: str) -> bytes:
    """A JSON array of messages with the instructions first; the rest is not decoded."""
    if not instructions:
        return messages
    first = msgspec.json.encode({"role": "system", "content": instructions})
    rest = messages[1:]
    return b"[" + first + (b"," if rest.strip() != b"]" else b"") + rest


def tokens(usage: Mapping[str, Any] | None) -> dict[str, int]:
    """What a model reported, under the names we store."""
    usage = usage or {}
    return {
        ours: int(usage[theirs])
        for ours, theirs in (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens"))
        if isinstance(usage.get(theirs), int)
    }


async def finished(work: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:
    """Do this to its end, even if the task is cancelled meanwhile; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error from None
        raise
