"""`open_sync`: the same entry point for programs without an event loop.

    with holdfast.open_sync("sqlite:///agent.db") as hf:
        session = hf.session(key="cli:ada")
        with session.turn("my name is Ada") as turn:
            turn.append({"role": "assistant", "content": "Hello Ada"})

A thread runs the event loop; each call blocks until its result. The program's own code may block for any
time: heartbeats come from their own thread. The node closes at the end of the block, by `close()`, or when
the program exits.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, wait
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from .app import Holdfast, OwnModel, as_model, effective_settings
from .domain.conversations import Conversation
from .domain.events import Event
from .domain.ids import DEFAULT_OWNER
from .domain.memories import Memory
from .domain.messages import Message
from .domain.pages import Found
from .domain.processes import Process
from .domain.sessions import EndReason, Session
from .domain.why import Why
from .errors import BadInput, StoreClosed
from .runtime.processes.launcher import Command
from .runtime.shutdown import ExitSignals, finished
from .runtime.turns.gate import own_turns
from .session import LiveSession, LiveTurn
from .session_messages import Content

T = TypeVar("T")


class _Loop:
    """An event loop in its own thread."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-loop", daemon=True)
        self._thread.start()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Return or raise what this work does. If the wait is interrupted (Ctrl-C), the work is cancelled and
        has ended when this raises; a second interrupt does not wait for that."""
        if os.getpid() != self._pid:
            work.close()
            raise StoreClosed(
                "holdfast was opened in another process, from which this one was forked; open it again here"
            )
        if not self._thread.is_alive():
            work.close()
            raise StoreClosed("holdfast is closed")
        if threading.current_thread() is self._thread:
            work.close()
            raise BadInput(
                "this was called in holdfast's own event loop, as by an async model, and would wait for "
                "itself; await the same method of `hf.inner` instead"
            )
        done: Future[T] = Future()
        started: list[asyncio.Task[T]] = []

        def start() -> None:
            task = self._loop.create_task(work)
            started.append(task)
            task.add_done_callback(lambda ended: _copy(ended, done))

        def cancel() -> None:
            if started:
                started[0].cancel()
            else:  # the interrupt came before `start` was scheduled
                work.close()
                done.set_exception(CancelledError())

        try:
            self._loop.call_soon_threadsafe(start)
            return done.result()
        except BaseException:
            if not done.done():  # Ctrl-C while waiting: the work must not continue without its caller
                self._loop.call_soon_threadsafe(cancel)
                wait({done})
            raise

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _copy(ended: asyncio.Task[T], done: Future[T]) -> None:
    if ended.cancelled():
        done.set_exception(CancelledError())
    elif (error := ended.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(ended.result())


class BlockingHoldfast:
    """`Holdfast`, blocking. Made by `open_sync`."""

    def __init__(self, inner: Holdfast) -> None:
        self._inner = inner
        self._loop = _Loop()
        self._signals = ExitSignals()
        self._open = True
        self._pid = os.getpid()
        try:
            self._loop.call(inner.start())
        except BaseException:
            try:
                self._loop.call(inner.stop())  # Ctrl-C may come when it has just started
            finally:
                self._loop.stop()
            raise
        self._signals.catch()
        atexit.register(self.close)

    def __repr__(self) -> str:
        return repr(self._inner).replace("<Holdfast", "<BlockingHoldfast", 1)

    @property
    def node_id(self) -> str:
        """The id of this node in the store."""
        return self._inner.node_id

    @property
    def inner(self) -> Holdfast:
        """The node itself; use it only in `event_loop`."""
        return self._inner

    @property
    def event_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop in which the node lives, in a thread of its own."""
        return self._loop.loop

    @property
    def is_open(self) -> bool:
        """True until it is closed."""
        return self._open

    def session(
        self, key: str | None = None, *, id: str | None = None, source: str = "", attached: bool = True
    ) -> BlockingSession:
        """Resume or start the session that the next message of this key (or id) belongs to."""
        live = self._loop.call(self._inner.session(key, id=id, source=source, attached=attached))
        return BlockingSession(self._loop, live)

    def sessions(
        self,
        *,
        key: str | None = None,
        source: str | None = None,
        title: str | None = None,
        ended: bool | None = None,
        newest: bool = False,
        after: str | None = None,
        limit: int = 100,
    ) -> list[Session]:
        return self._loop.call(
            self._inner.sessions(
                key=key, source=source, title=title, ended=ended, newest=newest, after=after, limit=limit
            )
        )

    def search(
        self,
        words: str,
        *,
        role: str | None = None,
        source: str | None = None,
        since: datetime | None = None,
        limit: int = 20,
    ) -> list[Found]:
        return self._loop.call(self._inner.search(words, role=role, source=source, since=since, limit=limit))

    def conversation(self, name: str) -> Conversation:
        return self._loop.call(self._inner.conversation(name))

    def delete(self, name: str) -> None:
        self._loop.call(self._inner.delete(name))

    def export(self, name: str | None = None) -> Iterator[bytes]:
        lines = self._inner.export(name)

        async def following() -> bytes | None:
            return await anext(lines, None)

        while (line := self._loop.call(following())) is not None:
            yield line

    def events(self, after: int = 0) -> Iterator[Event]:
        """The events after event `after`."""

        async def fetch() -> list[Event]:
            return await self._inner.events(after)

        return iter(self._loop.call(fetch()))

    def close(self) -> None:
        """Leave as a node and close the store. Idempotent."""
        if not self._open or os.getpid() != self._pid:  # a forked child does not own the node
            return
        self._open = False
        atexit.unregister(self.close)
        try:
            self._loop.call(finished(self._inner.stop()))
        finally:
            self._loop.stop()
            self._signals.release()

    def __enter__(self) -> BlockingHoldfast:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()


class BlockingSession:
    """`LiveSession`, blocking."""

    def __init__(self, loop: _Loop, live: LiveSession) -> None:
        self._loop = loop
        self._live = live

    def __repr__(self) -> str:
        return repr(self._live).replace("<LiveSession", "<BlockingSession", 1)

    @property
    def id(self) -> str:
        """The id of the conversation's newest session, `sess_…`."""
        return self._live.id

    @property
    def conversation_id(self) -> str:
        """The id of the conversation, `conv_…`; it never changes."""
        return self._live.conversation_id

    @property
    def key(self) -> str | None:
        """The session key that names the conversation, such as `cli:ada`."""
        return self._live.key

    def turn(
        self,
        content: Content,
        *,
        request_id: str | None = None,
        model: str | None = None,
        wait_seconds: float | None = None,
    ) -> BlockingTurn:
        live = self._live.turn(content, request_id=request_id, model=model, wait_seconds=wait_seconds)
        return BlockingTurn(self._loop, live)

    def context(self) -> list[dict[str, Any]]:
        return self._loop.call(self._live.context())

    def messages(self, scope: str = "session", *, limit: int | None = None) -> list[Message]:
        return self._loop.call(self._live.messages(scope, limit=limit))

    def append(self, content: Content, *, names: Sequence[str] | None = None) -> int:
        return self._loop.call(self._live.append(content, names=names))

    def remove_last(self, count: int = 1) -> list[Message]:
        return self._loop.call(self._live.remove_last(count))

    def replace(self, content: Content, *, since: int = 1, last_seq: int | None = None) -> int:
        return self._loop.call(self._live.replace(content, since=since, last_seq=last_seq))

    def clear(self) -> None:
        self._loop.call(self._live.clear())

    def state(self) -> dict[str, Any]:
        return self._loop.call(self._live.state())

    def update_state(self, changes: Mapping[str, Any], remove: Iterable[str] = ()) -> dict[str, Any]:
        return self._loop.call(self._live.update_state(changes, remove))

    def why(self) -> Why:
        return self._loop.call(self._live.why())

    def memories(self) -> list[Memory]:
        return self._loop.call(self._live.memories())

    def remember(self, text: str) -> Memory:
        return self._loop.call(self._live.remember(text))

    def end(self, reason: str = EndReason.CLOSED) -> None:
        self._loop.call(self._live.end(reason))

    def set_title(self, title: str) -> None:
        self._loop.call(self._live.set_title(title))

    def rewind(self, to: str | int) -> None:
        self._loop.call(self._live.rewind(to))

    def compact(self) -> None:
        self._loop.call(self._live.compact())

    def compact_if_full(self) -> None:
        self._loop.call(self._live.compact_if_full())

    def fork(self, *, key: str | None = None, up_to: int | None = None) -> BlockingSession:
        return BlockingSession(self._loop, self._loop.call(self._live.fork(key=key, up_to=up_to)))

    def spawn(self, command: Command, cwd: str | Path | None = None, *, stdin: bool = False) -> Process:
        return self._loop.call(self._live.spawn(command, cwd, stdin=stdin))

    def watch(self, pid: int) -> Process:
        return self._loop.call(self._live.watch(pid))

    def processes(self, *, running: bool | None = None) -> list[Process]:
        return self._loop.call(self._live.processes(running=running))


class BlockingTurn:
    """`LiveTurn`, blocking."""

    def __init__(self, loop: _Loop, live: LiveTurn) -> None:
        self._loop = loop
        self._live = live

    def __repr__(self) -> str:
        return repr(self._live).replace("<LiveTurn", "<BlockingTurn", 1)

    @property
    def id(self) -> str:
        """The id of the turn, `turn_…`."""
        return self._live.id

    @property
    def conversation_id(self) -> str:
        """The id of the conversation, `conv_…`."""
        return self._live.conversation_id

    @property
    def repeated(self) -> bool:
        """True: this request was answered before; `reply()` returns that answer."""
        return self._live.repeated

    @property
    def taken_up(self) -> bool:
        """True: the turn had no answer yet, and this is a retry of it."""
        return self._live.taken_up

    @property
    def usage(self) -> dict[str, int]:
        """Token counts, added up over the model calls of this turn. Assign the `usage` of each response."""
        return self._live.usage

    @usage.setter
    def usage(self, reported: object) -> None:
        self._live.usage = reported

    def reply(self) -> dict[str, Any] | None:
        return self._loop.call(self._live.reply())

    def context(self) -> list[dict[str, Any]]:
        return self._loop.call(self._live.context())

    def context_json(self) -> bytes:
        return self._loop.call(self._live.context_json())

    def draft(self, text: str) -> None:
        self._loop.call(self._live.draft(text))

    def append(self, content: Content) -> int:
        return self._loop.call(self._live.append(content))

    def __enter__(self) -> BlockingTurn:
        try:
            self._loop.call(self._live.__aenter__())
            # The turn was entered in another thread's context: record it in this one too, so that a nested
            # turn is refused instead of waiting for itself.
            own_turns.set((*own_turns.get(), (self._live.conversation_id, self._live.id)))
        except BaseException as error:
            self._loop.call(self._live._abandon(error))  # it may have begun, and no `with` will end it
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        own_turns.set(tuple(own for own in own_turns.get() if own[1] != self._live.id))
        self._loop.call(self._live.__aexit__(kind, error, trace))


def _take_docstrings(blocking: type, live: type) -> None:
    """Give each member without a docstring that of the member it calls."""
    for name, member in vars(blocking).items():
        if not name.startswith("_") and member.__doc__ is None:
            member.__doc__ = getattr(getattr(live, name, None), "__doc__", None)


_take_docstrings(BlockingHoldfast, Holdfast)
_take_docstrings(BlockingSession, LiveSession)
_take_docstrings(BlockingTurn, LiveTurn)


def open_sync(
    url: str | Path | None = None,
    *,
    owner: str = DEFAULT_OWNER,
    settings: Mapping[str, Any] | None = None,
    model: OwnModel | None = None,
    sweep: bool = True,
) -> BlockingHoldfast:
    """A node on the store at `url`, for programs without an event loop. See `holdfast.open`."""
    inner = Holdfast(
        effective_settings(url, settings),
        owner=owner,
        sweep=sweep,
        catch_signals=False,
        model=as_model(model),
    )
    return BlockingHoldfast(inner)
