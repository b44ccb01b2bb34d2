"""Conversations from one home to another, by the installed command."""

from __future__ import annotations

import json
from pathlib import Path

from .command import Home


def test_conversations_move_from_one_home_to_another(home: Home, tmp_path: Path) -> None:
    home.ok("run", "--key", "cli:ada", "my name is Ada")
    home.ok("run", "--key", "cli:bob", "my name is Bob")
    file = tmp_path / "all.jsonl"
    done = home.run("sessions", "export", "--all", "-o", str(file))
    assert (done.returncode, done.stdout) == (0, "")
    assert "2 conversations exported" in done.stderr
    assert file.stat().st_mode & 0o077 == 0
    one = home.ok("sessions", "export", "cli:ada")
    assert [json.loads(line)["record"] for line in one.splitlines()] == [
        *("holdfast", "conversation", "session", "turn", "message", "message", "end")
    ]

    another = Home(tmp_path / "another")
    assert another.ok("import", str(file)) == "2 conversations imported: 2 sessions, 4 messages.\n"
    assert another.ok("sessions", "export") == file.read_text()
    again = another.json("import", str(file))
    assert (again["conversations"], again["unchanged"], again["messages"]) == (0, 2, 0)
    refused = home.run("import", str(tmp_path / "nowhere.jsonl"))
    assert (refused.returncode, "there is no file" in refused.stderr) == (1, True)
    refused = home.run("sessions", "export", "--all", "-o", str(file))
    assert (refused.returncode, "never overwrites" in refused.stderr) == (1, True)
    assert home.run("sessions", "export", "cli:ada", "--all").returncode == 2
