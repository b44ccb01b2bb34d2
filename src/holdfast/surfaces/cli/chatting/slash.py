"""What a line of the chat means: something to say, or a command that begins with a slash.

Pure. A message that itself begins with a slash is said with two of them, or with a blank before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum


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
"""What each takes, and what it does."""


@dataclass(frozen=True, slots=True)
class Said:
    """Something to say."""

    text: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """A command, with what stands behind it."""

    slash: Slash
    argument: str = ""


@dataclass(frozen=True, slots=True)
class Unclear:
    """A command that there is not, or one that is used wrongly; and what to do instead."""

    sentence: str


def meaning_of(line: str) -> Said | Wanted | Unclear | None:
    """None: there is nothing in it."""
    if not line.strip():
        return None
    if line.startswith("//"):
        return Said(line[1:])
    if not line.startswith("/"):
        return Said(line)
    word, _, argument = line[1:].strip().partition(" ")
    argument = argument.strip()
    try:
        slash = Slash(word.lower())
    except ValueError:
        return Unclear(_unknown(word))
    if argument and not MEANINGS[slash][0]:
        return Unclear(f"/{slash} takes nothing behind it")
    return Wanted(slash, argument)


def _unknown(word: str) -> str:
    names = [slash.value for slash in Slash]
    near = [name for name in names if word and name.startswith(word.lower())]
    near = near or get_close_matches(word.lower(), names, n=1, cutoff=0.5)
    meant = f"did you mean /{near[0]}?" if near else "/help lists those there are."
    return f"there is no command /{word}; {meant} To say something that begins with a slash, write two: //"


def completions(line: str, names: Sequence[str]) -> list[str]:
    """What the end of this line could become: a command, or the name of something to resume."""
    word, blank, argument = line.partition(" ")
    if not blank:
        wanted = [slash for slash in Slash if word and f"/{slash}".startswith(word)]
        return [f"/{slash} " if MEANINGS[slash][0] else f"/{slash}" for slash in wanted]
    if word == f"/{Slash.RESUME}":
        return [name for name in names if name.startswith(argument)]
    return []
