"""A request that is sent again without an Idempotency-Key: the same turn until a client has its whole answer.

Each test runs for both APIs, plain and streamed. A client is cut by closing its connection while the model,
which answers when the test says so, is still at it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from holdfast.domain.turns import Delivery, TurnStatus
from holdfast.errors import ModelError
from holdfast.models.scripted import ScriptedModel
from tests.conftest import DatabaseMaker
from tests.integration.api.chatting import (
    Words,
    assistant,
    by_key,
    conversations,
    said,
    turns,
    until,
    user,
)
from tests.integration.api.conftest import Running, StartServer, running_server
from tests.integration.api.cutting import CuttingProxy
from tests.reliability import mutants


@dataclass(frozen=True)
class Sender:
    """How a request is made: by which API, streamed or whole, under which name."""

    api: str
    stream: bool
    headers: dict[str, str] = field(default_factory=dict)

    def path(self) -> str:
        return "/v1/chat/completions" if self.api == "chat" else "/v1/responses"

    def body(self, messages: list[Any]) -> dict[str, Any]:
        name = "messages" if self.api == "chat" else "input"
        return {"model": "m", name: messages, "stream": self.stream}

    async def send(self, server: Running, messages: list[Any], retries: int = 0) -> Heard:
        """The whole answer."""
        response = await server.client.post(
            self.path(), json=self.body(messages), headers=self._headers(retries)
        )
        assert response.status_code == 200, response.text
        return self._heard(response)

    @asynccontextmanager
    async def sending(
        self, server: Running, messages: list[Any], retries: int = 0
    ) -> AsyncIterator[asyncio.Task[httpx.Response]]:
        """A request on a connection of its own, cut when the block is left. Its task ends with the status
        line; a stream can be read from then on."""
        headers = {"authorization": f"Bearer {server.admin_key}", **self._headers(retries)}
        async with httpx.AsyncClient(
            base_url=server.url, timeout=60, trust_env=False, headers={"user-agent": "sender"}
        ) as client:
            request = client.build_request("POST", self.path(), json=self.body(messages), headers=headers)
            task = asyncio.create_task(client.send(request, stream=True))
            try:
                yield task
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                if task.done() and not task.cancelled() and task.exception() is None:
                    await task.result().aclose()

    def _headers(self, retries: int) -> dict[str, str]:
        count = {"x-stainless-retry-count": str(retries)} if retries else {}
        return {"user-agent": "sender", **count, **self.headers}

    def _heard(self, response: httpx.Response) -> Heard:
        value: Any
        if not self.stream:
            value = response.json()
        else:
            events = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
            values = [json.loads(event) for event in events]
            if self.api == "responses":
                value = values[-1]["response"]
            else:
                deltas = [choice["delta"] for each in values for choice in each["choices"]]
                text = "".join(delta.get("content") or "" for delta in deltas)
                value = {"choices": [{"message": {"content": text}}]}
        if self.api == "chat":
            text = value["choices"][0]["message"]["content"]
        else:
            text = "".join(part["text"] for item in value["output"] for part in item["content"])
        named = response.headers
        return Heard(text, named["x-holdfast-conversation-id"], named["x-holdfast-turn-id"], value)


@dataclass(frozen=True)
class Heard:
    text: str
    conversation: str
    turn: str
    value: dict[str, Any]


SENDERS = [Sender(api, stream) for api in ("chat", "responses") for stream in (False, True)]
IDS = [f"{each.api}-{'streamed' if each.stream else 'plain'}" for each in SENDERS]
every_sender = pytest.mark.parametrize("sender", SENDERS, ids=IDS)
HISTORY = [user("hi"), assistant("hello"), user("how are you?")]


def named(sender: Sender) -> Sender:
    return Sender(sender.api, sender.stream, by_key("k"))


@pytest.fixture(params=["named", "by its history"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def as_known(sender: Sender, how: str) -> tuple[Sender, list[Any]]:
    """The request that has a name, or a history with an answer."""
    return (named(sender), [user("hi")]) if how == "named" else (sender, HISTORY)


class Thinking:
    """An answer of which nothing comes, not even its first chunk, until the test says all of it."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def finish(self, text: str) -> None:
        self._answer.set_result(text)

    async def __call__(self, messages: Any, purpose: Any) -> str:
        """An entry of a script."""
        self.asked.set()
        return await self._answer


async def unheard(server: Running) -> None:
    """Wait until the server has seen that nobody listens to the turn it runs."""
    (running,) = server.services.runner.running.values()
    await until(lambda: not running.has_listener, "the server sees the client leave")


async def idle(server: Running) -> None:
    await until(lambda: not server.services.runner.running, "every turn has ended")


async def read_until(response: httpx.Response, text: str) -> None:
    lines = response.aiter_lines()
    while text not in await anext(lines):
        pass


# --- openers ---------------------------------------------------------------------------------------------


@every_sender
async def test_two_people_behind_one_key_who_open_with_the_same_words_stay_apart(
    start_server: StartServer, sender: Sender
) -> None:
    server = await start_server(ScriptedModel(["one", "two", "three", "four"]))
    ada = await sender.send(server, [user("hi")], retries=1)
    heard = [await sender.send(server, [user("hi")], retries=count) for count in (0, 1, 2)]
    assert [each.text for each in heard] == ["two", "three", "four"]
    assert len({ada.conversation, *(each.conversation for each in heard)}) == 4


async def test_a_server_that_takes_the_same_body_for_the_same_person_is_seen(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutants.same_body_is_same_person(monkeypatch.setattr)
    with pytest.raises(AssertionError):
        await test_two_people_behind_one_key_who_open_with_the_same_words_stay_apart(start_server, SENDERS[0])


@every_sender
async def test_a_retry_of_an_opener_whose_client_has_nothing_joins_it_or_gets_its_answer(
    start_server: StartServer, sender: Sender
) -> None:
    words = Thinking()
    server = await start_server(ScriptedModel([words]))
    async with sender.sending(server, [user("hi")]):
        await words.asked.wait()
    await unheard(server)
    async with sender.sending(server, [user("hi")], retries=1):
        (running,) = server.services.runner.running.values()
        await until(lambda: running.has_listener, "the retry has joined")
    await unheard(server)
    words.finish("the answer")
    await idle(server)
    again = await sender.send(server, [user("hi")], retries=2)
    assert (again.text, server.model.calls) == ("the answer", 1)
    assert await conversations(server) == 1
    assert await said(server, again.conversation) == ["user: hi", "assistant: the answer"]


@every_sender
async def test_an_opener_whose_answer_was_sent_is_nobody_elses(
    start_server: StartServer, sender: Sender
) -> None:
    """Not even a later try of the same client gets it: the server cannot tell who asks."""
    words = Thinking()
    server = await start_server(ScriptedModel([words, "two"]))
    async with sender.sending(server, [user("hi")]):
        await words.asked.wait()
    await unheard(server)
    words.finish("one")
    await idle(server)
    first = await sender.send(server, [user("hi")], retries=1)
    second = await sender.send(server, [user("hi")], retries=2)
    assert (first.text, second.text) == ("one", "two")
    assert first.conversation != second.conversation


@every_sender
async def test_an_opener_that_a_client_waits_for_is_not_joined(
    start_server: StartServer, sender: Sender
) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words, "for Bob"]))
    async with sender.sending(server, [user("hi")]):
        await words.asked.wait()
        bob = await sender.send(server, [user("hi")], retries=1)
        words.finish("for Ada")
        await idle(server)
    assert bob.text == "for Bob"
    assert await conversations(server) == 2


@pytest.mark.parametrize("sender", SENDERS[1::2], ids=IDS[1::2])
async def test_an_opener_of_which_a_client_has_heard_a_word_is_not_repeated(
    start_server: StartServer, sender: Sender
) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words, "another"]))
    words.say("some ")
    async with sender.sending(server, [user("hi")]) as sent:
        await read_until(await sent, "some")
    await unheard(server)
    joined = await sender.send(server, [user("hi")], retries=1)
    words.finish("thing")
    await idle(server)
    assert joined.text == "another"
    assert await conversations(server) == 2


async def test_a_retry_must_be_a_later_try_of_the_same_program(start_server: StartServer) -> None:
    sender = SENDERS[0]
    words = Words()
    server = await start_server(ScriptedModel([words, "two", "three", "four"]))
    async with sender.sending(server, [user("hi")], retries=1):
        await words.asked.wait()
    await unheard(server)
    same = await sender.send(server, [user("hi")], retries=1)
    other = Sender("chat", False, {"user-agent": "another program"})
    theirs = await other.send(server, [user("hi")], retries=2)
    elsewhere = Sender("chat", False, {"x-forwarded-for": "192.0.2.7"})
    far = await elsewhere.send(server, [user("hi")], retries=2)
    words.finish("one")
    await idle(server)
    assert [same.text, theirs.text, far.text] == ["two", "three", "four"]


@every_sender
async def test_an_opener_without_a_count_is_always_new(start_server: StartServer, sender: Sender) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words, "two"]))
    async with sender.sending(server, [user("hi")]):
        await words.asked.wait()
    await unheard(server)
    assert (await sender.send(server, [user("hi")])).text == "two"
    words.finish("one")
    await idle(server)


# --- with a name, or with an answer in the history ---------------------------------------------------------


@every_sender
async def test_a_request_whose_client_left_is_joined_while_it_runs(
    start_server: StartServer, sender: Sender, how: str
) -> None:
    sender, messages = as_known(sender, how)
    words = Words()
    server = await start_server(ScriptedModel([words]))
    words.say("one ")
    async with sender.sending(server, messages) as sent:
        await words.asked.wait()
        if sender.stream:
            await read_until(await sent, "one")
    await unheard(server)
    again = asyncio.create_task(sender.send(server, messages))
    (running,) = server.services.runner.running.values()
    await until(lambda: running.has_listener, "the second try has joined")
    words.finish("answer")
    heard = await again
    assert (heard.text, server.model.calls) == ("one answer", 1)
    assert len(await turns(server, heard.conversation)) == 1


@every_sender
async def test_an_answer_that_no_client_has_whole_is_given_once_and_then_the_words_are_new(
    start_server: StartServer, sender: Sender, how: str
) -> None:
    sender, messages = as_known(sender, how)
    words = Words()
    server = await start_server(ScriptedModel([words, "another"]))
    words.say("one ")
    async with sender.sending(server, messages) as sent:
        await words.asked.wait()
        if sender.stream:
            await read_until(await sent, "one")
    await unheard(server)
    words.finish("answer")
    await idle(server)
    again = await sender.send(server, messages)
    assert (again.text, server.model.calls) == ("one answer", 1)
    new = await sender.send(server, messages)
    assert (new.text, server.model.calls) == ("another", 2)
    assert new.turn != again.turn
    if how == "named":
        assert (await said(server, new.conversation)).count("user: hi") == 2


@every_sender
async def test_the_same_words_after_an_answer_that_was_received_are_a_new_request(
    start_server: StartServer, sender: Sender, how: str
) -> None:
    sender, messages = as_known(sender, how)
    server = await start_server(ScriptedModel(["one", "two", "three"]))
    heard = [await sender.send(server, messages, retries=count) for count in (0, 0, 1)]
    assert [each.text for each in heard] == ["one", "two", "three"]


async def test_an_answer_that_only_an_admin_of_another_owner_has_seen_was_not_received(
    start_server: StartServer,
) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words, "another answer"]))
    ada = await server.client_of("ada", **{"x-holdfast-session-key": "cli:ada"})
    body = {"model": "m", "input": "how are you?", "stream": True}
    async with ada.stream("POST", "/v1/responses", json=body) as cut:
        words.say("fi")
        lines = cut.aiter_lines()
        while '"delta":"fi"' not in await anext(lines):
            pass
    await unheard(server)
    (running,) = server.services.runner.running.values()
    path = f"/v1/responses/{running.turn.response_id}?stream=true&owner=ada"
    watching = asyncio.create_task(server.client.get(path))
    (admin,) = await server.store.keys("default")
    await until(lambda: server.services.limits.streams.held(admin.id), "an admin watches")
    assert not running.has_listener
    words.finish("ne")
    assert "response.completed" in (await watching).text
    again = await ada.post("/v1/responses", json=body)
    assert again.headers["x-holdfast-turn-id"] == running.turn.id
    assert "another answer" not in again.text


@every_sender
async def test_that_an_answer_was_received_is_known_after_a_restart(
    server_home: Path, sender: Sender, how: str
) -> None:
    sender, messages = as_known(sender, how)
    async with running_server(server_home, ScriptedModel(["one"])) as server:
        first = await sender.send(server, messages)
    async with running_server(server_home, ScriptedModel(["two"])) as server:
        assert (await server.store.turn(None, first.turn)).delivery is Delivery.WHOLE
        assert (await sender.send(server, messages)).text == "two"


@every_sender
async def test_an_answer_that_was_not_received_is_given_after_a_restart(
    server_home: Path, sender: Sender, how: str
) -> None:
    sender, messages = as_known(sender, how)
    words = Words()
    async with running_server(server_home, ScriptedModel([words])) as server:
        async with sender.sending(server, messages):
            await words.asked.wait()
        await unheard(server)
        words.finish("one")
        await idle(server)
    async with running_server(server_home, ScriptedModel(["two"])) as server:
        server.client.headers["authorization"] = f"Bearer {await server.key('default', 'admin')}"
        assert (await sender.send(server, messages)).text == "one"


@every_sender
async def test_a_turn_that_its_server_did_not_finish_is_taken_up(server_home: Path, sender: Sender) -> None:
    sender = named(sender)
    words = Words()
    words.say("half")
    async with running_server(server_home, ScriptedModel([words])) as server:
        async with sender.sending(server, [user("hi")]):
            await words.asked.wait()
    async with running_server(server_home, ScriptedModel(["whole"])) as server:
        heard = await sender.send(server, [user("hi")])
        assert heard.text == "whole"
        (turn,) = await turns(server, heard.conversation)
        assert (turn.status, turn.attempt) == (TurnStatus.COMPLETED, 2)


@pytest.mark.parametrize("same_owner", [True, False])
async def test_a_history_sent_again_with_another_key_is_the_same_turn_for_its_owner_only(
    server_home: Path, same_owner: bool
) -> None:
    """Each run of `holdfast launch` has a key of its own."""
    body = {"model": "m", "messages": [user("hi"), assistant("hello"), user("and now?")], "stream": True}
    words = Words()
    words.say("half")
    async with running_server(server_home, ScriptedModel([words])) as server:
        async with server.client.stream("POST", "/v1/chat/completions", json=body) as cut:
            await words.asked.wait()
            conversation = cut.headers["x-holdfast-conversation-id"]
    async with running_server(server_home, ScriptedModel(["whole"])) as server:
        client = await server.client_of("default" if same_owner else "ada")
        heard = await client.post("/v1/chat/completions", json=body)
        assert heard.status_code == 200, heard.text
        assert (heard.headers["x-holdfast-conversation-id"] == conversation) is same_owner
        expected = (TurnStatus.COMPLETED, 2) if same_owner else (TurnStatus.INTERRUPTED, 1)
        (turn,) = await turns(server, conversation)
        assert (turn.status, turn.attempt) == expected


@every_sender
async def test_two_clients_that_say_the_same_at_once_under_one_name_are_answered_each(
    start_server: StartServer, sender: Sender
) -> None:
    sender = named(sender)
    words = Words()
    server = await start_server(ScriptedModel([words, "two"]))
    first = asyncio.create_task(sender.send(server, [user("yes")]))
    await words.asked.wait()
    second = asyncio.create_task(sender.send(server, [user("yes")]))
    words.finish("one")
    assert [(await first).text, (await second).text] == ["one", "two"]
    assert len(await turns(server, (await first).conversation)) == 2


async def test_an_error_that_was_answered_is_repeated_only_by_a_counted_retry(
    start_server: StartServer,
) -> None:
    sender = named(SENDERS[0])
    down = ModelError("it is down", 503)
    server = await start_server(ScriptedModel([down, down, "an answer"]))
    for _ in range(2):
        response = await server.client.post(
            sender.path(), json=sender.body([user("hi")]), headers=sender.headers
        )
        assert response.status_code == 502
    heard = await sender.send(server, [user("hi")], retries=1)
    assert heard.text == "an answer"
    assert [turn.attempt for turn in await turns(server, heard.conversation)] == [1, 2]


async def test_reading_a_response_is_receiving_it(start_server: StartServer) -> None:
    sender = Sender("responses", False, by_key("k"))
    words = Words()
    server = await start_server(ScriptedModel([words, "another"]))
    async with sender.sending(server, [user("hi")]):
        await words.asked.wait()
    await unheard(server)
    (running,) = server.services.runner.running.values()
    words.finish("one")
    await idle(server)
    response = await server.client.get(f"/v1/responses/{running.turn.response_id}")
    assert response.json()["status"] == "completed"
    assert (await sender.send(server, [user("hi")])).text == "another"


async def test_a_large_answer_that_was_cut_on_its_way_was_not_received(start_server: StartServer) -> None:
    large = "word " * 4_000_000
    sender = named(SENDERS[0])
    words = Words()
    server = await start_server(ScriptedModel([words, "another"]))
    async with sender.sending(server, [user("hi")]) as sent:
        await words.asked.wait()
        words.finish(large)
        response = await sent
        await anext(response.aiter_raw(1000))
    await idle(server)
    assert (await sender.send(server, [user("hi")])).text == large


async def test_two_people_with_the_same_history_are_not_taken_for_each_other(
    start_server: StartServer,
) -> None:
    """Both were greeted alike; she is cut, he asks the same. He goes on in his own conversation, and from
    then on the body is taken for neither's."""
    sender = SENDERS[0]
    words, lost = Words(), Words()
    server = await start_server(ScriptedModel(["hello", "hello", words, lost, "last"]))
    opener, goes_on = [user("hi")], [user("hi"), assistant("hello"), user("and now?")]
    ada, bob = await sender.send(server, opener), await sender.send(server, opener)
    hers = Sender("chat", False, {"x-holdfast-session-id": ada.conversation})
    async with hers.sending(server, goes_on):  # by name, so that only his is left to match
        await words.asked.wait()
    await unheard(server)
    words.finish("for Ada")
    await idle(server)
    async with sender.sending(server, goes_on):
        await lost.asked.wait()
        (running,) = server.services.runner.running.values()
        assert running.turn.conversation_id == bob.conversation
    await unheard(server)
    lost.finish("for Bob")
    await idle(server)
    assert (await sender.send(server, goes_on)).text == "for Bob"


async def test_a_cancelled_turn_is_not_repeated_by_its_words(start_server: StartServer) -> None:
    sender = named(SENDERS[0])
    words = Words()
    server = await start_server(ScriptedModel([words, "another"]))
    async with sender.sending(server, [user("hi")]):
        await words.asked.wait()
        (running,) = server.services.runner.running.values()
        await server.services.runner.stop(None, running.turn.id, TurnStatus.CANCELLED, "a person said stop")
    assert (await sender.send(server, [user("hi")])).text == "another"


# --- the official SDK, and several servers -----------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("headers", [{}, by_key("k")], ids=["unnamed", "named"])
async def test_the_sdks_own_retry_after_a_cut_is_one_turn(
    start_server: StartServer, api: str, stream: bool, headers: dict[str, str]
) -> None:
    words = Thinking()
    server = await start_server(ScriptedModel([words]))
    async with CuttingProxy(server.url) as proxy:
        client = openai.AsyncOpenAI(
            base_url=f"{proxy.url}/v1", api_key=server.admin_key, max_retries=2, timeout=60
        )
        ask: Any = client.chat.completions.create if api == "chat" else client.responses.create
        said_: Any = {"messages": [user("hi")]} if api == "chat" else {"input": "hi"}
        asking = asyncio.create_task(ask(model="m", stream=stream, extra_headers=headers, **said_))
        await words.asked.wait()
        proxy.cut()
        await until(lambda: proxy.connections == 2, "the SDK comes again")
        (running,) = server.services.runner.running.values()
        await until(lambda: len(running.clients) == 2, "the second try has joined")
        words.finish("one answer")
        answer = await asking
        if stream:
            assert [event async for event in answer]
        await client.close()
    assert server.model.calls == 1
    assert await conversations(server) == 1


@pytest.mark.parametrize("how", ["opener", "named"])
@pytest.mark.parametrize("sender", SENDERS, ids=IDS)
async def test_on_another_server_a_request_finds_out_whether_its_answer_was_received(
    server_home: Path, new_database: DatabaseMaker, sender: Sender, how: str
) -> None:
    store = {"store": {"url": new_database()}}
    sender = named(sender) if how == "named" else sender
    words = Thinking()
    async with (
        running_server(server_home, ScriptedModel([words, "read"]), store) as one,
        running_server(server_home, ScriptedModel(["another", "third"]), store) as other,
    ):
        other.client.headers["authorization"] = one.client.headers["authorization"]
        async with sender.sending(one, [user("hi")]):
            await words.asked.wait()
        await unheard(one)
        (running,) = one.services.runner.running.values()

        async def is_noted() -> bool:
            return (await one.store.turn(None, running.turn.id)).delivery is Delivery.NONE

        await until(is_noted, "the store knows that nothing was sent")
        again = asyncio.create_task(sender.send(other, [user("hi")], retries=1))
        words.finish("one")
        heard = await again
        assert (heard.text, other.model.calls) == ("one", 0)
        new = await sender.send(other, [user("hi")], retries=2)
        assert new.text == "another"
        received = await sender.send(one, [user("and?")])
        assert received.text == "read"
        later = await sender.send(other, [user("and?")], retries=1)
        assert later.text == "third"
