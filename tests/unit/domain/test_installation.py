"""What adds a package, by how holdfast was installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.domain.installation import Installation, Installer, install_command
from holdfast.os_support import installation

PIPX = "/home/ada/.local/share/pipx/venvs/holdfast"
TOOL = "/home/ada/.local/share/uv/tools/holdfast"
CLONE = "/home/ada/my clone/.venv"


@pytest.mark.parametrize(
    ("installed", "command"),
    [
        # a clone whose environment uv made: without pip, by the uv on the path or the one that was fetched
        (
            Installation(f"{CLONE}/bin/python", CLONE, has_pip=False, uv="uv"),
            f"uv pip install --python '{CLONE}' 'psycopg[binary]'",
        ),
        (
            Installation(f"{CLONE}/bin/python", CLONE, has_pip=False, uv="/home/ada/clone/build/uv/1/bin/uv"),
            f"/home/ada/clone/build/uv/1/bin/uv pip install --python '{CLONE}' 'psycopg[binary]'",
        ),
        (
            Installation("/c/.venv/bin/python", "/c/.venv", has_pip=False),
            "/c/.venv/bin/python -m ensurepip && /c/.venv/bin/python -m pip install 'psycopg[binary]'",
        ),
        # a virtual environment with pip, also if there is a uv
        (Installation("/v/bin/python", "/v"), "/v/bin/python -m pip install 'psycopg[binary]'"),
        (Installation("/v/bin/python", "/v", uv="uv"), "/v/bin/python -m pip install 'psycopg[binary]'"),
        (Installation("", "/usr"), "python3 -m pip install 'psycopg[binary]'"),  # a frozen program
        (
            Installation(f"{PIPX}/bin/python", PIPX, Installer.PIPX, has_pip=False, uv="uv"),
            "pipx runpip holdfast install 'psycopg[binary]'",
        ),
        (
            Installation("/p/venvs/holdfast-next/bin/python", "/p/venvs/holdfast-next", Installer.PIPX),
            "pipx runpip holdfast-next install 'psycopg[binary]'",
        ),
        (
            Installation(f"{TOOL}/bin/python", TOOL, Installer.UV_TOOL, has_pip=False, uv="uv"),
            f"uv pip install --python {TOOL} 'psycopg[binary]'",
        ),
        (
            Installation(f"{TOOL}/bin/python", TOOL, Installer.UV_TOOL, has_pip=False),
            f"uv pip install --python {TOOL} 'psycopg[binary]'",
        ),
    ],
)
def test_the_command_fits_the_installation(installed: Installation, command: str) -> None:
    assert install_command(installed, "psycopg[binary]") == command


def test_options_go_before_the_packages() -> None:
    assert install_command(Installation("/v/bin/python", "/v"), "--no-deps", "a", "b").endswith(
        "pip install --no-deps a b"
    )


def test_it_is_seen_how_an_environment_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = tmp_path / "clone"
    prefix = clone / ".venv"
    prefix.mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert (installation().installer, installation().uv) == (Installer.NONE, "")
    fetched = clone / "build" / "uv" / "0.1" / "bin" / "uv"
    fetched.parent.mkdir(parents=True)
    fetched.write_text("#!/bin/sh\n")
    fetched.chmod(0o755)
    assert installation().uv == str(fetched)
    monkeypatch.setenv("PATH", str(fetched.parent))
    assert installation().uv == "uv"
    (prefix / "uv-receipt.toml").touch()
    assert installation().installer is Installer.UV_TOOL
    (prefix / "pipx_metadata.json").touch()
    assert installation().installer is Installer.PIPX


def test_the_command_for_this_environment_can_be_run() -> None:
    command = install_command(installation(), "--dry-run", "--no-deps", "--no-index", "pip")
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
