"""Tools on a real store, a real supervisor and real commands."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.domain.api_keys import TOOLS
from holdfast.domain.conversations import Address
from holdfast.domain.processes import ProcessLimits
from holdfast.domain.sessions import Session
from holdfast.os_support import running_processes
from holdfast.runtime.processes.probe import members
from holdfast.runtime.processes.supervisor import Supervisor
from holdfast.runtime.tools.toolbox import Tool, Toolbox, ToolCall
from holdfast.store.sqlite.engine import SQLiteStore
from tests.unit.runtime.conftest import Joined, clock, joined, store

__all__ = ["clock", "joined", "store"]

OWNER = "ada"
LIMITS = ProcessLimits(grace=timedelta(seconds=1))


@pytest.fixture
async def session(store: SQLiteStore, joined: Joined) -> Session:
    return await store.open_session(OWNER, Address(key="cli:ada"), (await joined()).id)


@pytest.fixture
async def supervisor(store: SQLiteStore, joined: Joined, tmp_path: Path) -> AsyncIterator[Supervisor]:
    node = await joined()
    yield Supervisor(store, lambda: node.id, tmp_path / "processes", LIMITS)
    for process in (await store.processes(None, limit=1000)).items:
        for one in members(process, running_processes(), thorough=True):
            os.kill(one.pid, signal.SIGKILL)


@dataclass
class Caller:
    """Calls tools as the loop does, on behalf of one session."""

    session: Session
    rights: frozenset[str] = frozenset(TOOLS)

    async def __call__(self, tool: Tool, raw: str | None = None, **arguments: Any) -> str:
        given = msgspec.json.encode(arguments).decode() if raw is None else raw
        who = self.session
        call = ToolCall(
            "call", tool.name, given, who.owner, who.conversation_id, who.id, "turn", "turn.2.0", self.rights
        )
        return await Toolbox([tool]).run(call)

    def with_rights(self, *rights: str) -> Caller:
        return replace(self, rights=frozenset(rights))

    def of(self, session: Session) -> Caller:
        return replace(self, session=session)


@pytest.fixture
def call(session: Session) -> Caller:
    return Caller(session)
