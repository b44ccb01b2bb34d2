"""What commands find in their environment, and which tools the settings give."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from holdfast.domain.api_keys import Scope, new_key
from holdfast.domain.nodes import NodeKind
from holdfast.errors import BadSetting
from holdfast.runtime.processes.supervisor import Supervisor
from holdfast.settings import load
from holdfast.store.sqlite.engine import SQLiteStore
from holdfast.wiring import command_environment, toolbox_of

SECRETS = (
    *("HOLDFAST_API_KEY", "OPENAI_API_KEY", "UPSTREAM_KEY", "PGPASSWORD"),
    *("HOLDFAST_STORE__URL", "HOLDFAST_HOME", "HOLDFAST_NOTIFY__WEBHOOK"),
)


@pytest.mark.parametrize(
    ("kind", "tools", "hidden"),
    [
        (NodeKind.SERVER, [], True),
        (NodeKind.SERVER, ["terminal"], True),
        (NodeKind.CLI, ["terminal"], True),
        (NodeKind.LIBRARY, [], False),
    ],
)
def test_keys_are_hidden_where_others_or_a_model_may_start_commands(
    monkeypatch: pytest.MonkeyPatch, kind: NodeKind, tools: list[str], hidden: bool
) -> None:
    for name in (*SECRETS, "HARMLESS"):
        monkeypatch.setenv(name, "x")
    settings = load(
        environment={}, given={"agent": {"tools": tools}, "model": {"api_key_env": "UPSTREAM_KEY"}}
    )
    found = command_environment(settings, kind)
    assert [name in found for name in SECRETS] == [not hidden] * len(SECRETS)
    assert "HARMLESS" in found


def test_a_key_of_ours_is_hidden_under_whatever_name(monkeypatch: pytest.MonkeyPatch) -> None:
    _, token = new_key("ada", Scope.CHAT, (), datetime.now(UTC))
    monkeypatch.setenv("MY_SCRIPTS_KEY", f"Bearer {token}")
    assert "MY_SCRIPTS_KEY" not in command_environment(load(environment={}), NodeKind.SERVER)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_a_hidden_process_shows_its_environment_to_no_command_of_the_same_user() -> None:
    script = """
import ctypes, os, subprocess, sys
from holdfast.os_support import hide_from_own_user, is_hidden, start_of
is_hidden()
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as a program that was started by that user
look = ["/bin/sh", "-c", "tr '\\\\0' '\\\\n' < /proc/$PPID/environ | grep -c SECRET=hunter2; true"]
before = subprocess.run(look, capture_output=True, text=True).stdout.strip()
assert hide_from_own_user() and is_hidden()
after = subprocess.run(look, capture_output=True, text=True).stdout.strip()
reads = "cat /proc/self/environ > /dev/null && cat /proc/$PPID/stat"
child = subprocess.run(["/bin/sh", "-c", reads], capture_output=True)
print(before, after or "nothing", child.returncode, start_of(os.getpid()) is not None)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "SECRET": "hunter2"},
        check=False,
        capture_output=True,
        text=True,
    )
    # Its stat, which tells processes apart, stays readable, and what it starts is not hidden.
    assert done.stdout.split() in (["1", "0", "0", "True"], ["1", "nothing", "0", "True"]), done.stderr


def test_the_settings_choose_the_tools(store: SQLiteStore, supervisor: Supervisor) -> None:
    agent = load(environment={}, given={"agent": {"tools": ["search", "terminal"], "max_steps": 7}}).agent
    toolbox = toolbox_of(agent, store, supervisor, {})
    names = [schema["function"]["name"] for schema in toolbox.schemas({"search", "terminal", "process"}, ())]
    assert (sorted(names), toolbox.max_steps) == (["search", "terminal"], 7)


def test_a_tool_that_does_not_exist_is_refused() -> None:
    with pytest.raises(BadSetting, match=r"agent.tools has 'abacus'; each must look like terminal or"):
        load(environment={}, given={"agent": {"tools": ["memory", "abacus"]}})
