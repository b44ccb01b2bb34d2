"""A client that compacts its own history: a compaction edge of the same conversation, not a fork."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.domain.quotas import MEBIBYTE
from holdfast.domain.sessions import Edge
from tests.integration.api.anthropic_chat import PATH as MESSAGES
from tests.integration.api.anthropic_chat import TOOLS as CLAUDE_TOOLS
from tests.integration.api.chatting import TOOLS, assistant, post, user
from tests.integration.api.conftest import Running, StartServer
from tests.integration.api.test_open_responses import said

CONVERSATION, SESSION = "x-holdfast-conversation-id", "x-holdfast-session-id"
CODEX_SUMMARY = (
    "Another language model started to solve this problem and produced a summary of its thinking "
    "process. Use it. Here is the summary: the launch is on Tuesday."
)
CLAUDE_SUMMARY = (
    "This session is being continued from a previous conversation that ran out of context. The launch is "
    "on Tuesday."
)
ENVIRONMENT = "<environment_context>\n  <cwd>/tmp</cwd>\n</environment_context>"


async def codex(server: Running, *items: Any, window: int = 0, kind: str = "turn", **body: Any) -> Any:
    headers = {
        "thread-id": "thread-1",
        "session-id": "thread-1",
        "x-codex-window-id": f"thread-1:{window}",
        "x-codex-turn-metadata": json.dumps({"request_kind": kind, "thread_id": "thread-1"}),
    }
    given = [said("developer", "You are Codex."), said("user", ENVIRONMENT), *items]
    response = await server.client.post(
        "/v1/responses",
        json={"model": "m", "store": False, "prompt_cache_key": "thread-1", "input": given, **body},
        headers=headers,
    )
    assert response.status_code == 200, response.text
    return response


def told(server: Running) -> list[Any]:
    """What the model was given last, as texts, without instructions."""
    return [
        message["content"] if isinstance(message["content"], str) else message["content"][0]["text"]
        for message in json.loads(server.model.requests[-1].messages)
        if message["role"] not in ("system", "developer")
    ]


async def contents(server: Running, name: str) -> list[str]:
    listed = await server.client.get(f"/api/sessions/{name}/messages", params={"scope": "conversation"})
    return [message["content"] for message in listed.json()["data"]]


async def test_codex_compacts_and_goes_on_in_the_same_conversation(server: Running) -> None:
    first = await codex(server, said("user", "one"))
    talk = [said("user", "one"), said("assistant", "You said: one")]
    second = await codex(server, *talk, said("user", "two"))
    talk += [said("user", "two"), said("assistant", "You said: two")]
    side = await codex(server, *talk, said("user", "Summarise."), kind="compaction")
    assert CONVERSATION not in side.headers
    assert first.headers[SESSION] == second.headers[SESSION]

    # The history is rewritten: the user's own messages, the summary, the new words.
    short = [said("user", "one"), said("user", "two"), said("user", CODEX_SUMMARY)]
    third = await codex(server, *short, said("user", "three"), window=1)
    assert third.headers[CONVERSATION] == first.headers[CONVERSATION]
    assert third.headers[SESSION] != first.headers[SESSION]
    assert told(server) == [ENVIRONMENT, "one", "two", CODEX_SUMMARY, "three"]
    found = await server.store.session(None, third.headers[SESSION])
    assert (found.edge, found.parent_id) == (Edge.COMPACTION, first.headers[SESSION])

    # And goes on from there, by its whole shortened history.
    short += [said("user", "three"), said("assistant", "You said: three")]
    fourth = await codex(server, *short, said("user", "four"), window=1)
    assert fourth.headers[SESSION] == third.headers[SESSION]
    assert told(server)[-3:] == ["three", "You said: three", "four"]
    assert await contents(server, "thread-1") == [
        *(ENVIRONMENT, "one", "You said: one", "two", "You said: two"),
        *(CODEX_SUMMARY, "three", "You said: three", "four", "You said: four"),
    ]
    listed = (await server.client.get("/api/sessions")).json()["data"]
    assert {each["conversation_id"] for each in listed} == {first.headers[CONVERSATION]}


async def test_a_compacted_request_that_is_refused_changes_nothing(start_server: StartServer) -> None:
    """The summary comes with the request: without it, what it replaces must stay in the context."""
    server = await start_server(limits={"conversation_mb": 600 / MEBIBYTE})
    await codex(server, said("user", "one"))
    await codex(server, said("user", "one"), said("assistant", "You said: one"), said("user", "two"))
    context = "/api/sessions/thread-1/messages?scope=context"
    before = (await server.client.get(context)).json()
    short = [said("user", "one"), said("user", "two"), said("user", CODEX_SUMMARY)]
    with pytest.raises(AssertionError, match="quota_exceeded"):
        await codex(server, *short, said("user", "three " * 50), window=1)
    assert (await server.client.get(context)).json() == before
    assert len((await server.client.get("/api/sessions/thread-1/lineage")).json()["data"]) == 1


async def test_a_compacted_request_sent_again_compacts_once(server: Running) -> None:
    """The answer was received whole: the same words again are a new question of the same session."""
    first = await codex(server, said("user", "one"))
    short = [said("user", "one"), said("user", CODEX_SUMMARY), said("user", "two")]
    second = await codex(server, *short, window=1)
    again = await codex(server, *short, window=1)
    assert second.headers[SESSION] == again.headers[SESSION] != first.headers[SESSION]
    assert len(await server.store.line(None, first.headers[CONVERSATION])) == 2


async def test_codex_compacts_twice(server: Running) -> None:
    first = await codex(server, said("user", "one"))
    await codex(server, said("user", "one"), said("user", CODEX_SUMMARY), said("user", "two"), window=1)
    newer = CODEX_SUMMARY + " And support knows."
    third = await codex(
        server,
        *(said("user", "one"), said("user", "two"), said("user", newer), said("user", "three")),
        window=2,
    )
    assert third.headers[CONVERSATION] == first.headers[CONVERSATION]
    assert told(server) == [ENVIRONMENT, "one", "two", newer, "three"]
    assert len(await server.store.line(None, first.headers[CONVERSATION])) == 3


async def test_a_message_of_the_rewritten_history_that_was_never_sent_is_not_lost(server: Running) -> None:
    await codex(server, said("user", "one"))
    await codex(
        server,
        *(said("user", "one, cut short"), said("user", CODEX_SUMMARY), said("user", "two")),
        window=1,
    )
    assert told(server) == [ENVIRONMENT, "one, cut short", CODEX_SUMMARY, "two"]


async def claude(server: Running, *messages: Any) -> Any:
    headers = {"x-claude-code-session-id": "c-1", "anthropic-version": "2023-06-01"}
    body = {"model": "m", "max_tokens": 100, "tools": CLAUDE_TOOLS, "messages": list(messages)}
    response = await server.client.post(MESSAGES, json=body, headers=headers)
    assert response.status_code == 200, response.text
    return response


@pytest.mark.parametrize("more", [True, False], ids=["with-new-words", "the-summary-alone"])
async def test_claude_code_compacts(server: Running, more: bool) -> None:
    first = await claude(server, user("one"))
    await claude(server, user("one"), assistant("You said: one"), user("two"))
    reminder = {"type": "text", "text": "<system-reminder>be kind</system-reminder>"}
    summary = {"role": "user", "content": [reminder, {"type": "text", "text": CLAUDE_SUMMARY}]}
    words = [assistant("Understood."), user("three")] if more else []
    second = await claude(server, summary, *words)
    assert second.headers[CONVERSATION] == first.headers[CONVERSATION]
    assert second.headers[SESSION] != first.headers[SESSION]
    assert not any("one" in text or "two" in text for text in told(server))
    assert len(told(server)) == (3 if more else 1)


COMPACT = (
    "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\n- Do NOT use Read, Bash, or ANY other tool."
    "\n\nYour task is to create a detailed summary of the conversation so far, paying close attention to "
    "the user's explicit requests and your previous actions."
)


async def test_the_request_by_which_claude_code_compacts_is_a_side_request(server: Running) -> None:
    """It offers tools, and leaves out the last answer, which the program keeps."""
    first = await claude(server, user("one"))
    await claude(server, user("one"), assistant("You said: one"), user("two"))
    environment = {"role": "system", "content": "# Environment"}
    for _ in range(2):  # it asks again if the answer has no summary
        asked = await claude(
            server, user("one"), assistant("You said: one"), user("two"), user(COMPACT), environment
        )
        assert CONVERSATION not in asked.headers
        assert "detailed summary" in asked.json()["content"][0]["text"]
    listed = (await server.client.get("/api/sessions")).json()["data"]
    assert [each["conversation_id"] for each in listed] == [first.headers[CONVERSATION]]
    aside = (await server.client.get("/api/sessions/c-1/side-requests")).json()["data"]
    assert [each["kind"] for each in aside] == ["compaction", "compaction"]
    assert await contents(server, "c-1") == ["one", "You said: one", "two", "You said: two"]


async def test_pi_compacts(server: Running) -> None:
    pi = {"x-session-affinity": "p-1", "session_id": "p-1"}
    first = await post(server, [user("one")], pi, tools=TOOLS, store=False)
    mark = "The conversation history before this point was compacted into the following summary:\n\n"
    past = [user(f"{mark}<summary>\none\n</summary>"), user("two"), assistant("You said: two")]
    await post(server, [user("one"), assistant("You said: one"), user("two")], pi, tools=TOOLS, store=False)
    for words in ("three", "four"):
        later = await post(server, [*past, user(words)], pi, tools=TOOLS, store=False)
        assert later.headers[CONVERSATION] == first.headers[CONVERSATION]
        assert [each[:8] for each in told(server)] == [
            "The conv",
            *(each["content"][:8] for each in past[1:]),
            words,
        ]
        past += [user(words), assistant(f"You said: {words}")]
    assert [each.edge for each in await server.store.line(None, later.headers[CONVERSATION])] == [
        None,
        Edge.COMPACTION,
    ]


async def test_opencode_compacts_twice(server: Running) -> None:
    opencode = {"x-session-id": "ses_1", "user-agent": "opencode/1.18.33 ai-sdk"}
    past: list[Any] = []

    async def say(words: str) -> Any:
        response = await post(server, [*past, user(words)], opencode, tools=TOOLS)
        past.extend((user(words), assistant(f"You said: {words}")))
        return response

    first = await say("one")
    for number in (1, 2):
        past[:] = [user("What did we do so far?"), assistant(f"## Goal\nsummary {number}")]
        for words in (f"two {number}", f"three {number}"):
            later = await say(words)
            assert later.headers[CONVERSATION] == first.headers[CONVERSATION]
            assert told(server) == [each["content"] for each in past[:-1]]
    line = await server.store.line(None, first.headers[CONVERSATION])
    assert [each.edge for each in line] == [None, Edge.COMPACTION, Edge.COMPACTION]
    assert (await contents(server, "ses_1")).count("one") == 1


async def test_a_person_may_ask_what_was_done_so_far(server: Running) -> None:
    named = {"x-session-id": "ses_1"}
    first = await post(server, [user("one")], named, tools=TOOLS)
    talk = [user("one"), assistant("You said: one"), user("What did we do so far?")]
    second = await post(server, talk, named, tools=TOOLS)
    assert second.headers[SESSION] == first.headers[SESSION]
    assert told(server) == [each["content"] for each in talk]


async def test_a_compaction_item_shortens_a_named_conversation(server: Running) -> None:
    first = await codex(server, said("user", "one"))
    made = await server.client.post(
        "/v1/responses/compact",
        json={"model": "m", "input": [said("user", "one"), said("assistant", "You said: one")]},
    )
    (item,) = made.json()["output"]
    second = await codex(server, item, said("user", "two"))
    assert second.headers[CONVERSATION] == first.headers[CONVERSATION]
    texts = told(server)
    assert len(texts) == 3 and texts[1].startswith("[Summary") and texts[2] == "two"


async def test_words_that_only_look_like_a_summary_do_not_compact_a_new_conversation(server: Running) -> None:
    first = await post(server, [user(CODEX_SUMMARY), user("one")], {"x-session-id": "s"}, tools=TOOLS)
    assert len(await server.store.line(None, first.headers[CONVERSATION])) == 1


async def test_an_edited_history_still_forks(server: Running) -> None:
    first = await codex(server, said("user", "one"))
    talk = [said("user", "one"), said("assistant", "You said something else")]
    second = await codex(server, *talk, said("user", "two"))
    assert second.headers[CONVERSATION] != first.headers[CONVERSATION]
