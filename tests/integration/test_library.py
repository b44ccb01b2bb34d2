"""The library's front door, as a program uses it."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pydoc
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessage

import holdfast
import holdfast.errors
from holdfast import sync
from holdfast.domain.conversations import Address
from holdfast.domain.nodes import Liveness
from holdfast.domain.turns import TurnStatus
from holdfast.store.sqlite.engine import SQLiteStore
from holdfast.store.values import SessionFilter


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'agent.db'}"


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages]


async def test_the_contracts_own_example(url: str) -> None:
    async with holdfast.open(url) as hf:
        session = await hf.session(key="cli:ada")
        async with session.turn("my name is Ada", request_id="m1") as turn:
            assert await turn.context() == [{"role": "user", "content": "my name is Ada"}]
            await turn.draft("Hello A")
            await turn.append({"role": "assistant", "content": "Hello Ada"})
        stored = await hf.store.session(None, session.id)
        assert stored.attached and stored.node_id == hf.node_id
    async with holdfast.open(url) as hf:
        again = await hf.session(key="cli:ada")
        assert again.id != session.id and again.conversation_id == session.conversation_id
        assert texts(await again.context()) == ["my name is Ada", "Hello Ada"]
        assert (await hf.store.session(None, session.id)).end_reason == "closed"


async def test_an_exception_marks_the_turn_failed_and_keeps_what_was_said(url: str) -> None:
    async with holdfast.open(url) as hf:
        session = await hf.session("k")
        with pytest.raises(ZeroDivisionError):
            async with session.turn("divide") as turn:
                await turn.draft("The result is")
                _ = 1 / 0
        (stored,) = await hf.store.turns(None, session.conversation_id)
        assert stored.status is TurnStatus.FAILED and "division" in (stored.error or "")
        assert [m.status for m in await session.messages()] == ["completed", "interrupted"]
        failed = [event for event in await hf.events() if event.type == "turn.failed"]
        assert failed[0].data == {"code": "ZeroDivisionError"}, "no text of an error goes into events"


async def test_a_cancelled_task_interrupts_its_turn(url: str) -> None:
    async with holdfast.open(url) as hf:
        session = await hf.session("k")

        async def answer() -> None:
            async with session.turn("hello") as turn:
                await turn.draft("I was")
                await asyncio.sleep(60)

        task = asyncio.create_task(answer())
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (stored,) = await hf.store.turns(None, session.conversation_id)
        assert stored.status is TurnStatus.INTERRUPTED
        async with session.turn("go on", wait_seconds=0) as turn:
            assert texts(await turn.context())[1].startswith("I was\n\n[This reply was interrupted")


async def test_a_repeated_request_is_one_turn_and_leaves_the_handle_where_it_is(url: str) -> None:
    async with holdfast.open(url) as hf:
        session = await hf.session("k")
        async with session.turn("hi", request_id="m1") as turn:
            await turn.append("hello")
        await session.end()
        async with session.turn("more") as turn:
            await turn.append("sure")
        newest = session.id
        async with session.turn("hi", request_id="m1") as turn:
            assert turn.repeated and await turn.reply() == {"role": "assistant", "content": "hello"}
            await turn.draft("not stored")
            await turn.append("not stored either")
        assert session.id == newest
        assert [m.content()["content"] for m in await session.messages("conversation")] == [
            "hi",
            "hello",
            "more",
            "sure",
        ]
        with pytest.raises(holdfast.RequestMismatch):
            async with session.turn("something else", request_id="m1"):
                pass


async def test_a_failed_request_is_taken_up_again_by_its_retry(url: str) -> None:
    async with holdfast.open(url) as hf:
        session = await hf.session("k")
        with pytest.raises(RuntimeError):
            async with session.turn("hi", request_id="m1") as turn:
                await turn.draft("half an ans")
                raise RuntimeError("the model fell over")
        async with session.turn("hi", request_id="m1") as turn:
            assert turn.taken_up and not turn.repeated
            assert await turn.reply() is None
            assert texts(await turn.context()) == ["hi"], "the partial reply has left the context"
            await turn.draft("a whole")
            await turn.append("a whole answer")
        assert texts(await session.context()) == ["hi", "a whole answer"]
        assert len(await session.messages()) == 3, "the partial reply stays readable"


async def test_drafts_take_the_whole_text_and_may_start_over(url: str) -> None:
    async with holdfast.open(url) as hf:
        session = await hf.session("k")
        with pytest.raises(RuntimeError):
            async with session.turn("hi") as turn:
                for text in ("On", "Once", "No: twice", "No: twice upon"):
                    await turn.draft(text)
                raise RuntimeError
        assert (await session.messages())[-1].content()["content"] == "No: twice upon"


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_draft_whose_write_was_cancelled_or_failed_does_not_stop_the_next(
    url: str, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    async with holdfast.open(url) as hf:
        session, write = await hf.session("k"), hf.store.append_draft

        async def cancelled(*arguments: Any) -> None:
            if is_stored:
                await write(*arguments)
            raise asyncio.CancelledError

        with pytest.raises(ZeroDivisionError):
            async with session.turn("hello") as turn:
                await turn.draft("I")
                monkeypatch.setattr(hf.store, "append_draft", cancelled)
                with pytest.raises(asyncio.CancelledError):
                    await turn.draft("I was")
                monkeypatch.setattr(hf.store, "append_draft", write)
                await turn.draft("I was saying")
                _ = 1 / 0
        assert texts([each.content() for each in await session.messages()]) == ["hello", "I was saying"]


async def test_a_turn_that_is_complete_does_not_fail_because_its_context_cannot_be_measured(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def model(messages: Any, purpose: str) -> str:
        return "a summary"

    async def unreadable(*_: Any) -> Any:
        raise holdfast.errors.StoreBusy("no thread for a read")

    async with holdfast.open(url, model=model) as hf:
        session = await hf.session("k")
        async with session.turn("hello") as turn:
            await turn.append("hi")
            monkeypatch.setattr(hf.store, "context", unreadable)
        assert (await hf.store.turn(None, turn.id)).status is TurnStatus.COMPLETED


async def test_a_program_that_is_cancelled_while_it_opens_its_store_leaves_nothing_open(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens, is_open, go_on = SQLiteStore.__init__, threading.Event(), threading.Event()

    def slowly(store: SQLiteStore, *arguments: Any, **more: Any) -> None:
        opens(store, *arguments, **more)
        is_open.set()
        go_on.wait(60)

    def writers() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "holdfast-writer"}

    before = writers()
    monkeypatch.setattr(SQLiteStore, "__init__", slowly)
    starting = asyncio.create_task(holdfast.open(url).start())
    await asyncio.to_thread(is_open.wait, 60)
    starting.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert writers() == before


async def test_ending_inside_a_turn_waits_for_its_end(url: str) -> None:
    async with holdfast.open(url) as hf:
        session = await hf.session("k")
        async with session.turn("bye") as turn:
            await session.end("completed")
            await turn.append("bye bye")
        stored = await hf.store.session(None, session.id)
        assert (stored.end_reason, stored.message_count) == ("completed", 2)


async def test_two_tasks_with_one_session_take_turns(url: str) -> None:
    async with holdfast.open(url) as hf:
        session = await hf.session("k")

        async def say(number: int) -> None:
            async with session.turn(f"question {number}") as turn:
                await asyncio.sleep(0.01)
                await turn.append(f"answer {number}")

        await asyncio.gather(*(say(number) for number in range(8)))
        said = texts(await session.context())
        assert [text.split()[1] for text in said[::2]] == [text.split()[1] for text in said[1::2]]
        await session.end()
        assert (await hf.store.session(None, session.id)).end_reason == "closed"


async def test_a_nested_turn_is_refused_at_once(url: str) -> None:
    async with holdfast.open(url) as hf:
        session = await hf.session("k")
        async with session.turn("outer"):
            with pytest.raises(holdfast.NestedTurn):
                async with session.turn("inner", wait_seconds=60):
                    pass


async def test_a_task_that_outlives_the_turn_it_was_started_in_is_not_in_it(url: str) -> None:
    async with holdfast.open(url) as hf:
        session, go_on = await hf.session("k"), asyncio.Event()

        async def later() -> None:
            await go_on.wait()
            async with session.turn("of the task", wait_seconds=60) as turn:
                await turn.append("fine")
            await session.end()

        async with session.turn("first"):
            task = asyncio.create_task(later())
            await asyncio.sleep(0)
        async with session.turn("second"):
            go_on.set()
            await hf.store.changed(hf.store.version(), 0.2)  # it waits for this turn
            assert not task.done()
        async with asyncio.timeout(60):
            await task
        assert (await hf.store.session(None, session.id)).end_reason == "closed"


async def test_another_nodes_turn_detaches_a_session_which_then_outlives_its_program(url: str) -> None:
    async with holdfast.open(url) as other:
        async with holdfast.open(url) as hf:
            session = await hf.session("k")
            theirs = await other.session("k")
            assert theirs.id == session.id
            async with theirs.turn("from elsewhere") as turn:
                await turn.append("noted")
        stored = await other.store.session(None, session.id)
        assert not stored.ended and not stored.attached
    # and the node that spoke last does not end it either: it was never attached to it
    async with holdfast.open(url) as hf:
        assert not (await hf.store.session(None, session.id)).ended


async def test_a_detached_session_stays_open(url: str) -> None:
    async with holdfast.open(url) as hf:
        session = await hf.session("api:1", attached=False)
    async with holdfast.open(url) as hf:
        assert (await hf.session("api:1", attached=False)).id == session.id


async def test_events_can_be_listed_iterated_and_followed(url: str) -> None:
    async with holdfast.open(url) as hf:
        session = await hf.session("k")
        listed = await hf.events()
        assert [event.type for event in listed] == ["conversation.opened", "session.opened"]
        assert [event async for event in hf.events(after=listed[0].id)] == listed[1:]

        async def first_new() -> str:
            async for event in hf.events(after=listed[-1].id, follow=True):
                return event.type
            raise AssertionError("a followed feed never ends")

        waiting = asyncio.create_task(first_new())
        async with session.turn("hi"):
            pass
        assert await asyncio.wait_for(waiting, 60) == "turn.started"


def test_the_blocking_door_is_the_same_door(url: str) -> None:
    with holdfast.open_sync(url) as hf:
        session = hf.session("k")
        with session.turn("hello", request_id="m1") as turn:
            assert turn.context() == [{"role": "user", "content": "hello"}]
            turn.draft("hi th")
            with pytest.raises(holdfast.NestedTurn), session.turn("inner"):
                pass
            turn.append("hi there")
        forked = session.fork(key="other")
        assert forked.context() == session.context()
        with session.turn("bye") as turn:
            session.end("completed")
            turn.append("bye bye")
        types = [event.type for event in hf.events()]
        assert types.count("turn.completed") == 2 and "conversation.forked" in types
    hf.close()
    with pytest.raises(holdfast.StoreClosed):
        hf.session("k")


def _child_uses_the_parents(hf: holdfast.BlockingHoldfast, answers: Any) -> None:
    try:
        hf._inner.store  # noqa: B018 - it exists, but must not be used
        asyncio.run(hf._inner.store.statistics(None))
    except holdfast.StoreClosed as error:
        answers.put(str(error))
    try:
        hf.session("k")
    except holdfast.StoreClosed as error:
        answers.put(str(error))
    hf.close()


def test_a_forked_child_cannot_use_its_parents_store_and_does_not_end_its_sessions(url: str) -> None:
    context = multiprocessing.get_context("fork")
    with holdfast.open_sync(url) as hf:
        session = hf.session("k")
        answers = context.Queue()
        child = context.Process(target=_child_uses_the_parents, args=(hf, answers))
        child.start()
        assert "forked" in answers.get(timeout=60)
        assert "opened in another process" in answers.get(timeout=60)
        child.join(10)
        assert child.exitcode == 0
        with session.turn("still here") as turn:
            turn.append("of course")


async def test_settings_of_a_program_are_checked_like_those_of_a_file(url: str) -> None:
    with pytest.raises(
        holdfast.BadSetting, match=r"there is no setting lease.stale_second; did you mean lease.stale_seconds"
    ):
        holdfast.open(url, settings={"lease": {"stale_second": 3}})
    with pytest.raises(holdfast.BadSetting, match=r"there is no section \[lease.stale_seconds\]"):
        holdfast.open(url, settings={"lease.stale_seconds": 3})
    with pytest.raises(holdfast.BadSetting, match=r"\[lease\] must be a table of settings, not 3"):
        holdfast.open(url, settings={"lease": 3})
    with pytest.raises(holdfast.BadSetting, match="must be above 0"):
        holdfast.open(url, settings={"lease": {"heartbeat_seconds": -1}})
    with pytest.raises(holdfast.BadSetting, match="no store engine"):
        async with holdfast.open("mysql://x/y"):
            pass


async def test_a_dead_programs_session_is_continued_not_taken_over(url: str, tmp_path: Path) -> None:
    """Also without a sweep: opening the key notices that its owner is dead."""
    pid = os.fork()
    if pid == 0:
        holdfast.open_sync(url).session("k")
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    async with holdfast.open(url, sweep=False) as hf:
        (dead,) = (await hf.store.sessions(SessionFilter(None))).items
        (node,) = [node for node in await hf.store.nodes() if node.id != hf.node_id]
        assert (await hf.store.probe([node]))[node.id][0] is Liveness.DEAD
        session = await hf.session("k")
        assert session.id != dead.id
        assert (await hf.store.session(None, dead.id)).end_reason == "reaped"


async def test_a_backup_is_finished_while_somebody_writes_without_pause(url: str, tmp_path: Path) -> None:
    async with holdfast.open(url) as hf:
        session = await hf.session("k")
        async with session.turn("hi") as turn:
            for _ in range(40):
                await turn.append([{"role": "assistant", "content": "x" * 100_000}] * 3)
        done = asyncio.Event()

        async def write() -> int:
            number = 0
            while not done.is_set():
                async with session.turn("more") as turn:
                    await turn.append("and more")
                number += 1
            return number

        writing = asyncio.create_task(write())
        await asyncio.wait_for(hf.store.backup(tmp_path / "copy.db"), 60)
        done.set()
        assert await writing > 0
    async with holdfast.open(f"sqlite:///{tmp_path / 'copy.db'}") as copy:
        assert await copy.store.check() == []


async def test_after_a_restore_a_search_finds_what_is_there_again(url: str, tmp_path: Path) -> None:
    database, copy = tmp_path / "agent.db", tmp_path / "copy.db"
    async with holdfast.open(url) as hf:
        session = await hf.session("k")
        async with session.turn("the heliotrope"):
            pass
        await hf.store.backup(copy)
        assert len(await hf.store.search("default", "heliotrope")) == 1
        await hf.store.delete_message(None, session.conversation_id, 1)
        assert await hf.store.search("default", "heliotrope") == []
    copy.replace(database)  # nothing runs: a restore
    async with holdfast.open(url) as hf:
        assert len(await hf.store.search("default", "heliotrope")) == 1


async def test_deleting_a_reply_deletes_the_checkpoints_that_led_up_to_it(url: str) -> None:
    async with holdfast.open(url) as hf:
        session = await hf.session("k")
        async with session.turn("hi") as turn:
            await turn.draft("a secr")
            await turn.append("a secret")
        await hf.store.delete_message(None, session.conversation_id, 2)
        assert await hf.store.drafts(turn.id) == []
        place = await hf.store.resolve(None, Address(key="k"))
        assert place.conversation.last_seq == 2


# --- usage -------------------------------------------------------------------------------------------------


class SdkUsage:
    """As the official SDK's: no mapping, but it can be dumped."""

    def __init__(self, **figures: Any) -> None:
        self._figures = figures

    def model_dump(self) -> dict[str, Any]:
        return self._figures


class Plain:
    def __init__(self) -> None:
        self.input_tokens, self.output_tokens = 4, 2


async def test_an_sdks_usage_is_taken_and_adds_up_over_the_calls_of_a_turn(url: str) -> None:
    async with holdfast.open(url) as hf:
        session = await hf.session("k")
        async with session.turn("hello") as turn:
            turn.usage = SdkUsage(
                prompt_tokens=10, completion_tokens=3, total_tokens=13, prompt_tokens_details={"cached": 2}
            )
            turn.usage = Plain()
            turn.usage = {"prompt_tokens": 1}
            await turn.append("hi")
        stored = await hf.store.turn(None, turn.id)
        assert stored.status is TurnStatus.COMPLETED
        assert stored.usage == {"prompt_tokens": 15, "completion_tokens": 5, "total_tokens": 13}
        assert (await hf.store.session(None, session.id)).input_tokens == 15


@pytest.mark.parametrize("usage", [object(), 7, "many", ["a"], {"prompt_tokens": "x"}, {"prompt_tokens": -1}])
async def test_figures_that_make_no_sense_are_dropped_and_the_turn_stays(
    url: str, usage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with holdfast.open(url) as hf:
        session = await hf.session("k")
        async with session.turn("hello") as turn:
            turn.usage = usage
            await turn.append("hi")
        stored = await hf.store.turn(None, turn.id)
    assert (stored.status, stored.usage or {}) == (TurnStatus.COMPLETED, {})


async def test_usage_may_be_filled_in_place(url: str) -> None:
    async with holdfast.open(url) as hf:
        session = await hf.session("k")
        async with session.turn("hello") as turn:
            turn.usage["input_tokens"] = 5
            turn.usage["output_tokens"] = "bad"  # type: ignore[assignment]
            await turn.append("hi")
        assert (await hf.store.turn(None, turn.id)).usage == {"input_tokens": 5}


# --- Ctrl-C without an event loop --------------------------------------------------------------------------


def interrupt_when(condition: Callable[[], bool]) -> threading.Thread:
    """Send this process a signal as Ctrl-C does, as soon as that is so."""

    def wait() -> None:
        until = time.monotonic() + 60
        while not condition() and time.monotonic() < until:
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def statuses(hf: Any, conversation_id: str) -> list[str]:
    turns = hf._loop.call(hf._inner.store.turns("default", conversation_id))
    return [turn.status.value for turn in turns]


def test_ctrl_c_while_a_turn_waits_leaves_the_conversation_free(url: str) -> None:
    with holdfast.open_sync(url) as other, holdfast.open_sync(url) as mine:
        theirs, ours = other.session("chat", attached=False), mine.session("chat", attached=False)
        begun, released, asked = threading.Event(), threading.Event(), threading.Event()

        def hold() -> None:  # another thread: a task that waits for its own turn is refused
            with theirs.turn("a long one") as busy:
                begun.set()
                released.wait(60)
                busy.append("done")

        holding = threading.Thread(target=hold)
        holding.start()
        assert begun.wait(60)
        begin = mine._inner.store.begin_turn

        async def begins(request: Any) -> Any:
            outcome = await begin(request)
            asked.set()
            return outcome

        mine._inner.store.begin_turn = begins  # type: ignore[method-assign]
        interrupting = interrupt_when(asked.is_set)
        with pytest.raises(KeyboardInterrupt), ours.turn("hello?", wait_seconds=60) as turn:
            turn.append("never")
        interrupting.join()
        released.set()
        holding.join()
        with ours.turn("again", wait_seconds=30) as turn:
            turn.append("hi")
        assert statuses(mine, ours.conversation_id) == ["completed", "completed"]


def release_when_interrupted(monkeypatch: pytest.MonkeyPatch, held: threading.Event) -> None:
    """Let the held work go on once Ctrl-C has been raised in the thread that waits for it."""
    wait = sync.wait  # type: ignore[attr-defined]

    def waits(futures: Any) -> Any:
        held.set()
        return wait(futures)

    monkeypatch.setattr(sync, "wait", waits)


@pytest.mark.parametrize("when", ["before the commit", "after the commit"])
def test_ctrl_c_while_a_turn_begins_releases_its_lease(
    url: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdfast.open_sync(url) as hf:
        session = hf.session("chat", attached=False)
        entered, interrupted = threading.Event(), threading.Event()
        begin = hf._inner.store.begin_turn

        async def slowly(request: Any) -> Any:
            outcome = await begin(request) if when == "after the commit" else None
            entered.set()
            await asyncio.to_thread(interrupted.wait, 60)
            return outcome or await begin(request)

        hf._inner.store.begin_turn = slowly  # type: ignore[method-assign]
        interrupting = interrupt_when(entered.is_set)
        release_when_interrupted(monkeypatch, interrupted)
        with pytest.raises(KeyboardInterrupt), session.turn("hello?"):
            raise AssertionError("the block is not entered")
        interrupting.join()
        hf._inner.store.begin_turn = begin  # type: ignore[method-assign]
        assert "running" not in statuses(hf, session.conversation_id), "released when Ctrl-C is raised"
        with session.turn("again", wait_seconds=30) as turn:
            turn.append("hi")


def test_ctrl_c_when_a_program_has_just_started_leaves_no_node(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, interrupts = sync._Loop.call, iter([KeyboardInterrupt])

    def interrupted(loop: Any, work: Any) -> Any:
        done = call(loop, work)
        for interrupt in interrupts:
            raise interrupt
        return done

    monkeypatch.setattr(sync._Loop, "call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        holdfast.open_sync(url)
    with holdfast.open_sync(url) as hf:
        assert [event.type for event in hf._loop.call(hf.inner.store.events(owner=None))] == [
            "node.joined",
            "node.left",
            "node.joined",
        ]


def test_ctrl_c_before_a_call_has_begun_is_raised_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open_sync(url) as hf:
        schedule, interrupts = hf.event_loop.call_soon_threadsafe, iter([KeyboardInterrupt])

        def interrupted(*arguments: Any) -> Any:
            for interrupt in interrupts:
                raise interrupt
            return schedule(*arguments)

        monkeypatch.setattr(hf.event_loop, "call_soon_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            hf.session("chat")
        assert hf.session("chat").key == "chat"


def test_ctrl_c_while_a_turn_ends_loses_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open_sync(url) as hf:
        session = hf.session("chat", attached=False)
        entered, interrupted = threading.Event(), threading.Event()
        commit = hf._inner.store.commit_reply

        async def slowly(*given: Any, **named: Any) -> Any:
            entered.set()
            await asyncio.to_thread(interrupted.wait, 60)
            return await commit(*given, **named)

        hf._inner.store.commit_reply = slowly  # type: ignore[method-assign]
        interrupting = interrupt_when(entered.is_set)
        release_when_interrupted(monkeypatch, interrupted)
        with pytest.raises(KeyboardInterrupt), session.turn("hello?") as turn:
            turn.append("hi")
        interrupting.join()
        assert statuses(hf, session.conversation_id) == ["completed"]


async def test_a_task_cancelled_while_its_turn_ends_loses_nothing(url: str) -> None:
    async with holdfast.open(url) as hf:
        session = await hf.session("chat", attached=False)
        entered, may = asyncio.Event(), asyncio.Event()
        commit = hf.store.commit_reply

        async def slowly(*given: Any, **named: Any) -> Any:
            entered.set()
            await may.wait()
            return await commit(*given, **named)

        hf.store.commit_reply = slowly  # type: ignore[method-assign]

        async def speak() -> None:
            async with session.turn("hello?") as turn:
                await turn.append("hi")

        speaking = asyncio.create_task(speak())
        await asyncio.wait_for(entered.wait(), 60)
        speaking.cancel()
        may.set()
        await asyncio.gather(speaking, return_exceptions=True)
        (turn,) = await hf.store.turns("default", session.conversation_id)
        assert turn.status is TurnStatus.COMPLETED


# --- objects of an SDK, and what a program is shown ----------------------------------------------------


async def test_an_sdks_messages_are_taken_wherever_a_message_is(url: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    asking = ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": None, "tool_calls": [call]}
    )
    answering = ChatCompletionMessage(role="assistant", content="Hello Ada")
    async with holdfast.open(url) as hf:
        session = await hf.session("k")
        async with session.turn("hello") as turn:
            await turn.append(asking)
            await turn.append([{"role": "tool", "tool_call_id": "call_1", "content": "Ada"}, answering])
            context = await turn.context()
        assert context[1] == {"role": "assistant", "tool_calls": [call]}, "without the fields that are None"
        assert context[3] == {"role": "assistant", "content": "Hello Ada"}
        async with session.turn([answering, {"role": "user", "content": "again"}]) as turn:
            await turn.append("again")


class Broken:
    def model_dump(self) -> Any:
        raise RuntimeError("no")


@pytest.mark.parametrize("value", [Broken(), SdkUsage(prompt_tokens=1), 7])
async def test_an_object_that_is_no_message_is_refused(url: str, value: Any) -> None:
    async with holdfast.open(url) as hf:
        session = await hf.session("k")
        with pytest.raises(holdfast.BadMessage):
            session.turn(value)


async def test_a_conversation_may_begin_with_a_history(url: str) -> None:
    history = [
        {"role": "user", "content": "my name is Ada"},
        {"role": "assistant", "content": "Hello Ada"},
        {"role": "user", "content": "what is my name?"},
    ]
    async with holdfast.open(url) as hf:
        session = await hf.session("k")
        async with session.turn(history) as turn:
            assert await turn.context() == history
            await turn.append("Ada")
        assert [message.role for message in await session.messages()] == [
            "user", "assistant", "user", "assistant"
        ]  # fmt: skip


def test_public_names_are_shown_to_a_program_that_looks_for_them() -> None:
    source = Path(holdfast.__file__).read_text("utf-8")
    public = {*re.findall(r"from \.\w+ import (\w+) as", source), "__version__"}
    assert set(holdfast.__all__) == public
    shown = {name for name in dir(holdfast) if not name.startswith("__")}
    assert shown == public - {"__version__"}
    text = pydoc.plain(pydoc.TextDoc().docmodule(holdfast))
    assert "open_sync(" in text and "class LiveSession" in text and "class LeaseLost" in text


def test_every_blocking_member_says_what_it_does(url: str) -> None:
    kinds = (sync.BlockingHoldfast, sync.BlockingSession, sync.BlockingTurn)
    silent = [
        f"{kind.__name__}.{name}"
        for kind in kinds
        for name, member in vars(kind).items()
        if not name.startswith("_") and not member.__doc__
    ]
    assert silent == []
    with holdfast.open_sync(url) as hf:
        session = hf.session("k")
        turn = session.turn("hello")
        assert repr(turn) == f"<BlockingTurn of {session.conversation_id}, not begun>"
        with turn:
            turn.append("hi")
            assert repr(turn) == f"<BlockingTurn {turn.id} of {session.conversation_id}>"
        assert repr(session) == f"<BlockingSession {session.id} of {session.conversation_id}>"
        assert repr(hf).startswith("<BlockingHoldfast ") and hf.node_id in repr(hf)


def test_a_blocking_program_may_bring_a_blocking_model(url: str) -> None:
    seen: list[threading.Thread] = []

    def summarise(messages: list[dict[str, Any]], purpose: str) -> str:
        seen.append(threading.current_thread())
        return "They spoke."

    with holdfast.open_sync(url, model=summarise, settings={"compaction": {"keep_last": 1}}) as hf:
        session = hf.session("k")
        for number in range(8):
            with session.turn(f"hello {number} " + "word " * 200) as turn:
                turn.append("hi " + "there " * 200)
        before = session.id
        session.compact()
        assert session.id != before
    assert seen and all(thread.name != "holdfast-loop" for thread in seen)


def test_an_async_model_that_calls_the_blocking_door_is_refused_instead_of_waiting_for_itself(
    url: str,
) -> None:
    refused: list[BaseException] = []

    async def summarise(messages: list[dict[str, Any]], purpose: str) -> str:
        try:
            hf.search("hello")
        except holdfast.errors.BadInput as error:
            refused.append(error)
        return f"They spoke. {len(await hf.inner.sessions())} session"

    with holdfast.open_sync(url, model=summarise, settings={"compaction": {"keep_last": 1}}) as hf:
        session = hf.session("k")
        for number in range(8):
            with session.turn(f"hello {number} " + "word " * 200) as turn:
                turn.append("hi " + "there " * 200)
        session.compact()
    assert "await the same method of `hf.inner`" in str(refused[0])


async def test_a_node_leaves_in_good_order_however_short_its_turns_may_drain(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    for _ in range(3):
        async with holdfast.open(url, settings={"server": {"drain_seconds": 0.0001}}) as hf:
            await hf.session(key="cli:ada")
    async with holdfast.open(url) as hf:
        events = [event.type for event in await hf.store.events(owner=None)]
    assert events.count("node.left") == 3
    assert "node.reaped" not in events
