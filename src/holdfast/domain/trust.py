"""Decides whether a file or directory is trusted: whether nobody can change it but this user and root.

Many systems (Debian, Ubuntu, Fedora) give every user a group of his own and the umask 002, so what he makes
is writable by that group. A group is private, and its permission no danger, if it is named like the owner or
has his number, and nobody else is in it: neither as a member nor with it as primary group. An access list
(ACL) may name anybody, so beside one the group's permission counts as everybody's.

Not seen are accounts that the system does not list (some directory services), and processes that were given
the group without an account.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence

from .value import Value

ROOT = 0
"""Root can change every file, so one that it owns is no less safe."""


class FileFacts(Value, frozen=True):
    """What the kernel says of a file or directory."""

    owner: int
    group: int
    mode: int
    has_access_list: bool = False


class Account(Value, frozen=True):
    """A line of passwd. `group`: the primary group."""

    name: str
    uid: int
    group: int


class Group(Value, frozen=True):
    """A line of group; `name` is "" for a number that the system does not know."""

    gid: int
    name: str = ""
    members: tuple[str, ...] = ()


class TrustVerdict(Value, frozen=True):
    reason: str = ""
    """Why it is not trusted; "" if it is."""
    remedy: tuple[str, ...] = ()
    """The command that makes it trusted, without the path."""

    @property
    def is_trusted(self) -> bool:
        return not self.reason


TRUSTED = TrustVerdict()


def judge(file: FileFacts, user: int, group: Group, accounts: Sequence[Account]) -> TrustVerdict:
    """Whether `user` may trust this file. `group` is the file's, `accounts` are all accounts of the system;
    nothing of them but the number is used unless the group may write."""
    if file.owner not in (user, ROOT):
        recursive = ("-R",) if stat.S_ISDIR(file.mode) else ()
        return TrustVerdict(
            f"belongs to another user (uid {file.owner})",
            ("chown", *recursive, str(user)),
        )
    mode = f"mode {stat.S_IMODE(file.mode):04o}"
    remedy = ("chmod", "go-w")
    if file.mode & stat.S_IWOTH:
        return TrustVerdict(f"can be changed by other users ({mode})", remedy)
    if not file.mode & stat.S_IWGRP:
        return TRUSTED
    named = f"group {group.name or group.gid}"
    if file.has_access_list:
        return TrustVerdict(f"can be changed by other users ({mode}, {named}, and an access list)", remedy)
    if not _is_named_for(group, file.owner, accounts):
        return TrustVerdict(f"can be changed by other users ({mode}, {named})", remedy)
    if others := others_in(group, file.owner, accounts):
        return TrustVerdict(f"can be changed by other users ({mode}, {named}: {', '.join(others)})", remedy)
    return TRUSTED


def _is_named_for(group: Group, owner: int, accounts: Sequence[Account]) -> bool:
    """True if this group is, by its name or number, the owner's own."""
    return group.gid == owner or group.name in {each.name for each in accounts if each.uid == owner}


def others_in(group: Group, owner: int, accounts: Sequence[Account]) -> tuple[str, ...]:
    """The names of those in the group besides its owner and root, sorted. A member without an account counts:
    it may get one."""
    harmless = {each.name for each in accounts if each.uid in (owner, ROOT)}
    primary = {each.name for each in accounts if each.group == group.gid}
    return tuple(sorted({*group.members, *primary} - harmless))
