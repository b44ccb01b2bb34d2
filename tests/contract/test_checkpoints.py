"""Checkpoints of graphs: stored with their messages, read back, copied, deleted, counted."""

import asyncio

import pytest

from holdfast.domain.checkpoints import (
    Checkpoint,
    CheckpointWrite,
    NewCheckpoint,
    SplitValue,
    encode_segments,
    split,
)
from holdfast.domain.conversations import Address
from holdfast.domain.nodes import Node
from holdfast.domain.quotas import Quotas
from holdfast.domain.session_messages import Named
from holdfast.errors import NotFound, QuotaExceeded
from holdfast.store.store import Store
from holdfast.store.values import SessionFilter
from tests.contract.steps import OTHER, OWNER, limit, to_message


def step(
    id: str, ns: str = "", parent: str | None = None, run: str | None = None, body: bytes = b"state"
) -> NewCheckpoint:
    return NewCheckpoint(ns, id, parent, run, "msgpack", '{"step":1}', body)


async def put(store: Store, node: Node, key: str, *steps: NewCheckpoint, said: tuple[str, ...] = ()) -> None:
    for each in steps:
        named = [Named(to_message(text), text) for text in said]
        await store.put_checkpoint(OWNER, key, "graph", node.id, each, named)


async def ids(store: Store, key: str | None, ns: str | None = "", **more: object) -> list[str]:
    found = await store.checkpoints(OWNER, key, ns, **more)  # type: ignore[arg-type]
    return [checkpoint.id for checkpoint, _ in found]


async def test_the_newest_checkpoint_of_a_namespace_is_found(store: Store, node: Node) -> None:
    await put(store, node, "t", step("1"), step("2", parent="1", body=b"\x00two"), step("9", ns="child"))
    found = await store.checkpoint(OWNER, "t", "", None)
    assert found is not None
    checkpoint, writes = found
    assert (checkpoint.id, checkpoint.parent, checkpoint.body, checkpoint.key, writes) == (
        "2",
        "1",
        b"\x00two",
        "t",
        [],
    )
    first = await store.checkpoint(OWNER, "t", "", "1")
    assert first is not None and first[0].body == b"state"
    assert await store.checkpoint(OWNER, "t", "", "3") is None
    assert await store.checkpoint(OWNER, "unknown", "", None) is None
    assert await store.checkpoint(OTHER, "t", "", None) is None
    (listed,) = (await store.sessions(SessionFilter(OWNER))).items
    assert (listed.key, listed.source) == ("t", "graph")


async def test_a_replaced_checkpoint_counts_once(store: Store, node: Node) -> None:
    await put(store, node, "t", step("1", body=b"long state"), step("1", body=b"short"))
    found = await store.checkpoint(OWNER, "t", "", "1")
    assert found is not None and found[0].body == b"short"
    (usage,) = await store.usage(OWNER)
    assert usage.bytes == len(b"short")


async def test_messages_come_with_the_checkpoint_and_once(store: Store, node: Node) -> None:
    await put(store, node, "t", step("1"), said=("hello",))
    await put(store, node, "t", step("2"), said=("hello", "hi"))
    context = await store.in_context(OWNER, Address(key="t"))
    assert context is not None
    assert [message.content()["content"] for message in context.messages] == ["hello", "hi"]


async def test_the_first_write_counts_unless_it_replaces(store: Store, node: Node) -> None:
    def write(body: bytes, ordinal: int = 0, replaces: bool = False) -> CheckpointWrite:
        return CheckpointWrite("task", ordinal, "channel", "path", "msgpack", body, replaces)

    async def writes(*those: CheckpointWrite) -> list[tuple[int, bytes]]:
        await store.put_checkpoint_writes(OWNER, "t", "graph", "", "1", those)
        found = await store.checkpoint(OWNER, "t", "", "1")
        assert found is not None
        return sorted((each.ordinal, each.body) for each in found[1])

    await store.put_checkpoint_writes(OWNER, "t", "graph", "", "1", [write(b"early")])
    await put(store, node, "t", step("1"))
    assert await writes(write(b"late"), write(b"b", 1)) == [(0, b"early"), (1, b"b")]
    await writes(write(b"failed", -1, True))
    assert await writes(write(b"again", -1, True)) == [(-1, b"again"), (0, b"early"), (1, b"b")]


async def test_checkpoints_are_paged_from_the_newest(store: Store, node: Node) -> None:
    await put(store, node, "t", *(step(str(i)) for i in range(1, 6)), step("3", ns="child"))
    await put(store, node, "u", step("3"))
    assert await ids(store, "t") == ["5", "4", "3", "2", "1"]
    assert await ids(store, "t", older_than="4", limit=2) == ["3", "2"]
    for key, ns in (("t", None), (None, None)):
        seen: list[Checkpoint] = []
        while page := await store.checkpoints(OWNER, key, ns, after=seen[-1] if seen else None, limit=2):
            seen += (checkpoint for checkpoint, _ in page)
        assert [each.id for each in seen] == ["5", "4", *(["3"] * (2 if key else 3)), "2", "1"]
    assert await ids(store, "unknown") == []


async def test_a_copied_thread_has_everything_of_its_source(store: Store, node: Node) -> None:
    await put(store, node, "t", step("1"), step("2", parent="1"), said=("hello",))
    write = CheckpointWrite("task", 0, "channel", "", "msgpack", b"w")
    await store.put_checkpoint_writes(OWNER, "t", "graph", "", "2", [write])
    await store.copy_checkpoints(OWNER, "t", "copy", node.id)
    await store.copy_checkpoints(OWNER, "t", "copy", node.id)
    found = await store.checkpoint(OWNER, "copy", "", None)
    assert found is not None and (found[0].id, found[1]) == ("2", [write])
    await put(store, node, "copy", step("3", parent="2"), said=("hello", "there"))
    context = await store.in_context(OWNER, Address(key="copy"))
    assert context is not None
    assert [message.content()["content"] for message in context.messages] == ["hello", "there"]
    assert await ids(store, "t") == ["2", "1"]
    with pytest.raises(NotFound):
        await store.copy_checkpoints(OWNER, "unknown", "another", node.id)


async def test_checkpoints_are_deleted_by_id_and_by_run(store: Store, node: Node) -> None:
    await put(store, node, "t", step("1", run="r1"), step("2", run="r2"), step("3"))
    await put(store, node, "u", step("1", run="r1", ns="child"))
    write = CheckpointWrite("task", 0, "channel", "", "msgpack", b"w")
    await store.put_checkpoint_writes(OWNER, "t", "graph", "", "1", [write])
    assert await store.delete_checkpoints_of_runs(OTHER, ["r1"]) == 0
    assert await store.delete_checkpoints_of_runs(OWNER, ["r1", "unknown"]) == 2
    assert await ids(store, "t") == ["3", "2"]
    assert await store.delete_checkpoints(OWNER, "t", [("", "2"), ("", "9")]) == 1
    assert await ids(store, "t") == ["3"]
    await put(store, node, "t", step("1"))
    found = await store.checkpoint(OWNER, "t", "", "1")
    assert found is not None and found[1] == []


async def test_a_deleted_conversation_takes_its_checkpoints(store: Store, node: Node) -> None:
    await put(store, node, "t", step("1"))
    await store.delete_conversation(OWNER, (await store.resolve(OWNER, Address(key="t"))).conversation.id)
    assert await store.checkpoint(OWNER, "t", "", None) is None
    assert await ids(store, None, None) == []


async def test_two_writers_on_one_thread_lose_nothing(
    store: Store, second_store: Store, node: Node, second_node: Node
) -> None:
    work = []
    for i in range(20):
        into, by = (store, node) if i % 2 else (second_store, second_node)
        work.append(put(into, by, "t", step(f"{i:02}"), said=(f"m{i}", "both")))
    await asyncio.gather(*work)
    assert len(await ids(store, "t")) == 20
    context = await store.in_context(OWNER, Address(key="t"))
    assert context is not None and len(context.messages) == 21


async def test_checkpoints_count_for_quotas(store: Store, node: Node) -> None:
    limit(store, Quotas(conversation_bytes=1000))
    await put(store, node, "t", step("1", body=b"x" * 600))
    with pytest.raises(QuotaExceeded):
        await put(store, node, "t", step("2", body=b"x" * 600), said=("hello",))
    assert await ids(store, "t") == ["1"]
    assert await store.check() == []


# --- values in parts -------------------------------------------------------------------------------------


class Growing:
    """Steps of a graph with one value that grows, each sharing the parts of the one before."""

    def __init__(self) -> None:
        self.value: SplitValue | None = None
        self.last: NewCheckpoint | None = None

    def step(
        self, id: str, body: bytes, *, run: str | None = None, parent: str | None = None
    ) -> NewCheckpoint:
        base = None
        if self.last is not None and self.last.segments is not None:
            base = (self.last.id, self.last.segments)
        self.value, parts = split("bytes", body, self.value)
        segments = encode_segments({"log": self.value})
        self.last = NewCheckpoint("", id, parent, run, "msgpack", "{}", b"rest", segments, tuple(parts), base)
        return self.last


def log(number: int) -> bytes:
    """A log of so many lines, each of another text."""
    return b"".join(b"%05d" % line * 100 for line in range(number))


async def logged(store: Store, key: str, id: str | None = None) -> tuple[str, bytes]:
    found = await store.checkpoint(OWNER, key, "", id)
    assert found is not None
    return found[0].id, found[0].values()["log"][1]


async def test_a_value_in_parts_comes_back_whole(store: Store, node: Node) -> None:
    growing = Growing()
    await put(store, node, "t", *(growing.step(f"{n:03}", log(n)) for n in range(10, 40)))
    assert await logged(store, "t") == ("039", log(39))
    assert await logged(store, "t", "017") == ("017", log(17))
    for checkpoint, _ in await store.checkpoints(OWNER, "t", ""):
        assert checkpoint.values()["log"] == ("bytes", log(int(checkpoint.id)))
    (usage,) = await store.usage(OWNER)
    assert usage.bytes < 30 * 4 + 4 * len(log(39))
    assert await store.check() == []


async def test_parts_go_with_the_last_checkpoint_that_needs_them(store: Store, node: Node) -> None:
    growing = Growing()
    steps = [growing.step(f"{n:03}", log(n), run=f"r{n}") for n in range(10, 40)]
    await put(store, node, "t", *steps)
    await store.delete_checkpoints(OWNER, "t", [("", each.id) for each in steps[:-2]])
    assert await logged(store, "t") == ("039", log(39))
    assert await logged(store, "t", "038") == ("038", log(38))
    assert await store.delete_checkpoints_of_runs(OWNER, ["r39"]) == 1
    assert await logged(store, "t") == ("038", log(38))
    (usage,) = await store.usage(OWNER)
    assert len(log(38)) < usage.bytes < 1.2 * len(log(38))
    assert await store.check() == []
    await store.delete_checkpoints(OWNER, "t", [("", "038")])
    (usage,) = await store.usage(OWNER)
    assert usage.bytes == 0 and await store.check() == []


async def test_a_checkpoint_whose_parts_are_gone_is_not_stored(store: Store, node: Node) -> None:
    growing = Growing()
    await put(store, node, "t", growing.step("1", log(10)))
    lost = growing.step("2", log(11))

    async def is_stored(key: str, *said: str) -> bool:
        named = [Named(to_message(text), text) for text in said]
        return await store.put_checkpoint(OWNER, key, "graph", node.id, lost, named)

    assert not await is_stored("unknown", "hello")
    await store.delete_checkpoints(OWNER, "t", [("", "1")])
    assert not await is_stored("t", "hello")
    await put(store, node, "t", Growing().step("1", log(10)))  # the same bytes in other parts
    assert not await is_stored("t", "hello")
    context = await store.in_context(OWNER, Address(key="t"))
    assert context is not None and context.messages == []
    assert await ids(store, "t") == ["1"] and await ids(store, "unknown") == []
    assert await store.check() == []


async def test_a_checkpoint_that_leaves_messages_out_needs_its_thread(store: Store, node: Node) -> None:
    new = NewCheckpoint("", "1", None, None, "msgpack", "{}", b"state", continues=True)
    assert not await store.put_checkpoint(OWNER, "t", "graph", node.id, new)
    assert await ids(store, None, None) == []
    await put(store, node, "t", step("1"))
    assert await store.put_checkpoint(OWNER, "t", "graph", node.id, new)


async def test_a_copied_thread_has_parts_of_its_own(store: Store, node: Node) -> None:
    growing = Growing()
    await put(store, node, "t", growing.step("1", log(10)), growing.step("2", log(11)))
    await store.copy_checkpoints(OWNER, "t", "copy", node.id)
    await put(store, node, "copy", growing.step("3", log(12)))
    await store.delete_conversation(OWNER, (await store.resolve(OWNER, Address(key="t"))).conversation.id)
    assert await logged(store, "copy") == ("3", log(12))
    assert await logged(store, "copy", "1") == ("1", log(10))
    assert await store.check() == []


async def test_parts_count_for_quotas(store: Store, node: Node) -> None:
    growing = Growing()
    limit(store, Quotas(conversation_bytes=len(log(10)) + 100))
    await put(store, node, "t", growing.step("1", log(10)))
    with pytest.raises(QuotaExceeded):
        await put(store, node, "t", growing.step("2", log(11)))
    assert await ids(store, "t") == ["1"] and await store.check() == []


async def test_two_nodes_share_the_parts_of_one_thread(
    store: Store, second_store: Store, node: Node, second_node: Node
) -> None:
    first, second = Growing(), Growing()
    await put(store, node, "t", first.step("000", log(10)))
    second.value, second.last = first.value, first.last

    async def write(into: Store, by: Node, growing: Growing, name: str) -> None:
        for number in range(1, 11):
            await put(into, by, "t", growing.step(f"{number:02}{name}", log(10 + number)))

    await asyncio.gather(write(store, node, first, "a"), write(second_store, second_node, second, "b"))
    for number in range(1, 11):
        for by in "ab":
            id_ = f"{number:02}{by}"
            assert await logged(store, "t", id_) == (id_, log(10 + number))
