"""Builds the toolbox with the tools that the settings name."""

from __future__ import annotations

from collections.abc import Mapping

from ...settings import AgentSettings
from ...store.store import Store
from ..processes.supervisor import Supervisor
from .memory import MemoryTool
from .process import ProcessTool
from .reconcile import ReconcileWebhook
from .search import SearchTool
from .terminal import Terminal
from .toolbox import Tool, Toolbox


def toolbox_of(
    settings: AgentSettings,
    store: Store,
    supervisor: Supervisor,
    environment: Mapping[str, str],
    *,
    recalls_all: bool = False,
) -> Toolbox:
    """`environment`: the environment of commands. `recalls_all`: the memory tool sees all of its owner's
    memories."""
    known: list[Tool] = [
        Terminal(supervisor, environment),
        ProcessTool(store, supervisor),
        SearchTool(store, whole_owner=settings.search == "owner"),
        MemoryTool(store, whole_owner=recalls_all),
    ]
    reconcile = ReconcileWebhook(settings.reconcile) if settings.reconcile else None
    return Toolbox([tool for tool in known if tool.name in settings.tools], settings.max_steps, reconcile)
