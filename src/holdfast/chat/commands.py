"""Parses a line of the chat: a message, or a command that begins with a slash. Also runs the commands.

Parsing is pure. To send a message that begins with a slash, type two slashes, or a blank before it.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path

from ..cli import session_views
from ..cli.format import Column, Styled, ago, count, one_line, say, table, write
from ..cli.processes import show_processes
from ..cli.session_actions import rewound_sentence
from ..domain.messages import Message
from ..domain.pages import SessionFilter
from ..domain.sessions import EndReason
from ..errors import BadInput, NotFound
from .answering import Answering, Ended
from .state import ChatState, enter
from .terminal import ENTER_HINT


class Slash(StrEnum):
    NEW = "new"
    RESUME = "resume"
    RETRY = "retry"
    FORK = "fork"
    REWIND = "rewind"
    COMPACT = "compact"
    WHY = "why"
    PS = "ps"
    TITLE = "title"
    MODEL = "model"
    SYSTEM = "system"
    SAVE = "save"
    COPY = "copy"
    COST = "cost"
    HELP = "help"
    QUIT = "quit"


MEANINGS: dict[Slash, tuple[str, str]] = {
    Slash.NEW: ("", "start a new session; the old one stays readable"),
    Slash.RESUME: (
        "[ID_OR_KEY]",
        "continue another conversation; alone: list them",
    ),
    Slash.RETRY: ("", "generate the last reply again"),
    Slash.FORK: ("[KEY]", "continue in a copy; this one stays as it is"),
    Slash.REWIND: (
        "[MESSAGE]",
        "continue from a message; alone: take back your last",
    ),
    Slash.COMPACT: ("", "replace older messages by a summary in the context"),
    Slash.WHY: ("", "when this session will be reset, and what defers it"),
    Slash.PS: ("", "background processes of this conversation"),
    Slash.TITLE: ("[TEXT]", "give this conversation a title; alone: show it"),
    Slash.MODEL: ("[NAME]", "ask this model from now on; alone: show it"),
    Slash.SYSTEM: ("[TEXT]", "instructions of this chat from now on; alone: show them"),
    Slash.SAVE: ("FILE", "write the conversation to a new file, as Markdown"),
    Slash.COPY: ("", "copy the last reply to the clipboard"),
    Slash.COST: ("", "tokens used by this conversation"),
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
    takes = MEANINGS[slash][0]
    if argument and not takes:
        return Unclear(f"/{slash} takes no argument")
    if takes and not argument and not takes.startswith("["):
        return Unclear(f"/{slash} needs an argument: /{slash} {takes}")
    return ChatCommand(slash, argument)


def _unknown(word: str) -> str:
    names = [slash.value for slash in Slash]
    near = [name for name in names if word and name.startswith(word.lower())]
    near = near or get_close_matches(word.lower(), names, n=1, cutoff=0.5)
    meant = f"did you mean /{near[0]}?" if near else "/help lists those there are."
    return f"there is no command /{word}; {meant} To send a message that begins with a slash, type two: //"


def completions(line: str, names: Mapping[str, str]) -> list[tuple[str, str]]:
    """Completions of the last word of this line, each with its meaning: commands, or names to resume.

    `names`: each with the title of its conversation."""
    word, blank, argument = line.partition(" ")
    if not blank:
        wanted = [slash for slash in Slash if word and f"/{slash}".startswith(word)]
        return [(f"/{slash} " if MEANINGS[slash][0] else f"/{slash}", MEANINGS[slash][1]) for slash in wanted]
    if word == f"/{Slash.RESUME}":
        return [(name, title) for name, title in names.items() if name.startswith(argument)]
    return []


RECENT = 10
"""Conversations that /resume lists."""
PREVIEWED = 6
"""Newest messages among which the last reply is looked for."""
COPY_LIMIT = 100_000
"""Terminals refuse to copy more than about this many bytes."""


def before_last_message(visible: Sequence[Message]) -> int:
    """The number of the message before the person's last one; 0: there is none. Raises BadInput if the person
    has written nothing."""
    for place in range(len(visible) - 1, -1, -1):
        if visible[place].role == "user":
            return visible[place - 1].seq if place else 0
    raise BadInput("no message to take back yet")


def _write_new(file: str, text: str) -> Path:
    path = Path(file).expanduser()
    try:
        with path.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        raise BadInput(f"{path} was not written: {error.strerror}") from None
    return path


class ChatActions:
    def __init__(self, room: ChatState, answering: Answering) -> None:
        self._room = room
        self._answering = answering
        self._listed: list[str] = []
        """Sessions as /resume listed them last."""
        self._acts: dict[Slash, Callable[[str], Awaitable[Ended | None]]] = {
            Slash.NEW: self._new,
            Slash.RESUME: self._resume,
            Slash.RETRY: self._retry,
            Slash.FORK: self._fork,
            Slash.REWIND: self._rewind,
            Slash.COMPACT: self._compact,
            Slash.WHY: self._why,
            Slash.PS: self._ps,
            Slash.TITLE: self._title,
            Slash.MODEL: self._model,
            Slash.SYSTEM: self._system,
            Slash.SAVE: self._save,
            Slash.COPY: self._copy,
            Slash.COST: self._cost,
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
            room.tell(f"New session {room.live.id}.")
            return
        if not tip.ended:
            room.own_ends.add(tip.id)
            await room.node.end_session(room.owner, tip.id, EndReason.NEW, wait_seconds=self._patience)
        room.live = await room.node.session(id=room.conversation_id)
        room.tell(f"New session {room.live.id}. {tip.id} stays readable; /resume {tip.id} goes back.")

    async def _resume(self, name: str) -> None:
        if not name:
            await self._list()
            return
        room = self._room
        before = (await room.tip()).id
        if name.isdecimal() and 0 < int(name) <= len(self._listed):
            name = self._listed[int(name) - 1]
        room.live = await enter(room.node, name, self._patience)
        line = await room.node.line(room.owner, room.conversation_id)
        room.own_ends.update(session.id for session in line if session.ended)
        named = f" ({room.live.key})" if room.live.key else ""
        room.tell(f"{'You are' if room.live.id == before else 'Now'} in {room.live.id}{named}.")

    async def _list(self) -> None:
        """One line for each other conversation, newest first: its number, title or key, and last activity."""
        room = self._room
        wanted = SessionFilter(room.owner, newest=True)
        page = await room.node.session_page(wanted, limit=RECENT + 1)
        shown = [each for each in page.items if each.conversation_id != room.conversation_id][:RECENT]
        headings = await room.node.headings_of(shown)
        self._listed = [session.id for session in shown]
        if not shown:
            room.tell("No other conversations.")
            return
        now = room.node.now()
        columns = (
            Column("", right=True),
            Column("conversation"),
            Column("key"),
            Column("messages", right=True),
            Column("last activity", whole=True),
        )
        rows = [
            (
                str(number),
                one_line(session.title or headings[session.conversation_id].first_words or "—"),
                session.key or Styled("—", "dim"),
                str(session.last_seq),
                ago(session.last_activity_at, now),
            )
            for number, session in enumerate(shown, 1)
        ]
        table(columns, rows)
        room.tell("/resume NUMBER continues one of them, /resume ID_OR_KEY any other.")

    async def _retry(self, _: str) -> Ended:
        return await self._answering.retry()

    async def _fork(self, key: str) -> None:
        room = self._room
        tip, before = await room.tip(), room.conversation_id
        forked = await room.node.fork_session(room.owner, tip.id, key=key or None, attached=True)
        room.live = await room.node.session(id=forked.conversation_id)
        room.tell(f"Now in {forked.id}, a copy; /resume {before} goes back.")

    async def _rewind(self, to: str) -> None:
        room = self._room
        target: str | int = int(to) if to.isdecimal() else to
        if not to:
            target = before_last_message(await room.node.visible(room.owner, room.conversation_id))
        before = await room.tip()
        room.own_ends.add(before.id)
        done = await room.node.rewind(room.owner, room.conversation_id, target)
        if done.session.id != before.id:
            room.live = await room.node.session(id=room.conversation_id)
        room.tell(f"{rewound_sentence(done)} /rewind {before.last_seq} goes back.")

    async def _compact(self, _: str) -> None:
        room = self._room
        before = (await room.tip()).id
        room.own_ends.add(before)
        room.tell("Summarising older messages; Ctrl-C cancels …")
        compacting = asyncio.ensure_future(room.live.compact())
        room.desk.on_interrupt = compacting.cancel
        try:
            await compacting
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the chat itself is shutting down
            room.tell("Cancelled: nothing was changed.")
            return
        finally:
            room.desk.on_interrupt = None
        room.tell(f"Compacted: continues in {room.live.id}; {before} leads there, and stays readable.")

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
            room.tell(f"Title: {title!r}.")
        else:
            named = (await room.tip()).title
            room.tell(f"Title: {named!r}." if named else "This conversation has no title.")

    async def _model(self, name: str) -> None:
        room = self._room
        if name:
            room.model_name = name
        room.tell(f"Answered by {room.model_name or room.model.description}.")

    async def _system(self, text: str) -> None:
        room = self._room
        if text:
            room.system_prompt = text
        room.tell(f"Instructions: {room.system_prompt}" if room.system_prompt else "No instructions.")

    async def _save(self, file: str) -> None:
        room = self._room
        said = await room.node.visible(room.owner, room.conversation_id)
        text = "\n\n".join(
            f"## {message.role}\n\n{session_views.text_of(message.content().get('content')).strip()}"
            for message in said
        )
        path = await asyncio.to_thread(_write_new, file, text + "\n")
        room.tell(f"{count(len(said), 'message')} written to {path}.")

    async def _copy(self, _: str) -> None:
        room = self._room
        replies = [
            session_views.text_of(message.content().get("content"))
            for message in await room.node.visible(room.owner, room.conversation_id, limit=PREVIEWED)
            if message.role == "assistant"
        ]
        if not replies:
            room.tell("There is no reply to copy.")
        elif not room.desk.interactive:
            raise BadInput("/copy needs a terminal")
        elif len(replies[-1].encode()) > COPY_LIMIT:
            raise BadInput(f"the reply is longer than a terminal copies ({COPY_LIMIT:,} bytes); use /save")
        else:
            write(f"\033]52;c;{b64encode(replies[-1].encode()).decode()}\a")
            room.tell("Copied, if the terminal allows it (OSC 52).")

    async def _cost(self, _: str) -> None:
        room = self._room
        line = await room.node.line(room.owner, room.conversation_id)
        taken = sum(session.input_tokens for session in line)
        given = sum(session.output_tokens for session in line)
        tokens = f"{taken:,} tokens in, {given:,} out, as reported by the model"
        cost = await room.node.cost(room.owner, room.conversation_id)
        if cost.amount is None:
            room.tell(f"{tokens}.")
        else:
            room.tell(f"{session_views.cost_sentence(cost)}; {tokens}.")

    async def _help(self, _: str) -> None:
        for slash, (takes, meaning) in MEANINGS.items():
            say(Styled(f"  /{slash} {takes}".ljust(24), "bold"), meaning)
        self._room.tell(f"{ENTER_HINT}. Ctrl-C interrupts a reply and keeps its text.")

    @property
    def _patience(self) -> float:
        return self._room.invocation.settings.server.busy_wait_seconds
