"""The agent loop: what is on disk before a tool runs, what clients hear, whose calls are whose, and how it
ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from holdfast.domain.contexts import OUTCOME_UNKNOWN
from holdfast.domain.conversations import Address
from holdfast.domain.figures import FIRST_TOKEN
from holdfast.domain.turns import TurnStatus
from holdfast.errors import BadInput, ModelError
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.tools.toolbox import Toolbox, ToolCall, function
from holdfast.runtime.turns.live import Answered, RunningTurn, Unanswered
from holdfast.server import objects
from holdfast.store.sqlite.engine import SQLiteStore
from holdfast.store.store import Store
from tests.unit.runtime.asking import (
    OWNER,
    Server,
    Told,
    assert_history_is_right,
    drafted,
    ended,
    heard,
    key,
    serving,
    stored,
    user,
)

Act = Callable[[ToolCall], Awaitable[str]]
ALLOWED = frozenset({"terminal", "search"})


class Own:
    """A tool of the server that does what the test says, and counts."""

    def __init__(self, act: Act | str = "done", name: str = "terminal", *, idempotent: bool = False) -> None:
        self.name = name
        self.idempotent = idempotent
        self.calls: list[ToolCall] = []
        self._act = act

    @property
    def schema(self) -> dict[str, Any]:
        return function(self.name, "a tool", ())

    async def run(self, call: ToolCall) -> str:
        self.calls.append(call)
        return self._act if isinstance(self._act, str) else await self._act(call)


def calls(*named: str, content: str | None = None) -> dict[str, Any]:
    """What a model says that wants tools: each is `name`, its call's id the same with a number."""
    made = [
        {"id": name, "type": "function", "function": {"name": name.partition(":")[0], "arguments": "{}"}}
        for name in named
    ]
    return {"content": content, "tool_calls": made}


def offered(model: ScriptedModel, request: int = -1) -> list[str]:
    return [tool["function"]["name"] for tool in model.requests[request].options.get("tools") or ()]


def sent(model: ScriptedModel, request: int = -1) -> list[tuple[str, Any]]:
    messages = msgspec.json.decode(model.requests[request].messages)
    return [(message["role"], message.get("content")) for message in messages]


async def asked(server: Server, text: str = "go", **more: Any) -> RunningTurn:
    return await server.run(user(text), **{"key": "a", "tools": ALLOWED, **more})


async def answer(running: RunningTurn) -> Answered:
    outcome = await ended(running)
    assert isinstance(outcome, Answered), outcome
    return outcome


async def visible(store: Store, running: RunningTurn) -> list[tuple[str, Any]]:
    messages = await store.visible(OWNER, running.turn.conversation_id)
    return [(message.role, message.shown().get("content")) for message in messages]


# --- steps ---------------------------------------------------------------------------------------------


async def test_the_model_is_asked_again_with_the_results_of_its_calls(store: SQLiteStore) -> None:
    model, tool = ScriptedModel([calls("terminal:1"), calls("terminal:2"), "Monday"]), Own("it is Monday")
    async with serving(store, model, toolbox=Toolbox([tool])) as server:
        running = await asked(server)
        assert (await answer(running)).reply.message == {"role": "assistant", "content": "Monday"}
    assert sent(model) == [("user", "go"), *[("assistant", None), ("tool", "it is Monday")] * 2]
    assert [call.id for call in tool.calls] == ["terminal:1", "terminal:2"]
    (call, _) = tool.calls
    assert (call.owner, call.session_id, call.turn_id) == (OWNER, running.session.id, running.turn.id)


async def test_clients_see_the_answer_and_none_of_the_steps(store: SQLiteStore) -> None:
    model = ScriptedModel([calls("terminal:1"), "Monday"])
    async with serving(store, model, toolbox=Toolbox([Own()])) as server:
        running = await asked(server)
        assert await heard(running) == ["begun", "Monday", "answered"]
    assert await visible(store, running) == [("user", "go"), ("assistant", "Monday")]
    assert len(await stored(store, running.turn.conversation_id)) == 4
    await assert_history_is_right(store, running.turn.conversation_id, known=True)


async def test_a_reply_with_calls_is_on_disk_before_the_first_tool_runs_and_each_result_before_the_next(
    store: SQLiteStore,
) -> None:
    seen: list[int] = []

    async def count(call: ToolCall) -> str:
        seen.append(len(await stored(store, call.conversation_id)))
        return "done"

    model = ScriptedModel([calls("terminal:1", "terminal:2"), "fine"])
    async with serving(store, model, toolbox=Toolbox([Own(count)])) as server:
        await answer(await asked(server))
    assert seen == [2, 3]


async def test_what_a_step_says_is_heard_as_it_comes_and_is_a_part_of_the_answer(store: SQLiteStore) -> None:
    model = ScriptedModel([calls("terminal:1", content="Let me look."), "Monday"])
    async with serving(store, model, toolbox=Toolbox([Own()])) as server:
        running = await asked(server)
        assert (await answer(running)).reply.message["content"] == "Let me look.\n\nMonday"
        said = [{"role": "assistant", "content": "Let me look.\n\nMonday"}, user("sure?")]
        again = await server.run(user("go"), *said, key="a", tools=ALLOWED, renderer=Told())
        assert again.turn.conversation_id == running.turn.conversation_id
        await ended(again)
    assert len(await stored(store, running.turn.conversation_id)) == 5, "its history was recognised"


async def test_usage_of_all_steps_is_added_up(store: SQLiteStore) -> None:
    model = ScriptedModel([calls("terminal:1", content="one two"), "three"])
    async with serving(store, model, toolbox=Toolbox([Own("four")])) as server:
        running = await asked(server)
        outcome = await answer(running)
    assert outcome.reply.usage == {"prompt_tokens": 1 + 4, "completion_tokens": 3, "total_tokens": 8}
    turn = await store.turn(None, running.turn.id)
    assert turn.usage is not None
    first_token_ms = turn.usage[FIRST_TOKEN]
    assert turn.usage == {"input_tokens": 5, "output_tokens": 3, FIRST_TOKEN: first_token_ms}
    assert first_token_ms >= 0
    assert turn.model == outcome.reply.model


async def test_an_answer_without_text_or_usage_has_no_token_figures(store: SQLiteStore) -> None:
    async with serving(store, ScriptedModel([""])) as server:
        running = await server.run(user("hi"), key="a", renderer=Told())
        await ended(running)
    turn = await store.turn(None, running.turn.id)
    assert FIRST_TOKEN not in (turn.usage or {})
    assert objects.usage({FIRST_TOKEN: 3}) is None


async def test_what_is_waited_for_can_be_seen(store: SQLiteStore) -> None:
    doing: list[str] = []
    turns: list[RunningTurn] = []

    async def look(call: ToolCall) -> str:
        doing.append(turns[0].doing)
        return "done"

    gate = asyncio.Event()

    async def said(messages: Any, purpose: Any) -> Any:
        await gate.wait()
        return calls("terminal:1") if len(messages) == 1 else "done"

    async with serving(store, ScriptedModel(said), toolbox=Toolbox([Own(look)])) as server:
        turns.append(await asked(server))
        assert turns[0].doing == "model"
        gate.set()
        await answer(turns[0])
    assert doing == ["tool:terminal"]
    assert turns[0].doing == "model"


# --- what is offered -----------------------------------------------------------------------------------


async def test_a_tool_is_offered_only_to_those_who_may_use_it(store: SQLiteStore) -> None:
    model = ScriptedModel(lambda messages, purpose: "fine")
    async with serving(store, model, toolbox=Toolbox([Own(), Own(name="search")])) as server:
        await answer(await asked(server, tools=frozenset({"search", "memory"})))
        assert offered(model) == ["search"]
        await answer(await asked(server, tools=frozenset()))
        assert "tools" not in model.requests[-1].options


async def test_a_call_of_a_tool_that_is_not_allowed_runs_nothing_and_says_so(store: SQLiteStore) -> None:
    model, tool = ScriptedModel([calls("terminal:1"), "sorry"]), Own()
    async with serving(store, model, toolbox=Toolbox([tool])) as server:
        await answer(await asked(server, tools=frozenset()))
    assert tool.calls == []
    assert "not allowed" in sent(model)[-1][1]


async def test_the_clients_tool_of_the_same_name_is_the_clients(store: SQLiteStore) -> None:
    theirs = {"type": "function", "function": {"name": "terminal", "parameters": {}}}
    model, tool = ScriptedModel([calls("terminal:1")]), Own()
    async with serving(store, model, toolbox=Toolbox([tool])) as server:
        outcome = await answer(await asked(server, options={"tools": [theirs]}))
    assert offered(model) == ["terminal"]
    assert tool.calls == []
    assert outcome.reply.message["tool_calls"][0]["id"] == "terminal:1"


async def test_who_is_forced_to_call_a_tool_is_forced_once(store: SQLiteStore) -> None:
    model = ScriptedModel([calls("terminal:1"), "fine"])
    async with serving(store, model, toolbox=Toolbox([Own()])) as server:
        await answer(await asked(server, options={"tool_choice": "required"}))
    assert [request.options["tool_choice"] for request in model.requests] == ["required", "auto"]


async def test_nothing_is_offered_to_a_request_that_wants_no_tool(store: SQLiteStore) -> None:
    model = ScriptedModel(["fine"])
    async with serving(store, model, toolbox=Toolbox([Own()])) as server:
        await answer(await asked(server, options={"tool_choice": "none"}))
    assert offered(model) == []


# --- the client's tools --------------------------------------------------------------------------------


async def test_of_a_mixed_batch_the_server_runs_its_own_and_shows_the_client_the_rest(
    store: SQLiteStore,
) -> None:
    model, tool = ScriptedModel([calls("terminal:1", "weather:1", content="I look"), "rain"]), Own("ours")
    async with serving(store, model, toolbox=Toolbox([tool])) as server:
        running = await asked(server)
        outcome = await answer(running)
        assert [call["id"] for call in outcome.reply.message["tool_calls"]] == ["weather:1"]
        assert outcome.reply.finish_reason == "tool_calls"
        assert model.calls == 1
        result = {"role": "tool", "tool_call_id": "weather:1", "content": "theirs"}
        brought = [user("go"), outcome.reply.message, result]
        again = await server.run(*brought, key="a", tools=ALLOWED)
        assert (await answer(again)).reply.message["content"] == "rain"
    assert sent(model) == [("user", "go"), ("assistant", "I look"), ("tool", "ours"), ("tool", "theirs")]
    assert len(tool.calls) == 1
    await assert_history_is_right(store, again.turn.conversation_id)


async def test_calls_of_the_client_alone_end_the_turn_as_before(store: SQLiteStore) -> None:
    model = ScriptedModel([calls("weather:1", "weather:2")])
    async with serving(store, model, toolbox=Toolbox([Own()])) as server:
        running = await asked(server)
        outcome = await answer(running)
    assert [call["id"] for call in outcome.reply.message["tool_calls"]] == ["weather:1", "weather:2"]
    context = await store.context(None, running.session.id)
    assert context.awaited == ("weather:1", "weather:2")


# --- ends ----------------------------------------------------------------------------------------------


async def test_a_turn_that_takes_too_many_steps_says_so(store: SQLiteStore) -> None:
    model, tool = ScriptedModel(lambda messages, purpose: calls(f"terminal:{len(messages)}")), Own()
    async with serving(store, model, toolbox=Toolbox([tool], max_steps=3)) as server:
        running = await asked(server)
        outcome = await answer(running)
    assert "3 steps" in outcome.reply.message["content"]
    assert outcome.reply.finish_reason == "length"
    assert (model.calls, len(tool.calls)) == (3, 2)
    *_, not_run, last = await stored(store, running.turn.conversation_id)
    assert "Not run" in not_run[1]
    assert last[1] == outcome.reply.message["content"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (BadInput("there is no directory"), "there is no directory"),
        (FileNotFoundError(2, "No such file"), "No such file"),
        (RuntimeError("secret"), "an internal error"),
    ],
)
async def test_whatever_a_tool_raises_is_a_result(store: SQLiteStore, error: Exception, told: str) -> None:
    async def fail(call: ToolCall) -> str:
        raise error

    model = ScriptedModel([calls("terminal:1"), "never mind"])
    async with serving(store, model, toolbox=Toolbox([Own(fail)])) as server:
        await answer(await asked(server))
    result = sent(model)[-1][1]
    assert told in result
    assert "secret" not in result


async def test_a_turn_that_is_stopped_while_a_tool_runs_closes_its_call(store: SQLiteStore) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def hang(call: ToolCall) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    model = ScriptedModel([calls("terminal:1"), "and on"])
    async with serving(store, model, toolbox=Toolbox([Own(hang)])) as server:
        running = await asked(server)
        await begun.wait()
        assert await server.runner.stop(OWNER, running.turn.id, TurnStatus.CANCELLED, "enough")
        assert cancelled.is_set()
        assert (await stored(store, running.turn.conversation_id))[-1][1] == OUTCOME_UNKNOWN
        await answer(await asked(server, "go on"))
    assert [content for _, content in sent(model)] == ["go", None, OUTCOME_UNKNOWN, "go on"]


async def test_a_turn_that_is_stopped_while_a_step_is_stored_keeps_its_text_once(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, is_stored, go_on = store.append, asyncio.Event(), asyncio.Event()

    async def slow_append(*arguments: Any) -> int:
        seq = await append(*arguments)
        is_stored.set()
        await go_on.wait()
        return seq

    monkeypatch.setattr(store, "append", slow_append)
    model, tool = ScriptedModel([calls("terminal:1", content="Let me look.")]), Own()
    async with serving(store, model, toolbox=Toolbox([tool])) as server:
        running = await asked(server)
        await is_stored.wait()
        stopping = asyncio.create_task(server.runner.stop(OWNER, running.turn.id, TurnStatus.CANCELLED, "no"))
        for _ in range(3):
            await asyncio.sleep(0)
        assert running.task is not None and running.task.cancelling()
        go_on.set()
        assert await stopping
    assert [content for _, content, _ in await stored(store, running.turn.conversation_id)] == [
        "go",
        "Let me look.",
        OUTCOME_UNKNOWN,
    ]
    assert not tool.calls


async def _stopped_in_a_call(server: Server, begun: asyncio.Event) -> None:
    running = await asked(server, request_key=key("k"))
    await begun.wait()
    await server.runner.stop(OWNER, running.turn.id, TurnStatus.INTERRUPTED, "a crash")


class _OnceOpen:
    """Hangs in its first call and answers later ones."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def __call__(self, call: ToolCall) -> str:
        if not self.begun.is_set():
            self.begun.set()
            await asyncio.Event().wait()
        return "done at last"


async def test_every_call_has_a_key_of_its_own(store: SQLiteStore) -> None:
    tool = Own()
    model = ScriptedModel([calls("terminal:1", "terminal:2"), calls("terminal:1"), "done"])
    async with serving(store, model, toolbox=Toolbox([tool])) as server:
        running = await asked(server)
        await answer(running)
    turn = running.turn.id
    assert [call.key for call in tool.calls] == [f"{turn}.2.0", f"{turn}.2.1", f"{turn}.5.0"]


async def test_only_an_idempotent_tool_is_run_again_with_the_same_key(store: SQLiteStore) -> None:
    for idempotent in (True, False):
        act = _OnceOpen()
        model, tool = ScriptedModel([calls("terminal:1"), "fine"]), Own(act, idempotent=idempotent)
        async with serving(store, model, toolbox=Toolbox([tool])) as server:
            await _stopped_in_a_call(server, act.begun)
            again = await asked(server, request_key=key("k"))
            await answer(again)
            await assert_history_is_right(store, again.turn.conversation_id)
        expected = "done at last" if idempotent else OUTCOME_UNKNOWN
        assert [content for _, content in sent(model)][-1] == expected
        assert len(tool.calls) == (2 if idempotent else 1)
        assert len({call.key for call in tool.calls}) == 1
        await store.delete_conversation(OWNER, again.turn.conversation_id)


@pytest.mark.parametrize("known", ["it was paid", None, RuntimeError("the hook broke")])
async def test_a_hook_may_know_what_became_of_an_open_call(
    store: SQLiteStore, known: str | RuntimeError | None
) -> None:
    asked_for: list[ToolCall] = []

    async def reconcile(call: ToolCall) -> str | None:
        asked_for.append(call)
        if isinstance(known, RuntimeError):
            raise known
        return known

    act = _OnceOpen()
    model, tool = ScriptedModel([calls("terminal:1", content="I pay."), "fine"]), Own(act)
    async with serving(store, model, toolbox=Toolbox([tool], reconcile=reconcile)) as server:
        await _stopped_in_a_call(server, act.begun)
        again = await asked(server, request_key=key("k"))
        assert (await answer(again)).reply.message["content"] == "I pay.\n\nfine"
    assert len(tool.calls) == 1
    assert [call.key for call in asked_for] == [tool.calls[0].key]
    expected = known if isinstance(known, str) else OUTCOME_UNKNOWN
    assert [content for _, content in sent(model)] == ["go", "I pay.", expected]


async def test_a_model_that_fails_after_a_step_leaves_what_was_done(store: SQLiteStore) -> None:
    model, tool = ScriptedModel([calls("terminal:1"), ModelError("it is gone"), "fine"]), Own()
    async with serving(store, model, toolbox=Toolbox([tool])) as server:
        retry = key("k")
        failed = await asked(server, request_key=retry)
        assert isinstance(await ended(failed), Unanswered)
        again = await asked(server, request_key=retry)
        assert again.turn.id == failed.turn.id
        await answer(again)
    assert len(tool.calls) == 1, "what was finished is not run again"
    assert sent(model) == [("user", "go"), ("assistant", None), ("tool", "done")]


async def test_a_retry_is_told_again_what_was_said_before_it(store: SQLiteStore) -> None:
    script: Sequence[Any] = [calls("terminal:1", content="I look."), ModelError("it is gone"), "Monday"]
    async with serving(store, ScriptedModel(script), toolbox=Toolbox([Own()])) as server:
        retry = key("k")
        assert isinstance(await ended(await asked(server, request_key=retry)), Unanswered)
        again = await asked(server, request_key=retry)
        assert await heard(again) == ["begun", "I look.", "Monday", "answered"]
        assert (await answer(again)).reply.message["content"] == "I look.\n\nMonday"
    assert await drafted(store, again.turn.id) == ""
    conversation = (await store.resolve(None, Address(id=again.turn.conversation_id))).conversation
    assert conversation.history is not None


async def test_a_retry_of_a_mixed_batch_shows_the_client_its_calls_and_asks_nobody(
    store: SQLiteStore,
) -> None:
    begun = asyncio.Event()

    async def hang(call: ToolCall) -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    model, tool = ScriptedModel([calls("weather:1", "terminal:1", content="I look")]), Own(hang)
    async with serving(store, model, toolbox=Toolbox([tool])) as server:
        retry = key("k")
        running = await asked(server, request_key=retry)
        await begun.wait()
        await server.runner.stop(OWNER, running.turn.id, TurnStatus.INTERRUPTED, "a crash")
        outcome = await answer(await asked(server, request_key=retry))
    assert outcome.reply.message["content"] == "I look"
    assert [call["id"] for call in outcome.reply.message["tool_calls"]] == ["weather:1"]
    assert (model.calls, len(tool.calls)) == (1, 1)
    context = await store.context(None, running.session.id)
    assert context.awaited == ("weather:1",)
    assert context.messages()[-1]["content"] == OUTCOME_UNKNOWN


async def test_a_question_asked_again_is_answered_without_the_old_steps(store: SQLiteStore) -> None:
    model = ScriptedModel([calls("terminal:1", content="I look."), "Monday", "Tuesday"])
    async with serving(store, model, toolbox=Toolbox([Own()])) as server:
        first = [user("hello"), {"role": "assistant", "content": "hi"}, user("what day is it?")]
        running = await server.run(*first, key="a", tools=ALLOWED)
        await answer(running)
        again = await server.run(*first, key="a", tools=ALLOWED)
        await answer(again)
    assert again.turn.conversation_id == running.turn.conversation_id
    assert [content for _, content in sent(model)] == ["hello", "hi", "what day is it?"]


# --- drafts --------------------------------------------------------------------------------------------


async def test_a_later_step_that_is_cut_short_is_kept_without_what_an_earlier_one_said(
    store: SQLiteStore,
) -> None:
    spoken, never = asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncIterator[str]:
        yield "It is"
        spoken.set()
        await never.wait()

    script: list[Any] = [calls("terminal:1", content="I look."), lambda messages, purpose: slowly()]
    async with serving(store, ScriptedModel(script), 0.05, toolbox=Toolbox([Own()])) as server:
        running = await asked(server, renderer=Told(numbered=True))
        await spoken.wait()
        async with asyncio.timeout(60):
            while "It is" not in [text async for text in _drafted_behind(store, running.turn.id, 3)]:
                await store.changed(store.version(), 0.05)
        await server.runner.stop(OWNER, running.turn.id, TurnStatus.INTERRUPTED, "a crash")
    assert (await stored(store, running.turn.conversation_id))[-1] == ("assistant", "It is", "interrupted")
    assert await visible(store, running) == [("user", "go"), ("assistant", "I look."), ("assistant", "It is")]


async def test_checkpoints_tell_which_reply_they_are_of(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts: list[str] = []

    async def look(call: ToolCall) -> str:
        kept = await store.drafts(call.turn_id)
        assert {draft.after_seq for draft in kept if draft.adds} == {1}
        drafts.extend(draft.adds["content"] for draft in kept if draft.adds)
        return "done"

    async def slowly() -> AsyncIterator[str]:
        for word in ("I ", "look. "):
            yield word
            await asyncio.sleep(0.1)

    model = ScriptedModel([calls("terminal:1"), "fine"])
    said, words = model._words, iter([slowly()])
    monkeypatch.setattr(model, "_words", lambda text: next(words, None) or said(text))
    async with serving(store, model, 0.05, toolbox=Toolbox([Own(look)])) as server:
        running = await asked(server, renderer=Ended(numbered=True))
        assert await heard(running) == ["begun", "I ", "look. ", "message 4", "fine", "answered"]
    assert drafts
    assert "I look. ".startswith("".join(drafts))
    assert (await visible(store, running))[1] == ("assistant", "I look. ")


async def _drafted_behind(store: Store, turn_id: str, seq: int) -> AsyncIterator[str]:
    for draft in await store.drafts(turn_id):
        if draft.after_seq == seq:
            yield draft.adds.get("content", "")


class Ended(Told):
    """Tells the end of every message, as responses do."""

    apart = True

    def next_message(self, seq: int, *, spoke: bool) -> Sequence[bytes]:
        return (f"message {seq}".encode(),)
