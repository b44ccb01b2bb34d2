"""Queued turns as the command shows them."""

from __future__ import annotations

import asyncio

import holdfast
from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id, short
from holdfast.domain.new_messages import new_messages
from holdfast.domain.recovery import Origin, RequestToStore
from holdfast.domain.turns import TurnRequest
from tests.unit.cli.conftest import Home


async def _queued(home: Home) -> tuple[str, str]:
    """Ids of a turn that has been answered and of one that was queued behind it."""
    async with holdfast.open(f"sqlite:///{home.path / 'holdfast.db'}", sweep=False) as hf:
        session = await hf.session(key="busy", attached=False)
        async with session.turn("one") as turn:
            stored = RequestToStore(b"{}", Origin.QUEUED)
            request = TurnRequest(
                new_id("turn"), "default", hf.node_id, Address(key="busy"), new_messages("two"), stored=stored
            )
            queued = await hf.store.enqueue_turn(request, most=1)
            assert queued is not None
            await turn.append({"role": "assistant", "content": "to one"})
    return turn.id, queued.turn.id


def test_turns_are_retried_given_up_and_paged_by_their_shortened_ids(home: Home) -> None:
    """Tables on a terminal show these."""
    home.ok("run", "--key", "k", "one")
    home.ok("run", "--key", "k", "two")
    newest, oldest = home.json("sessions", "turns", "k")["data"]
    (rest,) = home.json("sessions", "turns", "k", "--after", short(newest["id"]))["data"]
    assert rest["id"] == oldest["id"]
    for verb in ("retry", "give-up"):
        done = home.run("turns", verb, short(newest["id"]))
        assert done.returncode == 1 and newest["id"] in done.stderr and "completed" in done.stderr
    assert "continues from message 2" in home.ok("sessions", "rewind", "k", short(oldest["id"]))


def test_turns_list_and_why_show_what_is_queued(home: Home) -> None:
    first, queued = asyncio.run(_queued(home))
    (found,) = home.json("turns", "list")["data"]
    assert (found["id"], found["status"], found["doing"]) == (queued, "queued", "waiting")
    assert first in found["why"]
    assert queued in home.ok("turns")
    assert queued in home.ok("why", "busy")
    assert "No turn is running there.\n1 queued turn was withdrawn." in home.ok("sessions", "cancel", "busy")
    assert home.json("turns", "list")["data"] == []
