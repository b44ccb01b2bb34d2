"""Invalid input is refused with an error of the one tree, and nothing is written."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.ids import MAX_NAME, MAX_NAME_BYTES, new_id
from holdfast.domain.new_messages import MAX_BODY_BYTES
from holdfast.domain.nodes import Node
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.turns import TurnBegun, TurnFailure, TurnStatus
from holdfast.errors import BadInput, BadMessage, HoldfastError, NotFound
from holdfast.store.store import Store
from holdfast.store.values import SessionFilter
from tests.contract.steps import (
    OTHER,
    OWNER,
    begin,
    contents,
    draft,
    ended,
    everything,
    messages,
    request,
    say,
    to_message,
    unchanged,
)

# --- names that lead nowhere -----------------------------------------------------------------------


@dataclass(frozen=True)
class Ids:
    session: str
    conversation: str
    turn: str


Asking = Callable[[Store, Node, str, Ids], Awaitable[object]]

ASKINGS: dict[str, Asking] = {
    "resolve": lambda s, n, owner, ids: s.resolve(owner, Address(id=ids.session)),
    "session": lambda s, n, owner, ids: s.session(owner, ids.session),
    "sessions after": lambda s, n, owner, ids: s.sessions(SessionFilter(owner), after=ids.session),
    "line": lambda s, n, owner, ids: s.line(owner, ids.conversation),
    "forks": lambda s, n, owner, ids: s.forks(owner, ids.conversation),
    "messages": lambda s, n, owner, ids: s.messages(owner, ids.conversation),
    "context": lambda s, n, owner, ids: s.context(owner, ids.session),
    "turn": lambda s, n, owner, ids: s.turn(owner, ids.turn),
    "turns": lambda s, n, owner, ids: s.turns(owner, ids.conversation),
    "side requests": lambda s, n, owner, ids: s.side_requests(owner, ids.conversation),
    "number of side requests": lambda s, n, owner, ids: s.count_side_requests(owner, ids.conversation),
    "search": lambda s, n, owner, ids: s.search(owner, "hello", conversation_id=ids.conversation),
    "open_session": lambda s, n, owner, ids: s.open_session(owner, Address(id=ids.session), n.id),
    "begin_turn": lambda s, n, owner, ids: s.begin_turn(request(n, id=ids.session, owner=owner)),
    "end_session": lambda s, n, owner, ids: s.end_session(owner, ids.session, "closed"),
    "resume_session": lambda s, n, owner, ids: s.resume_session(owner, ids.session, n.id),
    "fork": lambda s, n, owner, ids: s.fork(owner, ids.session, n.id),
    "set_title": lambda s, n, owner, ids: s.set_title(owner, ids.conversation, "Kelp"),
    "add_alias": lambda s, n, owner, ids: s.add_alias(owner, "kelp", ids.conversation),
    "aliases": lambda s, n, owner, ids: s.aliases(owner, ids.conversation),
    "exclude": lambda s, n, owner, ids: s.exclude(owner, ids.conversation, [1], "wrong"),
    "delete_message": lambda s, n, owner, ids: s.delete_message(owner, ids.conversation, 1),
    "delete_conversation": lambda s, n, owner, ids: s.delete_conversation(owner, ids.conversation),
    "cancel_turn": lambda s, n, owner, ids: s.cancel_turn(owner, ids.turn, TurnStatus.CANCELLED, "stop"),
}


@pytest.mark.parametrize("asking", ASKINGS)
async def test_an_id_that_is_unknown_and_one_that_is_anothers_are_not_found_in_the_same_words(
    store: Store, node: Node, asking: str
) -> None:
    theirs = await begin(store, node)
    ids = Ids(theirs.session.id, theirs.session.conversation_id, theirs.turn.id)
    never = Ids(new_id("sess"), new_id("conv"), new_id("turn"))
    told = []
    async with unchanged(store):
        for named in (ids, never):
            with pytest.raises(NotFound) as refusal:
                await ASKINGS[asking](store, node, OTHER, named)
            assert (
                refusal.value.name in (named.session, named.conversation) or named.turn in refusal.value.name
            )
            told.append(str(refusal.value).replace(refusal.value.name, "…"))
    assert told[0] == told[1]


GIBBERISH = ["", " ", "x", "sess_", "sess_' OR 1=1 --", "conv_%", "turn_\n", "x" * 10_000]


async def test_gibberish_is_not_found_or_refused(store: Store, node: Node) -> None:
    async with unchanged(store):
        for asking, ask in ASKINGS.items():
            for name in GIBBERISH:
                if asking in ("begin_turn", "open_session") and name == "x":
                    continue  # a foreign name, which opens a conversation
                with pytest.raises((NotFound, BadInput)):
                    await ask(store, node, OWNER, Ids(name, name, name))


# --- text that cannot be stored --------------------------------------------------------------------


@dataclass(frozen=True)
class Here:
    """What a test has to try a text on."""

    store: Store
    node: Node
    running: TurnBegun
    at_rest: TurnBegun


Telling = Callable[[Here, str], Awaitable[object]]


def a_request(here: Here, **changes: Any) -> Awaitable[object]:
    return here.store.begin_turn(replace(request(here.node), **changes))


def keyed(here: Here, route: str, key: str) -> Awaitable[object]:
    return a_request(here, request_key=RequestKey(route, key, b"hash"))


async def said(here: Here, **fields: Any) -> object:
    return await here.store.append(
        here.running.lease, [to_message({"role": "user", "content": "x", **fields})]
    )


TELLINGS: dict[str, Telling] = {
    "an owner": lambda h, text: a_request(h, owner=text),
    "an owner who opens": lambda h, text: h.store.open_session(text, Address(), h.node.id),
    "an owner who reads": lambda h, text: h.store.sessions(SessionFilter(text)),
    "a source": lambda h, text: a_request(h, source=text),
    "a source of a session": lambda h, text: h.store.open_session(OWNER, Address(), h.node.id, source=text),
    "a model": lambda h, text: a_request(h, model=text),
    "a turn id": lambda h, text: a_request(h, turn_id=text),
    "a node id": lambda h, text: a_request(h, node_id=text),
    "a request's route": lambda h, text: keyed(h, text, "k"),
    "a request's key": lambda h, text: keyed(h, "/r", text),
    "a title": lambda h, text: h.store.set_title(OWNER, h.at_rest.session.conversation_id, text),
    "an alias": lambda h, text: h.store.add_alias(OWNER, text, h.at_rest.session.conversation_id),
    "a fork's key": lambda h, text: h.store.fork(OWNER, h.at_rest.session.id, h.node.id, key=text),
    "an end reason": lambda h, text: h.store.end_session(OWNER, h.at_rest.session.id, f"hermes:{text}"),
    "an exclusion's reason": lambda h, text: h.store.exclude(
        OWNER, h.at_rest.session.conversation_id, [1], text
    ),
    "a session id": lambda h, text: h.store.session(OWNER, text),
    "a conversation id": lambda h, text: h.store.messages(OWNER, text),
    "a turn's id": lambda h, text: h.store.turn(OWNER, text),
    "a conversation to delete": lambda h, text: h.store.delete_conversation(OWNER, text),
    "a cursor": lambda h, text: h.store.sessions(SessionFilter(OWNER), after=text),
    "a turn that failed": lambda h, text: h.store.settle_turn(
        h.running.lease, TurnFailure(TurnStatus.FAILED, error=text)
    ),
    "a turn that was cancelled": lambda h, text: h.store.cancel_turn(
        OWNER, h.running.turn.id, TurnStatus.CANCELLED, text
    ),
    "a draft": lambda h, text: h.store.append_draft(h.running.lease, draft(0, text)),
    "a message": lambda h, text: said(h, content=text),
    "a part of a message": lambda h, text: said(h, content=[{"type": "text", "text": text}]),
    "an unknown field": lambda h, text: said(h, more={"deep": [text]}),
    "a field's name": lambda h, text: said(h, **{text: 1}),
    "a call's id": lambda h, text: said(h, role="assistant", tool_calls=[{"id": text}]),
    "a result's call": lambda h, text: said(h, role="tool", tool_call_id=text),
}
# What a surface passes on as it came, and may therefore be mended or refused, but not with a surprise.
SEARCHING: dict[str, Telling] = {
    "searched words": lambda h, text: h.store.search(OWNER, text),
    "a part of a title": lambda h, text: h.store.sessions(SessionFilter(OWNER, title=text)),
    "a filter's key": lambda h, text: h.store.sessions(SessionFilter(OWNER, key=text)),
    "a filter's source": lambda h, text: h.store.sessions(SessionFilter(OWNER, source=text)),
}


@pytest.fixture
async def here(store: Store, node: Node) -> Here:
    return Here(store, node, await begin(store, node), await say(store, node))


# Said by a model or a program, with nobody there to say it differently: mended rather than refused.
MAY_BE_MENDED = {"a turn that failed", "a turn that was cancelled", "a draft"}
MAY_FIND_NOTHING = {*SEARCHING, "an owner who reads"}


@pytest.mark.parametrize("telling", [*TELLINGS, *SEARCHING])
async def test_a_lone_surrogate_is_no_surprise_wherever_it_stands(here: Here, telling: str) -> None:
    before = await everything(here.store)
    try:
        found = await {**TELLINGS, **SEARCHING}[telling](here, "kelp\ud800")
    except HoldfastError:
        assert await everything(here.store) == before
        return
    assert telling in MAY_BE_MENDED | MAY_FIND_NOTHING
    assert telling in MAY_BE_MENDED or not getattr(found, "items", found)
    await everything(here.store)


KEPT_OR_REFUSED = {
    "a turn that failed",
    "a turn that was cancelled",
    "a model",
    "a turn id",
    "a request's route",
    "a request's key",
    "an end reason",
    "a draft",
}


@pytest.mark.parametrize("telling", [*TELLINGS, *SEARCHING])
async def test_a_nul_byte_is_no_surprise_wherever_it_stands(here: Here, telling: str) -> None:
    """Refused where people name things and in messages; elsewhere refused, kept, or found to lead nowhere."""
    try:
        found = await {**TELLINGS, **SEARCHING}[telling](here, "ke\x00lp")
    except HoldfastError:
        found = None
    else:
        assert telling in KEPT_OR_REFUSED | MAY_FIND_NOTHING
    if telling in MAY_FIND_NOTHING:
        assert not getattr(found, "items", found)
    # Whatever was decided, both conversations can go on.
    await here.store.cancel_turn(OWNER, here.running.turn.id, TurnStatus.CANCELLED, "stop")
    for begun in (here.running, here.at_rest):
        await say(here.store, here.node, id=begun.session.id)


@pytest.mark.parametrize(("route", "key"), [("a\x000", "k"), ("/r", "a\x000"), ("r" * 101, "k"), ("é", "k")])
def test_a_request_key_that_no_index_could_hold_whole_is_refused(route: str, key: str) -> None:
    with pytest.raises(BadInput):
        RequestKey(route, key, b"h")


# --- names of every length -------------------------------------------------------------------------

chance = random.Random(1)
LONGEST_NAMES = {
    "one byte each": "".join(chr(chance.randrange(0x21, 0x7F)) for _ in range(MAX_NAME)),
    "two bytes each": "".join(chr(chance.randrange(0xC0, 0x800)) for _ in range(MAX_NAME)),
    "four bytes each": "".join(chr(chance.randrange(0x20000, 0x2A6D0)) for _ in range(MAX_NAME_BYTES // 4)),
}
"""As long as a name may be, and nothing that an engine could compress."""

NAMINGS: dict[str, Callable[[Store, Node, str, str], Awaitable[object]]] = {
    "a key": lambda s, n, o, name: s.open_session(o, Address(key=name), n.id),
    "a key of a turn": lambda s, n, o, name: s.begin_turn(request(n, owner=o, key=name)),
    "an alias": lambda s, n, o, name: s.begin_turn(request(n, owner=o, id=name)),
    "a request key": lambda s, n, o, name: s.begin_turn(
        request(n, owner=o, request_key=RequestKey("/" * 100, name, b"h" * 64))
    ),
    "a source": lambda s, n, o, name: s.begin_turn(request(n, owner=o, source=name)),
}


@pytest.mark.parametrize("length", LONGEST_NAMES)
@pytest.mark.parametrize("naming", NAMINGS)
async def test_the_longest_names_fit_every_index(store: Store, node: Node, naming: str, length: str) -> None:
    name = LONGEST_NAMES[length]
    await NAMINGS[naming](store, node, name[::-1], name)
    found = await store.sessions(SessionFilter(name[::-1]))
    assert len(found.items) == 1


@pytest.mark.parametrize("naming", [*NAMINGS, "an owner"])
async def test_a_name_of_too_many_bytes_is_its_callers_error_and_nobody_elses(
    store: Store, node: Node, naming: str
) -> None:
    long = LONGEST_NAMES["four bytes each"] + "é"
    assert len(long) < MAX_NAME
    owner, name = (long, "k") if naming == "an owner" else (OWNER, long)
    async with unchanged(store):
        with pytest.raises(BadInput, match="bytes"):
            await NAMINGS["a key" if naming == "an owner" else naming](store, node, owner, name)
    await say(store, node)


async def test_a_title_is_counted_in_characters(store: Store, node: Node) -> None:
    begun = await say(store, node)
    title = LONGEST_NAMES["four bytes each"] * 2
    await store.set_title(OWNER, begun.session.conversation_id, title)
    assert (await store.session(OWNER, begun.session.id)).title == title


# --- numbers ---------------------------------------------------------------------------------------

Counting = Callable[[Store, TurnBegun, int], Awaitable[object]]

LIMITS: dict[str, Counting] = {
    "sessions": lambda s, b, n: s.sessions(SessionFilter(OWNER), limit=n),
    "messages": lambda s, b, n: s.messages(OWNER, b.session.conversation_id, limit=n),
    "turns": lambda s, b, n: s.turns(OWNER, b.session.conversation_id, limit=n),
    "events": lambda s, b, n: s.events(owner=OWNER, limit=n),
    "search": lambda s, b, n: s.search(OWNER, "hello", limit=n),
}


@pytest.mark.parametrize("counting", LIMITS)
async def test_a_limit_below_one_is_refused(store: Store, node: Node, counting: str) -> None:
    begun = await say(store, node)
    for limit in (0, -1, -(2**40), -(2**70)):
        with pytest.raises(BadInput):
            await LIMITS[counting](store, begun, limit)
    await say(store, node)


@pytest.mark.parametrize("counting", LIMITS)
async def test_a_limit_beyond_all_numbers_is_refused_or_is_simply_large(
    store: Store, node: Node, counting: str
) -> None:
    begun = await say(store, node)
    for limit in (2**31, 2**63 - 1, 2**63, 2**70):
        with contextlib.suppress(BadInput):
            await LIMITS[counting](store, begun, limit)
    await say(store, node)


CURSORS: dict[str, Counting] = {
    "first": lambda s, b, n: s.messages(OWNER, b.session.conversation_id, first=n),
    "last": lambda s, b, n: s.messages(OWNER, b.session.conversation_id, last=n),
    "events after": lambda s, b, n: s.events(owner=OWNER, after=n),
    "events of a conversation after": lambda s, b, n: s.events(
        owner=OWNER, after=n, conversation_id=b.session.conversation_id
    ),
    "drafts after": lambda s, b, n: s.drafts(b.turn.id, after_event=n),
    "exclude": lambda s, b, n: s.exclude(OWNER, b.session.conversation_id, [n], "wrong"),
    "delete_message": lambda s, b, n: s.delete_message(OWNER, b.session.conversation_id, n),
    "fork up to": lambda s, b, n: s.fork(OWNER, b.session.id, b.lease.node_id, up_to=n),
}


@pytest.mark.parametrize("counting", CURSORS)
async def test_a_number_from_nowhere_finds_what_there_is_or_is_refused(
    store: Store, node: Node, counting: str
) -> None:
    begun = await say(store, node)
    async with unchanged(store):
        for number in (-1, -(2**63) - 1, 2**63, 2**70):
            try:
                await CURSORS[counting](store, begun, number)
            except HoldfastError:
                continue
            assert counting not in ("exclude", "delete_message", "fork up to")
    await say(store, node)


# --- messages --------------------------------------------------------------------------------------

TEN_MEGABYTES = 10 * 1024 * 1024


async def test_messages_of_ten_megabytes_come_back_intact(
    store: Store, node: Node, second_store: Store
) -> None:
    said = to_message("kelp " + "\U0001f41a" * (TEN_MEGABYTES // 4))
    reply = to_message({"role": "assistant", "content": "y" * TEN_MEGABYTES, "reasoning": "z"})
    begun = await begin(store, node, said)
    await store.commit_reply(begun.lease, [reply])
    stored = await messages(second_store, begun.session.conversation_id)
    assert [message.body for message in stored] == [said.body, reply.body]
    assert (
        await store.context(OWNER, begun.session.id)
    ).json() == b"[" + said.body + b"," + reply.body + b"]"
    (hit,) = await second_store.search(OWNER, "kelp")
    assert len(hit.snippet) < 200


async def test_a_message_over_the_limit_is_refused(store: Store, node: Node) -> None:
    async with unchanged(store):
        with pytest.raises(BadMessage):
            await begin(store, node, "fine", "x" * MAX_BODY_BYTES)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"role": "robot", "content": "x"},
        {"content": "x"},
        {"role": ["user"], "content": "x"},
        {"role": "user", "content": 5},
        {"role": "tool", "content": "x"},
        {"role": "assistant", "tool_calls": [{}]},
    ],
    ids=range(7),
)
async def test_a_body_that_is_no_message_is_refused_and_nothing_of_its_turn_is_written(
    store: Store, node: Node, body: dict[str, Any]
) -> None:
    running = await begin(store, node)
    async with unchanged(store):
        with pytest.raises(BadMessage):
            await begin(store, node, "fine", body)
        with pytest.raises(BadMessage):
            await store.append(running.lease, [to_message("fine", "assistant"), to_message(body)])
        with pytest.raises(BadMessage):
            await store.commit_reply(running.lease, [to_message("fine", "assistant"), to_message(body)])
    await store.commit_reply(running.lease)


async def test_a_deep_message_is_refused_or_stored_and_searched_like_any_other(
    store: Store, node: Node
) -> None:
    for depth in (50, 500, 900, 1_100, 5_000):
        body = b'{"role":"user","content":"kelp","deep":' + b"[" * depth + b"]" * depth + b"}"
        try:
            said = to_message(msgspec.json.decode(body))
        except (BadMessage, RecursionError):
            continue
        begun = await begin(store, node, said)
        assert await contents(store, begun.session.conversation_id) == ["kelp"]
        assert len(await store.search(OWNER, "kelp", conversation_id=begun.session.conversation_id)) == 1


async def test_one_refused_write_does_not_harm_those_it_is_committed_with(store: Store, node: Node) -> None:
    session = await ended(store, node, "new")
    running = await begin(store, node)
    outcomes = await asyncio.gather(
        store.append(running.lease, [to_message("one", "assistant")]),
        store.begin_turn(request(node, id=new_id("sess"))),
        store.begin_turn(request(node, turn_id=running.turn.id)),
        store.append(running.lease, [to_message("two", "assistant")]),
        store.end_session(OWNER, running.session.id, "closed"),
        store.set_title(OWNER, session.conversation_id, ""),
        store.append_draft(running.lease, draft(0, "three")),
        store.append_draft(running.lease, draft(0, "again")),
        store.append(replace(running.lease, token=99), [to_message("late", "assistant")]),
        store.set_title(OWNER, session.conversation_id, "Kelp"),
        return_exceptions=True,
    )
    refused = [isinstance(outcome, BaseException) for outcome in outcomes]
    assert refused == [False, True, True, False, True, True, False, True, True, False]
    assert await contents(store, running.session.conversation_id) == ["hello", "one", "two"]
    assert (await store.session(OWNER, session.id)).title == "Kelp"
    assert len(await store.drafts(running.turn.id)) == 1
