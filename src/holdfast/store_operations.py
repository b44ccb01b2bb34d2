"""The table of operations that are exactly one store method; the store's docstring is the promise of each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from .errors import BadInput
from .runtime.states import flushes_of, states_of, why_of
from .settings import Settings
from .store.store import Store

P = ParamSpec("P")
R = TypeVar("R")


class store_method(Generic[P, R]):
    """An operation that is exactly this store method, under the same name unless one is given.

    The method is named for its types; the call goes to the engine of the open store, with no step between.
    """

    def __init__(self, method: Callable[Concatenate[Any, P], R], name: str = "") -> None:
        self._name = name
        self.__doc__ = method.__doc__

    def __set_name__(self, _: type, name: str) -> None:
        self._name = self._name or name

    @overload
    def __get__(self, operations: None, _: type) -> Self: ...

    @overload
    def __get__(self, operations: StoreOperations, _: type) -> Callable[P, R]: ...

    def __get__(self, operations: StoreOperations | None, _: type) -> Self | Callable[P, R]:
        return self if operations is None else getattr(operations.store, self._name)


class store_function(Generic[P, R]):
    """An operation that is exactly this function, called with the open store."""

    def __init__(self, function: Callable[Concatenate[Store, P], R]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, operations: None, _: type) -> Self: ...

    @overload
    def __get__(self, operations: StoreOperations, _: type) -> Callable[P, R]: ...

    def __get__(self, operations: StoreOperations | None, _: type) -> Self | Callable[P, R]:
        return self if operations is None else partial(self._function, operations.store)


class StoreOperations:
    """The operations of an open store. `Operations` adds those that need more than the store."""

    def __init__(self, settings: Settings, store: Store | None = None) -> None:
        self.settings = settings
        self._store = store

    @property
    def store(self) -> Store:
        if self._store is None:
            raise BadInput("holdfast is not open: use it inside `async with holdfast.open(…) as hf`")
        return self._store

    @property
    def location(self) -> str:
        """Where the store is, for people; without any password."""
        return self.store.location

    now = store_method(Store.now)
    version = store_method(Store.version)
    changed = store_method(Store.changed)
    backup = store_method(Store.backup)

    resolve = store_method(Store.resolve)
    find_conversation = store_method(Store.conversation, "conversation")
    conversations = store_method(Store.conversations)
    set_title = store_method(Store.set_title)
    set_metadata = store_method(Store.set_metadata)
    add_alias = store_method(Store.add_alias)
    aliases = store_method(Store.aliases)
    note_side_request = store_method(Store.note_side_request)
    count_side_requests = store_method(Store.count_side_requests)
    side_requests = store_method(Store.side_requests)

    find_session = store_method(Store.session, "session")
    session_page = store_method(Store.sessions, "sessions")
    line = store_method(Store.line)
    forks = store_method(Store.forks)
    words_of_sessions = store_method(Store.words_of_sessions)
    sums_of_conversations = store_method(Store.sums_of_conversations)
    alive = store_method(Store.alive)
    ended_since = store_method(Store.ended_since)
    resets_waiting = store_method(Store.resets_waiting)
    states_of = store_function(states_of)
    flushes_of = store_function(flushes_of)
    why = store_function(why_of)

    messages = store_method(Store.messages)
    visible = store_method(Store.visible)
    headings = store_method(Store.headings)
    context = store_method(Store.context)
    delete_message = store_method(Store.delete_message)
    reduce_message = store_method(Store.reduce_message)
    note_reading = store_method(Store.note_reading)
    search_messages = store_method(Store.search, "search")
    search_page = store_method(Store.search_page)

    stored_request = store_method(Store.stored_request)
    waiting_turns = store_method(Store.waiting_turns)
    running_turns = store_method(Store.running_turns)
    retry_turn = store_method(Store.retry_turn)
    count_waiting = store_method(Store.count_waiting)
    give_up_turn = store_method(Store.give_up_turn)
    turn = store_method(Store.turn)
    turns = store_method(Store.turns)
    turn_messages = store_method(Store.turn_messages)
    turn_answer = store_method(Store.turn_answer)
    drafts = store_method(Store.drafts)
    last_number = store_method(Store.last_number)
    response = store_method(Store.response)
    delete_response = store_method(Store.delete_response)

    queue = store_method(Store.queue)
    edit_queued = store_method(Store.edit_queued)
    withdraw_queued = store_method(Store.withdraw_queued)
    queued_turns = store_method(Store.queued_turns)
    count_queued = store_method(Store.count_queued)

    event_page = store_method(Store.events, "events")
    event_bounds = store_method(Store.event_bounds)
    notices = store_method(Store.notices)
    undelivered = store_method(Store.undelivered)
    deliver_notice = store_method(Store.deliver_notice)
    deliver_notices = store_method(Store.deliver_notices)
    notice_deliveries = store_method(Store.notice_deliveries)
    newest_notices = store_method(Store.newest_notices)

    memories = store_method(Store.memories)
    memory = store_method(Store.memory)
    edit_memory = store_method(Store.edit_memory)
    forget_memory = store_method(Store.forget_memory)
    flushes = store_method(Store.flushes)
    find_flush = store_method(Store.flush, "flush")
    retry_flush = store_method(Store.retry_flush)

    process = store_method(Store.process)
    processes = store_method(Store.processes)

    connector_states = store_method(Store.connector_states)
    places_of = store_method(Store.places_of)
    attachment = store_method(Store.attachment)
    attachments = store_method(Store.attachments)
    deliveries = store_method(Store.deliveries)
    delivery = store_method(Store.delivery)
    retry_delivery = store_method(Store.retry_delivery)
    pairings = store_method(Store.pairings)
    revoke_pairing = store_method(Store.revoke_pairing)

    keys = store_method(Store.keys)
    find_key = store_method(Store.key, "key")
    revoke_key = store_method(Store.revoke_key)
    count_request = store_method(Store.count_request)
    spend_tokens = store_method(Store.spend_tokens)
    add_login = store_method(Store.add_login)
    login = store_method(Store.login)
    end_login = store_method(Store.end_login)

    nodes = store_method(Store.nodes)
    store_id = store_method(Store.store_id)
    statistics = store_method(Store.statistics)
    usage = store_method(Store.usage)
    turns_ended = store_method(Store.turns_ended)
    figures = store_method(Store.figures)
    flush_figures = store_method(Store.flush_figures)
