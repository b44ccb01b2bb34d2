"""Calls of the server's own tools: stored, sent to the model, shown to no client.

Also how a conversation is notified when a process that it started has ended.
"""

from dataclasses import replace
from typing import Any

import pytest

from holdfast.domain.contexts import NO_RESULT, OUTCOME_UNKNOWN
from holdfast.domain.ids import new_id
from holdfast.domain.messages import NewMessage
from holdfast.domain.new_messages import tool_result
from holdfast.domain.processes import Process, ProcessState
from holdfast.domain.turns import TurnBegun, TurnFailure, TurnStatus
from holdfast.errors import LeaseLost
from holdfast.os_support import identity
from holdfast.store.store import Store
from tests.contract.steps import (
    OWNER,
    begin,
    calling,
    context_of,
    messages,
    new_node,
    reap,
    request,
    result,
    say,
    sweep,
    to_message,
)


def step(*own: str, client: tuple[str, ...] = (), content: str | None = None) -> NewMessage:
    """A reply that calls the server's tools, and maybe the client's."""
    said = to_message(calling(*client, *own, content=content))
    return replace(said, inner=not client and content is None, own_calls=own)


async def shown(store: Store, conversation_id: str) -> list[Any]:
    return [message.shown() for message in await store.visible(None, conversation_id)]


async def crashed(store: Store, by: Store, *said: NewMessage) -> TurnBegun:
    """A turn whose node died after it had said this."""
    node = await new_node(store)
    begun = await begin(store, node, key="a")
    await store.append(begun.lease, said)
    await reap(by, node)
    await sweep(by)
    return begun


async def test_steps_are_the_models_to_see_and_not_the_clients(store: Store) -> None:
    begun = await begin(store, await new_node(store), "what day is it?", key="a")
    await store.append(begun.lease, [step("a")])
    await store.append(begun.lease, [tool_result("a", "Monday", inner=True)])
    await store.commit_reply(begun.lease, [to_message("Monday", "assistant")])
    chat = begun.session.conversation_id
    assert [message["content"] for message in await shown(store, chat)] == ["what day is it?", "Monday"]
    page = await store.messages(None, chat, excluded=False)
    assert [message.seq for message in page.items] == [1, 4]
    assert len(await messages(store, chat)) == 4
    assert await context_of(store, begun.session.id) == ["what day is it?", None, "Monday", "Monday"]


async def test_of_a_mixed_batch_a_client_is_shown_its_own_calls(store: Store) -> None:
    begun = await begin(store, await new_node(store), key="a")
    await store.append(begun.lease, [step("ours", client=("theirs",), content="Let me look")])
    await store.append(begun.lease, [tool_result("ours", "42", inner=True)])
    await store.commit_reply(begun.lease)
    _, reply = await shown(store, begun.session.conversation_id)
    assert ([call["id"] for call in reply["tool_calls"]], reply["content"]) == (["theirs"], "Let me look")
    assert (await store.context(None, begun.session.id)).awaited == ("theirs",)


async def test_the_model_sees_the_results_of_both_sides(store: Store) -> None:
    node = await new_node(store)
    begun = await begin(store, node, key="a")
    await store.append(begun.lease, [step("ours", client=("theirs",))])
    await store.append(begun.lease, [tool_result("ours", "ours", inner=True)])
    await store.commit_reply(begun.lease)
    brought = await begin(store, node, result("theirs", "theirs"), key="a")
    assert await context_of(store, brought.session.id) == ["hello", None, "ours", "theirs"]


async def test_a_crash_closes_the_servers_calls_and_leaves_the_clients_open(
    store: Store, second_store: Store
) -> None:
    begun = await crashed(store, second_store, step("ours", client=("theirs",)))
    *_, closing = await messages(second_store, begun.session.conversation_id)
    assert (closing.content()["tool_call_id"], closing.inner) == ("ours", True)
    assert closing.content()["content"] == OUTCOME_UNKNOWN
    assert (await second_store.context(None, begun.session.id)).awaited == ("theirs",)


async def test_what_was_finished_before_a_crash_stays_finished(store: Store, second_store: Store) -> None:
    done = tool_result("a", "done", inner=True)
    begun = await crashed(store, second_store, step("a", "b"), done)
    assert await context_of(second_store, begun.session.id) == ["hello", None, "done", OUTCOME_UNKNOWN]


async def test_calls_that_a_client_was_never_shown_have_no_result(store: Store, second_store: Store) -> None:
    begun = await crashed(store, second_store, step("ours", client=("theirs",)))
    await say(second_store, await new_node(second_store), "and now?", "Hm", key="a")
    context = await context_of(second_store, begun.session.id)
    assert sorted(map(str, context)) == sorted(
        ["hello", "None", OUTCOME_UNKNOWN, NO_RESULT, "and now?", "Hm"]
    )


async def test_a_reply_that_is_answered_again_takes_its_steps_with_it(store: Store) -> None:
    node = await new_node(store)
    begun = await begin(store, node, "what day is it?", key="a")
    await store.append(begun.lease, [step("a", content="I look"), tool_result("a", "Mon", inner=True)])
    await store.append(begun.lease, [step("b"), tool_result("b", "Monday", inner=True)])
    await store.commit_reply(begun.lease, [to_message("Monday", "assistant")])
    again = await begin(store, node, key="a", answer_existing=True, regenerates=(6,))
    assert await context_of(store, again.session.id) == ["what day is it?"]
    assert len(await messages(store, begun.session.conversation_id)) == 6


async def test_a_fork_copies_what_belongs_to_its_last_message(store: Store) -> None:
    node = await new_node(store)
    begun = await begin(store, node, key="a")
    await store.append(begun.lease, [step("ours", client=("theirs",))])
    await store.append(begun.lease, [tool_result("ours", "42", inner=True)])
    await store.commit_reply(begun.lease)
    await say(store, node, result("theirs"), key="a")
    copy = await store.fork(OWNER, begun.session.id, node.id, up_to=2)
    copied = await messages(store, copy.conversation_id)
    assert [(each.inner, each.own_calls) for each in copied] == [(False, ()), (False, ("ours",)), (True, ())]
    first = await store.fork(OWNER, begun.session.id, node.id, up_to=1)
    assert len(await messages(store, first.conversation_id)) == 1


async def test_a_stopped_turn_closes_its_calls_for_no_client_to_see(store: Store) -> None:
    begun = await begin(store, await new_node(store), key="a")
    await store.append(begun.lease, [step("a")])
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.CANCELLED))
    assert [one["content"] for one in await shown(store, begun.session.conversation_id)] == ["hello"]


# --- processes that have ended -------------------------------------------------------------------------


async def running(store: Store, session_id: str) -> Process:
    node = await new_node(store)
    nobody = replace(identity(), pid=0, pid_start="")
    new = Process(
        new_id("proc"), OWNER, "", session_id, nobody, "npm run build", "/", ProcessState.STARTING,
        store.now(), node.id,
    )  # fmt: skip
    return await store.add_process(new)


@pytest.mark.parametrize(
    ("state", "exit_code", "told"),
    [
        (ProcessState.EXITED, 0, "has ended with exit code 0."),
        (ProcessState.EXITED, -9, "was ended by signal 9."),
        (ProcessState.EXITED, None, "has ended."),
        (ProcessState.LOST, None, "is gone; its exit code is unknown."),
    ],
)
async def test_the_next_turn_is_told_of_a_process_that_has_ended(
    store: Store, state: ProcessState, exit_code: int | None, told: str
) -> None:
    node = await new_node(store)
    begun = await say(store, node, key="a")
    process = await running(store, begun.session.id)
    before = (await store.session(None, begun.session.id)).last_activity_at
    assert await store.end_process(process.id, state, exit_code=exit_code)
    assert (await store.session(None, begun.session.id)).last_activity_at == before
    (notice,) = (await begin(store, node, key="a")).notices
    assert (notice.kind, notice.process_id) == ("process", process.id)
    assert notice.text == f'"npm run build" ({process.id}) {told}'


async def test_whoever_stopped_a_process_is_not_told_that_it_ended(store: Store) -> None:
    begun = await say(store, await new_node(store), key="a")
    process = await running(store, begun.session.id)
    await store.request_stop(OWNER, process.id, "enough")
    assert await store.end_process(process.id, ProcessState.STOPPED)
    assert (await store.notices(OWNER)).items == []


async def test_a_retry_is_told_what_its_turn_was(store: Store) -> None:
    node = await new_node(store)
    begun = await say(store, node, key="a")
    process = await running(store, begun.session.id)
    await store.end_process(process.id, ProcessState.EXITED, exit_code=0)
    failed = await begin(store, node, key="a")
    await store.settle_turn(failed.lease, TurnFailure(TurnStatus.FAILED))
    taken_up = await store.begin_turn(request(node, answer_existing=True, resumes_turn=failed.turn.id))
    assert isinstance(taken_up, TurnBegun)
    assert [notice.process_id for notice in taken_up.notices] == [process.id]


async def test_a_result_that_became_known_replaces_its_placeholder(store: Store, second_store: Store) -> None:
    begun = await crashed(store, second_store, step("a", "b"), tool_result("a", "42", inner=True))
    node = await new_node(store)
    again = await store.begin_turn(
        request(node, resumes_turn=begun.turn.id, answer_existing=True, id=begun.session.conversation_id)
    )
    assert isinstance(again, TurnBegun)
    assert (await context_of(store, again.session.id))[-2:] == ["42", OUTCOME_UNKNOWN]
    assert await store.replace_results(again.lease, [4], [tool_result("b", "43", inner=True)]) == 5
    assert (await context_of(store, again.session.id))[-2:] == ["42", "43"]
    await store.commit_reply(again.lease, [to_message("done", "assistant")])
    with pytest.raises(LeaseLost):
        await store.replace_results(again.lease, [5], [tool_result("b", "44", inner=True)])
