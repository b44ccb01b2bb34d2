"""Reads the names by which agent programs identify their sessions, and recognises their side requests.

| program     | session                    | sub-agent                                           |
|-------------|----------------------------|-----------------------------------------------------|
| Codex       | `thread-id`                | its own `thread-id`; `x-codex-parent-thread-id`     |
| Claude Code | `x-claude-code-session-id` | the same, and `x-claude-code-agent-id`              |
| opencode    | `x-session-id`             | its own `x-session-id`; `x-parent-session-id`       |
| pi          | `x-session-affinity`       |                                                     |

A name is an alias of a conversation of the request's owner. A sub-agent is a conversation of its own: it runs
at the same time as its parent and must not wait for it. A side request (a title, a topic, a summary for the
program's own compaction) comes under the session's name but is no part of the conversation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ..domain.messages import text_of
from .gate import Headers

CLAUDE_CODE = "x-claude-code-session-id"
CLAUDE_AGENT = "x-claude-code-agent-id"
CODEX = "thread-id"
CODEX_METADATA = "x-codex-turn-metadata"
CACHE_KEY = "prompt_cache_key"
"""The only name that is a field of the body."""
PARENTS = ("x-codex-parent-thread-id", "x-parent-session-id")
SIDE_WORDS = re.compile(r"\b(title|naming|topic|summar\w*)\b", re.IGNORECASE)
LOOK_AT = 400
"""How many characters of an instruction are searched for SIDE_WORDS: a long one mentions everything."""


@dataclass(frozen=True, slots=True)
class ClientName:
    """The name that a program gives its session."""

    name: str
    parent: str | None = None
    """The name of the conversation that this sub-agent works for."""
    overrides_store: bool = True
    """False: a request with `store: false` is not kept in spite of its name."""


def client_name(headers: Headers, names: Sequence[str], cache_key: object = None) -> ClientName | None:
    """The name that the request carries: the first of `names` that is present; None: none is."""
    for header in names:
        if header == CACHE_KEY:
            if isinstance(cache_key, str) and cache_key:
                return ClientName(cache_key, overrides_store=False)
            continue
        name = headers.once(header.lower())
        if name:
            return _with_parent(headers, header.lower(), name)
    return None


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

    Codex names the kind. Claude Code and opencode send side requests without tools, and every other request
    with tools; only those whose instructions, or required output, show their purpose are taken for one.
    """
    if headers.get(CODEX):
        return _codex_kind(headers.get(CODEX_METADATA))
    is_agent = headers.get(CLAUDE_CODE) or headers.get("user-agent").startswith("opencode/")
    if not is_agent or options.get("tools") or any(each.get("role") == "assistant" for each in messages):
        return None
    for message in messages:
        found = SIDE_WORDS.search(text_of(message.get("content"))[:LOOK_AT])
        if found and message.get("role") in ("system", "developer"):
            word = found[1].lower()
            return "summary" if word.startswith("summar") else "title" if word == "naming" else word
    return "other" if options.get("response_format") else None


def _codex_kind(metadata: str) -> str | None:
    try:
        kind = msgspec.json.decode(metadata).get("request_kind") if metadata else None
    except (msgspec.DecodeError, AttributeError, RecursionError):
        return None
    return kind if isinstance(kind, str) and kind.isidentifier() and kind != "turn" else None
