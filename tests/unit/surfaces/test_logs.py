"""Log lines as JSON: one object a line, whatever the message holds."""

from __future__ import annotations

import json
import logging

from holdfast.surfaces.logs import JSONLines


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
