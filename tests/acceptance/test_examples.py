"""The example agent, run as a newcomer would. (The bridge has a file of its own.)"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
AGENT = ROOT / "examples" / "agent.py"


def run(place: Path, *command: str) -> str:
    environment = {**os.environ, "HOLDFAST_HOME": str(place / "home"), "HOLDFAST_MODEL__KIND": "scripted"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=place,
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_agent_survives_being_killed_in_the_middle_of_a_reply(tmp_path: Path) -> None:
    assert run(tmp_path, str(AGENT), "m1", "My name is Ada.").strip().endswith("My name is Ada.")
    agent = subprocess.Popen(
        [sys.executable, str(AGENT), "m2", "And I like ships."], cwd=tmp_path, stdout=subprocess.PIPE
    )
    assert agent.stdout is not None
    assert agent.stdout.read(6)  # it has begun to speak
    time.sleep(0.3)
    agent.send_signal(signal.SIGKILL)
    agent.communicate()
    answer = "So far you have told me: My name is Ada.; And I like ships."
    assert run(tmp_path, str(AGENT), "m2", "And I like ships.").strip() == answer, (
        "asked once, answered whole"
    )
    assert run(tmp_path, str(AGENT), "m2", "And I like ships.").strip() == f"(answered before) {answer}"
    assert run(tmp_path, str(AGENT), "m3", "What time is it?").startswith("It is ")
