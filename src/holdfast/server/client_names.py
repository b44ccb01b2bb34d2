"""Reads the names by which agent programs identify their sessions, and recognises their side requests.

| program     | session                    | sub-agent                                           |
|-------------|----------------------------|-----------------------------------------------------|
| Codex       | `thread-id`                | its own `thread-id`; `x-codex-parent-thread-id`     |
| Claude Code | `x-claude-code-session-id` | the same, and `x-claude-code-agent-id`              |
| opencode    | `x-session-id`             | its own `x-session-id`; `x-parent-session-id`       |
| pi          | `x-session-affinity`       |                                                     |

A name is an alias of a conversation of the request's owner. A sub-agent is a conversation of its own: it runs
at the same time as its parent and must not wait for it. A side request (a title, a topic, a summary for the
program's own compaction) comes under the session's name but is not part of the conversation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from ..domain.messages import text_of
from ..domain.value import Value
from .gate import Headers

CLAUDE_CODE = "x-claude-code-session-id"
CLAUDE_AGENT = "x-claude-code-agent-id"
CODEX = "thread-id"
CODEX_METADATA = "x-codex-turn-metadata"
CACHE_KEY = "prompt_cache_key"
"""The only name that is a field of the body."""
PARENTS = ("x-codex-parent-thread-id", "x-parent-session-id")
SIDE_WORDS = re.compile(r"\b(title|naming|topic|summar\w*)\b", re.IGNORECASE)
SIDE_PROMPTS = re.compile(
    r"you are a (title|topic) generator|you are (naming) a coding session"
    r"|generate a (title) for this conversation",
    re.IGNORECASE,
)
"""In the words of opencode and Claude Code: side requests also where no header tells which program asks."""
CLAUDE_COMPACTION = re.compile(r"your task is to create a detailed summary of", re.IGNORECASE)
"""In the last message of Claude Code's own compaction, which offers tools like any other of its requests."""
SIDE_THREADS = {"thread_title": "title"}
"""Codex's `thread_source` of threads that are not a conversation of the user, and their kind."""
LOOK_AT = 400
"""How many characters of an instruction are searched for SIDE_WORDS: a long one mentions everything."""
LOOK_AT_LAST = 2000
"""How many characters of the last message are searched for CLAUDE_COMPACTION."""


class ClientName(Value, frozen=True):
    """The name that a program gives its session."""

    name: str
    parent: str | None = None
    """The name of the conversation that this sub-agent works for."""
    overrides_store: bool = True
    """False: a request with `store: false` is not kept in spite of its name."""


def client_name(headers: Headers, names: tuple[str, ...], cache_key: object = None) -> ClientName | None:
    """The name that the request carries: the first of `names` that is present; None: none is."""
    sent = headers.names
    for header in _lowered(names):
        if header == CACHE_KEY:
            if isinstance(cache_key, str) and cache_key:
                return ClientName(cache_key, overrides_store=False)
        elif header in sent and (name := headers.once(header)):
            return _with_parent(headers, header, name)
    return None


@lru_cache(8)  # the setting is the same for every request
def _lowered(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.lower() for name in names)


def _with_parent(headers: Headers, header: str, name: str) -> ClientName:
    if header == CLAUDE_CODE and (agent := headers.once(CLAUDE_AGENT)):
        return ClientName(f"{name}:{agent}", name)
    parent = next((found for each in PARENTS if (found := headers.once(each))), None)
    return ClientName(name, parent if parent != name else None)


def side_request(
    headers: Headers, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
) -> str | None:
    """The kind of a side request (`title`, `topic`, `summary`, `compaction`, …); None: the request belongs to
    its conversation.

    Codex names the kind. Claude Code and opencode send titles without tools, and every request of the
    conversation with tools; only those whose instructions, or required output, show their purpose are taken
    for one. Claude Code's compaction is known by its last message.
    """
    if headers.get(CODEX):
        return _codex_kind(headers.get(CODEX_METADATA))
    if headers.get(CLAUDE_CODE) and _compacts(messages):
        return "compaction"
    if options.get("tools") or any(each.get("role") == "assistant" for each in messages):
        return None
    is_agent = headers.get(CLAUDE_CODE) or headers.get("user-agent").startswith("opencode/")
    for message in messages:
        text = text_of(message.get("content"))[:LOOK_AT]
        instructs = message.get("role") in ("system", "developer")
        found = SIDE_PROMPTS.search(text) or (SIDE_WORDS.search(text) if is_agent and instructs else None)
        if found:
            word = next(group for group in found.groups() if group).lower()
            return "summary" if word.startswith("summar") else "title" if word == "naming" else word
    return "other" if is_agent and options.get("response_format") else None


def _compacts(messages: Sequence[Mapping[str, Any]]) -> bool:
    """True: the request ends with Claude Code's instructions for a summary of the conversation."""
    for message in reversed(messages):
        if message.get("role") not in ("system", "developer"):
            text = text_of(message.get("content"))[:LOOK_AT_LAST]
            return message.get("role") == "user" and CLAUDE_COMPACTION.search(text) is not None
    return False


def _codex_kind(metadata: str) -> str | None:
    try:
        facts = msgspec.json.decode(metadata) if metadata else {}
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(facts, dict):
        return None
    source = facts.get("thread_source")
    if isinstance(source, str) and source in SIDE_THREADS:
        return SIDE_THREADS[source]
    kind = facts.get("request_kind")
    return kind if isinstance(kind, str) and kind.isidentifier() and kind != "turn" else None
