"""How lists name sessions, and which of them a filter finds."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from holdfast.domain.headings import Heading
from holdfast.domain.pages import is_named, name_of
from holdfast.domain.sessions import Session
from holdfast.domain.views import View

NOW = datetime(2026, 3, 1, tzinfo=UTC)
HEADINGS = {"conv_1": Heading("The low water of Oban")}


def session(key: str | None = None, title: str | None = None) -> Session:
    return Session(
        "sess_00ada1", "conv_1", "default", key, title, "cli", False, None, None, None, "sess_00ada1",
        1, NOW, NOW, None, None, None, None, View.fresh(0), 1, 2, None, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("shown", "headings", "name"),
    [
        (session(), {}, ""),
        (session(), HEADINGS, "The low water of Oban"),
        (session(title="Tides"), HEADINGS, "Tides"),
        (session(key="cli:ada"), {}, "cli:ada"),
        (session(key="cli:ada", title="Tides"), HEADINGS, "cli:ada Tides"),
    ],
)
def test_what_a_list_calls_a_session(shown: Session, headings: dict[str, Heading], name: str) -> None:
    assert name_of(shown, headings) == name


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("", True),
        ("low water", True),
        ("oban", True),
        ("ada", False),  # it is in the id
        ("sess_", True),
        ("sess_00ada", True),
        ("sess_0ada", False),
        ("s_00ada1", False),
    ],
)
def test_a_filter_finds_words_in_names_and_the_beginning_of_ids(words: str, found: bool) -> None:
    assert is_named(session(), HEADINGS, words) is found
