"""What passes through untouched: fields nobody here knows, both ways, and everything a model may answer with.

In front of a model's server on a real socket, which keeps what it was sent.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from holdfast.models.upstream import Upstream
from tests.integration.api.chatting import (
    ask,
    by_key,
    context,
    conversation_of,
    conversations,
    once,
    post,
    sdk,
    stored,
    text_of,
    user,
)
from tests.integration.api.conftest import Running, StartServer
from tests.unit.models.mock_upstream import MockUpstream, delta, event, plain, running, says

KEY = "sk-upstream-0123456789"


@pytest.fixture
async def upstream() -> AsyncIterator[MockUpstream]:
    async with running() as mock:
        yield mock


@pytest.fixture
async def server(start_server: StartServer, upstream: MockUpstream) -> AsyncIterator[Running]:
    model = Upstream(upstream.url, KEY, "tiny", timeout_seconds=60, backoff=(0, 0))
    yield await start_server(model)
    await model.close()


def completion(message: dict[str, Any], **choice: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-7",
        "object": "chat.completion",
        "created": 1,
        "model": "tiny",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", **choice}],
    }


async def chunks_of(server: Running, messages: list[Any], **fields: Any) -> list[dict[str, Any]]:
    """The chunks of a stream, as they came over the wire."""
    body = {"messages": messages, "stream": True, **fields}
    async with server.client.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = [line async for line in response.aiter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


# --- to the model ----------------------------------------------------------------------------------------


async def test_unknown_request_fields_reach_the_model(server: Running, upstream: MockUpstream) -> None:
    upstream.answers = [says(), says()]
    fields: dict[str, Any] = {
        "temperature": 0.25,
        "seed": 7,
        "reasoning_effort": "high",
        "chat_template_kwargs": {"enable_thinking": False},
        "guided_regex": "[a-z]+",
        "metadata": {"trace": "1"},
        "user": "ada",
        "a_field_of_next_year": [1, {"two": None}],
    }
    await ask(server, "hi", model="tiny-2", **fields)
    sent = upstream.chats[0].json
    assert {name: sent[name] for name in fields} == fields
    assert sent["model"] == "tiny-2"
    await chunks_of(server, [user("hi")], **fields)
    sent = upstream.chats[1].json
    assert {name: sent[name] for name in fields} == fields
    assert upstream.chats[0].headers["x-holdfast-purpose"] == "turn"


async def test_the_clients_key_and_headers_do_not_reach_the_model(
    server: Running, upstream: MockUpstream
) -> None:
    upstream.answers = [says()]
    await ask(server, "hi", {**by_key("k"), **once("i1"), "x-secret": "s3cret"})
    headers = upstream.chats[0].headers
    assert headers["authorization"] == f"Bearer {KEY}"
    assert server.admin_key not in str(headers)
    assert "s3cret" not in str(headers)
    assert "idempotency-key" not in headers


async def test_unknown_message_fields_reach_the_model_now_and_later(
    server: Running, upstream: MockUpstream
) -> None:
    upstream.answers = [says(), says()]
    message = {"role": "user", "content": "hi", "name": "ada", "cache_control": {"type": "ephemeral"}}
    await ask(server, [message], by_key("k"))
    assert upstream.chats[0].json["messages"] == [message]
    answer = await ask(server, "more", by_key("k"))
    assert upstream.chats[1].json["messages"][0] == message
    assert (await stored(server, conversation_of(answer)))[0].content() == message


async def test_images_and_other_parts_reach_the_model_now_and_later(
    server: Running, upstream: MockUpstream
) -> None:
    upstream.answers = [says(), says()]
    pixel = "data:image/png;base64," + "iVBORw0KGgo" * 100
    parts = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": pixel, "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "file", "file": {"file_id": "file-1"}, "unheard_of": True},
    ]
    client = sdk(server)
    first = await client.chat.completions.create(
        model="tiny", messages=[user(parts)], extra_headers=by_key("k")
    )
    assert upstream.chats[0].json["messages"] == [user(parts)]
    history = [user(parts), first.choices[0].message.model_dump(exclude_none=True), user("and now?")]
    second = await client.chat.completions.create(model="tiny", messages=history, extra_headers=by_key("k"))
    assert conversation_of(second) == conversation_of(first)
    assert upstream.chats[1].json["messages"][0] == user(parts)
    assert len(await stored(server, conversation_of(first))) == 4


async def test_a_response_format_reaches_the_model_and_the_sdk_parses_the_answer(
    server: Running, upstream: MockUpstream
) -> None:
    class Person(BaseModel):
        name: str
        age: int

    upstream.answers = [
        says([event(delta(role="assistant", content='{"name": "Ada", ')), event(delta(content='"age": 36}')),
              event(delta("stop")), event(b"[DONE]")])
    ]  # fmt: skip
    parsed = await sdk(server).chat.completions.parse(
        model="tiny", messages=[user("who?")], response_format=Person
    )
    assert parsed.choices[0].message.parsed == Person(name="Ada", age=36)
    asked = upstream.chats[0].json["response_format"]
    assert asked["type"] == "json_schema"
    assert asked["json_schema"]["name"] == "Person"


async def test_a_model_that_is_not_named_is_the_configured_one(
    server: Running, upstream: MockUpstream
) -> None:
    upstream.answers = [says()]
    await ask(server, "hi")
    assert upstream.chats[0].json["model"] == "tiny"


# --- from the model --------------------------------------------------------------------------------------


async def test_unknown_response_fields_come_back_and_stay_with_the_message(
    server: Running, upstream: MockUpstream
) -> None:
    message = {
        "role": "assistant",
        "content": "hi",
        "annotations": [{"type": "x"}],
        "provider_notes": {"a": 1},
    }
    whole = {
        **completion(message, content_filter_results={"hate": {"filtered": False}}),
        "system_fingerprint": "fp_1",
        "x_groq": {"id": "req_1"},
    }
    upstream.answers = [plain(whole), says()]
    answer = await ask(server, "hi", by_key("k"))
    ours = answer.pop("holdfast")
    answer["choices"][0].pop("logprobs", None)
    assert answer == whole
    kept = (await stored(server, ours["conversation_id"]))[1].content()
    assert kept == message
    await ask(server, "more", by_key("k"))
    assert upstream.chats[1].json["messages"][1] == message


async def test_chunks_come_back_as_they_came(server: Running, upstream: MockUpstream) -> None:
    first = {
        **delta(role="assistant", content="He"),
        "obfuscation": "xyz",
        "nested": {"deep": [1, 2.5, None]},
    }
    second = delta(content="llo", reasoning_content="because")
    last = {**delta("stop"), "system_fingerprint": "fp_2"}
    upstream.answers = [says([event(first), event(second), event(last), event(b"[DONE]")])]
    came = await chunks_of(server, [user("hi")])
    assert came[:2] == [first, second]
    assert came[2].pop("holdfast")
    assert came[2:] == [last]


async def test_reasoning_is_streamed_returned_and_kept(server: Running, upstream: MockUpstream) -> None:
    pieces = [
        event(delta(role="assistant", reasoning_content="Let me ")),
        event(delta(reasoning_content="think.")),
        event(delta(content="42")),
        event(delta("stop")),
        event(b"[DONE]"),
    ]
    upstream.answers = [says(pieces), says(pieces)]
    answer = await ask(server, "hi")
    assert answer["choices"][0]["message"]["reasoning_content"] == "Let me think."
    assert text_of(answer) == "42"
    kept = (await stored(server, conversation_of(answer)))[1].content()
    assert kept["reasoning_content"] == "Let me think."
    stream = await sdk(server).chat.completions.create(model="m", messages=[user("hi")], stream=True)
    thoughts = [
        chunk.choices[0].delta.model_extra["reasoning_content"]
        async for chunk in stream
        if chunk.choices and chunk.choices[0].delta.model_extra
    ]
    assert "".join(filter(None, thoughts)) == "Let me think."


async def test_a_refusal_comes_back_and_is_kept(server: Running, upstream: MockUpstream) -> None:
    pieces = [
        event(delta(role="assistant", refusal="I cannot ")),
        event(delta(refusal="do that.")),
        event(delta("stop")),
        event(b"[DONE]"),
    ]
    upstream.answers = [says(pieces), says()]
    answer = await sdk(server).chat.completions.create(
        model="m", messages=[user("hi")], extra_headers=by_key("k")
    )
    assert answer.choices[0].message.refusal == "I cannot do that."
    assert answer.choices[0].message.content is None
    assert (await context(server, conversation_of(answer)))[1]["refusal"] == "I cannot do that."


async def test_logprobs_come_back_whole(server: Running, upstream: MockUpstream) -> None:
    def token(text: str) -> dict[str, Any]:
        return {"token": text, "logprob": -0.5, "bytes": None, "top_logprobs": []}

    def chunk(text: str) -> bytes:
        value = delta(content=text)
        value["choices"][0]["logprobs"] = {"content": [token(text)], "refusal": None}
        return event(value)

    pieces = [chunk("Hel"), chunk("lo"), event(delta("stop")), event(b"[DONE]")]
    upstream.answers = [says(pieces)]
    client = sdk(server)
    answer = await client.chat.completions.create(
        model="m", messages=[user("hi")], logprobs=True, extra_headers=once("i1")
    )
    assert upstream.chats[0].json["logprobs"] is True
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert [each.token for each in logprobs.content or ()] == ["Hel", "lo"]
    again = await client.chat.completions.create(
        model="m", messages=[user("hi")], logprobs=True, extra_headers=once("i1")
    )
    assert again == answer


async def test_usage_is_always_in_a_plain_answer_and_counted(server: Running, upstream: MockUpstream) -> None:
    upstream.answers = [says()]
    answer = await ask(server, "hi")
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    session = await server.store.session(None, answer["holdfast"]["session_id"])
    assert (session.input_tokens, session.output_tokens) == (3, 2)


async def test_a_stream_has_usage_only_if_it_was_asked_for(server: Running, upstream: MockUpstream) -> None:
    upstream.answers = [says(), says()]
    without = await chunks_of(server, [user("hi")])
    assert not any(chunk.get("usage") for chunk in without)
    assert all(chunk["choices"] for chunk in without)
    asked = await chunks_of(server, [user("hi")], stream_options={"include_usage": True})
    assert asked[-1]["choices"] == []
    assert asked[-1]["usage"]["total_tokens"] == 5
    assert "holdfast" in asked[-2], "the chunk that carries finish_reason"
    assert upstream.chats[0].json["stream_options"]["include_usage"] is True, "it is counted either way"


async def test_a_server_that_does_not_stream_is_streamed_all_the_same(
    server: Running, upstream: MockUpstream
) -> None:
    upstream.answers = [plain(completion({"role": "assistant", "content": "all at once"}))]
    stream = await sdk(server).chat.completions.create(model="m", messages=[user("hi")], stream=True)
    text = ""
    async for chunk in stream:
        text += chunk.choices[0].delta.content or ""
    assert text == "all at once"
    assert chunk.model_extra is not None
    assert chunk.model_extra["holdfast"]["session_id"].startswith("sess_")


# --- not kept --------------------------------------------------------------------------------------------


async def test_store_false_leaves_nothing_behind(server: Running, upstream: MockUpstream) -> None:
    upstream.answers = [says(), says()]
    before = await server.store.events(owner=None)
    client = sdk(server)
    answer = await client.chat.completions.create(model="m", messages=[user("psst")], store=False)
    assert answer.choices[0].message.content == "Hello Ada"
    assert answer.model_extra is not None
    assert "holdfast" not in answer.model_extra
    stream = await client.chat.completions.create(
        model="m", messages=[user("psst")], store=False, stream=True
    )
    assert "".join([c.choices[0].delta.content or "" async for c in stream if c.choices]) == "Hello Ada"
    assert not [name for name in stream.response.headers if name.startswith("x-holdfast")]
    figures = await server.store.statistics(None)
    assert (figures.conversations, figures.sessions, figures.messages) == (0, 0, 0)
    assert await server.store.events(owner=None) == before
    assert await server.store.search(None, "psst") == []


async def test_store_false_gives_the_models_messages_as_they_came(
    server: Running, upstream: MockUpstream
) -> None:
    upstream.answers = [says()]
    messages = [{"role": "system", "content": "s", "x": 1}, user("a"), {"role": "odd", "content": 5}]
    response = await post(server, messages[:2], store=False, seed=3)
    assert response.status_code == 200
    assert upstream.chats[0].json["messages"] == messages[:2]
    assert upstream.chats[0].json["seed"] == 3


async def test_store_false_with_a_name_is_kept(server: Running, upstream: MockUpstream) -> None:
    upstream.answers = [says()]
    answer = await ask(server, "hi", by_key("k"), store=False)
    assert len(await stored(server, conversation_of(answer))) == 2


async def test_several_choices_are_for_what_is_not_kept(server: Running, upstream: MockUpstream) -> None:
    client = sdk(server)
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model="m", messages=[user("hi")], n=2)
    assert refused.value.param == "n"
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(
            model="m", messages=[user("hi")], n=2, store=False, extra_headers=by_key("k")
        )
    assert await conversations(server) == 0
    assert upstream.chats == []

    def choice(index: int, finish: str | None = None, **fields: Any) -> bytes:
        value = delta(finish, **fields)
        value["choices"][0]["index"] = index
        return event(value)

    upstream.answers = [
        says([choice(0, content="one"), choice(1, content="two"), choice(1, "stop"), choice(0, "length"),
              event(b"[DONE]")])
    ]  # fmt: skip
    answer = await client.chat.completions.create(model="m", messages=[user("hi")], n=2, store=False)
    assert [each.message.content for each in answer.choices] == ["one", "two"]
    assert [each.finish_reason for each in answer.choices] == ["length", "stop"]
    assert upstream.chats[0].json["n"] == 2


async def test_the_upstreams_last_chunk_may_carry_text_too(server: Running, upstream: MockUpstream) -> None:
    upstream.answers = [
        says([event(delta(content="al")), event(delta("stop", content="l")), event(b"[DONE]")])
    ]
    stream = await sdk(server).chat.completions.create(model="m", messages=[user("hi")], stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "all"


async def test_large_numbers_and_odd_text_survive(server: Running, upstream: MockUpstream) -> None:
    odd = 'tab\t "quote" \\ back 🦀 \u2028 e\u0301 </script> \x7f'
    upstream.answers = [says([event(delta(content=odd)), event(delta("stop")), event(b"[DONE]")]), says()]
    fields = {"logit_bias": {"50256": -100}, "seed": 2**62, "big": 12345678901234567890, "small": 1e-9}
    answer = await ask(server, odd, by_key("k"), **fields)
    assert text_of(answer) == odd
    sent = upstream.chats[0].json
    assert {name: sent[name] for name in fields} == fields
    assert sent["messages"] == [user(odd)]
    await ask(server, "more", by_key("k"))
    assert upstream.chats[1].json["messages"][1]["content"] == odd


async def test_the_model_is_asked_for_a_stream_only_if_the_client_wants_one(
    server: Running, upstream: MockUpstream
) -> None:
    upstream.answers = [says(), says()]
    await ask(server, "plain", by_key("k"))
    stream = await sdk(server).chat.completions.create(model="m", messages=[user("hi")], stream=True)
    async for _ in stream:
        pass
    assert [chat.json["stream"] for chat in upstream.chats] == [False, True]
    assert "stream_options" not in upstream.chats[0].json
