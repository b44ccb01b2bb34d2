"""What is new in a request: whole, trimmed or absent histories, asking again, editing, and no name at all."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from holdfast.errors import ModelError
from holdfast.models.scripted import ScriptedModel
from tests.integration.api.chatting import (
    ask,
    assistant,
    by_id,
    by_key,
    context,
    conversation_of,
    conversations,
    heard,
    once,
    post,
    result,
    said,
    sdk,
    session_of,
    stored,
    text_of,
    user,
)
from tests.integration.api.conftest import Running, StartServer

SYSTEM = {"role": "system", "content": "be brief"}


def numbered() -> ScriptedModel:
    """Says a different thing each time."""
    count = 0

    def answer(messages: Any, purpose: Any) -> str:
        nonlocal count
        count += 1
        return f"answer {count}"

    return ScriptedModel(answer)


def texts(messages: list[dict[str, Any]]) -> list[Any]:
    return [message["content"] for message in messages]


# --- with a name -----------------------------------------------------------------------------------------


async def test_a_whole_history_that_is_sent_again_is_not_stored_again(start_server: StartServer) -> None:
    server = await start_server(numbered())
    history: list[Any] = []
    headers = by_key("cli:ada")
    for number in range(1, 4):
        history.append(user(f"question {number}"))
        answer = await ask(server, history, headers)
        history.append(answer["choices"][0]["message"])
    assert await said(server, conversation_of(answer)) == [
        "user: question 1",
        "assistant: answer 1",
        "user: question 2",
        "assistant: answer 2",
        "user: question 3",
        "assistant: answer 3",
    ]
    assert await conversations(server) == 1


async def test_a_history_whose_beginning_was_trimmed_continues(start_server: StartServer) -> None:
    server = await start_server(numbered())
    for number in range(1, 4):
        await ask(server, f"question {number}", by_key("k"))
    answer = await ask(
        server,
        [assistant("answer 2"), user("question 3"), assistant("answer 3"), user("question 4")],
        by_key("k"),
    )
    assert await conversations(server) == 1
    assert (await said(server, conversation_of(answer)))[-2:] == ["user: question 4", "assistant: answer 4"]
    assert texts(heard(server))[0] == "question 1"
    assert len(heard(server)) == 7


async def test_a_client_that_sends_only_what_is_new_simply_continues(start_server: StartServer) -> None:
    server = await start_server(numbered())
    first = await ask(server, "question 1")
    second = await ask(server, "question 2", by_id(session_of(first)))
    third = await ask(server, [user("question 3"), user("and 4")], by_id(session_of(first)))
    assert conversation_of(first) == conversation_of(second) == conversation_of(third)
    assert texts(heard(server)) == ["question 1", "answer 1", "question 2", "answer 2", "question 3", "and 4"]


async def test_the_same_words_said_again_are_a_new_message(start_server: StartServer) -> None:
    server = await start_server(numbered())
    for _ in range(3):
        answer = await ask(server, "go on", by_key("k"))
    assert (await said(server, conversation_of(answer))).count("user: go on") == 3


async def test_a_client_that_reformats_what_it_keeps_still_has_the_same_history(
    start_server: StartServer,
) -> None:
    server = await start_server(ScriptedModel([" an answer \n", "another"]))
    first = await ask(server, "question", by_key("k"))
    kept = [
        {"role": "user", "content": [{"type": "text", "text": "question"}], "name": None},
        {"role": "assistant", "content": "an answer", "tool_calls": None, "id": "local-7"},
        user("more"),
    ]
    second = await ask(server, kept, by_key("k"))
    assert conversation_of(second) == conversation_of(first)
    assert len(await stored(server, conversation_of(first))) == 4


async def test_a_request_that_ends_in_an_answered_message_is_answered_again(
    start_server: StartServer,
) -> None:
    server = await start_server(numbered())
    await ask(server, "question 1", by_key("k"))
    history = [user("question 1"), assistant("answer 1"), user("question 2")]
    first = await ask(server, history, by_key("k"))
    again = await ask(server, history, by_key("k"))
    assert text_of(first) == "answer 2"
    assert text_of(again) == "answer 3"
    assert conversation_of(again) == conversation_of(first)
    assert texts(heard(server)) == ["question 1", "answer 1", "question 2"]
    everything = await said(server, conversation_of(first))
    assert everything.count("user: question 2") == 1
    assert "assistant: answer 2" in everything, "the older reply stays readable"
    assert texts(await context(server, conversation_of(first))) == [
        "question 1",
        "answer 1",
        "question 2",
        "answer 3",
    ]
    last = await ask(server, [*history, assistant("answer 3"), user("question 3")], by_key("k"))
    assert conversation_of(last) == conversation_of(first)
    assert texts(heard(server)) == ["question 1", "answer 1", "question 2", "answer 3", "question 3"]


async def test_asking_again_with_a_trimmed_history_answers_again_too(start_server: StartServer) -> None:
    server = await start_server(numbered())
    for number in range(1, 4):
        answer = await ask(server, f"question {number}", by_key("k"))
    again = await ask(server, [assistant("answer 2"), user("question 3")], by_key("k"))
    assert conversation_of(again) == conversation_of(answer)
    assert texts(await context(server, conversation_of(again)))[-2:] == ["question 3", "answer 4"]
    assert len(await context(server, conversation_of(again))) == 6


async def test_asking_again_with_a_trimmed_history_does_not_make_it_the_whole_one(
    start_server: StartServer,
) -> None:
    server = await start_server(numbered())
    first = await ask(server, "question 1")
    whole = [user("question 1"), assistant("answer 1"), user("question 2")]
    second = await ask(server, whole)
    trimmed = [assistant("answer 1"), user("question 2")]
    again = await ask(server, trimmed, by_id(session_of(second)))
    assert conversation_of(first) == conversation_of(second) == conversation_of(again)
    stranger = await ask(server, [*trimmed, assistant("answer 3"), user("question 3")])
    assert conversation_of(stranger) != conversation_of(first)
    on = await ask(server, [*whole, assistant("answer 3"), user("question 3")])
    assert conversation_of(on) == conversation_of(first)


async def test_an_edited_history_forks_and_the_source_stays_as_it_was(start_server: StartServer) -> None:
    server = await start_server(numbered())
    for number in range(1, 4):
        source = await ask(server, f"question {number}", by_key("k"))
    before = await said(server, conversation_of(source))
    edited = [user("question 1"), assistant("answer 1"), user("question 2, better")]
    fork = await ask(server, edited, by_id(session_of(source)))
    assert conversation_of(fork) != conversation_of(source)
    assert session_of(fork) != session_of(source)
    assert texts(heard(server)) == ["question 1", "answer 1", "question 2, better"]
    assert await said(server, conversation_of(source)) == before
    assert await said(server, conversation_of(fork)) == [
        "user: question 1",
        "assistant: answer 1",
        "user: question 2, better",
        "assistant: answer 4",
    ]
    further = [*edited, assistant("answer 4"), user("question 3")]
    on = await ask(server, further, by_id(session_of(fork)))
    assert conversation_of(on) == conversation_of(fork)
    assert session_of(on) == session_of(fork)
    assert conversation_of(await ask(server, "question 4", by_key("k"))) == conversation_of(source)


async def test_who_keeps_the_first_name_goes_on_in_the_fork_their_edit_has_made(
    start_server: StartServer,
) -> None:
    server = await start_server(numbered())
    source = await ask(server, "question 1", by_key("k"))
    edited = [user("question 1"), assistant("I never said this"), user("why?")]
    fork = await ask(server, edited, by_key("k"))
    further = [*edited, assistant("answer 2"), user("and then?")]
    on = await ask(server, further, by_key("k"))
    assert conversation_of(on) == conversation_of(fork) != conversation_of(source)
    assert texts(heard(server)) == ["question 1", "I never said this", "why?", "answer 2", "and then?"]
    assert await said(server, conversation_of(source)) == ["user: question 1", "assistant: answer 1"]


async def test_an_edited_answer_forks_too(start_server: StartServer) -> None:
    server = await start_server(numbered())
    source = await ask(server, "question 1", by_key("k"))
    fork = await ask(server, [user("question 1"), assistant("I never said this"), user("why?")], by_key("k"))
    assert conversation_of(fork) != conversation_of(source)
    assert texts(heard(server)) == ["question 1", "I never said this", "why?"]
    assert await said(server, conversation_of(source)) == ["user: question 1", "assistant: answer 1"]


async def test_a_history_with_nothing_in_common_leaves_the_source_alone(start_server: StartServer) -> None:
    server = await start_server(numbered())
    source = await ask(server, "question 1", by_key("k"))
    other = await ask(server, [user("other"), assistant("something"), user("entirely")], by_key("k"))
    assert conversation_of(other) != conversation_of(source)
    assert len(await stored(server, conversation_of(source))) == 2
    assert [message["content"] for message in await context(server, conversation_of(other))] == [
        "other",
        "something",
        "entirely",
        "answer 2",
    ]


async def test_a_new_key_begins_with_the_history_it_is_given(start_server: StartServer) -> None:
    server = await start_server(numbered())
    given = [user("long ago"), assistant("yes"), user("and now?")]
    first = await ask(server, given, by_key("new"))
    assert await said(server, conversation_of(first)) == [
        "user: long ago",
        "assistant: yes",
        "user: and now?",
        "assistant: answer 1",
    ]
    second = await ask(server, [*given, assistant("answer 1"), user("more")], by_key("new"))
    assert conversation_of(second) == conversation_of(first)
    assert len(await stored(server, conversation_of(first))) == 6


async def test_the_system_prompt_is_of_the_turn_and_is_not_stored(start_server: StartServer) -> None:
    server = await start_server(numbered())
    first = await ask(server, [SYSTEM, user("one")], by_key("k"))
    assert heard(server)[0] == SYSTEM
    developer = {"role": "developer", "content": "be thorough", "name": "ops"}
    history = [SYSTEM, developer, user("one"), assistant("answer 1"), user("two")]
    second = await ask(server, history, by_key("k"))
    assert heard(server) == history
    third = await ask(server, "three", by_key("k"))
    assert conversation_of(first) == conversation_of(second) == conversation_of(third)
    assert {message["role"] for message in heard(server)} == {"user", "assistant"}
    assert {m.role for m in await stored(server, conversation_of(first))} == {"user", "assistant"}


async def test_a_system_message_in_the_middle_is_part_of_the_history(start_server: StartServer) -> None:
    server = await start_server(numbered())
    answer = await ask(server, [SYSTEM, user("one"), {"role": "system", "content": "now in French"}])
    assert await said(server, conversation_of(answer)) == [
        "user: one",
        "system: now in French",
        "assistant: answer 1",
    ]


# --- without a name --------------------------------------------------------------------------------------


async def test_without_a_name_the_whole_history_is_one(start_server: StartServer) -> None:
    server = await start_server(numbered())
    history: list[Any] = [SYSTEM]
    seen = set()
    for number in range(1, 5):
        history.append(user(f"question {number}"))
        answer = await ask(server, history)
        history.append(assistant(text_of(answer)))
        seen.add(conversation_of(answer))
    assert len(seen) == 1
    assert len(await stored(server, conversation_of(answer))) == 8


async def test_without_a_name_a_part_of_a_history_begins_a_new_conversation(
    start_server: StartServer,
) -> None:
    server = await start_server(numbered())
    history = [user("question 1")]
    for number in range(2, 4):
        answer = await ask(server, history)
        history += [assistant(text_of(answer)), user(f"question {number}")]
    whole = conversation_of(answer)
    for part in (history[2:], history[:3], [user("question 3")]):
        other = await ask(server, part)
        assert conversation_of(other) != whole
        kept = await said(server, conversation_of(other))
        assert kept[:-1] == [f"{m['role']}: {m['content']}" for m in part]


async def test_a_history_without_a_match_begins_a_conversation_and_then_continues_it(server: Running) -> None:
    given = [user("said elsewhere"), assistant("answered elsewhere"), user("and here?")]
    first = await ask(server, given)
    assert len(await stored(server, conversation_of(first))) == 4
    second = await ask(server, [*given, assistant(text_of(first)), user("on")])
    assert conversation_of(second) == conversation_of(first)


async def test_two_people_behind_one_key_with_the_same_opening_words_have_two_conversations(
    start_server: StartServer,
) -> None:
    server = await start_server(ScriptedModel(lambda messages, purpose: "Hello! How can I help?"))
    client = sdk(server, await server.key("team"))
    opening: list[Any] = [user("hi")]
    ada = (await client.chat.completions.with_raw_response.create(model="m", messages=opening)).http_response
    bob = (await client.chat.completions.with_raw_response.create(model="m", messages=opening)).http_response
    hers, his = ada.headers["x-holdfast-conversation-id"], bob.headers["x-holdfast-conversation-id"]
    assert hers != his
    # Both got the same answer: a history that is that of two conversations is nobody's.
    hello = assistant("Hello! How can I help?")
    on_she = await client.chat.completions.with_raw_response.create(
        model="m", messages=[*opening, hello, user("I am Ada, my PIN is 1234")]
    )
    on_he = await client.chat.completions.with_raw_response.create(
        model="m", messages=[*opening, hello, user("what is my PIN?")]
    )
    ids = {raw.headers["x-holdfast-conversation-id"] for raw in (on_she, on_he)}
    assert len(ids | {hers, his}) == 4
    assert "1234" not in str(heard(server))
    # From where they differ, each goes on alone.
    again = await client.chat.completions.with_raw_response.create(
        model="m", messages=[*opening, hello, user("I am Ada, my PIN is 1234"), hello, user("thanks")]
    )
    assert again.headers["x-holdfast-conversation-id"] == on_she.headers["x-holdfast-conversation-id"]


async def test_a_conversation_begun_with_a_name_is_not_found_without_it(server: Running) -> None:
    named = await ask(server, "hello", by_key("telegram:dm:1"))
    stranger = await ask(server, [user("hello"), assistant(text_of(named)), user("what did I say?")])
    assert conversation_of(stranger) != conversation_of(named)


async def test_a_history_is_matched_among_its_owners_conversations_only(server: Running) -> None:
    ada, bob = await server.client_of("ada"), await server.client_of("bob")
    hers = (await post(server, [user("hello")], client=ada)).json()
    his = (await post(server, [user("hello"), assistant(text_of(hers)), user("on")], client=bob)).json()
    assert conversation_of(his) != conversation_of(hers)


async def test_a_conversation_without_a_name_that_was_retried_still_continues_by_its_history(
    start_server: StartServer,
) -> None:
    """A turn that failed and was taken up again leaves a history like any other."""
    server = await start_server(ScriptedModel([ModelError("busy", 500), "hello", "fine", "well"]))
    response = await post(server, [user("hi")], once("m1"))
    assert response.status_code == 502
    first = await ask(server, "hi", once("m1"))
    history = [user("hi"), assistant("hello"), user("how are you?")]
    second = await ask(server, history)
    assert conversation_of(second) == conversation_of(first)
    third = await ask(server, [*history, assistant("fine"), user("good")])
    assert conversation_of(third) == conversation_of(first)
    assert len(await stored(server, conversation_of(first))) == 6


async def test_a_failed_message_that_is_sent_again_without_a_key_is_not_stored_twice_by_its_history(
    start_server: StartServer,
) -> None:
    server = await start_server(ScriptedModel(["hello", ModelError("busy", 500), "fine"]))
    first = await ask(server, "hi", by_key("k"))
    history = [user("hi"), assistant("hello"), user("how are you?")]
    assert (await post(server, history, by_key("k"))).status_code == 502
    second = await ask(server, history, by_key("k"))
    assert conversation_of(second) == conversation_of(first)
    assert await said(server, conversation_of(first)) == [
        "user: hi",
        "assistant: hello",
        "user: how are you?",
        "assistant: fine",
    ]


# --- by meaning --------------------------------------------------------------------------------------------


ARGUMENTS = '{"path": "a.py", "limit": 10}'
AGAIN = '{"limit":10,"path":"a.py"}'


def asks_for_a_tool() -> ScriptedModel:
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": ARGUMENTS}}
    return ScriptedModel([{"content": "", "tool_calls": [call]}, "it is short", "and done"])


def as_opencode_keeps_it(text: str) -> list[dict[str, Any]]:
    """Arguments written anew, text as parts, an empty reply in front of the real one."""
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": AGAIN}}
    return [
        SYSTEM,
        {"role": "user", "content": [{"type": "text", "text": text}]},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "print(1)"}]},
    ]


@pytest.mark.parametrize("headers", [{}, by_key("k")], ids=["unnamed", "named"])
async def test_a_tool_result_behind_arguments_that_were_written_anew_goes_on(
    start_server: StartServer, headers: dict[str, str]
) -> None:
    server = await start_server(asks_for_a_tool())
    first = await ask(server, [SYSTEM, user("look")], headers)
    history = as_opencode_keeps_it("look")
    second = await ask(server, history, headers)
    third = await ask(server, [*history, assistant("it is short"), user("thanks")], headers)
    assert {conversation_of(second), conversation_of(third)} == {conversation_of(first)}
    assert await conversations(server) == 1
    assert [message.role for message in await stored(server, conversation_of(first))] == [
        "user", "assistant", "tool", "assistant", "user", "assistant",
    ]  # fmt: skip


@pytest.mark.parametrize("headers", [{}, by_key("k"), by_id("an-alias")], ids=["unnamed", "key", "alias"])
async def test_a_tool_result_that_answers_no_call_does_not_begin_a_conversation(
    start_server: StartServer, headers: dict[str, str]
) -> None:
    """Left out of the context as a result without its call, it would leave the model nothing to answer."""
    server = await start_server(numbered())
    answer = await post(server, [result("c9", "42")], headers)
    assert answer.status_code == 400
    assert "answers no call" in answer.json()["error"]["message"]
    assert await conversations(server) == 0


async def test_a_trimmed_history_may_begin_with_a_result_whose_call_is_gone(
    start_server: StartServer,
) -> None:
    server = await start_server(numbered())
    answer = await post(server, [result("c9", "42"), assistant("it is 42"), user("thanks")])
    assert answer.status_code == 200


def chain_of_older_versions(messages: list[dict[str, Any]]) -> bytes:
    """As they made it: arguments as text, and no message skipped."""
    encode, chain = msgspec.json.Encoder(order="deterministic").encode, b"\0" * 16
    for each in messages:
        calls = [
            [call["id"], [call["function"]["name"], call["function"]["arguments"]]]
            for call in each.get("tool_calls") or ()
        ]
        print_ = encode([each["role"], each["content"] or "", calls, each.get("tool_call_id")])
        chain += hashlib.blake2b(print_, digest_size=16).digest()
        chain = hashlib.blake2b(chain, digest_size=16).digest()
    return chain


async def test_a_conversation_that_an_older_version_stored_goes_on_and_is_known_anew(
    start_server: StartServer, server_home: Path
) -> None:
    server = await start_server(asks_for_a_tool())
    first = await ask(server, "look")
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": ARGUMENTS}}
    kept = [user("look"), {"role": "assistant", "content": "", "tool_calls": [call]}]
    with apsw.Connection(str(server_home / "holdfast.db")) as database:
        database.execute("UPDATE conversations SET history_hash = ?", (chain_of_older_versions(kept),))
    second = await ask(server, [*kept, result("c1", "print(1)")])
    assert conversation_of(second) == conversation_of(first)
    history = as_opencode_keeps_it("look")
    third = await ask(server, [*history, assistant("it is short"), user("thanks")])
    assert conversation_of(third) == conversation_of(first)


async def test_a_named_conversation_of_an_older_version_goes_on_by_its_whole_history(
    start_server: StartServer, server_home: Path
) -> None:
    """Its old chain is not extended: after a message by name it is made anew."""
    server = await start_server(asks_for_a_tool())
    first = await ask(server, "look")
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": ARGUMENTS}}
    kept = [user("look"), {"role": "assistant", "content": "", "tool_calls": [call]}]
    with apsw.Connection(str(server_home / "holdfast.db")) as database:
        database.execute("UPDATE conversations SET history_hash = ?", (chain_of_older_versions(kept),))
    await ask(server, [result("c1", "print(1)")], by_id(conversation_of(first)))
    history = as_opencode_keeps_it("look")
    third = await ask(server, [*history, assistant("it is short"), user("thanks")])
    assert conversation_of(third) == conversation_of(first)
