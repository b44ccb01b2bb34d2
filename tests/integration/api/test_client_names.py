"""Names that agent programs send: one conversation for a session, sub-agents and side requests kept apart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.domain.api_keys import Scope, new_key
from holdfast.domain.conversations import Address
from holdfast.domain.sessions import Edge
from holdfast.models.scripted import ScriptedModel
from tests.integration.api import chatting
from tests.integration.api.anthropic_chat import PATH as MESSAGES
from tests.integration.api.anthropic_chat import TOOLS as CLAUDE_TOOLS
from tests.integration.api.chatting import TOOLS, Words, assistant, heard, post, user
from tests.integration.api.conftest import Running, StartServer

CONVERSATION = "x-holdfast-conversation-id"
STORED = "x-holdfast-stored"
CLAUDE = {"x-claude-code-session-id": "c-1", "anthropic-version": "2023-06-01"}


async def messages(server: Running, body: dict[str, Any], headers: dict[str, str]) -> Any:
    fields = {"model": "m", "max_tokens": 100, **body}
    return await server.client.post(MESSAGES, json=fields, headers=headers)


async def respond(server: Running, headers: dict[str, str], **body: Any) -> Any:
    return await server.client.post("/v1/responses", json={"model": "m", **body}, headers=headers)


async def test_a_side_request_that_cannot_be_recorded_is_refused_before_the_model_is_asked(
    server: Running,
) -> None:
    title = {"thread-id": "t" * 2000, "x-codex-turn-metadata": '{"thread_source": "thread_title"}'}
    answer = await post(server, [user("title?")], {**title, "x-holdfast-session-key": "k"})
    assert (answer.status_code, server.model.calls) == (400, 0)
    assert "2000 " in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "header", ["thread-id", "x-claude-code-session-id", "x-session-id", "x-session-affinity", "session_id"]
)
async def test_a_program_names_its_conversation(server: Running, header: str) -> None:
    first = await post(server, [user("one")], {header: "name-1"})
    second = await post(server, [user("two")], {header: "name-1"})
    other = await post(server, [user("one")], {header: "name-2"})
    assert first.headers[CONVERSATION] == second.headers[CONVERSATION] != other.headers[CONVERSATION]
    shown = await server.client.get("/api/sessions/name-1")
    assert shown.json()["conversation_id"] == first.headers[CONVERSATION]
    by_id = await post(server, [user("three")], chatting.by_id("name-1"))
    assert by_id.headers[CONVERSATION] == first.headers[CONVERSATION]


async def test_the_first_name_of_the_settings_counts_and_our_headers_before_it(server: Running) -> None:
    both = {"session-id": "root", "thread-id": "thread"}
    first = await post(server, [user("one")], both)
    assert (await server.client.get("/api/sessions/thread")).status_code == 200
    assert (await server.client.get("/api/sessions/root")).status_code == 404
    ours = await post(server, [user("two")], {**both, "x-holdfast-session-key": "k"})
    assert ours.headers[CONVERSATION] != first.headers[CONVERSATION]


async def test_a_name_belongs_to_its_owner(server: Running) -> None:
    ada, bob = await server.client_of("ada"), await server.client_of("bob")
    first = await post(server, [user("one")], {"thread-id": "t"}, client=ada)
    second = await post(server, [user("two")], {"thread-id": "t"}, client=bob)
    assert first.headers[CONVERSATION] != second.headers[CONVERSATION]


async def test_a_named_request_is_kept_although_it_says_store_false(server: Running) -> None:
    codex = {"thread-id": "t", "session-id": "t"}
    first = await respond(server, codex, input="hello", store=False)
    assert first.status_code == 200, first.text
    assert first.headers[STORED] == "yes"
    history = [user("hello"), assistant("You said: hello"), user("again")]
    second = await respond(server, codex, input=history, store=False, prompt_cache_key="t")
    assert second.headers[CONVERSATION] == first.headers[CONVERSATION]
    assert await chatting.said(server, first.headers[CONVERSATION]) == [
        "user: hello",
        "assistant: You said: hello",
        "user: again",
        "assistant: You said: again",
    ]
    assert STORED not in (await post(server, [user("x")], codex)).headers


async def test_store_false_can_be_kept_to_by_a_setting(start_server: StartServer) -> None:
    server = await start_server(clients={"store_false": "drop"})
    dropped = await post(server, [user("one")], {"thread-id": "t"}, store=False)
    assert CONVERSATION not in dropped.headers
    assert STORED not in dropped.headers
    named = await post(server, [user("two")], chatting.by_key("k"), store=False)
    assert named.headers[STORED] == "yes"


@pytest.mark.parametrize("header", [{"thread-id": "t"}, {"x-holdfast-session-key": "k"}, {}])
async def test_a_request_can_forbid_to_store_anything(server: Running, header: dict[str, str]) -> None:
    never = {**header, "x-holdfast-store": "never"}
    chat = await post(server, [user("one")], never)
    response = await respond(server, never, input="two")
    message = await messages(server, {"messages": [user("three")]}, never)
    for each in (chat, response, message):
        assert each.status_code == 200, each.text
        assert CONVERSATION not in each.headers
    assert await chatting.conversations(server) == 0
    assert (await post(server, [user("x")], {"x-holdfast-store": "maybe"})).status_code == 400
    refused = await respond(server, never, input="x", background=True)
    assert refused.status_code == 400


async def test_a_key_can_forbid_to_store_anything(server: Running) -> None:
    key, token = new_key("ada", Scope.CHAT, (), server.store.now(), keeps=False)
    await server.store.add_key(key, token.hash)
    client = await server.with_token(str(token))
    for headers in ({"thread-id": "t"}, chatting.by_key("k"), {}):
        answer = await post(server, [user("one")], headers, client=client)
        assert answer.status_code == 200
        assert CONVERSATION not in answer.headers
    assert await chatting.conversations(server) == 0


@pytest.mark.parametrize("by", ["key", "header"])
async def test_what_could_only_be_stored_is_refused_where_nothing_may_be(server: Running, by: str) -> None:
    key, token = new_key("ada", Scope.CHAT, (), server.store.now(), keeps=by == "header")
    await server.store.add_key(key, token.hash)
    never = {"x-holdfast-store": "never"} if by == "header" else {}
    client = await server.with_token(str(token), **never)
    other = await server.client_of("ada")
    said = await post(server, [user("one")], chatting.by_key("k"), client=other)
    before = (await other.get("/api/sessions/k/messages?scope=conversation")).json()
    memory = (await other.post("/api/memories", json={"text": "kept", "key": "k"})).json()
    items = {"items": [{"type": "message", "role": "user", "content": "secret"}]}
    conversation = f"/v1/conversations/{said.headers[CONVERSATION]}"
    for method, path, body in (
        ("POST", "/v1/conversations", items),
        ("POST", f"{conversation}/items", items),
        ("POST", conversation, {"metadata": {"a": "secret"}}),
        ("POST", "/api/memories", {"text": "secret", "key": "k"}),
        ("PATCH", f"/api/memories/{memory['id']}", {"text": "secret"}),
        ("PATCH", f"/api/turns/{said.headers['x-holdfast-turn-id']}", {"content": "secret"}),
        ("POST", "/api/sessions/k/title", {"title": "secret"}),
    ):
        answer = await client.request(method, path, json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_scope"), path
        assert "nothing of this request may be stored" in answer.json()["error"]["message"]
    assert (await other.get("/api/sessions/k/messages?scope=conversation")).json() == before
    assert (await other.get("/api/memories")).json()["data"][0]["text"] == "kept"
    assert (await client.get("/api/sessions/k")).json()["title"] == "one", "reading stores nothing"
    assert await chatting.conversations(server) == 1


async def test_a_cache_key_names_a_conversation_only_by_choice(start_server: StartServer) -> None:
    server = await start_server(clients={"names": ["x-mine", "prompt_cache_key"]})
    first = await post(server, [user("one")], prompt_cache_key="p")
    second = await post(server, [user("two")], prompt_cache_key="p")
    assert first.headers[CONVERSATION] == second.headers[CONVERSATION]
    dropped = await post(server, [user("three")], prompt_cache_key="p", store=False)
    assert CONVERSATION not in dropped.headers
    unnamed = await post(server, [user("four")], {"thread-id": "t"})
    assert (await server.client.get("/api/sessions/t")).status_code == 404
    assert unnamed.status_code == 200


@pytest.mark.parametrize(
    ("parent", "child", "name"),
    [
        (CLAUDE, {**CLAUDE, "x-claude-code-agent-id": "a1"}, "c-1:a1"),
        (
            {"thread-id": "t", "session-id": "t"},
            {"thread-id": "u", "session-id": "t", "x-codex-parent-thread-id": "t"},
            "u",
        ),
        ({"x-session-id": "s"}, {"x-session-id": "r", "x-parent-session-id": "s"}, "r"),
    ],
)
async def test_a_sub_agent_is_a_conversation_of_its_own_and_never_waits(
    start_server: StartServer, parent: dict[str, str], child: dict[str, str], name: str
) -> None:
    words = Words()
    server = await start_server(ScriptedModel(["Hi.", words, "Done."]), server={"busy_wait_seconds": 0})
    first = await post(server, [user("hello")], parent)
    running = asyncio.create_task(post(server, [user("go on")], parent))
    await words.asked.wait()
    helped = await post(server, [user("help")], child)
    assert helped.status_code == 200, helped.text
    words.finish("I go on.")
    assert (await running).status_code == 200
    assert helped.headers[CONVERSATION] != first.headers[CONVERSATION]
    lineage = await server.store.resolve(None, Address(id=helped.headers[CONVERSATION]))
    assert lineage.tip.edge is Edge.SUBAGENT
    assert lineage.tip.parent_id == first.headers["x-holdfast-session-id"]
    shown = await server.client.get(f"/api/sessions/{name}")
    assert shown.json()["conversation_id"] == helped.headers[CONVERSATION]


TITLE: dict[str, Any] = {
    "system": "You are naming a coding session so the user can pick it out",
    "messages": [user("<session>\nhello\n</session>\n\nWrite the title")],
    "tools": [],
    "stream": True,
    "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
}


async def test_a_title_of_claude_code_is_no_part_of_the_conversation(server: Running) -> None:
    before = await messages(server, TITLE, CLAUDE)
    assert before.status_code == 200
    assert "message_stop" in before.text
    assert await chatting.conversations(server) == 0
    said = await messages(server, {"messages": [user("hello")], "tools": CLAUDE_TOOLS}, CLAUDE)
    await messages(server, TITLE, CLAUDE)
    assert await chatting.conversations(server) == 1
    assert len(await chatting.stored(server, said.headers[CONVERSATION])) == 2
    page = await server.store.events(owner="default")
    aside = [event for event in page if event.type == "request.side"]
    assert [event.conversation_id for event in aside] == [None, said.headers[CONVERSATION]]
    assert all((event.data["name"], event.data["kind"]) == ("c-1", "title") for event in aside)


async def test_the_text_of_side_requests_is_listed_beside_the_conversation(server: Running) -> None:
    await messages(server, TITLE, CLAUDE)
    said = await messages(server, {"messages": [user("hello")], "tools": CLAUDE_TOOLS}, CLAUDE)
    await messages(server, TITLE, CLAUDE)
    listed = (await server.client.get("/api/sessions/c-1/side-requests")).json()
    assert (listed["object"], listed["has_more"], len(listed["data"])) == ("list", False, 2)
    first = listed["data"][0]
    assert (first["object"], first["kind"], first["name"]) == ("side_request", "title", "c-1")
    assert first["conversation_id"] == said.headers[CONVERSATION]
    assert [each["role"] for each in first["messages"]] == ["system", "user"]
    assert first["messages"][1]["content"] == TITLE["messages"][0]["content"]
    assert "Write the title" in first["reply"]
    assert first["truncated"] is False
    paged = await server.client.get(f"/api/sessions/c-1/side-requests?after={first['id']}&limit=1")
    assert [each["id"] for each in paged.json()["data"]] == [listed["data"][1]["id"]]
    unknown = await server.client.get("/api/sessions/unknown/side-requests")
    assert unknown.status_code == 404


async def test_nothing_is_kept_of_a_side_request_that_is_never_stored(server: Running) -> None:
    await messages(server, {"messages": [user("hello")], "tools": CLAUDE_TOOLS}, CLAUDE)
    answer = await messages(server, TITLE, {**CLAUDE, "x-holdfast-store": "never"})
    assert answer.status_code == 200
    assert (await server.client.get("/api/sessions/c-1/side-requests")).json()["data"] == []


async def test_store_false_keeps_no_text_of_side_requests_where_it_is_dropped(
    start_server: StartServer,
) -> None:
    server = await start_server(clients={"store_false": "drop"})
    codex = {"thread-id": "t", "x-codex-turn-metadata": '{"request_kind": "turn"}'}
    await respond(server, codex, input="hello")
    compaction = {**codex, "x-codex-turn-metadata": '{"request_kind": "compaction"}'}
    await respond(server, compaction, input="summarise", store=False)
    assert (await server.client.get("/api/sessions/t/side-requests")).json()["data"] == []
    await respond(server, compaction, input="summarise")
    (kept,) = (await server.client.get("/api/sessions/t/side-requests")).json()["data"]
    assert kept["kind"] == "compaction"


async def test_a_title_of_opencode_does_not_wait_for_the_turn(start_server: StartServer) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words, "A title"]), server={"busy_wait_seconds": 0})
    named = {"x-session-id": "ses_1", "user-agent": "opencode/1.18.33 ai-sdk"}
    running = asyncio.create_task(post(server, [user("hello")], named, tools=TOOLS))
    await words.asked.wait()
    system = {"role": "system", "content": "You are a title generator. You output ONLY a thread title"}
    title = await post(server, [system, user("Generate a title"), user("hello")], named)
    assert chatting.text_of(title.json()) == "A title"
    words.finish("Hi.")
    assert len(await chatting.stored(server, (await running).headers[CONVERSATION])) == 2


async def test_codexs_own_compaction_is_a_side_request(server: Running) -> None:
    codex = {"thread-id": "t", "x-codex-turn-metadata": '{"request_kind": "turn"}'}
    first = await respond(server, codex, input="hello", store=False)
    compaction = {**codex, "x-codex-turn-metadata": '{"request_kind": "compaction"}'}
    history = [user("hello"), assistant("You said: hello"), user("CONTEXT CHECKPOINT COMPACTION")]
    summary = await respond(server, compaction, input=history, store=False)
    assert summary.status_code == 200
    assert len(heard(server)) == 3
    assert len(await chatting.stored(server, first.headers[CONVERSATION])) == 2


async def test_a_title_for_which_codex_opens_a_thread_is_a_side_request(server: Running) -> None:
    """The terminal interface asks for a title under a thread of its own."""
    title = {
        "thread-id": "t-2",
        "x-codex-turn-metadata": '{"request_kind": "turn", "thread_source": "thread_title"}',
    }
    answer = await respond(server, title, input="Generate a concise, single-line task title", store=False)
    assert answer.status_code == 200
    assert await chatting.conversations(server) == 0
    user_thread = {**title, "thread-id": "t", "x-codex-turn-metadata": '{"thread_source": "user"}'}
    await respond(server, user_thread, input="hello", store=False)
    assert await chatting.conversations(server) == 1


@pytest.mark.parametrize(
    "metadata", ["", "null", "[]", "{", "[" * 5000, '{"thread_source": 7, "request_kind": []}']
)
async def test_metadata_of_another_form_is_ignored(server: Running, metadata: str) -> None:
    answer = await respond(server, {"thread-id": "t", "x-codex-turn-metadata": metadata}, input="hello")
    assert answer.status_code == 200
    assert await chatting.conversations(server) == 1


@pytest.mark.parametrize(
    "prompt",
    [
        "You are a title generator. You output ONLY a thread title.",
        "Generate a title for this conversation:\n",
    ],
)
async def test_a_title_in_the_words_of_a_program_is_known_without_its_user_agent(
    server: Running, prompt: str
) -> None:
    named = {"x-session-id": "ses_1"}
    await post(server, [user("hello")], named, tools=TOOLS)
    asked = [
        {"role": "system", "content": prompt},
        user("Generate a title for this conversation:\n"),
        user("hello"),
    ]
    await post(server, asked, named)
    (kept,) = (await server.client.get("/api/sessions/ses_1/side-requests")).json()["data"]
    assert kept["kind"] == "title"
    assert len(await chatting.stored(server, kept["conversation_id"])) == 2


async def test_a_plain_program_without_tools_is_not_taken_for_a_side_request(server: Running) -> None:
    system = {"role": "system", "content": "Write a title."}
    for headers in ({"x-session-id": "s"}, {"x-session-affinity": "s2"}):
        answer = await post(server, [system, user("hello")], headers)
        assert CONVERSATION in answer.headers
    claude = await messages(server, {"messages": [user("hello")]}, CLAUDE)
    assert CONVERSATION in claude.headers


async def test_a_conversation_handed_to_another_program_gets_its_name_too(server: Running) -> None:
    codex = await post(server, [user("one")], {"thread-id": "t-1"})
    handed = {**CLAUDE, "x-holdfast-session-id": "t-1"}
    claude = await messages(server, {"messages": [user("two")], "tools": CLAUDE_TOOLS}, handed)
    assert claude.headers[CONVERSATION] == codex.headers[CONVERSATION]
    by_name = await messages(server, {"messages": [user("three")], "tools": CLAUDE_TOOLS}, CLAUDE)
    assert by_name.headers[CONVERSATION] == codex.headers[CONVERSATION]
    other = await post(server, [user("one")], {"thread-id": "t-2"})
    kept = await post(server, [user("four")], {"thread-id": "t-2", "x-holdfast-session-id": "t-1"})
    assert kept.headers[CONVERSATION] == codex.headers[CONVERSATION]
    again = await post(server, [user("five")], {"thread-id": "t-2"})
    assert again.headers[CONVERSATION] == other.headers[CONVERSATION]  # a name keeps its meaning


async def test_a_handed_conversation_keeps_sub_agents_and_side_requests_apart(server: Running) -> None:
    codex = await post(server, [user("one")], {"thread-id": "t-1"})
    handed = {**CLAUDE, "x-holdfast-session-id": "t-1"}
    agent = {**handed, "x-claude-code-agent-id": "a7"}
    sub = await messages(server, {"messages": [user("look")], "tools": CLAUDE_TOOLS}, agent)
    assert sub.headers[CONVERSATION] != codex.headers[CONVERSATION]
    session = (await server.client.get("/api/sessions/c-1:a7")).json()
    parent = (await server.client.get("/api/sessions/t-1")).json()
    assert (session["edge"], session["parent_id"]) == (Edge.SUBAGENT.value, parent["id"])
    title = {"system": "You are naming a coding session", "messages": [user("one")], "tools": []}
    named = await messages(server, title, handed)
    assert named.status_code == 200
    assert CONVERSATION not in named.headers
    shown = await server.client.get("/api/sessions/t-1/messages")
    assert [each["role"] for each in shown.json()["data"]] == ["user", "assistant"]
