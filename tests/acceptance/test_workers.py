"""`holdfast serve --workers 2`: two processes on one port, and one that replaces them."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from .command import Home, until
from .serving import Serving
from .talker import Talker


class Line:
    """A connection that stays open, so that every request on it is answered by the same worker."""

    def __init__(self, server: Serving) -> None:
        self._token = server.client_environment["OPENAI_API_KEY"]
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=90)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
        sent = {"authorization": f"Bearer {self._token}", "content-type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {name: value for name, value in sent.items() if value}
        data = body if body is None or isinstance(body, str) else json.dumps(body)
        self._connection.request(method, path, data, sent)
        answer = self._connection.getresponse()
        self.headers = answer.headers
        return answer.status, answer.read().decode()

    def json(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        status, text = self.ask(method, path, body, **headers)
        assert status < 300, text
        return json.loads(text)

    def say(self, text: str, **headers: str) -> Any:
        body = {"messages": [{"role": "user", "content": text}]}
        return self.json("POST", "/v1/chat/completions", body, **headers)

    def count(self, metric: str) -> float:
        """The value of one metric, which is named as it is exported."""
        _, text = self.ask("GET", "/metrics")
        (found,) = (line for line in text.splitlines() if line.startswith(f"{metric} "))
        return float(found.rpartition(" ")[2])

    @property
    def node(self) -> str:
        """The id of the node that answers on this line."""
        found: str = self.json("GET", "/api/activity")["node"]
        return found

    @property
    def pid(self) -> int:
        node = self.node
        (found,) = (each["pid"] for each in self.json("GET", "/api/nodes")["data"] if each["id"] == node)
        return int(found)

    def close(self) -> None:
        self._connection.close()


class Crew(Serving):
    """A server with two workers."""

    def start(self) -> None:
        self.home.environment["HOLDFAST_SERVER__WORKERS"] = "2"
        super().start()
        self.wait_for_both()

    @property
    def supervisor(self) -> int:
        assert self._running is not None
        return self._running.process.pid

    def health(self) -> Any:
        return self.ask("GET", "/healthz", token="none is needed")[1]

    def wait_for_both(self) -> None:
        until(lambda: self.health()["workers"] == 2, "both workers serve")

    @contextmanager
    def lines(self) -> Iterator[tuple[Line, Line]]:
        """A line to each of the two workers."""
        opened = [Line(self)]
        try:
            while opened[0].node == opened[-1].node:
                opened.append(Line(self))
                assert len(opened) < 200, "one worker takes every connection"
            yield opened[0], opened[-1]
        finally:
            for line in opened:
                line.close()


@contextmanager
def two_workers(home: Home) -> Iterator[Crew]:
    server = Crew(home)
    try:
        yield server
    finally:
        server.kill()


def gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def beside(work: Any) -> tuple[threading.Thread, list[Any]]:
    """Run this in a thread; its result is put into the list."""
    results: list[Any] = []

    def run() -> None:
        with suppress(OSError, http.client.HTTPException):  # the worker was killed
            results.append(work())

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def spoken(talker: Talker) -> bool:
    return bool(talker.requests) and talker.said_all


def test_two_workers_answer_one_conversation_in_order_and_start_lines_are_printed_once(home: Home) -> None:
    with two_workers(home) as server:
        with server.lines() as (one, other):
            assert one.pid != other.pid
            ids = set()
            for number in range(6):
                line = (one, other)[number % 2]
                answer = line.say(f"message {number}", x_holdfast_session_key="cli:ada")
                ids.add(answer["holdfast"]["session_id"])
            assert len(ids) == 1
            (found,) = ids
            listed = other.json("GET", f"/api/sessions/{found}/messages?limit=100")["data"]
            said = [message["content"] for message in listed if message["role"] == "user"]
            assert said == [f"message {number}" for number in range(6)]
            assert [message["seq"] for message in listed] == list(range(1, 13))
        assert server._running is not None
        server._running.send(signal.SIGTERM)
        code, out, err = server._running.end()
        server._running = None
        assert code == 0, err
        assert out.count("holdfast answers at") == 1
        assert "2 workers" in out
        assert not (home.path / "server.url").exists()


def test_figures_are_those_of_both_workers_and_outlive_a_killed_one(home: Home) -> None:
    turns = 'holdfast_turns_total{status="completed"}'
    requests = 'holdfast_requests_total{route="/v1/chat/completions",status="200"}'
    with two_workers(home) as server:
        with server.lines() as (one, other):
            for line in (one, one, one, other, other):
                line.say("hello")
            for line in (one, other):
                assert line.count(turns) == line.count(requests) == 5
                assert line.count("holdfast_running_turns") == 0
            cpu = other.count("process_cpu_seconds_total")
            victim = one.pid
            os.kill(victim, signal.SIGKILL)
            until(lambda: gone(victim), "the worker is dead")
            until(lambda: other.count("process_cpu_seconds_total") >= cpu, "its CPU time is still counted")
            assert other.count(turns) == other.count(requests) == 5
        server.wait_for_both()
        with server.lines() as (one, other):
            assert victim not in (one.pid, other.pid)
            one.say("hello")
            other.say("hello")
            assert one.count(turns) == other.count(turns) == 7


def test_a_killed_worker_is_replaced_and_its_turn_is_settled_and_taken_up(
    talking: Home, talker: Talker
) -> None:
    body = {"messages": [{"role": "user", "content": "tell me about the tide"}]}
    headers = {"x_holdfast_session_key": "cli:ada", "idempotency_key": "m1"}
    with two_workers(talking) as server, server.lines() as (one, other):
        victim = one.pid
        asking, _ = beside(lambda: one.ask("POST", "/v1/chat/completions", body, **headers))
        talker.say("The", " tide")
        until(lambda: spoken(talker), "the model has begun to speak")
        until(lambda: other.json("GET", "/healthz")["running_turns"] == 1, "the other worker counts it")
        assert server.health()["idle_seconds"] == 0
        os.kill(victim, signal.SIGKILL)
        asking.join(90)
        (session,) = other.json("GET", "/api/sessions")["data"]

        def turn() -> Any:
            return other.json("GET", f"/api/sessions/{session['id']}/turns")["data"][0]

        until(lambda: turn()["status"] == "interrupted", "the turn of the dead worker is settled")
        until(lambda: server.health()["workers"] == 2, "it is replaced")
        assert server.health()["running_turns"] == 0
        talker.answer("The", " tide", " turns.")
        answer = other.json("POST", "/v1/chat/completions", body, **headers)
        assert answer["choices"][0]["message"]["content"] == "The tide turns."
        assert answer["holdfast"]["turn_id"] == turn()["id"]


def test_a_retry_and_a_reader_on_the_other_worker_get_the_same_turn(talking: Home, talker: Talker) -> None:
    with two_workers(talking) as server, server.lines() as (one, other):
        body = {"messages": [{"role": "user", "content": "hello"}]}
        first, firsts = beside(
            lambda: one.json("POST", "/v1/chat/completions", body, idempotency_key="the same")
        )
        talker.say("Hel")
        until(lambda: spoken(talker), "the model has begun to speak")
        again, agains = beside(
            lambda: other.json("POST", "/v1/chat/completions", body, idempotency_key="the same")
        )
        talker.answer("lo")
        first.join(90)
        again.join(90)
        (answer,), (repeated,) = firsts, agains
        assert answer["choices"][0]["message"]["content"] == "Hello"
        assert repeated["choices"][0]["message"]["content"] == "Hello"
        assert repeated["holdfast"]["turn_id"] == answer["holdfast"]["turn_id"]
        assert len(talker.requests) == 1

        response = one.json("POST", "/v1/responses", {"input": "again", "background": True})
        talker.say("Once")
        until(lambda: len(talker.requests) == 2 and talker.said_all, "it speaks again")
        path = f"/v1/responses/{response['id']}?stream=true&starting_after=0"
        reading, streams = beside(lambda: other.ask("GET", path))
        talker.answer(" more")
        reading.join(90)
        ((status, stream),) = streams
        assert status == 200
        events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
        assert events[-1]["type"] == "response.completed"
        assert "".join(each.get("delta", "") for each in events) == "Once more"
        numbers = [each["sequence_number"] for each in events]
        assert numbers == sorted(set(numbers)) and numbers[0] == 1


def test_limits_of_a_key_hold_for_both_workers_together(talking: Home, talker: Talker) -> None:
    talking.environment["HOLDFAST_LIMITS__TURNS_PER_KEY"] = "1"
    talking.environment["HOLDFAST_LIMITS__STREAMS_PER_KEY"] = "1"
    with two_workers(talking) as server, server.lines() as (one, other):
        body = {"messages": [{"role": "user", "content": "hello"}]}
        asking, told = beside(lambda: one.json("POST", "/v1/chat/completions", body))
        talker.say("Hel")
        until(lambda: spoken(talker), "the model has begun to speak")
        status, refusal = other.ask("POST", "/v1/chat/completions", body)
        assert (status, json.loads(refusal)["error"]["code"]) == (429, "too_many_turns")
        talker.answer("lo")
        asking.join(90)
        assert told[0]["choices"][0]["message"]["content"] == "Hello"
        talker.answer("Hello")
        assert other.json("POST", "/v1/chat/completions", body)["choices"]

        streaming, _ = beside(lambda: one.ask("POST", "/v1/chat/completions", {**body, "stream": True}))
        until(lambda: len(talker.requests) == 3, "a stream is open")
        status, refusal = other.ask("GET", "/api/events?after=0")
        assert (status, json.loads(refusal)["error"]["code"]) == (429, "too_many_streams")
        talker.answer("done")
        streaming.join(90)


def test_a_browser_login_made_on_one_worker_is_valid_on_the_other(home: Home) -> None:
    with two_workers(home) as server, server.lines() as (one, other):
        form = {
            "content_type": "application/x-www-form-urlencoded",
            "origin": f"http://127.0.0.1:{server.port}",
        }
        key = server.client_environment["OPENAI_API_KEY"]
        status, text = one.ask("POST", "/login", f"key={key}&next=/", **form)
        assert status == 303, text
        cookie = one.headers["set-cookie"].partition(";")[0]
        for line in (other, one):
            assert line.ask("GET", "/", cookie=cookie, authorization="")[0] == 200
            assert line.ask("GET", "/", cookie="", authorization="")[0] == 401


def test_a_signal_drains_every_worker_before_they_end(talking: Home, talker: Talker) -> None:
    talking.environment["HOLDFAST_SERVER__DRAIN_SECONDS"] = "60"
    with two_workers(talking) as server, server.lines() as (one, other):
        pids = one.pid, other.pid
        asking, told = beside(lambda: one.say("hello"))
        talker.say("Hel")
        until(lambda: spoken(talker), "the model has begun to speak")
        stopping, codes = beside(lambda: server.stop(signal.SIGTERM))
        until(lambda: gone(pids[1]), "the worker without a turn has ended")
        assert not gone(pids[0])
        talker.answer("lo")
        stopping.join(90)
        asking.join(90)
        assert codes == [0]
        assert told[0]["choices"][0]["message"]["content"] == "Hello"
        assert all(gone(pid) for pid in pids)


def test_a_second_signal_interrupts_the_turns_at_once(talking: Home, talker: Talker) -> None:
    talking.environment["HOLDFAST_SERVER__DRAIN_SECONDS"] = "600"
    with two_workers(talking) as server, server.lines() as (one, other):
        idle = other.pid
        asking, told = beside(lambda: one.ask("POST", "/v1/chat/completions", {"messages": [HELLO]}))
        talker.say("Hel")
        until(lambda: spoken(talker), "the model has begun to speak")
        os.kill(server.supervisor, signal.SIGTERM)
        until(lambda: gone(idle), "draining has begun")
        assert server.stop(signal.SIGTERM) == 0
        asking.join(90)
        ((status, refusal),) = told
        assert (status, json.loads(refusal)["error"]["code"]) == (503, "turn_interrupted")


HELLO = {"role": "user", "content": "hello"}


def test_no_worker_survives_its_supervisor(home: Home) -> None:
    with two_workers(home) as server:
        with server.lines() as (one, other):
            pids = one.pid, other.pid
        os.kill(server.supervisor, signal.SIGKILL)
        until(lambda: all(gone(pid) for pid in pids), "the workers have ended")
        server.kill()
        server.start()  # the port is free again
        with server.lines() as (one, other):
            assert not {one.pid, other.pid} & set(pids)


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"HOLDFAST_MODEL__KIND": "local"}, "each worker would load it again"),
        ({"HOLDFAST_STORE__URL": "sqlite:////dev/null/x.db"}, "/dev/null"),
        ({"HOLDFAST_SERVER__WORKERS": "0"}, "server.workers"),
    ],
)
def test_a_server_whose_workers_cannot_start_ends_with_their_message(
    home: Home, environment: dict[str, str], sentence: str
) -> None:
    done = home.run("serve", "--port", "0", env={"HOLDFAST_SERVER__WORKERS": "2", **environment})
    assert done.returncode == 1
    assert done.stderr.count(sentence) == 1, done.stderr
    assert "holdfast answers" not in done.stdout
