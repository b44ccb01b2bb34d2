"""What commands find in their environment, and which tools the settings give."""

from __future__ import annotations

import pytest

from holdfast.domain.nodes import NodeKind
from holdfast.errors import BadSetting
from holdfast.rules import command_environment
from holdfast.runtime.supervisor import Supervisor
from holdfast.runtime.tools.choose import toolbox_of
from holdfast.settings import load
from holdfast.store.sqlite.engine import SQLiteStore

SECRETS = ("HOLDFAST_API_KEY", "OPENAI_API_KEY", "UPSTREAM_KEY")


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
    assert [name in found for name in SECRETS] == [not hidden] * 3
    assert "HARMLESS" in found


def test_the_settings_choose_the_tools(store: SQLiteStore, supervisor: Supervisor) -> None:
    agent = load(environment={}, given={"agent": {"tools": ["search", "terminal"], "max_steps": 7}}).agent
    toolbox = toolbox_of(agent, store, supervisor, {})
    names = [schema["function"]["name"] for schema in toolbox.schemas({"search", "terminal", "process"}, ())]
    assert (sorted(names), toolbox.max_steps) == (["search", "terminal"], 7)


def test_a_tool_that_does_not_exist_is_refused() -> None:
    with pytest.raises(BadSetting, match=r"agent.tools has 'abacus'; each must look like terminal or"):
        load(environment={}, given={"agent": {"tools": ["memory", "abacus"]}})
