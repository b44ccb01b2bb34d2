"""Conversations as records: exported complete, imported unchanged."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.new_messages import new_message
from holdfast.domain.nodes import Node
from holdfast.domain.records import (
    NOTHING,
    AliasRecord,
    ConversationRecord,
    ExclusionRecord,
    Hanging,
    ImportMark,
    MemoryRecord,
    MessageRecord,
    Part,
    ReadVersion,
    SessionRecord,
    TurnRecord,
)
from holdfast.errors import BadInput, Conflict
from holdfast.store.store import Store
from tests.contract.steps import OTHER, OWNER, Clock, all_events, begin, messages, say, unchanged

LONG_AGO = datetime(2025, 6, 1, 12, tzinfo=UTC)


def conversation(**fields: Any) -> ConversationRecord:
    given = {"key": None, "title": None, "source": "cli", "created_at": LONG_AGO, "last_seq": 2}
    return ConversationRecord(**{"id": new_id("conv"), "owner": OWNER, **given, **fields})


def session(ordinal: int = 1, first_seq: int = 1, **fields: Any) -> SessionRecord:
    given = {
        "edge": None,
        "parent_id": None,
        "source": "cli",
        "opened_at": LONG_AGO,
        "last_activity_at": LONG_AGO + timedelta(hours=1),
        "ended_at": LONG_AGO + timedelta(hours=2),
        "end_reason": "hermes:cli_close",
        "model": "m",
        "input_tokens": 7,
        "output_tokens": 3,
        "view": Raw(b'[{"first":%d,"last":null}]' % first_seq),
    }
    return SessionRecord(
        **{"id": new_id("sess"), "ordinal": ordinal, "first_seq": first_seq, **given, **fields}
    )


def said(number: int, session_id: str, **fields: Any) -> MessageRecord:
    message = new_message({"role": "assistant" if number % 2 == 0 else "user", "content": f"number {number}"})
    given = {"turn_id": None, "role": message.role, "status": "completed"}
    at = LONG_AGO + timedelta(minutes=number)
    return MessageRecord(
        **{
            "seq": number,
            "session_id": session_id,
            "created_at": at,
            "body": Raw(message.body),
            **given,
            **fields,
        }
    )


def part(
    *records: Hanging, expected: ReadVersion | None = None, marks: Sequence[ImportMark] = (), **fields: Any
) -> Part:
    return Part("hermes", conversation(**fields), records, tuple(marks), expected)


async def test_what_is_taken_over_is_as_it_was(store: Store, clock: Clock) -> None:
    first = session()
    extra = Raw(b'{"reasoning":"because"}')
    given = part(
        first,
        said(1, first.id),
        said(2, first.id, extra=extra, origin="hermes:x:7"),
        key="k",
        title="Kelp",
        metadata={"sea": "calm"},
        aliases=(AliasRecord("old name", LONG_AGO, first.id),),
    )
    await store.import_part(given)
    place = await store.resolve(OWNER, Address(key="k"))
    assert place.tip.ended_at == LONG_AGO + timedelta(hours=2)
    assert place.tip.last_activity_at == LONG_AGO + timedelta(hours=1)
    assert (place.tip.end_reason, place.tip.title, place.tip.model) == ("hermes:cli_close", "Kelp", "m")
    assert (place.tip.input_tokens, place.tip.message_count, place.tip.next_due_at) == (7, 2, None)
    kept = await messages(store, place.conversation.id)
    assert [each.created_at for each in kept] == [LONG_AGO + timedelta(minutes=n) for n in (1, 2)]
    assert kept[1].carried() == {"reasoning": "because"}
    assert kept[1].origin == "hermes:x:7"
    context = (await store.context(OWNER, first.id)).messages()
    assert [each["content"] for each in context] == ["number 1", "number 2"]
    assert "reasoning" not in context[1]
    by_alias = await store.resolve(OWNER, Address(id="old name"))
    assert (by_alias.tip.id, by_alias.addressed) == (first.id, first.id)
    (event,) = await store.events(owner=OWNER)
    assert (event.type, event.at) == ("conversation.imported", clock.now)
    assert event.data == {"origin": "hermes", "sessions": 1, "messages": 2}


async def test_what_a_message_carried_goes_when_something_of_it_is_deleted(store: Store) -> None:
    first = session()
    extra = Raw(b'{"reasoning":"number 1 and number 2"}')
    given = part(first, *(said(n, first.id, extra=extra) for n in (1, 2)))
    await store.import_part(given)
    await store.delete_message(OWNER, given.conversation.id, 1)
    one, two = await store.message_records(given.conversation.id, first=1, last=2)
    assert (one.body, one.extra, two.extra) == (NOTHING, NOTHING, extra)


async def test_it_goes_on_as_if_it_had_always_been_here(store: Store, node: Node) -> None:
    first = session()
    await store.import_part(part(first, said(1, first.id), said(2, first.id), key="k"))
    begun = await say(store, node, "and now?", key="k")
    assert (begun.session.edge, begun.session.parent_id) == ("resume", first.id)
    context = (await store.context(OWNER, begun.session.id)).messages()
    assert [each["content"] for each in context] == ["number 1", "number 2", "and now?", "hi"]
    assert {hit.message.seq for hit in await store.search(OWNER, "number")} == {1, 2}


async def test_an_imported_session_asks_its_policy_at_the_next_message(
    store: Store, node: Node, clock: Clock
) -> None:
    first = session(source="idle")
    await store.import_part(part(first, said(1, first.id), said(2, first.id), key="k", source="idle"))
    assert await store.due_sessions() == []
    assert (await say(store, node, "hello?", key="k")).session.edge == "reset"


async def test_parts_go_behind_each_other_and_leave_no_gap(store: Store) -> None:
    first, second = session(), session(2, 4, edge="compaction")
    known = conversation(last_seq=5)

    async def take(*records: Hanging, expected: ReadVersion | None, row: int, whole: bool = True) -> None:
        mark = ImportMark("there", first.id, row, whole)
        await store.import_part(Part("hermes", known, records, (mark,), expected))

    await take(first, said(1, first.id), said(2, first.id), expected=None, row=20, whole=False)
    assert (await store.session(OWNER, first.id)).last_seq == 2
    assert await store.check() == []
    await take(said(3, first.id), expected=ReadVersion(2, first.id), row=30)
    assert (await store.session(OWNER, first.id)).last_seq == 3
    more = (second, said(4, second.id), said(5, second.id), ExclusionRecord(4, "hermes:undone", LONG_AGO))
    await take(*more, expected=ReadVersion(3, first.id), row=50)
    assert [each.last_seq for each in await store.line(OWNER, known.id)] == [3, 5]
    context = (await store.context(OWNER, second.id)).messages()
    assert [each["content"] for each in context] == ["number 5"]
    found = (await store.imported(OWNER, "hermes", ["there", "nowhere"]))["there"]
    assert (found.last_row, found.last_seq, found.whole, found.gone_on) == (50, 5, True, False)
    assert await store.imported(OTHER, "hermes", ["there"]) == {}
    async with unchanged(store):
        with pytest.raises(Conflict):
            await take(said(4, first.id), expected=ReadVersion(3, first.id), row=60)


async def test_nothing_is_added_to_what_has_gone_on_here(store: Store, node: Node) -> None:
    first = session()
    given = part(first, said(1, first.id), said(2, first.id), marks=[ImportMark("there", first.id, 2)])
    await store.import_part(given)
    begun = await begin(store, node, "wait", id=first.id)
    late = Part("hermes", given.conversation, (said(3, first.id),), (), ReadVersion(2, first.id))
    async with unchanged(store):
        with pytest.raises(Conflict):
            await store.import_part(late)
    found = (await store.imported(OWNER, "hermes", ["there"]))["there"]
    assert (found.gone_on, found.held) == (True, True)
    await store.commit_reply(begun.lease)
    await store.delete_conversation(OWNER, given.conversation.id)
    assert (await store.imported(OWNER, "hermes", ["there"]))["there"].version is None


async def test_names_that_are_taken_are_refused(store: Store, node: Node) -> None:
    mine = await say(store, node, key="k")
    await store.add_alias(OWNER, "old name", mine.session.conversation_id)
    first = session()
    alias = AliasRecord("old name", LONG_AGO)
    given = [
        part(first, said(1, first.id), said(2, first.id), key="k"),
        part(first, said(1, first.id), said(2, first.id), aliases=(alias,)),
        part(first, said(1, first.id), said(2, first.id), id=mine.session.conversation_id),
        part(first, said(1, first.id), said(2, first.id), id=mine.session.conversation_id, owner=OTHER),
    ]
    for each in given:
        async with unchanged(store):
            with pytest.raises(Conflict):
                await store.import_part(each)
    assert await store.imported(OWNER, "hermes", ["there"]) == {}


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda s: (s, said(2, s.id)), id="a number is missing"),
        pytest.param(lambda s: (said(1, s.id),), id="no session"),
        pytest.param(lambda s: (s, said(1, s.id, role="pirate")), id="a role that is none"),
        pytest.param(lambda s: (s, said(1, s.id, status="running")), id="a status that is none"),
        pytest.param(lambda s: (s, said(1, s.id, body=Raw(b"[]"))), id="a body that is none"),
        pytest.param(lambda s: (s, said(1, s.id, role="tool")), id="a body of somebody else"),
        pytest.param(lambda s: (s, said(1, s.id, extra=Raw(b"7"))), id="an extra that is none"),
        pytest.param(lambda s: (msgspec.structs.replace(s, edge="bridge"),), id="an edge that is none"),
        pytest.param(lambda s: (msgspec.structs.replace(s, view=Raw(b"[{}]")),), id="a view that is none"),
        pytest.param(lambda s: (msgspec.structs.replace(s, end_reason=None),), id="an end without reason"),
        pytest.param(lambda s: (msgspec.structs.replace(s, id="x"),), id="an id that is none"),
        pytest.param(
            lambda s: (msgspec.structs.replace(s, ended_at=None, end_reason=None), session(2)),
            id="an open session before the newest",
        ),
    ],
)
async def test_what_would_break_a_promise_is_refused(store: Store, wrong: Any) -> None:
    async with unchanged(store):
        with pytest.raises(BadInput):
            await store.import_part(part(*wrong(session())))


async def test_a_record_gives_everything_back(store: Store, node: Node) -> None:
    begun = await say(store, node, "one", "two", key="k")
    await store.set_title(OWNER, begun.session.conversation_id, "Kelp")
    await store.exclude(OWNER, begun.session.conversation_id, [1], "wrong")
    await store.remember(OWNER, begun.session.conversation_id, "likes kelp")
    running = await begin(store, node, "three", key="k")
    given, hanging = await store.record(OWNER, begun.session.conversation_id)
    assert (given.key, given.title, given.last_seq, given.history) == ("k", "Kelp", 3, None)
    kinds = [type(each) for each in hanging]
    assert kinds == [SessionRecord, TurnRecord, TurnRecord, ExclusionRecord, MemoryRecord]
    assert isinstance(hanging[2], TurnRecord)
    assert (hanging[2].id, hanging[2].status) == (running.turn.id, "interrupted")  # a copy does not go on
    rows = await store.message_records(given.id, first=1, last=3)
    assert [row.seq for row in rows] == [1, 2, 3]
    assert [row.seq for row in await store.message_records(given.id, first=2, last=3, limit=1)] == [2]
    assert [name for _, name in await store.conversation_ids(OWNER)] == [given.id]
    assert await store.conversation_ids(OTHER) == []


async def test_a_key_is_given_once_and_may_be_taken_from_a_conversation_that_is_named(
    store: Store, node: Node
) -> None:
    one = (await say(store, node, key="k")).session.conversation_id
    two, three = [(await say(store, node)).session.conversation_id for _ in range(2)]
    for wrong in (
        store.set_key(OWNER, two, "k"),
        store.set_key(OWNER, one, "another"),
        store.set_key(OWNER, two, "k", instead_of=three),
    ):
        with pytest.raises(Conflict):
            await wrong
    await store.set_key(OWNER, two, "k", instead_of=one)
    assert (await store.resolve(OWNER, Address(key="k"))).conversation.id == two
    assert (await store.conversation(OWNER, Address(id=one))).key is None
    await store.set_key(OWNER, two, "k")


async def test_messages_are_found_by_where_they_came_from_while_they_count(store: Store) -> None:
    first = session()
    given = part(first, said(1, first.id, origin="a:1"), said(2, first.id, origin="a:2"))
    await store.import_part(given)
    assert await store.messages_from(given.conversation.id, ["a:2", "a:3"]) == {"a:2": 2}
    await store.exclude(OWNER, given.conversation.id, [2], "undone")
    assert await store.messages_from(given.conversation.id, ["a:1", "a:2"]) == {"a:1": 1}
    assert len(await all_events(store)) == 2
