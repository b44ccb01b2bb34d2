"""Which conversation a response belongs to: by its predecessor, by name, by header; once, however often it is
sent; whose it is."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from holdfast.domain.events import EventType
from holdfast.domain.ids import new_id
from holdfast.domain.turns import TurnStatus
from holdfast.errors import ModelError
from holdfast.models.scripted import ScriptedModel
from tests.integration.api.chatting import (
    Words,
    by_id,
    by_key,
    calls,
    conversation_of,
    conversations,
    heard,
    once,
    said,
    sdk,
    session_of,
    turns,
    until,
)
from tests.integration.api.conftest import Running, StartServer
from tests.integration.api.responding import (
    PATH,
    finished,
    get,
    post,
    respond,
    resumed,
    same_response,
    spoken,
    streamed,
)


def place_of(response: dict[str, Any]) -> str:
    return str(response["conversation"]["id"])


# --- behind a response ---------------------------------------------------------------------------


async def test_behind_the_newest_response_the_conversation_goes_on(server: Running) -> None:
    client = sdk(server)
    first = await client.responses.create(model="m", input="my name is Ada")
    second = await client.responses.create(model="m", input="who am I?", previous_response_id=first.id)
    assert second.conversation == first.conversation
    assert second.previous_response_id == first.id
    assert [message["content"] for message in heard(server)] == [
        "my name is Ada",
        "You said: my name is Ada",
        "who am I?",
    ]


async def test_instructions_are_for_one_turn(server: Running) -> None:
    first = await respond(server, "one", instructions="Be brief.")
    await respond(server, "two", previous_response_id=first["id"])
    assert "Be brief." not in [message["content"] for message in heard(server)]


async def test_behind_an_older_response_a_fork_begins_and_its_source_is_untouched(server: Running) -> None:
    first = await respond(server, "one")
    second = await respond(server, "two", previous_response_id=first["id"])
    before = await said(server, place_of(first))
    fork = await respond(server, "another two", previous_response_id=first["id"])
    assert place_of(fork) != place_of(first)
    assert fork["holdfast"]["conversation_id"] == place_of(fork)
    assert [message["content"] for message in heard(server)] == ["one", "You said: one", "another two"]
    assert await said(server, place_of(first)) == before
    same_response(await get(server, second["id"]), second)
    # Each goes on by itself.
    third = await respond(server, "three", previous_response_id=second["id"])
    assert place_of(third) == place_of(first)
    on = await respond(server, "another three", previous_response_id=fork["id"])
    assert place_of(on) == place_of(fork)
    assert len(await said(server, place_of(fork))) == 6


async def test_of_two_requests_behind_the_same_response_one_goes_on_and_one_forks(server: Running) -> None:
    first = await respond(server, "one")
    both = await asyncio.gather(
        *(respond(server, f"two {n}", previous_response_id=first["id"]) for n in range(2))
    )
    places = {place_of(response) for response in both}
    assert len(places) == 2
    assert place_of(first) in places
    for response in both:
        assert len(await said(server, place_of(response))) == 4


async def test_behind_a_response_that_brought_and_said_nothing_a_fork_begins_before_it(
    start_server: StartServer,
) -> None:
    server = await start_server(ScriptedModel(["hello", ModelError("no"), "next", "fork"]))
    first = await respond(server, "hi")
    failed = await post(server, {"conversation": place_of(first)})
    assert failed.status_code == 502
    turn = (await turns(server, place_of(first)))[-1]
    await respond(server, "more", conversation=place_of(first))
    fork = await respond(server, "again", previous_response_id=turn.response_id)
    assert place_of(fork) != place_of(first)
    assert [message["content"] for message in heard(server)] == ["hi", "hello", "again"]


async def test_nothing_but_instructions_makes_a_named_conversation_go_on(server: Running) -> None:
    first = await respond(server, "one")
    inputs: list[Any] = [None, [], [{"role": "developer", "content": "Say more."}]]
    for input in inputs:
        answer = await post(server, {"conversation": place_of(first), "input": input})
        assert answer.status_code == 200, answer.text
    assert heard(server)[0] == {"role": "developer", "content": "Say more."}
    assert [line.partition(":")[0] for line in await said(server, place_of(first))] == [
        "user", "assistant", "assistant", "assistant", "assistant",
    ]  # fmt: skip
    items = (await server.client.get(f"{PATH}/{answer.json()['id']}/input_items")).json()
    assert items["data"] == []


async def test_behind_a_running_response_a_request_waits_for_its_end(start_server: StartServer) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words, "second"]))
    first = await respond(server, "one", background=True)
    waiting = asyncio.create_task(respond(server, "two", previous_response_id=first["id"]))
    await words.asked.wait()
    words.say("fir")
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    assert not done
    words.finish("st")
    second = await waiting
    assert place_of(second) == place_of(first)
    assert [message["content"] for message in heard(server)] == ["one", "first", "two"]


async def test_a_running_response_is_not_waited_for_for_ever(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel([Words()]), server={"busy_wait_seconds": 0.1})
    first = await respond(server, "one", background=True)
    busy = await post(server, {"input": "two", "previous_response_id": first["id"]})
    assert (busy.status_code, busy.json()["error"]["code"]) == (409, "conversation_locked")
    assert busy.headers["x-should-retry"] == "true"


async def test_what_leads_nowhere_is_not_found_and_nothing_is_stored(server: Running) -> None:
    first = await respond(server, "one")
    ours = {"previous_response_id": new_id("resp")}, {"previous_response_id": place_of(first)}
    others = {"conversation": new_id("conv")}, {"conversation": {"id": "nobody"}}
    for fields in (*ours, *others):
        for store in (True, False):
            gone = await post(server, {"input": "two", "store": store, **fields})
            assert (gone.status_code, gone.json()["error"]["code"]) == (404, "not_found")
    await server.store.delete_conversation(None, place_of(first))
    for name, fields in (
        (first["id"], {"previous_response_id": first["id"]}),
        (place_of(first), {"conversation": place_of(first)}),
    ):
        gone = await post(server, {"input": "two", **fields})
        assert gone.status_code == 404
        assert name in gone.json()["error"]["message"]
    assert (await server.client.get(f"{PATH}/{first['id']}")).status_code == 404
    assert await conversations(server) == 0


# --- in a conversation ---------------------------------------------------------------------------


async def test_a_conversation_is_named_by_its_id_or_an_object(server: Running) -> None:
    client = sdk(server)
    made = await client.conversations.create()
    first = await client.responses.create(model="m", input="one", conversation=made.id)
    second = await client.responses.create(model="m", input="two", conversation={"id": made.id})
    assert first.conversation is not None and second.conversation is not None
    assert first.conversation.id == second.conversation.id == made.id
    assert [message["content"] for message in heard(server)] == ["one", "You said: one", "two"]


async def test_items_of_the_conversation_are_the_items_of_its_responses(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel([calls("call_1"), {"content": "sunny", "reasoning": "hm"}]))
    client = sdk(server)
    first = await respond(server, "weather?")
    output = [{"type": "function_call_output", "call_id": "call_1", "output": "sun"}]
    second = await respond(server, output, previous_response_id=first["id"])
    items = [item.to_dict() async for item in client.conversations.items.list(place_of(first), order="asc")]
    brought = []
    for response in (first, second):
        listed = (await server.client.get(f"{PATH}/{response['id']}/input_items?order=asc")).json()["data"]
        brought += [*listed, *response["output"]]
    assert [item["id"] for item in items] == [item["id"] for item in brought]
    assert [item["type"] for item in items] == [
        "message", "function_call", "function_call_output", "reasoning", "message",
    ]  # fmt: skip
    assert items == brought


async def test_items_that_a_request_only_refers_to_are_found(server: Running) -> None:
    first = await respond(server, "remember: blue")
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    await respond(server, [reference, {"role": "user", "content": "which colour?"}])
    assert [message["content"] for message in heard(server)] == [
        "You said: remember: blue",
        "which colour?",
    ]
    other = await server.client_of("bob")
    refused = await other.post(PATH, json={"input": [reference, {"role": "user", "content": "mine?"}]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input[0].id")


async def test_chat_and_responses_continue_each_other(server: Running) -> None:
    first = await respond(server, "one")
    chat = await server.say("two", x_holdfast_session_id=place_of(first))
    assert conversation_of(chat) == place_of(first)
    third = await respond(server, "three", conversation=place_of(first))
    assert [message["content"] for message in heard(server)] == [
        "one", "You said: one", "two", "You said: two", "three",
    ]  # fmt: skip
    fork = await respond(server, "other", previous_response_id=first["id"])
    assert place_of(fork) != place_of(first)
    fourth = await server.say("four", x_holdfast_session_id=third["id"])
    assert conversation_of(fourth) == place_of(first)


async def test_headers_name_a_conversation_too(server: Running) -> None:
    first = await respond(server, "one", by_key("cli:ada"))
    second = await respond(server, "two", by_key("cli:ada"))
    third = await respond(server, "three", by_id(session_of(first)))
    fourth = await respond(server, "four", {"x-hermes-session-id": "my own name"})
    fifth = await respond(server, "five", by_id("my own name"))
    assert place_of(first) == place_of(second) == place_of(third)
    assert place_of(fourth) == place_of(fifth) != place_of(first)
    gone = await post(server, {"input": "six"}, by_id(new_id("sess")))
    assert gone.status_code == 404


async def test_a_conversation_is_named_once(server: Running) -> None:
    first = await respond(server, "one")
    for fields in ({"conversation": place_of(first)}, {"previous_response_id": first["id"]}):
        for headers in (by_key("cli:ada"), by_id(place_of(first))):
            refused = await post(server, {"input": "two", **fields}, headers)
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] in fields
    assert len(await said(server, place_of(first))) == 2


async def test_a_whole_history_without_a_name_continues_the_conversation_it_is(server: Running) -> None:
    first = await respond(server, "one")
    history = [{"role": "user", "content": "one"}, *first["output"], {"role": "user", "content": "two"}]
    second = await respond(server, history)
    assert place_of(second) == place_of(first)
    assert len(await said(server, place_of(first))) == 4
    items = (await server.client.get(f"{PATH}/{second['id']}/input_items")).json()["data"]
    assert [item["content"][0]["text"] for item in items] == ["two"]


# --- once ---------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_the_same_key_and_body_is_the_same_response(server: Running, stream: bool) -> None:
    if stream:
        first = await streamed(server, {"input": "hi"}, once("k1"))
        assert await streamed(server, {"input": "hi"}, once("k1")) == first
        response = first[-1]["response"]
    else:
        response = await respond(server, "hi", once("k1"))
        assert await respond(server, "hi", once("k1")) == response
    assert server.model.calls == 1
    assert len(await said(server, place_of(response))) == 2
    other = await post(server, {"input": "ho", "stream": stream}, once("k1"))
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_key_reused")


async def test_a_request_that_forked_is_found_again_though_its_predecessor_is_gone(server: Running) -> None:
    first = await respond(server, "one")
    await respond(server, "two", previous_response_id=first["id"])
    fork = await respond(server, "other", once("k1"), previous_response_id=first["id"])
    assert place_of(fork) != place_of(first)
    await server.client.delete(f"{PATH}/{first['id']}")
    assert await respond(server, "other", once("k1"), previous_response_id=first["id"]) == fork
    await server.store.delete_conversation(None, place_of(first))
    assert await respond(server, "other", once("k1"), previous_response_id=first["id"]) == fork
    assert server.model.calls == 3


async def test_tool_results_that_are_sent_again_get_their_answer(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel([calls("call_1"), "sunny", calls("call_2"), "rainy"]))
    for by, key in (("previous_response_id", "k1"), ("conversation", "k2")):
        first = await respond(server, "weather?")
        named: Any = {by: first["id"] if by == "previous_response_id" else place_of(first)}
        call_id = first["output"][0]["call_id"]
        output = [{"type": "function_call_output", "call_id": call_id, "output": "sun"}]
        second = await respond(server, output, once(key), **named)
        assert await respond(server, output, once(key), **named) == second
    assert server.model.calls == 4


@pytest.mark.parametrize("background", [False, True])
async def test_a_retry_joins_the_response_that_runs(start_server: StartServer, background: bool) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words]))
    body = {"input": "count", "background": background}
    plain = asyncio.create_task(post(server, {**body}, once("k1")))
    await words.asked.wait()
    words.say("one")
    joined = asyncio.create_task(post(server, {**body}, once("k1")))
    if background:
        assert (await joined).json()["status"] == "in_progress"
    else:
        done, _ = await asyncio.wait({joined}, timeout=0.2)
        assert not done
    words.finish(" two")
    first, second = (await plain).json(), (await joined).json()
    assert first["id"] == second["id"]
    whole = await finished(server, first["id"])
    assert spoken(whole) == "one two"
    assert server.model.calls == 1


async def test_a_stream_that_is_asked_for_again_while_it_runs_is_heard_from_its_beginning(
    start_server: StartServer,
) -> None:
    words = Words()
    words.say("one")
    server = await start_server(ScriptedModel([words]))
    first = asyncio.create_task(streamed(server, {"input": "count"}, once("k1")))
    await words.asked.wait()
    second = asyncio.create_task(streamed(server, {"input": "count"}, once("k1")))
    await asyncio.sleep(0.1)
    words.finish(" two")
    assert await first == await second
    assert server.model.calls == 1


async def test_a_failed_response_is_taken_up_again_by_its_key_under_the_same_id(
    start_server: StartServer,
) -> None:
    server = await start_server(ScriptedModel([("one", ModelError("cut off")), "one two three"]))
    first = await streamed(server, {"input": "count"}, once("k1"))
    assert first[-1]["type"] == "response.failed"
    second = await streamed(server, {"input": "count"}, once("k1"))
    assert second[-1]["type"] == "response.completed"
    assert second[-1]["response"]["id"] == first[-1]["response"]["id"]
    assert second[0]["sequence_number"] > first[-1]["sequence_number"]
    assert [message["content"] for message in heard(server)] == ["count"]
    whole = await get(server, first[-1]["response"]["id"])
    assert (whole["status"], spoken(whole)) == ("completed", "one two three")
    assert await resumed(server, whole["id"]) == second
    assert await resumed(server, whole["id"], first[-1]["sequence_number"]) == second[1:]


# --- whose it is ---------------------------------------------------------------------------


async def test_another_owner_s_response_is_like_one_that_never_was(server: Running) -> None:
    response = await respond(server, "my secret")
    never = new_id("resp")
    bob = await server.client_of("bob")
    for method, path in (
        ("GET", ""), ("GET", "?stream=true"), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items"),
    ):  # fmt: skip
        theirs = await bob.request(method, f"{PATH}/{response['id']}{path}")
        none = await bob.request(method, f"{PATH}/{never}{path}")
        assert theirs.status_code == none.status_code == 404
        assert theirs.text.replace(response["id"], never) == none.text
    for fields, unknown in (
        ({"previous_response_id": response["id"]}, {"previous_response_id": never}),
        ({"conversation": place_of(response)}, {"conversation": new_id("conv")}),
    ):
        theirs = await bob.post(PATH, json={"input": "hi", **fields})
        none = await bob.post(PATH, json={"input": "hi", **unknown})
        assert theirs.status_code == none.status_code == 404
        name, other = next(iter(fields.values())), next(iter(unknown.values()))
        assert theirs.text.replace(name, other) == none.text
    client = sdk(server, await server.key("bob"))
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(response["id"])


async def test_an_admin_reads_another_s_response_by_naming_its_owner_who_is_told(server: Running) -> None:
    bob = await server.client_of("bob")
    response = await respond(server, "hi", client=bob)
    assert (await server.client.get(f"{PATH}/{response['id']}")).status_code == 404
    assert (await server.client.get(f"{PATH}/{response['id']}?owner=*")).status_code == 400
    assert (await server.client.get(f"{PATH}/{response['id']}?owner=eve")).status_code == 404
    assert (await bob.get(f"{PATH}/{response['id']}?owner=bob")).status_code == 403
    assert await _readings(server, "bob") == 0
    same_response(await get(server, response["id"], owner="bob"), response)
    items = (await server.client.get(f"{PATH}/{response['id']}/input_items?owner=bob")).json()
    assert items["data"][0]["content"][0]["text"] == "hi"
    stream = await server.client.get(f"{PATH}/{response['id']}?owner=bob&stream=true")
    assert "response.completed" in stream.text
    assert await _readings(server, "bob") == 3
    for method, path in (("DELETE", ""), ("POST", "/cancel")):
        refused = await server.client.request(method, f"{PATH}/{response['id']}{path}?owner=bob")
        assert refused.status_code == 404
    same_response(await get(server, response["id"], bob), response)


async def _readings(server: Running, owner: str) -> int:
    events = await server.store.events(owner=owner)
    return sum(event.type == EventType.MESSAGES_READ_BY_ADMIN for event in events)


async def test_a_conversation_deleted_while_its_response_runs_ends_it(start_server: StartServer) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words]))
    response = await respond(server, "one", background=True)
    await words.asked.wait()
    await server.store.delete_conversation(None, place_of(response))
    await until(lambda: not server.services.runner.running, "the turn has ended")
    assert (await server.client.get(f"{PATH}/{response['id']}")).status_code == 404


async def test_a_second_request_may_interrupt_the_first(start_server: StartServer) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words, "second"]))
    first = await respond(server, "one", background=True)
    await words.asked.wait()
    headers = {"x-holdfast-when-busy": "interrupt"}
    second = await respond(server, "two", headers, previous_response_id=first["id"])
    assert spoken(second) == "second"
    cut = await get(server, first["id"])
    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "interrupted"})
    assert (await turns(server, place_of(first)))[0].status is TurnStatus.INTERRUPTED
