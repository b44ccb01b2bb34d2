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
from ..cli.format import Styled, ago, count, one_line, say, write
from ..cli.processes import show_processes
from ..cli.session_actions import rewound_sentence
from ..domain.headings import shortened
from ..domain.ids import short
from ..domain.messages import Message
from ..domain.pages import SessionFilter
from ..domain.sessions import EndReason
from ..errors import BadInput, NotFound
from ..os_support import expanded, open_private
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
    REMEMBER = "remember"
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
    Slash.REMEMBER: ("[TEXT]", "keep this for later sessions too; alone: list what is kept"),
    Slash.TITLE: ("[TEXT]", "give this conversation a title; alone: show it"),
    Slash.MODEL: ("[NAME]", "ask this model from now on; alone: show it"),
    Slash.SYSTEM: ("[TEXT]", "instructions of this chat from now on; alone: show them"),
    Slash.SAVE: ("FILE", "write the conversation to a new file, as Markdown"),
    Slash.COPY: ("", "copy the last reply to the clipboard"),
    Slash.COST: ("", "tokens used by this conversation"),
    Slash.HELP: ("", "this list"),
    Slash.QUIT: ("", "exit; Ctrl-D does too"),
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
    meant = f"did you mean /{near[0]}?" if near else "/help lists them."
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
NAME_CHARACTERS, PREVIEW_CHARACTERS = 40, 72
"""How much of a title and of the last message /resume lists."""
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
    path = expanded(Path(file))
    try:
        with open(path, "x", encoding="utf-8", opener=open_private) as opened:
            opened.write(text)
    except OSError as error:
        raise BadInput(f"{path} was not written: {error.strerror}") from None
    return path


class ChatActions:
    def __init__(self, state: ChatState, answering: Answering) -> None:
        self._state = state
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
            Slash.REMEMBER: self._remember,
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
        state = self._state
        try:
            tip = await state.tip()
        except NotFound:  # the conversation was deleted elsewhere
            state.live = await state.node.session(state.live.key)
            state.say(f"New session {state.live.id}.")
            return
        if not tip.ended:
            state.own_ends.add(tip.id)
            await state.node.end_session(state.owner, tip.id, EndReason.NEW, wait_seconds=self._patience)
        state.live = await state.node.session(id=state.conversation_id)
        state.say(f"New session {state.live.id}. {tip.id} stays readable; /resume {tip.id} goes back.")

    async def _resume(self, name: str) -> None:
        if not name:
            await self._list()
            return
        state = self._state
        before = (await state.tip()).id
        if name.isdecimal() and 0 < int(name) <= len(self._listed):
            name = self._listed[int(name) - 1]
        state.live = await enter(state.node, name, self._patience)
        line = await state.node.line(state.owner, state.conversation_id)
        state.own_ends.update(session.id for session in line if session.ended)
        named = f" ({state.live.key})" if state.live.key else ""
        state.say(f"{'You are' if state.live.id == before else 'Now'} in {state.live.id}{named}.")

    async def _list(self) -> None:
        """Each other conversation, newest first: its number, title, key, size, age, and last words."""
        state = self._state
        wanted = SessionFilter(state.owner, newest=True)
        page = await state.node.session_page(wanted, limit=RECENT + 1)
        shown = [each for each in page.items if each.conversation_id != state.conversation_id][:RECENT]
        headings = await state.node.headings_of(shown)
        self._listed = [session.id for session in shown]
        if not shown:
            state.say("No other conversations.")
            return
        now = state.node.now()
        for number, session in enumerate(shown, 1):
            heading = headings[session.conversation_id]
            name = session.title or heading.first_words or short(session.id)
            facts = [
                session.key or "",
                count(session.last_seq, "message"),
                ago(session.last_activity_at, now),
            ]
            say(
                Styled(f"{number:>2}  ", "dim"),
                Styled(shortened(name, NAME_CHARACTERS) or "", "bold"),
                Styled(f"  {', '.join(filter(None, facts))}", "dim"),
                fits=True,
            )
            if heading.preview:
                say(Styled(shortened(heading.preview, PREVIEW_CHARACTERS) or "", "dim"), indent=4)
        state.say("/resume NUMBER continues one of them, /resume ID_OR_KEY any other.")

    async def _retry(self, _: str) -> Ended:
        return await self._answering.retry()

    async def _fork(self, key: str) -> None:
        state = self._state
        tip, before = await state.tip(), state.conversation_id
        forked = await state.node.fork_session(state.owner, tip.id, key=key or None, attached=True)
        state.live = await state.node.session(id=forked.conversation_id)
        state.say(f"Now in {forked.id}, a copy; /resume {before} goes back.")

    async def _rewind(self, to: str) -> None:
        state = self._state
        target: str | int = int(to) if to.isdecimal() else to
        if not to:
            target = before_last_message(await state.node.visible(state.owner, state.conversation_id))
        before = await state.tip()
        state.own_ends.add(before.id)
        done = await state.node.rewind(state.owner, state.conversation_id, target)
        if done.session.id != before.id:
            state.live = await state.node.session(id=state.conversation_id)
        state.say(f"{rewound_sentence(done)} /rewind {before.last_seq} goes back.")

    async def _compact(self, _: str) -> None:
        state = self._state
        before = (await state.tip()).id
        state.own_ends.add(before)
        state.say("Summarising older messages; Ctrl-C cancels …")
        compacting = asyncio.ensure_future(state.live.compact())
        state.terminal.on_interrupt = compacting.cancel
        try:
            await compacting
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the chat itself is shutting down
            state.say("Cancelled: nothing was changed.")
            return
        finally:
            state.terminal.on_interrupt = None
        state.say(f"Compacted: the conversation continues in {state.live.id}; {before} stays readable.")

    async def _why(self, _: str) -> None:
        state = self._state
        found = await state.node.why(state.owner, (await state.tip()).id)
        say(found.sentence)

    async def _ps(self, _: str) -> None:
        state = self._state
        found = await state.live.processes()
        if found:
            show_processes(state.node, found, state.node.now())
        else:
            state.say("This conversation has started no process.")

    async def _remember(self, text: str) -> None:
        state = self._state
        if text:
            memory = await state.live.remember(text)
            state.say(f"Remembered as {memory.id}.")
            return
        found = await state.live.memories()
        for memory in reversed(found):
            say(Styled(f"  {memory.created_at.astimezone():%Y-%m-%d}  ", "dim"), one_line(memory.text))
        if not found:
            state.say("Nothing is remembered for this conversation.")

    async def _title(self, title: str) -> None:
        state = self._state
        if title:
            await state.node.set_title(state.owner, state.conversation_id, title)
            state.say(f"Title: {title!r}.")
        else:
            named = (await state.tip()).title
            state.say(f"Title: {named!r}." if named else "This conversation has no title.")

    async def _model(self, name: str) -> None:
        state = self._state
        if name:
            state.model_name = name
        state.say(f"Answered by {state.model_name or state.model.description}.")

    async def _system(self, text: str) -> None:
        state = self._state
        if text:
            state.system_prompt = text
        state.say(f"Instructions: {state.system_prompt}" if state.system_prompt else "No instructions.")

    async def _save(self, file: str) -> None:
        state = self._state
        said = await state.node.visible(state.owner, state.conversation_id)
        text = "\n\n".join(
            f"## {message.role}\n\n{session_views.text_of(message.content().get('content')).strip()}"
            for message in said
        )
        path = await asyncio.to_thread(_write_new, file, text + "\n")
        state.say(f"{count(len(said), 'message')} written to {path}.")

    async def _copy(self, _: str) -> None:
        state = self._state
        replies = [
            session_views.text_of(message.content().get("content"))
            for message in await state.node.visible(state.owner, state.conversation_id, limit=PREVIEWED)
            if message.role == "assistant"
        ]
        if not replies:
            state.say("There is no reply to copy.")
        elif not state.terminal.interactive:
            raise BadInput("/copy needs a terminal")
        elif len(replies[-1].encode()) > COPY_LIMIT:
            raise BadInput(f"the reply is longer than a terminal copies ({COPY_LIMIT:,} bytes); use /save")
        else:
            write(f"\033]52;c;{b64encode(replies[-1].encode()).decode()}\a")
            state.say("Copied, if the terminal allows it (OSC 52).")

    async def _cost(self, _: str) -> None:
        state = self._state
        line = await state.node.line(state.owner, state.conversation_id)
        taken = sum(session.input_tokens for session in line)
        given = sum(session.output_tokens for session in line)
        tokens = f"{taken:,} tokens in, {given:,} out, as reported by the model"
        cost = await state.node.cost(state.owner, state.conversation_id)
        if cost.amount is None:
            state.say(f"{tokens}.")
        else:
            state.say(f"{session_views.cost_sentence(cost)}; {tokens}.")

    async def _help(self, _: str) -> None:
        for slash, (takes, meaning) in MEANINGS.items():
            say(Styled(f"  /{slash} {takes}".ljust(24), "bold"), meaning)
        self._state.say(f"{ENTER_HINT}. Ctrl-C interrupts a reply and keeps its text.")

    @property
    def _patience(self) -> float:
        return self._state.invocation.settings.server.busy_wait_seconds
