"""A broker that stops idle processes and, being a broker, sometimes busy ones: nothing is lost either way."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from typing import Any

from .command import PATIENCE, Home, installed, until
from .serving import Serving, serving
from .talker import Talker


def health(server: Serving) -> dict[str, Any]:
    status, answer = server.ask("GET", "/healthz", token="none is needed")
    assert status == 200
    found: dict[str, Any] = answer
    return found


def messages(home: Home, key: str) -> list[tuple[str, str]]:
    listed = home.json("sessions", "messages", key, "--scope", "conversation")["data"]
    return [(message["content"], message["status"]) for message in listed]


def test_a_process_that_is_stopped_whenever_it_is_idle_loses_nothing(home: Home) -> None:
    said: list[tuple[str, str]] = []
    ids = set()
    with serving(home) as server:
        for number in range(4):
            answer = server.say(f"message {number}", x_holdfast_session_key="telegram:dm:42")
            ids.add((answer["holdfast"]["conversation_id"], answer["holdfast"]["session_id"]))
            said += [(f"message {number}", "completed"), (f"You said: message {number}", "completed")]
            assert health(server)["running_turns"] == 0
            assert server.stop(signal.SIGTERM) == 0
            server.start()
        assert messages(home, "telegram:dm:42") == said
        assert len(ids) == 1, "one conversation and one session, over five processes"
        (session,) = home.sessions()
        assert session["message_count"] == 8


def test_idleness_is_since_somebody_spoke_and_looking_does_not_count(home: Home) -> None:
    with serving(home) as server:
        server.say("hello")
        first = health(server)
        server.ask("GET", "/v1/models")
        until(lambda: health(server)["idle_seconds"] > first["idle_seconds"] + 0.2, "idle grows all the same")
        before = time.monotonic()
        server.say("hello")
        idle = health(server)["idle_seconds"]
        assert idle < time.monotonic() - before, "it counts from the last word"


def test_a_process_that_is_stopped_in_the_middle_keeps_what_was_said_and_the_retry_is_one_turn(
    talking: Home, talker: Talker
) -> None:
    talking.environment["HOLDFAST_SERVER__DRAIN_SECONDS"] = "0.3"
    body = {"messages": [{"role": "user", "content": "tell me about the tide"}]}
    headers = {"x_holdfast_session_key": "telegram:dm:42", "idempotency_key": "telegram:dm:42:m1"}
    with serving(talking) as server:
        told: list[tuple[int, Any]] = []
        asking = threading.Thread(
            target=lambda: told.append(server.ask("POST", "/v1/chat/completions", body, **headers))
        )
        asking.start()
        talker.say("The", " tide")
        until(lambda: talker.requests and talker.said_all, "the model has begun to speak")
        until(lambda: health(server)["running_turns"] == 1, "somebody would be interrupted")
        assert health(server)["idle_seconds"] == 0
        assert server.stop(signal.SIGTERM) == 0
        asking.join(10)
        ((status, refusal),) = told
        assert (status, refusal["error"]["code"]) == (503, "turn_interrupted")
        assert messages(talking, "telegram:dm:42") == [
            ("tell me about the tide", "completed"),
            ("The tide", "interrupted"),
        ], json.dumps(refusal)

        server.start()
        talker.answer("The", " tide", " turns.")
        status, answer = server.ask("POST", "/v1/chat/completions", body, **headers)
        assert status == 200
        assert answer["choices"][0]["message"]["content"] == "The tide turns."
        assert answer["holdfast"]["turn_id"] == refusal["holdfast"]["turn_id"]


def test_a_process_is_given_time_to_finish_what_it_is_saying(talking: Home, talker: Talker) -> None:
    talking.environment["HOLDFAST_SERVER__DRAIN_SECONDS"] = "20"
    with serving(talking) as server:
        told: list[dict[str, Any]] = []
        asking = threading.Thread(target=lambda: told.append(server.say("hello")))
        asking.start()
        talker.say("Hel")
        until(lambda: talker.requests and talker.said_all, "the model has begun to speak")
        stopped: list[int] = []
        stopping = threading.Thread(target=lambda: stopped.append(server.stop(signal.SIGTERM)))
        stopping.start()
        talker.answer("lo")
        stopping.join(15)
        asking.join(15)
        assert stopped == [0]
        assert told[0]["choices"][0]["message"]["content"] == "Hello"


def test_everything_that_a_server_prints_for_machines_is_json(home: Home) -> None:
    server = subprocess.Popen(
        [*installed(), "serve", "--port", "0"],
        env={**home.environment, "HOLDFAST_LOG__FORMAT": "json"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    lines = [server.stderr.readline()]
    while "serving http://127.0.0.1:" not in lines[-1]:
        assert server.poll() is None, lines
        lines.append(server.stderr.readline())
    server.terminate()
    out, rest = server.communicate(timeout=PATIENCE)
    assert out == ""
    assert all("message" in json.loads(line) for line in [*lines, *rest.splitlines()])
