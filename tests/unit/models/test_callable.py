from typing import Any

import pytest

from holdfast.errors import ModelError
from holdfast.models.base import Model, ModelRequest, Purpose
from holdfast.models.reply import Reply, fold
from holdfast.models.scripted import CallableModel

ASKED = ModelRequest(b'[{"role":"user","content":"hi"}]', purpose=Purpose.SUMMARY)


async def reply(model: Model) -> Reply:
    return fold([chunk async for chunk in model.stream(ASKED)])


async def test_its_string_is_the_reply() -> None:
    heard: list[Any] = []

    async def my_model(messages: list[dict[str, Any]], purpose: str) -> str:
        heard.extend((messages, purpose))
        return "Hello Ada"

    model = CallableModel(my_model)
    answer = await reply(model)
    assert answer.message == {"role": "assistant", "content": "Hello Ada"}
    assert (answer.finish_reason, answer.usage, answer.model) == ("stop", None, "my_model")
    assert heard == [[{"role": "user", "content": "hi"}], "summary"]
    assert model.description == "my_model (a callable)"
    assert [entry["id"] for entry in await model.models()] == ["my_model"]
    assert await model.window() is None
    assert await CallableModel(my_model, window=100).window() == 100
    await model.close()


async def test_what_it_raises_becomes_a_model_error() -> None:
    async def broken(messages: list[dict[str, Any]], purpose: str) -> str:
        raise KeyError("token")

    async def honest(messages: list[dict[str, Any]], purpose: str) -> str:
        raise ModelError("busy", 503)

    with pytest.raises(ModelError, match="the model broken raised KeyError: 'token'") as caught:
        await reply(CallableModel(broken))
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.public == "the model broken raised KeyError"  # its text may name anything
    with pytest.raises(ModelError, match="busy") as passed:
        await reply(CallableModel(honest))
    assert passed.value.status == 503


async def test_it_must_return_a_string() -> None:
    class Silent:
        async def __call__(self, messages: list[dict[str, Any]], purpose: str) -> str:
            return None  # type: ignore[return-value]

    with pytest.raises(ModelError, match="the model Silent must return a str, and returned NoneType"):
        await reply(CallableModel(Silent()))
