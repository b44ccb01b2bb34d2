"""`holdfast ps|logs|stop|pin` on real processes, which nobody else looks after."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli.format import one_line
from holdfast.os_support import running_processes, send_signal, start_of
from tests.unit.cli.conftest import Home


class Agent:
    """A program that starts processes and goes."""

    def __init__(self, home: Home) -> None:
        self._url = f"sqlite:///{home.store}"

    def start(self, *commands: str, key: str = "cli:ada") -> list[dict[str, Any]]:
        async def start() -> list[str]:
            async with holdfast.open(self._url) as hf:
                session = await hf.session(key=key, attached=False)
                made = [await session.spawn(command) for command in commands]
                for process, command in zip(made, commands, strict=True):
                    if "sleep" not in command:
                        await hf.supervisor.wait(None, process.id)
                return [process.id for process in made]

        return [{"id": id_} for id_ in asyncio.run(start())]


@pytest.fixture
def agent(home: Home) -> Iterator[Agent]:
    yield Agent(home)
    marks = {path.name for path in Path(f"{home.store}.processes").glob("proc_*")}
    for one in running_processes().values():
        try:
            environment = Path(f"/proc/{one.pid}/environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if any(f"HOLDFAST_PROCESS={mark}" in environment for mark in marks):
            send_signal(one.pid, one.start, signal.SIGKILL)


def test_ps_tells_the_truth_though_nobody_looks_after_them(home: Home, agent: Agent) -> None:
    over, running = agent.start("echo hello; exit 3", "sleep 100")
    listed = home.json("ps")["data"]
    assert [each["id"] for each in listed] == [running["id"], over["id"]]
    assert [(each["state"], each["exit_code"]) for each in listed] == [("running", None), ("exited", 3)]
    assert [each["id"] for each in home.json("ps", "--running")["data"]] == [running["id"]]
    shown = home.ok("ps")
    assert "it was started" in shown
    assert "echo hello; exit 3" in shown


def test_ps_lists_a_conversation_by_any_of_its_names(home: Home, agent: Agent) -> None:
    (mine,), (other,) = agent.start("true"), agent.start("true", key="cli:bob")
    (found,) = home.json("ps", "cli:ada")["data"]
    assert found["id"] == mine["id"]
    for name in (found["session_id"], found["conversation_id"]):
        assert [each["id"] for each in home.json("ps", name)["data"]] == [mine["id"]]
    page = home.json("ps", "--limit", "1")
    assert ([each["id"] for each in page["data"]], page["has_more"]) == ([other["id"]], True)
    assert home.json("ps", "--after", other["id"])["data"][0]["id"] == mine["id"]
    assert home.run("ps", "cli:nobody").returncode == 1


def test_ps_of_nothing_says_so(home: Home) -> None:
    assert home.json("ps") == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }
    assert "there is no store yet" in home.run("ps").stderr
    home.ok("run", "--key", "cli:ada", "hello")
    assert "no session has started a process" in home.run("ps").stderr
    assert "it has started no process" in home.run("ps", "cli:ada").stderr


def test_logs_prints_what_was_said_and_nothing_that_drives_a_terminal(home: Home, agent: Agent) -> None:
    (process,) = agent.start(r"seq 1 5; printf '\033[2J'")
    assert home.ok("logs", process["id"]) == "1\n2\n3\n4\n5\n\\x1b[2J"
    assert home.ok("logs", process["id"], "--tail", "2") == "5\n\\x1b[2J"
    told = home.json("logs", process["id"])
    assert (told["id"], told["text"], told["dropped"]) == (process["id"], "1\n2\n3\n4\n5\n\x1b[2J", 0)


def test_logs_follows_until_the_end(home: Home, agent: Agent) -> None:
    (process,) = agent.start("for n in 1 2 3; do echo $n; sleep 0.3; done")
    assert home.ok("logs", process["id"], "--follow") == "1\n2\n3\n"


def test_stop_ends_it_when_nobody_else_would(home: Home, agent: Agent) -> None:
    (process,) = agent.start("sleep 100 & sleep 100")
    pid = home.json("ps")["data"][0]["pid"]
    assert start_of(pid) is not None
    assert home.ok("stop", process["id"]) == f"{process['id']} has been stopped: sleep 100 & sleep 100\n"
    assert start_of(pid) is None
    assert "had already ended" in home.ok("stop", process["id"])
    stopped = json.loads(home.ok("stop", process["id"], "--json"))
    assert (stopped["state"], stopped["stop_reason"]) == ("stopped", "a person stopped it")


def test_pin_holds_for_as_long_as_a_person_says(home: Home, agent: Agent) -> None:
    (process,) = agent.start("sleep 100")
    assert f"{process['id']} is pinned until" in home.ok("pin", process["id"], "--hours", "48")
    assert "pinned for 1 day more" in one_line(home.ok("ps"))
    assert home.json("pin", process["id"], "--hours", "0")["pinned_until"] is None
    wrong = home.run("pin", process["id"], "--hours", "-1")
    assert (wrong.returncode, "0 or more" in wrong.stderr) == (1, True)
    assert home.run("pin", process["id"]).returncode == 2


@pytest.mark.parametrize("command", [("logs",), ("stop",), ("pin", "--hours", "1")])
def test_a_process_that_is_not_there_is_named_with_what_to_do(home: Home, command: tuple[str, ...]) -> None:
    home.ok("run", "hello")
    done = home.run(command[0], "proc_unknown", *command[1:])
    assert done.returncode == 1
    assert done.stderr.startswith("Error: no process 'proc_unknown'. `holdfast ps` lists them")


def test_the_doctor_finds_no_fault_with_processes_that_wait_to_be_taken_over(
    home: Home, agent: Agent
) -> None:
    agent.start("true", "sleep 100")
    diagnosis = home.json("doctor")
    assert diagnosis["ok"]
    assert "no running process row without a verified identity" in [
        each["invariant"] for each in diagnosis["data"]
    ]
