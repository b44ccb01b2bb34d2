"""What people and programs may call things: owners, keys, aliases, sources; and other short texts.

One rule for all names, so that every engine can store and index them: text without NUL bytes or lone
surrogates, not empty, not longer than a limit in characters and another in bytes.

Names are indexed in pairs (an owner with a key, an alias or a request key). PostgreSQL's B-tree takes rows of
at most 2,704 bytes: two names of MAX_NAME_BYTES and a route fit.
"""

from __future__ import annotations

from ..errors import BadInput

MAX_NAME = 512
MAX_NAME_BYTES = 1024
DEFAULT_OWNER = "default"
DEFAULT_SOURCE = "api"


def check_name(what: str, value: str) -> str:
    """Returns `value`, or raises BadInput saying what is wrong with this owner, key, alias, …"""
    check_text(what, value)
    size = len(value.encode())
    if size > MAX_NAME_BYTES:
        raise BadInput(f"{what} is {size} bytes long in UTF-8; at most {MAX_NAME_BYTES} are allowed")
    return value


def check_text(what: str, value: str, limit: int = MAX_NAME) -> str:
    """The same for a text that is stored but not looked up: a title, a reason, a command, a memory."""
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
    """The beginning of a storable text that is short enough to be a name."""
    return text[:MAX_NAME].encode()[:MAX_NAME_BYTES].decode("utf-8", "ignore")


def unstorable(text: str) -> str | None:
    """Why no database can keep this text faithfully, or None if one can."""
    if "\x00" in text:
        return f"holds a NUL byte at position {text.index(chr(0))}"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"holds a lone surrogate (U+{ord(text[error.start]):04X}) at position {error.start}"
    return None


def storable(text: str) -> str:
    """The same text with a replacement character for whatever no database can keep. For what a model or a
    tool says: it must not be refused, because nobody is there to say it differently."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode() if unstorable(text) else text


def source_of_key(key: str | None) -> str:
    """Where a conversation comes from, read off its key: `telegram:dm:42` and
    `agent:main:telegram:dm:42` come from telegram; no key, from the API."""
    if not key:
        return DEFAULT_SOURCE
    parts = key.split(":")
    if parts[0] == "agent" and len(parts) > 2:
        return parts[2] or DEFAULT_SOURCE
    return (parts[0] or DEFAULT_SOURCE) if len(parts) > 1 else DEFAULT_SOURCE


def printable(text: str) -> str:
    """The text with everything escaped that is not printable: control, bidirectional and invisible
    characters. For lines that people read in a log or a terminal."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )
