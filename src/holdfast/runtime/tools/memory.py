"""`memory`: lets the model store, recall and delete memories.

They are those of its conversation or, by the settings, of its owner. A memory belongs to the conversation
that stored it, whichever recalls it later. The tool deletes only what it can recall, and permanently.
"""

from __future__ import annotations

from typing import Any

from ...domain.memories import Memory, MemoryOrigin
from ...errors import BadInput, NotFound
from ...store.store import Store
from .toolbox import Arguments, ToolCall, function, shortened

MOST_RECALLED = 50
ACTIONS = ("remember", "recall", "forget")


class MemoryTool:
    name = "memory"
    idempotent = False

    def __init__(self, store: Store, *, whole_owner: bool) -> None:
        self._store = store
        self._whole_owner = whole_owner
        """True: all memories of the owner are recalled. False: only those of the calling conversation."""

    @property
    def schema(self) -> dict[str, Any]:
        return function(
            self.name,
            "Keep something for later sessions (remember), look up what was kept (recall), or delete it for "
            "good (forget).",
            ("action",),
            action={"type": "string", "enum": list(ACTIONS)},
            text={"type": "string", "description": "remember: what to keep, in one or a few sentences."},
            query={
                "type": "string",
                "description": "recall: words it must contain; none: the newest.",
            },
            id={"type": "string", "description": "forget: the id that recall has shown."},
        )

    async def run(self, call: ToolCall) -> str:
        arguments = Arguments(call)
        match arguments.text("action"):
            case "remember":
                return await self._remember(call, arguments.text("text"))
            case "recall":
                return await self._recall(call, arguments.maybe_text("query"))
            case "forget":
                return await self._forget(call, arguments.text("id"))
            case other:
                raise BadInput(f"there is no action {other!r:.80}; the actions are {', '.join(ACTIONS)}")

    async def _remember(self, call: ToolCall, text: str) -> str:
        memory = await self._store.remember(
            call.owner, call.conversation_id, text, session_id=call.session_id, origin=MemoryOrigin.TOOL
        )
        return f"Remembered as {memory.id}."

    async def _recall(self, call: ToolCall, query: str | None) -> str:
        page = await self._store.memories(
            call.owner,
            conversation_id=None if self._whole_owner else call.conversation_id,
            words=query,
            limit=MOST_RECALLED,
        )
        return shortened("\n".join(map(_line, page.items))) or "[No matching memories.]"

    async def _forget(self, call: ToolCall, memory_id: str) -> str:
        memory = await self._store.memory(call.owner, memory_id)
        if not self._whole_owner and memory.conversation_id != call.conversation_id:
            raise NotFound("memory", memory_id)
        await self._store.forget_memory(call.owner, memory_id)
        return f"{memory_id} is forgotten."


def _line(memory: Memory) -> str:
    return f"{memory.id} ({memory.created_at:%Y-%m-%d}): {memory.text}"
