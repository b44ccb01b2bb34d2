"""The Grafana dashboard in docs/grafana: it asks only for what `/metrics` gives."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.integration.api.conftest import running_server

BOARD = Path(__file__).parents[3] / "docs" / "grafana" / "holdfast.json"
OTHERS = {"process_resident_memory_bytes", "holdfast_model_errors_total"}
"""Of the process; not on every system. Errors: none before the first."""


def board() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(BOARD.read_text("utf-8"))
    return found


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:holdfast|process)_\w+", expression))


async def test_every_figure_it_asks_for_is_in_metrics_and_every_metric_is_shown(tmp_path: Path) -> None:
    asked = {
        name for panel in board()["panels"] for each in panel["targets"] for name in names_in(each["expr"])
    }
    async with running_server(tmp_path) as server:
        await server.say("hello")
        text = (await server.client.get("/metrics")).text
    given = set(re.findall(r"^(\w+?)(?:\{| )", text, re.MULTILINE))
    assert asked - OTHERS - given == set()
    ours = {name for name in given if name.startswith("holdfast_")}
    ours = {
        re.sub(r"_(sum|count|created)$", "_bucket", name) for name in ours if not name.endswith("_created")
    }
    assert ours - asked == set()


def test_panels_have_names_places_and_a_source_that_is_asked_for() -> None:
    found = board()
    assert {each["name"] for each in found["templating"]["list"]} == {"datasource", "job", "instance"}
    places: set[tuple[int, int]] = set()
    for panel in found["panels"]:
        place = panel["gridPos"]
        assert panel["title"] and place["x"] + place["w"] <= 24
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert not cells & places, panel["title"]
        places |= cells
        assert panel["datasource"]["uid"] == "${datasource}"
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])
