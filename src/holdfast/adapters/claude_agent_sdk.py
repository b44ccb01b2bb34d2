"""`HoldfastSessionStore`: transcripts of the Claude Agent SDK, stored as conversations.

    options = ClaudeAgentOptions(session_store=HoldfastSessionStore("sqlite:///agent.db"))

A transcript is the conversation with the key `claude-agent-sdk:<project>/<session>`, a subagent's that with
its subpath appended. Entries are returned exactly as they were given; an entry with a `uuid` is stored once.
A batch is durable when `append` returns, with the summary that lists of sessions show.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import quote

from claude_agent_sdk import fold_session_summary
from claude_agent_sdk.types import (
    SessionKey,
    SessionListSubkeysKey,
    SessionStore,
    SessionStoreEntry,
    SessionStoreListEntry,
    SessionSummaryEntry,
)

from ..domain.items import Item, PutItem
from ..domain.messages import NewMessage
from ..domain.session_messages import Named
from .bridge import Bridge, FrameworkConversation, Node
from .carried import carried, carrying, text_of

SOURCE = "claude-agent-sdk"
ENTRY = "claude_entry"


class HoldfastSessionStore(SessionStore):
    """A session store of the SDK. `node` is the URL of a store, or a node that the program has opened."""

    def __init__(self, node: Node, *, owner: str | None = None) -> None:
        self._bridge = Bridge(node, owner)

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Append these entries, all or none. Those whose `uuid` is stored already are skipped."""
        named = [Named(message_of(entry), _uuid(entry)) for entry in entries]
        if named:
            await self._bridge.run_single(lambda: self._append(key, entries, named))

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """The entries of a transcript in order; None if it was never written."""
        context = await self._bridge.run_single(lambda: self._conversation(key).read())
        if context is None:
            return None
        found = [carried(ENTRY, message) for message in context.messages]
        return [entry for entry in found if entry is not None]

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Sessions of a project with the time of their last entry, in milliseconds."""
        found = await self._bridge.run(lambda: self._transcripts(project_key))
        return [
            {"session_id": value["session_id"], "mtime": mtime}
            for value, mtime in found
            if value["subpath"] is None
        ]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """The SDK's summaries of a project's sessions, kept up to date by `append`."""
        found = await self._bridge.run(lambda: self._transcripts(project_key))
        summaries = (
            {**value["summary"], "mtime": mtime} for value, mtime in found if value["subpath"] is None
        )
        return [cast(SessionSummaryEntry, each) for each in summaries]

    async def delete(self, key: SessionKey) -> None:
        """Delete a transcript; without a subpath those of its subagents too. Idempotent."""
        await self._bridge.run(lambda: self._delete(key))

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Subpaths of a session's subagents."""
        found = await self._bridge.run(lambda: self._transcripts(key["project_key"]))
        return [
            value["subpath"]
            for value, _ in found
            if value["session_id"] == key["session_id"] and value["subpath"] is not None
        ]

    def _conversation(self, key: Mapping[str, Any]) -> FrameworkConversation:
        return self._bridge.conversation(SOURCE, _name(key))

    async def _append(
        self, key: SessionKey, entries: Sequence[SessionStoreEntry], named: list[Named]
    ) -> None:
        namespace, name = _project(key["project_key"]), _name(key)
        subpath = key.get("subpath")

        def listed(conversation_id: str, found: Sequence[Item | None]) -> list[PutItem]:
            summary = None
            if subpath is None:
                before = found[0].decoded()["summary"] if found[0] else None
                summary = fold_session_summary(before, key, [*entries])
            value = {"session_id": key["session_id"], "subpath": subpath, "summary": summary}
            return [PutItem(SOURCE, namespace, name, json.dumps(value), conversation_id=conversation_id)]

        await self._conversation(key).append_with_items(named, [(SOURCE, namespace, name)], listed)

    async def _transcripts(self, project_key: str) -> list[tuple[dict[str, Any], int]]:
        """What is known of each transcript of a project, and when it last changed."""
        hf = self._bridge.hf
        items = await hf.store.items_under(hf.owner, SOURCE, _project(project_key))
        return [(item.decoded(), _milliseconds(item)) for item in items]

    async def _delete(self, key: SessionKey) -> None:
        doomed = [self._conversation(key)]
        if key.get("subpath") is None:
            for value, _ in await self._transcripts(key["project_key"]):
                if value["session_id"] == key["session_id"] and value["subpath"] is not None:
                    doomed.append(self._conversation({**key, "subpath": value["subpath"]}))
        for conversation in reversed(doomed):  # the main one last: a crash between leaves nothing unlisted
            await conversation.delete()


def _project(project_key: str) -> str:
    return quote(project_key, safe="").replace(".", "%2E")


def _name(key: Mapping[str, Any]) -> str:
    parts = [key["project_key"], key["session_id"], *([key["subpath"]] if key.get("subpath") else [])]
    return "/".join(quote(part, safe="") for part in parts)


def _milliseconds(item: Item) -> int:
    return int(item.updated_at.timestamp() * 1000)


def _uuid(entry: Mapping[str, Any]) -> str | None:
    found = entry.get("uuid")
    return found if isinstance(found, str) and found else None


def message_of(entry: Mapping[str, Any]) -> NewMessage:
    """An entry as a message: what was said, if something was, and the entry itself beside it."""
    said = entry.get("message")
    if not isinstance(said, Mapping) or said.get("role") not in ("user", "assistant"):
        text = next(
            (entry[n] for n in ("summary", "customTitle", "aiTitle", "content") if entry.get(n)), None
        )
        shown = text_of(text) or f"[{entry.get('type', 'entry')}]"
        return carrying(ENTRY, dict(entry), {"role": "system", "content": shown})
    content = said.get("content")
    parts = content if isinstance(content, list) else []
    body: dict[str, Any] = {"role": said["role"], "content": text_of(content) or None}
    calls = [
        {
            "id": str(part.get("id")),
            "type": "function",
            "function": {"name": str(part.get("name", "")), "arguments": json.dumps(part.get("input", {}))},
        }
        for part in parts
        if isinstance(part, Mapping) and part.get("type") == "tool_use" and part.get("id")
    ]
    if calls and said["role"] == "assistant":
        body["tool_calls"] = calls
    results = [p for p in parts if isinstance(p, Mapping) and p.get("type") == "tool_result"]
    if len(results) == 1 and len(parts) == 1 and results[0].get("tool_use_id"):
        body = {
            "role": "tool",
            "tool_call_id": str(results[0]["tool_use_id"]),
            "content": text_of(results[0].get("content")),
        }
    elif body["content"] is None and not calls:
        body["content"] = f"[{entry.get('type', 'entry')}]"
    return carrying(ENTRY, dict(entry), body)
