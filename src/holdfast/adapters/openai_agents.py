"""`HoldfastSession`: a session of the OpenAI Agents SDK, stored as a conversation.

    session = HoldfastSession("user_123", "sqlite:///agent.db")
    result = await Runner.run(agent, "Hello", session=session)

`add_items` is one transaction: all items are durable when it returns, or none is stored. `pop_item` and
`clear_session` remove items from the context; they stay readable outside of it. Several processes may use one
session: their changes are serialised.

The SDK's own compaction takes a private type of the SDK. With a version that this was not tested with, the
log says so when this module is imported.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
from agents.items import TResponseInputItem
from agents.memory import SessionSettings
from agents.memory.session import OpenAIResponsesCompactionArgs
from agents.memory.session_settings import coerce_session_settings

from ..dependencies import untested
from ..domain.contexts import summary_body
from ..domain.messages import Message, NewMessage
from ..domain.new_messages import ROLES, decode_object, new_message
from ..domain.session_messages import ContextBody, InContext, Named
from ..domain.views import Summary
from ..errors import BadMessage, Conflict, NotCompacted
from .bridge import Bridge, FrameworkConversation, Node
from .carried import carried, carried_in, carrying, text_of

if TYPE_CHECKING:
    from agents.memory.session import _CompactionSnapshot

log = logging.getLogger(__name__)
if problem := untested(["openai_agents"], core=False):
    log.warning(problem)

SOURCE = "openai-agents"
ITEM = "openai_item"

Item = dict[str, Any]
T = TypeVar("T")


class HoldfastSession:
    """A session of the SDK by its `session_id`: the conversation with the key `openai-agents:<session_id>`,
    or with an id of holdfast (`conv_…`, `sess_…`) any existing one.

    `node` is the URL of a store, or a node that the program has opened. If that node has a model, a context
    over `[compaction] threshold` is compacted by holdfast.
    """

    session_settings: SessionSettings | None

    def __init__(
        self,
        session_id: str,
        node: Node,
        *,
        owner: str | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        self.session_id = session_id
        self.session_settings = coerce_session_settings(session_settings or {})
        self._closed = False
        self._bridge = Bridge(node, owner)
        self._conversation = FrameworkConversation(self._bridge, SOURCE, session_id)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The items in the context, oldest first; only the newest `limit`."""
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        if limit is not None and limit < 0:
            limit = None
        parts = await self._run(lambda: self._conversation.read_bodies(limit), single=True)
        if not parts:
            return []
        try:
            items = decoded(parts)
        except RecursionError:  # a body that is nested too deeply is replaced by a note, which takes longer
            context = await self._run(lambda: self._conversation.read(limit), single=True)
            items = [item for part in context.parts for item in items_of(part)] if context else []
        return cast(
            "list[TResponseInputItem]", items if limit is None else items[max(len(items) - limit, 0) :]
        )

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append these items, all or none."""
        messages = [Named(message_of(cast("Item", item))) for item in items]
        await self._run(lambda: self._conversation.append(messages), single=True)

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the newest item from the context and return it; None if there is none."""

        async def pop() -> list[Message]:
            if not await self._conversation.exists():
                return []
            return await (await self._conversation.session()).remove_last()

        removed = await self._run(pop)
        items = items_of(removed[0]) if removed else []
        return cast("TResponseInputItem", items[-1]) if items else None

    async def clear_session(self) -> None:
        """Empty the context. The items stay readable in the conversation."""

        async def clear() -> None:
            if await self._conversation.exists():
                await self._conversation.replace([])

        await self._run(clear)

    def close(self) -> None:
        """Refuse further operations. The node stays open: other sessions may use it."""
        self._closed = True

    async def _run(self, work: Callable[[], Coroutine[Any, Any, T]], *, single: bool = False) -> T:
        if self._closed:
            raise RuntimeError(f"{type(self).__name__} is closed")
        return await (self._bridge.run_single(work) if single else self._bridge.run(work))

    async def run_compaction(self, args: OpenAIResponsesCompactionArgs | None = None) -> None:
        """Called by the SDK after each turn: compact if the context is over the threshold, or always with
        `force`. Does nothing if the node has no model."""
        force = bool((args or {}).get("force"))

        async def compact() -> None:
            if self._bridge.hf.compactor is None or not await self._conversation.exists():
                return
            session = await self._conversation.session()
            if not force:
                await session.compact_if_full()
                return
            try:
                await session.compact()
            except NotCompacted:
                return  # nothing to gain

        await self._run(compact)

    async def _get_compaction_snapshot(
        self, limit: int, *, prune_prefix: Callable[[TResponseInputItem], bool] | None = None
    ) -> _CompactionSnapshot | None:
        """The newest items, with their replacement as one transaction, for the SDK's own compaction. Without
        it the SDK would clear the session and add items, and a crash between would lose the context."""
        context = await self._run(lambda: self._conversation.read(limit + 1))
        parts = context.parts[-limit:] if context is not None else ()
        shown = [items_of(part) for part in parts]
        if context is None or any(len(items) != 1 for items in shown):
            return None  # written by another client: items and messages do not correspond

        async def replace_suffix(start: int, output: list[TResponseInputItem]) -> bool:
            messages = [message_of(cast("Item", item)) for item in output]
            if start >= len(parts):
                return False
            first = parts[start]
            since = first.seq if isinstance(first, Message) else 1

            async def replace() -> bool:
                whole = await self._conversation.read() if prune_prefix is not None else None
                expired = _expired(whole, since, prune_prefix) if whole and prune_prefix else ()
                try:
                    await self._conversation.replace(
                        messages, since=since, last_seq=context.last_seq, also=expired
                    )
                except Conflict:
                    return False
                return True

            return await self._run(replace)

        from agents.memory.session import _CompactionSnapshot  # private: another version may not have it

        items = cast("list[TResponseInputItem]", [items[0] for items in shown])
        replaces: Callable[[int, list[TResponseInputItem]], Awaitable[bool]] = replace_suffix
        return _CompactionSnapshot(items, len(context.parts) <= limit, replaces)


def _expired(context: InContext, since: int, prune: Callable[[TResponseInputItem], bool]) -> frozenset[int]:
    """Seqs of the oldest messages before `since`, up to the first whose item is not to be pruned."""
    found = []
    for message in context.messages:
        items = items_of(message)
        if message.seq >= since or not all(prune(cast("TResponseInputItem", item)) for item in items):
            break
        found.append(message.seq)
    return frozenset(found)


_decode = msgspec.json.Decoder().decode


# --- items and messages ----------------------------------------------------------------------------------


def message_of(item: Item) -> NewMessage:
    """An item of the SDK as a message. A plain chat message is stored as it is; any other item is carried by
    a message that shows its text."""
    if set(item) == {"role", "content"} and isinstance(item["content"], str):
        try:
            return new_message(item)
        except BadMessage:
            pass  # a text that cannot be stored as it is: carried, and shown with replacements
    return carrying(ITEM, item, _shown(item))


def _shown(item: Item) -> Item:
    kind = item.get("type", "message")
    call_id = item.get("call_id")
    if kind == "function_call" and isinstance(call_id, str) and call_id:
        function = {"name": str(item.get("name", "")), "arguments": str(item.get("arguments", ""))}
        call = {"id": call_id, "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output" and isinstance(call_id, str) and call_id:
        output = item.get("output")
        return {"role": "tool", "tool_call_id": call_id, "content": text_of(output) or str(output or "")}
    role = item.get("role")
    if role in ROLES and role not in ("tool", "function"):
        return {"role": role, "content": text_of(item.get("content"))}
    said = text_of(item.get("summary")) or text_of(item.get("content"))
    return {"role": "assistant", "content": said or f"[{kind}]"}


def items_of(part: Message | Summary) -> list[Item]:
    """The items of a message, or of the summary that replaces older ones. A message of another client may be
    several."""
    if isinstance(part, Summary):
        return [decode_object(summary_body(part.text))]
    item = carried(ITEM, part)
    return [item] if item is not None else _items_of_chat(part.content())


def decoded(parts: Sequence[ContextBody | Summary]) -> list[Item]:
    """The items of a context: as `items_of` of each part."""
    items: list[Item] = []
    for part in parts:
        if isinstance(part, Summary):
            items.append(decode_object(summary_body(part.text)))
            continue
        body, extra = part
        item = None if extra is None else carried_in(ITEM, _decode(extra))
        if item is not None:
            items.append(item)
            continue
        found = _decode(body)
        if len(found) == 2 and type(found.get("content")) is str:
            items.append(found)  # a role and a text: the item itself
        else:
            items += _items_of_chat(found)
    return items


def _items_of_chat(message: Mapping[str, Any]) -> list[Item]:
    role, text = message["role"], text_of(message.get("content"))
    if role == "tool":
        return [{"type": "function_call_output", "call_id": message.get("tool_call_id", ""), "output": text}]
    calls = message.get("tool_calls") or ()
    items: list[Item] = [{"role": role, "content": text}] if text or not calls else []
    for call in calls:
        function = call.get("function") or {}
        items.append(
            {
                "type": "function_call",
                "call_id": call.get("id", ""),
                "name": function.get("name", ""),
                "arguments": function.get("arguments", ""),
            }
        )
    return items
