"""Tools of the server, over HTTP and with the official SDK: who may use them, what clients see."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from holdfast.domain.api_keys import Scope, new_key
from holdfast.models.scripted import ScriptedModel
from holdfast.os_support import running_processes
from holdfast.runtime.processes.probe import members
from holdfast.server import sse
from tests.integration.api import responding
from tests.integration.api.chatting import (
    TOOLS,
    ask,
    by_key,
    call,
    conversation_of,
    heard,
    once,
    post,
    result,
    said,
    sdk,
    stored,
    text_of,
    until,
    user,
)
from tests.integration.api.conftest import Running, StartServer
from tests.integration.api.operating import got

ALL = ("terminal", "process", "search")


def runs(command: str, content: str | None = None, *, call_id: str = "call_t", **more: Any) -> dict[str, Any]:
    """What a model says that wants a command to be run."""
    arguments = msgspec.json.encode({"command": command, **more}).decode()
    return {"content": content, "tool_calls": [call(call_id, "terminal", arguments)]}


async def key_with(server: Running, *tools: str, owner: str = "ada") -> str:
    key, token = new_key(owner, Scope.CHAT, tools, server.store.now())
    await server.store.add_key(key, token.hash)
    return str(token)


async def allowed(server: Running, *tools: str, owner: str = "ada") -> httpx.AsyncClient:
    return await server.with_token(await key_with(server, *(tools or ALL), owner=owner))


def offered(server: Running, request: int = -1) -> list[str]:
    tools = server.model.requests[request].options.get("tools") or ()
    return [tool["function"]["name"] for tool in tools]


@pytest.fixture
async def start(start_server: StartServer) -> AsyncIterator[Any]:
    """A server with all tools, and this script."""
    servers: list[Running] = []

    async def begin(*script: Any, tools: tuple[str, ...] = ALL, **settings: Any) -> Running:
        model = ScriptedModel(list(script) if script else lambda messages, purpose: "fine")
        agent = {"tools": list(tools), **settings.pop("agent", {})}
        servers.append(await start_server(model, agent=agent, **settings))
        return servers[-1]

    yield begin
    for server in servers:
        for process in (await server.store.processes(None, limit=1000)).items:
            for one in members(process, running_processes(), thorough=True):
                os.kill(one.pid, signal.SIGKILL)


# --- who may -------------------------------------------------------------------------------------------


async def test_a_tool_needs_the_settings_and_the_key(start: Any) -> None:
    server = await start(tools=("terminal", "search"))
    for tools, expected in [(ALL, ["terminal", "search"]), (("search",), ["search"]), (("process",), [])]:
        client = await server.with_token(await key_with(server, *tools))
        await post(server, [user("hello")], client=client)
        assert offered(server) == expected
    await ask(server, "hello")  # by a key without any tool
    assert offered(server) == []


async def test_without_settings_nobody_has_tools(start_server: StartServer) -> None:
    server = await start_server()
    client = await allowed(server)
    await post(server, [user("hello")], client=client)
    assert "tools" not in server.model.requests[-1].options


async def test_the_key_of_the_environment_may_use_what_the_settings_name(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_API_KEY", "the operator's own key")
    server = await start(tools=("terminal",))
    client = await server.with_token("the operator's own key")
    await post(server, [user("hello")], client=client)
    assert offered(server) == ["terminal"]


async def test_a_call_without_the_right_runs_nothing(start: Any, tmp_path: Path) -> None:
    server = await start(runs(f"touch {tmp_path}/ran"), "sorry")
    answer = await ask(server, "go")
    assert text_of(answer) == "sorry"
    assert not (tmp_path / "ran").exists()
    assert "not allowed" in heard(server)[-1]["content"]


async def test_a_command_does_not_find_the_servers_keys(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOLDFAST_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "a secret of the server")
    server = await start(runs("env"), runs("env; sleep 1", background=True, call_id="b"), "fine")
    await post(server, [user("go")], client=await allowed(server))
    assert "PATH=" in heard(server, 1)[-1]["content"]
    assert "secret" not in heard(server, 1)[-1]["content"]
    (process,) = (await server.store.processes(None)).items
    supervisor = server.services.holdfast.supervisor

    async def has_spoken() -> bool:
        return "PATH=" in (await supervisor.log(None, process.id)).text

    await until(has_spoken, "its environment is in the log")
    assert "secret" not in (await supervisor.log(None, process.id)).text


# --- what clients see ----------------------------------------------------------------------------------


async def test_an_answer_shows_nothing_of_the_servers_calls(start: Any) -> None:
    server = await start(runs("echo kelp"), "It says kelp.")
    client = await allowed(server)
    answer = (await post(server, [user("go")], client=client)).json()
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "It says kelp."}
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["total_tokens"] == 1 + (1 + 4 + 3), "what both steps heard and said"
    chat = conversation_of(answer)
    assert await said(server, chat) == [
        "user: go", "assistant: None", "tool: kelp\n[exit code 0]", "assistant: It says kelp.",
    ]  # fmt: skip
    items = (await client.get(f"/v1/conversations/{chat}/items", params={"order": "asc"})).json()["data"]
    assert [item["type"] for item in items] == ["message", "message"]
    told = (await client.get(f"/api/sessions/{chat}/messages", params={"scope": "conversation"})).json()
    assert [message.get("inner", False) for message in told["data"]] == [False, True, True, False]


async def test_a_history_that_is_sent_back_continues_with_and_without_a_name(start: Any) -> None:
    server = await start(runs("true", "Let me look."), "It is fine.", "Yes.", "Sure.")
    client = await allowed(server)
    first = (await post(server, [user("go")], client=client)).json()
    message = first["choices"][0]["message"]
    assert message["content"] == "Let me look.\n\nIt is fine."
    history = [user("go"), message, user("sure?")]
    again = (await post(server, history, client=client)).json()
    assert conversation_of(again) == conversation_of(first)
    history += [again["choices"][0]["message"], user("really?")]
    named = {"x-holdfast-session-id": conversation_of(first)}
    last = (await post(server, history, named, client)).json()
    assert conversation_of(last) == conversation_of(first)
    assert len(await stored(server, conversation_of(first))) == 8, "nothing was stored twice"


@pytest.mark.parametrize("content", [None, "Let me look."])
async def test_a_stream_is_one_answer_for_the_official_sdk(start: Any, content: str | None) -> None:
    server = await start(runs("echo kelp", content), "It says kelp.")
    client = sdk(server, await key_with(server, *ALL))
    async with client.chat.completions.stream(
        model="m", messages=[user("go")], stream_options={"include_usage": True}
    ) as stream:
        ids = {event.chunk.id async for event in stream if event.type == "chunk"}
        final = await stream.get_final_completion()
    assert len(ids) == 1
    (choice,) = final.choices
    expected = "It says kelp." if content is None else f"{content}\n\nIt says kelp."
    assert (choice.message.role, choice.message.content) == ("assistant", expected)
    assert (choice.message.tool_calls, choice.finish_reason) == (None, "stop")
    assert final.usage is not None
    spoken = len(expected.split())
    assert final.usage.completion_tokens == spoken
    chat = (await server.store.conversations("ada")).items[0].id
    shown = [user("go"), {"role": "assistant", "content": expected}, user("more")]
    server.model._script.append("on")
    again = (await post(server, shown, client=await allowed(server))).json()
    assert conversation_of(again) == chat


async def test_words_come_while_the_model_speaks_and_comments_while_a_tool_runs(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "KEEPALIVE_SECONDS", 0.2)
    monkeypatch.setattr(sse, "LOOK_SECONDS", 0.1)
    gate = tmp_path / "gate"
    server = await start(runs(f"while ! [ -e {gate} ]; do sleep 0.05; done", "Wait."), "Done.")
    client = await allowed(server)
    lines: list[str] = []
    body = {"messages": [user("go")], "stream": True}
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=by_key("a")) as answer:
        async for line in answer.aiter_lines():
            lines.append(line)
            if line == ": keepalive" and not gate.exists():
                activity = (await client.get("/api/activity")).json()
                assert [one["doing"] for one in activity["data"]] == ["tool:terminal"]
                gate.touch()
    words = [at for at, line in enumerate(lines) if "Wait." in line]
    assert words
    assert words[0] < lines.index(": keepalive")
    assert lines[-2:] == ["data: [DONE]", ""] or lines[-1] == "data: [DONE]"


async def test_a_mixed_batch_shows_the_client_its_own_calls_and_goes_on_with_both_results(start: Any) -> None:
    mixed = {"tool_calls": [*runs("echo ours")["tool_calls"], call("call_w")]}
    server = await start(mixed, "It rains.")
    client = await allowed(server)
    for_client = {"tools": TOOLS}
    answer = (await post(server, [user("go")], by_key("a"), client, **for_client)).json()
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert [one["id"] for one in choice["message"]["tool_calls"]] == ["call_w"]
    history = [user("go"), choice["message"], result("call_w", "theirs")]
    last = (await post(server, history, by_key("a"), client, **for_client)).json()
    assert (text_of(last), conversation_of(last)) == ("It rains.", conversation_of(answer))
    assert [one.get("content") for one in heard(server)] == ["go", None, "ours\n[exit code 0]", "theirs"]
    assert offered(server) == ["weather", *ALL]


async def test_a_mixed_batch_is_streamed_as_the_clients_calls(start: Any) -> None:
    mixed = {"tool_calls": [*runs("echo ours")["tool_calls"], call("call_w")]}
    server = await start(mixed)
    client = sdk(server, await key_with(server, *ALL))
    async with client.chat.completions.stream(model="m", messages=[user("go")], tools=TOOLS) as stream:
        final = await stream.get_final_completion()
    calls = final.choices[0].message.tool_calls
    assert calls is not None
    assert [(one.id, one.function.name, one.function.arguments) for one in calls] == [
        ("call_w", "weather", '{"city": "Paris"}')
    ]


async def test_a_repeated_request_gets_the_same_answer_and_runs_nothing(start: Any, tmp_path: Path) -> None:
    server = await start(runs(f"echo ran >> {tmp_path}/runs", "Let me look."), "Done.")
    client = await allowed(server)
    answers = [(await post(server, [user("go")], once("k"), client)).json() for _ in range(2)]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert answers[0]["usage"] == answers[1]["usage"]
    assert (tmp_path / "runs").read_text() == "ran\n"


async def test_steps_end_at_the_limit_with_a_message(start: Any) -> None:
    server = await start(*[runs("true", call_id=f"c{n}") for n in range(5)], agent={"max_steps": 2})
    answer = (await post(server, [user("go")], client=await allowed(server))).json()
    assert "2 steps" in text_of(answer)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert server.model.calls == 2


# --- responses -----------------------------------------------------------------------------------------


async def test_a_response_calls_no_more_server_tools_than_it_may(start: Any, tmp_path: Path) -> None:
    command = f"echo ran >> {tmp_path}/runs"
    server = await start(*[runs(command, call_id=f"c{n}") for n in range(2)], "Done.")
    server.client = await allowed(server)
    made = await responding.respond(server, "go", max_tool_calls=2)
    assert (made["status"], responding.spoken(made)) == ("completed", "Done.")
    assert [request.options.get("tool_choice") for request in server.model.requests] == [None, None, "none"]


async def test_a_batch_of_calls_is_run_as_far_as_the_response_may(start: Any, tmp_path: Path) -> None:
    batch = runs(f"echo ran >> {tmp_path}/runs")
    (call,) = batch["tool_calls"]
    batch["tool_calls"] = [{**call, "id": f"c{number}"} for number in range(5)]
    server = await start(batch, "Done.")
    server.client = await allowed(server)
    made = await responding.respond(server, "go", max_tool_calls=2)
    assert (made["status"], responding.spoken(made)) == ("completed", "Done.")
    assert (tmp_path / "runs").read_text() == "ran\n" * 2


async def test_a_model_that_calls_a_tool_all_the_same_ends_its_turn(start: Any, tmp_path: Path) -> None:
    command = f"echo ran >> {tmp_path}/runs"
    server = await start(*[runs(command, call_id=f"c{n}") for n in range(5)])
    server.client = await allowed(server)
    made = await responding.respond(server, "go", max_tool_calls=1)
    assert made["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (tmp_path / "runs").read_text() == "ran\n"


@pytest.mark.parametrize("checkpoint_seconds", [0.01, 5])
async def test_a_response_has_what_was_said_between_the_tools_each_as_an_item(
    start: Any, checkpoint_seconds: float
) -> None:
    script = (runs("sleep 0.1", "Let me look."), runs("sleep 0.1", call_id="c2"), "It is fine.")
    server = await start(*script, *script, server={"checkpoint_seconds": checkpoint_seconds})
    server.client = await allowed(server)
    made = await responding.respond(server, "go")
    assert [(item["type"], item["content"][0]["text"]) for item in made["output"]] == [
        ("message", "Let me look."), ("message", "It is fine."),
    ]  # fmt: skip
    kept = await responding.get(server, made["id"])
    assert (kept["output"], kept["usage"]) == (made["output"], made["usage"])
    events = await responding.streamed(server, {"input": "go"})
    last = events[-1]["response"]
    assert responding.text_of(events) == "Let me look.It is fine."
    assert [item["type"] for item in last["output"]] == ["message", "message"]
    assert {event["type"] for event in events if "function_call" in event["type"]} == set()
    assert (await responding.get(server, last["id"]))["output"] == last["output"]
    assert await responding.resumed(server, last["id"]) == events
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [event["output_index"] for event in added] == [0, 1]
    assert [event["item"]["id"] for event in added] == [item["id"] for item in last["output"]]


async def test_a_response_that_is_looked_at_while_a_tool_runs_has_said_each_thing_once(
    start: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    command = f"touch {tmp_path}/begun; while ! [ -e {gate} ]; do sleep 0.05; done"
    words = " ".join(["word"] * 20)
    server = await start(runs(command, words), "Done.", server={"checkpoint_seconds": 0.001})
    server.client = await allowed(server)
    made = await responding.respond(server, "go", background=True)
    await until((tmp_path / "begun").exists, "the command runs")
    seen = await responding.get(server, made["id"])
    assert (seen["status"], responding.spoken(seen)) == ("in_progress", words)
    gate.touch()
    done = await responding.finished(server, made["id"])
    assert responding.spoken(done) == f"{words}Done."


async def test_the_output_of_a_response_that_is_sent_back_continues(start: Any) -> None:
    server = await start(runs("true", "Let me look."), "It is fine.", "Yes.")
    server.client = await allowed(server)
    made = await responding.respond(server, [user("go")])
    again = await responding.respond(server, [user("go"), *made["output"], user("sure?")])
    assert again["holdfast"]["conversation_id"] == made["holdfast"]["conversation_id"]
    assert len(await stored(server, made["holdfast"]["conversation_id"])) == 6


async def test_a_response_of_a_mixed_batch_has_the_clients_calls(start: Any) -> None:
    mixed = {"content": "I look", "tool_calls": [*runs("echo ours")["tool_calls"], call("call_w")]}
    server = await start(mixed, mixed)
    server.client = await allowed(server)
    weather = {"type": "function", "name": "weather", "parameters": {}, "strict": False}
    made = await responding.respond(server, "go", tools=[weather])
    assert [item["type"] for item in made["output"]] == ["message", "function_call"]
    assert (await responding.get(server, made["id"]))["output"] == made["output"]
    events = await responding.streamed(server, {"input": "go", "tools": [weather]})
    last = events[-1]["response"]
    assert [item.get("call_id") for item in last["output"]] == [None, "call_w"]
    assert (await responding.get(server, last["id"]))["output"] == last["output"]
    brought = {"type": "function_call_output", "call_id": "call_w", "output": "theirs"}
    server.model._script.append("rain")
    more = await responding.respond(server, [brought], previous_response_id=last["id"])
    assert responding.spoken(more) == "rain"
    assert [one.get("content") for one in heard(server)][-2:] == ["ours\n[exit code 0]", "theirs"]


# --- processes that end --------------------------------------------------------------------------------


async def test_a_process_that_has_ended_is_news_for_its_session_and_a_notice_for_its_person(
    start: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    command = f"while ! [ -e {gate} ]; do sleep 0.05; done; echo built; exit 3"
    server = await start(runs(command, background=True), "Started.", "I see.", "Nothing new.", "Hm.")
    client = await allowed(server)
    first = (await post(server, [user("go")], by_key("a"), client)).json()
    await post(server, [user("hello")], by_key("other"), client)
    active_at = (await got(server, "/api/sessions/a?owner=ada"))["last_activity_at"]
    gate.touch()
    await until_notice(server)
    assert (await got(server, "/api/sessions/a?owner=ada"))["last_activity_at"] == active_at
    elsewhere = (await post(server, [user("news?")], by_key("other"), client)).json()
    assert elsewhere["holdfast"]["notices"] == []
    assert not any("built" in str(one["content"]) for one in heard(server))
    server.model._script.append("Hm.")
    told = (await post(server, [user("and?")], by_key("a"), client)).json()
    (notice,) = told["holdfast"]["notices"]
    assert (notice["kind"], "exit code 3" in notice["text"]) == ("process", True)
    (news,) = [one["content"] for one in heard(server) if one["role"] == "system"]
    assert "exit code 3" in news
    assert news.endswith("built")
    server.model._script.append("Yes.")
    later = (await post(server, [user("so?")], by_key("a"), client)).json()
    assert later["holdfast"]["notices"] == []
    assert conversation_of(later) == conversation_of(first)


async def test_a_fresh_session_hears_nothing_of_what_an_earlier_one_started(start: Any) -> None:
    server = await start(runs("sleep 0.6", background=True), "Started.", "Hello.")
    client = await allowed(server)
    first = (await post(server, [user("go")], by_key("a"), client)).json()
    await server.store.end_session("ada", first["holdfast"]["session_id"], "new")
    await until_notice(server)
    told = (await post(server, [user("hi")], by_key("a"), client)).json()
    assert told["holdfast"]["session_id"] != first["holdfast"]["session_id"]
    assert [notice["kind"] for notice in told["holdfast"]["notices"]] == ["process"]
    assert [one["role"] for one in heard(server)] == ["user"]


async def until_notice(server: Running) -> None:
    async def is_there() -> bool:
        return bool((await server.store.notices("ada")).items)

    await until(is_there, "the end of the process was noticed")
