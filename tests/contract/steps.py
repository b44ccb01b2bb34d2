"""Steps that the contract tests share, using only the store contract."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from holdfast.domain.attachments import Attachment, FileRef
from holdfast.domain.connectors import Batch, ConnectorClaim, Incoming
from holdfast.domain.contexts import Context
from holdfast.domain.conversations import Address
from holdfast.domain.drafts import Draft
from holdfast.domain.events import Event
from holdfast.domain.flushes import FlushRules
from holdfast.domain.ids import new_id
from holdfast.domain.messages import Message, NewMessage
from holdfast.domain.new_messages import new_message
from holdfast.domain.nodes import Node, NodeKind
from holdfast.domain.quotas import Quotas
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.resets import ResetMode, ResetPolicies, ResetPolicy
from holdfast.domain.sessions import Session
from holdfast.domain.turns import TurnBegun, TurnRequest
from holdfast.os_support import identity
from holdfast.store.store import Store
from holdfast.store.values import SessionFilter

POLICIES = ResetPolicies(
    by_source={
        "idle": ResetPolicy(ResetMode.IDLE, timedelta(hours=2), timezone="UTC"),
        "daily": ResetPolicy(ResetMode.DAILY, at_hour=6, quiet=timedelta(minutes=15), timezone="UTC"),
    }
)
"""Sessions of these sources are reset; all others never."""

FLUSHING = FlushRules(min_messages=4)
"""Sessions of two turns are long enough to be flushed."""

only_sqlite = pytest.mark.parametrize("open_another", ["sqlite"], indirect=True)
"""What another engine's database does with tools of its own."""

OWNER = "ada"
OTHER = "bob"

Said = str | dict[str, Any] | NewMessage
"""A text (of whoever speaks), a message object, or a message."""


class Clock:
    """A time that only moves when told to."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def move(self, *, seconds: float = 0, hours: float = 0) -> datetime:
        self.now += timedelta(seconds=seconds, hours=hours)
        return self.now


async def new_node(store: Store) -> Node:
    """A node of this process that has joined."""
    node = Node(new_id("node"), NodeKind.LIBRARY, identity())
    await store.join(node)
    return node


def to_message(said: Said, role: str = "user") -> NewMessage:
    if isinstance(said, NewMessage):
        return said
    return new_message({"role": role, "content": said} if isinstance(said, str) else said)


def calling(*ids: str, content: str | None = None) -> dict[str, Any]:
    """A reply that calls tools."""
    calls = [{"id": id_, "type": "function", "function": {"name": "look", "arguments": "{}"}} for id_ in ids]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def result(call_id: str, text: str = "42") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def request(
    node: Node,
    *said: Said,
    id: str | None = None,
    key: str | None = None,
    owner: str = OWNER,
    attached: bool = False,
    request_key: RequestKey | None = None,
    create: bool = True,
    source: str = "",
    model: str | None = None,
    turn_id: str | None = None,
    answer_existing: bool = False,
    **more: Any,
) -> TurnRequest:
    """A request; with `answer_existing` it brings no message."""
    return TurnRequest(
        turn_id or new_id("turn"),
        owner,
        node.id,
        Address(id=id, key=key, create=create),
        tuple(to_message(what) for what in (said or (() if answer_existing else ("hello",)))),
        source=source,
        attached=attached,
        request_key=request_key,
        model=model,
        answer_existing=answer_existing,
        **more,
    )


async def begin(store: Store, node: Node, *said: Said, **address: Any) -> TurnBegun:
    """A turn that has begun."""
    outcome = await store.begin_turn(request(node, *said, **address))
    assert isinstance(outcome, TurnBegun)
    return outcome


async def say(store: Store, node: Node, said: Said = "hello", *replies: Said, **address: Any) -> TurnBegun:
    """A whole turn: something is said and answered."""
    begun = await begin(store, node, said, **address)
    await store.commit_reply(begun.lease, [to_message(reply, "assistant") for reply in replies or ("hi",)])
    return begun


async def ended(store: Store, node: Node, reason: str = "closed", **address: Any) -> Session:
    """A session with one turn that has ended."""
    begun = await say(store, node, **address)
    assert await store.end_session(None, begun.session.id, reason)
    return await store.session(None, begun.session.id)


def draft(number: int, text: str = "", *, restarts: bool = False, **adds: str) -> Draft:
    """A checkpoint holding the event of this number."""
    return Draft(number, number, b"data: {}\n\n", {**({"content": text} if text else {}), **adds}, restarts)


def follow(store: Store, policies: ResetPolicies) -> None:
    """Have an open store reset by these from now on, as one that was opened with them."""
    vars(store)["_policies"] = policies


async def reap(by: Store, node: Node) -> None:
    """Take a node for dead at the beat it has now."""
    found = {known.id: known for known in await by.nodes()}
    assert await by.reap(node.id, found[node.id].beat, "its test said so")


async def sweep(store: Store) -> None:
    """Settle everything that nodes that are gone have left."""
    left = await store.leftovers()
    for conversation_id in left.conversations:
        await store.settle_conversation(conversation_id)
    for session_id in left.sessions:
        await store.reap_session(session_id)
    for node_id in left.nodes:
        assert await store.settle_node(node_id)


async def messages(store: Store, conversation_id: str) -> Sequence[Message]:
    return (await store.messages(None, conversation_id)).items


async def contents(store: Store, conversation_id: str) -> list[Any]:
    """The content of every message of a conversation."""
    return [message.content().get("content") for message in await messages(store, conversation_id)]


def seen(context: Context) -> list[Any]:
    """The content of every message the model would get."""
    return [message.get("content") for message in context.messages()]


async def context_of(store: Store, session_id: str) -> list[Any]:
    return seen(await store.context(None, session_id))


async def all_sessions(store: Store) -> list[Session]:
    page = await store.sessions(SessionFilter(owner=None), limit=1000)
    assert not page.has_more
    return list(page.items)


async def all_events(store: Store) -> list[Event]:
    told: list[Event] = []
    while page := await store.events(owner=None, after=told[-1].id if told else 0):
        told += page
    return told


async def everything(store: Store) -> dict[str, Any]:
    """All that a store shows, to be compared."""
    sessions = sorted(
        await all_sessions(store), key=lambda session: (session.conversation_id, session.ordinal)
    )
    conversations = sorted({session.conversation_id for session in sessions})
    known = [await store.conversation(None, Address(id=conversation)) for conversation in conversations]
    turns = [await store.turns(None, conversation) for conversation in conversations]
    return {
        "sessions": sessions,
        "conversations": known,
        "messages": [await messages(store, conversation) for conversation in conversations],
        "contexts": [(await store.context(None, session.id)).json() for session in sessions],
        "turns": turns,
        "drafts": [await store.drafts(turn.id) for line in turns for turn in line],
        "events": await all_events(store),
        "nodes": await store.nodes(gone=True),
        "processes": (await store.processes(None, limit=1000)).items,
        "flushes": (await store.flushes(None, limit=1000)).items,
        "memories": (await store.memories(None, limit=1000)).items,
        "keys": [await store.key(key.id) for key in await store.keys(None)],
        "statistics": await store.statistics(None),
    }


async def with_files(store: Store, node: Node, *bodies: bytes) -> str:
    """A conversation with a message that came with these files; returns its id."""
    claim = await store.claim_connector("phone", "telegram", node.id)
    assert isinstance(claim, ConnectorClaim)
    refs = tuple(FileRef(str(at), f"näme {at}.ogg", "audio/ogg") for at in range(len(bodies)))
    await store.receive("phone", [Incoming("m1", "dm:42", "telegram:dm:42", "42", "hear", files=refs)], ["*"])
    ((place, _),) = await store.waiting_places("phone")
    batch = await store.take_messages(claim, place, new_id("turn"), "telegram", timedelta(0))
    assert isinstance(batch, Batch)
    for at, body in enumerate(bodies):
        await store.add_attachment(claim, batch, f"m1 {at}", refs[at], body)
    owner, key = batch.place.owner, batch.place.key
    begun = await say(store, node, "hear", "heard", key=key, owner=owner, turn_id=batch.turn_id)
    return begun.session.conversation_id


async def files_of(store: Store, conversation_id: str) -> list[tuple[Attachment, bytes]]:
    found = (await store.attachments(None, conversation_id)).items
    return [await store.attachment(None, each.id) for each in found]


@asynccontextmanager
async def unchanged(store: Store) -> AsyncIterator[None]:
    """Whatever happens inside leaves no trace in the store."""
    before = await everything(store)
    yield
    assert await everything(store) == before


def limit(store: Store, quotas: Quotas) -> None:
    """Have an open store refuse beyond these from now on, as one that was opened with them."""
    vars(store)["_quotas"] = quotas
