"""Identifiers."""

import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.ids import OUR_PREFIXES, is_ours, message_id, new_id, parse_message_id


def test_an_id_carries_its_prefix_and_128_bits() -> None:
    assert re.fullmatch(r"conv_[0-9a-f]{32}", new_id("conv"))


def test_ids_made_together_are_neighbours_in_an_index_and_random_after_that() -> None:
    made = [new_id("turn") for _ in range(1_000)]
    assert len({id_[:8] for id_ in made}) <= 1_000 // 64 + 2
    assert len({id_[8:16] for id_ in made}) > 990
    assert len({id_[5:8] for id_ in (new_id("turn") for _ in range(64 * 100))}) >= 100, "all slots are used"


def test_a_forked_process_makes_other_ids() -> None:
    new_id("turn")  # a batch is ready
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(theirs, " ".join(new_id("turn") for _ in range(10)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    made = os.read(ours, 4096).decode().split()
    os.close(ours)
    os.close(theirs)
    assert len(made) == 10
    assert not set(made) & {new_id("turn") for _ in range(200)}


def test_ids_are_not_handed_out_twice() -> None:
    assert len({new_id("sess") for _ in range(10_000)}) == 10_000


@pytest.mark.parametrize("prefix", OUR_PREFIXES)
def test_an_id_of_our_form_is_recognised_whoever_made_it_up(prefix: str) -> None:
    assert is_ours(f"{prefix}whatever")
    assert is_ours(new_id(prefix.removesuffix("_")))


@pytest.mark.parametrize(
    "name",
    ["", "20260101_abc", "conv", "Conv_1", "my-session", " sess_1", "session_1", "key_1", "note_1", "node_1"],
)
def test_any_other_name_is_not_of_our_form(name: str) -> None:
    assert not is_ours(name)


@given(st.integers(min_value=1, max_value=2**63 - 1))
def test_a_message_id_leads_back_to_its_conversation_and_number(seq: int) -> None:
    conversation = new_id("conv")
    assert parse_message_id(message_id(conversation, seq)) == (conversation, seq)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "msg",
        "msg_",
        "msg_abc",
        "msg_abc_",
        "msg__1",
        "msg_abc_x",
        "msg_abc_-1",
        "msg_abc_1.5",
        "conv_abc_1",
    ],
)
def test_what_is_no_message_id_is_told_apart(name: str) -> None:
    assert parse_message_id(name) is None


@pytest.mark.parametrize("seq", [str(2**63), "9" * 5_000])
def test_a_number_that_no_message_can_have_is_the_largest(seq: str) -> None:
    assert parse_message_id(f"msg_abc_{seq}") == ("conv_abc", 2**63 - 1)
