"""`search`: finds earlier messages, in this conversation or, by the settings, in all of its owner's.

A conversation is searched completely, including what a reset or a compaction has removed from the context.
"""

from __future__ import annotations

from typing import Any

from ...store.store import Store
from ...store.values import Found
from .toolbox import Arguments, ToolCall, function, shortened

MOST_FOUND = 20


class SearchTool:
    name = "search"
    idempotent = True

    def __init__(self, store: Store, *, whole_owner: bool) -> None:
        self._store = store
        self._whole_owner = whole_owner
        """True: all conversations of the owner are searched. False: only the calling one."""

    @property
    def schema(self) -> dict[str, Any]:
        where = "all earlier conversations" if self._whole_owner else "the whole of this conversation"
        return function(
            self.name,
            f"Search {where}, also outside the context. Finds messages that contain all the words.",
            ("query",),
            query={"type": "string", "description": "Words; a phrase in double quotes."},
        )

    async def run(self, call: ToolCall) -> str:
        query = Arguments(call).text("query")
        found = await self._store.search(
            call.owner,
            query,
            conversation_id=None if self._whole_owner else call.conversation_id,
            limit=2 * MOST_FOUND,
        )
        earlier = [hit for hit in found if hit.message.turn_id != call.turn_id][:MOST_FOUND]
        return shortened("\n".join(map(_line, earlier))) or "[Nothing was found.]"


def _line(hit: Found) -> str:
    message = hit.message
    where = f" in {hit.title or hit.key}" if hit.title or hit.key else ""
    return f"{message.created_at:%Y-%m-%d %H:%M} {message.role}{where}: {hit.snippet}"
