"""Identifiers: random, 128 bits, with a prefix that says what they name.

A message's id is derived from its conversation's id and its number, so it needs neither a column
nor an index and is as hard to guess as the conversation's. The secrets of API keys are made here too:
this is the one place of the domain where chance comes in.
"""

from __future__ import annotations

import secrets

OUR_PREFIXES = ("conv_", "sess_", "turn_", "resp_", "msg_", "node_", "proc_", "mem_", "note_", "key_")


def new_id(prefix: str) -> str:
    """A fresh id such as `conv_9f…`, never handed out twice."""
    return f"{prefix}_{secrets.token_hex(16)}"


def new_secret() -> str:
    """256 random bits as 43 characters that need no quoting in a header, a URL or a shell."""
    return secrets.token_urlsafe(32)


def is_ours(name: str) -> bool:
    """Does it have the form of an id we hand out? Such a name can never become an alias."""
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
