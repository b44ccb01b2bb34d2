"""`HoldfastSaver` and `HoldfastStore` in LangGraph: its conformance suite, and what it leaves out."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.store.base import InvalidNamespaceError
from langgraph.types import Command, interrupt

import holdfast
from holdfast.adapters.langgraph import HoldfastSaver, HoldfastStore
from holdfast.app import Holdfast
from holdfast.errors import BadInput
from holdfast.store.values import SessionFilter
from tests.integration.adapters.pages import run_page


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def config(thread: str = "t") -> RunnableConfig:
    return {"configurable": {"thread_id": thread}}


def echo(state: State) -> dict[str, Any]:
    return {"messages": [AIMessage(f"you said {state['messages'][-1].content}")]}


def ask(state: State) -> dict[str, Any]:
    answer = interrupt("sure?")
    return {"messages": [AIMessage(f"answer: {answer}")]}


def graph(saver: HoldfastSaver, node: Any = echo) -> Any:
    builder = StateGraph(State)
    builder.add_node("reply", node)
    builder.add_edge(START, "reply")
    builder.add_edge("reply", END)
    return builder.compile(checkpointer=saver)


async def test_the_conformance_suite_passes_whole(hf: Holdfast) -> None:
    @checkpointer_test(name="HoldfastSaver")
    async def saver() -> AsyncIterator[HoldfastSaver]:
        yield HoldfastSaver(hf)

    report = await validate(saver)
    failures = [failure for result in report.results.values() for failure in result.failures or ()]
    assert failures == []
    assert all(result.passed for result in report.results.values()), "every capability, extended ones too"
    assert sum(result.tests_passed for result in report.results.values()) == 81


async def test_a_thread_is_a_conversation_with_its_messages(hf: Holdfast) -> None:
    saver = HoldfastSaver(hf)
    app = graph(saver)
    await app.ainvoke({"messages": [HumanMessage("hello kelp")]}, config())
    await app.ainvoke({"messages": [HumanMessage("hello kelp")]}, config())
    (listed,) = (await hf.store.sessions(SessionFilter(hf.owner))).items
    assert (listed.key, listed.source) == ("langgraph:t", "langgraph")
    live = await hf.session(key="langgraph:t", attached=False)
    texts = [message["content"] for message in await live.context()]
    assert texts == ["hello kelp", "you said hello kelp"] * 2
    assert len(await hf.store.search(hf.owner, "kelp")) == 4
    again = graph(HoldfastSaver(hf))  # a new process knows nothing of what is stored
    state = await again.ainvoke({"messages": [HumanMessage("bye")]}, config())
    assert len(state["messages"]) == 6
    assert len(await live.context()) == 6
    await saver.adelete_thread("t")
    assert (await hf.store.sessions(SessionFilter(hf.owner))).items == []
    assert (await app.aget_state(config())).values == {}


async def test_tool_calls_are_messages_too(hf: Holdfast) -> None:
    saver = HoldfastSaver(hf)
    call = {"name": "look", "args": {"at": "sea"}, "id": "c1"}
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"]["messages"] = [
        HumanMessage("look", id="1"),
        AIMessage("", tool_calls=[call], id="2"),
        ToolMessage("waves", tool_call_id="c1", id="3"),
        {"role": "assistant", "content": "waves"},
        "not a message",
    ]
    await saver.aput(config(), checkpoint, {"source": "loop", "step": 1, "parents": {}}, {})
    live = await hf.session(key="langgraph:t", attached=False)
    assert [message["role"] for message in await live.context()] == ["user", "assistant", "tool", "assistant"]


async def test_an_interrupted_graph_is_resumed_by_another_process(hf: Holdfast, url: str) -> None:
    await graph(HoldfastSaver(hf), ask).ainvoke({"messages": [HumanMessage("go")]}, config())
    async with holdfast.open(url) as another:
        state = await graph(HoldfastSaver(another), ask).ainvoke(Command(resume="yes"), config())
    assert state["messages"][-1].content == "answer: yes"


def test_the_blocking_methods_do_the_same(tmp_path: Path) -> None:
    with holdfast.open_sync(tmp_path / "store.db") as hf:
        saver = HoldfastSaver(hf)
        app = graph(saver)
        app.invoke({"messages": [HumanMessage("one")]}, config())
        state = app.invoke({"messages": [HumanMessage("two")]}, config())
        assert [m.content for m in state["messages"]] == ["one", "you said one", "two", "you said two"]
        before = list(saver.list(config()))
        assert len(before) == len(list(app.get_state_history(config()))) > 4
        saver.copy_thread("t", "u")
        assert len(list(saver.list(config("u")))) == len(before)
        saver.prune(["t"])
        assert len(list(saver.list(config()))) == 1
        assert app.get_state(config()).values["messages"][-1].content == "you said two"
        saver.prune(["u"], strategy="delete")
        assert list(saver.list(config("u"))) == []
        run = before[0].metadata.get("run_id", "none")
        saver.delete_for_runs([run])
        saver.delete_thread("t")
        assert saver.get_tuple(config()) is None
        with pytest.raises(ValueError, match="strategy"):
            saver.prune(["t"], strategy="some")


async def test_a_blocking_call_in_the_loop_of_the_node_is_refused(hf: Holdfast) -> None:
    saver = HoldfastSaver(hf)
    with pytest.raises(BadInput, match="event loop"):
        saver.get_tuple(config())
    assert await asyncio.to_thread(saver.get_tuple, config()) is None


async def test_pruning_keeps_what_a_delta_channel_needs(hf: Holdfast) -> None:
    saver = HoldfastSaver(hf)
    given = config()
    for step in range(5):
        checkpoint = empty_checkpoint()
        if step == 2:
            checkpoint["channel_values"]["log"] = ["snapshot"]
        counters = {"counters_since_delta_snapshot": {"log": (step, step)}}
        given = await saver.aput(given, checkpoint, {"step": step, **counters}, {})  # type: ignore[typeddict-item]
        await saver.aput_writes(given, [("log", step)], f"task {step}")
    await saver.aprune(["t"])
    assert [found.metadata["step"] async for found in saver.alist(config())] == [4, 3, 2]
    history = await saver.aget_delta_channel_history(config=given, channels=["log"])
    assert history["log"]["seed"] == ["snapshot"]
    assert [write[2] for write in history["log"]["writes"]] == [2, 3]


async def test_two_processes_write_one_thread(hf: Holdfast, url: str) -> None:
    async with holdfast.open(url) as another:
        savers = [HoldfastSaver(hf), HoldfastSaver(another)]
        await asyncio.gather(
            *(
                savers[i % 2].aput(config(), empty_checkpoint(), {"source": "loop", "step": i}, {})
                for i in range(20)
            )
        )
        found = [each.metadata["step"] async for each in savers[0].alist(config())]
    assert sorted(found) == [*range(20)]


def said(saver: HoldfastSaver, step: int, messages: list[Any]) -> RunnableConfig:
    """Store a checkpoint with these messages, blocking."""
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"messages": messages, "step": step}
    return saver.put(config(), checkpoint, {"source": "loop", "step": step}, {})


def texts_of(saver: HoldfastSaver, where: RunnableConfig) -> list[str]:
    found = saver.get_tuple(where)
    assert found is not None
    return [each.content for each in found.checkpoint["channel_values"]["messages"]]


LONG = "a long text, " * 30


async def test_a_long_thread_is_stored_once_not_with_every_step(hf: Holdfast) -> None:
    saver = HoldfastSaver(hf)
    messages: list[Any] = []
    for step in range(60):
        messages = [*messages, HumanMessage(f"{step} {LONG}", id=f"m{step}")]
        at = await asyncio.to_thread(said, saver, step, messages)
    (usage,) = await hf.store.usage(hf.owner)
    assert usage.bytes < 10 * 60 * len(LONG), "60 whole lists would be 30 times their last"
    again = HoldfastSaver(hf)
    expected = [f"{step} {LONG}" for step in range(60)]
    assert await asyncio.to_thread(texts_of, again, config()) == expected
    listed = [each async for each in again.alist(config())]
    assert [len(each.checkpoint["channel_values"]["messages"]) for each in listed] == [*range(60, 0, -1)]
    await saver.aprune(["t"])
    assert await asyncio.to_thread(texts_of, again, at) == expected
    live = await hf.session(key="langgraph:t", attached=False)
    assert [message["content"] for message in await live.context()] == expected
    assert await hf.store.check() == []


@pytest.mark.parametrize("with_ids", [True, False])
async def test_messages_of_a_window_are_stored_once(hf: Holdfast, with_ids: bool) -> None:
    saver = HoldfastSaver(hf)
    all_said = [HumanMessage(f"{step % 7} {LONG}", id=f"m{step}" if with_ids else None) for step in range(40)]
    for step in range(10, 40):
        window = all_said[step - 10 : step]
        await asyncio.to_thread(said, saver, step, window)
        if step == 20:  # a new process knows nothing of what is stored
            saver = HoldfastSaver(hf)
    live = await hf.session(key="langgraph:t", attached=False)
    found = [message["content"] for message in await live.context()]
    if with_ids:
        assert found == [each.content for each in all_said[:39]]
    else:  # equal texts without ids are told apart by how many precede them in the window
        assert sorted(set(found)) == sorted({each.content for each in all_said})


async def test_a_thread_deleted_elsewhere_begins_anew_with_all_its_messages(hf: Holdfast) -> None:
    saver = HoldfastSaver(hf)
    for texts in (["short"], [f"{n} {LONG}" for n in range(10)]):
        messages: list[Any] = [HumanMessage(text, id=text[:9]) for text in texts]
        await asyncio.to_thread(said, saver, 1, messages)
        await hf.delete("langgraph:t")
        messages.append(HumanMessage("after", id="after"))
        where = await asyncio.to_thread(said, saver, 2, messages)
        assert await asyncio.to_thread(texts_of, saver, where) == [*texts, "after"]
        live = await hf.session(key="langgraph:t", attached=False)
        assert [message["content"] for message in await live.context()] == [*texts, "after"]
        await saver.adelete_thread("t")


async def test_a_step_is_stored_though_another_thread_remembers_what_was_deleted(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put of the deleted thread, which succeeded before, ends only now: it notes what it has stored."""
    saver = HoldfastSaver(hf)
    messages: list[Any] = [HumanMessage(f"{n} {LONG}", id=f"m{n}") for n in range(10)]
    notes: list[Any] = []
    remember = saver._remember

    def noted(prepared: Any) -> None:
        notes.append(prepared)
        remember(prepared)

    def forgotten(key: str) -> None:
        forget(key)
        remember(notes[0])

    forget = saver._forget
    monkeypatch.setattr(saver, "_remember", noted)
    monkeypatch.setattr(saver, "_forget", forgotten)
    await asyncio.to_thread(said, saver, 1, messages)
    for blocking in (True, False):
        await hf.delete("langgraph:t")
        messages.append(HumanMessage(f"after {blocking}", id=f"after {blocking}"))
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": messages}
        if blocking:
            where = await asyncio.to_thread(saver.put, config(), checkpoint, {}, {})
        else:
            where = await saver.aput(config(), checkpoint, {}, {})
        assert len(await asyncio.to_thread(texts_of, HoldfastSaver(hf), where)) == len(messages)


async def test_a_deleted_run_takes_nothing_from_the_next(hf: Holdfast) -> None:
    saver, another = HoldfastSaver(hf), HoldfastSaver(hf)
    messages: list[Any] = [HumanMessage(f"{n} {LONG}", id=f"m{n}") for n in range(10)]
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"messages": messages}
    await saver.aput(config(), checkpoint, {"source": "loop", "run_id": "r1"}, {})
    await another.adelete_for_runs(["r1"])
    where = await asyncio.to_thread(said, saver, 2, [*messages, HumanMessage("after", id="after")])
    assert len(await asyncio.to_thread(texts_of, another, where)) == 11
    assert await hf.store.check() == []


# --- long-term memory --------------------------------------------------------------------------------------


async def test_items_are_put_searched_and_listed(hf: Holdfast) -> None:
    store = HoldfastStore(hf)
    await store.aput(("users", "ada"), "food", {"text": "likes kelp and rice", "stars": 4})
    await store.aput(("users", "ada", "old"), "pet", {"text": "had a cat", "stars": 1})
    await store.aput(("users", "bob"), "food", {"text": "likes rice", "stars": 5})
    found = await store.aget(("users", "ada"), "food")
    assert found is not None and found.value["stars"] == 4 and found.namespace == ("users", "ada")
    assert len(await store.asearch(("users",))) == 3
    hits = await store.asearch(("users",), query="kelp rice")
    assert [(hit.namespace[1], hit.score) for hit in hits] == [("ada", 1.0), ("bob", 0.5)]
    assert [hit.key for hit in await store.asearch(("users", "ada"), filter={"stars": {"$gt": 3}})] == [
        "food"
    ]
    assert [hit.key for hit in await store.asearch(("users", "ada"), filter={"stars": 1})] == ["pet"]
    assert len(await store.asearch(("users",), limit=1, offset=2)) == 1
    assert await store.alist_namespaces(prefix=("users",), max_depth=2) == [
        ("users", "ada"),
        ("users", "bob"),
    ]
    assert await store.alist_namespaces(suffix=("old",)) == [("users", "ada", "old")]
    await store.adelete(("users", "ada"), "food")
    assert await store.aget(("users", "ada"), "food") is None
    with pytest.raises(InvalidNamespaceError):
        await store.aput(("a.b",), "x", {})


async def test_items_live_as_long_as_they_are_told(url: str) -> None:
    store = HoldfastStore(url, ttl={"default_ttl": 60, "refresh_on_read": False})
    await asyncio.to_thread(store.put, ("a",), "past", {"n": 1}, ttl=-1.0)
    await store.aput(("a",), "kept", {"n": 2})
    assert await store.aget(("a",), "past") is None
    assert [item.key for item in await store.asearch(("a",))] == ["kept"]
    assert await asyncio.to_thread(store.sweep_ttl) == 0  # the second write dropped it


async def test_the_page_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    old = InMemorySaver()
    await graph(old).ainvoke({"messages": [HumanMessage("hello")]}, config())  # type: ignore[arg-type]

    class SqliteSaver:
        @staticmethod
        @contextmanager
        def from_conn_string(_: str) -> Iterator[InMemorySaver]:
            yield old

    builder = StateGraph(State)
    builder.add_node("reply", echo)
    builder.add_edge(START, "reply")
    names = await asyncio.to_thread(
        asyncio.run, run_page("langgraph.md", builder=builder, SqliteSaver=SqliteSaver)
    )
    moved, before = [*names["saver"].list(config())], [*old.list(config())]
    assert [each.checkpoint for each in moved] == [each.checkpoint for each in before]
    assert [each.parent_config for each in moved] == [each.parent_config for each in before]
    for was, now in zip(before, moved, strict=True):
        assert sorted(now.pending_writes, key=str) == sorted(was.pending_writes or (), key=str)
    state = await names["graph"].ainvoke({"messages": [HumanMessage("again")]}, config())
    assert len(state["messages"]) == 4
