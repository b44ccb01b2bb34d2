from collections.abc import AsyncIterator

import pytest

from holdfast.models.upstream import Upstream
from tests.unit.models.asking import KEY
from tests.unit.models.mock_upstream import MockUpstream, running


@pytest.fixture
async def server() -> AsyncIterator[MockUpstream]:
    async with running() as mock:
        yield mock


@pytest.fixture
async def upstream(server: MockUpstream) -> AsyncIterator[Upstream]:
    model = Upstream(server.url, KEY, timeout_seconds=60, backoff=(0, 0))
    yield model
    await model.close()
