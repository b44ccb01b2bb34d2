"""`holdfast models` and `holdfast notices`, and what `serve` says about its model."""

from __future__ import annotations

import json
import urllib.request

from .command import Home
from .serving import serving


def test_the_models_are_those_that_the_server_lists(home: Home) -> None:
    home.environment["HOLDFAST_MODEL__ALIASES"] = "gpt-4o=scripted,*=scripted"
    listed = home.json("models")
    assert [entry["id"] for entry in listed["data"]] == ["scripted", "gpt-4o"]
    shown = home.ok("models")
    assert "alias of scripted" in shown and "Every other name is answered by scripted." in shown
    with serving(home) as server:
        assert server.ask("GET", "/v1/models") == (200, listed)


def test_a_server_whose_model_is_down_says_so_and_serves(home: Home) -> None:
    home.environment |= {
        "HOLDFAST_MODEL__KIND": "openai",
        "HOLDFAST_MODEL__BASE_URL": "http://127.0.0.1:9/v1",
    }
    with serving(home) as server:
        with urllib.request.urlopen(f"{server.url}/readyz") as answer:
            ready = json.load(answer)
        assert (ready["status"], ready["model"]["status"]) == ("ready", "down")
        assert server._running is not None
        server._running.wait_for("store")
        assert b"DOWN" in server._running.printed and b"Connection refused" in server._running.printed
        assert server.ask("GET", "/api/sessions")[0] == 200


def test_notices_are_listed_and_marked(home: Home) -> None:
    assert home.json("notices")["data"] == []
    home.ok("run", "--key", "cli:ada", "hello")
    assert home.json("notices", "--undelivered")["data"] == []
    refused = home.run("notices", "delivered", "note_" + "0" * 32)
    assert refused.returncode == 1 and "note_" in refused.stderr


def test_waiting_turns_are_listed_and_given_up(home: Home) -> None:
    assert home.json("turns")["data"] == []
    assert home.json("turns", "list", "--waiting")["data"] == []
    for act in ("retry", "give-up"):
        refused = home.run("turns", act, "turn_" + "0" * 32)
        assert refused.returncode == 1
        assert "no turn" in refused.stderr or "no store" in refused.stderr
