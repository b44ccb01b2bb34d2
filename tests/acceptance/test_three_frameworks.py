"""Agents of three frameworks on one server's store at once, each killed while its tool runs and run again.

The ADK's agent needs its own environment: `make peers` runs this test and names its
interpreter in HOLDFAST_TEST_ADK.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .command import Home
from .serving import Serving, serving

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "frameworks"
PYTHON_OF_ADK = os.environ.get("HOLDFAST_TEST_ADK", "")
PYTHONS = {"langgraph": sys.executable, "openai_agents": sys.executable, "google_adk": PYTHON_OF_ADK}

QUESTION, ANSWER = "How deep is it here?", "The sounding says nine fathoms."


def start(framework: str, url: str, home: Path, text: str) -> subprocess.Popen[str]:
    command = [PYTHONS[framework], str(EXAMPLES / f"{framework}_agent.py"), url, text]
    environment = {**os.environ, "HOLDFAST_HOME": str(home)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=home)


def seen(server: Serving, source: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The one conversation of this source in the server's lists, and its messages."""
    status, found = server.ask("GET", f"/api/sessions?source={source}")
    assert status == 200
    (session,) = found["data"]
    _, messages = server.ask("GET", f"/api/sessions/{session['id']}/messages?scope=conversation")
    return session, messages["data"]


@pytest.mark.skipif(
    not PYTHON_OF_ADK, reason="has an environment of its own: run by `make peers`, also in CI"
)
@pytest.mark.timeout(1800)  # six programs are started; a loaded machine takes minutes for it
def test_agents_of_three_frameworks_are_killed_and_resumed(home: Home, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    home.environment["HOLDFAST_STORE__URL"] = url
    with serving(home) as server:
        running = {}
        for name in PYTHONS:
            running[name] = process = start(name, url, tmp_path, QUESTION)
            assert process.stdout is not None and process.stdout.readline() == "sounding …\n"
            process.send_signal(signal.SIGSTOP)  # its tool must not finish while the next program starts
        for name in PYTHONS:
            session, messages = seen(server, name.replace("_", "-"))
            assert session["key"].startswith(name.replace("_", "-")) and messages[0]["content"] == QUESTION
        for process in running.values():
            process.kill()
            process.communicate()
        resumed = {name: start(name, url, tmp_path, QUESTION) for name in PYTHONS}
        for name, process in resumed.items():
            said, _ = process.communicate()
            assert process.returncode == 0 and said.strip().endswith(ANSWER), name
        for name in PYTHONS:
            _, messages = seen(server, name.replace("_", "-"))
            assert messages[0]["content"] == QUESTION and messages[-1]["content"] == ANSWER
            assert [message["role"] for message in messages].count("tool") == 1, "one sounding was finished"
            questions = [message for message in messages if message["content"] == QUESTION]
            # LangGraph goes on with the stored question; the others are asked again, by the program itself.
            assert len(questions) == (1 if name == "langgraph" else 2)
        _, hits = server.ask("GET", "/api/search?q=fathoms")
        assert len(hits["data"]) >= 2 * len(PYTHONS), "each tool's result and each answer is found"
