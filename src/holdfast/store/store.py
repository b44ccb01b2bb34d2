"""The store: everything durable, as one table of methods. `tests/contract` verifies it on both engines.

Each line names the function that does the work and says whether it reads or writes; what it guarantees is the
function's docstring. To add a method: the function in the file of its noun, its SQL, one line here, and a
test in `tests/contract`.

A method that writes has committed when it returns, and has written nothing when it raises. Everything is
scoped by `owner`; another owner's id is `NotFound`, like one that never existed. Where `owner` may be None,
the caller is an operator and means all owners.

The right to write in a conversation comes from a lease. `begin_turn` takes one, and every later write of that
turn names it; with a lost lease it raises `LeaseLost` and changes nothing.

The methods at the end also use the context cache, the indexer or a second transaction. Those that an engine
implements itself are declared in `Engine`: search, node locks, backup, checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from ..domain.contexts import Context
from ..domain.drafts import Draft
from ..domain.messages import NewMessage
from ..domain.nodes import NodeKind
from ..domain.records import Part
from ..domain.turns import Delivery, Lease, TurnBegun, TurnOutcome, TurnRequest
from . import (
    api_keys,
    attachments,
    checkpoints,
    compaction,
    connectors,
    conversations,
    deliveries,
    events,
    exports,
    flushes,
    forks,
    imports,
    items,
    maintenance,
    memories,
    messages,
    nodes,
    notices,
    policies,
    processes,
    queue,
    recovery,
    request_keys,
    resets,
    resolve,
    responses,
    rewinds,
    session_lists,
    session_messages,
    sessions,
    side_requests,
    turn_lists,
    turns,
)
from .context import read_context
from .engine import Engine, erases, reads, writes
from .queue import begin_queued
from .values import Pruned, Retention, StorePolicy


class Store(Engine):
    """The durable state of holdfast. See the module docstring.

    A method with the name of its module comes last of its group: from there on the name means the method.
    """

    # --- turns ------------------------------------------------------------------------------------------

    append = writes(turns.append)
    replace_results = writes(recovery.replace_results)
    append_draft = writes(responses.append_draft)
    settle_turn = writes(turns.settle_turn)
    cancel_turn = writes(turns.cancel_turn)
    give_up_turn = writes(recovery.give_up)
    due_turns = reads(turn_lists.due)
    waiting_turns = reads(turn_lists.waiting)
    running_turns = reads(turn_lists.running)
    retry_turn = writes(recovery.retry)
    count_waiting = reads(turn_lists.count_waiting)
    note_deliveries = writes(request_keys.note_deliveries)
    open_session = writes(resets.open_session)
    stored_request = reads(turn_lists.stored_request)
    turn = reads(turn_lists.turn_of)
    newest_turn = reads(rewinds.newest_turn)
    turns = reads(turn_lists.page)
    turn_messages = reads(messages.of_turn)
    turn_answer = reads(responses.answer_of)
    drafts = reads(responses.drafts)
    last_number = reads(responses.last_number)
    response = reads(responses.response_of)
    delete_response = writes(responses.delete)

    # --- queued turns -----------------------------------------------------------------------------------

    enqueue_turn = writes(queue.enqueue)
    edit_queued = writes(queue.edit)
    withdraw_queued = writes(queue.withdraw)
    withdraw_queue = writes(queue.withdraw_all)
    take_steering = writes(queue.take_steering)
    has_steering = reads(queue.has_steering)
    queue_heads = reads(queue.heads)
    count_queued = reads(queue.count)
    queued_turns = reads(queue.all_queued)
    queue = reads(queue.queue_of)

    # --- conversations ----------------------------------------------------------------------------------

    create_conversation = writes(conversations.create)
    add_messages = writes(conversations.add_messages)
    set_metadata = writes(conversations.set_metadata)
    set_title = writes(conversations.set_title)
    suggest_title = writes(conversations.suggest_title)
    add_alias = writes(conversations.add_alias)
    aliases = reads(conversations.aliases)
    note_side_request = writes(side_requests.note)
    count_side_requests = reads(side_requests.count)
    side_requests = reads(side_requests.page)
    delete_conversation = erases(conversations.delete_conversation)
    withdraw_refused = erases(conversations.withdraw_refused)
    conversations_with_history = reads(conversations.with_history)
    conversation = reads(conversations.conversation)
    conversations = reads(conversations.page)

    # --- messages ---------------------------------------------------------------------------------------

    exclude = writes(messages.exclude)
    delete_message = erases(messages.delete)
    reduce_message = erases(messages.reduce)
    visible = reads(messages.visible)
    words_of_sessions = reads(session_lists.words_of_sessions)
    sums_of_conversations = reads(session_lists.sums_of_conversations)
    headings = reads(session_lists.headings)
    messages = reads(messages.page)

    # --- sessions ---------------------------------------------------------------------------------------

    end_session = writes(sessions.end_session)
    resume_session = writes(sessions.resume_session)
    fork = writes(forks.fork)
    rewind = writes(rewinds.rewind)
    session = reads(resolve.session_of)
    resolve = reads(resolve.place)
    ids_like = reads(session_lists.ids_like)
    line = reads(session_lists.line)
    forks = reads(forks.forks)
    alive = reads(session_lists.alive)
    ended_since = reads(session_lists.ended_since)
    sessions = reads(session_lists.page)

    # --- resets -----------------------------------------------------------------------------------------

    due_sessions = reads(resets.due_sessions)
    reset_session = writes(resets.reset_session)
    judge_session = reads(resets.judge_session)
    date_sessions = writes(resets.reschedule)
    resets_waiting = reads(resets.waiting)

    # --- compaction -------------------------------------------------------------------------------------

    report = reads(compaction.report_of)
    outline = reads(compaction.outline)
    claim_compaction = writes(compaction.claim)
    compact = writes(compaction.compact)
    give_up_compaction = writes(compaction.give_up)
    note_suspected_window = writes(compaction.note_suspected_window)

    # --- events and figures -----------------------------------------------------------------------------

    note_reading = writes(events.note_reading)
    event_bounds = reads(events.bounds)
    history = reads(events.of_session)
    events = reads(events.page)
    store_id = reads(maintenance.store_id)
    statistics = reads(maintenance.statistics)
    usage = reads(maintenance.usage)
    turns_ended = reads(maintenance.turns_ended)

    # --- sessions of frameworks -------------------------------------------------------------------------

    in_context = reads(session_messages.in_context)
    bodies_in_context = reads(session_messages.bodies_in_context)
    append_named = writes(session_messages.append)
    append_with_items = writes(items.append_with_items)
    remove_last = writes(session_messages.remove_last)
    replace_messages = writes(session_messages.replace)
    state = reads(items.state)
    update_state = writes(items.update_state)
    put_items = writes(items.put)
    item = reads(items.get)
    refresh_items = writes(items.refresh)
    items_under = reads(items.under)
    item_namespaces = reads(items.namespaces)
    drop_expired_items = writes(items.drop_expired)
    put_checkpoint = writes(checkpoints.put)
    put_checkpoint_writes = writes(checkpoints.put_writes)
    checkpoint = reads(checkpoints.get)
    copy_checkpoints = writes(checkpoints.copy)
    delete_checkpoints = erases(checkpoints.delete)
    delete_checkpoints_of_runs = erases(checkpoints.delete_runs)
    checkpoints = reads(checkpoints.page)

    # --- nodes ------------------------------------------------------------------------------------------

    beat = writes(nodes.beat)
    held = reads(nodes.held)
    leftovers = reads(nodes.leftovers)
    settle_conversation = writes(nodes.settle_conversation)
    reap_session = writes(nodes.reap_session)
    settle_node = writes(nodes.settle_node)
    turns_by_node = reads(nodes.running_turns)
    nodes = reads(nodes.present)
    policy = reads(policies.read)

    # --- processes --------------------------------------------------------------------------------------

    add_process = writes(processes.add)
    process_started = writes(processes.started)
    sample_processes = writes(processes.sample)
    process_finished = writes(processes.finished)
    end_process = writes(processes.end)
    request_stop = writes(processes.request_stop)
    request_stops = writes(processes.request_all_stops)
    pin_process = writes(processes.pin)
    claim_process = writes(processes.claim)
    prune_processes = writes(processes.prune)
    process = reads(processes.process_of)
    unended_processes = reads(processes.unended)
    unknown_processes = reads(processes.unknown)
    processes = reads(processes.page)

    # --- flushes ----------------------------------------------------------------------------------------
    #
    # Every end of a session schedules its flush in the same transaction, by the rules that the store was
    # opened with; without rules nothing is scheduled. A session that continues the context of one whose
    # flush is pending takes that flush over.

    flushes_due = reads(flushes.are_due)
    claim_flushes = writes(flushes.claim)
    flush_input = reads(flushes.read_input)
    finish_flush = writes(flushes.finish)
    fail_flush = writes(flushes.fail)
    release_flush = writes(flushes.release)
    release_flushes = writes(flushes.release_strays)
    retry_flush = writes(flushes.retry)
    retry_flushes = writes(flushes.retry_dead)
    skip_flush = writes(flushes.skip)
    skip_flushes = writes(flushes.skip_before)
    flush_figures = reads(flushes.figures)
    flush = reads(flushes.flush_of)
    flushes_of = reads(flushes.flushes_of)
    flushes = reads(flushes.page)

    # --- memories ---------------------------------------------------------------------------------------

    remember = writes(memories.remember)
    edit_memory = writes(memories.edit)
    forget_memory = writes(memories.forget)
    memory = reads(memories.memory_of)
    memories = reads(memories.page)

    # --- notices ----------------------------------------------------------------------------------------

    add_notice = writes(notices.add)
    deliver_notice = writes(notices.deliver)
    deliver_notices = writes(notices.deliver_all)
    notice_deliveries = reads(notices.deliveries_of)
    newest_notices = reads(notices.newest)
    claim_notices = writes(notices.claim)
    notice_sent = writes(notices.sent)
    notice_unsent = writes(notices.unsent)
    notices_to_send = reads(notices.to_send)
    undelivered = reads(notices.undelivered)
    notices = reads(notices.page)

    # --- connectors -------------------------------------------------------------------------------------

    claim_connector = writes(connectors.claim)
    release_connector = writes(connectors.release)
    note_connector = writes(connectors.note_health)
    connector_states = reads(connectors.states)
    receive = writes(connectors.receive)
    waiting_places = reads(connectors.waiting_places)
    take_messages = writes(connectors.take)
    urgent_commands = reads(connectors.urgent)
    newer_messages = reads(connectors.newer)
    steering_messages = writes(connectors.steering)
    assign_turn = writes(connectors.assign)
    settle_messages = writes(connectors.settle)
    postpone_messages = writes(connectors.postpone)
    place_of = reads(connectors.place_of)
    places_of = reads(connectors.places_of)
    set_home = writes(connectors.set_home)
    clear_home = writes(connectors.clear_home)
    new_link = writes(connectors.new_link)
    link_place = writes(connectors.link)
    unlink_place = writes(connectors.unlink)
    ask_pairing = writes(connectors.ask_pairing)
    approve_pairing = writes(connectors.approve)
    revoke_pairing = writes(connectors.revoke)
    pairings = reads(connectors.pairings)
    add_attachment = writes(attachments.add)
    stored_attachments = reads(attachments.stored_of)
    attachment = reads(attachments.content)
    attachments = reads(attachments.page)
    deliver_reply = writes(deliveries.deliver_reply)
    grow_delivery = writes(deliveries.grow)
    stop_growing = writes(deliveries.stop_growing)
    claim_deliveries = writes(deliveries.claim)
    next_delivery = reads(deliveries.next_due)
    note_parts = writes(deliveries.note_parts)
    delivery_sent = writes(deliveries.sent)
    delivery_failed = writes(deliveries.failed)
    retry_delivery = writes(deliveries.retry)
    delivery = reads(deliveries.delivery_of)
    deliveries = reads(deliveries.page)

    # --- API keys and logins of browsers ----------------------------------------------------------------

    add_key = writes(api_keys.add)
    revoke_key = writes(api_keys.revoke)
    key = reads(api_keys.key_of)
    keys = reads(api_keys.keys_of)
    note_key_uses = writes(api_keys.note_uses)
    count_request = writes(api_keys.count_request)
    spend_tokens = writes(api_keys.spend)
    add_login = writes(api_keys.add_login)
    login = reads(api_keys.login)
    end_login = writes(api_keys.end_login)

    # --- export and import of whole conversations -------------------------------------------------------

    conversation_ids = reads(exports.conversation_ids)
    record = reads(exports.record)
    message_records = reads(exports.message_records)
    imported = reads(imports.imported)
    messages_from = reads(imports.messages_from)
    set_key = writes(imports.set_key)

    # --- not only one transaction -----------------------------------------------------------------------

    async def begin_turn(self, request: TurnRequest) -> TurnOutcome:
        """See `turns.begin`. The outcome has the context, if everything before the turn is cached."""
        begin = begin_queued if request.starts_queued else turns.begin
        outcome = await self._write(begin, request)
        if isinstance(outcome, TurnBegun) and not outcome.taken_up:
            return replace(outcome, context=self._cache.begun(outcome, request.messages))
        return outcome

    async def commit_reply(
        self,
        lease: Lease,
        messages: Sequence[NewMessage] = (),
        *,
        usage: Mapping[str, int] | None = None,
        answer: bytes | None = None,
        history: bytes | None = None,
        draft: Draft | None = None,
        delivery: Delivery | None = None,
        notice: str | None = None,
        model: str | None = None,
        ended_at: datetime | None = None,
    ) -> int:
        """See `turns.commit_reply`. Extends the cached context."""
        last_seq = await self._write(
            turns.commit_reply,
            lease,
            messages,
            usage=usage,
            answer=answer,
            history=history,
            draft=draft,
            delivery=delivery,
            notice=notice,
            model=model,
            ended_at=ended_at,
        )
        self._cache.replied(lease.session_id, messages, last_seq)
        return last_seq

    async def context(self, owner: str | None, session_id: str) -> Context:
        """The context that the model would get in this session, as joined JSON bytes and as messages."""
        return await self._read(read_context, self._cache, owner, session_id)

    async def record_policy(self, kind: NodeKind, policy: StorePolicy, recorded_by: str) -> StorePolicy:
        """Record a program's settings for the whole store, part by part, where it may: the last server's
        apply, else the last library's, else the last command's. Parts that are None are unchanged. Returns
        the effective policy. Writes nothing if it is already recorded."""
        if await self._read(policies.has_news, kind, policy):
            await self._write(policies.record, kind, policy, recorded_by)
        return await self.policy()

    async def prune(self, keep: Retention, limit: int = 1000) -> Pruned:
        """See `maintenance.prune`. Deleted text leaves the cached contexts and the search index too."""
        pruned = await self._write(maintenance.prune, keep, limit)
        if pruned.conversations:
            self._erased()
        return pruned

    async def import_part(self, part: Part) -> None:
        """See `imports.import_part`. Starts the indexer, so that the messages are found."""
        await self._write(imports.import_part, part)
        self.start_indexing()
