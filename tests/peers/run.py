"""Runs the frameworks' own suites against our adapters, on SQLite and PostgreSQL: `make peers`.

Prints for each suite its name and version, how many tests passed, and every skipped one with its reason.
Exits with 1 if a test failed.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import holdfast
from tests import postgres_server

ROOT = Path(__file__).parents[2]

SESSION_TESTS = [
    "test_session.py",
    "test_session_limit.py",
    "test_session_context_wrapper.py",
    "test_session_persistence_sanitize.py",
    "test_openai_responses_compaction_session.py",
    "test_compaction_model_visibility.py",
    "test_compaction_suffix.py",
]
"""Of the SDK's tests/memory: the others test its sessions in OpenAI's cloud and over SQLAlchemy."""


@dataclass
class Outcome:
    package: str
    passed: int
    failed: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    """Reasons, and how many tests were skipped for each."""


def openai_agents(url: str, sources: Path) -> Outcome:
    """The session tests of the SDK's source distribution."""
    tests = [str(Path("tests", "memory", name)) for name in SESSION_TESTS]
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "--tb=short", "-p", "openai_agents_plugin"]
    command += ["-p", "no:cacheprovider", "-p", "no:langsmith_plugin", *tests]
    paths = os.pathsep.join([str(ROOT / "tests" / "peers"), str(sources)])
    environment = {**os.environ, "PYTHONPATH": paths, "HOLDFAST_PEERS_STORE": url}
    done = subprocess.run(command, cwd=sources, env=environment, capture_output=True, text=True, check=False)
    counted = re.search(r"(\d+) passed", done.stdout)
    outcome = Outcome("openai-agents", int(counted[1]) if counted else 0)
    for number, reason in re.findall(r"^SKIPPED \[(\d+)\] [^ ]+: (.*)$", done.stdout, re.MULTILINE):
        outcome.skipped[reason] += int(number)
    if done.returncode:
        found = re.findall(r"^(?:FAILED|ERROR) (.*)$", done.stdout, re.MULTILINE)
        outcome.failed = found or [(done.stdout + done.stderr)[-500:]]
    return outcome


def langgraph(url: str, _: Path) -> Outcome:
    """Every capability of langgraph-checkpoint-conformance."""
    from langgraph.checkpoint.conformance import checkpointer_test, validate

    from holdfast.adapters.langgraph import HoldfastSaver

    @checkpointer_test(name="HoldfastSaver")
    async def saver() -> AsyncIterator[HoldfastSaver]:
        async with holdfast.open(url) as hf:
            yield HoldfastSaver(hf)

    report = asyncio.run(validate(saver))
    outcome = Outcome("langgraph-checkpoint-conformance", 0)
    for name, result in report.results.items():
        outcome.passed += result.tests_passed
        outcome.failed += result.failures or []
        if result.passed is None:
            outcome.skipped[f"capability {name} is not implemented"] += result.tests_skipped
    return outcome


def claude_agent_sdk(url: str, _: Path) -> Outcome:
    """The contracts of `claude_agent_sdk.testing`, each as an owner of its own, whose store is empty."""
    from claude_agent_sdk.testing import run_session_store_conformance

    from holdfast.adapters.bridge import close_shared
    from holdfast.adapters.claude_agent_sdk import HoldfastSessionStore

    made: list[HoldfastSessionStore] = []

    def make() -> HoldfastSessionStore:
        made.append(HoldfastSessionStore(url, owner=uuid.uuid4().hex))
        return made[-1]

    outcome = Outcome("claude-agent-sdk", 0)
    try:
        asyncio.run(run_session_store_conformance(make))
        outcome.passed = len(made) - 1  # the first only shows which methods there are
    except AssertionError as error:
        outcome.failed.append(f"contract {len(made) - 1}: {error!r}")
    finally:
        close_shared()
    return outcome


SUITES: list[Callable[[str, Path], Outcome]] = [openai_agents, langgraph, claude_agent_sdk]


def main(sources: Path) -> int:
    server = postgres_server.shared(uuid.uuid4().hex, os.getpid())
    failed = False
    with tempfile.TemporaryDirectory() as directory:
        os.environ["HOLDFAST_HOME"] = directory
        for suite in SUITES:
            stores = {
                "SQLite": f"sqlite:///{directory}/{suite.__name__}.db",
                "PostgreSQL": server.url(server.new_database()),
            }
            for engine, url in stores.items():
                outcome = suite(url, sources)
                failed = failed or bool(outcome.failed)
                print(
                    f"{outcome.package} {version(outcome.package)} on {engine}: {outcome.passed} passed, "
                    f"{len(outcome.failed)} failed, {sum(outcome.skipped.values())} skipped",
                    flush=True,
                )
                for reason, number in outcome.skipped.items():
                    print(f"    skipped {number}: {reason}")
                for failure in outcome.failed:
                    print(f"    FAILED {failure}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
