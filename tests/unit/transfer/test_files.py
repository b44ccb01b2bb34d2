"""Conversations carried to a file and back: complete both ways, or refused whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.nodes import Node
from holdfast.domain.records import AttachmentRecord, Part
from holdfast.domain.recovery import NO_RECOVERY
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.turns import Delivery, NewResponse, TurnBegun, TurnFailure, TurnStatus
from holdfast.errors import BadInput, Conflict, NotFound
from holdfast.store.sqlite.engine import open_store
from holdfast.store.store import Store
from holdfast.transfer import files
from holdfast.transfer.files import Carried, FileImporter, all_conversations, exported
from tests.contract.steps import (
    OTHER,
    OWNER,
    begin,
    calling,
    draft,
    ended,
    everything,
    files_of,
    new_node,
    request,
    result,
    say,
    to_message,
    with_files,
)


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Store]:
    store = await open_store(path)
    try:
        yield store
        assert await store.check() == []
    finally:
        await store.close()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(tmp_path / "one.db") as store:
        yield store


@pytest.fixture
async def another(tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(tmp_path / "two.db") as store:
        yield store


async def export(store: Store, path: Path, owner: str | None = None) -> Path:
    lines = [line async for line in exported(store, owner, all_conversations(store, owner))]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


async def take(store: Store, path: Path, owner: str | None = None) -> Carried:
    return await FileImporter(store, path, owner).run()


async def a_life(store: Store, node: Node) -> TurnBegun:
    """A store in which everything has happened that a conversation can hold; a turn still runs."""
    old = await ended(store, node, "new", key="cli:ada")
    conversation = old.conversation_id
    await say(store, node, "look", calling("a"), result("a"), "seen", key="cli:ada")
    await store.exclude(OWNER, conversation, [1], "wrong")
    await store.delete_message(OWNER, conversation, 2)
    await store.set_title(OWNER, conversation, "Kelp ü\n")
    await store.set_metadata(OWNER, conversation, {"sea": "calm"})
    await store.add_alias(OWNER, "outside name", conversation)
    await store.remember(OWNER, conversation, "likes kelp", session_id=old.id)
    made = await store.create_conversation(OWNER, node.id, messages=[to_message(calling("a", "b"))])
    await store.reduce_message(OWNER, made.id, 1, to_message(calling("b")), [0])
    fork = await store.fork(OWNER, old.id, node.id)
    failed = await begin(store, node, "hm", id=made.id, request_key=RequestKey("/r", "k", b"h"))
    await store.settle_turn(failed.lease, TurnFailure(TurnStatus.FAILED, error="no"))
    response = NewResponse("resp_1", b'{"model": "m"}', "resp_0", True)
    asked = replace(request(node, "by response", owner=OTHER, key="o"), response=response)
    begun = await store.begin_turn(asked)
    assert isinstance(begun, TurnBegun)
    usage = {"input_tokens": 4, "output_tokens": 2}
    await store.commit_reply(begun.lease, [to_message("yes", "assistant")], usage=usage)
    await with_files(store, node, b"\x00\xffOggS", b"")
    running = await begin(store, node, "what of the tide?", id=fork.id, attached=True)
    await store.append_draft(running.lease, draft(0, "It is"))
    return running


async def test_exported_imported_and_exported_again_is_the_same_file(
    store: Store, another: Store, tmp_path: Path
) -> None:
    running = await a_life(store, await new_node(store))
    await store.settle_turn(running.lease, TurnFailure(TurnStatus.INTERRUPTED))
    first = await export(store, tmp_path / "first.jsonl")
    carried = await take(another, first)
    assert (carried.conversations, carried.there) == (5, 0)
    second = await export(another, tmp_path / "second.jsonl")
    assert second.read_bytes() == first.read_bytes()

    mine, theirs = await everything(store), await everything(another)
    for what in ("conversations", "messages", "contexts", "turns", "statistics"):
        kept = [mine[what], theirs[what]]
        if what == "conversations":
            kept = [[replace(each, revision=0, token=0) for each in side] for side in kept]
        if what == "turns":
            # What clients received is not carried: a request to another store is a new one. Nor is what a
            # server needs to take a turn up.
            kept = [
                [
                    [
                        replace(each, delivery=Delivery.WHOLE, recovery=NO_RECOVERY, why=each.error)
                        for each in turns
                    ]
                    for turns in side
                ]
                for side in kept
            ]
        assert kept[0] == kept[1], what
    assert (await another.response(OTHER, "resp_1")).previous_id == "resp_0"
    assert (await another.resolve(OWNER, Address(id="outside name"))).conversation.title == "Kelp ü\n"
    assert [each.text for each in (await another.memories(OWNER)).items] == ["likes kelp"]
    heard = (await another.resolve("phone/42", Address(key="telegram:dm:42"))).conversation.id
    here, there = [
        [(replace(file, no=0), body) for file, body in await files_of(each, heard)]
        for each in (store, another)
    ]
    assert here == there
    assert [body for _, body in there] == [b"\x00\xffOggS", b""]
    assert await another.usage("phone/42") == await store.usage("phone/42")


async def test_a_turn_that_runs_arrives_as_interrupted_and_its_conversation_goes_on(
    store: Store, another: Store, tmp_path: Path
) -> None:
    running = await a_life(store, await new_node(store))
    await take(another, await export(store, tmp_path / "x.jsonl"))
    assert (await another.turn(OWNER, running.turn.id)).status is TurnStatus.INTERRUPTED
    session = await another.session(OWNER, running.session.id)
    assert (session.ended, session.attached, session.running_turn) == (False, False, None)
    begun = await say(another, await new_node(another), "never mind", id=running.session.id)
    assert begun.session.id == running.session.id


async def test_twice_changes_nothing_also_when_it_has_gone_on(
    store: Store, another: Store, tmp_path: Path
) -> None:
    await a_life(store, await new_node(store))
    file = await export(store, tmp_path / "x.jsonl")
    await take(another, file)
    await say(another, await new_node(another), "further", key="cli:ada")
    before = await everything(another)
    carried = await take(another, file)
    assert (carried.conversations, carried.there, carried.messages) == (0, 5, 0)
    assert await everything(another) == before
    assert (await take(store, file)).there == 5  # where it came from, too


async def test_a_large_conversation_comes_in_parts_and_goes_on_after_an_interruption(
    store: Store, another: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PART_MESSAGES", 3)
    node = await new_node(store)
    for number in range(5):
        await say(store, node, f"question {number}", f"answer {number}", key="k")
    await store.end_session(OWNER, (await store.resolve(OWNER, Address(key="k"))).tip.id, "new")
    await say(store, node, "afresh", key="k")
    await store.exclude(OWNER, (await store.resolve(OWNER, Address(key="k"))).conversation.id, [3], "wrong")
    file = await export(store, tmp_path / "x.jsonl")

    class Cut(Exception):
        pass

    original, parts = another.import_part, 0

    async def twice(part: object) -> None:
        nonlocal parts
        parts += 1
        if parts > 2:
            raise Cut
        await original(part)  # type: ignore[arg-type]

    monkeypatch.setattr(another, "import_part", twice)
    with pytest.raises(Cut):
        await take(another, file)
    assert await another.check() == []
    assert (await another.resolve(OWNER, Address(key="k"))).conversation.last_seq == 6
    monkeypatch.setattr(another, "import_part", original)
    carried = await take(another, file)
    assert (carried.conversations, carried.messages) == (1, 6)
    assert (await export(another, tmp_path / "y.jsonl")).read_bytes() == file.read_bytes()
    assert (await take(another, file)).there == 1


async def test_a_conversation_deleted_during_an_export_is_left_out_and_the_file_is_valid(
    store: Store, another: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PAGE", 2)
    node = await new_node(store)
    for key in ("goes", "stays"):
        for number in range(3):
            await say(store, node, f"question {number}", f"answer {number}", key=key)
    goes = (await store.resolve(OWNER, Address(key="goes"))).conversation.id
    original = store.message_records

    async def deleted_after_a_page(conversation_id: str, *, first: int, last: int, limit: int) -> object:
        page = await original(conversation_id, first=first, last=last, limit=limit)
        if conversation_id == goes and first == 1:
            await store.delete_conversation(OWNER, goes)
        return page

    monkeypatch.setattr(store, "message_records", deleted_after_a_page)
    file = await export(store, tmp_path / "x.jsonl")
    assert goes.encode() not in file.read_bytes()
    assert (await take(another, file)).conversations == 1
    with pytest.raises(NotFound):
        await another.resolve(OWNER, Address(key="goes"))


async def test_files_come_in_parts_and_an_interrupted_import_stores_each_once(
    store: Store, another: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PART_BYTES", 1000)
    conversation = await with_files(store, await new_node(store), *(bytes([at]) * 999 for at in range(5)))
    await store.remember("phone/42", conversation, "likes kelp")
    file = await export(store, tmp_path / "x.jsonl")
    original, sizes = another.import_part, list[int]()

    async def cut(part: Part) -> None:
        if len(sizes) == 2:
            raise ConnectionError
        sizes.append(sum(len(each.body) for each in part.records if isinstance(each, AttachmentRecord)))
        await original(part)

    monkeypatch.setattr(another, "import_part", cut)
    with pytest.raises(ConnectionError):
        await take(another, file)
    assert sizes == [999, 1998], "the first part has the messages too"
    assert await another.check() == []
    monkeypatch.setattr(another, "import_part", original)
    await take(another, file)
    assert (await export(another, tmp_path / "y.jsonl")).read_bytes() == file.read_bytes()
    assert (await take(another, file)).there == 1


async def test_an_import_that_misses_files_is_not_taken_for_a_whole_one(
    store: Store, another: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PART_BYTES", 1000)
    await with_files(store, await new_node(store), b"x" * 999, b"y" * 999, b"z")
    file = await export(store, tmp_path / "x.jsonl")
    original = another.import_part

    async def first_only(part: Part) -> None:
        if part.expected is not None:
            raise ConnectionError
        await original(part)

    monkeypatch.setattr(another, "import_part", first_only)
    with pytest.raises(ConnectionError):
        await take(another, file)
    monkeypatch.setattr(another, "import_part", original)
    await say(another, await new_node(another), "on", key="telegram:dm:42", owner="phone/42")
    with pytest.raises(Conflict, match="is there already and is not the one of"):
        await take(another, file)


async def test_a_file_of_another_conversation_is_never_taken(
    store: Store, another: Store, tmp_path: Path
) -> None:
    await with_files(store, await new_node(store), b"mine")
    lines = (await export(store, tmp_path / "x.jsonl")).read_bytes()
    theirs = await with_files(another, await new_node(another), b"theirs")
    ((taken, _),) = await files_of(another, theirs)
    (mine,) = [line for line in lines.splitlines() if b'"attachment"' in line]
    wrong = msgspec.json.encode({**msgspec.json.decode(mine), "id": taken.id})
    file = tmp_path / "y.jsonl"
    file.write_bytes(lines.replace(mine, wrong))
    with pytest.raises(Conflict, match="in another conversation"):
        await take(another, file, "carol")
    assert [body for _, body in await files_of(another, theirs)] == [b"theirs"]


async def test_somebody_elses_names_are_refused_and_nothing_is_imported(
    store: Store, another: Store, tmp_path: Path
) -> None:
    await a_life(store, await new_node(store))
    file = await export(store, tmp_path / "x.jsonl")
    node = await new_node(another)
    await say(another, node, "mine", key="cli:ada")
    before = await everything(another)
    with pytest.raises(Conflict, match=r"the key 'cli:ada' of conv_.* already leads to"):
        await take(another, file)
    assert await everything(another) == before
    carried = await take(another, file, "carol")
    assert carried.conversations == 5
    assert (await another.resolve("carol", Address(key="cli:ada"))).conversation.title == "Kelp ü\n"
    with pytest.raises(NotFound):
        await another.response(OTHER, "resp_1")


@pytest.mark.parametrize("what", ["key", "name"])
async def test_two_owners_of_one_name_are_not_imported_as_one_owner(
    store: Store, another: Store, tmp_path: Path, what: str
) -> None:
    node = await new_node(store)
    for owner in (OWNER, OTHER):
        begun = await say(store, node, "hello", owner=owner, key="cli:main" if what == "key" else None)
        if what == "name":
            await store.add_alias(owner, "cli:main", begun.session.conversation_id)
    file = await export(store, tmp_path / "x.jsonl")
    with pytest.raises(Conflict, match=f"the {what} 'cli:main' would lead to conv_.* Nothing was imported"):
        await take(another, file, "carol")
    assert (await another.statistics(None)).conversations == 0
    assert (await take(another, file)).conversations == 2


async def test_another_conversation_of_the_same_id_is_refused(
    store: Store, another: Store, tmp_path: Path
) -> None:
    node = await new_node(store)
    begun = await say(store, node, "one", key="k")
    old = await export(store, tmp_path / "old.jsonl")
    await take(another, old)
    await say(store, node, "two", id=begun.session.id)
    newer = await export(store, tmp_path / "new.jsonl")
    before = await everything(another)
    with pytest.raises(Conflict, match="is there already and is not the one of"):
        await take(another, newer)
    assert await everything(another) == before


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        pytest.param(lambda lines: lines[:-1], "was cut off", id="no end"),
        pytest.param(lambda lines: [*lines[:4], lines[4][:30]], "line 5 cannot be read", id="half a line"),
        pytest.param(lambda lines: lines[1:], "not a holdfast export", id="no beginning"),
        pytest.param(lambda lines: [*lines, lines[2]], "data after its end", id="more than the end"),
        pytest.param(lambda lines: [*lines[:-2], lines[-1]], "1 of its 2 messages", id="a message missing"),
        pytest.param(
            lambda lines: [lines[0], *lines[2:]], "belongs to no conversation", id="no conversation"
        ),
        pytest.param(lambda lines: [b'{"record":"holdfast","format":9}'], "format 9", id="another format"),
        pytest.param(lambda lines: [b'{"record":"pirate"}'], "not a holdfast export", id="another record"),
        pytest.param(lambda lines: [b"\xff\xfe"], "line 1 cannot be read", id="no text"),
        pytest.param(lambda lines: [], "was cut off", id="empty"),
    ],
)
async def test_a_damaged_file_is_refused_whole(
    store: Store, another: Store, tmp_path: Path, harm: object, words: str
) -> None:
    await say(store, await new_node(store), "one", "two")
    file = await export(store, tmp_path / "x.jsonl")
    assert callable(harm)
    file.write_bytes(b"".join(line + b"\n" for line in harm(file.read_bytes().splitlines())))
    with pytest.raises(BadInput, match=words):
        await take(another, file)
    assert (await another.statistics(None)).conversations == 0


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b'"role":"assistant","status"', b'"role":"pirate","status"', "message 2 is 'pirate'"),
        (b'"source":"api"', b'"source":""', "a source must not be empty"),
        (b'"status":"completed","node_id"', b'"status":"queued","node_id"', "is 'queued'"),
        (b'"edge":null', b'"edge":"tunnel"', "'tunnel' is not an edge"),
    ],
)
async def test_what_cannot_be_stored_of_a_later_conversation_is_found_before_the_first_is_imported(
    store: Store, another: Store, tmp_path: Path, old: bytes, new: bytes, words: str
) -> None:
    node = await new_node(store)
    for _ in range(2):
        await say(store, node, "one", "two")
    file = await export(store, tmp_path / "x.jsonl")
    before, found, after = file.read_bytes().rpartition(old)
    assert found
    file.write_bytes(before + new + after)
    with pytest.raises(BadInput, match=words):
        await take(another, file)
    assert (await another.statistics(None)).conversations == 0


@pytest.mark.parametrize(
    ("record", "field", "value", "words"),
    [
        ("conversation", "created_at", "9999-12-31T23:59:59-12:00", "not a time"),
        ("session", "opened_at", "0001-01-01T00:00:00+14:00", "not a time"),
        ("session", "last_activity_at", "2026-01-01T00:00:00", "not a time"),
        ("turn", "ended_at", "9999-12-31T23:59:59-12:00", "not a time"),
        ("message", "created_at", "9999-12-31T23:59:59-12:00", "not a time"),
        ("turn", "session_id", "sess_other", "belongs to no session"),
        ("message", "body", None, "has no body"),
    ],
)
async def test_what_no_reader_could_read_back_is_refused(
    store: Store, another: Store, tmp_path: Path, record: str, field: str, value: object, words: str
) -> None:
    """One such row would break every list and export that it is in."""
    await say(store, await new_node(store), "one", key="k")
    file = await export(store, tmp_path / "a.jsonl")
    lines = [msgspec.json.decode(each) for each in file.read_bytes().splitlines()]
    next(each for each in lines if each["record"] == record)[field] = value
    file.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in lines))
    with pytest.raises(BadInput, match=words):
        await take(another, file)
    assert (await another.statistics(None)).conversations == 0


async def test_a_file_that_is_none_is_refused(another: Store, tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.jsonl", tmp_path):
        with pytest.raises(BadInput):
            await take(another, path)


async def test_each_line_is_one_json_object_that_a_person_can_read(store: Store, tmp_path: Path) -> None:
    await say(store, await new_node(store), "my name is Ada", key="cli:ada")
    lines = [
        msgspec.json.decode(line) for line in (await export(store, tmp_path / "x")).read_bytes().splitlines()
    ]
    assert [line["record"] for line in lines] == [
        *("holdfast", "conversation", "session", "turn", "message", "message", "end")
    ]
    assert lines[4]["body"] == {"role": "user", "content": "my name is Ada"}
    assert lines[4]["created_at"].endswith("Z")
    assert lines[-1] == {"record": "end", "conversations": 1, "messages": 2}
