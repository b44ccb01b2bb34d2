"""Processes that died: who notices, and what is said."""

from __future__ import annotations

import signal

from .command import Home
from .talker import Talker


def killed_run(home: Home, talker: Talker) -> int:
    """A run that was killed while its model was silent; returns its pid."""
    talker.asked.clear()
    run = home.start("run", "--key", "k", "tell me")
    assert talker.asked.wait(30)
    run.send(signal.SIGKILL)
    run.end()
    return run.process.pid


def test_sweep_says_what_it_did_and_then_that_nothing_was_due(talking: Home, talker: Talker) -> None:
    pid = killed_run(talking, talker)
    said = talking.ok("sweep")
    assert f"(cli, process {pid} on " in said
    assert "its lock is free" in said
    assert "Interrupted 1 turn" in said
    assert "Ended 1 session as reaped" in said
    assert talking.ok("sweep") == "Nothing was due.\n"
    assert talking.json("sweep")["anything"] is False


def test_nodes_shows_who_lives_and_who_was_just_found_dead(talking: Home, talker: Talker) -> None:
    run = talking.start("run", "--key", "k", "tell me")
    assert talker.asked.wait(30)
    (node,) = talking.json("nodes")["data"]
    assert (node["state"], node["kind"], node["pid"]) == ("alive", "cli", run.process.pid)
    assert node["why"] == "it holds its lock"
    run.send(signal.SIGKILL)
    run.end()
    shown = talking.ok("nodes")
    assert "reaped: its process ended (its lock is free) (just now)" in shown
    assert talking.json("nodes")["data"] == []
    (gone,) = talking.json("nodes", "--all")["data"]
    assert (gone["id"], gone["state"]) == (node["id"], "dead")
    assert gone["reaped_at"]
