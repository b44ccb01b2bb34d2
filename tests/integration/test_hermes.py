"""Homes that the real `SessionDB` of two releases wrote, taken over into a store and looked at there."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.nodes import Node
from holdfast.domain.resets import ResetMode, ResetPolicies, ResetPolicy
from holdfast.domain.sessions import Session
from holdfast.errors import BadInput
from holdfast.importers.hermes.doctor import Examination, examine
from holdfast.importers.hermes.importer import HermesTaken as Taken
from holdfast.importers.hermes.importer import Importer
from holdfast.importers.hermes.snapshot import read_home
from holdfast.server import objects
from holdfast.store.sqlite.engine import open_store
from holdfast.store.store import Store
from holdfast.transfer.files import all_conversations, exported
from tests.contract.steps import new_node, say
from tests.hermes.homes import KEY, VERSIONS, in_memory, print_of, start, write

pytestmark = pytest.mark.slow

OWNER = "ada"


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    with in_memory() as directory:
        yield directory


@pytest.fixture(scope="module", params=VERSIONS)
def written(request: pytest.FixtureRequest, scratch: Path) -> tuple[str, Path]:
    """A version of Hermes, and a home that it wrote; nobody may change it."""
    there = scratch / f"whole-{request.param}"
    write(request.param, "whole", there)
    return request.param, there


@pytest.fixture
def hermes(written: tuple[str, Path]) -> Iterator[tuple[str, Path]]:
    """A copy of that home, for a test of its own; it is a newer Hermes' if it compacts in place."""
    version, there = written
    with in_memory() as directory:
        shutil.copytree(there, directory / "hermes")
        yield version, directory / "hermes"


@pytest.fixture
def there(hermes: tuple[str, Path]) -> Path:
    return hermes[1]


@pytest.fixture
def newer(hermes: tuple[str, Path]) -> bool:
    return hermes[0] != "0.14.0"


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    hourly = ResetPolicies(by_source={"cli": ResetPolicy(ResetMode.IDLE, timedelta(hours=1), timezone="UTC")})
    with in_memory() as directory:
        opened = await open_store(directory / "store.db", policies=hourly)
        yield opened
        assert await opened.check() == []
        await opened.close()


@pytest.fixture
async def node(store: Store) -> Node:
    return await new_node(store)


async def take(store: Store, there: Path, owner: str = OWNER) -> Taken:
    with read_home(there, UTC) as seen:
        return await Importer(store, owner, seen).run()


def look(there: Path, now: datetime | None = None) -> Examination:
    with read_home(there, UTC) as seen:
        return examine(seen, now or datetime.now(UTC))


async def named(store: Store, name: str) -> Session:
    """That very session, by the id it had in Hermes."""
    place = await store.resolve(OWNER, Address(id=name, create=False))
    assert place.addressed is not None
    return await store.session(OWNER, place.addressed)


async def line_of(store: Store, name: str) -> list[Session]:
    return await store.line(OWNER, (await named(store, name)).conversation_id)


async def said_in(store: Store, session: Session) -> list[dict[str, Any]]:
    page = await store.messages(
        OWNER, session.conversation_id, first=session.first_seq, last=session.last_seq
    )
    return [objects.message(message) for message in page.items]


async def texts(store: Store, name: str) -> list[Any]:
    return [each["content"] for each in await said_in(store, await named(store, name))]


async def context(store: Store, session: Session) -> list[Any]:
    return [each["content"] for each in (await store.context(OWNER, session.id)).messages()]


async def export(store: Store) -> list[bytes]:
    return [line async for line in exported(store, None, all_conversations(store, None))]


async def test_a_home_moves_in_whole_and_stays_as_it_was(store: Store, there: Path, newer: bool) -> None:
    before = print_of(there)
    taken = await take(store, there)
    assert print_of(there) == before
    assert taken.conversations == (7 if newer else 6)
    assert taken.sessions == taken.names == (9 if newer else 8)
    assert taken.edges == {"compaction": 2, "subagent": 1, "fork": 1}
    assert taken.unclosed == (4 if newer else 3)
    assert (taken.keys, taken.memories, taken.undone) == (1, 1, int(newer))
    assert taken.problems == ["sessions.json: the entry of 'broken' names no session"]
    assert (await store.statistics(OWNER)).messages == taken.messages == (27 if newer else 20)

    first, second, third = await line_of(store, "first")
    assert [each.id for each in (second, third)] == [
        (await named(store, name)).id for name in ("second", "third")
    ]
    assert (first.key, first.title, first.source, first.model) == (KEY, "Kelp", "telegram", "gpt-x")
    assert (first.input_tokens, first.output_tokens) == (1200, 340)
    assert [each.edge for each in (first, second, third)] == [None, "compaction", "compaction"]
    assert [each.parent_id for each in (second, third)] == [first.id, second.id]
    assert [each.end_reason for each in (first, second)] == ["hermes:compression"] * 2
    assert [each.message_count for each in (first, second, third)] == [7, 3, 2]
    assert third.end_reason == "hermes:unclosed"
    assert third.ended_at == third.last_activity_at > third.opened_at
    assert objects.time(third.ended_at) == (await said_in(store, third))[-1]["created_at"]
    assert first.opened_at.year == 2025

    delegate, branch, later = [await named(store, name) for name in ("delegate", "branch", "later")]
    assert (delegate.edge, delegate.parent_id) == ("subagent", third.id)
    assert (branch.edge, branch.parent_id) == ("fork", (await named(store, "trunk")).id)
    assert (later.edge, later.parent_id) == (None, None)
    assert len({each.conversation_id for each in (first, delegate, branch, later)}) == 4
    assert (await named(store, "empty")).message_count == 0
    assert [fork.id for fork in await store.forks(OWNER, first.conversation_id)] == [delegate.id]


async def test_what_a_message_carried_comes_with_it_and_is_not_sent(
    store: Store, there: Path, newer: bool
) -> None:
    await take(store, there)
    first = await named(store, "first")
    messages = await said_in(store, first)
    roles = ["user", "assistant", "user", "assistant", "tool", "assistant", "user"]
    assert [each["role"] for each in messages] == roles
    call, result, reply, picture = messages[3:]
    function = {"name": "look", "arguments": '{"at": "kelp"}'}
    assert call["tool_calls"] == [{"id": "call_1", "type": "function", "function": function}]
    assert (call["reasoning"], call["finish_reason"]) == ("I should look", "tool_calls")
    assert (result["tool_call_id"], result["content"]) == ("call_1", "it is brown")
    assert result["tool_name"] == "look"
    assert reply["reasoning_content"] == "now I really know"
    assert reply["reasoning_details"] == [{"type": "reasoning.text", "text": "brown"}]
    assert [part["type"] for part in picture["content"]] == ["text", "image_url"]
    assert [each["hermes"]["session"] for each in messages] == ["first"] * 7
    assert picture.get("platform_message_id") == ("tg-77" if newer else None)
    sent = (await store.context(OWNER, first.id)).messages()
    assert {name for each in sent for name in each} == {"role", "content", "tool_calls", "tool_call_id"}
    (memory,) = (await store.memories(OWNER, key=KEY)).items
    assert memory.text == "Ada likes kelp\nAda lives by the sea"


async def test_a_compacted_sessions_context_is_its_summary_and_what_follows(
    store: Store, there: Path, newer: bool
) -> None:
    await take(store, there)
    summary, *rest = await context(store, await named(store, "second"))
    assert summary.endswith("## Goal\nThe user is called Ada and asked about kelp.")
    assert "respond to the message below" not in summary
    assert rest == ["and how long does it grow?", "Up to 60 metres."]
    assert await context(store, await named(store, "third")) == ["where?", "In cold seas."]
    if newer:
        assert (await texts(store, "inplace"))[:4] == ["a", "b", "c", "d"]
        assert "never mind" not in await texts(store, "inplace")
        assert (await context(store, await named(store, "inplace")))[1:] == ["d", "e"]


async def test_twice_changes_nothing_and_a_newer_copy_adds_what_is_new(
    store: Store, node: Node, hermes: tuple[str, Path], newer: bool
) -> None:
    version, there = hermes
    await take(store, there)
    before = await export(store)
    assert not (await take(store, there)).anything
    assert await export(store) == before

    await say(store, node, "spoken here since", "indeed", id="later", owner=OWNER)
    write(version, "more", there)
    taken = await take(store, there)
    assert (taken.conversations, taken.grown) == (1, 2 if newer else 1)
    assert taken.gone_on == ["later"]
    line = await line_of(store, "first")
    assert [each.edge for each in line] == [None, "compaction", "compaction", "resume", "compaction"]
    ends = ["hermes:unclosed", "hermes:compression", "hermes:unclosed"]
    assert [each.end_reason for each in line[2:]] == ends
    assert await context(store, line[3]) == ["where?", "In cold seas.", "are there any here?", "No."]
    assert await context(store, line[4]) == ["a pity", "Indeed."]
    assert (await named(store, "fourth")).id == line[4].id
    assert (await texts(store, "later")) == ["something else"]
    if newer:
        assert (await context(store, await named(store, "inplace")))[1:] == ["d"]  # `e` was undone since
        assert "e" in await texts(store, "inplace")
    assert len(await line_of(store, "branch")) == 1  # what was said there was taken back at once
    after = await export(store)
    await take(store, there)
    assert await export(store) == after


async def test_an_imported_session_ends_for_its_policy_only_when_somebody_speaks(
    store: Store, node: Node, there: Path
) -> None:
    await take(store, there)
    assert await store.due_sessions() == []
    assert not await store.flushes_due()
    goes_on = await say(store, node, "hello again", id="first", owner=OWNER)
    assert (goes_on.session.edge, goes_on.addressed) == ("resume", (await named(store, "first")).id)
    assert (await context(store, goes_on.session))[:2] == ["where?", "In cold seas."]
    fresh = await say(store, node, "hello again", id="branch", owner=OWNER)  # of a source that is reset
    assert fresh.session.edge == "reset"
    assert await context(store, fresh.session) == ["hello again", "hi"]


async def test_what_was_deleted_here_does_not_come_back(store: Store, there: Path) -> None:
    await take(store, there)
    await store.delete_conversation(OWNER, (await named(store, "trunk")).conversation_id)
    taken = await take(store, there)
    assert (taken.deleted, taken.conversations) == (["trunk"], 0)


async def test_names_that_are_taken_here_are_left_and_told(store: Store, node: Node, there: Path) -> None:
    mine = await say(store, node, "I was here first", key=KEY, owner=OWNER)
    also = await say(store, node, "so was I", id="trunk", owner=OWNER)
    taken = await take(store, there)
    told = "\n".join(taken.problems)
    assert f"the key {KEY} was not imported: the key '{KEY}' already leads to" in told
    assert f"the id trunk already leads to {also.session.conversation_id}" in told
    assert (await store.resolve(OWNER, Address(key=KEY))).conversation.id == mine.session.conversation_id
    assert (await named(store, "first")).key is None
    assert (await named(store, "branch")).edge == "fork"


async def test_two_owners_may_take_over_the_same_home(store: Store, there: Path) -> None:
    await take(store, there)
    again = await take(store, there, "bob")
    assert again.conversations
    place = await store.resolve("bob", Address(id="first"))
    assert place.conversation.id != (await named(store, "first")).conversation_id


async def test_a_chat_that_hermes_has_reset_takes_its_key_along(
    store: Store, node: Node, there: Path
) -> None:
    await take(store, there)
    listed = json.loads((there / "sessions" / "sessions.json").read_text())
    listed[KEY]["session_id"] = "later"
    (there / "sessions" / "sessions.json").write_text(json.dumps(listed))
    connection = apsw.Connection(str(there / "state.db"))
    if connection.table_exists(None, "gateway_routing"):
        connection.execute("DELETE FROM gateway_routing")
    connection.close()
    taken = await take(store, there)
    assert taken.keys == 1
    assert (await store.resolve(OWNER, Address(key=KEY))).tip.id == (await named(store, "later")).id


async def test_what_is_strange_about_a_lineage_is_told_and_everything_comes(
    store: Store, there: Path
) -> None:
    connection = apsw.Connection(str(there / "state.db"))
    connection.execute("PRAGMA foreign_keys = OFF").fetchall()
    connection.execute(
        "UPDATE sessions SET parent_session_id = 'gone' WHERE id = 'later';"
        "UPDATE sessions SET parent_session_id = 'branch' WHERE id = 'trunk';"
        "UPDATE sessions SET parent_session_id = 'first' WHERE id = 'empty'"
    )
    connection.close()
    taken = await take(store, there)
    told = "\n".join(taken.problems)
    assert "1 session among its own ancestors; a conversation begins with it: trunk" in told
    assert "1 session without its parent, which is not there; a conversation of its own: later" in told
    assert (
        "1 session continued by several sessions; one is the continuation, the others are forks: first"
        in told
    )
    assert [each.edge for each in await line_of(store, "first")] == [None, "compaction", "compaction"]
    assert (await named(store, "empty")).edge == "fork"
    assert await texts(store, "trunk") == ["one", "two"]


async def test_the_doctor_tells_what_a_home_looks_like(there: Path, newer: bool) -> None:
    before = print_of(there)
    process = {"command": "python3 -m http.server 8765", "session_key": KEY, "started_at": 1_767_000_000.0}
    sandboxed = {**process, "pid": 7, "pid_scope": "sandbox"}
    (there / "processes.json").write_text(json.dumps([{**process, "pid": 2**22 + 1}, sandboxed]))
    (there / "config.yaml").write_text("session_reset:\n  mode: idle # so\n  idle_minutes: 120\nmodel: x\n")
    found = look(there)
    assert {name: print_ for name, print_ in print_of(there).items() if name in before} == before
    assert found.edges == {"compaction": 2, "subagent": 1, "fork": 1}
    assert list(found.stale) == ["first", "second"]
    assert found.stale_keys == [KEY]
    assert [each.state for each in found.held_open] == ["gone", "unknown"]
    assert found.repeats == [KEY]
    assert (found.rule.mode, found.rule.idle_minutes) == ("idle", 120)
    assert (found.wrong_counts, found.orphan_calls, found.repeated_rows) == (int(newer), 0, 0)
    assert found.end_reasons == {"compression": 2, "branched": 1, "cli_close": 1, "cron_complete": 1}
    soon = datetime(2025, 12, 29, 12, tzinfo=UTC)
    assert look(there, soon).repeats == []


async def test_rows_whose_mark_is_missing_count_as_said(store: Store, there: Path, newer: bool) -> None:
    connection = apsw.Connection(str(there / "state.db"))
    if newer:
        connection.execute(
            "CREATE TABLE copy AS SELECT * FROM messages; DROP TABLE messages;"
            "ALTER TABLE copy RENAME TO messages"
        )
    else:
        connection.execute("ALTER TABLE messages ADD COLUMN active INTEGER")
    connection.execute("UPDATE messages SET active = CASE session_id WHEN 'third' THEN NULL ELSE 1 END")
    connection.close()
    assert look(there).unmarked == 2
    await take(store, there)
    assert await texts(store, "third") == ["where?", "In cold seas."]
    assert await context(store, await named(store, "third")) == ["where?", "In cold seas."]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_home_is_imported_while_hermes_writes_to_it(
    store: Store, tmp_path: Path, version: str
) -> None:
    there = tmp_path / "hermes"
    writer = start(version, "living", there)
    assert writer.stdout is not None
    try:
        while int(writer.stdout.readline()) < 20:
            pass
        first = await take(store, there)
        assert writer.poll() is None
    finally:
        said, _ = writer.communicate("")
    written: int = json.loads(said.splitlines()[-1])["written"]
    assert 20 <= first.messages <= written
    rest = await take(store, there)
    assert first.messages + rest.messages == written
    kept = await store.messages(OWNER, (await named(store, "live")).conversation_id)
    assert [each.content()["content"] for each in kept.items] == [f"message {n + 1}" for n in range(written)]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        pytest.param("sessions.json", "sessions.json is damaged or half-written", id="half-written JSON"),
        pytest.param("DROP TABLE messages", "has no table messages", id="no messages"),
        pytest.param(
            "ALTER TABLE messages DROP COLUMN role", "its messages lack role", id="another program's"
        ),
    ],
)
async def test_a_damaged_home_is_refused_and_nothing_of_it_is_imported(
    store: Store, written: tuple[str, Path], tmp_path: Path, damage: str, words: str
) -> None:
    there = tmp_path / "hermes"
    shutil.copytree(written[1], there)
    if damage == "sessions.json":
        file = there / "sessions" / damage
        file.write_bytes(file.read_bytes()[:40])
    else:
        connection = apsw.Connection(str(there / "state.db"))
        for (trigger,) in connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'trigger'"
        ).fetchall():
            connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute(damage)
        connection.close()
    before = print_of(there)
    with pytest.raises(BadInput, match=f"{words}.*Nothing was imported"):
        await take(store, there)
    assert print_of(there) == before
    assert (await store.statistics(None)).conversations == 0
