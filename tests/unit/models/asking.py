"""Asking a model in a test: the whole answer, or the refusal, which shows clients neither key nor address."""

import pytest

from holdfast.errors import ModelError
from holdfast.models.base import Chunk, Model, ModelRequest

KEY = "sk-test-4242abcdefghijklmnop"
ASKED = ModelRequest(b'[{"role":"user","content":"hi"}]', model="tiny")


async def answer(model: Model, request: ModelRequest = ASKED) -> list[Chunk]:
    return [chunk async for chunk in model.stream(request)]


async def refusal(model: Model, request: ModelRequest = ASKED) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await answer(model, request)
    assert KEY not in str(caught.value)
    assert model.description.rpartition(" at ")[2] not in caught.value.public
    return caught.value
