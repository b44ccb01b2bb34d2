"""What acceptance tests share: a home for the command, and a model whose words the test decides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .command import CAN_FORK, Home
from .talker import Talker

FORKED = {
    *("test_bridge", "test_chat", "test_export", "test_hermes", "test_keys", "test_liveness"),
    *("test_launch", "test_restore", "test_run", "test_trust"),
}
"""Whose commands are forked from a warm process, because they start many: `Home.run` and `Home.start` only.
What these start in a terminal, in a shell or with Popen is the installed command, as it is in other files."""


@pytest.fixture
def forked(request: pytest.FixtureRequest) -> bool:
    return CAN_FORK and request.path.stem in FORKED


@pytest.fixture
def home(tmp_path: Path, forked: bool) -> Home:
    """A home where the model repeats what was said."""
    return Home(tmp_path / "home", forked=forked)


@pytest.fixture
def talker() -> Iterator[Talker]:
    with Talker().running() as talker:
        yield talker


@pytest.fixture
def talking(tmp_path: Path, talker: Talker, forked: bool) -> Home:
    """A home where the talker answers."""
    environment = {"HOLDFAST_MODEL__KIND": "openai", "HOLDFAST_MODEL__BASE_URL": talker.url}
    return Home(tmp_path / "home", environment, forked=forked)
