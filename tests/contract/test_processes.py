"""Processes: a row before the start, one end, one supervisor; bound to their session and owner."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from holdfast.domain.ids import new_id
from holdfast.domain.nodes import Identity, Node
from holdfast.domain.processes import Process, ProcessState, Sighting
from holdfast.errors import BadInput, Conflict, NotFound
from holdfast.os_support import identity
from holdfast.store.store import Store
from tests.contract.steps import OTHER, OWNER, Clock, all_events, ended, new_node, reap, say, unchanged

HERE = identity()


async def session(store: Store, node: Node, key: str = "a", owner: str = OWNER) -> str:
    return (await say(store, node, key=key, owner=owner)).session.id


async def add(store: Store, node: Node, session_id: str, owner: str = OWNER, **changes: Any) -> Process:
    new = Process(
        id=new_id("proc"),
        owner=owner,
        conversation_id="",
        session_id=session_id,
        identity=replace(HERE, pid=0, pid_start=""),
        command="sleep 100",
        cwd="/tmp",
        state=ProcessState.STARTING,
        started_at=store.now(),
        supervisor=node.id,
    )
    return await store.add_process(replace(new, **changes))


def who(pid: int = 552, machine: Identity = HERE) -> Identity:
    return replace(machine, pid=pid, pid_start=f"start of {pid}")


async def run(store: Store, node: Node, session_id: str, pid: int = 552, **changes: Any) -> Process:
    added = await add(store, node, session_id, **changes)
    assert await store.process_started(added.id, who(pid), shim_pid=pid - 1, shim_start="earlier")
    return await store.process(None, added.id)


async def told_of(store: Store, process: Process) -> list[tuple[str, dict[str, Any]]]:
    return [
        (event.type, {name: value for name, value in event.data.items() if name != "process"})
        for event in await all_events(store)
        if event.data.get("process") == process.id
    ]


# --- beginning and ending ------------------------------------------------------------------------------


async def test_a_process_is_known_before_it_is_started(store: Store, node: Node, clock: Clock) -> None:
    begun_at = clock.move(seconds=1)
    sess = await session(store, node)
    added = await add(store, node, sess)
    assert (added.state, added.pid, added.session_id, added.supervisor) == ("starting", None, sess, node.id)
    assert (added.started_at, added.last_active_at, added.ended) == (begun_at, begun_at, False)
    assert await store.process(OWNER, added.id) == added
    assert added.conversation_id == (await store.session(OWNER, sess)).conversation_id
    assert await store.process_started(added.id, who(), shim_pid=551, shim_start="earlier")
    running = await store.process(OWNER, added.id)
    assert (running.state, running.identity, running.shim_pid, running.shim_start) == (
        "running",
        who(),
        551,
        "earlier",
    )
    assert not await store.process_started(added.id, who(999)), "once"
    assert await told_of(store, added) == [
        ("process.started", {"pid": 552, "host": HERE.host, "watched": False})
    ]


async def test_a_process_ends_once(store: Store, node: Node, clock: Clock) -> None:
    process = await run(store, node, await session(store, node))
    ended_at = clock.move(seconds=9)
    clock.move(seconds=100)
    assert await store.end_process(process.id, ProcessState.EXITED, exit_code=3, at=ended_at)
    over = await store.process(OWNER, process.id)
    assert (over.state, over.exit_code, over.ended_at) == ("exited", 3, ended_at)
    assert not await store.end_process(process.id, ProcessState.LOST, why="too late")
    assert not await store.process_finished(process.id, 4)
    assert await store.process(OWNER, process.id) == over
    assert (await told_of(store, process))[1:] == [("process.ended", {"state": "exited", "exit_code": 3})]


async def test_an_end_is_never_before_the_beginning(store: Store, node: Node, clock: Clock) -> None:
    process = await run(store, node, await session(store, node))
    await store.end_process(process.id, ProcessState.EXITED, exit_code=0, at=clock.now - timedelta(hours=1))
    assert (await store.process(OWNER, process.id)).ended_at == process.started_at


async def test_the_exit_code_may_be_known_before_everything_has_ended(store: Store, node: Node) -> None:
    process = await run(store, node, await session(store, node))
    assert await store.process_finished(process.id, 4)
    left = await store.process(OWNER, process.id)
    assert (left.state, left.exit_code, left.finished, left.ended) == ("running", 4, True, False)
    await store.end_process(process.id, ProcessState.STOPPED)
    assert (await store.process(OWNER, process.id)).exit_code == 4


async def test_a_process_may_come_to_nothing_before_it_ran(store: Store, node: Node) -> None:
    process = await add(store, node, await session(store, node))
    assert await store.end_process(process.id, ProcessState.LOST, why="its shim did not start")
    assert await told_of(store, process) == [("process.lost", {"why": "its shim did not start"})]


async def test_an_ended_session_starts_nothing(store: Store, node: Node) -> None:
    over, sess = await ended(store, node, key="a"), await session(store, node, "b")
    async with unchanged(store):
        with pytest.raises(Conflict, match="has ended"):
            await add(store, node, over.id)
        for command in ("", "  ", "echo \x00", "x" * 200_000):
            with pytest.raises(BadInput, match="a command"):
                await add(store, node, sess, command=command)


# --- samples -------------------------------------------------------------------------------------------


async def test_a_sample_is_noted_and_never_moves_the_sessions_clock(
    store: Store, node: Node, clock: Clock
) -> None:
    sess = await session(store, node)
    one, other = await run(store, node, sess, 552), await run(store, node, sess, 562)
    before = await store.session(OWNER, sess)
    at = clock.move(seconds=30)
    await store.sample_processes([Sighting(one.id, "it used the CPU", False), Sighting(other.id, None, True)])
    busy, idle = await store.process(OWNER, one.id), await store.process(OWNER, other.id)
    assert (busy.last_active_at, busy.activity, busy.sampled_at) == (at, "it used the CPU", at)
    assert (idle.last_active_at, idle.activity, idle.listening) == (
        other.last_active_at,
        other.activity,
        True,
    )
    assert idle.sampled_at == at
    later = clock.move(seconds=30)
    await store.sample_processes([Sighting(one.id, None, False)])
    quiet = await store.process(OWNER, one.id)
    assert (quiet.last_active_at, quiet.activity, quiet.sampled_at) == (at, "it used the CPU", later)
    assert await store.session(OWNER, sess) == before


async def test_nothing_is_noted_of_what_has_ended(store: Store, node: Node, clock: Clock) -> None:
    process = await run(store, node, await session(store, node))
    await store.end_process(process.id, ProcessState.EXITED, exit_code=0)
    over = await store.process(OWNER, process.id)
    clock.move(seconds=1)
    await store.sample_processes(
        [Sighting(process.id, "it used the CPU", False), Sighting("proc_no", None, False)]
    )
    assert await store.process(OWNER, process.id) == over


# --- stops and pins ------------------------------------------------------------------------------------


async def test_a_stop_is_a_wish_that_stays(store: Store, node: Node, clock: Clock) -> None:
    process = await run(store, node, await session(store, node))
    at = clock.move(seconds=1)
    asked = await store.request_stop(OWNER, process.id, "a person asked")
    assert (asked.stop_requested_at, asked.stop_reason, asked.stopping) == (at, "a person asked", True)
    clock.move(seconds=1)
    assert await store.request_stop(OWNER, process.id, "again") == asked
    assert (await told_of(store, process))[1:] == [("process.stopping", {"reason": "a person asked"})]
    await store.end_process(process.id, ProcessState.STOPPED, exit_code=-15)
    over = await store.request_stop(OWNER, process.id, "too late")
    assert (over.state, over.stopping, over.stop_reason) == ("stopped", False, "a person asked")


async def test_a_whole_conversation_is_stopped_at_once(store: Store, node: Node) -> None:
    sess = await session(store, node)
    conversation = (await store.session(OWNER, sess)).conversation_id
    older, newer = await run(store, node, sess, 552), await run(store, node, sess, 562)
    watched = await run(store, node, sess, 572, watched=True, may_stop=False)
    over = await run(store, node, sess, 582)
    await store.end_process(over.id, ProcessState.EXITED, exit_code=0)
    elsewhere = await run(store, node, await session(store, node, "b"), 592)
    stopped = await store.request_stops(OWNER, conversation, "reset")
    assert [each.id for each in stopped] == [older.id, newer.id]
    for each in (older, newer):
        assert (await store.process(OWNER, each.id)).stop_reason == "reset"
    for each in (watched, over, elsewhere):
        assert (await store.process(OWNER, each.id)).stop_requested_at is None
    with pytest.raises(NotFound):
        await store.request_stops(OTHER, conversation, "reset")


async def test_what_is_only_watched_is_not_stopped(store: Store, node: Node) -> None:
    process = await run(store, node, await session(store, node), watched=True, may_stop=False)
    async with unchanged(store):
        with pytest.raises(Conflict, match="only watched"):
            await store.request_stop(OWNER, process.id, "a person asked")


async def test_a_pin_lasts_until_it_says_or_is_taken_off(store: Store, node: Node, clock: Clock) -> None:
    process = await run(store, node, await session(store, node))
    until = clock.now + timedelta(hours=2)
    assert (await store.pin_process(OWNER, process.id, until)).pinned_until == until
    assert (await store.pin_process(OWNER, process.id, None)).pinned_until is None
    assert [data["until"] for _, data in (await told_of(store, process))[1:]] == [until.isoformat(), None]
    await store.end_process(process.id, ProcessState.EXITED, exit_code=0)
    with pytest.raises(Conflict, match="has ended"):
        await store.pin_process(OWNER, process.id, until)


# --- supervisors ---------------------------------------------------------------------------------------


async def test_a_process_is_claimed_by_one_of_two(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    process = await run(store, node, await session(store, node))
    third = await new_node(store)
    await reap(store, node)
    assert await second_store.claim_process(process.id, second_node.id, node.id)
    assert not await store.claim_process(process.id, third.id, node.id), "the other was quicker"
    assert (await store.process(OWNER, process.id)).supervisor == second_node.id
    assert (await told_of(store, process))[1:] == [("process.adopted", {"node": second_node.id})]


async def test_a_node_that_is_gone_and_a_process_that_has_ended_are_not_brought_together(
    store: Store, node: Node, second_node: Node
) -> None:
    process = await run(store, node, await session(store, node))
    await reap(store, second_node)
    assert not await store.claim_process(process.id, second_node.id, node.id)
    await store.end_process(process.id, ProcessState.EXITED, exit_code=0)
    third = await new_node(store)
    assert not await store.claim_process(process.id, third.id, node.id)
    assert not await store.claim_process("proc_unknown", third.id, None)


async def test_a_machine_is_asked_for_by_its_id_or_its_boot_never_by_its_name(
    store: Store, node: Node
) -> None:
    sess = await session(store, node)
    here = await run(store, node, sess)
    before = replace(HERE, boot_id="an earlier boot", pid=0, pid_start="")
    restarted = await add(store, node, sess, identity=before)
    renamed = await add(store, node, sess, identity=replace(HERE, host="renamed", pid=0, pid_start=""))
    elsewhere = replace(before, boot_id="their boot", machine="another machine of this name")
    far = await add(store, node, sess, identity=elsewhere)
    over = await run(store, node, sess, 562)
    await store.end_process(over.id, ProcessState.EXITED, exit_code=0)
    assert [each.id for each in await store.unended_processes(HERE)] == [here.id, restarted.id, renamed.id]
    assert [each.id for each in await store.unended_processes(elsewhere)] == [far.id]


# --- lists ---------------------------------------------------------------------------------------------


async def test_processes_are_listed_newest_first_page_by_page(store: Store, node: Node) -> None:
    sess, other = await session(store, node), await session(store, node, "b")
    made = [await run(store, node, (sess, other)[n % 2], 500 + n) for n in range(5)]
    await store.end_process(made[2].id, ProcessState.EXITED, exit_code=0)
    newest = [each.id for each in reversed(made)]
    page = await store.processes(OWNER, limit=2)
    assert ([each.id for each in page.items], page.has_more) == (newest[:2], True)
    rest = await store.processes(OWNER, after=newest[1], limit=3)
    assert ([each.id for each in rest.items], rest.has_more) == (newest[2:], False)
    of_session = await store.processes(OWNER, session_id=sess)
    assert [each.id for each in of_session.items] == [made[4].id, made[2].id, made[0].id]
    conversation = (await store.session(OWNER, other)).conversation_id
    of_other = await store.processes(OWNER, conversation_id=conversation)
    assert [each.id for each in of_other.items] == [made[3].id, made[1].id]
    running = await store.processes(OWNER, session_id=sess, running=True)
    assert [each.id for each in running.items] == [made[4].id, made[0].id]
    over = await store.processes(None, running=False)
    assert [each.id for each in over.items] == [made[2].id]


async def test_another_owners_process_is_like_one_that_never_existed(store: Store, node: Node) -> None:
    theirs = await run(store, node, await session(store, node, "a", OTHER), owner=OTHER)
    mine = await run(store, node, await session(store, node), 562)
    assert [each.id for each in (await store.processes(OWNER)).items] == [mine.id]
    assert (await store.processes(OWNER, session_id=theirs.session_id)).items == []
    assert [each.id for each in (await store.processes(None)).items] == [mine.id, theirs.id]
    async with unchanged(store):
        for unknown in (theirs.id, "proc_never"):
            for ask in (
                store.process(OWNER, unknown),
                store.processes(OWNER, after=unknown),
                store.request_stop(OWNER, unknown, "x"),
                store.pin_process(OWNER, unknown, None),
            ):
                with pytest.raises(NotFound, match=f"^no process '{unknown}'$"):
                    await ask
        with pytest.raises(NotFound):
            await add(store, node, theirs.session_id)


# --- forgetting ----------------------------------------------------------------------------------------


async def test_a_deleted_conversation_has_its_processes_stopped_before_they_are_forgotten(
    store: Store, node: Node
) -> None:
    sess = await session(store, node)
    running, over = await run(store, node, sess), await run(store, node, sess, 562)
    watched = await run(store, node, sess, 572, watched=True, may_stop=False)
    await store.end_process(over.id, ProcessState.EXITED, exit_code=0)
    await store.delete_conversation(OWNER, running.conversation_id)
    (left,) = await store.unended_processes(HERE)
    assert (left.id, left.stop_reason) == (running.id, "its conversation was deleted")
    assert await store.unknown_processes([running.id, over.id, watched.id]) == [over.id, watched.id]
    assert await store.end_process(running.id, ProcessState.STOPPED, exit_code=-15)
    assert await store.unknown_processes([running.id]) == [running.id]
    assert await told_of(store, running) == []
    deleted = [each for each in await all_events(store) if each.conversation_id == running.conversation_id]
    assert [each.type for each in deleted] == ["conversation.deleted"]


async def test_processes_that_ended_long_ago_are_dropped_oldest_first(
    store: Store, node: Node, clock: Clock
) -> None:
    sess = await session(store, node)
    made = [await run(store, node, sess, 500 + n) for n in range(4)]
    for process in made[:3]:
        clock.move(hours=1)
        await store.end_process(process.id, ProcessState.EXITED, exit_code=0)
    before = clock.now
    assert await store.prune_processes(before, limit=1) == [made[0].id]
    assert await store.prune_processes(before) == [made[1].id]
    assert await store.prune_processes(before) == []
    assert [each.id for each in (await store.processes(OWNER)).items] == [made[3].id, made[2].id]
