"""Containerfile, compose.yaml and the systemd unit, checked as text: nothing is built or started."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.settings import SECTIONS, ServerSettings, load
from tests.unit.test_team_page import UNITS

ROOT = Path(__file__).parents[2]
CONTAINER = (ROOT / "Containerfile").read_text("utf-8")
UNIT = (ROOT / "packaging" / "holdfast.service").read_text("utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
PORT = str(ServerSettings().port)


def instructions(name: str) -> list[str]:
    """The arguments of each instruction of this name in the Containerfile's last stage."""
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", CONTAINER, flags=re.MULTILINE)).splitlines()
    last = max(number for number, line in enumerate(lines) if line.startswith("FROM "))
    return [line.split(" ", 1)[1] for line in lines[last:] if line.startswith(f"{name} ")]


@pytest.mark.parametrize("text", [CONTAINER, UNIT, (ROOT / "compose.yaml").read_text("utf-8")])
def test_every_setting_that_is_named_exists(text: str) -> None:
    found = re.findall(r"\bHOLDFAST_([A-Z]+)__([A-Z_]+)\b", text)
    for section, name in found:
        assert name.lower() in SECTIONS[section.lower()].__dataclass_fields__, f"{section}__{name}"
    assert re.findall(r"\bHOLDFAST_(?:HOME|API_KEY|[A-Z]+__)", text)


def test_the_container_runs_as_a_user_that_owns_its_volume() -> None:
    assert instructions("USER") == ["holdfast"]
    assert instructions("VOLUME") == ["/data"] == instructions("WORKDIR")
    libraries, user = instructions("RUN")
    assert "libgomp1" in libraries
    assert "useradd --uid 10001" in user and "install -d -o holdfast -g holdfast -m 0700 /data" in user
    names = dict(pair.split("=", 1) for pair in shlex.split(" ".join(instructions("ENV"))))
    assert names["HOLDFAST_HOME"] == "/data"
    environment = {name: value for name, value in names.items() if name != "HOLDFAST_HOME"}
    settings = load(environment={**environment, "HOLDFAST_HOME": "/nonexistent"})
    assert (settings.server.host, str(settings.server.port)) == ("0.0.0.0", PORT)
    assert instructions("EXPOSE") == [PORT]
    assert json.loads(instructions("ENTRYPOINT")[0]) == ["holdfast"]
    assert json.loads(instructions("CMD")[0]) == ["serve"]


def test_the_health_checks_ask_what_needs_no_key() -> None:
    (check,) = instructions("HEALTHCHECK")
    command = json.loads(check[check.index("[") :])
    assert command == COMPOSE["services"]["holdfast"]["healthcheck"]["test"][1:]
    compile(command[2], "health check", "exec")
    assert f"http://127.0.0.1:{PORT}/healthz" in command[2]


def test_what_the_container_copies_is_not_ignored() -> None:
    kept = [
        line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")
    ]
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", CONTAINER, re.MULTILINE)
    for name in " ".join(copied).split():
        assert (ROOT / name).exists()
        assert name.split("/")[0] in kept


def test_the_composition_is_private_durable_and_waits_for_its_parts() -> None:
    services = COMPOSE["services"]
    assert set(services) == {"holdfast", "db", "webui"}
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        assert {volume.split(":")[0] for volume in service["volumes"]} <= set(COMPOSE["volumes"])
    server = services["holdfast"]
    assert server["build"]["dockerfile"] == "Containerfile"
    assert f"127.0.0.1:{PORT}:{PORT}" in server["ports"]
    assert "holdfast:/data" in server["volumes"]
    assert server["init"] is True
    url = server["environment"]["HOLDFAST_STORE__URL"]
    assert url.startswith("postgresql://holdfast:${POSTGRES_PASSWORD:?") and url.endswith("@db:5432/holdfast")
    assert server["environment"]["HOLDFAST_API_KEY"].startswith("${HOLDFAST_API_KEY:?"), "no default key"
    assert server["depends_on"] == {"db": {"condition": "service_healthy"}}
    assert services["webui"]["environment"]["OPENAI_API_BASE_URL"] == f"http://holdfast:{PORT}/v1"


def test_the_unit_is_the_one_that_the_page_shows() -> None:
    assert UNITS["holdfast.service"] == UNIT
    assert "User=holdfast" in UNIT and "ExecStart=/opt/holdfast/.venv/bin/holdfast serve" in UNIT
