from collections.abc import AsyncIterator

import pytest

from tests.unit.models.mock_upstream import MockUpstream, running


@pytest.fixture
async def server() -> AsyncIterator[MockUpstream]:
    async with running() as mock:
        yield mock
