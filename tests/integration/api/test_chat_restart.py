"""A real `holdfast serve` that is killed, stopped and started again, in the middle of what it was saying."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from holdfast.domain.turns import TurnStatus
from holdfast.store.sqlite.engine import open_store
from tests import quiet_time
from tests.acceptance.command import CAN_FORK, Home, Running
from tests.integration.api.chatting import PATIENCE, by_key, conversation_of, once, user
from tests.unit.models.mock_upstream import MockUpstream, Reaction, delta, event, hangs, running, says

pytestmark = pytest.mark.slow

KEY = "a-key-for-this-test"
HALF = [event(delta(role="assistant", content="Half ")), event(delta(content="an answer"))]
CHECKPOINT = 0.05


class Serving:
    """The command, run again and again on one store and one port."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._process: Running | None = None
        self.port = 0
        self.took = 0.0
        """How long the last start took, without the time that this machine had other things to do."""

    async def start(self) -> None:
        started = quiet_time.now()
        self._process = self._home.start("serve", "--port", str(self.port))
        await asyncio.to_thread(self._process.wait_for, "answers at")
        self.took = quiet_time.now() - started
        self.port = int(self._process.printed.split(b"127.0.0.1:")[1].split(b"/")[0])

    def send(self, number: int) -> None:
        assert self._process is not None
        self._process.send(number)

    async def end(self) -> tuple[int, str, str]:
        assert self._process is not None
        process, self._process = self._process, None
        return await asyncio.to_thread(process.end)

    async def kill(self) -> None:
        """As a power cut would."""
        self.send(signal.SIGKILL)
        await self.end()

    async def again(self) -> None:
        await self.kill()
        await self.start()

    def close(self) -> None:
        if self._process is not None:
            self._process.process.kill()
            self._process.process.communicate()

    def client(self, **options: Any) -> openai.AsyncOpenAI:
        options.setdefault("max_retries", 0)
        return openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1", api_key=KEY, timeout=PATIENCE, **options
        )

    async def said(self, conversation_id: str) -> list[str]:
        """What the store holds, read beside the server; `…` behind what was interrupted."""
        store = await open_store(self._home.store)
        try:
            found = (await store.messages(None, conversation_id)).items
        finally:
            await store.close()
        return [f"{m.role}: {m.content()['content']}" + "…" * (m.status == "interrupted") for m in found]

    async def checkpointed(self, turn_id: str, text: str) -> None:
        """Wait until the store holds this text of a running reply."""
        store = await open_store(self._home.store)
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    version = store.version()
                    drafts = await store.drafts(turn_id)
                    if text in "".join("".join(draft.adds.values()) for draft in drafts):
                        return
                    await store.changed(version, CHECKPOINT)
        finally:
            await store.close()

    async def turns(self, conversation_id: str) -> list[TurnStatus]:
        store = await open_store(self._home.store)
        try:
            return [turn.status for turn in await store.turns(None, conversation_id)]
        finally:
            await store.close()


@pytest.fixture
async def upstream() -> AsyncIterator[MockUpstream]:
    async with running() as mock:
        yield mock


@pytest.fixture
def serving(tmp_path: Path, upstream: MockUpstream) -> Iterator[Serving]:
    home = Home(
        tmp_path / "home",
        {
            "HOLDFAST_API_KEY": KEY,
            "HOLDFAST_MODEL__KIND": "openai",
            "HOLDFAST_MODEL__BASE_URL": upstream.url,
            "HOLDFAST_MODEL__NAME": "tiny",
            "HOLDFAST_MODEL__CONTEXT_WINDOW": "8192",
            "HOLDFAST_SERVER__CHECKPOINT_SECONDS": str(CHECKPOINT),
            "HOLDFAST_SERVER__DRAIN_SECONDS": "1",
        },
        forked=CAN_FORK,
    )
    serving = Serving(home)
    yield serving
    serving.close()


async def ask(client: openai.AsyncOpenAI, text: str, headers: dict[str, str], **fields: Any) -> Any:
    return await client.chat.completions.create(
        model="tiny", messages=[user(text)], extra_headers=headers, **fields
    )


async def listen_until(stream: Any, text: str) -> str:
    """Hear a stream until it has said this."""
    heard = ""
    async for chunk in stream:
        heard += chunk.choices[0].delta.content or ""
        if text in heard:
            return heard
    raise AssertionError(f"{text!r} was never said, only {heard!r}")


async def test_the_same_answer_comes_again_after_a_kill(serving: Serving, upstream: MockUpstream) -> None:
    upstream.answers = [says(), says()]
    await serving.start()
    client = serving.client()
    plain = await ask(client, "plain", once("m1", **by_key("k")))
    stream = await ask(client, "streamed", once("m2", **by_key("k")), stream=True)
    chunks = [chunk async for chunk in stream]
    await serving.again()
    client = serving.client()
    assert await ask(client, "plain", once("m1", **by_key("k"))) == plain
    again = await ask(client, "streamed", once("m2", **by_key("k")), stream=True)
    told = [chunk async for chunk in again]

    def text(all_chunks: list[Any]) -> str:
        return "".join(chunk.choices[0].delta.content or "" for chunk in all_chunks)

    assert text(told) == text(chunks) == "Hello Ada"
    assert told[-1].model_extra["holdfast"] == chunks[-1].model_extra["holdfast"]
    assert len(upstream.chats) == 2
    with pytest.raises(openai.ConflictError):
        await ask(client, "another body", once("m1", **by_key("k")))


async def test_a_stream_cut_by_a_kill_and_retried_is_one_turn(
    serving: Serving, upstream: MockUpstream
) -> None:
    upstream.answers = [hangs(HALF), says()]
    await serving.start()
    stream = await ask(serving.client(), "hi", once("m1", **by_key("k")), stream=True)
    await listen_until(stream, "an answer")
    conversation = stream.response.headers["x-holdfast-conversation-id"]
    turn = stream.response.headers["x-holdfast-turn-id"]
    await serving.checkpointed(turn, "Half an answer")
    await serving.kill()
    with pytest.raises(openai.APIConnectionError):
        [chunk async for chunk in stream]
    await serving.start()
    retried = await ask(serving.client(), "hi", once("m1", **by_key("k")), stream=True)
    heard = await listen_until(retried, "Hello Ada")
    [chunk async for chunk in retried]
    assert heard == "Hello Ada", "the partial reply is not told again"
    assert retried.response.headers["x-holdfast-turn-id"] == turn
    assert upstream.chats[1].json["messages"] == [user("hi")], "and not in the context"
    assert await serving.said(conversation) == [
        "user: hi",
        "assistant: Half an answer…",
        "assistant: Hello Ada",
    ]
    assert await serving.turns(conversation) == [TurnStatus.COMPLETED]


async def test_a_reply_cut_by_a_kill_and_not_retried_is_kept_and_marked(
    serving: Serving, upstream: MockUpstream
) -> None:
    upstream.answers = [hangs(HALF), says()]
    await serving.start()
    stream = await ask(serving.client(), "hi", by_key("k"), stream=True)
    await listen_until(stream, "an answer")
    await serving.checkpointed(stream.response.headers["x-holdfast-turn-id"], "Half an answer")
    await serving.again()
    answer = await ask(serving.client(), "go on", by_key("k"))
    sent = upstream.chats[1].json["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert sent[1]["content"].startswith("Half an answer")
    assert "interrupted" in sent[1]["content"]
    statuses = await serving.turns(conversation_of(answer))
    assert statuses == [TurnStatus.COMPLETED, TurnStatus.INTERRUPTED]


async def test_the_sdks_own_retry_reaches_the_server_that_was_started_again(
    serving: Serving, upstream: MockUpstream
) -> None:
    upstream.answers = [hangs(), says()]
    await serving.start()
    asking = asyncio.create_task(ask(serving.client(max_retries=8), "hi", {}))
    await upstream.asked.wait()
    await serving.again()
    answer = await asking
    assert answer.choices[0].message.content == "Hello Ada"
    assert await serving.said(conversation_of(answer)) == ["user: hi", "assistant: Hello Ada"]
    assert await serving.turns(conversation_of(answer)) == [TurnStatus.COMPLETED]
    assert len(upstream.chats) == 2


async def test_a_conversation_without_a_name_continues_after_a_kill(
    serving: Serving, upstream: MockUpstream
) -> None:
    upstream.answers = [says(), says()]
    await serving.start()
    first = await ask(serving.client(), "hi", {})
    await serving.again()
    second = await serving.client().chat.completions.create(
        model="tiny",
        messages=[user("hi"), {"role": "assistant", "content": "Hello Ada"}, user("still there?")],
    )
    assert conversation_of(second) == conversation_of(first)


def slowly(pause: float) -> Reaction:
    return says([*HALF, event(delta("stop")), event(b"[DONE]")], pause)


async def test_sigterm_lets_a_reply_finish(serving: Serving, upstream: MockUpstream) -> None:
    upstream.answers = [slowly(0.15)]
    await serving.start()
    stream = await ask(serving.client(), "hi", by_key("k"), stream=True)
    await anext(aiter(stream))
    serving.send(signal.SIGTERM)
    rest = [chunk async for chunk in stream]
    assert rest[-1].choices[0].finish_reason == "stop"
    conversation = rest[-1].model_extra["holdfast"]["conversation_id"]
    code, _, errors = await serving.end()
    assert code == 0, errors
    assert await serving.said(conversation) == ["user: hi", "assistant: Half an answer"]


async def test_sigterm_interrupts_what_takes_too_long_keeps_it_and_is_ready_again_at_once(
    serving: Serving, upstream: MockUpstream
) -> None:
    upstream.answers = [hangs(HALF), says()]
    await serving.start()
    first = serving.took
    stream = await ask(serving.client(), "hi", once("m1", **by_key("k")), stream=True)
    conversation = stream.response.headers["x-holdfast-conversation-id"]
    await listen_until(stream, "an answer")
    started, quiet = time.monotonic(), quiet_time.now()
    serving.send(signal.SIGTERM)
    with pytest.raises(openai.APIError) as told:
        [chunk async for chunk in stream]
    assert told.value.code == "turn_interrupted"
    assert "terminated" in told.value.message, "pi retries an error in a stream only for certain words"
    code, _, errors = await serving.end()
    assert code == 0, errors
    assert time.monotonic() - started > 0.9
    assert quiet_time.now() - quiet < max(5, 5 * first), "drain_seconds, and no longer"
    assert await serving.said(conversation) == ["user: hi", "assistant: Half an answer…"]
    assert await serving.turns(conversation) == [TurnStatus.INTERRUPTED]
    await serving.start()
    limit = max(3, 3 * first)  # a machine that has other things to do took long for an empty store too
    for _ in range(2):
        print(f"ready again after {serving.took:.2f} s")
        if serving.took >= limit:
            await serving.again()
    assert serving.took < limit
    answer = await ask(serving.client(), "hi", once("m1", **by_key("k")), stream=True)
    [chunk async for chunk in answer]
    assert await serving.turns(conversation) == [TurnStatus.COMPLETED]


async def test_a_plain_request_at_sigterm_is_told_to_come_again_and_does(
    serving: Serving, upstream: MockUpstream
) -> None:
    upstream.answers = [hangs(), says()]
    await serving.start()
    asking = asyncio.create_task(ask(serving.client(max_retries=8), "hi", by_key("k")))
    await upstream.asked.wait()
    serving.send(signal.SIGTERM)
    code, _, errors = await serving.end()
    assert code == 0, errors
    await serving.start()
    answer = await asking
    assert answer.choices[0].message.content == "Hello Ada"
    assert await serving.said(conversation_of(answer)) == ["user: hi", "assistant: Hello Ada"]


async def test_who_waits_for_a_busy_conversation_at_sigterm_does_not_hold_it_up(
    serving: Serving, upstream: MockUpstream
) -> None:
    upstream.answers = [hangs(HALF), hangs(), says()]
    await serving.start()
    first = serving.took  # short, unless the machine has other things to do
    stream = await ask(serving.client(), "first", by_key("k"), stream=True)
    await listen_until(stream, "an answer")
    waiting = asyncio.create_task(ask(serving.client(max_retries=8), "second", once("m2", **by_key("k"))))
    await asyncio.sleep(0.3)
    started = quiet_time.now()
    serving.send(signal.SIGTERM)
    code, _, errors = await serving.end()
    took = quiet_time.now() - started
    assert code == 0, errors
    assert took < max(4, 5 * first), "drain_seconds is 1"
    del upstream.answers[:-1]
    await serving.start()
    answer = await waiting
    assert answer.choices[0].message.content == "Hello Ada"
    assert (await serving.said(conversation_of(answer))).count("user: second") == 1
