"""Codex, Claude Code and the SDKs, as they are published, against a server: the part of the grid that every
change runs. `make agents` runs the whole grid and writes its page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.acceptance.command import CAN_FORK, Home, installed
from tests.acceptance.serving import serving
from tests.acceptance.terminal import terminal
from tests.agents.grid import SAY, bench, run_checks, text_of
from tests.agents.programs import GRID, Client, Talk

pytestmark = pytest.mark.slow
CLIENTS = {client.name: client for client in GRID}


@pytest.mark.parametrize("client", [each for each in GRID if each.in_ci], ids=lambda each: each.name)
def test_a_client_works_calls_tools_keeps_one_conversation_resumes_and_survives_a_kill(
    client: Client, tmp_path: Path
) -> None:
    with bench(tmp_path) as found:
        result = run_checks(client, found)
    assert result.failed == {}


def test_a_conversation_goes_from_codex_to_claude_code_and_to_the_terminal(tmp_path: Path) -> None:
    with bench(tmp_path) as found:
        home = found.home
        codex = Talk(CLIENTS["Codex"], home, found.server.url, "")
        assert "I say PEBBLE-1." in codex.turn(SAY)
        claude = Talk(CLIENTS["Claude Code"], home, found.server.url, "", continues=codex.name)
        assert "I say GRAVEL-2." in claude.turn("say GRAVEL-2")
        assert "tide-42" in claude.turn("use your tool")
        assert "You said PEBBLE-1, GRAVEL-2." in claude.turn("what did I say?")
        with terminal([*installed(), "chat", "--resume", codex.name], home.environment, tmp_path) as screen:
            screen.expect("> ")
            screen.type("say FLINT-3")
            screen.expect("I say FLINT-3.")
            screen.type("what did I say?")
            screen.expect("You said PEBBLE-1, GRAVEL-2, FLINT-3.")
            screen.type("/quit")
            assert screen.end() == 0

        [conversation] = found.conversations()
        for name in (codex.name, claude.name):
            assert home.json("sessions", "show", name)["conversation_id"] == conversation
        lineage = home.json("sessions", "lineage", codex.name)
        assert set(re.findall(r"conv_\w+", json.dumps(lineage))) == {conversation}
        asked = [text_of(each) for each in found.messages(codex.name) if each["role"] == "user"]
        for word in ("PEBBLE-1", "GRAVEL-2", "FLINT-3"):
            assert sum(f"say {word}" in each for each in asked) == 1
            hits = home.json("sessions", "search", word.split("-")[0].lower())["data"]
            assert {each["conversation_id"] for each in hits} == {conversation}


def test_transcripts_of_the_real_programs_are_imported_and_go_on_in_another(tmp_path: Path) -> None:
    with bench(tmp_path) as found:
        home = found.home
        codex = Talk(CLIENTS["Codex"], home, found.server.url, "")
        codex.turn("use your tool")
        claude = Talk(CLIENTS["Claude Code"], home, found.server.url, "")
        claude.turn(SAY)
        place = tmp_path / "other"
        other = Home(place, {**home.environment, "HOLDFAST_HOME": str(place)}, forked=CAN_FORK)
        for program, folder, name, words in (
            ("codex", ".codex", codex.name, "tide-42"),
            ("claude-code", ".claude", claude.name, SAY),
        ):
            transcripts = (Path.home() / folder).rglob(f"*{name}*.jsonl")  # others' may be written meanwhile
            files = {each: each.read_bytes() for each in transcripts}
            assert files
            for _ in range(2):  # the second time nothing is new
                other.ok("import", program, str(Path.home() / folder))
                said = [text_of(each) for each in other.json("sessions", "messages", name)["data"]]
                assert sum(words in each for each in said) >= 1
                assert len(said) == len(set(said))
            assert {each: each.read_bytes() for each in files} == files
        with serving(other) as server:
            later = Talk(CLIENTS["Codex"], other, server.url, "", continues=claude.name)
            assert "You said PEBBLE-1." in later.turn("what did I say?")
