"""API keys: who a request of the server acts as, and how far it reaches.

A key's token is `hf_<id>_<secret>`: the id finds the row, the secret proves it. The store keeps only the
secret's SHA-256, and secrets are compared by it in constant time. The secret is 256 random bits: nobody can
guess their way back from the hash, so a slow password hash would protect nothing and make every request slow.

Every key belongs to one owner. A `chat` key is that owner. A `bridge` key is that owner or, by naming them,
the owners one step below it: `team` may act as `team/ada`, never as `other` or `team/ada/notes`. An `admin`
key is its owner and may, by naming another, read what is theirs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from hmac import compare_digest

from ..errors import BadInput, NotAllowed
from .ids import DEFAULT_OWNER, check_name, new_id, new_secret

TERMINAL = "terminal"
"""The right to run commands as the server's user, and so to see and signal what that user runs."""
TOOLS = (TERMINAL, "process", "memory", "search")
"""The server-side tools a key may be allowed."""

EVERYBODY = "*"
"""What an operator names to mean all owners. No owner is called so."""

_TOKEN = re.compile(r"hf_([0-9a-f]{32})_([A-Za-z0-9_-]{43,128})")


class Scope(StrEnum):
    CHAT = "chat"
    BRIDGE = "bridge"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of a key, which is all but its secret."""

    id: str
    owner: str
    scope: Scope
    tools: frozenset[str]
    created_at: datetime
    revoked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """A key as its user has it: which one it claims to be, and the secret that proves it."""

    key_id: str
    secret: str

    def __str__(self) -> str:
        return f"hf_{self.key_id.removeprefix('key_')}_{self.secret}"

    def __repr__(self) -> str:
        return f"Token({self.key_id}, …)"  # it may end up in a log

    @property
    def hash(self) -> bytes:
        """What the store keeps of it."""
        return sha256(self.secret.encode()).digest()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a request acts as: whose data it writes, with which rights, by which key."""

    owner: str
    scope: Scope
    tools: frozenset[str]
    key_id: str


# --- making and recognising ----------------------------------------------------------------------------


def new_key(owner: str, scope: Scope, tools: Iterable[str], now: datetime) -> tuple[ApiKey, Token]:
    """A key that did not exist before, and its token, which is not kept anywhere."""
    key = ApiKey(new_id("key"), check_owner(owner), scope, check_tools(tools), now)
    return key, Token(key.id, new_secret())


def local_admin(token: Token, now: datetime) -> ApiKey:
    """The key of whoever may read this user's files, on this machine: everything, as the default owner."""
    return ApiKey(token.key_id, DEFAULT_OWNER, Scope.ADMIN, frozenset(TOOLS), now)


def parse_token(text: str) -> Token | None:
    """The token in this text, or None if it does not have the form of one."""
    found = _TOKEN.fullmatch(text)
    return Token(f"key_{found[1]}", found[2]) if found else None


def holds_token(text: str) -> bool:
    """Is there a token of ours anywhere in this text? Such a text is never sent to another server."""
    return _TOKEN.search(text) is not None


def same_secret(given: bytes, kept: bytes) -> bool:
    """Are these hashes equal? Takes the same time wherever they differ."""
    return compare_digest(given, kept)


def check_owner(owner: str) -> str:
    """Returns the name of an owner that a key may have, or raises BadInput.

    It may have parts (`team/ada`): that is how a person behind a bridge gets a key of their own.
    """
    check_name("an owner", owner)
    for part in owner.split("/"):
        _check_part("an owner", part)
    return owner


def check_tools(names: Iterable[str]) -> frozenset[str]:
    """Returns the tools, or raises BadInput naming the first that there is not."""
    tools = frozenset(names)
    for name in sorted(tools - set(TOOLS)):
        raise BadInput(f"there is no tool {name!r}; the tools are {', '.join(TOOLS)}")
    return tools


# --- reaching ------------------------------------------------------------------------------------------


def acting_as(key: ApiKey, named: str | None) -> Caller:
    """Who a request with this key acts as, when it names (`X-Holdfast-Owner`) this owner, or nobody (None).

    Only a bridge may name one, and reaches exactly one step below its own owner. From any other key the name
    is refused and never ignored: whoever sends it believes that it keeps people apart.
    """
    if named is None:
        return Caller(key.owner, key.scope, key.tools, key.id)
    if key.scope is not Scope.BRIDGE:
        raise NotAllowed(
            f"X-Holdfast-Owner needs a key of scope bridge, and this one's is {key.scope.value}; "
            "leave the header out, or use a bridge key"
        )
    if "/" in named:
        raise BadInput(
            f"X-Holdfast-Owner names one owner below {key.owner!r}, so it must not hold a slash: {named!r}"
        )
    _check_part("X-Holdfast-Owner", named)
    owner = check_name("the owner of X-Holdfast-Owner with the key's", f"{key.owner}/{named}")
    return Caller(owner, key.scope, key.tools, key.id)


def acting_for(caller: Caller, named: str | None) -> str | None:
    """Whose data a read is about, when it names (`?owner=`) this owner, or nobody; None: everybody's.

    Only an admin may name one. Everybody's lists may be read, never everybody's messages: that is for the
    caller of this to refuse.
    """
    if named is None:
        return caller.owner
    check_admin(caller, "owner=")
    return None if named == EVERYBODY else check_name("owner", named)


def check_admin(caller: Caller, what: str) -> None:
    """Raises NotAllowed, saying what it was, unless this caller is an admin."""
    if caller.scope is not Scope.ADMIN:
        raise NotAllowed(f"{what} needs a key of scope admin, and this one's is {caller.scope.value}")


def check_right(tools: Collection[str], right: str, what: str) -> None:
    """Raises NotAllowed, saying what it was, unless this right is among the tools that a caller may use.

    Called where the thing is done, for every way that leads there.
    """
    if right not in tools:
        raise NotAllowed(
            f"{what} needs a key with the tool `{right}`, which [agent] tools must name too: "
            f"holdfast keys create --tools {right}"
        )


def may_see_commands(caller: Caller) -> bool:
    """May this caller see the command line and directory of processes that sessions did not start?"""
    return caller.scope is Scope.ADMIN or TERMINAL in caller.tools


def _check_part(what: str, part: str) -> None:
    """One step of an owner's name. Names are compared as they are, so what people, paths or terminals would
    read as another one is refused: dots, the word for everybody, space around it, control characters."""
    check_name(what, part)
    if part in (".", "..", EVERYBODY):
        raise BadInput(f"{what} cannot be {part!r}")
    if part != part.strip():
        raise BadInput(f"{what} must not begin or end with space: {part!r}")
    if not part.isprintable():
        raise BadInput(f"{what} must not hold control or invisible characters: {part!r}")
