"""A store per engine, by its URL, and a node on it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.adapters.bridge import close_shared
from holdfast.app import Holdfast

ENGINES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        found: str = request.getfixturevalue("reused_database").url()
        return found
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    yield
    close_shared()


@pytest.fixture
async def hf(url: str) -> AsyncIterator[Holdfast]:
    async with holdfast.open(url) as node:
        yield node
