"""A store per engine. Another engine adds its name to `ENGINES` and a branch to `open_another`.

The tests use nothing but the methods of the store contract. After each test that used `store`, its invariants
are checked: whatever a test did, none may be violated.
"""

import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.domain.nodes import Node
from holdfast.errors import StoreClosed
from holdfast.store.postgres.engine import open_store as open_postgres
from holdfast.store.sqlite.engine import open_store
from holdfast.store.store import Store
from tests.contract.steps import FLUSHING, POLICIES, Clock, new_node

ENGINES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]

Opener = Callable[[], Awaitable[Store]]
CopyOpener = Callable[[Path], Awaitable[Store]]


@pytest.fixture
def clock() -> Clock:
    """The store's time, which stands still until it is moved."""
    return Clock(datetime(2026, 3, 1, 12, tzinfo=UTC))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A directory for the test's database, in memory where the system offers that: what a store promises does
    not hang on the disk's speed. Whether it survives a crash is asked by tests/reliability, on real disks."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir=memory) as directory:
        yield Path(directory)


@pytest.fixture(params=ENGINES)
async def open_another(request: pytest.FixtureRequest, home: Path, clock: Clock) -> AsyncIterator[Opener]:
    """Opens the test's database once more, as another process would."""
    opened: list[Store] = []
    if request.param == "postgres":
        url = request.getfixturevalue("reused_database").url()

    async def open_it() -> Store:
        if request.param == "postgres":
            opened.append(await open_postgres(url, clock=clock, policies=POLICIES, flushing=FLUSHING))
        else:
            opened.append(
                await open_store(home / "store.db", clock=clock, policies=POLICIES, flushing=FLUSHING)
            )
        return opened[-1]

    yield open_it
    for store in opened:
        await store.close()


@pytest.fixture
async def open_copy(clock: Clock) -> AsyncIterator[CopyOpener]:
    """Opens what a backup has written."""
    opened: list[Store] = []

    async def open_it(target: Path) -> Store:
        opened.append(await open_store(target, clock=clock))
        return opened[-1]

    yield open_it
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_another: Opener) -> AsyncIterator[Store]:
    store = await open_another()
    yield store
    try:
        findings = await store.check()
    except StoreClosed:
        return
    assert findings == []


@pytest.fixture
async def second_store(open_another: Opener, store: Store) -> Store:
    """A second store object open on the same database, as another process would have."""
    return await open_another()


@pytest.fixture
async def node(store: Store) -> Node:
    """A node that has joined, on `store`."""
    return await new_node(store)


@pytest.fixture
async def second_node(second_store: Store) -> Node:
    """A node that has joined, on `second_store`."""
    return await new_node(second_store)
