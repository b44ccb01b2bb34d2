"""Log lines as JSON: one object a line, whatever the message holds."""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime

import pytest

from holdfast.cli.logs import JSONLines, TextLines


def test_a_line_is_one_json_object_with_its_reason() -> None:
    record = logging.LogRecord("holdfast.x", logging.WARNING, "f", 1, "a\n%s", ("b",), None)
    line = JSONLines().format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert (found["level"], found["logger"], found["message"]) == ("warning", "holdfast.x", "a\nb")
    assert found["at"].endswith("Z")


def test_an_exception_goes_along() -> None:
    try:
        raise ValueError("no")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "broke", (), info)
    assert "ValueError: no" in json.loads(JSONLines().format(record))["exception"]


def without_time(line: str) -> str:
    at, _, rest = line.partition(" ")
    assert datetime.fromisoformat(at).tzinfo is not None
    return rest


HOSTILE = "key\x1b[2J\x07\r\nERROR holdfast: forged\x85\u202e\u2028"


def record_of(message: str, *values: object) -> logging.LogRecord:
    return logging.LogRecord("holdfast.test", logging.INFO, __file__, 1, message, values, None)


def test_what_others_wrote_reaches_the_log_only_as_printable_text() -> None:
    text = TextLines().format(record_of("session %s ended", HOSTILE))
    assert text.isprintable()
    assert without_time(text).startswith(r"INFO holdfast.test: session key\x1b[2J\x07\r\nERROR")
    line = JSONLines().format(record_of("session %s ended", HOSTILE))
    assert line.isprintable()
    assert json.loads(line)["message"] == f"session {HOSTILE} ended", "a reader of JSON gets it as it was"


def test_a_traceback_keeps_its_lines_and_forges_none() -> None:
    record = record_of("it failed")
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        record.exc_info = sys.exc_info()
    text = TextLines().format(record)
    assert len(text.splitlines()) > 2
    assert all(line.isprintable() for line in text.split("\n"))
    assert JSONLines().format(record).isprintable()


def test_letters_of_other_scripts_stay_as_they_are() -> None:
    text = TextLines().format(record_of("Ünïcode 東京 %s", "é"))
    assert without_time(text) == "INFO holdfast.test: Ünïcode 東京 é"


@pytest.mark.parametrize(
    ("zone", "text"),
    [("UTC", "2026-03-01T08:00:00.250+00:00"), ("Asia/Kolkata", "2026-03-01T13:30:00.250+05:30")],
)
def test_a_line_begins_with_the_time_of_this_machine_and_its_offset(
    monkeypatch: pytest.MonkeyPatch, zone: str, text: str
) -> None:
    record = record_of("it began")
    record.created = datetime(2026, 3, 1, 8, 0, 0, 250_000, UTC).timestamp()
    with monkeypatch.context() as patched:
        patched.setenv("TZ", zone)
        time.tzset()
        try:
            assert TextLines().format(record) == f"{text} INFO holdfast.test: it began"
        finally:
            patched.undo()
            time.tzset()
