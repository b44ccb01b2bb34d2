"""Clients of a server that may be killed at any moment: each sends one message after another and retries.

Every message has an Idempotency-Key and is sent again, unchanged, until it is answered; or the official SDK
sends it, which retries without a key. A broken response stream is first resumed from where it broke. Servers
that share a store are used in random order.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import msgspec
from openai import APIConnectionError, APIError, AsyncOpenAI

from .exchanges import Chat, Exchange, Hearing, Ledger
from .serving import API_KEY
from .wire import Broken, Refused, connection, data_of, refusal_of

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
KINDS = ("key", "alias", "id", "conversation", "history", "previous", "in conversation")
"""How a chat names its conversation: by its key, an alias, a session id it was given (newest or stale), the
conversation id; by nothing but its history; in a response's body by the one before it or the conversation."""
TRANSIENT = frozenset({"turn_interrupted", "conversation_locked", "upstream_error", "store_unavailable"})
PATIENCE = 180.0
TWICE = 0.05
"""How often a message is sent twice at the same moment."""
HANGS_UP = 0.05
"""How often a client leaves a stream by itself, to try again at once."""


class Persistent(AsyncOpenAI):
    """The official SDK, retrying by itself; only its pauses are shorter than the years we do not have."""

    def _calculate_retry_timeout(self, *_: Any, **__: Any) -> float:
        return 0.03


class Caller:
    """One client and its chats."""

    def __init__(
        self, ledger: Ledger, urls: list[str], seed: str, chats: list[Chat], new_chat: Callable[[], Chat]
    ) -> None:
        self._ledger = ledger
        self._urls = urls
        self._seed = seed
        self._chance = random.Random(seed)
        self._chats = chats
        self._new_chat = new_chat

    async def talk(self, enough: asyncio.Event) -> None:
        """Say one thing after another until it is enough."""
        headers = {"authorization": f"Bearer {API_KEY}"}
        timeout = aiohttp.ClientTimeout(total=PATIENCE)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as self._http:
            self._sdks = [
                Persistent(base_url=f"{url}/v1", api_key=API_KEY, max_retries=1_000_000, timeout=PATIENCE)
                for url in self._urls
            ]
            try:
                for number in itertools.count():
                    if enough.is_set():
                        return
                    at = self._chance.randrange(len(self._chats))
                    if not self._chats[at].shared and self._chance.random() < 0.1:
                        self._chats[at] = self._new_chat()
                    await self._say(self._chats[at], number)
                    await asyncio.sleep(self._chance.random() * 0.05)
            finally:
                for sdk in self._sdks:
                    await sdk.close()

    # --- one message ---------------------------------------------------------------------------------

    async def _say(self, chat: Chat, number: int) -> None:
        tag = f"u-{self._seed}-{number}"
        text = f"{tag} {'please ' * self._chance.randrange(20)}".strip()
        manner = self._manner(chat)
        exchange = self._ledger.says(Exchange(tag, chat, text, manner))
        headers = {} if manner == "sdk by itself" else {"idempotency-key": f"key-{tag}"}
        body = self._named(chat, exchange, manner, headers)
        async with asyncio.timeout(PATIENCE):
            while not exchange.settled:
                twice = manner != "sdk by itself" and self._chance.random() < TWICE
                await asyncio.gather(*(self._try(exchange, body, headers) for _ in range(1 + twice)))
        if exchange.tries > 1:
            self._ledger.counts["retried"] += 1
        if exchange.answer is not None:
            chat.response = exchange.response
            if chat.kind == "history":
                said = {"role": "user", "content": text}, {"role": "assistant", "content": exchange.answer}
                chat.history.extend(said)

    async def _try(self, exchange: Exchange, body: Mapping[str, Any], headers: dict[str, str]) -> None:
        exchange.tries += 1
        server = self._chance.randrange(len(self._urls))
        try:
            await self._attempt(server, exchange, body, headers)
        except Broken:
            self._ledger.counts["connections broken"] += 1
            await asyncio.sleep(self._chance.random() * 0.05)
        except Refused as refused:
            await self._refused(exchange, refused)

    async def _refused(self, exchange: Exchange, refused: Refused) -> None:
        self._ledger.counts[f"refused: {refused.code}"] += 1
        if refused.code == "turn_superseded" and exchange.chat.shared:
            exchange.overtaken = True
        elif refused.code in TRANSIENT:
            await asyncio.sleep(0.02)
        else:
            self._ledger.wrong.append(f"{exchange} was refused: {refused}")
            exchange.overtaken = True

    def _manner(self, chat: Chat) -> str:
        if chat.kind in ("previous", "in conversation"):
            return self._chance.choice(("response", "response", "sdk response"))
        manners = ["chat", "stream", "stream", "sdk stream"]
        # Without a key a retry is known only as long as nobody else has spoken. That of an opener without a
        # name is known only where it is certain that nobody has received anything (decision 0016): it is not
        # of a server that was killed between the commit of the answer and its sending.
        if not chat.shared and (chat.kind != "history" or chat.history):
            manners.append("sdk by itself")
        if chat.kind != "history":
            manners.append("response")
        return self._chance.choice(manners)

    def _named(
        self, chat: Chat, exchange: Exchange, manner: str, headers: dict[str, str]
    ) -> Mapping[str, Any]:
        """The body; and, in the headers, where it belongs. Both stay the same however often it is sent."""
        spelling = self._chance.choice(("x-holdfast", "x-hermes"))
        if chat.kind == "key":
            headers[f"{spelling}-session-key"] = chat.name
        elif chat.kind == "alias":
            headers[f"{spelling}-session-id"] = chat.name
        elif chat.kind == "id" and chat.sessions:
            newest_or_not = self._chance.choice((chat.sessions[-1], self._chance.choice(chat.sessions)))
            headers[f"{spelling}-session-id"] = newest_or_not
        elif chat.kind == "conversation" and chat.conversation:
            headers["x-holdfast-session-id"] = chat.conversation
        said = {"role": "user", "content": exchange.text}
        if "response" not in manner:
            return {"messages": [*chat.history, said], "stream": "stream" in manner}
        body: dict[str, Any] = {"input": exchange.text, "stream": True}
        if chat.kind == "previous" and chat.response:
            body["previous_response_id"] = chat.response
        elif chat.kind == "in conversation" and chat.conversation:
            body["conversation"] = chat.conversation
        return body

    async def _attempt(
        self, server: int, exchange: Exchange, body: Mapping[str, Any], headers: dict[str, str]
    ) -> None:
        if exchange.manner.startswith("sdk"):
            await self._by_sdk(server, exchange, body, headers)
        elif exchange.manner == "response":
            hearing = Hearing(exchange, server)
            try:
                await self._respond(hearing, body, headers)
            except Broken:
                await self._listen_again(hearing)
        else:
            await self._complete(server, exchange, body, headers)

    # --- chat ----------------------------------------------------------------------------------------

    async def _complete(
        self, server: int, exchange: Exchange, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> None:
        async with connection(
            self._http.post(self._urls[server] + CHAT, json=body, headers=headers)
        ) as answer:
            await self._accepted(exchange, answer)
            if body["stream"]:
                hearing = Hearing(exchange, server)
                self._ledger.listens(hearing)
                try:
                    await self._hear_chunks(hearing, answer)
                finally:
                    self._ledger.leaves(hearing)
            else:
                completion = msgspec.json.decode(await answer.read())
                text = completion["choices"][0]["message"]["content"]
                self._ledger.answers(exchange, text, completion["holdfast"]["turn_id"])

    async def _hear_chunks(self, hearing: Hearing, answer: aiohttp.ClientResponse) -> None:
        patience = self._patience()
        async for data in data_of(answer):
            if data == b"[DONE]":
                return
            self._hear_chunk(hearing, msgspec.json.decode(data))
            if len(hearing.heard) > patience:
                break
        raise Broken

    def _patience(self) -> int:
        """After how many words this client hangs up; mostly never. The turn goes on without it."""
        return self._chance.randrange(1, 20) if self._chance.random() < HANGS_UP else 1_000_000

    def _hear_chunk(self, hearing: Hearing, chunk: Any) -> None:
        if "error" in chunk:
            raise Refused(200, chunk["error"]["code"], chunk["error"]["message"])
        for choice in chunk["choices"]:
            if piece := choice["delta"].get("content"):
                self._ledger.hears(hearing, piece)
            if choice["finish_reason"]:
                self._ledger.answers(hearing.exchange, hearing.text, chunk["holdfast"]["turn_id"])

    # --- responses -----------------------------------------------------------------------------------

    async def _respond(self, hearing: Hearing, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        url = self._urls[hearing.server] + RESPONSES
        async with connection(self._http.post(url, json=body, headers=headers)) as answer:
            await self._accepted(hearing.exchange, answer)
            await self._hear_events(hearing, answer)

    async def _hear_events(self, hearing: Hearing, answer: aiohttp.ClientResponse) -> str:
        """Until its last event; returns how the response ended."""
        patience = self._patience()
        self._ledger.listens(hearing)
        try:
            async for data in data_of(answer):
                if data == b"[DONE]":
                    break
                event = msgspec.json.decode(data)
                status = self._hear_event(hearing, event)
                if status:
                    return status
                if len(hearing.heard) > patience:
                    break
            raise Broken
        finally:
            self._ledger.leaves(hearing)

    def _hear_event(self, hearing: Hearing, event: Any) -> str:
        """Returns how the response ended, if this was the end."""
        exchange, number = hearing.exchange, event["sequence_number"]
        if number <= hearing.last_event:
            self._ledger.wrong.append(f"{exchange}: event {number} came after {hearing.last_event}")
        hearing.last_event = number
        if event["type"] == "response.output_text.delta":
            self._ledger.hears(hearing, event["delta"])
            return ""
        response = event.get("response")
        if response is None:
            return ""
        if exchange.response not in ("", response["id"]):
            self._ledger.wrong.append(f"{exchange} is {exchange.response} and {response['id']}")
        exchange.response = response["id"]
        if event["type"] in ("response.created", "response.in_progress"):
            # A further attempt, perhaps for another connection of this client, begins with the second one.
            hearing.start_over(text_of(response))
        if event["type"] == "response.completed":
            text = text_of(response)
            if text != hearing.text:
                self._ledger.wrong.append(
                    f"{exchange}: heard {hearing.text!r:.80}, which ended as {text!r:.80}"
                )
            self._ledger.answers(exchange, text, response["holdfast"]["turn_id"])
        if event["type"] in ("response.completed", "response.incomplete", "response.failed"):
            return str(response["status"])
        return ""

    async def _listen_again(self, before: Hearing) -> None:
        """The stream of a response broke off: go on behind the last event that was heard, until an end."""
        exchange = before.exchange
        if not exchange.response or self._chance.random() < 0.4:
            raise Broken
        hearing = Hearing(exchange, -1, before.text, last_event=before.last_event)
        while True:
            hearing.server = self._chance.randrange(len(self._urls))
            query = f"?stream=true&starting_after={hearing.last_event}"
            if hearing.last_event < 0:
                query = "?stream=true"
            url = f"{self._urls[hearing.server]}{RESPONSES}/{exchange.response}{query}"
            try:
                async with connection(self._http.get(url)) as answer:
                    if answer.status != 200:
                        raise await refusal_of(answer)
                    status = await self._hear_events(hearing, answer)
                break
            except Broken:
                await asyncio.sleep(self._chance.random() * 0.05)
        self._ledger.counts["streams resumed"] += 1
        if status != "completed":
            await self._compare_cut(exchange, hearing)
            raise Broken

    async def _compare_cut(self, exchange: Exchange, hearing: Hearing) -> None:
        """What is kept of a response that was cut short is what was heard, more of it or less."""
        url = f"{self._urls[hearing.server]}{RESPONSES}/{exchange.response}"
        async with connection(self._http.get(url)) as answer:
            if answer.status != 200:
                raise await refusal_of(answer)
            response = msgspec.json.decode(await answer.read())
        kept = text_of(response)
        if response["status"] in ("incomplete", "failed") and not (
            kept.startswith(hearing.text) or hearing.text.startswith(kept)
        ):
            self._ledger.wrong.append(f"{exchange}: heard {hearing.text!r:.80}, kept is {kept!r:.80}")

    # --- the official SDK ----------------------------------------------------------------------------

    async def _by_sdk(
        self, server: int, exchange: Exchange, body: Mapping[str, Any], headers: dict[str, str]
    ) -> None:
        sdk = self._sdks[server]
        by_itself = exchange.manner == "sdk by itself"
        patient = sdk if by_itself else sdk.with_options(max_retries=0)
        try:
            if exchange.manner == "sdk response":
                await self._sdk_response(patient, server, exchange, body, headers)
                return
            raw = await patient.chat.completions.with_raw_response.create(
                model="slow", extra_headers=headers, **body
            )
            self._accepted_by(exchange, raw.headers)
            parsed: Any = raw.parse()
            if by_itself:
                self._ledger.counts["SDK retries"] += raw.retries_taken
                text = parsed.choices[0].message.content
                self._ledger.answers(exchange, text, parsed.holdfast["turn_id"])
                return
            hearing = Hearing(exchange, server)
            self._ledger.listens(hearing)
            try:
                async for chunk in parsed:
                    self._hear_chunk(hearing, chunk.to_dict())
            finally:
                self._ledger.leaves(hearing)
                await parsed.close()
            if exchange.answer is None:
                raise Broken
        except APIConnectionError as error:
            raise Broken from error
        except APIError as error:
            raise Refused(getattr(error, "status_code", 200), str(error.code), error.message) from error

    async def _sdk_response(
        self,
        sdk: AsyncOpenAI,
        server: int,
        exchange: Exchange,
        body: Mapping[str, Any],
        headers: dict[str, str],
    ) -> None:
        raw = await sdk.responses.with_raw_response.create(model="slow", extra_headers=headers, **body)
        self._accepted_by(exchange, raw.headers)
        events: Any = raw.parse()
        hearing = Hearing(exchange, server)
        self._ledger.listens(hearing)
        try:
            async for event in events:
                if self._hear_event(hearing, event.to_dict()):
                    return
        finally:
            self._ledger.leaves(hearing)
            await events.close()
        raise Broken

    # --- headers -------------------------------------------------------------------------------------

    async def _accepted(self, exchange: Exchange, answer: aiohttp.ClientResponse) -> None:
        if answer.status != 200:
            raise await refusal_of(answer)
        self._accepted_by(exchange, answer.headers)

    def _accepted_by(self, exchange: Exchange, headers: Mapping[str, str]) -> None:
        self._ledger.accepts(
            exchange,
            headers["x-holdfast-turn-id"],
            headers["x-holdfast-conversation-id"],
            headers["x-holdfast-session-id"],
        )


def a_chat(chance: random.Random, number: int, *, shared: bool = False) -> Chat:
    """A new chat, named in one way or another."""
    kind = chance.choice(KINDS[:2]) if shared else chance.choice(KINDS)
    return Chat(number, kind, shared, f"crash:{number}" if kind == "key" else f"chat-{number}")


def text_of(response: Any) -> str:
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
        if part["type"] == "output_text"
    )
