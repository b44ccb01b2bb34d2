"""Open Responses: the acceptance cases of the release of April 2026, re-created, and the rules around them.

Every response, event and error is validated against `open_responses`, which describes the published schema.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec import ValidationError

from holdfast.errors import ModelError
from holdfast.models.base import Purpose
from holdfast.models.scripted import ScriptedModel, echo
from holdfast.server.openai.response_object import QUEUED, ResponseHead, response_object
from tests.integration.api import open_responses
from tests.integration.api.conftest import Running, StartServer
from tests.integration.api.responding import events_of, finished, get, post, resumed, same_response

DOT = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9"
    "awAAAABJRU5ErkJggg=="
)
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather at a place",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}
CALL = {
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"place": "Berlin"}'},
        }
    ]
}


def said(role: str, text: str, **more: str) -> dict[str, str]:
    return {"type": "message", "role": role, "content": text, **more}


async def responded(server: Running, **body: Any) -> dict[str, Any]:
    """A response over HTTP, validated."""
    answer = await post(server, {"model": "scripted", **body})
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    open_responses.check_response(value)
    return value


async def streamed(server: Running, **body: Any) -> list[dict[str, Any]]:
    """The events of a streamed response, each validated, and their order."""
    request = {"model": "scripted", "stream": True, **body}
    async with server.client.stream("POST", "/v1/responses", json=request) as answer:
        events = [event async for event in events_of(answer)]
    for event in events:
        open_responses.check_event(event)
    open_responses.check_order(events)
    return events


# --- the acceptance cases over HTTP ----------------------------------------------------------------------

PLAIN = {
    "basic-response": [said("user", "Say hello in three words.")],
    "system-prompt": [said("system", "Answer like a pirate."), said("user", "Say hello.")],
    "image-input": [
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What is in this image?"},
                {"type": "input_image", "image_url": DOT},
            ],
        }
    ],
    "multi-turn": [
        said("user", "My name is Alice."),
        said("assistant", "Hello Alice!"),
        said("user", "What is my name?"),
    ],
    "assistant-phase": [
        said("assistant", "I look the number up.", phase="commentary"),
        said("assistant", "It is four.", phase="final_answer"),
        said("user", "Repeat the number."),
    ],
}


@pytest.mark.parametrize("store", [True, False], ids=["stored", "stateless"])
@pytest.mark.parametrize("case", PLAIN)
async def test_a_plain_case_is_completed_with_output(server: Running, case: str, store: bool) -> None:
    response = await responded(server, input=PLAIN[case], store=store)
    assert response["status"] == "completed"
    assert response["output"]
    assert response["store"] is store


@pytest.mark.parametrize("store", [True, False], ids=["stored", "stateless"])
async def test_streaming_response(server: Running, store: bool) -> None:
    events = await streamed(server, input=[said("user", "Count from 1 to 5.")], store=store)
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["status"] == "completed"


@pytest.mark.parametrize("store", [True, False], ids=["stored", "stateless"])
async def test_tool_calling(start_server: StartServer, store: bool) -> None:
    server = await start_server(ScriptedModel([CALL]))
    response = await responded(
        server, input=[said("user", "What is the weather in Berlin?")], tools=[WEATHER], store=store
    )
    assert [item["type"] for item in response["output"]] == ["function_call"]
    assert response["tools"] == [{**WEATHER, "strict": None}]


@pytest.mark.parametrize("store", [True, False], ids=["stored", "stateless"])
async def test_tool_calling_in_a_stream(start_server: StartServer, store: bool) -> None:
    server = await start_server(ScriptedModel([CALL]))
    events = await streamed(
        server, input=[said("user", "What is the weather in Berlin?")], tools=[WEATHER], store=store
    )
    kinds = [event["type"] for event in events]
    assert "response.function_call_arguments.delta" in kinds
    assert "response.function_call_arguments.done" in kinds


def test_the_output_of_a_response_may_carry_phases() -> None:
    """The case `response-output-phase-schema`: the schema allows the labels on output messages."""
    item = {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "phase": "final_answer",
        "content": [{"type": "output_text", "text": "four", "annotations": []}],
    }
    event = {"type": "response.output_item.done", "sequence_number": 1, "output_index": 0, "item": item}
    open_responses.check_event(event)
    with pytest.raises(ValidationError):
        open_responses.check_event({**event, "item": {**item, "phase": "aside"}})


# --- the same schema at every other moment ---------------------------------------------------------------


async def test_a_background_response_is_valid_from_its_start_to_its_end(start_server: StartServer) -> None:
    may_answer = asyncio.Event()

    async def answer(*_: Any) -> str:
        await may_answer.wait()
        return "hello"

    server = await start_server(ScriptedModel(answer))
    first = await responded(server, input="hello", background=True)
    assert first["status"] in ("queued", "in_progress")
    assert first["background"] is True
    may_answer.set()
    whole = await finished(server, first["id"])
    open_responses.check_response(whole)
    for event in await resumed(server, first["id"]):
        open_responses.check_event(event)


async def test_every_echoed_field_keeps_its_type(server: Running) -> None:
    asked = {
        "frequency_penalty": 0.5,
        "instructions": "be kind",
        "max_output_tokens": 99,
        "max_tool_calls": 3,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "presence_penalty": -0.5,
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "service_tier": "flex",
        "temperature": 0.5,
        "top_logprobs": 2,
        "top_p": 0.1,
        "truncation": "auto",
    }
    response = await responded(
        server,
        input="hi",
        **asked,
        reasoning={"effort": "low"},
        text={"format": {"type": "json_schema", "name": "n", "schema": {}}, "verbosity": "low"},
        tools=[{"type": "function", "name": "f"}],
        tool_choice={"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]},
    )
    assert {name: response[name] for name in asked} == asked
    assert response["reasoning"] == {"effort": "low", "summary": None}
    assert response["text"]["format"] == {
        "type": "json_schema",
        "name": "n",
        "schema": {},
        "description": None,
        "strict": False,
    }
    assert response["tool_choice"]["mode"] == "auto"
    sent = server.model.requests[0].options
    assert (sent["presence_penalty"], sent["frequency_penalty"]) == (-0.5, 0.5)
    same_response(await get(server, response["id"]), response)


async def test_a_stored_response_of_an_older_version_has_no_null_in_a_required_field(server: Running) -> None:
    """Older versions stored null for what the request did not say."""
    old = {"temperature": None, "top_p": None, "service_tier": None, "instructions": None, "store": True}
    head = ResponseHead("resp_1", server.store.now(), old, "m")
    open_responses.check_response(response_object(head, QUEUED))


async def test_a_failed_response_is_valid(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel([("one two", ModelError("it broke"))] * 2))
    for store in (True, False):
        events = await streamed(server, input="hello", store=store)
        assert events[-1]["type"] == "response.failed"
        assert events[-1]["response"]["error"]["code"] == "server_error"


async def test_an_incomplete_response_is_valid(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel([{"content": "one two", "finish_reason": "length"}]))
    events = await streamed(server, input="hello")
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_an_error_has_openais_shape(server: Running) -> None:
    answer = await post(server, {"model": "scripted", "input": 7})
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


# --- compaction ------------------------------------------------------------------------------------------

LAUNCH = [
    said("user", "We agreed to launch on Tuesday and tell support first."),
    said("assistant", "The launch is on Tuesday, and support is told before."),
]


def summaries(text: str = "Launch on Tuesday.") -> ScriptedModel:
    """A model that summarises with this text and repeats what it is told otherwise."""
    return ScriptedModel(
        lambda messages, purpose: text if purpose is Purpose.SUMMARY else echo(messages, purpose)
    )


async def compacted(server: Running, client: Any = None, **body: Any) -> dict[str, Any]:
    answer = await (client or server.client).post("/v1/responses/compact", json={"model": "scripted", **body})
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    open_responses.check_compacted(value)
    return value


async def test_compact_response(start_server: StartServer) -> None:
    server = await start_server(summaries())
    made = await compacted(server, input=LAUNCH, prompt_cache_key="a-key")
    assert [item["type"] for item in made["output"]] == ["compaction"]
    assert (await server.client.get("/api/sessions")).json()["data"] == []


async def test_items_of_hosted_tools_are_left_out_of_a_compaction(start_server: StartServer) -> None:
    searched = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    body = {"model": "m", "input": [said("user", "hello"), searched, said("assistant", "hi")]}
    server = await start_server(ScriptedModel(["gist", "gist"]))
    assert (await server.client.post("/v1/responses/compact", json=body)).status_code == 200
    strict = await start_server(clients={"hosted_tools": "refuse"})
    assert (await strict.client.post("/v1/responses/compact", json=body)).status_code == 400


async def test_compact_without_a_model_is_refused(server: Running) -> None:
    answer = await server.client.post("/v1/responses/compact", json={"input": LAUNCH})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "model"


async def test_a_compacted_history_is_the_input_of_the_next_request(start_server: StartServer) -> None:
    server = await start_server(summaries())
    history = [said("developer", "be brief"), *LAUNCH, said("user", "Who is told first?")]
    made = await compacted(server, input=history)
    kinds = [(item["type"], item.get("role")) for item in made["output"]]
    assert kinds == [("message", "developer"), ("compaction", None), ("message", "user")]
    for store in (True, False):
        response = await responded(server, input=made["output"], store=store)
        assert response["status"] == "completed"
        sent = [message["content"] for message in json.loads(server.model.requests[-1].messages)]
        assert sent[0] == "be brief"
        assert "Launch on Tuesday." in sent[1]
        assert sent[2] == "Who is told first?"


async def test_a_stored_history_is_compacted_by_its_response(start_server: StartServer) -> None:
    server = await start_server(summaries())
    first = await responded(server, input="one")
    second = await responded(server, input="two", previous_response_id=first["id"])
    for previous, seen in ((second, ("one", "two")), (first, ("one",))):
        made = await compacted(server, previous_response_id=previous["id"], instructions="Name the ports.")
        assert [item["type"] for item in made["output"]] == ["compaction"]
        asked = server.model.requests[-1].messages.decode()
        assert all(word in asked for word in seen) and "Name the ports." in asked
        assert ("two" in asked) is (previous is second)


async def test_a_compaction_item_is_bound_to_its_owner_and_cannot_be_changed(
    start_server: StartServer,
) -> None:
    server = await start_server(summaries())
    ada, bob = await server.client_of("ada"), await server.client_of("bob")
    (item,) = (await compacted(server, ada, input=LAUNCH))["output"]
    token = item["encrypted_content"]
    for client, content in (
        (bob, token),
        (ada, token[:-8] + "AAAAAAA="),
        (ada, "B" + token[1:]),
        (ada, "not base64 ☃"),
        (ada, ""),
        (ada, 7),
    ):
        answer = await client.post(
            "/v1/responses", json={"input": [{**item, "encrypted_content": content}, said("user", "hi")]}
        )
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == "input[0].encrypted_content"
    assert (await ada.post("/v1/responses", json={"input": [item, said("user", "hi")]})).status_code == 200


async def test_the_summaries_of_one_request_have_the_limit_of_a_body(start_server: StartServer) -> None:
    server = await start_server(summaries("long " * 800), server={"max_body_mb": 0.01})
    (item,) = (await compacted(server, input=LAUNCH))["output"]
    assert len(item["encrypted_content"]) < 200, "they are compressed"
    answer = await server.client.post("/v1/responses", json={"input": [item] * 3})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "input[2].encrypted_content"
    await responded(server, input=[item, item, said("user", "hi")])


async def test_a_compaction_item_outlives_its_conversation(start_server: StartServer) -> None:
    server = await start_server(summaries())
    first = await responded(server, input="one")
    (item,) = (await compacted(server, previous_response_id=first["id"]))["output"]
    gone = await server.client.delete(f"/v1/conversations/{first['conversation']['id']}")
    assert gone.status_code == 200
    assert (await responded(server, input=[item, said("user", "two")]))["status"] == "completed"
    missing = await server.client.post(
        "/v1/responses/compact", json={"model": "m", "previous_response_id": first["id"]}
    )
    assert missing.status_code == 404


async def test_a_summary_that_fails_is_the_models_error(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel([ModelError("too busy", 429), ModelError("it broke"), " "]))
    for status in (429, 502, 502):
        answer = await server.client.post("/v1/responses/compact", json={"model": "m", "input": LAUNCH})
        assert answer.status_code == status, answer.text


async def test_input_tokens_are_estimated_with_the_stored_past(server: Running) -> None:
    async def counted(**body: Any) -> int:
        answer = await server.client.post("/v1/responses/input_tokens", json={"model": "scripted", **body})
        assert answer.status_code == 200, answer.text
        assert answer.json()["object"] == "response.input_tokens"
        return int(answer.json()["input_tokens"])

    alone = await counted(input="hello")
    assert 0 < alone < await counted(input="hello", instructions="be kind and brief", tools=[WEATHER])
    first = await responded(server, input="a rather long question about the weather")
    with_past = await counted(input="hello", previous_response_id=first["id"])
    assert with_past > alone
    assert await counted(input="hello", conversation=first["conversation"]["id"]) == with_past


# --- context_management ----------------------------------------------------------------------------------

LONG = [
    message
    for number in range(12)
    for message in (said("user", f"{number} {'word ' * 60}"), said("assistant", f"{number} {'yes ' * 60}"))
]


async def test_a_large_context_that_is_not_stored_is_compacted_by_the_requests_threshold(
    start_server: StartServer,
) -> None:
    server = await start_server(summaries())
    history = [said("developer", "be brief"), *LONG, said("user", "Go on.")]
    asked = {"input": history, "store": False, "context_management": threshold(200)}
    events = await streamed(server, **asked)
    response = events[-1]["response"]
    assert [item["type"] for item in response["output"]] == ["compaction", "message"]
    sent = [message["content"] for message in json.loads(server.model.requests[-1].messages)]
    assert (len(sent), sent[0], sent[2]) == (3, "be brief", "Go on.")
    assert "Launch on Tuesday." in sent[1]

    whole = await responded(server, **asked)
    assert [item["type"] for item in whole["output"]] == ["compaction", "message"]
    again = [history[0], whole["output"][0], history[-1], whole["output"][1], said("user", "And now?")]
    shorter = await responded(server, **{**asked, "input": again})
    assert [item["type"] for item in shorter["output"]] == ["message"]


async def test_a_stored_context_is_compacted_by_the_requests_threshold(start_server: StartServer) -> None:
    server = await start_server(summaries())
    first = await responded(server, input=[*LONG, said("user", "Go on.")])
    second = await responded(
        server, input="And?", previous_response_id=first["id"], context_management=threshold(1000)
    )
    assert second["holdfast"]["session_id"] != first["holdfast"]["session_id"]
    assert second["conversation"] == first["conversation"]
    assert any(
        "Launch on Tuesday." in message["content"]
        for message in json.loads(server.model.requests[-1].messages)
    )


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ([{"type": "clear"}], "context_management[0].type"),
        ([{"type": "compaction", "compact_threshold": 0}], "context_management[0].compact_threshold"),
        ([{"type": "compaction", "compact_threshold": "many"}], "context_management[0].compact_threshold"),
        (["compaction"], "context_management[0]"),
        ({}, "context_management"),
    ],
)
async def test_an_invalid_threshold_is_refused(server: Running, value: Any, param: str) -> None:
    answer = await post(server, {"input": "x", "context_management": value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def threshold(tokens: int) -> list[dict[str, Any]]:
    return [{"type": "compaction", "compact_threshold": tokens}]


# --- hostile and odd input -------------------------------------------------------------------------------

ODD: list[tuple[Any, int]] = [
    ({"model": ""}, 400),
    ({"model": 7}, 400),
    ({"input": None}, 400),
    ({"input": []}, 400),
    ({"input": {}}, 400),
    ({"input": [7]}, 400),
    ({"input": [{"type": "no_such_item"}]}, 400),
    ({"input": [{"type": "compaction"}]}, 400),
    ({"input": [{"type": "compaction", "encrypted_content": None}]}, 400),
    ({"input": [{"type": "compaction", "encrypted_content": "A" * 200}]}, 400),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, 400),
    ({"input": [{"type": "shell_call", "call_id": "c", "action": "ls"}]}, 400),
    ({"input": [{"type": "shell_call_output", "output": []}]}, 400),
    ({"input": [{"role": "user", "content": "\ud800"}]}, 400),
    ({"instructions": 7}, 400),
    ({"previous_response_id": 7}, 400),
    ({"previous_response_id": "resp_nowhere"}, 404),
    ({"previous_response_id": f"resp_{'0' * 32}"}, 404),
]


@pytest.mark.parametrize("route", ["compact", "input_tokens"])
async def test_odd_requests_are_refused_by_name(start_server: StartServer, route: str) -> None:
    server = await start_server(summaries())
    for fields, status in ODD:
        if route == "input_tokens" and "model" in fields:
            continue
        body = json.dumps({"model": "m", "input": "hello", **fields})
        answer = await server.client.post(
            f"/v1/responses/{route}", content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == status, (fields, answer.text)
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    for content in (b"", b"[]", b"nonsense", b"[" * 100_000):
        answer = await server.client.post(f"/v1/responses/{route}", content=content)
        assert answer.status_code == 400, answer.text
    assert server.model.calls == 0


@pytest.mark.parametrize("route", ["compact", "input_tokens"])
async def test_another_owners_response_does_not_exist(start_server: StartServer, route: str) -> None:
    server = await start_server(summaries())
    bob = await server.client_of("bob")
    mine = await responded(server, input="hello")

    async def asked(name: str) -> tuple[int, str]:
        body = {"model": "m", "input": "x", "previous_response_id": name}
        answer = await bob.post(f"/v1/responses/{route}", json=body)
        return answer.status_code, answer.text.replace(name, "ID")

    status, text = await asked(mine["id"])
    assert status == 404
    assert (status, text) == await asked(f"resp_{'0' * 32}")


async def test_the_limits_of_a_request_hold_for_the_new_routes(start_server: StartServer) -> None:
    server = await start_server(summaries(), limits={"messages_per_request": 10})
    many = {"model": "m", "input": [said("user", "x")] * 50}
    for route in ("compact", "input_tokens"):
        answer = await server.client.post(f"/v1/responses/{route}", json=many)
        assert answer.status_code in (400, 413), answer.text


async def test_open_tool_calls_are_not_summarised(start_server: StartServer) -> None:
    """The newest question and what was done for it so far stay as they are."""
    server = await start_server(summaries())
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": "42"}
    made = await compacted(server, input=[*LAUNCH, said("user", "look"), call, result])
    kinds = [item["type"] for item in made["output"]]
    assert kinds == ["compaction", "message", "function_call", "function_call_output"]
    response = await responded(server, input=made["output"], store=False)
    assert response["status"] == "completed"
    roles = [message["role"] for message in json.loads(server.model.requests[-1].messages)]
    assert roles == ["user", "user", "assistant", "tool"]


async def test_metadata_of_the_client_does_not_reach_the_model(server: Running) -> None:
    await responded(server, input="hi", client_metadata={"installation": "secret"})
    assert "client_metadata" not in server.model.requests[-1].options
