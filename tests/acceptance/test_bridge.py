"""The example bridge against a real server: people in two chats, a platform that repeats itself, a crash."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai

import holdfast

from .command import Home, until
from .serving import Serving, serving
from .shell import free_port
from .talker import Talker
from .test_chat import KEY, chatting

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
        until(lambda: talker.requests and talker.said_all, "the model has begun to speak")
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


def test_a_chat_and_a_linked_place_share_one_conversation(home: Home) -> None:
    with (
        bridged(home) as (server, port),
        bridge(server, port) as phone,
        chatting(home, "--owner", "lines/42") as screen,
    ):
        screen.type("from the terminal")
        screen.expect("You said: from the terminal")
        (session,) = home.sessions("list", "--owner", "lines/42")
        _, link = server.ask("POST", f"/api/sessions/{session['id']}/link?owner=lines/42")
        phone.send("42", "m1", f"/link {link['code']} all")
        assert phone.told() == ("42", "This place is now part of that conversation; /unlink leaves it.")
        phone.send("42", "m2", "from the phone")
        assert phone.told() == ("42", "You said: from the phone")
        screen.expect("You said: from the phone")
        screen.type("and back")
        assert phone.told() == ("42", "> and back\n\nYou said: and back")
        phone.send("42", "m3", "/unlink")
        assert phone.told() == ("42", "This place has its own conversation again.")
        phone.send("42", "m4", "alone")
        assert phone.told() == ("42", "You said: alone")
        assert {each["key"] for each in home.sessions("list", "--owner", "lines/42")} == {KEY, "lines:42"}


# --- events of background responses ------------------------------------------------------------------------


@contextmanager
def receiving(port: int) -> Iterator[list[tuple[dict[str, str], bytes]]]:
    """A program that is notified: every request that it got, with its headers."""
    got: list[tuple[dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield got
    finally:
        server.shutdown()
        server.server_close()


def test_the_ends_of_responses_are_sent_by_the_server_after_the_one_that_was_killed(
    talking: Home, talker: Talker
) -> None:
    """Two have ended, which could not be sent; a third is cut short by the kill and is not taken up."""
    talking.environment["HOLDFAST_TURNS__RECOVER"] = "never"
    with bridged(talking) as (server, port):
        _, made = server.ask("POST", "/api/keys", {"owner": "ada", "webhook": "lines"})

        def asked(text: str) -> str:
            body = {"model": "m", "input": text, "background": True}
            status, response = server.ask("POST", "/v1/responses", body, token=made["key"])
            assert status == 200, response
            return str(response["id"])

        def ended(response: str) -> bool:
            status = server.ask("GET", f"/v1/responses/{response}", token=made["key"])[1]["status"]
            return status not in ("queued", "in_progress")

        responses = []
        talker.answer("high")
        talker.refuse(400, "no")
        for _ in range(2):
            responses.append(asked("tide?"))
            until(lambda: ended(responses[-1]), "the response has ended")
        talker.say("The")
        responses.append(asked("and later?"))
        until(lambda: len(talker.requests) == 3 and talker.said_all, "the model has begun to speak")
        waiting = server.ask("GET", "/api/deliveries?owner=ada&state=pending")[1]["data"]
        assert [each["kind"] for each in waiting] == ["event", "event"]
        server.kill()
        with receiving(port) as got:
            server.start()
            until(lambda: len(got) >= 3, "every end was sent")
            until(
                lambda: not server.ask("GET", "/api/deliveries?owner=ada&state=pending")[1]["data"],
                "the ends are noted as sent",
            )
        events = [openai.OpenAI(api_key="x").webhooks.unwrap(body, head, secret=SECRET) for head, body in got]
        assert [(each.type, each.model_dump()["data"]["id"]) for each in events] == list(
            zip(("response.completed", "response.failed", "response.failed"), responses, strict=True)
        )
        assert [head["webhook-id"] for head, _ in got][:2] == [each["id"] for each in waiting]


def add_notice(home: Home, owner: str, key: str, text: str) -> None:
    """As a reset does."""

    async def add() -> None:
        async with holdfast.open(home.store, owner=owner) as hf:
            session = await hf.session(key, attached=False)
            await hf.store.add_notice(owner, session.conversation_id, "reset", text)

    asyncio.run(add())
