"""`/v1/conversations` over the official SDK: every operation, its pages, its refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest
from openai.types.conversations import Conversation, ConversationItem, ConversationItemList
from pydantic import TypeAdapter

from holdfast.domain.conversations import Address
from holdfast.domain.turns import TurnStatus
from holdfast.models.scripted import ScriptedModel
from tests.integration.api.chatting import Words, said, sdk, stored, until
from tests.integration.api.conftest import Running, StartServer

PATH = "/v1/conversations"

_ITEM: TypeAdapter[Any] = TypeAdapter(ConversationItem)


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def calls(*ids: str) -> list[dict[str, Any]]:
    return [{"type": "function_call", "call_id": id_, "name": "look", "arguments": "{}"} for id_ in ids]


def output(call_id: str, text: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


async def make(server: Running, *items: Any, client: httpx.AsyncClient | None = None, **fields: Any) -> str:
    """A conversation that was just made; returns its id."""
    answer = await (client or server.client).post(PATH, json={"items": list(items), **fields})
    assert answer.status_code == 200, answer.text
    Conversation.model_validate(answer.json())
    made: str = answer.json()["id"]
    return made


async def listed(server: Running, name: str, **query: Any) -> dict[str, Any]:
    """A page of items, checked by the SDK's types."""
    answer = await server.client.get(f"{PATH}/{name}/items", params=query)
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    ConversationItemList.model_validate(page)
    return page


def texts(items: Any) -> list[str]:
    """What each item says, in a few words."""
    told = []
    for item in items:
        value = item if isinstance(item, dict) else item.model_dump()
        match value["type"]:
            case "message":
                told.append("".join(part["text"] for part in value["content"]))
            case "function_call":
                told.append(f"{value['name']}({value['call_id']})")
            case "function_call_output":
                told.append(f"{value['call_id']}={value['output']}")
            case other:
                told.append(other)
    return told


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"]
    return error


# --- the eight operations --------------------------------------------------------------------------------


async def test_a_conversation_lives_from_beginning_to_end(server: Running) -> None:
    client = sdk(server)
    made = await client.conversations.create(
        items=[{"role": "user", "content": "hello"}], metadata={"sea": "calm"}
    )
    assert made.id.startswith("conv_")
    assert (made.object, made.metadata) == ("conversation", {"sea": "calm"})
    found = await client.conversations.retrieve(made.id)
    assert found == made
    changed = await client.conversations.update(made.id, metadata={"sea": "rough", "wind": "west"})
    assert changed.metadata == {"sea": "rough", "wind": "west"}
    assert (await client.conversations.retrieve(made.id)).metadata == changed.metadata
    added = await client.conversations.items.create(
        made.id, items=[{"role": "assistant", "content": "hi"}, {"role": "user", "content": "bye"}]
    )
    assert texts(added.data) == ["hi", "bye"]
    assert (added.first_id, added.last_id) == (added.data[0].id, added.data[1].id)
    item = await client.conversations.items.retrieve(added.last_id, conversation_id=made.id)
    assert item == added.data[1]
    left = await client.conversations.items.delete(added.last_id, conversation_id=made.id)
    assert left.id == made.id
    page = await client.conversations.items.list(made.id, order="asc")
    assert texts(page.data) == ["hello", "hi"]
    gone = await client.conversations.delete(made.id)
    assert (gone.id, gone.deleted, gone.object) == (made.id, True, "conversation.deleted")
    with pytest.raises(openai.NotFoundError):
        await client.conversations.retrieve(made.id)


async def test_a_conversation_may_begin_with_nothing_at_all(server: Running) -> None:
    bodies: list[dict[str, Any] | None] = [None, {}, {"items": None, "metadata": None}, {"items": []}]
    for body in bodies:
        answer = await server.client.post(PATH, json=body)
        assert answer.status_code == 200, answer.text
        Conversation.model_validate(answer.json())
        assert answer.json()["metadata"] == {}
        page = await listed(server, answer.json()["id"])
        assert (page["data"], page["first_id"], page["has_more"]) == ([], "", False)


async def test_a_conversation_says_where_it_goes_on(server: Running) -> None:
    answer = await server.client.post(PATH, json={}, headers={"X-Holdfast-Source": "web"})
    made = answer.json()
    place = await server.store.resolve("default", Address(id=made["id"]))
    assert place.tip.source == "web"
    assert made["holdfast"] == {"session_id": place.tip.id, "key": None, "title": None}
    assert answer.headers["x-holdfast-session-id"] == answer.headers["x-hermes-session-id"] == place.tip.id
    assert answer.headers["x-holdfast-conversation-id"] == made["id"]
    assert (await server.say("hello", x_holdfast_session_id=place.tip.id))["holdfast"][
        "conversation_id"
    ] == made["id"]
    assert texts((await listed(server, made["id"]))["data"]) == ["You said: hello", "hello"]


async def test_what_was_added_is_what_the_model_hears_next(server: Running) -> None:
    made = await make(server, user("my name is Ada"), assistant("Hello Ada"))
    await server.client.post(f"{PATH}/{made}/items", json={"items": [user("I live by the sea")]})
    await server.say("who am I?", x_holdfast_session_id=made)
    assert await said(server, made) == [
        "user: my name is Ada",
        "assistant: Hello Ada",
        "user: I live by the sea",
        "user: who am I?",
        "assistant: You said: who am I?",
    ]
    assert server.model.requests[-1].messages.count(b"I live by the sea") == 1


async def test_a_response_goes_on_in_a_conversation_and_its_items_are_listed(server: Running) -> None:
    client = sdk(server)
    made = await client.conversations.create(items=[{"role": "user", "content": "my name is Ada"}])
    response = await client.responses.create(model="scripted", input="and you?", conversation=made.id)
    page = await client.conversations.items.list(made.id, order="asc")
    assert texts(page.data) == ["my name is Ada", "and you?", "You said: and you?"]
    assert page.data[-1].id == response.output[0].id


async def test_any_id_that_leads_there_names_the_conversation(server: Running) -> None:
    answer = await server.say("hello", x_holdfast_session_id="my own name", x_holdfast_session_key="")
    place = answer["holdfast"]
    await server.store.end_session(None, place["session_id"], "new")
    await server.say("again", x_holdfast_session_id=place["conversation_id"])
    for name in (place["conversation_id"], place["session_id"], "my own name", place["turn_id"]):
        found = (await server.client.get(f"{PATH}/{name}")).json()
        assert found["id"] == place["conversation_id"]
        assert found["holdfast"]["session_id"] != place["session_id"]
        assert len((await listed(server, name))["data"]) == 4


# --- items -----------------------------------------------------------------------------------------------


CONTENTS = [
    user("text"),
    {"role": "user", "content": [{"type": "input_text", "text": "part"}]},
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "what is this?"},
            {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"},
        ],
    },
    {"role": "user", "content": [{"type": "input_file", "file_data": "AAAA", "filename": "a.pdf"}]},
    {"role": "system", "content": "be brief"},
    {"role": "developer", "content": "be kind"},
    assistant("said"),
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    *calls("c1"),
    output("c1", "42"),
    {"type": "custom_tool_call", "call_id": "c2", "name": "sh", "input": "ls"},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": "a b"},
]


async def test_every_kind_of_item_can_be_kept_and_is_shown_as_the_sdk_knows_it(server: Running) -> None:
    made = await make(server, *CONTENTS)
    page = await listed(server, made, order="asc", limit=100)
    assert [item["type"] for item in page["data"]] == [
        *["message"] * 8,
        "reasoning",
        "function_call",
        "function_call_output",
        "function_call",
        "function_call_output",
    ]
    for item in page["data"]:
        answer = await server.client.get(f"{PATH}/{made}/items/{item['id']}", params={"include": "x"})
        assert answer.json() == item
        _ITEM.validate_python(item)
    assert len({item["id"] for item in page["data"]}) == len(CONTENTS)


async def test_more_items_than_openai_takes_at_once_are_taken(server: Running) -> None:
    made = await make(server, *(user(str(number)) for number in range(50)))
    answer = await server.client.post(
        f"{PATH}/{made}/items", json={"items": [user(str(number)) for number in range(50, 200)]}
    )
    assert len(answer.json()["data"]) == 150
    found = [
        text
        async for item in sdk(server).conversations.items.list(made, order="asc", limit=100)
        for text in texts([item])
    ]
    assert found == [str(number) for number in range(200)]


async def test_a_reference_stands_for_the_item_it_names(server: Running) -> None:
    made = await make(server, user("say it again"), *calls("c1"))
    first, call = (await listed(server, made, order="asc"))["data"]
    other = await make(server, {"type": "item_reference", "id": first["id"]}, {"id": call["id"]})
    assert texts((await listed(server, other, order="asc"))["data"]) == ["say it again", "look(c1)"]
    await server.client.delete(f"{PATH}/{made}/items/{call['id']}")
    stranger = await server.client_of("bob")
    for client, item_id in ((server.client, call["id"]), (stranger, first["id"]), (server.client, "msg_x")):
        body = {"items": [user("x"), {"type": "item_reference", "id": item_id}]}
        answer = await client.post(PATH, json=body)
        assert error_of(answer, 400)["param"] == "items[1].id"


async def test_references_count_as_if_the_items_had_been_sent(start_server: StartServer) -> None:
    server = await start_server(server={"max_body_mb": 0.01})
    made = await make(server, user("long " * 800))
    (item,) = (await listed(server, made))["data"]
    reference = {"type": "item_reference", "id": item["id"]}
    await make(server, reference, reference)
    items = [reference] * 3
    for path, body, param in (
        (PATH, {"items": items}, "items"),
        (f"{PATH}/{made}/items", {"items": items}, "items"),
        ("/v1/responses", {"input": items}, "input"),
        ("/v1/responses", {"input": items, "store": False}, "input"),
        ("/v1/responses/compact", {"model": "m", "input": items}, "input"),
        ("/v1/responses/input_tokens", {"input": items}, "input"),
    ):
        error = error_of(await server.client.post(path, json=body), 413)
        assert (error["code"], error["param"]) == ("request_too_large", param)
    assert server.model.calls == 0
    assert not server.services.limits.bytes._held, "what they hold is given back"


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_pages_of_items_hold_each_of_them_once(server: Running, order: str, limit: int) -> None:
    made = await make(
        server, user("look"), assistant("I will"), *calls("a", "b"), output("a", "1"), output("b", "2")
    )
    whole = ["look", "I will", "look(a)", "look(b)", "a=1", "b=2"]
    found: list[str] = []
    after = ""
    while True:
        page = await listed(server, made, order=order, limit=limit, after=after)
        found += texts(page["data"])
        after = page["last_id"]
        if not page["has_more"]:
            break
        assert len(page["data"]) == limit
    assert found == (whole if order == "asc" else whole[::-1])


async def test_items_come_newest_first_and_twenty_at_a_time_unless_told_otherwise(server: Running) -> None:
    made = await make(server, *(user(str(number)) for number in range(25)))
    page = await listed(server, made)
    assert texts(page["data"]) == [str(number) for number in range(24, 4, -1)]
    assert page["has_more"]
    assert len([item async for item in sdk(server).conversations.items.list(made)]) == 25


async def test_a_page_goes_on_behind_an_item_that_was_deleted_meanwhile(server: Running) -> None:
    made = await make(server, user("0"), assistant("1"), *calls("a", "b"), output("a", "2"))
    for order, rest in (("asc", ["look(b)", "a=2"]), ("desc", ["1", "0"])):
        page = await listed(server, made, order="asc")
        call = page["data"][2]
        assert texts([call]) == ["look(a)"]
        found = await listed(server, made, order=order, after=call["id"])
        assert texts(found["data"]) == rest
    await server.client.delete(f"{PATH}/{made}/items/{call['id']}")
    assert texts((await listed(server, made, order="asc", after=call["id"]))["data"]) == ["look(b)", "a=2"]
    assert texts((await listed(server, made, order="desc", after=call["id"]))["data"]) == ["1", "0"]


async def test_an_interrupted_reply_is_an_incomplete_item(start_server: StartServer) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words]))
    asked = asyncio.create_task(server.say("hello", x_holdfast_session_key="cli:ada"))
    await words.asked.wait()
    words.say("first ", "try")
    turn_id = next(iter(server.services.runner.running))
    running = server.services.runner.running[turn_id]
    await until(lambda: server.store.drafts(turn_id), "what it says is checkpointed")
    await server.services.runner.stop(None, turn_id, TurnStatus.CANCELLED, "enough")
    with pytest.raises(AssertionError):
        await asked
    made = running.session.conversation_id
    page = await listed(server, made, order="asc")
    assert [(item["status"], text) for item, text in zip(page["data"], texts(page["data"]), strict=True)] == [
        ("completed", "hello"),
        ("incomplete", "first try"),
    ]


async def test_a_reply_that_was_answered_again_is_no_item_any_more(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel(["hi", "red", "blue"]))
    made = await make(server)
    history = [{"role": "user", "content": "hello"}]
    for question in ("hello", "which colour?"):
        answer = await server.say(question, x_holdfast_session_id=made)
        history += [answer["choices"][0]["message"], {"role": "user", "content": "which colour?"}]
    replaced = (await listed(server, made, limit=1))["data"][0]
    assert texts([replaced]) == ["red"]
    again = await server.client.post(
        "/v1/chat/completions",
        json={"messages": history[:3]},
        headers={"X-Holdfast-Session-Id": made},
    )
    assert again.json()["choices"][0]["message"]["content"] == "blue"
    page = await listed(server, made, order="asc")
    assert texts(page["data"]) == ["hello", "hi", "which colour?", "blue"]
    gone = f"{PATH}/{made}/items/{replaced['id']}"
    error_of(await server.client.get(gone), 404)
    error_of(await server.client.delete(gone), 404)
    assert len(await stored(server, made)) == 5
    found = await listed(server, made, order="asc", after=replaced["id"])
    assert texts(found["data"]) == ["blue"]


async def test_an_item_that_is_part_of_a_message_goes_alone(server: Running) -> None:
    made = await make(
        server,
        user("look"),
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        assistant("I will"),
        *calls("a", "b", "c"),
        output("b", "2"),
    )
    page = await listed(server, made, order="asc")
    names = {text: item["id"] for item, text in zip(page["data"], texts(page["data"]), strict=True)}
    assert list(names) == ["look", "reasoning", "I will", "look(a)", "look(b)", "look(c)", "b=2"]
    left = list(names)
    for text in ("look(a)", "I will", "look(c)", "reasoning", "b=2", "look(b)", "look"):
        answer = await server.client.delete(f"{PATH}/{made}/items/{names[text]}")
        assert Conversation.model_validate(answer.json()).id == made
        left.remove(text)
        page = await listed(server, made, order="asc")
        assert texts(page["data"]) == left
        assert [item["id"] for item in page["data"]] == [names[each] for each in left]
        error_of(await server.client.delete(f"{PATH}/{made}/items/{names[text]}"), 404)
        error_of(await server.client.get(f"{PATH}/{made}/items/{names[text]}"), 404)


async def test_what_was_deleted_is_neither_heard_nor_found(server: Running) -> None:
    made = await make(server, user("my secret is heliotrope"), assistant("heliotrope noted"), *calls("a"))
    for text in ("my secret is heliotrope", "heliotrope noted"):
        page = await listed(server, made, order="asc")
        (item,) = [each for each in page["data"] if texts([each]) == [text]]
        await server.client.delete(f"{PATH}/{made}/items/{item['id']}")
    await server.say("hello", x_holdfast_session_id=made)
    assert b"heliotrope" not in server.model.requests[-1].messages
    assert await server.store.search("default", "heliotrope") == []


async def test_two_who_delete_parts_of_one_message_at_once_both_succeed(server: Running) -> None:
    made = await make(server, user("look"), *calls(*"abcdefgh"))
    page = await listed(server, made, order="asc")
    answers = await asyncio.gather(
        *(server.client.delete(f"{PATH}/{made}/items/{item['id']}") for item in page["data"][1:8])
    )
    assert {answer.status_code for answer in answers} == {200}
    assert texts((await listed(server, made, order="asc"))["data"]) == ["look", "look(h)"]


# --- while a turn runs -----------------------------------------------------------------------------------


async def test_items_wait_for_a_running_turn_and_stand_behind_its_answer(start_server: StartServer) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words]))
    made = await make(server)
    asked = asyncio.create_task(server.say("hello", x_holdfast_session_id=made))
    await words.asked.wait()
    adding = asyncio.create_task(
        server.client.post(f"{PATH}/{made}/items", json={"items": [user("and another thing")]})
    )
    await asyncio.sleep(0.2)
    assert not adding.done()
    words.finish("hi")
    await asked
    assert (await adding).status_code == 200
    assert texts((await listed(server, made, order="asc"))["data"]) == ["hello", "hi", "and another thing"]


async def test_items_that_wait_too_long_are_refused_and_not_kept(start_server: StartServer) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words]), server={"busy_wait_seconds": 0.1})
    made = await make(server)
    asked = asyncio.create_task(server.say("hello", x_holdfast_session_id=made))
    await words.asked.wait()
    answer = await server.client.post(f"{PATH}/{made}/items", json={"items": [user("me too")]})
    assert error_of(answer, 409)["code"] == "conversation_locked"
    assert answer.headers["x-should-retry"] == "true"
    words.finish("hi")
    await asked
    assert texts((await listed(server, made, order="asc"))["data"]) == ["hello", "hi"]


async def test_deleting_a_conversation_cancels_its_turn_and_its_listener_is_told(
    start_server: StartServer,
) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words]))
    made = await make(server)
    body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
    request = server.client.stream(
        "POST", "/v1/chat/completions", json=body, headers={"X-Holdfast-Session-Id": made}
    )
    heard = ""
    async with request as answer:
        lines = answer.aiter_text()
        words.say("so ", "far")
        while "far" not in heard:
            heard += await anext(lines)
        assert (await server.client.delete(f"{PATH}/{made}")).json() == {
            "id": made,
            "object": "conversation.deleted",
            "deleted": True,
        }
        async for piece in lines:
            heard += piece
    assert "was cancelled" in heard
    assert heard.endswith("data: [DONE]\n\n")
    assert server.services.runner.running == {}
    error_of(await server.client.get(f"{PATH}/{made}"), 404)
    assert await server.store.check() == []


# --- the list --------------------------------------------------------------------------------------------


async def test_the_list_gives_an_owners_conversations_the_newest_first_in_pages(server: Running) -> None:
    made = [await make(server, metadata={"no": str(number)}) for number in range(3)]
    place = (await server.say("hello", x_holdfast_session_key="cli:ada"))["holdfast"]
    stranger = await server.client_of("bob")
    theirs = await make(server, client=stranger)
    wanted = [place["conversation_id"], *reversed(made)]
    found: list[dict[str, Any]] = []
    while True:
        query = {"limit": 3, **({"after": found[-1]["id"]} if found else {})}
        page = (await server.client.get(PATH, params=query)).json()
        found += page["data"]
        assert (page["object"], page["last_id"]) == ("list", page["data"][-1]["id"])
        if not page["has_more"]:
            break
    assert [each["id"] for each in found] == wanted
    for each in found:
        Conversation.model_validate(each)
    assert found[0]["holdfast"] == {"session_id": place["session_id"], "key": "cli:ada", "title": None}
    assert found[1]["metadata"] == {"no": "2"}
    everybodys = (await server.client.get(PATH, params={"owner": "*"})).json()["data"]
    assert [(each["id"], each["holdfast"]["owner"]) for each in everybodys][:2] == [
        (theirs, "bob"),
        (place["conversation_id"], "default"),
    ]
    empty = (await (await server.client_of("eve")).get(PATH)).json()
    assert empty == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


# --- whose -----------------------------------------------------------------------------------------------


async def test_anothers_conversation_is_not_there_byte_for_byte(server: Running) -> None:
    theirs = await make(server, user("secret"), *calls("a", "b"), client=await server.client_of("bob"))
    never = f"conv_{'0' * 32}"
    item = theirs.replace("conv_", "msg_") + "_1"
    no_item = never.replace("conv_", "msg_") + "_1"
    ada = await server.client_of("ada")
    mine = await make(server, user("mine"), client=ada)
    body = {"json": {"items": [user("x")]}}
    for method, theirs_path, never_path, options in [
        ("GET", f"{PATH}/{theirs}", f"{PATH}/{never}", {}),
        ("POST", f"{PATH}/{theirs}", f"{PATH}/{never}", {"json": {"metadata": {"a": "b"}}}),
        ("DELETE", f"{PATH}/{theirs}", f"{PATH}/{never}", {}),
        ("GET", f"{PATH}/{theirs}/items", f"{PATH}/{never}/items", {}),
        ("POST", f"{PATH}/{theirs}/items", f"{PATH}/{never}/items", body),
        ("GET", f"{PATH}/{theirs}/items/{item}", f"{PATH}/{never}/items/{no_item}", {}),
        ("DELETE", f"{PATH}/{theirs}/items/{item}", f"{PATH}/{never}/items/{no_item}", {}),
        ("GET", f"{PATH}/{mine}/items/{item}", f"{PATH}/{mine}/items/{no_item}", {}),
        ("DELETE", f"{PATH}/{mine}/items/{item}", f"{PATH}/{mine}/items/{no_item}", {}),
        ("GET", f"{PATH}/{mine}/items?after={item}", f"{PATH}/{mine}/items?after={no_item}", {}),
        ("GET", f"{PATH}?after={theirs}", f"{PATH}?after={never}", {}),
    ]:
        one = await ada.request(method, theirs_path, **options)  # type: ignore[arg-type]
        other = await ada.request(method, never_path, **options)  # type: ignore[arg-type]
        error_of(one, 404)
        assert one.text.replace(theirs, never).replace(item, no_item) == other.text
        hidden = {"x-request-id", "content-length", "date"}
        assert set(one.headers) - hidden == set(other.headers) - hidden
    assert [message.role for message in await stored(server, theirs)] == ["user", "assistant"]


async def test_an_admin_may_read_anothers_items_by_naming_the_owner_and_leaves_an_event(
    server: Running,
) -> None:
    theirs = await make(server, user("secret"), client=await server.client_of("bob"))
    error_of(await server.client.get(f"{PATH}/{theirs}/items"), 404)
    found = (await server.client.get(f"{PATH}/{theirs}", params={"owner": "bob"})).json()
    assert (found["id"], found["holdfast"]["owner"]) == (theirs, "bob")
    (item,) = (await listed(server, theirs, owner="bob"))["data"]
    answer = await server.client.get(f"{PATH}/{theirs}/items/{item['id']}", params={"owner": "bob"})
    assert answer.json() == item
    events = await server.store.events(owner="bob", conversation_id=theirs)
    assert [event.type for event in events].count("messages.read_by_admin") == 2
    for path in (f"{PATH}/{theirs}", f"{PATH}/{theirs}/items", f"{PATH}/{theirs}/items/{item['id']}"):
        assert error_of(await server.client.get(path, params={"owner": "*"}), 400)["param"] == "owner"
        chat = await server.client_of("ada")
        assert error_of(await chat.get(path, params={"owner": "bob"}), 403)["code"] == "insufficient_scope"
    chat = await server.client_of("ada")
    error_of(await chat.get(PATH, params={"owner": "*"}), 403)


# --- refusals --------------------------------------------------------------------------------------------

REFUSED: list[tuple[str, Any, str | None]] = [
    ("", {"items": "text"}, "items"),
    ("", {"items": [{"role": "user"}]}, "items[0].content"),
    ("", {"items": [{"role": "nobody", "content": "x"}]}, "items[0].role"),
    ("", {"items": [{"type": "web_search_call", "id": "x"}]}, "items[0].type"),
    ("", {"items": [user("x"), 5]}, "items[1]"),
    ("", {"items": [*calls("a", "a")]}, "items[1].call_id"),
    ("", {"items": [{"type": "item_reference", "id": "msg_unknown"}]}, "items[0].id"),
    ("", {"items": [{"type": "item_reference", "id": f"msg_{n}"} for n in range(1001)]}, "items"),
    ("", {"items": [user("\x00")]}, "items[0].content"),
    ("", {"metadata": "text"}, "metadata"),
    ("", {"metadata": {"a": 5}}, "metadata.a"),
    ("", {"metadata": {"a" * 65: "b"}}, "metadata"),
    ("", {"metadata": {"a": "b" * 513}}, "metadata.a"),
    ("", {"metadata": {str(number): "" for number in range(17)}}, "metadata"),
    ("/{id}", {}, "metadata"),
    ("/{id}", {"metadata": 5}, "metadata"),
    ("/{id}/items", {}, "items"),
    ("/{id}/items", {"items": []}, "items"),
    ("/{id}/items", {"items": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}, "items"),
    ("/{id}/items", {"items": None}, "items"),
]


@pytest.mark.parametrize(("path", "body", "param"), REFUSED)
async def test_what_cannot_be_used_is_refused_by_name_and_nothing_is_kept(
    server: Running, path: str, body: Any, param: str | None
) -> None:
    made = await make(server, user("before"), metadata={"sea": "calm"})
    before = await server.store.statistics(None)
    answer = await server.client.post(PATH + path.format(id=made), json=body)
    error = error_of(answer, 400)
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert await server.store.statistics(None) == before
    assert (await server.client.get(f"{PATH}/{made}")).json()["metadata"] == {"sea": "calm"}


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=101", "limit=x", "limit=-1", "order=up"],
)
async def test_a_page_that_cannot_be_is_refused(server: Running, query: str) -> None:
    made = await make(server, user("x"))
    error_of(await server.client.get(f"{PATH}/{made}/items?{query}"), 400)
    if "limit" in query:
        error_of(await server.client.get(f"{PATH}?{query}"), 400)


@pytest.mark.parametrize(
    "item_id",
    ["x", "msg_", "msg_x_1", "msg_{c}_9", "msg_{c}_01", "rs_{c}_1", "fc_{c}_1", "fc_{c}_1_0", "fco_{c}_1"],
)
async def test_an_item_that_is_not_there_is_not_found(server: Running, item_id: str) -> None:
    made = await make(server, user("x"))
    path = f"{PATH}/{made}/items/{item_id.format(c=made.removeprefix('conv_'))}"
    error_of(await server.client.get(path), 404)
    error_of(await server.client.delete(path), 404)
    assert texts((await listed(server, made))["data"]) == ["x"]


async def test_bodies_that_are_no_objects_are_refused(server: Running) -> None:
    made = await make(server)
    for path in (PATH, f"{PATH}/{made}", f"{PATH}/{made}/items"):
        for content in (b"[]", b"5", b"{", b'"x"', b"null"):
            error_of(await server.client.post(path, content=content), 400)
    for path in (f"{PATH}/{made}", f"{PATH}/{made}/items"):
        error_of(await server.client.post(path), 400)
    error_of(await server.client.post(PATH, json={}, headers={"X-Holdfast-Source": "x" * 600}), 400)
    error_of(await server.client.put(PATH, json={}), 405)
    error_of(await server.client.delete(PATH), 405)
    error_of(await (await server.with_token(None)).get(PATH), 401)


async def test_an_idempotency_key_creates_one_conversation_for_every_server_of_the_store(
    start_server: StartServer,
) -> None:
    body, key = {"items": [user("hello")], "metadata": {"a": "b"}}, {"Idempotency-Key": "once"}
    server = await start_server()
    first = (await server.client.post(PATH, json=body, headers=key)).json()
    assert (await server.client.post(PATH, json=body, headers=key)).json() == first
    other = await server.client.post(PATH, json={}, headers=key)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_key_reused")
    assert (await server.client.post(PATH, json=body)).json()["id"] != first["id"]
    another = await start_server()  # on the same store, as after a restart
    assert (await another.client.post(PATH, json=body, headers=key)).json() == first
