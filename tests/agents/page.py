"""Writes the page of the grid into the docs."""

from __future__ import annotations

# ruff: noqa: E501 - the lines of a page
import datetime
from collections.abc import Sequence
from pathlib import Path

from tests.agents.grid import COLUMNS, Result

HEAD = """\
# Agent programs, tried

Written by `make agents`, which installs the programs at these versions and runs each against a server in front of a scripted
model. Last run: {date}. How to set a program up: [agent programs](../how-to/agent-programs.md).

| client | version | {columns} |
|---|---|{lines}|
"""
TAIL = """
- **works**: it prints the model's answer, and no settings or logins of its user have changed.
- **tools**: it runs the tool that the model calls, and the result is a message of the conversation.
- **one conversation**: all its requests belong to one conversation, in which nothing is stored twice.
- **sub-agents**: a sub-agent that it starts is a conversation of its own, with the edge `subagent` to its parent's. n/a: it has none.
- **resumes**: its own resume command, in a new process, goes on with that conversation and its whole context. An SDK has no
  sessions: n/a.
- **survives**: the server is killed with `kill -9` in mid-reply and started again. The client's own retry, or the same question
  asked again, ends with the whole answer; the question and the answer are stored once.

aider has no sessions, no tools, and rewrites its history from one request to the next: only what it prints is checked, not
what is stored.

`make test` runs Codex, Claude Code and the SDKs; the others run only by `make agents`.
"""


def write_page(results: Sequence[Result], path: Path) -> None:
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    lines = [
        HEAD.format(
            date=date, columns=" | ".join(COLUMNS), lines="---|" * (len(COLUMNS) - 1) + "---"
        ).rstrip()
    ]
    for each in results:
        cells = ["**no**" if name in each.failed else each.columns[name] for name in COLUMNS]
        lines.append(f"| {each.client.name} | {each.client.version} | {' | '.join(cells)} |")
    path.write_text("\n".join(lines) + "\n" + TAIL, "utf-8")
