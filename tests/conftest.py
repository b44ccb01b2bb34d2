"""Shared by all tests: a PostgreSQL, started when the first test needs it. `make quick` needs none."""

import tests.isolation  # noqa: F401, I001 - first: nothing may have read the user's settings before

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, settings
from starlette.routing import compile_path

from tests import new_stores, postgres_server
from tests.postgres_server import TEMPLATE, PostgresServer, ReusedDatabase

# Tests start hundreds of interpreters, and each worker rewrites every test module. Without bytecode on disk,
# each of them compiles all of holdfast again: a third of what a command takes to start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Tests started in the background or under nohup ignore Ctrl-C or SIGHUP, and so would their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# How long an example takes says more about the machine than about the test.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

DatabaseMaker = Callable[..., str]

SLOW_FILES = frozenset(
    {
        "contract/test_bad_input.py",
        "contract/test_sqlite_erasing.py",
        "contract/test_state_machine.py",
        "unit/cli/test_groups.py",
        "unit/models/test_connection.py",
        "unit/models/test_local.py",
        "unit/runtime/test_compactor.py",
        "unit/runtime/test_loops.py",
        "unit/runtime/test_supervisor.py",
        "unit/runtime/test_turn_runner.py",
        "unit/server/test_openai_items.py",
        "unit/test_layers.py",
        "unit/test_regular_expressions.py",
    }
)
"""Files that take more than nine seconds: `make quick` leaves them out, to stay under two minutes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use the server as `postgres`, and those of slow files as `slow`."""
    for item in items:
        if "postgres" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.postgres)
        if item.nodeid.partition("::")[0].removeprefix("tests/") in SLOW_FILES:
            item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name each skipped test as pytest takes it: .ci/run runs them where they can run, so that nothing is
    skipped in both."""
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        terminalreporter.write_line(f"not run here: {report.nodeid} | {reason.removeprefix('Skipped: ')}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """To import everything and to collect thousands of tests makes many objects and no garbage. They stay
    for the whole run: left to the collector, they would be walked again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def made_once() -> Iterator[None]:
    """Every client of httpx reads all certificates of the world, also if it never uses TLS: 30 ms each. Every
    server compiles the patterns of its routes: 5 ms each. Here all share what the first has made."""
    with pytest.MonkeyPatch.context() as patched:
        for library in filter(find_spec, ("httpx", "httpx2")):  # the second comes with some SDKs only
            transports = import_module(f"{library}._transports.default")
            patched.setattr(transports, "create_ssl_context", cache(transports.create_ssl_context))
        patched.setattr("starlette.routing.compile_path", cache(compile_path))
        yield


@pytest.fixture(scope="session", autouse=True)
def copied_stores() -> Iterator[None]:
    with new_stores.copied():
        yield


@pytest.fixture(scope="session", autouse=True)
def patient_searches() -> Iterator[None]:
    """A search on a loaded machine may take longer than a user shall wait. Tests of the deadline set their
    own."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("holdfast.store.search_terms.SEARCH_SECONDS", 60.0)
        yield


@pytest.fixture(scope="session")
def postgres(testrun_uid: str) -> PostgresServer:
    """The test run's server, shared by its workers."""
    in_worker = "PYTEST_XDIST_WORKER" in os.environ
    return postgres_server.shared(testrun_uid, os.getppid() if in_worker else os.getpid())


@pytest.fixture(scope="session")
def used_databases() -> list[str]:
    """Those of tests that are over. They are dropped before the next is made: by then whoever used them has
    closed its connections, and nobody has to wait for that."""
    return []


@pytest.fixture
def new_database(postgres: PostgresServer, used_databases: list[str]) -> Iterator[DatabaseMaker]:
    """Makes databases: copies of an empty store, or with `empty=True` nothing at all. Returns their URL."""
    made: list[str] = []

    def make(*, empty: bool = False) -> str:
        while used_databases:
            postgres.drop(used_databases.pop())
        if not empty:
            postgres.make_template(_make_store)
        made.append(postgres.new_database("template0" if empty else TEMPLATE))
        return postgres.url(made[-1])

    yield make
    used_databases += made


@pytest.fixture(scope="session")
def reused_database(postgres: PostgresServer) -> ReusedDatabase:
    """This worker's own, for tests that use nothing but an empty store."""
    postgres.make_template(_make_store)
    return ReusedDatabase(postgres)


def _make_store(url: str) -> None:
    from holdfast.store.postgres.engine import open_store

    async def make() -> None:
        await (await open_store(url)).close()

    with ThreadPoolExecutor(1) as elsewhere:  # the test that asks may have an event loop running
        elsewhere.submit(asyncio.run, make()).result()


@pytest.fixture
def no_threads() -> contextlib.AbstractContextManager[None]:
    """Within it no thread can be started."""

    @contextlib.contextmanager
    def refusing() -> Iterator[None]:
        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            yield

    return refusing()
