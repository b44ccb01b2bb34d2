"""What a store keeps of agent programs: sub-agents as conversations of their own, side requests as events."""

from __future__ import annotations

from holdfast.domain.nodes import Node
from holdfast.domain.sessions import Edge
from holdfast.store.store import Store
from tests.contract.steps import OTHER, OWNER, all_events, begin, say


async def test_a_sub_agent_begins_a_conversation_beside_its_busy_parent(store: Store, node: Node) -> None:
    parent = await begin(store, node, "hello", id="session")
    child = await say(store, node, "help", id="session:agent", parent="session")
    assert child.session.conversation_id != parent.session.conversation_id
    assert (child.session.edge, child.session.parent_id) == (Edge.SUBAGENT, parent.session.id)
    again = await say(store, node, "more", id="session:agent", parent="session")
    assert again.session.id == child.session.id
    assert len((await store.context(OWNER, child.session.id)).messages()) == 4


async def test_a_parent_that_is_unknown_or_anothers_leaves_no_edge(store: Store, node: Node) -> None:
    await say(store, node, "hello", id="theirs", owner=OTHER)
    for parent in ("unknown", "theirs"):
        begun = await say(store, node, "help", id=f"child of {parent}", parent=parent)
        assert (begun.session.edge, begun.session.parent_id) == (None, None)


async def test_a_side_request_is_an_event_of_its_conversation(store: Store, node: Node) -> None:
    await store.note_side_request(OWNER, "session", "title", {"model": "m"})
    begun = await say(store, node, "hello", id="session")
    await store.note_side_request(OWNER, "session", "title", {"model": "m"})
    found = [event for event in await all_events(store) if event.type == "request.side"]
    assert [event.conversation_id for event in found] == [None, begun.session.conversation_id]
    assert found[0].data == {"name": "session", "kind": "title", "model": "m"}
