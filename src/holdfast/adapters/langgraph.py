"""`HoldfastSaver` and `HoldfastStore`: checkpoints and long-term memory of LangGraph.

    saver = HoldfastSaver("sqlite:///agent.db")
    graph = builder.compile(checkpointer=saver, store=HoldfastStore("sqlite:///agent.db"))

A thread is the conversation with the key `langgraph:<thread_id>`. A checkpoint is durable when `put` returns,
and the messages that are new in it are stored in the same transaction, so the thread can be read, searched
and deleted like any other conversation. Several processes may use one thread: their writes are serialised.
Every method exists blocking and async. The long-term memory is in `langgraph_store.py`.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.base import Checkpoint as GraphCheckpoint
from langgraph.checkpoint.serde.base import SerializerProtocol

from ..domain.checkpoints import (
    INLINE,
    Checkpoint,
    CheckpointWrite,
    NewCheckpoint,
    SplitValue,
    ValuePart,
    encode_segments,
    split,
)
from ..domain.conversations import Address
from ..domain.session_messages import Named
from ..errors import NotFound
from ..store.store import Store
from .bridge import REFUSALS, Bridge, Node
from .langgraph_messages import named_messages, newest_messages
from .langgraph_store import SOURCE, HoldfastStore

__all__ = ["HoldfastSaver", "HoldfastStore"]

PAGE = 50
THREADS_REMEMBERED = 1000

SMALLEST_SPLIT = 2048
"""Values of at least so many encoded bytes are stored in parts."""
FEW = 4
MOST_HELD = 64_000_000
"""Bytes of encoded values that a saver keeps in memory, to find what the next checkpoint shares with them."""

Found = tuple[Checkpoint, list[CheckpointWrite]]


class Written(NamedTuple):
    """A checkpoint that was stored, with its values that are in parts."""

    id: str
    segments: str
    values: dict[str, SplitValue]
    size: int


class PreparedPut(NamedTuple):
    """Key of the thread, its checkpoint, messages that may be new in it, and their hashes."""

    key: str
    checkpoint: NewCheckpoint
    named: list[Named]
    marks: list[int]
    written: Written | None


def _key(thread_id: object) -> str:
    return f"{SOURCE}:{thread_id}"


class HoldfastSaver(BaseCheckpointSaver[Any]):
    """A checkpointer on a holdfast store.

    `node` is the URL of a store, or a node that the program has opened. `messages` names the channel whose
    messages are also stored as messages of the conversation; None: no channel.
    """

    def __init__(
        self,
        node: Node,
        *,
        owner: str | None = None,
        messages: str | None = "messages",
        serde: SerializerProtocol | None = None,
    ) -> None:
        super().__init__(serde=serde)
        self._bridge = Bridge(node, owner)
        self._channel = messages
        self._guard = threading.Lock()
        self._stored: OrderedDict[str, set[int]] = OrderedDict()
        """Hashes of messages that are known to be stored, by thread: these are not sent again."""
        self._written: OrderedDict[tuple[str, str], Written] = OrderedDict()
        """The last checkpoint stored here, by thread and namespace."""
        self._held = 0

    @property
    def _store(self) -> Store:
        return self._bridge.hf.store

    @property
    def _owner(self) -> str:
        return self._bridge.hf.owner

    # --- writing ----------------------------------------------------------------------------------------

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: GraphCheckpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint with the messages that are new in it."""
        prepared = self._prepared(config, checkpoint, metadata)
        if not await self._bridge.run_single(lambda: self._put(prepared)):
            self._forget(prepared.key)
            prepared = self._prepared(config, checkpoint, metadata, whole=True)
            await self._bridge.run_single(lambda: self._put(prepared))
        self._remember(prepared)
        return self._put_config(config, checkpoint)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: GraphCheckpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        prepared = self._prepared(config, checkpoint, metadata)
        if not self._put_blocking(prepared):
            self._forget(prepared.key)
            prepared = self._prepared(config, checkpoint, metadata, whole=True)
            self._put_blocking(prepared)
        self._remember(prepared)
        return self._put_config(config, checkpoint)

    def _prepared(
        self,
        config: RunnableConfig,
        checkpoint: GraphCheckpoint,
        metadata: CheckpointMetadata,
        *,
        whole: bool = False,
    ) -> PreparedPut:
        """`whole`: it shares nothing with what is stored, so it is never refused. What is remembered of the
        thread may be outdated again: another task may have remembered it meanwhile."""
        given = config["configurable"]
        key, ns = _key(given["thread_id"]), given.get("checkpoint_ns", "")
        before = None if whole else self._written.get((key, ns))
        values, parts, base = self._split(checkpoint["channel_values"], before)
        rest = checkpoint
        if values:
            small = {name: each for name, each in rest["channel_values"].items() if name not in values}
            rest = {**rest, "channel_values": small}
        kind, body = self.serde.dumps_typed(rest)
        segments = encode_segments(values) if values else None
        described: dict[str, Any] = dict(get_checkpoint_metadata(config, metadata))
        run = described.get("run_id")
        found: list[tuple[int, Named]] = []
        known: Collection[int] = ()
        if self._channel is not None and not ns:
            said: Any = checkpoint["channel_values"].get(self._channel)
            known = () if whole else self._stored.get(key, ())
            number = self._number_new(said, values.get(self._channel)) if known else None
            newest = None if number is None else newest_messages(said, number, known)
            found = [*named_messages(said, known)] if newest is None else newest
        new = NewCheckpoint(
            ns,
            checkpoint["id"],
            given.get("checkpoint_id"),
            None if run is None else str(run),
            kind,
            json.dumps(described),
            body,
            segments,
            tuple(parts),
            base,
            continues=bool(known),
        )
        written = None
        if segments is not None:
            written = Written(new.id, segments, values, sum(len(each.body) for each in values.values()))
        return PreparedPut(key, new, [named for _, named in found], [mark for mark, _ in found], written)

    def _split(
        self, given: Mapping[str, Any], before: Written | None
    ) -> tuple[dict[str, SplitValue], list[ValuePart], tuple[str, str] | None]:
        """The large values of a state, the parts to store for them, and the checkpoint whose parts they
        share."""
        values: dict[str, SplitValue] = {}
        parts: list[ValuePart] = []
        for name, value in given.items():
            if not _may_be_large(value):
                continue
            kind, body = self.serde.dumps_typed(value)
            if len(body) >= SMALLEST_SPLIT:
                values[name], new = split(kind, body, before.values.get(name) if before else None)
                parts += new
        stored = sum([offset != INLINE for each in values.values() for _, offset, _ in each.segments])
        shares = stored > len(parts)  # each new part is one segment
        return values, parts, (before.id, before.segments) if shares and before else None

    def _number_new(self, channel: Any, value: SplitValue | None) -> int | None:
        """How many values at the end of a list are not in the list before; None if that is not known. They
        are those whose encodings cover the bytes that are new at its end."""
        if value is None or value.fresh >= len(value.body) or not isinstance(channel, list):
            return None
        number, end = 0, len(value.body)
        while end > len(value.body) - value.fresh:
            number += 1
            if number > len(channel):
                return None
            _, body = self.serde.dumps_typed(channel[-number])
            if not value.body.endswith(body, 0, end):
                return None
            end -= len(body)
        return number

    async def _put(self, prepared: PreparedPut) -> bool:
        hf = self._bridge.hf
        try:
            return await hf.store.put_checkpoint(
                hf.owner, prepared.key, SOURCE, hf.node_id, prepared.checkpoint, prepared.named
            )
        except REFUSALS:
            return await self._put_patiently(prepared)

    def _put_blocking(self, prepared: PreparedPut) -> bool:
        hf, bridge = self._bridge.hf, self._bridge
        key, new, named = prepared.key, prepared.checkpoint, prepared.named
        try:
            return bridge.blocking(Store.put_checkpoint, hf.owner, key, SOURCE, hf.node_id, new, named)
        except REFUSALS:
            return bridge.call(lambda: self._put_patiently(prepared))

    async def _put_patiently(self, prepared: PreparedPut) -> bool:
        """The same once the thread is free, as a node that has rejoined if it was reaped."""
        hf = self._bridge.hf
        key, new, named = prepared.key, prepared.checkpoint, prepared.named

        async def put() -> bool:
            return await hf.store.put_checkpoint(hf.owner, key, SOURCE, hf.node_id, new, named)

        async def living() -> bool:
            return await hf.heartbeat.as_living(put)

        return await hf.gate.when_free(living, hf.settings.server.busy_wait_seconds)

    def _remember(self, prepared: PreparedPut) -> None:
        key, place = prepared.key, (prepared.key, prepared.checkpoint.ns)
        with self._guard:
            if prepared.marks:
                self._stored.setdefault(key, set()).update(prepared.marks)
                self._stored.move_to_end(key)
                while len(self._stored) > THREADS_REMEMBERED:
                    self._stored.popitem(last=False)
            self._drop_written(place)
            if prepared.written is not None:
                self._written[place] = prepared.written
                self._held += prepared.written.size
            while self._held > MOST_HELD:
                self._drop_written(next(iter(self._written)))

    def _drop_written(self, place: tuple[str, str]) -> None:
        gone = self._written.pop(place, None)
        if gone is not None:
            self._held -= gone.size

    def _forget(self, key: str) -> None:
        """Forget what is known of a thread: the next checkpoint is stored complete, with all its messages."""
        with self._guard:
            self._stored.pop(key, None)
            for place in [place for place in self._written if place[0] == key]:
                self._drop_written(place)

    def _put_config(self, config: RunnableConfig, checkpoint: GraphCheckpoint) -> RunnableConfig:
        given = config["configurable"]
        return _config(given["thread_id"], given.get("checkpoint_ns", ""), checkpoint["id"])

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task wrote after a checkpoint. Idempotent."""
        arguments = self._writing(config, writes, task_id, task_path)
        await self._bridge.run_single(lambda: self._store.put_checkpoint_writes(*arguments))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        arguments = self._writing(config, writes, task_id, task_path)
        self._bridge.blocking(Store.put_checkpoint_writes, *arguments)

    def _writing(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> tuple[str, str, str, str, str, list[CheckpointWrite]]:
        given = config["configurable"]
        replaces = all(channel in WRITES_IDX_MAP for channel, _ in writes)
        prepared = []
        for position, (channel, value) in enumerate(writes):
            kind, body = self.serde.dumps_typed(value)
            ordinal = WRITES_IDX_MAP.get(channel, position)
            prepared.append(CheckpointWrite(task_id, ordinal, channel, task_path, kind, body, replaces))
        ns, checkpoint_id = given.get("checkpoint_ns", ""), given["checkpoint_id"]
        return self._owner, _key(given["thread_id"]), SOURCE, ns, checkpoint_id, prepared

    def get_next_version(self, current: Any, channel: None) -> Any:
        """The version after this one, of its type. The first is a text, as in LangGraph's database savers,
        so that their threads can be moved here."""
        if isinstance(current, int | float):
            return current + 1
        number = int(current.split(".")[0]) if current else 0
        return f"{number + 1:032}.{secrets.randbits(53):016}"

    # --- reading ----------------------------------------------------------------------------------------

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that the config names, or the newest of its thread and namespace."""
        wanted = self._wanted(config)
        return self._tuple(await self._bridge.run_single(lambda: self._store.checkpoint(*wanted)))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._tuple(self._bridge.blocking(Store.checkpoint, *self._wanted(config)))

    def _wanted(self, config: RunnableConfig) -> tuple[str, str, str, str | None]:
        given = config["configurable"]
        ns = given.get("checkpoint_ns", "")
        return self._owner, _key(given["thread_id"]), ns, get_checkpoint_id(config)

    def _tuple(self, found: Found | None) -> CheckpointTuple | None:
        if found is None:
            return None
        stored, writes = found
        thread_id = (stored.key or "").removeprefix(f"{SOURCE}:")
        checkpoint = self.serde.loads_typed((stored.kind, stored.body))
        for name, value in stored.values().items():
            checkpoint["channel_values"][name] = self.serde.loads_typed(value)
        ordered = sorted(writes, key=lambda each: writes_sort_key(each.path, each.task, each.ordinal))
        return CheckpointTuple(
            config=_config(thread_id, stored.ns, stored.id),
            checkpoint=checkpoint,
            metadata=json.loads(stored.metadata),
            parent_config=_config(thread_id, stored.ns, stored.parent) if stored.parent else None,
            pending_writes=[
                (each.task, each.channel, self.serde.loads_typed((each.kind, each.body))) for each in ordered
            ],
        )

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Checkpoints, the newest first; of all threads without a config."""
        listing = _Listing(self, config, filter, before, limit)
        while listing.more:
            page = await self._bridge.run_single(listing.read)
            for found in listing.taken(page):
                yield found

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        listing = _Listing(self, config, filter, before, limit)
        while listing.more:
            page = self._bridge.call(listing.read)
            yield from listing.taken(page)

    # --- threads ----------------------------------------------------------------------------------------

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete the conversation of this thread: its checkpoints, writes and messages."""
        await self._bridge.run(lambda: self._delete_thread(thread_id))

    def delete_thread(self, thread_id: str) -> None:
        self._bridge.call(lambda: self._delete_thread(thread_id))

    async def _delete_thread(self, thread_id: str) -> None:
        self._forget(_key(thread_id))
        try:
            found = await self._store.resolve(self._owner, Address(key=_key(thread_id)))
            await self._store.delete_conversation(self._owner, found.conversation.id)
        except NotFound:
            return

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that these runs wrote, with their writes. Messages stay."""
        await self._bridge.run(lambda: self._delete_for_runs(run_ids))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._bridge.call(lambda: self._delete_for_runs(run_ids))

    async def _delete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self._store.delete_checkpoints_of_runs(self._owner, [str(each) for each in run_ids])

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread: its messages, checkpoints and writes. An unknown thread: nothing."""
        await self._bridge.run(lambda: self._copy_thread(source_thread_id, target_thread_id))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self._bridge.call(lambda: self._copy_thread(source_thread_id, target_thread_id))

    async def _copy_thread(self, source: str, target: str) -> None:
        hf = self._bridge.hf

        async def copy() -> None:
            await hf.store.copy_checkpoints(hf.owner, _key(source), _key(target), hf.node_id)

        try:
            await hf.heartbeat.as_living(copy)
        except NotFound:
            return

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete old checkpoints of these threads: all but the newest of each namespace, or with `delete`
        all. Ancestors that a delta channel of a kept checkpoint needs are kept. Messages stay."""
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"unknown strategy {strategy!r}: 'keep_latest' or 'delete'")
        for thread_id in thread_ids:
            found = [each async for each in self.alist({"configurable": {"thread_id": thread_id}})]
            doomed = _doomed(found, strategy)
            await self._bridge.run(partial(self._drop, thread_id, doomed))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"unknown strategy {strategy!r}: 'keep_latest' or 'delete'")
        for thread_id in thread_ids:
            doomed = _doomed([*self.list({"configurable": {"thread_id": thread_id}})], strategy)
            self._bridge.call(partial(self._drop, thread_id, doomed))

    async def _drop(self, thread_id: str, doomed: Sequence[tuple[str, str]]) -> None:
        await self._store.delete_checkpoints(self._owner, _key(thread_id), doomed)


class _Listing:
    """One `list`: reads page by page, applies the filter and the limit."""

    def __init__(
        self,
        saver: HoldfastSaver,
        config: RunnableConfig | None,
        filter: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> None:
        given = config["configurable"] if config else {}
        self._saver = saver
        self._key = _key(given["thread_id"]) if config else None
        self._ns = given.get("checkpoint_ns")
        self._only = get_checkpoint_id(config) if config else None
        self._filter = filter or {}
        self._older_than = get_checkpoint_id(before) if before else None
        self._left = limit
        self._after: Checkpoint | None = None
        self.more = limit is None or limit > 0

    async def read(self) -> Sequence[Found]:
        saver = self._saver
        if self._only is not None and self._key is not None and self._ns is not None:
            found = await saver._store.checkpoint(saver._owner, self._key, self._ns, self._only)
            return [found] if found is not None else []
        return await saver._store.checkpoints(
            saver._owner, self._key, self._ns, after=self._after, older_than=self._older_than, limit=PAGE
        )

    def taken(self, page: Sequence[Found]) -> Iterator[CheckpointTuple]:
        self.more = len(page) == PAGE
        for stored, writes in page:
            self._after = stored
            if self._only is not None and stored.id != self._only:
                continue
            if self._older_than is not None and stored.id >= self._older_than:
                continue
            metadata = json.loads(stored.metadata)
            if any(metadata.get(name) != value for name, value in self._filter.items()):
                continue
            found = self._saver._tuple((stored, writes))
            assert found is not None
            yield found
            if self._left is not None:
                self._left -= 1
                if self._left == 0:
                    self.more = False
                    return


def _config(thread_id: Any, ns: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}}


def _doomed(found: Sequence[CheckpointTuple], strategy: str) -> list[tuple[str, str]]:
    """Namespace and id of the checkpoints to delete; `found` is newest first."""
    by_place = {_place(each): each for each in found}
    kept: set[tuple[str, str]] = set()
    if strategy == "keep_latest":
        newest: dict[str, CheckpointTuple] = {}
        for each in found:
            newest.setdefault(_place(each)[0], each)
        for (ns, _), each in ((_place(each), each) for each in newest.values()):
            kept.add(_place(each))
            # A delta channel is rebuilt from writes after the last ancestor that holds its value.
            counters: Mapping[str, Any] = each.metadata.get("counters_since_delta_snapshot") or {}
            missing = set(counters) - set(each.checkpoint["channel_values"])
            parent = each.parent_config
            while missing and parent is not None:
                ancestor = by_place.get((ns, parent["configurable"]["checkpoint_id"]))
                if ancestor is None:
                    break
                kept.add(_place(ancestor))
                missing -= set(ancestor.checkpoint["channel_values"])
                parent = ancestor.parent_config
    return [place for place in by_place if place not in kept]


def _place(found: CheckpointTuple) -> tuple[str, str]:
    given = found.config["configurable"]
    return given["checkpoint_ns"], given["checkpoint_id"]


def _may_be_large(value: Any) -> bool:
    if isinstance(value, list | dict):
        return len(value) >= FEW
    return isinstance(value, str | bytes) and len(value) >= SMALLEST_SPLIT
