"""Who can change a file besides its owner, as a table."""

from __future__ import annotations

import pytest

from holdfast.domain.trust import Account, FileFacts, Group, TrustVerdict, judge

DIRECTORY, FILE = 0o040_000, 0o100_000
ADA, BOB = 1000, 1001
ACCOUNTS = (
    Account("root", 0, 0),
    Account("ada", ADA, 1000),
    Account("bob", BOB, 1001),
    Account("toor", 0, 1000),  # another name of root: it can change everything anyhow
)
OWN = Group(1000, "ada")


def verdict(
    mode: int,
    owner: int = ADA,
    group: Group = OWN,
    accounts: tuple[Account, ...] = ACCOUNTS,
    *,
    has_access_list: bool = False,
) -> TrustVerdict:
    return judge(FileFacts(owner, group.gid, mode, has_access_list), ADA, group, accounts)


@pytest.mark.parametrize(
    ("mode", "owner", "group"),
    [
        (DIRECTORY | 0o700, ADA, OWN),
        (DIRECTORY | 0o755, ADA, Group(50, "staff", ("bob",))),  # may read, not write
        (DIRECTORY | 0o775, ADA, OWN),  # mkdir with the umask 002
        (DIRECTORY | 0o2770, ADA, OWN),
        (FILE | 0o664, ADA, OWN),  # an editor with the umask 002
        (FILE | 0o664, ADA, Group(1000, "ada", ("ada", "root"))),
        (FILE | 0o664, ADA, Group(1000, "renamed")),  # the owner's number
        (FILE | 0o664, ADA, Group(777, "ada")),  # the owner's name
        (FILE | 0o664, ADA, Group(1000)),  # the system does not know the number
        (FILE | 0o644, 0, Group(0, "root")),
        (FILE | 0o664, 0, Group(0, "root")),
        (DIRECTORY | 0o755, 0, Group(0, "root")),
        (DIRECTORY | 0o000, ADA, OWN),  # cannot be read, which is no danger
    ],
)
def test_what_only_its_owner_can_change_is_trusted(mode: int, owner: int, group: Group) -> None:
    assert verdict(mode, owner, group) == TrustVerdict()


@pytest.mark.parametrize(
    ("mode", "group", "who"),
    [
        (0o707, OWN, ""),
        (0o777, OWN, ""),
        (0o1777, OWN, ""),
        (0o770, Group(100, "users"), "group users"),  # a group for everybody, though nobody is listed
        (0o770, Group(100), "group 100"),
        (0o770, Group(1000, "ada", ("ada", "bob")), "group ada: bob"),
        (0o770, Group(1001, "ada"), "group ada: bob"),  # bob's primary group
        (0o720, Group(1000, "ada", ("gone",)), "group ada: gone"),
        (0o770, Group(1000, "ada", ("eve", "bob")), "group ada: bob, eve"),
    ],
)
@pytest.mark.parametrize("kind", [DIRECTORY, FILE])
def test_what_others_can_change_is_not(kind: int, mode: int, group: Group, who: str) -> None:
    found = verdict(kind | mode, group=group)
    assert not found.is_trusted
    details = ", ".join(filter(None, (f"mode {mode:04o}", who)))
    assert found.reason == f"can be changed by other users ({details})"
    assert found.remedy == ("chmod", "go-w")


def test_a_group_of_the_same_name_belongs_to_the_owner_and_not_to_the_user() -> None:
    assert not verdict(FILE | 0o664, owner=0, group=OWN).is_trusted


def test_another_users_group_is_seen_by_his_primary_group_alone() -> None:
    eve = Account("eve", 1002, 1000)
    found = verdict(FILE | 0o664, accounts=(*ACCOUNTS, eve))
    assert found.reason.endswith("group ada: eve)")
    also_ada = Account("ada2", ADA, 1000)  # another name of the owner
    assert verdict(FILE | 0o664, accounts=(*ACCOUNTS, also_ada)).is_trusted


def test_an_access_list_may_name_anybody() -> None:
    assert not verdict(FILE | 0o664, has_access_list=True).is_trusted
    assert verdict(FILE | 0o644, has_access_list=True).is_trusted  # its entries may not write


def test_what_another_user_owns_is_not_trusted_however_it_is_protected() -> None:
    for kind, remedy in ((DIRECTORY, ("chown", "-R", "1000")), (FILE, ("chown", "1000"))):
        found = verdict(kind | 0o600, owner=BOB)
        assert (found.reason, found.remedy) == (f"belongs to another user (uid {BOB})", remedy)


def test_a_user_without_an_account_has_the_group_of_his_number() -> None:
    file = FileFacts(4711, 4711, FILE | 0o664)
    assert judge(file, 4711, Group(4711), ACCOUNTS).is_trusted
    assert not judge(file, 4711, Group(4711, "devs", ("bob",)), ACCOUNTS).is_trusted
    assert not judge(FileFacts(4711, 0, FILE | 0o664), 4711, Group(0, "root"), ACCOUNTS).is_trusted
