"""`HoldfastSessionService` and `HoldfastMemoryService`: sessions and memory of Google's ADK.

    runner = Runner(
        app_name="app", agent=agent, session_service=HoldfastSessionService("sqlite:///agent.db")
    )

A session is the conversation with the key `google-adk:<app>/<user>/<session>`. An event and the state that it
changes are one transaction, durable when `append_event` returns; the same event sent again is stored once.
Several processes may append to one session: their events are kept in the order of their commits.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Any
from urllib.parse import quote, unquote

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions.base_session_service import (
    BaseSessionService,
    GetSessionConfig,
    ListSessionsResponse,
)
from google.adk.sessions.session import Session
from google.adk.sessions.state import State
from google.genai import types

from ..domain.items import Item, ItemPlace, PutItem
from ..domain.messages import Message, NewMessage
from ..domain.session_messages import Named
from ..domain.views import Summary
from ..errors import Conflict, NotFound
from .bridge import Bridge, FrameworkConversation, Node
from .carried import carried, carrying, words_of

SOURCE = "google-adk"
EVENT = "adk_event"
USER_STATE = f"{SOURCE}-user"
APP_STATE = f"{SOURCE}-app"
MEMORY = f"{SOURCE}-memory"
MOST_MEMORIES = 10


@lru_cache(maxsize=4096)
def _label(text: str) -> str:
    """A text as one label of a namespace, or one part of a name."""
    return quote(text, safe="").replace(".", "%2E")


def _namespace(*texts: str) -> str:
    return ".".join(_label(text) for text in texts)


class HoldfastSessionService(BaseSessionService):
    """A session service of the ADK. `node` is the URL of a store, or a node that the program has opened."""

    def __init__(self, node: Node, *, owner: str | None = None) -> None:
        self._bridge = Bridge(node, owner)

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """A new session with this state; AlreadyExistsError if its id is in use."""
        session_id = (session_id or "").strip() or str(uuid.uuid4())
        await self._bridge.run(lambda: self._create(app_name, user_id, session_id, state or {}))
        found = await self.get_session(app_name=app_name, user_id=user_id, session_id=session_id)
        assert found is not None
        return found

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """The session with its events, or only the newest, and its state with that of its user and app."""
        return await self._bridge.run_single(lambda: self._get(app_name, user_id, session_id.strip(), config))

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Sessions of a user, or of all, without events, the last changed one last."""
        return await self._bridge.run(lambda: self._list(app_name, user_id))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session with its events and state. Idempotent."""
        conversation = self._conversation(app_name, user_id, session_id.strip())
        await self._bridge.run(conversation.delete)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """The state that all sessions of this user share, without the prefix `user:`."""
        return await self._bridge.run(lambda: self._scoped(USER_STATE, _namespace(app_name, user_id)))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Store an event and the state that it changes, then apply both to `session`. The same event again
        changes nothing. SessionNotFoundError if the session was deleted."""
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        if await self._bridge.run_single(lambda: self._append(session, event)):
            event = self._commit_event_to_session(session, event)
            session.last_update_time = event.timestamp
        return event

    # --- in the node's loop -----------------------------------------------------------------------------

    def _conversation(self, app_name: str, user_id: str, session_id: str) -> FrameworkConversation:
        return self._bridge.conversation(SOURCE, f"{_label(app_name)}/{_label(user_id)}/{_label(session_id)}")

    def _place(self, app_name: str, user_id: str, session_id: str) -> ItemPlace:
        return SOURCE, _namespace(app_name, user_id), _label(session_id)

    async def _create(self, app_name: str, user_id: str, session_id: str, state: Mapping[str, Any]) -> None:
        hf, place = self._bridge.hf, self._place(app_name, user_id, session_id)
        known = AlreadyExistsError(f"Session with id {session_id} already exists.")
        if await hf.store.item(hf.owner, *place) is not None:
            raise known
        live = await self._conversation(app_name, user_id, session_id).session()
        now = datetime.now(UTC).timestamp()
        changes = _changes(place, app_name, user_id, live.conversation_id, {}, state, now)
        try:
            await hf.store.put_items(hf.owner, changes, absent=place)
        except Conflict:  # created since it was looked for
            raise known from None

    async def _get(
        self, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None
    ) -> Session | None:
        hf = self._bridge.hf
        record = await hf.store.item(hf.owner, *self._place(app_name, user_id, session_id))
        if record is None:
            return None
        limit = config.num_recent_events if config else None
        context = await self._conversation(app_name, user_id, session_id).read(limit)
        events = [event_of(part) for part in context.parts] if context is not None else []
        if config is not None and config.after_timestamp is not None:
            events = [event for event in events if event.timestamp >= config.after_timestamp]
        session = await self._session(app_name, user_id, record)
        session.events = events
        return session

    async def _session(self, app_name: str, user_id: str, record: Item) -> Session:
        value = record.decoded()
        state = dict(value["state"])
        for name, part in (await self._scoped(APP_STATE, _namespace(app_name))).items():
            state[State.APP_PREFIX + name] = part
        for name, part in (await self._scoped(USER_STATE, _namespace(app_name, user_id))).items():
            state[State.USER_PREFIX + name] = part
        return Session(
            id=unquote(record.name),
            app_name=app_name,
            user_id=user_id,
            state=state,
            last_update_time=value["updated"],
        )

    async def _scoped(self, space: str, namespace: str) -> dict[str, Any]:
        hf = self._bridge.hf
        items = await hf.store.items_under(hf.owner, space, namespace)
        return {unquote(item.name): item.decoded() for item in items if item.namespace == namespace}

    async def _list(self, app_name: str, user_id: str | None) -> ListSessionsResponse:
        hf = self._bridge.hf
        scope = (app_name,) if user_id is None else (app_name, user_id)
        sessions = []
        for record in await hf.store.items_under(hf.owner, SOURCE, _namespace(*scope)):
            user = unquote(record.namespace.split(".")[1])
            sessions.append(await self._session(app_name, user, record))
        sessions.sort(key=lambda session: (session.last_update_time, session.user_id, session.id))
        return ListSessionsResponse(sessions=sessions)

    async def _append(self, session: Session, event: Event) -> bool:
        hf = self._bridge.hf
        place = self._place(session.app_name, session.user_id, session.id)
        conversation = self._conversation(session.app_name, session.user_id, session.id)
        gone = SessionNotFoundError(f"Session {session.id} not found.")
        if not conversation.is_open and await hf.store.item(hf.owner, *place) is None:
            raise gone
        message = message_of(event)
        digest = blake2b((message.extra or "").encode(), digest_size=12).hexdigest()
        delta = dict(event.actions.state_delta) if event.actions and event.actions.state_delta else {}

        def changed(conversation_id: str, found: Sequence[Item | None]) -> list[PutItem]:
            before = found[0].decoded()["state"] if found[0] is not None else {}
            return _changes(
                place, session.app_name, session.user_id, conversation_id, before, delta, event.timestamp
            )

        named = [Named(message, f"{_label(event.id)[:64]}:{digest}")]
        try:
            return bool(await conversation.append_with_items(named, [place], changed, reopen=False))
        except NotFound:
            raise gone from None


def _changes(
    place: ItemPlace,
    app_name: str,
    user_id: str,
    conversation_id: str,
    before: Mapping[str, Any],
    delta: Mapping[str, Any],
    at: float,
) -> list[PutItem]:
    """The items that a state delta changes: the session's record, and one for each name of its user's and its
    app's state, so that sessions that change different names do not overwrite each other."""
    state, scoped = dict(before), []
    for name, value in delta.items():
        if name.startswith(State.APP_PREFIX):
            scoped.append((APP_STATE, _namespace(app_name), name.removeprefix(State.APP_PREFIX), value))
        elif name.startswith(State.USER_PREFIX):
            namespace = _namespace(app_name, user_id)
            scoped.append((USER_STATE, namespace, name.removeprefix(State.USER_PREFIX), value))
        elif not name.startswith(State.TEMP_PREFIX):
            state[name] = value
    record = json.dumps({"state": state, "updated": at}, default=str)
    return [
        PutItem(*place, record, conversation_id=conversation_id),
        *(
            PutItem(space, namespace, _label(name), json.dumps(value, default=str))
            for space, namespace, name, value in scoped
        ),
    ]


# --- events and messages ---------------------------------------------------------------------------------


def message_of(event: Event) -> NewMessage:
    """An event as a message: what was said, called or answered, and the event itself beside it."""
    data = event.model_dump(mode="json", exclude_none=True)
    parts = (event.content.parts or []) if event.content else []
    text = "".join(part.text for part in parts if part.text and not part.thought)
    calls = [
        {
            "id": part.function_call.id or part.function_call.name or "call",
            "type": "function",
            "function": {
                "name": part.function_call.name or "",
                "arguments": json.dumps(part.function_call.args or {}, default=str),
            },
        }
        for part in parts
        if part.function_call
    ]
    results = [part.function_response for part in parts if part.function_response]
    if len(results) == 1 and len(parts) == 1:
        answer = json.dumps(results[0].response or {}, default=str)
        call_id = results[0].id or results[0].name or "call"
        return carrying(EVENT, data, {"role": "tool", "tool_call_id": call_id, "content": answer})
    shown = text or (None if calls else f"[event of {event.author or 'the runner'}]")
    body: dict[str, Any] = {"role": "user" if event.author == "user" else "assistant", "content": shown}
    if calls and body["role"] == "assistant":
        body["tool_calls"] = calls
    elif shown is None:
        body["content"] = f"[event of {event.author}]"
    return carrying(EVENT, data, body)


def event_of(part: Message | Summary) -> Event:
    """The event of a message. A message of another client, and the summary of older ones, become one."""
    if isinstance(part, Summary):
        return _said("user", f"[Summary of the earlier part of this conversation]\n{part.text}", "summary")
    data = carried(EVENT, part)
    if data is not None:
        return Event.model_validate(data)
    content = part.content().get("content")
    return _said(
        "user" if part.role == "user" else "model", content if isinstance(content, str) else "", part.id
    )


def _said(author: str, text: str, id_: str) -> Event:
    content = types.Content(role=author, parts=[types.Part(text=text)])
    return Event(id=id_, author=author, content=content)


# --- memory ----------------------------------------------------------------------------------------------


class HoldfastMemoryService(BaseMemoryService):
    """Memory of the ADK on a holdfast store: events that were added, found by their words.

    A search returns at most ten entries of the user, those that share the most words with the query first.
    """

    def __init__(self, node: Node, *, owner: str | None = None) -> None:
        self._bridge = Bridge(node, owner)

    async def add_session_to_memory(self, session: Session) -> None:
        """Remember the session's events, instead of what was remembered of it before."""
        await self._bridge.run(
            lambda: self._add(session.app_name, session.user_id, session.id, session.events, anew=True)
        )

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Remember these events too. An event that is remembered already changes nothing."""
        await self._bridge.run(lambda: self._add(app_name, user_id, session_id or "", events, anew=False))

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Remember these entries."""
        namespace = _namespace(app_name, user_id)
        changes = []
        for entry in memories:
            given = entry if entry.id else entry.model_copy(update={"id": str(uuid.uuid4())})
            changes.append(_remembered(namespace, "", given))
        hf = self._bridge.hf
        await self._bridge.run(lambda: hf.store.put_items(hf.owner, changes))

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        return await self._bridge.run(lambda: self._search(_namespace(app_name, user_id), query))

    async def _add(
        self, app_name: str, user_id: str, session_id: str, events: Sequence[Event], *, anew: bool
    ) -> None:
        hf, namespace = self._bridge.hf, _namespace(app_name, user_id)
        new = [
            _remembered(
                namespace,
                session_id,
                MemoryEntry(
                    id=event.id,
                    content=event.content,
                    author=event.author,
                    timestamp=datetime.fromtimestamp(event.timestamp, UTC).isoformat(),
                ),
            )
            for event in events
            if event.content and event.content.parts
        ]
        kept = {change.name for change in new}
        known = await hf.store.items_under(hf.owner, MEMORY, namespace)
        prefix = f"{_label(session_id)}/"
        gone = [item.name for item in known if item.name.startswith(prefix) and item.name not in kept]
        dropped = [PutItem(MEMORY, namespace, name, None) for name in gone] if anew else []
        await hf.store.put_items(hf.owner, [*dropped, *new])

    async def _search(self, namespace: str, query: str) -> SearchMemoryResponse:
        hf, words = self._bridge.hf, words_of(query)
        found: list[tuple[int, float, MemoryEntry]] = []
        for item in await hf.store.items_under(hf.owner, MEMORY, namespace):
            entry = MemoryEntry.model_validate(item.decoded())
            text = " ".join(part.text for part in entry.content.parts or [] if part.text)
            if shared := len(words & words_of(text)):
                found.append((shared, item.created_at.timestamp(), entry))
        found.sort(key=lambda each: (-each[0], each[1]))
        return SearchMemoryResponse(memories=[entry for _, _, entry in found[:MOST_MEMORIES]])


def _remembered(namespace: str, session_id: str, entry: MemoryEntry) -> PutItem:
    name = f"{_label(session_id)}/{_label(entry.id or '')}"
    return PutItem(MEMORY, namespace, name, entry.model_dump_json(exclude_none=True))
