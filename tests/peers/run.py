"""Runs the frameworks' own suites against our adapters, on SQLite and PostgreSQL: `make peers`.

Prints a table: suite, version, store, tests passed and skipped; then every reason for a skip. Exits with 1 if
a test failed, or if a suite ran none.
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
from importlib.metadata import PackageNotFoundError, version
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
    command = [sys.executable, "-m", "pytest", "-p", "openai_agents_plugin", "-p", "no:langsmith_plugin"]
    paths = os.pathsep.join([str(ROOT / "tests" / "peers"), str(sources)])
    return _pytest(
        "openai-agents", [*command, *tests], sources, {"PYTHONPATH": paths, "HOLDFAST_PEERS_STORE": url}
    )


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


def google_adk(python: Path, tests: list[str], engine: str) -> Outcome:
    """The ADK has no suite for services: the behaviour of its reference services is a table of tests, which
    they and ours pass. Run in the ADK's own environment."""
    marked = "not soak and " + ("postgres" if engine == "PostgreSQL" else "not postgres")
    command = [str(python), "-m", "pytest", "-n", "0", "-m", marked, "-k", "google_adk"]
    return _pytest("google-adk", [*command, *tests], ROOT, {})


def three_frameworks(adk: Path) -> Outcome:
    """Agents of three frameworks on one server's store, killed and resumed."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "tests/acceptance/test_three_frameworks.py"]
    return _pytest("holdfast", command, ROOT, {"HOLDFAST_TEST_ADK": str(adk)})


def _pytest(package: str, command: list[str], where: Path, environment: dict[str, str]) -> Outcome:
    command += ["-q", "-rfEs", "--tb=short", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=where, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    counted = re.search(r"(\d+) passed", done.stdout)
    outcome = Outcome(package, int(counted[1]) if counted else 0)
    for number, reason in re.findall(r"^SKIPPED \[(\d+)\] [^ ]+: (.*)$", done.stdout, re.MULTILINE):
        outcome.skipped[reason] += int(number)
    if done.returncode:
        found = re.findall(r"^(?:FAILED|ERROR) (.*)$", done.stdout, re.MULTILINE)
        outcome.failed = found or [(done.stdout + done.stderr)[-500:]]
    return outcome


SUITES: list[Callable[[str, Path], Outcome]] = [openai_agents, langgraph, claude_agent_sdk]
ADK_TESTS = [
    "tests/integration/adapters/test_google_adk.py",
    "tests/integration/adapters/test_like_any_conversation.py",
    "tests/reliability/test_adapters_crash.py",
]


def main(sources: Path, adk: Path) -> int:
    server = postgres_server.shared(uuid.uuid4().hex, os.getpid())
    outcomes: list[tuple[Outcome, str]] = []
    with tempfile.TemporaryDirectory() as directory:
        os.environ["HOLDFAST_HOME"] = directory
        for suite in SUITES:
            stores = {
                "SQLite": f"sqlite:///{directory}/{suite.__name__}.db",
                "PostgreSQL": server.url(server.new_database()),
            }
            for engine, url in stores.items():
                outcomes.append((suite(url, sources), engine))
    for engine in ("SQLite", "PostgreSQL"):
        outcomes.append((google_adk(adk, ADK_TESTS, engine), engine))
    outcomes.append((three_frameworks(adk), "SQLite"))
    return report(outcomes)


def report(outcomes: list[tuple[Outcome, str]]) -> int:
    """Print the table, then every skipped test's reason and every failure; 1 if there is one."""
    print("| suite | version | store | passed | failed | skipped |\n|---|---|---|--:|--:|--:|")
    for outcome, engine in outcomes:
        skipped = sum(outcome.skipped.values())
        known = version_of(outcome.package)
        counts = f"{outcome.passed} | {len(outcome.failed)} | {skipped}"
        print(f"| {outcome.package} | {known} | {engine} | {counts} |")
    for outcome, engine in outcomes:
        for reason, number in outcome.skipped.items():
            print(f"{outcome.package} on {engine}: skipped {number}: {reason}")
        for failure in outcome.failed:
            print(f"{outcome.package} on {engine}: FAILED {failure}")
        if not outcome.passed and not outcome.failed:
            print(f"{outcome.package} on {engine}: no test was run")
    return 1 if any(outcome.failed or not outcome.passed for outcome, _ in outcomes) else 0


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # in an environment of its own
        lock = (ROOT / "requirements" / "google_adk.lock").read_text("utf-8")
        found = re.search(rf"^{package}==(\S+)", lock, re.MULTILINE)
        return found[1] if found else "?"


if __name__ == "__main__":
    # Not resolved: the link to the interpreter is what selects the environment.
    sys.exit(main(Path(sys.argv[1]).resolve(), Path.cwd() / sys.argv[2]))
