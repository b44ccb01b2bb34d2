"""What acceptance tests share: a home for the command, and a model whose words the test decides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .command import Home
from .talker import Talker


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home where the model repeats what was said."""
    return Home(tmp_path / "home")


@pytest.fixture
def talker() -> Iterator[Talker]:
    with Talker().running() as talker:
        yield talker


@pytest.fixture
def talking(tmp_path: Path, talker: Talker) -> Home:
    """A home where the talker answers."""
    return Home(tmp_path / "home", {"HOLDFAST_MODEL__KIND": "openai", "HOLDFAST_MODEL__BASE_URL": talker.url})
