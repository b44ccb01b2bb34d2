"""Which versions a requirement allows."""

from __future__ import annotations

import pytest

from holdfast.domain.version_ranges import Requirement, is_within, requirement_of


@pytest.mark.parametrize(
    ("version", "bounds", "allowed"),
    [
        ("0.53.0", ">=0.53,<0.55", True),
        ("0.54.9", "<0.55,>=0.53", True),
        ("0.52.4", ">=0.53,<0.55", False),
        ("0.55.0", ">=0.53,<0.55", False),
        ("0.55.0rc1", ">=0.53,<0.55", False),
        ("0.100", ">=0.53,<0.55", False),  # not as text
        ("3", ">=3.0", True),
        ("3.0.0", "<3", False),
        ("2026.10.11549", ">=2026.10", True),
        ("1.0+local", ">=1", True),
        ("0.0.1", "", True),
    ],
)
def test_a_version_is_compared_by_its_numbers(version: str, bounds: str, allowed: bool) -> None:
    assert is_within(version, bounds) is allowed


def test_another_operator_is_not_guessed_at() -> None:
    with pytest.raises(ValueError, match="~=1"):
        is_within("1.0", "~=1")


@pytest.mark.parametrize(
    ("line", "requirement"),
    [
        ("uvicorn<0.55,>=0.53", Requirement("uvicorn", "<0.55,>=0.53")),
        ("tzdata", Requirement("tzdata", "")),
        ("uvloop>=0.21; sys_platform != 'win32'", Requirement("uvloop", ">=0.21")),
        (
            "psycopg[binary]<3.4,>=3.2.1 ; extra == 'postgres'",
            Requirement("psycopg", "<3.4,>=3.2.1", "postgres"),
        ),
        ('google-adk>=2.13; extra == "google-adk"', Requirement("google-adk", ">=2.13", "google_adk")),
    ],
)
def test_a_line_of_the_metadata_is_read(line: str, requirement: Requirement) -> None:
    assert requirement_of(line) == requirement
