"""Addresses: how a caller names a conversation."""

import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.ids import OUR_PREFIXES
from holdfast.errors import BadInput


@pytest.mark.parametrize(
    ("address", "may_create"),
    [
        (Address(), True),
        (Address(create=False), False),
        (Address(key="cli:ada"), True),
        (Address(key="cli:ada", create=False), False),
        (Address(key="conv_looks_like_ours"), True),
        (Address(id="20260301_120000_ab"), True),
        (Address(id="20260301_120000_ab", create=False), False),
        *((Address(id=f"{prefix}made-up"), False) for prefix in OUR_PREFIXES),
    ],
)
def test_a_new_name_may_open_a_conversation_unless_of_our_form(address: Address, may_create: bool) -> None:
    assert address.may_create is may_create


def test_an_address_is_an_id_or_a_key_never_both() -> None:
    with pytest.raises(BadInput, match="not by both"):
        Address(id="conv_1", key="cli:ada")


@pytest.mark.parametrize("name", ["", "  ", "x" * 513, "a\x00b", "\ud800"])
def test_an_unusable_id_or_key_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="an id "):
        Address(id=name)
    with pytest.raises(BadInput, match="a key "):
        Address(key=name)


@pytest.mark.parametrize(
    ("address", "text"),
    [(Address(), "(new)"), (Address(id="conv_1"), "conv_1"), (Address(key="cli:ada"), "cli:ada")],
)
def test_an_address_reads_as_what_was_named(address: Address, text: str) -> None:
    assert str(address) == text
