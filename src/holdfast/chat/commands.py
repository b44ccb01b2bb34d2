"""Parses a line of the chat: a message, or a command that begins with a slash. Also runs the commands.

Parsing is pure. To send a message that begins with a slash, type two slashes, or a blank before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum

from ..cli import session_views
from ..cli.format import Styled, say
from ..cli.processes import show_processes
from ..domain.pages import SessionFilter
from ..domain.sessions import EndReason
from ..errors import NotFound
from .answering import Answering, Ended
from .state import ChatState, enter


class Slash(StrEnum):
    NEW = "new"
    RESUME = "resume"
    RETRY = "retry"
    FORK = "fork"
    COMPACT = "compact"
    WHY = "why"
    PS = "ps"
    TITLE = "title"
    HELP = "help"
    QUIT = "quit"


MEANINGS: dict[Slash, tuple[str, str]] = {
    Slash.NEW: ("", "begin afresh; what was said stays readable"),
    Slash.RESUME: ("[ID_OR_KEY]", "go on with another session or conversation; alone: list them"),
    Slash.RETRY: ("", "take up the reply that was cut short, or have the last one answered again"),
    Slash.FORK: ("[KEY]", "go on in a copy of this conversation; this one stays as it is"),
    Slash.COMPACT: ("", "go on with a summary of what is older"),
    Slash.WHY: ("", "will this session be reset, when, and what is in the way"),
    Slash.PS: ("", "what this conversation has running in the background"),
    Slash.TITLE: ("[TEXT]", "give this conversation a title; alone: show it"),
    Slash.HELP: ("", "this list"),
    Slash.QUIT: ("", "leave; Ctrl-D does too"),
}
"""For each command: its argument, and what it does."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message to send."""

    text: str


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """A command and its argument."""

    slash: Slash
    argument: str = ""


@dataclass(frozen=True, slots=True)
class Unclear:
    """An unknown or wrongly used command, with a sentence that says what to do instead."""

    sentence: str


def meaning_of(line: str) -> ChatMessage | ChatCommand | Unclear | None:
    """Parse a line. Returns None for an empty line."""
    if not line.strip():
        return None
    if line.startswith("//"):
        return ChatMessage(line[1:])
    if not line.startswith("/"):
        return ChatMessage(line)
    word, _, argument = line[1:].strip().partition(" ")
    argument = argument.strip()
    try:
        slash = Slash(word.lower())
    except ValueError:
        return Unclear(_unknown(word))
    if argument and not MEANINGS[slash][0]:
        return Unclear(f"/{slash} takes nothing behind it")
    return ChatCommand(slash, argument)


def _unknown(word: str) -> str:
    names = [slash.value for slash in Slash]
    near = [name for name in names if word and name.startswith(word.lower())]
    near = near or get_close_matches(word.lower(), names, n=1, cutoff=0.5)
    meant = f"did you mean /{near[0]}?" if near else "/help lists those there are."
    return f"there is no command /{word}; {meant} To say something that begins with a slash, write two: //"


def completions(line: str, names: Sequence[str]) -> list[str]:
    """Completions for the end of this line: commands, or names to resume."""
    word, blank, argument = line.partition(" ")
    if not blank:
        wanted = [slash for slash in Slash if word and f"/{slash}".startswith(word)]
        return [f"/{slash} " if MEANINGS[slash][0] else f"/{slash}" for slash in wanted]
    if word == f"/{Slash.RESUME}":
        return [name for name in names if name.startswith(argument)]
    return []


RECENT = 10


class ChatActions:
    def __init__(self, room: ChatState, answering: Answering) -> None:
        self._room = room
        self._answering = answering
        self._acts: dict[Slash, Callable[[str], Awaitable[Ended | None]]] = {
            Slash.NEW: self._new,
            Slash.RESUME: self._resume,
            Slash.RETRY: self._retry,
            Slash.FORK: self._fork,
            Slash.COMPACT: self._compact,
            Slash.WHY: self._why,
            Slash.PS: self._ps,
            Slash.TITLE: self._title,
            Slash.HELP: self._help,
        }

    async def do(self, wanted: ChatCommand) -> Ended:
        """Run the command. Raises HoldfastError, having changed nothing, if it fails."""
        return await self._acts[wanted.slash](wanted.argument) or Ended(True)

    async def _new(self, _: str) -> None:
        room = self._room
        try:
            tip = await room.tip()
        except NotFound:  # the conversation was deleted elsewhere
            room.live = await room.node.session(room.live.key)
            room.tell(f"Begun in {room.live.id}.")
            return
        if not tip.ended:
            room.own_ends.add(tip.id)
            await room.node.end_session(room.owner, tip.id, EndReason.NEW, wait_seconds=self._patience)
        room.live = await room.node.session(id=room.conversation_id)
        room.tell(f"Begun afresh in {room.live.id}; {tip.id} stays readable, and /resume {tip.id} goes back.")

    async def _resume(self, name: str) -> None:
        if not name:
            await self._list()
            return
        room = self._room
        before = (await room.tip()).id
        room.live = await enter(room.node, name, self._patience)
        line = await room.node.line(room.owner, room.conversation_id)
        room.own_ends.update(session.id for session in line if session.ended)
        named = f" ({room.live.key})" if room.live.key else ""
        room.tell(f"{'You are' if room.live.id == before else 'Now'} in {room.live.id}{named}.")

    async def _list(self) -> None:
        room = self._room
        page, states = await room.node.sessions_with_states(SessionFilter(room.owner), limit=RECENT)
        session_views.show_list(page.items, states, room.node.now(), with_owner=False)
        room.tell("/resume ID_OR_KEY goes on with one of them.")

    async def _retry(self, _: str) -> Ended:
        return await self._answering.retry()

    async def _fork(self, key: str) -> None:
        room = self._room
        tip, before = await room.tip(), room.conversation_id
        forked = await room.node.fork_session(room.owner, tip.id, key=key or None, attached=True)
        room.live = await room.node.session(id=forked.conversation_id)
        room.tell(f"Now in {forked.id}, a copy; /resume {before} goes back.")

    async def _compact(self, _: str) -> None:
        room = self._room
        before = (await room.tip()).id
        room.own_ends.add(before)
        room.tell("Summarising what is older; Ctrl-C gives it up …")
        compacting = asyncio.ensure_future(room.live.compact())
        room.desk.on_interrupt = compacting.cancel
        try:
            await compacting
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the chat itself is shutting down
            room.tell("Given up: everything stays as it was.")
            return
        finally:
            room.desk.on_interrupt = None
        room.tell(f"Compacted: goes on in {room.live.id}; {before} leads there, and stays readable.")

    async def _why(self, _: str) -> None:
        room = self._room
        found = await room.node.why(room.owner, (await room.tip()).id)
        say(found.sentence)

    async def _ps(self, _: str) -> None:
        room = self._room
        found = await room.live.processes()
        if found:
            show_processes(room.node, found, room.node.now())
        else:
            room.tell("This conversation has started no process.")

    async def _title(self, title: str) -> None:
        room = self._room
        if title:
            await room.node.set_title(room.owner, room.conversation_id, title)
            room.tell(f"This conversation is called {title!r} now.")
        else:
            named = (await room.tip()).title
            room.tell(
                f"This conversation is called {named!r}." if named else "This conversation has no title."
            )

    async def _help(self, _: str) -> None:
        for slash, (takes, meaning) in MEANINGS.items():
            say(Styled(f"  /{slash} {takes}".ljust(24), "bold"), meaning)
        self._room.tell(
            "Ctrl-C interrupts a reply and keeps what it said. A line that ends in \\ goes on below."
        )

    @property
    def _patience(self) -> float:
        return self._room.invocation.settings.server.busy_wait_seconds
