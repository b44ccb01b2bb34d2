"""Backups, checks, repairs, closing."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.domain.api_keys import ApiKey, RateLimits, Scope, new_key
from holdfast.domain.attachments import FileRef
from holdfast.domain.checkpoints import NewCheckpoint
from holdfast.domain.compaction import Claim, CompactionFailure, CompactionStats, Trigger
from holdfast.domain.connectors import Batch, ConnectorClaim, ConnectorHealth, Incoming, Place, PlaceKind
from holdfast.domain.conversations import Address
from holdfast.domain.flushes import Flush, FlushState
from holdfast.domain.ids import new_id
from holdfast.domain.items import PutItem
from holdfast.domain.nodes import Node, NodeKind
from holdfast.domain.processes import Process, ProcessState
from holdfast.domain.records import Part
from holdfast.domain.session_messages import Named
from holdfast.domain.turns import Delivery, TurnBegun, TurnFailure, TurnRequest, TurnStatus
from holdfast.domain.views import View
from holdfast.errors import BadInput, HoldfastError, StoreClosed
from holdfast.os_support import identity
from holdfast.store.engine import Engine
from holdfast.store.store import Store
from holdfast.store.values import Retention, SessionFilter, StorePolicy
from tests.contract.conftest import CopyOpener
from tests.contract.steps import (
    OTHER,
    OWNER,
    Clock,
    begin,
    calling,
    draft,
    ended,
    everything,
    files_of,
    new_node,
    only_sqlite,
    reap,
    request,
    result,
    say,
    sweep,
    to_message,
    with_files,
)
from tests.contract.test_importing import part as a_part
from tests.contract.test_importing import said as was_said
from tests.contract.test_importing import session as a_session


async def a_little_of_everything(store: Store, node: Node) -> TurnBegun:
    """A store in the middle of its life; returns a running turn."""
    old = await ended(store, node, "new", key="cli:ada")
    await say(store, node, "look", calling("a"), result("a"), "seen", key="cli:ada")
    await store.exclude(OWNER, old.conversation_id, [1], "wrong")
    await store.delete_message(OWNER, old.conversation_id, 2)
    await store.set_title(OWNER, old.conversation_id, "Kelp")
    await store.set_metadata(OWNER, old.conversation_id, {"sea": "calm"})
    made = await store.create_conversation(OWNER, node.id, messages=[to_message(calling("a", "b"))])
    await store.reduce_message(OWNER, made.id, 1, to_message(calling("b")), [0])
    await store.add_alias(OWNER, "outside name", old.conversation_id)
    fork = await store.fork(OWNER, old.id, node.id)
    await say(store, node, owner=OTHER)
    begun = await begin(store, node, "what of the tide?", id=fork.id)
    await store.append_draft(begun.lease, draft(0, "It is"))
    return begun


@only_sqlite
async def test_a_backup_opens_as_a_store_with_the_same_content(
    store: Store, node: Node, tmp_path: Path, open_copy: CopyOpener
) -> None:
    begun = await a_little_of_everything(store, node)
    chat = await with_files(store, node, b"\x00OggS")
    target = tmp_path / "copy.db"
    await store.backup(target)
    before = await everything(store)
    copy = await open_copy(target)
    assert await everything(copy) == before
    assert await copy.check() == []
    assert [hit.message.seq for hit in await copy.search(OWNER, "tide")] == [1]
    place = await copy.resolve(OWNER, Address(id="outside name"))
    assert place.conversation.title == "Kelp"
    assert (await copy.turn(OWNER, begun.turn.id)).status is TurnStatus.RUNNING
    assert await files_of(copy, chat) == await files_of(store, chat) != []


@only_sqlite
async def test_a_backup_lives_a_life_of_its_own(
    store: Store, node: Node, tmp_path: Path, open_copy: CopyOpener
) -> None:
    await a_little_of_everything(store, node)
    await store.backup(tmp_path / "copy.db")
    copy = await open_copy(tmp_path / "copy.db")
    before, copied = await everything(store), await everything(copy)
    await reap(copy, node)
    await sweep(copy)
    await say(copy, await new_node(copy), "only here", id="outside name")
    assert await everything(store) == before
    assert await store.search(OWNER, "only here") == []
    assert await everything(copy) != copied


async def test_a_backup_never_overwrites(store: Store, node: Node, tmp_path: Path) -> None:
    target = tmp_path / "precious.db"
    target.write_text("precious")
    with pytest.raises(BadInput):
        await store.backup(target)
    assert target.read_text() == "precious"
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadInput):
        await store.backup(tmp_path / "folder")
    await say(store, node)


async def test_a_backup_that_cannot_be_written_leaves_nothing_and_harms_nothing(
    store: Store, node: Node, tmp_path: Path
) -> None:
    (tmp_path / "a file").write_text("x")
    for target in (tmp_path / "missing" / "copy.db", tmp_path / "a file" / "copy.db"):
        before = sorted(path for path in tmp_path.rglob("*") if "copy" in path.name)
        with pytest.raises(HoldfastError):
            await store.backup(target)
        assert sorted(path for path in tmp_path.rglob("*") if "copy" in path.name) == before
    await say(store, node)


@only_sqlite
async def test_a_backup_goes_on_while_everything_goes_on(
    store: Store, node: Node, tmp_path: Path, open_copy: CopyOpener
) -> None:
    async def speak() -> None:
        for _ in range(10):
            await say(store, node)

    await asyncio.gather(speak(), store.backup(tmp_path / "copy.db"), speak())
    copy = await open_copy(tmp_path / "copy.db")
    assert await copy.check() == []
    assert (await copy.statistics(None)).messages <= 40
    assert (await store.statistics(None)).messages == 40


async def test_a_healthy_store_has_no_findings_and_says_what_it_looked_at(store: Store, node: Node) -> None:
    await a_little_of_everything(store, node)
    assert await store.check() == []
    invariants = store.invariants()
    assert len(invariants) > 5
    assert all(invariants)


async def test_a_clock_that_jumps_breaks_no_invariant(store: Store, node: Node, clock: Clock) -> None:
    begun = await begin(store, node)
    clock.move(hours=-24)
    await store.commit_reply(begun.lease, [to_message("hi", "assistant")])
    await store.end_session(OWNER, begun.session.id, "closed")
    again = await begin(store, node, id=begun.session.id)
    clock.move(hours=-24)
    await store.settle_turn(again.lease, TurnFailure(TurnStatus.FAILED))
    assert await store.check() == []


async def test_a_repair_of_a_healthy_store_changes_nothing_that_is_said(store: Store, node: Node) -> None:
    await a_little_of_everything(store, node)
    before = await everything(store)
    done = await store.repair()
    assert all(isinstance(sentence, str) for sentence in done)
    assert await everything(store) == before
    assert [hit.message.seq for hit in await store.search(OWNER, "tide")] == [1]


# --- closing ---------------------------------------------------------------------------------------


async def test_what_was_accepted_is_finished_before_closing(
    store: Store, node: Node, second_store: Store
) -> None:
    begun = await begin(store, node)
    appends = [
        asyncio.create_task(store.append(begun.lease, [to_message(str(n), "assistant")])) for n in range(50)
    ]
    await asyncio.sleep(0)
    await store.close()
    assert await asyncio.gather(*appends) == list(range(2, 52))
    assert (await second_store.statistics(OWNER)).messages == 51


async def test_closing_twice_is_closing_once(store: Store, node: Node) -> None:
    await store.close()
    await store.close()


async def test_what_is_closed_can_be_opened_again_with_all_it_held(
    store: Store, node: Node, second_store: Store
) -> None:
    await a_little_of_everything(store, node)
    before = await everything(store)
    await store.close()
    assert await everything(second_store) == before


def a_key(store: Store) -> tuple[ApiKey, bytes]:
    key, token = new_key(OWNER, Scope.CHAT, ["search"], store.now())
    return key, token.hash


def a_process(store: Store, begun: TurnBegun) -> Process:
    return Process(
        id="proc_1",
        owner=OWNER,
        conversation_id=begun.session.conversation_id,
        session_id=begun.session.id,
        identity=identity(),
        command="sleep 1",
        cwd="/",
        state=ProcessState.STARTING,
        started_at=store.now(),
        supervisor=begun.lease.node_id,
    )


def a_flush(store: Store, begun: TurnBegun) -> Flush:
    session, now = begun.session, store.now()
    who = (session.id, session.conversation_id, OWNER, None, "new", FlushState.RUNNING)
    return Flush(*who, 0, 1, 1, 0, None, begun.lease.node_id, 1, None, now, None)


def a_checkpoint() -> NewCheckpoint:
    return NewCheckpoint("", "1", None, None, "json", "{}", b"late")


def an_import() -> Part:
    session = a_session()
    return a_part(session, was_said(1, session.id))


def a_claim(begun: TurnBegun) -> Claim:
    return Claim(begun.session.conversation_id, begun.session.id, OWNER, begun.lease.node_id, 1)


Verb = Callable[[Store, TurnBegun, Path], Awaitable[object]]

PHONE = ConnectorClaim("phone", 1, None)
A_PLACE = Place("place_1", "phone", "dm:42", PlaceKind.DIRECT, OWNER, "telegram:dm:42", None, False, False)

VERBS: dict[str, Verb] = {
    "resolve": lambda s, b, _: s.resolve(OWNER, Address(id=b.session.id)),
    "session": lambda s, b, _: s.session(OWNER, b.session.id),
    "sessions": lambda s, b, _: s.sessions(SessionFilter(OWNER)),
    "conversation": lambda s, b, _: s.conversation(OWNER, Address(id=b.session.id)),
    "conversations": lambda s, b, _: s.conversations(OWNER),
    "aliases": lambda s, b, _: s.aliases(OWNER, b.session.conversation_id),
    "store_id": lambda s, b, _: s.store_id(),
    "line": lambda s, b, _: s.line(OWNER, b.session.conversation_id),
    "forks": lambda s, b, _: s.forks(OWNER, b.session.conversation_id),
    "messages": lambda s, b, _: s.messages(OWNER, b.session.conversation_id),
    "context": lambda s, b, _: s.context(OWNER, b.session.id),
    "turn": lambda s, b, _: s.turn(OWNER, b.turn.id),
    "turns": lambda s, b, _: s.turns(OWNER, b.session.conversation_id),
    "turn_messages": lambda s, b, _: s.turn_messages(b.turn.id),
    "drafts": lambda s, b, _: s.drafts(b.turn.id),
    "events": lambda s, b, _: s.events(owner=None),
    "search": lambda s, b, _: s.search(OWNER, "hello"),
    "search_page": lambda s, b, _: s.search_page(OWNER, "hello"),
    "statistics": lambda s, b, _: s.statistics(None),
    "usage": lambda s, b, _: s.usage(None),
    "policy": lambda s, b, _: s.policy(),
    "record_policy": lambda s, b, _: s.record_policy(NodeKind.SERVER, StorePolicy(), b.lease.node_id),
    "note_deliveries": lambda s, b, _: s.note_deliveries({b.turn.id: Delivery.WHOLE}),
    "note_suspected_window": lambda s, b, _: s.note_suspected_window(
        b.session, None, reported=1, given=2, reports=3, window=8192
    ),
    "add_login": lambda s, b, _: s.add_login(b"hash", "key_1", timedelta(days=1), 50),
    "login": lambda s, b, _: s.login(b"hash"),
    "end_login": lambda s, b, _: s.end_login(b"hash"),
    "open_session": lambda s, b, _: s.open_session(OWNER, Address(), b.lease.node_id),
    "end_session": lambda s, b, _: s.end_session(OWNER, b.session.id, "closed"),
    "resume_session": lambda s, b, _: s.resume_session(OWNER, b.session.id, b.lease.node_id),
    "fork": lambda s, b, _: s.fork(OWNER, b.session.id, b.lease.node_id),
    "create_conversation": lambda s, b, _: s.create_conversation(OWNER, b.lease.node_id),
    "add_messages": lambda s, b, _: s.add_messages(
        OWNER, b.session.conversation_id, b.lease.node_id, [to_message("late")]
    ),
    "set_metadata": lambda s, b, _: s.set_metadata(OWNER, b.session.conversation_id, {"sea": "calm"}),
    "ids_like": lambda s, b, _: s.ids_like(OWNER, "sess_0000"),
    "headings": lambda s, b, _: s.headings([b.session.conversation_id]),
    "sums_of_conversations": lambda s, b, _: s.sums_of_conversations([b.session.conversation_id]),
    "words_of_sessions": lambda s, b, _: s.words_of_sessions([b.session.id]),
    "suggest_title": lambda s, b, _: s.suggest_title("default", "conv_1", "x"),
    "set_title": lambda s, b, _: s.set_title(OWNER, b.session.conversation_id, "Kelp"),
    "note_side_request": lambda s, b, _: s.note_side_request(OWNER, "late", "title", {}),
    "side_requests": lambda s, b, _: s.side_requests(OWNER, b.session.conversation_id),
    "count_side_requests": lambda s, b, _: s.count_side_requests(OWNER, b.session.conversation_id),
    "add_alias": lambda s, b, _: s.add_alias(OWNER, "kelp", b.session.conversation_id),
    "exclude": lambda s, b, _: s.exclude(OWNER, b.session.conversation_id, [1], "wrong"),
    "delete_message": lambda s, b, _: s.delete_message(OWNER, b.session.conversation_id, 1),
    "reduce_message": lambda s, b, _: s.reduce_message(OWNER, b.session.conversation_id, 1, to_message("he")),
    "delete_conversation": lambda s, b, _: s.delete_conversation(OWNER, b.session.conversation_id),
    "append": lambda s, b, _: s.append(b.lease, [to_message("late", "assistant")]),
    "append_draft": lambda s, b, _: s.append_draft(b.lease, draft(0, "late")),
    "commit_reply": lambda s, b, _: s.commit_reply(b.lease),
    "settle_turn": lambda s, b, _: s.settle_turn(b.lease, TurnFailure(TurnStatus.FAILED)),
    "cancel_turn": lambda s, b, _: s.cancel_turn(OWNER, b.turn.id, TurnStatus.CANCELLED, "stop"),
    "join": lambda s, b, _: s.join(Node(new_id("node"), NodeKind.CLI, identity())),
    "beat": lambda s, b, _: s.beat(b.lease.node_id),
    "leave": lambda s, b, _: s.leave(b.lease.node_id, "closed"),
    "nodes": lambda s, b, _: s.nodes(),
    "turns_by_node": lambda s, b, _: s.turns_by_node(),
    "probe": lambda s, b, _: s.probe([]),
    "reap": lambda s, b, _: s.reap(b.lease.node_id, 0, "late"),
    "leftovers": lambda s, b, _: s.leftovers(),
    "settle_conversation": lambda s, b, _: s.settle_conversation(b.session.conversation_id),
    "reap_session": lambda s, b, _: s.reap_session(b.session.id),
    "settle_node": lambda s, b, _: s.settle_node(b.lease.node_id),
    "prune": lambda s, b, _: s.prune(Retention(timedelta(1), timedelta(1), timedelta(1))),
    "add_key": lambda s, b, _: s.add_key(*a_key(s)),
    "key": lambda s, b, _: s.key("key_1"),
    "keys": lambda s, b, _: s.keys(None),
    "revoke_key": lambda s, b, _: s.revoke_key("key_1", None),
    "note_key_uses": lambda s, b, _: s.note_key_uses({"key_1": s.now()}),
    "count_request": lambda s, b, _: s.count_request("key_1", RateLimits(requests_per_day=1)),
    "spend_tokens": lambda s, b, _: s.spend_tokens("key_1", 1),
    "visible": lambda s, b, _: s.visible(None, b.session.conversation_id),
    "conversations_with_history": lambda s, b, _: s.conversations_with_history("default", b""),
    "due_turns": lambda s, b, _: s.due_turns(),
    "waiting_turns": lambda s, b, _: s.waiting_turns(None),
    "running_turns": lambda s, b, _: s.running_turns(None),
    "retry_turn": lambda s, b, _: s.retry_turn(None, b.turn.id),
    "count_waiting": lambda s, b, _: s.count_waiting(),
    "give_up_turn": lambda s, b, _: s.give_up_turn(b.turn.id, "no"),
    "stored_request": lambda s, b, _: s.stored_request(None, b.turn.id),
    "turn_answer": lambda s, b, _: s.turn_answer(b.turn.id),
    "response": lambda s, b, _: s.response(None, "resp_1"),
    "delete_response": lambda s, b, _: s.delete_response("default", "resp_1"),
    "last_number": lambda s, b, _: s.last_number(b.turn.id),
    "held": lambda s, b, _: s.held(b.lease.node_id),
    "add_notice": lambda s, b, _: s.add_notice("default", b.session.conversation_id, "reset", "told"),
    "notices": lambda s, b, _: s.notices(None),
    "undelivered": lambda s, b, _: s.undelivered(b.session.conversation_id),
    "deliver_notice": lambda s, b, _: s.deliver_notice(None, "note_1"),
    "deliver_notices": lambda s, b, _: s.deliver_notices(None),
    "notice_deliveries": lambda s, b, _: s.notice_deliveries(["note_1"]),
    "newest_notices": lambda s, b, _: s.newest_notices(None),
    "alive": lambda s, b, _: s.alive(None),
    "ended_since": lambda s, b, _: s.ended_since(None, s.now()),
    "resets_waiting": lambda s, b, _: s.resets_waiting(None),
    "turns_ended": lambda s, b, _: s.turns_ended(None, s.now()),
    "figures": lambda s, b, _: s.figures(),
    "event_bounds": lambda s, b, _: s.event_bounds(),
    "note_reading": lambda s, b, _: s.note_reading("default", "key_1"),
    "due_sessions": lambda s, b, _: s.due_sessions(),
    "reset_session": lambda s, b, _: s.reset_session(b.session.id),
    "history": lambda s, b, _: s.history(None, b.session.id),
    "notices_to_send": lambda s, b, _: s.notices_to_send(),
    "claim_notices": lambda s, b, _: s.claim_notices(1, timedelta(1), timedelta(1)),
    "notice_sent": lambda s, b, _: s.notice_sent("note_1"),
    "notice_unsent": lambda s, b, _: s.notice_unsent("note_1", timedelta(1)),
    "judge_session": lambda s, b, _: s.judge_session(None, b.session.id),
    "date_sessions": lambda s, b, _: s.date_sessions(),
    "add_process": lambda s, b, _: s.add_process(a_process(s, b)),
    "process_started": lambda s, b, _: s.process_started("proc_1", identity()),
    "sample_processes": lambda s, b, _: s.sample_processes([]),
    "process_finished": lambda s, b, _: s.process_finished("proc_1", 0),
    "end_process": lambda s, b, _: s.end_process("proc_1", ProcessState.LOST),
    "request_stop": lambda s, b, _: s.request_stop(None, "proc_1", "late"),
    "request_stops": lambda s, b, _: s.request_stops(None, b.session.conversation_id, "late"),
    "pin_process": lambda s, b, _: s.pin_process(None, "proc_1", None),
    "claim_process": lambda s, b, _: s.claim_process("proc_1", b.lease.node_id, None),
    "process": lambda s, b, _: s.process(None, "proc_1"),
    "processes": lambda s, b, _: s.processes(None),
    "unended_processes": lambda s, b, _: s.unended_processes(identity()),
    "report": lambda s, b, _: s.report(b.session.conversation_id),
    "outline": lambda s, b, _: s.outline(OWNER, b.session.id),
    "claim_compaction": lambda s, b, _: s.claim_compaction(
        b.session.id, b.lease.node_id, timedelta(1), why=Trigger.BY_HAND, tokens=1, window=1
    ),
    "compact": lambda s, b, _: s.compact(
        a_claim(b), View.fresh(0), 0, CompactionStats(Trigger.BY_HAND, 2, 1, 1), lease=b.lease
    ),
    "give_up_compaction": lambda s, b, _: s.give_up_compaction(
        a_claim(b), CompactionFailure.BUSY, Trigger.BY_HAND
    ),
    "unknown_processes": lambda s, b, _: s.unknown_processes(["proc_1"]),
    "prune_processes": lambda s, b, _: s.prune_processes(s.now()),
    "conversation_ids": lambda s, b, _: s.conversation_ids(None),
    "record": lambda s, b, _: s.record(None, b.session.conversation_id),
    "message_records": lambda s, b, _: s.message_records(b.session.conversation_id, first=1, last=1),
    "imported": lambda s, b, _: s.imported(OWNER, "hermes", ["x"]),
    "import_part": lambda s, b, _: s.import_part(an_import()),
    "messages_from": lambda s, b, _: s.messages_from(b.session.conversation_id, ["x"]),
    "set_key": lambda s, b, _: s.set_key(OWNER, b.session.conversation_id, "k"),
    "flushes_due": lambda s, b, _: s.flushes_due(),
    "claim_flushes": lambda s, b, _: s.claim_flushes(b.lease.node_id, together=1, per_minute=1),
    "flush_input": lambda s, b, _: s.flush_input(b.session.id),
    "finish_flush": lambda s, b, _: s.finish_flush(a_flush(s, b), "late"),
    "fail_flush": lambda s, b, _: s.fail_flush(a_flush(s, b), "late", None),
    "release_flush": lambda s, b, _: s.release_flush(a_flush(s, b)),
    "release_flushes": lambda s, b, _: s.release_flushes(b.lease.node_id, keep=()),
    "flush": lambda s, b, _: s.flush(None, b.session.id),
    "flushes_of": lambda s, b, _: s.flushes_of([b.session.id]),
    "flushes": lambda s, b, _: s.flushes(None),
    "retry_flush": lambda s, b, _: s.retry_flush(None, b.session.id),
    "retry_flushes": lambda s, b, _: s.retry_flushes(None),
    "skip_flush": lambda s, b, _: s.skip_flush(None, b.session.id, "late"),
    "skip_flushes": lambda s, b, _: s.skip_flushes(None, s.now(), "late"),
    "flush_figures": lambda s, b, _: s.flush_figures(),
    "memories": lambda s, b, _: s.memories(None),
    "memory": lambda s, b, _: s.memory(None, "mem_1"),
    "remember": lambda s, b, _: s.remember(OWNER, b.session.conversation_id, "late"),
    "edit_memory": lambda s, b, _: s.edit_memory(None, "mem_1", "late"),
    "forget_memory": lambda s, b, _: s.forget_memory(None, "mem_1"),
    "in_context": lambda s, b, _: s.in_context(OWNER, Address(id=b.session.id)),
    "bodies_in_context": lambda s, b, _: s.bodies_in_context(OWNER, Address(id=b.session.id)),
    "append_named": lambda s, b, _: s.append_named(
        OWNER, b.session.conversation_id, b.lease.node_id, [Named(to_message("late"), "late")]
    ),
    "append_with_items": lambda s, b, _: s.append_with_items(
        OWNER, b.session.conversation_id, b.lease.node_id, [Named(to_message("late"))], [], lambda _: []
    ),
    "remove_last": lambda s, b, _: s.remove_last(OWNER, b.session.conversation_id, 1),
    "replace_messages": lambda s, b, _: s.replace_messages(
        OWNER, b.session.conversation_id, b.lease.node_id, since=1, messages=[]
    ),
    "enqueue_turn": lambda s, b, _: s.enqueue_turn(
        TurnRequest("turn_late", OWNER, b.lease.node_id, Address(key="k"), (to_message("late"),)), most=1
    ),
    "edit_queued": lambda s, b, _: s.edit_queued(OWNER, b.turn.id, [to_message("late")]),
    "withdraw_refused": lambda s, b, _: s.withdraw_refused(b.lease),
    "withdraw_queued": lambda s, b, _: s.withdraw_queued(OWNER, b.turn.id, "late"),
    "withdraw_queue": lambda s, b, _: s.withdraw_queue(OWNER, b.session.conversation_id, "late"),
    "take_steering": lambda s, b, _: s.take_steering(b.lease),
    "has_steering": lambda s, b, _: s.has_steering(b.session.conversation_id),
    "queue_heads": lambda s, b, _: s.queue_heads(),
    "count_queued": lambda s, b, _: s.count_queued(),
    "queued_turns": lambda s, b, _: s.queued_turns(OWNER),
    "queue": lambda s, b, _: s.queue(OWNER, b.session.conversation_id),
    "replace_results": lambda s, b, _: s.replace_results(b.lease, [], []),
    "rewind": lambda s, b, _: s.rewind(OWNER, b.session.conversation_id, 1),
    "newest_turn": lambda s, b, _: s.newest_turn(OWNER, b.session.conversation_id),
    "state": lambda s, b, _: s.state(OWNER, b.session.conversation_id),
    "update_state": lambda s, b, _: s.update_state(OWNER, b.session.conversation_id, {"late": 1}),
    "put_items": lambda s, b, _: s.put_items(OWNER, [PutItem("test", "a", "x", "1")]),
    "item": lambda s, b, _: s.item(OWNER, "test", "a", "x"),
    "refresh_items": lambda s, b, _: s.refresh_items(OWNER, "test", [("a", "x")]),
    "items_under": lambda s, b, _: s.items_under(OWNER, "test", "a"),
    "item_namespaces": lambda s, b, _: s.item_namespaces(OWNER, "test"),
    "drop_expired_items": lambda s, b, _: s.drop_expired_items(1),
    "put_checkpoint": lambda s, b, _: s.put_checkpoint(OWNER, "t", "graph", b.lease.node_id, a_checkpoint()),
    "put_checkpoint_writes": lambda s, b, _: s.put_checkpoint_writes(OWNER, "t", "graph", "", "1", []),
    "checkpoint": lambda s, b, _: s.checkpoint(OWNER, "t", "", None),
    "checkpoints": lambda s, b, _: s.checkpoints(OWNER, None, None),
    "copy_checkpoints": lambda s, b, _: s.copy_checkpoints(OWNER, "t", "u", b.lease.node_id),
    "delete_checkpoints": lambda s, b, _: s.delete_checkpoints(OWNER, "t", [("", "1")]),
    "delete_checkpoints_of_runs": lambda s, b, _: s.delete_checkpoints_of_runs(OWNER, ["r"]),
    "claim_connector": lambda s, b, _: s.claim_connector("phone", "telegram", b.lease.node_id),
    "release_connector": lambda s, b, _: s.release_connector(PHONE),
    "note_connector": lambda s, b, _: s.note_connector(PHONE, ConnectorHealth.UP),
    "connector_states": lambda s, b, _: s.connector_states(),
    "receive": lambda s, b, _: s.receive("phone", [], []),
    "waiting_places": lambda s, b, _: s.waiting_places("phone"),
    "take_messages": lambda s, b, _: s.take_messages(PHONE, "place_1", "turn_1", "telegram", timedelta(0)),
    "urgent_commands": lambda s, b, _: s.urgent_commands("phone"),
    "newer_messages": lambda s, b, _: s.newer_messages("phone", "place_1"),
    "assign_turn": lambda s, b, _: s.assign_turn(PHONE, Batch(A_PLACE, (), "x"), b.turn.id),
    "settle_messages": lambda s, b, _: s.settle_messages(PHONE, Batch(A_PLACE, (), "turn_1")),
    "postpone_messages": lambda s, b, _: s.postpone_messages(PHONE, Batch(A_PLACE, (), "x"), timedelta(1)),
    "place_of": lambda s, b, _: s.place_of("place_1"),
    "places_of": lambda s, b, _: s.places_of(None),
    "set_home": lambda s, b, _: s.set_home("telegram:dm:42"),
    "clear_home": lambda s, b, _: s.clear_home(),
    "new_link": lambda s, b, _: s.new_link(OWNER, b.session.conversation_id, "AAAA-BBBB"),
    "link_place": lambda s, b, _: s.link_place("place_1", "AAAA-BBBB", hears_all=False),
    "unlink_place": lambda s, b, _: s.unlink_place("place_1"),
    "ask_pairing": lambda s, b, _: s.ask_pairing("phone", Incoming("1", "dm:42", "k", "42", ""), "AAAA-BBBB"),
    "approve_pairing": lambda s, b, _: s.approve_pairing("AAAA-BBBB"),
    "revoke_pairing": lambda s, b, _: s.revoke_pairing("pair_1"),
    "pairings": lambda s, b, _: s.pairings(),
    "steering_messages": lambda s, b, _: s.steering_messages(PHONE, A_PLACE.id, "turn_1"),
    "add_attachment": lambda s, b, _: s.add_attachment(
        PHONE, Batch(A_PLACE, (), "t"), "m 0", FileRef("f"), b"x"
    ),
    "stored_attachments": lambda s, b, _: s.stored_attachments(b.turn.id),
    "attachment": lambda s, b, _: s.attachment(None, "att_1"),
    "attachments": lambda s, b, _: s.attachments(None, b.session.conversation_id),
    "deliver_reply": lambda s, b, _: s.deliver_reply(PHONE, b.session.conversation_id, b.turn.id),
    "grow_delivery": lambda s, b, _: s.grow_delivery(PHONE, A_PLACE, b.turn.id, None),
    "stop_growing": lambda s, b, _: s.stop_growing(PHONE, "dlv_1", "late"),
    "claim_deliveries": lambda s, b, _: s.claim_deliveries(PHONE),
    "next_delivery": lambda s, b, _: s.next_delivery("phone"),
    "note_parts": lambda s, b, _: s.note_parts(PHONE, "dlv_1", []),
    "delivery_sent": lambda s, b, _: s.delivery_sent(PHONE, "dlv_1", []),
    "delivery_failed": lambda s, b, _: s.delivery_failed(PHONE, "dlv_1", 1, "late"),
    "retry_delivery": lambda s, b, _: s.retry_delivery(None, "dlv_1"),
    "delivery": lambda s, b, _: s.delivery(None, "dlv_1"),
    "deliveries": lambda s, b, _: s.deliveries(None),
    "changed": lambda s, b, _: s.changed(0, 0),
    "backup": lambda s, b, tmp_path: s.backup(tmp_path / "copy.db"),
    "check": lambda s, b, _: s.check(),
    "repair": lambda s, b, _: s.repair(),
}


async def test_a_closed_store_says_so_whatever_it_is_asked(
    store: Store, node: Node, second_store: Store, tmp_path: Path
) -> None:
    begun = await begin(store, node)
    await store.close()
    before = await everything(second_store)
    otherwise = {}
    with pytest.raises(StoreClosed):
        await store.begin_turn(request(node))
    with pytest.raises(StoreClosed):
        store.version()
    for name, verb in VERBS.items():
        try:
            otherwise[name] = await verb(store, begun, tmp_path)
        except StoreClosed:
            continue
        except Exception as error:
            otherwise[name] = error
    assert otherwise == {}
    assert await everything(second_store) == before
    assert not (tmp_path / "copy.db").exists()


def test_every_method_of_the_store_is_on_that_list() -> None:
    others = {"location", "close", "begin_turn", "version", "start_indexing", "invariants", "now", "failure"}
    others |= {"blocking", "paused"}  # the same methods; does not use the store
    verbs = {name for part in (Store, Engine) for name in vars(part) if not name.startswith("_")}
    assert verbs == {*VERBS, *others}
