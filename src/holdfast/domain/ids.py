"""Identifiers: random, 128 bits, with a prefix that says what they name.

A message's id is derived from its conversation's id and its number, so it needs neither a column
nor an index and is as hard to guess as the conversation's. The secrets of API keys are made here too:
this is the one place of the domain where chance comes in.
"""

from __future__ import annotations

import os
import secrets

OUR_PREFIXES = ("conv_", "sess_", "resp_", "turn_", "msg_")
"""What can name a conversation. Other ids of ours never do, so a client's own `key_1` or `note_1` is free."""


def new_id(prefix: str) -> str:
    """A fresh id such as `conv_9f…`, never handed out twice."""
    return f"{prefix}_{_random_id()}"


def new_request_id() -> str:
    """A name for one HTTP request, to find it again in a log."""
    return f"req_{_random_id()}"


_ready: list[str] = []


def _random_id() -> str:
    """128 bits. The system is asked for many at once: each time it is asked, the interpreter's lock is let
    go, and whoever asks in the middle of a busy event loop waits for it."""
    try:
        return _ready.pop()
    except IndexError:
        text = os.urandom(64 * 16).hex()
        ids = [text[at : at + 32] for at in range(0, len(text), 32)]
        _ready.extend(ids[1:])
        return ids[0]


os.register_at_fork(after_in_child=_ready.clear)  # or the child would hand out its parent's


def new_secret() -> str:
    """256 random bits as 43 characters that need no quoting in a header, a URL or a shell."""
    return secrets.token_urlsafe(32)


def is_ours(name: str) -> bool:
    """Does it have the form of an id that names a conversation? Such a name can never become an alias."""
    return name.startswith(OUR_PREFIXES)


def message_id(conversation_id: str, seq: int) -> str:
    return f"msg_{conversation_id.removeprefix('conv_')}_{seq}"


def parse_message_id(name: str) -> tuple[str, int] | None:
    """The conversation id and number in a message id, or None if it is not one."""
    prefix, _, rest = name.partition("_")
    conversation, _, seq = rest.partition("_")
    if prefix != "msg" or not conversation or not seq.isdecimal():
        return None
    return f"conv_{conversation}", int(seq)
