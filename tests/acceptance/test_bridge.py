"""The example bridge against a real server: people in two chats, a platform that repeats itself, a crash."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import holdfast

from .command import Home, until
from .serving import Serving, serving
from .talker import Talker

BRIDGE = Path(__file__).parents[2] / "examples" / "bridge.py"


class Bridge:
    """A bridge process, and the platform on its other side."""

    def __init__(self, server: Serving) -> None:
        own = {**os.environ, **server.client_environment, "BRIDGE_NOTICE_SECONDS": "0.1"}
        self._process = subprocess.Popen(
            [sys.executable, str(BRIDGE)],
            env=own,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def send(self, chat: str, id_: str, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"chat": chat, "id": id_, "text": text}) + "\n")
        self._process.stdin.flush()

    def told(self) -> tuple[str, str]:
        """What a chat is told next: the chat and the text."""
        assert self._process.stdout is not None
        line = json.loads(self._process.stdout.readline())
        return line["chat"], line["text"]

    def end(self) -> list[tuple[str, str]]:
        """The platform has no more messages; what the chats were told since."""
        out, complaints = self._process.communicate(timeout=30)
        assert self._process.returncode == 0, complaints
        return [(line["chat"], line["text"]) for line in map(json.loads, out.splitlines())]

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def bridge(server: Serving) -> Iterator[Bridge]:
    started = Bridge(server)
    try:
        yield started
    finally:
        started.kill()


def messages(home: Home, key: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = home.json("sessions", "messages", key, "--scope", "conversation")["data"]
    return listed


def add_notice(home: Home, key: str, text: str) -> None:
    """As a reset would, once there are resets."""

    async def add() -> None:
        async with holdfast.open(home.store) as hf:
            session = await hf.session(key, attached=False)
            await hf.store.add_notice("default", session.conversation_id, "reset", text)

    asyncio.run(add())


def test_each_chat_is_a_conversation_and_what_the_platform_repeats_is_one_turn(home: Home) -> None:
    with serving(home) as server:
        with bridge(server) as ada:
            ada.send("42", "m1", "hello")
            ada.send("42", "m1", "hello")
            ada.send("7", "m1", "hello")  # the platform counts in each chat anew
            ada.send("42", "m2", "and again")
            told = ada.end()
        assert [text for chat, text in told if chat == "42"] == ["You said: hello", "You said: and again"]
        assert [text for chat, text in told if chat == "7"] == ["You said: hello"]
        assert [message["content"] for message in messages(home, "lines:42")] == [
            *("hello", "You said: hello", "and again", "You said: and again"),
        ]
        assert len(messages(home, "lines:7")) == 2

        with bridge(server) as restarted:  # it remembers nothing; the platform sends the last message again
            restarted.send("42", "m2", "and again")
            assert restarted.end() == [("42", "You said: and again")]
        assert len(messages(home, "lines:42")) == 4, "it was answered, and not asked again"


def test_a_message_whose_server_is_killed_in_the_middle_of_the_reply_is_answered_once(
    talking: Home, talker: Talker
) -> None:
    with serving(talking) as server, bridge(server) as ada:
        ada.send("42", "m1", "tell me about the tide")
        talker.say("The", " tide")
        until(lambda: talker.requests and talker.lines.empty(), "the model has begun to speak")
        server.kill()
        server.start()
        talker.answer("The", " tide", " turns.")
        assert ada.told() == ("42", "The tide turns.")
        talker.answer("Yes.")
        ada.send("42", "m2", "are you sure?")
        assert ada.end() == [("42", "Yes.")]
        said = [each["content"] for each in messages(talking, "lines:42") if each["status"] == "completed"]
        assert said == ["tell me about the tide", "The tide turns.", "are you sure?", "Yes."]
        assert [message["content"] for message in talker.heard] == said[:-1], "the half reply was not shown"


def test_a_notice_is_told_once_to_the_chat_it_belongs_to(home: Home) -> None:
    with serving(home) as server, bridge(server) as ada:
        ada.send("42", "m1", "hello")
        assert ada.told() == ("42", "You said: hello")
        server.say("hello", x_holdfast_session_key="other:1")
        add_notice(home, "other:1", "not for this bridge")
        add_notice(home, "lines:42", "A new day, a new session.")
        assert ada.told() == ("42", "A new day, a new session.")

        def undelivered() -> list[str]:
            status, page = server.ask("GET", "/api/notices?undelivered=1")
            assert status == 200, page
            return [notice["key"] for notice in page["data"]]

        until(lambda: undelivered() == ["other:1"], "the notice is crossed off, and the other is not")
        assert ada.end() == []
