"""The files that "One server for a team" tells people to write: they are read by who will read them."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from holdfast.server.server import GRACE_SECONDS
from holdfast.settings import Settings, load

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "one-server-for-a-team.md").read_text("utf-8")
FILE = re.compile(r"`/etc/systemd/system/([\w.-]+)`:\n\n```ini\n(.*?)^```$", re.MULTILINE | re.DOTALL)
UNITS = dict(FILE.findall(PAGE))


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(UNITS[name])
    return parser


def settings(tmp_path: Path) -> Settings:
    text, *_ = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert tomllib.loads(text)
    file = tmp_path / "holdfast.toml"
    file.write_text(text, "utf-8")
    return load(file, {})


def test_the_settings_are_settings_and_let_the_machine_itself_in(tmp_path: Path) -> None:
    assert settings(tmp_path).server.allowed_hosts == ("agent.example.com",)


def test_the_service_comes_back_and_is_given_the_time_to_leave(tmp_path: Path) -> None:
    service = unit("holdfast.service")["Service"]
    assert service["Restart"] == "always"
    drain = settings(tmp_path).server.drain_seconds
    assert int(service["TimeoutStopSec"]) > 2 * drain + GRACE_SECONDS
    assert service["UMask"] == "0077"


def test_systemd_understands_the_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not here")
    assert set(UNITS) == {"holdfast.service", "holdfast-backup.service", "holdfast-backup.timer"}
    for name, text in UNITS.items():
        (tmp_path / name).write_text(text.replace("/opt/holdfast/.venv/bin/holdfast", "/bin/true"), "utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", *(f"./{name}" for name in sorted(UNITS))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
