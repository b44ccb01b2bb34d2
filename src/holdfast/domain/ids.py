"""Identifiers: 128 bits, of which 116 are random, with a prefix for their type.

The first three digits are the same for ids that this process makes one after the other: in an index they are
neighbours, so that the turns of one commit change few of its pages, not one page each.

A message's id is derived from its conversation's id and its number, so it needs neither a column nor an index
and is as hard to guess as the conversation's. API key secrets are made here too: this is the only module of
the domain that uses randomness.
"""

from __future__ import annotations

import os
import re
import secrets

from ..errors import BadInput

OUR_PREFIXES = ("conv_", "sess_", "resp_", "turn_", "msg_")
"""Prefixes of ids that can name a conversation. Other ids cannot, so clients may use `key_1` or `note_1`."""


def new_id(prefix: str) -> str:
    """A new unique id such as `conv_9f…`."""
    return f"{prefix}_{_random_id()}"


def new_request_id() -> str:
    """An id for one HTTP request, to find it in a log."""
    return f"req_{_random_id()}"


_BATCH = 64
_SLOTS = 16**3
_ready: list[str] = []
_slot = [secrets.randbelow(_SLOTS)]
"""The first digits of the current batch; every process begins elsewhere."""


def _random_id() -> str:
    """32 hexadecimal digits: three of the batch, then random ones. Made in batches, because each system call
    releases the GIL, and a caller in a busy event loop would wait to get it back."""
    try:
        return _ready.pop()
    except IndexError:
        text = os.urandom(_BATCH * 16).hex()
        _slot[0] = (_slot[0] + 1) % _SLOTS
        first = f"{_slot[0]:03x}"
        ids = [first + text[at : at + 29] for at in range(0, len(text), 32)]
        _ready.extend(ids[1:])
        return ids[0]


def _after_fork() -> None:
    """Else parent and child would issue the same ids."""
    _ready.clear()
    _slot[0] = secrets.randbelow(_SLOTS)


os.register_at_fork(after_in_child=_after_fork)


def new_secret() -> str:
    """256 random bits as 43 characters that need no quoting in a header, a URL or a shell."""
    return secrets.token_urlsafe(32)


def is_ours(name: str) -> bool:
    """True: it has the form of an id that names a conversation. Such a name can never become an alias."""
    return name.startswith(OUR_PREFIXES)


_SHORT = re.compile(r"(?:sess|conv|turn|resp|proc|mem|note|key)_[0-9a-f]{4,31}")
SHOWN = 8
"""Hexadecimal digits of a shortened id, as people are shown it."""


def is_short(name: str) -> bool:
    """True: it may be the beginning of one of our ids, long enough to name an object."""
    return _SHORT.fullmatch(name) is not None


def short(id_: str) -> str:
    """A shortened id for people: `sess_0a0b88a1`. A text that is not an id of ours is returned unchanged."""
    prefix, _, rest = id_.partition("_")
    return f"{prefix}_{rest[:SHOWN]}" if len(rest) == 32 and is_short(f"{prefix}_{rest[:SHOWN]}") else id_


def message_id(conversation_id: str, seq: int) -> str:
    return f"msg_{conversation_id.removeprefix('conv_')}_{seq}"


MOST_SEQ = 2**63 - 1
"""The largest number that both engines can store."""


def parse_message_id(name: str) -> tuple[str, int] | None:
    """The conversation id and number in a message id, or None if it is not one. A number that no message can
    have is returned as MOST_SEQ."""
    prefix, _, rest = name.partition("_")
    conversation, _, seq = rest.partition("_")
    if prefix != "msg" or not conversation or not seq.isdecimal():
        return None
    number = int(seq) if len(seq) <= len(str(MOST_SEQ)) else MOST_SEQ
    return f"conv_{conversation}", min(number, MOST_SEQ)


MAX_NAME = 512
MAX_NAME_BYTES = 1024
DEFAULT_OWNER = "default"
DEFAULT_SOURCE = "api"


def check_name(what: str, value: str) -> str:
    """Returns `value`, or raises BadInput saying why this owner, key, alias, … is invalid."""
    check_text(what, value)
    size = len(value.encode())
    if size > MAX_NAME_BYTES:
        raise BadInput(f"{what} is {size} bytes long in UTF-8; at most {MAX_NAME_BYTES} are allowed")
    return value


def check_text(what: str, value: str, limit: int = MAX_NAME) -> str:
    """The same for a text that is stored but never looked up: a title, a reason, a command, a memory."""
    if not isinstance(value, str):
        raise BadInput(f"{what} must be text, not {type(value).__name__}")
    if not value.strip():
        raise BadInput(f"{what} must not be empty")
    if len(value) > limit:
        raise BadInput(f"{what} is {len(value)} characters long; at most {limit} are allowed")
    fault = unstorable(value)
    if fault:
        raise BadInput(f"{what} {fault}")
    return value


def cut_name(text: str) -> str:
    """The beginning of a storable text, cut to the length of a name."""
    return text[:MAX_NAME].encode()[:MAX_NAME_BYTES].decode("utf-8", "ignore")


def unstorable(text: str) -> str | None:
    """Why no database can store this text faithfully; None if one can."""
    if "\x00" in text:
        return f"holds a NUL byte at position {text.index(chr(0))}"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"holds a lone surrogate (U+{ord(text[error.start]):04X}) at position {error.start}"
    return None


def storable(text: str) -> str:
    """The text with a replacement character for everything that no database can store. For output of models
    and tools: it must not be refused, because they cannot correct it."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode() if unstorable(text) else text


def source_of_key(key: str | None) -> str:
    """The source of a conversation, from its session key: `telegram:dm:42` and `agent:main:telegram:dm:42`
    come from telegram; no key, from the API."""
    if not key:
        return DEFAULT_SOURCE
    parts = key.split(":")
    if parts[0] == "agent" and len(parts) > 2:
        return parts[2] or DEFAULT_SOURCE
    return (parts[0] or DEFAULT_SOURCE) if len(parts) > 1 else DEFAULT_SOURCE


def printable(text: str) -> str:
    """The text with non-printable characters escaped: control, bidirectional and invisible ones. For lines
    that people read in a log or a terminal."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )


_CODE_LETTERS = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"


def new_code() -> str:
    """A random code for people to type, such as `K7QW-3MHX`: 39 bits, no letters that look alike."""
    letters = "".join(secrets.choice(_CODE_LETTERS) for _ in range(8))
    return f"{letters[:4]}-{letters[4:]}"
