"""The six checks of the grid. Each proves its claim by what the client printed and by the rows of the store.

| check            | is proved by                                                                          |
|------------------|---------------------------------------------------------------------------------------|
| works            | the client prints the model's answer; settings and logins in the home stay unchanged  |
| tools            | it runs the tool that the model calls; the result is a message of the conversation    |
| one conversation | all its requests belong to one conversation, in which nothing is twice                |
| sub-agents       | a sub-agent's conversation is apart, with the edge `subagent` to its parent's         |
| resumes          | its own resume command goes on with that conversation, with its whole context         |
| survives         | the server is killed in mid-reply: the client ends with the whole answer, stored once |
"""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.acceptance.command import CAN_FORK, Home, drafts, until
from tests.acceptance.serving import Serving, serving
from tests.agents.model import NAME, RESULT, STORY, GridModel
from tests.agents.programs import Client, Talk, programs_path

COLUMNS = ("works", "tools", "one conversation", "sub-agents", "resumes", "survives")
SAY, TOOL, RECALL = "say PEBBLE-1", "use your tool", "what did I say?"
TELL, HELP = "tell the long story", "ask a helper to say FLINT-7"


@dataclass
class Bench:
    """A server in front of the scripted model."""

    model: GridModel
    server: Serving
    home: Home

    def messages(self, name: str, scope: str = "conversation") -> list[dict[str, Any]]:
        limit = "" if scope == "context" else "&limit=100"
        status, found = self.server.ask("GET", f"/api/sessions/{name}/messages?scope={scope}{limit}")
        assert status == 200, found
        data: list[dict[str, Any]] = found["data"]
        return data

    def conversations(self, *, sub_agents: bool = False) -> set[str]:
        """The ids of all conversations but those of sub-agents, or of these alone."""
        status, found = self.server.ask("GET", "/api/sessions?limit=100")
        assert status == 200, found
        return {
            each["conversation_id"] for each in found["data"] if (each["edge"] == "subagent") is sub_agents
        }

    def parent_of(self, conversation: str) -> str:
        """The conversation that a sub-agent works for."""
        session = self.home.json("sessions", "show", conversation)
        return str(self.home.json("sessions", "show", session["parent_id"])["conversation_id"])


@contextmanager
def bench(place: Path) -> Iterator[Bench]:
    with GridModel().running() as model:
        environment = {
            "HOLDFAST_MODEL__KIND": "openai",
            "HOLDFAST_MODEL__BASE_URL": model.url,
            "HOLDFAST_MODEL__NAME": NAME,
            "HOLDFAST_SERVER__CHECKPOINT_SECONDS": "0.1",
            "PATH": programs_path(),
            "NO_PROXY": "127.0.0.1",
        }
        home = Home(place / "home", environment, forked=CAN_FORK)
        with serving(home) as server:
            yield Bench(model, server, home)


@dataclass
class Result:
    """What the checks showed: by column `yes`, or what went wrong."""

    client: Client
    columns: dict[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> dict[str, str]:
        return {name: each for name, each in self.columns.items() if each not in ("yes", "n/a")}

    def check(self, column: str, passes: Callable[[], None]) -> None:
        if column in self.client.not_applicable:
            self.columns[column] = "n/a"
            return
        try:
            passes()
        except (AssertionError, subprocess.TimeoutExpired) as error:
            self.columns[column] = str(error) or "no"
        else:
            self.columns[column] = "yes"


def run_checks(client: Client, found: Bench) -> Result:
    """Run the checks of one client, in order, each in the same conversation."""
    key = found.home.json("keys", "create")["key"]
    talk = Talk(client, found.home, found.server.url, key)
    return _of_sdk(client, found, talk) if client.sdk else _of_program(client, found, talk)


def _of_program(client: Client, found: Bench, talk: Talk) -> Result:
    result = Result(client)
    before = found.conversations()

    def works() -> None:
        own = {Path.home() / path: content for path, content in client.own_files.items()}
        for path, content in own.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        printed = talk.turn(SAY)
        assert "I say PEBBLE-1." in printed, printed
        changed = [str(path) for path, content in own.items() if path.read_text() != content]
        assert not changed, f"it changed {', '.join(changed)}"
        assert talk.name or not client.has_session, "it named no session"

    def tools() -> None:
        printed = talk.turn(TOOL)
        assert RESULT in printed, printed
        assert any(each["role"] == "tool" for each in found.messages(talk.name)), "no result is stored"

    def resumes() -> None:
        printed = talk.turn(RECALL)
        assert "You said PEBBLE-1." in printed, printed

    def one_conversation() -> None:
        began = found.conversations() - before
        assert len(began) == 1, f"{len(began)} conversations"
        _nothing_twice(found.messages(talk.name))

    def sub_agents() -> None:
        printed = talk.turn(HELP)
        assert "FLINT-7" in printed, printed
        [began] = found.conversations() - before
        helpers = found.conversations(sub_agents=True)
        assert len(helpers) == 1, f"{len(helpers)} conversations of sub-agents"
        [helper] = helpers
        assert found.parent_of(helper) == began, "it is linked to another conversation"
        said = [text_of(each) for each in found.messages(helper)]
        assert said[-1] == "I say FLINT-7.", said
        asked = [each for each in found.messages(talk.name) if HELP in text_of(each)]
        assert len(asked) == 1, f"{HELP!r} is stored {len(asked)} times"

    def survives() -> None:
        printed = killed_in_mid_reply(found, lambda: talk.turn(TELL))
        assert STORY in " ".join(printed.split()), printed
        if client.has_session:
            assert len(found.conversations() - before) == 1, "another conversation began"
            _told_once(found.messages(talk.name), found.messages(talk.name, "context"))

    for column, passes in (
        ("works", works),
        ("tools", tools),
        ("resumes", resumes),
        ("one conversation", one_conversation),
        ("sub-agents", sub_agents),
        ("survives", survives),
    ):
        result.check(column, passes)
    return result


def _of_sdk(client: Client, found: Bench, talk: Talk) -> Result:
    """All turns in one process, the server being killed in the last: starting an SDK takes seconds."""
    result = Result(client)
    before = found.conversations()
    answers: list[str] = []

    def works() -> None:
        answers.extend(killed_in_mid_reply(found, lambda: talk.turns([SAY, TOOL, RECALL, TELL])))
        assert answers[0] == "I say PEBBLE-1.", answers

    def tools() -> None:
        assert answers, "it did not work"
        assert RESULT in answers[1], answers
        assert "You said PEBBLE-1." in answers[2], answers

    def one_conversation() -> None:
        began = found.conversations() - before
        assert len(began) == 1, f"{len(began)} conversations"
        _nothing_twice(found.messages(began.pop()))

    def survives() -> None:
        assert answers, "it did not work"
        assert answers[3] == STORY, answers
        [name] = found.conversations() - before
        _told_once(found.messages(name), found.messages(name, "context"))

    for column, passes in (
        ("works", works),
        ("tools", tools),
        ("one conversation", one_conversation),
        ("sub-agents", lambda: None),
        ("resumes", lambda: None),
        ("survives", survives),
    ):
        result.check(column, passes)
    return result


def killed_in_mid_reply(found: Bench, ask: Callable[[], Any]) -> Any:
    """What the client ends with, if the server dies while its reply is half told and then comes back."""
    found.model.held.set()
    found.model.halfway.clear()
    ended: list[Any] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            ended.append(ask())
        except BaseException as failure:
            failures.append(failure)

    asking = threading.Thread(target=run, daemon=True)
    asking.start()
    until(lambda: found.model.halfway.is_set() or not asking.is_alive(), "half of the story is told")
    if asking.is_alive():
        until(lambda: drafts(found.home) > 0, "half of the story is on disk")
        found.server.stop(signal.SIGKILL)
        found.model.held.clear()
        found.server.start()
    asking.join()
    found.model.held.clear()
    if failures:
        raise AssertionError(str(failures[0])) from failures[0]
    return ended[0]


def text_of(message: dict[str, Any]) -> str:
    content = message["content"] or ""
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def _nothing_twice(messages: list[dict[str, Any]]) -> None:
    for words in (SAY, TOOL, RECALL):
        asked = [each for each in messages if each["role"] == "user" and words in text_of(each)]
        assert len(asked) == 1, f"{words!r} is stored {len(asked)} times"
    assert sum(each["role"] == "tool" for each in messages) == 1, "the tool's result is not stored once"


def _told_once(messages: list[dict[str, Any]], context: list[dict[str, Any]]) -> None:
    asked = [each for each in messages if each["role"] == "user" and TELL in text_of(each)]
    assert len(asked) == 1, f"the question is stored {len(asked)} times"
    told = [text_of(each) for each in context if each["role"] == "assistant" and "wave0" in text_of(each)]
    assert told == [STORY], f"the context has {len(told)} answers: {told}"
