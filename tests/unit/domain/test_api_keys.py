"""API keys: what a token looks like, and whom a request with one may act as."""

import hashlib
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain import api_keys
from holdfast.domain.api_keys import (
    TOOLS,
    ApiKey,
    Caller,
    Scope,
    Token,
    acting_as,
    acting_for,
    check_admin,
    check_owner,
    check_tools,
    local_admin,
    new_key,
    parse_token,
    same_secret,
)
from holdfast.domain.ids import MAX_NAME, new_secret
from holdfast.errors import BadInput, NotAllowed

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ID, SECRET = "0123456789abcdef" * 2, "s" * 43


def key(scope: Scope, owner: str = "team") -> ApiKey:
    return ApiKey("key_1", owner, scope, frozenset({"search"}), NOW)


# --- tokens --------------------------------------------------------------------------------------------


def test_a_secret_has_256_bits_and_needs_no_quoting() -> None:
    made = {new_secret() for _ in range(1000)}
    assert len(made) == 1000
    assert {len(secret) for secret in made} == {43}
    assert {character for secret in made for character in secret} <= set(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    )


def test_a_new_keys_token_leads_back_to_it() -> None:
    for _ in range(200):  # a secret may begin or end with a hyphen or an underscore
        made, token = new_key("ada", Scope.CHAT, ["search"], NOW)
        assert made == ApiKey(made.id, "ada", Scope.CHAT, frozenset({"search"}), NOW, None)
        assert parse_token(str(token)) == token
        assert token.key_id == made.id


def test_what_is_kept_is_the_sha_256_of_the_secret_alone() -> None:
    assert Token(f"key_{ID}", SECRET).hash == hashlib.sha256(SECRET.encode()).digest()


def test_a_token_does_not_show_its_secret_by_accident() -> None:
    token = Token(f"key_{ID}", SECRET)
    assert SECRET not in repr(token)
    assert SECRET not in f"{[token]}"
    assert str(token) == f"hf_{ID}_{SECRET}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hf_",
        f"hf_{ID}",
        f"hf_{ID}_",
        f"hf_{ID}_{SECRET[1:]}",
        f"hf_{ID[1:]}_{SECRET}",
        f"hf_{ID.upper()}_{SECRET}",
        f"HF_{ID}_{SECRET}",
        f"sk_{ID}_{SECRET}",
        f"key_{ID}_{SECRET}",
        f"hf_key_{ID}_{SECRET}",
        f" hf_{ID}_{SECRET}",
        f"hf_{ID}_{SECRET}\n",
        f"hf_{ID}_{SECRET[1:]}é",
        f"hf_{ID}_{SECRET[1:]}\x00",
        f"hf_{ID}_{SECRET}=",
        f"hf_{ID}_{'s' * 129}",
        f"Bearer hf_{ID}_{SECRET}",
    ],
)
def test_what_does_not_have_the_form_of_a_token_is_none(text: str) -> None:
    assert parse_token(text) is None


@given(st.text())
def test_any_text_can_be_asked_whether_it_is_a_token(text: str) -> None:
    assert parse_token(text) is None
    assert parse_token(f"hf_{ID}_{text}") in (None, Token(f"key_{ID}", text))


def test_hashes_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr(api_keys, "compare_digest", compare)
    assert same_secret(b"a", b"a")
    assert not same_secret(b"a", b"b")
    assert compared == [(b"a", b"a"), (b"a", b"b")]


def test_the_local_key_may_do_everything_as_the_default_owner() -> None:
    made = local_admin(Token(f"key_{ID}", SECRET), NOW)
    assert made == ApiKey(f"key_{ID}", "default", Scope.ADMIN, frozenset(TOOLS), NOW)


# --- what a key may be made of -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "owner", ["default", "ada", "team/ada", "a b", "Ada Lovelace", "åse", "a.b", "…", "*a"]
)
def test_an_owner_may_have_a_key(owner: str) -> None:
    assert check_owner(owner) == owner


NO_NAMES = [
    "",
    " ",
    ".",
    "..",
    "*",
    " ada",
    "ada ",
    "a\nb",
    "a\x00b",
    "a\tb",
    "\ud800",
    "a\u200bb",
    "\u202eada",
]


@pytest.mark.parametrize("owner", [*NO_NAMES, "/", "/ada", "ada/", "a//b", "a/../b", "a/.", "a/*", "x" * 513])
def test_what_is_no_name_of_an_owner_gets_no_key(owner: str) -> None:
    with pytest.raises(BadInput):
        new_key(owner, Scope.CHAT, (), NOW)


def test_an_unknown_tool_is_refused_with_those_there_are() -> None:
    assert check_tools([]) == frozenset()
    assert check_tools([*TOOLS, "search"]) == frozenset(TOOLS)
    with pytest.raises(BadInput, match="no tool 'shell'; the tools are terminal, process, memory, search"):
        check_tools(["search", "shell"])


# --- whom a request acts as ----------------------------------------------------------------------------


@pytest.mark.parametrize("scope", Scope)
def test_who_names_nobody_acts_as_the_keys_owner(scope: Scope) -> None:
    assert acting_as(key(scope), None) == Caller("team", scope, frozenset({"search"}), "key_1")


@pytest.mark.parametrize(
    ("owner", "named", "acts_as"),
    [
        ("team", "ada", "team/ada"),
        ("team", "team", "team/team"),
        ("team", "default", "team/default"),
        ("team", "telegram:42", "team/telegram:42"),
        ("team", "a.b", "team/a.b"),
        ("team", "...", "team/..."),
        ("team", "%2e%2e", "team/%2e%2e"),
        ("team", "\\..\\", "team/\\..\\"),
        ("team/ada", "work", "team/ada/work"),
    ],
)
def test_a_bridge_acts_as_who_it_names_below_its_own_owner(owner: str, named: str, acts_as: str) -> None:
    caller = acting_as(key(Scope.BRIDGE, owner), named)
    assert caller == Caller(acts_as, Scope.BRIDGE, frozenset({"search"}), "key_1")


@pytest.mark.parametrize(
    "named",
    [*NO_NAMES, "/", "/ada", "ada/", "../other", "ada/../../other", "ada/notes", "ada//notes", "x" * 508],
)
def test_a_bridge_cannot_name_its_way_out(named: str) -> None:
    with pytest.raises(BadInput) as told:
        acting_as(key(Scope.BRIDGE), named)
    assert not isinstance(told.value, NotAllowed)
    assert "X-Holdfast-Owner" in str(told.value)


def test_the_longest_name_a_bridge_may_give_fills_the_owners() -> None:
    longest = "x" * (MAX_NAME - len("team/"))
    assert acting_as(key(Scope.BRIDGE), longest).owner == f"team/{longest}"


@given(st.text(), st.sampled_from(["team", "team/ada", "other"]))
def test_two_bridges_never_reach_the_same_owner(named: str, other: str) -> None:
    """A name either leads one step below the bridge's own owner or nowhere."""
    try:
        reached = acting_as(key(Scope.BRIDGE, other), named).owner
    except BadInput:
        return
    assert reached.rpartition("/") == (other, "/", named)


@pytest.mark.parametrize("scope", [Scope.CHAT, Scope.ADMIN])
@pytest.mark.parametrize("named", ["ada", "team", "", "*", "../x"])
def test_naming_an_owner_with_any_other_key_is_refused_and_not_ignored(scope: Scope, named: str) -> None:
    with pytest.raises(NotAllowed, match=f"bridge.*{scope.value}"):
        acting_as(key(scope), named)


# --- whom a read is about ------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", Scope)
def test_who_names_nobody_reads_what_is_their_own(scope: Scope) -> None:
    assert acting_for(acting_as(key(scope), None), None) == "team"


def test_a_bridge_reads_as_who_it_named() -> None:
    assert acting_for(acting_as(key(Scope.BRIDGE), "ada"), None) == "team/ada"


@pytest.mark.parametrize(
    ("named", "read"), [("ada", "ada"), ("team/ada", "team/ada"), ("team", "team"), ("*", None)]
)
def test_an_admin_reads_whom_it_names(named: str, read: str | None) -> None:
    assert acting_for(acting_as(key(Scope.ADMIN), None), named) == read


@pytest.mark.parametrize("named", ["", " ", "a\x00b", "x" * 513])
def test_a_name_that_is_none_is_not_taken_for_nobody(named: str) -> None:
    with pytest.raises(BadInput):
        acting_for(acting_as(key(Scope.ADMIN), None), named)


@pytest.mark.parametrize("scope", [Scope.CHAT, Scope.BRIDGE])
@pytest.mark.parametrize("named", ["ada", "team", "*", ""])
def test_nobody_but_an_admin_names_whose_data_is_read(scope: Scope, named: str) -> None:
    with pytest.raises(NotAllowed, match=f"admin.*{scope.value}"):
        acting_for(acting_as(key(scope), None), named)


def test_what_is_for_admins_is_refused_to_others_by_name() -> None:
    check_admin(acting_as(key(Scope.ADMIN), None), "GET /api/nodes")
    for scope in (Scope.CHAT, Scope.BRIDGE):
        with pytest.raises(NotAllowed, match="GET /api/nodes needs a key of scope admin"):
            check_admin(acting_as(key(scope), None), "GET /api/nodes")
