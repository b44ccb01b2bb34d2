"""API keys: which owner a request acts as, and which data it may reach.

A key's token is `hf_<id>_<secret>`: the id finds the row, the secret proves it. The store keeps only the
secret's SHA-256, and hashes are compared in constant time. The secret is 256 random bits, so the hash cannot
be reversed by guessing: a slow password hash would add no protection and make every request slow.

Every key belongs to one owner. A `chat` key acts as that owner. A `bridge` key acts as that owner or, by
naming them, as owners one step below: `team` may act as `team/ada`, never as `other` or `team/ada/notes`. An
`admin` key acts as its owner and may read another owner's data by naming that owner.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from hmac import compare_digest

from ..errors import BadInput, NotAllowed
from .ids import DEFAULT_OWNER, check_name, new_id, new_secret
from .value import Value

TERMINAL = "terminal"
"""The right to run commands as the server's user, and so to see and signal that user's processes."""
TOOLS = (TERMINAL, "process", "memory", "search")
"""Server-side tools that a key can be granted."""

ALL_OWNERS = "*"
"""Means all owners where an operator names one. No owner can have this name."""

_TOKEN = re.compile(r"hf_([0-9a-f]{32})_([A-Za-z0-9_-]{43,128})")


class Scope(StrEnum):
    CHAT = "chat"
    BRIDGE = "bridge"
    ADMIN = "admin"


class RateLimits(Value, frozen=True):
    """What requests with a key may use, in each minute and each day of UTC; 0: unlimited."""

    requests_per_minute: int = 0
    requests_per_day: int = 0
    tokens_per_minute: int = 0
    tokens_per_day: int = 0

    def __post_init__(self) -> None:
        for name in LIMIT_NAMES:
            if not 0 <= getattr(self, name) <= MOST_PER_WINDOW:
                raise BadInput(f"{name} must be a whole number from 0 (unlimited) to {MOST_PER_WINDOW:,}")

    def __bool__(self) -> bool:
        return bool(
            self.requests_per_minute or self.requests_per_day or self.tokens_per_minute or self.tokens_per_day
        )


LIMIT_NAMES = ("requests_per_minute", "requests_per_day", "tokens_per_minute", "tokens_per_day")
MOST_PER_WINDOW = 10**12
UNLIMITED = RateLimits()


class LimitReached(Value, frozen=True):
    """Which of a key's limits refuses a request, and when its window ends."""

    name: str
    most: int
    retry_after: timedelta


class ApiKey(Value, frozen=True):
    """A key's stored record: everything except its secret."""

    id: str
    owner: str
    scope: Scope
    tools: frozenset[str]
    created_at: datetime
    revoked_at: datetime | None = None
    keeps: bool = True
    """False: nothing of its requests is stored."""
    name: str = ""
    """What people call it; empty: nothing."""
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    """Up to USE_NOTED_EVERY older than its last request; None: never used."""
    limits: RateLimits = UNLIMITED
    webhook: str = ""
    """The connector that is notified when a background response of the key ends; empty: none."""

    def has_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now


USE_NOTED_EVERY = timedelta(minutes=1)
"""How often the last use of a key is written at most."""


class Token(Value, frozen=True):
    """A key as its user holds it: the claimed id, and the secret that proves it."""

    key_id: str
    secret: str

    def __str__(self) -> str:
        return f"hf_{self.key_id.removeprefix('key_')}_{self.secret}"

    def __repr__(self) -> str:
        return f"Token({self.key_id}, …)"  # hides the secret: a repr may end up in a log

    @property
    def hash(self) -> bytes:
        """The secret's hash, as stored."""
        return sha256(self.secret.encode()).digest()


class Caller(Value, frozen=True):
    """Identity of a request: whose data it writes, with which rights, by which key."""

    owner: str
    scope: Scope
    tools: frozenset[str]
    key_id: str
    keeps: bool = True
    """False: nothing of the request is stored."""
    webhook: str = ""
    """The connector that is notified when a background response of the request ends; empty: none."""


# --- making and recognising ----------------------------------------------------------------------------


def new_key(
    owner: str,
    scope: Scope,
    tools: Iterable[str],
    now: datetime,
    *,
    keeps: bool = True,
    name: str = "",
    expires_days: float | None = None,
    limits: RateLimits = UNLIMITED,
    webhook: str = "",
) -> tuple[ApiKey, Token]:
    """A new key, and its token, which is stored nowhere. Raises BadInput."""
    key = ApiKey(
        new_id("key"),
        check_owner(owner),
        scope,
        check_tools(tools),
        now,
        keeps=keeps,
        name=check_key_name(name),
        expires_at=None if expires_days is None else now + check_expiry(expires_days),
        limits=limits,
        webhook=webhook,
    )
    return key, Token(key.id, new_secret())


def local_admin(token: Token, now: datetime) -> ApiKey:
    """Admin key, as the default owner, for a caller that can read this user's files on this machine."""
    return ApiKey(token.key_id, DEFAULT_OWNER, Scope.ADMIN, frozenset(TOOLS), now)


def parse_token(text: str) -> Token | None:
    """Parse a token; None if the text does not have the form of one."""
    found = _TOKEN.fullmatch(text)
    return Token(f"key_{found[1]}", found[2]) if found else None


def holds_token(text: str) -> bool:
    """True if the text contains one of our tokens. Such text is never sent to another server."""
    return _TOKEN.search(text) is not None


def same_secret(given: bytes, kept: bytes) -> bool:
    """Compare two hashes in constant time."""
    return compare_digest(given, kept)


def check_owner(owner: str) -> str:
    """Returns `owner` if a key may belong to it, else raises BadInput.

    It may have parts (`team/ada`), so a person served through a bridge can have their own key.
    """
    check_name("an owner", owner)
    for part in owner.split("/"):
        _check_part("an owner", part)
    return owner


def check_key_name(name: str) -> str:
    """Returns a key's name if it can be shown on one line, else raises BadInput."""
    if len(name) > MOST_NAME or (name and (not name.isprintable() or name != name.strip())):
        raise BadInput(
            f"a key's name is one line of at most {MOST_NAME} characters, without space at its ends: "
            f"{name!r:.80}"
        )
    return name


def check_expiry(days: float) -> timedelta:
    """For how long a key is valid. Raises BadInput unless it is a time in the future."""
    if not 0 < days <= MOST_DAYS:
        raise BadInput(f"a key expires in more than 0 and at most {MOST_DAYS:,} days, not in {days:g}")
    return timedelta(days=days)


MOST_NAME = 100
MOST_DAYS = 36_500


def check_tools(names: Iterable[str]) -> frozenset[str]:
    """Returns the tools, or raises BadInput naming the first unknown one."""
    tools = frozenset(names)
    for name in sorted(tools - set(TOOLS)):
        raise BadInput(f"there is no tool {name!r}; the tools are {', '.join(TOOLS)}")
    return tools


# --- limits ---------------------------------------------------------------------------------------------


class KeyUse(Value, frozen=True):
    """What requests with a key have used in the current minute and day of UTC, which end then."""

    minute_requests: int
    day_requests: int
    minute_tokens: int
    day_tokens: int
    minute_ends_in: timedelta
    day_ends_in: timedelta


def limit_reached(limits: RateLimits, use: KeyUse) -> LimitReached | None:
    """The limit that refuses another request, if one does: the one whose window ends last."""
    found = [
        LimitReached(name, most, ends_in)
        for name, most, used, ends_in in (
            ("requests_per_minute", limits.requests_per_minute, use.minute_requests, use.minute_ends_in),
            ("tokens_per_minute", limits.tokens_per_minute, use.minute_tokens, use.minute_ends_in),
            ("requests_per_day", limits.requests_per_day, use.day_requests, use.day_ends_in),
            ("tokens_per_day", limits.tokens_per_day, use.day_tokens, use.day_ends_in),
        )
        if most and used >= most
    ]
    return max(found, key=lambda reached: reached.retry_after, default=None)


# --- reaching ------------------------------------------------------------------------------------------


def acting_as(key: ApiKey, named: str | None) -> Caller:
    """Which owner a request with this key acts as, if it names one (`X-Holdfast-Owner`) or none (None).

    Only a bridge may name one, exactly one step below its own owner. From any other key the header is
    refused, never ignored: its sender relies on it to keep people's data apart.
    """
    if named is None:
        return Caller(key.owner, key.scope, key.tools, key.id, key.keeps, key.webhook)
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
    return Caller(owner, key.scope, key.tools, key.id, key.keeps, key.webhook)


def acting_for(caller: Caller, named: str | None) -> str | None:
    """Whose data a read is about, if it names an owner (`?owner=`) or none (None); returns None for all
    owners.

    Only an admin may name one. Lists may cover all owners, messages may not: the caller of this function must
    refuse that.
    """
    if named is None:
        return caller.owner
    check_admin(caller, "owner=")
    return None if named == ALL_OWNERS else check_name("owner", named)


def check_admin(caller: Caller, what: str) -> None:
    """Raises NotAllowed, naming `what`, unless this caller is an admin."""
    if caller.scope is not Scope.ADMIN:
        raise NotAllowed(f"{what} needs a key of scope admin, and this one's is {caller.scope.value}")


def check_right(tools: Collection[str], right: str, what: str) -> None:
    """Raises NotAllowed, naming `what`, unless `right` is among the caller's tools.

    Called where the action is done, so every path to it is checked.
    """
    if right not in tools:
        raise NotAllowed(
            f"{what} needs a key with the tool `{right}`, which [agent] tools must name too: "
            f"holdfast keys create --tools {right}"
        )


def may_see_commands(caller: Caller) -> bool:
    """True if this caller may see the command line and directory of processes that sessions did not start."""
    return caller.scope is Scope.ADMIN or TERMINAL in caller.tools


def _check_part(what: str, part: str) -> None:
    """Check one part of an owner's name. Names are compared byte by byte, so parts that people, paths or
    terminals could read as another name are refused: dots, the name for all owners, surrounding space,
    control characters."""
    check_name(what, part)
    if part in (".", "..", ALL_OWNERS):
        raise BadInput(f"{what} cannot be {part!r}")
    if part != part.strip():
        raise BadInput(f"{what} must not begin or end with space: {part!r}")
    if not part.isprintable():
        raise BadInput(f"{what} must not hold control or invisible characters: {part!r}")
