"""The example bridge against a real server: people in two chats, a platform that repeats itself, a crash."""

from __future__ import annotations

import asyncio
import base64
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
from .shell import free_port
from .talker import Talker

BRIDGE = Path(__file__).parents[2] / "examples" / "bridge.py"


SECRET = "whsec_" + base64.b64encode(b"a secret of twenty-four b").decode()


class Bridge:
    """A bridge process, and the platform on its other side."""

    def __init__(self, server: Serving, port: int) -> None:
        own = {**os.environ, **server.client_environment, "LINES_SECRET": SECRET, "BRIDGE_PORT": str(port)}
        self._process = subprocess.Popen(
            [sys.executable, str(BRIDGE)],
            env=own,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
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

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def bridge(server: Serving, port: int) -> Iterator[Bridge]:
    started = Bridge(server, port)
    try:
        yield started
    finally:
        started.kill()


@contextmanager
def bridged(home: Home) -> Iterator[tuple[Serving, int]]:
    """A server with a webhook connector to the bridge at this port."""
    port = free_port()
    home.environment |= {
        "LINES_SECRET": SECRET,
        "HOLDFAST_CONNECTORS__LINES__KIND": "webhook",
        "HOLDFAST_CONNECTORS__LINES__TOKEN_ENV": "LINES_SECRET",
        "HOLDFAST_CONNECTORS__LINES__ALLOW": "*",
        "HOLDFAST_CONNECTORS__LINES__URL": f"http://127.0.0.1:{port}/",
    }
    with serving(home) as server:
        yield server, port


def messages(home: Home, chat: str) -> list[dict[str, Any]]:
    key, owner = f"lines:{chat}", f"lines/{chat}"
    page = home.json("sessions", "messages", key, "--scope", "conversation", "--owner", owner)
    listed: list[dict[str, Any]] = page["data"]
    return listed


def test_each_chat_is_a_conversation_and_what_the_platform_repeats_is_one_turn(home: Home) -> None:
    with bridged(home) as (server, port):
        with bridge(server, port) as ada:
            ada.send("42", "m1", "hello")
            assert ada.told() == ("42", "You said: hello")
            ada.send("42", "m1", "hello")
            ada.send("7", "m1", "hello")  # the platform counts in each chat anew
            assert ada.told() == ("7", "You said: hello")
            ada.send("42", "m2", "and again")
            assert ada.told() == ("42", "You said: and again")
        with bridge(server, port) as restarted:  # it remembers nothing; the platform sends messages again
            restarted.send("42", "m2", "and again")
            restarted.send("42", "m3", "the end")
            told = restarted.told()
            if told == ("42", "You said: and again"):  # it was killed before it confirmed this: sent again
                told = restarted.told()
            assert told == ("42", "You said: the end")
        assert [message["content"] for message in messages(home, "42")] == [
            *("hello", "You said: hello", "and again", "You said: and again", "the end", "You said: the end"),
        ]
        assert len(messages(home, "7")) == 2


def test_a_message_whose_server_is_killed_in_the_middle_of_the_reply_is_answered_once(
    talking: Home, talker: Talker
) -> None:
    with bridged(talking) as (server, port), bridge(server, port) as ada:
        ada.send("42", "m1", "tell me about the tide")
        talker.say("The", " tide")
        until(lambda: talker.requests and talker.lines.empty(), "the model has begun to speak")
        server.kill()
        server.start()
        talker.answer("The", " tide", " turns.")
        assert ada.told() == ("42", "The tide turns.")
        talker.answer("Yes.")
        ada.send("42", "m2", "are you sure?")
        assert ada.told() == ("42", "Yes.")
        said = [each["content"] for each in messages(talking, "42") if each["status"] == "completed"]
        assert said == ["tell me about the tide", "The tide turns.", "are you sure?", "Yes."]
        assert [message["content"] for message in talker.heard] == said[:-1], "the half reply was not shown"


def test_a_notice_is_told_once_to_the_chat_it_belongs_to(home: Home) -> None:
    with bridged(home) as (server, port), bridge(server, port) as ada:
        ada.send("42", "m1", "hello")
        assert ada.told() == ("42", "You said: hello")
        server.say("hello", x_holdfast_session_key="other:1")
        add_notice(home, "default", "other:1", "not for this bridge")
        add_notice(home, "lines/42", "lines:42", "A new day, a new session.")
        assert ada.told() == ("42", "A new day, a new session.")

        def undelivered() -> list[str]:
            page = home.json("notices", "list", "--undelivered", "--owner", "*")
            return [notice["key"] for notice in page["data"]]

        until(lambda: undelivered() == ["other:1"], "the notice is crossed off, and the other is not")


def add_notice(home: Home, owner: str, key: str, text: str) -> None:
    """As a reset does."""

    async def add() -> None:
        async with holdfast.open(home.store, owner=owner) as hf:
            session = await hf.session(key, attached=False)
            await hf.store.add_notice(owner, session.conversation_id, "reset", text)

    asyncio.run(add())
